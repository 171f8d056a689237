"""The laws that every policy's placement and proposal must keep, checked in one place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from rechannel.policies.model.cluster import UNPLACED, Cluster
from rechannel.policies.model.placement import Placement
from rechannel.policies.model.shuffles import DenseShuffle
from rechannel.policies.model.workload import Workload
from rechannel.policies.policy import Policy
from rechannel.policies.registry import Proposal, is_worse, known_policies, propose
from unit.policies.random_clusters import Situation


def check_proposal(cluster: Cluster, workload: Workload, current: Placement, proposal: Proposal) -> None:
    placement = proposal.placement

    # Every partition of every placeable stage is placed once, and nothing else is.
    assert set(placement.assignments) == {stage.key for stage in workload.stages if stage.placeable}
    for stage in workload.placeable:
        assigned = placement[stage.key]
        assert assigned.shape == (stage.n,)
        assert ((assigned >= 0) & (assigned < cluster.size)).all()
        assert cluster.available[assigned].all()

    # The moves are the difference, each once.
    moved = {key: array.copy() for key, array in current.assignments.items()}
    for move in proposal.moves:
        assert moved[move.stage][move.partition] == move.source != move.target
        moved[move.stage][move.partition] = move.target
    assert Placement(moved) == placement
    assert len({(move.stage, move.partition) for move in proposal.moves}) == len(proposal.moves)

    # The objectives are those of the two placements, and it is never worse.
    policy = known_policies()[proposal.policy]
    assert proposal.objective_before == policy.objective(cluster, workload, current, policy.parameters())
    assert proposal.objective_after == policy.objective(cluster, workload, placement, policy.parameters())
    # It moves nothing of its own accord unless that is better.
    if all((array != UNPLACED).all() and cluster.available[array].all() for array in current.assignments.values()):
        assert not proposal.moves or is_worse(proposal.objective_before, proposal.objective_after)

    # Executors that hold more than their memory are named.
    held = sum(np.bincount(placement[s.key], s.state_bytes, cluster.size) for s in workload.placeable)
    for index in np.flatnonzero(held > cluster.memory_bytes * (1 + 1e-6)):
        assert any("memory" in note and cluster.executors[index] in note for note in proposal.notes)

    # The same question has the same answer.
    again = propose(proposal.policy, cluster, workload, current)
    assert again.placement == placement
    assert again == proposal

    # Names are names: other ones, in the same order, change nothing but what is said of them.
    renamed = propose(proposal.policy, *_renamed(cluster, workload, current))
    assert list(renamed.placement.assignments.values()) == [pytest.approx(placement[s.key]) for s in workload.placeable]
    assert np.all([isinstance(note, str) and note for note in proposal.notes])


def check_placement(policy: Policy, situation: Situation, parameters: Mapping[str, object]) -> None:
    """A policy by itself: available executors only, the same answer again, and the same under other names."""
    cluster, workload, current = situation
    chosen = policy.parameters(**parameters)
    placement = policy.place(cluster, workload, current, chosen).placement
    placement.validate(cluster, workload)
    assert all((array >= 0).all() and cluster.available[array].all() for array in placement.assignments.values())
    assert policy.place(cluster, workload, current, chosen).placement == placement
    renamed = policy.place(*_renamed(*situation), chosen).placement
    arrays = zip(renamed.assignments.values(), placement.assignments.values(), strict=True)
    assert all(np.array_equal(one, other) for one, other in arrays)


def _renamed(cluster: Cluster, workload: Workload, current: Placement) -> Situation:
    """The same situation under names that sort the other way round."""
    executors = tuple(f"x{9999 - index}" for index in range(cluster.size))
    nodes = {node: f"m{9999 - index}" for index, node in enumerate(dict.fromkeys(cluster.nodes))}
    keys = {stage.key: f"s{9999 - index}" for index, stage in enumerate(workload.stages)}
    queries = {query: f"p{9999 - index}" for index, query in enumerate(workload.queries)}
    stages = tuple(replace(stage, key=keys[stage.key], query=queries[stage.query]) for stage in workload.stages)
    shuffles = tuple(DenseShuffle(keys[s.upstream], keys[s.downstream], s.volume) for s in workload.shuffles)
    return (
        replace(cluster, executors=executors, nodes=tuple(nodes[node] for node in cluster.nodes)),
        Workload(stages, shuffles),
        Placement({keys[stage.key]: current[stage.key] for stage in workload.placeable}),
    )
