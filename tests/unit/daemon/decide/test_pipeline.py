from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import msgspec
import pytest

from rechannel.conf.settings import Settings
from rechannel.daemon.cli.explain import lines
from rechannel.daemon.decide.pipeline import DecisionRequest, Draft, NoPlan, PlanBasis, draft_decision
from rechannel.daemon.model.application_messages import ApplicationMessages
from rechannel.daemon.model.readiness import NotReady, without_idle
from rechannel.migration.plan.cost import LoadRates
from rechannel.policies.prediction.correction import GainShare
from rechannel.wire.codes import NotReadyReason, PlanResult, Trigger
from rechannel.wire.measurements import BatchReport
from rechannel.wire.messages import Decision
from unit.daemon.fake_store import NOW
from unit.daemon.fakes import QUERY, executors, query, report, window
from unit.daemon.model.builders import batch, messages, with_tasks

SKEWED, WORK = "000123", [1.0, 1.0, 1.0, 0.04, 0.04, 0.04]
TIMEOUT = DecisionRequest(decision="d", at=NOW, trigger=Trigger.TIMEOUT, policy="adaptive")


def draft(request: DecisionRequest, *, waiting: float = 0.0, shares: Mapping[str, GainShare] | None = None) -> Draft:
    batches = [batch(number, SKEWED, WORK, waiting=waiting) for number in range(8, 20)]
    received = messages(report([query(SKEWED)]), batches, {f"127.0.0.{e + 2}": [window(e)] for e in range(4)})
    return draft_decision(request, PlanBasis(received, Settings(), gain_shares=shares or {}))


def test_the_fewest_moves_are_made_and_their_batch_is_predicted() -> None:
    decision = draft(TIMEOUT).decision
    assert decision.reason == PlanResult.OK, decision.sentence
    assert len(decision.moves) == 2
    assert decision.residuals[QUERY] == pytest.approx(0.0, abs=0.01)
    assert decision.migration_cost is not None
    assert decision.migration_cost.batch_before[QUERY] == pytest.approx(3.6)
    assert decision.migration_cost.batch_after[QUERY] == pytest.approx(1.64, abs=0.05)


def test_a_decision_says_what_is_expected_of_its_gain() -> None:
    plain, corrected = (draft(TIMEOUT, shares=shares).decision for shares in ({}, {QUERY: GainShare(0.7, 4)}))
    assert plain.corrections == {}
    assert plain.migration_cost is not None and corrected.migration_cost is not None
    (correction,) = corrected.corrections.values()
    assert (correction.share, correction.migrations) == (0.7, 4)
    assert (
        correction.uncorrected == plain.migration_cost.batch_after[QUERY] < corrected.migration_cost.batch_after[QUERY]
    )
    assert [move.move for move in corrected.moves] == [move.move for move in plain.moves]
    (note,) = set(corrected.notes) - set(plain.notes)
    assert note.startswith("predicted gains are scaled by the results of earlier migrations: ")
    assert note.endswith(" 70% (of 4 migrations)")
    assert note in "\n".join(lines("app", corrected, None, {}))


@pytest.mark.parametrize(("may_mend", "waiting"), [(True, 0.0), (False, 0.0), (True, 3.0)])
def test_a_drain_evens_out_what_it_leaves_where_that_pays_and_is_explained(may_mend: bool, waiting: float) -> None:
    batches = [batch(number, SKEWED, WORK, waiting=waiting) for number in range(8, 20)]
    received = messages(report([query(SKEWED)]), batches, {f"127.0.0.{e + 2}": [window(e)] for e in range(4)})
    basis = PlanBasis(received, Settings(), drained_nodes=frozenset({"127.0.0.5"}), mending_moves=200 * may_mend)
    decision = draft_decision(dataclasses.replace(TIMEOUT, trigger=Trigger.DRAIN), basis).decision
    mends = int(may_mend and not waiting)
    assert decision.reason == PlanResult.OK
    assert decision.sentence.startswith("would move 1 partition in 1 step off 127.0.0.5"), decision.sentence
    assert {(move.partition, move.source) for move in decision.moves if move.source == "3"} == {(5, "3")}
    assert ("and 1 more to even out what is left: batch of" in decision.sentence) is bool(mends)
    assert sum(move.source == "0" for move in decision.moves) == mends, "no more than have to leave"
    assert [move.step for move in decision.moves if move.source == "3"] == [0], "what has to leave goes first"
    assert {move.target for move in decision.moves} <= {"0", "1", "2"}


