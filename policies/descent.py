"""The descent behind ``balance``: single moves and pair swaps out of the busiest executor.

Two objectives in turn: the stage times, one stage at a time, then the highest utilization without making any stage
longer. Every step strictly lowers the busiest of the two executors it touches, so the search ends. What is kept is
decided per run of steps, since a step out of one of several equally slow executors gains nothing by itself.
"""

from __future__ import annotations

import numpy as np

from rechannel.policies.model import FloatArray, IntArray
from rechannel.policies.search import (
    Candidates,
    Locality,
    SearchState,
    largest_without,
    lexicographic_best,
    most_local,
)

__all__ = ["NEAR", "Descent"]

_Changes = list[tuple[int, int]]

NEAR = 0.01
"""Targets whose objective differs by no more than this share are near-equal."""

_ROUNDING = 1e-9  # relative: smaller differences are none
_SAME = 1e-12  # relative: what summing in another order may change
_COARSE, _FINE = 12, 64  # units of one executor that are tried, spread over their sizes: first few, then more
_PATIENCE = 100  # steps that may gain nothing worth keeping before the search ends, and four more for each executor
_PARTNERS = 1024  # partners that each of them is tried against in a swap


class Descent:
    """One run of the search: its steps, the last state worth keeping, and the way back to it."""

    def __init__(self, state: SearchState, locality: Locality, min_step: float, max_moves: int | None) -> None:
        self._state, self._locality = state, locality
        self._min_step, self._max_moves = min_step, max_moves
        self._start = state.assignment.copy()
        self._kept = state.assignment.copy()
        self._kept_value = state.value()
        self._patience = _PATIENCE + 4 * state.cluster.size
        self._idle_rounds = 0

    def run(self) -> tuple[str, ...]:
        """Improve the state in place; returns what to say about it."""
        before = self._kept_value
        self._shorten_stages()
        self._go_to(self._kept)
        self._idle_rounds = 0
        self._lower_utilization()
        self._go_to(self._kept)
        self._take_back_idle_moves()
        moved = self._moved()
        if not moved:
            return (f"no moves for balance: none improves the objective by more than {self._min_step:.2%}",)
        after = self._state.value()
        path = f"stage time {before[0]:.4g} to {after[0]:.4g} s/s"
        use = f"highest utilization {before[1]:.3f} to {after[1]:.3f}"
        return (f"{moved} moves for balance: {path}, {use}",)

    def _shorten_stages(self) -> None:
        state, floors = self._state, self._state.floors()
        unfinished = np.ones(len(floors), dtype=np.bool_)
        while unfinished.any():
            excess = np.where(unfinished, state.rate * np.maximum(state.stage_times() - floors, 0.0), 0.0)
            if not self._pays(state.value()[0] - float(excess.sum()), np.inf):
                return
            stage = int(excess.argmax())
            changes = self._stage_step(stage)
            if not changes:
                unfinished[stage] = False
            elif not self._commit(changes):
                return

    def _stage_step(self, stage: int) -> _Changes:
        """The best move out of the executor that is last to finish the stage, else the best swap, else nothing."""
        state, times = self._state, self._state.time[stage]
        source = int(times.argmax())
        units = self._working(stage, source)
        if not units.size:
            return []
        for tried in _coarse_then_fine(units):
            if changes := self._shortest(state.moves(tried, source), tried, None, source, times):
                return changes
        partners = self._partners(stage, source)
        if not partners.size:
            return []
        return self._shortest(state.swaps(units, partners, stage, source), units, partners, source, times)

    def _shortest(
        self, found: Candidates, units: IntArray, partners: IntArray | None, source: int, times: FloatArray
    ) -> _Changes:
        """The candidate that shortens its stage most; both its ends must end below what ``source`` takes now."""
        pair = np.maximum(found.source_time, found.target_time)
        chosen = np.flatnonzero(found.allowed & (pair < times[source] * (1 - _ROUNDING)))
        if not chosen.size:
            return []
        time = np.maximum(pair, largest_without(times, source)[found.target])
        use = self._highest_use(found, source)
        ends = found.source_time**2 + found.target_time**2
        best = lexicographic_best(chosen, (time, use, ends, self._squares(found, source)))
        row, column = divmod(best, time.shape[1])
        unit, target = int(units[row]), int(found.target[column])
        if partners is not None:
            return [(unit, target), (int(partners[column]), source)]
        # Near-equal: within a hundredth of the objective, and still at least half of what this move gains.
        rate = float(self._state.rate[self._state.stage_of[unit]])
        margin = min(NEAR * self._state.value()[0] / rate, float(times[source] - time[row, column]) / 2)
        columns = chosen[chosen // time.shape[1] == row] % time.shape[1]
        columns = columns[time[row, columns] <= time[row, column] * (1 + _ROUNDING) + margin]
        columns = columns[use[row, columns] <= use[row, column] * (1 + NEAR)]
        return [(unit, most_local(self._locality, unit, target, found.target[columns]))]

    def _lower_utilization(self) -> None:
        state = self._state
        available = state.cluster.available
        floor = float(state.load[available].sum() / state.capacity[available].sum())
        while self._pays(state.value()[0], floor):
            changes = self._utilization_step()
            if not changes or not self._commit(changes):
                return

    def _utilization_step(self) -> _Changes:
        """The best move, else swap, out of the most utilized executor that makes no stage longer."""
        state = self._state
        source = int(np.where(state.cluster.available, state.utilization, -np.inf).argmax())
        working = state.busy * state.rate[state.stage_of] > 0
        units = _spread_over(np.flatnonzero((state.assignment == source) & working), state.busy, _FINE)
        for tried in _coarse_then_fine(units):
            if changes := self._evenest(state.moves(tried, source), tried, None, source):
                return changes
        for stage in np.unique(state.stage_of[units]).tolist():
            units, partners = self._working(stage, source), self._partners(stage, source)
            if not partners.size:
                continue
            if changes := self._evenest(state.swaps(units, partners, stage, source), units, partners, source):
                return changes
        return []

    def _evenest(self, found: Candidates, units: IntArray, partners: IntArray | None, source: int) -> _Changes:
        """The candidate with the lowest utilization of all; both its ends must end below what ``source`` has now."""
        state = self._state
        limit = state.stage_times()[state.stage_of[units]][:, None] * (1 + _SAME)
        pair = np.maximum(found.source_use, found.target_use)
        fits = (found.source_time <= limit) & (found.target_time <= limit)
        chosen = np.flatnonzero(found.allowed & fits & (pair < state.utilization[source] * (1 - _ROUNDING)))
        if not chosen.size:
            return []
        use = self._highest_use(found, source)
        best = lexicographic_best(chosen, (use, self._squares(found, source)))
        row, column = divmod(best, use.shape[1])
        unit, target = int(units[row]), int(found.target[column])
        if partners is not None:
            return [(unit, target), (int(partners[column]), source)]
        margin = min(NEAR * float(use[row, column]), float(state.utilization[source] - use[row, column]) / 2)
        columns = chosen[chosen // use.shape[1] == row] % use.shape[1]
        columns = columns[use[row, columns] <= use[row, column] * (1 + _ROUNDING) + margin]
        return [(unit, most_local(self._locality, unit, target, found.target[columns]))]

    def _working(self, stage: int, source: int) -> IntArray:
        """Units of a stage that ``source`` holds and has work with, smallest first."""
        state, part = self._state, self._state.units(stage)
        units = np.flatnonzero((state.assignment[part] == source) & (state.busy[part] > 0)) + part.start
        return _spread_over(units, state.busy, _FINE)

    def _partners(self, stage: int, source: int) -> IntArray:
        """Units of a stage that other executors hold, smallest first."""
        state, part = self._state, self._state.units(stage)
        units = np.flatnonzero(state.assignment[part] != source) + part.start
        return _spread_over(units, state.busy, _PARTNERS)

    def _highest_use(self, found: Candidates, source: int) -> FloatArray:
        state = self._state
        use = np.where(state.cluster.available, state.utilization, -np.inf)
        others = largest_without(use, source)[found.target]
        highest: FloatArray = np.maximum(np.maximum(found.source_use, found.target_use), others)
        return highest

    def _squares(self, found: Candidates, source: int) -> FloatArray:
        """What each candidate adds to the sum of squares of busy seconds, but for a constant."""
        state = self._state
        cores, busy = state.cluster.cores, state.load / state.cluster.speed
        after = (found.source_use * cores[source]) ** 2 + (found.target_use * cores[found.target]) ** 2
        squares: FloatArray = after - busy[found.target] ** 2
        return squares

    def _pays(self, path: float, use: float) -> bool:
        """Whether that stage time and utilization are better than what is kept by more than the least step."""
        step = 1 - max(self._min_step, _ROUNDING)
        kept_path, kept_use = self._kept_value
        return path < kept_path * step or (path <= kept_path * (1 + _SAME) and use < kept_use * step)

    def _commit(self, changes: _Changes) -> bool:
        """Make the changes; False where the search has to end, for ``max_moves`` (then undone) or patience."""
        undo = self._state.set(changes)
        if self._max_moves is not None and self._moved() > self._max_moves:
            self._state.set(undo)
            return False
        value = self._state.value()
        self._idle_rounds += 1
        if self._pays(*value):
            self._kept, self._kept_value = self._state.assignment.copy(), value
            self._idle_rounds = 0
        return self._idle_rounds <= self._patience

    def _moved(self) -> int:
        return int(np.count_nonzero(self._state.assignment != self._start))

    def _go_to(self, assignment: IntArray) -> None:
        differing = np.flatnonzero(self._state.assignment != assignment).tolist()
        self._state.set([(unit, int(assignment[unit])) for unit in differing])

    def _take_back_idle_moves(self) -> None:
        """Undo every move without which the result is as good, the smallest first."""
        state = self._state
        moved = np.flatnonzero(state.assignment != self._start)
        for unit in _spread_over(moved, state.busy, len(moved)).tolist():
            home = int(self._start[unit])
            if state.memory[home] + state.state_bytes[unit] > state.cluster.memory_bytes[home]:
                continue
            path, use = state.value()
            undo = state.set([(unit, home)])
            new_path, new_use = state.value()
            if new_path > path * (1 + _SAME) or new_use > use * (1 + _SAME):
                state.set(undo)


def _spread_over(units: IntArray, sizes: FloatArray, limit: int) -> IntArray:
    """At most ``limit`` of the units, spread from the smallest to the largest."""
    ordered = units[np.argsort(sizes[units], kind="stable")]
    if len(ordered) <= limit:
        return ordered
    return ordered[np.linspace(0, len(ordered) - 1, limit).round().astype(np.int64)]


def _coarse_then_fine(units: IntArray) -> tuple[IntArray, ...]:
    """A few of the sorted units to try first, then all of them; only all where they are few."""
    if len(units) <= _COARSE:
        return (units,)
    return units[np.linspace(0, len(units) - 1, _COARSE).round().astype(np.int64)], units
