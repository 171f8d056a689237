"""Messages of the daemons to the service manager, received by a socket in its place."""

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
from rechannel.daemon.jobs.clock import Clock as Clocks
from rechannel.daemon.jobs.health import JobMonitor
from rechannel.daemon.jobs.planning import LONGEST
from rechannel.daemon.jobs.watchdog import Watchdog, patience
from rechannel.monitors.node.agent import AgentHost, run_agent
from rechannel.monitors.node.sender import Sender
from rechannel.wire.envelope import Envelope
from rechannel.wire.keys import KeyRule
from rechannel.wire.redis.errors import StoreRefusedError, StoreUnavailableError
from rechannel.wire.systemd import Notifier
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


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def manager() -> Iterator[Manager]:
    with tempfile.TemporaryDirectory() as directory:  # tmp_path may be too long for a socket
        made = Manager(f"{directory}/notify")
        yield made
        made.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def notifier(manager: Manager, clock: Clock) -> Notifier:
    return Notifier(manager.address, 40.0, monotonic=clock)


def test_ready_is_said_once_and_a_status_only_when_it_changed(manager: Manager, notifier: Notifier) -> None:
    assert not notifier.is_ready
    notifier.ready("works")
    notifier.ready("works")
    notifier.status("works")
    notifier.ready("works on")
    assert notifier.is_ready
    assert manager.received() == [{"READY": "1", "STATUS": "works"}, {"STATUS": "works on"}]


def test_an_abstract_socket_is_found_too() -> None:
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


def test_a_status_cannot_say_anything_else(manager: Manager, notifier: Notifier) -> None:
    notifier.status("fine\nWATCHDOG=trigger\x1b[2J \udcff" + "x" * 10_000)
    (message,) = manager.received()
    assert list(message) == ["STATUS"]
    assert message["STATUS"].startswith("fine WATCHDOG=trigger?[2J ?x")
    assert len(message["STATUS"]) == 500


def test_heartbeats_are_sent_no_oftener_than_four_times_an_interval(
    manager: Manager, notifier: Notifier, clock: Clock
) -> None:
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


def test_a_longer_interval_is_asked_for_and_a_shorter_one_never(manager: Manager, notifier: Notifier) -> None:
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
def test_the_interval_is_the_environments(variables: dict[str, str], seconds: float) -> None:
    assert Notifier.from_environment(variables).watchdog == seconds


def test_where_nobody_wants_to_know_nothing_happens() -> None:
    notifier = Notifier.from_environment({})
    with capture_logs() as lines:
        notifier.ready("works")
        notifier.stopping()
    assert notifier.is_ready
    assert lines == []


@pytest.mark.parametrize("address", ["/nowhere/at/all", "vsock:2:1", "@nobody-listens-here", "/" + "x" * 200])
def test_a_manager_that_does_not_listen_is_complained_of_once_and_asked_again(address: str) -> None:
    notifier = Notifier(address, 40.0)
    with capture_logs() as lines:
        notifier.ready("works")
        notifier.beat()
    assert not notifier.is_ready
    assert [line["event"] for line in lines] == ["service-manager-does-not-listen"]


def test_what_did_not_arrive_is_said_again() -> None:
    with tempfile.TemporaryDirectory() as directory:
        notifier = Notifier(f"{directory}/notify")
        with capture_logs():
            notifier.ready("works")
        manager = Manager(f"{directory}/notify")
        notifier.ready("works")
        assert manager.received() == [{"READY": "1", "STATUS": "works"}]
        manager.close()


class Jobs:
    """The controller's jobs, run by hand; each says or raises what it is told to."""

    def __init__(self, heart: Watchdog) -> None:
        self.answer: dict[str, object] = {"observe": "leading in epoch 3", "requests": 0, "follow": "no migration runs"}
        self._run = {title: heart._monitor.add(title, 1.0, self._job(title)).run for title in self.answer}

    def _job(self, title: str) -> Callable[[], object]:
        def job() -> object:
            answer = self.answer[title]
            if isinstance(answer, Exception):
                raise answer
            return answer

        return job

    def run(self, *titles: str) -> None:
        for title in titles or tuple(self._run):
            self._run[title]()


