"""Locality/fairness-aware (L/F) job scheduler: partitions in a row share an executor.

Source: Son and Moon, Locality/Fairness-Aware Job Scheduling in Distributed Stream Processing Engines, Electronics 9(11)
2020, Algorithms 3 to 5. The job is cut into pipelines, each with at most one partition of every stage; a pipeline goes
to one executor as a whole, and pipelines are dealt out in turn. The number of partitions of a stage on an executor
and their load are not looked at: where upstream tasks prefer local targets, some executors may be left without work
while others carry most of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from rechannel.policies.model.arrays import IntArray
from rechannel.policies.model.cluster import Cluster
from rechannel.policies.model.placement import Placement, PolicyAnswer
from rechannel.policies.model.workload import Workload
from rechannel.policies.policy import FunctionPolicy, Objective, check_choice, check_count
from rechannel.policies.published.closeness import cohesion, coupling, operator_edges
from rechannel.policies.published.slots import placement_of_units, sort_slots

SlotChoice = Literal["literal", "sibling"]


@dataclass(frozen=True)
class LocalityFairnessParameters:
    """Settings of ``locality-fairness``.

    ``placement``: "literal" deals pipelines out in turn, as printed; "sibling" takes, from the executor whose turn it
    is onwards, the first with the fewest siblings of the pipeline's partitions. ``slots``: how many executors to use at
    most, None for all that are available.
    """

    placement: SlotChoice = "literal"
    slots: int | None = None

    def __post_init__(self) -> None:
        check_choice("placement", self.placement, get_args(SlotChoice))
        check_count("slots", self.slots)


def locality_fairness(
    cluster: Cluster, workload: Workload, _current: Placement, parameters: LocalityFairnessParameters
) -> PolicyAnswer:
    """Put pipeline k on slot k modulo their number, whatever the current placement is.

    The paper's claim that coupling is that of the even scheduler does not hold for its star-shaped job as printed (12.7
    against 1.0). The choice "sibling" is an addition: same cohesion, and equal coupling in all its five jobs.
    """
    use = sort_slots(cluster)[: parameters.slots]
    parts = [stage.n for stage in workload.placeable]
    first = np.cumsum(parts) - parts
    executors = np.empty(sum(parts), dtype=np.int64)
    held = np.zeros((len(parts), len(use)), dtype=np.int64)
    chains = _pipelines(workload)
    for k, pipeline in enumerate(chains):
        operators, indices = list(pipeline), list(pipeline.values())
        slot = k % len(use)
        if parameters.placement == "sibling":
            slot = _fewest_siblings(slot, held[operators].sum(axis=0))
        held[operators, slot] += 1
        executors[first[operators] + indices] = use[slot]
    note = f"{len(chains)} pipelines on {min(len(chains), len(use))} executors"
    return PolicyAnswer(placement_of_units(workload, executors), (note,))


def pipelines(workload: Workload) -> list[dict[str, int]]:
    """Return the pipelines of the job, each a partition for some of the placeable stages.

    In the order in which the algorithm builds them. A pipeline starts at the first stage that has partitions left,
    where the paper leaves the choice open, and spreads depth first, to the stages before and then to those after. Each
    stage it reaches gives its next partition; one that has none left is not entered, so the job may fall apart there.
    Where the job branches, a pipeline is a connected part of the graph. Edges are those of :func:`operator_edges`.
    """
    keys = [stage.key for stage in workload.placeable]
    return [{keys[operator]: index for operator, index in pipeline.items()} for pipeline in _pipelines(workload)]


def _pipelines(workload: Workload) -> list[dict[int, int]]:
    parts = [stage.n for stage in workload.placeable]
    before: list[list[int]] = [[] for _ in parts]
    after: list[list[int]] = [[] for _ in parts]
    for source, target in operator_edges(workload):
        before[target].append(source)
        after[source].append(target)
    neighbors = [up + down for up, down in zip(before, after, strict=True)]
    used = [0] * len(parts)
    result: list[dict[int, int]] = []
    for start, count in enumerate(parts):
        while used[start] < count:
            result.append(_next_pipeline(start, neighbors, parts, used))
    return result


def _next_pipeline(start: int, neighbors: list[list[int]], parts: list[int], used: list[int]) -> dict[int, int]:
    pipeline: dict[int, int] = {}
    # A stack instead of recursion: a job may be deeper than Python's limit.
    stack = [start]
    while stack:
        operator = stack.pop()
        if operator in pipeline or used[operator] == parts[operator]:
            continue
        pipeline[operator] = used[operator]
        used[operator] += 1
        stack.extend(reversed(neighbors[operator]))
    return pipeline


def _fewest_siblings(turn: int, siblings: IntArray) -> int:
    slots = (turn + np.arange(len(siblings))) % len(siblings)
    return int(slots[np.argmin(siblings[slots])])


def _objective(cluster: Cluster, workload: Workload, placement: Placement, _parameters: object) -> Objective:
    """Cohesion, negated, then coupling: the paper's two aims in its order.

    Cohesion alone is largest with everything on one executor, so this scheduler does not break such a placement up
    unless it has the same cohesion.
    """
    return 0.0 - cohesion(cluster, workload, placement), coupling(cluster, workload, placement)


LOCALITY_FAIRNESS = FunctionPolicy(
    name="locality-fairness",
    scheduler=locality_fairness,
    measure=_objective,
    parameters=LocalityFairnessParameters,
    summary="Deals out pipelines of one partition of each stage, so that streams stay on one executor.",
    source="Son and Moon 2020 (L/F job scheduler)",
)
