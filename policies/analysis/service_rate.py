"""Service rate of each executor, separated from the weight of its partitions.

The usual time of the tasks of a stage is fitted first, as busy seconds = overhead + cost per row x rows. The factor by
which a task took longer is the weight of its partition times the slowness of its executor:

    log(busy / usual) = weight[stage, partition] + slowness[executor, before or now] + noise

Tasks of a floating stage (sources) run anywhere and have no weight of their own, so those of one batch compare
executors directly: *peers*. Tasks of different batches are not compared: while the JVMs compile, or the input changes,
those of one batch take several times as long as those of another. A partition that was observed on several executors,
or on one executor before and now, links those: *history*. There, source tasks count for little: what slows tasks with
state, such as their disk, may spare tasks that only read, and partitions on an executor that all take longer for as
many rows are the better evidence. With source tasks counted in full, an executor whose tasks with state took 1.5 times
as long was not slow after three batches where source tasks took a tenth of theirs, and never where a fifth (simulated).
Weights and slownesses are random effects (normal, mean 0). So an executor all of whose tasks take longer counts as
slow, the more so the less the partitions of other executors differ. A heavy partition among usual ones is an outlier
and counts for little, and a few partitions alone on an executor count mostly as heavy. The weights are eliminated
(Henderson's mixed model equations, Schur complement), which leaves a small system with an exact covariance: a block for
each group of executors that partitions moved between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from rechannel.policies.model.arrays import BoolArray, FloatArray, IntArray, ModelError, check_lengths, numbered
from rechannel.policies.model.block_matrix import BlockMatrix, Blocks

WEIGHT_SPREAD = 0.5  # prior deviation of log weights between the partitions of a stage
WEIGHT_EVIDENCE = 4.0  # partitions that this is worth
FEW = 4  # partitions of an executor, below which these may all be heavy ones, if others have twice as many
SPEED_SPREAD = 0.5  # prior deviation of log slowness between executors
DRIFT = 0.2  # prior deviation of the log weight of a partition between two times, as its state and keys change
DRIFT_EVIDENCE = 4.0  # changes of partitions that this is worth
PEER_NOISE = 0.05  # noise that does not average out over the source tasks of one executor
PEER_DRIFT = 0.3  # the same where an executor is compared with itself: what slows tasks with state may spare others
FIXED_NOISE = 0.003  # seconds by which the tasks of executors differ whatever their work: compiled code, caches
OUTLIER = 1.5  # deviations beyond which the change of a partition loses weight: Huber's constant
LEAST_NOISE = 0.05  # of a single task
SURE = 3.0  # standard errors an executor must differ by to be called slow or fast
_ROUNDS = 3  # of each iterated fit
_SHORTEST = 1e-4  # seconds; shorter tasks are clock ticks
_LEAST_SHARE = 0.02  # of the mean seconds of a stage's tasks: its line is not trusted below

Effects: TypeAlias = tuple[FloatArray, BlockMatrix]  # slowness of each state, and its covariance


@dataclass(frozen=True, eq=False)
class Observations:
    """Observed tasks, one entry for each.

    ``partition`` is -1 for tasks of floating stages; ``now`` is True for those of the last batches; ``batch`` is the
    number of the task's batch.
    """

    stage: IntArray
    partition: IntArray
    executor: IntArray
    now: BoolArray
    busy: FloatArray  # seconds
    rows: FloatArray
    batch: IntArray

    def __post_init__(self) -> None:
        check_lengths(
            "observations: ",
            len(self.stage),
            partition=self.partition,
            executor=self.executor,
            now=self.now,
            busy=self.busy,
            rows=self.rows,
            batch=self.batch,
        )


@dataclass(frozen=True, eq=False)
class ServiceRates:
    """Estimated rate of each executor, one entry for each.

    ``speed`` is 1 unless the executor is known to be slower or faster: then its rate against the usual executor, the
    lower of the two in the middle. ``lasting_speed`` is the same without the slowness that ``by_history`` shows, as its
    older batches have it. ``times`` is the estimated time of its tasks over the usual time, and ``grown`` over
    the time in its older batches; ``error`` is the standard error of log ``times``, ``tasks`` the number of tasks of
    the last batches behind the estimate. ``by_peers`` and ``by_history`` are True where that shows an executor to be
    slow.
    """

    speed: FloatArray
    lasting_speed: FloatArray
    times: FloatArray
    grown: FloatArray
    error: FloatArray
    tasks: IntArray
    by_peers: BoolArray
    by_history: BoolArray

    @property
    def slow(self) -> BoolArray:
        """True where an executor is known to be slower than the others."""
        return self.by_peers | self.by_history


def service_rates(observed: Observations, executors: int, ratio: float) -> ServiceRates:
    """Estimate the rate of each executor.

    ``ratio`` (above 1): the speed stays 1 unless its tasks take so many times the usual time, or the inverse.
    """
    if executors < 1:
        raise ModelError("executors: at least one is needed")
    if not ratio > 1:
        raise ModelError(f"ratio: must be greater than 1, got {ratio}")
    order = np.argsort(observed.stage, kind="stable")  # once, and not in each fit
    observed = Observations(**{name: column[order] for name, column in vars(observed).items()})
    valid = (observed.executor >= 0) & (observed.executor < executors) & (observed.busy > _SHORTEST)
    peers, valid = _number_peers(observed, valid, executors)
    stage, rows, busy = observed.stage[valid], np.maximum(observed.rows[valid], 0.0), observed.busy[valid]
    # Each executor has two states: its older batches (0..E-1) and its last ones (E..2E-1).
    state = observed.executor[valid] + executors * observed.now[valid]
    task_counts = np.bincount(state, minlength=2 * executors)
    if not len(busy):
        one, no = np.ones(executors), np.zeros(executors, dtype=np.bool_)
        return ServiceRates(one, one, one, one, np.full(executors, SPEED_SPREAD), task_counts[executors:], no, no)
    stage = numbered(stage)
    unit = _units(stage, observed.partition[valid])
    cells = _Cells.of(unit, state, 2 * executors)
    slowness = np.zeros(2 * executors)
    for _ in range(_ROUNDS):
        usual = _fit_usual(stage, rows, busy * np.exp(-slowness[state]))
        excess = np.log(busy / usual)
        if len(peers):
            left = np.bincount(peers, (excess - slowness[state])[unit < 0]) / np.bincount(peers)
            excess[unit < 0] -= left[peers]
        slowness, precision = _solve_effects(excess, usual, cells, PEER_NOISE)
    history, history_precision = _solve_effects(excess, usual, cells, PEER_DRIFT)
    effects = (slowness, precision.inverse()), (history, history_precision.inverse())
    return _classify_rates(*effects, task_counts, float(np.log(ratio)))


def _number_peers(observed: Observations, valid: BoolArray, executors: int) -> tuple[IntArray, BoolArray]:
    """Number the groups of floating tasks that are compared: those of one stage in one batch.

    A group on one executor compares nothing. Returns the group of each valid floating task, and the tasks that are
    valid without those.
    """
    floating = np.flatnonzero(valid & (observed.partition < 0))
    _, batch = np.unique(observed.batch[floating], return_inverse=True)  # any number
    group = numbered(observed.stage[floating] * (batch.max(initial=0) + 1) + batch)
    ran = np.unique(group * executors + observed.executor[floating])  # each executor of each group once
    several = np.bincount(ran // executors, minlength=1)[group] > 1
    compared = valid.copy()
    compared[floating[~several]] = False
    return numbered(group[several]), compared


def _classify_rates(peers: Effects, history: Effects, task_counts: IntArray, margin: float) -> ServiceRates:
    """Find slow and fast executors: log times beyond ``margin`` and the standard error."""
    executors = len(task_counts) // 2
    then, now = np.arange(executors), np.arange(executors, 2 * executors)
    tasks = task_counts[now].astype(np.int64)
    times, error = _compare_with_usual(*peers, [(now, 1.0)], tasks > 0)
    certain = (tasks > 0) & (np.abs(times) > SURE * error) & (np.abs(times) >= margin)
    both = (tasks > 0) & (task_counts[then] > 0)
    grown, doubt = _compare_with_usual(*history, [(now, 1.0), (then, -1.0)], both)
    by_history = both & (grown > SURE * doubt) & (grown >= margin)
    # An executor that became slow counts as usual before, since the weights of its partitions are unknown, unless its
    # peers show that it was slow or fast. Where its older batches were slow in part, it grew by less than it is slow.
    earlier, _ = _compare_with_usual(*peers, [(then, 1.0)], both)
    from_usual = by_history & (~certain | (np.abs(earlier) < margin))
    slow = np.where(certain, times, 0.0)
    slow = np.where(from_usual, np.maximum(slow, grown), slow)
    before = slow - np.where(by_history, grown, 0.0)
    lasting = np.where(by_history & (before < margin), np.minimum(slow, 0.0), before)
    speed, lasting_speed = np.exp(-slow), np.exp(-lasting)
    by_peers = certain & (times > 0)
    return ServiceRates(speed, lasting_speed, np.exp(times), np.exp(grown), error, tasks, by_peers, by_history)


def _compare_with_usual(
    slowness: FloatArray, covariance: BlockMatrix, terms: Sequence[tuple[IntArray, float]], where: BoolArray
) -> tuple[FloatArray, FloatArray]:
    """Return differences to the usual executor and their standard errors, (E,) each.

    0 where nothing is known. The usual one is the lower of the two in the middle: of two executors, or where half are
    slow, the quick one.

    Parameters
    ----------
    slowness, covariance
        Of every state.
    terms
        State of each executor, (E,), and its factor in what is compared, which is the sum of all terms.
    where
        Executors that are known.
    """
    values = np.asarray(sum(factor * slowness[state] for state, factor in terms))
    index = np.flatnonzero(where)
    if not len(index):
        return np.zeros(len(values)), np.full(len(values), SPEED_SPREAD)
    quick = index[np.argsort(values[index], kind="stable")[: (len(index) + 1) // 2]]
    # It stands for the quicker half, whose mean is better known than that of a single one.
    mean = np.zeros(len(slowness))
    for state, factor in terms:
        mean[state[quick]] += factor / len(quick)
    product = covariance.times(mean)
    shared = np.asarray(sum(factor * product[state] for state, factor in terms))
    own = sum(one * other * covariance.entries(at, to) for at, one in terms for to, other in terms)
    variance = own + shared[quick].mean() - 2 * shared
    return np.where(where, values - values[quick[-1]], 0.0), np.sqrt(np.maximum(variance, 0.0))


def _units(stage: IntArray, partition: IntArray) -> IntArray:
    """Number the partitions over all stages; -1 stays."""
    placed = partition >= 0
    key = stage * (partition.max(initial=0) + 1) + partition
    unit = np.full(len(stage), -1, dtype=np.int64)
    unit[placed] = numbered(key[placed])
    return unit


def _fit_usual(stage: IntArray, rows: FloatArray, busy: FloatArray) -> FloatArray:
    """Return the usual time of a task of its stage and rows."""
    overhead, slope, least = fit_lines(stage, rows, busy)
    return np.asarray(np.maximum(np.maximum(overhead[stage] + slope[stage] * rows, least[stage]), _SHORTEST))


def fit_lines(stage: IntArray, rows: FloatArray, busy: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Fit the tasks' seconds of each stage to their rows by relative least squares.

    Parameters
    ----------
    stage, rows, busy
        Number of the stage, rows and seconds of each task; the stages are numbered from 0.

    Returns
    -------
    overhead, cost of a row, and the least seconds that the line is trusted for, of each stage, (S,). None is negative.
    """
    if (np.diff(stage) < 0).any():
        order = np.argsort(stage, kind="stable")
        stage, rows, busy = stage[order], rows[order], busy[order]
    count = int(stage[-1]) + 1
    tasks = np.bincount(stage, minlength=count)
    mean = np.bincount(stage, busy, count) / np.maximum(tasks, 1)
    usual = np.repeat(mean, tasks)
    for _ in range(_ROUNDS):
        overhead, slope = weighted_lines(stage, 1 / usual**2, rows, busy, count)
        usual = np.repeat(slope, tasks) * rows + np.repeat(overhead, tasks)
        usual = np.maximum(usual, np.repeat(_LEAST_SHARE * mean, tasks))
    return overhead, slope, _LEAST_SHARE * mean


