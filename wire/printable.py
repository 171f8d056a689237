"""Display names of queries, stages and partitions, numbers with nouns, and text that is safe to print."""

from __future__ import annotations

import re
from typing import Any

_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def query_name(query: str, name: str = "") -> str:
    """Return what a query is called: its name, or ``query-`` and the first eight digits of its id, a UUID."""
    return name or (f"query-{query[:8]}" if _UUID.fullmatch(query) else query)


def stage_name(query: str, stage: int, name: str = "") -> str:
    """Return the name of a stateful stage: ``join/1``."""
    return f"{query_name(query, name)}/{stage}"


def partition_name(query: str, stage: int, partition: int, name: str = "") -> str:
    """Return the name of a partition of a stateful stage: ``join/1 #7``."""
    return f"{stage_name(query, stage, name)} #{partition}"


def count(number: int, noun: str) -> str:
    """Return a number with its noun, which takes an s (``batch`` an es) unless there is one: ``1 batch``."""
    ending = "" if number == 1 else "es" if noun.endswith(("ch", "s", "x")) else "s"
    return f"{number:,} {noun}{ending}"


def plain(value: Any) -> Any:
    """Return a text, or a document of lists and dicts, in which every character is one that is only looked at."""
    if isinstance(value, str):
        if value.isprintable():
            return value
        return "".join(char if char.isprintable() else " " if char.isspace() else "\ufffd" for char in value)
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {plain(key): plain(item) for key, item in value.items()}
    return value
