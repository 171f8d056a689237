"""First fit decreasing: as few executors as take the state and the work.

Source: Twister2's streaming first fit task scheduler, which sorts by required RAM, the largest first (a comment there
says the reverse). It packs, it does not balance: what fits on the first executor goes there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from rechannel.policies.analysis.placement_cost import SATURATED
from rechannel.policies.model.arrays import FloatArray, IntArray, ModelError
from rechannel.policies.model.cluster import Cluster
from rechannel.policies.model.placement import Outcome, Placement
from rechannel.policies.model.workload import Workload
from rechannel.policies.policy import FunctionPolicy, Objective, check_number
from rechannel.policies.published.slots import (
    NOTHING_TO_PLACE,
    available_executors,
    partition_counts,
    placement_of_units,
)

__all__ = ["FIRST_FIT", "FirstFitParameters", "first_fit"]

PadMode = Literal["capacity_only", "source"]

_PAD_MODES = ("capacity_only", "source")
_ROUNDING = 1e-9
_MEGABYTE = 2.0**20


@dataclass(frozen=True)
class FirstFitParameters:
    """Settings of ``first-fit``.

    ``pad_mode``: "capacity_only" fills an executor up to its capacity; "source" asks for ``padding_percent`` megabytes
    and cores on top for each partition, since Twister2 adds the percentage as if it were an amount. ``padding_percent``
    is read in that mode only. ``utilization``: the busy share of an executor's cores up to which it is filled.
    """

    padding_percent: float = 1.0
    pad_mode: PadMode = "capacity_only"
    utilization: float = SATURATED

    def __post_init__(self) -> None:
        _check_pad_mode(self.pad_mode)
        check_number("padding_percent", self.padding_percent, 0, finite=True)
        check_number("utilization", self.utilization, 0, 1, above=True)


def first_fit(
    cluster: Cluster, workload: Workload, current: Placement, parameters: FirstFitParameters | None = None
) -> Outcome:
    """Place each partition, the largest state first, on the first executor that takes it.

    ``current`` is not looked at.

    Unlike Twister2, which has equal containers and fixed sizes, this goes by what is measured: a partition needs its
    state in bytes and its busy seconds per second on a reference executor; an available executor has its memory, and
    the allowed utilization of its cores at their speed. The work of floating stages is left out. There is no new
    container to open: what fits nowhere goes last, to the least utilized executor (among those whose memory takes it,
    if there are any), and a note counts it.

    Raises ``ModelError`` where the arguments do not fit together, ``ScaleOutError`` where no executor is available.
    """
    current.validate(cluster, workload)
    parameters = parameters or FirstFitParameters()
    if not workload.placeable:
        return Outcome(current, (NOTHING_TO_PLACE,))
    use = available_executors(cluster)
    cores = (cluster.cores * cluster.speed)[use]
    needs = np.concatenate(
        [np.column_stack([stage.state_bytes, stage.busy * stage.batches_per_second]) for stage in workload.placeable]
    )
    capacities = np.column_stack([cluster.memory_bytes[use], parameters.utilization * cores])
    extra = parameters.padding_percent * np.array([_MEGABYTE, 1.0]) * (parameters.pad_mode == "source")
    slots = _pack(needs, capacities, extra)
    homeless = np.flatnonzero(slots < 0)
    _place_rest(needs, capacities[:, 0], cores, slots)
    note = f"{homeless.size} partitions fit on no executor and went to the least utilized: add executors"
    return Outcome(placement_of_units(workload, use[slots]), (note,) if homeless.size else ())


def _pack(needs: FloatArray, capacities: FloatArray, extra: FloatArray) -> IntArray:
    """Return the first container that takes each instance, -1 where none does.

    ``capacities`` (C, R) are those of C containers.
    """
    result = np.full(len(needs), -1, dtype=np.int64)
    used = np.zeros(capacities.shape)
    limit = capacities * (1 + _ROUNDING)
    for unit in _by_memory(needs):
        fits = (used + needs[unit] + extra <= limit).all(axis=1)
        slot = int(np.argmax(fits))
        if fits[slot]:
            result[unit] = slot
            used[slot] += needs[unit]
    return result


def _place_rest(needs: FloatArray, memory: FloatArray, cores: FloatArray, slots: IntArray) -> None:
    placed = slots >= 0
    held = np.bincount(slots[placed], needs[placed, 0], len(cores))
    work = np.bincount(slots[placed], needs[placed, 1], len(cores))
    for unit in _by_memory(needs):
        if slots[unit] >= 0:
            continue
        fits = held + needs[unit, 0] <= memory * (1 + _ROUNDING)
        choices = np.flatnonzero(fits if fits.any() else np.ones_like(fits))
        slot = int(choices[np.argmin((work / cores)[choices])])
        slots[unit] = slot
        held[slot] += needs[unit, 0]
        work[slot] += needs[unit, 1]


def _by_memory(needs: FloatArray) -> list[int]:
    order: list[int] = np.argsort(-needs[:, 0], kind="stable").tolist()
    return order


def _check_pad_mode(value: str) -> None:
    if value not in _PAD_MODES:
        raise ModelError(f"pad_mode: expected one of {', '.join(_PAD_MODES)}, got {value!r}")


def _objective(
    cluster: Cluster, workload: Workload, placement: Placement, parameters: FirstFitParameters | None = None
) -> Objective:
    """Work above the limit of utilization in reference cores, then executors in use.

    Available executors only, and placeable stages only.
    """
    limit = (parameters or FirstFitParameters()).utilization
    used = partition_counts(cluster, workload, placement).sum(axis=0) > 0
    work = np.zeros(cluster.size)
    for stage in workload.placeable:
        executors = placement[stage.key]
        placed = executors >= 0
        work += stage.batches_per_second * np.bincount(executors[placed], stage.busy[placed], cluster.size)
    above = np.maximum(work - limit * (1 + _ROUNDING) * cluster.cores * cluster.speed, 0.0)
    return float(above[cluster.available].sum()), float(used.sum())


FIRST_FIT = FunctionPolicy(
    name="first-fit",
    place=first_fit,
    objective=_objective,
    parameters=FirstFitParameters,
    summary="Packs partitions onto as few executors as their state and work allow, the largest state first.",
    source="Twister2's first fit streaming task scheduler",
)
