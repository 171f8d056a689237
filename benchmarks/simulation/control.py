"""The shipped policies and the shipped planner at work on a simulation, as a controller decides at intervals.

A decision is the policy's proposal with a controller's parameters, reviewed by the laws, the gate and the planner of
steps (:mod:`rechannel.migration.plan.laws`). A partition's load is the mean of its last batches, which the
engine's noise makes uncertain. Not simulated: agreement of several decisions, rollback, forecasts. Times are seconds.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from benchmarks.report.results import progress
from benchmarks.simulation.engine import Simulation, Step
from rechannel.conf.settings import Settings
from rechannel.daemon.decide.policy_settings import parameters_for
from rechannel.migration.plan.inputs import PlanInputs, PlanOptions, ReviewedPlan
from rechannel.migration.plan.laws import review_plan
from rechannel.policies.model.arrays import ModelError, ScaleOutError
from rechannel.policies.model.cluster import UNPLACED, Cluster
from rechannel.policies.model.placement import Move, Placement
from rechannel.policies.model.workload import Workload
from rechannel.policies.prediction.cycle import PlacedQueries
from rechannel.policies.prediction.model import PredictionModel, QueryTiming
from rechannel.policies.registry import PolicyLawError, propose
from rechannel.wire.codes import DecisionResult, NotReadyReason
from rechannel.wire.messages import Operator, QueryState, StatefulStage

_LEAST_PERIOD = 1.05  # times its batch that the period of a query with a trigger has
_STORES = [Operator(operator=0, name="stateful", stores=["default"])]


@dataclass(frozen=True)
class SimulatedDecision:
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


@dataclass(frozen=True)
class Observation:
    """A controller's view of the simulation when it decides.

    ``batch_seconds`` and ``batch_period``: what a batch of each query lasts, and the time from start to start; ``at``:
    the simulated time.
    """

    cluster: Cluster
    workload: Workload
    current: Placement
    batch_seconds: Mapping[str, float] = field(default_factory=dict)
    batch_period: Mapping[str, float] = field(default_factory=dict)
    at: float = 0.0


def decide(policy: str, settings: Settings, observation: Observation) -> tuple[SimulatedDecision, list[Step]]:
    """Decide as a controller does; the steps are empty where nothing may move."""
    began = time.process_time()
    try:
        proposal = propose(
            policy, observation.cluster, observation.workload, observation.current, parameters_for(policy, settings)
        )
    except (ModelError, ScaleOutError, PolicyLawError) as error:
        seconds = time.process_time() - began
        return SimulatedDecision(observation.at, DecisionResult.REFUSED, str(error), 0, 0, seconds, seconds), []
    policy_seconds = time.process_time() - began
    inputs = _plan_inputs(observation)
    plan = review_plan(proposal.placement, inputs, settings, PlanOptions("simulated"))
    steps = _steps(plan, inputs)
    seconds = time.process_time() - began
    return SimulatedDecision(
        observation.at, plan.code, plan.sentence, len(plan.moves), len(steps), policy_seconds, seconds
    ), steps


def _plan_inputs(observation: Observation) -> PlanInputs:
    numbers: dict[str, tuple[str, int]] = {}
    stages: dict[str, list[StatefulStage]] = {query: [] for query in observation.workload.queries}
    for stage in observation.workload.placeable:
        number = len(stages[stage.query])
        numbers[stage.key] = stage.query, number
        stages[stage.query].append(
            StatefulStage(stage=number, partitions=stage.n, operators=_STORES, placement=[""] * stage.n)
        )
    queries = {
        name: QueryState(query=name, run="run", name=name, batch=0, active=True, stages=own)
        for name, own in stages.items()
    }
    return PlanInputs(
        observation.cluster,
        observation.workload,
        observation.current,
        numbers,
        queries,
        _model_with_timing(observation),
        measured_batch_seconds=observation.batch_seconds,
        batch_period=observation.batch_period,
    )


def _model_with_timing(observation: Observation) -> PredictionModel:
    """Return a model whose timing follows from the batches and the rates of the stages, as nothing else is measured."""
    model = PredictionModel(observation.cluster, observation.workload, {})
    paths = PlacedQueries(model, observation.current).work().path
    timing = {}
    for query, path in zip(observation.workload.queries, paths.tolist(), strict=True):
        rate = max(stage.batches_per_second for stage in model.stages_of(query))
        lasts = observation.batch_seconds.get(query, path)
        every = observation.batch_period.get(query, 1.0 / rate if rate > 0 else 0.0)
        timing[query] = QueryTiming(max(0.0, lasts - path), every if every > _LEAST_PERIOD * lasts else 0.0)
    return replace(model, timing=timing)


def _steps(disposed: ReviewedPlan, facts: PlanInputs) -> list[Step]:
    keys = {unit: key for key, unit in facts.stage_ids.items()}
    index = facts.cluster.index_of
    by_step: dict[int, list[Move]] = {}
    for move in disposed.moves:
        source = index(move.source) if move.source else UNPLACED
        one = Move(keys[move.query, move.stage], move.partition, source, index(move.target))
        by_step.setdefault(move.step, []).append(one)
    return [tuple(by_step[step]) for step in sorted(by_step)]


def measured_workload(simulation: Simulation, random: np.random.Generator) -> Workload:
    """Return the workload as measured in three batches, with the noise of their mean."""
    deviation = simulation.costs.noise / 3**0.5
    stages = []
    for stage in simulation.workload.stages:
        busy = stage.busy * simulation.factors[stage.key] * simulation.costs.scale
        if deviation:
            busy = busy * random.lognormal(-(deviation**2) / 2, deviation, stage.n)
        stages.append(replace(stage, busy=busy))
    return Workload(tuple(stages), simulation.workload.shuffles)


@dataclass
class Controller:
    """Controller that decides on a simulation every ``every`` seconds, and steers the moves."""

    simulation: Simulation
    policy: str
    settings: Settings
    every: float = 300.0
    seed: int = 0
    decisions: list[SimulatedDecision] = field(default_factory=list)

    def begin(self) -> None:
        """Decide for the first time after one interval, and go on."""
        self._random = np.random.default_rng(self.seed)
        self.simulation.at(self.every, self._decide)

    def _decide(self) -> None:
        simulation, now = self.simulation, self.simulation.now
        simulation.at(now + self.every, self._decide)
        if simulation.migrating:
            self.decisions.append(
                SimulatedDecision(now, NotReadyReason.MIGRATION_RUNNING, "a migration is under way", 0, 0, 0.0, 0.0)
            )
            return
        seconds, period = self._durations(now)
        workload = measured_workload(simulation, self._random)
        observation = Observation(simulation.cluster, workload, simulation.placement, seconds, period, now)
        decision, steps = decide(self.policy, self.settings, observation)
        self.decisions.append(decision)
        progress(f"{self.policy} at {now:.0f} s, {decision.seconds:.2f} s of thought: {decision.sentence}")
        simulation.steer(steps)

    def _durations(self, now: float) -> tuple[dict[str, float], dict[str, float]]:
        """Mean seconds of each query's last batches, and from start to start."""
        last: dict[str, list[tuple[float, float]]] = {}
        for batch in reversed(self.simulation.batches):
            if batch.end < now - self.every:
                break
            if len(recent := last.setdefault(batch.query, [])) < 4:
                recent.append((batch.start, batch.seconds))
        seconds = {query: float(np.mean([took for _, took in recent])) for query, recent in last.items()}
        period = {
            query: (recent[0][0] - recent[-1][0]) / (len(recent) - 1)
            for query, recent in last.items()
            if len(recent) > 1
        }
        return seconds, period
