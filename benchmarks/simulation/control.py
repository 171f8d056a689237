"""The shipped policies and the shipped planner at work on a simulation: what a controller would decide, every so often.

A decision is the policy's proposal with the parameters a controller asks it with, disposed of by the laws, the gate and
the planner of steps (:mod:`rechannel.migration.plan.constraints`). What a controller sees is not what is: a partition's
load is the mean of what its last batches took, which the engine's noise makes uncertain.

Left out of a controller's restraint: agreement of several decisions, rollback, forecasts. Times are seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from benchmarks.simulation.engine import Simulation, Step
from rechannel.conf.settings import Settings
from rechannel.daemon.decide.policy_settings import parameters_for
from rechannel.migration.plan.constraints import apply_constraints
from rechannel.migration.plan.inputs import PlanInputs, PlanOptions, ReviewedPlan
from rechannel.policies.model.arrays import ModelError, ScaleOutError
from rechannel.policies.model.cluster import UNPLACED, Cluster
from rechannel.policies.model.placement import Move, Placement
from rechannel.policies.model.workload import Workload
from rechannel.policies.registry import PolicyLawError, propose
from rechannel.wire.messages import Operator, QueryState, StatefulStage

__all__ = ["Controller", "Made", "decide", "seen"]

_STORES = [Operator(operator=0, name="stateful", stores=["default"])]


@dataclass(frozen=True)
class Made:
    """One decision: when, why, how many moves in how many steps, and the processor seconds it took.

    ``policy_seconds`` of the policy alone, ``seconds`` with laws, gate and steps.
    """

    at: float
    code: str
    sentence: str
    moves: int
    steps: int
    policy_seconds: float
    seconds: float


def decide(
    policy: str,
    settings: Settings,
    cluster: Cluster,
    workload: Workload,
    current: Placement,
    *,
    batch_seconds: Mapping[str, float] | None = None,
    batch_period: Mapping[str, float] | None = None,
    at: float = 0.0,
) -> tuple[Made, list[Step]]:
    """Decide as a controller does; the steps are empty where nothing may move.

    ``batch_seconds`` and ``batch_period``: what a batch of each query lasts now, and from start to start.
    """
    began = time.process_time()
    try:
        wanted = propose(policy, cluster, workload, current, parameters_for(policy, settings)).placement
    except (ModelError, ScaleOutError, PolicyLawError) as error:
        took = time.process_time() - began
        return Made(at, "refused", str(error), 0, 0, took, took), []
    thought = time.process_time() - began
    facts = _facts(cluster, workload, current, batch_seconds or {}, batch_period or {})
    disposed = apply_constraints(wanted, facts, settings, PlanOptions("simulated"))
    steps = _steps(disposed, facts)
    took = time.process_time() - began
    return Made(at, disposed.code, disposed.sentence, len(disposed.moves), len(steps), thought, took), steps


def _facts(
    cluster: Cluster,
    workload: Workload,
    current: Placement,
    seconds: Mapping[str, float],
    period: Mapping[str, float],
) -> PlanInputs:
    numbers: dict[str, tuple[str, int]] = {}
    found: dict[str, list[StatefulStage]] = {query: [] for query in workload.queries}
    for stage in workload.placeable:
        number = len(found[stage.query])
        numbers[stage.key] = stage.query, number
        found[stage.query].append(
            StatefulStage(stage=number, partitions=stage.n, operators=_STORES, placement=[""] * stage.n)
        )
    queries = {
        name: QueryState(query=name, run="run", name=name, batch=0, active=True, stages=stages)
        for name, stages in found.items()
    }
    return PlanInputs(cluster, workload, current, numbers, queries, batch_seconds=seconds, batch_period=period)


def _steps(disposed: ReviewedPlan, facts: PlanInputs) -> list[Step]:
    keys = {unit: key for key, unit in facts.stages.items()}
    index = facts.cluster.index_of
    found: dict[int, list[Move]] = {}
    for move in disposed.moves:
        source = index(move.source) if move.source else UNPLACED
        one = Move(keys[move.query, move.stage], move.partition, source, index(move.target))
        found.setdefault(move.step, []).append(one)
    return [tuple(found[step]) for step in sorted(found)]


def seen(simulation: Simulation, random: np.random.Generator, batches: int = 3) -> Workload:
    """The workload as its last batches tell it: what is, uncertain by the noise of so many batches."""
    deviation = simulation.costs.noise / batches**0.5
    stages = []
    for stage in simulation.workload.stages:
        busy = stage.busy * simulation.factors[stage.key] * simulation.costs.scale
        if deviation:
            busy = busy * random.lognormal(-(deviation**2) / 2, deviation, stage.n)
        stages.append(replace(stage, busy=busy))
    return Workload(tuple(stages), simulation.workload.streams)


@dataclass
class Controller:
    """Decides on a simulation every so often (seconds), and steers what it decided. ``made``: what it did."""

    simulation: Simulation
    policy: str
    settings: Settings
    every: float = 300.0
    seed: int = 0
    say: Callable[[str], None] = lambda _: None
    made: list[Made] = field(default_factory=list)

    def begin(self, first: float | None = None) -> None:
        """Decide for the first time at ``first`` (after one interval unless given), and go on."""
        self._random = np.random.default_rng(self.seed)
        self.simulation.at(self.every if first is None else first, self._decide)

    def _decide(self) -> None:
        simulation, now = self.simulation, self.simulation.now
        simulation.at(now + self.every, self._decide)
        if simulation.migrating:
            self.made.append(Made(now, "migration-running", "a migration is under way", 0, 0, 0.0, 0.0))
            return
        seconds, period = self._durations(now)
        made, steps = decide(
            self.policy,
            self.settings,
            simulation.cluster,
            seen(simulation, self._random),
            simulation.placement,
            batch_seconds=seconds,
            batch_period=period,
            at=now,
        )
        self.made.append(made)
        self.say(f"{self.policy} at {now:.0f} s, {made.seconds:.2f} s of thought: {made.sentence}")
        simulation.steer(steps)

    def _durations(self, now: float) -> tuple[dict[str, float], dict[str, float]]:
        """Mean seconds of each query's last batches, and from start to start."""
        last: dict[str, list[tuple[float, float]]] = {}
        for batch in reversed(self.simulation.batches):
            if batch.end < now - self.every:
                break
            if len(known := last.setdefault(batch.query, [])) < 4:
                known.append((batch.start, batch.seconds))
        seconds = {query: float(np.mean([took for _, took in known])) for query, known in last.items()}
        period = {
            query: (known[0][0] - known[-1][0]) / (len(known) - 1) for query, known in last.items() if len(known) > 1
        }
        return seconds, period
