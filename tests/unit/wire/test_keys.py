"""Keys: safe names, and the table in docs/redis-keys.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from rechannel.wire import keys


def test_the_page_has_the_table():
    page = Path(__file__).parents[3] / "docs" / "redis-keys.md"
    lines = ["| key | kind | writer | readers | bound | bytes | ttl | holds |", f"|{' --- |' * 8}"]
    for rule in keys.TABLE:
        ttl = f"{rule.ttl} s" if rule.ttl else "none"
        size = f"{rule.size // 2**20} MiB" if rule.size >= 2**20 else f"{rule.size // 2**10} KiB"
        cells = (f"`{rule.pattern}`", rule.kind, rule.writer, ", ".join(rule.readers), f"{rule.bound:,}", size, ttl)
        lines.append(f"| {' | '.join(cells)} | {rule.holds} |")
    assert "\n".join(lines) in page.read_text()


def test_names_fill_the_pattern():
    assert keys.Keys("prod")(keys.WINDOWS, "10.0.0.1") == "rechannel:{prod}:node:10.0.0.1:windows"
    assert keys.Keys("prod")(keys.LEASE) == "rechannel:{prod}:controller:lease"


@pytest.mark.parametrize("name", ["", "a b", "a*", "a\n", "{x}", "ü", "x" * 129])
def test_a_name_that_could_reach_other_keys_is_refused(name):
    with pytest.raises(keys.KeyNameError):
        keys.Keys("prod")(keys.WINDOWS, name)
    with pytest.raises(keys.KeyNameError):
        keys.Keys(name)


def test_every_key_has_a_bound():
    assert all(rule.bound > 0 and rule.size > 0 for rule in keys.TABLE)
