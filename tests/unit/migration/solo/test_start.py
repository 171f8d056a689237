"""The driver's part of a solo run, with a stub in place of the supervisor."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from structlog.testing import capture_logs

from rechannel.migration.solo import SoloError, start
from rechannel.migration.solo.start import SoloRun, environment
from rechannel.wire.codes import Mode

READY = "print('ready', sys.argv[2], flush=True)\n"
WAIT = "sys.stdin.read()\n"
Stub = Callable[[str], None]


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stub:
    """Have a module with this body run as the supervisor; its second argument is a configuration."""
    config = tmp_path / "rechannel.toml"
    config.write_text('[controller]\nlisten = "127.0.0.1:4711"\n[reschedule]\nmode = "apply"\n')
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(start, "_SUPERVISOR", "stub_of_supervisor")

    def write(body: str) -> None:
        lines = (
            "import os, pathlib, sys",
            f"sys.argv.append({str(config)!r})",
            f"new = pathlib.Path({str(tmp_path)!r}, 'new')",
            "new.write_text(str(os.getpid()))",
            "new.rename(new.with_name('pid'))",
        )
        (tmp_path / "stub_of_supervisor.py").write_text("\n".join((*lines, body)))

    return write


def pid(directory: Path) -> int:
    return int((directory / "pid").read_text())


def test_it_is_ready_once_the_supervisor_is_and_ends_by_its_pipe(stub: Stub, tmp_path: Path) -> None:
    stub(READY + WAIT)
    with capture_logs() as lines:
        run = SoloRun(Mode.APPLY, os.environ)
        assert run.settings.reschedule.mode == "apply"
        supervisor = pid(tmp_path)
        assert psutil.pid_exists(supervisor)
        run.close()
    assert not psutil.pid_exists(supervisor)
    first, second = lines
    assert (first["mode"], first["web"]) == ("apply", "http://127.0.0.1:4711/")
    assert first["config"] == str(tmp_path / "rechannel.toml")
    assert second["sentence"] == start.WITHOUT_AGENTS
    assert run not in start._running


def test_the_mode_is_handed_on(stub: Stub) -> None:
    stub("print('problem', sys.argv[1], flush=True)\n")
    with pytest.raises(SoloError, match=r"^observe$"):
        SoloRun(Mode.OBSERVE, os.environ)


def test_a_supervisor_that_ends_at_once_is_an_error_with_its_last_line(stub: Stub) -> None:
    stub("raise ImportError('no module')\n")
    with pytest.raises(SoloError, match="ended at once: ImportError: no module"):
        SoloRun(Mode.OBSERVE, os.environ)
    stub("")
    with pytest.raises(SoloError, match="it printed nothing"):
        SoloRun(Mode.OBSERVE, os.environ)


def test_a_supervisor_that_is_not_ready_in_time_is_ended(
    stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub("import time\ntime.sleep(600)\n")
    monkeypatch.setattr(start, "_PATIENCE", 0.01)
    monkeypatch.setattr(start, "_END", 0.01)
    with pytest.raises(SoloError, match=r"not ready within 0\.01 s"):
        SoloRun(Mode.OBSERVE, os.environ)
    assert start._running == set()
    assert not (tmp_path / "pid").exists() or not psutil.pid_exists(pid(tmp_path))


def test_a_configuration_that_the_environment_spoils_ends_it(stub: Stub, tmp_path: Path) -> None:
    stub(READY + WAIT)
    with pytest.raises(ValueError, match="min_gain"):
        SoloRun(Mode.OBSERVE, os.environ | {"RECHANNEL_GATE__MIN_GAIN": "much"})
    assert not psutil.pid_exists(pid(tmp_path))


def test_the_light_distribution_has_no_solo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start.distribution, "is_complete", lambda: False)
    with pytest.raises(SoloError, match=r"rechannel-agent holds no controller.*pip install '\.\[solo\]'"):
        SoloRun(Mode.OBSERVE, os.environ)


def test_no_python_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    with pytest.raises(SoloError, match="cannot be started"):
        SoloRun(Mode.OBSERVE, os.environ)
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(SoloError, match="has no executable"):
        SoloRun(Mode.OBSERVE, os.environ)


def test_warnings_of_the_supervisor_and_its_unexpected_end_are_logged(stub: Stub) -> None:
    stub(READY + "print('Redis ended', flush=True)\n")
    with capture_logs() as lines:
        run = SoloRun(Mode.OBSERVE, os.environ)
        run._reader.join()
        run.close()
    sentences = [line for line in lines if line["log_level"] == "warning"]
    assert sentences[0]["sentence"] == "Redis ended"
    assert sentences[1]["event"].startswith("solo has ended; the queries go on")
    assert len(sentences) == 2


def test_it_has_neither_the_drivers_descriptors_nor_its_process_group(stub: Stub, tmp_path: Path) -> None:
    """A notebook interrupts its process group; a server that speaks with its shell over pipes waits for their end."""
    stub(READY + WAIT)
    read, write = os.pipe()
    os.set_inheritable(write, True)
    run = SoloRun(Mode.OBSERVE, os.environ)
    os.close(write)
    assert os.read(read, 1) == b"", "nobody else holds the other end"
    os.close(read)
    files = [str(Path(f"/proc/{pid(tmp_path)}/fd/{number}").readlink()) for number in range(3)]
    assert [name.partition(":")[0] for name in files] == ["pipe"] * 3
    assert os.getpgid(pid(tmp_path)) == os.getsid(pid(tmp_path)) == pid(tmp_path)
    run.close()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_that_outlives_the_driver_does_not_hold_the_pipe(stub: Stub, tmp_path: Path) -> None:
    stub(READY + WAIT)
    run = SoloRun(Mode.OBSERVE, os.environ)
    go_on, may_end = os.pipe()
    child = os.fork()
    if not child:
        os.read(go_on, 1)
        os._exit(0)
    run.close()  # waits for the supervisor's end, while the child lives
    assert not psutil.pid_exists(pid(tmp_path))
    os.write(may_end, b".")
    assert os.waitpid(child, 0)[1] == 0
    os.close(go_on)
    os.close(may_end)


def test_variables_that_lead_elsewhere_are_left_out() -> None:
    settings = {"RECHANNEL_GATE__MIN_GAIN": "0.2", "HOME": "/h"}
    elsewhere = {
        "RECHANNEL_CONFIG": "/c",
        "RECHANNEL_REDIS__URL": "redis://h",
        "RECHANNEL_SIGNING__PRIVATE_KEY_FILE": "/k",
        "RECHANNEL_CLUSTER__NAME": "c",
        "RECHANNEL_RESCHEDULE__MODE": "apply",
        "NOTIFY_SOCKET": "/s",
        "WATCHDOG_USEC": "1",
        "WATCHDOG_PID": "1",
    }
    variables = environment(settings | elsewhere)
    paths = variables.pop("PYTHONPATH").split(os.pathsep)
    assert variables == settings
    assert [path for path in sys.path if Path(path).is_absolute() and path not in paths] == []
    assert any((Path(path) / "rechannel" / "__init__.py").is_file() for path in paths)
