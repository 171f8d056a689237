"""Settings: defaults that are promised, and mistakes that are all found at once."""

from __future__ import annotations

import pytest

from rechannel.conf.settings import SettingsError, describe, load


def test_promised_defaults():
    settings = load(None, {})
    assert (settings.agent.window, settings.reschedule.windows) == (5.0, 3)
    assert settings.reschedule.timeout == 300.0
    assert settings.reschedule.mode == "observe"
    assert settings.gate.min_gain == 0.10
    assert settings.migration.moves_per_executor == 1


def test_every_mistake_is_found_at_once(tmp_path):
    path = tmp_path / "rechannel.toml"
    path.write_text(
        """
        stray = 1
        [gate]
        min_gain = 7
        [agent]
        windw = 5
        window = "long"
        [nonsense]
        a = 1
        [redis]
        url = "localhost"
        [reschedule]
        mode = "maybe"
        """
    )
    with pytest.raises(SettingsError) as caught:
        load(path, {"RECHANNEL_LINK__DEADLINE_BATCHES": "1.5"})
    text = "\n".join(caught.value.mistakes)
    assert len(caught.value.mistakes) == 8
    for field in (
        "stray",
        "gate.min_gain",
        "agent.windw",
        "agent.window",
        "[nonsense]",
        "redis.url",
        "reschedule.mode",
        "link.deadline_batches",
    ):
        assert field in text


def test_the_environment_wins_over_the_file(tmp_path):
    path = tmp_path / "rechannel.toml"
    path.write_text('[cluster]\nname = "one"\n[gate]\ncooldown = 5\n')
    settings = load(path, {"RECHANNEL_CLUSTER__NAME": "two", "RECHANNEL_CONFIG": "ignored"})
    assert (settings.cluster.name, settings.gate.cooldown) == ("two", 5.0)


@pytest.mark.parametrize("text", ["", "[[", "\x00"], ids=["empty", "broken", "binary"])
def test_a_file_is_read_or_named_in_the_error(tmp_path, text):
    path = tmp_path / "rechannel.toml"
    path.write_text(text)
    if not text:
        assert load(path, {}).cluster.name == "default"
        return
    with pytest.raises(SettingsError, match=r"rechannel\.toml: not valid TOML"):
        load(path, {})


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(SettingsError, match="cannot be read"):
        load(tmp_path / "none.toml", {})


@pytest.mark.parametrize(
    ("variable", "value", "why"),
    [
        ("RECHANNEL_AGENT__SAMPLE", "30", "agent.sample"),
        ("RECHANNEL_CONTROLLER__LEASE", "2", "controller.lease"),
        ("RECHANNEL_REDIS__URL", "redis://:secret@h:1/0", "redis.password_file"),
        ("RECHANNEL_REDIS__URL", "redis://h/0?password=secret", "redis.password_file"),
        ("RECHANNEL_REDIS__URL", "redis://h:port/0", "its port"),
        ("RECHANNEL_GATE__COOLDOWN", "nan", "not a number of seconds"),
        ("RECHANNEL_AGENT__BUFFERED_WINDOWS", "many", "not a whole number of windows"),
        ("RECHANNEL_LINK__SPREAD", "yes", "link.spread: 'yes' is neither true nor false"),
    ],
)
def test_values_that_do_not_fit_are_refused(variable, value, why):
    with pytest.raises(SettingsError, match=why) as caught:
        load(None, {variable: value})
    assert "secret" not in str(caught.value)


def test_truth_is_read_from_file_and_environment(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text("[link]\nspread = false\n")
    assert load(path, {}).link.spread is False
    assert load(path, {"RECHANNEL_LINK__SPREAD": "True"}).link.spread is True
    path.write_text('[link]\nspread = "false"\n')
    with pytest.raises(SettingsError, match="neither true nor false"):
        load(path, {})


def test_each_setting_has_a_reason():
    assert all(reason for *_, reason in describe())


def test_an_infinite_number_is_a_mistake_like_any_other(tmp_path):
    path = tmp_path / "rechannel.toml"
    path.write_text("[agent]\nbuffered_windows = inf\n[gate]\nhorizon = inf\n")
    with pytest.raises(SettingsError) as caught:
        load(path, {})
    assert len(caught.value.mistakes) == 2
