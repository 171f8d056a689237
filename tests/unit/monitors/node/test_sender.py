"""Sender: order, bounds of the buffer, delays and log lines while Redis is away or refuses."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from rechannel.monitors.node import sender
from rechannel.monitors.node.sender import (
    FIRST_DELAY,
    LIMITS_EVERY,
    LIMITS_FORBIDDEN_EVERY,
    LONGEST_DELAY,
    REFUSED_DELAY,
    REFUSED_EVERY,
    Sender,
)
from rechannel.wire.envelope import Envelope, EnvelopeFactory
from rechannel.wire.keys import EVIDENCE, WINDOWS, KeyRule
from rechannel.wire.measurements import AgentEvidence, AgentWindow, ClosedStore, MapOutput
from rechannel.wire.messages import AgentLimits
from rechannel.wire.redis.errors import StoreForbiddenError, StoreRefusedError, StoreUnavailableError
from unit.monitors.fakes import NODE, FakeClock, FakeStore
from unit.wire.samples import sample


class _Bench:
    """A sender that is driven by hand, without its thread."""

    def __init__(self, bound: int = 3) -> None:
        self.store = FakeStore()
        self.clock = FakeClock()
        self.author = EnvelopeFactory("default", "agent", self.clock.wall)
        self.sender = Sender(NODE, lambda: self.store, bound, monotonic=self.clock.monotonic)

    def offer(self, body: AgentWindow | AgentEvidence) -> None:
        self.sender.offer(self.author.envelope(body, ttl=60))

    def offer_windows(self, *numbers: int) -> None:
        for number in numbers:
            self.offer(sample(AgentWindow, start=float(number)))

    def starts(self) -> list[float]:
        return [window.start for window in self.store.windows]


def test_evidence_is_pushed_before_windows() -> None:
    bench = _Bench()
    bench.offer_windows(1)
    bench.offer(AgentEvidence(node=NODE, closed=[]))
    assert bench.sender.push() == 0.0
    assert [(rule, name) for rule, name, _ in bench.store.pushed] == [(EVIDENCE, NODE), (WINDOWS, NODE)]
    assert bench.sender.push() == 0.0
    assert len(bench.store.pushed) == 2


def test_the_oldest_windows_are_dropped_while_redis_is_away() -> None:
    bench = _Bench(bound=3)
    bench.store.trouble = StoreUnavailableError("away")
    for number in range(5):
        bench.offer_windows(number)
        bench.sender.push()
    bench.store.trouble = None
    assert bench.sender.push() == 0.0
    assert bench.starts() == [2.0, 3.0, 4.0]
    assert list(bench.sender.pop_dropped().values()) == [2]
    assert bench.sender.pop_dropped() == {}


def test_an_outage_and_its_end_are_logged_once_and_delays_grow() -> None:
    bench = _Bench()
    bench.store.trouble = StoreUnavailableError("away")
    bench.offer_windows(0)
    with capture_logs() as logs:
        delays = [bench.sender.push() for _ in range(20)]
        bench.store.trouble = None
        bench.sender.push()
        bench.sender.push()
    assert delays[0] == FIRST_DELAY
    assert delays == sorted(delays)
    assert delays[-1] == LONGEST_DELAY
    assert [entry["event"] for entry in logs] == ["redis is away", "redis is back"]


def test_a_refusal_is_logged_once_a_minute_and_the_store_reopened_each_time() -> None:
    bench = _Bench()
    bench.store.trouble = StoreRefusedError("wrong password")
    bench.offer_windows(0)
    with capture_logs() as logs:
        for _ in range(int(2 * REFUSED_EVERY / REFUSED_DELAY)):
            assert bench.sender.push() == REFUSED_DELAY
            bench.clock.pass_time(REFUSED_DELAY)
    assert [entry["problem"] for entry in logs] == ["wrong password"] * 2
    assert bench.store.closed == 12


def test_another_cause_is_logged_at_most_once_a_minute() -> None:
    bench = _Bench()
    with capture_logs() as logs:
        for trouble in (
            StoreUnavailableError("nobody there"),
            StoreUnavailableError("too slow"),  # in the same minute
            StoreRefusedError("wrong password"),
            StoreUnavailableError("nobody there"),
        ):
            bench.store.trouble = trouble
            bench.sender.push()
        bench.clock.pass_time(REFUSED_EVERY)
        bench.store.trouble = StoreUnavailableError("too slow")
        bench.sender.push()
        bench.sender.push()
    assert [entry["problem"] for entry in logs] == ["nobody there", "wrong password", "nobody there", "too slow"]


def test_redis_is_checked_without_messages() -> None:
    bench = _Bench()
    with capture_logs() as logs:
        assert bench.sender.push() == 0.0
        assert bench.sender.reachable
        bench.store.trouble = StoreUnavailableError("away")
        assert bench.sender.push() == FIRST_DELAY
        assert not bench.sender.reachable
    assert [entry["event"] for entry in logs] == ["redis is away"]
    assert bench.store.pushed == []


def test_a_store_that_cannot_be_opened_is_retried() -> None:
    clock = FakeClock()

    def refuse() -> FakeStore:
        raise StoreRefusedError("redis.password_file: cannot be read")

    sender = Sender(NODE, refuse, 3, monotonic=clock.monotonic)
    with capture_logs() as logs:
        assert sender.push() == REFUSED_DELAY
    assert "password_file" in logs[0]["problem"]


def test_a_window_dropped_during_a_push_drops_no_other() -> None:
    bench = _Bench(bound=2)
    append = bench.store.append

    def slow(rule: KeyRule, name: str, *envelopes: Envelope) -> None:
        append(rule, name, *envelopes)
        bench.store.append = append  # type: ignore[method-assign]
        bench.offer_windows(2, 3)

    bench.store.append = slow  # type: ignore[method-assign]
    bench.offer_windows(0, 1)
    assert bench.sender.push() == 0.0
    assert bench.starts() == [0.0, 1.0, 2.0, 3.0]


def test_buffered_map_outputs_are_bounded_newest_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "BUFFERED_SIZES", 50)
    bench = _Bench(bound=10)
    for number in range(4):
        outputs = [MapOutput("app-1", "0", 0, task, [1] * 10) for task in range(2)]
        bench.offer(sample(AgentWindow, start=float(number), map_outputs=outputs))
    bench.sender.push()
    windows = bench.store.windows
    assert [len(window.map_outputs) for window in windows] == [0, 0, 2, 2]
    assert list(windows[0].skipped.values()) == [2]


def test_map_outputs_are_limited_as_the_controller_says() -> None:
    bench = _Bench(bound=10)

    def sent(*, seconds: float) -> int:
        outputs = [MapOutput("app-1", "0", 0, task, [1] * 10) for task in range(20)]
        bench.offer(sample(AgentWindow, map_outputs=outputs))
        bench.clock.pass_time(seconds)
        assert bench.sender.push() == 0.0
        return len(bench.store.windows[-1].map_outputs)

    bench.store.limits = StoreForbiddenError("a user of an older release")
    assert sent(seconds=1.0) == 20
    bench.store.limits = AgentLimits(window_sizes=50)
    assert [sent(seconds=LIMITS_EVERY), sent(seconds=1.0)] == [20, 20], "asked again later"
    assert sent(seconds=LIMITS_FORBIDDEN_EVERY) == 20
    few = sent(seconds=1.0)
    assert 0 < few < 12
    assert list(bench.sender.pop_dropped().values()) == [20 - few]
    bench.store.limits = AgentLimits(window_sizes=-(2**53))
    assert [sent(seconds=LIMITS_EVERY), sent(seconds=1.0)] == [few, 0]
    bench.store.limits = None  # as in an emptied Redis
    assert [sent(seconds=LIMITS_EVERY), sent(seconds=1.0)] == [0, 20]


def test_evidence_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the stores that it names, as a message may name as many as an executor logs in a second."""
    monkeypatch.setattr(sender, "BUFFERED_EVIDENCE", 7)
    bench = _Bench()
    for _ in range(5):
        bench.offer(AgentEvidence(node=NODE, closed=[sample(ClosedStore)] * 3))
    bench.sender.push()
    assert [rule for rule, _, _ in bench.store.pushed] == [EVIDENCE] * 2
    bench.offer(AgentEvidence(node=NODE, closed=[sample(ClosedStore)] * 8))
    assert (bench.sender.waiting, list(bench.sender.pop_dropped().values())) == (0, [4])
