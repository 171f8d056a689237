"""Search of ``adaptive`` over the placements of all stages, one stage after the other.

A batch runs its stages one after the other, each as long as its slowest executor. So the search takes the stage with
most to gain first and divides its partitions anew (:mod:`rechannel.policies.adaptive.stage_scheduling`), while all
other stages stay where they are. The load of other queries counts as lost capacity. Hot streams (class
HIGH) draw a partition to the executor where they are local: by seconds where bandwidths are known, else only between
executors that are nearly equal.
"""

from __future__ import annotations

import numpy as np

from rechannel.policies.adaptive.context import SearchContext
from rechannel.policies.adaptive.local_search import local_search
from rechannel.policies.adaptive.lower_bounds import lower_bound
from rechannel.policies.adaptive.stage_problem import UNBOUNDED_MOVES, Option, Problem
from rechannel.policies.adaptive.stage_scheduling import prune_moves, relocate, solve_stage
from rechannel.policies.analysis.placement_cost import SATURATED, Cost, placement_cost
from rechannel.policies.model.arrays import BoolArray, FloatArray, IntArray, sum_by_index
from rechannel.policies.model.placement import Placement
from rechannel.policies.model.workload import Stage

# Shares of the way from the time with fewest moves to the best time, at which options are tried where moves are costly.
_LEVELS = (0.5, 0.8, 0.9, 0.95)
_SAME = 1e-9
_SWEEPS, _LARGE_SWEEPS = 4, 2  # over all stages, at most; the latter of large applications with coupled stages
_LOCAL_CHANGES = 20  # changes that the local search may evaluate for each partition
_MIN_SWEEP_GAIN = 0.001  # the share that a sweep must gain for another one to follow
_SMALL_APPLICATION = 20_000  # units times executors up to which there are `_SWEEPS` sweeps and several starts
_NEARLY_FULL = 0.7  # share of the limit above which a stage may have to wait until another one has moved
_PLACED_FIRST = 1e9  # seconds per second, more than a stage can gain: stages without any place come before all others


