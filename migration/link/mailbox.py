"""Carries the link's mail to and from Redis on a thread of its own, so that a hung Redis delays nothing else.

Everything it holds is bounded: what cannot be sent for long is dropped, oldest first, and counted.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import msgspec
import structlog

from rechannel.conf.settings import RedisSettings
from rechannel.wire import keys
from rechannel.wire.envelope import Envelope, EnvelopeFactory, MessageError
from rechannel.wire.measurements import AgentEvidence, BatchReport, ClosedStore, StageRun
from rechannel.wire.messages import DesiredPlacement, LastPlacement, LinkReport, MoveTransition, StandingOrders
from rechannel.wire.redis.capacity import batch_budget
from rechannel.wire.redis.errors import StoreError, StoreTooLargeError
from rechannel.wire.redis.store import Store
from rechannel.wire.signing import Verifier

_LOG = structlog.get_logger("rechannel.link")
_PERIOD = 0.5  # seconds between two rounds
_SLOWEST = 5.0  # seconds between two tries while Redis is away
_KEPT_EVIDENCE = 10_000
_KEPT_LINES = 5_000  # of the journal, while Redis is away: some megabytes
_KEPT_PLACEMENTS = 1_000  # of queries, running or ended, while Redis is away
_KEPT_PARTITIONS = 1_000_000  # in all of those: some eight megabytes
_SEND_AT_ONCE = 100
_KEPT_TASKS = 100_000  # task rows in all batches that wait: some tens of megabytes in the user's driver
_LARGEST_BATCH = 420_000  # task rows: 200,000 partitions and as many other tasks; kept only while Redis takes them
_PART_TASKS = 4_000  # task rows in one message: half a megabyte
_PARTS_AT_ONCE = 10  # in one round trip
_TASKS_AT_ONCE = _PARTS_AT_ONCE * _PART_TASKS  # task rows in batches that are sent together
_SAY_AGAIN = 300.0  # seconds between two times that last placements are written, changed or not
_RECALL_PATIENCE = 0.5  # seconds for which a query's start waits for Redis
_LOOK_BACK = 300.0  # seconds: a store may be closed long before its move is known to be drained
_EVIDENCE_AT_ONCE = 64  # messages of one node
_DOUBTFUL = 256 * 2**10  # bytes of one answer: the next one may be too large to be read without a look at its size


@dataclass
class _Reading:
    """How far a node's evidence was read (``""``: not at all yet), and when it was awaited last."""

    awaited: float
    after: str = ""
    doubtful: bool = True


