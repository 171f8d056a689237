"""What the load of each partition is expected to be, made of the batches that were read anyway. Pure.

A query's batches are cut into slots of as many batches as the model averages, so that the last slot is what the model
holds without a forecast, apart from how long the query has been silent since. A slot's load is each partition's rows
per second (busy seconds per second where no rows are told): where a partition runs, or what loading it took, changes
neither. Busy seconds and rows of the model are then multiplied by what is expected over what is.

Nothing is remembered: after a change of leaders the same batches in Redis give the same forecast.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rechannel.daemon.model import query_model
from rechannel.policies.analysis.forecast import Forecast, Method, Rules, look_ahead, slots_ahead
from rechannel.policies.model.arrays import FloatArray
from rechannel.policies.model.streams import Stream, StreamLike
from rechannel.policies.model.workload import Stage, Workload
from rechannel.wire.measurements import BatchReport
from rechannel.wire.printable import count

MOST_SLOTS = 24  # older ones say little about the next, and 100,000 partitions are to be told in 50 ms
FEWEST_SLOTS = 14  # with fewer there are too few comparisons
_SHORTEST = 1e-3  # seconds of a slot

_RULES = Rules()


@dataclass(frozen=True, eq=False)
class StageForecast:
    """What is expected of one placeable stage. ``name`` is for people; ``seconds`` is how far it looks ahead.

    ``outlook`` is None while there are fewer than `FEWEST_SLOTS` slots; ``factors`` is what is expected over what is,
    for each partition.
    """

    key: str
    name: str
    slots: int
    seconds: float
    outlook: Forecast | None
    factors: FloatArray

    @property
    def used(self) -> int:
        """How many partitions are expected to have another load than their last one."""
        return self.outlook.used if self.outlook is not None else 0

    @property
    def error(self) -> float | None:
        """Mean absolute error over the last value's, all partitions together; None where nothing was compared."""
        known = self.outlook is not None and math.isfinite(self.outlook.pooled)
        return self.outlook.pooled if self.outlook is not None and known else None

    def sentence(self) -> str:
        """Say what is expected, and on what grounds."""
        if self.outlook is None:
            return f"{self.name}: the last value stands; {self.slots} of {FEWEST_SLOTS} slots are known"
        compared = f"in {count(self.outlook.comparisons, 'comparison')}"
        if not self.used:
            if self.error is None:
                return f"{self.name}: the last value stands; it was never wrong {compared}"
            return (
                f"{self.name}: the last value stands; a forecast's error is {self.error:.2f} times its own {compared}"
            )
        counts = [(int((self.outlook.method == way).sum()), way.name.lower()) for way in (Method.TREND, Method.SEASON)]
        ways = " and ".join(f"{count} by {way}" for count, way in counts if count)
        chosen = float(np.median(self.outlook.error[self.outlook.method > 0]))
        return (
            f"{self.name}: of {len(self.outlook.values)} partitions {ways}, {self.seconds:.0f} s ahead; "
            f"their error is {chosen:.2f} times the last value's {compared}"
        )


def outlooks(
    stages: Sequence[Stage],
    named: Mapping[str, tuple[str, int, str]],
    group: Mapping[str, int],
    batches: Sequence[BatchReport],
    horizon: float,
) -> dict[str, StageForecast]:
    """Look ahead for every placeable stage.

    ``named``: stage key -> (query, number in the link's report, name for people); ``group``: query -> how many batches
    the model averages; ``horizon`` in seconds.
    """
    found: dict[str, StageForecast] = {}
    of_query: dict[str, list[list[BatchReport]]] = {}
    for stage in stages:
        if stage.key not in named:
            continue
        query, number, name = named[stage.key]
        if query not in of_query:
            of_query[query] = _slots(query, batches, group.get(query, 0))
        slots = of_query[query]
        if len(slots) < FEWEST_SLOTS:
            found[stage.key] = StageForecast(stage.key, name, len(slots), 0.0, None, np.ones(stage.n))
            continue
        spans = _spans(slots)
        length = float(np.median(spans))
        ahead = slots_ahead(len(slots), math.ceil(horizon / length))
        past = _loads(slots, number, stage.n) / spans[:, None]
        outlook = look_ahead(past, ahead, _RULES)
        factors = _factors(outlook, past[-1])
        found[stage.key] = StageForecast(stage.key, name, len(slots), ahead * length, outlook, factors)
    return found


def expected(workload: Workload, found: Mapping[str, StageForecast]) -> Workload:
    """Return the workload with the loads that are expected; the same one where nothing but last values are."""
    factors = {key: one.factors for key, one in found.items() if one.used}
    if not factors:
        return workload
    stages = tuple(
        replace(stage, busy=stage.busy * factors[stage.key], rows=stage.rows * factors[stage.key])
        if stage.key in factors
        else stage
        for stage in workload.stages
    )
    return Workload(stages, tuple(_grown(stream, factors) for stream in workload.streams))


def _grown(stream: StreamLike, factors: Mapping[str, FloatArray]) -> StreamLike:
    """More load of a partition is more that comes to it."""
    if not isinstance(stream, Stream) or stream.downstream not in factors:
        return stream
    return Stream(stream.upstream, stream.downstream, stream.volume * factors[stream.downstream])


def _slots(query: str, batches: Sequence[BatchReport], size: int) -> list[list[BatchReport]]:
    """The last batches of a query in slots of equal size, oldest first; all of them full."""
    if size < 1:
        return []
    known = {batch.batch: batch for batch in batches if batch.query == query and batch.stages}
    ordered = [known[number] for number in sorted(known)]
    count = min(len(ordered) // size, MOST_SLOTS)
    ordered = ordered[len(ordered) - count * size :]
    return [ordered[start : start + size] for start in range(0, len(ordered), size)]


def _spans(slots: Sequence[Sequence[BatchReport]]) -> FloatArray:
    """Seconds from the start of each slot to the start of the next; the last one's by the pace of its own batches.

    The model's period grows with a query's silence. Here that would be a fall of the last slot's load alone, which a
    forecast would not share: what is expected over what is would measure the silence.
    """
    gaps = np.diff([slot[0].start for slot in slots])
    own = [batch.start for batch in slots[-1]]
    pace = (own[-1] - own[0]) / (len(own) - 1) if len(own) > 1 else gaps[-1]
    spans: FloatArray = np.maximum(np.append(gaps, pace * len(own)), _SHORTEST)
    return spans


def _loads(slots: Sequence[Sequence[BatchReport]], number: int, partitions: int) -> FloatArray:
    """Rows of each slot and partition of a stage, or busy seconds where no rows are told; shape (slots, partitions)."""
    rows, busy = np.zeros((2, len(slots), partitions))
    for index, slot in enumerate(slots):
        for run in (run for batch in slot for run in batch.stages if run.stateful == number):
            for task in query_model.latest_tasks(run):
                if 0 <= task.partition < partitions:
                    rows[index, task.partition] += max(0, task.rows_in)
                    busy[index, task.partition] += query_model.busy_seconds(task)
    return rows if rows.any() else busy


def _factors(outlook: Forecast, last: FloatArray) -> FloatArray:
    """What is expected over what is; 1 where the last value stands, or is nothing: a row's cost is not known then."""
    told = (outlook.method != Method.LAST) & (last > 0)
    factors: FloatArray = np.divide(outlook.values, last, out=np.ones_like(last), where=told)
    np.minimum(factors, _RULES.most, out=factors)
    return factors
