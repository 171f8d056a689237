"""Exact loads of a placement, the optimum, and the fewest moves to a load. Pure.

What a partition takes is known, so a placement is a multiprocessor schedule: identical executors, a bound on the
busiest. Queries back to back run in lock step, one batch of each in a cycle, and their partitions count together.
Queries with triggers have executors that are idle in between; each of them is a goal of its own, its slowest executor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.policies.optimum import assign, assignment, new_program, optimal_seconds
from rechannel.policies.adaptive.lower_bounds import lower_bound
from rechannel.policies.model.arrays import FloatArray, IntArray

PATIENCE = 10.0  # seconds for one program
_SAME = 1e-9
_CLOSE = 1.002  # a placement so near the lower bound counts as the optimum: no program is solved


@dataclass(frozen=True)
class Goal:
    """Partitions that count together: ``seconds`` and ``home`` (an executor's number) of each, in one order."""

    names: tuple[str, ...]
    seconds: FloatArray
    home: IntArray
    executors: int
    cores: int

    def loads(self, home: IntArray | None = None) -> list[float]:
        """Return the seconds of work on each task slot of each executor."""
        placed = self.home if home is None else home
        return [float(load) for load in np.bincount(placed, self.seconds, self.executors) / self.cores]

    def busiest(self, home: IntArray | None = None) -> float:
        """Return the seconds below which no executor's batch can be: the largest load, or the largest partition."""
        return max(*self.loads(home), float(self.seconds.max()))


@dataclass(frozen=True)
class Optimum:
    """The least load of the busiest executor that is known, and a bound that no placement is below."""

    seconds: float
    bound: float


@dataclass(frozen=True)
class Fewest:
    """The fewest moves that are known to reach a load (None: none are), and a bound that no plan is below."""

    moves: int | None
    bound: int


def goals(
    names: Sequence[str],
    seconds: Sequence[Sequence[float]],
    homes: Sequence[Sequence[int]],
    cluster: tuple[int, int],
    together: bool,
) -> list[Goal]:
    """Return the goals of a placement: one of all queries, or one for each.

    Parameters
    ----------
    names, seconds, homes
        Of each query: its name, and the seconds and the executor of each partition.
    cluster
        Number of executors, and cores of each.
    together
        Whether queries run in lock step, so that their partitions count together.
    """
    parts = [
        Goal((name,), np.asarray(work, dtype=float), np.asarray(home, dtype=np.int64), *cluster)
        for name, work, home in zip(names, seconds, homes, strict=True)
    ]
    if not together:
        return parts
    work, home = (np.concatenate([getattr(part, field) for part in parts]) for field in ("seconds", "home"))
    return [Goal(tuple(names), work, home, *cluster)]


def optimum(goal: Goal, gap: float = 1e-7) -> Optimum:
    """Return the optimum of a goal; its bound is equal where it is proved, both within ``gap``, as a share."""
    ones = np.ones(goal.executors)
    largest = float(goal.seconds.max())
    # On several cores an executor takes the mean of its slots: the bound is that of one core of so much speed.
    bound = lower_bound(goal.seconds, ones * goal.cores, np.ones(goal.executors, dtype=np.int64), ones > 0)
    bound = max(bound, largest)
    best = goal.busiest(_spread(goal))
    if best > bound * _CLOSE:
        seconds, proved = optimal_seconds(goal.seconds, ones * goal.cores, PATIENCE, gap)
        best = min(best, max(seconds, largest))
        bound = best if proved else bound
    return Optimum(best, min(bound, best))


def fewest_moves(goal: Goal, limit: float, patience: float = PATIENCE, plan: IntArray | None = None) -> Fewest:
    """Return the fewest moves from home after which no executor has more than ``limit`` seconds on a task slot.

    A mixed integer program. Where it is not solved in time, the moves are those of the best answer, of moving the
    largest partition that helps again and again, or of a ``plan``, which counts if it reaches the load.
    """
    if goal.busiest() <= limit + _SAME:
        return Fewest(0, 0)
    if float(goal.seconds.max()) > limit + _SAME:
        return Fewest(None, 0)
    solved, bound = assign_staying(goal.seconds, goal.home, np.full(goal.executors, limit * goal.cores), patience)
    known_plan = plan if plan is not None and goal.busiest(plan) <= limit + _SAME else None
    reached = [int((home != goal.home).sum()) for home in (solved, known_plan) if home is not None]
    if (descent := _descent(goal, limit)) is not None:
        reached.append(descent)
    return Fewest(min(reached, default=None), max(1, bound))


def _spread(goal: Goal) -> IntArray:
    """Return the placement of the longest partition first, each to the executor with the least."""
    home, loads = np.empty_like(goal.home), np.zeros(goal.executors)
    for unit in np.argsort(-goal.seconds, kind="stable"):
        home[unit] = least = int(loads.argmin())
        loads[least] += goal.seconds[unit]
    return home


def _descent(goal: Goal, limit: float) -> int | None:
    """Return the moves of a greedy plan: of the busiest executor's partitions, the one that levels it best."""
    home = goal.home.copy()
    for _ in range(len(home)):
        loads = np.bincount(home, goal.seconds, goal.executors)
        if loads.max() <= limit * goal.cores + _SAME:
            return int((home != goal.home).sum())
        giver, taker = int(loads.argmax()), int(loads.argmin())
        gap = float(loads[giver] - loads[taker]) / 2
        own = np.flatnonzero((home == giver) & (goal.seconds < 2 * gap))
        if not len(own):
            return None
        home[own[np.abs(goal.seconds[own] - gap).argmin()]] = taker
    return None


def assign_staying(
    seconds: FloatArray, home: IntArray, capacity: FloatArray, patience: float
) -> tuple[IntArray | None, int]:
    """Return the placement with the fewest moves in which no executor has more than it can take.

    Parameters
    ----------
    seconds, home
        Of each partition, (n,): its work, and the number of its executor.
    capacity
        Seconds that each executor can take, (E,).
    patience
        Seconds for the program; where it is not solved by then, the placement is the best one so far, or None.

    Returns
    -------
    The executors' numbers, (n,), None where none is known, and a bound that the moves of no such placement are below.
    """
    import highspy  # the benchmark's and the tests' own dependency

    highs = new_program(patience)
    assigned = assign(highs, len(seconds), len(capacity))
    for executor, most in enumerate(capacity.tolist()):
        work = sum(need * row[executor] for need, row in zip(seconds.tolist(), assigned, strict=True))
        highs.addConstr(work <= most)
    highs.maximize(sum(row[own] for own, row in zip(home.tolist(), assigned, strict=True)))
    status, info = highs.getModelStatus(), highs.getInfo()
    if status == highspy.HighsModelStatus.kInfeasible:
        return None, 0
    bound = max(0, math.ceil(len(seconds) - info.mip_dual_bound - 1e-6)) if math.isfinite(info.mip_dual_bound) else 0
    if int(info.primal_solution_status) != int(highspy.SolutionStatus.kSolutionStatusFeasible):
        return None, bound
    return assignment(highs, assigned), bound
