"""What the table of policies holds of each one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rechannel.policies.model.cluster import Cluster
from rechannel.policies.model.placement import Outcome, Placement
from rechannel.policies.model.workload import Workload

__all__ = ["Objective", "PolicyEntry"]

Objective = tuple[float, ...]
"""What a policy minimizes, compared entry by entry."""


@dataclass(frozen=True)
class PolicyEntry:
    """One policy.

    ``function`` takes cluster, workload, current placement and parameters; ``objective`` is what it minimizes,
    compared entry by entry, and is given the parameters too where ``parametrized``; ``parameters`` is the frozen
    dataclass of its settings; ``source`` says who published it.
    """

    name: str
    function: Callable[[Cluster, Workload, Placement, Any], Outcome]
    objective: Callable[..., Objective]
    parameters: type[Any]
    summary: str
    source: str = ""
    parametrized: bool = False

    def measure(self, cluster: Cluster, workload: Workload, placement: Placement, parameters: object) -> Objective:
        """The objective of a placement under these parameters."""
        if self.parametrized:
            return self.objective(cluster, workload, placement, parameters)
        return self.objective(cluster, workload, placement)
