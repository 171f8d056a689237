"""The node agent: samples the executors of its node, closes windows, and pushes both windows and evidence to Redis.

Two threads. One samples and never waits for anybody; the other pushes, and may wait for Redis as long as that takes.
Between them stands a bounded buffer. A push that timed out may have arrived all the same and is then pushed again:
readers know such twins by their equal sender, time and sequence.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable
from dataclasses import replace
from typing import Any, Protocol

import msgspec
import structlog

from rechannel.conf import reload
from rechannel.conf.settings import Settings
from rechannel.monitors.node.executor_log import ClosedStoreReader
from rechannel.monitors.node.inotify import DirectoryWatch
from rechannel.monitors.node.metrics import AgentMetrics, EndpointError, serve
from rechannel.monitors.node.processes import (
    ExecutorSample,
    MachineTable,
    MachineUsage,
    ProcessTable,
    ProcessWatcher,
    find_host,
    machine_usage,
    own_names,
)
from rechannel.monitors.node.shuffle import MOST_PARTITIONS, ShuffleReader
from rechannel.monitors.node.windows import Clock, ClosedWindow, CounterReading, SystemClock, WindowAggregator
from rechannel.wire.envelope import Envelope, EnvelopeFactory
from rechannel.wire.keys import EVIDENCE, WINDOWS, KeyRule, Keys
from rechannel.wire.measurements import AgentEvidence, AgentWindow, ClosedStore, ExecutorUsage, StreamRow
from rechannel.wire.redis.errors import StoreError, StoreRefusedError, StoreUnavailableError
from rechannel.wire.redis.store import Store
from rechannel.wire.systemd import Notifier

WINDOW_SIZES = MOST_PARTITIONS  # numbers in the stream rows of one window; as JSON well below the largest message
BUFFERED_SIZES = 400_000  # the same in all windows that wait for Redis: about 16 MB
BUFFERED_EVIDENCE = 1_000  # messages
BATCH = 16  # messages pushed in one round trip
FIRST_DELAY, LONGEST_DELAY, REFUSED_DELAY = 0.25, 5.0, 10.0  # seconds between two attempts
REFUSED_EVERY = 60.0  # seconds between two complaints of the same refusal
IDLE = 30.0  # seconds without a message after which Redis is asked whether it is there
HOST_EVERY = 2.0  # seconds between two looks for the first executor, where the node's name is not set
STRANGER_AFTER = 30.0  # seconds without an executor of this node, while others run here
STARTS = 90.0  # seconds between two samples before the first window is taken; as long as any service may take to start
SAMPLES_LATE = 3  # samples that may be late before the service manager's watchdog may call it a hang

_DROPPED = "window dropped: buffer full while Redis was away"
_STRIPPED = "map outputs dropped: buffer full while Redis was away"
_UNSAID = "evidence dropped: buffer full while Redis was away"
_OVER = "map outputs over the limit of a window"

_log: Any = structlog.get_logger("rechannel.agent")


class EnvelopeSink(Protocol):
    """The part of `rechannel.wire.redis.store.Store` that the agent needs."""

    def append(self, rule: KeyRule, name: str, *envelopes: Envelope) -> None:
        """Add messages to a stream."""

    def check(self) -> str:
        """Ask the server for its version."""

    def close(self) -> None:
        """Drop the connections."""


def open_store(settings: Settings) -> EnvelopeSink:
    """Return the store the settings name."""
    return Store(settings.redis, settings.cluster.name)


class NodeMonitor:
    """What the agent sees of its node: one call of `sample` for every sampling interval."""

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock,
        table: ProcessTable | None = None,
        machine: Callable[[], MachineUsage] = machine_usage,
    ) -> None:
        self.node = settings.node
        self._settings = settings.agent
        self._clock = clock
        self._machine = machine
        self._watcher = ProcessWatcher(self.node, table, clock.monotonic)
        self._shuffle = ShuffleReader(wall=clock.wall, changes=DirectoryWatch())
        self._logs = ClosedStoreReader()
        self._windower = WindowAggregator(settings.agent.window, settings.agent.sample, clock)
        self._usage = machine()
        self._latest: dict[tuple[int, float], ExecutorSample] = {}
        self._rows: list[StreamRow] = []
        self._sizes = 0
        self._skipped: Counter[str] = Counter()
        self._began = clock.monotonic()
        self._met = False  # an executor of this node, ever

    def wait_time(self) -> float:
        """Return the seconds until the next sample is due."""
        return self._windower.wait_time()

    def take(self, settings: Settings) -> None:
        """Go on with other settings, of which only live fields differ (`rechannel.conf.reload`)."""
        self._settings = settings.agent

    def sample(self) -> tuple[AgentWindow | None, AgentEvidence | None]:
        """Look at everything once; returns the window that is over by now, and stores seen closed."""
        samples = self._watcher.sample()
        self._usage = self._machine()
        alive = {_identity(sample) for sample in samples}
        closed: list[ClosedStore] = []
        self._logs.forget(alive)
        self._shuffle.forget(alive)
        self._shuffle.gather()
        for sample in samples:
            closed += self._logs.read(sample.executor)
            for row in self._shuffle.read(sample.executor):
                self._keep(row)
        readings: dict[Hashable, CounterReading] = {"node": CounterReading(self._usage.cpu, 0.0)}
        for sample in samples:
            identity, born = _identity(sample), sample.executor.started
            readings["jvm", identity] = CounterReading(sample.jvm_cpu, born)
            readings["python", identity] = CounterReading(sample.python_cpu, born)
        over = self._windower.add(readings)
        window = None if over is None else self._body(over)
        self._latest.update({_identity(sample): sample for sample in samples})
        self._warn_of_strangers(samples)
        return window, AgentEvidence(node=self.node, closed=closed) if closed else None

    def finish(self) -> AgentWindow | None:
        """Return the window that is open, as far as it came, and let go of all files."""
        self._logs.close()
        self._shuffle.close()
        over = self._windower.close()
        return None if over is None else self._body(over)

    def _keep(self, row: StreamRow) -> None:
        if len(self._rows) >= self._settings.stream_rows or self._sizes + len(row.sizes) > WINDOW_SIZES:
            self._skipped[_OVER] += 1
            return
        self._rows.append(row)
        self._sizes += len(row.sizes)

    def _body(self, over: ClosedWindow) -> AgentWindow:
        skipped, self._skipped = self._skipped, Counter()
        for part in (self._watcher, self._shuffle, self._logs, self._windower):
            skipped.update(part.take_skipped())
        rows, self._rows, self._sizes = self._rows, [], 0
        latest, self._latest = self._latest, {}
        return AgentWindow(
            node=self.node,
            start=over.start,
            end=over.end,
            complete=over.complete,
            cores=self._usage.cores,
            node_cpu=over.growth.get("node", 0.0),
            memory_total=self._usage.memory_total,
            memory_used=self._usage.memory_used,
            executors=[_usage(sample, over) for sample in latest.values()],
            streams=rows,
            skipped=dict(skipped),
        )

    def _warn_of_strangers(self, samples: list[ExecutorSample]) -> None:
        self._met = self._met or bool(samples)
        if self._met or self._clock.monotonic() - self._began < max(STRANGER_AFTER, 3 * self._settings.window):
            return
        if others := self._watcher.other_hosts:
            self._met = True  # said once
            _log.warning(
                "no executor of this node",
                problem=f"no executor on this machine carries the host name {self.node!r}",
                executors_here_carry=others,
                cure="set agent.node to the host name this node's executors carry in Spark",
            )


def _identity(sample: ExecutorSample) -> tuple[int, float]:
    return (sample.executor.pid, sample.executor.started)


def _usage(sample: ExecutorSample, over: ClosedWindow) -> ExecutorUsage:
    executor, identity = sample.executor, _identity(sample)
    return ExecutorUsage(
        application=executor.application,
        executor=executor.executor,
        host=executor.host,
        pid=executor.pid,
        started=executor.started,
        cores=executor.cores,
        jvm_cpu=over.growth.get(("jvm", identity), 0.0),
        python_cpu=over.growth.get(("python", identity), 0.0),
        jvm_rss=sample.jvm_rss,
        python_rss=sample.python_rss,
        python_workers=sample.python_workers,
        samples=over.samples.get(("jvm", identity), 0),
        steps=[
            (round(end, 3), round(step.get(("jvm", identity), 0.0), 4), round(step.get(("python", identity), 0.0), 4))
            for end, step in over.steps
            if ("jvm", identity) in step
        ],
    )


class Sender:
    """Brings messages to Redis from a thread of its own; buffers them, bounded, while Redis is away.

    An outage and its end are logged once each, another cause of it or a refusal at most once a minute. With nothing to
    push it asks Redis all the same, at its start and every `IDLE`: an agent that waits for its first executor says so
    too. ``node`` may be set as late as the first message.
    """

    def __init__(
        self,
        node: str,
        store_factory: Callable[[], EnvelopeSink],
        buffered_windows: int,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.node = node
        self._factory = store_factory
        self._monotonic = monotonic
        self._store: EnvelopeSink | None = None
        self._condition = threading.Condition()
        self._windows: deque[Envelope] = deque()
        self._evidence: deque[Envelope] = deque()
        self._bound = buffered_windows
        self._dropped: Counter[str] = Counter()
        self._failures = 0
        self._problem: StoreError | None = None  # that was logged last, until it is gone
        self.reachable = False  # the last attempt brought everything to Redis
        self._complained = -REFUSED_EVERY
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="rechannel-push", daemon=True)

    def start(self) -> None:
        """Begin to push."""
        self._thread.start()

    def stop(self, timeout: float) -> int:
        """Push what is left if Redis answers within so many seconds; returns how many messages stay behind."""
        with self._condition:
            self._closing = True
            self._condition.notify()
        self._thread.join(timeout)
        return self.waiting

    @property
    def waiting(self) -> int:
        """How many messages wait to be pushed."""
        with self._condition:
            return len(self._windows) + len(self._evidence)

    @property
    def away(self) -> bool:
        """Whether Redis did not take what was sent last."""
        return self._failures > 0

    @property
    def alive(self) -> bool:
        """Whether the thread that pushes is there; waiting for Redis it is."""
        return self._thread.is_alive()

    def offer(self, envelope: Envelope) -> None:
        """Hand over a message; never waits for Redis. A full buffer gives up its oldest."""
        with self._condition:
            if isinstance(envelope.body, AgentWindow):
                self._windows.append(envelope)
                while len(self._windows) > self._bound:
                    self._windows.popleft()
                    self._dropped[_DROPPED] += 1
                self._strip()
            else:
                self._evidence.append(envelope)
                if len(self._evidence) > BUFFERED_EVIDENCE:
                    self._evidence.popleft()
                    self._dropped[_UNSAID] += 1
            self._condition.notify()

    def take(self, settings: Settings) -> None:
        """Go on with other settings; a buffer that is to be smaller gives up its oldest with the next window."""
        with self._condition:
            self._bound = settings.agent.buffered_windows

    def take_dropped(self) -> dict[str, int]:
        """Return what was given up since the last call, by reason."""
        with self._condition:
            dropped, self._dropped = self._dropped, Counter()
        return dict(dropped)

    def attempt(self) -> float:
        """Push all there is; returns the seconds to rest before the next attempt, 0 when all is pushed."""
        rest = self._attempt()
        self.reachable = rest == 0.0
        return rest

    def _attempt(self) -> float:
        try:
            if self._store is None:
                self._store = self._factory()
            if not self.waiting:
                self._store.check()
            for rule, queue in ((EVIDENCE, self._evidence), (WINDOWS, self._windows)):
                while batch := self._head(queue):
                    self._store.append(rule, self.node, *batch)
                    self._done(queue, batch)
        except StoreUnavailableError as error:
            if not isinstance(self._problem, StoreUnavailableError) or (
                str(error) != str(self._problem) and self._quiet()
            ):
                self._problem, self._complained = error, self._monotonic()
                _log.warning("redis is away", problem=str(error), buffers_windows=self._bound)
            self._failures += 1
            return float(min(LONGEST_DELAY, FIRST_DELAY * 2 ** min(self._failures - 1, 10)))
        except StoreRefusedError as error:
            if not isinstance(self._problem, StoreRefusedError) or self._quiet():
                self._problem, self._complained = error, self._monotonic()
                _log.error("redis refuses", problem=str(error), next_attempt_in=REFUSED_DELAY)
            self._failures += 1
            self._let_go()  # the next attempt reads the password file anew
            return REFUSED_DELAY
        if self._failures:
            _log.info("redis is back", failed_attempts=self._failures)
        self._failures, self._problem = 0, None
        return 0.0

    def _quiet(self) -> bool:
        """Whether the last complaint is so old that there may be another."""
        return self._monotonic() - self._complained >= REFUSED_EVERY

    def _run(self) -> None:
        rest = self.attempt()
        while True:
            with self._condition:
                if rest:
                    # Not woken by new messages: they come every few seconds and would undo the growing delay.
                    self._condition.wait_for(lambda: self._closing, rest)
                else:
                    self._condition.wait_for(lambda: self._closing or self._windows or self._evidence, IDLE)
                closing = self._closing
            rest = self.attempt()
            if closing:
                self._let_go()
                return

    def _head(self, queue: deque[Envelope]) -> list[Envelope]:
        with self._condition:
            return [queue[index] for index in range(min(BATCH, len(queue)))]

    def _done(self, queue: deque[Envelope], batch: list[Envelope]) -> None:
        last = batch[-1].sequence
        with self._condition:
            while queue and queue[0].sequence <= last:
                queue.popleft()

    def _strip(self) -> None:
        """Give up the stream rows of the oldest windows that wait, when all together hold too many."""
        total = 0
        for index in range(len(self._windows) - 1, -1, -1):
            envelope = self._windows[index]
            body = envelope.body
            if not isinstance(body, AgentWindow) or not body.streams:
                continue
            total += sum(len(row.sizes) for row in body.streams)
            if total > BUFFERED_SIZES:
                skipped = Counter(body.skipped) + Counter({_STRIPPED: len(body.streams)})
                stripped = msgspec.structs.replace(body, streams=[], skipped=dict(skipped))
                self._windows[index] = msgspec.structs.replace(envelope, body=stripped)

    def _let_go(self) -> None:
        if self._store is not None:
            try:
                self._store.close()
            except (StoreUnavailableError, StoreRefusedError) as error:
                _log.debug("store not closed", problem=str(error))
            self._store = None


def _wait_for_host(
    table: ProcessTable, names: Collection[str], stop: threading.Event, notifier: Notifier, pusher: Sender
) -> str:
    """Wait for the first executor that carries a name of this machine; "" if told to stop before."""
    said = False
    while not (host := find_host(table, names)):
        if not said:
            said = True
            _log.info("waiting for an executor of this machine", known_as=sorted(names))
        notifier.ready(f"waits for an executor of this machine{'; Redis is away' if pusher.away else ''}")
        notifier.beat()
        if stop.wait(HOST_EVERY):
            notifier.stopping()
            return ""
    return host


def _endpoint(metrics: AgentMetrics, address: str) -> Callable[[], None]:
    """Open the endpoint; a port that another agent of this machine has costs the endpoint, not the agent."""
    if not address:
        return lambda: None
    try:
        end = serve(metrics, address)
    except EndpointError as error:
        _log.error("no metrics endpoint", problem=str(error))
        return lambda: None
    _log.info("metrics endpoint", address=address)
    return end


def _tell(notifier: Notifier, node: str, window: AgentWindow | None, pusher: Sender) -> None:
    """Tell the service manager that a sample was taken, and what the window it closed holds."""
    if window is not None:
        away = f"; Redis is away, {pusher.waiting} messages wait" if pusher.away else ""
        executors, rows = len(window.executors), len(window.streams)
        notifier.ready(f"{node}: {executors} executors, {rows} map outputs in the last window{away}")
    elif not notifier.is_ready:
        notifier.extend_timeout(STARTS)
    if pusher.alive:  # without it nothing would ever arrive, and nobody would know
        notifier.beat()


def run_agent(
    settings: Settings,
    *,
    stop: threading.Event,
    store_factory: Callable[[Settings], EnvelopeSink] = open_store,
    clock: Clock | None = None,
    table: ProcessTable | None = None,
    notifier: Notifier | None = None,
    reread: reload.ReloadSignal | None = None,
) -> None:
    """Watch this node until ``stop`` is set. Redis may come and go; a last, shorter window is pushed at the end.

    With ``reread`` it takes other settings over when asked to.

    ``notifier``: who is told how it goes; None: the service manager that the environment names, if any.

    Raises KeyNameError when the cluster's or the node's name cannot be part of a Redis key.
    """
    clock = clock or SystemClock()
    notifier = notifier or Notifier.from_environment()
    reread = reread and replace(reread, load=notifier.announce_reload(reread.load))
    reloader = reload.Reloader(settings, reread, reload.AGENT, _log)
    notifier.request_watchdog(SAMPLES_LATE * max(settings.agent.sample, HOST_EVERY))
    Keys(settings.cluster.name)(WINDOWS, settings.agent.node or "node")
    given = settings
    pusher = Sender(given.agent.node, lambda: store_factory(given), given.agent.buffered_windows)
    pusher.start()
    if not settings.agent.node:
        host = _wait_for_host(table or MachineTable(), own_names(), stop, notifier, pusher)
        if not host:
            pusher.stop(settings.redis.timeout + 0.5)
            return
        settings = replace(settings, agent=replace(settings.agent, node=host))
        Keys(settings.cluster.name)(WINDOWS, host)
        pusher.node = host
    monitor = NodeMonitor(settings, clock=clock, table=table)
    author = EnvelopeFactory(settings.cluster.name, f"agent:{settings.node}", clock.wall)
    metrics = AgentMetrics(lambda: pusher.waiting, lambda: pusher.reachable, settings.cluster.name)

    def send(body: AgentWindow | AgentEvidence | None) -> None:
        if isinstance(body, AgentWindow):
            body = msgspec.structs.replace(body, skipped={**body.skipped, **pusher.take_dropped()})
            metrics.add(body)
        if body is not None:
            rule = WINDOWS if isinstance(body, AgentWindow) else EVIDENCE
            pusher.offer(author.envelope(body, ttl=rule.ttl))

    _log.info("agent started", node=settings.node, sample=settings.agent.sample, window=settings.agent.window)
    end_metrics = _endpoint(metrics, settings.agent.metrics)
    while True:
        window, evidence = monitor.sample()
        send(evidence)
        send(window)
        _tell(notifier, settings.node, window, pusher)
        if (taken := reloader.poll()) is not None:
            monitor.take(taken)
            pusher.take(taken)
        if clock.wait(stop, monitor.wait_time()):
            break
    notifier.stopping()
    send(monitor.finish())
    left = pusher.stop(settings.redis.timeout + 0.5)
    end_metrics()
    _log.info("agent stopped", node=settings.node, messages_not_pushed=left)
