"""Flow shop of the migration literature: steps are transferred, processed and packed.

While one step is processed the next one is transferred: a flow shop of three machines with unlimited room between them
(pipelined migration scheduling, Souravlas and others). Transfers differ from step to step, processing and packing do
not. As Spark loads state inside the batch, the product has no such stages; its costs are in
:mod:`rechannel.migration.plan.cost`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rechannel.policies.model.arrays import FloatArray


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


def finish_times(transfers: FloatArray, processing: float, packing: float) -> FinishTimes:
    """Return the time at which each step leaves each stage.

    ``transfers`` is seconds of each step, (k,), in the order they are sent; ``processing`` and ``packing`` are seconds
    of every step. Raises ValueError for a figure that is negative or not finite.
    """
    for name, seconds in (("transfers", transfers), ("processing", processing), ("packing", packing)):
        if not np.isfinite(seconds).all() or np.less(seconds, 0).any():
            raise ValueError(f"{name}: must be finite and not negative")
    transferred = np.cumsum(transfers, dtype=np.float64)
    processed, packed = np.zeros(len(transferred)), np.zeros(len(transferred))
    free = done = 0.0  # when processing and packing have finished the step before
    for step, arrived in enumerate(transferred.tolist()):
        free = max(arrived, free) + processing
        done = max(free, done) + packing
        processed[step], packed[step] = free, done
    return FinishTimes(transferred, processed, packed)
