"""Mailbox: the link's messages to and from Redis, on a thread of its own.

A hung Redis delays nothing else. Everything it holds is bounded: messages that cannot be sent for long are dropped,
oldest first, and counted. A query's newest batch is dropped only after all older batches.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Collection
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice

import msgspec
import structlog

from rechannel.conf.settings import RedisSettings
from rechannel.wire import keys
from rechannel.wire.envelope import Envelope, EnvelopeFactory, MessageError, body_of
from rechannel.wire.measurements import AgentEvidence, BatchReport, ClosedStore, StageRun
from rechannel.wire.messages import DesiredPlacement, LastPlacement, LinkReport, MoveTransition, StandingOrders
from rechannel.wire.redis.capacity import batch_budget
from rechannel.wire.redis.errors import StoreError, StoreTooLargeError
from rechannel.wire.redis.store import Store
from rechannel.wire.signing import Verifier

_LOG = structlog.get_logger("rechannel.link")
_PERIOD = 0.5  # seconds between two exchanges
_SLOWEST = 5.0  # seconds between two attempts while Redis is away
_MAX_EVIDENCE = 10_000  # closed copies reported by agents, until a move asks; beyond: the oldest are forgotten
_MAX_LINES = 5_000  # lines of the journal while Redis is away; beyond: the oldest are lost, and counted
_MAX_PLACEMENTS = 1_000  # last placements while Redis is away; beyond: the oldest are forgotten
_MAX_PARTITIONS = 1_000_000  # partitions in last placements while Redis is away; beyond: the oldest are forgotten
_SEND_AT_ONCE = 100
# Tasks in batches that wait for Redis, tens of megabytes; beyond: the oldest batches are lost, and counted.
_MAX_TASKS = 100_000
_MAX_NEWEST = 640_000  # tasks in the newest batches of all queries; beyond: the oldest batches are lost, and counted
_MAX_BATCH_TASKS = 420_000  # tasks of a batch; beyond: the batch is not reported, and counted
_PART_TASKS = 4_000  # task rows in one message: half a megabyte
_PARTS_AT_ONCE = 10  # in one round trip
_TASKS_AT_ONCE = _PARTS_AT_ONCE * _PART_TASKS  # task rows in batches that are sent together
_REWRITE_EVERY = 300.0  # seconds between two times that last placements are written, changed or not
_SHORT_TIMEOUT = 0.5  # seconds for which a query's start waits for Redis
_LOOK_BACK = 300.0  # seconds: a store may be closed long before its move is known to be drained
_EVIDENCE_AT_ONCE = 64  # messages of one node
_LARGE_ANSWER = 256 * 2**10  # bytes: the next one may be too large to be read before its size is checked

Version = tuple[int, int, str]  # epoch, sequence, signature


@dataclass(frozen=True)
class Closing:
    """A store that an executor closed, and when its agent read that, by the agent's clock."""

    store: ClosedStore
    at: float


@dataclass
class _EvidenceCursor:
    """Position up to which a node's evidence was read."""

    awaited_at: float
    after: str = ""  # id of the last message, "" for none
    check_size: bool = True  # the next answer may be too large to be read at once


