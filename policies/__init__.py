"""Placement policies: which executor should hold which stateful partition.

What may live here: pure functions over numpy arrays. No clock, no input or output, no randomness, no Spark, no Redis,
and nothing of Rechannel's own but plain types of ``rechannel.conf``. The same arguments always give the same answer;
ties are broken by index. A policy proposes; :func:`propose` checks the proposal against the laws every policy must
keep, and whoever called it decides whether the gain is worth the move.

* ``arrays``: array types, checks and errors
* ``model``: the cluster, the workload and the placement that every policy reads
* ``streams``: shuffles, as blocks or sparse
* ``metrics``: what a placement costs
* ``classification``: which streams are high, mid and low
* ``queueing``: arrival rates, utilization and fair shares
* ``adaptive``: the default policy; ``stage_problem`` and ``pairs`` are the search behind it
* ``published``: the schedulers of the literature
* ``registry``: the table of policies
"""

from __future__ import annotations

from rechannel.policies.model.arrays import ModelError, ScaleOutError
from rechannel.policies.model.cluster import Cluster, Topology
from rechannel.policies.model.placement import Move, Placement
from rechannel.policies.model.streams import SparseStream, Stream
from rechannel.policies.model.workload import Stage, Workload
from rechannel.policies.registry import POLICIES, Proposal, propose

__all__ = [
    "POLICIES",
    "Cluster",
    "ModelError",
    "Move",
    "Placement",
    "Proposal",
    "ScaleOutError",
    "SparseStream",
    "Stage",
    "Stream",
    "Topology",
    "Workload",
    "propose",
]
