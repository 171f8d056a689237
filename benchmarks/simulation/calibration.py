"""Error of the simulation: fitted to some batches of live runs, compared with the others.

Each workload has its own fit, as Spark's work around the tasks differs. A batch is predicted by the engine, alone and
without noise: overhead, stages as long as their slowest executor, and the loads of the partitions that moved with it.
Fitted are the overhead of a batch, the factor of a task's time over the workload's, and the cost of a load (overhead
and bytes per second): the first two by least absolute deviations over batches in which nothing landed, the others over
those in which something did. Medians, because live batches are disturbed now and then by causes outside of the model.
Times are seconds here, milliseconds in the file as in Spark's events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import msgspec
import numpy as np

from benchmarks.simulation.engine import Costs, Simulation
from rechannel.policies.model.arrays import FloatArray
from rechannel.policies.model.cluster import UNPLACED, Cluster
from rechannel.policies.model.placement import Move, Placement
from rechannel.policies.model.workload import Workload
from rechannel.policies.scenarios.scenario import Scenario, from_document

_PASSES = 12
_RATES = np.logspace(5, 10, 11)  # bytes per second
_OVERHEADS = (0.0, 0.2, 1.0, 4.0)
_FINER = 3  # refinements of the grid around the best pair, each half as wide
_SPREAD = 0.05  # relative; paths that differ by less do not determine the scale
_LEAST = 1e-9


class LiveRun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One live run of one query, as JSON: an object with these fields. A file holds a list of them.

    ``name``: for display. ``workload``: runs of one workload share a fit. ``situation``: the measured situation; its
    runs are left out together when it is predicted from the others of its workload.

    ``scenario``: cluster, workload and placement before the run's moves, as the controller saw them, in the format of
    :func:`rechannel.policies.scenarios.scenario.to_document`: busy seconds of each partition per batch, the executor
    of each.

    ``query``: which of the workload's queries the batches are of.

    ``batches``: a list of ``{"batch": number, "start": seconds since the epoch, "milliseconds": duration of the whole
    trigger, "input": its rows over those of a usual batch}``; ``input`` may be left out and is 1 then. Before and after
    the moves, in order.

    ``moves``: a list of ``{"stage": key in the scenario, "partition": number, "source": executor, "target": executor,
    "bytes": of state that was loaded, "batch": number of the batch that ran it on its target first}``; executors by
    their names in the scenario, ``source`` "" where it was on none. Empty for a run without moves.
    """

    name: str
    workload: str
    situation: str
    scenario: dict[str, Any]
    query: str
    batches: list[dict[str, Any]]
    moves: list[dict[str, Any]] = []


def read_runs(records: Sequence[Mapping[str, Any]]) -> list[LiveRun]:
    """Read what a file holds; ValidationError names a field that is missing or not known."""
    return msgspec.convert(records, list[LiveRun])


@dataclass(frozen=True)
class Fit:
    """Fitted costs, in seconds and bytes per second.

    ``scale_known``: paths differed enough to fit it, else it is 1; ``loads_known``: some batch had a load.
    """

    overhead: float
    scale: float
    load_overhead: float
    load_rate: float
    scale_known: bool
    loads_known: bool

    @property
    def costs(self) -> Costs:
        """The same as the engine takes it."""
        return Costs(commit=self.overhead, scale=self.scale, load_overhead=self.load_overhead, load_rate=self.load_rate)


@dataclass(frozen=True, eq=False)
class _Point:
    """One measured batch: where the partitions were before it, what landed with it, and how long it lasted."""

    cluster: Cluster
    workload: Workload
    before: Placement
    moves: tuple[Move, ...]
    sizes: FloatArray
    input: float
    seconds: float

    def predicted(self, costs: Costs) -> float:
        """Seconds by the engine."""
        loads = {(move.stage, move.partition): size for move, size in zip(self.moves, self.sizes, strict=True)}
        stages = []
        for stage in self.workload.stages:
            state = stage.state_bytes.copy()
            for (key, partition), size in loads.items():
                if key == stage.key:
                    state[partition] = size
            stages.append(replace(stage, batches_per_second=1.0, state_bytes=state))
        # One batch of a query that runs once a second: volumes of streams are bytes a batch then.
        simulation = Simulation(self.cluster, Workload(tuple(stages), ()), self.before, costs)
        for key in simulation.factors:
            simulation.factors[key] = simulation.factors[key] * self.input
        simulation.steer([self.moves])
        end = 1.0
        while not simulation.batches:
            simulation.run(end, stagger=False)
            end *= 2
        return simulation.batches[0].seconds


