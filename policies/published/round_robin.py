"""Round robin, stage by stage: every stage starts at the first executor again.

Source: Twister2's streaming round robin task scheduler. Each stage is even by count; together they are not, since the
left-overs of every stage go to the first executors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rechannel.policies.model.arrays import ScaleOutError
from rechannel.policies.model.cluster import Cluster
from rechannel.policies.model.placement import Placement, PolicyAnswer
from rechannel.policies.model.workload import Workload
from rechannel.policies.policy import FunctionPolicy, Objective, check_count
from rechannel.policies.published.slots import partition_counts, unevenness


@dataclass(frozen=True)
class RoundRobinParameters:
    """Settings of ``round-robin``.

    ``instances_per_executor``: the most partitions of one stage that an executor may get, None for no limit.
    """

    instances_per_executor: int | None = None

    def __post_init__(self) -> None:
        check_count("instances_per_executor", self.instances_per_executor)


def round_robin(
    cluster: Cluster, workload: Workload, _current: Placement, parameters: RoundRobinParameters
) -> PolicyAnswer:
    """Place partition i of every stage on available executor i modulo their number.

    Raises ``ScaleOutError`` where a stage has more partitions than the limit allows.
    """
    use, limit = np.flatnonzero(cluster.available), parameters.instances_per_executor
    for stage in workload.placeable:
        if limit is not None and stage.n > limit * len(use):
            raise ScaleOutError(
                f"stage {stage.key!r}: {len(use)} executors hold {limit} of its {stage.n} partitions each"
            )
    return PolicyAnswer(Placement({stage.key: use[np.arange(stage.n) % len(use)] for stage in workload.placeable}))


def _objective(cluster: Cluster, workload: Workload, placement: Placement, _parameters: object) -> Objective:
    """Unevenness of each stage's partitions, summed over the stages."""
    return unevenness(partition_counts(cluster, workload, placement))


ROUND_ROBIN = FunctionPolicy(
    name="round-robin",
    scheduler=round_robin,
    measure=_objective,
    parameters=RoundRobinParameters,
    summary="Deals the partitions of each stage out in turn, starting at the first executor.",
    source="Twister2's round robin streaming task scheduler",
)
