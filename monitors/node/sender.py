"""Sender of the agent's messages to Redis, with a bounded buffer."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import msgspec
import structlog

from rechannel.conf.settings import Settings
from rechannel.monitors.node.monitor import MAX_WINDOW_SIZES
from rechannel.monitors.node.output_share import choose_outputs
from rechannel.wire.envelope import Envelope, bodies_of
from rechannel.wire.keys import AGENT_LIMITS, EVIDENCE, WINDOWS
from rechannel.wire.measurements import AgentEvidence, AgentWindow
from rechannel.wire.messages import AgentLimits
from rechannel.wire.redis.errors import StoreError, StoreForbiddenError, StoreRefusedError, StoreUnavailableError
from rechannel.wire.redis.store import Store

BUFFERED_SIZES = 400_000  # numbers in the map outputs of all windows that wait for Redis: about 1 MB
BUFFERED_EVIDENCE = 10_000  # closed stores in the evidence that waits for Redis: some MB
BATCH = 16  # messages pushed in one round trip
FIRST_DELAY, LONGEST_DELAY, REFUSED_DELAY = 0.25, 5.0, 10.0  # seconds between two attempts
REFUSED_EVERY = 60.0  # seconds between two log lines of the same refusal
IDLE = 30.0  # seconds without a message after which Redis is checked
LIMITS_EVERY, LIMITS_FORBIDDEN_EVERY = 30.0, 3600.0  # seconds between two readings of the limits of agents

_WINDOW_DROPPED = "window dropped: buffer full while Redis was away"
_OUTPUTS_DROPPED = "map outputs dropped: buffer full while Redis was away"
_OUTPUTS_NOT_CHOSEN = "map outputs over the node's share: too many in the cluster"
_EVIDENCE_DROPPED = "evidence dropped: buffer full while Redis was away"

_log: Any = structlog.get_logger("rechannel.agent")


def open_store(settings: Settings) -> Store:
    """Return the store that the settings name."""
    return Store(settings.redis, settings.cluster.name)


class Sender:
    """Pushes messages to Redis on a thread of its own; they are buffered while Redis is away.

    An outage and its end are logged once each, another cause of it or a refusal at most once a minute. With nothing to
    push it checks Redis at its start and every `IDLE` seconds, so that an agent that waits for its first executor
    reports an outage too.
    """

    def __init__(
        self,
        node: str,
        store_factory: Callable[[], Store],
        buffered_windows: int,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.node = node  # names the keys; may be set as late as the first message
        self._factory = store_factory  # opens the store, again after a refusal
        self._monotonic = monotonic
        self._store: Store | None = None
        self._condition = threading.Condition()
        self._windows: deque[Envelope] = deque()
        self._evidence: deque[Envelope] = deque()
        self._bound = buffered_windows  # windows that wait at most
        self._dropped: Counter[str] = Counter()
        self._failures: int | None = None  # in a row; None before the first attempt
        self._problem: StoreError | None = None  # the error logged last, until it is over
        self._logged_at = -REFUSED_EVERY
        self._window_sizes = MAX_WINDOW_SIZES  # of map outputs that may be sent, on average
        self._limits_due = 0.0
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="rechannel-push", daemon=True)

    def start(self) -> None:
        """Begin to push."""
        self._thread.start()

    def stop(self, timeout: float) -> int:
        """Push the remaining messages if Redis answers in time; return how many remain."""
        with self._condition:
            self._closing = True
            self._condition.notify()
        self._thread.join(timeout)
        return self.waiting

    @property
    def waiting(self) -> int:
        """Number of messages that wait to be pushed."""
        with self._condition:
            return len(self._windows) + len(self._evidence)

    @property
    def away(self) -> bool:
        """Whether the last push failed."""
        return bool(self._failures)

    @property
    def reachable(self) -> bool:
        """Whether the last push succeeded."""
        return self._failures == 0

    @property
    def alive(self) -> bool:
        """Whether the pushing thread is alive; it is while it waits for Redis."""
        return self._thread.is_alive()

    def offer(self, envelope: Envelope) -> None:
        """Hand over a message, without waiting for Redis. A full buffer drops its oldest."""
        body = envelope.body
        not_chosen = 0
        if isinstance(body, AgentWindow):
            chosen = choose_outputs(body.map_outputs, self._window_sizes)
            not_chosen = len(body.map_outputs) - len(chosen)
            outputs = [output.with_packed_sizes() for output in chosen]
            envelope = msgspec.structs.replace(envelope, body=msgspec.structs.replace(body, map_outputs=outputs))
        with self._condition:
            if not_chosen:
                self._dropped[_OUTPUTS_NOT_CHOSEN] += not_chosen
            if isinstance(body, AgentWindow):
                self._windows.append(envelope)
                while len(self._windows) > self._bound:
                    self._windows.popleft()
                    self._dropped[_WINDOW_DROPPED] += 1
                self._drop_oldest_outputs()
            else:
                self._evidence.append(envelope)
                self._drop_oldest_evidence()
            self._condition.notify()

    def pop_dropped(self) -> dict[str, int]:
        """Return the numbers of dropped messages since the last call, by reason."""
        with self._condition:
            dropped, self._dropped = self._dropped, Counter()
        return dict(dropped)

    def push(self) -> float:
        """Push all messages; return the seconds to rest before the next attempt, 0 if done."""
        failures = (self._failures or 0) + 1
        try:
            if self._store is None:
                self._store = self._factory()
            if not self.waiting:
                self._store.check()
            for rule, queue in ((EVIDENCE, self._evidence), (WINDOWS, self._windows)):
                while batch := self._oldest(queue):
                    self._store.append(rule, self.node, *batch)
                    self._remove_pushed(queue, batch)
            self._read_limits(self._store)
        except StoreUnavailableError as error:
            if not isinstance(self._problem, StoreUnavailableError) or (
                str(error) != str(self._problem) and self._may_log_again()
            ):
                self._problem, self._logged_at = error, self._monotonic()
                _log.warning("redis is away", problem=str(error), buffers_windows=self._bound)
            self._failures = failures
            return float(min(LONGEST_DELAY, FIRST_DELAY * 2 ** min(failures - 1, 10)))
        except StoreRefusedError as error:
            if not isinstance(self._problem, StoreRefusedError) or self._may_log_again():
                self._problem, self._logged_at = error, self._monotonic()
                _log.error("redis refuses", problem=str(error), next_attempt_in=REFUSED_DELAY)
            self._failures = failures
            self._close_store()  # the next attempt reads the password file anew
            return REFUSED_DELAY
        if self._failures:
            _log.info("redis is back", failed_attempts=self._failures)
        self._failures, self._problem = 0, None
        return 0.0

    def _may_log_again(self) -> bool:
        """Whether the last log line is old enough for another one."""
        return self._monotonic() - self._logged_at >= REFUSED_EVERY

    def _read_limits(self, store: Store) -> None:
        now = self._monotonic()
        if now < self._limits_due:
            return
        self._limits_due = now + LIMITS_EVERY
        try:
            limits = store.get(AGENT_LIMITS)
        except StoreForbiddenError as error:  # a user of an older release
            self._limits_due = now + LIMITS_FORBIDDEN_EVERY
            _log.debug("no right to read the limits of agents", problem=str(error))
            return
        body = limits.body if limits is not None else None
        most = body.window_sizes if isinstance(body, AgentLimits) else MAX_WINDOW_SIZES
        self._window_sizes = max(1, min(most, MAX_WINDOW_SIZES))

    def _run(self) -> None:
        rest = self.push()
        while True:
            with self._condition:
                if rest:
                    # Not woken by new messages: they come every few seconds and would undo the growing delay.
                    self._condition.wait_for(lambda: self._closing, rest)
                else:
                    self._condition.wait_for(lambda: self._closing or self._windows or self._evidence, IDLE)
                closing = self._closing
            rest = self.push()
            if closing:
                self._close_store()
                return

    def _oldest(self, queue: deque[Envelope]) -> list[Envelope]:
        with self._condition:
            return [queue[index] for index in range(min(BATCH, len(queue)))]

    def _remove_pushed(self, queue: deque[Envelope], batch: list[Envelope]) -> None:
        last = batch[-1].sequence
        with self._condition:
            while queue and queue[0].sequence <= last:
                queue.popleft()

    def _drop_oldest_outputs(self) -> None:
        """Drop the map outputs of the oldest windows that wait, where all together hold too many."""
        total = 0
        for index in range(len(self._windows) - 1, -1, -1):
            envelope = self._windows[index]
            body = envelope.body
            if not isinstance(body, AgentWindow) or not body.map_outputs:
                continue
            total += sum(output.partitions for output in body.map_outputs)
            if total > BUFFERED_SIZES:
                skipped = Counter(body.skipped) + Counter({_OUTPUTS_DROPPED: len(body.map_outputs)})
                stripped = msgspec.structs.replace(body, map_outputs=[], skipped=dict(skipped))
                self._windows[index] = msgspec.structs.replace(envelope, body=stripped)

    def _drop_oldest_evidence(self) -> None:
        """Drop the oldest evidence beyond the bound: executors choose how much they log."""
        bodies = bodies_of(self._evidence, AgentEvidence)
        excess = sum(len(body.closed) for body in bodies) - BUFFERED_EVIDENCE
        for body in bodies:
            if excess <= 0:
                return
            excess -= len(body.closed)
            self._evidence.popleft()
            self._dropped[_EVIDENCE_DROPPED] += 1

    def _close_store(self) -> None:
        if self._store is not None:
            try:
                self._store.close()
            except (StoreUnavailableError, StoreRefusedError) as error:
                _log.debug("store not closed", problem=str(error))
            self._store = None