def weighted_lines(
    group: IntArray, weight: FloatArray, x: FloatArray, y: FloatArray, count: int
) -> tuple[FloatArray, FloatArray]:
    """Return the weighted least-squares line of each group: intercepts and slopes, (count,).

    None is negative. ``group`` (n,) is in ascending order.
    """
    begins = np.flatnonzero(np.diff(group, prepend=-1)) if count > 1 else np.zeros(1, dtype=np.int64)
    w, wx, wy, wxx, wxy = sums = np.zeros((5, count))
    x_weight = weight * x
    for total, terms in zip(sums, (weight, x_weight, weight * y, x_weight * x, x_weight * y), strict=True):
        total[group[begins]] = np.add.reduceat(terms, begins)
    spread = w * wxx - wx * wx
    sloped = spread > 1e-9 * np.maximum(w * wxx, 1e-300)
    slope = np.maximum(np.where(sloped, (w * wxy - wx * wy) / np.where(sloped, spread, 1.0), 0.0), 0.0)
    intercept = (wy - slope * wx) / w
    through = wxy / np.where(wxx > 0, wxx, 1.0)  # the line through zero, where the intercept came out negative
    return np.maximum(intercept, 0.0), np.where(intercept < 0, through, slope)


@dataclass(frozen=True, eq=False)
class _Cells:
    """Cells of tasks, in the order of the units.

    The tasks of one partition, or all floating ones, in one state are a cell.

    Attributes
    ----------
    of_task, size
        Cell of each task, and tasks of each cell.
    unit, state, states
        Partition (-1 for floating tasks) and state of each cell, and the number of states.
    placed
        Cells of partitions.
    pairs
        Every two cells of one partition, (2, P), counted among the placed ones.
    blocks
        States that partitions join.
    """

    of_task: IntArray
    size: IntArray
    unit: IntArray
    state: IntArray
    states: int
    placed: IntArray
    pairs: IntArray
    blocks: Blocks

    @classmethod
    def of(cls, unit: IntArray, state: IntArray, states: int) -> _Cells:
        """Return the cells of tasks by their partition and state."""
        cells, of_task = np.unique((unit + 1) * states + state, return_inverse=True)
        unit, state = cells // states - 1, cells % states
        placed = np.flatnonzero(unit >= 0)
        same = unit[placed]
        pairs = [np.empty((2, 0), dtype=np.int64)]
        for step in range(1, int(np.bincount(same).max(initial=0))):
            # Each pair of one unit's cells is i and i + step for some step.
            one = np.flatnonzero(same[:-step] == same[step:])
            pairs.append(np.array([one, one + step]))
        joined = np.concatenate(pairs, axis=1)
        blocks = Blocks.joined_by(states, *state[placed][joined])
        return cls(of_task, np.bincount(of_task), unit, state, states, placed, joined, blocks)


