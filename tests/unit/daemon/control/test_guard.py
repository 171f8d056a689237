"""Guards of automatic decisions, and overload detection."""

from __future__ import annotations

import dataclasses
import itertools
from types import SimpleNamespace
from typing import Any

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
from rechannel.daemon.control.triggers import ImbalanceTrigger, LoadReading, OverloadTrigger
from rechannel.daemon.model.newest_load import NewestLoad
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


# -- overload --


def requested(values: list[float], settings: RescheduleSettings = RULES, fresh: bool = True) -> list[bool]:
    """Whether a decision is asked for after each window, each one being taken at once."""
    overload, result = OverloadTrigger(), []
    for number, value in enumerate(values):
        overload.observe([LoadReading("executor 1", value, 1.0, "busy", fresh)], settings)
        arguments = overload.due_reason(float(number))
        result.append(bool(arguments))
        if arguments:
            overload.record(decision(float(number)), float(number), SETTINGS)
    return result


@pytest.mark.parametrize(
    ("values", "at"),
    [
        pytest.param([1.1] * 2, [], id="too short"),
        pytest.param([1.1] * 6, [2], id="once, as long as it lasts"),
        pytest.param([1.1, 1.1, 0.9, 1.1, 1.1], [], id="a pause begins it anew"),
        pytest.param([1.1] * 3 + [0.9] * 3 + [1.1] * 3, [2], id="not over between the bounds"),
        pytest.param([1.1] * 3 + [0.7] + [1.1] * 3, [2, 6], id="over below the lower bound"),
        pytest.param([1.0] * 5, [], id="the limit itself is no overload"),
    ],
)
def test_an_overload_has_hysteresis(values: list[float], at: list[int]) -> None:
    assert [number for number, due in enumerate(requested(values)) if due] == at


@given(st.lists(st.floats(0, 2), max_size=60))
def test_between_two_overloads_there_is_always_a_low(values: list[float]) -> None:
    result = [number for number, due in enumerate(requested(values)) if due]
    for number in result:
        assert all(value > 1.0 for value in values[number - 2 : number + 1])
    for one, other in itertools.pairwise(result):
        assert min(values[one:other]) < 0.85


def test_what_was_not_measured_anew_says_nothing_and_zero_turns_it_off() -> None:
    assert not any(requested([2.0] * 9, fresh=False))
    assert not any(requested([2.0] * 9, dataclasses.replace(RULES, trigger_windows=0)))


def test_an_overload_of_a_query_counts_its_batches() -> None:
    overload = OverloadTrigger()
    for _ in range(3):
        overload.observe([LoadReading("query q", 9.0, 1.0, "the last batch took 9 s", counted="batches")], RULES)
    assert overload.due_reason(0.0) == "the last batch took 9 s, 3 batches in a row"


def test_an_overload_is_told_with_its_numbers_until_it_is_decided_on() -> None:
    overload = OverloadTrigger()
    for _ in range(3):
        overload.observe([LoadReading("executor 1", 2.0, 1.0, "executor 1 is 200% busy")], RULES)
    assert overload.due_reason(0.0) == "executor 1 is 200% busy, 3 windows in a row"
    overload.record(decision(NOON, "not-ready", "unexplained"), 0.0, SETTINGS)
    assert (overload.due_reason(9.0), bool(overload.due_reason(10.0))) == ("", True)
    overload.record(decision(NOON, "refused", Law.AGREEMENTS), 10.0, SETTINGS)
    assert (overload.due_reason(24.0), bool(overload.due_reason(25.0))) == ("", True), "other figures are to agree"
    overload.observe([], RULES)
    assert overload.due_reason(25.0) == "", "the executor is gone"


# -- imbalance --


@dataclasses.dataclass(frozen=True)
class Load(NewestLoad):
    """A load of which the imbalance is given."""

    value: float

    def imbalance(self) -> float:
        return self.value


def load_of(batches: Any, value: float) -> Load:
    return Load(batches, {}, (), {}, 0.0, value)


def observe(imbalance: ImbalanceTrigger, value: float, settings: Settings = SETTINGS) -> None:
    """Observe a new batch with an imbalance, of one query that has many."""
    number = 20 + imbalance._newest.get("q", 0)
    batches: Any = {"q": [SimpleNamespace(batch=it, start=it) for it in range(number - 20, number + 1)]}
    imbalance.observe_batches(load_of(batches, value), 0.0, settings)


def windows_decided_on(values: list[float], result: str = "refused", reason: str = "gate") -> list[int]:
    """The batches of five seconds in which an imbalance is decided on, if every decision ends like this."""
    imbalance, due = ImbalanceTrigger(), []
    for number, value in enumerate(values):
        observe(imbalance, value)
        if imbalance.due_reason(number * 5.0):
            due.append(number)
            imbalance.record(decision(NOON, result, reason, trigger="imbalance"), number * 5.0, SETTINGS)
    return due


