"""Attaching never fails the script: its log, its clean-up, and what it leaves in the driver's JVM after an error."""

from __future__ import annotations

import atexit
import io
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import Mock, create_autospec

import pytest
import structlog

from rechannel.conf.loader import load
from rechannel.conf.settings import Settings
from rechannel.migration.link import attach as attach_module
from rechannel.migration.link import loop
from rechannel.migration.link.attach import _logging_modules, attach
from rechannel.migration.link.loop import Link, LinkCycle
from rechannel.migration.link.mailbox import Mailbox
from rechannel.migration.solo import SoloError
from rechannel.migration.spark import adapter as adapter_module
from rechannel.migration.spark.adapter import SparkAdapter
from rechannel.migration.spark.gateway import SparkCallError, UnsupportedSparkError
from rechannel.wire.codes import Mode
from rechannel.wire.envelope import EnvelopeFactory

SCRIPT = "import sys, rechannel\n{}rechannel.attach(object())\nprint('data')\n"


def run(redirection: str, before: str = "") -> subprocess.CompletedProcess[str]:
    """Run a script that attaches; Python buffers its standard error, as it does by default."""
    shell = ["sh", "-c", f'exec "$@" {redirection}', "sh"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    environment.pop("RECHANNEL_CONFIG", None)
    command = [*shell, sys.executable, "-c", SCRIPT.format(before)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)


@pytest.mark.parametrize(
    ("redirection", "before"),
    [("2>/dev/full", ""), ("2>&-", ""), ("", "sys.stderr.close()\n"), ("", "sys.stderr = None\n")],
    ids=["full", "closed at start", "closed by the script", "None"],
)
def test_an_unwritable_standard_error_changes_neither_exit_code_nor_output(redirection, before):
    done = run(redirection, before)
    assert (done.returncode, done.stdout) == (0, "data\n")


def test_all_lines_go_to_standard_error():
    done = run("")
    assert (done.returncode, done.stdout) == (0, "data\n")
    configuration, problem = done.stderr.splitlines()
    assert "event=configuration" in configuration
    assert 'event="not attached; queries run as without Rechannel"' in problem


@pytest.fixture(autouse=True)
def _loggers_stay(monkeypatch):
    """Attaching has Rechannel's loggers write elsewhere, for good: other tests look at what they log."""
    for module in list(_logging_modules()):
        monkeypatch.setattr(module, "_LOG", module._LOG)


def closed_stream() -> io.TextIOWrapper:
    stream = io.TextIOWrapper(io.BytesIO())
    stream.close()
    return stream


class Broken(io.StringIO):
    def write(self, _text: str) -> int:
        raise RuntimeError("a notebook that is gone")


@pytest.fixture(params=["full", "closed", "none", "broken"])
def unwritable_log(request, monkeypatch, _loggers_stay):
    attach_module.log_to_standard_error()
    if request.param == "full":
        with open("/dev/full", "w") as full:  # noqa: PTH123
            monkeypatch.setattr(sys, "stderr", full)
            yield
            monkeypatch.undo()
    else:
        streams = {"closed": closed_stream(), "none": None, "broken": Broken()}
        monkeypatch.setattr(sys, "stderr", streams[request.param])
        yield


@pytest.mark.usefixtures("unwritable_log")
def test_no_logger_of_the_driver_raises(capsys):
    modules = {module.__name__ for module in _logging_modules()}
    assert {f"rechannel.{name}" for name in ("migration.link.loop", "migration.link.mailbox", "wire.signing")} < modules
    for module in _logging_modules():
        module._LOG.warning("a line", error="of several\nlines")
        module._LOG.debug("another")
    assert capsys.readouterr().out == ""


def test_lines_follow_a_standard_error_that_the_script_replaces(monkeypatch):
    attach_module.log_to_standard_error()
    for stream in (io.StringIO(), io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True)):
        monkeypatch.setattr(sys, "stderr", stream)
        loop._LOG.info("größer")
        text = stream.getvalue() if isinstance(stream, io.StringIO) else stream.buffer.getvalue().decode()
        assert text.count("\n") == 1
        assert "gr" in text


def test_a_log_of_the_scripts_own_is_used_and_its_errors_are_suppressed():
    lines: list[str] = []

    def fail(_logger: Any, _level: str, event: dict[str, Any]) -> Any:
        lines.append(event["event"])
        raise BrokenPipeError

    before = structlog.get_config() if structlog.is_configured() else None
    structlog.configure(processors=[fail])
    try:
        for _ in range(2):
            assert not attach(object(), load(None, {})).active
    finally:
        structlog.reset_defaults()
        if before is not None:
            structlog.configure(**before)
    assert lines == ["not attached; queries run as without Rechannel"] * 2


