"""Streams in Redis, read page by page: their new entries, or all of them."""

from __future__ import annotations

from rechannel.wire.envelope import Envelope
from rechannel.wire.keys import KeyRule
from rechannel.wire.redis.answers import Convert
from rechannel.wire.redis.store import READ_AT_ONCE, Store

_PAGE = 200  # entries


def read_new_entries(
    store: Store, rule: KeyRule, name: str, after: str, *, first: int, convert: Convert | None = None
) -> tuple[str, list[Envelope]]:
    """Read a stream's entries after an id, or its newest ones.

    Returns the id to go on from, and the entries. A stream that ends before ``after`` was emptied or replaced: it is
    read from its start.

    ``after``: id of the last entry that was read, "" for none: then the ``first`` newest ones are read; ``convert``: as
    for `Store.read`.
    """
    if not after:
        newest = store.last_id(rule, name)
        if newest == "0":
            return "", []
        return newest, _read_last_entries(store, rule, name, first, convert)
    entries: list[Envelope] = []
    for _ in range(2 + 2 * rule.bound // _PAGE + rule.size // READ_AT_ONCE):
        newest, envelopes = store.read(rule, name, after, _PAGE, convert)
        entries += envelopes
        if newest == after:
            break
        after = newest
    else:  # more than such a stream may hold, as nobody trims it: only its end is read
        return read_new_entries(store, rule, name, "", first=first, convert=convert)
    if not entries and entry_number(store.last_id(rule, name)) < entry_number(after):
        return read_new_entries(store, rule, name, "", first=first, convert=convert)
    return after, entries


def _read_last_entries(store: Store, rule: KeyRule, name: str, count: int, convert: Convert | None) -> list[Envelope]:
    """Read the newest entries, backwards: one answer does not hold those of a large stream."""
    entries: list[Envelope] = []
    before = ""
    for _ in range(1 + rule.size // READ_AT_ONCE):
        first, envelopes = store.read_before(rule, name, before, count - len(entries), convert)
        entries[:0] = envelopes
        if first == before or len(entries) >= count:
            break
        before = first
    return entries


def read_all_entries(store: Store, rule: KeyRule, name: str, convert: Convert) -> tuple[str, list[Envelope]]:
    """Read a stream from its start, as far as its bound; returns as `read_new_entries`."""
    after, entries = "0", []
    for _ in range(1 + rule.bound // _PAGE + rule.size // READ_AT_ONCE):
        newest, envelopes = store.read(rule, name, after, _PAGE, convert)
        if newest == after:
            break
        entries += envelopes
        after = newest
    return after, entries


def entry_number(entry: str) -> tuple[int, int]:
    """Return the id of a stream entry as numbers, which compare in the order of the entries."""
    milliseconds, _, number = entry.partition("-")
    return int(milliseconds), int(number or 0)