@pytest.mark.parametrize(
    ("values", "at"),
    [
        pytest.param([1.3] * 2, [], id="too short"),
        pytest.param([1.3] * 20, [2], id="once, as long as it stays"),
        pytest.param([1.3, 1.3, 1.0, 1.3, 1.3, 1.3], [5], id="three in a row"),
        pytest.param([1.1] * 9, [], id="less than what pays"),
        pytest.param([1.3] * 5 + [1.4] * 5 + [1.5] * 5, [2, 12], id="more than the accepted one"),
        pytest.param([1.2, 1.3, 1.2] + [1.35] * 9, [2], id="the highest of three windows is accepted"),
        pytest.param([1.5] * 5 + [1.0] * 50 + [1.5] * 5, [2], id="the accepted one again"),
    ],
)
def test_an_imbalance_is_compared_with_the_one_that_was_accepted(values: list[float], at: list[int]) -> None:
    assert windows_decided_on(values) == at


def test_an_imbalance_that_stays_after_a_migration_is_decided_on_again() -> None:
    assert windows_decided_on([1.3] * 7, "applied", "ok") == [2, 5]


def test_an_imbalance_that_was_not_ready_or_not_agreed_on_is_decided_on_again() -> None:
    assert windows_decided_on([1.3] * 9, "not-ready", "unexplained") == [2, 4, 6, 8]
    assert windows_decided_on([1.3] * 9, "not-ready", "too-few-batches") == [2, 3, 4, 5, 6, 7, 8]
    assert windows_decided_on([1.3] * 9, "refused", Law.AGREEMENTS) == [2, 5]


@pytest.mark.parametrize("reason", [Law.COOLDOWN, Law.PAUSED, Law.EXCLUDED])
def test_what_is_refused_whatever_the_load_is_answers_neither_an_imbalance_nor_an_overload(reason: str) -> None:
    imbalance, overload = ImbalanceTrigger(), OverloadTrigger()
    for _ in range(3):
        observe(imbalance, 1.5)
        overload.observe([LoadReading("executor 1", 2.0, 1.0, "busy")], RULES)
    for trigger in (imbalance, overload):
        trigger.record(decision(NOON, "refused", reason, trigger="timeout"), 0.0, SETTINGS)
        assert trigger.due_reason(0.0)
        trigger.record(decision(NOON, trigger="timeout"), 0.0, SETTINGS)
        assert not trigger.due_reason(1000.0), "the load was decided on"


def test_calm_decisions_do_not_make_an_imbalance_wait() -> None:
    imbalance = ImbalanceTrigger()
    for number in range(20):
        observe(imbalance, 1.0)
        imbalance.record(decision(NOON, "planned", "nothing-to-do", trigger="timeout"), number * 300.0, SETTINGS)
    for _ in range(3):
        observe(imbalance, 1.5)
    assert imbalance.due_reason(19 * 300.0)


def test_an_imbalance_accepted_while_nothing_could_move_is_open_once_decisions_are_carried_out() -> None:
    imbalance = ImbalanceTrigger()
    for _ in range(3):
        observe(imbalance, 1.5)
    imbalance.record(decision(NOON, "planned", trigger="imbalance"), 10.0, SETTINGS)
    applied = dataclasses.replace(SETTINGS, reschedule=dataclasses.replace(RULES, mode="apply"))
    for settings, due in ((SETTINGS, False), (applied, True)):
        for _ in range(3):
            observe(imbalance, 1.5, settings)
        assert bool(imbalance.due_reason(11.0)) is due, "at once: the pause is over with the mode"
    imbalance.record(decision(NOON, trigger="timeout"), 12.0, SETTINGS)
    for _ in range(3):
        observe(imbalance, 1.5)
    assert not imbalance.due_reason(100.0), "back to observe: what is accepted stays so"


def observed(imbalance: ImbalanceTrigger, at: float, counts: dict[str, int]) -> str:
    """Observe an imbalance of 1.3; ``counts``: batches of each query."""
    batches: Any = {
        query: [SimpleNamespace(batch=it, start=5.0 * it) for it in range(it)] for query, it in counts.items()
    }
    imbalance.observe_batches(load_of(batches, 1.3), at, SETTINGS)
    return imbalance.due_reason(at)


