"""Reader of link reports, batches and agent windows, with a bounded memory of them.

Streams are read from the last entry seen, so that a refresh costs only the new entries. Everything is bounded: batches
of a query, windows of a node, and bytes in all. What belongs to an application or node that is gone is dropped. Any
method may raise a StoreError; what was read before stays, and is read anew before the next decision.

Any writer of Redis may have written the messages. A report that cannot be true (`implausibility`) is counted as
rejected and passed over, as if its link were silent.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from itertools import accumulate, islice
from typing import Any, NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from rechannel.conf.settings import Settings
from rechannel.daemon.model.application_messages import ApplicationMessages, batches_of, max_window_age
from rechannel.daemon.model.newest_load import NewestLoad, measure_newest_load
from rechannel.daemon.model.task_columns import MAX_PARTITIONS, ColumnarTasks, columnar_tasks
from rechannel.wire import keys
from rechannel.wire.envelope import Envelope, bodies_of, encode
from rechannel.wire.keys import KeyNameError
from rechannel.wire.measurements import AgentWindow, BatchReport, Body, StageRun
from rechannel.wire.messages import LinkReport
from rechannel.wire.redis.store import Store
from rechannel.wire.redis.streams import read_all_entries, read_new_entries

_SPARE = 3  # times the entries that one decision needs are stored, to join map outputs with their batches
_MIN_BATCHES = 64  # kept of each query
_MAX_TASKS = 25_600  # tasks of a query's batches, beyond the newest 64; beyond: the oldest batches are dropped
_MIN_WINDOWS = 12  # kept of each node
_MAX_SIZES = 500_000  # sizes in a node's windows, beyond the newest 12; beyond: the oldest windows are dropped
_MESSAGE_BYTES, _PART_BYTES, _SIZE_BYTES = 1000, 400, 2  # memory of a message, of a stage or map output, of a size
# Bytes of all batches; beyond: the oldest are dropped that no decision needs.
_MAX_BATCH_BYTES = 64 * 2**20
_UNCHECKED_BYTES = 4 * 2**20  # bytes of new batches between two checks: each looks at all queries
# Bytes of the batches that a decision needs, three of 420,000 tasks; beyond: the oldest are dropped; decisions wait.
_MAX_NEEDED_BYTES = 176 * 2**20
_MAX_WINDOW_BYTES = 72 * 2**20  # bytes of all windows; beyond: the oldest are dropped
_MAX_OUTPUT_BYTES = 48 * 2**20  # bytes of the map outputs in all windows; beyond: the oldest windows lose theirs
_MAX_PART_BYTES = 96 * 2**20  # bytes of batches of which parts are missing; beyond: the oldest are dropped
# The newest entries of a query or node stay while they take at most this many times an equal share of the bound.
_PROTECTED_SHARES = 6
_MAX_REPORT_BYTES = 32 * 2**20  # bytes of all reports, as messages; beyond: further applications are not decided on
MAX_EXECUTORS = 10_000  # executors of an application; beyond: its report is rejected
MAX_CORES = 1024  # cores of an executor; beyond: the report is rejected


@dataclass
class _PartialBatch:
    """Batch that came in parts, as far as it has come."""

    batch: tuple[str, int, int]  # run, its number, number of parts
    parts: dict[int, BatchReport] = field(default_factory=dict)
    size: int = 0
    end: float = 0.0  # of the batch

    def add(self, part: BatchReport, size: int) -> BatchReport | None:
        """Add a part, and return the whole batch once all are there; a part counts once."""
        if part.part not in self.parts:
            self.parts[part.part], self.end = part, part.end
            self.size += size
        if len(self.parts) < part.parts:
            return None
        stages: dict[int, list[StageRun]] = {}
        for number in sorted(self.parts):
            for run in self.parts[number].stages:
                stages.setdefault(run.spark_stage, []).append(run)
        whole = [
            replace(runs[-1], tasks=ColumnarTasks.joined([columnar_tasks(run) for run in runs]))
            for runs in stages.values()
        ]
        return replace(part, stages=whole, part=0, parts=1)


@dataclass
class _Application:
    report: Envelope
    after: str = ""  # last entry read of its batches
    batches: dict[str, deque[tuple[str, BatchReport, int]]] = field(default_factory=dict)  # query -> run, batch, size
    partial: dict[str, _PartialBatch] = field(default_factory=dict)  # query -> its newest batch, while parts miss
    runs: dict[str, str] | None = None  # query -> its run, by the last report
    queries_since: float = 0.0  # time since which these runs are active
    started: set[str] = field(default_factory=set)  # queries of which no batch is there yet
    oversized: set[str] = field(default_factory=set)  # queries that lost batches which a decision needs

    def note_runs(self, runs: dict[str, str]) -> None:
        """Note the active runs, and when they changed: for a new run, with its first batch."""
        if self.runs is not None and self.runs != runs:
            self.queries_since = self.report.time
            self.started |= {query for query, run in runs.items() if self.runs.get(query) != run}
        self.runs = runs
        self.started &= runs.keys()
        for query in self.started & self.batches.keys():
            own = [batch.start for run, batch, _ in self.batches[query] if run == runs.get(query)]
            if own:
                self.queries_since = max(self.queries_since, min(own[0], self.report.time))
                self.started.discard(query)


class _StoredWindow(NamedTuple):
    window: AgentWindow
    sizes: int  # in its map outputs
    outputs: int  # bytes of its map outputs
    size: int  # bytes

    @classmethod
    def of(cls, window: AgentWindow) -> _StoredWindow:
        sizes = sum(output.partitions for output in window.map_outputs)
        outputs = _PART_BYTES * len(window.map_outputs) + _SIZE_BYTES * sizes
        samples = sum(len(usage.steps) + 1 for usage in window.executors)
        return cls(window, sizes, outputs, _MESSAGE_BYTES + _PART_BYTES * samples + outputs)


@dataclass
class _Node:
    after: str = ""
    read_at: float = -math.inf  # time of the last reading that brought something
    windows: deque[_StoredWindow] = field(default_factory=deque)


class Collector:
    """Reads the messages of links and agents; ``incomplete`` counts batches with lost parts."""

    def __init__(self, store: Store, settings: Settings, clock: Callable[[], float]) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        self.incomplete = 0
        self._applications: dict[str, _Application] = {}
        self._nodes: dict[str, _Node] = {}
        self._new_bytes = 0  # of batches, since their bound was last checked

    def reload(self, settings: Settings) -> None:
        """Use other settings from now on."""
        self._settings = settings

    @property
    def _need(self) -> int:
        return self._settings.reschedule.batches

    @property
    def reports(self) -> dict[str, LinkReport]:
        """Last read report of every application that has a fresh one, by application id."""
        now = self._clock()
        return {
            name: application.report.body
            for name, application in sorted(self._applications.items())
            if application.report.expires > now and isinstance(application.report.body, LinkReport)
        }

    @property
    def agents(self) -> int:
        """Number of agents that windows were read of."""
        return sum(bool(node.windows) for node in self._nodes.values())

    def refresh(self) -> dict[str, LinkReport]:
        """Read the report of every application and return the fresh ones."""
        now = self._clock()
        fresh: dict[str, Envelope] = {}
        room = _MAX_REPORT_BYTES
        for name in self._store.applications(now - keys.REPORT.ttl):
            try:
                envelope = self._store.get(keys.REPORT, name)
            except KeyNameError:
                continue  # a name on the list that can have no key
            # A report under another application's key is a copy, and not used.
            if envelope is None or not isinstance(envelope.body, LinkReport) or envelope.application != name:
                continue
            room -= len(encode(envelope))
            if room < 0 or implausibility(envelope.body):
                self._store.rejected += 1
                continue
            fresh[name] = envelope
        for name in set(self._applications) - set(fresh):
            del self._applications[name]
        for name, envelope in fresh.items():
            self._applications.setdefault(name, _Application(envelope)).report = envelope
        self._drop_unused_nodes()
        return self.reports

    def gather(self, application: str) -> ApplicationMessages | None:
        """Read the new messages of an application and its nodes; None without a fresh report."""
        report = self.reports.get(application)
        if report is None:
            return None
        state = self._applications[application]
        runs = {query.query: query.run for query in report.queries}
        self._read_batches(application, state, len(runs))
        agents = sorted({name for info in report.executors for name in info.agent_names})
        self._read_windows(agents)
        # A query that began after the report has batches already.
        reported = state.report.time
        ends = {query: entries[-1][1].end for query, entries in state.batches.items() if entries}
        ends |= {query: batch.end for query, batch in state.partial.items()}
        present = {query for query, end in ends.items() if query in runs or end > reported}
        state.batches = {query: batches for query, batches in state.batches.items() if query in present}
        state.partial = {query: batch for query, batch in state.partial.items() if query in present}
        state.note_runs(runs)
        self._limit_memory()
        state.oversized &= {query for query in present if len(state.batches.get(query, ())) < self._need}
        batches = tuple(
            batch
            for query, entries in state.batches.items()
            for run, batch, _ in entries
            if query in runs and run in ("", runs[query])
        )
        windows = {name: tuple(it.window for it in self._nodes[name].windows) for name in agents}
        oversized = frozenset(state.oversized)
        return ApplicationMessages(application, report, reported, batches, windows, state.queries_since, oversized)

    def read_newest_load(self, application: str, usable: Container[str]) -> NewestLoad | None:
        """Read the new batches of an application; return the load of the newest.

        None without a fresh report. ``usable``: executors that may hold partitions.
        """
        report = self.reports.get(application)
        if report is None:
            return None
        state, runs = self._applications[application], {query.query: query.run for query in report.queries}
        self._read_batches(application, state, len(runs))
        if self._new_bytes > _UNCHECKED_BYTES:
            self._limit_batches()
        last = max(_MIN_BATCHES, self._need * _SPARE)
        batches = {
            query: batches_of([it for run, it, _ in newest if run in ("", runs[query])], query)
            for query, entries in state.batches.items()
            if query in runs and (newest := [*islice(reversed(entries), last)][::-1])
        }
        cores = {info.executor: max(1, info.cores) for info in report.executors if info.executor in usable}
        return measure_newest_load(report.queries, batches, cores, self._clock())

    def _read_batches(self, application: str, state: _Application, queries: int) -> None:
        """Read the new batches of an application."""
        min_batches = max(_MIN_BATCHES, self._need * _SPARE)
        for envelope in self._new_batches(application, state, min_batches * max(queries, 1)):
            body = envelope.body
            if not isinstance(body, BatchReport) or envelope.application != application:
                continue
            size = batch_bytes(body)
            self._new_bytes += size
            batch, size = self._join_parts(state, envelope.run, body, size)
            if batch is None:
                continue
            entries = state.batches.setdefault(body.query, deque(maxlen=keys.BATCHES.bound))
            # A link repeats a message whose answer was lost, though it may have arrived.
            for repeated in [item for item in entries if (item[0], item[1].batch) == (envelope.run, batch.batch)]:
                entries.remove(repeated)
            entries.append((envelope.run, batch, size))
            tasks = sum(entry.tasks for _, entry, _ in entries)
            while len(entries) > min_batches and tasks > _MAX_TASKS:
                tasks -= entries.popleft()[1].tasks

    def _new_batches(self, application: str, state: _Application, first: int) -> list[Envelope]:
        """Read the new entries of a stream of batches, at first the newest ``first`` of them."""
        begins = not state.after
        first = min(first, keys.BATCHES.bound)
        state.after, envelopes = read_new_entries(
            self._store, keys.BATCHES, application, state.after, first=first, convert=_compact
        )
        # A message is not a batch: where there are parts, the newest entries may be too few batches.
        if begins and any(isinstance(item.body, BatchReport) and item.body.parts > 1 for item in envelopes):
            state.after, envelopes = read_all_entries(self._store, keys.BATCHES, application, _compact)
        return envelopes

    def _join_parts(
        self, state: _Application, run: str, body: BatchReport, size: int
    ) -> tuple[BatchReport | None, int]:
        """Return the batch and its size, if it is complete with this message.

        A link sends one batch of a query after the other: parts that are missing when the next batch comes never come.
        """
        if body.parts == 1:
            return body, size
        if not 0 <= body.part < body.parts:
            self._store.rejected += 1
            return None, 0
        key = (run, body.batch, body.parts)
        partial = state.partial.get(body.query)
        if partial is None or partial.batch != key:
            self.incomplete += partial is not None
            partial = state.partial[body.query] = _PartialBatch(key)
        batch = partial.add(body, size)
        if batch is not None:
            del state.partial[body.query]
        return batch, partial.size

    def _read_windows(self, hosts: Iterable[str]) -> None:
        """Read the new windows of nodes, and drop the oldest beyond the bound while reading."""
        nodes = {host: self._nodes.setdefault(host, _Node(windows=deque(maxlen=keys.WINDOWS.bound))) for host in hosts}
        # A host name that can have no key has no agent: it counts as silent.
        after = {host: node.after for host, node in nodes.items() if keys.is_valid_name(host)}
        read, now = 0, self._clock()
        silent = {host for host in after if not 0 <= now - nodes[host].read_at <= max_window_age(self._settings)}
        for host, page in self._store.read_newest(keys.WINDOWS, after, silent, _compact):
            if page.messages:
                nodes[host].read_at = self._clock()  # thousands of nodes take seconds
            nodes[host].after = page.last
            read += self._add_windows(host, nodes[host], page.messages)
            if read > _MAX_WINDOW_BYTES:  # not only once all are read: thousands of nodes may have sent much each
                self._limit_windows()
                read = 0

    def _add_windows(self, host: str, node: _Node, envelopes: Iterable[Envelope]) -> int:
        """Add the windows of a node; return their bytes."""
        read, present = 0, {(it.window.start, it.window.end) for it in node.windows}
        for window in bodies_of(envelopes, AgentWindow):
            # An agent repeats a push that timed out, though it may have arrived.
            if window.node == host and (window.start, window.end) not in present:
                present.add((window.start, window.end))
                node.windows.append(_StoredWindow.of(window))
                read += node.windows[-1].size
        # A slow query's map outputs are in windows of minutes ago; windows with many are kept for a minute alone.
        total = sum(it.sizes for it in node.windows)
        while len(node.windows) > _MIN_WINDOWS and total > _MAX_SIZES:
            total -= node.windows.popleft().sizes
        return read

    def _limit_windows(self) -> None:
        """Drop map outputs, and then windows, beyond the bounds in bytes.

        An agent is not silent because its map outputs are too many.
        """
        nodes = [node.windows for node in self._nodes.values()]
        outputs = [deque((place, it.outputs) for place, it in enumerate(windows) if it.outputs) for windows in nodes]
        before = [len(entries) for entries in outputs]
        evict_oldest([(entries, 1) for entries in outputs], _MAX_OUTPUT_BYTES, _MAX_OUTPUT_BYTES)
        for windows, entries, number in zip(nodes, outputs, before, strict=True):
            if len(entries) < number:
                remaining = {place for place, _ in entries}
                for place, it in enumerate(windows):
                    if it.outputs and place not in remaining:
                        windows[place] = _StoredWindow.of(replace(it.window, map_outputs=[]))
        evict_oldest([(windows, 1) for windows in nodes], _MAX_WINDOW_BYTES, _MAX_WINDOW_BYTES)

    def _limit_batches(self) -> None:
        """Drop the oldest batches beyond their bound in bytes."""
        self._new_bytes = 0
        applications = self._applications.values()
        batches = [(state, query, it) for state in applications for query, it in state.batches.items()]
        before = [len(entries) for _, _, entries in batches]
        evict_oldest([(entries, self._need) for _, _, entries in batches], _MAX_BATCH_BYTES, _MAX_NEEDED_BYTES)
        for (state, query, entries), number in zip(batches, before, strict=True):
            if len(entries) < min(number, self._need):
                state.oversized.add(query)

    def _limit_memory(self) -> None:
        """Drop the oldest batches, windows and parts beyond the bounds in bytes.

        Batches and windows have separate bounds: otherwise the windows of a thousand nodes would crowd out the batches
        of a huge query.
        """
        self._limit_batches()
        self._limit_windows()
        applications = self._applications.values()
        partial = [
            (batch.size, state.partial, query) for state in applications for query, batch in state.partial.items()
        ]
        excess = sum(size for size, _, _ in partial) - _MAX_PART_BYTES
        for size, holder, query in sorted(partial, key=lambda item: -item[0]):
            if excess <= 0:
                break
            del holder[query]
            excess -= size
            self.incomplete += 1

    def _drop_unused_nodes(self) -> None:
        used = {name for report in self.reports.values() for info in report.executors for name in info.agent_names}
        for host in set(self._nodes) - used:
            del self._nodes[host]


def batch_bytes(batch: BatchReport) -> int:
    """Return the memory that a batch takes, about."""
    return _MESSAGE_BYTES + sum(_PART_BYTES + columnar_tasks(run).nbytes for run in batch.stages)


def _compact(envelope: Envelope) -> Envelope:
    """Return a message with columns and arrays in place of lists, a fifth of their bytes."""
    body: Body = envelope.body
    if isinstance(body, BatchReport):
        body = replace(body, stages=[replace(run, tasks=ColumnarTasks(run.tasks)) for run in body.stages])
    elif isinstance(body, AgentWindow):
        outputs = [output.with_packed_sizes() for output in body.map_outputs]
        body = replace(body, map_outputs=outputs, skipped={})  # these are not needed for decisions
    return replace(envelope, body=body, raw_bytes=UNSET)


def evict_oldest(holders: Sequence[tuple[deque[Any], int]], usual_bytes: int, max_bytes: int) -> None:
    """Drop the oldest entries of the largest holders, until all are within a bound in bytes.

    Entries that no decision needs go first. Then the newest of each holder stay while they take at most several times
    an equal share of the bound. ``holders``: entries, with their size as the last item, and the number of the newest
    that a decision needs. ``usual_bytes``: what all may hold; ``max_bytes``: what they may hold if the needed entries
    take more.
    """
    newest = [list(accumulate(item[-1] for item in islice(reversed(entries), need))) for entries, need in holders]
    bound = min(max(usual_bytes, sum(sizes[-1] for sizes in newest if sizes)), max_bytes)
    excess = sum(item[-1] for entries, _ in holders for item in entries) - bound
    # Bytes of each one's newest that stay: those that a decision needs, a few shares of the bound, nothing.
    for protected in (math.inf, _PROTECTED_SHARES * bound / max(1, len(holders)), 0):
        if excess <= 0:
            return
        heap = []  # minus the bytes that may go, number of the holder, entries that may go
        for number, ((entries, _), sizes) in enumerate(zip(holders, newest, strict=True)):
            count = len(entries) - sum(size <= protected for size in sizes)
            heap.append((-sum(item[-1] for item in islice(entries, count)), number, count))
        heapify(heap)
        while excess > 0 and heap[0][0] < 0:
            size, number, count = heap[0]
            dropped = holders[number][0].popleft()[-1]
            excess -= dropped
            heapreplace(heap, (size + dropped, number, count - 1))


def implausibility(report: LinkReport) -> str:
    """Return the part of a report that cannot be true, or exceeds a bound; "" if none does."""
    stages = [(query.query, stage) for query in report.queries for stage in query.stages]
    cores = max((info.cores for info in report.executors), default=0)
    partitions = sum(len(stage.placement) for _, stage in stages)
    if len(report.executors) > MAX_EXECUTORS:
        return f"{len(report.executors)} executors"
    if cores > MAX_CORES:
        return f"an executor of {cores} cores"
    if partitions > MAX_PARTITIONS:
        return f"{partitions} partitions"
    if len({(query, stage.stage) for query, stage in stages}) != len(stages):
        return "a stage that is there twice"
    for _, stage in stages:
        if stage.stage < 0 or stage.partitions != len(stage.placement):
            return f"stage {stage.stage} with {stage.partitions} partitions and {len(stage.placement)} places"
    return ""
