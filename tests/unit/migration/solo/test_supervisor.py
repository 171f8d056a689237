"""Life of the supervisor's children: they end with the driver's pipe, and one that ends is started again."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from rechannel.migration.solo import SoloError, supervisor
from rechannel.migration.solo.run_directory import RunDirectory
from rechannel.migration.solo.server_binary import ServerBinary
from rechannel.migration.solo.supervisor import Supervisor, main
from rechannel.wire.codes import Mode

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short directory for temporary files."""
    with tempfile.TemporaryDirectory(prefix="solo") as path:
        monkeypatch.setattr(tempfile, "tempdir", path)
        yield Path(path)


@pytest.fixture
def directory(temporary: Path) -> Iterator[RunDirectory]:
    directory = RunDirectory(1)
    directory.write(Mode.OBSERVE)
    yield directory
    directory.remove()


def script(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


class Run:
    """A supervisor with stubs as children, whose pids and lines are recorded; ``react`` gets each line."""

    def __init__(self, directory: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
        body = f"echo $LC_ALL >> {directory.path}/locales; echo $$ >> {directory.path}/pids; exec sleep 600"
        stub = script(directory.path / "stub", body)
        monkeypatch.setattr(sys, "executable", str(stub))
        monkeypatch.setattr(supervisor, "_print", self._print)
        monkeypatch.setattr(Supervisor, "_await_redis", lambda *_: True)
        monkeypatch.setattr(supervisor, "_FIRST_PAUSE", 0.01)
        monkeypatch.setattr(supervisor, "_LOOK_EVERY", 0.01)
        self._pids = directory.path / "pids"
        self.lines: list[str] = []
        self.react: Callable[[str], None] = lambda _line: None
        self._driver, self._pipe = os.pipe()
        self.supervisor = Supervisor(directory, ServerBinary(stub, "Stub", "7", bundled=False), self._driver)

    def _print(self, line: str) -> None:
        self.lines.append(line)
        self.react(line)

    def pids(self, count: int) -> list[int]:
        """Wait until so many children have started, and return them."""
        while len(lines := self._pids.read_text().split() if self._pids.exists() else []) < count:
            pass
        return [int(line) for line in lines]

    def end_driver(self) -> None:
        os.close(self._pipe)

    def close(self) -> None:
        os.close(self._driver)


@pytest.fixture
def run(directory: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    run = Run(directory, monkeypatch)
    yield run
    run.close()


def test_the_end_of_the_pipe_ends_both_children(run: Run, directory: RunDirectory) -> None:
    alive = []

    def end(_line: str) -> None:
        alive.extend(psutil.pid_exists(pid) for pid in run.pids(2))
        run.end_driver()

    run.react = end
    run.supervisor.serve()
    assert run.lines == [f"ready {directory.config}"]
    assert alive == [True, True]
    assert not any(psutil.pid_exists(pid) for pid in run.pids(2))


def test_redis_has_a_locale_that_is_always_installed(
    run: Run, directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "xx_YY.UTF-8")

    def end(_line: str) -> None:
        run.pids(2)
        run.end_driver()

    run.react = end
    run.supervisor.serve()
    assert sorted((directory.path / "locales").read_text().split()) == ["C", "xx_YY.UTF-8"]


@pytest.mark.parametrize(("child", "name"), [(0, "Redis"), (1, "the controller")])
def test_a_child_that_ends_is_started_again_with_the_other(run: Run, child: int, name: str) -> None:
    def kill(line: str) -> None:
        if line.startswith("ready"):
            os.kill(run.pids(2)[child], signal.SIGKILL)
        else:
            # The pause before both are started again has still to pass.
            assert not any(psutil.pid_exists(pid) for pid in run.pids(2))
            run.end_driver()

    run.react = kill
    run.supervisor.serve()
    ready, problem = run.lines
    assert ready.startswith("ready ")
    assert problem.startswith(f"{name} ended with code -9: ")
    assert problem.endswith("are started again in 0.02 s, the queries go on")


def test_both_are_started_again_until_the_driver_ends(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def kill(line: str) -> None:
        if line.startswith("ready"):
            os.kill(run.pids(2)[0], signal.SIGKILL)

    def trim(_directory: RunDirectory) -> None:
        if run.lines[1:] and len(run.pids(4)) == 4 and not ended:
            ended.append(True)
            run.end_driver()

    ended: list[bool] = []
    run.react = kill
    monkeypatch.setattr(RunDirectory, "trim_log", trim)
    run.supervisor.serve()
    assert len(run.lines) == 2, "ready is printed once"
    assert not any(psutil.pid_exists(pid) for pid in run.pids(4))


def test_pauses_double(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    def lives(_self: Supervisor, seconds: float) -> bool:
        pauses.append(seconds)
        return len(pauses) < 10

    monkeypatch.setattr(supervisor, "_FIRST_PAUSE", 0.5)
    monkeypatch.setattr(Supervisor, "_driver_lives", lives)
    monkeypatch.setattr(Supervisor, "_run_once", lambda _self: "it ended")
    run.supervisor.serve()
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0, 60.0]


# -- the first start --


@pytest.fixture
def _umask_and_handler() -> Iterator[None]:
    """Restore what `main` sets for its whole process."""
    umask, handler = os.umask(0o077), signal.getsignal(signal.SIGTERM)
    yield
    os.umask(umask)
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture
def start(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], _umask_and_handler: None
) -> Callable[..., str]:
    """Run the supervisor with a stub in place of Redis; returns what it printed."""

    def start(body: str, *, code: int, mode: str = "observe", driver: str = "") -> str:
        path = temporary / "stub"
        script(path, body)
        monkeypatch.setattr(supervisor, "find_server", lambda: ServerBinary(path, "Stub", "7", bundled=False))
        read, write = os.pipe()
        if driver == "ended":
            os.close(write)
        monkeypatch.setattr(sys, "stdin", os.fdopen(read))
        assert main([mode]) == code
        sys.stdin.close()
        if driver != "ended":
            os.close(write)
        path.unlink()
        assert list(temporary.iterdir()) == [], "nothing is left"
        return capsys.readouterr().out

    return start


def test_a_server_that_ends_at_once_is_a_problem_with_its_last_line(start: Callable[..., str]) -> None:
    printed = start("echo no memory; exit 1", code=1)
    assert printed.startswith("problem Stub 7 (")
    assert printed.endswith(" does not start: no memory\n")


def test_a_server_that_does_not_answer_is_a_problem(start: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_REDIS_START", 0.1)
    assert "does not start: " in start("exec sleep 600", code=1)


def test_a_driver_that_ends_meanwhile_ends_it_silently(start: Callable[..., str]) -> None:
    assert start("exec sleep 600", code=0, driver="ended") == ""


def test_an_unknown_mode_is_a_problem(start: Callable[..., str]) -> None:
    assert "problem 'often' is not a valid Mode" in start("exit 1", code=1, mode="often")


@pytest.mark.usefixtures("_umask_and_handler")
def test_a_second_sigterm_does_not_interrupt_the_clean_up(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def end(_self: Supervisor) -> None:
        signal.raise_signal(signal.SIGTERM)

    def remove(directory: RunDirectory) -> None:
        signal.raise_signal(signal.SIGTERM)
        removed(directory)

    removed = RunDirectory.remove
    path = script(temporary / "stub", "exit 1")
    monkeypatch.setattr(supervisor, "find_server", lambda: ServerBinary(path, "Stub", "7", bundled=False))
    monkeypatch.setattr(Supervisor, "serve", end)
    monkeypatch.setattr(RunDirectory, "remove", remove)
    read, write = os.pipe()
    monkeypatch.setattr(sys, "stdin", os.fdopen(read))
    with pytest.raises(SystemExit):
        main(["observe"])
    sys.stdin.close()
    os.close(write)
    assert list(temporary.iterdir()) == [path]


@pytest.mark.usefixtures("_umask_and_handler")
def test_a_missing_server_is_a_problem(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none() -> ServerBinary:
        raise SoloError("no server; install one")

    monkeypatch.setattr(supervisor, "find_server", none)
    assert main(["observe"]) == 1
    assert capsys.readouterr().out == "problem no server; install one\n"
    assert list(temporary.iterdir()) == []
