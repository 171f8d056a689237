"""Aniello scheduler: pairs of partitions into slots, then pairs of slots onto nodes.

The pairs with most traffic come first. Source: L. Aniello, R. Baldoni, L. Querzoni, "Adaptive Online Scheduling in
Storm" (DEBS 2013): its online scheduler, as the authors' program does it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rechannel.policies.analysis.placement_cost import executor_busy, inter_node_volume
from rechannel.policies.model.arrays import FloatArray, IntArray, sum_by_index
from rechannel.policies.model.cluster import UNPLACED, Cluster
from rechannel.policies.model.placement import Placement, PolicyAnswer
from rechannel.policies.model.workload import Workload
from rechannel.policies.policy import FunctionPolicy, Objective, check_number
from rechannel.policies.published.pairing import Bins, Pairs
from rechannel.policies.published.stream_classification import traffic
from rechannel.policies.published.units import ROUNDING, Units, best_of, flatten, merge_pairs


@dataclass(frozen=True)
class AnielloParameters:
    """Settings of ``aniello-online``.

    ``threshold``: the least share of the traffic between nodes that a proposal saves (0.05).
    ``alpha``: with 0, every slot takes the same number of partitions; with 1, a slot may take all but one for each
    other slot.
    """

    threshold: float = 0.05
    alpha: float = 0.0

    def __post_init__(self) -> None:
        check_number("threshold", self.threshold, 0, 1)
        check_number("alpha", self.alpha, 0, 1)


def aniello_online(
    cluster: Cluster, workload: Workload, current: Placement, parameters: AnielloParameters
) -> PolicyAnswer:
    """Propose a placement with less traffic between nodes, if it falls by the threshold.

    First the pairs of partitions of each query, by traffic descending: both in no slot yet go to the least loaded slot;
    else every way to put the two into their slots and the least loaded one is tried, and the one with least traffic
    between slots kept. Slots hold at most :func:`most_in_a_slot`; empty ones then take the partition that loses least.
    Then the same for pairs of slots and nodes, as far as a node has slots and cores left. It is also proposed where
    that eases an executor that is overloaded now, and where ``current`` is not complete.

    Readings and deviations: a query has as many slots as executors are available, and each executor takes one of them,
    the one it exchanges most with through floating stages. What those run is placed from the start, for nodes only.
    Partitions in no pair go to the least loaded slot, the heaviest first. Where no node has the cores, the least loaded
    one is taken. State memory is not looked at.
    """
    units = flatten(cluster, workload, current)
    pairs = units.pairs()
    slots = _slots(units, pairs, parameters.alpha)
    placement = units.placement(_executors(units, pairs, slots, _nodes(units, pairs, slots))[slots])
    if (units.home() == UNPLACED).any():
        return PolicyAnswer(placement, ("partitions had to be placed: their executor is unavailable or unknown",))
    before, after = (inter_node_volume(cluster, workload, each) for each in (current, placement))
    if after < before and after <= before * (1 - parameters.threshold):
        return PolicyAnswer(placement, (f"traffic between nodes falls by {1 - after / before:.1%}",))
    busy, eased = (executor_busy(cluster, workload, each) for each in (current, placement))
    if ((busy > cluster.cores) & (eased < busy * (1 - ROUNDING)) & cluster.available).any():
        return PolicyAnswer(placement, ("an overloaded executor is eased",))
    return PolicyAnswer(current, (f"traffic between nodes would not fall by {parameters.threshold:.1%}",))


def most_in_a_slot(count: int, slots: int, alpha: float) -> int:
    """Return the most of ``count`` partitions that one of ``slots`` takes.

    An even share at alpha 0, and at least; all but one for each other slot at alpha 1.
    """
    even_share = -(-count // slots)
    return even_share + int(np.ceil(alpha * max(count - slots + 1 - even_share, 0) - ROUNDING))


def overload_and_traffic(
    cluster: Cluster, workload: Workload, placement: Placement, _parameters: object = None
) -> Objective:
    """Objective: load beyond the cores, then bytes per second between nodes and executors.

    Both are reasons to reschedule in the paper; overload first, since traffic may rise to ease it.
    """
    over = np.maximum(executor_busy(cluster, workload, placement) - cluster.cores, 0.0)
    return (float(over[cluster.available].sum()), *traffic(cluster, workload, placement))


def _slots(units: Units, pairs: Pairs, alpha: float) -> IntArray:
    """Slot of each unit, numbered through over the queries."""
    slots = int(units.cluster.available.sum())
    low, high, volume = pairs
    result = np.empty(units.size, dtype=np.int64)
    for query in np.unique(units.query_of):
        members = np.flatnonzero(units.query_of == query)
        count = len(members)
        index = np.full(units.ends, UNPLACED, dtype=np.int64)
        index[members] = np.arange(count)
        inside = (index[low] != UNPLACED) & (index[high] != UNPLACED)
        cap = most_in_a_slot(count, slots, alpha)
        room = np.full((1, slots), cap)
        bins = Bins(units.load[members], np.zeros(count, np.int64), room, np.zeros((count, slots)), np.zeros(slots))
        bins.fill((index[low[inside]], index[high[inside]], volume[inside]))
        for empty in np.flatnonzero(room[0] == cap).tolist():
            shared = room[0][bins.bin_of] < cap - 1
            if shared.any():
                local = bins.attraction[np.arange(count), bins.bin_of]
                bins.move(int(np.where(shared, local, np.inf).argmin()), empty)
        result[members] = query * slots + bins.bin_of
    return result


def _nodes(units: Units, pairs: Pairs, slot: IntArray) -> IntArray:
    """Node of each slot, :data:`UNPLACED` for an empty one."""
    available = units.cluster.available
    slots, nodes = int(available.sum()), int(units.node.max()) + 1
    used, item = np.unique(slot, return_inverse=True)
    movable = pairs[1] < units.size
    low, high, volume = (values[movable] for values in pairs)
    firsts, seconds = item[low], item[high]
    apart = firsts != seconds
    node = np.where(available, units.node, -1)
    bins = Bins(
        sum_by_index(item, units.load, len(used)),
        used // slots,
        np.tile(np.bincount(units.node[available], minlength=nodes), (int(units.query_of.max()) + 1, 1)),
        _anchored(units, pairs, item, units.node),
        sum_by_index(node, units.fixed, nodes),
        sum_by_index(node, units.capacity, nodes),
    )
    bins.fill(merge_pairs(firsts[apart], seconds[apart], volume[apart], len(used)))
    result = np.full(int(slot.max()) + 1, UNPLACED, dtype=np.int64)
    result[used] = bins.bin_of
    return result


def _executors(units: Units, pairs: Pairs, slot: IntArray, node: IntArray) -> IntArray:
    """Executor of each slot: the heaviest first, on its node and not yet used by its query."""
    cluster = units.cluster
    load = np.bincount(slot, weights=units.load, minlength=len(node))
    anchored = _anchored(units, pairs, slot, np.arange(cluster.size))
    free = np.tile(cluster.available, (int(units.query_of.max()) + 1, 1))
    held, slots = units.fixed.copy(), int(cluster.available.sum())
    result = np.full(len(node), UNPLACED, dtype=np.int64)
    for item in np.argsort(-load, kind="stable").tolist():
        if node[item] != UNPLACED:
            allowed = np.flatnonzero(free[item // slots] & (units.node == node[item]))
            executor = best_of(allowed, (-anchored[item], held / units.capacity))
            result[item], free[item // slots, executor] = executor, False
            held[executor] += load[item]
    return result


def _anchored(units: Units, pairs: Pairs, group: IntArray, place: IntArray) -> FloatArray:
    """Return each group's volume to the floating stages of each place; ``place``: by executor."""
    low, high, volume = pairs
    fixed = (low < units.size) & (high >= units.size)
    result = np.zeros((int(group.max()) + 1, int(place.max()) + 1))
    np.add.at(result, (group[low[fixed]], place[high[fixed] - units.size]), volume[fixed])
    return result


ANIELLO_ONLINE = FunctionPolicy(
    name="aniello-online",
    scheduler=aniello_online,
    measure=overload_and_traffic,
    parameters=AnielloParameters,
    summary="Groups partitions by their traffic and groups onto nodes, where that saves enough of it.",
    source="Aniello, Baldoni, Querzoni, Adaptive Online Scheduling in Storm (DEBS 2013)",
)
