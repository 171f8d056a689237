"""Which operators and state stores each stateful stage of a run has, read off the plans of its batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import structlog

from rechannel.migration.link.report import StageStores, unlike
from rechannel.migration.moves import Move
from rechannel.migration.spark.adapter import PlannedOperator, StoreId
from rechannel.migration.spark.gateway import LinkError
from rechannel.monitors.spark.task_table import StatefulStageFinished

_LOG = structlog.get_logger("rechannel.link")
_TRIES = 20  # batches in which a stage's plan is looked up at once; after that in every twentieth
_SURE_TRIES = 3  # batches: a job may run a part of a stage's partitions only

Key = tuple[str, int]  # run, stage


class Stages:
    """Learns stages as they finish. ``operators(query, run)`` reads the plan, ``stores(checkpoint, operator)`` names.

    ``known``: stages whose operators are known; ``unlike``: why a stage's tasks are not its partitions; ``learning``:
    whether a plan is looked for, which is there until the next batch replaces it.
    """

    def __init__(
        self, operators: Callable[[str, str], list[PlannedOperator]], stores: Callable[[str, int], list[str]]
    ) -> None:
        self.known: dict[Key, StageStores] = {}
        self.unlike: dict[Key, str] = {}
        self._operators, self._stores = operators, stores
        self._tries: dict[Key, int] = {}
        self._open: set[Key] = set()

    @property
    def learning(self) -> bool:
        """Whether some stage's plan is to be read soon."""
        return bool(self._open)

    def finished(self, stage: StatefulStageFinished) -> None:
        """Learn a stage that just finished, if it is not known yet."""
        key = (stage.run, stage.stage)
        if key in self.known:
            return
        tries = self._tries[key] = self._tries.get(key, 0) + 1
        self._open.discard(key)
        if tries > _TRIES and tries % _TRIES:
            return
        try:
            self._learn(key, stage, tries)
        except LinkError as error:
            _LOG.warning("a stage's plan could not be read; a later batch is a new try", error=str(error))
        if key not in self.known and tries < _TRIES:
            self._open.add(key)

    def _learn(self, key: Key, stage: StatefulStageFinished, tries: int) -> None:
        """Tie a finished stage to its operators: their SQL metrics have the ids that the stage reported."""
        planned = [item for item in self._operators(stage.query, stage.run) if item.metrics & stage.accumulators]
        # An empty answer means the plan was replaced by the next batch's in between; the next batch is a new try.
        operators = [(item, self._stores(item.checkpoint, item.operator)) for item in planned]
        if not operators or not all(names for _, names in operators):
            return
        if all(item.partitions == stage.partitions for item, _ in operators):
            self.known[key] = StageStores(stage.partitions, operators)
            self.unlike.pop(key, None)
        elif tries >= _SURE_TRIES:
            self.unlike[key] = unlike(stage, operators)

    def of_run(self, run: str, ordinals: Iterable[int]) -> dict[int, list[int]]:
        """Return stage -> its operators' numbers, of those stages that are known."""
        return {
            ordinal: [item.operator for item, _ in stage.operators]
            for ordinal in ordinals
            if (stage := self.known.get((run, ordinal))) is not None
        }

    def stores(self, run: str, stage: int, partition: int) -> list[StoreId]:
        """Return the state stores of a partition; none while the stage is not known."""
        known = self.known.get((run, stage))
        return [
            StoreId(item.checkpoint, item.run, item.operator, partition, name)
            for item, names in (known.operators if known else [])
            for name in names
        ]

    def stores_of(self, move: Move) -> list[StoreId]:
        """Return the state stores of a move's partition."""
        return self.stores(move.run, move.wanted.stage, move.wanted.partition)

    def forget(self, run: str) -> None:
        """A run is over."""
        for key in [key for key in self._tries if key[0] == run]:
            del self._tries[key]
            self.known.pop(key, None)
            self.unlike.pop(key, None)
        self._open = {key for key in self._open if key[0] != run}
