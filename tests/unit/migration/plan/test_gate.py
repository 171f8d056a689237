from __future__ import annotations

import pytest

from rechannel.conf.settings import GateSettings
from rechannel.migration.plan.gate import GateResult, QueryGain, evaluate_gate
from rechannel.policies.prediction.gain import CONFIDENCE, PredictedChange

SETTINGS = GateSettings(min_gain=0.1, max_loss=0.05, horizon=600)


def gain(query: str, before: float, after: float, error: float = 0.0, name: str = "") -> QueryGain:
    return QueryGain(query, before, PredictedChange(before, after, error), 0.1, name)


def verdict(before: dict[str, float], after: dict[str, float], cost: float = 1.0, error: float = 0.0) -> GateResult:
    # A batch every ten seconds: sixty in the horizon.
    return evaluate_gate(
        [gain(query, seconds, after[query], error) for query, seconds in before.items()], cost, SETTINGS
    )


def test_gain_is_what_all_batches_of_the_horizon_save_and_cost_is_steps_and_state() -> None:
    result = verdict({"q": 4.0}, {"q": 3.0}, cost=5.0)
    assert result.passes
    assert result.gain == pytest.approx(60)
    assert result.cost == pytest.approx(5)
    assert result.sentence == "batch of q 4.00 → 3.00 s (-25%), gain 60.0 s over 600 s against a cost of 5.0 s"


@pytest.mark.parametrize(
    ("before", "after", "cost", "error", "unit", "limit"),
    [
        pytest.param({"q": 4.0}, {"q": 3.7}, 1.0, 0.0, "share", 0.1, id="less than min_gain"),
        pytest.param({"q": 4.0}, {"q": 4.0}, 0.0, 0.0, "share", 0.1, id="no gain"),
        pytest.param({"q": 4.0}, {"q": 5.0}, 1.0, 0.0, "share", 0.1, id="slower"),
        pytest.param({"q": 0.0}, {"q": 0.0}, 1.0, 0.0, "share", 0.1, id="a query without work"),
        pytest.param({}, {}, 1.0, 0.0, "share", 0.1, id="no query"),
        pytest.param({"q": 4.0}, {"q": 3.5}, 1.0, 0.06, "share", 0.05, id="a gain within its uncertainty"),
        pytest.param({"q": 4.0, "r": 4.0}, {"q": 3.0, "r": 4.3}, 1.0, 0.0, "share", 0.05, id="another query loses"),
        pytest.param({"q": 4.0, "r": 4.0}, {"q": 3.0, "r": 4.0}, 1.0, 0.04, "share", 0.05, id="another could lose"),
        pytest.param({"q": 4.0}, {"q": 3.0}, 60.0, 0.0, "s", 60.0, id="cost equal to the gain"),
        pytest.param({"q": 4.0}, {"q": 3.0}, 50.0, 0.05, "s", 50.0, id="cost above the certain gain"),
        pytest.param({"q": 4.0, "r": 4.0}, {"q": 3.0, "r": 3.9}, 1.0, 0.0, "", 1.0, id="one query gains"),
    ],
)
def test_the_gate(
    before: dict[str, float], after: dict[str, float], cost: float, error: float, unit: str, limit: float
) -> None:
    result = verdict(before, after, cost, error)
    assert result.passes == (not unit)
    assert result.limit == limit
    assert result.unit == (unit or "s")
    assert result.sentence


@pytest.mark.parametrize(("error", "passes"), [(0.02, False), (0.05, True)])
def test_the_slowest_batches_lose_only_where_that_is_certain(error: float, passes: bool) -> None:
    tail = PredictedChange(5.0, 5.5, error)
    worse = QueryGain("r", 8.0, PredictedChange(4.0, 4.0, 0.0, tail), 0.1, "flights")
    result = evaluate_gate([gain("q", 4.0, 3.0), worse], 1.0, SETTINGS)
    assert result.passes == passes
    if not passes:
        assert (result.measured, result.limit, result.unit) == (pytest.approx(0.1 - CONFIDENCE * error), 0.05, "share")
        assert result.sentence == (
            "the slowest batches would lose more than gate.max_loss 5%: "
            "95th percentile of the batches of flights 10.00 → 11.00 s (+10% ± 4%)"
        )


def test_the_sentence_has_the_name_of_the_query_and_the_uncertainty() -> None:
    result = evaluate_gate([gain("q", 4.0, 3.0, 0.02, "flights")], 1.0, SETTINGS)
    assert result.sentence.startswith("batch of flights 4.00 → 3.00 s (-25% ± 4%), gain")


def test_a_query_that_may_gain_more_does_not_refuse_what_another_one_gains_for_certain() -> None:
    certain, unsure = gain("b", 10.0, 8.8, 0.005), gain("a", 10.0, 8.7, 0.08)
    assert not evaluate_gate([unsure], 0.0, SETTINGS).passes
    result = evaluate_gate([gain("c", 10.0, 9.9), unsure, certain], 0.0, SETTINGS)
    assert result.passes
    assert result.sentence.startswith("batch of b")


def test_a_certain_gain_that_is_too_small_does_not_count() -> None:
    assert not evaluate_gate([gain("a", 10.0, 8.7, 0.08), gain("b", 10.0, 9.2)], 0.0, SETTINGS).passes
