"""Distance of ``adaptive`` from the exact optimum of small stages, and its cut beside a graph partitioner's.

The optimum is HiGHS': the least T so that every unit is on one executor and none works for longer than T, a mixed
integer program for each stage. Stages of one query on one-core executors that nobody else uses do not touch each other,
so the sum over the stages is the optimum of all.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from benchmarks.policies.measure import timed
from benchmarks.report.results import machine, progress
from rechannel.policies.adaptive.lower_bounds import certified_bound
from rechannel.policies.analysis.placement_cost import placement_cost
from rechannel.policies.model.arrays import FloatArray, IntArray
from rechannel.policies.model.cluster import Cluster
from rechannel.policies.model.placement import Placement
from rechannel.policies.model.workload import Stage, Workload
from rechannel.policies.published.units import flatten
from rechannel.policies.registry import propose
from rechannel.policies.scenarios.compare import cost_of
from rechannel.policies.scenarios.generators import generate
from rechannel.policies.scenarios.scenario import Scenario

RATE = 0.01  # batches per second: with some seconds of work a batch no executor is near saturation
PATIENCE = 20.0  # seconds for one program
_SMALL: dict[str, tuple[str, dict[str, object]]] = {
    "adaptive": ("adaptive", {}),
    "adaptive, min_step=0": ("adaptive", {"min_step": 0.0}),
    "even": ("even", {}),
}
_GRAPHS = ("adaptive", "stream-classification", "even")


def instance(seed: int) -> Scenario:
    """One query of one or two stages on 2 to 6 one-core executors of unequal speed, placed at random."""
    random = np.random.default_rng(seed)
    size = int(random.integers(2, 7))
    ones = np.ones(size)
    names = tuple(f"e{i}" for i in range(size)), tuple(f"n{i}" for i in range(size))
    speed = random.choice([0.5, 0.75, 1.0, 1.5, 2.0], size)
    cluster = Cluster(*names, ones, ones * np.inf, speed, ones > 0)
    stages = []
    for index in range(int(random.integers(1, 3))):
        count = int(random.integers(2, 18))
        busy = random.lognormal(0.0, random.choice([0.2, 0.7, 1.2]), count)
        stages.append(Stage(f"q/{index}", "q", True, RATE, busy, busy, np.zeros(count)))
    current = {stage.key: random.integers(size, size=stage.n) for stage in stages}
    return Scenario(f"small {seed}", cluster, Workload(tuple(stages)), Placement(current))


def new_program(patience: float) -> Any:
    """Return an empty program of HiGHS, which gives it up after so many seconds."""
    import highspy  # the benchmark's and the tests' own dependency

    highs: Any = highspy.Highs()  # type: ignore[no-untyped-call]
    highs.silent()
    for option, value in (("time_limit", patience), ("mip_rel_gap", 1e-7), ("threads", 1)):
        highs.setOptionValue(option, value)
    return highs


def assign(highs: Any, units: int, executors: int) -> list[list[Any]]:
    """Add variables by unit and executor to a program, in which each unit is on one executor."""
    assigned = [[highs.addBinary() for _ in range(executors)] for _ in range(units)]
    for row in assigned:
        highs.addConstr(sum(row) == 1)
    return assigned


def assignment(highs: Any, assigned: list[list[Any]]) -> IntArray:
    """Return the executor of each unit in a program's answer, (n,)."""
    return np.array([[highs.variableValue(one) for one in row] for row in assigned]).argmax(axis=1)


def optimal_seconds(
    busy: FloatArray, speed: FloatArray, patience: float = PATIENCE, gap: float = 1e-7
) -> tuple[float, bool]:
    """Seconds per batch of the best placement of a stage on one-core executors, and whether that is proved.

    A placement within ``gap`` of the best, as a share, counts as the best. Machines of any speed agree on it, unless
    they give up after ``patience`` seconds.
    """
    import highspy  # the benchmark's and the tests' own dependency

    highs = new_program(patience)
    highs.setOptionValue("mip_rel_gap", gap)
    least = max(float(busy.sum() / speed.sum()), float(busy.max() / speed.max()))
    slowest = highs.addVariable(lb=least)
    assigned = assign(highs, len(busy), len(speed))
    for executor, rate in enumerate(speed.tolist()):
        highs.addConstr(
            sum(need * row[executor] for need, row in zip(busy.tolist(), assigned, strict=True)) <= rate * slowest
        )
    highs.minimize(slowest)
    work = np.bincount(assignment(highs, assigned), weights=busy, minlength=len(speed))  # exact, the program rounds
    proved = highs.getModelStatus() == highspy.HighsModelStatus.kOptimal
    return float((work / speed).max()), bool(proved)


