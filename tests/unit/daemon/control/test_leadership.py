"""Never two that act at once: two controllers over one Redis, with every delay, pause and loss there can be."""

from __future__ import annotations

import contextlib
import random
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rechannel.conf import lease_timing
from rechannel.conf.settings import ControllerSettings, RedisSettings, Settings
from rechannel.daemon.control.leadership import LeaderElection, LeaseResult
from rechannel.daemon.jobs.clock import Clock
from rechannel.wire import keys
from rechannel.wire.envelope import EnvelopeFactory
from rechannel.wire.redis.answers import Lease
from rechannel.wire.redis.errors import StoreDeposedError, StoreUnavailableError
from unit import sample_messages as samples
from unit.daemon.fake_store import FakeClock, FakeFenced, FakeStore
from unit.daemon.virtual_time import VirtualTime

LENGTH = 40  # leases that a trial lasts


class SlowStore(FakeStore):
    """Redis behind a network: what is asked takes effect some time later, or never, and so does the answer."""

    trial: Trial

    def fenced(self, held: Any) -> SlowView:
        return SlowView(self, held)


class SlowView(FakeFenced):
    """What one controller sees of it."""

    def acquire_lease(self, holder: str, seconds: float, least_epoch: int) -> Lease:
        trial: Trial = self._store.trial  # type: ignore[attr-defined]
        chance, call = trial.chance, trial.call
        there, back = chance.choice([(0.0, 0.0), (chance.random() * call, chance.random() * call), (3 * call, 0.0)])
        lost_there, lost_back = chance.random() < 0.1, chance.random() < 0.2
        answer: list[Lease] = []

        def arrive() -> None:
            answer.append(FakeStore.acquire_lease(self._store, holder, seconds, least_epoch))

        request = trial.time.now
        if not lost_there:
            trial.time.at(request + there, arrive)
        held_up = trial.pause()
        waits = max(min(there + back, call), held_up)  # a process that is stopped notices no timeout
        trial.time.sleep(waits)
        if lost_back or not answer or there + back > waits:
            raise StoreUnavailableError("no answer came in time")
        return answer[0]


@dataclass
class Trial:
    """Two controllers for a while. ``acts``: (begin, end, who) of what was begun while holding the lead."""

    seed: int
    config: Settings
    reserve: bool = True
    pauses: bool = True
    jumps: bool = False
    acts: list[tuple[float, float, str]] = field(default_factory=list)
    written: list[int] = field(default_factory=list)
    leaders: set[str] = field(default_factory=set)
    both: int = 0
    refused: int = 0

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.time = VirtualTime(self._look)
        self.jumped = 0.0
        self.lease = self.config.controller.lease
        self.call = lease_timing.longest_call(self.config.redis)
        self.store = SlowStore(lambda: self.time.now + self.jumped)  # type: ignore[arg-type]
        self.store.trial = self
        self.leads = [self._controller(name) for name in "ab"]
        for lead in self.leads:
            self.time.process(lambda lead=lead: self._work(lead))  # type: ignore[misc]
        self.time.run()

    def _controller(self, name: str) -> LeaderElection:
        rate = 1 + self.chance.uniform(-0.5, 0.5) * lease_timing.DRIFT
        start = self.chance.random() * 1e6
        lead = LeaderElection(
            self.config,
            self.store,  # type: ignore[arg-type]
            Clock(
                wall=lambda: self.chance.uniform(-1e9, 1e9),  # the machine's time is set all the time
                steady=lambda: start + self.time.now * rate,
            ),
            name,
        )
        if not self.reserve:
            lead._acting = self.lease
        return lead

    def pause(self) -> float:
        if not self.pauses or self.chance.random() > 0.15:
            return 0.0
        return self.chance.choice([0.3, 1.0, 3.0]) * self.lease * self.chance.random()

    def _look(self) -> None:
        self.both += sum(lead.holds() for lead in self.leads) > 1

    def _work(self, lead: LeaderElection) -> None:
        while self.time.now < LENGTH * self.lease:
            with contextlib.suppress(StoreUnavailableError, StoreDeposedError):
                lead.renew(0)
            self.time.sleep(self.pause())
            if lead.holds():
                self._act(lead)
            if self.jumps and self.chance.random() < 0.1:
                self.jumped += self.chance.uniform(-2, 2) * self.lease
            self.time.sleep(lease_timing.OBSERVE)

    def _act(self, lead: LeaderElection) -> None:
        self.leaders.add(lead.name)
        begun, took, held_up = self.time.now, self.chance.random() * self.call, self.pause()
        self.time.sleep(took + held_up)  # exactly between looking and writing
        if not held_up:
            self.acts.append((begun, self.time.now, lead.name))
        try:
            lead.store.set_paused(False)
        except StoreDeposedError:
            self.refused += 1
        else:
            self.written.append(lead.epoch)
            assert self.store.owner() == lead.lease()

    @property
    def overlaps(self) -> int:
        acts = sorted(self.acts)
        return sum(
            one[2] != two[2] and two[0] < one[1]
            for at, one in enumerate(acts)
            for two in acts[at + 1 :]
            if two[0] < one[1]
        )


