"""What is kept of Redis between two decisions: fresh link reports, the last batches, the last agent windows.

Streams are read on from the last entry seen, so a refresh costs what is new. Everything is bounded: so many batches a
query, so many windows a node, so many bytes in all, and what belongs to an application or node that is gone is dropped.
Any method may raise a StoreError; what was read before stays, and whoever decides reads anew first.

Whoever may write to Redis may have written any of it. A report that cannot be true (`unsound`) is counted as rejected
and passed over, as if its link were silent.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from itertools import accumulate, islice
from sys import intern
from typing import Any

from msgspec import UNSET
from msgspec.structs import force_setattr, replace

from rechannel.conf.settings import Settings
from rechannel.wire import keys
from rechannel.wire.envelope import Envelope, encode
from rechannel.wire.keys import KeyNameError, KeyRule
from rechannel.wire.measurements import AgentWindow, BatchReport, StageRun
from rechannel.wire.messages import LinkReport
from rechannel.wire.redis.store import READ_AT_ONCE, Store

_PAGE = 200
_SPARE = 3  # times the entries one decision needs are kept, for joining streams with their batches
_BATCHES_KEPT = 64  # of each query, at least
_TASKS_KEPT = 25_600  # of each query, in all batches beyond those
_WINDOW_KEPT = 12  # of each node, at least
_SIZES_KEPT = 500_000  # of each node, numbers in the stream rows of all windows beyond those
_BATCH_BYTES_KEPT = 64 * 2**20  # of all batches, as messages; some five times that in memory
_NEEDED_BYTES_KEPT = 176 * 2**20  # of those a decision needs, if they are more: three of 420,000 tasks
_WINDOW_BYTES_KEPT = 72 * 2**20  # of all windows
_PART_BYTES_KEPT = 96 * 2**20  # of all batches of which parts are missing
_SHARES = 6  # times its share of those is what a query's or node's newest are spared up to
_REPORT_BYTES = 32 * 2**20  # of all reports, as messages
MOST_EXECUTORS = 10_000  # of an application
MOST_CORES = 1024  # of an executor
MOST_PARTITIONS = 200_000  # of an application


@dataclass(frozen=True)
class ApplicationMessages:
    """The messages about one application at one moment; ``reported`` is the time of the link's report."""

    application: str
    report: LinkReport
    reported: float
    batches: tuple[BatchReport, ...]
    windows: dict[str, tuple[AgentWindow, ...]]


@dataclass
class _Parts:
    """A batch that came in parts, as far as it has come."""

    batch: tuple[str, int, int]  # run, its number, how many parts there are
    found: dict[int, BatchReport] = field(default_factory=dict)
    size: int = 0

    def add(self, part: BatchReport, size: int) -> BatchReport | None:
        """Add a part; returns the whole batch once all are there. One that came twice counts once."""
        if part.part not in self.found:
            self.found[part.part] = part
            self.size += size
        if len(self.found) < part.parts:
            return None
        stages: dict[int, StageRun] = {}
        for number in sorted(self.found):
            for run in self.found[number].stages:
                earlier = stages.get(run.spark_stage)
                stages[run.spark_stage] = replace(run, tasks=earlier.tasks + run.tasks) if earlier else run
        return replace(part, stages=list(stages.values()), part=0, parts=1)


@dataclass
class _Application:
    report: Envelope
    after: str = ""
    batches: dict[str, deque[tuple[str, BatchReport, int]]] = field(default_factory=dict)  # query -> run, batch, size
    parts: dict[str, _Parts] = field(default_factory=dict)  # query -> its newest batch, while parts of it are missing


@dataclass
class _Node:
    after: str = ""
    windows: deque[tuple[AgentWindow, int]] = field(default_factory=deque)  # with its size


