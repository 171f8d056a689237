"""Lag of each partition's newest snapshot: the batches that a move's target has to replay.

Spark's coordinator learns of every snapshot of a state store that reaches the checkpoint (4.1 and newer, both of
Spark's providers; ``StateStoreCoordinator``). A cycle of the link makes one call at most, since a call takes the driver
milliseconds. Partitions that are about to move come first, many by one call. Otherwise one partition is asked for each
second: of many partitions, a round has a sample, the next round another one; those of a query without a batch for some
minutes are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from rechannel.migration.link.driver_state import UNKNOWN
from rechannel.migration.link.stages import RunStage, StageStores
from rechannel.migration.moves import RunUnit
from rechannel.migration.spark.coordinator import StoreId
from rechannel.migration.spark.gateway import LinkError, UnsupportedSparkError
from rechannel.wire.messages import Unit

SAMPLE = 60  # partitions that a round asks for
_AT_ONCE = 32  # partitions that are about to move, by one call
_EVERY = 1.0  # seconds between two calls, except where partitions are about to move that were not asked for yet
_AFTER_ERROR = 60.0  # seconds to the next call after one that failed, which may have taken half of them
_IDLE = 180.0  # seconds without a commit, after which Spark makes no snapshot any more


class SnapshotLag:
    """The lag of each partition's newest snapshot in batches; the oldest of its stores counts."""

    def __init__(
        self,
        latest_snapshots: Callable[[Sequence[StoreId]], list[int]],
        committed: Mapping[str, int],
        *,
        supported: bool = True,
    ) -> None:
        self._latest_snapshots = latest_snapshots  # version of each store's newest snapshot, -1 if none is known
        self._committed = committed  # run -> last committed batch; batch b leaves version b + 1
        self._next = self._rest_until = 0.0
        self._round: Iterator[tuple[RunStage, int]] = iter(())
        self._rounds = 0
        self._versions: dict[RunStage, dict[int, int]] = {}  # of this round
        self._earlier: dict[RunStage, dict[int, int]] = {}  # of the round before
        self._commits: dict[str, tuple[int, float]] = {}  # run -> its last commit, and when that was noticed
        self._index = 0  # among the partitions that are about to move
        self.supported = supported  # whether this Spark reports snapshots

    def stage_lags(self, run: str, stage: int, partitions: int) -> list[int]:
        """Return the lag of each partition, `UNKNOWN` where not asked lately; [] if all are."""
        versions = self._versions_of((run, stage))
        return [self._lag(run, versions.get(number, -1)) for number in range(partitions)] if versions else []

    def unit_lags(self, units: Sequence[RunUnit], runs: Mapping[str, str]) -> dict[Unit, int]:
        """Return the lag of each of these partitions; empty where this Spark does not tell.

        It is the highest possible one where Spark was not asked yet. ``runs``: query -> its run.
        """
        if not self.supported or not units:
            return {}
        queries = {run: query for query, run in runs.items()}
        answers = self._answers((run, stage) for run, stage, _ in units)
        return {
            Unit(queries[run], stage, partition): self._lag(run, answers[run, stage].get(partition, 0))
            for run, stage, partition in units
            if run in queries
        }

    def advance(self, stages: Mapping[RunStage, StageStores], now: float, first: Sequence[RunUnit] = ()) -> None:
        """Ask for the next partitions, if it is time; raises the error of the call.

        ``now``: seconds of a steady clock. ``first``: partitions that are asked for before all others: at once where
        they were not asked for yet, then by turns.
        """
        if not self.supported or now < self._rest_until:
            return
        urgent = [((run, stage), partition) for run, stage, partition in first if (run, stage) in stages]
        answers = self._answers(stage for stage, _ in urgent)
        units = [(stage, partition) for stage, partition in urgent if partition not in answers[stage]][:_AT_ONCE]
        if not units:
            if now < self._next:
                return
            self._next = now + _EVERY
            units = self._next_turn(urgent) if urgent else self._next_of_round(stages, now)
        if units:
            self._ask(stages, units, now)

    def _next_turn(self, urgent: list[tuple[RunStage, int]]) -> list[tuple[RunStage, int]]:
        self._index = (self._index + _AT_ONCE) % len(urgent)
        return [*urgent[self._index :], *urgent[: self._index]][:_AT_ONCE]

    def _next_of_round(self, stages: Mapping[RunStage, StageStores], now: float) -> list[tuple[RunStage, int]]:
        unit = next(self._round, None)
        if unit is None:
            self._begin_round(stages, now)
            unit = next(self._round, None)
        return [unit] if unit is not None and unit[0] in stages else []

    def _begin_round(self, stages: Mapping[RunStage, StageStores], now: float) -> None:
        active = self._active_stages(stages, now)
        # Of stages that are not asked for, all answers stay.
        self._earlier = {
            key: self._versions.get(key, {}) if key in active else self._versions_of(key) for key in stages
        }
        self._versions = {}
        units = ((key, number) for key, stage in active.items() for number in range(stage.partitions))
        step = max(1, -(-sum(stage.partitions for stage in active.values()) // SAMPLE))
        self._round = islice(units, self._rounds % step, None, step)
        self._rounds += 1

    def _active_stages(self, stages: Mapping[RunStage, StageStores], now: float) -> dict[RunStage, StageStores]:
        """Return the stages of runs that committed something lately."""
        batches = {run: self._committed.get(run, -1) for run, _ in stages}
        before = self._commits
        self._commits = {
            run: before[run] if before.get(run, (-2, 0.0))[0] == batch else (batch, now)
            for run, batch in batches.items()
        }
        return {key: stage for key, stage in stages.items() if now - self._commits[key[0]][1] < _IDLE}

    def _ask(self, stages: Mapping[RunStage, StageStores], units: Sequence[tuple[RunStage, int]], now: float) -> None:
        """Ask for one store of each operator: snapshots of its stores are made together."""
        stores = [
            StoreId(item.checkpoint, item.run, item.operator, partition, names[0])
            for stage, partition in units
            for item, names in stages[stage].operators
        ]
        try:
            versions = iter(self._latest_snapshots(stores))
        except UnsupportedSparkError:
            self.supported = False
        except LinkError:
            self._rest_until = now + _AFTER_ERROR
            raise
        else:
            for stage, partition in units:
                own = islice(versions, len(stages[stage].operators))
                self._versions.setdefault(stage, {})[partition] = min(own)

    def _answers(self, stages: Iterable[RunStage]) -> dict[RunStage, dict[int, int]]:
        """Return stage -> partition -> what Spark answered, of those that were asked for lately."""
        return {stage: self._versions_of(stage) for stage in set(stages)}

    def _versions_of(self, key: RunStage) -> dict[int, int]:
        return self._earlier.get(key, {}) | self._versions.get(key, {})

    def _lag(self, run: str, version: int) -> int:
        return max(0, self._committed.get(run, -1) + 1 - version) if version >= 0 else UNKNOWN
