"""The reason of a move says what is so, and nothing that is not."""

from __future__ import annotations

import numpy as np

from rechannel.migration.plan.inputs import PlanInputs
from rechannel.migration.plan.move_reasons import explain_moves
from rechannel.policies.model.placement import Move, Placement
from rechannel.policies.model.workload import Stage, Workload
from rechannel.policies.prediction.model import PredictionModel
from unit.policies.random_clusters import cluster_of

CLUSTER = cluster_of(2, cores=2.0)


def reason(busy: list[float], current: list[int], planned: list[int], partition: int) -> str:
    size = len(busy)
    stage = Stage("q/0", "q", True, 0.1, np.array(busy), np.ones(size), np.full(size, 1000.0))
    move = Move("q/0", partition, current[partition], planned[partition])
    before, after = (Placement({"q/0": np.array(where)}) for where in (current, planned))
    workload = Workload((stage,))
    inputs = PlanInputs(CLUSTER, workload, before, {"q/0": ("q", 0)}, {}, PredictionModel(CLUSTER, workload, {}))
    (text,) = explain_moves(inputs, after, [move])
    return text


def test_room_is_made_only_where_something_arrives() -> None:
    # The task of 4 s sets the time of both executors, whatever else they hold.
    assert reason([4.0, 1.0, 4.0], [0, 0, 1], [0, 1, 1], 1) == (
        "leaves executor e0, which needs as long for the rest of q: 4.00 s -> 4.00 s a batch; "
        "executor e1 4.00 s -> 4.00 s"
    )
    text = reason([4.0, 1.0, 1.0], [0, 0, 1], [0, 1, 0], 1)
    assert text.startswith("makes room on executor e0 for other partitions of q: 4.00 s -> 4.00 s a batch")