def test_an_imbalance_is_open_again_when_a_query_ends_or_has_enough_batches() -> None:
    imbalance, least = ImbalanceTrigger(), SETTINGS.reschedule.batches
    for number in range(12):
        window, counts = number * 5.0, {"q": 20 + number, "other": 20}
        if observed(imbalance, window, counts):
            imbalance.record(decision(NOON, "refused", "gate", trigger="imbalance"), window, SETTINGS)
            assert number == 2, "accepted from now on"
    due = [number for number in range(12, 20) if observed(imbalance, number * 5.0, {"q": 20 + number})]
    assert due[0] == 14, "the other query has ended, and no pause is left"
    imbalance.record(decision(NOON, "refused", "gate", trigger="imbalance"), 100.0, SETTINGS)
    due = []
    for number in range(20, 40):
        began = max(0, number - 30)
        counts = {"q": 20 + number} | ({"new": began} if began else {})
        due += [number] if observed(imbalance, number * 5.0, counts) else []
    assert due[0] == 30 + least + 2, "at its first batches the new query is not counted"


def test_the_end_of_a_query_alone_is_no_new_batch() -> None:
    imbalance = ImbalanceTrigger()
    observed(imbalance, 0.0, {"q": 20, "other": 20})
    for at in range(100, 109):
        assert not observed(imbalance, float(at), {"q": 20})
    assert (imbalance._streak, imbalance.load_since) == (0, 0.0)
    observed(imbalance, 109.0, {"q": 21})
    assert (imbalance._streak, imbalance.load_since) == (1, 5.0 * 20)


def test_queries_that_come_and_go_do_not_hide_an_imbalance() -> None:
    imbalance = ImbalanceTrigger()
    due = [n for n in range(40) if observed(imbalance, n, {"q": 20 + n} | ({"other": 20 + n} if n // 2 % 2 else {}))]
    assert due
    assert due[0] < 10


def test_an_imbalance_is_decided_on_by_the_batches_that_show_it() -> None:
    imbalance, least = ImbalanceTrigger(), SETTINGS.reschedule.batches
    for number in range(20, 40):
        many: Any = [SimpleNamespace(batch=it, start=5.0 * it) for it in range(number)]
        idle: Any = [SimpleNamespace(batch=it, start=0.0) for it in range(5)]
        load = load_of({"q": many, "idle": idle}, 1.0 if number < 30 else 1.5)
        imbalance.observe_batches(load, 0.0, SETTINGS)
        if imbalance.due_reason(0.0):
            break
    assert (number, imbalance.load_since) == (30 + least - 1, 5.0 * 29), "a query without new batches is not awaited"
    imbalance.observe_batches(None, 0.0, SETTINGS)
    assert (imbalance.due_reason(0.0), imbalance.load_since) == ("", 0.0), "moves are under way"


def test_queries_that_come_and_go_do_not_shorten_the_pause() -> None:
    imbalance, due = ImbalanceTrigger(), []
    for number in range(600):
        window, loop = number * 5.0, {"loop": number} if number // 4 % 2 else {}
        if observed(imbalance, window, {"q": 20 + number, **loop}):
            due.append(number)
            imbalance.record(decision(NOON, "refused", "gate", trigger="imbalance"), window, SETTINGS)
    assert len(due) < 20


def test_an_overload_that_was_refused_does_not_make_the_next_one_wait_for_long() -> None:
    overload, due = OverloadTrigger(), []
    for number in range(240):
        busy = 2.0 if number % 6 < 3 else 0.5  # busy for three windows of five seconds, then calm
        overload.observe([LoadReading("executor 1", busy, 1.0, "busy")], RULES)
        if overload.due_reason(number * 5.0):
            due.append(number * 5)
            overload.record(decision(NOON, "refused", "gate", trigger="overload"), number * 5.0, SETTINGS)
    pauses = [later - earlier for earlier, later in itertools.pairwise(due)]
    assert pauses[:4] == [30, 30, 60, 90], "as soon as it is overloaded again, unless it often is"
    assert pauses == sorted(pauses)
    assert 300 <= max(pauses) < 330


@pytest.mark.parametrize("result", ["refused", "applied"])
def test_the_pause_between_two_decisions_on_an_imbalance_grows_to_the_timeout_and_is_forgotten(result: str) -> None:
    growing = [1.2 * 1.2 ** (number / 3) for number in range(300)]
    due = windows_decided_on(growing, result)
    pauses = [5 * (later - earlier) for earlier, later in itertools.pairwise(due)]
    assert pauses == sorted(pauses)
    assert max(pauses) == SETTINGS.reschedule.timeout
    imbalance = ImbalanceTrigger()
    observe(imbalance, 1.0)
    for at in (*range(0, 3000, 5), 2995.0 + 601.0):
        imbalance.record(decision(NOON, result, "ok", trigger="imbalance"), float(at), SETTINGS)
    for _ in range(3):
        observe(imbalance, 99.0)
    assert not imbalance.due_reason(3596.0 + 9.0)
    assert imbalance.due_reason(3596.0 + 10.0), "a short pause, after twice the timeout without"


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
