from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from rechannel.migration.link.driver_state import UNKNOWN
from rechannel.migration.link.snapshot_lag import SAMPLE, SnapshotLag
from rechannel.migration.link.stages import StageStores
from rechannel.migration.moves import RunUnit
from rechannel.migration.spark.adapter import PlannedOperator
from rechannel.migration.spark.coordinator import StoreId
from rechannel.migration.spark.gateway import SparkCallError, UnsupportedSparkError
from rechannel.wire.messages import Unit


def _stage(*operators: int, partitions: int = 3) -> StageStores:
    planned = [PlannedOperator(number, "name", partitions, "file:/c/state", "run", frozenset()) for number in operators]
    return StageStores(partitions, [(item, ["default", "other"]) for item in planned])


@dataclass
class _Spark:
    versions: dict[tuple[int, int], int] = field(default_factory=dict)
    requested: list[StoreId] = field(default_factory=list)
    calls: int = 0
    error: Exception | None = None

    def __call__(self, stores: Sequence[StoreId]) -> list[int]:
        self.calls += 1
        self.requested += stores
        if self.error is not None:
            raise self.error
        return [self.versions.get((store.operator, store.partition), UNKNOWN) for store in stores]


STAGES = {("run", 0): _stage(0, 1)}
DONE = {"run": 9}  # batch 9 leaves version 10


