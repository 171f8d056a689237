"""Display names of queries and stages, numbers with nouns, and safe text for terminals."""

from __future__ import annotations

import re
from typing import Any

_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def query_name(query: str, name: str = "") -> str:
    """Return the name of a query, or ``query-`` and the first eight digits of its UUID."""
    return name or (f"query-{query[:8]}" if _UUID.fullmatch(query) else query)


def stage_name(query: str, stage: int, name: str = "") -> str:
    """Return the name of a stateful stage: ``join/1``."""
    return f"{query_name(query, name)}/{stage}"


def partition_name(query: str, stage: int, partition: int, name: str = "") -> str:
    """Return the name of a partition of a stateful stage: ``join/1 #7``."""
    return f"{stage_name(query, stage, name)} #{partition}"


def count(number: int, noun: str) -> str:
    """Return a number with its noun in the right form: ``1 batch``, ``2 batches``."""
    ending = "" if number == 1 else "es" if noun.endswith(("ch", "s", "x")) else "s"
    return f"{number:,} {noun}{ending}"


def plain(value: Any) -> Any:
    """Replace control characters in a text, or in all texts of lists and dicts."""
    if isinstance(value, str):
        if value.isprintable():
            return value
        return "".join(char if char.isprintable() else " " if char.isspace() else "\ufffd" for char in value)
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {plain(key): plain(item) for key, item in value.items()}
    return value