@pytest.mark.usefixtures("unwritable_log")
def test_a_failing_cycle_does_not_end_the_link():
    link = Link()
    turns = iter([False] * 2000 + [True])  # a wait before each cycle, and one after each that failed
    link._stop = Mock(wait=lambda _seconds: next(turns))
    cycle = Mock(has_ended=False, adapter=Mock(is_over=False), closing_steps=list)
    cycle.run.side_effect = OSError("no space")
    on_end = Mock()
    link._run(cycle, on_end)
    assert link.failures == 1000
    on_end.assert_called_once_with()


STEPS = [
    "stop_watching_starts",
    "restore_target",
    "restore_wait",
    "close_feed",
    "post_report",
    "stop_mailbox",
    "join",
    "close_adapter",
    "unregister",
    "on_end",
]


@pytest.mark.usefixtures("unwritable_log")
@pytest.mark.parametrize("failing", [*([name] for name in STEPS), STEPS], ids=[*STEPS, "all"])
def test_each_step_of_detaching_runs_whatever_the_others_raise(monkeypatch, failing):
    done: list[str] = []

    def step(name: str) -> Any:
        def call(*_arguments: Any, **_keywords: Any) -> bool:
            done.append(name)
            if name in failing:
                raise RuntimeError(name)
            return True

        return call

    cycle = object.__new__(LinkCycle)  # its parts need a session
    cycle._settings = Settings()
    cycle.adapter = SimpleNamespace(stop_watching_starts=step("stop_watching_starts"), close=step("close_adapter"))
    cycle.adapter.locality_wait = SimpleNamespace(restore=step("restore_wait"))
    cycle._releaser = SimpleNamespace(restore_target=step("restore_target"))
    cycle._feed = SimpleNamespace(close=step("close_feed"))
    cycle._mailbox = SimpleNamespace(post_report=step("post_report"), stop=step("stop_mailbox"))
    cycle._start_watcher = SimpleNamespace(join=step("join"))
    cycle._report = cycle._log_transitions = lambda: None
    monkeypatch.setattr(atexit, "unregister", step("unregister"))
    Link()._finish(cycle, step("on_end"))
    assert done == STEPS


@pytest.fixture
def adapter(monkeypatch, _loggers_stay):
    adapter = create_autospec(SparkAdapter, instance=True)
    adapter.application, adapter.version, adapter.name = "app-1", "4.3.0", "name"
    adapter.reports_snapshots, adapter.is_over = True, False
    adapter.coordinator = Mock()
    adapter.checkpoints, adapter.executor_control, adapter.locality_wait = Mock(), Mock(), Mock(is_short=False)
    adapter.setting.side_effect = lambda _key, default: default
    adapter.executors.return_value, adapter.dropped_events.return_value = [], 0
    adapter.watch_starts.return_value.poll.return_value = None
    monkeypatch.setattr(attach_module, "SparkAdapter", lambda _spark: adapter)
    return adapter


@pytest.fixture
def mailbox(monkeypatch):
    mailbox = create_autospec(Mailbox, instance=True)
    mailbox.pop_orders.return_value, mailbox.rejected_messages, mailbox.dropped = None, 0, 0
    mailbox.pop_desired.return_value = None
    monkeypatch.setattr(loop, "Mailbox", lambda *_: mailbox)
    return mailbox


def settings(directory: Any, **more: str) -> Settings:
    return load(None, {"RECHANNEL_LINK__DIRECTORY": str(directory), **more})


def test_a_key_that_cannot_be_read_leaves_no_gateway(adapter, mailbox, tmp_path):
    link = attach(object(), settings(tmp_path, RECHANNEL_SIGNING__PUBLIC_KEY_FILE=str(tmp_path / "none.pem")))
    assert "none.pem" in link.problem
    adapter.close.assert_called_once_with()
    adapter.start_event_stream.assert_not_called()
    link.detach()


@pytest.mark.parametrize("place", ["start_event_stream", "executors", "watch_starts"])
def test_an_error_of_spark_at_attach_leaves_nothing(adapter, mailbox, tmp_path, place):
    getattr(adapter, place).side_effect = UnsupportedSparkError("this Spark lacks a method that Rechannel needs")
    link = attach(object(), settings(tmp_path))
    assert (link.active, link.problem) == (False, "this Spark lacks a method that Rechannel needs")
    adapter.close.assert_called_once_with()
    adapter.stop_event_stream.assert_called_once_with()
    assert list(tmp_path.iterdir()) == []
    mailbox.start.assert_not_called()
    assert attach_module._links == {}