class Collector:
    """Reads the messages of links and agents."""

    def __init__(self, store: Store, settings: Settings, clock: Callable[[], float]) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        self.incomplete = 0  # batches of which parts never came
        self._applications: dict[str, _Application] = {}
        self._nodes: dict[str, _Node] = {}

    def take(self, settings: Settings) -> None:
        """Go on with other settings."""
        self._settings = settings

    @property
    def reports(self) -> dict[str, LinkReport]:
        """The last read report of every application that has a fresh one, by application id."""
        now = self._clock()
        found = {}
        for name, known in sorted(self._applications.items()):
            if known.report.expires > now and isinstance(known.report.body, LinkReport):
                found[name] = known.report.body
        return found

    def refresh(self) -> dict[str, LinkReport]:
        """Read the report of every application and return the fresh ones."""
        now = self._clock()
        fresh: dict[str, Envelope] = {}
        room = _REPORT_BYTES
        for name in self._store.applications(now - keys.REPORT.ttl):
            try:
                envelope = self._store.get(keys.REPORT, name)
            except KeyNameError:
                continue  # somebody put a name on the list that can have no key
            # A report that was copied under another application's key is nobody's.
            if envelope is None or not isinstance(envelope.body, LinkReport) or envelope.application != name:
                continue
            room -= len(encode(envelope))
            if room < 0 or unsound(envelope.body):
                self._store.rejected += 1
                continue
            fresh[name] = envelope
        for name in set(self._applications) - set(fresh):
            del self._applications[name]
        for name, envelope in fresh.items():
            self._applications.setdefault(name, _Application(envelope)).report = envelope
        self._forget_nodes()
        return self.reports

    def gather(self, application: str) -> ApplicationMessages | None:
        """Read what is new about an application and its nodes; None when it has no fresh report."""
        report = self.reports.get(application)
        if report is None:
            return None
        known = self._applications[application]
        self._read_batches(application, known)
        hosts = sorted({info.host for info in report.executors})
        for host in hosts:
            self._read_windows(host)
        runs = {query.query: query.run for query in report.queries}
        known.batches = {query: kept for query, kept in known.batches.items() if query in runs}
        known.parts = {query: parts for query, parts in known.parts.items() if query in runs}
        self._shed()
        batches = tuple(
            batch for query, kept in known.batches.items() for run, batch, _ in kept if run in ("", runs[query])
        )
        windows = {
            host: tuple(window for window, _ in self._nodes[host].windows) for host in hosts if host in self._nodes
        }
        return ApplicationMessages(application, report, known.report.time, batches, windows)

    def _read_batches(self, application: str, known: _Application) -> None:
        kept_batches = max(_BATCHES_KEPT, self._settings.reschedule.batches * _SPARE)
        own = (
            {query.query for query in known.report.body.queries} if isinstance(known.report.body, LinkReport) else set()
        )
        queries = len(own)
        first = min(kept_batches * max(queries, 1), keys.BATCHES.bound)
        begins = not known.after
        known.after, envelopes = read_on(self._store, keys.BATCHES, application, known.after, first=first)
        if begins and any(isinstance(item.body, BatchReport) and item.body.parts > 1 for item in envelopes):
            known.after, envelopes = read_whole(self._store, keys.BATCHES, application)  # a message is not a batch
        for envelope in envelopes:
            body = envelope.body
            if not isinstance(body, BatchReport) or envelope.application != application or body.query not in own:
                continue
            for task in (task for run in body.stages for task in run.tasks):
                force_setattr(task, "executor", intern(task.executor))  # one string for all tasks, not one for each
            whole, size = self._whole(known, envelope.run, body, len(encode(envelope)))
            if whole is None:
                continue
            kept = known.batches.setdefault(body.query, deque(maxlen=keys.BATCHES.bound))
            kept.append((envelope.run, whole, size))
            tasks = sum(batch.tasks for _, batch, _ in kept)
            while len(kept) > kept_batches and tasks > _TASKS_KEPT:
                tasks -= kept.popleft()[1].tasks

    def _whole(self, known: _Application, run: str, body: BatchReport, size: int) -> tuple[BatchReport | None, int]:
        """Return the batch and its size, if this message is all of it or the last part that was missing.

        A link sends one batch of a query after the other: what is missing when the next one comes does not come.
        """
        if body.parts == 1:
            return body, size
        if not 0 <= body.part < body.parts:
            self._store.rejected += 1
            return None, 0
        batch = (run, body.batch, body.parts)
        parts = known.parts.get(body.query)
        if parts is None or parts.batch != batch:
            self.incomplete += parts is not None
            parts = known.parts[body.query] = _Parts(batch)
        whole = parts.add(body, size)
        if whole is not None:
            del known.parts[body.query]
        return whole, parts.size

    def _read_windows(self, host: str) -> None:
        node = self._nodes.setdefault(host, _Node(windows=deque(maxlen=keys.WINDOWS.bound)))
        try:
            node.after, envelopes = read_on(self._store, keys.WINDOWS, host, node.after, first=keys.WINDOWS.bound)
        except KeyNameError:
            return  # a host name that can have no key has no agent: it counts as silent
        for envelope in envelopes:
            if isinstance(envelope.body, AgentWindow) and envelope.body.node == host:
                window = replace(envelope.body, skipped={})  # nobody here asks what was not measured
                node.windows.append((window, len(encode(replace(envelope, body=window, raw_bytes=UNSET)))))
        # A slow query's streams are in windows of minutes ago; many rows are kept for a minute alone.
        least = max(self._settings.reschedule.windows, _WINDOW_KEPT)
        numbers = [sum(len(row.sizes) for row in window.streams) for window, _ in node.windows]
        total = sum(numbers)
        while len(node.windows) > least and total > _SIZES_KEPT:
            node.windows.popleft()
            total -= numbers.pop(0)

    def _shed(self) -> None:
        """Drop the oldest of whatever holds most, until all of it together is no more than is kept.

        Batches and windows are kept apart: else the windows of a thousand nodes would crowd out a huge query's batches.
        """
        applications = self._applications.values()
        need = self._settings.reschedule.batches
        batches = [(kept, need) for known in applications for kept in known.batches.values()]
        _shed(batches, _BATCH_BYTES_KEPT, _NEEDED_BYTES_KEPT)
        _shed([(node.windows, 1) for node in self._nodes.values()], _WINDOW_BYTES_KEPT, _WINDOW_BYTES_KEPT)
        waiting = [(parts.size, known.parts, query) for known in applications for query, parts in known.parts.items()]
        excess = sum(size for size, _, _ in waiting) - _PART_BYTES_KEPT
        for size, where, query in sorted(waiting, key=lambda item: -item[0]):
            if excess <= 0:
                break
            del where[query]
            excess -= size
            self.incomplete += 1

    def _forget_nodes(self) -> None:
        wanted = {info.host for report in self.reports.values() for info in report.executors}
        for host in set(self._nodes) - wanted:
            del self._nodes[host]


