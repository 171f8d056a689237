from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rechannel.policies.analysis.service_rate import Observations, ServiceRates, service_rates
from rechannel.policies.model.arrays import ModelError

RATIO = 1.25
SOURCE, STATEFUL = 0, 1


Task = tuple[int, int, int, bool, float, float, int]  # as in `Observations`


def rates_of(tasks: list[Task], executors: int) -> ServiceRates:
    return service_rates(Observations(*(np.array(column) for column in zip(*tasks, strict=True))), executors, RATIO)


def _run(
    placements: list[list[int]],
    slow: dict[int, float],
    *,
    weights: dict[int, float] | None = None,
    before: dict[int, float] | None = None,
    floating: bool = True,
    noise: float = 0.1,
    seed: int = 1,
) -> ServiceRates:
    """Tasks of one query, a batch for each placement (the last half are now); ``slow``: executor -> times."""
    draw = np.random.default_rng(seed)
    executors = 1 + max(map(max, placements))
    entries: list[Task] = []
    for number, placement in enumerate(placements):
        now = number >= len(placements) // 2
        slowness = slow if now else (before if before is not None else slow)
        tasks = [(STATEFUL, partition, executor) for partition, executor in enumerate(placement)]
        tasks += [(SOURCE, -1, executor) for executor in range(executors) if floating]
        for stage, partition, executor in tasks:
            rows = float(draw.zipf(1.6) % 1000) + 50
            busy = (0.02 + rows * (1e-3 if stage == STATEFUL else 2e-4)) * slowness.get(executor, 1.0)
            busy *= (weights or {}).get(partition, 1.0) * float(np.exp(draw.normal(0, noise)))
            entries.append((stage, partition, executor, now, busy, rows, number))
    return rates_of(entries, executors)


EVEN = [[0, 1, 2, 3] * 3] * 12


def test_equal_executors_have_speed_one() -> None:
    rates = _run(EVEN, {})
    assert (rates.speed == 1).all()
    assert not rates.slow.any()
    np.testing.assert_allclose(rates.times, 1.0, atol=0.1)


def test_slow_executor_by_its_peers() -> None:
    rates = _run(EVEN, {2: 2.0})
    assert list(rates.slow) == [False, False, True, False]
    assert rates.speed[2] == pytest.approx(0.5, rel=0.15)
    assert list(rates.by_peers) == [False, False, True, False]
    assert not rates.by_history.any(), "it always was"


def test_heavy_partition_among_others() -> None:
    rates = _run(EVEN, {}, weights={2: 3.0})
    assert not rates.slow.any()


def test_heavy_partition_alone_on_its_executor() -> None:
    rates = _run([[0, 1, 2, 3]] * 12, {}, weights={2: 3.0})
    assert not rates.slow.any()
    rates = _run([[0, 1, 2, 3]] * 12, {2: 3.0})
    assert list(rates.slow) == [False, False, True, False]


def test_heavy_partition_alone_without_source_tasks() -> None:
    assert not _run([[0, 1, 2, 3]] * 12, {}, weights={2: 3.0}, floating=False).slow.any()


@pytest.mark.parametrize("floating", [False, True])
@pytest.mark.parametrize(("beside", "times"), [(0, 3.0), (2, 5.0), (4, 5.0)])
def test_heavy_partition_beside_few_where_all_others_are_alike(floating: bool, beside: int, times: float) -> None:
    placement = [2] * (1 + beside) + [0] * 20 + [1] * 20 + [3] * 20
    assert not _run([placement] * 12, {}, weights={0: times}, floating=floating).slow.any()
    rates = _run([placement] * 12, {2: 2.0}, floating=floating)
    assert rates.slow[2] == (floating or beside > 2), "a few partitions alone may all be heavy"


def test_slow_executor_where_all_have_few_partitions() -> None:
    assert list(np.flatnonzero(_run([[*range(8)] * 3] * 12, {2: 2.0}, floating=False).slow)) == [2]


@pytest.mark.parametrize(("spread", "slow"), [(0.0, True), (0.6, False)])
def test_slow_executor_without_source_tasks_where_partitions_are_alike(spread: float, slow: bool) -> None:
    weights = dict(enumerate(np.exp(np.random.default_rng(5).normal(0, spread, 24)).tolist()))
    rates = _run([[0, 1, 2, 3] * 6] * 12, {2: 2.0}, weights=weights, floating=False)
    assert list(rates.slow) == [False, False, slow, False]
    assert rates.speed[2] == pytest.approx(0.5 if slow else 1.0, rel=0.1)


def test_slow_executor_by_its_history() -> None:
    rates = _run(EVEN, {1: 2.5}, before={}, weights={5: 2.0}, floating=False)
    assert list(rates.slow) == [False, True, False, False]
    assert list(rates.by_history) == [False, True, False, False]
    assert rates.grown[1] == pytest.approx(2.5, rel=0.2)
    assert rates.speed[1] == pytest.approx(0.4, rel=0.2)
    assert (rates.lasting_speed == 1).all()


