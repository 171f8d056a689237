"""Durations as text: amounts with units, or plain seconds."""

from __future__ import annotations

import pytest

from rechannel.conf.duration import parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("5m", 300),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("2d", 172_800),
        ("1.5h", 5400),
        ("1500ms", 1.5),
        (" 90 ", 90),
        ("0.5", 0.5),
        ("0", 0),
    ],
)
def test_amounts_with_units_and_plain_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "5x", "-5", "-5s", "1h-30m", "1:30", "nan", "inf", f"{'9' * 400}d"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time; write seconds, or text as in 90s, 5m or 1h30m"):
        parse_duration(text)
