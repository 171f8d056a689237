"""Triggers by load: overloads and imbalances."""

from __future__ import annotations

import dataclasses
import itertools
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rechannel.conf.settings import GateSettings, RescheduleSettings, Settings
from rechannel.daemon.control.triggers import ImbalanceTrigger, LoadReading, LoadTriggers, OverloadTrigger
from rechannel.daemon.model.newest_load import NewestLoad
from rechannel.wire.codes import Law
from unit.daemon.control.test_guard import NOON, RULES, decision

SETTINGS = Settings(reschedule=RULES, gate=GateSettings(min_gain=0.1))


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
    queries: Any = [SimpleNamespace(query=query, problem="", interval=0.0) for query in batches]
    return Load(queries, batches, {}, 0.0, value)


def observe(imbalance: ImbalanceTrigger, value: float, settings: Settings = SETTINGS) -> None:
    """Observe a new batch with an imbalance, of one query that has many."""
    number = 20 + imbalance._newest.get("q", 0)
    batches: Any = {"q": [SimpleNamespace(query="q", batch=it, start=it) for it in range(number - 20, number + 1)]}
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
        pytest.param([1.3] * 20, [2, 5], id="twice, as long as it stays"),
        pytest.param([1.3] * 3 + [1.0] * 9 + [1.3] * 9, [2], id="it was refused, and ended before the second decision"),
        pytest.param([1.3, 1.3, 1.0, 1.3, 1.3, 1.3], [5], id="three in a row"),
        pytest.param([1.1] * 9, [], id="less than what pays"),
        pytest.param([1.3] * 10 + [1.4] * 5 + [1.5] * 5, [2, 5, 17], id="more than the refused one"),
        pytest.param([1.2] * 3 + [1.2, 1.3, 1.2] + [1.35] * 9, [2, 5], id="more than the highest of three windows"),
        pytest.param([1.5] * 5 + [1.0] * 50 + [1.5] * 5, [2], id="the refused one again"),
    ],
)
def test_an_imbalance_is_compared_with_the_one_that_was_refused(values: list[float], at: list[int]) -> None:
    assert windows_decided_on(values) == at


def test_an_imbalance_that_stays_after_a_migration_is_decided_on_again() -> None:
    assert windows_decided_on([1.3] * 7, "applied", "ok") == [2, 5]


@pytest.mark.parametrize(("gain", "due"), [(0.08, True), (0.0, False), (-0.3, False), (0.3, False)])
def test_a_gain_that_the_gate_refused_can_still_be_reached(gain: float, due: bool) -> None:
    imbalance = ImbalanceTrigger()
    refused = msgspec.structs.replace(
        decision(NOON, "refused", Law.GATE, trigger="imbalance"),
        batch_time_before={"q": 9.0},
        batch_time_after={"q": 9.0 * (1 - gain)},
    )
    for at in (0.0, 15.0):
        for _ in range(3):
            observe(imbalance, 1.3)
        imbalance.record(refused, at, SETTINGS)
    for _ in range(3):
        observe(imbalance, 1.4)
    assert bool(imbalance.due_reason(1000.0)) is due, "0.9 * 1.4 is between 1.3 and that less half of the gain"


def test_an_imbalance_that_a_migration_left_is_decided_on_once_its_outcome_is_confirmed() -> None:
    triggers, due = LoadTriggers(), []
    imbalance = triggers._triggers[1]
    assert isinstance(imbalance, ImbalanceTrigger)
    for number in range(40):
        observe(imbalance, 1.3)
        if imbalance.due_reason(number * 5.0):
            due.append(number)
            triggers.record(decision(NOON, "applied", "ok", trigger="imbalance"), number * 5.0, SETTINGS)
        if number in (10, 20):
            triggers.confirm(number * 5.0)
    assert due == [2, 5, 9, 12, 28], "every pause is twice as long; an outcome ends one in five minutes"


def test_a_gate_that_refuses_on_an_overload_leaves_an_imbalance_its_second_decision() -> None:
    imbalance = ImbalanceTrigger()
    for _ in range(3):
        observe(imbalance, 1.5)
    for at, due in ((0.0, True), (15.0, False)):
        imbalance.record(decision(NOON, "refused", Law.GATE, trigger="overload"), at, SETTINGS)
        observe(imbalance, 1.5)
        assert bool(imbalance.due_reason(at + 15.0)) is due


@pytest.mark.parametrize(("result", "reason", "due"), [("refused", Law.GATE, True), ("applied", "", False)])
def test_only_a_migration_replaces_the_second_decision_on_an_imbalance(result: str, reason: str, due: bool) -> None:
    imbalance = ImbalanceTrigger()
    for _ in range(3):
        observe(imbalance, 1.5)
    imbalance.record(decision(NOON, "refused", Law.GATE, trigger="imbalance"), 0.0, SETTINGS)
    imbalance.record(decision(NOON, result, reason, trigger="executors"), 2.0, SETTINGS)
    observe(imbalance, 1.5)
    assert bool(imbalance.due_reason(15.0)) is due


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


