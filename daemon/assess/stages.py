"""Stateful stages under a placement: unevenness, cost, limit of the best one. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rechannel.daemon.assess.result import Limit, StageAssessment
from rechannel.policies.analysis.placement_cost import finish_times, task_slots
from rechannel.policies.model.arrays import FloatArray, IntArray, sum_by_index
from rechannel.policies.model.cluster import Cluster
from rechannel.policies.model.placement import Placement
from rechannel.policies.model.workload import Stage

_NEAR_EVEN = 1.15  # times the even share, up to which nothing limits a placement
_DECIDES = 0.9  # share of the stage's time that a limit has to explain
_HOT = 1.5  # times the mean partition


def assess_stage(cluster: Cluster, stage: Stage, number: int, now: IntArray, best: IntArray) -> StageAssessment:
    """Return the figures of one stage.

    The stage has the seconds of each partition on a reference executor, (n,); ``now`` and ``best``: executors of its
    partitions now, and under the best placement, (n,).
    """
    work = _work(cluster, stage, now)
    even_share = float(stage.busy.sum() / (cluster.cores * cluster.speed).sum())
    hottest = int(stage.busy.argmax())
    seconds = float(stage.busy[hottest] / cluster.speed[now[hottest]])
    best_seconds = _finish(cluster, stage, best)
    limit, sentence = _limit(cluster, stage, even_share, best_seconds)
    return StageAssessment(
        stage=number,
        partitions=stage.n,
        unevenness=float(work.max()) / even_share if even_share > 0 else 1.0,
        busiest=_finish(cluster, stage, now),
        best=best_seconds,
        even_share=even_share,
        hottest=hottest,
        hottest_seconds=seconds,
        limit=limit,
        sentence=sentence,
    )


def executor_work(cluster: Cluster, stages: Sequence[Stage], placement: Placement) -> FloatArray:
    """Return the seconds of work on each executor, all its cores together, (E,)."""
    total = np.zeros(cluster.size)
    for stage in stages:
        total += _work(cluster, stage, placement[stage.key])
    return total


def _limit(cluster: Cluster, stage: Stage, even_share: float, best: float) -> tuple[Limit, str]:
    """Return what keeps the best placement from an even one, and the sentence on it."""
    if even_share <= 0 or best <= _NEAR_EVEN * even_share:
        return Limit.NONE, ""
    hottest, slots = int(stage.busy.argmax()), int(task_slots(cluster).sum())
    alone, mean = float(stage.busy[hottest] / cluster.speed.max()), float(stage.busy.mean())
    shares = f"{even_share:.2f} s would be an even share of all {slots} cores"
    if alone >= _DECIDES * best and stage.busy[hottest] >= _HOT * mean:
        return Limit.HOT_PARTITION, (
            f"partition {hottest} alone takes {alone:.2f} s, where {shares}: no placement makes the stage shorter. "
            "Split its keys"
        )
    rounds = -(-stage.n // slots) * mean  # with partitions of equal work
    if rounds > _NEAR_EVEN * even_share and rounds >= _DECIDES * best:
        return Limit.TOO_FEW_PARTITIONS, (
            f"{stage.n} partitions are too few for {slots} cores: the best placement takes {best:.2f} s, where {shares}"
        )
    return Limit.NONE, ""


def _work(cluster: Cluster, stage: Stage, at: IntArray) -> FloatArray:
    return np.asarray(sum_by_index(at, stage.busy, cluster.size) / (cluster.cores * cluster.speed))


def _finish(cluster: Cluster, stage: Stage, at: IntArray) -> float:
    return float((finish_times(cluster, stage.busy, at) / cluster.speed).max())
