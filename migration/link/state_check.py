"""Comparison with Spark's own state: running queries, and effects of lost events."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

import structlog

from rechannel.migration.link.stages import Stages
from rechannel.migration.spark.adapter import ActiveQuery, SparkAdapter
from rechannel.migration.spark.coordinator import StoreId
from rechannel.migration.spark.gateway import LinkError
from rechannel.monitors.spark import events
from rechannel.monitors.spark.event_gaps import Difference, EventGaps, GapKind, healing_event
from rechannel.monitors.spark.task_table import TaskTable
from rechannel.wire.messages import ExecutorInfo, Unit

_LOG = structlog.get_logger("rechannel.link")
_CONFIRMATION_TIME = 0.2  # seconds of a cycle in which Spark is asked for partitions
_AT_ONCE = 100  # partitions by one call, which takes some ten milliseconds


class StateCheck:
    """Reads Spark's state and repairs the task table."""

    def __init__(
        self, adapter: SparkAdapter, table: TaskTable, stages: Stages, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.queries: dict[str, ActiveQuery] = {}  # the running queries of this session
        self.by_run: dict[str, ActiveQuery | None] = {}  # the same by run, None for those of another session
        self.others: dict[str, str] = {}  # run -> query, of the running queries of other sessions
        self.compared = False  # whether Spark has answered yet: before, no running query is in here
        self.releasing: set[str] = set()  # executors that Spark offers no task any more
        self.gaps = EventGaps(table)  # lost events that were reconstructed
        self._adapter, self._table, self._stages, self._clock = adapter, table, stages, clock
        self._next_confirmation = 0.0

    def find_lost_events(self, now: float, *, events_lost: bool) -> list[events.Event]:
        """Return the events that bring the task table into line with Spark, in order."""
        if events_lost:  # at once: if one of the calls below fails, the loss is not reported again
            self._table.unconfirm_placement()
        state = self._adapter.spark_state()
        for run, query in state.runs.items():
            if run not in self.by_run:
                self.by_run[run] = self._adapter.query(query)
        self._table.correct_runs(state.runs)
        self.by_run = {run: active for run, active in self.by_run.items() if run in state.runs}
        self.queries = {active.query: active for active in self.by_run.values() if active is not None}
        self.others = {run: query for run, query in state.runs.items() if self.by_run[run] is None}
        self.compared = True
        for query in set(state.runs.values()):
            if self._table.is_quiet(query) is None and self._adapter.is_idle(query):
                self._table.assume_quiet(query)
        self.releasing = self._adapter.executor_control.releasing()
        uncommitted = self._table.uncommitted(state.jobs).values()
        idle = frozenset(query for query in uncommitted if self._adapter.is_idle(query))
        gaps = self.gaps.confirmed_differences(replace(state, idle=idle), self._clock())
        if gaps:
            self._table.unconfirm_placement()
        healing = []
        added = any(kind is GapKind.EXECUTOR_ADDED for kind, _ in gaps)
        executors = {info.executor: info for info in self._adapter.executors()} if added else {}
        for gap in gaps:
            if (event := healing_event(gap, self._table, now) or self._event_from_spark(gap, executors)) is not None:
                _LOG.warning("a lost Spark event was reconstructed", kind=gap[0], name=gap[1])
                healing.append(event)
        return healing

    def _event_from_spark(self, gap: Difference, executors: Mapping[str, ExecutorInfo]) -> events.Event | None:
        kind, name = gap
        if kind is GapKind.JOB_STARTED:
            return self._adapter.job(int(name))
        info = executors.get(name)
        return None if info is None else events.ExecutorAdded(name, info.host, info.cores, info.added, info.node)

    def confirm_placements(self, moving: Collection[Unit]) -> None:
        """Ask Spark where unconfirmed partitions are, of as many as a cycle has time for.

        Those that are ``moving`` are left out: Spark prefers them elsewhere than they ran. After a call that fails
        comes a rest as long as it took.
        """
        start = self._clock()
        if start < self._next_confirmation:
            return
        until = start + _CONFIRMATION_TIME
        queries = {query for query, _, _ in self._table.unconfirmed}
        quiet = {query for query in queries if self._table.is_quiet(query)}
        units = [unit for unit in self._table.unconfirmed if unit[0] in quiet and unit not in moving]
        while units and self._clock() < until:
            part, units = units[:_AT_ONCE], units[_AT_ONCE:]
            stores = {unit: own[0] for unit in part if (own := self._stores(*unit))}
            try:
                locations = self._adapter.coordinator.locations(list(stores.values()))
            except LinkError:
                now = self._clock()
                self._next_confirmation = now + (now - start)
                raise
            executors = dict(zip(stores, locations, strict=True))
            for unit in part:
                self._table.confirm_placement(*unit, executors.get(unit, ""))

    def _stores(self, query: str, stage: int, partition: int) -> list[StoreId]:
        active = self.queries.get(query)
        return self._stages.stores_of_partition(active.run, stage, partition) if active is not None else []

    def remove_run(self, run: str) -> None:
        """Drop a run that is over."""
        active = self.by_run.pop(run, None)
        self.others.pop(run, None)
        if active is not None and self.queries.get(active.query) is active:
            del self.queries[active.query]
