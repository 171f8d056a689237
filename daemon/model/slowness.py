"""Slow executors: their cause by the figures of agents, and the speed that counts. Pure.

The times of tasks show that an executor is slow (:mod:`rechannel.policies.analysis.service_rate`), its agent shows why:
its CPU limit, the hypervisor, other processes on its node, or none of these.

A throttled executor has the speed that its tasks show, because a limit lasts: this is its real pace. Stolen or used-up
CPU of a node can pass within seconds, and moves that follow it come too late and must be rolled back. So slowness from
these causes counts only as far as older batches show it too: an executor that was slow before stays so, and a load that
lasts counts once most of the stored batches ran under it. Slowness of a new executor does not count until `_WARM_UP`
has passed; otherwise one that joins would get next to nothing until the next decision.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rechannel.daemon.model.application_messages import ApplicationMessages
from rechannel.policies.analysis.service_rate import ServiceRates
from rechannel.policies.model.arrays import BoolArray
from rechannel.wire.codes import SlowCause
from rechannel.wire.measurements import AgentWindow, BatchReport
from rechannel.wire.messages import ExecutorInfo

LEAST_TAKEN = 0.05  # share of the time throttled, or of the node's CPU stolen, that counts as a cause
USED_UP = 0.95  # share of the node's CPU in use
LEAST_OTHERS = 0.2  # share in use by other processes: tasks take 1.25 times as long, the least slowness by default

_WARM_UP = 120.0  # seconds for which an executor among older ones is new: its JVM compiles code


@dataclass(frozen=True)
class CpuShares:
    """Shares (0 to 1) of what took CPU from an executor; ``limit`` in cores, 0 for none.

    ``throttled``: of the time for which its CPU limit stopped it. Of the CPU of its node: ``stolen`` by the hypervisor,
    ``busy`` in use by all processes, ``others`` in use by processes that are no executors of its application.
    """

    throttled: float = 0.0
    stolen: float = 0.0
    busy: float = 0.0
    others: float = 0.0
    limit: float = 0.0


@dataclass(frozen=True)
class Slowness:
    """Cause and evidence of an executor's slowness; ``speed`` is what counts, 1 is usual."""

    cause: SlowCause
    speed: float
    evidence: str

    @property
    def sentence(self) -> str:
        """The cause, if there is one, and the evidence."""
        return f"slow{'' if self.cause is SlowCause.SLOW else f' ({self.cause})'}: {self.evidence}"


def slow_executors(
    messages: ApplicationMessages,
    infos: Sequence[ExecutorInfo],
    recent: Mapping[str, Sequence[BatchReport]],
    rates: ServiceRates,
    now: float,
) -> dict[str, Slowness]:
    """Return the slowness of each executor that is slow.

    ``rates`` are in the order of ``infos``; ``recent``: query -> its batches that the decision averages. Only agent
    windows that overlap these batches are read.
    """
    spans = [(batch.start, batch.end) for batches in recent.values() for batch in batches]
    warming_up = _warming_up(infos, rates, now)
    result = {}
    for index in np.flatnonzero(rates.slow).tolist():
        info = infos[index]
        windows = [
            window
            for window in messages.windows_of(info)
            if any(start < window.end and window.start < end for start, end in spans)
        ]
        shares = cpu_shares(windows, messages.application, info.executor)
        result[info.executor] = judge_slowness(rates, index, shares, is_warming_up=bool(warming_up[index]))
    return result


def judge_slowness(rates: ServiceRates, index: int, shares: CpuShares, *, is_warming_up: bool) -> Slowness:
    """Return the slowness of an executor that is slow; it does not count while it warms up."""
    cause = find_cause(shares)
    evidence = []
    if rates.by_peers[index]:
        evidence.append(f"its tasks take {rates.times[index]:.1f} times what others' take")
    if rates.by_history[index]:
        evidence.append(f"{rates.grown[index]:.1f} times what they took there before")
    if cause is SlowCause.THROTTLED:
        evidence.append(
            f"its CPU limit of {shares.limit:.2g} cores throttled it for {shares.throttled:.0%} of the time"
        )
    elif cause is SlowCause.STOLEN:
        evidence.append(f"the hypervisor took {shares.stolen:.0%} of its node's CPU")
    elif cause is SlowCause.BUSY:
        evidence.append(f"other processes use {shares.others:.0%} of its node's CPU")
    speed = float(rates.speed[index])
    if is_warming_up:
        speed = 1.0
        evidence.append("which is ignored while the executor is new")
    elif cause in (SlowCause.STOLEN, SlowCause.BUSY) and rates.by_history[index]:
        speed = float(rates.lasting_speed[index])
        evidence.append("which is ignored until its older batches are slow too")
    return Slowness(cause, speed, ", ".join(evidence))


def find_cause(shares: CpuShares) -> SlowCause:
    """Return what made a slow executor slow; its own limit goes before its node."""
    if shares.throttled >= LEAST_TAKEN:
        return SlowCause.THROTTLED
    if shares.stolen >= LEAST_TAKEN:
        return SlowCause.STOLEN
    if shares.busy >= USED_UP and shares.others >= LEAST_OTHERS:
        return SlowCause.BUSY
    return SlowCause.SLOW


def cpu_shares(windows: Iterable[AgentWindow], application: str, executor: str) -> CpuShares:
    """Return the shares of an executor over the windows that have it; all 0 without any.

    The limit is that of the last window.
    """
    seconds = throttled = capacity = stolen = busy = own = limit = 0.0
    for window in windows:
        usages = [usage for usage in window.executors if usage.application == application]
        usage = next((usage for usage in usages if usage.executor == executor), None)
        if usage is None or window.end <= window.start:
            continue
        seconds += window.end - window.start
        capacity += (window.end - window.start) * max(1, window.cores)
        throttled, limit = throttled + usage.throttled, usage.cpu_limit
        stolen, busy = stolen + window.stolen, busy + window.node_cpu
        own += sum(usage.jvm_cpu + usage.python_cpu for usage in usages)
    if not seconds:
        return CpuShares()
    return CpuShares(
        throttled=_share(throttled, seconds),
        stolen=_share(stolen, capacity),
        busy=_share(busy, capacity),
        others=_share(busy - own, capacity),
        limit=limit,
    )


def _share(part: float, whole: float) -> float:
    """Return a share within 0 and 1, whatever a message claims."""
    return min(1.0, max(0.0, part / whole))


def _warming_up(infos: Sequence[ExecutorInfo], rates: ServiceRates, now: float) -> BoolArray:
    """Mark executors that are slower than older ones only for as long as they are new, (E,)."""
    ages = now - np.array([info.added for info in infos])
    new = (ages < _WARM_UP) & bool((ages >= _WARM_UP).any())
    return np.asarray(new & rates.by_peers & ~rates.by_history)
