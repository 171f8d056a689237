"""First tasks of a stage on an executor, which take longer: code is compiled, workers are started.

The age of a task is the number of tasks of its stage that its core had run before: those of the executor, divided by
its cores, as all cores start cold. Of the first three ages of each kind of stage, the factor is

    log factor = n / (n + 3) x median of log((seconds - load) / usual)  +  3 / (n + 3) x log prior

over the n such tasks that were measured, within 1 to 10. ``usual`` is fitted to the rows of the stage's warm tasks,
times what the partition's own warm tasks deviate by. ``load`` is what loading the task's state is priced at, so that a
load does not count as a cold start.

The prior is 2.5, 1.5 and 1.2: the least by which batches with a cold target exceeded their prediction in three observed
migrations (2.5 to 3.7 times), and then some third of the excess each. That it falls so fast is an assumption.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rechannel.policies.analysis.service_rate import fit_lines
from rechannel.policies.model.arrays import FloatArray, IntArray, check_lengths

__all__ = ["COLD_AGES", "FLOATING", "STATEFUL", "STATEFUL_PYTHON", "AgedTasks", "ColdStage", "fit_cold_factors"]

STATEFUL_PYTHON, STATEFUL, FLOATING = 0, 1, 2
"""Kinds of stages: with state and Python workers, with state in the JVM, without state."""
_KINDS = 3
_PRIOR = (2.5, 1.5, 1.2)
COLD_AGES = len(_PRIOR)
"""Tasks of a stage that a core runs cold."""
_PRIOR_TASKS = 3.0  # measured tasks that the prior counts for
_HIGHEST = 10.0
_SHORTEST = 1e-4  # seconds; shorter tasks are clock ticks


@dataclass(frozen=True, eq=False)
class AgedTasks:
    """Measured tasks of known age, one entry for each.

    ``partition`` is -1 for tasks of floating stages; ``age`` counts from 0, and tasks from ``COLD_AGES`` on are warm.
    ``seconds`` and ``load`` are those of a reference executor. ``kind`` is that of the stage.
    """

    stage: IntArray
    partition: IntArray
    kind: IntArray
    age: IntArray
    seconds: FloatArray
    rows: FloatArray
    load: FloatArray

    def __post_init__(self) -> None:
        columns = {name: column for name, column in vars(self).items() if name != "stage"}
        check_lengths("tasks: ", len(self.stage), **columns)


@dataclass(frozen=True, eq=False)
class ColdStage:
    """First tasks of one stage on the executors that ran few of them.

    Attributes
    ----------
    factors
        Times the usual seconds that a task takes, by its age, (COLD_AGES,).
    ran
        Tasks that each executor has run, (E,); infinite where that is not known, which counts as warm.
    seconds
        Usual seconds of each partition's task, (n,); of a floating stage those of any task, (1,).
    tasks
        Tasks a batch of a floating stage on each executor, (E,); None for a stage with state.
    """

    factors: FloatArray
    ran: FloatArray
    seconds: FloatArray
    tasks: FloatArray | None = None

    def factors_at(self, ran: FloatArray, assignment: IntArray, slots: IntArray) -> FloatArray:
        """Return the factor of each partition's task in one batch, (n,).

        ``ran`` (E,) are the tasks run before it, ``assignment`` (n,) the executors of the partitions, ``slots`` (E,)
        the tasks that each executor runs at a time.
        """
        factors = np.ones(len(assignment))
        for executor in np.flatnonzero(ran < COLD_AGES * slots).tolist():
            held = np.flatnonzero(assignment == executor)
            age = (ran[executor] + np.arange(len(held))) // slots[executor]
            cold = age < COLD_AGES
            factors[held[cold]] = self.factors[age[cold].astype(np.int64)]
        return factors

    def floating_seconds(self, ran: FloatArray, slots: IntArray) -> float:
        """Return by how much a floating stage lasts longer in one batch: on its coldest executor."""
        longest = 0.0
        tasks = np.zeros(len(ran)) if self.tasks is None else self.tasks
        for executor in np.flatnonzero((ran < COLD_AGES * slots) & (tasks > 0)).tolist():
            turns = np.arange(-(-tasks[executor] // slots[executor]))
            age = ran[executor] // slots[executor] + turns
            factors = self.factors[age[age < COLD_AGES].astype(np.int64)]
            longest = max(longest, float(self.seconds[0] * (factors - 1.0).sum()))
        return longest


def fit_cold_factors(tasks: AgedTasks) -> FloatArray:
    """Return the times of their usual seconds that first tasks take, by kind and age, (3, COLD_AGES).

    Tasks of stages without warm tasks do not count, nor do those whose figures are no numbers.
    """
    log_factors = np.tile(np.log(_PRIOR), (_KINDS, 1))
    valid = np.isfinite(tasks.seconds) & np.isfinite(tasks.rows) & np.isfinite(tasks.load) & (tasks.seconds > _SHORTEST)
    warm = valid & (tasks.age >= COLD_AGES) & (tasks.load <= 0)
    cold = np.flatnonzero(valid & (tasks.age < COLD_AGES) & np.isin(tasks.stage, tasks.stage[warm]))
    if not len(cold):
        return np.exp(log_factors)
    usual = _usual_seconds(tasks, np.flatnonzero(warm), cold)
    ratio = np.clip((tasks.seconds[cold] - np.maximum(tasks.load[cold], 0.0)) / usual, 1.0, _HIGHEST)
    for kind in range(_KINDS):
        for age in range(COLD_AGES):
            own = ratio[(tasks.kind[cold] == kind) & (tasks.age[cold] == age)]
            if len(own):
                share = len(own) / (len(own) + _PRIOR_TASKS)
                log_factors[kind, age] += share * (float(np.median(np.log(own))) - log_factors[kind, age])
    return np.exp(log_factors)


def _usual_seconds(tasks: AgedTasks, warm: IntArray, cold: IntArray) -> FloatArray:
    """Return the usual seconds of the cold tasks: by the stage's line, and the partition's deviation from it."""
    chosen = np.concatenate((warm, cold))
    _, stage = np.unique(tasks.stage[chosen], return_inverse=True)
    key = stage * (int(tasks.partition.max()) + 2) + tasks.partition[chosen] + 1
    _, unit = np.unique(key, return_inverse=True)
    rows, size = np.maximum(tasks.rows[chosen], 0.0), len(warm)
    overhead, slope, least = fit_lines(stage[:size], rows[:size], tasks.seconds[warm])
    line = np.maximum(np.maximum(overhead[stage] + slope[stage] * rows, least[stage]), _SHORTEST)
    residual = np.log(tasks.seconds[warm] / line[:size])
    level = np.bincount(stage[:size], residual) / np.bincount(stage[:size])
    count = np.bincount(unit[:size], minlength=int(unit.max()) + 1)
    own = np.bincount(unit[:size], residual, len(count)) / np.maximum(count, 1)
    later = slice(size, None)
    deviation = np.where(count[unit[later]] > 0, own[unit[later]], level[stage[later]])
    return np.asarray(line[later] * np.exp(deviation))
