"""Replace control characters in names that come from outside before printing them."""

from __future__ import annotations

import dataclasses
from typing import Any


def plain(value: Any) -> Any:
    """Return a text, or a structure of texts, with every character that is not printable replaced.

    A structure is a list, tuple, dict, dataclass or msgspec struct, and comes back as the same type.
    """
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
