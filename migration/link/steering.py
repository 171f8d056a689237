"""Steering at batch boundaries: tell Spark a partition's executor, and read it back.

A steer may reach a partition only while no job of its query runs: Spark reads the preferred locations of its tasks when
their stage begins (``StateStoreRDD.getPreferredLocations``). The task table knows running jobs from events, which
arrive some moments late. So the link asks Spark for its active jobs before each steer, and waits while one runs that no
event has reported yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from rechannel.migration.link.driver_state import DriverState
from rechannel.migration.link.reconciler import Reconciler
from rechannel.migration.link.stages import Stages
from rechannel.migration.moves import TrackedMove
from rechannel.migration.spark.adapter import SparkAdapter
from rechannel.migration.spark.gateway import LinkError
from rechannel.monitors.spark.task_table import TaskTable
from rechannel.wire.messages import MoveTransition

_LOG = structlog.get_logger("rechannel.link")
_READ_BACKS = 3  # times a steer is read back while its query stays quiet
_READ_BACK_EVERY = 0.02  # seconds


class Steering:
    """Steers the moves that the reconciler says are due."""

    def __init__(
        self,
        adapter: SparkAdapter,
        table: TaskTable,
        reconciler: Reconciler,
        stages: Stages,
        *,
        catch_up_with_events: Callable[[], bool],
        journal: Callable[[Sequence[MoveTransition]], None],
    ) -> None:
        self._adapter, self._table, self._reconciler, self._stages = adapter, table, reconciler, stages
        self._catch_up_with_events = catch_up_with_events  # False if there are more than a cycle may take
        self._journal = journal
        self._read_backs: dict[str, tuple[int, float]] = {}  # move -> times read back, and when last

    def handle_boundary(self, query: str, driver_state: Callable[[], DriverState], clock: Callable[[], float]) -> None:
        """Advance the moves of a query at a quiet moment, and steer those that are due."""
        transitions, due = self._reconciler.advance_at_boundary(query, driver_state(), clock())
        self._journal(transitions)
        for move in due:
            # Each move takes some milliseconds, and the next batch may have begun meanwhile: then the rest waits.
            if not self._catch_up_with_events() or not self._is_quiet(query):
                return
            driver, now = driver_state(), clock()
            if not self._reconciler.is_still_due(move, driver):
                continue  # an event ended it, or its batch landed
            self._journal(self._reconciler.record_steer(move, driver, now))
            self._read_backs[move.name] = (0, now)
            self._steer_in_spark(move)
        self._repair_overwritten(query, driver_state, clock)

    def _is_quiet(self, query: str) -> bool:
        return bool(self._table.is_quiet(query)) and self._adapter.active_jobs() <= self._table.jobs

    def _repair_overwritten(
        self, query: str, driver_state: Callable[[], DriverState], clock: Callable[[], float]
    ) -> None:
        """Read steers back, and repeat one that was overwritten.

        A task that outlives its stage (a speculative copy, say) reports its own executor when it opens the store
        (``StateStore.reportActiveStoreInstance``). So a steer must come after the last one of them, or be repeated.
        """
        for move in self._reconciler.steered_not_run(query, driver_state(), clock()):
            now = clock()
            count, at = self._read_backs.get(move.name, (_READ_BACKS, 0.0))
            if count >= _READ_BACKS or now - at < _READ_BACK_EVERY:
                continue
            if not self._catch_up_with_events() or not self._is_quiet(query):
                return
            if not self._reconciler.is_still_due(move, driver_state()):
                continue
            self._read_backs[move.name] = (count + 1, now)
            try:
                if not self._is_in_effect(move):
                    self._steer_in_spark(move)
            except LinkError as error:
                _LOG.warning("a steered location could not be read from Spark", move=move.name, error=str(error))

    def _steer_in_spark(self, move: TrackedMove) -> None:
        if (target := self._table.executors.get(move.target)) is None:
            return  # gone since; the event will tell the reconciler
        try:
            for store in self._stages.stores_of_move(move):
                self._adapter.coordinator.steer(store, target.host, target.executor)
            if not self._is_in_effect(move):
                _LOG.warning("Spark does not return the steered location", move=move.name, target=target.executor)
        except LinkError as error:
            _LOG.warning("a steer failed; it is tried again at the next boundary", move=move.name, error=str(error))

    def _is_in_effect(self, move: TrackedMove) -> bool:
        return all(
            self._adapter.coordinator.location(store) == move.target for store in self._stages.stores_of_move(move)
        )

    def remove_final(self) -> None:
        """Drop what belongs to moves that the reconciler no longer holds."""
        names = {move.name for move in self._reconciler.moves}
        self._read_backs = {name: value for name, value in self._read_backs.items() if name in names}
