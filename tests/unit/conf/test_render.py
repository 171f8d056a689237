"""Settings shown as TOML, as JSON and in docs/configuration.md."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from rechannel.conf import render
from rechannel.conf.loader import load, read_settings
from rechannel.conf.settings import fields
from unit.conf.sources import ENVIRON

DOCUMENT = Path(__file__).parents[3] / "docs" / "configuration.md"


def test_the_document_is_not_stale():
    text = DOCUMENT.read_text(encoding="utf-8")
    assert text == render.update_document(text), "run: python -m rechannel.conf.render docs/configuration.md"


def test_every_setting_has_a_row():
    rows = [line for line in render.to_markdown().splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == [name.partition(".")[2] for name in fields()]
    assert all(row.count(" | ") == 4 or "\\|" in row for row in rows)


def test_only_the_reference_of_a_document_is_replaced(tmp_path, capsys):
    path = tmp_path / "c.md"
    path.write_text(f"before\n{render.BEGIN}\nold\n{render.END}\nafter\n")
    assert render.main([str(path)]) == 0
    assert path.read_text() == f"before\n{render.BEGIN}\n\n{render.to_markdown()}\n{render.END}\nafter\n"
    assert render.main([]) == 0
    assert capsys.readouterr().out == render.to_markdown()
    with pytest.raises(ValueError, match="has no lines"):
        render.update_document("nothing")


def test_shown_settings_load_as_the_same(example, tmp_path):
    loaded = read_settings(example, ENVIRON)
    again = tmp_path / "again.toml"
    again.write_text(render.to_toml(loaded))
    assert load(again, {}) == loaded.settings
    lines = again.read_text().splitlines()
    assert "cooldown = 7.0  # RECHANNEL_GATE__COOLDOWN" in lines
    assert f"min_gain = 0.2  # {example}" in lines
    assert "horizon = 600.0  # default" in lines
    assert "# Time within which a migration must pay off. (seconds; 1 … 604800; live)" in lines


@pytest.mark.parametrize(
    "text", ['a"b', "tab\there", "line\nbreak", "back\\slash", "\x7f", "\x85", "ü", "\U0001f600", "\U000e0001", ""]
)
def test_any_text_is_valid_toml(text):
    assert tomllib.loads(f"value = {render.literal(text)}") == {"value": text}
    assert tomllib.loads(f"value = {render.literal([text, 1, 0.5, True])}") == {"value": [text, 1, 0.5, True]}


def test_an_odd_policy_and_parameter_are_quoted(tmp_path):
    path, again = tmp_path / "c.toml", tmp_path / "again.toml"
    path.write_text('[policies."a b"]\n"c d" = 1\n')
    again.write_text(render.to_toml(read_settings(path, {})))
    assert load(again, {}).policies == {"a b": {"c d": 1}}


def test_the_json_document_has_an_origin_for_every_setting(example):
    shown = render.to_document(read_settings(example, ENVIRON))
    assert shown["file"] == str(example)
    parameters = {"policies.adaptive.mode", "policies.even.max_moves", "policies.fair-redistribution.weight"}
    assert shown["origins"].keys() == fields().keys() | parameters
    assert shown["origins"]["gate.horizon"] == "default"
