"""Carries the link's mail to and from Redis on a thread of its own, so that a hung Redis delays nothing else.

Everything it holds is bounded: what cannot be sent for long is dropped, oldest first, and counted.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import structlog

from rechannel.conf.settings import RedisSettings
from rechannel.wire import keys
from rechannel.wire.messages import (
    AgentEvidence,
    BatchReport,
    ClosedStore,
    DesiredPlacement,
    Envelope,
    LastPlacement,
    LinkReport,
    MessageError,
    MoveTransition,
    StandingOrders,
)
from rechannel.wire.signing import Verifier
from rechannel.wire.store import Author, Store, StoreError

_LOG = structlog.get_logger("rechannel.link")
_PERIOD = 0.5  # seconds between two rounds
_SLOWEST = 5.0  # seconds between two tries while Redis is away
_KEPT_EVIDENCE = 10_000
_SEND_AT_ONCE = 100
_KEPT_TASKS = 100_000  # task rows in all batches that wait: some tens of megabytes in the user's driver
_SAY_AGAIN = 300.0  # seconds between two times that last placements are written, changed or not
_RECALL_PATIENCE = 0.5  # seconds for which a query's start waits for Redis
_LARGEST_BATCH = 60_000  # task rows; as JSON still below the largest message


class Courier:
    """Outbound: reports and last placements (the newest alone), batches, journal lines.

    Inbound: desired placements, standing orders, closed stores.
    """

    def __init__(self, settings: RedisSettings, author: Author, application: str, verifier: Verifier | None) -> None:
        self.rejected = 0
        self.dropped = 0
        self._settings = settings
        self._placements: dict[str, LastPlacement] = {}  # by query
        self._orders: Envelope | None = None
        self._orders_seen: tuple[int, int, str] = (-1, 0, "")
        self._kept: dict[str, LastPlacement] = {}  # of running queries: said again now and then, for Redis may forget
        self._say_again_at = time.monotonic() + _SAY_AGAIN
        self._refused_orders = "-"
        self._author = author
        self._application = application
        self._verifier = verifier
        self._store: Store | None = None
        self._lock = threading.Lock()
        self._report: LinkReport | None = None
        self._batches: deque[tuple[str, BatchReport]] = deque(maxlen=keys.BATCHES.bound)
        self._journal: deque[tuple[str, MoveTransition]] = deque(maxlen=keys.JOURNAL.bound)
        self._desired: Envelope | None = None
        self._desired_seen: tuple[int, int, str] = (-1, 0, "")
        self._closed: deque[ClosedStore] = deque(maxlen=_KEPT_EVIDENCE)
        self._nodes: dict[str, str] = {}  # node -> last evidence id read
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

    def post_report(self, report: LinkReport, nodes: set[str]) -> None:
        """Hand over the newest report and the nodes whose agents' evidence is wanted."""
        with self._lock:
            self._report = report
            running = {query.query for query in report.queries}
            self._kept = {query: kept for query, kept in self._kept.items() if query in running}
            self._nodes = {node: self._nodes.get(node, "") for node in nodes}

    def post_placement(self, placement: LastPlacement) -> None:
        """Hand over where a query's partitions ran last."""
        with self._lock:
            self._placements[placement.query] = self._kept[placement.query] = placement

    def post_batch(self, batch: BatchReport, run: str) -> None:
        """Hand over a finished batch of a run; what is too large to send or too old to keep is dropped and counted."""
        with self._lock:
            if _tasks(batch) > _LARGEST_BATCH:
                self.dropped += 1
                return
            self.dropped += len(self._batches) == self._batches.maxlen
            self._batches.append((run, batch))
            while len(self._batches) > 1 and sum(_tasks(kept) for _, kept in self._batches) > _KEPT_TASKS:
                self._batches.popleft()
                self.dropped += 1

    def post_journal(self, lines: list[MoveTransition]) -> None:
        """Hand over journal lines."""
        with self._lock:
            self.dropped += max(0, len(self._journal) + len(lines) - (self._journal.maxlen or 0))
            self._journal.extend(("", line) for line in lines)

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
            store.put(keys.REPORT, application, author.envelope(report, ttl=keys.REPORT.ttl, application=application))
            store.seen_application(application, author.clock())
            with self._lock:
                if self._report is report:
                    self._report = None
        self._drain(store, keys.JOURNAL, self._journal)
        self._drain(store, keys.BATCHES, self._batches)
        self._send_placements(store)
        self._read_desired(store)
        self._read_orders(store)
        with self._lock:
            nodes = dict(self._nodes)
        for node, after in nodes.items():
            self._read_evidence(store, node, after)

    def _drain(
        self,
        store: Store,
        rule: keys.KeyRule,
        queue: deque[tuple[str, BatchReport]] | deque[tuple[str, MoveTransition]],
    ) -> None:
        while True:
            with self._lock:
                posted = [queue[index] for index in range(min(len(queue), _SEND_AT_ONCE))]
            if not posted:
                return
            application = self._application
            envelopes = [
                self._author.envelope(body, ttl=rule.ttl, application=application, run=run) for run, body in posted
            ]
            store.append(rule, application, *envelopes)
            with self._lock:
                for item in posted:
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
                self._say_again_at = time.monotonic() + _SAY_AGAIN
                self._placements = self._kept | self._placements
            posted = dict(self._placements)
        for query, placement in posted.items():
            store.put(keys.PLACEMENT, query, self._author.envelope(placement, ttl=keys.PLACEMENT.ttl))
            with self._lock:
                if self._placements.get(query) is placement:
                    del self._placements[query]

    def _read_evidence(self, store: Store, node: str, after: str) -> None:
        if not after:
            after = store.last_id(keys.EVIDENCE, node)
        last, envelopes = store.read(keys.EVIDENCE, node, after)
        with self._lock:
            if node in self._nodes:
                self._nodes[node] = last
            for envelope in envelopes:
                if isinstance(envelope.body, AgentEvidence) and envelope.body.node == node:
                    self._closed += [item for item in envelope.body.closed if item.application == self._application]


def traced(wanted: bool = True) -> dict[str, str]:
    """Return the traceback of the exception being handled, for a line of the log: as text, if it is ``wanted``.

    How a driver logs is the user's own, and structlog's default shows the values of variables with an exception.
    """
    return {"stack": traceback.format_exc().rstrip()} if wanted else {}


def _tasks(batch: BatchReport) -> int:
    return sum(len(stage.tasks) for stage in batch.stages)
