"""Moves that the search makes if the loads of a live run are given to it exactly.

The fewest moves for a load leave out that no query may lose, and that the batches of each query count. So the moves of
a run stand beside those of the same search for the known loads: what is more comes from the measured ones.
"""

from __future__ import annotations

import numpy as np

from benchmarks.live.service.cases import PLANNING
from benchmarks.live.service.results import RunResult
from benchmarks.predictions.cases import cluster_of
from rechannel.conf.settings import GateSettings
from rechannel.policies.model.placement import Placement
from rechannel.policies.model.workload import Stage, Workload
from rechannel.policies.prediction.choice import choose_by_replay
from rechannel.policies.prediction.fewest import fewest_moves
from rechannel.policies.prediction.model import PredictionModel, QueryTiming
from rechannel.policies.registry import propose


def moves_with_exact_loads(run: RunResult) -> int:
    """Return the moves of the default policy, fewest by the replay, from the placement that a run was in."""
    case, current = run.case, {}
    stages = []
    for figures, query, slept, home in zip(run.figures(), case.queries, case.slept(), run.placed_before, strict=True):
        busy = np.array(slept) + run.task_overhead
        rate = 1 / max(figures.before, query.interval)
        stages.append(Stage(f"{query.name}/0", query.name, True, rate, busy, np.array(query.rows), np.zeros(len(busy))))
        current[f"{query.name}/0"] = np.array(home)
    workload, placement = Workload(tuple(stages)), Placement(current)
    timing = {query.name: QueryTiming(PLANNING, query.interval) for query in case.queries}
    pools = {query.name: query.name for query in case.queries} if case.scheduler == "FAIR" else {}
    model = PredictionModel(cluster_of(case.executors, case.cores), workload, timing, pools=pools)
    proposed = propose("adaptive", model.cluster, workload, placement).placement
    plans = fewest_moves(model, placement, proposed)
    return len(choose_by_replay(model, placement, plans, GateSettings().max_loss).moves_from(placement))
