"""T-Storm scheduler: partitions with most traffic first, least traffic between nodes.

Source: J. Xu, Z. Chen, J. Tang, S. Su, "T-Storm: Traffic-Aware Online Scheduling in Storm" (ICDCS 2014). Details that
its descriptions leave open are chosen here and named where they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rechannel.policies.model.arrays import sum_by_index
from rechannel.policies.model.cluster import Cluster
from rechannel.policies.model.placement import Placement, PolicyAnswer
from rechannel.policies.model.workload import Workload
from rechannel.policies.policy import FunctionPolicy, check_number
from rechannel.policies.published.stream_classification import traffic
from rechannel.policies.published.units import PartialPlacement, best_of, flatten


@dataclass(frozen=True)
class TStormParameters:
    """Settings of ``t-storm``.

    ``consolidation``: how many times its even share of partitions a slot may hold (1: even by count; more: fewer nodes
    are used). ``capacity``: the share of an executor's cores that may be taken.
    """

    consolidation: float = 1.0
    capacity: float = 1.0

    def __post_init__(self) -> None:
        check_number("consolidation", self.consolidation, 1)
        check_number("capacity", self.capacity, 0, above=True)


def t_storm(cluster: Cluster, workload: Workload, current: Placement, parameters: TStormParameters) -> PolicyAnswer:
    """Place everything anew, by total traffic descending, each unit to the best slot.

    Ties go by index. A slot is an executor and a topology a query: a query uses one executor of a node. A slot is
    allowed below the cap of partitions, which is ``consolidation`` times the partitions over the nodes, rounded up,
    and where processor and memory suffice. Of these, the one that adds least traffic between nodes to what is already
    placed.

    Choices: what floating stages run is placed from the start. Ties go to less traffic between executors, then to the
    lower utilization. Memory counts as capacity. A unit that fits nowhere goes to the least utilized slot below the
    cap, and a note counts these. The paper starts from nothing, so the current placement is not looked at.
    """
    units = flatten(cluster, workload, current)
    partial, links = PartialPlacement(units), units.neighbors()
    nodes = len(np.unique(units.node[cluster.available]))
    cap = int(np.ceil(parameters.consolidation * units.size / nodes))
    free = np.tile(cluster.available, (len(workload.queries), 1))  # executors that a query may still use
    everything = sum_by_index(np.concatenate((units.source, units.target)), np.tile(units.volume, 2), units.ends)
    for unit in np.argsort(-everything[: units.size], kind="stable").tolist():
        query = units.query_of[unit]
        allowed = free[query] & (partial.count < cap)
        fits = allowed & partial.fits(unit, parameters.capacity)
        if fits.any():
            local = partial.local(links, unit)
            on_node = sum_by_index(units.node, local, cluster.size)[units.node]
            executor = best_of(np.flatnonzero(fits), (-on_node, -local, partial.utilization))
        else:
            partial.misfits += 1
            executor = partial.emptiest(allowed)
        partial.put(unit, executor)
        free[query] &= (units.node != units.node[executor]) | (np.arange(cluster.size) == executor)
    return partial.answer()


T_STORM = FunctionPolicy(
    name="t-storm",
    scheduler=t_storm,
    measure=traffic,
    parameters=TStormParameters,
    summary="Puts partitions, those with most traffic first, where they add least traffic between nodes.",
    source="Xu and others, T-Storm: Traffic-Aware Online Scheduling in Storm (ICDCS 2014)",
)
