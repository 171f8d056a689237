"""Comparison of policies on a scenario. Pure: the clock is an argument."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rechannel.policies.analysis.placement_cost import (
    executor_busy,
    inter_executor_volume,
    inter_node_volume,
    spread,
    stage_seconds,
)
from rechannel.policies.model.arrays import ModelError, ScaleOutError
from rechannel.policies.model.placement import Placement
from rechannel.policies.published.closeness import cohesion, coupling
from rechannel.policies.registry import PolicyLawError, propose
from rechannel.policies.scenarios.scenario import Scenario


@dataclass(frozen=True)
class PlacementCost:
    """Cost of a placement."""

    seconds_per_batch: float  # critical paths of all queries together, one batch of each
    seconds_per_second: float  # the same with every stage as often as it runs
    highest_utilization: float  # busy share of the cores of an available executor
    load_spread: float  # of that share: standard deviation over mean
    inter_node_bytes_per_second: float
    inter_executor_bytes_per_second: float
    cohesion: float  # sum of closeness, larger is better
    coupling: float  # sum of closeness, smaller is better


@dataclass(frozen=True)
class PolicyResult:
    """Proposal of one policy: its figures, the moves, and the time it took."""

    policy: str
    figures: PlacementCost | None  # None where it refused
    moves: int
    bytes_moved: float  # state of the partitions that move
    decision_seconds: float
    notes: tuple[str, ...] = ()
    error: str = ""  # why it refused


def cost_of(scenario: Scenario, placement: Placement) -> PlacementCost:
    """Return the cost of a placement; partitions on no executor count nowhere."""
    cluster, workload = scenario.cluster, scenario.workload
    seconds = stage_seconds(cluster, workload, placement)
    rates = np.array([stage.batches_per_second for stage in workload.stages], dtype=np.float64)
    share = (executor_busy(cluster, workload, placement) / cluster.cores)[cluster.available]
    return PlacementCost(
        float(seconds.sum()),
        float(seconds @ rates),
        float(share.max(initial=0.0)),
        spread(share),
        inter_node_volume(cluster, workload, placement),
        inter_executor_volume(cluster, workload, placement),
        cohesion(cluster, workload, placement),
        coupling(cluster, workload, placement),
    )


def compare(
    scenario: Scenario,
    policies: Sequence[str],
    parameters: Mapping[str, Mapping[str, object]],
    clock: Callable[[], float],
) -> tuple[PolicyResult, ...]:
    """Ask each policy, with its own ``parameters``, where the scenario's partitions should be.

    A policy that refuses, or answers what no policy may answer, is a row with an error. ``clock`` returns seconds.
    """
    return tuple(_ask(scenario, name, parameters.get(name, {}), clock) for name in policies)


def _ask(scenario: Scenario, name: str, parameters: Mapping[str, object], clock: Callable[[], float]) -> PolicyResult:
    workload, began = scenario.workload, clock()
    try:
        proposal = propose(name, scenario.cluster, workload, scenario.current, parameters)
    except (ModelError, ScaleOutError, PolicyLawError) as error:
        return PolicyResult(name, None, 0, 0.0, clock() - began, error=str(error))
    took = clock() - began
    state = {stage.key: stage.state_bytes for stage in workload.placeable}
    moved = sum(float(state[move.stage][move.partition]) for move in proposal.moves)
    return PolicyResult(name, cost_of(scenario, proposal.placement), len(proposal.moves), moved, took, proposal.notes)
