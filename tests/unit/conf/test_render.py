"""docs/configuration.md is what the schema says."""

from __future__ import annotations

from pathlib import Path

import pytest

from rechannel.conf import render
from rechannel.conf.settings import fields

DOCUMENT = Path(__file__).parents[3] / "docs" / "configuration.md"


def test_the_document_is_not_stale():
    text = DOCUMENT.read_text(encoding="utf-8")
    assert text == render.update_document(text), "run: python -m rechannel.conf.render docs/configuration.md"


def test_every_setting_has_a_row():
    rows = [line for line in render.to_markdown().splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == [name.partition(".")[2] for name in fields()]
    assert all(row.count(" | ") == 4 or "\\|" in row for row in rows)


def test_it_is_written_in_place_and_nothing_else_is_touched(tmp_path, capsys):
    path = tmp_path / "c.md"
    path.write_text(f"before\n{render.BEGIN}\nold\n{render.END}\nafter\n")
    assert render.main([str(path)]) == 0
    assert path.read_text() == f"before\n{render.BEGIN}\n\n{render.to_markdown()}\n{render.END}\nafter\n"
    assert render.main([]) == 0
    assert capsys.readouterr().out == render.to_markdown()
    with pytest.raises(ValueError, match="has no lines"):
        render.update_document("nothing")
