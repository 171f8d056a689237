"""Work of each partition, estimated from its rows and its past, with its error.

Rows are counted exactly, while the seconds of single tasks are noisy. So seconds are fitted to rows over the whole
stage first, and a partition deviates from that line only as far as its own tasks show it:

    log(seconds) = log(overhead + cost x rows) + deviation[partition] + noise
    deviation ~ normal(0, between), noise ~ normal(0, within)

``within`` and ``between`` are the components of variance of the stage (method of moments), and the estimated deviation
is its posterior mean (empirical Bayes; Efron and Morris 1975): the mean of the partition's own residuals, shrunk by
``between / (between + within / tasks)``. What is optimized on such estimates is not a selection of the luckiest tasks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rechannel.policies.analysis.service_rate import fit_lines
from rechannel.policies.model.arrays import FloatArray, IntArray, check_lengths

__all__ = ["FittedWork", "TaskSamples", "fit_work"]

_LEAST_NOISE = 0.02
_PRIOR_NOISE = 0.3  # standard deviation that counts where a stage has a single task a partition
_PRIOR_SHARE = 0.3  # standard deviation of the row share before anything was measured
_SHORTEST = 1e-4  # seconds; shorter tasks are clock ticks


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

    ``log_error`` (n,) is the standard error of the logarithm of ``seconds``; ``noise`` the standard deviation of the
    logarithm of a single task's seconds; ``row_share`` the share of the stage's work that is proportional to its rows.
    """

    seconds: FloatArray
    log_error: FloatArray
    noise: float
    row_share: float = 1.0


def fit_work(samples: TaskSamples, rows: FloatArray, mean: FloatArray) -> FittedWork:
    """Estimate the work of each partition of a stage in its next batches.

    Parameters
    ----------
    samples
        Tasks of the last batches.
    rows
        Rows of each partition in the batches to predict, (n,).
    mean
        Mean seconds of each partition in the newest batches, (n,): the answer where nothing was sampled.
    """
    size = len(rows)
    valid = (samples.partition >= 0) & (samples.partition < size) & (samples.seconds > _SHORTEST)
    partition, seconds = samples.partition[valid], samples.seconds[valid]
    if not len(seconds):
        return FittedWork(mean, np.full(size, _PRIOR_NOISE), _PRIOR_NOISE)
    sampled_rows = np.maximum(samples.rows[valid], 0.0)
    overhead, slope, least = (float(it[0]) for it in fit_lines(np.zeros_like(partition), sampled_rows, seconds))
    residual = np.log(seconds / np.maximum(overhead + slope * sampled_rows, least))
    count = np.bincount(partition, minlength=size)
    own = np.bincount(partition, residual, size) / np.maximum(count, 1)
    level = float(residual.mean())
    within, between = _components(residual, own, level, partition, count)
    shrink = between / np.maximum(between + within / np.maximum(count, 1), 1e-12)
    deviation = level + np.where(count > 0, shrink * (own - level), 0.0)
    log_error = np.sqrt(np.where(count > 0, shrink * within / np.maximum(count, 1), between))
    expected = np.maximum(overhead + slope * rows, least) * np.exp(deviation + within / 2)
    idle = (rows <= 0) & (count == 0)
    share = _row_share(overhead, slope, sampled_rows, residual)
    return FittedWork(np.where(idle, mean, expected), log_error, max(_LEAST_NOISE, within**0.5), share)


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


def _components(
    residual: FloatArray, own: FloatArray, level: float, partition: IntArray, count: IntArray
) -> tuple[float, float]:
    """Return the variance of tasks within a partition, and that between partitions."""
    sampled = count > 0
    free = len(residual) - int(sampled.sum())
    within = float(((residual - own[partition]) ** 2).sum()) / free if free > 0 else _PRIOR_NOISE**2
    partitions = int(sampled.sum())
    if partitions < 2:
        return within, 0.0
    spread = float((count[sampled] * (own[sampled] - level) ** 2).sum()) / (partitions - 1)
    usual = (len(residual) - float((count**2).sum()) / len(residual)) / (partitions - 1)
    return within, max(0.0, (spread - within) / max(usual, 1e-12))
