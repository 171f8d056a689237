"""Load of the executors in the newest batches, without a model. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rechannel.daemon.model.task_columns import task_columns
from rechannel.wire.measurements import BatchReport
from rechannel.wire.messages import QueryState

_SHORTEST_PERIOD = 0.001  # seconds


@dataclass(frozen=True)
class NewestLoad:
    """Last batches of each query that can be moved, and the imbalance in the newest of each.

    ``batches``: oldest first; ``intervals``: query -> seconds from one trigger to the next, 0 for none; ``cores``: of
    each executor that may hold partitions; ``now``: seconds since the epoch.
    """

    batches: Mapping[str, Sequence[BatchReport]]
    intervals: Mapping[str, float]
    cores: Mapping[str, int]
    now: float

    @property
    def newest(self) -> dict[str, int]:
        """Number of the newest batch of each query."""
        return {query: batches[-1].batch for query, batches in self.batches.items()}

    def start_after(self, newest: Mapping[str, int]) -> float:
        """Return when the first other newest batch than these began, in seconds since the epoch."""
        new = [last[-1].start for query, last in self.batches.items() if newest.get(query) != last[-1].batch]
        return min(new, default=0.0)

    def count_since(self, start: float) -> int:
        """Return the least number of batches since then, of queries that began any."""
        counts = [sum(batch.start >= start for batch in batches) for batches in self.batches.values()]
        return min(filter(None, counts), default=0)

    def imbalance(self) -> float:
        """Return the utilization of the busiest executor over the mean of all, 1 without load.

        Tasks without state run wherever a core is free: they count as spread evenly.
        """
        index = {name: number for number, name in enumerate(self.cores)}
        busy, anywhere = np.zeros(len(index)), 0.0
        for query, batches in self.batches.items():
            newest = batches[-1]
            period = max(newest.seconds, self.intervals[query], self.now - newest.end, _SHORTEST_PERIOD)
            for run in newest.stages:
                tasks = task_columns(run)
                if run.stateful_stage < 0:
                    anywhere += float(tasks.slot.sum()) / period
                    continue
                at = tasks.executors_in(index)
                busy += np.bincount(at[at >= 0], tasks.slot[at >= 0], len(index)) / period
        each = np.array([*self.cores.values()], dtype=float)
        shares = busy / each + anywhere / max(1.0, float(each.sum()))
        mean = float(shares.mean()) if len(shares) else 0.0
        return float(shares.max()) / mean if mean > 0 else 1.0


def newest_load(
    queries: Sequence[QueryState], batches: Mapping[str, Sequence[BatchReport]], cores: Mapping[str, int], now: float
) -> NewestLoad:
    """Return the load of the newest batches of queries that can be moved; arguments as of `NewestLoad`."""
    movable = [query for query in queries if query.active and not query.problem and batches.get(query.query)]
    return NewestLoad(
        {query.query: batches[query.query] for query in movable},
        {query.query: query.interval for query in movable},
        cores,
        now,
    )
