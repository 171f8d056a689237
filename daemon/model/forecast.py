"""Expected load of each partition, from the batches that were read anyway. Pure.

The batches of a query are cut into slots of as many batches as the model averages. The last slot is then what the model
holds without a forecast, apart from the query's silence since. The load of a slot is each partition's rows per second,
or busy seconds per second where no rows are reported: neither where a partition runs nor what loading it took changes
it. Busy seconds and rows of the model are then multiplied by the expected load over the last one.

No state is kept: after a change of leaders the same batches in Redis give the same forecast.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rechannel.daemon.model.application_messages import batches_of
from rechannel.daemon.model.task_columns import task_columns
from rechannel.policies.analysis.forecast import LARGEST_GROWTH, Forecast, Method, look_ahead, slots_ahead
from rechannel.policies.model.arrays import FloatArray
from rechannel.policies.model.shuffles import DenseShuffle, Shuffle
from rechannel.policies.model.workload import Stage, Workload
from rechannel.wire.measurements import BatchReport
from rechannel.wire.printable import with_noun

MAX_SLOTS = 24  # slots that a forecast is made from; beyond: older ones do not count
MIN_SLOTS = 14  # with fewer there are too few comparisons
_SHORTEST_SLOT = 1e-3  # seconds of a slot


@dataclass(frozen=True, eq=False)
class StageForecast:
    """Expected load of one placeable stage.

    ``name`` is for people; ``seconds`` is how far the forecast looks ahead. ``forecast`` is None while there are fewer
    than `MIN_SLOTS` slots; ``factors`` is the expected load of each partition over its last one.
    """

    key: str
    name: str
    slots: int
    seconds: float
    forecast: Forecast | None
    factors: FloatArray

    @property
    def used(self) -> int:
        """Number of partitions whose expected load is not their last one."""
        return self.forecast.used if self.forecast is not None else 0

    @property
    def error(self) -> float | None:
        """Mean absolute error over the last value's, of all partitions; None if not compared."""
        if self.forecast is None or not math.isfinite(self.forecast.pooled):
            return None
        return self.forecast.pooled

    def sentence(self) -> str:
        """Describe the forecast and its error."""
        if self.forecast is None:
            return f"{self.name}: the last value is used; {self.slots} of {MIN_SLOTS} slots are known"
        compared = f"in {with_noun(self.forecast.comparisons, 'comparison')}"
        if not self.used and self.error is None:
            return f"{self.name}: the last value is used; it was never wrong {compared}"
        if not self.used:
            worse = f"forecasts would have been wrong by {self.error:.2f} times as much"
            return f"{self.name}: the last value is used; {worse} {compared}"
        counts = [
            (int((self.forecast.method == method).sum()), method.name.lower())
            for method in (Method.TREND, Method.SEASON)
        ]
        methods = " and ".join(f"{number} by {method}" for number, method in counts if number)
        error = float(np.median(self.forecast.error[self.forecast.method > 0]))
        return (
            f"{self.name}: of {len(self.forecast.values)} partitions {methods}, {self.seconds:.0f} s ahead; "
            f"their error is {error:.2f} times the last value's {compared}"
        )


def forecast_stages(
    stages: Sequence[Stage],
    names: Mapping[str, tuple[str, int, str]],
    averaged: Mapping[str, int],
    batches: Mapping[str, Sequence[BatchReport]],
    horizon: float,
) -> dict[str, StageForecast]:
    """Forecast the load of every placeable stage.

    Floating ones are left out. ``names``: stage key -> (query, number in the link's report, name for people);
    ``averaged``: query -> number of batches that the model averages, the length of a slot; ``batches``: those of each
    query, in any order; ``horizon``: seconds.
    """
    forecasts: dict[str, StageForecast] = {}
    slots_of: dict[str, list[list[BatchReport]]] = {}
    for stage in stages:
        if stage.key not in names:
            continue
        query, number, name = names[stage.key]
        if query not in slots_of:
            slots_of[query] = _slots(query, batches.get(query, ()), averaged.get(query, 0))
        slots = slots_of[query]
        if len(slots) < MIN_SLOTS:
            forecasts[stage.key] = StageForecast(stage.key, name, len(slots), 0.0, None, np.ones(stage.n))
            continue
        spans = _spans(slots)
        length = float(np.median(spans))
        ahead = slots_ahead(len(slots), math.ceil(horizon / length))
        past = _loads(slots, number, stage.n) / spans[:, None]
        forecast = look_ahead(past, ahead)
        factors = _factors(forecast, past[-1])
        forecasts[stage.key] = StageForecast(stage.key, name, len(slots), ahead * length, forecast, factors)
    return forecasts