def config(timeout: float, more: float) -> Settings:
    lease = lease_timing.least_lease(lease_timing.longest_call(RedisSettings(timeout=timeout))) + more
    return replace(
        Settings(),
        controller=ControllerSettings(lease=lease),
        redis=RedisSettings(timeout=timeout),
    )


TIMES = {"timeout": st.floats(0.05, 5), "more": st.floats(0, 20)}


@given(seed=st.integers(0, 2**32), **TIMES)
@settings(max_examples=100, deadline=None)
def test_never_two_that_act_at_the_same_moment(seed: int, timeout: float, more: float) -> None:
    trial = Trial(seed, config(timeout, more))
    assert trial.both == 0
    assert trial.overlaps == 0
    assert trial.written == sorted(trial.written), "nothing of an older epoch is written after something of a newer one"


@given(seed=st.integers(0, 2**32), **TIMES)
@settings(max_examples=50, deadline=None)
def test_nothing_late_is_written_though_the_clock_of_redis_jumps(seed: int, timeout: float, more: float) -> None:
    trial = Trial(seed, config(timeout, more), jumps=True)
    assert trial.written == sorted(trial.written)


def test_the_trials_can_fail_and_are_not_empty() -> None:
    """What is shown above is shown of leaders that change, are refused, and would overlap without the reserve."""
    trials = [Trial(seed, config(2, 0)) for seed in range(20)]
    assert sum(len(trial.leaders) == 2 for trial in trials) > 10
    assert any(trial.refused for trial in trials)
    assert sum(len(trial.acts) for trial in trials) > 200
    careless = [Trial(seed, config(2, 0), reserve=False, pauses=False) for seed in range(60)]
    assert any(trial.overlaps for trial in careless)


def slow_down(store: FakeStore, clock: FakeClock, seconds: float) -> None:
    """Let every answer to a renewal come so late."""
    real = store.acquire_lease

    def slow(*arguments: Any) -> Lease:
        answer = real(*arguments)
        clock.sleep(seconds)
        return answer

    store.acquire_lease = slow  # type: ignore[method-assign]


def test_a_leader_whose_renewals_are_all_answered_at_the_last_moment_goes_on() -> None:
    """What the inequality is for besides: with the shortest lease, slow is not away."""
    made = config(2, 0)
    clock = FakeClock()
    store = FakeStore(clock)
    lead = LeaderElection(made, store, Clock(wall=clock, steady=clock), "a")  # type: ignore[arg-type]
    lead.renew(0)
    slow_down(store, clock, lease_timing.longest_call(made.redis))
    for _ in range(10):
        clock.sleep(lease_timing.OBSERVE)
        assert lead.renew(0) is LeaseResult.RENEWED
        assert lead.holds()


def lead_of(store: FakeStore, clock: FakeClock, name: str) -> LeaderElection:
    return LeaderElection(Settings(), store, Clock(wall=clock, steady=clock), name)  # type: ignore[arg-type]


def test_a_lease_counts_from_before_it_was_asked_for_and_ends_early(clock: FakeClock, store: FakeStore) -> None:
    lead = lead_of(store, clock, "a")
    slow_down(store, clock, 5)
    assert lead.renew(0) is LeaseResult.TAKEN
    assert lead.holds()
    clock.sleep(15 * 0.99 - 4 - 5)
    assert not lead.holds()


def test_after_long_work_the_lease_is_renewed_before_anything_is_done(store: FakeStore, clock: FakeClock) -> None:
    lead = lead_of(store, clock, "a")
    assert not lead.revalidate()
    lead.renew(0)
    clock.sleep(14)
    assert not lead.holds()
    assert lead.revalidate(), "the lease had not ended: nobody led meanwhile"
    clock.sleep(16)
    assert not lead.revalidate(), "somebody may have"
    assert lead.holds()
    assert lead.renew(0) is LeaseResult.RAISED, "and whoever renews is told"
    assert lead.renew(0) is LeaseResult.RENEWED
    clock.sleep(16)
    lead_of(store, clock, "b").renew(0)
    assert not lead.revalidate()
    assert lead.renew(0) is LeaseResult.WAITING


