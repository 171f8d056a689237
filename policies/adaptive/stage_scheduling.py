"""Division of one stage over the executors while all other stages stay.

Makespan scheduling on unequal machines, from a start that costs something to leave. Partitions leave executors that
take longer than a limit, and go where they are done soonest (list scheduling, Graham 1966). Limits between the lower
bound and the time of today are tried (MULTIFIT, Coffman, Garey and Johnson 1978), which gives a row of options from few
moves to the best time. The best options are refined: the slowest executor and another one divide what both hold as
evenly as possible.

Pure and deterministic. Units are the partitions of the one stage, counted from 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rechannel.policies.adaptive.stage_problem import Option, Problem
from rechannel.policies.adaptive.two_executors import divide
from rechannel.policies.analysis.placement_cost import finish_time
from rechannel.policies.model.arrays import BoolArray, FloatArray, IntArray, ranks, sum_by_index

_SAME = 1e-9  # relative: smaller differences are none
_LOCALITY_TOLERANCE = 0.01  # relative: between finishing times so close to each other locality decides
_TIGHT = 0.001  # a stage this close to its lower bound needs no refinement
_PARTNERS = 8  # executors, those done first, that the slowest one tries to divide its units with
_PERTURBATIONS = 40  # of a refinement, at most
_REFINEMENTS = 200  # of a stage that is not small, whose list schedule is near the bound anyway
_PERTURBED = 60  # units up to which a refinement that is stuck is perturbed
_EXCHANGES = 12  # moves and swaps between two executors that are tried one by one
_RELAXED = 0.8  # share of a limit below which the mean time of the executors leaves a stage relaxed
_RELABELED = 200  # executors up to which like ones are swapped: every two of them are looked at


def solve_stage(problem: Problem, bound: float, *, levels: Sequence[float], thorough: bool) -> list[Option]:
    """Return options for a stage: few moves first, then options that take less time.

    The first option moves only what has to move. ``bound``: seconds that no placement beats. ``levels``: shares of the
    way from the first option to the best one at which options with fewer moves are added. Not ``thorough``: the first
    option alone.
    """
    first = relocate(problem, np.inf)
    options = [first]
    if not thorough or first.seconds <= bound * (1 + _SAME):
        return options
    low, best = bound, first
    for step in range(8 if problem.is_small else 2):
        limit = low * (1 + _TIGHT / 2) if step == 0 else (low + best.seconds) / 2
        option = relocate(problem, limit)
        options.append(option)
        if option.seconds < best.seconds * (1 - _SAME):
            best = option
        if option.seconds > limit * (1 + _TIGHT):
            low = limit
        if best.seconds <= max(low, bound) * (1 + _TIGHT):
            break
    if best.seconds > bound * (1 + _TIGHT):
        if problem.is_small:
            options.append(_relabel(problem, relocate(problem, 0.0)))
        starts = sorted(options, key=lambda option: (option.seconds, option.moves))[: 2 if problem.is_small else 1]
        options += [_refine(problem, start, bound) for start in starts]
    best = min(options, key=lambda option: option.seconds)
    for share in levels:
        options.append(relocate(problem, first.seconds - share * (first.seconds - best.seconds)))
    return options


def prune_moves(problem: Problem, option: Option) -> Option:
    """Take back the moves without which the option takes no longer."""
    ledger = _StageLedger(problem, option.assignment)
    moved = np.flatnonzero((problem.home >= 0) & (option.assignment != problem.home))
    for unit in moved[np.argsort(problem.busy[moved], kind="stable")].tolist():
        home = int(problem.home[unit])
        if not problem.available[home] or not ledger.fits(unit, home):
            continue
        if ledger.seconds_with(home, unit) <= option.seconds * (1 + _SAME):
            ledger.put(unit, home)
    return ledger.option()


class _StageLedger:
    """Units, work, bytes and times of each executor, updated with each move of a unit."""

    def __init__(self, problem: Problem, assignment: IntArray) -> None:
        self.problem = problem
        self.assignment = assignment.copy()
        self.simple = int(problem.slots.max(initial=1)) == 1
        size, units = len(problem.speed), np.flatnonzero(self.assignment >= 0)
        self.total_work = sum_by_index(self.assignment, problem.busy, size)
        self.bytes = sum_by_index(self.assignment, problem.state_bytes, size)
        self.fetch_seconds = np.zeros(size)
        if problem.fetching:
            executors = self.assignment[units]
            self.fetch_seconds = sum_by_index(executors, self._fetch_of(units, executors), size)
        self.makespan = self._makespan(units)  # seconds until the last core is done, at speed 1

    def _makespan(self, units: IntArray) -> FloatArray:
        if self.simple:
            return self.total_work.copy()
        # While every task has a core of its own, the longest one sets the time.
        executors = self.assignment[units]
        held = np.bincount(executors, minlength=len(self.total_work))
        makespan = np.zeros(len(self.total_work))
        np.maximum.at(makespan, executors, self.problem.busy[units])
        for executor in np.flatnonzero(held > self.problem.slots).tolist():
            makespan[executor] = self._finish(self.units(executor), executor)
        return makespan

    @property
    def seconds(self) -> FloatArray:
        """Seconds per batch of each executor."""
        return np.asarray(self.makespan / self.problem.speed + self.fetch_seconds)

    def units(self, executor: int) -> IntArray:
        """Units that an executor holds, in the order it runs them."""
        return np.flatnonzero(self.assignment == executor)

    def fits(self, unit: int, executor: int) -> bool:
        """Return whether the executor has room for one more unit."""
        problem = self.problem
        return bool(
            self.total_work[executor] + problem.busy[unit] <= problem.room_busy[executor]
            and self.bytes[executor] + problem.state_bytes[unit] <= problem.room_bytes[executor]
        )

    def seconds_with(self, executor: int, unit: int) -> float:
        """Seconds the executor would take with one more unit."""
        problem = self.problem
        busy = self.total_work[executor] + problem.busy[unit]
        if not self.simple:
            busy = self._finish(np.sort(np.append(self.units(executor), unit)), executor)
        extra = self._fetch_of(np.array([unit]), np.array([executor]))[0] if problem.fetching else 0.0
        return float(busy / problem.speed[executor] + self.fetch_seconds[executor] + extra)

    def put(self, unit: int, executor: int) -> None:
        """Move a unit; executor -1 takes it off."""
        problem, old = self.problem, int(self.assignment[unit])
        self.assignment[unit] = executor
        for where, sign in ((old, -1.0), (executor, 1.0)):
            if where < 0:
                continue
            self.total_work[where] += sign * problem.busy[unit]
            self.bytes[where] += sign * problem.state_bytes[unit]
            if problem.fetching:
                self.fetch_seconds[where] += sign * self._fetch_of(np.array([unit]), np.array([where]))[0]
            self.makespan[where] = self.total_work[where] if self.simple else self._finish(self.units(where), where)

    def option(self) -> Option:
        """Return the assignment as an option."""
        problem = self.problem
        moved = (problem.home >= 0) & (self.assignment != problem.home)
        seconds = float(self.seconds.max(initial=0.0))
        return Option(self.assignment, seconds, int(moved.sum()), float(problem.state_bytes[moved].sum()))

    def _finish(self, units: IntArray, executor: int) -> float:
        return finish_time(self.problem.busy[units].tolist(), int(self.problem.slots[executor]))

    def _fetch_of(self, units: IntArray, executors: IntArray) -> FloatArray:
        problem = self.problem
        remote = problem.fetched_bytes[units]
        if problem.local_received is not None:
            pairs = zip(units.tolist(), executors.tolist(), strict=True)
            local = np.array([problem.local_received(unit)[executor] for unit, executor in pairs])
            remote = np.maximum(remote - local, 0.0)
        return np.asarray(remote / problem.bandwidth[executors])


def relocate(problem: Problem, limit: float) -> Option:
    """Take units off executors beyond a limit or their room, and place them anew."""
    start = problem.home.copy()
    start[(start >= 0) & ~problem.available[start]] = -1
    ledger = _StageLedger(problem, start)
    _unload(problem, ledger, limit)
    homeless = np.flatnonzero(ledger.assignment < 0)
    if len(homeless):
        _ListScheduler(problem, ledger, limit).place(homeless)
        ledger = _StageLedger(problem, ledger.assignment)  # with the exact times of what the cores only estimated
    return ledger.option()


def _unload(problem: Problem, ledger: _StageLedger, limit: float) -> None:
    """Take units off executors beyond the limit or their room.

    Always the smallest unit that is enough, else the largest one.
    """
    room_busy = _relievable(ledger.total_work, problem.room_busy, problem.available)
    room_bytes = _relievable(ledger.bytes, problem.room_bytes, problem.available)
    over = (ledger.total_work > room_busy * (1 + _SAME)) | (ledger.bytes > room_bytes * (1 + _SAME))
    allowance = problem.moves_left
    late = ledger.seconds > limit * (1 + _SAME)
    for executor in np.flatnonzero(over | late).tolist():
        units = ledger.units(executor)
        units = units[np.argsort(problem.busy[units], kind="stable")]
        speed, simple = float(problem.speed[executor]), ledger.simple or problem.slots[executor] == 1
        while len(units):
            # Surplus: work over the limit or the room; heavy: bytes over the room.
            surplus = 0.0
            if np.isfinite(limit):
                surplus = ledger.makespan[executor] - max(limit - ledger.fetch_seconds[executor], 0.0) * speed
            heavy = 0.0
            if allowance > 0:
                surplus = max(surplus, float(ledger.total_work[executor] - room_busy[executor]))
                heavy = float(ledger.bytes[executor] - room_bytes[executor])
            if surplus <= _SAME * ledger.total_work[executor] and heavy <= _SAME * max(ledger.bytes[executor], 1.0):
                break
            if not simple:
                surplus = min(surplus, float(problem.busy[units[-1]]))
            enough = (problem.busy[units] >= surplus * (1 - _SAME)) & (problem.state_bytes[units] >= heavy)
            index = int(np.argmax(enough)) if enough.any() else len(units) - 1
            if heavy > 0 and not enough.any():
                index = int(np.argmax(problem.state_bytes[units]))
            allowance -= 1
            ledger.put(int(units[index]), -1)
            units = np.delete(units, index)


def _relievable(held: FloatArray, room: FloatArray, available: BoolArray) -> FloatArray:
    """Return the room of each executor, (E,).

    Infinite if all are over it: then they cannot lack less in all.
    """
    return np.full_like(room, np.inf) if (held > room * (1 + _SAME))[available].all() else room


class _ListScheduler:
    """List scheduling of homeless units: the largest first, each where it is done soonest.

    ``cores`` (E, most cores) is when each core is free and ``free_at`` (E,) when the first one of an executor is, at
    speed 1; ``count`` (E,) are the units there.
    """

    def __init__(self, problem: Problem, ledger: _StageLedger, limit: float) -> None:
        self.problem, self.ledger, self.limit = problem, ledger, limit
        self.capacity = problem.slots * problem.speed
        placed = np.flatnonzero(ledger.assignment >= 0)
        self.count = np.bincount(ledger.assignment[placed], minlength=len(problem.speed))
        self.cores = np.where(np.arange(problem.slots.max()) < problem.slots[:, None], 0.0, np.inf)
        if ledger.simple:
            self.cores[:, 0] = ledger.total_work
        else:
            self._fill_cores(placed)
        self.free_at = self.cores.min(axis=1)
        # Where one large unit sets the time, the others need not be spread by it: they go where the load is lowest.
        mean = problem.busy.sum() / self.capacity[problem.available].sum()
        self.relaxed = bool(np.isfinite(limit) and mean < _RELAXED * limit)

    def _fill_cores(self, placed: IntArray) -> None:
        """Put the units that stay on cores: one on each, the others on the core free first."""
        problem, busy = self.problem, self.problem.busy
        executors = self.ledger.assignment[placed]
        rank = ranks(executors)
        alone = rank < problem.slots[executors]
        self.cores[executors[alone], rank[alone]] = busy[placed[alone]]
        for unit, executor in zip(placed[~alone].tolist(), executors[~alone].tolist(), strict=True):
            self.cores[executor, self.cores[executor].argmin()] += busy[unit]

    def place(self, units: IntArray) -> None:
        """Place the units in the ledger, all but its makespan."""
        problem, ledger, busy = self.problem, self.ledger, self.problem.busy
        inverse, blocked = 1.0 / problem.speed, ~problem.available
        for unit in units[np.argsort(-busy[units], kind="stable")].tolist():
            done = (self.free_at + busy[unit]) * inverse
            if problem.fetching:
                remote = problem.fetched_bytes[unit]
                if problem.local_received is not None:
                    remote = np.maximum(remote - problem.local_received(unit), 0.0)
                fetch_seconds = remote / problem.bandwidth
                done = done + ledger.fetch_seconds + fetch_seconds
            full = blocked
            if problem.bounded:
                full = blocked | (ledger.total_work + busy[unit] > problem.room_busy)
                full |= ledger.bytes + problem.state_bytes[unit] > problem.room_bytes
            best = self._choose(unit, done, full)
            self.count[best] += 1
            if problem.fetching:
                ledger.fetch_seconds[best] += float(fetch_seconds[best])
            core = int(self.cores[best].argmin())
            self.cores[best, core] += busy[unit]
            self.free_at[best] = self.cores[best].min()
            ledger.assignment[unit] = best
            ledger.total_work[best] += busy[unit]
            ledger.bytes[best] += problem.state_bytes[unit]

    def _choose(self, unit: int, done: FloatArray, full: BoolArray) -> int:
        """Choose the executor of a unit.

        ``done`` (E,) is when each executor would be done with it, ``full`` (E,) which of them have no room.

        In this order: where no executor has room, the one that lacks least. The home, if it is done within the limit.
        In a relaxed stage: the least used one that is done within the limit. Of those that are done nearly as soon, the
        one where most of its hot streams are local. Else the one that is done first; of equal ones the least used, then
        the one with fewest units.
        """
        problem, ledger, limit = self.problem, self.ledger, self.limit
        home = int(problem.home[unit])
        if (full | ~problem.available).all():
            return self._least_lacking(unit)
        done = np.where(full, np.inf, done)
        best = int(done.argmin())
        ties = np.flatnonzero(done <= done[best] * (1 + _SAME))
        if len(ties) > 1:
            use = problem.use[ties] + ledger.total_work[ties] / self.capacity[ties]
            best = int(ties[np.lexsort((self.count[ties] / problem.slots[ties], np.round(use, 12)))[0]])
        if home >= 0 and np.isfinite(limit) and done[home] <= max(float(done[best]), limit):
            return home
        if self.relaxed and done[best] <= limit:
            use = problem.use + ledger.total_work / self.capacity
            best = int(np.where(done <= limit, use, np.inf).argmin())
        if problem.local_bytes is not None:
            local = np.where(done <= done[best] * (1 + _LOCALITY_TOLERANCE), problem.local_bytes(unit), -1.0)
            most_local = int(local.argmax())
            if local[most_local] > max(local[best], 0.0):
                return most_local
        return best

    def _least_lacking(self, unit: int) -> int:
        """Return the executor that lacks least for the unit, memory before cores.

        The home of the unit, if no other one lacks less.
        """
        problem, ledger = self.problem, self.ledger
        missing = _added(ledger.bytes - problem.room_bytes, float(problem.state_bytes[unit]))
        short = _added(ledger.total_work - problem.room_busy, float(problem.busy[unit]))
        use = problem.use + ledger.total_work / self.capacity
        moved = np.arange(len(use)) != int(problem.home[unit])
        order = np.lexsort((use, moved, np.round(short, 9), np.round(missing, 3), ~problem.available))
        return int(order[0])


def _added(beyond: FloatArray, more: float) -> FloatArray:
    """Return how much further beyond its room each executor is with ``more``, (E,)."""
    return np.asarray(np.maximum(beyond + more, 0.0) - np.maximum(beyond, 0.0))


def _relabel(problem: Problem, option: Option) -> Option:
    """Swap executors that are alike, so that most bytes stay, then most units."""
    home, size = problem.home, len(problem.speed)
    if problem.fetching or problem.local_bytes is not None or size > _RELABELED:
        return option
    placed = home >= 0
    stays = np.zeros((size, size))
    np.add.at(stays, (option.assignment[placed], home[placed]), problem.state_bytes[placed] + 1.0)
    work = sum_by_index(option.assignment, problem.busy, size)
    held = sum_by_index(option.assignment, problem.state_bytes, size)
    name = np.full(size, -1)
    used = np.zeros(size, dtype=np.bool_)
    for flat in np.argsort(-stays, axis=None, kind="stable").tolist():
        group, executor = divmod(flat, size)
        if name[group] >= 0 or used[executor] or not problem.available[executor]:
            continue
        alike = np.isclose(problem.speed[group], problem.speed[executor], rtol=1e-9)
        room = work[group] <= problem.room_busy[executor] and held[group] <= problem.room_bytes[executor]
        if alike and problem.slots[group] == problem.slots[executor] and room:
            name[group], used[executor] = executor, True
    left = np.flatnonzero((name < 0) & (np.bincount(option.assignment, minlength=size) > 0))
    if used[left].any():
        return option  # a group would be left without an executor like its own
    name[left] = left
    return _StageLedger(problem, name[option.assignment]).option()


def _refine(problem: Problem, option: Option, bound: float) -> Option:
    """Let the slowest executor and another one divide their units while that helps."""
    ledger = _StageLedger(problem, option.assignment)
    random = np.random.default_rng(0)  # a fixed seed keeps the policy deterministic
    best, best_seconds = ledger.assignment.copy(), float(ledger.seconds.max())
    exact = ledger.simple and not problem.fetching
    # Otherwise pairs are not divided exactly, and each attempt is expensive.
    perturbations = _PERTURBATIONS if exact and len(problem.busy) <= _PERTURBED else 0
    for _ in range(4 * len(problem.busy) + perturbations if problem.is_small else _REFINEMENTS):
        seconds = np.where(problem.available, ledger.seconds, -np.inf)
        slowest = int(seconds.argmax())
        if seconds[slowest] < best_seconds * (1 - _SAME):
            best, best_seconds = ledger.assignment.copy(), float(seconds[slowest])
        if seconds[slowest] <= bound * (1 + _TIGHT / 10):
            break
        order = np.argsort(seconds, kind="stable")
        partners = order[(seconds[order] > -np.inf) & (order != slowest)]
        partners = partners[: _PARTNERS if exact else 2].tolist()
        if any(_divide_pair(problem, ledger, slowest, partner) for partner in partners):
            continue
        if perturbations <= 0 or len(partners) < 2:
            break
        perturbations -= 1
        ledger = _StageLedger(problem, best)
        _perturb(problem, ledger, random)
    return _StageLedger(problem, best).option()


def _divide_pair(problem: Problem, ledger: _StageLedger, slowest: int, partner: int) -> bool:
    """Divide the units of two executors anew; returns whether that helps."""
    now = float(ledger.seconds[slowest])
    mine, theirs = ledger.units(slowest), ledger.units(partner)
    if ledger.simple:
        units = np.concatenate([mine, theirs])
        share = divide(problem.busy[units], len(mine), float(problem.speed[slowest]), float(problem.speed[partner]))
        changes = [(int(unit), slowest if stays else partner) for unit, stays in zip(units, share, strict=True)]
        changes = [(unit, executor) for unit, executor in changes if ledger.assignment[unit] != executor]
        if changes and _try_changes(problem, ledger, changes, now):
            return True
        if not changes or not problem.bounded:
            return False
    # Moves and swaps that shift about half of the difference between the two, the nearest first.
    gives = np.repeat(mine, len(theirs) + 1)
    takes = np.tile(np.append(theirs, -1), len(mine))
    shifts = problem.busy[gives] - np.where(takes >= 0, problem.busy[takes], 0.0)
    ideal = (now - float(ledger.seconds[partner])) / 2 * float(problem.speed[slowest])
    nearest = np.argsort(np.abs(shifts - ideal), kind="stable")
    for index in nearest[shifts[nearest] > 0][:_EXCHANGES].tolist():
        changes = [(int(gives[index]), partner)]
        if takes[index] >= 0:
            changes.append((int(takes[index]), slowest))
        if _try_changes(problem, ledger, changes, now):
            return True
    return False


def _try_changes(problem: Problem, ledger: _StageLedger, changes: list[tuple[int, int]], now: float) -> bool:
    """Make changes that have every executor done before ``now`` and keep its room.

    Otherwise undo them; returns whether they were made.
    """
    undo = [(unit, int(ledger.assignment[unit])) for unit, _ in changes]
    touched = sorted({executor for _, executor in changes + undo})
    for unit, executor in changes:
        ledger.put(unit, executor)
    fine = ledger.seconds[touched].max() < now * (1 - _SAME)
    fine = fine and bool((ledger.total_work[touched] <= problem.room_busy[touched] * (1 + _SAME)).all())
    fine = fine and bool((ledger.bytes[touched] <= problem.room_bytes[touched] * (1 + _SAME)).all())
    if not fine:
        for unit, executor in undo:
            ledger.put(unit, executor)
    return bool(fine)


def _perturb(problem: Problem, ledger: _StageLedger, random: np.random.Generator) -> None:
    """Mix the units of the slowest executor with those of two others.

    This leaves a local optimum.
    """
    seconds = np.where(problem.available, ledger.seconds, -np.inf)
    slowest = int(seconds.argmax())
    others = np.flatnonzero(problem.available & (np.arange(len(seconds)) != slowest))
    chosen = [slowest, *random.permutation(others)[:2].tolist()]
    units = np.flatnonzero(np.isin(ledger.assignment, chosen))
    for unit in units.tolist():
        ledger.put(unit, -1)
    noise = problem.busy[units] * random.uniform(0.6, 1.4, len(units))
    for unit in units[np.argsort(-noise, kind="stable")].tolist():
        fits = [executor for executor in chosen if ledger.fits(unit, executor)] or chosen
        ledger.put(unit, min(fits, key=lambda executor: ledger.seconds_with(executor, unit)))
