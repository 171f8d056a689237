"""Text of others on its way to a terminal: what an application, a query or a node is called is for others to say."""

from __future__ import annotations

from typing import Any


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
