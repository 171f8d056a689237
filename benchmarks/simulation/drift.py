"""Loads that change: each partition's work wanders, and now and then some become hot.

The logarithm of a partition's load returns to its mean (an Ornstein-Uhlenbeck walk), and a few partitions at a time
are hot for a while. All factors of a stage are scaled so that its total load stays the same and only its distribution
changes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.simulation.engine import Simulation
from rechannel.policies.model.arrays import FloatArray
from rechannel.policies.model.workload import Stage


@dataclass(frozen=True)
class Drift:
    """Every ``every`` seconds a step: the walk forgets its past in ``memory`` seconds, its deviation is ``deviation``.

    Each time a share ``hot`` of the partitions becomes ``times`` as heavy, for ``lasts`` seconds.
    """

    every: float = 60.0
    memory: float = 1800.0
    deviation: float = 0.3
    hot: float = 0.0005
    times: float = 4.0
    lasts: float = 900.0
    seed: int = 0

    def begin(self, simulation: Simulation) -> None:
        """Let the loads of a simulation drift from its start on; the same seed drifts the same whatever is moved."""
        stages = simulation.workload.placeable
        random = np.random.default_rng(self.seed)
        memory = float(np.exp(-self.every / self.memory))
        fresh = self.deviation * (1 - memory**2) ** 0.5
        walk = {stage.key: np.zeros(stage.n) for stage in stages}
        until = {stage.key: np.full(stage.n, -1.0) for stage in stages}

        def step() -> None:
            now = simulation.now
            for stage in stages:
                walk[stage.key] = memory * walk[stage.key] + random.normal(0.0, fresh, stage.n)
                until[stage.key][random.random(stage.n) < self.hot] = now + self.lasts
                heat = np.where(until[stage.key] > now, self.times, 1.0)
                simulation.factors[stage.key] = _scaled(stage, np.exp(walk[stage.key]) * heat)
            simulation.at(now + self.every, step)

        simulation.at(self.every, step)


def _scaled(stage: Stage, factors: FloatArray) -> FloatArray:
    total = float(stage.busy @ factors)
    return np.asarray(factors * (float(stage.busy.sum()) / total)) if total > 0 else factors
