"""Commands that need no Redis."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from click.testing import CliRunner

from rechannel.conf import render
from rechannel.conf.loader import load
from rechannel.conf.settings import Settings, SettingsError, fields
from rechannel.daemon.cli.client import ControllerClient
from rechannel.daemon.cli.main import OVERVIEW, main
from rechannel.daemon.service import signer_of
from rechannel.wire.commands import Command, Plan, Rebalance
from rechannel.wire.exit_codes import ExitCode
from unit.daemon.cli.command import run, write_config

EXAMPLE = render.to_template()


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RECHANNEL_CONFIG", raising=False)


def test_help_documents_every_exit_code() -> None:
    text = run("--help").stdout
    for code in ExitCode:
        assert f"{int(code)}  {code.meaning}" in text


def test_help_lists_every_command_once_and_in_full() -> None:
    listed = [name for commands in OVERVIEW.values() for name in commands]
    assert sorted(listed) == sorted(main.commands)
    text = run("--help").stdout
    for title, commands in OVERVIEW.items():
        assert f"\n{title}:\n" in text
        for name, summary in commands.items():
            assert re.search(rf"^  {name} +{re.escape(summary)}$", text, re.MULTILINE)
            assert len(summary) <= 45
    assert "\n    130  Interrupted.\n" in text


def test_an_invalid_plan_file_is_refused_before_a_request(tmp_path: Path) -> None:
    path = write_config(tmp_path, "[1]")
    done = run("apply", path, code=1)
    assert done.stderr.startswith(f"rechannel: {path}: not a plan of `rechannel plan --save`: Expected `object`")


def test_help_imports_nothing_heavy() -> None:
    heavy = ("numpy", "redis", "rich", "msgspec", "apscheduler", "pyspark", "structlog")
    code = f"import sys, rechannel.daemon.cli.main; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("command", ["plan", "status", "history", "rebalance", "pause", "resume"])
def test_every_command_that_prints_has_json(command: str) -> None:
    assert "--json" in run(command, "--help").stdout


@pytest.mark.parametrize("as_json", [False, True])
def test_a_wrong_configuration_has_exit_code_7_and_lists_all_mistakes(tmp_path: Path, as_json: bool) -> None:
    path = write_config(tmp_path, '[redis]\nurl = "http://x"\n[gate]\nmin_gain = 3\nmax = 1\n')
    done = run("status", "--config", path, *(["--json"] if as_json else []), code=7)
    assert "Traceback" not in done.output
    first, *lines = done.stderr.splitlines()
    assert first == "rechannel: the configuration has 3 mistakes:"
    places = [f"{path}:2: redis.url", f"{path}:4: gate.min_gain", f"{path}:5: gate.max"]
    mistakes = [line.strip() for line in lines]
    assert [": ".join(mistake.split(": ")[:2]) for mistake in mistakes] == places
    if as_json:
        error = f"configuration: {'; '.join(mistakes)}"
        assert json.loads(done.stdout) == {"error": error, "code": 7, "mistakes": mistakes}
    else:
        assert done.stdout == ""


def test_a_single_mistake_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECHANNEL_GATE__MIN_GAIN", "2")
    assert run("config", "check", code=7).stderr == (
        "rechannel: configuration: RECHANNEL_GATE__MIN_GAIN: gate.min_gain: 2.0 is out of bounds; "
        "it must be between 0 and 1 share\n"
    )


def test_mistakes_are_errors_in_the_journal(tmp_path: Path) -> None:
    path = write_config(tmp_path, "[gate]\nmin_gain = 3\nmax = 1\n")
    with (tmp_path / "journal").open("w+") as journal:
        status = os.fstat(journal.fileno())
        environment = os.environ | {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"}
        command = [sys.executable, "-m", "rechannel", "agent", "--config", path]
        assert subprocess.run(command, env=environment, stderr=journal, check=False).returncode == 7
        journal.seek(0)
        lines = journal.read().splitlines()
    assert len(lines) == 3
    assert all(line.startswith("<3>") for line in lines)


def test_config_check_notes_unknown_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONFG", "GATE_MIN_GAIN", "ZZZ", "LOG", "TEST_PATIENCE"):
        monkeypatch.setenv(f"RECHANNEL_{name}", "1")
    notes = json.loads(run("config", "check", "--json").stdout)["notes"]
    assert [note for note in notes if note.startswith("RECHANNEL")] == [
        "RECHANNEL_CONFG: no variable of Rechannel; did you mean RECHANNEL_CONFIG?",
        "RECHANNEL_GATE_MIN_GAIN: no variable of Rechannel; did you mean RECHANNEL_GATE__MIN_GAIN?",
        "RECHANNEL_ZZZ: no variable of Rechannel",
    ]


def test_config_check_checks_parameters_of_policies(tmp_path: Path) -> None:
    path = write_config(tmp_path, '[policies.adaptive]\nmode = "light"\nhorizn = 3\n')
    done = run("config", "check", "--config", path, "--json", code=7)
    assert json.loads(done.stdout)["error"] == (
        f"configuration: {path}:3: policies.adaptive.horizn: no such parameter; did you mean horizon? known are "
        "mode, limit, min_step, max_moves, move_seconds, load_rate, horizon"
    )
    shown = run("config", "show", "--config", path).stdout
    assert "[policies.adaptive]  #" in shown
    assert "max_utilization = 0.95" in shown
    shown = json.loads(run("config", "show", "--config", path, "--json").stdout)
    assert shown["settings"]["policies"] == {"adaptive": {"mode": "light", "horizn": 3}}


def test_the_example_policies_are_valid(tmp_path: Path) -> None:
    examples = re.findall(r"^# (\[policies\..*|\w+ = \".*)$", EXAMPLE, flags=re.MULTILINE)
    path = write_config(tmp_path, "\n".join(examples))
    assert load(path, {}).policies == {
        "adaptive": {"mode": "light"},
        "fair-redistribution": {"weight": "inverse-distance"},
    }
    run("config", "check", "--config", path)


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
    run(*arguments)
    assert sent == [command]


def test_a_controller_without_a_valid_key_does_not_start(tmp_path: Path) -> None:
    done = run("controller", code=7)
    assert "signing.private_key_file" in done.stderr
    assert "rechannel config keys DIR" in done.stderr
    with pytest.raises(SettingsError):
        signer_of(Settings())
    (tmp_path / "signing.key").write_text("nothing")
    path = write_config(tmp_path, '[signing]\nprivate_key_file = "signing.key"\n')
    done = run("controller", "--config", path, code=7)
    assert "holds no private key" in done.stderr
    assert "rechannel config keys DIR" in done.stderr


@pytest.fixture
def _signals() -> Iterator[None]:
    """The handlers of signals are put back afterwards."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("_signals")