class Mailbox:
    """Sends and receives the messages of one application.

    Outbound: reports and last placements (the newest alone), batches, journal lines. Inbound: desired placements,
    standing orders, closed stores. ``dropped``: messages that could not be sent. Without a ``verifier`` no order is
    accepted.
    """

    def __init__(
        self,
        settings: RedisSettings,
        factory: EnvelopeFactory,
        application: str,
        verifier: Verifier | None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.dropped = 0
        self._rejected = 0
        self._monotonic = monotonic
        self._settings = settings
        self._unsent_placements: dict[str, LastPlacement] = {}  # by query
        self._orders: Envelope | None = None
        self._orders_version: Version = (-1, 0, "")
        self._current_placements: dict[str, LastPlacement] = {}  # of running queries, to be written again
        self._rewrite_at = monotonic() + _REWRITE_EVERY
        self._refused_signature = "-"  # of standing orders
        self._factory = factory
        self._application = application
        self._verifier = verifier
        self._store: Store | None = None
        self._lock = threading.Lock()
        self._report: LinkReport | None = None
        self._batches: list[tuple[str, BatchReport]] = []  # with their runs, oldest first; not those being sent
        self._batch_sizes: dict[str, int] = {}  # query -> task rows of its last batch
        self._oversized: dict[str, int] = {}  # query -> tasks of its last batch, which was too large
        self._journal: deque[MoveTransition] = deque(maxlen=_MAX_LINES)
        self._desired: Envelope | None = None
        self._desired_version: Version = (-1, 0, "")
        self._closings: deque[Closing] = deque(maxlen=_MAX_EVIDENCE)
        self._cursors: dict[str, _EvidenceCursor] = {}  # of nodes awaited now or a little while ago
        self._awaited_nodes: frozenset[str] = frozenset()
        self._too_large: set[keys.KeyRule] = set()  # kinds of message that were logged as too large
        self._outage = ""  # the error that was logged last, "" while Redis answers
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rechannel-mailbox", daemon=True)

    @property
    def problem(self) -> str:
        """Queries whose batches are too large to be reported; "" if there are none."""
        with self._lock:
            queries = ", ".join(f"{query} ({tasks:,})" for query, tasks in sorted(self._oversized.items()))
        limit = f"batches of more than {_MAX_BATCH_TASKS:,} tasks are not reported"
        return f"{limit}, nor decided on: query {queries}" if queries else ""

    @property
    def rejected_messages(self) -> int:
        """Messages that could not be read or were not accepted."""
        return self._rejected + (self._store.rejected if self._store is not None else 0)

    def start(self) -> None:
        """Begin to exchange messages."""
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """Send the remaining messages if Redis answers, and end."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def post_report(self, report: LinkReport, nodes: Collection[str]) -> None:
        """Hand over the newest report, and the nodes whose agents' evidence is awaited.

        A node's evidence is read from some minutes back, or from the last position if it was awaited a while ago.
        """
        now = self._monotonic()
        with self._lock:
            self._report = report
            running = {query.query for query in report.queries}
            self._current_placements = {
                query: item for query, item in self._current_placements.items() if query in running
            }
            self._batch_sizes = {query: rows for query, rows in self._batch_sizes.items() if query in running}
            self._oversized = {query: tasks for query, tasks in self._oversized.items() if query in running}
            self._awaited_nodes = frozenset(node for node in nodes if keys.is_valid_name(node))
            for node in self._awaited_nodes:
                self._cursors.setdefault(node, _EvidenceCursor(now)).awaited_at = now
            # A position older than the look-back need not be remembered.
            self._cursors = {node: item for node, item in self._cursors.items() if now - item.awaited_at <= _LOOK_BACK}

    def post_placement(self, placement: LastPlacement) -> None:
        """Hand over a query's last placement."""
        with self._lock:
            self._unsent_placements[placement.query] = self._current_placements[placement.query] = placement
            partitions = sum(map(_partition_count, self._unsent_placements.values()))
            while len(self._unsent_placements) > _MAX_PLACEMENTS or (
                len(self._unsent_placements) > 1 and partitions > _MAX_PARTITIONS
            ):
                partitions -= _partition_count(self._unsent_placements.pop(next(iter(self._unsent_placements))))
                self.dropped += 1

    def post_batch(self, batch: BatchReport, run: str) -> None:
        """Hand over a finished batch; one too old or too large to hold is dropped and counted."""
        with self._lock:
            if batch.tasks > _MAX_BATCH_TASKS:
                self.dropped += 1
                self._oversized[batch.query] = batch.tasks
                return
            self._oversized.pop(batch.query, None)
            self._batch_sizes[batch.query] = batch.tasks
            self._batches.append((run, batch))
            self._drop_batches()

    def _drop_batches(self) -> None:
        """Drop batches while too many wait: the oldest first, each query's newest last."""
        newest = {batch.query: index for index, (_, batch) in enumerate(self._batches)}
        older = [index for index, (_, batch) in enumerate(self._batches) if newest[batch.query] != index]
        rows, dropped = sum(batch.tasks for _, batch in self._batches), set[int]()
        last_room = _MAX_TASKS if self._outage else _MAX_NEWEST  # the newest have more room while Redis answers
        for room, indices in ((_MAX_TASKS, older), (last_room, sorted(newest.values()))):
            for index in indices:
                if rows <= room and len(self._batches) - len(dropped) <= keys.BATCHES.bound:
                    break
                dropped.add(index)
                rows -= self._batches[index][1].tasks
        self._batches = [item for index, item in enumerate(self._batches) if index not in dropped]
        self.dropped += len(dropped)

    def post_journal(self, lines: list[MoveTransition]) -> None:
        """Hand over journal lines."""
        with self._lock:
            self.dropped += max(0, len(self._journal) + len(lines) - _MAX_LINES)
            self._journal.extend(lines)

    def pop_desired(self) -> Envelope | None:
        """Return a newer desired placement, once; its signature was checked."""
        with self._lock:
            desired, self._desired = self._desired, None
            return desired

    def pop_orders(self) -> Envelope | None:
        """Return newer standing orders, once; their signature was checked, and none is older."""
        with self._lock:
            orders, self._orders = self._orders, None
            return orders

    def read_last_placement(self, query: str) -> LastPlacement | None:
        """Read a query's last placement on the caller's thread, with a short time-out."""
        try:
            with self._short_timeout_store() as store:
                envelope = store.get(keys.PLACEMENT, query)
        except StoreError as error:
            _LOG.warning("a query's last placement could not be read", query=query, error=str(error))
            return None
        body = envelope.body if envelope is not None else None
        return body if isinstance(body, LastPlacement) and body.query == query else None

    def read_orders(self) -> None:
        """Read the standing orders on the caller's thread, with a short time-out."""
        try:
            with self._short_timeout_store() as store:
                self._receive_orders(store)
        except StoreError as error:
            _LOG.warning("the standing orders are not known yet", error=str(error))

    def _short_timeout_store(self) -> closing[Store]:
        timeout = min(_SHORT_TIMEOUT, self._settings.timeout)
        return closing(Store(replace(self._settings, timeout=timeout), self._factory.cluster))

    def pop_closings(self) -> list[Closing]:
        """Return what was reported of closed state stores since the last call."""
        with self._lock:
            closings = list(self._closings)
            self._closings.clear()
            return closings

    def _run(self) -> None:
        pause = _PERIOD
        while True:
            stopping = self._stop.wait(pause)
            try:
                self._exchange()
                if self._outage:
                    _LOG.info("redis is back")
                self._outage, pause = "", _PERIOD
            except StoreError as error:
                if str(error) != self._outage:
                    self._outage = str(error)
                    _LOG.warning("redis is away; queries go on, reports are kept", error=str(error))
                pause = min(pause * 2, _SLOWEST)
                with self._lock:
                    self._drop_batches()  # a huge one does not wait
            except Exception as error:  # noqa: BLE001  one odd message must not silence the link for good
                self._rejected += 1
                pause = _SLOWEST
                _LOG.warning("an exchange with redis failed", error=str(error), **traceback_fields())
            if stopping:
                break
        if self._store is not None:
            try:
                self._store.close()
            except StoreError:
                return

    def _exchange(self) -> None:
        if self._store is None:
            self._store = Store(self._settings, self._factory.cluster)
        try:
            self._send(self._store)
        finally:  # also while Redis is full and takes no writes: pauses and drains have to arrive
            self._receive_desired(self._store)
            self._receive_orders(self._store)
            self._receive_evidence(self._store)

    def _send(self, store: Store) -> None:
        factory, application = self._factory, self._application
        with self._lock:
            report = self._report
        if report is not None:
            self._write(
                store, keys.REPORT, application, factory.envelope(report, ttl=keys.REPORT.ttl, application=application)
            )
            store.register_application(application, factory.clock())
            with self._lock:
                if self._report is report:
                    self._report = None
        self._send_journal(store)
        self._send_batches(store)
        self._send_placements(store)

    def _write(self, store: Store, rule: keys.KeyRule, name: str, envelope: Envelope) -> None:
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
            envelopes = [self._factory.envelope(line, ttl=rule.ttl, application=application) for line in lines]
            store.append(rule, application, *envelopes)
            with self._lock:
                for line in lines:
                    if self._journal and self._journal[0] is line:
                        self._journal.popleft()

    def _send_batches(self, store: Store) -> None:
        """Send waiting batches, few tasks at a time; an interrupted one again from its start."""
        while True:
            with self._lock:
                batches = _first(self._batches)
                del self._batches[: len(batches)]
                room = batch_budget(sum(self._batch_sizes.values()))
            if not batches:
                return
            try:
                self._append_batches(store, batches, room)
            except BaseException:
                with self._lock:
                    self._batches[:0] = batches
                    self._drop_batches()
                raise

    def _append_batches(self, store: Store, batches: list[tuple[str, BatchReport]], room: int) -> None:
        rule, application = keys.BATCHES, self._application
        parts = [(run, part) for run, batch in batches for part in parts_of(batch)]
        for start in range(0, len(parts), _PARTS_AT_ONCE):
            envelopes = [
                self._factory.envelope(part, ttl=rule.ttl, application=application, run=run)
                for run, part in parts[start : start + _PARTS_AT_ONCE]
            ]
            store.append(rule, application, *envelopes, size=room)

    def _receive_desired(self, store: Store) -> None:
        envelope = store.get(keys.DESIRED, self._application)
        if envelope is None or _version(envelope) == self._desired_version:
            return
        # Remembered before the check: a placement is renewed, and each renewal is checked anew.
        self._desired_version = _version(envelope)
        try:
            self._check(envelope)
            body_of(envelope, DesiredPlacement)
            if envelope.application != self._application:
                raise MessageError(f"message is for application {envelope.application!r}")
        except MessageError as error:
            self._rejected += 1
            _LOG.warning("desired placement rejected", error=str(error))
            return
        with self._lock:
            self._desired = envelope

    def _receive_orders(self, store: Store) -> None:
        envelope = store.get(keys.ORDERS)
        if envelope is None or _version(envelope) == self._orders_version:
            return
        # Every leader has an epoch of its own, and its sequence rises; clocks may be set back.
        newer = (envelope.epoch, envelope.sequence) > self._orders_version[:2]
        try:
            self._check(envelope)
            body_of(envelope, StandingOrders)
            if not newer:
                raise MessageError("standing orders are older than those accepted")
        except MessageError as error:
            if envelope.signature != self._refused_signature:
                self._refused_signature = envelope.signature
                self._rejected += 1
                _LOG.warning("standing orders rejected", error=str(error))
            return
        # Only now: orders are not renewed, so refused ones are checked again, as the trusted keys may change.
        self._orders_version = _version(envelope)
        with self._lock:
            self._orders = envelope

    def _check(self, envelope: Envelope) -> None:
        if self._verifier is None:
            raise MessageError("no signing.public_key_file is set: this link accepts no orders")
        self._verifier.check(envelope)

    def _send_placements(self, store: Store) -> None:
        with self._lock:
            if self._monotonic() >= self._rewrite_at:
                self._rewrite_at = self._monotonic() + _REWRITE_EVERY
                self._unsent_placements = self._current_placements | self._unsent_placements
            placements = dict(self._unsent_placements)
        for query, placement in placements.items():
            self._write(store, keys.PLACEMENT, query, self._factory.envelope(placement, ttl=keys.PLACEMENT.ttl))
            with self._lock:
                if self._unsent_placements.get(query) is placement:
                    del self._unsent_placements[query]

    def _receive_evidence(self, store: Store) -> None:
        with self._lock:
            cursors = {node: self._cursors[node] for node in self._awaited_nodes}
        if not cursors:
            return
        if any(not cursor.after for cursor in cursors.values()):
            start = store.id_since(_LOOK_BACK)
            for cursor in cursors.values():
                cursor.after = cursor.after or start
        after = {node: cursor.after for node, cursor in cursors.items()}
        check_size = {node for node, cursor in cursors.items() if cursor.check_size}
        pages = store.read_each(keys.EVIDENCE, after, _EVIDENCE_AT_ONCE, check_size)
        with self._lock:
            for node, page in pages.items():
                cursors[node].after = page.last
                cursors[node].check_size = page.size > _LARGE_ANSWER
                for envelope in page.messages:
                    body = envelope.body
                    if isinstance(body, AgentEvidence) and body.node == node:
                        closed = [item for item in body.closed if item.application == self._application]
                        self._closings += [Closing(item, envelope.time) for item in closed]


def parts_of(batch: BatchReport) -> list[BatchReport]:
    """Split a batch into messages of few tasks each, in order."""
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


def _version(envelope: Envelope) -> Version:
    return envelope.epoch, envelope.sequence, envelope.signature


def _partition_count(placement: LastPlacement) -> int:
    return sum(map(len, placement.operators.values()))


def _first(batches: list[tuple[str, BatchReport]]) -> list[tuple[str, BatchReport]]:
    """Return the oldest batches that wait: at least one, and no more than are sent at once."""
    rows = 0
    for count, (_, batch) in enumerate(batches[:_SEND_AT_ONCE]):
        if rows and rows + batch.tasks > _TASKS_AT_ONCE:
            return batches[:count]
        rows += batch.tasks
    return batches[:_SEND_AT_ONCE]


def traceback_fields() -> dict[str, str]:
    """Return the traceback of the exception being handled, as text for a line of the log.

    The user chooses how a driver logs, and structlog's default shows the values of variables with an exception.
    """
    return {"stack": traceback.format_exc().rstrip()}
