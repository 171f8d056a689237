"""The large situations that time is measured on: shuffles as Spark has them, and sparse ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rechannel.policies.model.cluster import Cluster
from rechannel.policies.model.placement import Placement
from rechannel.policies.model.shuffles import DenseShuffle, Shuffle
from rechannel.policies.model.workload import Stage, Workload
from rechannel.policies.scenarios.generators import generate
from rechannel.policies.scenarios.scenario import Scenario

KINDS = ("dense", "sparse")
TASKS_PER_EXECUTOR = 100
_STAGES, _PARTITIONS = 4, 200
_UTILIZATION = 0.5
_BYTES = 1e6  # per second that one stage sends the next
_RATES = (0.1, 0.2, 0.5)


def situation(kind: str, tasks: int, cores: int = 1, seed: int = 0) -> Scenario:
    """About that many placeable tasks on a hundredth as many executors of so many cores, half of them busy.

    ``dense``: queries of four stages of 200 partitions, every partition sending to every one of the next stage, busy
    seconds by Zipf's law. ``sparse``: the generator of that name, ten streams for each task, four-core executors.
    """
    executors = max(tasks // TASKS_PER_EXECUTOR, 1)
    if kind == "sparse":
        return generate(f"sparse:executors={executors},tasks={tasks},edges={10 * tasks},seed={seed}")
    return _dense(executors, max(round(tasks / (_STAGES * _PARTITIONS)), 1), cores, seed)


def changed(workload: Workload, seed: int) -> Workload:
    """The workload with every busy time up to a tenth larger or smaller."""
    random = np.random.default_rng(seed)
    stages = (replace(one, busy=one.busy * random.uniform(0.9, 1.1, one.n)) for one in workload.stages)
    return Workload(tuple(stages), workload.shuffles)


def _dense(executors: int, queries: int, cores: int, seed: int) -> Scenario:
    random, ones = np.random.default_rng(seed), np.ones(executors)
    names = tuple(f"e{i}" for i in range(executors)), tuple(f"n{i // 4}" for i in range(executors))
    cluster = Cluster(*names, ones * cores, ones * np.inf, ones, ones > 0)
    zipf = 1.0 / np.arange(1, _PARTITIONS + 1)
    zipf /= zipf.sum()
    each = _UTILIZATION * executors * cores / (queries * _STAGES)  # core seconds per second of a stage
    stages: list[Stage] = []
    shuffles: list[Shuffle] = []
    for query in range(queries):
        rate, before = float(random.choice(_RATES)), np.empty(0)
        for index in range(_STAGES):
            shares, key = random.permutation(zipf), f"q{query}/{index}"
            busy = shares * each / rate
            stages.append(Stage(key, f"q{query}", True, rate, busy, 1e3 * busy, 1e5 * busy))
            if index:
                shuffles.append(DenseShuffle(stages[-2].key, key, np.outer(before, shares) * _BYTES))
            before = shares
    current = {}
    for stage in stages:  # whoever was free when Spark's first batch ran
        chance = random.gamma(4.0, size=executors)
        current[stage.key] = random.choice(executors, stage.n, p=chance / chance.sum())
    return Scenario(f"dense {executors}", cluster, Workload(tuple(stages), tuple(shuffles)), Placement(current))
