"""One stage's partitions over the executors, everything else held still: the kernel of ``adaptive``.

Makespan scheduling on unequal machines with a start that moving away from costs: partitions leave executors that take
longer than a limit, largest needs first, and go where they are done soonest (list scheduling, Graham 1966). Limits
between what no placement can beat and what there is now are tried (MULTIFIT, Coffman, Garey and Johnson 1978), which
gives a row of options, from few moves to the best time. The best are refined: the slowest executor and another one
divide what both hold as evenly as it can be divided.

Pure and deterministic. Units are the partitions of the one stage, counted from 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rechannel.policies.adaptive.two_executors import divide, finish
from rechannel.policies.model.arrays import BoolArray, FloatArray, IntArray, summed

__all__ = ["Option", "Problem", "limited", "pruned", "solve"]

_SAME = 1e-9  # relative: smaller differences are none
_NEAR = 0.01  # relative: finishing times that near to each other are equal where locality differs
_TIGHT = 0.001  # a stage this close to what no placement can beat needs no refinement
_SMALL = 100_000  # units times executors up to which everything is tried
_PARTNERS = 8
_KICKS = 40
_KICKED = 60  # units up to which a stuck refinement is shaken
_TRIED = 12  # moves and swaps between two executors that are tried one by one


@dataclass(frozen=True, eq=False)
class Problem:
    """What there is to divide, and between whom. n units, E executors.

    ``busy`` (n,) seconds per batch on a reference executor, ``state_bytes`` (n,), ``home`` (n,) the executor that holds
    each unit, -1 where it has to be placed. ``speed`` (E,) is what is left of each executor for this query, ``slots``
    (E,) its cores, ``available`` (E,). ``room_busy`` and ``room_bytes`` (E,): what it may hold of this stage in all.
    ``use`` (E,): utilization by everything else. ``fetch`` (n,): bytes per batch that a unit fetches if nothing is
    local, ``bandwidth`` (E,) bytes per second; ``near`` gives for a unit the bytes per batch of its hot streams that
    would be local on each executor, (E,), and is None where nothing is hot. ``near_in`` is
    the part of it that the unit receives. ``relieve``: how many units may leave executors that have no room for them.
    """

    busy: FloatArray
    state_bytes: FloatArray
    home: IntArray
    speed: FloatArray
    slots: IntArray
    available: BoolArray
    room_busy: FloatArray
    room_bytes: FloatArray
    use: FloatArray
    fetch: FloatArray
    bandwidth: FloatArray
    near: Callable[[int], FloatArray] | None
    near_in: Callable[[int], FloatArray] | None = None
    relieve: int = 1 << 60

    @cached_property
    def bounded(self) -> bool:
        """Whether some executor has no room for everything."""
        return bool(np.isfinite(self.room_busy).any() or np.isfinite(self.room_bytes).any())

    @cached_property
    def fetching(self) -> bool:
        """Whether fetching costs time."""
        return bool(np.isfinite(self.bandwidth).any() and self.fetch.any())


@dataclass(frozen=True, eq=False)
class Option:
    """One way to place the units: (n,) executors, the seconds it takes, what moves."""

    assignment: IntArray
    seconds: float
    moves: int
    moved_bytes: float


def solve(problem: Problem, bound: float, *, levels: Sequence[float] = (), thorough: bool = True) -> list[Option]:
    """Options for a stage, the first with nothing moved but what has to be, then better ones.

    ``bound``: seconds that no placement beats. ``levels``: shares of the way from the first option to the best one that
    are tried too, for whoever pays per move. Not ``thorough``: the first option alone.
    """
    first = limited(problem, np.inf)
    options = [first]
    if not thorough or first.seconds <= bound * (1 + _SAME):
        return options
    small = len(problem.busy) * len(problem.speed) <= _SMALL
    low, best = bound, first
    for step in range(8 if small else 2):
        limit = low * (1 + _TIGHT / 2) if step == 0 else (low + best.seconds) / 2
        found = limited(problem, limit)
        options.append(found)
        if found.seconds < best.seconds * (1 - _SAME):
            best = found
        if found.seconds > limit * (1 + _TIGHT):
            low = limit
        if best.seconds <= max(low, bound) * (1 + _TIGHT):
            break
    if best.seconds > bound * (1 + _TIGHT):
        if small:
            options.append(_relabeled(problem, limited(problem, 0.0)))
        starts = sorted(options, key=lambda option: (option.seconds, option.moves))[: 2 if small else 1]
        options += [_refined(problem, start, bound) for start in starts]
    best = min(options, key=lambda option: option.seconds)
    for share in levels:
        options.append(limited(problem, first.seconds - share * (first.seconds - best.seconds)))
    return options


def pruned(problem: Problem, option: Option) -> Option:
    """The option without the moves that it does as well without."""
    books = _StageLedger(problem, option.assignment)
    moved = np.flatnonzero((problem.home >= 0) & (option.assignment != problem.home))
    for unit in moved[np.argsort(problem.busy[moved], kind="stable")].tolist():
        home = int(problem.home[unit])
        if not problem.available[home] or not books.fits(unit, home):
            continue
        if books.seconds_with(home, unit) <= option.seconds * (1 + _SAME):
            books.put(unit, home)
    return books.option()


class _StageLedger:
    """Who holds what, and how long each executor takes; kept while units move."""

    def __init__(self, problem: Problem, assignment: IntArray) -> None:
        self.problem = problem
        self.assignment = assignment.copy()
        self.simple = int(problem.slots.max(initial=1)) == 1
        self.recount()

    def recount(self) -> None:
        """Add everything up anew."""
        problem, assignment = self.problem, self.assignment
        size = len(problem.speed)
        placed = assignment >= 0
        self.work = summed(assignment[placed], problem.busy[placed], size)
        self.bytes = summed(assignment[placed], problem.state_bytes[placed], size)
        self.fetched = np.zeros(size)
        if problem.fetching:
            units = np.flatnonzero(placed)
            self.fetched = summed(assignment[units], self._fetch_of(units, assignment[units]), size)
        self.busy = self.work.copy()  # seconds on the last core to be done, at speed 1
        if not self.simple:
            # As long as every task has a core of its own, the longest is what counts.
            held = np.bincount(assignment[placed], minlength=size)
            self.busy = np.zeros(size)
            np.maximum.at(self.busy, assignment[placed], problem.busy[placed])
            for executor in np.flatnonzero(held > problem.slots).tolist():
                self.busy[executor] = self._finish(self.units(executor), executor)

    @property
    def seconds(self) -> FloatArray:
        """Seconds per batch of each executor."""
        return np.asarray(self.busy / self.problem.speed + self.fetched)

    def units(self, executor: int) -> IntArray:
        """Units that an executor holds, in the order it runs them."""
        return np.flatnonzero(self.assignment == executor)

    def fits(self, unit: int, executor: int) -> bool:
        """Whether the executor has room for one more unit."""
        problem = self.problem
        return bool(
            self.work[executor] + problem.busy[unit] <= problem.room_busy[executor]
            and self.bytes[executor] + problem.state_bytes[unit] <= problem.room_bytes[executor]
        )

    def seconds_with(self, executor: int, unit: int) -> float:
        """Seconds the executor would take with one more unit."""
        problem = self.problem
        busy = self.work[executor] + problem.busy[unit]
        if not self.simple:
            busy = self._finish(np.sort(np.append(self.units(executor), unit)), executor)
        extra = self._fetch_of(np.array([unit]), np.array([executor]))[0] if problem.fetching else 0.0
        return float(busy / problem.speed[executor] + self.fetched[executor] + extra)

    def put(self, unit: int, executor: int) -> None:
        """Move a unit."""
        problem, old = self.problem, int(self.assignment[unit])
        self.assignment[unit] = executor
        for where, sign in ((old, -1.0), (executor, 1.0)):
            if where < 0:
                continue
            self.work[where] += sign * problem.busy[unit]
            self.bytes[where] += sign * problem.state_bytes[unit]
            if problem.fetching:
                self.fetched[where] += sign * self._fetch_of(np.array([unit]), np.array([where]))[0]
            self.busy[where] = self.work[where] if self.simple else self._finish(self.units(where), where)

    def option(self) -> Option:
        """What the books say as an option."""
        problem = self.problem
        moved = (problem.home >= 0) & (self.assignment != problem.home)
        seconds = float(self.seconds.max(initial=0.0))
        return Option(self.assignment, seconds, int(moved.sum()), float(problem.state_bytes[moved].sum()))

    def _finish(self, units: IntArray, executor: int) -> float:
        return finish(self.problem.busy[units].tolist(), int(self.problem.slots[executor]))

    def _fetch_of(self, units: IntArray, executors: IntArray) -> FloatArray:
        problem = self.problem
        remote = problem.fetch[units]
        if problem.near_in is not None:
            pairs = zip(units.tolist(), executors.tolist(), strict=True)
            local = np.array([problem.near_in(unit)[executor] for unit, executor in pairs])
            remote = np.maximum(remote - local, 0.0)
        return np.asarray(remote / problem.bandwidth[executors])


def limited(problem: Problem, limit: float) -> Option:
    """Take off what keeps an executor busy for longer than the limit, or has no room there, and place it anew."""
    kept = problem.home.copy()
    kept[(kept >= 0) & ~problem.available[kept]] = -1
    books = _StageLedger(problem, kept)
    _shed(problem, books, limit)
    _fill(problem, books, limit)
    return books.option()


def _shed(problem: Problem, books: _StageLedger, limit: float) -> None:
    over = (books.work > problem.room_busy * (1 + _SAME)) | (books.bytes > problem.room_bytes * (1 + _SAME))
    allowance = problem.relieve
    late = books.seconds > limit * (1 + _SAME)
    for executor in np.flatnonzero(over | late).tolist():
        units = books.units(executor)
        units = units[np.argsort(problem.busy[units], kind="stable")]
        speed, simple = float(problem.speed[executor]), books.simple or problem.slots[executor] == 1
        while len(units):
            # What has to go: work over the limit, work over the room, bytes over the room; in the units' own measure.
            surplus = 0.0
            if np.isfinite(limit):
                most = max(limit - books.fetched[executor], 0.0) * speed
                surplus = books.busy[executor] - most
            heavy = 0.0
            if allowance > 0:
                surplus = max(surplus, float(books.work[executor] - problem.room_busy[executor]))
                heavy = float(books.bytes[executor] - problem.room_bytes[executor])
            if surplus <= _SAME * books.work[executor] and heavy <= _SAME * max(books.bytes[executor], 1.0):
                break
            if not simple:
                surplus = min(surplus, float(problem.busy[units[-1]]))
            enough = (problem.busy[units] >= surplus * (1 - _SAME)) & (problem.state_bytes[units] >= heavy)
            index = int(np.argmax(enough)) if enough.any() else len(units) - 1
            if heavy > 0 and not enough.any():
                index = int(np.argmax(problem.state_bytes[units]))
            allowance -= 1
            books.put(int(units[index]), -1)
            units = np.delete(units, index)


def _fill(problem: Problem, books: _StageLedger, limit: float) -> None:
    """Place what has no place, the largest first, where it is done soonest."""
    waiting = np.flatnonzero(books.assignment < 0)
    if not len(waiting):
        return
    busy, inverse = problem.busy, 1.0 / problem.speed
    size = len(problem.speed)
    count = np.bincount(books.assignment[books.assignment >= 0], minlength=size)
    cores = np.where(np.arange(problem.slots.max()) < problem.slots[:, None], 0.0, np.inf)
    if books.simple:
        cores[:, 0] = books.work
    else:
        placed = np.flatnonzero(books.assignment >= 0)
        placed = placed[np.argsort(books.assignment[placed], kind="stable")]
        on = books.assignment[placed]
        rank = np.arange(len(placed)) - (np.cumsum(count) - count)[on]
        alone = rank < problem.slots[on]
        cores[on[alone], rank[alone]] = busy[placed[alone]]
        for unit, executor in zip(placed[~alone].tolist(), on[~alone].tolist(), strict=True):
            cores[executor, cores[executor].argmin()] += busy[unit]
    first = cores.min(axis=1)  # when the first core is free, at speed 1
    blocked = ~problem.available
    work, held, fetched = books.work, books.bytes, books.fetched
    capacity = problem.slots * problem.speed
    # Where one large unit sets the time, the others need not be spread by it: they go where least is done in all.
    relaxed = np.isfinite(limit) and busy.sum() / capacity[problem.available].sum() < 0.8 * limit
    for unit in waiting[np.argsort(-busy[waiting], kind="stable")].tolist():
        done = (first + busy[unit]) * inverse
        if problem.fetching:
            remote = problem.fetch[unit]
            if problem.near_in is not None:
                remote = np.maximum(remote - problem.near_in(unit), 0.0)
            done = done + fetched + remote / problem.bandwidth
        full = blocked
        if problem.bounded:
            full = blocked | (work + busy[unit] > problem.room_busy)
            full |= held + problem.state_bytes[unit] > problem.room_bytes
        best = _choice(problem, unit, done, full, books, count, limit, relaxed=bool(relaxed))
        count[best] += 1
        if problem.fetching:
            fetched[best] += float(np.broadcast_to(remote, size)[best]) / problem.bandwidth[best]
        core = int(cores[best].argmin())
        cores[best, core] += busy[unit]
        first[best] = cores[best].min()
        books.assignment[unit] = best
        work[best] += busy[unit]
        held[best] += problem.state_bytes[unit]
    books.recount()  # the exact times of what the cores only estimated


def _choice(
    problem: Problem,
    unit: int,
    done: FloatArray,
    full: BoolArray,
    books: _StageLedger,
    count: IntArray,
    limit: float,
    *,
    relaxed: bool,
) -> int:
    home = int(problem.home[unit])
    if (full | ~problem.available).all():
        # Nobody has room: where it lacks least, memory before cores; it stays if it is no better elsewhere.
        missing = _added(books.bytes - problem.room_bytes, float(problem.state_bytes[unit]))
        short = _added(books.work - problem.room_busy, float(problem.busy[unit]))
        use = problem.use + books.work / (problem.slots * problem.speed)
        moved = np.arange(len(use)) != home
        order = np.lexsort((use, moved, np.round(short, 9), np.round(missing, 3), ~problem.available))
        return int(order[0])
    free = np.where(full, np.inf, done)
    best = int(free.argmin())
    ties = np.flatnonzero(free <= free[best] * (1 + _SAME))
    if len(ties) > 1:  # the least used of them, then the one with fewest
        use = problem.use[ties] + books.work[ties] / (problem.slots * problem.speed)[ties]
        best = int(ties[np.lexsort((count[ties] / problem.slots[ties], np.round(use, 12)))[0]])
    most = max(float(free[best]), limit) if np.isfinite(limit) else float(free[best])
    if home >= 0 and free[home] <= most and np.isfinite(limit):
        return home
    if relaxed and free[best] <= limit:
        use = problem.use + books.work / (problem.slots * problem.speed)
        best = int(np.where(free <= limit, use, np.inf).argmin())
    if problem.near is not None:
        near = np.where(free <= free[best] * (1 + _NEAR), problem.near(unit), -1.0)
        local = int(near.argmax())
        if near[local] > max(near[best], 0.0):
            return local
    return best


def _added(beyond: FloatArray, more: float) -> FloatArray:
    """How much further beyond its room each executor is with so much more."""
    return np.asarray(np.maximum(beyond + more, 0.0) - np.maximum(beyond, 0.0))


def _relabeled(problem: Problem, option: Option) -> Option:
    """The same division with executors that are alike named so that most bytes stay, then most units."""
    home, size = problem.home, len(problem.speed)
    if problem.fetching or problem.near is not None or size > 200:
        return option
    kept = home >= 0
    stays = np.zeros((size, size))
    np.add.at(stays, (option.assignment[kept], home[kept]), problem.state_bytes[kept] + 1.0)
    work = summed(option.assignment, problem.busy, size)
    held = summed(option.assignment, problem.state_bytes, size)
    name = np.full(size, -1)
    taken = np.zeros(size, dtype=np.bool_)
    for flat in np.argsort(-stays, axis=None, kind="stable").tolist():
        group, executor = divmod(flat, size)
        if name[group] >= 0 or taken[executor] or not problem.available[executor]:
            continue
        alike = np.isclose(problem.speed[group], problem.speed[executor], rtol=1e-9)
        room = work[group] <= problem.room_busy[executor] and held[group] <= problem.room_bytes[executor]
        if alike and problem.slots[group] == problem.slots[executor] and room:
            name[group], taken[executor] = executor, True
    left = np.flatnonzero((name < 0) & (np.bincount(option.assignment, minlength=size) > 0))
    if taken[left].any():
        return option  # somebody would be left without an executor like his own
    name[left] = left
    return _StageLedger(problem, name[option.assignment]).option()


def _refined(problem: Problem, option: Option, bound: float) -> Option:
    """Let the slowest executor and another one divide what both hold, until nothing gets better."""
    books = _StageLedger(problem, option.assignment)
    random = np.random.default_rng(0)  # a fixed seed: the same question has the same answer
    kept, kept_seconds = books.assignment.copy(), float(books.seconds.max())
    exact = books.simple and not problem.fetching
    # Else pairs are not divided exactly, and each try is dear.
    kicks = _KICKS if exact and len(problem.busy) <= _KICKED else 0
    for _ in range(4 * len(problem.busy) + kicks):
        seconds = np.where(problem.available, books.seconds, -np.inf)
        slowest = int(seconds.argmax())
        if seconds[slowest] < kept_seconds * (1 - _SAME):
            kept, kept_seconds = books.assignment.copy(), float(seconds[slowest])
        if seconds[slowest] <= bound * (1 + _TIGHT / 10):
            break
        order = np.argsort(seconds, kind="stable")
        partners = order[(seconds[order] > -np.inf) & (order != slowest)]
        partners = partners[: _PARTNERS if exact else 2].tolist()
        if any(_shared(problem, books, slowest, partner) for partner in partners):
            continue
        if kicks <= 0 or len(partners) < 2:
            break
        kicks -= 1
        books = _StageLedger(problem, kept)
        _kick(problem, books, random)
    return _StageLedger(problem, kept).option()


def _shared(problem: Problem, books: _StageLedger, slowest: int, partner: int) -> bool:
    """Divide what two executors hold anew; False where it does not help."""
    now = float(books.seconds[slowest])
    mine, theirs = books.units(slowest), books.units(partner)
    if books.simple:
        units = np.concatenate([mine, theirs])
        share = divide(problem.busy[units], len(mine), float(problem.speed[slowest]), float(problem.speed[partner]))
        changes = [(int(unit), slowest if stays else partner) for unit, stays in zip(units, share, strict=True)]
        changes = [(unit, executor) for unit, executor in changes if books.assignment[unit] != executor]
        if changes and _tried(problem, books, changes, now):
            return True
        if not changes or not problem.bounded:
            return False
    # Moves and swaps that shift nearly half of what is between the two, the nearest first.
    gives = np.repeat(mine, len(theirs) + 1)
    takes = np.tile(np.append(theirs, -1), len(mine))
    shifts = problem.busy[gives] - np.where(takes >= 0, problem.busy[takes], 0.0)
    wanted = (now - float(books.seconds[partner])) / 2 * float(problem.speed[slowest])
    nearest = np.argsort(np.abs(shifts - wanted), kind="stable")
    for index in nearest[shifts[nearest] > 0][:_TRIED].tolist():
        changes = [(int(gives[index]), partner)]
        if takes[index] >= 0:
            changes.append((int(takes[index]), slowest))
        if _tried(problem, books, changes, now):
            return True
    return False


def _tried(problem: Problem, books: _StageLedger, changes: list[tuple[int, int]], now: float) -> bool:
    """Make the changes if every executor they touch is then done before ``now`` and has room; else leave all as is."""
    undo = [(unit, int(books.assignment[unit])) for unit, _ in changes]
    touched = sorted({executor for _, executor in changes + undo})
    for unit, executor in changes:
        books.put(unit, executor)
    fine = books.seconds[touched].max() < now * (1 - _SAME)
    fine = fine and bool((books.work[touched] <= problem.room_busy[touched] * (1 + _SAME)).all())
    fine = fine and bool((books.bytes[touched] <= problem.room_bytes[touched] * (1 + _SAME)).all())
    if not fine:
        for unit, executor in undo:
            books.put(unit, executor)
    return bool(fine)


def _kick(problem: Problem, books: _StageLedger, random: np.random.Generator) -> None:
    """Mix the units of the slowest executor with those of two others, to get out of a dead end."""
    seconds = np.where(problem.available, books.seconds, -np.inf)
    slowest = int(seconds.argmax())
    others = np.flatnonzero(problem.available & (np.arange(len(seconds)) != slowest))
    chosen = [slowest, *random.permutation(others)[:2].tolist()]
    units = np.flatnonzero(np.isin(books.assignment, chosen))
    for unit in units.tolist():
        books.put(unit, -1)
    noise = problem.busy[units] * random.uniform(0.6, 1.4, len(units))
    for unit in units[np.argsort(-noise, kind="stable")].tolist():
        fits = [executor for executor in chosen if books.fits(unit, executor)] or chosen
        books.put(unit, min(fits, key=lambda executor: books.seconds_with(executor, unit)))