def watchdog(notifier: Notifier, clock: Clock, settings: Settings | None = None) -> Watchdog:
    clocks = Clocks(wall=clock, monotonic=clock)
    return Watchdog(notifier, settings or Settings(), JobMonitor(clocks), clocks)


@pytest.fixture
def heart(notifier: Notifier, clock: Clock) -> Watchdog:
    return watchdog(notifier, clock)


def test_a_controller_is_ready_once_it_leads(manager: Manager, heart: Watchdog) -> None:
    jobs = Jobs(heart)
    heart.begin()
    assert manager.names() == ["EXTEND_TIMEOUT_USEC", "STATUS"]
    heart.send_heartbeat()
    assert manager.received() == []
    jobs.run()
    heart.send_heartbeat()
    assert manager.received() == [
        {"READY": "1", "STATUS": "leading in epoch 3; no migration runs"},
        {"WATCHDOG": "1"},
    ]


def test_a_controller_that_stands_by_is_ready_too(manager: Manager, heart: Watchdog) -> None:
    jobs = Jobs(heart)
    jobs.answer |= {"observe": "standing by: other leads in epoch 3", "follow": "not leading"}
    jobs.run()
    heart.send_heartbeat()
    assert manager.received()[0] == {"READY": "1", "STATUS": "standing by: other leads in epoch 3"}


def test_a_controller_that_waits_for_redis_is_ready_and_goes_on_beating(
    manager: Manager, heart: Watchdog, clock: Clock
) -> None:
    jobs = Jobs(heart)
    jobs.answer = dict.fromkeys(jobs.answer, StoreUnavailableError("no route to Redis"))
    with capture_logs():
        for _ in range(200):
            jobs.run()
            heart.send_heartbeat()
            manager.listen()
            clock.now += 1
    messages = manager.received()
    assert messages[0] == {"READY": "1", "STATUS": "waits for Redis: no route to Redis"}
    assert messages[1:] == [{"WATCHDOG": "1"}] * 20


@pytest.mark.parametrize(
    ("trouble", "messages_value"),
    [
        (StoreRefusedError("wrong password"), "Redis refuses: wrong password"),
        (ZeroDivisionError(), "follow failed (ZeroDivisionError), see the log; it is tried again"),
    ],
)
def test_a_job_that_fails_is_no_hang_and_stands_in_the_status(
    manager: Manager, heart: Watchdog, clock: Clock, trouble: Exception, messages_value: str
) -> None:
    jobs = Jobs(heart)
    jobs.run()
    heart.send_heartbeat()
    jobs.answer["follow"] = trouble
    manager.received()
    with capture_logs():
        for _ in range(200):  # most of the time its brake lets it rest
            clock.now += 1
            jobs.run()
            heart.send_heartbeat()
            manager.listen()
    messages = manager.received()
    assert {"STATUS": messages_value} in messages
    assert messages.count({"WATCHDOG": "1"}) == 20


@pytest.mark.parametrize("hung", ["observe", "requests", "follow"])
def test_a_job_that_does_not_come_back_ends_the_heartbeats(
    manager: Manager, heart: Watchdog, clock: Clock, hung: str
) -> None:
    jobs = Jobs(heart)
    jobs.run()
    heart.send_heartbeat()
    manager.received()
    others = [title for title in jobs.answer if title != hung]
    with capture_logs() as lines:
        for _ in range(100):
            clock.now += 1
            jobs.run(*others)
            heart.send_heartbeat()
    assert "WATCHDOG" not in manager.names()
    (line,) = [line for line in lines if line["event"] == "jobs-hang"]
    assert hung in line["sentence"]
    assert line["restart_after"] == 40.0
    with capture_logs() as lines:
        jobs.run()
        heart.send_heartbeat()
    assert [line["event"] for line in lines] == ["jobs-go-on"]
    assert manager.names() == ["STATUS", "WATCHDOG"]


