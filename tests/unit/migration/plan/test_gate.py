from __future__ import annotations

import pytest

from rechannel.conf.settings import GateSettings
from rechannel.migration.plan.gate import GateResult, judge

SETTINGS = GateSettings(min_gain=0.1, horizon=600)


def verdict(before: dict[str, float], after: dict[str, float], cost: float = 1.0) -> GateResult:
    rates = dict.fromkeys(before, 0.1)  # a batch every ten seconds: sixty in the horizon
    return judge(before, after, rates, cost=cost, settings=SETTINGS)


def test_gain_is_what_all_batches_of_the_horizon_save_and_cost_is_steps_and_state() -> None:
    found = verdict({"q": 4.0}, {"q": 3.0}, cost=5.0)
    assert (found.passes, found.code) == (True, "ok")
    assert found.gain == pytest.approx(60)
    assert found.cost == pytest.approx(5)
    assert found.share == pytest.approx(0.25)
    assert found.sentence == ("critical path of q 4.00 → 3.00 s (-25%), gain 60.0 s over 600 s against a cost of 5.0 s")


@pytest.mark.parametrize(
    ("before", "after", "cost", "code"),
    [
        pytest.param({"q": 4.0}, {"q": 3.7}, 1.0, "too-small", id="less than min_gain is noise"),
        pytest.param({"q": 4.0}, {"q": 4.0}, 0.0, "too-small", id="no gain at all"),
        pytest.param({"q": 4.0}, {"q": 5.0}, 1.0, "too-small", id="a query gets slower"),
        pytest.param({"q": 0.0}, {"q": 0.0}, 1.0, "too-small", id="a query that does nothing"),
        pytest.param({}, {}, 1.0, "too-small", id="no query"),
        pytest.param({"q": 4.0}, {"q": 3.0}, 60.0, "too-dear", id="as dear as it is good"),
        pytest.param({"q": 4.0}, {"q": 3.0}, 1000.0, "too-dear", id="much dearer"),
        pytest.param({"q": 4.0, "r": 4.0}, {"q": 3.0, "r": 5.5}, 1.0, "too-dear", id="another query pays for it"),
        pytest.param({"q": 4.0, "r": 4.0}, {"q": 3.0, "r": 3.9}, 1.0, "ok", id="one query's gain is enough"),
    ],
)
def test_the_gate(before: dict[str, float], after: dict[str, float], cost: float, code: str) -> None:
    found = verdict(before, after, cost=cost)
    assert found.code == code
    assert found.passes == (code == "ok")
    assert found.sentence


def test_people_read_the_querys_name() -> None:
    found = judge({"q": 4.0}, {"q": 3.0}, {"q": 0.1}, cost=1.0, settings=SETTINGS, names={"q": "flights"})
    assert found.sentence.startswith("critical path of flights 4.00")


@pytest.mark.parametrize(
    ("lasts", "said"),
    [
        (5.0, "q 0.70 → 0.40 s (-43%), its batch 5.00 → 4.70 s, gain"),
        (0.2, "q 0.70 → 0.40 s (-43%), gain"),
        (0.0, "q 0.70 → 0.40 s (-43%), gain"),
    ],
    ids=["a small part of it", "less than is saved", "not measured"],
)
def test_the_batch_is_told_beside_its_critical_path(lasts: float, said: str) -> None:
    found = judge({"q": 0.7}, {"q": 0.4}, {"q": 0.1}, cost=1.0, settings=SETTINGS, batch_seconds={"q": lasts})
    assert said in found.sentence
