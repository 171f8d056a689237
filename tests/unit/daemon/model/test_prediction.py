from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from rechannel.conf.settings import Settings
from rechannel.daemon.model.snapshot import Snapshot, build_snapshot
from rechannel.wire.measurements import BatchReport, TaskRow
from unit.daemon.fake_store import NOW
from unit.daemon.fakes import QUERY, query, report
from unit.daemon.model.builders import OVERHEAD, SOURCE, batch, messages, with_tasks


def snapshot_of(batches: list[BatchReport], where: str, interval: float = 0.0) -> Snapshot:
    state = msgspec.structs.replace(query(where), interval=interval)
    result = build_snapshot(messages(report([state]), batches), Settings(), NOW)
    assert result is not None
    return result


def with_rows(item: BatchReport, rows: int) -> BatchReport:
    return with_tasks(item, lambda row: msgspec.structs.replace(row, rows_in=rows))


WORK = [0.5, 0.5, 1.0, 1.5]


def usual(first: int) -> list[BatchReport]:
    """The batches from this number to 19."""
    return [batch(number, "0123", WORK) for number in range(first, 20)]


def test_overhead_is_the_time_in_which_no_stage_runs() -> None:
    snapshot = snapshot_of(usual(14), "0123", interval=10.0)
    timing = snapshot.prediction.timing[QUERY]
    assert timing.overhead == pytest.approx(OVERHEAD)
    assert timing.interval == 10.0
    assert snapshot.measured[QUERY].tolist() == pytest.approx([OVERHEAD + SOURCE + 1.5] * 6)


def test_overhead_is_that_of_all_compared_batches() -> None:
    batches = usual(8)
    batches[-1] = msgspec.structs.replace(batches[-1], duration=batches[-1].seconds + 1.2)
    timing = snapshot_of(batches, "0123").prediction.timing[QUERY]
    assert timing.overhead == pytest.approx(OVERHEAD + 1.2 / 12)


def test_tasks_of_a_source_run_anywhere() -> None:
    snapshot = snapshot_of(usual(14), "0123")
    (tasks,) = snapshot.prediction.floating.values()
    assert (tasks.count, tasks.seconds) == (1, pytest.approx(SOURCE))


def test_work_is_what_a_task_keeps_its_core() -> None:
    snapshot = snapshot_of(usual(10), "0123")
    assert snapshot.prediction.workload.stage(f"{QUERY}/0").busy == pytest.approx(np.array(WORK), rel=0.01)


def test_a_load_of_state_is_no_work() -> None:
    before = [batch(number, "0023", WORK) for number in range(10, 16)]
    moving = [batch(16, "0123", WORK, loading=5.0, moved=1)]
    snapshot = snapshot_of([*before, *moving, *usual(17)], "0123")
    assert snapshot.prediction.workload.stage(f"{QUERY}/0").busy == pytest.approx(np.array(WORK), rel=0.01)
    assert snapshot.measured[QUERY].max() < 5.0
    assert snapshot.prediction.timing[QUERY].overhead == pytest.approx(OVERHEAD)


@pytest.mark.parametrize("change", ["queries_since", "load_since"])
def test_batches_beside_other_queries_or_their_other_load_do_not_have_to_be_explained(change: str) -> None:
    alone, beside = usual(10)[:-3], [batch(number, "0123", WORK, waiting=1.0) for number in (17, 18, 19)]
    link = report([query("0123")])
    for since, expected in ((0.0, 10), (beside[0].start, 3), (beside[-1].start, 1)):
        inputs = replace(messages(link, [*alone, *beside]), **{change: since})
        snapshot = build_snapshot(inputs, Settings(), NOW)
        assert snapshot is not None
        assert len(snapshot.measured[QUERY]) == expected


def test_batches_of_other_keys_do_not_have_to_be_explained() -> None:
    def heavy(item: BatchReport, partition: int) -> BatchReport:
        return with_tasks(
            item, lambda row: msgspec.structs.replace(row, rows_in=400 if row.partition == partition else 100)
        )

    recent = Settings().reschedule.batches
    batches = [heavy(it, 0) for it in usual(8)[:-recent]] + [heavy(it, 1) for it in usual(8)[-recent:]]
    assert len(snapshot_of(batches, "0123").measured[QUERY]) == 12, "as many rows on the busiest executor"
    together = [heavy(it, 0) for it in usual(8)[:-recent]] + [with_rows(it, 175) for it in usual(8)[-recent:]]
    assert len(snapshot_of(together, "0123").measured[QUERY]) == recent


