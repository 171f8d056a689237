"""Limits of a page: it stays small for any cluster and names what it leaves out. Pure.

Text may come from any writer to Redis. It loses unprintable characters and its end here, and is escaped where it
becomes HTML (`rechannel.daemon.web.rendering`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeVar

from rechannel.wire.printable import plain

NAME = 80  # characters of a name
SENTENCE = 600  # characters of a sentence
APPLICATIONS = 10
EXECUTORS = 200  # of all applications together
CELLS = 4000  # partitions on the map, of all applications together
LEAST_CELLS = 4  # of one query's stage on one executor, unless it has fewer
GROUPS = 800  # stages on executors, of all applications together
QUERIES = 40  # of one application
PROBLEMS = 8
DECISIONS = 10
LOADS = 25  # executors of one decision
REFUSALS = 20
NOTES = 8
MOVES = 150  # of all applications together
DRAINS = 50
SCHEDULED_PLANS = 20
TOP = 10  # busiest partitions, and hot streams

Item = TypeVar("Item")


def clip_name(value: str) -> str:
    """Return a printable name of bounded length."""
    return _clip(value, NAME)


def clip_sentence(value: str) -> str:
    """Return a printable sentence of bounded length."""
    return _clip(value, SENTENCE)


def cut(items: Sequence[Item], most: int, noun: str, order: str = "") -> tuple[list[Item], str]:
    """Return the first ``most`` items, and a sentence on the rest or "" if there is none.

    ``noun``: plural of what the items are; ``order``: which are shown, such as "the busiest", "" for the first ones.
    """
    if len(items) <= most:
        return list(items), ""
    return list(items[:most]), f"Shown are {most:,} of {len(items):,} {noun}{f': {order}' if order else ''}."


def _clip(value: str, most: int) -> str:
    text: str = plain(value)
    return text if len(text) <= most else text[: most - 1] + "…"


def natural_key(value: str) -> tuple[tuple[int, int | str], ...]:
    """Return the sort key of a name: ``node-2`` comes before ``node-10``."""
    parts = re.split(r"(\d{1,15})", value)
    return tuple((0, int(part)) if index % 2 else (1, part) for index, part in enumerate(parts))
