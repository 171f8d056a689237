"""The fault drills as tests: each scenario with each provider; the long ones are slow."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from _pytest.mark import ParameterSet

from tests.drills import sigterm
from tests.drills.scenarios import SCENARIOS, Scenario
from tests.drills.session import Session
from tests.drills.world import PROVIDERS

pytestmark = [pytest.mark.spark, pytest.mark.redis, pytest.mark.timeout(1200)]


def cases() -> Iterator[ParameterSet]:
    # One provider after the other: a world is kept from one scenario to the next.
    for provider in PROVIDERS:
        for scenario in SCENARIOS:
            marks = () if scenario.fast and provider == "hdfs" else (pytest.mark.slow,)
            yield pytest.param(scenario, provider, id=f"{scenario.name}, {provider}".replace(" ", "-"), marks=marks)


@pytest.fixture(scope="module")
def session(tmp_path_factory) -> Iterator[Session]:
    session = Session(tmp_path_factory.mktemp("drills"))
    yield session
    session.close()


@pytest.mark.parametrize(("scenario", "provider"), list(cases()))
def test_drill(session: Session, scenario: Scenario, provider: str):
    result = session.run(scenario, provider)
    if result.skipped:
        pytest.skip(result.skipped)
    assert result.problems == []
    assert (result.lost, result.doubled) == (0, 0)
    assert result.held


@pytest.mark.slow
@pytest.mark.parametrize("attached", [False, True], ids=["without Rechannel", "with Rechannel"])
@pytest.mark.parametrize("cured", [False, True], ids=["without the cure", "with the cure"])
def test_rows_are_lost_to_sigterm_by_spark_alone_and_only_without_the_cure(tmp_path, cured: bool, attached: bool):
    tries = 5 if cured else 20
    actual = sigterm.run(tries, cured=cured, attached=attached, directory=tmp_path, until_lost=not cured)
    assert actual["problems"] == []
    assert any(one["committed"] for one in actual["tries"]), "nothing was tried"
    assert cured or any(one["lost"] for one in actual["tries"]), "Spark has mended SPARK-37473"
