"""Rows that grow with the period: the estimate, the fixed point, and what is predicted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulation.engine import Costs, Simulation
from rechannel.policies.model.placement import Placement
from rechannel.policies.model.workload import Workload
from rechannel.policies.prediction.cycle import PlacedQueries, QueryTimings, batch_seconds
from rechannel.policies.prediction.gain import predict_changes
from rechannel.policies.prediction.growth import fit_growth, replay_grown, settle
from rechannel.policies.prediction.model import PredictionModel, QueryTiming, StageSpread
from rechannel.policies.prediction.replay import replay
from unit.policies.prediction.cases import drawn, model_of, stage

OVERHEAD = 0.3


# -- estimate --


def observed(growth: float, count: int, *, noise: float = 0.08, change: Callable[[int], float] = lambda _: 1.0):
    """Return periods and rows of a query back to back whose batch takes 1 s, rows exact to 1 %."""
    random, period = np.random.default_rng(3), 1.0
    periods, rows = [], []
    for number in range(count):
        share = (1 - growth + growth * period) * change(number) * random.normal(1, 0.01)
        periods.append(period)
        rows.append(1e4 * share)
        period = 0.2 + 0.8 * share * random.lognormal(0, noise)
    return np.array(periods), np.array(rows)


@pytest.mark.parametrize("growth", [0.0, 0.5, 1.0])
def test_growth_is_the_share_of_rows_that_follows_the_period(growth: float) -> None:
    assert fit_growth(*observed(growth, 32)).share == pytest.approx(growth, abs=0.1)


@pytest.mark.parametrize("growth", [0.0, 1.0])
def test_one_step_of_the_period_is_evidence(growth: float) -> None:
    period = np.where(np.arange(12) < 6, 1.0, 0.7) + 0.001 * np.arange(12)
    assert fit_growth(period, 1e4 * (1 - growth + growth * period)).share == pytest.approx(growth, abs=0.05)


OTHERS = {
    "a load that drifts": lambda number: 1 + 0.02 * number,
    "a load that changes at once": lambda number: 1.0 if number < 9 else 1.5,
    "batches of any size": lambda number: float(np.random.default_rng(number).lognormal(0, 0.3)),
    "every other batch is large": lambda number: 1 + number % 2,
}


@pytest.mark.parametrize("change", OTHERS.values(), ids=OTHERS)
def test_rows_that_make_the_next_period_longer_are_no_growth(change: Callable[[int], float]) -> None:
    assert fit_growth(*observed(0.0, 32, change=change)).share == 0.0


def test_a_load_that_changes_is_growth_where_the_source_delivers_by_time() -> None:
    assert fit_growth(*observed(1.0, 32, change=OTHERS["a load that changes at once"])).share > 0.85


def test_without_evidence_nothing_grows() -> None:
    assert fit_growth(np.array([1.0, 2.0]), np.array([1e4, 2e4])).share == 0.0
    assert fit_growth(np.array([]), np.array([])).share == 0.0
    # A trigger that is kept: the period differs by milliseconds.
    period = 10 + np.random.default_rng(1).normal(0, 0.002, 32)
    assert fit_growth(period, 1e3 * period).share == 0.0
    assert fit_growth(np.full(32, 10.0), np.full(32, 1e4)).share == 0.0


@pytest.mark.parametrize("by_time", [False, True])
def test_the_standard_error_of_growth_is_that_of_its_slope(by_time: bool) -> None:
    random, fits = np.random.default_rng(1), []
    for _ in range(400):
        period, noise = random.lognormal(0, 0.2, (2, 20))
        fits.append(fit_growth(10 * period, 1000 * noise * (period if by_time else 1.0)))
    slopes, errors = [fit.slope for fit in fits], [fit.error for fit in fits]
    assert np.std(slopes) == pytest.approx(np.mean(errors), rel=0.15)
    if not by_time:
        assert np.mean([fit.share > 0 for fit in fits]) < 0.06


@pytest.mark.parametrize("growth", [0.0, 0.8, 1.0])
def test_rows_are_fixed_only_on_evidence(growth: float) -> None:
    assert fit_growth(*observed(growth, 32)).fixed_rows == (growth == 0.0)
    steady = 10 + np.random.default_rng(1).normal(0, 0.002, 32)
    assert not fit_growth(steady, np.full(32, 1e4)).fixed_rows, "the period hardly changed"
    assert not fit_growth(np.array([1.0, 2.0]), np.array([1e4, 1e4])).fixed_rows


figures = st.lists(st.floats(0, 1e12), min_size=12, max_size=12).map(np.array)


@given(figures, figures)
def test_growth_is_a_share_whatever_was_measured(period: np.ndarray, rows: np.ndarray) -> None:
    assert 0.0 <= fit_growth(period, rows).share <= 1.0


# -- prediction --


def growing(model: PredictionModel, growth: float, **timing: float) -> PredictionModel:
    return replace(model, timing={name: replace(it, growth=growth, **timing) for name, it in model.timing.items()})


def seconds_of(model: PredictionModel, placement: Placement) -> dict[str, float]:
    return {query: float(taken.mean()) for query, taken in replay(model, placement, batches=12).items()}


@pytest.mark.parametrize(("growth", "row_share"), [(0.0, 1.0), (0.5, 1.0), (1.0, 1.0), (1.0, 0.5)])
def test_one_query_on_one_executor_lasts_what_its_rows_need(growth: float, row_share: float) -> None:
    """``T = overhead + work x (1 - share + share x T / present period)``, solved for T."""
    model = growing(model_of([stage("q", [4.0, 1.0, 3.0])], 2, overhead=2.0), growth, row_share=row_share)
    now, then = Placement({"q/0": np.array([0, 0, 1])}), Placement({"q/0": np.array([0, 1, 1])})
    present, work, share = 7.0, 4.0, growth * row_share
    expected = (2.0 + work * (1 - share)) / (1 - share * work / present)
    durations = replay_grown(model, then, seconds_of(model, now))["q"]
    assert durations.tolist() == pytest.approx([expected] * len(durations), rel=0.003)


@pytest.mark.parametrize("growth", [0.0, 0.5, 1.0])
def test_formula_and_replay_agree_back_to_back(growth: float) -> None:
    for seed in range(6):
        model, now = drawn(seed, queries=1)
        then = drawn(seed + 50, queries=1)[1]
        model = growing(model, growth, overhead=1.0)
        timings, at_present, work = (
            QueryTimings.of(model),
            PlacedQueries(model, now).work(),
            PlacedQueries(model, then).work(),
        )
        present = batch_seconds(at_present, timings)

        def periods(factor, work=work, timings=timings, present=present):
            return (
                batch_seconds(replace(work, path=work.path * factor, work=work.work * factor[:, None]), timings)
                / present
            )

        factor = settle(periods, np.array([growth]))
        formula = batch_seconds(replace(work, path=work.path * factor, work=work.work * factor[:, None]), timings)
        replayed = replay_grown(model, then, seconds_of(model, now))["q0"].mean()
        assert replayed == pytest.approx(float(formula[0]), rel=0.03)


@pytest.mark.parametrize("queries", [1, 2, 3])
def test_it_agrees_with_a_simulation_whose_rows_come_by_time(queries: int) -> None:
    """The usual input arrives in as long as makes the busiest executor work for two thirds of the time."""
    for seed in range(4):
        model, now = drawn(seed, queries=queries)
        then = drawn(seed + 50, queries=queries)[1]
        stages = tuple(replace(it, batches_per_second=1000.0) for it in model.workload.stages)
        busy = sum(np.bincount(now[it.key], it.busy, 4) for it in stages)
        usual = dict.fromkeys(model.workload.queries, float(busy.max()) / 0.67)

        def settled(placement: Placement, model=model, stages=stages, usual=usual) -> dict[str, np.ndarray]:
            costs = Costs(planning=OVERHEAD / 2, commit=OVERHEAD / 2)
            simulation = Simulation(model.cluster, Workload(stages), placement, costs)
            simulation.arrivals = usual
            simulation.run(100.0)
            ends = {query: [it for it in simulation.batches if it.query == query][-20:] for query in usual}
            return {query: np.mean([(it.seconds, it.input) for it in last], axis=0) for query, last in ends.items()}

        before, after = settled(now), settled(then)
        stages = tuple(replace(it, busy=it.busy * before[it.query][1]) for it in stages)
        model = growing(replace(model, workload=Workload(stages)), 1.0, overhead=OVERHEAD)
        present = seconds_of(model, now)
        predicted = replay_grown(model, then, present)
        for query in usual:
            ratio = float(predicted[query].mean()) / present[query]
            assert ratio == pytest.approx(float(after[query][0] / before[query][0]), rel=0.1)


def test_a_trigger_that_is_held_keeps_its_rows() -> None:
    model, now = drawn(1, queries=2)
    then = drawn(51, queries=2)[1]
    model = growing(model, 1.0, interval=30.0)
    grown, fixed = replay_grown(model, then, seconds_of(model, now)), replay(model, then)
    assert all(grown[query].tolist() == fixed[query].tolist() for query in fixed)


def test_a_trigger_that_is_no_longer_overrun_has_the_rows_of_its_interval() -> None:
    model = growing(model_of([stage("q", [4.0, 4.0])], 2, overhead=1.0, interval=6.0), 1.0)
    now, then = Placement({"q/0": np.array([0, 0])}), Placement({"q/0": np.array([0, 1])})
    assert replay_grown(model, then, seconds_of(model, now))["q"].mean() == pytest.approx(1 + 4 * 6 / 9, rel=0.01)


def test_a_better_placement_gains_more_and_a_worse_one_loses_more() -> None:
    model = model_of([stage("q", [4.0, 1.0, 3.0])], 2, overhead=2.0)
    worse, better = Placement({"q/0": np.array([0, 0, 1])}), Placement({"q/0": np.array([0, 1, 1])})
    for before, after in ((worse, better), (better, worse)):
        fixed, grown = (predict_changes(growing(model, it), before, after)["q"].ratio for it in (0.0, 1.0))
        assert abs(grown - 1) > 1.3 * abs(fixed - 1)
        assert (grown > 1) == (fixed > 1)


def test_without_growth_nothing_changes() -> None:
    model, now = drawn(4, queries=2, noise=0.2, log_error=0.1)
    then = drawn(54, queries=2)[1]
    grown, fixed = replay_grown(model, then, seconds_of(model, now), seed=3), replay(model, then, seed=3)
    assert all(grown[query].tolist() == fixed[query].tolist() for query in fixed)
    present = predict_changes(growing(model, 1.0), now, now)
    assert all(change.ratio == 1.0 for change in present.values()), "rows are as measured where nothing moves"


def test_a_query_without_a_present_batch_does_not_grow() -> None:
    model, now = drawn(4, queries=2)
    grown = replay_grown(growing(model, 1.0), now, {})
    assert all(grown[query].tolist() == taken.tolist() for query, taken in replay(model, now).items())


def test_batches_that_cannot_keep_up_are_bounded() -> None:
    model = growing(model_of([stage("q", [4.0, 4.0])], 2, overhead=0.1), 1.0)
    now, then = Placement({"q/0": np.array([0, 1])}), Placement({"q/0": np.array([0, 0])})
    assert replay_grown(model, then, seconds_of(model, now))["q"].mean() == pytest.approx(0.1 + 4 * 8)


@settings(max_examples=25)
@given(
    seed=st.integers(0, 1000),
    growth=st.lists(st.floats(0, 1), min_size=3, max_size=3),
    timing=st.lists(st.sampled_from([(0.01, 0.0, 0.0), (0.3, 0.0, 2.0), (0.3, 1.5, 0.0)]), min_size=3, max_size=3),
    period=st.floats(1e-3, 1e3),
)
def test_batches_are_positive_and_bounded(
    seed: int, growth: list[float], timing: list[tuple[float, float, float]], period: float
) -> None:
    model, at = drawn(seed, queries=3)
    queries = model.workload.queries
    timings = {
        query: QueryTiming(overhead, interval, pause=pause, growth=growth[number])
        for number, (query, (overhead, interval, pause)) in enumerate(zip(queries, timing, strict=True))
    }
    model = replace(
        model,
        timing=timings,
        spread={it.key: StageSpread(np.zeros(it.n), np.full(it.n, 0.2)) for it in model.workload.stages},
    )
    largest = replace(model, workload=Workload(tuple(replace(it, busy=it.busy * 4.0) for it in model.workload.stages)))
    bound = 2 * max(float(taken.max()) for taken in replay(largest, at, batches=4).values())
    for taken in replay_grown(model, at, dict.fromkeys(queries, period), batches=4).values():
        assert np.isfinite(taken).all()
        assert ((taken > 0) & (taken <= bound)).all()
