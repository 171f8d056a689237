"""No secret is shown: passwords and private keys carry a mark, and nothing that comes out of Rechannel has it."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import structlog
from click.testing import CliRunner
from integration.common import configured
from unit.daemon.fakes import APP

from rechannel.conf.loader import load
from rechannel.conf.settings import Settings, SettingsError
from rechannel.daemon.cli.main import main
from rechannel.daemon.service import run_controller
from rechannel.migration.link.mailbox import Mailbox
from rechannel.monitors.node.sender import Sender, open_store
from rechannel.wire.envelope import EnvelopeFactory
from rechannel.wire.redis.errors import StoreError
from rechannel.wire.redis.store import Store
from rechannel.wire.signing import KeyFileError, Signer, Verifier
from testbed.redis_server import RedisServer

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300), pytest.mark.usefixtures("lines")]
PASSWORD = "MARKEDpassword0123456789"
SERVER = {"password": PASSWORD}

# What each command is given, where it needs something; all others are run as they are.
GIVEN: dict[str, list[str]] = {
    "plan": ["--wait", "0.2"],
    "rebalance": ["--apply", "--wait", "0.2"],
    "rollback": ["--wait", "0.2"],
    "stop": ["--wait", "0.2"],
    "pause": ["--wait", "0.2"],
    "resume": ["--wait", "0.2"],
    "drain": ["127.0.0.2", "--wait", "0.2"],
    "undrain": ["127.0.0.2", "--wait", "0.2"],
    "apply": ["{directory}/plan.json", "--wait", "0.2"],
    "top": ["--once"],
    "config keys": ["{directory}/keys", "--rotate"],
    "acl add-node": ["127.0.0.2", "--password-file", "{directory}/password"],
    "acl add-role": ["operator", "--password-file", "{directory}/password"],
}
DAEMONS = ("agent", "controller")  # run below, for they do not end by themselves


@pytest.fixture
def config(server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "plan.json").write_text("{}")
    controller = {"lease": 10, "audit_file": str(tmp_path / "audit.jsonl")}
    path = configured(tmp_path, server, {"redis": {"timeout": 0.5}, "controller": controller}, password=PASSWORD)
    monkeypatch.setenv("RECHANNEL_CONFIG", str(path))
    return path


@pytest.fixture
def secrets(config: Path) -> list[str]:
    """The password, and the line of the private key that is the key."""
    return [PASSWORD, (config.parent / "keys/signing.key").read_text().splitlines()[1]]


def commands(group: click.Group, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, (*before, name))
        else:
            yield (*before, name)


COMMANDS = [sentence for sentence in commands(main) if sentence[0] not in DAEMONS]


# What may be wrong, as environment variables over the good configuration.
BREAKAGES: dict[str, dict[str, str]] = {
    "right": {},
    "wrong password": {"REDIS__PASSWORD_FILE": "{directory}/wrong"},
    "unknown user": {"REDIS__USERNAME": "nobody"},
    "redis away": {"REDIS__URL": "unix:///nonexistent.sock"},
    "password in the URL": {"REDIS__URL": "redis://joe:MARKEDurl@127.0.0.1/0"},
    "no URL": {"REDIS__URL": "redis:/joe:MARKEDurl@127.0.0.1/0"},
    "broken key": {"SIGNING__PRIVATE_KEY_FILE": "{directory}/broken.key"},
    "broken TLS key": {
        "REDIS__URL": "rediss://127.0.0.1:1/0",
        "REDIS__TLS_CERTIFICATE_FILE": "{directory}/broken.key",
        "REDIS__TLS_KEY_FILE": "{directory}/broken.key",
    },
    "private key for links": {"SIGNING__PUBLIC_KEY_FILE": "{directory}/broken.key"},
}


@pytest.fixture
def broken(request: pytest.FixtureRequest, config: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a configuration that is broken in the way that is the parameter."""
    directory = config.parent
    for name, text in (
        ("wrong", "MARKEDpassword-that-is-wrong\n"),
        ("broken.key", "-----BEGIN PRIVATE KEY-----\nMARKEDkey\n-----END PRIVATE KEY-----\n"),
    ):
        (directory / name).write_text(text)
        (directory / name).chmod(0o600)
    for name, value in BREAKAGES[request.param].items():
        monkeypatch.setenv(f"RECHANNEL_{name}", value.format(directory=directory))
    monkeypatch.chdir(directory)
    return directory


