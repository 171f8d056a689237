"""Work of each partition, estimated from its rows and its past, with its error.

Rows are counted exactly, while the seconds of single tasks are noisy. So seconds are fitted to rows over the whole
stage first, and a partition deviates from that line only as far as its own tasks show it:

    log(seconds) = log(overhead + cost x rows) + deviation[partition] + noise
    deviation ~ normal(0, between), noise ~ normal(0, within[partition])

The estimated deviation is its posterior mean (empirical Bayes; Efron and Morris 1975): the mean of the partition's own
residuals, shrunk by ``between / (between + within / tasks)``. What is optimized on such estimates is not a selection of
the luckiest tasks. ``between`` is estimated by the method of moments (DerSimonian and Laird 1986), with its own
uncertainty. What is left of a partition's deviation after the shrinkage is as uncertain as the mean of all.

The noise of a task has a part in proportion to its work, and one of some milliseconds that every task has, long or
short (its way to the executor and back, a commit): ``within = share + (seconds / work)^2``. Both are fitted to the
variances of the partitions' own tasks. One noise for all would be that of the short tasks, and the long ones, which
decide how long a batch lasts, would seem far less certain than they are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rechannel.policies.analysis.service_rate import fit_lines, weighted_lines
from rechannel.policies.model.arrays import (
    BoolArray,
    FloatArray,
    IntArray,
    check_lengths,
    median_of_numbers,
    numbered,
)

_LEAST_NOISE = 0.02  # standard deviation of the logarithm of a task's seconds, and so of the next two
_PRIOR_NOISE = 0.3  # standard deviation that counts where a stage has a single task a partition
_PRIOR_FREEDOM = 10  # degrees of freedom that equal noise of all partitions counts for
_PRIOR_BETWEEN = 0.3  # standard deviation between partitions, where one of them was sampled
_LARGEST_NOISE = 1.0
_FAR_BELOW = -8.0  # standard deviations
_ROUNDS = 4  # of the fit of the noise
_PRIOR_SHARE = 0.3  # standard deviation of the row share before anything was measured
_SHORTEST = 1e-4  # seconds; shorter tasks are clock ticks
_OTHER_COST = 0.1  # logarithm of the least change of the work that tells of another kind of batch
_DEVIATION = 1.48 / math.sqrt(2)  # of normal noise, over the median difference of values that follow each other
_SURE = 3.0  # standard deviations by which a batch has to differ
_OTHER_PARTITION, _PARTITION_SURE = 0.2, 4.0  # the same of a single partition, of which there are many
_LEAST_CHANGE = 0.05  # of a batch's work: smaller changes of all partitions together do not count
_LEAST_STEPS = 3  # from one task of a partition to the next, which tell what is usual of it


@dataclass(frozen=True, eq=False)
class TaskSamples:
    """Observed tasks of one stage, one entry for each.

    ``seconds`` are those of a reference executor.
    """

    partition: IntArray
    seconds: FloatArray
    rows: FloatArray

    def __post_init__(self) -> None:
        check_lengths("samples: ", len(self.partition), seconds=self.seconds, rows=self.rows)


@dataclass(frozen=True, eq=False)
class FittedWork:
    """Expected seconds of each partition's task, (n,), and their uncertainty.

    ``log_error`` (n,) is the standard error of the logarithm of ``seconds``; ``noise`` (n,) the standard deviation of
    the logarithm of a single task's seconds; ``row_share`` the share of the stage's work that is proportional to its
    rows.
    """

    seconds: FloatArray
    log_error: FloatArray
    noise: FloatArray
    row_share: float = 1.0


def fit_stages(
    samples: Sequence[TaskSamples], rows: Sequence[FloatArray], mean: Sequence[FloatArray]
) -> list[FittedWork]:
    """Estimate the work of each partition of several stages in their next batches.

    Each stage is estimated on its own. ``rows``: of its partitions in the batches to predict, (n,); ``mean``: seconds
    of its partitions in the newest batches, (n,), the answer where nothing was sampled.
    """
    valid = [_valid(it, len(own)) for it, own in zip(samples, rows, strict=True)]
    fitted = [FittedWork(own, *np.full((2, len(own)), _PRIOR_NOISE)) for own in mean]
    sampled = [number for number, it in enumerate(valid) if len(it.seconds)]
    if sampled:
        stages = _Stages.of([valid[it] for it in sampled], [rows[it] for it in sampled], [mean[it] for it in sampled])
        for number, work in zip(sampled, _fit(stages), strict=True):
            fitted[number] = work
    return fitted


def _valid(samples: TaskSamples, size: int) -> TaskSamples:
    """Return the samples of partitions below ``size`` that last longer than a clock tick."""
    valid = (samples.partition >= 0) & (samples.partition < size) & (samples.seconds > _SHORTEST)
    return TaskSamples(samples.partition[valid], samples.seconds[valid], np.maximum(samples.rows[valid], 0.0))


@dataclass(frozen=True, eq=False)
class _Stages:
    """Sampled tasks (t,) and partitions (n,) of S stages, one stage after the other.

    ``stage`` and ``partition`` (t,): number of each task's stage, and of its partition among them all. ``stage_of``
    (n,): stage of each partition. ``tasks_of`` and ``partitions_of``: where each stage's are.
    """

    stage: IntArray
    partition: IntArray
    seconds: FloatArray
    sampled_rows: FloatArray
    stage_of: IntArray
    rows: FloatArray
    mean: FloatArray
    tasks_of: list[slice]
    partitions_of: list[slice]

    @classmethod
    def of(cls, samples: Sequence[TaskSamples], rows: Sequence[FloatArray], mean: Sequence[FloatArray]) -> _Stages:
        """Lay out the stages; each has a sampled task."""
        tasks, sizes = [len(it.seconds) for it in samples], [len(it) for it in rows]
        partitions_of = _slices(sizes)
        return cls(
            stage=np.repeat(np.arange(len(tasks)), tasks),
            partition=np.concatenate([it.partition + at.start for it, at in zip(samples, partitions_of, strict=True)]),
            seconds=np.concatenate([it.seconds for it in samples]),
            sampled_rows=np.concatenate([it.rows for it in samples]),
            stage_of=np.repeat(np.arange(len(sizes)), sizes),
            rows=np.concatenate(rows),
            mean=np.concatenate(mean),
            tasks_of=_slices(tasks),
            partitions_of=partitions_of,
        )


def _slices(sizes: Sequence[int]) -> list[slice]:
    return [slice(end - size, end) for end, size in zip(itertools.accumulate(sizes), sizes, strict=True)]


def _fit(stages: _Stages) -> list[FittedWork]:
    """Return the work of each stage."""
    stage, partition, of = stages.stage, stages.partition, stages.stage_of
    overhead, slope, least = fit_lines(stage, stages.sampled_rows, stages.seconds)
    line = overhead[stage] + slope[stage] * stages.sampled_rows
    residual = np.log(stages.seconds / np.maximum(line, least[stage]))
    count = np.bincount(partition, minlength=len(of))
    own = np.bincount(partition, residual, len(of)) / np.maximum(count, 1)
    usual = np.maximum(overhead[of] + slope[of] * stages.rows, least[of])
    within = _noise_variance(residual - own[partition], count, usual * np.exp(own), stages)
    error = within / np.maximum(count, 1)
    sampled = count > 0
    spreads = [_between(own[at][sampled[at]], error[at][sampled[at]]) for at in stages.partitions_of]
    level, between, of_level = np.array(spreads).T[:, of]
    shrink = np.where(sampled, between / (between + error), 0.0)
    deviation = level + shrink * (own - level)
    log_error = np.sqrt(np.where(sampled, shrink * error, between) + (1 - shrink) ** 2 * of_level)
    expected = usual * np.exp(deviation + within / 2)
    seconds, noise = np.where((stages.rows <= 0) & ~sampled, stages.mean, expected), np.sqrt(within)
    lines = zip(overhead.tolist(), slope.tolist(), stages.tasks_of, strict=True)
    shares = [_row_share(fixed, cost, stages.sampled_rows[at], residual[at]) for fixed, cost, at in lines]
    return [
        FittedWork(seconds[at], log_error[at], noise[at], share)
        for at, share in zip(stages.partitions_of, shares, strict=True)
    ]


def of_present_cost(seconds: FloatArray, rows: FloatArray, newest: int) -> BoolArray:
    """Mark the batches whose rows took about as long as those of the newest ones, (B,).

    The others tell of other work: rows that took longer for a while, or a crowded cluster. Averaged with the newest
    they explain neither, and it takes as many batches again until most are of one kind. Each partition is compared with
    itself: the work of other rows is between as much and in proportion, and what lies outside, in logarithms, is a
    change. The change of a batch is the median over its partitions, so that one slow or cold executor of several makes
    none. It counts beyond a tenth and three standard deviations of such a difference. The deviation is that of batches
    that follow each other (von Neumann 1941), by the median of their differences: a change is one of these. It is the
    lower one of the work and of the work a row, since other rows add to it. With normal noise one batch in four hundred
    is left out that should count.

    ``seconds`` of work and ``rows`` of each partition in each batch, oldest first, (B, P), NaN without a task;
    ``newest``: number of the last batches, which all count.
    """
    compared = ~np.isnan(seconds[-newest:]).all(axis=0)
    if not compared.any():
        return np.ones(len(seconds), dtype=np.bool_)
    work, read = np.log(np.maximum(seconds[:, compared], _SHORTEST)), np.log(np.maximum(rows[:, compared], 1.0))
    same: BoolArray = np.asarray(~np.isnan(work).all(axis=1))
    more, larger = (it[same] - median_of_numbers(it[-newest:], 0) for it in (work, read))
    change = median_of_numbers(_beyond_rows(more, larger), 1)
    steps = [np.abs(np.diff(median_of_numbers(it, 1))) for it in (more, more - larger)]
    deviation = _DEVIATION * min(float(np.median(it)) if len(it) else 0.0 for it in steps)
    same[same] = np.abs(change) <= max(_OTHER_COST, _SURE * deviation * math.sqrt(1 + 1 / newest))
    same[-newest:] = True
    return same


def changed_partitions(seconds: FloatArray, rows: FloatArray, newest: int) -> IntArray:
    """Return the partitions whose rows take longer, or less long, since the newest batches.

    The older tasks of such a partition tell nothing of its present work. A slow executor with few partitions shows as
    such changes at first, since heavy partitions look the same. Each of the newest tasks has to differ from the median
    of the older ones, all in one direction, beyond what other rows explain. Arguments as in `of_present_cost`.
    """
    work, read = np.log(np.maximum(seconds, _SHORTEST)), np.log(np.maximum(rows, 1.0))
    steps_before = (~np.isnan(np.diff(work[:-newest], axis=0))).sum(axis=0)
    compared = np.flatnonzero((steps_before >= _LEAST_STEPS) & ~np.isnan(work[-newest:]).any(axis=0))
    if not len(compared):
        return compared
    usual, usual_rows = (median_of_numbers(it[:-newest, compared], 0) for it in (work, read))
    more, larger = work[:, compared] - usual, read[:, compared] - usual_rows
    change = _beyond_rows(more, larger)[-newest:]
    steps = [median_of_numbers(np.abs(np.diff(it[:-newest], axis=0)), 0) for it in (more, more - larger)]
    least = np.maximum(_OTHER_PARTITION, _PARTITION_SURE * _DEVIATION * np.minimum(*steps))
    sure = (change > least).all(axis=0) | (change < -least).all(axis=0)
    added = np.abs(np.exp(usual + np.median(change, axis=0)) - np.exp(usual))
    is_much = added[sure].sum() >= _LEAST_CHANGE * np.exp(usual).sum()
    return np.asarray(compared[sure & is_much])


def _beyond_rows(more: FloatArray, larger: FloatArray) -> FloatArray:
    """Return the part of changes of work that other rows do not explain, in logarithms.

    With other rows, work is between as much and in proportion.
    """
    return np.asarray(more - np.clip(more, np.minimum(larger, 0.0), np.maximum(larger, 0.0)))


def _row_share(overhead: float, slope: float, rows: FloatArray, residual: FloatArray) -> float:
    """Return the share of the work that is proportional to rows, by the line.

    The less certain the line, the nearer to 1.
    """
    usual = float(rows.mean())
    if usual <= 0 or overhead + slope * usual <= 0:
        return 1.0
    precision = len(rows) * float(rows.var()) / usual**2 / max(float(residual.var()), _LEAST_NOISE**2)
    certain = precision / (precision + 1 / _PRIOR_SHARE**2)
    return 1.0 - certain * overhead / (overhead + slope * usual)


def _noise_variance(residual: FloatArray, count: IntArray, work: FloatArray, stages: _Stages) -> FloatArray:
    """Return the variance of the logarithm of a task's seconds, of each partition, (n,).

    ``residual``: difference of each task from the mean of its partition, (t,); ``count`` and ``work``: tasks and
    expected seconds of each partition, (n,).
    """
    total = np.bincount(stages.partition, residual**2, len(count))
    freedom = np.maximum(count - 1, 0)
    free = np.array([freedom[at].sum() for at in stages.partitions_of])  # of each stage, (S,)
    repeated = (free > 0)[stages.stage_of]
    if not repeated.any():
        return np.full(len(count), _PRIOR_NOISE**2)
    sums = np.array([total[at].sum() for at in stages.partitions_of])
    pooled = (sums / np.maximum(free, 1))[stages.stage_of][repeated]
    stage, freedom, free = numbered(stages.stage_of[repeated]), freedom[repeated], free[free > 0]
    short = np.maximum(work[repeated], _SHORTEST) ** -2.0
    fitted, variance = pooled, total[repeated] / np.maximum(freedom, 1)
    for _ in range(_ROUNDS):
        # A variance is known the better, the smaller it is: weights are those of its own estimate's variance.
        weight = freedom / np.maximum(fitted, _LEAST_NOISE**2) ** 2
        share, seconds = weighted_lines(stage, weight, short, variance, len(free))
        fitted = share[stage] + seconds[stage] * short
    certain = (free / (free + _PRIOR_FREEDOM))[stage]
    result = np.full(len(count), _PRIOR_NOISE**2)
    result[repeated] = np.clip(certain * fitted + (1 - certain) * pooled, _LEAST_NOISE**2, _LARGEST_NOISE**2)
    return result


def _between(own: FloatArray, error: FloatArray) -> tuple[float, float, float]:
    """Return mean and variance of the partitions' deviations, and the variance of that mean.

    The variance is that beyond the deviations' errors, of which ``error`` is the variance, (n,). Its estimate by
    moments is uncertain itself, and negative as often as not where the deviations are small. It counts as what is
    expected of it: the mean of a normal distribution around it that is cut off at zero. As 0 it would make every
    partition alike for certain.
    """
    between = _PRIOR_BETWEEN**2
    if len(own) > 1:
        weight = 1.0 / error
        total = float(weight.sum())
        excess = float(weight @ (own - float(weight @ own) / total) ** 2) - (len(own) - 1)
        scale = total - float(weight @ weight) / total
        between = _mean_above_zero(excess / scale, math.sqrt(2 * (len(own) - 1)) / scale)
    weight = 1.0 / (error + between)
    total = float(weight.sum())
    return float(weight @ own) / total, between, 1.0 / total


def _mean_above_zero(mean: float, deviation: float) -> float:
    """Return the mean of that part of a normal distribution which is above zero."""
    least = mean / deviation
    if least < _FAR_BELOW:  # where the quotient of both has no digits left: its asymptote
        return -deviation / least
    density = math.exp(-least * least / 2) / math.sqrt(2 * math.pi)
    return mean + deviation * density / (math.erfc(-least / math.sqrt(2)) / 2)
