"""The default policy: even out the slowest executor of every stage with few moves.

A local search in the spirit of list scheduling and its descent by single moves and pair swaps on the busiest machine
(Graham 1966; Finn and Horowitz 1979). It looks at one stage at a time, because a batch runs its stages one after the
other: a placement that is even in total can still be skewed in every stage.

It does not look for the optimum, does not price the moves (whoever applies the proposal does) and does not
move anything for locality alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rechannel.policies.descent import NEAR, Descent
from rechannel.policies.entry import PolicyEntry
from rechannel.policies.metrics import placement_cost
from rechannel.policies.model import (
    UNPLACED,
    Cluster,
    IntArray,
    ModelError,
    Outcome,
    Placement,
    ScaleOutError,
    Workload,
)
from rechannel.policies.search import Locality, SearchState, lexicographic_best, most_local

__all__ = ["BALANCE", "BalanceParameters", "balance"]


@dataclass(frozen=True)
class BalanceParameters:
    """Settings of ``balance``.

    ``min_step``: the share by which the objective must fall for a run of moves to be kept (0.005: half a percent).
    ``max_moves``: the most partitions it may move of its own accord, None for no bound; partitions that have to
    leave an unavailable executor do not count.
    """

    min_step: float = 0.005
    max_moves: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.min_step, bool) or not isinstance(self.min_step, int | float) or not 0 <= self.min_step < 1:
            raise ModelError(f"min_step: expected a number from 0 to below 1, got {self.min_step!r}")
        whole = isinstance(self.max_moves, int) and not isinstance(self.max_moves, bool)
        if self.max_moves is not None and (not whole or self.max_moves < 0):
            raise ModelError(f"max_moves: expected None or a whole number from 0, got {self.max_moves!r}")


def balance(
    cluster: Cluster, workload: Workload, current: Placement, parameters: BalanceParameters | None = None
) -> Outcome:
    """Placement that evens out ``current``, and what to say about it.

    Partitions on unavailable or unknown executors are placed first, the largest first, each where its stage is done
    soonest and its state fits. Then units leave the busiest executor of the worst stage (the one furthest above
    what no placement can beat), each to where :func:`placement_cost` falls most, and where no stage gets better the
    same for the highest utilization. A single move seldom shortens a batch where several executors are equally
    slow, so ``min_step`` is asked of a run of moves: what gains less than that is taken back, and so is every move
    without which the result is as good. Among near-equal targets, the one that makes streams of class HIGH local.

    Never worse than ``current`` by :func:`placement_cost`, as long as all executors of ``current`` are available.
    Raises ``ModelError`` where the arguments do not fit together, ``ScaleOutError`` where partitions must be placed
    and no executor is available.
    """
    current.validate(cluster, workload)
    parameters = parameters or BalanceParameters()
    if not workload.placeable:
        return Outcome(current, ("no stage has partitions to place",))
    state = SearchState(cluster, workload, current)
    locality = Locality(workload, state)
    notes = _place_homeless(state, locality)
    if cluster.available.any():
        notes += Descent(state, locality, parameters.min_step, parameters.max_moves).run()
    return Outcome(state.placement(), notes)


def _place_homeless(state: SearchState, locality: Locality) -> tuple[str, ...]:
    available = state.cluster.available
    homeless = np.flatnonzero((state.assignment == UNPLACED) | ~available[state.assignment])
    if not homeless.size:
        return ()
    if not available.any():
        raise ScaleOutError(f"{homeless.size} partitions need an executor and none is available: add executors")
    state.set([(int(unit), UNPLACED) for unit in homeless])
    work = state.busy * state.rate[state.stage_of]
    overfull = 0
    for unit in sorted(homeless.tolist(), key=lambda u: (-work[u], -state.busy[u], -state.state_bytes[u], u)):
        fits = available & (state.memory + state.state_bytes[unit] <= state.cluster.memory_bytes)
        overfull += not fits.any()
        state.set([(unit, _home(state, locality, unit, np.flatnonzero(fits if fits.any() else available)))])
    notes = [f"{homeless.size} partitions had to be placed: their executor is unavailable or unknown"]
    if overfull:
        notes.append(f"{overfull} of them were placed where their state does not fit: no executor has the memory")
    return tuple(notes)


def _home(state: SearchState, locality: Locality, unit: int, choices: IntArray) -> int:
    cluster, stage, busy = state.cluster, int(state.stage_of[unit]), state.busy[unit]
    time = np.maximum(np.maximum((state.sums[stage] + busy) / cluster.cores, busy) / cluster.speed, state.time[stage])
    use = (state.load + state.rate[stage] * busy) / state.capacity
    best = lexicographic_best(choices, (time, use, (state.count[stage] + 1) / state.capacity))
    margin = NEAR * state.value()[0]
    near = choices[state.rate[stage] * (time[choices] - time[best]) <= margin]
    return most_local(locality, unit, best, near[use[near] <= use[best] * (1 + NEAR)])


BALANCE = PolicyEntry(
    name="balance",
    function=balance,
    objective=placement_cost,
    parameters=BalanceParameters,
    summary="Evens out the slowest executor of every stage with few moves.",
)
