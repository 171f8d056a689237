"""docs/roadmap.md says of each feature whether it works, and names settings that exist."""

from __future__ import annotations

import re

from rechannel.conf.settings import fields

from .pages import DOCS

TEXT = (DOCS / "roadmap.md").read_text(encoding="utf-8")
ROWS = [line.strip("| ").split(" | ") for line in TEXT.splitlines() if re.match(r"\| (?!feature|---)", line)]


def test_every_row_says_whether_it_works_and_what_works_names_a_test():
    assert len(ROWS) == 30 + 10
    for row in ROWS:
        assert len(row) == 3, row
        assert row[1] in ("works", "in part", "not yet")
        assert row[1] == "not yet" or "`test_" in row[2], row[0]


def test_every_row_that_does_not_work_says_why():
    left = [row for row in ROWS if row[1] != "works"]
    assert left
    for row in left:
        reason = re.sub(r"`[^`]*`", "", row[2].partition("Why: ")[2])
        assert len(reason.split()) > 7, row[0]


def test_every_setting_that_is_named_exists():
    entries = set(fields())
    sections = {name.partition(".")[0] for name in entries} - {"policies"}
    named = re.findall(r"`([a-z]+\.[a-z_]+)\b[^`(]*`", TEXT)
    assert named
    assert not [name for name in named if name.partition(".")[0] in sections and name not in entries]
