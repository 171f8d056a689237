"""Variants of how tasks change their nodes in a record-at-a-time engine, and what each stops meanwhile.

* *in steps* (the pipelined-migration paper): one task out and one in per node and step, the next transfer under way
  while the last one's task is set up; a task is out of service from the beginning of its transfer until it is set up
* *drain, checkpoint, restore* (Shukla and Simmhan's DCR): sources pause until nothing is in flight, a checkpoint goes
  through all components, moved tasks load their state, and all go on
* *restart* (Storm's own rebalance): sources pause for the message timeout, all is killed and started anew, and what was
  in flight comes again

Durations follow from the state's bytes and the constants below, which are assumed: the papers print none. Seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.policies.block_cyclic import edge_schedule
from benchmarks.simulation.flow_shop import finish_times
from benchmarks.simulation.fluid_engine import COMPONENTS, LINK, Fluid, Jobs, nodes, view
from rechannel.migration.plan.schedule import order_steps
from rechannel.policies.model.arrays import IntArray, ModelError, ScaleOutError
from rechannel.policies.model.cluster import Cluster
from rechannel.policies.model.placement import Move
from rechannel.policies.registry import propose

SHARE = 0.5  # of a link that a migration takes
PROCESSING, PACKING = 1.0, 0.3  # setting a task up at its new node, and handing over to it
WAVE = 0.5  # of a checkpoint, through one component
RESTART = 10.0  # of workers
TIMEOUT = 30.0  # of a message, before Storm kills what it rebalances
LONGEST_DRAIN = 60.0
RELAY = 2.0  # times as long between sub-clusters: by a relay node


@dataclass(frozen=True)
class Variant:
    """Target of a policy, and the means to reach it. ``means``: steps, drain, restart, or none."""

    name: str
    policy: str
    means: str


VARIANTS = (
    Variant("as it is", "", "none"),
    Variant("proposed", "fair-redistribution", "steps"),
    Variant("DCR-like", "fair-redistribution", "drain"),
    Variant("MT-like", "bottleneck", "restart"),
    Variant("adaptive", "adaptive", "steps"),
    Variant("MT's target, in steps", "bottleneck", "steps"),
)
"""The paper's three, Rechannel's own policy, and one that keeps target and means apart.

DCR has no target of its own: it is given that of the proposed variant.
"""


def target(variant: Variant, cluster: Cluster, jobs: Jobs, node: IntArray) -> IntArray:
    """Return the nodes that the policy chooses for the tasks, (N,); the current ones if it refuses.

    ``fair-redistribution`` gives up what is a tenth above the mean load, which is how it spreads to nodes that join.
    """
    whole = variant.policy == "adaptive"
    workload, current = view(jobs, node, whole=whole)
    parameters: dict[str, object] = {}
    if variant.policy == "fair-redistribution":
        mean = float(jobs.load(node, cluster.size).sum() / cluster.available.sum())
        parameters = {"limit": min(0.95, 1.1 * mean)}
    try:
        placement = propose(variant.policy, cluster, workload, current, parameters).placement
    except (ModelError, ScaleOutError):
        return node.copy()
    key = jobs.component // COMPONENTS if whole else jobs.component
    nodes_of = node.copy()
    for number in range(int(key.max()) + 1):
        nodes_of[key == number] = placement[f"c{number}"]
    return nodes_of


def migrate(variant: Variant, fluid: Fluid, goal: IntArray) -> Iterator[float]:
    """Change the fluid's placement; yields the seconds until something changes, and ends when all is in service."""
    moved = np.flatnonzero(goal != fluid.node)
    if not moved.size or variant.means == "none":
        return
    if variant.means == "steps":
        yield from _in_steps(fluid, goal, moved, by_class=variant.policy != "adaptive")
        return
    fluid.paused = True
    if variant.means == "drain":
        waited = 0.0
        while fluid.in_flight > 1.0 and waited < LONGEST_DRAIN:
            waited += fluid.tick
            yield fluid.tick
        fluid.down[:] = True
        yield WAVE * COMPONENTS
    else:
        yield TIMEOUT
        fluid.lose()
        fluid.down[:] = True
    fluid.node[moved] = goal[moved]
    loaded = np.bincount(goal[moved], fluid.jobs.state[moved], fluid.size)
    yield RESTART + float(loaded.max()) / LINK
    fluid.down[:] = False
    fluid.paused = False


def _in_steps(fluid: Fluid, goal: IntArray, moved: IntArray, *, by_class: bool) -> Iterator[float]:
    state, source, aim = fluid.jobs.state, fluid.node[moved], goal[moved]
    if by_class:
        steps = edge_schedule(source, aim, state[moved]).steps
    else:
        weights = (fluid.jobs.arrivals * fluid.jobs.service)[moved]
        moves = [Move("t", int(task), int(a), int(b)) for task, a, b in zip(moved, source, aim, strict=True)]
        steps = order_steps(moves, weights, sizes=state[moved])
    group = nodes(fluid.size).subcluster
    seconds = state[moved] / (SHARE * LINK) * np.where(group[source] == group[aim], 1.0, RELAY)
    longest = np.zeros(int(steps.max()) + 1)  # transfer of each step
    np.maximum.at(longest, steps, seconds)
    finish = finish_times(longest, PROCESSING, PACKING)
    begun = np.concatenate([[0.0], finish.transferred[:-1]])
    events = sorted(
        [(float(at), 1, step) for step, at in enumerate(begun)]
        + [(float(at), 0, step) for step, at in enumerate(finish.processed)]
    )
    now = 0.0
    for at, begins, step in events:
        if at > now:
            yield at - now
            now = at
        tasks = moved[steps == step]
        fluid.down[tasks] = bool(begins)
        if begins:
            fluid.frozen[:] = 0.0
            fluid.frozen[np.concatenate([fluid.node[tasks], goal[tasks]])] = SHARE
        else:
            fluid.node[tasks] = goal[tasks]
    fluid.frozen[:] = 0.0
    yield finish.makespan - now
