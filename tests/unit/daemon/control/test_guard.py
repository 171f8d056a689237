"""Guards of automatic decisions."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rechannel.conf.settings import RescheduleSettings, Settings
from rechannel.daemon.control import guard as guards
from rechannel.daemon.control.guard import (
    HOUR,
    AutomaticDecisionGuard,
    ClusterLimits,
    move_keys,
    moves_within_hour,
    next_room,
    overlap,
)
from rechannel.wire.codes import Law, Trigger
from rechannel.wire.messages import Decision, DesiredMove, Refusal
from unit import sample_messages as samples
from unit.daemon.fakes import executor_load

NOON = 1_780_315_200.0  # 2026-06-01, a Monday, 12:00 UTC
RULES = RescheduleSettings(trigger_windows=3)
SETTINGS = Settings(reschedule=RULES)


def rules(**changes: object) -> Settings:
    return Settings(reschedule=RescheduleSettings(**changes))  # type: ignore[arg-type]


def guarded(**changes: object) -> tuple[AutomaticDecisionGuard, ClusterLimits]:
    """An application's guard under these rules, and the limits of its cluster."""
    limits = ClusterLimits(rules(**changes))
    return AutomaticDecisionGuard(limits), limits


def moves(*partitions: int, target: str = "1", decision: str = "d") -> list[DesiredMove]:
    return [
        DesiredMove(move=f"{decision}.{p}", query="q", stage=0, partition=p, source="0", target=target, step=0)
        for p in partitions
    ]


def decision(at: float, result: str = "planned", reason: str = "ok", **more: object) -> Decision:
    return samples.decision(decision=f"d{at}", at=at, result=result, reason=reason, **more)


# -- budget --


MOVED = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=3), st.tuples(st.floats(0, 10_000), st.integers(0, 50)), max_size=20
)


@given(moved=MOVED, now=st.floats(0, 12_000), limit=st.integers(1, 100))
def test_there_is_room_again_just_when_it_is_said(moved: dict[str, tuple[float, int]], now: float, limit: int) -> None:
    free = next_room(moved, now, limit)
    assert free >= now
    if moves_within_hour(moved, now) < limit:
        assert free == now
    else:
        later = {name: it for name, it in moved.items() if it[0] <= now}
        assert moves_within_hour(later, max(free, now) + 1e-3) < limit or len(later) < len(moved)


def test_the_budget_rolls_to_its_very_edge() -> None:
    guard, limits = guarded(moves_per_hour=10)
    guard.record(decision(NOON, "applied", moves=moves(*range(6))))
    AutomaticDecisionGuard(limits).record(decision(NOON + 600, "applied", moves=moves(*range(3))))
    assert (limits.moves_left(NOON + 601), limits.blocked_by(NOON + 601)) == (1, None)
    guard.record(decision(NOON + 700, "applied", moves=moves(9)))
    held = limits.blocked_by(NOON + 800)
    assert (held.law, held.measured, held.limit, held.until) == (Law.BUDGET, 10, 10, NOON + HOUR)
    assert limits.blocked_by(NOON + HOUR - 0.01) is not None
    assert limits.moves_left(NOON + HOUR) == 6
    assert limits.order_warning(NOON + 800, 4).endswith("14 moves within an hour, reschedule.moves_per_hour is 10")
    assert limits.order_warning(NOON + HOUR, 4) == ""


def test_what_was_moved_is_known_to_the_next_controller() -> None:
    stored = decision(NOON, "applied", moves=moves(1, 2, 3))
    guard, limits = guarded(moves_per_hour=3)
    guard.record(stored)
    assert limits.moves_left(NOON + 1) == 0
    guard.record(stored)
    assert limits.moves_left(NOON + HOUR) == 3, "and is not counted twice"


def test_what_is_ahead_of_a_clock_that_was_set_back_counts_for_an_hour() -> None:
    stored = decision(NOON, "applied", moves=moves(1, 2, 3))
    guard, limits = guarded(moves_per_hour=3)
    guard.record(stored)
    before = NOON - 86_400
    held = limits.blocked_by(before)
    assert held.until == before + HOUR
    guard.record(stored)
    assert limits.blocked_by(before + HOUR) is None


def test_a_drain_evens_out_within_the_budget_and_not_after_a_rollback() -> None:
    guard, _ = guarded(moves_per_hour=10)
    guard.record(decision(NOON, "applied", moves=moves(1, 2, 3)))
    assert guard.mending_moves(NOON + 1) == 7
    guard.record(decision(NOON, "applied", moves=moves(1, 2, 3), rollback_of="d"))
    assert guard.mending_moves(NOON + 1) == 0
    assert guarded()[0].mending_moves(NOON) == SETTINGS.migration.max_moves


