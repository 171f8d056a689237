"""Settings: defaults that are promised, and mistakes that are all found at once."""

from __future__ import annotations

import pytest

from rechannel.conf.loader import load
from rechannel.conf.settings import SettingsError, fields


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
    text = "\n".join(caught.value.errors)
    assert len(caught.value.errors) == 8
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
        ("RECHANNEL_REDIS__URL", "redis://[secret", "cannot be read as a URL"),
        ("RECHANNEL_REDIS__URL", "redis://:secret\u2100@host", "cannot be read as a URL"),
        ("RECHANNEL_REDIS__URL", "sentinel://:secret\u2100@host/0?service=s", "is not of the form sentinel://host"),
        ("RECHANNEL_CONTROLLER__LISTEN", "127.0.0.1:65536", "listen: 65536 is no port; .* between 0 and 65535"),
        ("RECHANNEL_AGENT__METRICS", "[::1]:99999", "agent.metrics: 99999 is no port"),
        ("RECHANNEL_GATE__COOLDOWN", "nan", r"gate.cooldown: nan is not a number \(unit: seconds\)"),
        ("RECHANNEL_AGENT__BUFFERED_WINDOWS", "many", r"'many' is not a whole number \(unit: windows\)"),
        ("RECHANNEL_GATE__MIN_GAIN", "abc", r"gate.min_gain: 'abc' is not a number \(unit: share\)"),
        ("RECHANNEL_REDIS__URL", "redis://h:1/abc", "redis.url: what follows the port is no number of a database"),
        ("RECHANNEL_RESCHEDULE__EXCLUDED", "Funday 1", "'Funday 1' does not fit; write periods as in Mon-Fri"),
        ("RECHANNEL_RESCHEDULE__TIMOUT", "1", "reschedule.timout: no such field; did you mean timeout. known are mode"),
        ("RECHANNEL_GAT__MIN_GAIN", "1", "RECHANNEL_GAT__MIN_GAIN: no such section 'gat'; did you mean gate. known"),
        ("RECHANNEL_LINK__SPREAD", "yes", "link.spread: 'yes' is neither true nor false"),
    ],
)
def test_values_that_do_not_fit_are_refused(variable, value, why):
    with pytest.raises(SettingsError, match=why) as caught:
        load(None, {variable: value})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"), [("5", 5), (" 5 ", 5), ("1_000", 1000), ("1.5", None), ("true", None), ("1e3", None)]
)
def test_a_whole_number_of_the_environment(text, value):
    variables = {"RECHANNEL_AGENT__BUFFERED_WINDOWS": text}
    if value is not None:
        assert load(None, variables).agent.buffered_windows == value
        return
    with pytest.raises(SettingsError, match=rf"'{text}' is not a whole number \(unit: windows\)"):
        load(None, variables)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("[gate]\nmin_gain = 7", "gate.min_gain: 7 is out of bounds; it must be between 0 and 1 share"),
        ("[link]\nevent_log_bytes = 1", "it must be at least 10485760 bytes"),
        ("[agent]\nbuffered_windows = 2.5", "2.5 is not a whole number (unit: windows)"),
        ("[agent]\nbuffered_windows = true", "True is not a whole number (unit: windows)"),
        ("[gate]\nhorizon = '5'", "'5' is not a number (unit: seconds)"),
        ("[cluster]\nname = 3", "3 is not text; put it in quotes"),
        ("[reschedule]\nmode = 'maybe'", "'maybe' is not one of observe, apply"),
    ],
)
def test_an_error_names_value_bound_and_cure(tmp_path, content, sentence):
    path = tmp_path / "c.toml"
    path.write_text(content)
    with pytest.raises(SettingsError) as caught:
        load(path, {})
    (error,) = caught.value.errors
    assert sentence in error


