"""First tasks of each stage on executors that ran few of them. Pure.

They are taken from all batches in memory. How many tasks of a stage an executor has run is known for executors that
came after the query's oldest batch in memory, and for all where that is the query's very first one. Other executors
count as warm.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rechannel.daemon.model.prediction import slot_seconds
from rechannel.daemon.model.query_model import latest_tasks, stage_keys
from rechannel.daemon.model.snapshot import Snapshot
from rechannel.migration.plan.cost import LoadRates
from rechannel.policies.analysis.cold_start import (
    COLD_AGES,
    FLOATING,
    STATEFUL,
    STATEFUL_PYTHON,
    AgedTasks,
    ColdStage,
    fit_cold_starts,
)
from rechannel.policies.analysis.placement_cost import task_slots
from rechannel.wire.measurements import BatchReport, StageRun
from rechannel.wire.messages import ExecutorInfo

_Row = tuple[float, float, float, float, float]  # partition, age, seconds, rows, load


def cold_stages(snapshot: Snapshot, executors: Sequence[ExecutorInfo], rates: LoadRates) -> dict[str, ColdStage]:
    """Return the stages of which some executor ran few tasks.

    Parameters
    ----------
    snapshot
        What the decision is made on.
    executors
        Those of the report, with the times at which they were added.
    rates
        What loads are priced at; a task that loaded state as well is cold by the rest.
    """
    measured, cluster = snapshot.measured_queries, snapshot.cluster
    begun = {info.executor: info.added for info in executors}
    stages: dict[str, _MeasuredStage] = {}
    for query in measured.recent:
        history = sorted((batch for batch in measured.batches if batch.query == query), key=lambda it: it.batch)
        oldest = history[0]
        ran = [0.0 if oldest.batch == 0 or begun[name] >= oldest.start else np.inf for name in cluster.executors]
        if min(ran) > 0:
            continue
        sampled = {batch.batch for batch in measured.samples(query)[0]}
        for batch in history:
            for key, run in stage_keys(query, batch):
                if key not in stages:
                    stages[key] = _MeasuredStage(snapshot, rates, ran)
                stages[key].add(batch, run, warm=batch.batch in sampled)
    slots = task_slots(cluster)
    cold = {key: stage for key, stage in stages.items() if (np.array(stage.ran) < COLD_AGES * slots).any()}
    if not cold:
        return {}
    added = fit_cold_starts(_aged_tasks(list(stages.values())))
    floating, result = snapshot.prediction.floating, {}
    for key, stage in cold.items():
        if key in floating:
            share = np.round(floating[key].count * slots / slots.sum())
            result[key] = ColdStage(added[stage.kind], np.array(stage.ran), share)
        elif key in snapshot.stages:
            result[key] = ColdStage(added[stage.kind], np.array(stage.ran))
    return result


def _aged_tasks(stages: Sequence[_MeasuredStage]) -> AgedTasks:
    table = [(number, stage.kind, *row) for number, stage in enumerate(stages) for row in stage.rows]
    columns = np.array(table, dtype=np.float64).reshape(len(table), 7).T
    stage, kind, partition, age = (column.astype(np.int64) for column in columns[:4])
    return AgedTasks(stage, partition, kind, age, columns[4], columns[5], columns[6])


class _MeasuredStage:
    """Tasks of one stage with their ages, and how many each executor ran, (E,)."""

    def __init__(self, snapshot: Snapshot, rates: LoadRates, ran: Sequence[float]) -> None:
        self.kind = FLOATING
        self.ran = list(ran)
        self.rows: list[_Row] = []
        self._executors = snapshot.measured_queries.executors
        self._slots = task_slots(snapshot.cluster).tolist()
        self._speed = snapshot.cluster.speed.tolist()
        self._rates = rates
        self._last: dict[int, str] = {}

    def add(self, batch: BatchReport, run: StageRun, *, warm: bool) -> None:
        """Add the tasks of one batch; those of age enough only where ``warm``."""
        for task in sorted(latest_tasks(run), key=lambda it: it.launch):
            moved = self._last.get(task.partition, task.executor) != task.executor
            if run.stateful >= 0:
                self.kind = STATEFUL_PYTHON if task.python > 0 or self.kind == STATEFUL_PYTHON else STATEFUL
                self._last[task.partition] = task.executor
            executor = self._executors.get(task.executor, -1)
            if executor < 0:
                continue
            slots = self._slots[executor]
            age = min(self.ran[executor], COLD_AGES * slots) // slots
            self.ran[executor] += 1
            if batch.input_rows > 0 and (warm or age < COLD_AGES):
                load = self._rates.overhead + max(0, task.state_size) / self._rates.load_rate if moved else 0.0
                partition = task.partition if run.stateful >= 0 else -1
                speed = self._speed[executor]
                self.rows.append((partition, age, slot_seconds(task) * speed, max(0, task.rows_in), load * speed))
