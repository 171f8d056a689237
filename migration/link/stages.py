"""Operators and state stores of each stateful stage, read from the plans of its batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import structlog

from rechannel.migration.moves import TrackedMove
from rechannel.migration.spark.adapter import PlannedOperator
from rechannel.migration.spark.coordinator import StoreId
from rechannel.migration.spark.gateway import LinkError
from rechannel.monitors.spark.task_table import StatefulStageFinished

_LOG = structlog.get_logger("rechannel.link")
_ATTEMPTS = 20  # batches in which a stage's plan is looked up at once; after that in every twentieth
_SOON = 60.0  # seconds in which the next batch of an unmapped stage is expected: it may be an idle or hourly query
_MIN_MISMATCHES = 3  # batches: a job may run a part of a stage's partitions only

RunStage = tuple[str, int]  # run, number of the stage


@dataclass
class StageStores:
    """A stateful stage whose plan was read: its operators with the names of their stores."""

    partitions: int
    operators: list[tuple[PlannedOperator, list[str]]]

    @property
    def store_names(self) -> list[tuple[int, str]]:
        """Operator and name of every store that each partition has."""
        return [(item.operator, name) for item, names in self.operators for name in names]


class Stages:
    """Maps stages to their stores as they finish."""

    def __init__(
        self,
        operators: Callable[[str, str], list[PlannedOperator]],
        store_names: Callable[[str, int], list[str]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.mapped: dict[RunStage, StageStores] = {}
        self.mismatches: dict[RunStage, str] = {}  # why a stage's tasks are not the partitions of its operators
        self._operators = operators  # of (query, run), by its plan
        self._store_names = store_names  # of (checkpoint, operator)
        self._clock = clock
        self._attempts: dict[RunStage, int] = {}
        self._unmapped: dict[RunStage, float] = {}  # -> until when its next batch is expected

    @property
    def pending(self) -> bool:
        """Whether some stage's plan is to be read soon."""
        return any(until > self._clock() for until in self._unmapped.values())

    def map_finished(self, stage: StatefulStageFinished) -> None:
        """Map a stage that just finished, if it is not mapped yet."""
        key = (stage.run, stage.stage)
        if key in self.mapped:
            return
        attempts = self._attempts[key] = self._attempts.get(key, 0) + 1
        self._unmapped.pop(key, None)
        if attempts > _ATTEMPTS and attempts % _ATTEMPTS:
            return
        try:
            self._map_stage_to_stores(key, stage, attempts)
        except LinkError as error:
            _LOG.warning("a stage's plan could not be read; it is tried again after a later batch", error=str(error))
        if key not in self.mapped and attempts < _ATTEMPTS:
            self._unmapped[key] = self._clock() + _SOON

    def _map_stage_to_stores(self, key: RunStage, stage: StatefulStageFinished, attempts: int) -> None:
        """Match a finished stage with its operators by the ids of their SQL metrics."""
        planned = [item for item in self._operators(stage.query, stage.run) if item.metrics & stage.accumulators]
        # An empty answer means that the next batch has replaced the plan already; that batch is a new try.
        operators = [(item, self._store_names(item.checkpoint, item.operator)) for item in planned]
        if not operators or not all(names for _, names in operators):
            return
        if all(item.partitions == stage.partitions for item, _ in operators):
            self.mapped[key] = StageStores(stage.partitions, operators)
            self.mismatches.pop(key, None)
        elif attempts >= _MIN_MISMATCHES:
            self.mismatches[key] = describe_mismatch(stage, operators)

    def operator_names(self) -> set[str]:
        """Return the names of the operators of all stages that are mapped."""
        return {item.name for stage in self.mapped.values() for item, _ in stage.operators}

    def operators_of_run(self, run: str, numbers: Iterable[int]) -> dict[int, list[int]]:
        """Return stage -> the numbers of its operators, for the stages that are mapped."""
        return {
            number: [item.operator for item, _ in stage.operators]
            for number in numbers
            if (stage := self.mapped.get((run, number))) is not None
        }

    def stages_with(self, run: str, operator: int) -> Iterator[tuple[int, StageStores]]:
        """Yield each mapped stage of a run that has an operator, with its number."""
        for (other, number), stage in self.mapped.items():
            if other == run and any(item.operator == operator for item, _ in stage.operators):
                yield number, stage

    def stores_of_partition(self, run: str, stage: int, partition: int) -> list[StoreId]:
        """Return the state stores of a partition; none while the stage is not mapped."""
        mapped = self.mapped.get((run, stage))
        return [
            StoreId(item.checkpoint, item.run, item.operator, partition, name)
            for item, names in (mapped.operators if mapped else [])
            for name in names
        ]

    def stores_of_move(self, move: TrackedMove) -> list[StoreId]:
        """Return the state stores of a move's partition."""
        return self.stores_of_partition(move.run, move.desired.stage, move.desired.partition)

    def remove_run(self, run: str) -> None:
        """Drop a run that is over."""
        for key in [key for key in self._attempts if key[0] == run]:
            del self._attempts[key]
            self.mapped.pop(key, None)
            self.mismatches.pop(key, None)
            self._unmapped.pop(key, None)


def describe_mismatch(stage: StatefulStageFinished, operators: Sequence[tuple[PlannedOperator, list[str]]]) -> str:
    """Return why a stage whose tasks are not the partitions of its operators cannot be moved."""
    sizes = ", ".join(f"{item.name} has {item.partitions}" for item, _ in operators)
    return (
        f"stateful stage {stage.stage} runs {stage.partitions} tasks, but {sizes} partitions: a coalesce or a union "
        "behind the operator puts several of them into one task; put a repartition in between to have it moved"
    )
