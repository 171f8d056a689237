"""Origin of each value, its display, and all mistakes at once."""

from __future__ import annotations

import dataclasses
import tomllib

import pytest

from rechannel.conf import render
from rechannel.conf.loader import load, read_settings
from rechannel.conf.settings import Settings


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "rechannel.toml"
    path.write_text(
        '[gate]\nmin_gain = 0.2\ncooldown = 5\n[reschedule]\nexcluded = ["Mon-Fri 09:00-18:00"]\n'
        '[cluster]\nname = "a-b"\n[policies.adaptive]\nmode = "light"\n[policies.even]\nmax_moves = 3\n'
    )
    return path


ENVIRON = {"RECHANNEL_GATE__COOLDOWN": "7", "RECHANNEL_POLICIES__FAIR_REDISTRIBUTION__WEIGHT": "x", "HOME": "/"}


def test_each_value_has_its_origin(path):
    loaded = read_settings(path, ENVIRON)
    assert loaded.errors == ()
    assert loaded.origins == {
        "gate.min_gain": str(path),
        "gate.cooldown": "RECHANNEL_GATE__COOLDOWN",
        "reschedule.excluded": str(path),
        "cluster.name": str(path),
        "policies.adaptive": str(path),
        "policies.even": str(path),
        "policies.adaptive.mode": str(path),
        "policies.even.max_moves": str(path),
        "policies.fair-redistribution.weight": "RECHANNEL_POLICIES__FAIR_REDISTRIBUTION__WEIGHT",
    }


def test_what_is_shown_can_be_read_and_gives_the_same(path, tmp_path):
    loaded = read_settings(path, ENVIRON)
    again = tmp_path / "again.toml"
    again.write_text(render.to_toml(loaded))
    assert load(again, {}) == loaded.settings
    lines = again.read_text().splitlines()
    assert "cooldown = 7.0  # RECHANNEL_GATE__COOLDOWN" in lines
    assert f"min_gain = 0.2  # {path}" in lines
    assert "horizon = 600.0  # default" in lines
    assert "# Time within which a migration must pay off. (seconds; 1 … 604800; live)" in lines


@pytest.mark.parametrize(
    "text", ['a"b', "tab\there", "line\nbreak", "back\\slash", "\x7f", "\x85", "ü", "\U0001f600", "\U000e0001", ""]
)
def test_any_text_survives_being_shown(text):
    assert tomllib.loads(f"value = {render.literal(text)}") == {"value": text}
    assert tomllib.loads(f"value = {render.literal([text, 1, 0.5, True])}") == {"value": [text, 1, 0.5, True]}


def test_an_odd_policy_and_parameter_are_quoted(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text('[policies."a b"]\n"c d" = 1\n')
    again = tmp_path / "again.toml"
    again.write_text(render.to_toml(read_settings(path, {})))
    assert load(again, {}).policies == {"a b": {"c d": 1}}


def test_the_document_names_an_origin_for_every_setting(path):
    shown = render.to_document(read_settings(path, ENVIRON))
    assert shown["file"] == str(path)
    fields = {f"{name}.{field}" for name, arguments in dataclasses.asdict(Settings()).items() for field in arguments}
    parameters = {"policies.adaptive.mode", "policies.even.max_moves", "policies.fair-redistribution.weight"}
    assert shown["origins"].keys() == fields | parameters
    assert shown["origins"]["gate.horizon"] == "default"


def test_mistakes_in_values_and_between_them_are_told_together(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text(
        "[gate]\nmin_gain = 7\n[agent]\nsample = 30\n[link]\npoll_moving = 1\n"
        '[redis]\nurl = "redis://:secret@h/0"\ntls_key_file = "/k"\n[reschedule]\ntime_zone = "Nowhere/At_All"\n'
    )
    mistakes = "\n".join(read_settings(path, {}).errors)
    fields = ("gate.min_gain", "agent.sample", "link.poll_moving", "password_file", "tls_key_file", "time_zone")
    assert all(field in mistakes for field in fields), mistakes
    assert "secret" not in mistakes


def test_a_wrong_field_is_not_held_against_the_others(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text('[agent]\nsample = 30\nwindow = "long"\n[controller]\nlease = 1\nobserve = 99\n')
    mistakes = read_settings(path, {}).errors
    assert [mistake.partition(":")[0] for mistake in mistakes] == ["agent.window", "controller.observe"]
