from __future__ import annotations

import pytest

from rechannel.conf.settings import GateSettings
from rechannel.migration.plan.gate import GateResult, QueryGain, evaluate_gate

SETTINGS = GateSettings(min_gain=0.1, horizon=600)


def verdict(before: dict[str, float], after: dict[str, float], cost: float = 1.0) -> GateResult:
    # A batch every ten seconds: sixty in the horizon.
    return evaluate_gate([QueryGain(query, path, after[query], 0.1) for query, path in before.items()], cost, SETTINGS)


def test_gain_is_what_all_batches_of_the_horizon_save_and_cost_is_steps_and_state() -> None:
    result = verdict({"q": 4.0}, {"q": 3.0}, cost=5.0)
    assert result.passes
    assert result.gain == pytest.approx(60)
    assert result.cost == pytest.approx(5)
    assert result.sentence == (
        "critical path of q 4.00 → 3.00 s (-25%), gain 60.0 s over 600 s against a cost of 5.0 s"
    )


@pytest.mark.parametrize(
    ("before", "after", "cost", "decided_by"),
    [
        pytest.param({"q": 4.0}, {"q": 3.7}, 1.0, "share", id="less than min_gain is noise"),
        pytest.param({"q": 4.0}, {"q": 4.0}, 0.0, "share", id="no gain at all"),
        pytest.param({"q": 4.0}, {"q": 5.0}, 1.0, "share", id="a query gets slower"),
        pytest.param({"q": 0.0}, {"q": 0.0}, 1.0, "share", id="a query that does nothing"),
        pytest.param({}, {}, 1.0, "share", id="no query"),
        pytest.param({"q": 4.0}, {"q": 3.0}, 60.0, "cost", id="as dear as it is good"),
        pytest.param({"q": 4.0}, {"q": 3.0}, 1000.0, "cost", id="much dearer"),
        pytest.param({"q": 4.0, "r": 4.0}, {"q": 3.0, "r": 5.5}, 1.0, "cost", id="another query pays for it"),
        pytest.param({"q": 4.0, "r": 4.0}, {"q": 3.0, "r": 3.9}, 1.0, "", id="one query's gain is enough"),
    ],
)
def test_the_gate(before: dict[str, float], after: dict[str, float], cost: float, decided_by: str) -> None:
    result = verdict(before, after, cost=cost)
    assert result.passes == (not decided_by)
    if decided_by == "share":
        assert (result.limit, result.unit) == (0.1, "share") and result.measured < 0.1
    else:
        assert (result.measured, result.limit, result.unit) == (result.gain, cost, "s")
    assert result.sentence


def test_the_sentence_has_the_querys_name() -> None:
    result = evaluate_gate([QueryGain("q", 4.0, 3.0, 0.1, name="flights")], 1.0, SETTINGS)
    assert result.sentence.startswith("critical path of flights 4.00")


@pytest.mark.parametrize(
    ("lasts", "sentence"),
    [
        (5.0, "q 0.70 → 0.40 s (-43%), its batch 5.00 → 4.70 s, gain"),
        (0.2, "q 0.70 → 0.40 s (-43%), gain"),
        (0.0, "q 0.70 → 0.40 s (-43%), gain"),
    ],
    ids=["a small part of it", "less than is saved", "not measured"],
)
def test_the_sentence_has_the_batch_beside_its_critical_path(lasts: float, sentence: str) -> None:
    result = evaluate_gate([QueryGain("q", 0.7, 0.4, 0.1, batch_seconds=lasts)], 1.0, SETTINGS)
    assert sentence in result.sentence