def clean(text: str, secrets: list[str]) -> None:
    for secret in ("MARKED", *secrets):
        assert secret not in text


@pytest.mark.parametrize("broken", BREAKAGES, indirect=True)
def test_no_command_shows_a_secret(broken: Path, secrets: list[str], lines: io.StringIO) -> None:
    for sentence in COMMANDS:
        arguments = [text.format(directory=broken) for text in GIVEN.get(" ".join(sentence), [])]
        for more in ([], ["--json"]):
            done = CliRunner().invoke(main, [*sentence, *arguments, *more])
            clean(done.output + done.stderr + lines.getvalue(), secrets)
            assert done.exception is None or isinstance(done.exception, SystemExit), (sentence, done.exception)


def test_showing_the_settings_names_files_and_not_what_they_hold(config: Path, secrets: list[str]) -> None:
    done = CliRunner().invoke(main, ["config", "show", "--json"])
    shown = json.loads(done.stdout)["settings"]
    assert shown["redis"]["password_file"].endswith("password")
    assert shown["signing"]["private_key_file"].endswith("signing.key")
    clean(done.output, secrets)


@pytest.mark.parametrize("broken", [name for name in BREAKAGES if "URL" not in name], indirect=True)
def test_no_daemon_logs_a_secret(broken: Path, secrets: list[str], lines: io.StringIO) -> None:
    settings = load(broken / "rechannel.toml")
    message = [repr(settings)]
    stop = threading.Event()
    stop.set()
    for act in (lambda: run_controller(settings, stop), lambda: _push(settings), lambda: _carry(settings, message)):
        try:
            act()
        except (StoreError, KeyFileError, SettingsError) as error:
            message.append(str(error) + repr(error) + repr(error.__cause__))
            structlog.get_logger("test").exception("as a daemon logs it")
    clean(lines.getvalue() + "".join(message), secrets)


def _push(settings: Settings) -> None:
    sender = Sender("127.0.0.2", lambda: open_store(settings), buffered_windows=10)
    sender.push()
    store: Any = open_store(settings)
    store.check()


def _carry(settings: Settings, message: list[str]) -> None:
    verifier = Verifier.from_file(settings.signing.public_key_file)
    courier = Mailbox(settings.redis, EnvelopeFactory("default", f"link@{APP}"), APP, verifier)
    message.append(repr(courier) + repr(vars(courier)) + repr(vars(verifier)))
    courier.read_orders()
    courier.read_last_placement("query")


def test_nothing_shows_a_secret_when_it_is_looked_at(config: Path, secrets: list[str], lines: io.StringIO) -> None:
    settings = load(config)
    store = Store(settings.redis, "default")
    signer = Signer.from_file(settings.signing.private_key_file, settings.signing.public_key_file)
    looked = [repr(settings), repr(store), repr(vars(store)), repr(signer), repr(vars(signer))]
    client: Any = store._redis
    looked += [repr(client), repr(client.connection_pool), repr(client.connection_pool.connection_kwargs)]
    store.check()
    looked.append(repr(vars(client)))
    try:
        password = PASSWORD  # a variable of a frame of the traceback
        raise RuntimeError(str(len(password)))
    except RuntimeError:
        structlog.get_logger("test").exception("failed")
    store.close()
    clean("".join(looked), secrets)
    assert "RuntimeError" in lines.getvalue()
    clean(lines.getvalue(), secrets)
