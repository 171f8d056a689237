"""``python -m benchmarks.policies.measure JOB``: one measurement in a process of its own, told as JSON.

Times are processor time of this process alone, on one core. The process is ended by the kernel where what is measured
takes more than the job's ``limit`` of processor seconds.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.policies import reference_implementations as reference
from benchmarks.policies.situations import changed, situation
from rechannel.policies.adaptive.lower_bounds import certified_bound
from rechannel.policies.analysis.classification import high_cut
from rechannel.policies.analysis.placement_cost import placement_cost
from rechannel.policies.model.placement import Placement
from rechannel.policies.model.workload import Workload
from rechannel.policies.published.closeness import operator_edges
from rechannel.policies.published.locality_fairness import pipelines
from rechannel.policies.published.units import flatten
from rechannel.policies.registry import POLICIES, propose
from rechannel.policies.scenarios.scenario import Scenario

ADAPTIVE = "adaptive: cold, warm"
LITERAL = "stream-classification, literal"
PIPELINES = "pipelines"
LITERAL_PIPELINES = "pipelines, literal"
_REPEATS = 5  # of what is too short for one look at the clock
_LEAST = 0.05  # seconds that are worth telling, in so many calls at most
_MOST = 50
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def run(what: str, kind: str, tasks: int, limit: float, **rest: int) -> dict[str, Any]:
    """Measure one thing in a process of its own.

    ``what``: a policy's name, or one of the names of this module. Where it takes more processor time than the limit
    the answer is the limit as ``over``; where the machine is so busy that it gets far less, the wait as ``starved``.
    """
    job = json.dumps({"what": what, "kind": kind, "tasks": tasks, "limit": limit, **rest})
    timeout = 60 + 10 * limit  # on the clock, since other processes may take the core
    try:
        done = run_job("benchmarks.policies.measure", job, timeout)
    except subprocess.TimeoutExpired:
        return {"starved": timeout}
    if done.returncode == -signal.SIGXCPU:
        return {"over": limit}
    if done.returncode:
        raise RuntimeError(f"{job}: ended with {done.returncode}:\n{done.stderr[-2000:]}")
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def run_job(module: str, job: str, timeout: float | None = None) -> subprocess.CompletedProcess[str]:
    """Run a module with a job as its argument, in a process of its own whose libraries use one thread."""
    command, environment = [sys.executable, "-m", module, job], os.environ | dict.fromkeys(_THREADS, "1")
    return subprocess.run(  # noqa: S603 - our own interpreter and module
        command, env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )


def main() -> None:
    """Do the job that the command line describes."""
    job = json.loads(sys.argv[1])
    what, rest = job.pop("what"), {key: job[key] for key in ("cores", "seed") if key in job}
    scenario = situation(job["kind"], job["tasks"], **rest)
    figures: dict[str, Any] = {
        "tasks": sum(stage.n for stage in scenario.workload.placeable),
        "executors": scenario.cluster.size,
        "pairs": sum(shuffle.summary()[0] for shuffle in scenario.workload.shuffles),
        "built_mib": _peak(),
    }
    most = time.process_time() + job["limit"]
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (int(most) + 1, hard))
    if what == ADAPTIVE:
        figures.update(_adaptive(scenario, rest.get("seed", 0)))
    else:
        figures["seconds"] = _mean(_call(what, scenario))
    sys.stdout.write(json.dumps({**figures, "peak_mib": _peak()}))


def _call(what: str, scenario: Scenario) -> Callable[[], object]:
    cluster, workload, current = scenario.cluster, scenario.workload, scenario.current
    sys.setrecursionlimit(1_000_000)  # of the literal readings
    if what == LITERAL:
        units = flatten(cluster, workload, current)  # the objects are made from it, that is not measured
        return lambda: reference.stream_classification(units)
    if what == PIPELINES:
        return lambda: pipelines(workload)
    if what == LITERAL_PIPELINES:
        parts, edges = [stage.n for stage in workload.placeable], operator_edges(workload)
        return lambda: reference.pipelines(parts, edges)
    return lambda: POLICIES[what].place(cluster, workload, current)


def _adaptive(scenario: Scenario, seed: int) -> dict[str, Any]:
    cluster, first, start = scenario.cluster, scenario.workload, scenario.current
    later, policy = changed(first, seed + 1), POLICIES["adaptive"]

    def path(workload: Workload, placement: Placement) -> float:
        return placement_cost(cluster, workload, placement)[2] / certified_bound(cluster, workload)

    classified = timed(lambda: [high_cut(first) for _ in range(_REPEATS)])[0] / _REPEATS
    cold, answer = timed(lambda: policy.place(cluster, first, start))
    cold_placement = answer.placement
    warm, answer = timed(lambda: policy.place(cluster, later, cold_placement))
    checked, _ = timed(lambda: propose("adaptive", cluster, later, cold_placement))
    return {
        "classification": classified,
        "cold": cold,
        "cold_moves": len(cold_placement.moves_from(start)),
        "before": path(first, start),
        "after_cold": path(first, cold_placement),
        "warm": warm,
        "warm_moves": len(answer.placement.moves_from(cold_placement)),
        "before_warm": path(later, cold_placement),
        "after_warm": path(later, answer.placement),
        "warm_with_checks": checked,
    }


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Return the processor seconds of a call, and its result."""
    began = time.process_time()
    result = call()
    return time.process_time() - began, result


def _mean(call: Callable[[], object]) -> float:
    """Of as many calls as the clock needs to tell."""
    durations: list[float] = []
    while sum(durations) < _LEAST and len(durations) < _MOST:
        durations.append(timed(call)[0])
    return sum(durations) / len(durations)


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
