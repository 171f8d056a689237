"""The load test compares a phase with the healthy ones beside it, and those with each other."""

from __future__ import annotations

import pytest

from tests.drills import results
from tests.drills.load import HEALTHY, Batch, Phase, compared, medians

PHASES = [Phase(HEALTHY, 0, 10), Phase("Redis hangs", 10, 20), Phase(HEALTHY, 20, 30)]


def batches(lasting: list[float]) -> list[Batch]:
    return [
        Batch("counts", phase.begin + number + seconds, seconds)
        for phase, seconds in zip(PHASES, lasting, strict=True)
        for number in range(1, 8)
    ]


def test_a_phase_is_compared_with_those_beside_it():
    result = compared(batches([1.0, 1.2, 1.4]), PHASES)
    (row,) = result["phases"]
    assert (row["phase"], row["batches"]) == ("Redis hangs", 7)
    assert row["ratio"] == pytest.approx(1.0)
    assert result["noise"] == [pytest.approx(1.4), pytest.approx(1.4)]
    assert "| Redis hangs | 7 | 1.20 s | 1.20 s | 1.00 |" in results.load_table(result)


def test_a_batch_that_reaches_over_the_end_belongs_to_no_phase():
    reaching = [Batch("counts", 10.5, 1.0), Batch("counts", 5.0, 1.0)]
    assert medians(reaching, PHASES[0]) == {"counts": 1.0}
    assert medians(reaching, PHASES[1]) == {}


def test_a_phase_in_which_no_batch_ended_is_told_as_such():
    result = compared([batch for batch in batches([1.0, 1.0, 1.0]) if not 10 <= batch.ended < 20], PHASES)
    assert (result["phases"][0]["batches"], result["phases"][0]["ratio"]) == (0, 0.0)