def test_a_whole_number_may_be_written_with_a_fraction_of_zero(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text("[agent]\nbuffered_windows = 5.0\n")
    assert repr(load(path, {}).agent.buffered_windows) == "5"


def test_truth_is_read_from_file_and_environment(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text("[link]\nspread = false\n")
    assert load(path, {}).link.spread is False
    assert load(path, {"RECHANNEL_LINK__SPREAD": "True"}).link.spread is True
    path.write_text('[link]\nspread = "false"\n')
    with pytest.raises(SettingsError, match="neither true nor false"):
        load(path, {})


def test_of_a_list_every_wrong_text_is_named(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text('[reschedule]\nexcluded = ["Funday 01:00-02:00", "Mon 01:00-02:00", "Mon 25:00-26:00", 3]\n[gat]\n')
    with pytest.raises(SettingsError) as caught:
        load(path, {})
    section, *texts = reversed(caught.value.errors)
    assert "[gat]: no such section; did you mean gate? known are " in section
    assert [mistake.partition("excluded: ")[2].split(" ")[0] for mistake in reversed(texts)] == ["'Funday", "'Mon", "3"]
    assert {mistake.partition(": ")[0] for mistake in texts} == {f"{path}:2"}


@pytest.mark.parametrize(
    "url", ["redis://h:1", "redis://h:1/", "redis://h:1/15", "rediss://h/3", "unix:///run/redis.sock"]
)
def test_a_database_is_a_number_or_left_out(url):
    assert load(None, {"RECHANNEL_REDIS__URL": url}).redis.url == url


def test_each_setting_has_a_reason():
    assert all(item.metadata["reason"] for item in fields().values())


def test_an_infinite_number_is_a_mistake_like_any_other(tmp_path):
    path = tmp_path / "rechannel.toml"
    path.write_text("[agent]\nbuffered_windows = inf\n[gate]\nhorizon = inf\n")
    with pytest.raises(SettingsError) as caught:
        load(path, {})
    assert len(caught.value.errors) == 2


def test_policies_have_a_table_each_and_the_environment_wins(tmp_path):
    path = tmp_path / "rechannel.toml"
    path.write_text(
        """
        [policies.adaptive]
        mode = "light"
        limit = 0.8
        [policies.fair-redistribution]
        sub_clusters = false
        [policies.data-locality]
        data_nodes = ["a", "b"]
        [policies.even]
        """
    )
    assert load(path, {}).policies == {
        "adaptive": {"mode": "light", "limit": 0.8},
        "fair-redistribution": {"sub_clusters": False},
        "data-locality": {"data_nodes": ["a", "b"]},
        "even": {},
    }
    arguments = {
        "RECHANNEL_POLICIES__ADAPTIVE__LIMIT": "0.7",
        "RECHANNEL_POLICIES__ADAPTIVE__MAX_MOVES": "9",
        "RECHANNEL_POLICIES__FAIR_REDISTRIBUTION__WEIGHT": "inverse-distance",
        "RECHANNEL_POLICIES__FAIR_REDISTRIBUTION__SUB_CLUSTERS": "true",
    }
    result = load(path, arguments).policies
    assert result["adaptive"] == {"mode": "light", "limit": 0.7, "max_moves": 9}
    assert result["fair-redistribution"] == {"weight": "inverse-distance", "sub_clusters": True}


@pytest.mark.parametrize("text", ["light", "none", "a b", "", "light # not", "1\nother = 2", "1,2"])
def test_what_is_no_value_of_toml_is_text(text):
    result = load(None, {"RECHANNEL_POLICIES__ADAPTIVE__MODE": text}).policies
    assert result == {"adaptive": {"mode": text}}


@pytest.mark.parametrize(
    ("text", "environment", "where"),
    [
        ("[policies]\nadaptive = 3\n", {}, "policies.adaptive: names no parameter"),
        ("policies = 3\n", {}, "policies: stands outside a section"),
        ("[policies.adaptive]\nlimit = inf\n", {}, "policies.adaptive.limit: inf is neither"),
        ("[policies.adaptive]\nlimit = [nan]\n", {}, "policies.adaptive.limit: [nan] is neither"),
        ("[policies.adaptive.mode]\na = 1\n", {}, "policies.adaptive.mode: {'a': 1} is neither"),
        ("[policies.adaptive]\nmode = [[1]]\n", {}, "policies.adaptive.mode: [[1]] is neither"),
        ("[policies.adaptive]\nmode = 2024-01-01\n", {}, "policies.adaptive.mode: datetime.date"),
        (f"[policies.adaptive]\nmax_moves = {10**400}\n", {}, "policies.adaptive.max_moves: 1000"),
        ("", {"RECHANNEL_POLICIES__ADAPTIVE": "light"}, "policies.adaptive: names no parameter"),
        ("", {"RECHANNEL_POLICIES__ADAPTIVE__LIMIT": "inf"}, "policies.adaptive.limit: inf is neither"),
    ],
)
def test_what_is_no_parameter_of_a_policy_is_a_mistake(tmp_path, text, environment, where):
    path = tmp_path / "rechannel.toml"
    path.write_text(text)
    with pytest.raises(SettingsError) as caught:
        load(path, environment)
    (result,) = caught.value.errors
    assert where in result