def apply_forecasts(workload: Workload, forecasts: Mapping[str, StageForecast]) -> Workload:
    """Return the workload with the expected loads; the same object if none differs."""
    factors = {key: forecast.factors for key, forecast in forecasts.items() if forecast.used}
    if not factors:
        return workload
    stages = tuple(
        replace(stage, busy=stage.busy * factors[stage.key], rows=stage.rows * factors[stage.key])
        if stage.key in factors
        else stage
        for stage in workload.stages
    )
    return Workload(stages, tuple(_scale_shuffle(shuffle, factors) for shuffle in workload.shuffles))


def _scale_shuffle(shuffle: Shuffle, factors: Mapping[str, FloatArray]) -> Shuffle:
    """Scale what comes to each partition by as much as its load."""
    if not isinstance(shuffle, DenseShuffle) or shuffle.downstream not in factors:
        return shuffle
    factor = factors[shuffle.downstream].astype(shuffle.volume.dtype)
    return replace(shuffle, volume=shuffle.volume * factor)


def _slots(query: str, batches: Sequence[BatchReport], size: int) -> list[list[BatchReport]]:
    """Cut the last batches of a query into full slots of ``size`` batches, oldest first."""
    if size < 1:
        return []
    ordered = batches_of(batches, query)
    slots = min(len(ordered) // size, MAX_SLOTS)
    ordered = ordered[len(ordered) - slots * size :]
    return [ordered[start : start + size] for start in range(0, len(ordered), size)]


def _spans(slots: Sequence[Sequence[BatchReport]]) -> FloatArray:
    """Return the seconds from the start of each slot to the start of the next.

    The last one's follow from the pace of its own batches. The model's period grows with a query's silence; here that
    would lower the last slot's load alone, and the factors would measure the silence.
    """
    gaps = np.diff([slot[0].start for slot in slots])
    starts = [batch.start for batch in slots[-1]]
    pace = (starts[-1] - starts[0]) / (len(starts) - 1) if len(starts) > 1 else gaps[-1]
    spans: FloatArray = np.maximum(np.append(gaps, pace * len(starts)), _SHORTEST_SLOT)
    return spans


def _loads(slots: Sequence[Sequence[BatchReport]], number: int, partitions: int) -> FloatArray:
    """Return a stage's rows, or busy seconds if none are reported, (slots, partitions)."""
    rows, busy = np.zeros((2, len(slots), partitions))
    for index, slot in enumerate(slots):
        for run in (run for batch in slot for run in batch.stages if run.stateful_stage == number):
            tasks = task_columns(run)
            inside = tasks.partition < partitions
            rows[index, tasks.partition[inside]] += tasks.rows[inside]
            busy[index, tasks.partition[inside]] += tasks.busy[inside]
    return rows if rows.any() else busy


def _factors(forecast: Forecast, last: FloatArray) -> FloatArray:
    """Return the expected load over the last one; 1 where the last value stands or is 0."""
    changed = (forecast.method != Method.LAST) & (last > 0)
    factors: FloatArray = np.divide(forecast.values, last, out=np.ones_like(last), where=changed)
    np.minimum(factors, LARGEST_GROWTH, out=factors)
    return factors