# -- excluded periods --


def test_nothing_begins_in_an_excluded_period_and_that_is_told_once() -> None:
    guard, limits = guarded(excluded=("Mon-Fri 09:00-18:00",), time_zone="Europe/Berlin")
    held = limits.blocked_by(NOON)
    assert (held.law, held.until - NOON) == (Law.EXCLUDED, 4 * HOUR)
    assert "until Mon 18:00 CEST" in held.detail
    assert guard.should_log(Trigger.TIMEOUT, held)
    guard.record(decision(NOON, "refused", Law.EXCLUDED, refusals=[held]))
    again = limits.blocked_by(NOON + 300)
    assert not guard.should_log(Trigger.TIMEOUT, again)
    assert limits.blocked_by(NOON + 4 * HOUR) is None
    tomorrow = limits.blocked_by(NOON + 24 * HOUR)
    assert guard.should_log(Trigger.TIMEOUT, tomorrow)
    assert "warning: this is in the excluded period Mon-Fri 09:00-18:00" in limits.order_warning(NOON)


# -- agreement --


def agree(
    guard: AutomaticDecisionGuard,
    at: float,
    *partitions: int,
    cost: float = 99.0,
    total: int = 100,
    batch: int | None = None,
) -> Refusal | None:
    """One decision by timeout that recommends these moves, after so many batches where that is told."""
    batches = {} if batch is None else {"q": batch}
    draft = decision(at, moves=moves(*partitions), cost=cost, last_batches=batches)
    result = guard.agreement(draft, total)
    outcome = "applied" if result is None else "refused"
    reason = "ok" if result is None else Law.AGREEMENTS
    guard.record(decision(at, outcome, reason, moves=moves(*partitions), last_batches=batches))
    return result


def test_a_costly_plan_has_to_be_recommended_several_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "AGREEMENTS", 3)
    guard = guarded()[0]
    first = agree(guard, NOON, 1, 2, 3)
    assert (first.law, first.measured, first.limit) == (Law.AGREEMENTS, 1, 3)
    assert "recommended 1 of 3 times in a row" in first.detail
    assert agree(guard, NOON + 300, 1, 2, 4) is not None
    assert "recommended 2 of 3 times" in guard.describe(NOON + 301)
    assert agree(guard, NOON + 600, 1, 2, 4) is None
    assert agree(guard, NOON + 900, 1, 2, 4) is not None, "the next one begins anew"


@pytest.mark.parametrize(
    ("cost", "partitions", "held"),
    [(30.0, 2, False), (30.1, 2, True), (1.0, 75, False), (1.0, 76, True)],
    ids=["not dear", "dear", "not many", "many"],
)
def test_what_is_costly(cost: float, partitions: int, held: bool) -> None:
    assert (agree(guarded()[0], NOON, *range(partitions), cost=cost) is not None) is held


@pytest.mark.parametrize("between", ["another plan", "the gate", "nothing to do", "too long", "the same figures"])
def test_what_breaks_the_row(between: str) -> None:
    guard = guarded()[0]
    agree(guard, NOON, 1, 2, 3)
    at = NOON + 300
    if between == "another plan":
        agree(guard, at, 7, 8, 9)
    elif between == "the gate":
        guard.record(decision(at, "refused", "gate"))
    elif between == "nothing to do":
        guard.record(decision(at, "planned", "nothing-to-do"))
    at = NOON + {"too long": 901.0, "the same figures": 14.0}.get(between, 600.0)
    assert agree(guard, at, 1, 2, 3) is not None


def test_what_does_not_break_the_row() -> None:
    guard = guarded()[0]
    agree(guard, NOON, 1, 2, 3)
    guard.record(decision(NOON + 100, "not-ready", "too-few-batches"))
    guard.record(decision(NOON + 200, "refused", "cooldown"))
    assert agree(guard, NOON + 300, 1, 2, 3) is None


def test_agreement_is_remembered_by_the_next_controller() -> None:
    held = agree(guarded()[0], NOON, 1, 2)
    other = guarded()[0]
    other.record(decision(NOON, "refused", Law.AGREEMENTS, moves=moves(1, 2), refusals=[held]))
    assert other.agreement(decision(NOON + 300, moves=moves(1, 2), cost=99.0), 100) is None


