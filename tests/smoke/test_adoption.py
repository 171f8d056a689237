"""Rechannel adopted as the README says, by a user who has a cluster and a checkout."""

from __future__ import annotations

import pytest

from benchmarks.adoption import adopt

pytestmark = [pytest.mark.spark, pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(1800)]


def test_from_two_commands_to_a_measured_gain_in_ten_minutes() -> None:
    trial = adopt("solo")
    assert trial.seconds["measured gain"] < 600
    assert trial.batch_after < trial.batch_before
