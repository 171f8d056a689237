"""Even scheduler: partitions are dealt out in turn, by one counter over the whole job.

Source: Storm's EvenScheduler (1.2.3), the even job scheduler that Son and Moon 2020 compare theirs with (Algorithm 2).
It looks at no load and no stream, and deals everything anew however little is uneven.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rechannel.policies.model.cluster import Cluster
from rechannel.policies.model.placement import Placement, PolicyAnswer
from rechannel.policies.model.workload import Workload
from rechannel.policies.policy import FunctionPolicy, Objective, check_count
from rechannel.policies.published.slots import partition_counts, placement_of_units, sort_slots, unevenness


@dataclass(frozen=True)
class EvenParameters:
    """Settings of ``even``.

    ``slots``: how many executors to use at most, None for all that are available.
    """

    slots: int | None = None

    def __post_init__(self) -> None:
        check_count("slots", self.slots)


def even(cluster: Cluster, workload: Workload, _current: Placement, parameters: EvenParameters) -> PolicyAnswer:
    """Put partition k of the job on slot k modulo their number.

    The counter goes on from stage to stage. It counts from 0, where the paper's counts from 1, which only turns the
    slots. Stages stand in the order of the workload, where Storm sorts components by name.
    """
    use = sort_slots(cluster)[: parameters.slots]
    counter = np.arange(sum(stage.n for stage in workload.placeable))
    return PolicyAnswer(placement_of_units(workload, use[counter % len(use)]))


def _objective(cluster: Cluster, workload: Workload, placement: Placement, parameters: EvenParameters) -> Objective:
    """Partitions outside the slots in use, then the unevenness of what these hold in all."""
    counts = partition_counts(cluster, workload, placement).sum(axis=0, keepdims=True)
    chosen = np.isin(np.flatnonzero(cluster.available), sort_slots(cluster)[: parameters.slots])
    return (float(counts[:, ~chosen].sum()), *unevenness(counts[:, chosen]))


EVEN = FunctionPolicy(
    name="even",
    scheduler=even,
    measure=_objective,
    parameters=EvenParameters,
    summary="Deals all partitions out in turn; even by count, blind to load and streams.",
    source="Storm's EvenScheduler; Son and Moon 2020, Algorithm 2",
)