def test_a_mailbox_that_was_never_started_is_stopped_all_the_same():
    Mailbox(Settings().redis, EnvelopeFactory("cluster", "link@app"), "app", None).stop(1.0)


@pytest.mark.parametrize("name", ["rechannel-starts", "rechannel-link"])
def test_a_thread_that_cannot_be_started_leaves_nothing(adapter, mailbox, tmp_path, monkeypatch, name):
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == name:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    link = attach(object(), settings(tmp_path))
    assert (link.active, link.problem) == (False, "can't start new thread")
    link.detach()
    mailbox.stop.assert_called_once()
    adapter.close.assert_called_once_with()
    assert list(tmp_path.iterdir()) == []
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("rechannel-")]


def test_a_second_attach_gives_the_first_link_and_closes_its_own_gateway(adapter, monkeypatch, tmp_path):
    first = SimpleNamespace(active=True)
    monkeypatch.setitem(attach_module._links, "app-1", first)
    adapter.close.side_effect = SparkCallError("the driver's JVM cannot be reached")
    assert attach(object(), settings(tmp_path)) is first
    adapter.close.assert_called_once_with()


# -- solo --


class FakeSolo:
    """A solo run in place of a real one; ``runs`` has all that were started."""

    runs: ClassVar[list[FakeSolo]] = []
    problem: ClassVar[str] = ""
    directory: ClassVar[Path]

    def __init__(self, mode: Mode, _environ: Any) -> None:
        if self.problem:
            raise SoloError(self.problem)
        self.mode, self.closed = mode, 0
        self.settings = settings(self.directory)
        self.runs.append(self)

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def solo(monkeypatch, tmp_path):
    monkeypatch.setattr(FakeSolo, "runs", [])
    monkeypatch.setattr(FakeSolo, "directory", tmp_path, raising=False)
    monkeypatch.setattr(attach_module, "SoloRun", FakeSolo)
    return FakeSolo


def test_a_solo_run_ends_with_its_link(adapter, mailbox, solo):
    link = attach(object(), solo=True)
    (run,) = solo.runs
    assert (link.active, run.mode, run.closed) == (True, Mode.OBSERVE, 0)
    assert attach(object(), solo=True, apply=True) is link
    assert solo.runs == [run], "one for all sessions of an application"
    assert link.detach()
    assert run.closed == 1
    again = attach(object(), solo=True, apply=True)
    assert [run.mode for run in solo.runs] == [Mode.OBSERVE, Mode.APPLY]
    assert again.detach()


def test_a_cell_that_is_run_again_to_apply_says_that_the_first_link_goes_on(adapter, mailbox, solo, monkeypatch):
    lines: list[tuple[str, str]] = []
    log = SimpleNamespace(info=lambda event, **fields: lines.append((event, fields.get("sentence", ""))))
    monkeypatch.setattr(attach_module, "log_to_standard_error", lambda: None)
    monkeypatch.setattr(attach_module, "_LOG", log)
    link = attach(object(), solo=True)
    assert attach(object(), solo=True) is link
    assert lines == []
    assert attach(object(), solo=True, apply=True) is link
    ((event, sentence),) = lines
    assert (event, "detach() it" in sentence) == ("attached already", True)
    assert link.detach()


