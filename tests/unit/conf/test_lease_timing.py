"""Inequality of lease, observation and Redis' timeout."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rechannel.conf import lease_timing
from rechannel.conf.settings import RedisSettings, Settings
from unit.conf.sources import errors_of


def test_the_defaults_meet_the_inequality_with_and_without_sentinels() -> None:
    settings = Settings()
    for url, call in (("redis://h", 4.0), ("sentinel://a?service=m", 6.0)):
        assert lease_timing.longest_call(replace(settings.redis, url=url)) == call
        assert lease_timing.least_lease(call) < settings.controller.lease


@pytest.mark.parametrize(
    ("lease", "timeout", "url", "phrase"),
    [
        (9, 2, "redis://h", "raise controller.lease to 9.1, or lower redis.timeout to 1.97"),
        (15, 4, "redis://h", "raise controller.lease to 17.2, or lower redis.timeout to 3.46"),
        (15, 3, "sentinel://a?service=m", "raise controller.lease to 19.2, or lower redis.timeout"),
        (3, 2, "redis://h", "raise controller.lease to 9.1"),
    ],
)
def test_a_broken_inequality_names_fields_and_cure(lease: float, timeout: float, url: str, phrase: str) -> None:
    text = f"[controller]\nlease = {lease}\n[redis]\ntimeout = {timeout}\nurl = '{url}'\n"
    (error,) = errors_of(text)
    assert all(part in error for part in ("controller.lease: ", "redis.timeout", phrase))


@example(lease=30.0, timeout=8.0, sentinels=False)
@given(lease=st.floats(3, 600), timeout=st.floats(0.05, 60), sentinels=st.booleans())
def test_the_cure_cures(lease: float, timeout: float, sentinels: bool) -> None:
    redis = RedisSettings(url="sentinel://a?service=m" if sentinels else "redis://h", timeout=timeout)
    for error in lease_timing.errors(lease, redis):
        raised = float(error.partition("raise controller.lease to ")[2].partition(",")[0])
        assert lease_timing.errors(raised, redis) == []
        lowered = error.partition("lower redis.timeout to ")[2]
        if lowered:
            assert lease_timing.errors(lease, replace(redis, timeout=float(lowered))) == []
