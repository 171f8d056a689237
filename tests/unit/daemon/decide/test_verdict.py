"""Outcome of a migration: a row for each branch of its measurement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import pytest

from rechannel.conf.settings import Settings
from rechannel.daemon.decide.verdict import measure_outcome
from rechannel.policies.prediction.correction import correct_gain, expect_gain_share
from rechannel.policies.prediction.gain import PredictedChange
from rechannel.wire.codes import MoveReason, MoveState
from rechannel.wire.measurements import BatchReport, StageRun
from rechannel.wire.messages import (
    Decision,
    DesiredMove,
    GainCorrection,
    LinkReport,
    MigrationCost,
    MigrationOutcome,
    MoveTransition,
)
from unit import sample_messages as samples
from unit.daemon.fake_store import NOW
from unit.daemon.fakes import QUERY, executor_load, query, report, transition
from unit.daemon.model.builders import batch, messages

OTHER = "q2"
COST = samples.migration_cost(
    total=10, batch_before={QUERY: 5.0}, batch_after={QUERY: 4.0}, recent_batches={QUERY: (5.0, 400), OTHER: (5.0, 400)}
)
SUPERSEDED, DEADLINE = MoveReason.SUPERSEDED, MoveReason.DEADLINE


def batches(
    seconds: float, *, name: str = QUERY, first: int = 12, count: int = 5, rows: int = 400
) -> list[BatchReport]:
    stages = [StageRun(spark_stage=1, parents=[], stateful_stage=0, tasks=[])]
    return [
        BatchReport(query=name, batch=number, start=NOW, end=NOW + seconds, input_rows=rows, stages=stages)
        for number in range(first, first + count)
    ]


def move(number: int) -> DesiredMove:
    name = QUERY if number < 2 else OTHER
    return DesiredMove(move=f"d.{number}", query=name, stage=0, partition=number, source="0", target="1", step=number)


def decision(moves: int, cost: MigrationCost | None, executors: str = "0123") -> Decision:
    return samples.decision(
        moves=[move(number) for number in range(moves)],
        executors=[executor_load(name) for name in executors],
        migration_cost=cost,
        runs={QUERY: "run-1", OTHER: "run-1"},
    )


def measured(
    made: Decision, journal: Sequence[MoveTransition], link: LinkReport, batches: Sequence[BatchReport]
) -> MigrationOutcome:
    """Return the outcome of a migration that is over."""
    result = measure_outcome(made, journal, messages(link, batches), Settings(), NOW)
    assert result is not None
    return result


@dataclass(frozen=True)
class Case:
    """Two moves that land in the batches 10 and 11, and what is different about them.

    ``lines``: reason for which each move was abandoned, "" for one that landed; ``age``: seconds since the landing.
    """

    expected: tuple[str, str] | None
    batches: list[BatchReport] = field(default_factory=lambda: batches(4.0))
    lines: tuple[str, ...] = ("", "")
    age: float = 30.0
    run: str = "run-1"
    executors: str = "0123"
    cost: MigrationCost | None = COST
    moves: int = 2

    def journal(self) -> list[MoveTransition]:
        return [
            transition(
                move(number),
                decision="d",
                batch=-1 if reason else 10 + number,
                before=MoveState.STEERED,
                after=MoveState.ABANDONED if reason else MoveState.DRAINED,
                reason=reason or MoveReason.LANDED,
            )
            for number, reason in enumerate(self.lines)
        ]

    def link(self) -> LinkReport:
        # The partitions are elsewhere by now, so nothing is known of what going back would change.
        return report([query("0000", run=self.run), query("0000", OTHER)])

    def measure(self) -> MigrationOutcome | None:
        made = decision(self.moves, self.cost, self.executors)
        return measure_outcome(made, self.journal(), messages(self.link(), self.batches), Settings(), NOW + self.age)


LANDED = Case(None).journal()


def costing(**changes: object) -> MigrationCost:
    return msgspec.structs.replace(COST, **changes)


LATE = 601.0  # seconds, after which nothing is waited for
OLD = costing(batch_after={QUERY: 3.0})
UNKNOWN = ("not-judged", "are not known any more")
CASES = {
    "batches are to come": Case(None, batches(4.0, count=4)),
    "lines of the journal are to come": Case(None, lines=("",)),
    "too few batches came": Case(("not-judged", "had 4 batches since, 5 are needed"), batches(4.0, count=4), age=LATE),
    "released while idle": Case(("confirmed", "1 of 2 moves landed"), lines=("",), age=LATE),
    "nothing landed": Case(("not-judged", "no partition landed"), lines=(DEADLINE, DEADLINE)),
    "no line came": Case(("not-judged", "no partition landed"), lines=(), age=LATE),
    "stopped": Case(("not-judged", "it was ended before all had landed"), lines=("", SUPERSEDED)),
    "other executors": Case(("not-judged", "the executors changed meanwhile"), executors="012"),
    "another run": Case(("not-judged", "started again meanwhile"), run="run-2"),
    "batches were lost": Case(UNKNOWN, batches(9.0, first=40)),
    "batches before are unknown": Case(UNKNOWN, cost=costing(recent_batches={})),
    "no cost": Case(UNKNOWN, cost=None),
    "every other batch without input": Case(
        ("confirmed", "batch of q1 5.00 → 4.00 s"),
        [
            it
            for n in range(12, 22, 2)
            for it in (*batches(4.0, first=n, count=1), *batches(0.1, first=n + 1, count=1, rows=0))
        ],
    ),
    "another load": Case(("not-judged", "changed meanwhile: 400 → 600"), batches(9.0, rows=600)),
    "as predicted": Case(("confirmed", "2 of 2 moves landed in 0.0 s (predicted 10.0); batch of q1 5.00 → 4.00 s")),
    # 5 s before, of which a tenth is noise; 3 s were predicted.
    "faster than before": Case(("confirmed", ""), batches(4.9), cost=OLD),
    "within noise of before": Case(("confirmed", ""), batches(5.4), cost=OLD),
    "longer than predicted and before": Case(("regressed", "last 87% longer than predicted"), batches(5.6), cost=OLD),
    "longer, but no longer than predicted": Case(
        ("confirmed", ""), batches(5.9), cost=costing(batch_after={QUERY: 5.0})
    ),
    "in part, against the batches before": Case(("confirmed", ""), batches(5.9), lines=("", DEADLINE), cost=OLD),
    "in part, and longer than before": Case(("regressed", "40% longer"), batches(7.0), lines=("", DEADLINE)),
    "one of two queries is judged": Case(
        ("regressed", f"batches of {OTHER}"),
        [*batches(9.0, first=40), *batches(9.0, name=OTHER, first=13)],
        lines=("", "", ""),
        moves=3,
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_outcome_of_a_migration(case: Case) -> None:
    result = case.measure()
    if case.expected is None:
        assert result is None
        return
    verdict, phrase = case.expected
    assert (result.verdict, phrase in result.sentence) == (verdict, True), result.sentence
    assert result.landed == case.lines.count("")


OTHER_LANDED = [*batches(4.0), *batches(5.0, name=OTHER, first=13)]


@pytest.mark.parametrize(
    ("case", "shares"),
    [
        (Case(None), {QUERY: 1.0}),
        (Case(None, batches(4.5)), {QUERY: 0.472}),
        (Case(None, batches(7.0)), {QUERY: 0.0}),  # it regressed
        (Case(None, cost=costing(batch_after={QUERY: 4.9})), {}),  # hardly anything was promised
        (Case(None, batches(4.0, rows=600)), {}),
        (Case(None, batches(4.0, rows=430)), {}),  # the same load for the verdict, but not to learn from
        (Case(None, executors="012"), {}),
        (Case(None, lines=("", DEADLINE)), {}),
        (Case(None, lines=("",), age=LATE), {}),  # the other move was released while idle
        (Case(None, cost=None), {}),
        (Case(None, OTHER_LANDED, lines=("", "", ""), moves=3), {QUERY: 1.0}),  # nothing was promised to the other
    ],
)
def test_what_came_true_of_a_gain_where_that_can_be_compared(case: Case, shares: dict[str, float]) -> None:
    result = case.measure()
    assert result is not None
    assert result.gain_shares == pytest.approx(shares, abs=0.001), result.sentence


@pytest.mark.parametrize("truth", [0.7, 1.15])
def test_corrected_predictions_teach_the_share_of_the_uncorrected_ones(truth: float) -> None:
    """Twenty rounds: the model promises ``ratio``, and ``truth`` of that comes true."""
    random, shares, errors = np.random.default_rng(3), list[float](), list[float]()
    for _ in range(20):
        ratio, learned = random.uniform(0.65, 0.8), expect_gain_share(shares)
        change = correct_gain(PredictedChange(5.0, 5 * ratio, 0.0), learned.share)
        came = 5 * ratio**truth * random.lognormal(0, 0.01)
        errors.append(change.after / came - 1)
        correction = GainCorrection(share=learned.share, migrations=learned.migrations, uncorrected=5 * ratio)
        made = decision(2, costing(batch_after={QUERY: change.after}))
        made = msgspec.structs.replace(made, corrections={QUERY: correction})
        outcome = measured(made, LANDED, Case(None).link(), batches(came))
        shares.insert(0, outcome.gain_shares[QUERY])
        if len(shares) > 10:
            assert expect_gain_share(shares).share == pytest.approx(truth, abs=0.06)
    assert expect_gain_share(shares).share == pytest.approx(truth, abs=0.03)
    assert abs(errors[0]) > 0.03
    assert np.abs(errors[10:]).mean() < 0.012, "what is left is the noise"


def outcome_of(before: str, after: str, works: tuple[list[float], list[float]]) -> MigrationOutcome:
    """The outcome of two moves; ``works``: seconds of each partition before and after them."""
    then, now = works
    made = [batch(number, before, then) for number in range(2, 11)]
    made += [batch(11, after, then), *(batch(number, after, now) for number in range(12, 20))]
    usual = made[0].seconds
    cost = costing(batch_after={QUERY: usual}, recent_batches={QUERY: (usual, 400)})
    return measured(decision(2, cost), LANDED, report([query(after)]), made)


def test_moves_onto_a_busy_executor_are_at_fault() -> None:
    worse = outcome_of("0023", "1113", ([1.0] * 4, [1.0] * 4))
    assert (worse.verdict, "longer than predicted" in worse.sentence) == ("regressed", True), worse.sentence


def by_time(made: list[BatchReport]) -> list[BatchReport]:
    """The batches back to back, with the rows that came since the one before began; some are late by milliseconds."""
    start, result, since = NOW - 100.0, [], made[0].seconds
    for number, it in enumerate(made):
        rows = round(400 * since / made[0].seconds)
        result.append(msgspec.structs.replace(it, start=start, end=start + it.seconds, input_rows=rows))
        since = it.seconds + 0.002 * (number % 3)
        start += since
    return result


@pytest.mark.parametrize("loads", [by_time, list], ids=["rows by time", "as many rows in every batch"])
def test_fewer_rows_come_while_batches_without_the_moves_would_last(
    loads: Callable[[list[BatchReport]], list[BatchReport]],
) -> None:
    """Without the moves, batches would be 0.08 s shorter, a tenth; and shorter by more, since fewer rows would come."""
    made = [batch(number, "0013", [0.07] * 4) for number in range(2, 11)]
    made += [batch(number, "1113", [0.08] * 4) for number in range(11, 20)]
    cost = costing(batch_after={QUERY: 0.6}, recent_batches={QUERY: (made[0].seconds, 400)})
    result = measured(decision(2, cost), LANDED, report([query("1113")]), loads(made))
    assert result.verdict == ("regressed" if loads is by_time else "confirmed"), result.sentence


def test_shorter_batches_with_fewer_rows_are_no_other_load() -> None:
    made = [batch(number, "0013", [1.0] * 4) for number in range(2, 11)]
    made += [batch(number, "1123", [0.4] * 4) for number in range(11, 20)]
    cost = costing(recent_batches={QUERY: (made[0].seconds, 400)}, recent_periods={QUERY: (made[0].seconds, 0.0)})
    result = measured(decision(2, cost), LANDED, report([query("1123")]), by_time(made))
    assert result.verdict == "confirmed", result.sentence


def test_moves_are_not_at_fault_where_all_rows_take_longer() -> None:
    slower_rows = outcome_of("0023", "1123", ([1.0] * 4, [2.0] * 4))
    assert slower_rows.verdict == "confirmed"
    assert "longer for another reason: without the moves 4.60 s" in slower_rows.sentence
    assert slower_rows.gain_shares == {}


def test_moves_are_at_fault_for_partitions_that_became_slower_beside_them() -> None:
    slower_beside = outcome_of("0013", "1113", ([0.1, 0.1, 1.0, 1.0], [0.1, 0.1, 2.0, 1.0]))
    assert slower_beside.verdict == "regressed", slower_beside.sentence


def test_a_cold_start_is_no_part_of_a_load() -> None:
    """Its first task took longer for the cold start as well."""
    made = [batch(10, "0123", [1.0] * 4), batch(11, "1123", [1.0] * 4, loading=3.0, moved=0)]
    made += [batch(number, "1123", [1.0] * 4) for number in range(12, 20)]
    lines = [msgspec.structs.replace(LANDED[0], batch=11)]
    for cold, seconds in (({}, 3.0), ({"1": 2.5}, 0.5)):
        result = measured(decision(1, costing(cold=cold)), lines, report([query("1123")]), made)
        assert result.loads == [(0.0, pytest.approx(seconds))]
