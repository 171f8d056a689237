"""The command ``status``. All of it is in Redis, so it needs no controller."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import click
import msgspec

from rechannel.conf.settings import Settings
from rechannel.daemon.cli.options import RedisPatience, unknown_name
from rechannel.daemon.view.status import ApplicationStatus, ClusterStatus, DrainState, DrainStatus
from rechannel.daemon.view.status_builder import read_status
from rechannel.wire.exit_codes import CommandError, ExitCode
from rechannel.wire.printable import plain, query_name
from rechannel.wire.redis.store import Store

_FOLLOW_EVERY = 1.0  # seconds; as often as a link reports
_DRAINED = (DrainState.EMPTY, DrainState.RELEASED)
Row = TypeVar("Row")


@dataclass(frozen=True)
class StatusFilter:
    """The application, query (id or name) and node to show; "" for all."""

    application: str = ""
    query: str = ""
    node: str = ""

    def apply(self, status: ClusterStatus) -> ClusterStatus:
        """Return the status without the rest. Raises CommandError where nothing matches."""
        applications = [row for row in status.applications if self.application in ("", row.application)]
        if not applications and self.application:
            raise unknown_name("application", self.application, (row.application for row in status.applications))
        filtered = tuple(self._filtered(row) for row in applications)
        if self.query and not any(row.queries for row in filtered):
            names = (query_name(query.query, query.name) for row in applications for query in row.queries)
            raise unknown_name("query", self.query, names)
        if self.node and not any(row.executors for row in filtered):
            raise unknown_name("node", self.node, (executor.node for row in applications for executor in row.executors))
        return replace(status, applications=filtered)

    def _filtered(self, row: ApplicationStatus) -> ApplicationStatus:
        queries = _matching(row.queries, self.query, lambda item: (item.query, query_name(item.query, item.name)))
        executors = _matching(row.executors, self.node, lambda item: (item.node,))
        query_ids, executor_ids = {item.query for item in queries}, {item.executor for item in executors}
        return replace(
            row,
            queries=queries,
            executors=executors,
            hot_streams=tuple(item for item in row.hot_streams if item.query in query_ids),
            moves=tuple(item for item in row.moves if item.query in query_ids),
            forecasts=tuple(item for item in row.forecasts if item.stage.rpartition("/")[0] in query_ids),
            partitions=tuple(
                item
                for item in row.partitions
                if item.query in query_ids and (not self.node or item.executor in executor_ids)
            ),
        )


def run(settings: Settings, only: StatusFilter, *, partitions: bool, verbose: bool, as_json: bool) -> None:
    """Show the status."""
    store = Store(settings.redis, settings.cluster.name)
    status = only.apply(read_status(store, settings, time.time(), partitions=partitions))
    if as_json:
        click.echo(to_json(status))
        return
    from rechannel.daemon.cli import tables

    tables.print_status(status, time.time(), verbose=verbose)


def follow_drain(settings: Settings, nodes: Sequence[str], stop: threading.Event, *, as_json: bool) -> None:
    """Show the progress of node drains until all are done.

    Raises CommandError if a drain was canceled, or a driver with executors there reports no more, and
    KeyboardInterrupt if it is stopped before: what a script does next must not take the nodes for empty. An outage of
    Redis is waited for, and then that drivers report again.
    """
    store = Store(settings.redis, settings.cluster.name)
    patience, progress = RedisPatience(), _DrainProgress(nodes, as_json=as_json)
    while True:
        status = patience.read(lambda: read_status(store, settings, time.time()))
        problem = progress.problem(status) if status is not None else None
        if problem is not None and not patience.is_back_lately:
            raise problem
        if status is not None and problem is None and progress.show(status):
            return
        if stop.wait(_FOLLOW_EVERY):
            raise KeyboardInterrupt


class _DrainProgress:
    """Progress of node drains, printed as it changes."""

    def __init__(self, nodes: Sequence[str], *, as_json: bool) -> None:
        self._nodes = nodes
        self._as_json = as_json
        self._last: dict[str, DrainStatus] = {}
        self._holders: dict[str, set[str]] = {}  # node -> applications with executors there, by their last reports

    def problem(self, status: ClusterStatus) -> CommandError | None:
        """Return the error for a drain or a driver that is there no more, None if there is none."""
        drained = {drain.node for drain in status.drains}
        reporting = {item.application for item in status.applications}
        for node in self._nodes:
            if node not in drained:
                return CommandError(ExitCode.REFUSED, f"{node} is not drained any more")
            if silent := self._holders.get(node, set()) - reporting:
                return CommandError(
                    ExitCode.NOT_READY,
                    f"{node}: {', '.join(sorted(silent))} had executors there and does not report any more; unless its "
                    "driver has ended, they may still hold state",
                )
        return None

    def show(self, status: ClusterStatus) -> bool:
        """Print what changed; return whether all nodes are drained."""
        drains = {drain.node: drain for drain in status.drains}
        for node in self._nodes:
            self._holders[node] = {
                item.application for item in status.applications if any(row.node == node for row in item.executors)
            }
            if drains[node] != self._last.get(node):
                click.echo(to_json(drains[node]) if self._as_json else f"{node}: {plain(drains[node].sentence)}")
            self._last[node] = drains[node]
        return all(self._last[node].state in _DRAINED for node in self._nodes)


def to_json(status: ClusterStatus | DrainStatus) -> str:
    """Return a status as the JSON document of ``--json``."""
    return json.dumps(msgspec.to_builtins(status))


def _matching(rows: Sequence[Row], name: str, names: Callable[[Row], Sequence[str]]) -> tuple[Row, ...]:
    return tuple(row for row in rows if not name or name in names(row))
