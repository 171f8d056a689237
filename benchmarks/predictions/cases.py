"""Cases drawn from a seed: queries that share executors, and the task times that a controller would have seen.

The truth of a case is that of :mod:`benchmarks.predictions.truth`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from benchmarks.predictions.truth import LAUNCH, TrueQuery, run_batches
from benchmarks.simulation.engine import Batch
from rechannel.policies.model.arrays import FloatArray, IntArray
from rechannel.policies.model.cluster import Cluster
from rechannel.policies.model.placement import Placement
from rechannel.policies.model.workload import Stage, Workload
from rechannel.policies.prediction.growth import fit_growth
from rechannel.policies.prediction.model import FloatingTasks, PredictionModel, QueryTiming, StageSpread
from rechannel.policies.prediction.work import TaskSamples, fit_stages

REGIMES = {
    "one": "one query back to back on three to eight executors",
    "two": "two queries back to back on four executors",
    "several": "two to four queries back to back on four to eight executors",
    "triggers": "two to four queries with processing-time triggers on four executors",
    "nearly even": "two queries back to back whose executors are nearly even together",
    "even": "one to three queries of equal partitions, dealt evenly: no move is worth it",
    "by time": "one to three queries back to back on four executors, whose rows come by time",
    "stages": "one to three queries back to back on four executors, of a source and two or three stages each",
    "two cores": "two to four queries back to back on four executors of two cores",
    "pools": "two to four queries back to back on four executors under FAIR, each in a pool of its own",
}
OVERHEAD = 0.3  # seconds of a batch in which no task runs
_BACK_TO_BACK = 1000.0  # batches per second: the next one begins at once


@dataclass(frozen=True, eq=False)
class Case:
    """A cluster, its queries, and where Spark put them.

    ``arrivals``: query -> seconds in which its usual rows arrive, of one whose rows come by time. ``floating``,
    ``pools``: as those of `PredictionModel`.
    """

    cluster: Cluster
    workload: Workload
    placement: Placement
    timing: Mapping[str, QueryTiming]
    arrivals: Mapping[str, float] = field(default_factory=dict)
    floating: Mapping[str, FloatingTasks] = field(default_factory=dict)
    pools: Mapping[str, str] = field(default_factory=dict)


def draw_case(regime: str, seed: int) -> Case:
    """Draw a case of a regime."""
    random = np.random.default_rng((list(REGIMES).index(regime), seed))
    executors = int({"one": random.integers(3, 9), "several": random.integers(4, 9)}.get(regime, 4))
    few = random.integers(1, 4)
    fixed = {"one": 1, "two": 2, "nearly even": 2, "even": few, "by time": few, "stages": few}
    queries = int(fixed.get(regime, random.integers(2, 5)))
    cores = 2 if regime == "two cores" else 1
    stages: list[Stage] = []
    timing: dict[str, QueryTiming] = {}
    placed: dict[str, IntArray] = {}
    floating: dict[str, FloatingTasks] = {}
    for number in range(queries):
        name = f"q{number}"
        if regime == "stages":
            source = FloatingTasks(int(random.integers(2, 9)), random.uniform(0.02, 0.1))
            busy = np.full(executors, source.count * source.seconds / executors)
            stages.append(Stage(f"{name}/source", name, False, _BACK_TO_BACK, busy, busy * 0, busy * 0))
            floating[stages[-1].key] = source
        ordinals = int(random.integers(2, 4)) if regime == "stages" else 1
        interval = 0.0
        for ordinal in range(ordinals):
            rows, busy = _work(random, regime, executors)
            busy = busy * cores / ordinals
            at = np.arange(len(busy)) % executors if regime == "even" else random.permutation(len(busy)) % executors
            if regime == "triggers":
                own = OVERHEAD + float(np.bincount(at, busy, executors).max())
                interval = own * queries / random.uniform(0.6, 1.2)
            rate = 1 / interval if interval else _BACK_TO_BACK
            stages.append(Stage(f"{name}/{ordinal}", name, True, rate, busy, rows, np.zeros(len(busy))))
            placed[f"{name}/{ordinal}"] = at
        timing[name] = QueryTiming(OVERHEAD, interval, interval * (number * 0.618034 % 1.0))
    if regime == "nearly even":
        _level(random, stages, placed, executors)
    arrivals: dict[str, float] = {}
    if regime == "by time":
        busiest = sum(np.bincount(placed[stage.key], stage.busy, executors) for stage in stages).max()
        arrivals = dict.fromkeys(timing, float(busiest) / random.uniform(0.5, 0.8))
    pools = {name: name for name in timing} if regime == "pools" else {}
    return Case(
        cluster_of(executors, cores), Workload(tuple(stages)), Placement(placed), timing, arrivals, floating, pools
    )


def cluster_of(executors: int, cores: int) -> Cluster:
    """Return executors of as many cores, alike and without a bound of memory."""
    names = tuple(str(number) for number in range(executors))
    return Cluster(
        names,
        tuple(f"node-{name}" for name in names),
        np.full(executors, float(cores)),
        np.full(executors, np.inf),
        np.ones(executors),
        np.ones(executors, dtype=bool),
    )


def _work(random: np.random.Generator, regime: str, executors: int) -> tuple[FloatArray, FloatArray]:
    """Return rows and busy seconds of the partitions of one query."""
    if regime == "even":
        count = int(random.integers(2, 5)) * executors
        return np.full(count, 1000.0), np.full(count, random.uniform(0.1, 0.6))
    count = int(random.choice([12, 16, 24, 32]))
    skewed = 1 / np.arange(1, count + 1) ** random.uniform(0.8, 1.5)
    rows = random.permutation(skewed if random.random() < 0.5 else random.lognormal(0, 0.6, count))
    rows = rows / rows.sum() * count * 1000
    each = random.uniform(0.4, 1.6) * executors / count
    return rows, (0.01 + each * rows / 1000) * np.exp(random.normal(0, 0.1, count))


def _level(random: np.random.Generator, stages: list[Stage], placed: dict[str, IntArray], executors: int) -> None:
    """Place the partitions of all queries so that the executors are nearly even together, though not by query."""
    loads = np.zeros(executors)
    heaviest = sorted(((float(busy), stage.key, part) for stage in stages for part, busy in enumerate(stage.busy)))
    for busy, key, part in reversed(heaviest):
        executor = int(loads.argmin()) if random.random() < 0.7 else int(random.integers(executors))
        loads[executor] += busy
        placed[key][part] = executor


def true_seconds(case: Case, placement: Placement, noise: float, seed: int, batches: int = 200) -> dict[str, float]:
    """Return the mean batch of each query under a placement, after the first two.

    Where rows come by time, it is after twenty: until then the first one's input is felt.
    """
    skipped = 20 if case.arrivals else 2
    taken = _simulate(case, placement, noise, seed, batches + skipped)
    return {query: float(np.mean([it.seconds for it in each[skipped:]])) for query, each in taken.items()}


def _simulate(case: Case, placement: Placement, noise: float, seed: int, least: int) -> dict[str, list[Batch]]:
    queries = [
        TrueQuery(
            name,
            [stage for stage in case.workload.stages if stage.query == name],
            timing,
            case.pools.get(name, ""),
            case.arrivals.get(name, 0.0),
            case.floating,
        )
        for name, timing in case.timing.items()
    ]
    return run_batches(case.cluster, queries, placement, noise, seed, least)


def observe(case: Case, noise: float, batches: int, seed: int) -> PredictionModel:
    """Return the model that a controller has after some batches."""
    random = np.random.default_rng((seed, 7))
    stages, spread, timing = [], {}, dict(case.timing)
    # Of queries whose rows come by time: those of the last batches, and the periods before them.
    by_time = _simulate(case, case.placement, noise, seed, 20 + batches) if case.arrivals else {}
    floating = {}
    for stage in case.workload.stages:
        if (tasks := case.floating.get(stage.key)) is not None:
            drawn = random.lognormal(-(noise**2) / 2, noise, batches * tasks.count)
            floating[stage.key] = replace(tasks, seconds=tasks.seconds * float(drawn.mean()) + LAUNCH)
            stages.append(stage)
            continue
        last = by_time.get(stage.query, [])[: 20 + batches][-batches - 1 :]
        share = np.array([it.input for it in last[1:]] if last else np.ones(batches))[:, None]
        seconds = share * stage.busy * random.lognormal(-(noise**2) / 2, noise, (batches, stage.n)) + LAUNCH
        samples = TaskSamples(
            np.tile(np.arange(stage.n), batches),
            seconds.ravel(),
            (share * stage.rows).ravel(),
        )
        (fitted,) = fit_stages([samples], [share.mean() * stage.rows], [seconds.mean(axis=0)])
        if last:
            growth = fit_growth(np.diff([it.start for it in last]), share.ravel()).share
            timing[stage.query] = replace(timing[stage.query], growth=growth, row_share=fitted.row_share)
        stages.append(replace(stage, busy=fitted.seconds))
        spread[stage.key] = StageSpread(fitted.log_error, fitted.noise)
    return PredictionModel(case.cluster, Workload(tuple(stages)), timing, spread, floating, case.pools)
