from __future__ import annotations

import numpy as np
import pytest

from rechannel.policies.prediction.work import (
    FittedWork,
    TaskSamples,
    _mean_above_zero,
    changed_partitions,
    fit_stages,
    of_present_cost,
)


def samples(work: np.ndarray, rows: np.ndarray, batches: int, noise: float, seed: int = 0) -> TaskSamples:
    random = np.random.default_rng(seed)
    seconds = work * random.lognormal(-(noise**2) / 2, noise, (batches, len(work)))
    size = len(work)
    return TaskSamples(np.tile(np.arange(size), batches), seconds.ravel(), np.tile(rows, batches))


def fit_work(samples: TaskSamples, rows: np.ndarray, mean: np.ndarray) -> FittedWork:
    return fit_stages([samples], [rows], [mean])[0]


def test_stages_at_once_are_estimated_each_on_its_own() -> None:
    work, rows = np.linspace(0.2, 0.9, 8), np.linspace(10.0, 80.0, 8)
    nothing = TaskSamples(np.zeros(0, dtype=np.intp), np.zeros(0), np.zeros(0))
    stages = [
        (samples(work, rows, 3, 0.3), rows, work),
        (nothing, rows, work),
        (samples(work[:3], rows[:3], 9, 0.1, 1), rows[:3], work[:3]),
    ]
    for together, alone in zip(fit_stages(*map(list, zip(*stages, strict=True))), stages, strict=True):
        expected = fit_work(*alone)
        for name in ("seconds", "log_error", "noise", "row_share"):
            np.testing.assert_array_equal(getattr(together, name), getattr(expected, name))


def test_equal_partitions_stay_equal_whatever_their_noise() -> None:
    work, rows = np.full(16, 0.5), np.full(16, 100.0)
    fitted = fit_work(samples(work, rows, 3, 0.3), rows, work)
    assert np.ptp(fitted.seconds) < 0.1 * 0.5  # the means of three noisy tasks differ by 0.6 of it
    assert fitted.seconds.mean() == pytest.approx(0.5, rel=0.1)
    assert fitted.noise.mean() == pytest.approx(0.3, rel=0.35)


def test_work_follows_the_rows_of_the_batches_to_come() -> None:
    rows = np.linspace(100, 1000, 12)
    work = 0.05 + rows / 1000
    fitted = fit_work(samples(work, rows, 10, 0.05), rows * 2, work)
    assert fitted.seconds == pytest.approx(0.05 + rows * 2 / 1000, rel=0.06)


def test_a_partition_with_dear_rows_deviates_by_its_own_evidence() -> None:
    rows = np.full(12, 100.0)
    work = np.where(np.arange(12) == 3, 2.0, 0.5)
    fitted = fit_work(samples(work, rows, 12, 0.1), rows, work)
    assert fitted.seconds[3] == pytest.approx(2.0, rel=0.1)
    assert np.delete(fitted.seconds, 3) == pytest.approx(0.5, rel=0.1)


def test_the_share_of_rows_in_the_work_is_that_of_the_line() -> None:
    rows = np.linspace(100, 1000, 12)
    work = 0.2 + rows * (0.6 / 550)  # a quarter of it whatever the rows
    assert fit_work(samples(work, rows, 20, 0.1), rows, work).row_share == pytest.approx(0.75, abs=0.06)
    # Of tasks whose rows hardly differ nobody knows: all work counts as that of rows.
    alike = np.full(12, 100.0) + np.arange(12) * 0.01
    assert fit_work(samples(np.full(12, 0.8), alike, 20, 0.1), alike, work).row_share == pytest.approx(1.0, abs=0.01)