def _solve_effects(
    excess: FloatArray, usual: FloatArray, cells: _Cells, peer_noise: float
) -> tuple[FloatArray, BlockMatrix]:
    """Solve for the slowness of each state; return it with its precision.

    ``excess``: logarithm of each task's time over its usual one; ``usual``: seconds of that; ``peer_noise``: deviation
    of the floating tasks of one state that does not average out.

    The precision is the inverse of the covariance. A partition that changed by itself, unlike the others on its
    executor, is an outlier and counts for little.
    """
    cell, size, unit, placed = cells.of_task, cells.size, cells.unit, cells.placed
    mean = np.bincount(cell, excess) / size
    free = len(excess) - len(size)
    noise = float(((excess - mean[cell]) ** 2).sum()) / free if free > 0 else LEAST_NOISE**2
    chance = max(noise, LEAST_NOISE**2) / size + (FIXED_NOISE * size / np.bincount(cell, usual)) ** 2
    deviation = np.sqrt(chance + np.where(unit >= 0, _drift_variance(mean, chance, cells), peer_noise**2))
    weight = deviation**-2
    spread = np.sqrt(_weight_variances(mean, chance, cells))
    prior = spread**-2
    slowness, precision = _solve_mixed_model(mean, weight, prior, cells)
    for _ in range(_ROUNDS):
        left = mean - slowness[cells.state]
        drawn = np.bincount(unit[placed], (weight * left)[placed]) / (np.bincount(unit[placed], weight[placed]) + prior)
        left[placed] -= drawn[unit[placed]]
        weight = deviation**-2 * np.minimum(1.0, OUTLIER * deviation / np.maximum(np.abs(left), 1e-12))
        prior = spread**-2 * np.minimum(1.0, OUTLIER * spread / np.maximum(np.abs(drawn), 1e-12))
        slowness, precision = _solve_mixed_model(mean, weight, prior, cells)
    return slowness, precision