def validate(runs: Sequence[LiveRun]) -> dict[str, Any]:
    """Fit each workload to every second batch of its runs, from the first on, and predict those that were held out.

    Returns the fits and how many runs each is of, by workload, and relative errors of all batches, of those in which
    something landed (``moving``) or nothing (``quiet``), and ``unseen``: all batches of each situation, predicted by
    a fit to the other situations of its workload. ``errors`` are the model's, ``constant`` those of the median of the
    fitted batches as a guess, ``turn`` those of the median of the fitted batches of the same run. Raises ValueError
    where there is no batch without a move.
    """
    by_workload: dict[str, list[tuple[str, list[_Point]]]] = {}
    for run in runs:
        by_workload.setdefault(run.workload, []).append((run.situation, _points(run)))
    columns_of: dict[str, list[FloatArray]] = {"all": [], "quiet": [], "moving": [], "unseen": []}
    fits = {}
    for workload, rows in by_workload.items():
        fitted_points = [point for _, points in rows for point in points[::2]]
        if all(point.moves for point in fitted_points):
            continue
        fits[workload] = _fitted(fitted_points)
        for _, points in rows:
            held = points[1::2]
            columns = _predicted_columns(held, fits[workload], fitted_points, points[::2])
            moving = np.array([bool(point.moves) for point in held], dtype=np.bool_)
            for name, selected in (("all", slice(None)), ("quiet", ~moving), ("moving", moving)):
                columns_of[name].append(columns[:, selected])
        for situation in sorted({situation for situation, _ in rows}):
            own = [point for name, points in rows if name == situation for point in points]
            others = [point for name, points in rows if name != situation for point in points[::2]]
            if not all(point.moves for point in others):
                columns_of["unseen"].append(_predicted_columns(own, _fitted(others), others, ()))
    if not fits:
        raise ValueError("batches: at least one without a move is needed")
    whole = {name: np.concatenate(parts, axis=1) for name, parts in columns_of.items() if parts}
    return {
        "fits": {workload: asdict(fit) for workload, fit in fits.items()},
        "runs": {workload: len(rows) for workload, rows in by_workload.items()},
        **{
            guess: {name: errors(rows[at], rows[-1]) for name, rows in whole.items() if not np.isnan(rows[at]).any()}
            for at, guess in enumerate(("errors", "constant", "turn"))
        },
    }


def _predicted_columns(
    points: Sequence[_Point], fitted: Fit, fitted_points: Sequence[_Point], turn: Sequence[_Point]
) -> FloatArray:
    """Return four rows: the points by the model and by two constants (nan: unknown), and as measured."""
    constants = [np.full(len(points), np.median(_measured(some)) if some else np.nan) for some in (fitted_points, turn)]
    return np.array([_predictions(points, fitted.costs), *constants, _measured(points)])


def errors(predicted: FloatArray, measured: FloatArray) -> dict[str, float | int | None]:
    """Median, 90th percentile and median with its sign of (predicted - measured) / measured."""
    if not len(measured):
        return {"batches": 0, "median": None, "p90": None, "bias": None}
    relative = (predicted - measured) / np.maximum(measured, _LEAST)
    return {
        "batches": len(measured),
        "median": float(np.median(np.abs(relative))),
        "p90": float(np.quantile(np.abs(relative), 0.9)),
        "bias": float(np.median(relative)),
    }