def test_milliseconds_that_every_task_has_are_no_noise_of_long_tasks() -> None:
    random = np.random.default_rng(2)
    rows = 100.0 / np.arange(1, 25)
    work, each = 0.05 + rows / 30, 0.03
    seconds = np.maximum(work * random.lognormal(0, 0.02, (12, 24)) + random.normal(0, each, (12, 24)), 0.01)
    fitted = fit_work(TaskSamples(np.tile(np.arange(24), 12), seconds.ravel(), np.tile(rows, 12)), rows, work)
    assert fitted.noise[0] == pytest.approx(0.02, abs=0.01)
    assert fitted.noise[-1] == pytest.approx(each / work[-1], rel=0.3)
    assert fitted.seconds[:6] == pytest.approx(work[:6], rel=0.03)


def test_doubt_shrinks_with_the_number_of_batches() -> None:
    rows = np.full(12, 100.0)
    work = np.random.default_rng(1).lognormal(0, 0.4, 12)
    few, many = (fit_work(samples(work, rows, count, 0.2), rows, work).log_error.mean() for count in (3, 27))
    assert many < few / 2


def test_standard_errors_are_those_of_the_estimates() -> None:
    """Few of the partitions differ by more than 1.645 of them, by which one in ten does."""
    random, beyond = np.random.default_rng(1), []
    rows = 1000.0 / np.arange(1, 17)
    for seed in range(100):
        work = random.lognormal(0, 0.1, 16) * (0.05 + rows / 1000)
        fitted = fit_work(samples(work, rows, 3, 0.3, seed), rows, work)
        beyond.append(np.abs(np.log(fitted.seconds / work)) > 1.645 * fitted.log_error)
    assert 0.05 < np.mean(beyond) < 0.18


def test_the_work_of_a_single_partition_is_as_uncertain_as_its_tasks() -> None:
    one = np.ones(1)
    fitted = fit_work(samples(one, one, 4, 0.3), one, one)
    assert fitted.log_error[0] == pytest.approx(fitted.noise[0] / 2)
    # Nobody knows how much another one differs that did not run yet.
    both = fit_work(samples(one, one, 4, 0.3), np.ones(2), np.ones(2))
    assert both.log_error[1] > 0.4


@pytest.mark.parametrize("spread", [-300.0, -9.0, -8.0, -7.9, 0.0, 9.0])
def test_a_variance_that_cannot_be_negative_is_expected_above_zero(spread: float) -> None:
    assert max(0.0, spread) < _mean_above_zero(2 * spread, 2.0) / 2 + 1e-12
    assert _mean_above_zero(2 * spread, 2.0) == pytest.approx(2 * _mean_above_zero(spread, 1.0))


@pytest.mark.parametrize("partition", [[], [-1], [12]], ids=["none", "unknown", "out of range"])
def test_without_usable_samples_the_measured_mean_stands(partition: list[int]) -> None:
    mean = np.arange(3.0)
    one = np.ones(len(partition))
    fitted = fit_work(TaskSamples(np.array(partition, dtype=np.int64), one, one), mean, mean)
    assert fitted.seconds.tolist() == mean.tolist()


