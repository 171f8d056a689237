"""Inequality of lease, observation and Redis' timeout."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rechannel.conf import lease_timing
from rechannel.conf.settings import Settings
from unit.conf.sources import errors_of


def test_the_defaults_meet_the_inequality_with_and_without_sentinels() -> None:
    settings = Settings()
    for sentinels, call in ((False, 4.0), (True, 6.0)):
        assert lease_timing.longest_call(settings.redis.timeout, sentinels=sentinels) == call
        assert lease_timing.least_lease(settings.controller.observe, call) < settings.controller.lease


@pytest.mark.parametrize(
    ("lease", "observe", "timeout", "url", "phrase"),
    [
        (9, 1, 2, "redis://h", "raise controller.lease to 9.1, or lower redis.timeout to 1.97"),
        (15, 1, 4, "redis://h", "raise controller.lease to 17.2, or lower redis.timeout to 3.46"),
        (15, 1, 3, "sentinel://a?service=m", "raise controller.lease to 19.2, or lower redis.timeout"),
        (2, 1, 2, "redis://h", "raise controller.lease to 9.1"),
        (12, 5, 0.1, "redis://h", "raise controller.lease to 15"),
    ],
)
def test_a_broken_inequality_names_fields_and_cure(
    lease: float, observe: float, timeout: float, url: str, phrase: str
) -> None:
    text = f"[controller]\nlease = {lease}\nobserve = {observe}\n[redis]\ntimeout = {timeout}\nurl = '{url}'\n"
    (error,) = errors_of(text)
    assert all(part in error for part in ("controller.lease: ", "controller.observe", "redis.timeout", phrase))


@example(lease=30.0, observe=0.1, timeout=8.0, sentinels=False)
@given(lease=st.floats(1, 600), observe=st.floats(0.1, 5), timeout=st.floats(0.05, 60), sentinels=st.booleans())
def test_the_cure_cures(lease: float, observe: float, timeout: float, sentinels: bool) -> None:
    for error in lease_timing.errors(lease, observe, timeout, sentinels=sentinels):
        raised = float(error.partition("raise controller.lease to ")[2].partition(",")[0])
        assert lease_timing.errors(raised, observe, timeout, sentinels=sentinels) == []
        lowered = error.partition("lower redis.timeout to ")[2]
        if lowered:
            assert lease_timing.errors(lease, observe, float(lowered), sentinels=sentinels) == []