def test_of_many_partitions_a_round_reads_a_sample_and_the_next_round_another_one() -> None:
    spark, committed = _Spark({(0, number): 4 for number in range(1000)}), dict(DONE)
    snapshots, stages = SnapshotLag(spark, committed), {("run", 0): _stage(0, partitions=1000)}
    samples: list[set[int]] = []
    for turn in range(4):
        committed["run"] += 1
        spark.requested.clear()
        for tenth in range(10 * 59):  # every 17th partition
            snapshots.advance(stages, 59.0 * turn + tenth / 10)
        samples.append({store.partition for store in spark.requested})
        assert len(spark.requested) == len(samples[-1]) == 59 <= SAMPLE
        assert len({partition // 100 for partition in samples[-1]}) == 10, "spread over the stage"
    assert not samples[2] & samples[3]
    lags = enumerate(snapshots.stage_lags("run", 0, 1000))
    assert {number for number, lag in lags if lag != UNKNOWN} == samples[2] | samples[3], "not those of long ago"


def test_a_round_reads_each_partition_once_within_its_time() -> None:
    spark = _Spark({(0, 0): 5, (1, 0): 3, (0, 1): 7, (1, 1): 8})
    snapshots = SnapshotLag(spark, DONE)
    assert snapshots.stage_lags("run", 0, 3) == []
    for tenth in range(40):
        snapshots.advance(STAGES, tenth / 10)
    assert snapshots.stage_lags("run", 0, 3) == [7, 3, UNKNOWN], "of two operators the older snapshot counts"
    assert len(spark.requested) in (6, 8), "a round, and perhaps one more"
    assert {store.store for store in spark.requested} == {"default"}


def test_a_cycle_reads_one_partition_at_most() -> None:
    spark = _Spark()
    snapshots = SnapshotLag(spark, DONE)
    for turn in range(5):
        before = len(spark.requested)
        snapshots.advance({("run", 0): _stage(0, partitions=1000)}, turn * 100.0)
        assert len(spark.requested) - before <= 1


def test_a_failed_call_costs_one_partition_its_figure() -> None:
    spark = _Spark()
    snapshots = SnapshotLag(spark, DONE)
    snapshots.advance(STAGES, 0.0)
    spark.error = SparkCallError("no")
    with pytest.raises(SparkCallError):
        snapshots.advance(STAGES, 100.0)
    spark.error = None
    spark.versions = {(0, 2): 1, (1, 2): 1}
    snapshots.advance(STAGES, 200.0)
    assert snapshots.stage_lags("run", 0, 3) == [UNKNOWN, UNKNOWN, 9]


def test_a_spark_without_the_method_is_called_once() -> None:
    spark = _Spark(error=UnsupportedSparkError("no such method"))
    snapshots = SnapshotLag(spark, DONE)
    for turn in range(9):
        snapshots.advance(STAGES, turn * 100.0)
    assert spark.calls == 1
    assert snapshots.stage_lags("run", 0, 3) == []
    assert snapshots.unit_lags([RunUnit("run", 0, 0)], {"query": "run"}) == {}, "nothing to wait for"


def test_partitions_about_to_move_are_read_first_and_age_with_every_batch() -> None:
    spark = _Spark({(0, 0): 5, (1, 0): 3, (0, 1): 7, (1, 1): 8})
    committed = dict(DONE)
    snapshots = SnapshotLag(spark, committed)
    runs = {"query": "run", "other": "none"}
    units = [RunUnit("run", 0, partition) for partition in range(3)]

    def lags() -> list[int]:
        answer = snapshots.unit_lags([*units, RunUnit("gone", 0, 0)], runs)
        return [answer[Unit("query", 0, partition)] for partition in range(3)]

    assert lags() == [10] * 3, "not asked for: as if there were no snapshot since the first batch"
    snapshots.advance(STAGES, 0.0)  # the next one is due after a second
    snapshots.advance(STAGES, 0.1, [*units[1:], RunUnit("gone", 0, 0)])
    assert [store.partition for store in spark.requested] == [0, 0, 1, 1, 2, 2], "at once, by one call"
    assert spark.calls == 2
    assert lags() == [7, 3, UNKNOWN]
    committed["run"] += 4
    assert lags() == [11, 7, UNKNOWN]
    spark.versions |= {(0, 1): 12, (1, 1): 12}
    snapshots.advance(STAGES, 0.9, units[1:])
    assert (spark.calls, lags()) == (2, [11, 7, UNKNOWN])
    snapshots.advance(STAGES, 1.1, units[1:])
    assert (spark.calls, lags()) == (3, [11, 2, UNKNOWN])


def test_many_partitions_about_to_move_are_read_in_parts_and_then_by_turns() -> None:
    spark = _Spark()
    snapshots, stages = SnapshotLag(spark, DONE), {("run", 0): _stage(0, partitions=100)}
    units = [RunUnit("run", 0, partition) for partition in range(80)]
    parts: list[list[int]] = []
    for now in (0.0, 0.1, 0.2, 0.3, 1.3, 2.3, 3.3):
        spark.requested.clear()
        snapshots.advance(stages, now, units)
        parts.append([store.partition for store in spark.requested])
    assert parts[:3] == [list(range(32)), list(range(32, 64)), list(range(64, 80))]
    assert all(len(part) == 32 for part in parts[3:])
    assert {partition for part in parts[3:6] for partition in part} == set(range(80))


def test_the_figures_of_a_query_that_ended_are_dropped() -> None:
    snapshots = SnapshotLag(_Spark(), DONE)
    for turn in range(15):
        snapshots.advance(STAGES if turn < 9 else {}, turn * 100.0)
    assert snapshots.stage_lags("run", 0, 3) == []


def test_a_query_without_a_batch_is_not_read_until_its_next_one() -> None:
    spark, done = _Spark(), dict(DONE)
    snapshots = SnapshotLag(spark, done)

    def requested(begin: int, end: int) -> int:
        before = len(spark.requested)
        for second in range(begin, end):
            snapshots.advance(STAGES, float(second))
        return len(spark.requested) - before

    assert requested(0, 180) > 100
    assert requested(190, 400) == 0
    assert snapshots.stage_lags("run", 0, 3) == [UNKNOWN] * 3, "what is known of it stays: here, that there is none"
    done["run"] += 1
    assert requested(400, 410) > 0


def test_a_call_that_failed_is_followed_by_a_long_rest_even_before_a_move() -> None:
    spark = _Spark(error=SparkCallError("no answer within 30 s"))
    snapshots = SnapshotLag(spark, DONE)
    for first in ((), [RunUnit("run", 0, 0)]):
        spark.calls = 0
        start = 1000.0 * len(first)
        with pytest.raises(SparkCallError):
            snapshots.advance(STAGES, start, first)
        snapshots.advance(STAGES, start + 59.0, first)
        assert spark.calls == 1
