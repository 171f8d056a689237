"""Steers at batch boundaries: tells Spark where a partition's stores shall be, and reads back that it took it.

A steer may reach a partition only while no job of its query runs. The task table knows that from events, which come
some moments late; so Spark is asked for its active jobs before each steer, and a job that no event told of means: wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import structlog

from rechannel.migration.link.driver_state import DriverState
from rechannel.migration.link.reconciler import Reconciler
from rechannel.migration.link.stages import Stages
from rechannel.migration.moves import Move
from rechannel.migration.spark.adapter import SparkAdapter
from rechannel.migration.spark.gateway import LinkError
from rechannel.monitors.spark.task_table import TaskTable
from rechannel.wire.messages import MoveTransition

_LOG = structlog.get_logger("rechannel.link")
_READ_BACKS = 3  # times a steer is read back while its query stays quiet
_READ_BACK_EVERY = 0.02  # seconds


class Steering:
    """``catch_up()`` folds in the newest events, False if there are more; ``post`` takes a move's transitions."""

    def __init__(
        self,
        adapter: SparkAdapter,
        table: TaskTable,
        reconciler: Reconciler,
        stages: Stages,
        catch_up: Callable[[], bool],
        post: Callable[[Sequence[MoveTransition]], None],
    ) -> None:
        self._adapter, self._table, self._reconciler, self._stages = adapter, table, reconciler, stages
        self._catch_up, self._post = catch_up, post
        self._read_backs: dict[str, tuple[int, float]] = {}  # move -> times read back, when last

    def at_boundary(self, query: str, observed: Callable[[], DriverState]) -> None:
        """Take what steps are due at a quiet moment of a query."""
        lines, due = self._reconciler.due(query, observed(), time.time())
        self._post(lines)
        for move in due:
            # Each move takes some milliseconds, and the next batch may have begun meanwhile: then the rest waits.
            if not self._catch_up() or not self._quiet(query):
                return
            now = time.time()
            self._post(self._reconciler.steer(move, observed(), now))
            self._read_backs[move.wanted.move] = (0, now)
            self._tell(move)
        self._read_back(query, observed())

    def _quiet(self, query: str) -> bool:
        return bool(self._table.quiet(query)) and self._adapter.active_jobs() <= self._table.jobs

    def _read_back(self, query: str, observed: DriverState) -> None:
        """Look again: a task that outlived its stage (a speculative copy, say) may have overwritten the steer."""
        for move in self._reconciler.steered_now(query, observed, time.time()):
            now = time.time()
            count, at = self._read_backs.get(move.wanted.move, (_READ_BACKS, 0.0))
            if count >= _READ_BACKS or now - at < _READ_BACK_EVERY or not self._table.quiet(query):
                continue
            self._read_backs[move.wanted.move] = (count + 1, now)
            try:
                if not self._reads_back(move):
                    self._tell(move)
            except LinkError as error:
                _LOG.warning("a steer could not be read back", move=move.wanted.move, error=str(error))

    def _tell(self, move: Move) -> None:
        if (target := self._table.executors.get(move.wanted.target)) is None:
            return  # gone since; the reconciler hears of it by the event
        try:
            for store in self._stages.stores_of(move):
                self._adapter.steer(store, target.host, target.executor)
            if not self._reads_back(move):
                _LOG.warning("a steer did not read back", move=move.wanted.move, target=target.executor)
        except LinkError as error:
            _LOG.warning("a steer failed; the next boundary is a new try", move=move.wanted.move, error=str(error))

    def _reads_back(self, move: Move) -> bool:
        return all(self._adapter.location(store) == move.wanted.target for store in self._stages.stores_of(move))

    def forget_settled(self) -> None:
        """Keep what belongs to moves that the reconciler still holds."""
        held = {move.wanted.move for move in self._reconciler.moves}
        self._read_backs = {name: value for name, value in self._read_backs.items() if name in held}