def _weight_variances(mean: FloatArray, chance: FloatArray, cells: _Cells) -> FloatArray:
    """Return the variance of the log weight of each partition.

    It is estimated from how much the partitions of one executor differ in the last batches. A few partitions, where
    other executors have many, may be unlike all others, as policies spare the heaviest ones: they show nothing about
    their executor beyond the prior. ``mean`` and ``chance``: mean logarithm of the excess of each cell, and its
    variance by chance.
    """
    executors = cells.states // 2
    now = cells.placed[cells.state[cells.placed] >= executors]
    executor = cells.state[now] - executors
    usual = _variance_within(executor, mean[now], chance[now], WEIGHT_SPREAD**2, WEIGHT_EVIDENCE)
    variances = np.full(int(cells.unit.max()) + 1, usual)
    held = np.bincount(executor)
    alone = (held < FEW) & (2 * held <= (np.median(held[held > 0]) if len(now) else 0.0))
    variances[cells.unit[now][alone[executor]]] = max(usual, WEIGHT_SPREAD**2)
    return variances


def _drift_variance(mean: FloatArray, chance: FloatArray, cells: _Cells) -> float:
    """Return the variance of the log weight of a partition between two times.

    It is estimated from partitions that were observed on one executor before and now, by how much their changes differ
    there: what they have in common is the executor's. ``mean`` and ``chance`` as in `_weight_variances`.
    """
    before, now = cells.placed[cells.pairs]
    stayed = cells.state[before] + cells.states // 2 == cells.state[now]
    before, now = before[stayed], now[stayed]
    changed, by_chance = mean[now] - mean[before], chance[before] + chance[now]
    # Two cells drift on their own, so a change has twice the variance.
    return _variance_within(cells.state[before], changed, by_chance, 2 * DRIFT**2, DRIFT_EVIDENCE) / 2