def test_another_policy_has_its_own_moves() -> None:
    request = dataclasses.replace(TIMEOUT, policy="round-robin", force=True)
    assert len(draft(request).decision.moves) > 2


@pytest.mark.parametrize("trigger", [Trigger.TIMEOUT, Trigger.OPERATOR])
def test_batches_that_the_replay_does_not_explain_are_no_basis(trigger: Trigger) -> None:
    with pytest.raises(NoPlan) as ended:
        draft(dataclasses.replace(TIMEOUT, trigger=trigger), waiting=3.0)
    reason = ended.value.reason
    assert isinstance(reason, NotReady)
    assert reason.code == NotReadyReason.UNEXPLAINED
    assert "measured 6.60 s, replayed 3.60 s (-45%)" in reason.sentence


def test_a_query_without_a_batch_since_the_queries_changed_is_awaited() -> None:
    batches = [batch(number, SKEWED, WORK, waiting=3.0) for number in range(8, 20)]
    received = messages(report([query(SKEWED)]), batches, {f"127.0.0.{e + 2}": [window(e)] for e in range(4)})
    for since, code in ((batches[-1].start, NotReadyReason.UNEXPLAINED), (NOW, NotReadyReason.TOO_FEW_BATCHES)):
        with pytest.raises(NoPlan) as ended:
            draft_decision(TIMEOUT, PlanBasis(dataclasses.replace(received, queries_since=since), Settings()))
        assert isinstance(ended.value.reason, NotReady)
        assert ended.value.reason.code == code
        assert (ended.value.reason.ready_in is not None) == (code == NotReadyReason.TOO_FEW_BATCHES)


def beside_a_silent_query(silent: float, *, running: bool = False) -> ApplicationMessages:
    """Messages of a query beside one whose last batch ended so many seconds earlier; both have one each ten seconds."""

    def earlier(report: BatchReport) -> BatchReport:
        moved = with_tasks(
            report, lambda row: msgspec.structs.replace(row, launch=row.launch - silent, finish=row.finish - silent)
        )
        stages = [msgspec.structs.replace(run, submitted=run.submitted - silent) for run in moved.stages]
        span = {"start": report.start - silent, "end": report.end - silent}
        return msgspec.structs.replace(moved, query="other", stages=stages, **span)

    batches = [batch(number, SKEWED, WORK) for number in range(8, 20)]
    other = msgspec.structs.replace(query(SKEWED, "other"), batch_started=NOW * running)
    return messages(report([query(SKEWED), other]), [*batches, *map(earlier, batches)])


@pytest.mark.parametrize(
    ("silent", "running", "idle"),
    [(25.0, False, False), (35.0, False, True), (3000.0, False, True), (35.0, True, False)],
)
def test_an_idle_query_is_not_decided_on_and_explains_no_batch_of_others(
    silent: float, running: bool, idle: bool
) -> None:
    received = beside_a_silent_query(silent, running=running)
    decision = draft_decision(TIMEOUT, PlanBasis(received, Settings())).decision
    assert decision.reason == PlanResult.OK, decision.sentence
    assert {*decision.residuals} == {move.query for move in decision.moves} == ({QUERY} if idle else {QUERY, "other"})
    assert ("not moved: query name-of-other is idle: it runs no batches, while others do" in decision.notes) == idle