def test_executor_that_was_slow_in_a_part_of_its_older_batches() -> None:
    rates = _run(EVEN * 3, {1: 1.8}, before={1: 1.2})
    assert rates.by_history[1]
    assert rates.grown[1] == pytest.approx(1.5, rel=0.05)
    assert rates.speed[1] == pytest.approx(1 / 1.8, rel=0.05), "against its peers, who show more than its own history"


@pytest.mark.parametrize(
    ("drift", "grown", "slow"),
    [
        pytest.param(0.0, 1.0, True, id="partitions that change by nothing else"),
        pytest.param(0.0, 10.0, False, id="one of another executor grew tenfold"),
        pytest.param(0.3, 1.0, False, id="all change by themselves"),
    ],
)
def test_how_sure_a_slowness_is_follows_from_how_much_partitions_change(drift: float, grown: float, slow: bool) -> None:
    """Executor 1, with four partitions, takes 1.4 times as long."""
    draw = np.random.default_rng(3)
    changed = np.exp(draw.normal(0, drift, 16))
    changed[2] *= grown
    tasks = [
        (STATEFUL, p, p % 4, now, (1.4 if now and p % 4 == 1 else 1.0) * (changed[p] if now else 1.0), 100.0, number)
        for number, now in enumerate([False] * 12 + [True] * 3)
        for p in range(16)
    ]
    rates = rates_of([(*task[:4], task[4] * float(np.exp(draw.normal(0, 0.05))), *task[5:]) for task in tasks], 4)
    assert list(rates.slow) == [False, slow, False, False]
    assert rates.speed[1] == pytest.approx(1 / 1.4 if slow else 1.0, rel=0.1)


def _with_sources(source: float, times: float, noise: float, seed: int) -> ServiceRates:
    """Four executors, of which number 1 takes ``times`` as long for tasks with state in the last two batches."""
    draw = np.random.default_rng(seed)
    rows = draw.permutation(1 / np.arange(1, 17) ** 0.8) * 100
    tasks = []
    for number in range(32):
        now = number >= 30
        for p in range(16):
            longer = times if now and p % 4 == 1 else 1.0
            tasks.append((STATEFUL, p, p % 4, now, longer * rows[p] / 50 * draw.lognormal(0, noise), rows[p], number))
            tasks.append((SOURCE, -1, p % 4, now, source * draw.lognormal(0, noise), 50.0, number))
    return rates_of(tasks, 4)


@pytest.mark.parametrize("source", [0.02, 0.05, 0.2])
@pytest.mark.parametrize("noise", [0.05, 0.1])
def test_what_slows_tasks_with_state_may_spare_source_tasks(source: float, noise: float) -> None:
    for seed in range(10):
        rates = _with_sources(source, 1.6, noise, seed)
        assert list(rates.by_history) == [False, True, False, False]
        assert rates.speed[1] == pytest.approx(1 / 1.6, rel=0.2)


@pytest.mark.parametrize("noise", [0.1, 0.3])
def test_noise_makes_no_executor_slow(noise: float) -> None:
    assert not any(_with_sources(0.05, 1.0, noise, seed).slow.any() for seed in range(100))


def test_the_lasting_speed_is_that_of_the_older_batches() -> None:
    rates = _run(EVEN, {1: 4.0, 2: 2.0}, before={1: 2.0, 2: 2.0})
    assert rates.speed[1:3] == pytest.approx([0.25, 0.5], rel=0.2)
    assert rates.lasting_speed == pytest.approx([1, 0.5, 0.5, 1], rel=0.2)
    assert (rates.lasting_speed >= rates.speed).all()


def test_a_fast_executor_that_lost_some_speed_stays_as_fast_as_it_is() -> None:
    rates = _run(EVEN, {1: 0.5}, before={1: 0.2})
    assert rates.by_history[1]
    assert rates.speed[1] == pytest.approx(2.0, rel=0.2)
    assert rates.lasting_speed[1] == rates.speed[1]


def test_partition_that_grew_by_itself() -> None:
    draw = np.random.default_rng(1)
    tasks = []
    for number in range(12):
        for p in range(12):
            busy = (number + 1.0 if p == 2 else 1.0) * float(np.exp(draw.normal(0, 0.1)))
            tasks.append((0, p, p % 4, number >= 6, busy, 100.0, number))
    assert not rates_of(tasks, 4).slow.any()


def test_milliseconds_of_short_tasks_are_no_slowness() -> None:
    draw = np.random.default_rng(1)
    tasks = []
    for number in range(16):
        for executor in (0, 1, 2, 0, 1, 2):
            busy = (0.008 if executor == 2 else 0.005) * float(np.exp(draw.normal(0, 0.2)))
            tasks.append((SOURCE, -1, executor, number >= 8, busy, 0.0, number))
    assert not rates_of(tasks, 3).slow.any()


