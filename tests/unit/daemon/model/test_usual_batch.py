from __future__ import annotations

import pytest

from rechannel.daemon.model.usual_batch import UsualBatch, is_same_load, measure_usual_batch
from rechannel.wire.measurements import BatchReport

FIXED, BY_TIME = 0.0, 1.0


@pytest.mark.parametrize(
    ("growth", "rows", "period", "same"),
    [
        (FIXED, 450, 10.0, True),
        (FIXED, 400, 5.0, True),
        (FIXED, 600, 15.0, False),
        (BY_TIME, 200, 5.0, True),
        (BY_TIME, 600, 15.0, True),
        (BY_TIME, 400, 5.0, False),
        (BY_TIME, 600, 10.0, False),
        (0.5, 300, 5.0, True),
        (0.5, 200, 5.0, False),
    ],
)
def test_rows_a_second_compare_where_they_come_by_time(growth: float, rows: float, period: float, same: bool) -> None:
    now, before = UsualBatch(rows, period, growth), UsualBatch(400, 10.0)
    assert is_same_load(now, before) is same
    # What was certain at either time counts.
    assert is_same_load(UsualBatch(rows, period), UsualBatch(400, 10.0, growth)) is same


def test_without_a_period_rows_a_batch_compare() -> None:
    assert is_same_load(UsualBatch(450), UsualBatch(400, 10.0, BY_TIME))
    assert not is_same_load(UsualBatch(600, 10.0, BY_TIME), UsualBatch(400))
    assert is_same_load(UsualBatch(0), UsualBatch(0))


@pytest.mark.parametrize("strange", [-1e30, -1.0, 0.0, 1e-300, 1e30])
def test_figures_out_of_bounds_raise_nothing(strange: float) -> None:
    for load in (UsualBatch(strange, 1.0, 1.0), UsualBatch(1.0, strange, 1.0), UsualBatch(1.0, 1.0, strange)):
        assert is_same_load(load, UsualBatch(1.0, 1.0)) in (True, False)
        assert is_same_load(UsualBatch(1.0, 1.0), load) in (True, False)


def reports(starts: list[float], rows: list[int], first: int = 1, query: str = "q") -> list[BatchReport]:
    return [
        BatchReport(query=query, batch=number, start=start, end=start + 1, input_rows=count, stages=[])
        for number, (start, count) in enumerate(zip(starts, rows, strict=True), first)
    ]


def test_a_batch_has_the_period_since_its_predecessor() -> None:
    # Batch 3 had no input; batch 5 was not reported.
    batches = [*reports([100, 110, 119, 121], [10, 20, 0, 30]), *reports([150, 158], [40, 50], first=6)]
    other = reports([0, 1, 2], [1, 1, 1], query="r")
    assert measure_usual_batch("q", [*other, *reversed(batches)]) == UsualBatch(30, 8.0)
    assert measure_usual_batch("q", batches, {1, 2, 4}) == UsualBatch(20, 6.0)
    assert measure_usual_batch("q", other) == UsualBatch(0.0)


def test_growth_is_that_of_the_changes_from_batch_to_batch() -> None:
    periods = [10, 8, 9, 12, 7, 10, 11, 8, 9, 10, 12, 8]
    starts = [1000.0]
    for period in periods:
        starts.append(starts[-1] + period)
    by_time, fixed = [100 * period for period in (10, *periods)], [1000] * len(starts)
    assert measure_usual_batch("q", reports(starts, by_time)).growth == pytest.approx(1.0, abs=0.02)
    assert measure_usual_batch("q", reports(starts, fixed)).growth == 0.0
