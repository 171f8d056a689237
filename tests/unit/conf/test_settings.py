"""Definitions of the settings; docs/configuration.md has every default, and `test_render` compares it."""

from __future__ import annotations

import pytest

from rechannel.conf.settings import Settings, fields

MOST = 45  # a new setting takes the place of another one, which becomes a constant or follows from others


def test_there_are_few_settings() -> None:
    assert len(fields()) <= MOST, "\n".join(fields())


@pytest.mark.parametrize("name", fields())
def test_a_setting_has_a_reason_and_a_default_within_its_bounds(name: str) -> None:
    section, _, field = name.partition(".")
    rule, default = fields()[name].metadata, getattr(getattr(Settings(), section), field)
    assert rule["reason"]
    if isinstance(default, int | float) and not isinstance(default, bool):
        low, high = rule["bounds"]
        assert rule["unit"]
        assert low <= default <= (default if high is None else high)
    assert not rule["choices"] or default in rule["choices"]
