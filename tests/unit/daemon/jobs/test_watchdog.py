"""Messages of the daemons to the service manager."""

from __future__ import annotations

import dataclasses
import os
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator

import pytest
from structlog.testing import capture_logs

from rechannel.conf.settings import AgentSettings, RedisSettings, Settings
from rechannel.daemon.jobs.clock import Clock
from rechannel.daemon.jobs.health import JobMonitor
from rechannel.daemon.jobs.running_plans import LONGEST
from rechannel.daemon.jobs.watchdog import Watchdog, patience
from rechannel.monitors.node.agent import AgentHost, run_agent
from rechannel.wire.envelope import Envelope
from rechannel.wire.keys import KeyRule
from rechannel.wire.redis.errors import StoreRefusedError, StoreUnavailableError
from rechannel.wire.systemd import Notifier
from unit.daemon.fake_store import FakeClock
from unit.monitors.fakes import FakeClock as SampleClock
from unit.monitors.fakes import FakeProcess, FakeTable, backend

NODE = "127.0.0.2"


class Manager:
    """The service manager's end."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self._socket.setblocking(False)
        self._stored: list[dict[str, str]] = []

    def listen(self) -> None:
        """Take what was sent: the kernel keeps ten messages, and lets no more be sent."""
        while True:
            try:
                text = self._socket.recv(65_536).decode()
            except BlockingIOError:
                return
            self._stored.append(dict(line.split("=", 1) for line in text.split("\n")))

    def received(self) -> list[dict[str, str]]:
        """Every message since the last call."""
        self.listen()
        messages, self._stored = self._stored, []
        return messages

    def names(self) -> list[str]:
        """The same, only what each is about."""
        return [next(iter(message)) for message in self.received()]

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager() -> Iterator[Manager]:
    with tempfile.TemporaryDirectory() as directory:  # tmp_path may be too long for a socket
        made = Manager(f"{directory}/notify")
        yield made
        made.close()


@pytest.fixture
def notifier(manager: Manager, clock: FakeClock) -> Notifier:
    return Notifier(manager.address, 40.0, monotonic=clock)


def test_ready_is_sent_once_and_a_status_when_it_changed(manager: Manager, notifier: Notifier) -> None:
    assert not notifier.is_ready
    notifier.ready("works")
    notifier.ready("works")
    notifier.status("works")
    notifier.ready("works on")
    assert notifier.is_ready
    assert manager.received() == [{"READY": "1", "STATUS": "works"}, {"STATUS": "works on"}]


def test_abstract_sockets_are_supported() -> None:
    manager = Manager(f"@rechannel-test-{os.getpid()}")
    Notifier(manager.address).ready()
    assert manager.received() == [{"READY": "1"}]
    manager.close()


def test_a_reload_ends_with_ready(manager: Manager, notifier: Notifier) -> None:
    def again() -> int:
        raise ValueError("mistake")

    reload = notifier.announce_reload(again)
    with pytest.raises(ValueError, match="mistake"):
        reload()
    assert manager.received() == []  # who is not ready yet is not asked to be again
    notifier.ready()
    with pytest.raises(ValueError, match="mistake"):
        reload()
    notifier.stopping()
    _, reloading, ready, stopping = manager.received()
    assert reloading["RELOADING"] == "1"
    assert int(reloading["MONOTONIC_USEC"]) > 0
    assert ready == {"READY": "1"}
    assert stopping["STOPPING"] == "1"


def test_a_status_cannot_inject_other_fields(manager: Manager, notifier: Notifier) -> None:
    notifier.status("fine\nWATCHDOG=trigger\x1b[2J \udcff" + "x" * 10_000)
    (message,) = manager.received()
    assert list(message) == ["STATUS"]
    assert message["STATUS"].startswith("fine WATCHDOG=trigger?[2J ?x")
    assert len(message["STATUS"]) == 500


def test_heartbeats_are_sent_four_times_an_interval(manager: Manager, notifier: Notifier, clock: FakeClock) -> None:
    due = []
    for _ in range(40):
        due.append(notifier.beat())
        clock.now += 1
    assert sum(due) == 4
    assert manager.names() == ["WATCHDOG"] * 4


def test_without_a_watchdog_there_is_no_heartbeat(manager: Manager) -> None:
    notifier = Notifier(manager.address)
    notifier.request_watchdog(60)
    assert not notifier.beat()
    assert manager.received() == []


def test_only_longer_intervals_are_requested(manager: Manager, notifier: Notifier) -> None:
    notifier.request_watchdog(30)
    notifier.request_watchdog(90)
    assert manager.received() == [{"WATCHDOG_USEC": "90000000"}]
    assert notifier.watchdog == 90


@pytest.mark.parametrize(
    ("variables", "seconds"),
    [
        ({}, 0.0),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, 0.0),
        ({"WATCHDOG_USEC": "soon"}, 0.0),
        ({"WATCHDOG_USEC": "²"}, 0.0),
    ],
)
def test_the_interval_is_read_from_the_environment(variables: dict[str, str], seconds: float) -> None:
    assert Notifier.from_environment(variables).watchdog == seconds


def test_without_a_service_manager_nothing_is_sent() -> None:
    notifier = Notifier.from_environment({})
    with capture_logs() as lines:
        notifier.ready("works")
        notifier.stopping()
    assert notifier.is_ready
    assert lines == []


@pytest.mark.parametrize("address", ["/nowhere/at/all", "vsock:2:1", "@nobody-listens-here", "/" + "x" * 200])
def test_a_manager_that_does_not_listen_is_logged_once(address: str) -> None:
    notifier = Notifier(address, 40.0)
    with capture_logs() as lines:
        notifier.ready("works")
        notifier.beat()
    assert not notifier.is_ready
    assert [line["event"] for line in lines] == ["service-manager-does-not-listen"]


def test_undelivered_messages_are_sent_again() -> None:
    with tempfile.TemporaryDirectory() as directory:
        notifier = Notifier(f"{directory}/notify")
        with capture_logs():
            notifier.ready("works")
        manager = Manager(f"{directory}/notify")
        notifier.ready("works")
        assert manager.received() == [{"READY": "1", "STATUS": "works"}]
        manager.close()


class Supervised:
    """A watchdog with its jobs, which are run by hand; each returns or raises its answer."""

    def __init__(self, manager: Manager, notifier: Notifier, clock: FakeClock, settings: Settings) -> None:
        clocks = Clock(wall=clock, monotonic=clock)
        self.manager, self.clock = manager, clock
        self.monitor = JobMonitor(clocks)
        self.watchdog = Watchdog(notifier, settings, self.monitor, clocks)
        self.answers: dict[str, object] = {
            "observe": "leading in epoch 3",
            "requests": 0,
            "follow": "no migration runs",
        }
        for name in self.answers:
            self.monitor.add(name, 1.0, self._work(name))

    def _work(self, name: str) -> Callable[[], object]:
        def work() -> object:
            answer = self.answers[name]
            if isinstance(answer, Exception):
                raise answer
            return answer

        return work

    def turns(self, seconds: int = 1, hung: str = "") -> list[str]:
        """Each second run the jobs but the hung one, and send a heartbeat; returns the events in the log."""
        with capture_logs() as lines:
            for _ in range(seconds):
                for name, job in self.monitor.jobs.items():
                    if name != hung:
                        job.run()
                self.watchdog.send_heartbeat()
                self.manager.listen()
                self.clock.sleep(1)
        self.log = lines
        return [line["event"] for line in lines]


@pytest.fixture
def supervised(manager: Manager, notifier: Notifier, clock: FakeClock) -> Supervised:
    return Supervised(manager, notifier, clock, Settings())


@pytest.mark.parametrize(
    ("observed", "followed", "status"),
    [
        ("leading in epoch 3", "no migration runs", "leading in epoch 3; no migration runs"),
        ("standing by: other leads in epoch 3", "not leading", "standing by: other leads in epoch 3"),
    ],
)
def test_a_controller_is_ready_once_it_leads_or_stands_by(
    supervised: Supervised, observed: str, followed: str, status: str
) -> None:
    supervised.answers |= {"observe": observed, "follow": followed}
    supervised.watchdog.begin()
    assert supervised.manager.names() == ["EXTEND_TIMEOUT_USEC", "STATUS"]
    supervised.watchdog.send_heartbeat()
    assert supervised.manager.received() == []
    supervised.turns()
    assert supervised.manager.received() == [{"READY": "1", "STATUS": status}, {"WATCHDOG": "1"}]


def test_a_controller_that_waits_for_redis_is_ready_and_sends_heartbeats(supervised: Supervised) -> None:
    supervised.answers = dict.fromkeys(supervised.answers, StoreUnavailableError("no route to Redis"))
    supervised.turns(200)
    first, *others = supervised.manager.received()
    assert first == {"READY": "1", "STATUS": "waits for Redis: no route to Redis"}
    assert others == [{"WATCHDOG": "1"}] * 20


@pytest.mark.parametrize(
    ("trouble", "status"),
    [
        (StoreRefusedError("wrong password"), "Redis refuses: wrong password"),
        (ZeroDivisionError(), "follow failed (ZeroDivisionError), see the log; it is tried again"),
    ],
)
def test_a_failing_job_is_no_hang_and_is_named_in_the_status(
    supervised: Supervised, trouble: Exception, status: str
) -> None:
    supervised.turns()
    supervised.manager.received()
    supervised.answers["follow"] = trouble
    supervised.turns(200)  # most of the time its back-off lets it rest
    messages = supervised.manager.received()
    assert {"STATUS": status} in messages
    assert messages.count({"WATCHDOG": "1"}) == 20


@pytest.mark.parametrize("hung", ["observe", "requests", "follow"])
def test_a_job_that_does_not_return_ends_the_heartbeats(supervised: Supervised, hung: str) -> None:
    supervised.turns()
    supervised.manager.received()
    assert supervised.turns(100, hung) == ["jobs-hang"]
    assert "WATCHDOG" not in supervised.manager.names()
    (line,) = supervised.log
    assert hung in line["sentence"]
    assert line["restart_after"] == 40.0
    assert supervised.turns() == ["jobs-go-on"]
    assert supervised.manager.names() == ["STATUS", "WATCHDOG"]


def test_a_suspended_process_is_no_hang_of_its_jobs(supervised: Supervised) -> None:
    supervised.turns()
    supervised.clock.sleep(3600)
    with capture_logs() as lines:
        supervised.watchdog.send_heartbeat()
    assert lines == []


def test_a_plan_of_minutes_keeps_the_heartbeats_and_one_that_never_ends_does_not(supervised: Supervised) -> None:
    def turns(seconds: int) -> tuple[list[str], int]:
        events = supervised.turns(seconds)
        return events, supervised.manager.received().count({"WATCHDOG": "1"})

    with supervised.monitor.running_plans.record("app"):
        assert turns(int(LONGEST) + 1) == ([], 61)
        assert turns(60) == (["jobs-hang"], 0)
    assert turns(20) == (["jobs-go-on"], 2)


def test_a_controller_that_listens_has_more_patience() -> None:
    plain = Settings()
    shown = dataclasses.replace(plain, controller=dataclasses.replace(plain.controller, listen="127.0.0.1:9418"))
    assert patience(shown) - patience(plain) == 2 * 2 * plain.redis.timeout


def test_a_slow_redis_is_given_the_time_it_may_take(manager: Manager, notifier: Notifier, clock: FakeClock) -> None:
    slow = dataclasses.replace(Settings(), redis=RedisSettings(timeout=30.0))
    Supervised(manager, notifier, clock, slow).watchdog.begin()
    longest = 4 * 2 * 30.0  # four jobs in turn, each with one call that is given up
    timeout, interval, _ = manager.received()
    assert int(timeout["EXTEND_TIMEOUT_USEC"]) > longest * 1e6
    assert int(interval["WATCHDOG_USEC"]) > longest * 1e6
    assert notifier.watchdog > longest


class _Store:
    def check(self) -> str:
        return "7.2.4"

    def append(self, rule: KeyRule, name: str, *envelopes: Envelope) -> None:
        pass

    def get(self, rule: KeyRule) -> None:
        """No limits of agents."""

    def close(self) -> None:
        pass


class _StoppingClock(SampleClock):
    def __init__(self, after: float, manager: Manager) -> None:
        super().__init__()
        self.after = after
        self.manager = manager

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        self.manager.listen()
        self.pass_time(seconds)
        if self.steady >= self.after:
            stop.set()
        return stop.is_set()


def _agent(manager: Manager, seconds: float, **settings: float) -> None:
    clock = _StoppingClock(seconds, manager)
    notifier = Notifier(manager.address, 40.0, monotonic=clock.monotonic)
    run_agent(
        dataclasses.replace(Settings(), agent=AgentSettings(node=NODE, **settings)),
        stop=threading.Event(),
        store_factory=lambda _: _Store(),
        host=AgentHost(clock, FakeTable(FakeProcess(10, arguments=backend())), notifier),
    )


def test_an_agent_is_ready_with_its_first_window_and_beats_with_its_samples(manager: Manager) -> None:
    _agent(manager, 41.0)
    messages = manager.received()
    ready = next(index for index, message in enumerate(messages) if "READY" in message)
    assert {name for message in messages[:ready] for name in message} == {"EXTEND_TIMEOUT_USEC", "WATCHDOG"}
    assert messages[ready]["STATUS"] == f"{NODE}: 1 executor, 0 map outputs in the last window"
    assert messages.count({"WATCHDOG": "1"}) == 5  # at once, and every ten seconds of 41
    assert "STOPPING" in messages[-1]


def test_an_agent_without_executors_is_ready(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = threading.Event()
    monkeypatch.setattr(stop, "wait", lambda _: True)
    notifier = Notifier(manager.address, 40.0)
    run_agent(
        Settings(), stop=stop, store_factory=lambda _: _Store(), host=AgentHost(table=FakeTable(), notifier=notifier)
    )
    ready, beat, stopping = manager.received()
    assert ready == {"READY": "1", "STATUS": "waits for an executor of this machine"}
    assert beat == {"WATCHDOG": "1"}
    assert "STOPPING" in stopping
