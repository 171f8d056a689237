"""A thousand executors with a hundred thousand partitions for an hour: batches as they are, and with each policy.

``python -m benchmarks.simulation.large JOB`` measures one decision, given as JSON, in a process of its own: processor
seconds cold and after every load changed, and the peak of memory. Times are processor time of one core.
"""

from __future__ import annotations

import contextlib
import json
import resource
import sys
import tracemalloc
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.policies.measure import ADAPTIVE, run, run_job
from benchmarks.policies.situations import changed, situation
from benchmarks.report.results import progress
from benchmarks.simulation.control import Controller, Observation, decide
from benchmarks.simulation.drift import Drift
from benchmarks.simulation.engine import Batch, Costs, Simulation
from rechannel.conf.settings import Settings
from rechannel.policies.model.workload import Workload
from rechannel.policies.scenarios.scenario import Scenario

AS_IS = "as it is"
POLICIES = ("adaptive", "even", "locality-fairness", "fair-redistribution")
"""The default policy, and those that answer within seconds at this size."""

MORE_MOVES = 2000  # where the setting's limit of moves is lifted
COSTS = Costs(
    planning=0.1, commit=0.1, task=0.004, noise=0.1, load_overhead=1.0, load_rate=50e6, checkpoint=0.1, backlog=4.0
)
LOAD = 0.5  # of the situation's load, at which badly placed queries just keep up
EVERY = 300.0


def hour_scenario(tasks: int) -> Scenario:
    """Dense shuffles on one-core executors, a quarter of them busy."""
    scenario = situation("dense", tasks)
    stages = (replace(stage, busy=stage.busy * LOAD) for stage in scenario.workload.stages)
    return Scenario(
        scenario.name, scenario.cluster, Workload(tuple(stages), scenario.workload.shuffles), scenario.current
    )


def settings_with(moves: int | None) -> Settings:
    """The defaults, with another limit of moves in one migration if one is given."""
    settings = Settings()
    return settings if moves is None else replace(settings, migration=replace(settings.migration, max_moves=moves))


def hour(tasks: int, seconds: float, policies: Sequence[tuple[str, int | None]]) -> dict[str, Any]:
    """Simulate each (policy, limit of moves), and first without any."""
    scenario = hour_scenario(tasks)
    rows = []
    for policy, moves in ((AS_IS, None), *policies):
        progress(f"hour: {policy}{f', {moves:,} moves' if moves else ''}, {tasks:,} partitions")
        simulation = Simulation(scenario.cluster, scenario.workload, scenario.current, COSTS, seed=1)
        Drift(seed=2).begin(simulation)
        controller = Controller(simulation, policy, settings_with(moves), EVERY, 3)
        if policy != AS_IS:
            controller.begin()
        simulation.run(seconds)
        row: dict[str, Any] = {"policy": policy, "limit": moves}
        row |= _durations(simulation.batches, seconds)
        row["made"] = [asdict(decision) for decision in controller.decisions]
        rows.append(row)
    first = rows[0]["queries"]
    for row in rows:
        ratios = [mean / first[query] for query, mean in row.pop("queries").items() if first.get(query)]
        row["over_as_is"] = {"median": median(ratios), "best": min(ratios), "worst": max(ratios)}
    executors, count = scenario.cluster.size, sum(stage.n for stage in scenario.workload.placeable)
    counts = {"executors": executors, "partitions": count, "queries": len(scenario.workload.queries)}
    return {**counts, "seconds": seconds, "every": EVERY, "costs": asdict(COSTS), "load": LOAD, "rows": rows}


def _durations(batches: Sequence[Batch], seconds: float) -> dict[str, Any]:
    """Figures of the batches after the first decision, and their mean by minutes for the plot."""
    later = [batch for batch in batches if batch.start >= EVERY]
    took = np.array([batch.seconds for batch in later])
    by_query: dict[str, list[float]] = {}
    for batch in later:
        by_query.setdefault(batch.query, []).append(batch.seconds)
    minutes = []
    for minute in range(int(seconds // 60)):
        inside = [batch.seconds for batch in batches if minute * 60 <= batch.end < (minute + 1) * 60]
        minutes.append(float(np.mean(inside)) if inside else None)
    return {
        "batches": len(later),
        "mean": float(took.mean()),
        "median": float(np.median(took)),
        "p95": float(np.quantile(took, 0.95)),
        "landed": sum(batch.landed for batch in batches),
        "queries": {query: float(np.mean(durations)) for query, durations in by_query.items()},
        "minutes": minutes,
    }


def decisions(tasks: int, limit: float) -> list[dict[str, Any]]:
    """Each policy's decision in a process of its own; ``adaptive`` with more moves and, alone, by its defaults too."""
    rows = []
    for policy, moves in (*((name, None) for name in POLICIES), ("adaptive", MORE_MOVES)):
        progress(f"decision: {policy}{f', {moves:,} moves' if moves else ''}, {tasks:,} partitions")
        job = json.dumps({"policy": policy, "moves": moves, "tasks": tasks, "limit": limit})
        done = run_job("benchmarks.simulation.large", job)
        figures = json.loads(done.stdout) if not done.returncode else {"problem": f"ended with {done.returncode}"}
        rows.append({"policy": policy, "limit": moves, **figures})
    progress("decision: adaptive by its defaults, without laws, gate and steps")
    rows.append(
        {"policy": "adaptive, policy alone", "limit": None, "alone": run(ADAPTIVE, "dense", tasks, limit, seed=0)}
    )
    return rows


def main() -> None:
    """Measure the one decision that the command line describes."""
    job = json.loads(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_CPU, (int(2 * job["limit"]), resource.getrlimit(resource.RLIMIT_CPU)[1]))
    scenario, settings = hour_scenario(job["tasks"]), settings_with(job["moves"])
    cluster, workload, current = scenario.cluster, scenario.workload, scenario.current
    built = _resident("VmRSS")
    with contextlib.suppress(OSError):  # so that building it is not in the peak; where it cannot be, it is
        Path("/proc/self/clear_refs").write_text("5")
    cold, steps = decide(job["policy"], settings, Observation(cluster, workload, current))
    first_peak = _resident("VmHWM")
    later, moved = changed(workload, 1), current.with_moves(move for step in steps for move in step)
    warm, _ = decide(job["policy"], settings, Observation(cluster, later, moved))
    figures = {"cold": asdict(cold), "warm": asdict(warm), "built_mib": built, "peak_mib": first_peak}
    if warm.seconds < job["limit"] / 20:  # it is some times slower while it is traced
        tracemalloc.start()
        decide(job["policy"], settings, Observation(cluster, later, moved))
        figures["traced_mib"] = tracemalloc.get_traced_memory()[1] / 2**20
    sys.stdout.write(json.dumps(figures))


def _resident(field: str) -> float:
    """MiB that this process has in memory now (``VmRSS``), or had at most (``VmHWM``)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(field))) / 1024


if __name__ == "__main__":
    main()