def test_source_tasks_of_a_cold_batch_are_compared_with_each_other() -> None:
    draw = np.random.default_rng(1)
    tasks = []
    for number in range(16):
        # Executor 1 is busy with stateful tasks from its first batch on; in that batch every source task took long.
        for executor in (0, 1) if number == 0 else (0, 0):
            busy = (0.1 if number == 0 else 0.02) * float(np.exp(draw.normal(0, 0.1)))
            tasks.append((SOURCE, -1, executor, number >= 8, busy, 1000.0, number))
        for partition in range(12):
            busy = (0.1 + 0.05 * partition) * float(np.exp(draw.normal(0, 0.1)))
            tasks.append((STATEFUL, partition, partition % 3 % 2, number >= 8, busy, 50.0 * partition, number))
    rates = rates_of(tasks, 2)
    assert not rates.slow.any()
    assert rates.speed.tolist() == [1.0, 1.0]


def test_executor_that_recovered_is_not_fast() -> None:
    rates = _run(EVEN, {}, before={1: 2.0}, floating=False)
    assert (rates.speed == 1).all()


def test_heavy_partitions_that_moved() -> None:
    # Heavy partitions were together on executor 0, and are on executor 1 now: neither is slow.
    heavy = dict.fromkeys(range(4), 2.5)
    old, new = [0, 0, 0, 0, 1, 1, 2, 2, 3, 3], [1, 1, 1, 1, 0, 0, 2, 2, 3, 3]
    assert not _run([old] * 6 + [new] * 6, {}, weights=heavy).slow.any()


@pytest.mark.parametrize(("executors", "slow"), [(2, [1]), (4, [1, 3]), (4, [0, 2]), (5, [4])])
def test_half_of_the_executors_slow(executors: int, slow: list[int]) -> None:
    rates = _run([[p % executors for p in range(3 * executors)]] * 12, dict.fromkeys(slow, 1.5))
    assert list(np.flatnonzero(rates.slow)) == slow
    assert rates.times[slow] == pytest.approx([1.5] * len(slow), rel=0.15)
    assert all(rates.speed[e] == 1 for e in range(executors) if e not in slow)


def test_fast_executor() -> None:
    rates = _run(EVEN, {3: 0.4})
    assert list(rates.speed[:3]) == [1, 1, 1]
    assert rates.speed[3] == pytest.approx(2.5, rel=0.2)


def test_executor_without_tasks() -> None:
    rates = _run([[0, 1, 3] * 4] * 12, {0: 2.0}, floating=False)
    assert rates.tasks[2] == 0
    assert rates.speed[2] == 1


def test_executors_without_tasks_do_not_change_the_others() -> None:
    alone = _run([[0, 1, 2] * 4] * 12, {0: 2.0}, floating=False)
    among = _run([[0, 1, 5] * 4] * 12, {0: 2.0}, floating=False)
    for figure in ("speed", "times", "grown", "error"):
        np.testing.assert_allclose(getattr(among, figure)[[0, 1, 5]], getattr(alone, figure), rtol=1e-9)


@pytest.mark.parametrize(("before", "now"), [(1, 6), (6, 1), (6, 0), (0, 6)])
def test_change_of_an_executor_needs_a_task_on_each_side(before: int, now: int) -> None:
    """Executor 3 has so many tasks in the older batches and in the last ones, four times as long as before."""
    there = [number < count for count in (before, now) for number in range(6)]
    placements = [[0, 1, 2, 0, 1, 2, 3 if with_it else 0] for with_it in there]
    rates = _run(placements, {3: 4.0}, before={}, floating=False, noise=0.01)
    assert rates.tasks[3] == now
    if before and now:
        assert rates.grown[3] > 1.5
    else:
        assert rates.grown[3] == 1.0


def test_no_observations() -> None:
    empty = np.array([], dtype=np.int64)
    rates = service_rates(Observations(empty, empty, empty, empty == 1, empty * 1.0, empty * 1.0, empty), 3, RATIO)
    assert list(rates.speed) == [1, 1, 1]


def test_invalid_arguments() -> None:
    one = np.array([0])
    good = Observations(one, one, one, one == 1, one + 1.0, one + 1.0, one)
    with pytest.raises(ModelError, match="ratio"):
        service_rates(good, 1, 1.0)
    with pytest.raises(ModelError, match="executors"):
        service_rates(good, 0, 2.0)
    with pytest.raises(ModelError, match="busy"):
        Observations(one, one, one, one == 1, np.array([1.0, 2.0]), one + 1.0, one)


@given(
    seed=st.integers(0, 2**32 - 1),
    executors=st.integers(2, 6),
    partitions=st.integers(2, 16),
    times=st.sampled_from([1.0, 2.0, 3.0]),
)
def test_one_slow_executor_and_no_other(seed: int, executors: int, partitions: int, times: float) -> None:
    draw = np.random.default_rng(seed)
    placement = [int(value) for value in draw.integers(0, executors, partitions)] + list(range(executors))
    weights = {number: float(np.exp(draw.normal(0, 0.4))) for number in range(len(placement))}
    victim = int(draw.integers(executors))
    rates = _run([placement] * 16, {victim: times}, weights=weights, seed=seed)
    assert np.isfinite(rates.speed).all()
    assert (rates.speed > 0).all()
    assert set(np.flatnonzero(rates.slow)) == ({victim} if times > 1 else set())
    assert rates.speed[victim] == pytest.approx(1 / times, rel=0.3)
