"""R-Storm scheduler: neighboring stages close together, with least left unused.

Source: B. Peng, M. Hosseini, Z. Hong, R. Farivar, R. Campbell, "R-Storm: Resource-Aware Scheduling in Storm"
(Middleware 2015), as Apache Storm 1.0 does it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rechannel.policies.model.arrays import BoolArray, FloatArray, IntArray
from rechannel.policies.model.cluster import UNPLACED, Cluster
from rechannel.policies.model.placement import Placement, PolicyAnswer
from rechannel.policies.model.workload import Workload
from rechannel.policies.policy import FunctionPolicy, Objective, check_number
from rechannel.policies.published.units import PartialPlacement, Units, flatten

PERCENT = 100.0  # processor demand is counted in percent of a core, as Storm's is
MEGABYTE = 2.0**20
SAME_RACK, OTHER_RACK = 0.5, 1.0


@dataclass(frozen=True)
class RStormParameters:
    """Settings of ``r-storm``.

    The weights are those of processor, memory and network in its distance.
    """

    cpu_weight: float = 1.0
    memory_weight: float = 1.0
    network_weight: float = 1.0

    def __post_init__(self) -> None:
        for name in ("cpu_weight", "memory_weight", "network_weight"):
            check_number(name, getattr(self, name), 0)


def r_storm(cluster: Cluster, workload: Workload, current: Placement, parameters: RStormParameters) -> PolicyAnswer:
    """Place everything anew, one unit of each stage by turns, at the least distance.

    Stages of a query are ranked by breadth first search from those nothing flows into, over streams in both directions;
    round r takes the r-th unit of each, by rank. The first unit of a query goes to the sub-cluster with most unused
    processor and memory; from then on the executor of the last unit is the reference. Of the executors with enough of
    both, the one of least :func:`resource_distance`; ties: the first.

    Readings and deviations: a node of the paper is an executor, and a rack a sub-cluster. Demand is what was measured,
    not what was declared, and what floating stages use is not free. Where an executor's memory is not known, its term
    of the distance is at its limit, 1, and memory does not choose the first sub-cluster. Storm gives up where nothing
    fits: here the unit goes to the least utilized executor, and a note counts these. ``current`` is not looked at.
    """
    units = flatten(cluster, workload, current)
    partial = PartialPlacement(units)
    for query in workload.queries:
        reference = UNPLACED
        for unit in _turns(units, workload, query):
            fits = partial.fits(unit)
            if not fits.any():
                partial.misfits += 1
                reference = partial.emptiest(cluster.available)
            else:
                if reference == UNPLACED:
                    fits &= _most_unused(partial, fits)
                distance = _distance(partial, unit, reference, parameters)
                reference = int(np.where(fits, distance, np.inf).argmin())
            partial.put(unit, reference)
    return partial.answer()


def resource_distance(
    demand: tuple[float, float],
    cpu: FloatArray,
    memory: FloatArray,
    network: FloatArray,
    weights: tuple[float, float, float] = (1.0, 1.0, 1.0),
) -> FloatArray:
    """Return the distance of a demand from what each of M executors has unused, (M,).

    The length of the vector of (demand - unused) / (unused + 1) for processor and memory, and of the network distance.

    ``demand``: percent of a core and megabytes, as Storm counts them; ``cpu`` and ``memory``: what each executor has
    unused, in the same units, (M,) (infinite memory: not known); ``network``: distance of each from the reference,
    (M,); ``weights``: of processor, memory and network.
    """
    cpu_term = weights[0] * (demand[0] - cpu) / (cpu + 1)
    valid = np.isfinite(memory)
    memory_term = np.full(memory.shape, -weights[1])
    memory_term[valid] = weights[1] * (demand[1] - memory[valid]) / (memory[valid] + 1)
    distance: FloatArray = np.sqrt(cpu_term**2 + memory_term**2 + (weights[2] * network) ** 2)
    return distance


def unfit_and_far(cluster: Cluster, workload: Workload, placement: Placement, _parameters: object = None) -> Objective:
    """Objective: bytes beyond the memory, cores beyond the capacity, and network distance.

    That is summed (0 within a node, 0.5 within a sub-cluster, else 1) over the two ends of every stream, whatever its
    volume: the paper declares demands and measures no traffic. An end on no executor is far.
    """
    units = flatten(cluster, workload, placement)
    partial = PartialPlacement(units, units.current)
    source, target = partial.where[units.source], partial.where[units.target]
    far = _network_distance(units, source, target)
    far[(source == UNPLACED) | (target == UNPLACED)] = OTHER_RACK
    return (
        float(np.maximum(partial.memory - cluster.memory_bytes, 0.0).sum()),
        float(np.maximum(partial.load - units.capacity, 0.0).sum()),
        float(far.sum()),
    )


def _network_distance(units: Units, one: IntArray, other: IntArray | int) -> FloatArray:
    """Return the distance of executors: 0 on one node, 0.5 in one sub-cluster, else 1."""
    racks = units.cluster.subcluster
    far = np.where(racks[one] == racks[other], SAME_RACK, OTHER_RACK)
    return np.where(units.node[one] == units.node[other], 0.0, far)


def _turns(units: Units, workload: Workload, query: str) -> Iterator[int]:
    index = {key: i for i, key in enumerate(units.keys)}
    ranked: list[IntArray] = [
        np.arange(units.offsets[index[key]], units.offsets[index[key] + 1])
        for key in _ranked(workload, query)
        if key in index
    ]
    for turn in range(max((len(members) for members in ranked), default=0)):
        yield from (int(members[turn]) for members in ranked if turn < len(members))


def _ranked(workload: Workload, query: str) -> list[str]:
    near: dict[str, list[str]] = {stage.key: [] for stage in workload.stages if stage.query == query}
    fed: set[str] = set()
    for up, down in ((it.upstream, it.downstream) for it in workload.shuffles if it.upstream in near):
        near[up].append(down)
        near[down].append(up)
        fed.add(down)
    order: dict[str, None] = {}
    for spout in near:
        if spout in fed or spout in order:
            continue
        order[spout] = None
        waiting = deque([spout])
        while waiting:
            for key in near[waiting.popleft()]:
                if key not in order:
                    order[key] = None
                    waiting.append(key)
    return list(order)


def _most_unused(partial: PartialPlacement, fits: BoolArray) -> BoolArray:
    """Of the sub-clusters with an executor that fits, return that with most unused."""
    units, cluster = partial.units, partial.units.cluster
    unused = PERCENT * (units.capacity - partial.load)
    if np.isfinite(cluster.memory_bytes[cluster.available]).all():
        unused = unused + (cluster.memory_bytes - partial.memory) / MEGABYTE
    total = np.bincount(cluster.subcluster[cluster.available], weights=unused[cluster.available])
    eligible = np.unique(cluster.subcluster[fits])
    return np.asarray(cluster.subcluster == eligible[total[eligible].argmax()])


def _distance(partial: PartialPlacement, unit: int, reference: int, parameters: RStormParameters) -> FloatArray:
    units, cluster = partial.units, partial.units.cluster
    everyone = np.arange(cluster.size)
    network = np.zeros(cluster.size) if reference == UNPLACED else _network_distance(units, everyone, reference)
    cpu = np.maximum(units.capacity - partial.load, 0.0)
    memory = np.maximum(cluster.memory_bytes - partial.memory, 0.0)
    return resource_distance(
        (PERCENT * units.load[unit], units.memory[unit] / MEGABYTE),
        PERCENT * cpu,
        memory / MEGABYTE,
        network,
        (parameters.cpu_weight, parameters.memory_weight, parameters.network_weight),
    )


R_STORM = FunctionPolicy(
    name="r-storm",
    scheduler=r_storm,
    measure=unfit_and_far,
    parameters=RStormParameters,
    summary="Keeps neighboring stages close together, each partition where its demand leaves least unused.",
    source="Peng and others, R-Storm: Resource-Aware Scheduling in Storm (Middleware 2015)",
)
