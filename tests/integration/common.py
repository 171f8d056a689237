"""Helpers of these tests: waiting, a configuration, commands, controllers in a thread or in a process of their own."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import redis
from click.testing import CliRunner, Result

from rechannel.conf.settings import Settings
from rechannel.daemon.cli.main import main
from rechannel.daemon.service import run_controller
from rechannel.wire import keys
from rechannel.wire.keys import Role
from rechannel.wire.messages import ControllerState
from rechannel.wire.redis.errors import StoreError
from rechannel.wire.redis.store import Store
from testbed.processes import ManagedProcess, ProcessGroup, wait_until
from testbed.redis_server import RedisServer
from testbed.stack import Sections, write_config

#: seconds that are waited at most; the variable makes it more for slow machines
PATIENCE = 60.0 * float(os.environ.get("RECHANNEL_TEST_PATIENCE", "1"))


#: most of a fake batch is overhead, so that moves gain a few percent of it
GATE = {"horizon": 60_000.0, "min_gain": 0.02, "max_residual": 10.0}


def until(condition: Callable[[], Any], what: str = "something") -> Any:
    """Wait until something holds, and return it; on a busy machine Redis may not answer in time."""

    def holds() -> Any:
        with contextlib.suppress(StoreError):
            return condition()

    return wait_until(holds, what, PATIENCE)


def configured(
    directory: Path, server: RedisServer | str, sections: Sections | None = None, *, password: str = "geheim"
) -> Path:
    """Write a configuration with a fresh key pair and, unless it is empty, the password's file."""
    own: dict[str, Any] = {}
    if password:
        (directory / "password").write_text(f"{password}\n")
        (directory / "password").chmod(0o600)
        own["password_file"] = str(directory / "password")
    url = server if isinstance(server, str) else f"unix://{server.socket_path}"
    sections = sections or {}
    return write_config(directory, url, {**sections, "redis": {**own, **sections.get("redis", {})}})


def raw(store: Store) -> redis.Redis:
    """The store's own connection."""
    return store._redis


def state(store: Store) -> ControllerState | None:
    """What the leader says of itself, None where none leads."""
    result = store.get(keys.STATE)
    return result.body if result is not None and result.expires > time.time() else None  # type: ignore[return-value]


def make_users(directory: Path, write: Callable[[str, Path, Role | None], Path]) -> dict[Role | None, Path]:
    """Make a user of each role; ``write`` makes the configuration file of a user. The one of None is the administrator.

    The agent's node is 127.0.0.2.
    """
    password = directory / "admin"
    password.write_text("geheim\n")
    password.chmod(0o600)
    files: dict[Role | None, Path] = {None: write("", password, None)}
    for role in Role:
        password = directory / f"{role}.password"
        arguments = ["acl", "add-role", role.value, *(["127.0.0.2"] if role is Role.AGENT else [])]
        user = run_json(*arguments, "--config", files[None], "--password-file", password)["user"]
        files[role] = write(user, password, role)
    return files


@contextlib.contextmanager
def leading(settings: Settings, leads: Callable[[], Any]) -> Iterator[None]:
    """A controller in a thread of this process; begun with once ``leads`` says so."""
    stop = threading.Event()
    thread = threading.Thread(target=run_controller, args=(settings, stop))
    thread.start()
    try:
        until(leads, "a leader")
        yield
    finally:
        stop.set()
        thread.join(PATIENCE)
    assert not thread.is_alive()


def run(*arguments: object, code: int = 0) -> Result:
    """Run a command of ours in this process."""
    done = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert done.exit_code == code, (arguments, done.output)
    assert "Traceback" not in done.output
    return done


def run_json(*arguments: object, code: int = 0) -> Any:
    """Run a command of ours and return its answer."""
    return json.loads(run(*arguments, "--json", code=code).stdout)


def start(group: ProcessGroup, name: str, command: str, config: Path, *arguments: str) -> ManagedProcess:
    """Start a daemon as a process, a controller under this name."""
    line = [sys.executable, "-m", "rechannel", command, "--config", str(config), *arguments]
    return group.start(name, line, env={**os.environ, "RECHANNEL_CONTROLLER__NAME": name})


def events(process: ManagedProcess) -> list[str]:
    """The names of the events that a daemon has logged."""
    lines = process.log.read_text().splitlines(keepends=True)
    return [json.loads(line)["event"] for line in lines if line.startswith("{") and line.endswith("\n")]


def end(process: ManagedProcess) -> None:
    """End a daemon in good order."""
    process.popen.terminate()
    assert process.popen.wait(PATIENCE) == 0, process.log_tail()
    assert "Traceback" not in process.log.read_text()