def _points(run: LiveRun) -> list[_Point]:
    scenario = from_document(run.scenario)
    workload = Workload(tuple(stage for stage in scenario.workload.stages if stage.query == run.query))
    if not workload.stages:
        raise ValueError(f"live run {run.name}: query: {run.query!r} is none of the scenario's")
    at = {stage.key: scenario.current[stage.key].copy() for stage in workload.placeable}
    points = []
    for row in sorted(run.batches, key=lambda row: int(row["batch"])):
        landing = [one for one in run.moves if int(one["batch"]) == int(row["batch"]) and one["stage"] in at]
        before = Placement({key: array.copy() for key, array in at.items()})
        moves = tuple(_move(one, scenario) for one in landing)
        for move in moves:
            at[move.stage][move.partition] = move.target
        sizes = np.array([float(one["bytes"]) for one in landing])
        seconds, rows = float(row["milliseconds"]) / 1e3, float(row.get("input", 1.0))
        points.append(_Point(scenario.cluster, workload, before, moves, sizes, rows, seconds))
    return points


def _move(row: Mapping[str, Any], scenario: Scenario) -> Move:
    index = scenario.cluster.index_of
    source, target = (index(row["source"]) if row["source"] else UNPLACED), index(row["target"])
    if target == UNPLACED:
        raise ValueError(f"moves: target {row['target']!r} is no executor of the scenario")
    return Move(row["stage"], int(row["partition"]), source, target)


def _fitted(points: Sequence[_Point]) -> Fit:
    quiet, moving = ([point for point in points if bool(point.moves) is has_moves] for has_moves in (False, True))
    if not quiet:
        raise ValueError("batches: at least one without a move is needed")
    paths, seconds = _predictions(quiet, Costs()), _measured(quiet)
    scale_known = bool(paths.max() - paths.min() > _SPREAD * paths.max())
    overhead, scale = _line(paths, seconds) if scale_known else (max(float(np.median(seconds - paths)), 0.0), 1.0)
    if not moving:
        return Fit(overhead, scale, 0.0, float("inf"), scale_known, False)
    measured = _measured(moving)

    def wrong(fixed: float, rate: float) -> float:
        costs = Costs(commit=overhead, scale=scale, load_overhead=fixed, load_rate=rate)
        return float(np.abs(_predictions(moving, costs) / measured - 1.0).mean())

    best = min((wrong(fixed, float(rate)), fixed, float(rate)) for fixed in _OVERHEADS for rate in _RATES)
    apart, factor = 0.4, float(_RATES[1] / _RATES[0]) ** 0.5
    for _ in range(_FINER):
        _, fixed, rate = best
        around = (
            (max(fixed + step, 0.0), rate * times) for step in (-apart, 0, apart) for times in (1 / factor, 1, factor)
        )
        best = min(best, *((wrong(*pair), *pair) for pair in around))
        apart, factor = apart / 2, factor**0.5
    return Fit(overhead, scale, best[1], best[2], scale_known, True)


def _line(paths: FloatArray, seconds: FloatArray) -> tuple[float, float]:
    """Return intercept and slope, not negative, of least absolute deviations (reweighted least squares)."""
    weights = np.ones(len(paths))
    intercept, slope = 0.0, 1.0
    for _ in range(_PASSES):
        x, y = (float(np.average(values, weights=weights)) for values in (paths, seconds))
        away = paths - x
        slope = max(float((weights * away) @ (seconds - y)) / max(float((weights * away) @ away), _LEAST), 0.0)
        intercept = y - slope * x
        if intercept < 0:
            intercept = 0.0
            slope = float((weights * paths) @ seconds) / max(float((weights * paths) @ paths), _LEAST)
        weights = 1.0 / np.maximum(np.abs(seconds - intercept - slope * paths), 1e-3)
    return intercept, slope


def _predictions(points: Sequence[_Point], costs: Costs) -> FloatArray:
    """Return the prediction of each point; equal batches, which most are, are predicted once."""
    by_batch: dict[tuple[object, ...], float] = {}
    seconds = []
    for point in points:
        key = (id(point.workload), point.before, point.moves, point.sizes.tobytes(), point.input)
        if key not in by_batch:
            by_batch[key] = point.predicted(costs)
        seconds.append(by_batch[key])
    return np.array(seconds)


def _measured(points: Sequence[_Point]) -> FloatArray:
    return np.array([max(point.seconds, _LEAST) for point in points])
