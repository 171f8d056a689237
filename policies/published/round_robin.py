"""Round robin, stage by stage: every stage starts at the first executor again.

Source: Twister2's streaming round robin task scheduler. Each stage is even by count; together they are not, since the
left-overs of every stage go to the first executors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rechannel.policies.model.arrays import FloatArray, IntArray, ModelError, ScaleOutError, checked_floats
from rechannel.policies.model.cluster import Cluster
from rechannel.policies.model.placement import Outcome, Placement
from rechannel.policies.model.workload import Workload
from rechannel.policies.policy import Objective, PolicyEntry
from rechannel.policies.published.slots import (
    NOTHING_TO_PLACE,
    available_executors,
    check_whole,
    partition_counts,
    unevenness,
)

__all__ = ["ROUND_ROBIN", "RoundRobinParameters", "container_resources", "round_robin"]

PADDING = (2.0, 12.0, 1.0)
"""Twister2's own share of a container: RAM and disk in megabytes, CPU in cores."""


@dataclass(frozen=True)
class RoundRobinParameters:
    """Settings of ``round-robin``.

    ``instances_per_executor``: the most partitions of one stage that an executor may get, None for no limit. It is the
    limit of Twister2's graph constraints.
    """

    instances_per_executor: int | None = None

    def __post_init__(self) -> None:
        check_whole("instances_per_executor", self.instances_per_executor)


def round_robin(
    cluster: Cluster, workload: Workload, current: Placement, parameters: RoundRobinParameters | None = None
) -> Outcome:
    """Partition i of every stage goes to available executor i modulo their number, whatever ``current`` is.

    Raises ``ModelError`` where the arguments do not fit together, ``ScaleOutError`` where no executor is available or
    a stage has more partitions than the limit allows.
    """
    current.validate(cluster, workload)
    if not workload.placeable:
        return Outcome(current, (NOTHING_TO_PLACE,))
    use = available_executors(cluster)
    limit = (parameters or RoundRobinParameters()).instances_per_executor
    for stage in workload.placeable:
        if limit is not None and stage.n > limit * len(use):
            raise ScaleOutError(
                f"stage {stage.key!r}: {len(use)} executors hold {limit} of its {stage.n} partitions each"
            )
    return Outcome(Placement({stage.key: use[np.arange(stage.n) % len(use)] for stage in workload.placeable}))


def container_resources(
    containers: IntArray, requirements: FloatArray, workers: FloatArray, padding: FloatArray | None = None
) -> FloatArray:
    """RAM, disk and CPU of each of C containers, shape (C, 3).

    ``containers`` (n,) is the container of each instance, ``requirements`` (n, 3) what it needs, ``workers`` (C, 3)
    what the worker of each container has. A worker that says all three (none 0) is taken as it is, else the container
    has ``padding`` (3,) and the sum of its instances. Twister2 adds the instances' disk to the CPU there; that is a
    slip, and here their CPU is added.

    Raises ``ModelError`` for shapes that do not fit and containers that are not there.
    """
    needs = checked_floats("requirements", requirements, ndim=2)
    own = checked_floats("workers", workers, ndim=2)
    extra = checked_floats("padding", PADDING if padding is None else padding)
    if needs.shape != (len(containers), 3) or own.shape[1] != 3 or extra.shape != (3,):
        raise ModelError("requirements, workers and padding: expected RAM, disk and CPU, and one entry an instance")
    if len(containers) and (containers.min() < 0 or containers.max() >= len(own)):
        raise ModelError(f"containers: outside 0..{len(own) - 1}")
    sums = np.tile(extra, (len(own), 1))
    np.add.at(sums, containers, needs)
    return np.where((own > 0).all(axis=1, keepdims=True), own, sums)


def _objective(cluster: Cluster, workload: Workload, placement: Placement) -> Objective:
    """Unevenness of each stage's partitions, summed over the stages; least for what :func:`round_robin` answers."""
    return unevenness(partition_counts(cluster, workload, placement))


ROUND_ROBIN = PolicyEntry(
    name="round-robin",
    function=round_robin,
    objective=_objective,
    parameters=RoundRobinParameters,
    summary="Deals the partitions of each stage out in turn, starting at the first executor.",
    source="Twister2's round robin streaming task scheduler",
)
