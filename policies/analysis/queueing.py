"""Queue model of the cluster: arrival rates, utilization and fair shares.

Source: the pipelined migration scheduling work (Souravlas and others), which treats the nodes as an open network of
queues (Jackson 1957): traffic equations (its eq. 11), utilization (10), state probability (9), and a three-step fair
distribution of tasks by free capacity. Its printed formulas are lost; the forms here are the standard ones, and they
reproduce its only worked example, 50 tasks over three nodes as 18, 9 and 23.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rechannel.policies.analysis.placement_cost import executor_busy, unit_executors
from rechannel.policies.model.arrays import FloatArray, IntArray, ModelError, ScaleOutError, float_array, sum_by_index
from rechannel.policies.model.cluster import Cluster
from rechannel.policies.model.placement import Placement
from rechannel.policies.model.shuffles import Shuffle
from rechannel.policies.model.workload import Workload

_ROUNDING = 1e-9


class ShareOverflowError(ScaleOutError):
    """Free capacity that does not hold all tasks.

    ``shares`` is what fits, each executor capped at its whole free capacity; ``rest`` tasks are left over for
    another sub-cluster.
    """

    def __init__(self, shares: IntArray, rest: int) -> None:
        super().__init__(f"free capacity holds {int(shares.sum())} tasks, {rest} are left: add executors")
        self.shares = shares
        self.rest = rest


@dataclass(frozen=True, eq=False)
class QueueReport:
    """Results of the queue model for each executor, shape (E,) each.

    ``arrival_rate`` rows per second that reach its tasks; ``service_rate`` rows per second it could serve with all
    cores busy (nan where no row arrives, since a row's cost is then unknown); ``utilization`` the busy share of its
    cores: where that is 1 or more, a queue would grow without bound.
    """

    arrival_rate: FloatArray
    service_rate: FloatArray
    utilization: FloatArray


def unit_rates(workload: Workload) -> dict[str, FloatArray]:
    """Rows per second that reach each entry of each stage.

    The traffic equations with these readings: a stage that no stream enters has its own rows as arrivals from
    outside; every other entry gets what is routed to it, and an entry's output divides over the entries downstream
    (over all its shuffles together) as its bytes do. Stages stand in topological order, so the equations are solved
    stage by stage, never as one dense system.
    """
    fed = {shuffle.downstream for shuffle in workload.shuffles}
    rates = {
        stage.key: np.zeros(stage.n) if stage.key in fed else stage.rows * stage.batches_per_second
        for stage in workload.stages
    }
    leaving: dict[str, list[Shuffle]] = {}  # by the stage upstream
    for shuffle in workload.shuffles:
        leaving.setdefault(shuffle.upstream, []).append(shuffle)
    for stage in [stage for stage in workload.stages if stage.key in leaving]:
        total = np.zeros(stage.n)
        for shuffle in leaving[stage.key]:
            total += shuffle.sent()
        per_byte = np.divide(rates[stage.key], total, out=np.zeros(stage.n), where=total > 0)
        for shuffle in leaving[stage.key]:
            rates[shuffle.downstream] += shuffle.forward(per_byte)
    return rates


def executor_utilization(
    cluster: Cluster, workload: Workload, placement: Placement, rates: Mapping[str, FloatArray] | None = None
) -> QueueReport:
    """Apply the queue model to Spark's tasks: rates and utilization of each executor.

    The nodes of the network are the tasks of every stage. A task's service time is its busy seconds per second over
    its arrival rate, so the utilization of an executor, the sum of rate times service time over its cores and
    speed, is its busy time over its cores. Where a task is busy but no row is routed to it, its busy time counts as
    it is: it has no service time, but it does occupy a core. ``rates``: those of `unit_rates`, which no placement
    changes.
    """
    busy = executor_busy(cluster, workload, placement)
    arrivals = np.zeros(cluster.size)
    rates = unit_rates(workload) if rates is None else rates
    for stage in workload.stages:
        arrivals += sum_by_index(unit_executors(cluster, stage, placement), rates[stage.key], cluster.size)
    seconds = np.divide(busy, arrivals, out=np.full(cluster.size, np.nan), where=arrivals > 0)
    service = np.full(cluster.size, np.nan)
    np.divide(cluster.cores, seconds, out=service, where=seconds > 0)
    service[(arrivals > 0) & (busy == 0)] = np.inf
    return QueueReport(arrivals, service, busy / cluster.cores)


def fair_shares(
    count: int,
    utilization: FloatArray,
    *,
    weights: FloatArray | None = None,
    caps: IntArray | None = None,
    distances: FloatArray | None = None,
) -> IntArray:
    """Divide ``count`` tasks over M nodes in proportion to their free capacity, (M,).

    Free capacity is ``count`` times the idle share, scaled so that the shares add up; they are rounded by largest
    remainder (ties: the nearer, then the lower index), so none is off by one task or more and none is lost. No node
    gets more than its free capacity, rounded up, and what is too much for one is shared among the others.

    Raises :class:`ShareOverflowError` where the free capacities or caps add up to less than ``count``, and
    ``ScaleOutError`` where every node is saturated.

    ``utilization``: busy share of each node, (M,); ``weights``: factors of the free capacities before they are scaled,
    above 0, (M,), such as inverse distances; ``caps``: most tasks of each, (M,); ``distances``: of each, in any unit,
    (M,), to decide ties only.
    """
    rho = float_array("utilization", utilization)
    size = len(rho)
    if count < 0:
        raise ModelError(f"count: must not be negative, got {count}")
    pull = np.ones(size) if weights is None else float_array("weights", weights)
    near = np.zeros(size) if distances is None else float_array("distances", distances)
    limit = np.full(size, count) if caps is None else np.asarray(caps)
    if not pull.shape == near.shape == limit.shape == rho.shape:
        raise ModelError(f"weights, caps and distances: expected {size} entries")
    if not np.issubdtype(limit.dtype, np.integer) or (limit < 0).any() or (pull <= 0).any():
        raise ModelError("weights: must be above zero, caps: whole numbers, none negative")
    if count == 0:
        return np.zeros(size, dtype=np.int64)
    free = count * np.maximum(0.0, 1.0 - rho)
    total = float(free.sum())
    if total <= 0:
        raise ScaleOutError("every executor is saturated: add executors")
    max_shares = np.minimum(np.ceil(free - _ROUNDING).astype(np.int64), limit)
    if count / total > 1 + _ROUNDING or max_shares.sum() < count:
        capped = np.minimum(np.floor(free + _ROUNDING).astype(np.int64), limit)
        raise ShareOverflowError(capped, count - int(capped.sum()))
    exact = _water_level(count, free * pull, max_shares)
    shares = np.floor(exact + _ROUNDING).astype(np.int64)
    remainder = np.where(shares < max_shares, np.round(exact - shares, 9), -1.0)
    shares[np.lexsort((near, -remainder))[: count - int(shares.sum())]] += 1
    return shares


def _water_level(count: int, pull: FloatArray, max_shares: IntArray) -> FloatArray:
    """Return shares of ``count`` in proportion to ``pull``, none above ``max_shares``.

    These add up to enough.
    """
    exact = np.zeros(len(pull))
    unbound = (pull > 0) & (max_shares > 0)
    while unbound.any():
        left = count - float(exact[~unbound].sum())
        exact[unbound] = left * pull[unbound] / pull[unbound].sum()
        over = unbound & (exact > max_shares)
        if not over.any():
            break
        exact[over] = max_shares[over]
        unbound &= ~over
    return exact
