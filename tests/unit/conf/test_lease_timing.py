"""The inequality between lease, observation and Redis' timeout, and addresses of sentinels."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rechannel.conf import lease_timing
from rechannel.conf.loader import load
from rechannel.conf.redis_url import SentinelAddress, sentinel_address
from rechannel.conf.settings import Settings, SettingsError

SENTINELS = "sentinel://a:26379,b:1,c?service=rechannel"


def test_the_defaults_meet_it_with_and_without_sentinels() -> None:
    settings = Settings()
    for sentinels, call in ((False, 4.0), (True, 6.0)):
        assert lease_timing.longest_call(settings.redis.timeout, sentinels=sentinels) == call
        assert lease_timing.least_lease(settings.controller.observe, call) < settings.controller.lease


@pytest.mark.parametrize(
    ("environment", "phrase"),
    [
        ({"CONTROLLER__LEASE": "9"}, "raise controller.lease to 9.1, or lower redis.timeout to 1.97"),
        ({"REDIS__TIMEOUT": "4"}, "raise controller.lease to 17.2, or lower redis.timeout to 3.46"),
        ({"REDIS__TIMEOUT": "3", "REDIS__URL": SENTINELS}, "raise controller.lease to 19.2, or lower redis.timeout"),
        ({"CONTROLLER__LEASE": "2", "CONTROLLER__OBSERVE": "1"}, "raise controller.lease to 9.1"),
        (
            {"CONTROLLER__LEASE": "12", "CONTROLLER__OBSERVE": "5", "REDIS__TIMEOUT": ".1"},
            "raise controller.lease to 15",
        ),
    ],
)
def test_a_broken_inequality_is_refused_with_fields_and_cure(environment: dict[str, str], phrase: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(None, {f"RECHANNEL_{name}": value for name, value in environment.items()})
    (mistake,) = caught.value.errors
    assert "controller.lease: " in mistake
    assert all(field in mistake for field in ("controller.observe", "redis.timeout"))
    assert phrase in mistake


@example(lease=30.0, observe=0.1, timeout=8.0, sentinels=False)
@given(lease=st.floats(1, 600), observe=st.floats(0.1, 5), timeout=st.floats(0.05, 60), sentinels=st.booleans())
def test_the_cure_cures(lease: float, observe: float, timeout: float, sentinels: bool) -> None:
    for mistake in lease_timing.errors(lease, observe, timeout, sentinels=sentinels):
        raised = float(mistake.partition("raise controller.lease to ")[2].partition(",")[0])
        assert lease_timing.errors(raised, observe, timeout, sentinels=sentinels) == []
        lowered = mistake.partition("lower redis.timeout to ")[2]
        if lowered:
            assert lease_timing.errors(lease, observe, float(lowered), sentinels=sentinels) == []


def test_an_address_of_sentinels() -> None:
    result = sentinel_address(SENTINELS)
    assert result == SentinelAddress((("a", 26379), ("b", 1), ("c", 26379)), "rechannel", 0)
    assert sentinel_address("sentinel://[::1]:7/3?service=x") == SentinelAddress((("::1", 7),), "x", 3)
    assert sentinel_address("redis://h/0") is None


@pytest.mark.parametrize(
    ("url", "phrase"),
    [
        ("sentinel://a:1,b:2/0", "sentinel://host:port,host:port"),
        ("sentinel://a:1/x?service=m", "sentinel://host:port,host:port"),
        ("sentinel://a:1?service=m&timeout=3", "sentinel://host:port,host:port"),
        ("sentinel://a:1,,b:2?service=m", "'' is no host and port"),
        ("sentinel://a:b?service=m", "'a:b' is no host and port"),
        ("sentinel://a:99999?service=m", "'a:99999' is no host and port"),
        ("sentinel://u:secret@a:1?service=m", "redis.sentinel_password_file"),
    ],
)
def test_a_wrong_address_of_sentinels_is_refused(url: str, phrase: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(None, {"RECHANNEL_REDIS__URL": url})
    assert "redis.url: " in str(caught.value)
    assert phrase in str(caught.value)
    assert "secret" not in str(caught.value)