def test_a_row_that_went_stale_can_be_completed_again() -> None:
    guard = guarded()[0]
    agree(guard, NOON, 1, 2, 3)
    assert agree(guard, NOON + 1200, 1, 2, 3) is not None, "too long ago"
    assert agree(guard, NOON + 1500, 1, 2, 3) is None


def test_another_plan_is_as_young_as_it_is() -> None:
    guard = guarded()[0]
    agree(guard, NOON, 1, 2, 3)
    agree(guard, NOON + 300, 7, 8, 9)
    assert agree(guard, NOON + 302, 7, 8, 9) is not None, "the same figures twice"
    assert agree(guard, NOON + 315, 7, 8, 9) is None


def test_without_a_new_batch_the_figures_are_the_same() -> None:
    guard = guarded()[0]
    agree(guard, NOON, 1, 2, 3, batch=7)
    assert agree(guard, NOON + 300, 1, 2, 3, batch=7) is not None
    assert agree(guard, NOON + 600, 1, 2, 3, batch=8) is None


@given(st.sets(st.integers(0, 9)), st.sets(st.integers(0, 9)))
def test_overlap_is_a_share_that_both_sides_agree_on(one: set[int], other: set[int]) -> None:
    left, right = move_keys(moves(*one)), move_keys(moves(*other))
    assert 0 <= overlap(left, right) == overlap(right, left) <= 1
    assert (overlap(left, right) == 1) is (one == other)
    assert overlap(left, move_keys(moves(*one, target="2"))) == (1.0 if not one else 0.0)


# -- repetition --


def costing(
    made: Decision, rows: float = 400.0, executors: str = "01", period: tuple[float, float] = (5.0, 0.0)
) -> Decision:
    cost = samples.migration_cost(recent_batches={"q": (5.0, rows)}, recent_periods={"q": period})
    return msgspec.structs.replace(made, migration_cost=cost, executors=[executor_load(name) for name in executors])


def with_another_query(made: Decision) -> Decision:
    """Add one move of a query that the plan before did not move."""
    assert made.migration_cost is not None
    other = msgspec.structs.replace(made.moves[0], query="r")
    cost = msgspec.structs.replace(
        made.migration_cost, recent_batches=made.migration_cost.recent_batches | {"r": (5.0, 400.0)}
    )
    return msgspec.structs.replace(made, moves=[*made.moves, other], migration_cost=cost)


def unmeasured(made: Decision) -> Decision:
    """Take the measured batches out of a decision."""
    assert made.migration_cost is not None
    return msgspec.structs.replace(made, migration_cost=msgspec.structs.replace(made.migration_cost, recent_batches={}))


THREE_MOVES = decision(NOON, moves=moves(1, 2, 3))


@pytest.mark.parametrize(
    ("plan", "again"),
    [
        pytest.param(costing(THREE_MOVES), False, id="the same"),
        pytest.param(costing(THREE_MOVES, rows=450.0), False, id="nearly the same load"),
        pytest.param(with_another_query(costing(THREE_MOVES)), False, id="a move of another query too"),
        pytest.param(unmeasured(costing(THREE_MOVES)), True, id="a load that is not known"),
        pytest.param(costing(THREE_MOVES, rows=600.0), True, id="another load"),
        pytest.param(costing(THREE_MOVES, rows=600.0, period=(7.5, 0.0)), True, id="more rows of fixed batches"),
        pytest.param(costing(THREE_MOVES, rows=280.0, period=(3.5, 0.95)), False, id="as many rows a second"),
        pytest.param(costing(THREE_MOVES, rows=280.0, period=(5.0, 0.95)), True, id="fewer rows a second"),
        pytest.param(costing(THREE_MOVES, executors="012"), True, id="another executor"),
        pytest.param(costing(decision(NOON, moves=moves(1))), True, id="another plan"),
        pytest.param(costing(decision(NOON, moves=moves(1, 2, 3, target="2"))), True, id="other targets"),
    ],
)
def test_a_plan_that_went_back_is_not_begun_again_until_something_changes(plan: Decision, again: bool) -> None:
    guard, _ = guarded()
    assert guard.repetition(plan) is None
    back = [msgspec.structs.replace(move, source="1", target="0") for move in moves(1, 2, 3)]
    rollback = decision(NOON, result="applied", trigger="rollback", rollback_of="d", moves=back)
    guard.record(costing(rollback))
    refusal = guard.repetition(plan)
    assert (refusal is None) is again
    if refusal is not None:
        assert refusal.law == Law.REPETITION
