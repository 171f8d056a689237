"""Dictionary of bounded size, for what would otherwise grow as long as a process runs."""

from __future__ import annotations

from typing import TypeVar

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")


class BoundedDict(dict[KeyT, ValueT]):
    """Dictionary of the last ``bound`` keys that were set, the newest one last."""

    def __init__(self, bound: int) -> None:
        super().__init__()
        self._bound = bound

    def __setitem__(self, key: KeyT, value: ValueT) -> None:
        self.pop(key, None)
        super().__setitem__(key, value)
        if len(self) > self._bound:
            del self[next(iter(self))]
