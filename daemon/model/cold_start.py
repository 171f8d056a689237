"""First tasks of each kind of stage on executors that ran few of them. Pure.

They are taken from all batches in memory. How many tasks of a kind an executor has run is known for executors that came
after the oldest batch in memory of each query with such stages, and for all where that is the query's very first one.
Other executors count as warm.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rechannel.daemon.model.query_model import stage_keys
from rechannel.daemon.model.snapshot import Snapshot
from rechannel.daemon.model.task_columns import columnar_tasks, task_columns
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
from rechannel.policies.model.arrays import FloatArray
from rechannel.wire.measurements import BatchReport, StageRun
from rechannel.wire.messages import ExecutorInfo


def cold_stages(snapshot: Snapshot, executors: Sequence[ExecutorInfo], rates: LoadRates) -> dict[str, ColdStage]:
    """Return the stages of kinds of which some executor ran few tasks.

    ``executors``: those of the report, with the times at which they were added; ``rates``: of loads; a
    task that loaded state as well is cold by the rest.
    """
    measured, cluster = snapshot.measured_queries, snapshot.cluster
    added_at = {info.executor: info.added for info in executors}
    runs: list[_Run] = []
    unknown: dict[str, FloatArray] = {}  # query -> infinite where executors may have run its tasks before, (E,)
    for name, query in measured.queries.items():
        history = sorted(query.batches, key=lambda it: it.batch)
        oldest = history[0]
        unknown[name] = np.array(
            [0.0 if oldest.batch == 0 or added_at[it] >= oldest.start else np.inf for it in cluster.executors]
        )
        warm = {batch.batch for batch in query.samples}
        runs += [
            _Run(key, batch, run, batch.batch in warm) for batch in history for key, run in stage_keys(name, batch)
        ]
    kinds = _kinds(runs)
    ran = {kind: np.zeros(cluster.size) for kind in set(kinds.values())}
    for one in runs:
        ran[kinds[one.key]] += unknown[one.batch.query]
    slots = task_slots(cluster)
    if not any((counts < COLD_AGES * slots).any() for counts in ran.values()):
        return {}
    tasks = _aged_tasks(runs, kinds, ran, snapshot, rates)
    cold = {kind for kind, counts in ran.items() if (counts < COLD_AGES * slots).any()}
    if not cold:
        return {}
    added = fit_cold_starts(tasks)
    floating, result = snapshot.prediction.floating, {}
    for key, kind in kinds.items():
        if kind in cold and (key in floating or key in snapshot.stage_ids):
            share = np.round(floating[key].count * slots / slots.sum()) if key in floating else None
            result[key] = ColdStage(kind, added[kind], ran[kind], share)
    return result


class _Run(NamedTuple):
    """One stage in one batch; ``warm``: tasks of other ages are compared with its older ones."""

    key: str
    batch: BatchReport
    stage: StageRun
    warm: bool


def _kinds(runs: Sequence[_Run]) -> dict[str, int]:
    """Return the kind of each stage."""
    kinds: dict[str, int] = {}
    for one in runs:
        if one.stage.stateful_stage < 0:
            kinds[one.key] = FLOATING
        elif kinds.get(one.key) != STATEFUL_PYTHON:
            kinds[one.key] = STATEFUL_PYTHON if (columnar_tasks(one.stage).column("python") > 0).any() else STATEFUL
    return kinds


def _aged_tasks(
    runs: Sequence[_Run],
    kinds: Mapping[str, int],
    ran: Mapping[int, FloatArray],
    snapshot: Snapshot,
    rates: LoadRates,
) -> AgedTasks:
    """Return the tasks with their ages; ``ran`` counts them."""
    executors = snapshot.measured_queries.executors
    slots, speed = task_slots(snapshot.cluster).tolist(), snapshot.cluster.speed.tolist()
    numbers = {key: number for number, key in enumerate(kinds)}
    last: dict[tuple[str, int], int] = {}
    rows: list[tuple[float, ...]] = []
    for number, partition, executor, seconds, read, state in _in_order(runs, executors):
        one = runs[number]
        stateful, kind = one.stage.stateful_stage >= 0, kinds[one.key]
        moved = stateful and last.get((one.key, partition), executor) != executor
        if stateful:
            last[one.key, partition] = executor
        if executor < 0:
            continue
        age = min(ran[kind][executor], COLD_AGES * slots[executor]) // slots[executor]
        ran[kind][executor] += 1
        if one.batch.input_rows > 0 and (one.warm or age < COLD_AGES):
            load = rates.overhead + state / rates.load_rate if moved else 0.0
            figures = (seconds * speed[executor], read, load * speed[executor])
            rows.append((numbers[one.key], kind, partition if stateful else -1, age, *figures))
    columns = np.array(rows, dtype=np.float64).reshape(len(rows), 7).T
    stage, of_kind, partitions, ages = (column.astype(np.int64) for column in columns[:4])
    return AgedTasks(stage, partitions, of_kind, ages, columns[4], columns[5], columns[6])


def _in_order(
    runs: Sequence[_Run], executors: Mapping[str, int]
) -> Iterator[tuple[int, int, int, float, float, float]]:
    """Yield all tasks in the order of their launch.

    Of each, the number of its run, its partition and executor, its seconds on a core, its rows and bytes of state.
    """
    tables: list[FloatArray] = [np.empty((7, 0))]
    for number, one in enumerate(runs):
        tasks = task_columns(one.stage)
        at, state = tasks.executors_in(executors), tasks.amount("state_size")
        columns = np.full(len(tasks), number), tasks.launch, tasks.partition, at, tasks.slot, tasks.rows, state
        tables.append(np.array(columns))
    table = np.concatenate(tables, axis=1)
    for number, _, partition, executor, *figures in table[:, np.argsort(table[1], kind="stable")].T.tolist():
        yield int(number), int(partition), int(executor), *figures