def test_queries_are_not_idle_where_none_runs() -> None:
    received = beside_a_silent_query(35.0)
    alone = dataclasses.replace(received, batches=tuple(it for it in received.batches if it.query == "other"))
    assert without_idle(alone, Settings()) is alone
    stopped = dataclasses.replace(alone, report=report([query(SKEWED, "other")]))
    assert draft_decision(TIMEOUT, PlanBasis(stopped, Settings())).decision.reason == PlanResult.OK


def test_a_drain_moves_partitions_of_an_idle_query_too() -> None:
    basis = PlanBasis(beside_a_silent_query(3000.0), Settings(), drained_nodes=frozenset({"127.0.0.5"}))
    decision = draft_decision(dataclasses.replace(TIMEOUT, trigger=Trigger.DRAIN), basis).decision
    assert {(move.query, move.partition) for move in decision.moves} == {(QUERY, 5), ("other", 5)}


def test_forced_decisions_need_no_explanation() -> None:
    assert draft(dataclasses.replace(TIMEOUT, force=True), waiting=3.0).decision.residuals[QUERY] < -0.4


COLD_NOTE = "the predicted longest batch has a cold start in it: first tasks take about {:.1f} s longer on executor 3"
EMPTY = "000012"  # executor 3 holds nothing


def onto_the_empty_executor(batches: list[BatchReport], *, added: float) -> Decision:
    """A decision whose executors were there before the batches, but for executor 3, which came at ``added``."""
    infos = [msgspec.structs.replace(info, added=0.0) for info in executors(4)]
    infos[3] = msgspec.structs.replace(infos[3], added=added)
    link = msgspec.structs.replace(report([query(EMPTY)]), executors=infos)
    received = messages(link, batches, {f"127.0.0.{e + 2}": [window(e)] for e in range(4)})
    return draft_decision(TIMEOUT, PlanBasis(received, Settings(), rates=LoadRates(1.0, 50e6))).decision


def usual_batches(first: int) -> list[BatchReport]:
    return [batch(number, EMPTY, WORK) for number in range(first, 20)]


def test_a_cold_target_is_in_the_longest_batch_and_in_a_note() -> None:
    batches = usual_batches(8)
    warm, cold = (onto_the_empty_executor(batches, added=added) for added in (0.0, batches[-1].end))
    assert warm.migration_cost is not None
    assert cold.migration_cost is not None
    assert [move.target for move in warm.moves] == [move.target for move in cold.moves]
    assert "3" in {move.target for move in cold.moves}
    assert not any("cold start" in note for note in warm.notes)
    assert COLD_NOTE.format(1.5) in cold.notes
    assert (warm.migration_cost.cold, cold.migration_cost.cold) == ({}, {"3": 1.5})
    assert warm.migration_cost.peak == warm.batch_time_before, "the longest one is that before the first step"
    # Its first task takes 1.5 s more there, by the prior: more than the move saves.
    assert (
        warm.migration_cost.peak[QUERY] + 0.3 < cold.migration_cost.peak[QUERY] < warm.migration_cost.peak[QUERY] + 1.5
    )
    assert cold.migration_cost.batch_after == warm.migration_cost.batch_after


def test_the_first_batch_of_a_query_teaches_what_first_tasks_take() -> None:
    """In batch 0, every task takes five seconds more than its rows account for."""
    usual = batch(0, EMPTY, WORK)
    tasks = [
        msgspec.structs.replace(task, finish=task.finish + 5.0, run=task.run + 5.0) for task in usual.stages[1].tasks
    ]
    stages = [usual.stages[0], msgspec.structs.replace(usual.stages[1], tasks=tasks)]
    batches = [msgspec.structs.replace(usual, stages=stages), *usual_batches(1)]
    decision = onto_the_empty_executor(batches, added=batches[-1].end)
    assert decision.migration_cost is not None
    learned = decision.migration_cost.cold["3"]
    assert learned == pytest.approx((3 * 5.0 + 1.5) / 4, rel=0.02), "three first tasks, and one of the prior"
    assert COLD_NOTE.format(learned) in decision.notes
