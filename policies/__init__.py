"""Placement policies: which executor should hold which stateful partition.

Pure functions over numpy arrays: no clock, no input or output, no unseeded randomness, no Spark, no Redis, and nothing
else of Rechannel's own. The same arguments always give the same answer; ties are
broken by index. A policy proposes, :func:`propose` holds the proposal to the laws of all policies, and the caller
decides whether the gain is worth the moves.

Rooms, each importing only those below it:

* ``scenarios``: written and generated situations, and the comparison of policies on them
* ``registry``: the table of policies, and :func:`propose`; ``entry_points`` finds the policies of users
* ``adaptive``: the default policy
* ``published``: the schedulers of the literature, one a module
* ``prediction``: work of partitions, replay of batches under a placement, the fewest moves that gain most
* ``policy``: the protocol that every policy implements
* ``analysis``: cost of a placement, queueing, classification of streams, service rates, forecasts
* ``model``: cluster, workload, shuffles and placement, which every policy reads
"""

from __future__ import annotations

from rechannel.policies.analysis.placement_cost import placement_cost
from rechannel.policies.model.arrays import ModelError, ScaleOutError
from rechannel.policies.model.cluster import Cluster, Topology
from rechannel.policies.model.placement import Move, Placement, PolicyAnswer
from rechannel.policies.model.shuffles import DenseShuffle, SparseShuffle
from rechannel.policies.model.workload import Stage, Workload
from rechannel.policies.policy import Policy, check_count, check_number
from rechannel.policies.registry import POLICIES, Proposal, propose

__all__ = [
    "POLICIES",
    "Cluster",
    "DenseShuffle",
    "ModelError",
    "Move",
    "Placement",
    "Policy",
    "PolicyAnswer",
    "Proposal",
    "ScaleOutError",
    "SparseShuffle",
    "Stage",
    "Topology",
    "Workload",
    "check_count",
    "check_number",
    "placement_cost",
    "propose",
]
