"""docs/configuration.md is what the schema says."""

from __future__ import annotations

from pathlib import Path

import pytest

from rechannel.conf import reference
from rechannel.conf.render import fields

DOCUMENT = Path(__file__).parents[3] / "docs" / "configuration.md"


def test_the_document_is_not_stale():
    text = DOCUMENT.read_text(encoding="utf-8")
    assert text == reference.document(text), "run: python -m rechannel.conf.reference docs/configuration.md"


def test_every_setting_has_a_row():
    rows = [line for line in reference.markdown().splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == [name.partition(".")[2] for name in fields()]
    assert all(row.count(" | ") == 4 or "\\|" in row for row in rows)


def test_it_is_written_in_place_and_nothing_else_is_touched(tmp_path, capsys):
    path = tmp_path / "c.md"
    path.write_text(f"before\n{reference.BEGIN}\nold\n{reference.END}\nafter\n")
    assert reference.main([str(path)]) == 0
    assert path.read_text() == f"before\n{reference.BEGIN}\n\n{reference.markdown()}\n{reference.END}\nafter\n"
    assert reference.main([]) == 0
    assert capsys.readouterr().out == reference.markdown()
    with pytest.raises(ValueError, match="has no lines"):
        reference.document("nothing")
