"""What a migration costs, and what is learned from those before."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rechannel.migration.plan.price import Outcome, Rates, learned, price, step_bytes

GIVEN = Rates(1.0, 50e6)


def test_a_step_lasts_as_long_as_its_busiest_target_loads() -> None:
    sizes, steps, targets = np.array([1e6, 2e6, 3e6, 4e6]), np.array([0, 0, 0, 1]), np.array([1, 1, 2, 0])
    assert step_bytes(sizes, steps, targets).tolist() == [3e6, 4e6]
    assert step_bytes(np.zeros(0), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)).tolist() == []


def test_price_by_hand() -> None:
    found = price(np.array([50e6, 100e6]), GIVEN, batch=4.0, snapshot=2.0, closing=1.0)
    assert found.added.tolist() == [2.0, 3.0]
    assert (found.pause, found.seconds) == (3.0, 5.0)
    assert found.total == pytest.approx(2.0 + 6.0 + 7.0 + 1.0)
    assert found.one_by_one == pytest.approx((2 + 6 + 1) + (2 + 7 + 1))
    assert price(np.zeros(0), GIVEN, batch=4.0).total == 0.0


def test_without_a_measured_step_the_settings_hold() -> None:
    assert learned([], GIVEN) == GIVEN


def test_many_steps_outweigh_the_settings() -> None:
    truth = Rates(0.2, 200e6)
    sizes = np.linspace(1e6, 400e6, 40)
    found = learned([Outcome(size, truth.overhead + size / truth.load_rate) for size in sizes], GIVEN)
    assert found.steps == 40
    assert found.overhead == pytest.approx(truth.overhead, abs=0.25)
    assert found.load_rate == pytest.approx(truth.load_rate, rel=0.25)


@given(st.lists(st.tuples(st.floats(0, 1e10), st.floats(-5, 100)), max_size=60))
def test_whatever_was_measured_a_price_is_sound(measured: list[tuple[float, float]]) -> None:
    found = learned([Outcome(size, added) for size, added in measured], GIVEN)
    assert found.overhead >= 0
    assert 0 < found.load_rate <= 1.1e12
    cost = price(np.array([0.0, 1e9]), found, batch=1.0)
    assert np.isfinite(cost.added).all()
    assert cost.pause >= 0
    assert cost.total <= cost.one_by_one + 1e-6