class PlacementSearch:
    """A placement in the making, with its loads, and the steps that improve it."""

    def __init__(self, context: SearchContext, start: Placement | None = None) -> None:
        self._context = context
        self._cluster, self._workload, self._parameters = context.cluster, context.workload, context.parameters
        self._home, self._fetched_bytes, self._stages = context.home, context.fetched_bytes, context.stages
        self._capacity, self._query = context.capacity, context.query
        self._at = {key: self._home[key] if start is None else start[key] for key in self._home}
        self._load = np.zeros((len(self._query), self._cluster.size))  # core seconds per second by query
        self._held = np.zeros(self._cluster.size)
        self._cost: Cost | None = None
        for stage in self._workload.stages:
            if stage.placeable:
                self._add(stage, self._at[stage.key], 1.0)
            else:
                self._load[self._query[stage.query]] += stage.batches_per_second * stage.busy
        self._all = self._load.sum(axis=0)
        # Updated with each stage: counting all partitions anew for every stage would be quadratic.
        self._moved = {stage.key: int(self._has_moved(stage.key).sum()) for stage in self._stages}

    def hill_climb(self) -> PlacementSearch:
        """Sweep over all stages until that gains little; return the best search."""
        best = self
        large = _LARGE_SWEEPS if self.coupled else 1
        for _ in range(_SWEEPS if self.is_small else large):
            search = PlacementSearch(self._context, best.placement())
            search.sweep(thorough=True)
            gains = search.score().improves(best.score(), _MIN_SWEEP_GAIN)
            if search.score().improves(best.score(), 0.0):
                best = search
            if not gains:
                break
        return best

    @property
    def coupled(self) -> bool:
        """True if the time of a stage depends on the placement of others."""
        return len(self._query) > 1 or bool(self._fetched_bytes)

    def local_search(self) -> PlacementSearch:
        """Apply changes that help all stages together, though maybe not their own."""
        min_gain = min(_MIN_SWEEP_GAIN, self._parameters.min_step)
        at = local_search(self._context, self.placement(), min_gain, _LOCAL_CHANGES * self._context.units)
        return PlacementSearch(self._context, at)

    def cost(self) -> Cost:
        """Return :func:`placement_cost`; infinite while a partition is on no executor."""
        if self._cost is None:
            if any((array < 0).any() for array in self._at.values()):
                return Cost(np.inf, np.inf, np.inf)
            limit = self._parameters.limit
            self._cost = placement_cost(self._cluster, self._workload, self.placement(), limit)
        return self._cost

    def score(self) -> Cost:
        """Return the cost, with the cost of the moves on top of the stage time."""
        cost = self.cost()
        moved = sum(float(stage.state_bytes[self._has_moved(stage.key)].sum()) for stage in self._stages)
        return cost._replace(stage_time=cost.stage_time + self._context.move_cost(self.voluntary_moves(), moved))

    @property
    def near_capacity(self) -> bool:
        """True if some executor is nearly full: then a stage may have to wait for another one."""
        return bool((self._all > _NEARLY_FULL * self._parameters.limit * self._capacity).any())

    @property
    def saturates(self) -> bool:
        """True if an executor is above saturation, where the lower bound does not hold."""
        return bool((self._all > SATURATED * self._capacity * (1 + _SAME)).any())

    @property
    def is_small(self) -> bool:
        """True if there is time for `_SWEEPS` sweeps and several starts."""
        return self._context.units * self._cluster.size <= _SMALL_APPLICATION

    def placement(self) -> Placement:
        """Return the placement as it is now."""
        return Placement(dict(self._at))

    def voluntary_moves(self) -> int:
        """Count the partitions that leave an executor which is available."""
        return sum(self._moved.values())

    def _has_moved(self, key: str) -> BoolArray:
        home = self._home[key]
        return np.asarray((home >= 0) & (self._at[key] != home))

    def sweep(self, *, thorough: bool) -> None:
        """Divide every stage anew that can gain, the one with most to gain first."""
        gains = [self._gain_bound(stage) for stage in self._stages]
        for index in np.argsort(-np.array(gains), kind="stable").tolist():
            stage, home = self._stages[index], self._home[self._stages[index].key]
            # To place a homeless partition is no move: that is done well even when no move is left.
            may_move = thorough and (self._moves_left(stage) > 0 or bool((home < 0).any()))
            idle = gains[index] <= 0 or (not may_move and not self._moved[stage.key])
            if idle and (self._at[stage.key] >= 0).all() and not self._on_full_executor(stage):
                continue
            problem = self._stage_problem(stage)
            bound = lower_bound(problem.busy, problem.speed, problem.slots, problem.available)
            options = solve_stage(problem, bound, levels=self._levels(may_move), thorough=may_move)
            chosen = self._cheapest(stage, problem, options, thorough=may_move)
            if (home >= 0).any():
                chosen = prune_moves(problem, chosen)
            self._assign(stage, chosen.assignment)

    def _levels(self, thorough: bool) -> tuple[float, ...]:
        parameters = self._parameters
        costly = parameters.move_seconds > 0 or np.isfinite(parameters.load_rate) or parameters.max_moves is not None
        return _LEVELS if thorough and costly else ()

    def _cheapest(self, stage: Stage, problem: Problem, options: list[Option], *, thorough: bool) -> Option:
        """Return the option that costs least, moves and their bytes counted over the horizon."""
        first = options[0]
        if not thorough:
            return first
        parameters, rate = self._parameters, stage.batches_per_second
        max_moves = None if parameters.max_moves is None else max(self._moves_left(stage), first.moves)

        def cost(option: Option) -> float:
            return rate * option.seconds + self._context.move_cost(option.moves, option.moved_bytes)

        best, best_cost = first, cost(first)
        # The first option relieves full executors, and is taken whatever the time of the stage is.
        max_seconds = first.seconds * (1 - parameters.min_step)
        for option in sorted(options[1:], key=lambda option: (option.moves, option.seconds)):
            if (max_moves is not None and option.moves > max_moves) or option.seconds > max_seconds:
                continue
            if cost(option) < best_cost * (1 - _SAME):
                best, best_cost = option, cost(option)
        if best is first and max_moves is not None and len(options) > 1:
            return self._best_within(problem, options, max_moves, max_seconds) or first
        return best

    def _best_within(
        self, problem: Problem, options: list[Option], max_moves: int, max_seconds: float
    ) -> Option | None:
        """Return the best option within these bounds, by bisection of the time limit."""
        low, high = min(option.seconds for option in options), options[0].seconds
        best: Option | None = None
        for _ in range(8):
            middle = (low + high) / 2
            option = relocate(problem, middle)
            if option.moves <= max_moves:
                high = middle
                if option.seconds <= max_seconds and (best is None or option.seconds < best.seconds):
                    best = option
            else:
                low = middle
        return best

    def _stage_problem(self, stage: Stage) -> Problem:
        cluster, key, rate = self._cluster, stage.key, stage.batches_per_second
        at = self._at[key]
        own_bytes = sum_by_index(at, stage.state_bytes, cluster.size)
        rest = self._all - rate * sum_by_index(at, stage.busy, cluster.size)
        room = np.full(cluster.size, np.inf)
        if rate > 0:
            room = np.maximum(self._parameters.limit * self._capacity - rest, 0.0) / rate
        return Problem(
            busy=stage.busy,
            state_bytes=stage.state_bytes,
            home=self._home[key],
            speed=cluster.speed * self._left_speed(stage),
            slots=self._context.slots,
            available=cluster.available,
            room_busy=room,
            room_bytes=np.maximum(cluster.memory_bytes - (self._held - own_bytes), 0.0),
            use=rest / self._capacity,
            fetched_bytes=self._fetched_bytes.get(key, np.zeros(stage.n)),
            bandwidth=cluster.bandwidth,
            local_bytes=self._context.hot.local_bytes(stage, self._at, cluster.size),
            local_received=self._context.hot.local_bytes(stage, self._at, cluster.size, received=True),
            moves_left=self._moves_left(stage),
        )

    def _moves_left(self, stage: Stage) -> int:
        """Count the moves that a stage may make within ``max_moves``."""
        bound = self._parameters.max_moves
        return UNBOUNDED_MOVES if bound is None else max(bound - self.voluntary_moves() + self._moved[stage.key], 0)

    def _left_speed(self, stage: Stage) -> FloatArray:
        """Share of each executor that the other queries leave, (E,)."""
        others = (self._all - self._load[self._query[stage.query]]) / self._capacity
        return np.asarray(np.minimum(np.maximum(1.0 - others, 1.0 - SATURATED), 1.0))

    def _gain_bound(self, stage: Stage) -> float:
        """Bound what the stage can gain while all others stay, in seconds per second."""
        at, left, size = self._at[stage.key], self._left_speed(stage), self._cluster.size
        placed = at >= 0
        speed = self._cluster.speed * left
        bound = lower_bound(stage.busy, speed, self._context.slots, self._cluster.available)
        # A rough time, as if all cores of an executor were one: it only orders the stages.
        times = sum_by_index(at, stage.busy, size) / (self._capacity * left)
        if stage.key in self._fetched_bytes:
            times = times + sum_by_index(at, self._fetched_bytes[stage.key], size) / self._cluster.bandwidth
        if not placed.all():  # homeless partitions first, the largest before the others
            largest = stage.batches_per_second * float(stage.busy.max())
            return float("inf") if placed.any() else _PLACED_FIRST * (1 + largest)
        largest = float((stage.busy / speed[at]).max())
        return stage.batches_per_second * max(float(times.max()) - bound, largest - bound, 0.0)

    def _on_full_executor(self, stage: Stage) -> bool:
        full = (self._all > self._parameters.limit * self._capacity) | (self._held > self._cluster.memory_bytes)
        return bool(full[self._at[stage.key]].any())

    def _assign(self, stage: Stage, assignment: IntArray) -> None:
        self._cost = None
        before = self._load[self._query[stage.query]].copy()
        self._add(stage, self._at[stage.key], -1.0)
        self._add(stage, assignment, 1.0)
        self._all += self._load[self._query[stage.query]] - before
        self._at[stage.key] = assignment
        self._moved[stage.key] = int(self._has_moved(stage.key).sum())

    def _add(self, stage: Stage, assignment: IntArray, sign: float) -> None:
        work = sum_by_index(assignment, stage.busy, self._cluster.size)
        self._load[self._query[stage.query]] += sign * stage.batches_per_second * work
        self._held += sign * sum_by_index(assignment, stage.state_bytes, self._cluster.size)
