"""The default policy: the shortest batches under the limits, with few moves.

A batch runs its stages one after the other, each as long as its slowest executor, so stages are looked at one at a
time, the one with most to gain first, and each is divided by :mod:`rechannel.policies.adaptive.stage_scheduling`.
What the other
queries take of an executor counts as lost to this one; hot streams (class HIGH) draw a partition to where they are
local, by seconds where bandwidths are known, else among near-equal executors. Every answer says how far it is at most
from what no placement can beat.

*Light* mode moves only what has to leave and what lifts an executor above a limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rechannel.policies.adaptive.local_search import polished
from rechannel.policies.adaptive.lower_bounds import certified_bound, lower_bound
from rechannel.policies.adaptive.stage_scheduling import Option, Problem, limited, pruned, solve
from rechannel.policies.analysis.hot_streams import HotStreams
from rechannel.policies.analysis.placement_cost import SATURATED, improves, placement_cost, task_slots
from rechannel.policies.model.arrays import FloatArray, IntArray, ModelError, ScaleOutError
from rechannel.policies.model.cluster import UNPLACED, Cluster
from rechannel.policies.model.placement import Outcome, Placement
from rechannel.policies.model.workload import Stage, Workload
from rechannel.policies.policy import FunctionPolicy, Objective, check_count, check_number
from rechannel.policies.published.bottleneck import bottleneck
from rechannel.policies.published.even import even
from rechannel.policies.published.stream_classification import stream_classification
from rechannel.policies.published.t_storm import t_storm

__all__ = ["ADAPTIVE", "AdaptiveParameters", "adaptive", "certified_bound"]

MODES = ("full", "light")
_LEVELS = (0.5, 0.8, 0.9, 0.95)
_SAME = 1e-9
_SWEEPS = 4
_POLISH = 20  # changes for each partition that are priced as a whole at the end
_LEAST = 0.001  # the share by which another look at everything must have paid for a further one
_SMALL = 20_000  # units times executors up to which all stages are looked at several times


@dataclass(frozen=True)
class AdaptiveParameters:
    """Settings of ``adaptive``.

    ``mode``: full, or light. ``limit``: utilization above which an executor is relieved and beyond which nothing is
    given to it. ``min_step``: the share of a stage's time, and of all, that moving must save to be done.
    ``max_moves``: the most partitions it may move of its own accord, None for no bound; partitions that have to leave
    an unavailable executor do not count. What a move costs, so that few are made for the gain: ``move_seconds`` and
    its state's bytes at ``load_rate`` (bytes per second), over ``horizon`` (seconds) in which that has to come back.
    """

    mode: str = "full"
    limit: float = SATURATED
    min_step: float = 0.005
    max_moves: int | None = None
    move_seconds: float = 0.0
    load_rate: float = float("inf")
    horizon: float = 600.0

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ModelError(f"mode: expected one of {', '.join(MODES)}, got {self.mode!r}")
        check_number("limit", self.limit, 0, 10, above=True)
        check_number("min_step", self.min_step, 0, 1)
        if self.min_step == 1:
            raise ModelError(f"min_step: expected a number from 0 to below 1, got {self.min_step!r}")
        check_number("move_seconds", self.move_seconds, 0)
        check_number("load_rate", self.load_rate, 0, above=True)
        check_number("horizon", self.horizon, 0, above=True)
        check_count("max_moves", self.max_moves, 0)

    def price(self, moves: float, moved_bytes: float, executors: int) -> float:
        """Stage time in seconds per second that so many moves cost over the horizon.

        In one step each of the executors may take one partition, so moves share the time of a step.
        """
        return (moves * self.move_seconds / executors + moved_bytes / self.load_rate) / self.horizon


def adaptive(
    cluster: Cluster, workload: Workload, current: Placement, parameters: AdaptiveParameters | None = None
) -> Outcome:
    """Placement with the shortest batches (:func:`placement_cost`) that is worth its moves, and what to say about it.

    Partitions on unavailable or unknown executors are placed whatever it costs. Raises ``ModelError`` where the
    arguments do not fit together, ``ScaleOutError`` where partitions must be placed and no executor is available.
    """
    current.validate(cluster, workload)
    parameters = parameters or AdaptiveParameters()
    if not workload.placeable:
        return Outcome(current, ("no stage has partitions to place",))
    homeless = sum(
        int(((array == UNPLACED) | ~cluster.available[array]).sum()) for array in current.assignments.values()
    )
    if not cluster.available.any():
        raise ScaleOutError(f"{homeless} partitions need an executor and none is available: add executors")
    notes = [f"{homeless} partitions had to be placed: their executor is unavailable or unknown"] if homeless else []
    ground = _SearchContext(cluster, workload, current, parameters)
    base = _PlacementSearch(ground)
    base.sweep(thorough=False)
    if not homeless and base.own_moves() and not _relieved(base.cost(), (as_is := _PlacementSearch(ground)).cost()):
        base = as_is  # what left one full executor only filled another
    best = base
    if parameters.mode == "full" and parameters.max_moves != 0:
        best = base.climbed()
        if base.small:
            best = _elsewhere(ground, best)
        if not improves(best.score(), base.score(), parameters.min_step):
            best = base
    before = base.cost()[2] if homeless or not base.own_moves() else _PlacementSearch(ground).cost()[2]
    what = f"{best.own_moves()} moves: critical paths add up to {best.cost()[2]:.2g} s a second instead of {before:.2g}"
    if best.own_moves() == 0:
        what = "no moves for balance: none is worth it"
    elif best is base:
        what = f"moves to relieve executors above {parameters.limit:.0%}: {best.own_moves()}"
    notes.append(f"{what}; {_gap(ground, best)}")
    return Outcome(best.placement(), tuple(notes))


def _gap(ground: _SearchContext, search: _PlacementSearch) -> str:
    bound = certified_bound(ground.cluster, ground.workload)
    if search.saturates:
        return f"how far it is from the best is not certified: an executor is above {SATURATED:.0%}"
    if bound <= 0:
        return "nothing has any work"
    return f"at most {search.cost()[2] / bound - 1:.2%} above what no placement can beat"


def _elsewhere(ground: _SearchContext, best: _PlacementSearch) -> _PlacementSearch:
    """The best of a search and of others that begin elsewhere, as long as they keep within ``max_moves``.

    Where executors are nearly full, what stands in the way of one stage is another that is not moved yet: so once
    with nothing placed. Where stages depend on each other, once from the best of what other heuristics say, and all is
    polished as a whole.
    """
    cluster, workload, current, parameters = ground.cluster, ground.workload, ground.given, ground.parameters
    most = np.inf if parameters.max_moves is None else parameters.max_moves
    nowhere = Placement({key: np.full_like(array, UNPLACED) for key, array in current.assignments.items()})
    found = [_PlacementSearch(ground, nowhere).climbed()]
    if best.entangled or best.crowded:
        for heuristic in (even, bottleneck, stream_classification, t_storm):
            start = heuristic(cluster, workload, current).placement
            found.append(_PlacementSearch(ground, start))
        nearest = min(found[1:], key=_PlacementSearch.score)
        if improves(nearest.score(), best.score(), 0.0):
            found.append(nearest.climbed())
    for other in found:
        if other.own_moves() <= most and improves(other.score(), best.score(), parameters.min_step):
            best = other
    if best.entangled:
        polished = best.polished()
        if polished.own_moves() <= most and improves(polished.score(), best.score(), 0.0):
            return polished
    return best


class _SearchContext:
    """What all searches of one question share."""

    def __init__(self, cluster: Cluster, workload: Workload, given: Placement, parameters: AdaptiveParameters) -> None:
        self.cluster, self.workload, self.given, self.parameters = cluster, workload, given, parameters
        self.home = {
            key: np.where((array >= 0) & cluster.available[array], array, UNPLACED)
            for key, array in given.assignments.items()
        }
        self.units = sum(stage.n for stage in workload.placeable)
        self.fetch = _fetched(workload) if np.isfinite(cluster.bandwidth).any() else {}

    @cached_property
    def hot(self) -> HotStreams:
        """Found only when some stage is worth a look: that takes long."""
        return HotStreams(self.workload)


class _PlacementSearch:
    """One pass over the stages, and the totals it needs."""

    def __init__(self, ground: _SearchContext, start: Placement | None = None) -> None:
        self._ground = ground
        self._cluster, self._workload, self._parameters = ground.cluster, ground.workload, ground.parameters
        self._home, self._fetch = ground.home, ground.fetch
        cluster, workload = self._cluster, self._workload
        self._stages = workload.placeable
        self._at = {key: self._home[key] if start is None else start[key] for key in self._home}
        self._slots = task_slots(cluster)
        self._capacity = cluster.cores * cluster.speed
        self._query = {query: index for index, query in enumerate(workload.queries)}
        self._load = np.zeros((len(self._query), cluster.size))  # core seconds per second by query
        self._held = np.zeros(cluster.size)
        self._cost: tuple[float, float, float] | None = None
        for stage in workload.stages:
            if stage.placeable:
                self._add(stage, self._at[stage.key], 1.0)
            else:
                self._load[self._query[stage.query]] += stage.batches_per_second * stage.busy
        self._all = self._load.sum(axis=0)
        # Kept up with each stage that is taken: to look at all partitions anew for every stage is quadratic.
        self._moved = {stage.key: self._count(stage.key) for stage in self._stages}

    def climbed(self) -> _PlacementSearch:
        """The best of this and of looking at its stages again and again, until that gains little."""
        best = self
        for _ in range(_SWEEPS if self.small else 1):
            search = _PlacementSearch(self._ground, best.placement())
            search.sweep(thorough=True)
            gains = improves(search.score(), best.score(), _LEAST)
            if improves(search.score(), best.score(), 0.0):
                best = search
            if not gains:
                break
        return best

    @property
    def entangled(self) -> bool:
        """Whether a stage's time depends on where others are."""
        return len(self._query) > 1 or bool(self._fetch)

    def polished(self) -> _PlacementSearch:
        """With the changes that help all stages together, though maybe not their own."""
        least = min(_LEAST, self._parameters.min_step)
        budget = _POLISH * sum(stage.n for stage in self._stages)
        parameters, executors = self._parameters, int(self._cluster.available.sum())
        price = {
            stage.key: np.array([parameters.price(1, size, executors) for size in stage.state_bytes.tolist()])
            for stage in self._stages
        }
        at = polished(
            self._cluster, self._workload, self.placement(), least, budget, parameters.limit, self._home, price
        )
        return _PlacementSearch(self._ground, at)

    def cost(self) -> tuple[float, float, float]:
        """See :func:`placement_cost`; infinite as long as something is on no executor."""
        if self._cost is None:
            if any((array < 0).any() for array in self._at.values()):
                return np.inf, np.inf, np.inf
            limit = self._parameters.limit
            self._cost = placement_cost(self._cluster, self._workload, self.placement(), limit)
        return self._cost

    def score(self) -> tuple[float, float, float]:
        """The cost with what the moves cost on top of the stage time."""
        over, short, path = self.cost()
        moved = sum(
            float(
                stage.state_bytes[(self._home[stage.key] >= 0) & (self._at[stage.key] != self._home[stage.key])].sum()
            )
            for stage in self._stages
        )
        price = self._parameters.price(self.own_moves(), moved, int(self._cluster.available.sum()))
        return over, short, path + price

    @property
    def crowded(self) -> bool:
        """Whether some executor is nearly full, so that stages stand in each other's way."""
        return bool((self._all > 0.7 * self._parameters.limit * self._capacity).any())

    @property
    def saturates(self) -> bool:
        """Whether some executor is so busy that the bound is none."""
        return bool((self._all > SATURATED * self._capacity * (1 + _SAME)).any())

    @property
    def small(self) -> bool:
        """Whether there is time to look at everything more than once."""
        return self._ground.units * self._cluster.size <= _SMALL

    def placement(self) -> Placement:
        """Where everything is now."""
        return Placement(dict(self._at))

    def own_moves(self) -> int:
        """Partitions that moved though nothing forced them."""
        return sum(self._moved.values())

    def _count(self, key: str) -> int:
        home = self._home[key]
        return int(((home >= 0) & (self._at[key] != home)).sum())

    def sweep(self, *, thorough: bool) -> None:
        """Look at every stage once, the one with most to gain first."""
        excess = [self._excess(stage) for stage in self._stages]
        for index in np.argsort(-np.array(excess), kind="stable").tolist():
            stage, home = self._stages[index], self._home[self._stages[index].key]
            # What has to be placed anyway is no move, and may be placed well when no move is left.
            free = thorough and (self._relief(stage) > 0 or bool((home < 0).any()))
            idle = excess[index] <= 0 or (not free and not self._moved[stage.key])
            if idle and (self._at[stage.key] >= 0).all() and not self._crowded(stage):
                continue
            problem = self._problem(stage)
            bound = lower_bound(problem.busy, problem.speed, problem.slots, problem.available)
            options = solve(problem, bound, levels=self._levels(free), thorough=free)
            chosen = self._chosen(stage, problem, options, thorough=free)
            if (home >= 0).any():
                chosen = pruned(problem, chosen)
            self._take(stage, chosen.assignment)

    def _levels(self, thorough: bool) -> tuple[float, ...]:
        parameters = self._parameters
        priced = parameters.move_seconds > 0 or np.isfinite(parameters.load_rate) or parameters.max_moves is not None
        return _LEVELS if thorough and priced else ()

    def _chosen(self, stage: Stage, problem: Problem, options: list[Option], *, thorough: bool) -> Option:
        """The option that costs least in all, moves and their bytes counted over the horizon."""
        first = options[0]
        if not thorough:
            return first
        parameters, rate = self._parameters, stage.batches_per_second
        spare = None
        if parameters.max_moves is not None:
            others = self.own_moves() - self._moved[stage.key]
            spare = max(parameters.max_moves - others, first.moves)

        def price(option: Option) -> float:
            return parameters.price(option.moves, option.moved_bytes, int(self._cluster.available.sum()))

        best, best_cost = first, rate * first.seconds + price(first)
        # A crowded executor is worth relieving whatever the stage's time is.
        least = first.seconds * (1 - parameters.min_step)
        for option in sorted(options[1:], key=lambda option: (option.moves, option.seconds)):
            if (spare is not None and option.moves > spare) or option.seconds > least:
                continue
            cost = rate * option.seconds + price(option)
            if cost < best_cost * (1 - _SAME):
                best, best_cost = option, cost
        if best is first and spare is not None and len(options) > 1:
            return self._within(problem, options, spare, least) or first
        return best

    def _within(self, problem: Problem, options: list[Option], spare: int, least: float) -> Option | None:
        """The best that so many moves can do, where every option needs more."""
        low, high = min(option.seconds for option in options), options[0].seconds
        found: Option | None = None
        for _ in range(8):
            middle = (low + high) / 2
            option = limited(problem, middle)
            if option.moves <= spare:
                high = middle
                if option.seconds <= least and (found is None or option.seconds < found.seconds):
                    found = option
            else:
                low = middle
        return found

    def _problem(self, stage: Stage) -> Problem:
        cluster, key, rate = self._cluster, stage.key, stage.batches_per_second
        at = self._at[key]
        placed = at >= 0
        own = np.bincount(at[placed], stage.busy[placed], cluster.size)
        own_bytes = np.bincount(at[placed], stage.state_bytes[placed], cluster.size)
        rest = self._all - rate * own
        room = np.full(cluster.size, np.inf)
        if rate > 0:
            room = np.maximum(self._parameters.limit * self._capacity - rest, 0.0) / rate
        return Problem(
            busy=stage.busy,
            state_bytes=stage.state_bytes,
            home=self._home[key],
            speed=cluster.speed * self._left(stage),
            slots=self._slots,
            available=cluster.available,
            room_busy=room,
            room_bytes=np.maximum(cluster.memory_bytes - (self._held - own_bytes), 0.0),
            use=rest / self._capacity,
            fetch=self._fetch.get(key, np.zeros(stage.n)),
            bandwidth=cluster.bandwidth,
            near=self._ground.hot.near(stage, self._at, cluster.size),
            near_in=self._ground.hot.near(stage, self._at, cluster.size, received=True),
            relieve=self._relief(stage),
        )

    def _relief(self, stage: Stage) -> int:
        """Partitions that may still move in a stage."""
        most = self._parameters.max_moves
        return 1 << 60 if most is None else max(most - self.own_moves() + self._moved[stage.key], 0)

    def _left(self, stage: Stage) -> FloatArray:
        """What the other queries leave of each executor, (E,)."""
        others = (self._all - self._load[self._query[stage.query]]) / self._capacity
        return np.asarray(np.minimum(np.maximum(1.0 - others, 1.0 - SATURATED), 1.0))

    def _excess(self, stage: Stage) -> float:
        """Seconds per second that the stage is above what is possible while all others stay where they are."""
        at, left = self._at[stage.key], self._left(stage)
        placed = at >= 0
        speed = self._cluster.speed * left
        bound = lower_bound(stage.busy, speed, self._slots, self._cluster.available)
        # As if an executor's cores were one: what is looked at first.
        times = np.bincount(at[placed], stage.busy[placed], self._cluster.size) / (self._capacity * left)
        fetched = self._fetch.get(stage.key)
        if fetched is not None:
            times = times + np.bincount(at[placed], fetched[placed], self._cluster.size) / self._cluster.bandwidth
        if not placed.all():  # what has no place goes first, the largest before the others: it fits in fewest places
            return float("inf") if placed.any() else 1e9 * (1 + stage.batches_per_second * float(stage.busy.max()))
        largest = float((stage.busy / speed[at]).max())
        return stage.batches_per_second * max(float(times.max()) - bound, largest - bound, 0.0)

    def _crowded(self, stage: Stage) -> bool:
        full = (self._all > self._parameters.limit * self._capacity) | (self._held > self._cluster.memory_bytes)
        return bool(full[self._at[stage.key]].any())

    def _take(self, stage: Stage, assignment: IntArray) -> None:
        self._cost = None
        before = self._load[self._query[stage.query]].copy()
        self._add(stage, self._at[stage.key], -1.0)
        self._add(stage, assignment, 1.0)
        self._all += self._load[self._query[stage.query]] - before
        self._at[stage.key] = assignment
        self._moved[stage.key] = self._count(stage.key)

    def _add(self, stage: Stage, assignment: IntArray, sign: float) -> None:
        placed = assignment >= 0
        size = self._cluster.size
        work = np.bincount(assignment[placed], stage.busy[placed], size)
        self._load[self._query[stage.query]] += sign * stage.batches_per_second * work
        self._held += sign * np.bincount(assignment[placed], stage.state_bytes[placed], size)


def _fetched(workload: Workload) -> dict[str, FloatArray]:
    """Bytes per batch that each partition fetches, by placeable stage."""
    fetched: dict[str, FloatArray] = {}
    for stream in workload.streams:
        stage = workload.stage(stream.downstream)
        if stage.placeable and stage.batches_per_second > 0:
            had = fetched.get(stage.key, np.zeros(stage.n))
            fetched[stage.key] = had + stream.received() / stage.batches_per_second
    return fetched


def _relieved(after: tuple[float, ...], before: tuple[float, ...]) -> bool:
    """Whether a limit is broken by less."""
    return improves((*after[:2], 0.0), (*before[:2], 0.0), 0.0)


def _objective(
    cluster: Cluster, workload: Workload, placement: Placement, parameters: AdaptiveParameters | None = None
) -> Objective:
    """:func:`placement_cost` under the limit of the parameters."""
    return placement_cost(cluster, workload, placement, (parameters or AdaptiveParameters()).limit)


ADAPTIVE = FunctionPolicy(
    name="adaptive",
    place=adaptive,
    objective=_objective,
    parameters=AdaptiveParameters,
    summary="The shortest batches under memory and saturation limits, with few moves.",
    source="Rechannel's own",
)
