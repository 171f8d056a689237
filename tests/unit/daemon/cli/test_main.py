"""The parts of the command line that need no Redis."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import tomllib
from importlib import resources
from pathlib import Path

import pytest
import structlog
from click.testing import CliRunner

from rechannel.conf.loader import load
from rechannel.conf.render import bounds
from rechannel.conf.settings import Settings, SettingsError, fields
from rechannel.daemon.cli.client import ControllerClient
from rechannel.daemon.cli.main import OVERVIEW, main
from rechannel.daemon.service import signer_of
from rechannel.wire import exit_codes
from rechannel.wire.commands import Command, Plan, Rebalance

EXAMPLE = (resources.files("rechannel.conf") / "rechannel.toml").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RECHANNEL_CONFIG", raising=False)


def test_help_documents_every_exit_code() -> None:
    text = CliRunner().invoke(main, ["--help"]).stdout
    for code in exit_codes.ExitCode:
        assert f"{int(code)}  {code.meaning}" in text


def test_help_lists_every_command_once_and_in_full() -> None:
    listed = [name for commands in OVERVIEW.values() for name in commands]
    assert sorted(listed) == sorted(main.commands)
    text = CliRunner().invoke(main, ["--help"]).stdout
    for title, commands in OVERVIEW.items():
        assert f"\n{title}:\n" in text
        for name, summary in commands.items():
            assert re.search(rf"^  {name} +{re.escape(summary)}$", text, re.MULTILINE)
            assert len(summary) <= 45
    assert "\n    130  interrupted\n" in text


def test_a_file_that_is_no_plan_is_named_before_anybody_is_asked(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text("[1]")
    done = CliRunner().invoke(main, ["apply", str(path)])
    assert done.exit_code == 1
    assert done.stderr.startswith(f"rechannel: {path}: not a plan of `rechannel plan --save`: Expected `object`")


def test_help_imports_nothing_heavy() -> None:
    heavy = ("numpy", "redis", "rich", "msgspec", "apscheduler", "pyspark", "structlog")
    code = f"import sys, rechannel.daemon.cli.main; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("command", ["plan", "status", "history", "rebalance", "pause", "resume"])
def test_every_command_that_prints_has_json(command: str) -> None:
    assert "--json" in CliRunner().invoke(main, [command, "--help"]).stdout


def test_wrong_usage_is_two() -> None:
    assert CliRunner().invoke(main, ["fly"]).exit_code == 2


@pytest.mark.parametrize("as_json", [False, True])
def test_a_wrong_configuration_is_seven_and_names_every_mistake(tmp_path: Path, as_json: bool) -> None:
    path = tmp_path / "c.toml"
    path.write_text('[redis]\nurl = "http://x"\n[gate]\nmin_gain = 3\nmax = 1\n')
    done = CliRunner().invoke(main, ["status", "--config", str(path), *(["--json"] if as_json else [])])
    assert done.exit_code == 7
    assert all(field in done.stderr for field in ("redis.url", "gate.min_gain", "gate.max"))
    assert "Traceback" not in done.output
    first, *lines = done.stderr.splitlines()
    assert first == "rechannel: the configuration has 3 mistakes:"
    assert [line.split(":")[2] for line in lines] == [" redis.url", " gate.min_gain", " gate.max"]
    assert [line.strip().split(": ")[0] for line in lines] == [f"{path}:{number}" for number in (2, 4, 5)]
    if as_json:
        mistakes = [line.strip() for line in lines]
        error = f"configuration: {'; '.join(mistakes)}"
        assert json.loads(done.stdout) == {"error": error, "code": 7, "mistakes": mistakes}
    else:
        assert done.stdout == ""


def test_one_mistake_is_one_line() -> None:
    done = CliRunner().invoke(main, ["config", "check"], env={"RECHANNEL_GATE__MIN_GAIN": "2"})
    assert done.stderr == (
        "rechannel: configuration: RECHANNEL_GATE__MIN_GAIN: gate.min_gain: 2.0 is out of bounds; "
        "it must be between 0 and 1 share\n"
    )


def test_config_check_notes_variables_that_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = (
        "RECHANNEL_CONFG",
        "RECHANNEL_GATE_MIN_GAIN",
        "RECHANNEL_ZZZ",
        "RECHANNEL_LOG",
        "RECHANNEL_TEST_PATIENCE",
    )
    for name in variables:
        monkeypatch.setenv(name, "1")
    notes = json.loads(CliRunner().invoke(main, ["config", "check", "--json"]).stdout)["notes"]
    assert [note for note in notes if note.startswith("RECHANNEL")] == [
        "RECHANNEL_CONFG: no variable of Rechannel; did you mean RECHANNEL_CONFIG?",
        "RECHANNEL_GATE_MIN_GAIN: no variable of Rechannel; did you mean RECHANNEL_GATE__MIN_GAIN?",
        "RECHANNEL_ZZZ: no variable of Rechannel",
    ]


def test_a_configuration_file_that_is_not_there() -> None:
    done = CliRunner().invoke(main, ["config", "check", "--config", "/nonexistent.toml"])
    assert (done.exit_code, "cannot be read" in done.stderr) == (7, True)


def test_config_keys_makes_a_pair_and_never_overwrites_it(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["config", "keys", str(tmp_path / "k"), "--json"])
    paths = json.loads(done.stdout)
    assert done.exit_code == 0
    assert (Path(paths["private_key_file"]).stat().st_mode & 0o777) == 0o600
    assert Path(paths["public_key_file"]).exists()
    again = CliRunner().invoke(main, ["config", "keys", str(tmp_path / "k")])
    assert (again.exit_code, "exists" in again.stderr) == (1, True)


def test_config_show_has_every_setting() -> None:
    shown = json.loads(CliRunner().invoke(main, ["config", "show", "--json"]).stdout)["settings"]
    for name in fields():
        section, _, field = name.partition(".")
        assert field in shown[section]
    table = CliRunner().invoke(main, ["config", "show"]).stdout
    assert "max_utilization = 0.95" in table


def test_config_check_looks_at_what_the_settings_point_at(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('[signing]\nprivate_key_file = "/nowhere"\n[reschedule]\npolicy = "magic"\n')
    done = CliRunner().invoke(main, ["config", "check", "--config", str(path)])
    assert done.exit_code == 7
    assert "signing.private_key_file: /nowhere" in done.stderr
    assert "known are adaptive" in done.stderr
    fine = CliRunner().invoke(main, ["config", "check", "--json"])
    assert (fine.exit_code, json.loads(fine.stdout)["ok"]) == (0, True)


def test_config_looks_at_the_parameters_of_policies(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('[policies.adaptive]\nmode = "light"\nhorizn = 3\n')
    done = CliRunner().invoke(main, ["config", "check", "--config", str(path), "--json"])
    assert done.exit_code == 7
    assert json.loads(done.stdout)["error"] == (
        f"configuration: {path}:3: policies.adaptive.horizn: no such parameter; did you mean horizon? known are "
        "mode, limit, min_step, max_moves, move_seconds, load_rate, horizon"
    )
    shown = CliRunner().invoke(main, ["config", "show", "--config", str(path)]).stdout
    assert "[policies.adaptive]  #" in shown
    shown = CliRunner().invoke(main, ["config", "show", "--config", str(path), "--json"]).stdout
    assert json.loads(shown)["settings"]["policies"] == {"adaptive": {"mode": "light", "horizn": 3}}


def test_the_examples_of_policies_can_be_used(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    examples = re.findall(r"^# (\[policies\..*|\w+ = \".*)$", EXAMPLE, flags=re.MULTILINE)
    path.write_text("\n".join(examples))
    assert load(path, {}).policies == {
        "adaptive": {"mode": "light"},
        "fair-redistribution": {"weight": "inverse-distance"},
    }
    assert CliRunner().invoke(main, ["config", "check", "--config", str(path)]).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["plan"], Plan()),
        (["plan", "--policy", "even"], Plan(policy="even")),
        (["rebalance", "--policy", "even"], Plan(policy="even")),
        (["rebalance", "--policy", "even", "--apply"], Rebalance(policy="even")),
        (["rebalance", "--application", "app-1", "--force", "--apply"], Rebalance(application="app-1", force=True)),
    ],
)
def test_options_become_a_command(monkeypatch: pytest.MonkeyPatch, arguments: list[str], command: Command) -> None:
    sent: list[Command] = []
    monkeypatch.setattr(ControllerClient, "decide", lambda _client, command, _save=None: sent.append(command) or 0)
    assert CliRunner().invoke(main, arguments).exit_code == 0
    assert sent == [command]


def test_a_controller_without_a_key_does_not_start_and_says_what_to_do() -> None:
    done = CliRunner().invoke(main, ["controller"])
    assert done.exit_code == 7
    assert "signing.private_key_file" in done.stderr
    assert "rechannel config keys DIR" in done.stderr
    with pytest.raises(SettingsError):
        signer_of(Settings())


def test_a_controller_with_a_wrong_key_says_what_to_do(tmp_path: Path) -> None:
    key = tmp_path / "signing.key"
    key.write_text("nothing")
    path = tmp_path / "c.toml"
    path.write_text(f'[signing]\nprivate_key_file = "{key}"\n')
    done = CliRunner().invoke(main, ["controller", "--config", str(path)])
    assert done.exit_code == 7
    assert "holds no private key" in done.stderr
    assert "rechannel config keys DIR" in done.stderr


def test_the_agent_runs_for_the_node_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, bool]] = []

    def run_agent(settings: Settings, *, stop: threading.Event, **_: object) -> None:
        signal.raise_signal(signal.SIGTERM)
        calls.append((settings.node, stop.wait(5)))

    monkeypatch.setattr("rechannel.monitors.node.agent.run_agent", run_agent)
    monkeypatch.setattr("rechannel.daemon.log.set_up", lambda: None)
    caught = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [signal.getsignal(number) for number in caught]
    try:
        assert CliRunner().invoke(main, ["agent", "--node", "127.0.0.9"]).exit_code == 0
    finally:
        for number, handler in zip(caught, before, strict=True):
            signal.signal(number, handler)
    assert calls == [("127.0.0.9", True)]


def test_the_example_configuration_is_the_schema(tmp_path: Path) -> None:
    assert tomllib.loads(EXAMPLE) == {section: {} for section in tomllib.loads(EXAMPLE)}, "all values are commented out"
    path = tmp_path / "c.toml"
    path.write_text(re.sub(r"^#(\w+ = )", r"\1", EXAMPLE, flags=re.MULTILINE))
    assert load(path, {}) == Settings()
    values = tomllib.loads(path.read_text())
    assert [f"{section}.{field}" for section, names in values.items() for field in names] == list(fields())


def test_the_example_configuration_tells_unit_bounds_and_reason() -> None:
    text = " ".join(line.removeprefix("# ") for line in EXAMPLE.splitlines())
    for name, item in fields().items():
        rule = item.metadata
        assert rule["reason"] in text, name
        assert rule["unit"] in text, name
        assert bounds(rule) in text, name


def test_no_log_line_comes_between_a_commands_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemons log to standard error; so does what a command calls, for its standard output is data."""

    def look(_: Settings) -> tuple[list[str], list[str]]:
        structlog.get_logger("rechannel.signing").warning("public keys not read again")
        return [], []

    monkeypatch.setattr("rechannel.daemon.cli.config.check_keys", look)
    before = structlog.get_config()
    structlog.reset_defaults()
    try:
        done = CliRunner().invoke(main, ["config", "check", "--json"])
    finally:
        structlog.configure(**before)
    assert json.loads(done.stdout)["ok"] is True
    assert "public keys not read again" in done.stderr