def _shed(holders: Sequence[tuple[deque[Any], int]], usual: int, most: int) -> None:
    """Drop the oldest entries of whoever holds most, until all together hold no more bytes than they may.

    ``holders``: entries, whose size comes last, and how many of the newest a decision needs. They may hold ``usual``
    bytes, and up to ``most`` if what is needed takes more. What nobody needs goes first; then each one's newest stay as
    long as they are not many times its share.
    """
    newest = [list(accumulate(item[-1] for item in islice(reversed(kept), need))) for kept, need in holders]
    bound = min(max(usual, sum(sizes[-1] for sizes in newest if sizes)), most)
    excess = sum(item[-1] for kept, _ in holders for item in kept) - bound
    for spared in (math.inf, _SHARES * bound / max(1, len(holders)), 0):  # bytes of each one's newest that stay
        if excess <= 0:
            return
        heap = []  # minus the bytes that may go, whose they are, and in how many entries
        for number, ((kept, _), sizes) in enumerate(zip(holders, newest, strict=True)):
            count = len(kept) - sum(size <= spared for size in sizes)
            heap.append((-sum(item[-1] for item in islice(kept, count)), number, count))
        heapify(heap)
        while excess > 0 and heap[0][0] < 0:
            size, number, count = heap[0]
            dropped = holders[number][0].popleft()[-1]
            excess -= dropped
            heapreplace(heap, (size + dropped, number, count - 1))


def read_on(store: Store, rule: KeyRule, name: str, after: str, *, first: int) -> tuple[str, list[Envelope]]:
    """Read a stream on from ``after``, or its newest ``first`` entries when ``after`` is empty.

    A stream that ends before ``after`` was emptied or replaced: it is read from its start.
    """
    if not after:
        newest = store.last_id(rule, name)
        if newest == "0":
            return "", []
        return newest, store.last(rule, name, first)
    found: list[Envelope] = []
    for _ in range(2 + 2 * rule.bound // _PAGE):
        newest, envelopes = store.read(rule, name, after, _PAGE)
        found += envelopes
        if newest == after or len(envelopes) < _PAGE:
            after = newest
            break  # the rest, if large entries or unreadable ones cut the page short, is read next time
        after = newest
    else:  # more than such a stream may hold: nobody trims it, and its end is what counts
        return read_on(store, rule, name, "", first=first)
    if not found and entry_number(store.last_id(rule, name)) < entry_number(after):
        return read_on(store, rule, name, "", first=first)
    return after, found


def read_whole(store: Store, rule: KeyRule, name: str) -> tuple[str, list[Envelope]]:
    """Read a stream from its start, as far as it is no longer than it may be; the rest is read on."""
    after, found = "0", []
    for _ in range(1 + rule.bound // _PAGE + rule.size // READ_AT_ONCE):
        newest, envelopes = store.read(rule, name, after, _PAGE)
        if newest == after:
            break
        found += envelopes
        after = newest
    return after, found


def unsound(report: LinkReport) -> str:
    """Say what about a report cannot be true, or is more than is ever decided on; "" where it may be."""
    executors = len(report.executors)
    if executors > MOST_EXECUTORS:
        return f"{executors} executors"
    cores = max((info.cores for info in report.executors), default=0)
    if cores > MOST_CORES:
        return f"an executor of {cores} cores"
    partitions = sum(len(stage.placement) for query in report.queries for stage in query.stages)
    if partitions > MOST_PARTITIONS:
        return f"{partitions} partitions"
    units = [(query.query, stage.stage) for query in report.queries for stage in query.stages]
    if len(set(units)) != len(units):
        return "a stage that is there twice"
    for query in report.queries:
        for stage in query.stages:
            if stage.stage < 0 or stage.partitions != len(stage.placement):
                return f"stage {stage.stage} with {stage.partitions} partitions and {len(stage.placement)} places"
    return ""


def entry_number(entry: str) -> tuple[int, int]:
    """Read a stream entry's id as numbers that compare as the entries follow."""
    milliseconds, _, number = entry.partition("-")
    return int(milliseconds), int(number or 0)