def test_a_process_that_stood_still_holds_it_against_no_job(heart: Watchdog, clock: Clock) -> None:
    jobs = Jobs(heart)
    jobs.run()
    heart.send_heartbeat()
    clock.now += 3600
    with capture_logs() as lines:
        heart.send_heartbeat()
    assert lines == []


def test_a_plan_of_minutes_ends_no_heartbeat_and_one_that_never_ends_does(
    manager: Manager, notifier: Notifier, clock: Clock
) -> None:
    heart = watchdog(notifier, clock)
    planning = heart._monitor.planning
    jobs = Jobs(heart)

    def turns(seconds: int) -> tuple[int, list[str]]:
        with capture_logs() as lines:
            for _ in range(seconds):
                clock.now += 1
                jobs.run()
                heart.send_heartbeat()
                manager.listen()
        return manager.received().count({"WATCHDOG": "1"}), [line["event"] for line in lines]

    with planning.plan("app"):
        assert turns(int(LONGEST)) == (60, [])
        assert turns(60) == (0, ["jobs-hang"])
    assert turns(20) == (2, ["jobs-go-on"])


def test_a_controller_that_shows_itself_has_one_job_more_that_waits_for_redis() -> None:
    plain = Settings()
    shown = dataclasses.replace(plain, controller=dataclasses.replace(plain.controller, listen="127.0.0.1:9418"))
    assert patience(shown) - patience(plain) == 2 * 2 * plain.redis.timeout


def test_a_slow_redis_is_given_the_time_it_may_take(manager: Manager, notifier: Notifier) -> None:
    slow = dataclasses.replace(Settings(), redis=RedisSettings(timeout=30.0))
    watchdog(notifier, Clock(), slow).begin()
    longest = 4 * 2 * 30.0  # four jobs in turn, each with one call that is given up
    messages = manager.received()
    assert int(messages[0]["EXTEND_TIMEOUT_USEC"]) > longest * 1e6
    assert int(messages[1]["WATCHDOG_USEC"]) > longest * 1e6
    assert notifier.watchdog > longest


class _Store:
    def check(self) -> str:
        return "7.2.4"

    def append(self, rule: KeyRule, name: str, *envelopes: Envelope) -> None:
        pass

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


def _agent(notifier: Notifier, clock: _StoppingClock, settings: AgentSettings) -> None:
    run_agent(
        dataclasses.replace(Settings(), agent=settings),
        stop=threading.Event(),
        store_factory=lambda _: _Store(),
        host=AgentHost(clock, FakeTable(FakeProcess(10, arguments=backend())), notifier),
    )


def test_an_agent_is_ready_with_its_first_window_and_beats_with_its_samples(manager: Manager) -> None:
    clock = _StoppingClock(41.0, manager)
    _agent(Notifier(manager.address, 40.0, monotonic=clock.monotonic), clock, AgentSettings(node=NODE))
    messages = manager.received()
    ready = next(index for index, message in enumerate(messages) if "READY" in message)
    assert {name for message in messages[:ready] for name in message} == {"EXTEND_TIMEOUT_USEC", "WATCHDOG"}
    assert messages[ready]["STATUS"] == f"{NODE}: 1 executors, 0 map outputs in the last window"
    assert messages.count({"WATCHDOG": "1"}) == 5  # at once, and every ten seconds of 41
    assert "STOPPING" in messages[-1]


def test_an_agent_that_samples_seldom_asks_for_a_longer_interval(manager: Manager) -> None:
    clock = _StoppingClock(1.0, manager)
    settings = AgentSettings(node=NODE, sample=60.0, window=60.0)
    _agent(Notifier(manager.address, 40.0, monotonic=clock.monotonic), clock, settings)
    assert manager.received()[0] == {"WATCHDOG_USEC": "180000000"}


def test_an_agent_whose_pushing_thread_died_stops_beating(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sender, "alive", property(lambda _: False))
    clock = _StoppingClock(100.0, manager)
    _agent(Notifier(manager.address, 40.0, monotonic=clock.monotonic), clock, AgentSettings(node=NODE))
    assert "WATCHDOG" not in manager.names()


def test_an_agent_without_an_executor_is_ready_and_says_what_it_waits_for(
    manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
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
