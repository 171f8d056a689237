"""Usual batch of a query: its rows, and their growth with the period. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np

from rechannel.policies.prediction.growth import fit_growth
from rechannel.wire.measurements import BatchReport
from rechannel.wire.messages import Decision

SAME_LOAD = 0.2  # share by which the rows of compared batches may differ
_COMPARED_BATCHES = 32  # newest ones that growth is estimated from
_SHORTEST_PERIOD = 1e-3  # seconds
_USUAL_BATCHES = 20  # with input, over which the usual rows and period are taken


@dataclass(frozen=True)
class UsualBatch:
    """Usual batch of a query.

    ``rows`` of a batch; ``period``: seconds from the start of the batch before to its start, 0 if unknown; ``growth``:
    share of the rows that is proportional to the period, from 0 to 1; ``fixed_rows``: whether they certainly do not
    follow it.
    """

    rows: float
    period: float = 0.0
    growth: float = 0.0
    fixed_rows: bool = False


def is_same_load(load: UsualBatch, before: UsualBatch, tolerance: float = SAME_LOAD) -> bool:
    """Whether the rows of a batch are as many as the load before would give, or nearly.

    ``tolerance``: share of these by which they may differ.

    Rows that come by time would be more or fewer, by the periods then and now; others would be the same. So rows a
    second are compared where a source delivers by time, rows a batch where batches are fixed. A batch that became
    shorter is no other load in either case.
    """
    growth = min(1.0, max(0.0, load.growth, before.growth))
    ratio = load.period / before.period if min(load.period, before.period) >= _SHORTEST_PERIOD else 1.0
    expected = before.rows * (1.0 - growth + growth * ratio)
    return abs(load.rows - expected) <= tolerance * max(expected, 1.0)


def measure_usual_batch(query: str, batches: Iterable[BatchReport], among: Collection[int] | None = None) -> UsualBatch:
    """Return the usual batch of a query: medians, and the growth of its rows.

    ``batches``: also those of other queries, in any order. A batch whose predecessor is not among them has no period.
    Batches without input count as predecessors only. ``among``: numbers of the batches that the medians are taken over;
    the last twenty with input if not given.
    """
    by_number = {batch.batch: batch for batch in batches if batch.query == query}
    with_input = [by_number[number] for number in sorted(by_number) if by_number[number].input_rows > 0]
    periods = {
        it.batch: it.start - by_number[it.batch - 1].start
        for it in with_input
        if it.batch - 1 in by_number and it.start > by_number[it.batch - 1].start
    }
    usual = [it for it in with_input if it.batch in among] if among is not None else with_input[-_USUAL_BATCHES:]
    compared = [it for it in with_input if it.batch in periods][-_COMPARED_BATCHES:]
    growth = fit_growth(
        np.array([periods[it.batch] for it in compared]), np.array([float(it.input_rows) for it in compared])
    )
    return UsualBatch(
        rows=_median([float(it.input_rows) for it in usual]),
        period=_median([periods[it.batch] for it in usual if it.batch in periods]),
        growth=growth.share,
        fixed_rows=growth.fixed_rows,
    )


def usual_batches(decision: Decision) -> dict[str, UsualBatch]:
    """Return query -> its usual batch before a decision, of the queries that it moves."""
    cost = decision.migration_cost
    if cost is None:
        return {}
    periods = cost.recent_periods
    return {
        query: UsualBatch(rows, *periods.get(query, (0.0, 0.0))) for query, (_, rows) in cost.recent_batches.items()
    }


def _median(values: list[float]) -> float:
    return float(statistics.median(values)) if values else 0.0