@pytest.mark.parametrize("times", [0.625, 1.6])
def test_rows_that_take_longer_from_now_on_are_modeled_by_the_batches_that_show_it(times: float) -> None:
    def same_rows(row: TaskRow) -> TaskRow:
        return msgspec.structs.replace(row, rows_in=round(1000 * WORK[row.partition]))

    changed = [with_tasks(batch(it, "0123", [times * work for work in WORK]), same_rows) for it in (17, 18, 19)]
    before = [with_tasks(it, same_rows) for it in usual(0)[:-3]]
    snapshot = snapshot_of([*before, *changed], "0123")
    assert snapshot.prediction.workload.stage(f"{QUERY}/0").busy == pytest.approx(times * np.array(WORK), rel=0.02)
    assert len(snapshot.measured[QUERY]) == 3
    assert abs(snapshot.residuals[QUERY].share) < 0.05


def test_work_is_sampled_from_all_batches_that_are_averaged() -> None:
    """A fast query has more in fifteen seconds than are sampled else."""
    batches = [batch(number, "0123", WORK) for number in range(20 - 40, 20)]
    fast = [msgspec.structs.replace(it, end=NOW, batch=it.batch + 20) for it in batches]
    for count in (32, 33, 40):
        snapshot = snapshot_of(fast[-count:], "0123")
        assert len(snapshot.measured_queries.queries[QUERY].recent) == count
        assert len(snapshot.measured_queries.queries[QUERY].samples) == count


def test_messages_without_submission_times_take_the_first_launch() -> None:
    older = [
        msgspec.structs.replace(it, stages=[msgspec.structs.replace(run, submitted=0.0) for run in it.stages])
        for it in usual(14)
    ]
    assert snapshot_of(older, "0123").prediction.timing[QUERY].overhead == pytest.approx(OVERHEAD)


def test_batches_without_input_are_another_kind() -> None:
    batches = usual(8)
    for number in range(1, 12, 2):
        batches[number] = msgspec.structs.replace(batches[number], input_rows=0, duration=0.1)
    snapshot = snapshot_of(batches, "0123")
    with_input = batches[0].seconds
    assert snapshot.measured[QUERY].tolist() == pytest.approx([with_input] * 6)
    assert snapshot.median_batch[QUERY] == pytest.approx((with_input, 400))
    assert snapshot.prediction.timing[QUERY].pause == pytest.approx(20.0 - with_input)
    # A trigger at which no input came began no batch.
    assert snapshot_of(batches, "0123", interval=10.0).prediction.timing[QUERY].interval == 20.0


def test_a_query_without_any_input_is_modeled_all_the_same() -> None:
    batches = [msgspec.structs.replace(it, input_rows=0) for it in usual(14)]
    assert len(snapshot_of(batches, "0123").measured[QUERY]) == 6


def test_pools_count_under_the_fair_scheduler_only() -> None:
    state = msgspec.structs.replace(query("0123"), pool="fast")
    for mode, pools in (("FIFO", {}), ("fair", {QUERY: "fast"})):
        link = msgspec.structs.replace(report([state]), environment={"spark.scheduler.mode": mode})
        snapshot = build_snapshot(messages(link, usual(14)), Settings(), NOW)
        assert snapshot is not None
        assert snapshot.prediction.pools == pools


def test_ticks_are_multiples_of_the_interval_since_1970() -> None:
    """Batches that take longer than their interval begin when the one before ends."""
    late = [msgspec.structs.replace(it, duration=10.0) for it in usual(14)]
    timing = snapshot_of(late, "0123", interval=4.0).prediction.timing[QUERY]
    assert timing.interval == 4.0
    assert (late[-1].end + timing.phase) % 4.0 == pytest.approx(0.0, abs=1e-6)


