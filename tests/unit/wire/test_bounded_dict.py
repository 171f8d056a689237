"""Dictionary of bounded size."""

from __future__ import annotations

from rechannel.wire.bounded_dict import BoundedDict


def test_the_keys_that_were_set_last_stay() -> None:
    entries = BoundedDict[str, int](2)
    for key, value in (("a", 1), ("b", 2), ("a", 3), ("c", 4)):
        entries[key] = value
    assert list(entries.items()) == [("a", 3), ("c", 4)]
