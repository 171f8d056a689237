"""The schedule of chaos: seeded, Poisson, no part struck while it is down, all mended in time."""

from __future__ import annotations

import itertools
import statistics

import pytest

from tests.drills.chaos import MEAN_GAP, merged, schedule
from tests.drills.faults import FAULTS, Fault

ONE_PART_EACH = [Fault(str(number), str(number), 0.0, lambda world: lambda: None) for number in range(10)]


def test_a_seed_says_all():
    assert schedule(7, 3600, FAULTS) == schedule(7, 3600, FAULTS)
    assert schedule(7, 3600, FAULTS) != schedule(8, 3600, FAULTS)


@pytest.mark.parametrize("seed", range(20))
def test_no_part_is_struck_while_it_is_down_and_all_are_mended_in_time(seed: int):
    part = {fault.name: fault.part for fault in FAULTS}
    until: dict[str, float] = {}
    for strike in schedule(seed, 1800, FAULTS):
        assert until.get(part[strike.fault], 0.0) <= strike.at
        until[part[strike.fault]] = strike.at + strike.lasts
        assert strike.at + strike.lasts <= 1800


def test_faults_overlap():
    strikes = schedule(1, 3600, FAULTS)
    assert any(later.at < earlier.at + earlier.lasts for earlier, later in itertools.pairwise(strikes))


def test_the_gaps_are_those_of_a_poisson_process():
    # Nothing is left out where no fault lasts and each has its own part, but what comes within two seconds.
    at = [strike.at for strike in schedule(3, 400_000, ONE_PART_EACH)]
    gaps = [later - earlier for earlier, later in itertools.pairwise(at)]
    assert statistics.mean(gaps) == pytest.approx(MEAN_GAP, rel=0.05)
    assert statistics.stdev(gaps) == pytest.approx(statistics.mean(gaps), rel=0.05)


def test_a_run_takes_the_place_of_the_same_run():
    first = {"seed": 1, "minutes": 10, "provider": "hdfs", "lost": 1}
    other = {"seed": 2, "minutes": 10, "provider": "hdfs", "lost": 0}
    assert merged([first, other], first | {"lost": 0}) == [other, first | {"lost": 0}]
