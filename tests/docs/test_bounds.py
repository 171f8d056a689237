"""Every bound of the code says what happens beyond it, and stands in docs/limits.md."""

from __future__ import annotations

from docs.bounds import PAGE, bounds, with_table


def test_every_bound_says_what_is_beyond_it() -> None:
    silent = [f"{it.module}:{it.line} {it.name}" for it in bounds() if not (it.counts and it.beyond)]
    assert not silent, "the comment of a bound is: what it counts; beyond: what happens"


def test_the_table_is_that_of_the_code() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_table(page) == page, "run: python -m tests.docs.bounds"
