"""Flow shop of the migration literature: steps are transferred, processed and packed.

While one step is processed the next one is transferred: a flow shop of three machines with unlimited room between them.
Transfers differ from step to step, processing and packing do not. As Spark loads state inside the batch, the product
has no such stages; its costs are in :mod:`rechannel.migration.plan.cost`.

Source: the pipelined migration scheduling work (Souravlas and others). Its formula of the total time is lost;
:func:`upper_bound` is the reading that fits its text (k steps and mu migrations, each bounded by the longest transfer),
and :func:`finish_times` is exact. Migrations are further transfers behind the last step, each as long as the longest
step and a checkpoint.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rechannel.policies.model.arrays import FloatArray, IntArray

__all__ = [
    "FinishTimes",
    "closed_form",
    "finish_times",
    "makespan",
    "sequential",
    "shortest_first",
    "transfer_seconds",
    "upper_bound",
    "with_migrations",
]


@dataclass(frozen=True, eq=False)
class FinishTimes:
    """Seconds until each of k steps is transferred, processed and packed, (k,) each."""

    transferred: FloatArray
    processed: FloatArray
    packed: FloatArray

    @property
    def makespan(self) -> float:
        """Seconds until everything is done, 0 where there is nothing to do."""
        return float(self.packed[-1]) if len(self.packed) else 0.0


def transfer_seconds(
    largest: FloatArray, bytes_per_task: float, bytes_per_second: float, latency: float = 0.0
) -> FloatArray:
    """Seconds of each step's transfer, (k,), from its ``largest`` message in tasks.

    ``latency`` in seconds is paid once a step. Raises ValueError for a figure that is negative or not finite, and
    for ``bytes_per_second`` that is not above zero.
    """
    per_task = _positive("bytes_per_task", bytes_per_task)
    if not bytes_per_second > 0:
        raise ValueError(f"bytes_per_second: must be above zero, got {bytes_per_second}")
    seconds: FloatArray = _positive("latency", latency) + _times("largest", largest) * per_task / bytes_per_second
    return seconds


def with_migrations(transfers: FloatArray, migrations: int, checkpoint: float = 0.0) -> FloatArray:
    """The transfers of all steps and of ``migrations`` behind them, shape (k + migrations,).

    A migration is a transfer as long as the longest step and ``checkpoint`` seconds.
    """
    transfers, checkpoint = _times("transfers", transfers), _positive("checkpoint", checkpoint)
    if migrations < 0:
        raise ValueError(f"migrations: must not be negative, got {migrations}")
    return np.concatenate([transfers, np.full(migrations, transfers.max(initial=0.0) + checkpoint)])


def finish_times(transfers: FloatArray, processing: float, packing: float) -> FinishTimes:
    """When each step leaves each stage, exactly.

    ``transfers`` is seconds of each step, (k,), in the order they are sent; ``processing`` and ``packing`` are seconds
    of every step. Raises ValueError for a figure that is negative or not finite.
    """
    transfers = _times("transfers", transfers)
    processing, packing = _positive("processing", processing), _positive("packing", packing)
    transferred = np.cumsum(transfers)
    processed, packed = np.zeros(len(transfers)), np.zeros(len(transfers))
    free = done = 0.0  # when processing and packing have finished the step before
    for step, arrived in enumerate(transferred.tolist()):
        free = max(arrived, free) + processing
        done = max(free, done) + packing
        processed[step], packed[step] = free, done
    return FinishTimes(transferred, processed, packed)


def makespan(
    transfers: FloatArray, processing: float, packing: float, *, migrations: int = 0, checkpoint: float = 0.0
) -> float:
    """Seconds until the last step, migrations included, has passed all three stages."""
    return finish_times(with_migrations(transfers, migrations, checkpoint), processing, packing).makespan


def closed_form(transfers: FloatArray, processing: float, packing: float) -> float:
    """Makespan by the worst step after which the slower stage never waits again."""
    transfers = _times("transfers", transfers)
    slower = max(_positive("processing", processing), _positive("packing", packing))
    if not len(transfers):
        return 0.0
    left = np.arange(len(transfers), 0, -1)
    return min(processing, packing) + float((np.cumsum(transfers) + left * slower).max())


def upper_bound(
    transfers: FloatArray, processing: float, packing: float, *, migrations: int = 0, checkpoint: float = 0.0
) -> float:
    """The source's estimate of the makespan, every transfer taken as long as the longest.

    No makespan is longer as long as no stage is slower than the longest transfer; where one is, this is no bound.
    """
    transfers = _times("transfers", transfers)
    longest = float(transfers.max(initial=0.0))
    rest = len(with_migrations(transfers, migrations, checkpoint)) - len(transfers)
    stages = _positive("processing", processing) + _positive("packing", packing)
    return len(transfers) * longest + stages + rest * (longest + checkpoint)


def sequential(transfers: FloatArray, processing: float, packing: float) -> float:
    """Seconds that the steps take one after the other, nothing overlapping."""
    transfers = _times("transfers", transfers)
    stages = _positive("processing", processing) + _positive("packing", packing)
    return float(transfers.sum()) + len(transfers) * stages


def shortest_first(transfers: FloatArray) -> IntArray:
    """Order of the steps with the shortest makespan: shortest transfer first, (k,).

    No order has a shorter makespan, since processing and packing take every step equally long: whatever step is
    sent first, each later stage gets its j-th step no sooner than the j shortest transfers take.
    """
    return np.argsort(_times("transfers", transfers), kind="stable").astype(np.int64)


def _times(name: str, values: FloatArray) -> FloatArray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1:
        raise ValueError(f"{name}: expected 1 dimension, got {array.ndim}")
    if not np.isfinite(array).all() or (array < 0).any():
        raise ValueError(f"{name}: must be finite and not negative")
    return array


def _positive(name: str, value: float) -> float:
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"{name}: must be finite and not negative, got {value}")
    return float(value)
