"""Queries that share executors, drawn from a seed, with known work."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rechannel.policies.model.placement import Placement
from rechannel.policies.model.workload import Stage, Workload
from rechannel.policies.prediction.model import PredictionModel, QueryTiming, StageSpread
from unit.policies.random_clusters import cluster_of, stage_of


def stage(query: str, busy: list[float] | np.ndarray, ordinal: int = 0) -> Stage:
    work = np.asarray(busy, dtype=np.float64)
    return stage_of(f"{query}/{ordinal}", work, query=query, rows=work * 1000)


def model_of(
    stages: list[Stage], executors: int, *, overhead: float = 0.2, interval: float = 0.0, cores: int = 1
) -> PredictionModel:
    workload = Workload(tuple(stages))
    timing = {query: QueryTiming(overhead, interval) for query in workload.queries}
    return PredictionModel(cluster_of(executors, cores=cores), workload, timing)


def rare_visitor(noise: float = 0.0) -> tuple[PredictionModel, Placement, Placement]:
    """Return a model, the present placement, and a plan by which the tail of the query ``right`` gets longer.

    ``rare`` runs every ten seconds. It moves from the executor of ``left`` to that of ``right``, while ``big`` gains.
    """
    stages = [stage("big", [1.0, 1.0]), stage("left", [1.0]), stage("right", [1.0]), stage("rare", [0.4])]
    model = model_of(stages, 4)
    spread = {it.key: StageSpread(np.zeros(it.n), np.full(it.n, noise)) for it in stages}
    timing = dict(model.timing, rare=QueryTiming(0.0, pause=10.0))
    stay = {"left/0": np.array([2]), "right/0": np.array([3])}
    current = Placement({**stay, "big/0": np.array([0, 0]), "rare/0": np.array([2])})
    planned = Placement({**stay, "big/0": np.array([0, 1]), "rare/0": np.array([3])})
    return replace(model, timing=timing, spread=spread), current, planned


def drawn(seed: int, *, queries: int = 2, executors: int = 4, noise: float = 0.0, log_error: float = 0.0):
    """Return a model of skewed queries, and Spark's first placement of them."""
    random = np.random.default_rng(seed)
    stages = [stage(f"q{number}", random.lognormal(-1.5, 0.7, 12)) for number in range(queries)]
    model = model_of(stages, executors)
    spread = {it.key: StageSpread(np.full(it.n, log_error), np.full(it.n, noise)) for it in stages}
    at = Placement({it.key: random.permutation(np.arange(it.n) % executors) for it in stages})
    return PredictionModel(model.cluster, model.workload, model.timing, spread), at
