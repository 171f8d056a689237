"""Durations as text, in the configuration and in options of commands."""

from __future__ import annotations

import math
import re

TEN_YEARS = 3650 * 86_400.0  # seconds; for what holds until it is replaced
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_PART = r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)"
_PARTS = re.compile(rf"(?:{_PART}\s*)+")


def parse_duration(text: str) -> float:
    """Return the seconds, from 0, of a text such as 90, 90s or 1h30m; ValueError otherwise."""
    text = text.strip()
    try:
        if _PARTS.fullmatch(text):
            seconds = sum(float(amount) * _UNIT_SECONDS[unit] for amount, unit in re.findall(_PART, text))
        else:
            seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{text!r} is not a time; write seconds, or text as in 90s, 5m or 1h30m")
    return seconds