class Mailbox:
    """Outbound: reports and last placements (the newest alone), batches, journal lines.

    Inbound: desired placements, standing orders, closed stores.
    """

    def __init__(
        self,
        settings: RedisSettings,
        author: EnvelopeFactory,
        application: str,
        verifier: Verifier | None,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self.rejected = 0
        self.dropped = 0
        self._steady = steady
        self._settings = settings
        self._placements: dict[str, LastPlacement] = {}  # by query
        self._orders: Envelope | None = None
        self._orders_seen: tuple[int, int, str] = (-1, 0, "")
        self._kept: dict[str, LastPlacement] = {}  # of running queries: said again now and then, for Redis may forget
        self._say_again_at = steady() + _SAY_AGAIN
        self._refused_orders = "-"
        self._author = author
        self._application = application
        self._verifier = verifier
        self._store: Store | None = None
        self._lock = threading.Lock()
        self._report: LinkReport | None = None
        self._batches: deque[tuple[str, BatchReport]] = deque(maxlen=keys.BATCHES.bound)
        self._sizes: dict[str, int] = {}  # query -> task rows of its last batch
        self._journal: deque[MoveTransition] = deque(maxlen=_KEPT_LINES)
        self._desired: Envelope | None = None
        self._desired_seen: tuple[int, int, str] = (-1, 0, "")
        self._closed: deque[ClosedStore] = deque(maxlen=_KEPT_EVIDENCE)
        self._nodes: dict[str, _Reading] = {}  # those awaited, and those that were a little while ago
        self._awaited: frozenset[str] = frozenset()
        self._too_large: set[keys.KeyRule] = set()  # what that was said of
        self._away = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rechannel-courier", daemon=True)

    @property
    def refused(self) -> int:
        """Messages that could not be read or must not be obeyed."""
        return self.rejected + (self._store.rejected if self._store is not None else 0)

    def start(self) -> None:
        """Begin carrying."""
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """Send what is left if Redis answers, and end."""
        self._stop.set()
        self._thread.join(timeout)

    def post_report(self, report: LinkReport, nodes: Collection[str]) -> None:
        """Hand over the newest report, and the nodes whose agents' evidence is awaited: usually none.

        A node's evidence is read from some minutes back, or from where it was left if it was awaited a while ago.
        """
        now = self._steady()
        with self._lock:
            self._report = report
            running = {query.query for query in report.queries}
            self._kept = {query: kept for query, kept in self._kept.items() if query in running}
            self._sizes = {query: rows for query, rows in self._sizes.items() if query in running}
            self._awaited = frozenset(node for node in nodes if keys.is_valid_name(node))
            for node in self._awaited:
                self._nodes.setdefault(node, _Reading(now)).awaited = now
            # What was read longer ago than is looked back need not be remembered.
            self._nodes = {node: item for node, item in self._nodes.items() if now - item.awaited <= _LOOK_BACK}

    def post_placement(self, placement: LastPlacement) -> None:
        """Hand over where a query's partitions ran last."""
        with self._lock:
            self._placements[placement.query] = self._kept[placement.query] = placement
            partitions = sum(map(_partitions, self._placements.values()))
            while len(self._placements) > _KEPT_PLACEMENTS or (
                len(self._placements) > 1 and partitions > _KEPT_PARTITIONS
            ):
                partitions -= _partitions(self._placements.pop(next(iter(self._placements))))
                self.dropped += 1

    def post_batch(self, batch: BatchReport, run: str) -> None:
        """Hand over a finished batch of a run; what is too old or too large to keep is dropped and counted."""
        with self._lock:
            if batch.tasks > _LARGEST_BATCH:
                self.dropped += 1
                return
            self._sizes[batch.query] = batch.tasks
            self.dropped += len(self._batches) == self._batches.maxlen
            self._batches.append((run, batch))
            self._drop_batches(least=1)

    def _drop_batches(self, least: int) -> None:
        """Drop the oldest batches while more task rows wait than are kept, but for so many batches."""
        rows = sum(batch.tasks for _, batch in self._batches)
        while len(self._batches) > least and rows > _KEPT_TASKS:
            rows -= self._batches.popleft()[1].tasks
            self.dropped += 1

    def post_journal(self, lines: list[MoveTransition]) -> None:
        """Hand over journal lines."""
        with self._lock:
            self.dropped += max(0, len(self._journal) + len(lines) - _KEPT_LINES)
            self._journal.extend(lines)

    def take_desired(self) -> Envelope | None:
        """Return the newest desired placement not yet taken; its signature was checked."""
        with self._lock:
            desired, self._desired = self._desired, None
            return desired

    def take_orders(self) -> Envelope | None:
        """Return the newest standing orders not yet taken; their signature was checked, and none is older."""
        with self._lock:
            orders, self._orders = self._orders, None
            return orders

    def recall(self, query: str) -> LastPlacement | None:
        """Ask Redis where a query's partitions ran last, on the caller's thread and with little patience."""
        try:
            with self._impatient() as store:
                envelope = store.get(keys.PLACEMENT, query)
        except StoreError as error:
            _LOG.warning("a query's last placement could not be asked for", query=query, error=str(error))
            return None
        body = envelope.body if envelope is not None else None
        return body if isinstance(body, LastPlacement) and body.query == query else None

    def fetch_orders(self) -> None:
        """Read the standing orders on the caller's thread, with little patience: before anything is begun."""
        try:
            with self._impatient() as store:
                self._read_orders(store)
        except StoreError as error:
            _LOG.warning("the standing orders are not known yet", error=str(error))

    @contextmanager
    def _impatient(self) -> Iterator[Store]:
        patience = min(_RECALL_PATIENCE, self._settings.timeout)
        store = Store(replace(self._settings, timeout=patience), self._author.cluster)
        try:
            yield store
        finally:
            store.close()

    def take_closed(self) -> list[ClosedStore]:
        """Return the state stores that executors said they closed, since the last call."""
        with self._lock:
            closed = list(self._closed)
            self._closed.clear()
            return closed

    def _run(self) -> None:
        pause = _PERIOD
        while True:
            stopping = self._stop.wait(pause)
            try:
                self._round()
                if self._away:
                    _LOG.info("redis is back")
                self._away, pause = "", _PERIOD
            except StoreError as error:
                if str(error) != self._away:
                    self._away = str(error)
                    _LOG.warning("redis is away; queries go on, reports are kept", error=str(error))
                pause = min(pause * 2, _SLOWEST)
                with self._lock:
                    self._drop_batches(least=0)  # a huge one waits for nobody
            except Exception as error:  # noqa: BLE001  one odd message must not silence the link for good
                self.rejected += 1
                pause = _SLOWEST
                _LOG.warning("a round with redis failed", error=str(error), **traced())
            if stopping:
                break
        if self._store is not None:
            try:
                self._store.close()
            except StoreError:
                return

    def _round(self) -> None:
        if self._store is None:
            self._store = Store(self._settings, self._author.cluster)
        store, author, application = self._store, self._author, self._application
        with self._lock:
            report = self._report
        if report is not None:
            self._put(
                store, keys.REPORT, application, author.envelope(report, ttl=keys.REPORT.ttl, application=application)
            )
            store.register_application(application, author.clock())
            with self._lock:
                if self._report is report:
                    self._report = None
        self._send_journal(store)
        self._send_batches(store)
        self._send_placements(store)
        self._read_desired(store)
        self._read_orders(store)
        self._read_evidence(store)

    def _put(self, store: Store, rule: keys.KeyRule, name: str, envelope: Envelope) -> None:
        try:
            store.put(rule, name, envelope)
        except StoreTooLargeError as error:
            self.dropped += 1
            if rule not in self._too_large:
                self._too_large.add(rule)
                _LOG.warning("a message is too large for redis", error=str(error))

    def _send_journal(self, store: Store) -> None:
        rule, application = keys.JOURNAL, self._application
        while True:
            with self._lock:
                lines = list(islice(self._journal, _SEND_AT_ONCE))
            if not lines:
                return
            posted = [self._author.envelope(line, ttl=rule.ttl, application=application) for line in lines]
            store.append(rule, application, *posted)
            self._sent(self._journal, lines)

    def _send_batches(self, store: Store) -> None:
        """Send the batches that wait, few tasks at a time; one that is broken off is sent again from its start."""
        rule, application = keys.BATCHES, self._application
        while True:
            with self._lock:
                batches = list(_first(self._batches))
                room = batch_budget(sum(self._sizes.values()))
            if not batches:
                return
            parts = [(run, part) for run, batch in batches for part in parts_of(batch)]
            for start in range(0, len(parts), _PARTS_AT_ONCE):
                some = parts[start : start + _PARTS_AT_ONCE]
                posted = [
                    self._author.envelope(part, ttl=rule.ttl, application=application, run=run) for run, part in some
                ]
                store.append(rule, application, *posted, size=room)
            self._sent(self._batches, batches)

    def _sent(self, queue: deque[Any], items: list[Any]) -> None:
        """Take what was sent off its queue, as far as it was not dropped meanwhile."""
        with self._lock:
            for item in items:
                if queue and queue[0] is item:
                    queue.popleft()

    def _read_desired(self, store: Store) -> None:
        envelope = store.get(keys.DESIRED, self._application)
        if envelope is None or (envelope.epoch, envelope.sequence, envelope.signature) == self._desired_seen:
            return
        self._desired_seen = (envelope.epoch, envelope.sequence, envelope.signature)
        try:
            self._check(envelope)
            if envelope.application != self._application or not isinstance(envelope.body, DesiredPlacement):
                raise MessageError(f"message is for application {envelope.application!r}")
        except MessageError as error:
            self.rejected += 1
            _LOG.warning("desired placement refused", error=str(error))
            return
        with self._lock:
            self._desired = envelope

    def _read_orders(self, store: Store) -> None:
        envelope = store.get(keys.ORDERS)
        if envelope is None or (envelope.epoch, envelope.sequence, envelope.signature) == self._orders_seen:
            return
        # Every leader has an epoch of its own, and its sequence rises; clocks may be set back.
        newer = (envelope.epoch, envelope.sequence) > self._orders_seen[:2]
        try:
            self._check(envelope)
            if not isinstance(envelope.body, StandingOrders) or not newer:
                raise MessageError("standing orders are older than those obeyed")
        except MessageError as error:
            if envelope.signature != self._refused_orders:
                self._refused_orders = envelope.signature
                self.rejected += 1
                _LOG.warning("standing orders refused", error=str(error))
            return
        self._orders_seen = (envelope.epoch, envelope.sequence, envelope.signature)
        with self._lock:
            self._orders = envelope

    def _check(self, envelope: Envelope) -> None:
        if self._verifier is None:
            raise MessageError("no signing.public_key_file is set: this link obeys nobody")
        self._verifier.check(envelope)

    def _send_placements(self, store: Store) -> None:
        with self._lock:
            if time.monotonic() >= self._say_again_at:
                self._say_again_at = self._steady() + _SAY_AGAIN
                self._placements = self._kept | self._placements
            posted = dict(self._placements)
        for query, placement in posted.items():
            self._put(store, keys.PLACEMENT, query, self._author.envelope(placement, ttl=keys.PLACEMENT.ttl))
            with self._lock:
                if self._placements.get(query) is placement:
                    del self._placements[query]

    def _read_evidence(self, store: Store) -> None:
        with self._lock:
            readings = {node: self._nodes[node] for node in self._awaited}
        if not readings:
            return
        if any(not reading.after for reading in readings.values()):
            start = store.id_since(_LOOK_BACK)
            for reading in readings.values():
                reading.after = reading.after or start
        after = {node: reading.after for node, reading in readings.items()}
        doubtful = {node for node, reading in readings.items() if reading.doubtful}
        pages = store.read_each(keys.EVIDENCE, after, _EVIDENCE_AT_ONCE, doubtful)
        with self._lock:
            for node, page in pages.items():
                readings[node].after = page.last
                readings[node].doubtful = page.size > _DOUBTFUL
                for envelope in page.messages:
                    if isinstance(envelope.body, AgentEvidence) and envelope.body.node == node:
                        self._closed += [item for item in envelope.body.closed if item.application == self._application]


def parts_of(batch: BatchReport) -> list[BatchReport]:
    """Part a batch of many tasks into messages of few, in order; one of few is its only part."""
    if batch.tasks <= _PART_TASKS:
        return [batch]
    parts: list[list[StageRun]] = [[]]
    room = _PART_TASKS
    for stage in batch.stages:
        start = 0
        while start == 0 or start < len(stage.tasks):
            if room == 0:
                parts.append([])
                room = _PART_TASKS
            tasks = stage.tasks[start : start + room]
            parts[-1].append(msgspec.structs.replace(stage, tasks=tasks))
            room -= len(tasks)
            start += max(1, len(tasks))
    return [
        msgspec.structs.replace(batch, stages=stages, part=number, parts=len(parts))
        for number, stages in enumerate(parts)
    ]


def _partitions(placement: LastPlacement) -> int:
    return sum(map(len, placement.operators.values()))


def _first(queue: deque[tuple[str, BatchReport]]) -> Iterator[tuple[str, BatchReport]]:
    """Yield the oldest batches that wait: one at least, and no more than are sent at once."""
    rows = 0
    for item in islice(queue, _SEND_AT_ONCE):
        if rows and rows + item[1].tasks > _TASKS_AT_ONCE:
            return
        rows += item[1].tasks
        yield item


def traced(wanted: bool = True) -> dict[str, str]:
    """Return the traceback of the exception being handled, for a line of the log: as text, if it is ``wanted``.

    How a driver logs is the user's own, and structlog's default shows the values of variables with an exception.
    """
    return {"stack": traceback.format_exc().rstrip()} if wanted else {}
