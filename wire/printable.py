"""Display names of queries and stages, shared sentences, and safe text for terminals."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

# Shown with the status and with every plan of a controller in observe mode.
OBSERVE_MODE = (
    'Observe mode: decisions are recorded, not applied. To apply them: reschedule.mode = "apply", or `--solo --apply`.'
)
NOBODY_REPORTS = (
    "no application reports: start a script with `rechannel submit`, or call rechannel.attach(spark) in its driver"
)
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def query_name(query: str, name: str = "") -> str:
    """Return the name of a query, or ``query-`` and the first eight digits of its UUID."""
    return name or (f"query-{query[:8]}" if _UUID.fullmatch(query) else query)


def stage_name(query: str, stage: int, name: str) -> str:
    """Return the name of a stateful stage: ``join/1``."""
    return f"{query_name(query, name)}/{stage}"


def partition_name(query: str, stage: int, partition: int, name: str) -> str:
    """Return the name of a partition of a stateful stage: ``join/1 #7``."""
    return f"{stage_name(query, stage, name)} #{partition}"


def with_noun(number: int, noun: str) -> str:
    """Return a number with its noun in the right form: ``1 batch``, ``2 batches``."""
    ending = "" if number == 1 else "es" if noun.endswith(("ch", "s", "x")) else "s"
    return f"{number:,} {noun}{ending}"


def plain(value: Any) -> Any:
    """Replace unprintable characters of a text, or of all texts in a structure of any type."""
    if isinstance(value, str):
        if value.isprintable():
            return value
        return "".join(char if char.isprintable() else " " if char.isspace() else "\ufffd" for char in value)
    if isinstance(value, list | tuple):
        return type(value)(plain(item) for item in value)
    if isinstance(value, dict):
        return {plain(key): plain(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return dataclasses.replace(value, **{name: plain(getattr(value, name)) for name in names})
    if hasattr(value, "__struct_fields__"):
        from msgspec.structs import replace  # a command's --help loads no msgspec

        return replace(value, **{name: plain(getattr(value, name)) for name in value.__struct_fields__})
    return value
