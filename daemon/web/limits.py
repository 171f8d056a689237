"""How much of a view is shown: a page stays small whatever the cluster is, and says what it leaves out. Pure.

Text comes from whoever may write to Redis. Here it loses what is not printable and what is too long; that it is data
and not markup is seen to where it becomes HTML (`rechannel.daemon.web.rendering`).
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
GROUPS = 800  # query's stages on executors, of all applications together
QUERIES = 40  # of one application
PROBLEMS = 8
DECISIONS = 10
LOADS = 25  # executors of one decision
REFUSALS = 20
NOTES = 8
MOVES = 150  # of all applications together
DRAINS = 50
WAITING = 20  # saved plans
HOT = 10

Item = TypeVar("Item")


def name(value: str) -> str:
    """Return a name as it is shown."""
    text: str = plain(value)
    return text if len(text) <= NAME else text[: NAME - 1] + "…"


def sentence(value: str) -> str:
    """Return a sentence as it is shown."""
    text: str = plain(value)
    return text if len(text) <= SENTENCE else text[: SENTENCE - 1] + "…"


def left_out(shown: int, there: int, what: str, how: str = "") -> str:
    """Say that only ``shown`` of ``there`` are shown; "" where all are."""
    return f"Shown are {shown:,} of {there:,} {what}{f': {how}' if how else ''}." if shown < there else ""


def cut(items: Sequence[Item], most: int, what: str, how: str = "") -> tuple[list[Item], str]:
    """Return the first ``most`` items, and the sentence about those that are left out ("" if none is)."""
    kept = list(items[:most])
    return kept, left_out(len(kept), len(items), what, how)


def natural(value: str) -> tuple[tuple[int, int | str], ...]:
    """Return what names are sorted by: ``node-2`` comes before ``node-10``."""
    parts = re.split(r"(\d{1,15})", value)
    return tuple((0, int(part)) if index % 2 else (1, part) for index, part in enumerate(parts))