def test_an_interrupt_while_a_solo_run_starts_leaves_nothing(adapter, mailbox, solo, monkeypatch):
    def interrupt(*_arguments: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(attach_module, "SoloRun", interrupt)
    with pytest.raises(KeyboardInterrupt):
        attach(object(), solo=True)
    adapter.close.assert_called_once_with()
    assert attach_module._links == {}
    monkeypatch.setattr(attach_module, "SoloRun", solo)
    link = attach(object(), solo=True)
    assert link.active, "the cell is run again"
    assert link.detach()


def test_a_thread_other_than_the_main_one_attaches(adapter, mailbox, solo):
    links: list[Link] = []
    cell = threading.Thread(target=lambda: links.append(attach(object(), solo=True)))
    cell.start()
    cell.join()
    (link,) = links
    assert link.active, "after the end of the thread, too"
    assert link.detach()


def test_a_solo_run_that_does_not_start_leaves_the_script_as_it_is(adapter, mailbox, solo, monkeypatch):
    monkeypatch.setattr(solo, "problem", "no server; install one")
    link = attach(object(), solo=True)
    assert (link.active, link.problem) == (False, "no server; install one")
    adapter.close.assert_called_once_with()
    adapter.start_event_stream.assert_not_called()
    assert attach_module._links == {}
    with pytest.raises(SoloError):
        attach(object(), solo=True, strict=True)


def test_a_link_that_does_not_start_ends_its_solo_run(adapter, mailbox, solo):
    adapter.executors.side_effect = UnsupportedSparkError("this Spark lacks a method that Rechannel needs")
    link = attach(object(), solo=True)
    assert (link.active, link.problem) == (False, "this Spark lacks a method that Rechannel needs")
    assert [run.closed > 0 for run in solo.runs] == [True]


@pytest.mark.parametrize("options", [{"solo": True, "settings": Settings()}, {"apply": True}])
def test_solo_has_settings_of_its_own(adapter, solo, options):
    link = attach(object(), **options)
    assert "solo has settings of its own" in link.problem
    assert solo.runs == []


def test_attaching_while_a_link_ends_waits_for_its_end(adapter, mailbox, tmp_path):
    may_end = threading.Event()
    mailbox.stop.side_effect = lambda **_: may_end.wait(10.0)
    first = attach(object(), settings(tmp_path))
    assert not first.detach(timeout=0.0)
    assert not first.active
    may_end.set()
    second = attach(object(), settings(tmp_path))
    assert (second is first, second.problem, second.active) == (False, "", True)
    assert second.detach()
    assert not first.active


def test_a_detach_that_is_interrupted_is_not_taken_for_the_links_end(adapter, mailbox, tmp_path):
    def interrupt(**_: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        may_end.wait(10.0)

    may_end = threading.Event()
    mailbox.stop.side_effect = interrupt
    link = attach(object(), settings(tmp_path))
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            link.detach()
    finally:
        signal.signal(signal.SIGINT, handler)
    assert not link.detach(timeout=0.0)
    assert attach_module._links == {"app-1": link}
    may_end.set()
    assert link.detach()
    assert attach_module._links == {}


def test_attaching_while_a_link_does_not_end_says_so_and_leaves_nothing(adapter, monkeypatch, tmp_path):
    ending = SimpleNamespace(active=False, detach=lambda: False)
    monkeypatch.setitem(attach_module._links, "app-1", ending)
    link = attach(object(), settings(tmp_path))
    assert (link.active, "attach again" in link.problem) == (False, True)
    adapter.close.assert_called_once_with()
    adapter.start_event_stream.assert_not_called()


class User:
    """A session of PySpark: Python knows these attributes, all else would be asked on the user's gateway."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        pytest.fail(f"{name} has no time limit")


@pytest.fixture
def java(monkeypatch):
    """The JVM as the link's own gateway has it."""
    java = Mock(name="gateway")
    session = java.share.return_value
    session.version.return_value = "4.3.0"
    session.sparkContext.return_value.applicationId.return_value = "app-1"
    session.sparkContext.return_value.isStopped.return_value = False
    monkeypatch.setattr(adapter_module, "Gateway", lambda _users: java)
    return java


def session() -> User:
    return User(_jsparkSession=User(), sparkContext=User(appName="name", _gateway=User(), _jsc=User()))


def test_every_call_at_attach_has_a_time_limit(java):
    adapter = SparkAdapter(session())
    assert (adapter.version, adapter.application, adapter.name) == ("4.3.0", "app-1", "name")
    java.close.assert_not_called()


@pytest.mark.parametrize("place", ["version", "streams", "sparkContext"])
def test_an_adapter_that_cannot_be_made_closes_its_gateway(java, place):
    getattr(java.share.return_value, place).side_effect = ConnectionError("gone")
    java.close.side_effect = ConnectionError("gone, too")
    with pytest.raises(SparkCallError, match=r"gone$"):
        SparkAdapter(session())
    java.close.assert_called_once_with()


def test_a_stopped_session_is_refused_before_a_solo_run_starts(java, solo):
    java.share.return_value.sparkContext.return_value.isStopped.return_value = True
    link = attach(session(), solo=True)
    assert link.problem == "this Spark session is stopped: create a new one, and attach that"
    assert solo.runs == []
    java.close.assert_called_once_with()


def test_an_old_spark_is_refused_and_the_gateway_closed(java):
    java.share.return_value.version.return_value = "3.2.1"
    with pytest.raises(UnsupportedSparkError, match=r"Spark 3\.2\.1 is too old"):
        SparkAdapter(session())
    java.close.assert_called_once_with()
