"""Agent process of a node: pushes windows and evidence of its executors to Redis.

Two threads. One samples and never waits for Redis; the other pushes, and may wait for Redis as long as that takes.
Between them stands a bounded buffer. A push that timed out may have arrived all the same and is then pushed again:
readers count a window of the same node, start and end once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import structlog

from rechannel.conf.settings import Settings, SettingsError
from rechannel.monitors.node.metrics import AgentMetrics, serve
from rechannel.monitors.node.monitor import NodeMonitor
from rechannel.monitors.node.processes import ProcessTable, find_host, own_names
from rechannel.monitors.node.sender import Sender, open_store
from rechannel.monitors.node.windows import Clock
from rechannel.wire.envelope import EnvelopeFactory
from rechannel.wire.keys import EVIDENCE, WINDOWS, Keys
from rechannel.wire.measurements import AgentEvidence, AgentWindow
from rechannel.wire.printable import with_noun
from rechannel.wire.redis.store import Store
from rechannel.wire.systemd import Notifier

HOST_EVERY = 2.0  # seconds between two searches for the first executor, where the node's name is not set
STARTS = 90.0  # seconds between two samples before the first window is closed; as long as any service may take to start
BUFFERED_WINDOWS = 120  # while Redis is not reachable: ten minutes of the default window

_log: Any = structlog.get_logger("rechannel.agent")


def _wait_for_host(
    table: ProcessTable, names: Collection[str], stop: threading.Event, notifier: Notifier, sender: Sender
) -> str:
    """Return the host name of this machine's first executor; "" if ``stop`` is set before."""
    logged = False
    while not (host := find_host(table, names)):
        if not logged:
            logged = True
            _log.info("waiting for an executor of this machine", known_as=sorted(names))
        notifier.ready(f"waits for an executor of this machine{'; Redis is away' if sender.away else ''}")
        notifier.beat()
        if stop.wait(HOST_EVERY):
            notifier.stopping()
            return ""
    return host


def _open_endpoint(metrics: AgentMetrics, address: str) -> Callable[[], None]:
    """Open the metrics endpoint; without it, as where its port is taken, the agent goes on."""
    if not address:
        return lambda: None
    try:
        close = serve(metrics, address)
    except SettingsError as error:
        _log.error("no metrics endpoint", problem=str(error))
        return lambda: None
    _log.info("metrics endpoint", address=address)
    return close


def _notify_manager(notifier: Notifier, node: str, window: AgentWindow | None, sender: Sender) -> None:
    """Tell the service manager that a sample was taken, and the contents of a closed window."""
    if window is not None:
        away = f"; Redis is away, {sender.waiting} messages wait" if sender.away else ""
        counts = f"{with_noun(len(window.executors), 'executor')}, {with_noun(len(window.map_outputs), 'map output')}"
        notifier.ready(f"{node}: {counts} in the last window{away}")
    elif not notifier.is_ready:
        notifier.extend_timeout(STARTS)
    notifier.beat()


@dataclass(frozen=True)
class AgentHost:
    """Machine and service manager of an agent."""

    clock: Clock = field(default_factory=Clock)
    table: ProcessTable = field(default_factory=ProcessTable)
    notifier: Notifier = field(default_factory=Notifier.from_environment)


def run_agent(
    settings: Settings,
    *,
    stop: threading.Event,
    store_factory: Callable[[Settings], Store] = open_store,
    host: AgentHost | None = None,
) -> None:
    """Watch this node until ``stop`` is set.

    Redis may come and go; a last, shorter window is pushed at the end.

    Raises KeyNameError when the cluster's or the node's name cannot be part of a Redis key, and RuntimeError when the
    thread that pushes has failed.

    Without ``agent.node`` it waits for the first executor of this machine and uses its host name. ``store_factory``
    opens the connection to Redis, again after it was refused.
    """
    host = host or AgentHost()
    clock, notifier = host.clock, host.notifier
    Keys(settings.cluster.name)(WINDOWS, settings.agent.node or "node")
    store_settings = settings  # not changed with the node's name below
    sender = Sender(settings.agent.node, lambda: store_factory(store_settings), BUFFERED_WINDOWS)
    sender.start()
    if not settings.agent.node:
        name = _wait_for_host(host.table, own_names(), stop, notifier, sender)
        if not name:
            sender.stop(settings.redis.timeout + 0.5)
            return
        settings = replace(settings, agent=replace(settings.agent, node=name))
        Keys(settings.cluster.name)(WINDOWS, name)
        sender.node = name
    monitor = NodeMonitor(settings, clock=clock, table=host.table)
    author = EnvelopeFactory(settings.cluster.name, f"agent:{settings.node}", clock.wall)
    metrics = AgentMetrics(lambda: sender.waiting, lambda: sender.reachable, settings.cluster.name)

    def send(body: AgentWindow | AgentEvidence | None) -> None:
        if isinstance(body, AgentWindow):
            body = msgspec.structs.replace(body, skipped={**body.skipped, **sender.pop_dropped()})
            metrics.add(body)
        if body is not None:
            rule = WINDOWS if isinstance(body, AgentWindow) else EVIDENCE
            sender.offer(author.envelope(body, ttl=rule.ttl))

    _log.info("agent started", node=settings.node, sample=settings.agent.sample, window=settings.agent.window)
    close_endpoint = _open_endpoint(metrics, settings.agent.metrics)
    while True:
        if not sender.alive:  # no window would ever arrive, without a sign of it
            raise RuntimeError("the thread that pushes to Redis has failed")
        window, evidence = monitor.sample()
        send(evidence)
        send(window)
        _notify_manager(notifier, settings.node, window, sender)
        if clock.wait(stop, monitor.wait_time()):
            break
    notifier.stopping()
    send(monitor.finish())
    remaining = sender.stop(settings.redis.timeout + 0.5)
    close_endpoint()
    _log.info("agent stopped", node=settings.node, messages_not_pushed=remaining)