def measure(instances: int, seeds: int) -> dict[str, Any]:
    """Both comparisons: ``instances`` small stages, and so many seeds of the sparse graphs."""
    began, rows = machine(), []
    for seed in range(instances):
        if seed % 10 == 0:
            progress(f"optimum: instance {seed} of {instances}")
        rows.append(_against_optimum(seed))
    graphs = [row for name in ("sparse", "chains") for seed in range(seeds) for row in _graphs(name, seed)]
    return {"machine": began, "rate": RATE, "instances": rows, "graphs": graphs}


def _against_optimum(seed: int) -> dict[str, Any]:
    scenario = instance(seed)
    cluster, workload = scenario.cluster, scenario.workload

    def path(policy: str, parameters: dict[str, object]) -> float:
        answer = propose(policy, cluster, workload, scenario.current, parameters)
        return placement_cost(cluster, workload, answer.placement)[2]

    seconds, optima = timed(lambda: [optimal_seconds(stage.busy, cluster.speed) for stage in workload.stages])
    return {
        "seed": seed,
        "executors": cluster.size,
        "partitions": [stage.n for stage in workload.stages],
        "optimum": RATE * sum(least for least, _ in optima),
        "proved": all(proved for _, proved in optima),
        "bound": certified_bound(cluster, workload),
        "highs_seconds": seconds,
        "policies": {label: path(*call) for label, call in _SMALL.items()},
    }


def metis(scenario: Scenario) -> Placement:
    """METIS' partition of the units into as many parts as there are executors, by bytes and busy time.

    Only for clusters of equal executors and workloads without floating stages, whose parts are interchangeable.
    """
    import pymetis  # the benchmark's own dependency

    units = flatten(scenario.cluster, scenario.workload, scenario.current)
    low, high, volume = units.pairs()
    ends, others = np.concatenate((low, high)), np.concatenate((high, low))
    order = np.argsort(ends, kind="stable")
    edges = np.maximum(np.rint(np.tile(volume, 2)[order] / volume.sum() * 1e8), 1).astype(np.int64)
    starts = np.concatenate(([0], np.cumsum(np.bincount(ends, minlength=units.size))))
    loads = np.maximum(np.rint(units.load / units.load.sum() * 1e7), 1).astype(np.int64)
    parts = pymetis.part_graph(
        scenario.cluster.size,
        xadj=starts.tolist(),
        adjncy=others[order].tolist(),
        vweights=loads.tolist(),
        eweights=edges.tolist(),
        options=pymetis.Options(seed=0),
    ).vertex_part
    return units.placement(np.asarray(parts, dtype=np.int64))


def _graphs(name: str, seed: int) -> list[dict[str, Any]]:
    progress(f"optimum: METIS and {name}, seed {seed}")
    scenario = generate(f"{name}:seed={seed}")
    situation = scenario.cluster, scenario.workload, scenario.current
    answers = {"METIS": timed(lambda: metis(scenario))}
    for policy in _GRAPHS:
        duration, proposal = timed(partial(propose, policy, *situation))
        answers[policy] = duration, proposal.placement
    total = sum(shuffle.summary()[1] for shuffle in scenario.workload.shuffles)
    bound, rows = certified_bound(scenario.cluster, scenario.workload), []
    for policy, (seconds, placement) in answers.items():
        cost = cost_of(scenario, placement)
        rows.append(
            {
                "generator": name,
                "seed": seed,
                "policy": policy,
                "cut": cost.inter_executor_bytes_per_second / total,
                "path": cost.seconds_per_second / bound,
                "highest_utilization": cost.highest_utilization,
                "load_spread": cost.load_spread,
                "seconds": seconds,
            }
        )
    return rows