def changing(times: np.ndarray, rows: np.ndarray, noise: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return seconds and rows of sixteen tasks in each batch.

    ``times``: as long as a row takes in each batch, or of each task in each batch; ``rows``: of each task in a batch.
    """
    shares = np.random.default_rng(9).dirichlet(np.ones(16)) * 16
    own = rows[:, None] * shares
    work = 0.1 + times.reshape(len(rows), -1) * own / 1000
    return work * np.random.default_rng(seed).lognormal(-(noise**2) / 2, noise, work.shape), own


@pytest.mark.parametrize("noise", [0.02, 0.1])
def test_a_change_of_the_cost_of_rows_is_seen_in_two_batches(noise: float) -> None:
    times, rows = np.where(np.arange(32) < 30, 1.0, 1.6), np.full(32, 500.0)
    marked = np.array([of_present_cost(*changing(times, rows, noise, seed), 2) for seed in range(100)])
    assert marked[:, -2:].all()
    assert marked[:, :30].mean() < 0.01, "of the batches before"


@pytest.mark.parametrize("noise", [0.02, 0.1, 0.3])
@pytest.mark.parametrize("vary", [False, True])
def test_batches_of_one_cost_all_count_whatever_their_rows(noise: float, vary: bool) -> None:
    rows = np.random.default_rng(1).uniform(100, 900, 32) if vary else np.full(32, 500.0)
    marked = np.array([of_present_cost(*changing(np.ones(32), rows, noise, seed), 3) for seed in range(100)])
    assert marked.mean() > 0.98


def test_one_executor_of_several_and_a_long_batch_change_no_cost() -> None:
    rows, times = np.full(32, 500.0), np.ones((32, 16))
    times[-2:, :6] = 2.0
    assert of_present_cost(*changing(times, rows, 0.05, 0), 2).all()
    times[20] = 3.0
    assert np.flatnonzero(~of_present_cost(*changing(times, rows, 0.05, 0), 2)).tolist() == [20]


@pytest.mark.parametrize("noise", [0.01, 0.03])
@pytest.mark.parametrize("times", [1.6, 0.6])
def test_partitions_whose_rows_take_longer_or_less_long_are_seen_in_two_batches(noise: float, times: float) -> None:
    rows, cost = np.full(32, 500.0), np.ones((32, 16))
    heavy = np.argsort(changing(np.ones(32), rows, 0.0, 0)[0][0])[-2:]
    cost[-2:, heavy] = times
    cost[-2:, np.setdiff1d(np.arange(16), heavy)[:2]] = 1.1  # less than counts
    for seed in range(100):
        assert sorted(changed_partitions(*changing(cost, rows, noise, seed), 2)) == sorted(heavy)


@pytest.mark.parametrize("noise", [0.02, 0.1, 0.3])
@pytest.mark.parametrize("vary", [False, True])
@pytest.mark.parametrize("newest", [2, 5])
def test_no_partition_changes_by_its_noise_or_its_rows(noise: float, vary: bool, newest: int) -> None:
    rows = np.random.default_rng(1).uniform(100, 900, 32) if vary else np.full(32, 500.0)
    count = [len(changed_partitions(*changing(np.ones(32), rows, noise, seed), newest)) for seed in range(300)]
    assert sum(count) <= 1, "of 4,800"


def test_a_change_of_a_partition_has_to_last_and_needs_older_tasks() -> None:
    rows, cost = np.full(32, 500.0), np.ones((32, 16))
    cost[-1] = 3.0
    assert not len(changed_partitions(*changing(cost, rows, 0.05, 0), 2)), "one long batch"
    cost[-2] = 0.3
    assert not len(changed_partitions(*changing(cost, rows, 0.05, 0), 2)), "one short, one long"
    cost = np.array([1.0, 1.0, 1.0, 1.0, 3.0])
    seconds, rows = changing(cost, np.full(5, 500.0), 0.0, 0)
    assert len(changed_partitions(seconds, rows, 1)) > 10
    assert not len(changed_partitions(seconds[1:], rows[1:], 1)), "three older tasks"
    seconds[0:5:2] = np.nan
    for gaps in (seconds, np.vstack([seconds, np.full((1, 16), 1.0)])):
        assert not len(changed_partitions(gaps, np.ones(gaps.shape), 1)), "no two tasks follow each other"
    for empty in (np.ones((1, 1)), np.ones((4, 0))):
        assert not len(changed_partitions(empty, empty, 1)), "a query without older batches, or without state"


def test_partitions_without_tasks_are_not_compared() -> None:
    seconds, rows = changing(np.ones(32), np.full(32, 500.0), 0.05, 0)
    seconds[:10, 3], seconds[-2:, 4], seconds[5] = np.nan, np.nan, np.nan
    assert np.flatnonzero(~of_present_cost(seconds, rows, 2)).tolist() == [5]
    assert of_present_cost(np.ones((1, 1)), np.ones((1, 1)), 1).all()
    assert of_present_cost(np.ones((4, 0)), np.ones((4, 0)), 2).all(), "a query without state"