def test_the_agent_logs_nothing_to_standard_output(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_agent(*_: object, **__: object) -> None:
        structlog.get_logger("rechannel.agent").warning("redis is away")

    monkeypatch.setattr("rechannel.monitors.node.agent.run_agent", run_agent)
    caught = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before, hook, config = [signal.getsignal(number) for number in caught], threading.excepthook, structlog.get_config()
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    try:
        monkeypatch.setattr("faulthandler.enable", lambda **_: None)
        done = CliRunner().invoke(main, ["agent", "--node", "127.0.0.9"])
    finally:
        threading.excepthook, root.handlers = hook, handlers
        root.setLevel(level)
        structlog.configure(**config)
        for number, handler in zip(caught, before, strict=True):
            signal.signal(number, handler)
    assert done.stdout == ""
    assert [json.loads(line)["event"] for line in done.stderr.splitlines()] == ["configuration", "redis is away"]


@pytest.mark.timeout(20)
def test_a_pipe_named_as_a_file_of_the_connection_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "password")
    path = tmp_path / "c.toml"
    path.write_text('[redis]\npassword_file = "password"\n')
    done = CliRunner().invoke(main, ["config", "check", "--config", str(path)])
    assert (done.exit_code, "redis.password_file: " in done.stderr) == (7, True)
    assert "is not a regular file; name one" in done.stderr
