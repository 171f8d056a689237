"""Load of the executors in the newest batches, without a model. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rechannel.daemon.model.query_model import batch_period
from rechannel.daemon.model.task_columns import task_columns
from rechannel.wire.measurements import BatchReport
from rechannel.wire.messages import QueryState

_PERIODS = 4  # batches, of which the time from one to the next is taken


@dataclass(frozen=True)
class NewestLoad:
    """Last batches of each active query, and the imbalance in the newest of each.

    ``queries``: active ones that have batches; ``batches``: query -> oldest first; ``cores``: of each executor that may
    hold partitions; ``now``: seconds since the epoch.
    """

    queries: Sequence[QueryState]
    batches: Mapping[str, Sequence[BatchReport]]
    cores: Mapping[str, int]
    now: float

    @property
    def newest(self) -> dict[str, int]:
        """Number of the newest batch of each query."""
        return {query.query: self.batches[query.query][-1].batch for query in self.queries}

    def start_after(self, newest: Mapping[str, int]) -> float:
        """Return when the first other newest batch than these began; infinity without one."""
        last = [self.batches[query.query][-1] for query in self.queries]
        return min((batch.start for batch in last if newest.get(batch.query) != batch.batch), default=math.inf)

    def tells(self, since: float, need: int, patience: float) -> bool:
        """Whether queries had enough batches since then, in seconds since the epoch.

        Those are all that can be moved and began one, or after some patience in seconds any one of them.
        """
        movable = [self.batches[query.query] for query in self.queries if not query.problem]
        counts = [count for batches in movable if (count := sum(batch.start >= since for batch in batches))]
        enough = [count >= need for count in counts]
        return any(enough) and (all(enough) or self.now - since >= patience)

    def imbalance(self) -> float:
        """Return the utilization of the busiest executor over the mean of all, 1 without load.

        Tasks without state run wherever a core is free: they count as spread evenly.
        """
        busy, anywhere = dict.fromkeys(self.cores, 0.0), 0.0
        for query in self.queries:
            batches = self.batches[query.query]
            period = max(batch_period(batches[-_PERIODS:], self.now), query.interval)
            for run in batches[-1].stages:
                seconds = task_columns(run).slot_by_executor()
                if run.stateful_stage < 0:
                    anywhere += sum(seconds.values()) / period
                    continue
                for name in busy.keys() & seconds.keys():
                    busy[name] += seconds[name] / period
        cores = np.array([*self.cores.values()], dtype=float)
        shares = np.array([*busy.values()]) / cores + anywhere / max(1.0, float(cores.sum()))
        mean = float(shares.mean()) if len(shares) else 0.0
        return float(shares.max()) / mean if mean > 0 else 1.0


def measure_newest_load(
    queries: Iterable[QueryState], batches: Mapping[str, Sequence[BatchReport]], cores: Mapping[str, int], now: float
) -> NewestLoad:
    """Return the load of the newest batches of active queries; arguments: see `NewestLoad`."""
    return NewestLoad([query for query in queries if query.active and batches.get(query.query)], batches, cores, now)
