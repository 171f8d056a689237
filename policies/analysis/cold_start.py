"""Cold starts: seconds by which first tasks of a kind of stage on an executor last longer.

Classes are loaded, code is compiled and Python workers are started in them. The age of a task is the number of tasks of
its kind that its core had run before: those of the executor, divided by its cores, as all cores start cold. Tasks of
all stages of a kind count: in a live run (``benchmarks.live --workload service --no-spread --ask --seed 105``), the
first task of a query on an executor without tasks of any query lasted 2.3 to 3.8 s longer, on one that had run tasks of
another query 0 to 0.2 s. A task of each of the first three ages and of each kind of stage lasts longer by

    added = (n x median of (seconds - usual - load) + prior) / (n + 1)

seconds over the n such tasks that were measured, each within 0 to 60. ``usual`` is fitted to the rows of the stage's
warm tasks, times what the partition's own warm tasks deviate by. ``load`` is what loading the task's state is expected
to take, so that a load does not count as a cold start.

Seconds rather than a multiple of the usual ones: in the six live runs of ``joined`` in ``docs/figures/runs.json``, all
twelve partitions took a batch of 1.7 s (median), and the first of them on the new executor one of 8.1 s. Other batches
with landings took 3.2 s, the second landing there 2.8 s. On nodes of 0.3 cores these 4.9 s are 1.5 s of a core: the
prior of the first age. It is 0 for the others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rechannel.policies.analysis.service_rate import fit_lines
from rechannel.policies.model.arrays import FloatArray, IntArray, check_lengths, ranks

STATEFUL_PYTHON, STATEFUL, FLOATING = 0, 1, 2
"""Kinds of stages: with state and Python workers, with state in the JVM, without state."""
_KINDS = 3
_PRIOR = (1.5, 0.0, 0.0)  # seconds
COLD_AGES = len(_PRIOR)
"""Tasks of a kind that a core runs cold."""
_PRIOR_TASKS = 1.0  # measured tasks that the prior counts for
_LONGEST = 60.0  # seconds
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
    """First tasks of one stage on the executors that ran few of its kind.

    Attributes
    ----------
    kind
        Kind of the stage.
    added
        Seconds of a reference executor by which a task lasts longer, by its age, (COLD_AGES,).
    ran
        Tasks of this kind that each executor has run, (E,); infinite where that is not known, which counts as warm.
    tasks
        Tasks a batch of a floating stage on each executor, (E,); None for a stage with state.
    """

    kind: int
    added: FloatArray
    ran: FloatArray
    tasks: FloatArray | None = None

    def added_seconds(self, ran: FloatArray, assignment: IntArray, slots: IntArray) -> FloatArray:
        """Return the reference seconds by which each partition's task lasts longer, (n,).

        ``ran`` (E,) are the tasks run before it, ``assignment`` (n,) the executors of the partitions, ``slots`` (E,)
        the tasks that each executor runs at a time.
        """
        added = np.zeros(len(assignment))
        cold = np.flatnonzero((assignment >= 0) & (ran < COLD_AGES * slots)[assignment])
        executors = assignment[cold]
        age = (ran[executors] + ranks(executors)) // slots[executors]
        added[cold[age < COLD_AGES]] = self.added[age[age < COLD_AGES].astype(np.int64)]
        return added

    def floating_seconds(self, ran: FloatArray, slots: IntArray, speed: FloatArray) -> float:
        """Return the seconds by which a floating stage lasts longer: on its coldest executor."""
        longest = 0.0
        tasks = np.zeros(len(ran)) if self.tasks is None else self.tasks
        for executor in np.flatnonzero((ran < COLD_AGES * slots) & (tasks > 0)).tolist():
            turns = np.arange(-(-tasks[executor] // slots[executor]))
            age = ran[executor] // slots[executor] + turns
            longest = max(longest, float(self.added[age[age < COLD_AGES].astype(np.int64)].sum() / speed[executor]))
        return longest


def fit_cold_starts(tasks: AgedTasks) -> FloatArray:
    """Return the seconds by which first tasks last longer, by kind and age.

    Shape (3, COLD_AGES).

    Tasks of stages without warm tasks do not count, nor do those whose figures are no numbers.
    """
    added = np.tile(np.array(_PRIOR), (_KINDS, 1))
    valid = np.isfinite(tasks.seconds) & np.isfinite(tasks.rows) & np.isfinite(tasks.load) & (tasks.seconds > _SHORTEST)
    warm = valid & (tasks.age >= COLD_AGES) & (tasks.load <= 0)
    cold = np.flatnonzero(valid & (tasks.age < COLD_AGES) & np.isin(tasks.stage, tasks.stage[warm]))
    if not len(cold):
        return added
    usual = _usual_seconds(tasks, np.flatnonzero(warm), cold)
    more = np.clip(tasks.seconds[cold] - usual - np.maximum(tasks.load[cold], 0.0), 0.0, _LONGEST)
    for kind in range(_KINDS):
        for age in range(COLD_AGES):
            own = more[(tasks.kind[cold] == kind) & (tasks.age[cold] == age)]
            if len(own):
                share = len(own) / (len(own) + _PRIOR_TASKS)
                added[kind, age] += share * (float(np.median(own)) - added[kind, age])
    return added


def _usual_seconds(tasks: AgedTasks, warm: IntArray, cold: IntArray) -> FloatArray:
    """Return the usual seconds of the cold tasks.

    By the line of their stage, and the deviation of their partition from it.
    """
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