def test_rows_that_come_by_time_are_timing_of_the_query() -> None:
    periods = [10.0, 8.0, 9.0, 12.0, 7.0, 10.0, 11.0, 8.0, 9.0, 10.0, 12.0, 8.0]
    batches, start = [], NOW - 130.0
    for number, period in enumerate(periods):
        share = periods[number - 1] / 10.0 if number else 1.0
        made = batch(number, "0123", [work * share for work in WORK])
        batches.append(
            msgspec.structs.replace(made, start=start, end=start + made.seconds, input_rows=round(400 * share))
        )
        start += period
    timing = snapshot_of(batches, "0123").prediction.timing[QUERY]
    assert timing.growth == pytest.approx(1.0, abs=0.05)
    assert timing.row_share == pytest.approx(1.0, abs=0.05)
    # As many rows in every batch, whatever the period.
    fixed = [msgspec.structs.replace(it, input_rows=400) for it in batches]
    assert snapshot_of(fixed, "0123").prediction.timing[QUERY].growth == 0.0


PLACES, SECONDS = "0123" * 4, [0.2 + 0.05 * partition for partition in range(16)]
SLOWED = [seconds * 1.6 if executor == "0" else seconds for executor, seconds in zip(PLACES, SECONDS, strict=True)]


def rows_of_work(row: TaskRow) -> TaskRow:
    """A task with as many rows as its partition has at the speed of before executor 0 became slow."""
    return msgspec.structs.replace(row, rows_in=round(1000 * SECONDS[row.partition]))


def test_older_batches_do_not_show_the_work_on_an_executor_that_became_slow() -> None:
    """Executor 0 takes 1.6 times as long in the recent batches; its partitions have the same rows as before."""
    recent = Settings().reschedule.batches
    before = [batch(number, PLACES, SECONDS) for number in range(20 - recent)]
    since = [with_tasks(batch(number, PLACES, SLOWED), rows_of_work) for number in range(20 - recent, 20)]
    snapshot = snapshot_of([*before, *since], PLACES)
    assert list(snapshot.slow) == ["0"]
    assert snapshot.cluster.speed[0] == pytest.approx(1 / 1.6, rel=0.1)
    assert snapshot.prediction.workload.stage(f"{QUERY}/0").busy == pytest.approx(np.array(SECONDS), rel=0.1)
    assert snapshot.measured[QUERY] == pytest.approx(np.full(recent, since[-1].seconds))
    assert snapshot.residuals[QUERY].share == pytest.approx(0.0, abs=0.05)


def test_rows_of_a_few_partitions_that_take_longer_are_modeled_by_the_batches_that_show_it() -> None:
    recent, few = Settings().reschedule.batches, (14, 15)
    longer = [seconds * (1.6 if partition in few else 1.0) for partition, seconds in enumerate(SECONDS)]
    before = [with_tasks(batch(number, PLACES, SECONDS), rows_of_work) for number in range(20 - recent)]
    since = [with_tasks(batch(number, PLACES, longer), rows_of_work) for number in range(20 - recent, 20)]
    snapshot = snapshot_of([*before, *since], PLACES)
    assert snapshot.measured_queries.queries[QUERY].changed == {(0, partition) for partition in few}
    assert not snapshot.slow
    assert snapshot.prediction.workload.stage(f"{QUERY}/0").busy == pytest.approx(np.array(longer), rel=0.1)
    assert snapshot.measured[QUERY] == pytest.approx(np.full(recent, since[-1].seconds))
    assert snapshot.residuals[QUERY].share == pytest.approx(0.0, abs=0.05)


def test_batches_that_loaded_state_are_not_compared_where_an_executor_became_slow_either() -> None:
    """Partition 15 moved to executor 3 with the first of the recent batches, and took 5 s there."""
    recent = Settings().reschedule.batches
    first = 20 - recent
    before = [batch(number, "0123" * 3 + "0122", SECONDS) for number in range(first)]
    loads = batch(first, PLACES, SLOWED, loading=5.0, moved=15)
    since = [with_tasks(it, rows_of_work) for it in (loads, *(batch(n, PLACES, SLOWED) for n in range(first + 1, 20)))]
    snapshot = snapshot_of([*before, *since], PLACES)
    assert snapshot.measured_queries.slowed.any()
    assert snapshot.measured[QUERY] == pytest.approx(np.full(recent - 1, since[-1].seconds))
