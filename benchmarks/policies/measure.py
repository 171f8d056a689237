"""``python -m benchmarks.policies.measure JOB``: one measurement in a process of its own, told as JSON.

Times are processor time of this process alone, on one core. The process is ended by the kernel where what is measured
takes more than the job's ``limit`` of processor seconds.
"""

from __future__ import annotations

import json
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
from rechannel.policies.adaptive.policy import ADAPTIVE
from rechannel.policies.analysis.classification import high_cut
from rechannel.policies.analysis.placement_cost import placement_cost
from rechannel.policies.published.closeness import operator_edges
from rechannel.policies.published.locality_fairness import pipelines
from rechannel.policies.published.units import flatten
from rechannel.policies.registry import POLICIES, propose
from rechannel.policies.scenarios.scenario import Scenario

__all__ = ["COLD_AND_WARM", "LITERAL", "LITERAL_PIPELINES", "PIPELINES", "run"]

COLD_AND_WARM = "adaptive: cold, warm"
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
    command = ["env", *(f"{name}=1" for name in _THREADS), sys.executable, "-m", "benchmarks.policies.measure", job]
    timeout = 60 + 10 * limit  # on the clock, since other processes may take the core
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)  # noqa: S603 - our own interpreter and module
    except subprocess.TimeoutExpired:
        return {"starved": timeout}
    if done.returncode == -signal.SIGXCPU:
        return {"over": limit}
    if done.returncode:
        raise RuntimeError(f"{job}: ended with {done.returncode}:\n{done.stderr[-2000:]}")
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def main() -> None:
    """Do the job that the command line describes."""
    job = json.loads(sys.argv[1])
    what, rest = job.pop("what"), {key: job[key] for key in ("cores", "seed") if key in job}
    scenario = situation(job["kind"], job["tasks"], **rest)
    figures: dict[str, Any] = {
        "tasks": sum(stage.n for stage in scenario.workload.placeable),
        "executors": scenario.cluster.size,
        "pairs": sum(stream.summary()[0] for stream in scenario.workload.streams),
        "built_mib": _peak(),
    }
    most = time.process_time() + job["limit"]
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (int(most) + 1, hard))
    if what == COLD_AND_WARM:
        figures.update(_adaptive(scenario, rest.get("seed", 0)))
    else:
        figures["seconds"] = _mean(_call(what, scenario))
    sys.stdout.write(json.dumps({**figures, "peak_mib": _peak()}))


def _call(what: str, scenario: Scenario) -> Callable[[], object]:
    cluster, workload, current = scenario.cluster, scenario.workload, scenario.current
    if what == LITERAL:
        sys.setrecursionlimit(1_000_000)
        units = flatten(cluster, workload, current)  # the objects are made from it, that is not measured
        return lambda: reference.stream_classification(units)
    if what == PIPELINES:
        return lambda: pipelines(workload)
    if what == LITERAL_PIPELINES:
        sys.setrecursionlimit(1_000_000)
        parts, edges = [stage.n for stage in workload.placeable], operator_edges(workload)
        return lambda: reference.pipelines(parts, edges)
    entry = POLICIES[what]
    return lambda: entry.place(cluster, workload, current, entry.parameters())


def _adaptive(scenario: Scenario, seed: int) -> dict[str, Any]:
    cluster, workload = scenario.cluster, scenario.workload
    classified = _timed(lambda: [high_cut(workload) for _ in range(_REPEATS)])[0] / _REPEATS
    cold, outcome = _timed(lambda: ADAPTIVE.place(cluster, workload, scenario.current))
    later = changed(workload, seed + 1)
    warm, again = _timed(lambda: ADAPTIVE.place(cluster, later, outcome.placement))
    lawful, _ = _timed(lambda: propose("adaptive", cluster, later, outcome.placement))
    bound, later_bound = certified_bound(cluster, workload), certified_bound(cluster, later)
    return {
        "classification": classified,
        "cold": cold,
        "cold_moves": len(outcome.placement.moves_from(scenario.current)),
        "before": placement_cost(cluster, workload, scenario.current)[2] / bound,
        "after_cold": placement_cost(cluster, workload, outcome.placement)[2] / bound,
        "warm": warm,
        "warm_moves": len(again.placement.moves_from(outcome.placement)),
        "before_warm": placement_cost(cluster, later, outcome.placement)[2] / later_bound,
        "after_warm": placement_cost(cluster, later, again.placement)[2] / later_bound,
        "warm_with_checks": lawful,
    }


def _timed(call: Callable[[], Any]) -> tuple[float, Any]:
    began = time.process_time()
    result = call()
    return time.process_time() - began, result


def _mean(call: Callable[[], object]) -> float:
    """Of as many calls as the clock needs to tell."""
    durations: list[float] = []
    while sum(durations) < _LEAST and len(durations) < _MOST:
        durations.append(_timed(call)[0])
    return sum(durations) / len(durations)


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
