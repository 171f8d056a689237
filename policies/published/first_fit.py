"""First fit decreasing: as few executors as take the state and the work.

Source: Twister2's streaming first fit task scheduler, which sorts by required RAM, the largest first (a comment there
says the reverse). It packs, it does not balance: what fits on the first executor goes there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from rechannel.policies.analysis.placement_cost import SATURATED
from rechannel.policies.model.cluster import Cluster
from rechannel.policies.model.placement import Placement, PolicyAnswer
from rechannel.policies.model.workload import Workload
from rechannel.policies.policy import FunctionPolicy, Objective, check_choice, check_number
from rechannel.policies.published.units import ROUNDING, PartialPlacement, flatten

PadMode = Literal["capacity_only", "source"]

_MEGABYTE = 2.0**20


@dataclass(frozen=True)
class FirstFitParameters:
    """Settings of ``first-fit``.

    ``pad_mode``: "capacity_only" fills an executor up to its capacity; "source" adds ``padding_percent`` megabytes and
    cores to the demand of each partition, as Twister2 adds the percentage as an amount. ``padding_percent``: only read
    in that mode. ``utilization``: the busy share of an executor's cores up to which it is filled.
    """

    padding_percent: float = 1.0
    pad_mode: PadMode = "capacity_only"
    utilization: float = SATURATED

    def __post_init__(self) -> None:
        check_choice("pad_mode", self.pad_mode, get_args(PadMode))
        check_number("padding_percent", self.padding_percent, 0, finite=True)
        check_number("utilization", self.utilization, 0, 1, above=True)


def first_fit(cluster: Cluster, workload: Workload, current: Placement, parameters: FirstFitParameters) -> PolicyAnswer:
    """Place each partition, the largest state first, on the first executor that takes it.

    Twister2 has equal containers and fixed sizes; here sizes are measured. A partition needs memory for its state, and
    its busy seconds per second on a reference executor. An available executor has its memory, and the allowed
    utilization of its cores at their speed. The work of floating stages and the current placement do not count. There
    are no further containers: a partition that fits nowhere goes last, to the least utilized executor (of those with
    enough memory, if there are any), and a note counts it.
    """
    units = flatten(cluster, workload, current)
    partial = PartialPlacement(units, floating=False)
    cores, megabytes = parameters.padding_percent * (parameters.pad_mode == "source") * np.array([1.0, _MEGABYTE])
    limit = parameters.utilization * units.capacity * (1 + ROUNDING)
    memory = cluster.memory_bytes * (1 + ROUNDING)
    rest: list[int] = []
    for unit in np.argsort(-units.memory, kind="stable").tolist():
        fits = partial.load + units.load[unit] + cores <= limit
        fits &= cluster.available & (partial.memory + units.memory[unit] + megabytes <= memory)
        if fits.any():
            partial.put(unit, int(fits.argmax()))
        else:
            rest.append(unit)
    for unit in rest:
        fits = cluster.available & (partial.memory + units.memory[unit] <= memory)
        partial.put(unit, partial.emptiest(fits if fits.any() else cluster.available))
    note = f"{len(rest)} partitions fit on no executor and went to the least utilized: add executors"
    return PolicyAnswer(units.placement(partial.assignment), (note,) if rest else ())


def _objective(cluster: Cluster, workload: Workload, placement: Placement, parameters: FirstFitParameters) -> Objective:
    """Work of placeable stages above the limit, in reference cores, then executors in use."""
    units = flatten(cluster, workload, placement)
    partial = PartialPlacement(units, units.current, floating=False)
    above = np.maximum(partial.load - parameters.utilization * (1 + ROUNDING) * units.capacity, 0.0)
    return float(above[cluster.available].sum()), float((partial.count[cluster.available] > 0).sum())


FIRST_FIT = FunctionPolicy(
    name="first-fit",
    scheduler=first_fit,
    measure=_objective,
    parameters=FirstFitParameters,
    summary="Packs partitions onto as few executors as their state and work allow, the largest state first.",
    source="Twister2's first fit streaming task scheduler",
)
