"""Inputs that all searches for one proposal share."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from rechannel.policies.adaptive.parameters import AdaptiveParameters
from rechannel.policies.analysis.hot_streams import HotStreamEnds
from rechannel.policies.analysis.placement_cost import task_slots
from rechannel.policies.model.arrays import FloatArray
from rechannel.policies.model.cluster import Cluster
from rechannel.policies.model.placement import Placement
from rechannel.policies.model.workload import Workload


class SearchContext:
    """Inputs of a search, and what is derived from them once.

    ``home`` is the executor of each partition, :data:`UNPLACED` where that is unavailable or unknown; ``units`` the
    number of partitions; ``slots`` and ``capacity`` (E,) the task slots and reference cores of each executor; ``query``
    numbers the queries; ``fetched_bytes`` the bytes per batch that each partition fetches, by placeable stage, empty
    where no bandwidth is known.
    """

    def __init__(
        self, cluster: Cluster, workload: Workload, current: Placement, parameters: AdaptiveParameters
    ) -> None:
        self.cluster, self.workload, self.current, self.parameters = cluster, workload, current, parameters
        self.stages = workload.placeable
        self.home = current.on_available(cluster)
        self.units = sum(stage.n for stage in self.stages)
        self.slots, self.capacity = task_slots(cluster), cluster.cores * cluster.speed
        self.query = {query: index for index, query in enumerate(workload.queries)}
        self.fetched_bytes = _fetched_bytes(workload) if np.isfinite(cluster.bandwidth).any() else {}

    @cached_property
    def hot(self) -> HotStreamEnds:
        """Ends of the hot streams, computed when a stage first needs them: that takes long."""
        return HotStreamEnds(self.workload)

    def move_cost(self, moves: int, moved_bytes: float) -> float:
        """Seconds of stage time per second, see :meth:`AdaptiveParameters.move_cost`."""
        return self.parameters.move_cost(moves, moved_bytes, int(self.cluster.available.sum()))


def _fetched_bytes(workload: Workload) -> dict[str, FloatArray]:
    fetched: dict[str, FloatArray] = {}
    for shuffle in workload.shuffles:
        stage = workload.stage(shuffle.downstream)
        if stage.placeable and stage.batches_per_second > 0:
            had = fetched.get(stage.key, np.zeros(stage.n))
            fetched[stage.key] = had + shuffle.received() / stage.batches_per_second
    return fetched