def _variance_within(group: IntArray, values: FloatArray, chance: FloatArray, prior: float, evidence: float) -> float:
    """Return the variance of values about the median of their group, beyond chance.

    ``chance``: variance of each value by chance. One that differs far more than others is an outlier and counts up to a
    bound. ``prior`` is the variance without any values, and counts as so many more of them as ``evidence`` says.
    """
    count = np.bincount(group)
    own = values - _group_medians(group, values, len(count))[group]
    differ = np.minimum(own**2, OUTLIER**2 * (prior + chance)).sum()
    expected = (chance * (1 - 1 / count[group])).sum()
    free = float((count - 1).clip(0).sum())
    return float((evidence * prior + max(differ - expected, 0.0)) / (evidence + free))


def _group_medians(group: IntArray, values: FloatArray, count: int) -> FloatArray:
    """Return the median of the values of each group, 0 without any, (count,)."""
    medians, size = np.zeros(count), np.bincount(group, minlength=count)
    if len(values):
        ordered = values[np.lexsort((values, group))]
        first = np.concatenate([[0], np.cumsum(size)[:-1]])
        middle = [ordered[np.minimum(first + at, len(ordered) - 1)] for at in ((size - 1).clip(0) // 2, size // 2)]
        medians = np.where(size > 0, (middle[0] + middle[1]) / 2, 0.0)
    return medians


def _solve_mixed_model(
    mean: FloatArray, weight: FloatArray, prior: FloatArray, cells: _Cells
) -> tuple[FloatArray, BlockMatrix]:
    """Solve the mixed model equations with the weights of the partitions eliminated.

    Returns the precision too. A state without tasks has its prior; ``prior`` is the precision of each weight.
    """
    states = cells.states
    diagonal = np.asarray(np.bincount(cells.state, weight, states) + SPEED_SPREAD**-2, np.float64)
    right = np.asarray(np.bincount(cells.state, weight * mean, states), np.float64)
    unit, state = cells.unit[cells.placed], cells.state[cells.placed]
    weight, mean = weight[cells.placed], mean[cells.placed]
    total = (np.bincount(unit, weight) + prior)[unit]
    right -= np.bincount(state, weight * np.bincount(unit, weight * mean)[unit] / total, states)
    diagonal -= np.bincount(state, weight * weight / total, states)
    one, other = cells.pairs
    precision = cells.blocks.matrix(diagonal, state[one], state[other], -weight[one] * weight[other] / total[one])
    return precision.solve(right), precision
