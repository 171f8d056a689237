"""The laws that every policy's proposal must keep, checked in one place."""

from __future__ import annotations

import numpy as np

from rechannel.policies.model import UNPLACED, Cluster, Placement, Workload
from rechannel.policies.registry import POLICIES, Proposal, is_worse, propose


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
    objective = POLICIES[proposal.policy].objective
    assert proposal.objective_before == objective(cluster, workload, current)
    assert proposal.objective_after == objective(cluster, workload, placement)
    if all((array != UNPLACED).all() and cluster.available[array].all() for array in current.assignments.values()):
        assert not is_worse(proposal.objective_after, proposal.objective_before)

    # The same question has the same answer.
    again = propose(proposal.policy, cluster, workload, current)
    assert again.placement == placement
    assert again == proposal
    assert np.all([isinstance(note, str) and note for note in proposal.notes])