def test_the_machines_time_may_be_set(store: FakeStore, clock: FakeClock) -> None:
    steady = FakeClock(5.0)
    lead = LeaderElection(Settings(), store, Clock(wall=clock, steady=steady), "a")  # type: ignore[arg-type]
    lead.renew(0)
    clock.now -= 86_400
    steady.sleep(12)
    assert not lead.holds(), "a clock set back lengthens no lease"


def test_a_fail_over_that_lost_the_newest_epochs_gives_out_none_of_them_again(
    store: FakeStore, clock: FakeClock
) -> None:
    first, second = lead_of(store, clock, "a"), lead_of(store, clock, "b")
    for _ in range(5):
        first.renew(0)
        clock.sleep(16)
    assert first.renew(0) is LeaseResult.RAISED
    existing = first.epoch
    store.fail_over(known_epoch=2)
    assert second.renew(0) is LeaseResult.TAKEN
    assert second.epoch > existing
    with pytest.raises(StoreDeposedError):
        first.pause(True)


def test_a_pause_survives_a_fail_over_that_lost_it(store: FakeStore, clock: FakeClock) -> None:
    lead = lead_of(store, clock, "a")
    lead.renew(0)
    lead.pause(True)
    store.fail_over(known_epoch=0)
    store.set_paused(False)
    assert lead.renew(0) is LeaseResult.RAISED
    assert lead.paused
    assert store.is_paused()


def test_a_pause_by_a_leader_that_vanished_meanwhile_is_kept(store: FakeStore, clock: FakeClock) -> None:
    first, second = lead_of(store, clock, "a"), lead_of(store, clock, "b")
    first.renew(0)
    clock.sleep(16)
    second.renew(0)
    second.pause(True)
    clock.sleep(16)  # nothing in Redis tells of the second one any more, but the epoch
    assert first.renew(0) is LeaseResult.RAISED
    assert first.paused
    assert store.is_paused()


def publish_state(store: FakeStore, clock: FakeClock, lead: LeaderElection) -> None:
    """Have a leader tell of itself, as its controller would."""
    state = samples.controller_state(leader=lead.name, epoch=lead.epoch, paused=lead.paused)
    store.put(keys.STATE, "", EnvelopeFactory("default", lead.name, clock).envelope(state, ttl=60))


def test_a_pause_meanwhile_is_kept_though_redis_goes_away_while_it_is_read(store: FakeStore, clock: FakeClock) -> None:
    mine, other = lead_of(store, clock, "a"), lead_of(store, clock, "b")
    mine.renew(0)
    clock.sleep(16)
    assert other.renew(0) is LeaseResult.TAKEN
    other.pause(True)
    publish_state(store, clock, other)
    other.release()
    store.unreadable = keys.STATE
    with pytest.raises(StoreUnavailableError):
        mine.renew(0)
    assert not mine.holds()
    store.unreadable = None
    assert mine.renew(0) is LeaseResult.RAISED
    assert (mine.paused, store.is_paused(), mine.holds()) == (True, True, True)


def test_a_pause_that_another_leader_ended_is_not_said_again(store: FakeStore, clock: FakeClock) -> None:
    first, second = lead_of(store, clock, "a"), lead_of(store, clock, "b")
    first.renew(0)
    first.pause(True)
    clock.sleep(16)
    second.renew(0)
    second.pause(False)
    publish_state(store, clock, second)
    second.release()
    assert first.renew(0) is LeaseResult.RAISED
    assert not store.is_paused()


def test_a_pause_that_redis_kept_counts_though_only_a_link_tells_that_somebody_led(
    store: FakeStore, clock: FakeClock
) -> None:
    lead = lead_of(store, clock, "a")
    lead.renew(0)
    clock.sleep(16)
    store.set_paused(True)  # by a leader of epoch 7, of which nothing else is left
    assert lead.renew(7) is LeaseResult.RAISED
    assert (lead.epoch, lead.paused, store.is_paused()) == (8, True, True)


def test_a_pause_that_a_replica_kept_counts_after_a_fail_over(store: FakeStore, clock: FakeClock) -> None:
    lead = lead_of(store, clock, "a")
    lead.renew(0)
    store.fail_over(known_epoch=0)
    store.set_paused(True)
    assert lead.renew(0) is LeaseResult.RAISED
    assert (lead.paused, store.is_paused()) == (True, True)