def test_the_agent_runs_for_the_node_of_its_option(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, bool]] = []

    def run_agent(settings: Settings, *, stop: threading.Event, **_: object) -> None:
        signal.raise_signal(signal.SIGTERM)
        calls.append((settings.node, stop.wait(5)))

    monkeypatch.setattr("rechannel.monitors.node.agent.run_agent", run_agent)
    monkeypatch.setattr("rechannel.daemon.log.set_up", lambda: None)
    run("agent", "--node", "127.0.0.9")
    assert calls == [("127.0.0.9", True)]


def test_the_example_configuration_is_the_schema(tmp_path: Path) -> None:
    assert tomllib.loads(EXAMPLE) == {section: {} for section in tomllib.loads(EXAMPLE)}, "all values are commented out"
    path = write_config(tmp_path, re.sub(r"^#(\w+ = )", r"\1", EXAMPLE, flags=re.MULTILINE))
    assert load(path, {}) == Settings()
    values = tomllib.loads(path.read_text())
    assert [f"{section}.{field}" for section, names in values.items() for field in names] == list(fields())


@pytest.mark.usefixtures("_log_restored")
def test_log_lines_do_not_mix_with_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    def check_keys(_: Settings) -> tuple[list[str], list[str]]:
        structlog.get_logger("rechannel.signing").warning("public keys not read again")
        return [], []

    monkeypatch.setattr("rechannel.daemon.doctor.key_files.check_keys", check_keys)
    structlog.reset_defaults()
    done = run("config", "check", "--json")
    assert json.loads(done.stdout)["ok"] is True
    assert "public keys not read again" in done.stderr


@pytest.mark.usefixtures("_signals", "_log_restored")
def test_the_agent_logs_nothing_to_standard_output(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_agent(*_: object, **__: object) -> None:
        structlog.get_logger("rechannel.agent").warning("redis is away")

    monkeypatch.setattr("rechannel.monitors.node.agent.run_agent", run_agent)
    monkeypatch.setattr("faulthandler.enable", lambda **_: None)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    done = run("agent", "--node", "127.0.0.9")
    assert done.stdout == ""
    assert [json.loads(line)["event"] for line in done.stderr.splitlines()] == ["configuration", "redis is away"]


@pytest.mark.timeout(20)
def test_a_pipe_in_place_of_a_password_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "password")
    done = run("config", "check", "--config", write_config(tmp_path, '[redis]\npassword_file = "password"\n'), code=7)
    assert "redis.password_file: " in done.stderr
    assert "is not a regular file; name one" in done.stderr


def test_a_reader_that_has_enough_is_no_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_reader(*_: object, **__: object) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr("rechannel.daemon.cli.config.show", no_reader)
    assert run("config", "show", code=1).output == ""


def test_letters_that_the_locale_lacks_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "spark-defaults.conf"
    path.write_text("spark.task.cpus 2\n")
    done = CliRunner(charset="latin-1").invoke(main, ["doctor", "--conf", str(path)])
    assert (done.exit_code, "        ? set spark.task.cpus to 1" in done.output) == (0, True), done.output