def test_an_imbalance_refused_while_nothing_could_move_is_open_once_decisions_are_carried_out() -> None:
    imbalance = ImbalanceTrigger()
    for _ in range(3):
        observe(imbalance, 1.5)
    imbalance.record(decision(NOON, "refused", Law.GATE, trigger="imbalance"), 5.0, SETTINGS)
    imbalance.record(decision(NOON, "planned", trigger="imbalance"), 10.0, SETTINGS)
    applied = dataclasses.replace(SETTINGS, reschedule=dataclasses.replace(RULES, mode="apply"))
    for settings, due in ((SETTINGS, False), (applied, True)):
        for _ in range(3):
            observe(imbalance, 1.5, settings)
        assert bool(imbalance.due_reason(11.0)) is due, "at once: the pause is over with the mode"
    imbalance.record(decision(NOON, trigger="timeout"), 12.0, SETTINGS)
    for _ in range(3):
        observe(imbalance, 1.5)
    assert not imbalance.due_reason(100.0), "back to observe: what is decided stays so"


def observed(imbalance: ImbalanceTrigger, at: float, counts: dict[str, int]) -> str:
    """Observe an imbalance of 1.3; ``counts``: batches of each query."""
    batches: Any = {
        query: [SimpleNamespace(query=query, batch=it, start=5.0 * it) for it in range(count)]
        for query, count in counts.items()
    }
    imbalance.observe_batches(load_of(batches, 1.3), at, SETTINGS)
    return imbalance.due_reason(at)


def test_an_imbalance_is_open_again_when_a_query_ends_or_has_enough_batches() -> None:
    imbalance, least = ImbalanceTrigger(), SETTINGS.reschedule.batches
    due = []
    for number in range(12):
        window, counts = number * 5.0, {"q": 20 + number, "other": 20 + number}
        if observed(imbalance, window, counts):
            due.append(number)
            imbalance.record(decision(NOON, "refused", "gate", trigger="imbalance"), window, SETTINGS)
    assert due == [2, 5], "decided from now on"
    due = [number for number in range(12, 20) if observed(imbalance, number * 5.0, {"q": 20 + number})]
    assert due[0] == 14, "the other query has ended, and no pause is left"
    for at in (85.0, 100.0):
        imbalance.record(decision(NOON, "refused", "gate", trigger="timeout"), at, SETTINGS)
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
        many: Any = [SimpleNamespace(query="q", batch=it, start=5.0 * it) for it in range(number)]
        idle: Any = [SimpleNamespace(query="idle", batch=it, start=0.0) for it in range(5)]
        load = load_of({"q": many, "idle": idle}, 1.0 if number < 30 else 1.5)
        imbalance.observe_batches(load, 0.0, SETTINGS)
        if imbalance.due_reason(0.0):
            break
    assert (number, imbalance.load_since) == (30 + least - 1, 5.0 * 29), "a query without new batches is not awaited"
    imbalance.observe_batches(None, 0.0, SETTINGS)
    assert (imbalance.due_reason(0.0), imbalance.load_since) == ("", 0.0), "moves are under way"


def test_an_imbalance_that_is_due_is_none_once_the_trigger_is_turned_off() -> None:
    imbalance = ImbalanceTrigger()
    off = dataclasses.replace(SETTINGS, reschedule=dataclasses.replace(RULES, trigger_windows=0))
    for value in (1.0, 1.5, 1.5, 1.5):
        observe(imbalance, value)
    assert imbalance.due_reason(0.0)
    imbalance.observe_batches(load_of({}, 1.5), 0.0, off)
    assert (imbalance.due_reason(0.0), imbalance.load_since) == ("", 0.0)


def test_an_overload_that_comes_with_an_imbalance_is_decided_on_by_the_batches_that_show_it() -> None:
    triggers = LoadTriggers()
    overload, imbalance = triggers._triggers
    assert isinstance(overload, OverloadTrigger) and isinstance(imbalance, ImbalanceTrigger)
    for _ in range(RULES.trigger_windows):
        overload.observe([LoadReading("executor 1", 1.1, 1.0, "busy")], RULES)
    for value in (1.0, 1.5, 1.5, 1.5):
        observe(imbalance, value)
    since = imbalance.load_since
    assert since > 0
    for is_stable, due in ((True, [("overload", since), ("imbalance", since)]), (False, [("overload", 0.0)])):
        assert [(trigger, time) for trigger, _, time in triggers.due(0.0, is_stable=is_stable)] == due


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
