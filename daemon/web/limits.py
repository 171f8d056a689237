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
HOT = 10

Item = TypeVar("Item")


def clip_name(value: str) -> str:
    """Return a printable name of bounded length."""
    text: str = plain(value)
    return text if len(text) <= NAME else text[: NAME - 1] + "…"


def clip_sentence(value: str) -> str:
    """Return a printable sentence of bounded length."""
    text: str = plain(value)
    return text if len(text) <= SENTENCE else text[: SENTENCE - 1] + "…"


def left_out(shown: int, total: int, what: str, order: str = "") -> str:
    """Return the sentence on a list that was cut, "" where all items are shown."""
    return f"Shown are {shown:,} of {total:,} {what}{f': {order}' if order else ''}." if shown < total else ""


def cut(items: Sequence[Item], most: int, what: str, order: str = "") -> tuple[list[Item], str]:
    """Return the first ``most`` items and the sentence on the rest."""
    first = list(items[:most])
    return first, left_out(len(first), len(items), what, order)


def natural_key(value: str) -> tuple[tuple[int, int | str], ...]:
    """Return the sort key of a name: ``node-2`` comes before ``node-10``."""
    parts = re.split(r"(\d{1,15})", value)
    return tuple((0, int(part)) if index % 2 else (1, part) for index, part in enumerate(parts))
