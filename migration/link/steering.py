"""Steering at batch boundaries: tell Spark a partition's executor, and read it back.

A steer may reach a partition only while no job of its query runs: Spark reads the preferred locations of its tasks when
their stage begins (``StateStoreRDD.getPreferredLocations``). The task table knows running jobs from events, which
arrive some moments late. So the link asks Spark for its active jobs before each call that steers, and waits while one
runs that no event has reported yet. One call steers many moves, since a quiet moment may last a few milliseconds only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import structlog

from rechannel.migration.link.driver_state import DriverState
from rechannel.migration.link.reconciler import Reconciler
from rechannel.migration.link.stages import Stages
from rechannel.migration.moves import TrackedMove
from rechannel.migration.spark.adapter import SparkAdapter
from rechannel.migration.spark.coordinator import StoreId
from rechannel.migration.spark.gateway import LinkError
from rechannel.monitors.spark.task_table import TaskTable
from rechannel.wire.messages import MoveTransition

_LOG = structlog.get_logger("rechannel.link")
_STORES_AT_ONCE = 32  # stores steered by one call, which takes some milliseconds
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
        for moves, driver in self._due_parts(query, due, driver_state):
            now = clock()
            self._journal([line for move in moves for line in self._reconciler.record_steer(move, driver, now)])
            self._read_backs |= {move.name: (0, now) for move in moves}
            self._steer_in_spark(moves)
        if self._table.is_quiet(query):
            self._repair_overwritten(query, driver_state, clock)

    def _due_parts(
        self, query: str, moves: Sequence[TrackedMove], driver_state: Callable[[], DriverState]
    ) -> Iterator[tuple[list[TrackedMove], DriverState]]:
        """Yield moves that can be steered by one call, until a batch may run; and the state then.

        A call takes some milliseconds, and the next batch may have begun meanwhile: then the rest waits.
        """
        for part in self._parts(moves):
            if not self._catch_up_with_events() or not self._is_quiet(query):
                return
            driver = driver_state()  # an event may have ended a move, or its batch have landed it
            if still_due := [move for move in part if self._reconciler.is_still_due(move, driver)]:
                yield still_due, driver

    def _parts(self, moves: Sequence[TrackedMove]) -> Iterator[list[TrackedMove]]:
        """Divide moves into parts of as many stores as one call may steer, or of one move."""
        part: list[TrackedMove] = []
        size = 0
        for move in moves:
            stores = len(self._stages.stores_of_move(move))
            if part and size + stores > _STORES_AT_ONCE:
                yield part
                part, size = [], 0
            part.append(move)
            size += stores
        if part:
            yield part

    def _is_quiet(self, query: str) -> bool:
        return bool(self._table.is_quiet(query)) and self._adapter.active_jobs() <= self._table.jobs

    def _repair_overwritten(
        self, query: str, driver_state: Callable[[], DriverState], clock: Callable[[], float]
    ) -> None:
        """Read steers back, and repeat those that were overwritten.

        A task that outlives its stage (a speculative copy, say) reports its own executor when it opens the store
        (``StateStore.reportActiveStoreInstance``). So a steer must come after the last one of them, or be repeated.
        """
        now = clock()
        steered = self._reconciler.steered_not_run(query, driver_state(), now)
        due = [move for move in steered if self._is_read_back_due(move, now)]
        if not due or not self._catch_up_with_events() or not self._is_quiet(query):
            return  # nothing could be repaired, so it is not counted as read back
        for part in self._parts(due):
            self._read_backs |= {move.name: (self._read_backs[move.name][0] + 1, now) for move in part}
            try:
                overwritten = self._not_in_effect(part)
            except LinkError as error:
                names = [move.name for move in part]
                _LOG.warning("a steered location could not be read from Spark", moves=names, error=str(error))
                continue
            for moves, _ in self._due_parts(query, overwritten, driver_state):
                self._steer_in_spark(moves)

    def _is_read_back_due(self, move: TrackedMove, now: float) -> bool:
        count, at = self._read_backs.get(move.name, (_READ_BACKS, 0.0))
        return count < _READ_BACKS and now - at >= _READ_BACK_EVERY

    def _steer_in_spark(self, moves: Sequence[TrackedMove]) -> None:
        executors = self._table.executors
        try:
            self._adapter.coordinator.steer([(store, executors[move.target]) for move, store in self._stores(moves)])
            for move in self._not_in_effect(moves):
                _LOG.warning("Spark does not return the steered location", move=move.name, target=move.target)
        except LinkError as error:
            names = [move.name for move in moves]
            _LOG.warning("a steer failed; it is tried again at the next boundary", moves=names, error=str(error))

    def _not_in_effect(self, moves: Sequence[TrackedMove]) -> list[TrackedMove]:
        """Return the moves of which Spark prefers some store on another executor."""
        pairs = self._stores(moves)
        locations = self._adapter.coordinator.locations([store for _, store in pairs])
        wrong = {move.name for (move, _), location in zip(pairs, locations, strict=True) if location != move.target}
        return [move for move in moves if move.name in wrong]

    def _stores(self, moves: Sequence[TrackedMove]) -> list[tuple[TrackedMove, StoreId]]:
        return [(move, store) for move in moves for store in self._stages.stores_of_move(move)]

    def remove_final(self) -> None:
        """Drop what belongs to moves that the reconciler no longer holds."""
        names = {move.name for move in self._reconciler.moves}
        self._read_backs = {name: value for name, value in self._read_backs.items() if name in names}
