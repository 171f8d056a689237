"""Search, reading and checking of the configuration: origin, line and error of each value."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from rechannel.conf import loader
from rechannel.conf.loader import load, read_settings
from rechannel.conf.settings import SettingsError
from rechannel.daemon.cli.main import main
from unit.conf.sources import ENVIRON, errors_of, load_text

# -- search --


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Configuration files of a working directory and of the machine, neither of which exists."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.delenv("RECHANNEL_CONFIG", raising=False)
    monkeypatch.setattr(loader, "SEARCH_PATH", (Path("rechannel.toml"), tmp_path / "etc.toml"))
    return here / "rechannel.toml", tmp_path / "etc.toml"


def test_the_first_place_with_a_file_wins(places: tuple[Path, Path], tmp_path: Path) -> None:
    own, machines = places
    named, of_environment = tmp_path / "named.toml", tmp_path / "environment.toml"
    for path in (own, machines, named, of_environment):
        path.write_text(f'[cluster]\nname = "{path.stem}"\n')
    environ = {"RECHANNEL_CONFIG": str(of_environment)}
    assert load(named, environ).cluster.name == "named"
    assert load(None, environ).cluster.name == "environment"
    assert load(None, {}).cluster.name == "rechannel"
    assert read_settings(None, {}).path == own
    own.unlink()
    assert load(None, {}).cluster.name == "etc"
    machines.unlink()
    assert load(None, {}).cluster.name == "default"


def test_the_file_in_use_is_described(places: tuple[Path, Path]) -> None:
    own, machines = places
    none = f"no configuration file: RECHANNEL_CONFIG is not set, ./rechannel.toml does not exist, {machines} does not"
    assert read_settings(None, {}).describe() == f"{none} exist; defaults used"
    set_by = {"RECHANNEL_CLUSTER__NAME": "a"}
    assert read_settings(None, set_by).describe() == f"{none} exist; variables of the environment and defaults used"
    for path in (machines, own):
        path.write_text("")
        assert read_settings(None, {}).describe() == f"configuration: {path}"
    assert read_settings(None, {"RECHANNEL_CONFIG": "/x"}).describe() == "configuration: /x (RECHANNEL_CONFIG)"


def test_a_file_that_another_user_could_have_put_there_is_skipped(places: tuple[Path, Path]) -> None:
    own, machines = places
    own.write_text('[cluster]\nname = "theirs"\n')
    own.chmod(0o666)
    machines.write_text("")
    assert load(None, {}).cluster.name == "default"
    assert "; ./rechannel.toml is passed over, as it belongs to another user" in read_settings(None, {}).describe()
    own.chmod(0o600)
    if os.geteuid() == 0:
        os.chown(own, 12345, 0)
        assert load(None, {}).cluster.name == "default"
    own.unlink()
    os.mkfifo(own)  # not waited for
    assert "./rechannel.toml is not a regular file" in read_settings(None, {}).describe()


def test_commands_name_the_configuration_when_redis_is_away(places: tuple[Path, Path], tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["status"], env={"RECHANNEL_REDIS__URL": "redis://127.0.0.1:1/0"})
    assert done.exit_code == 5
    assert "No configuration file: RECHANNEL_CONFIG is not set, ./rechannel.toml does not exist" in done.stderr
    named = tmp_path / "named.toml"
    named.write_text('[redis]\nurl = "redis://127.0.0.1:1/0"\ntimeout = 0.2\n')
    for text in (["status", "--config", str(named)], ["status", "--config", str(named), "--json"]):
        done = CliRunner().invoke(main, text)
        assert f"Configuration: {named}" in done.stderr
    assert f"Configuration: {named}" in json.loads(done.stdout)["error"]
    done = CliRunner().invoke(main, ["config", "check"], env={"RECHANNEL_CONFIG": str(named)})
    assert (done.exit_code, f"configuration: {named} (RECHANNEL_CONFIG)\n" in done.stderr) == (0, True)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        load(tmp_path / "none.toml", {})


# -- origins --


def test_the_environment_wins_over_the_file_and_each_value_has_its_origin(example: Path) -> None:
    loaded = read_settings(example, ENVIRON)
    assert loaded.errors == ()
    assert (loaded.settings.gate.min_gain, loaded.settings.gate.cooldown) == (0.2, 7.0)
    assert loaded.origins == {
        "gate.min_gain": str(example),
        "gate.cooldown": "RECHANNEL_GATE__COOLDOWN",
        "reschedule.excluded": str(example),
        "cluster.name": str(example),
        "policies.adaptive": str(example),
        "policies.even": str(example),
        "policies.adaptive.mode": str(example),
        "policies.even.max_moves": str(example),
        "policies.fair-redistribution.weight": "RECHANNEL_POLICIES__FAIR_REDISTRIBUTION__WEIGHT",
    }


def test_relative_paths_start_at_the_directory_of_their_file(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(
        '[redis]\nurl = "rediss://h:1/0"\npassword_file = "a"\ntls_ca_file = "b"\ntls_certificate_file = "../c"\n'
        'tls_key_file = "/d"\nsentinel_password_file = "e"\n[signing]\nprivate_key_file = "f"\npublic_key_file = "g/h"'
        '\n[controller]\naudit_file = "i"\n[link]\ndirectory = "j"\n'
    )
    result = load(os.path.relpath(path), {"RECHANNEL_SIGNING__PRIVATE_KEY_FILE": "k"})
    redis = result.redis
    files = (redis.password_file, redis.tls_ca_file, redis.tls_certificate_file, redis.tls_key_file)
    more = (redis.sentinel_password_file, result.signing.public_key_file, result.controller.audit_file)
    assert [os.path.relpath(name, tmp_path) for name in (*files[:3], *more, result.link.directory)] == [
        *("a", "b", "../c", "e", "g/h", "i", "j")
    ]
    assert redis.tls_key_file == "/d"
    assert result.signing.private_key_file == "k"  # of the environment: relative to the working directory
    assert load(None, {}).signing.private_key_file == ""


# -- lines --


def test_errors_name_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(
        '# a comment\n[gate] # one\n\nmin_gain = 7\n[reschedule]\nexcluded = [\n  "Funday 01:00-02:00",\n]\n'
        'policy = """\nmagic"""\n[gaet]\nx = 1\n[policies.adaptive]\n  limt = 1\n[redis]\ntls_key_file = "/k"\n'
    )
    with pytest.raises(SettingsError) as caught:
        load(path, {"RECHANNEL_GATE__COOLDOWN": "soon", "RECHANNEL_CONTROLLER__LEASE": "4"})
    assert {error.split(": ")[1]: error.split(": ")[0] for error in caught.value.errors} == {
        "gate.min_gain": f"{path}:4",
        "gate.cooldown": "RECHANNEL_GATE__COOLDOWN",
        "reschedule.excluded": f"{path}:6",
        "[gaet]": f"{path}:11",
        "redis.tls_certificate_file and redis.tls_key_file": f"{path}:16",
        "redis.tls_key_file": f"{path}:16",
        "controller.lease": "RECHANNEL_CONTROLLER__LEASE",
    }
    assert pickle.loads(pickle.dumps(caught.value)).errors == caught.value.errors
    done = CliRunner().invoke(main, ["config", "check", "--config", str(path)])
    assert f"{path}:9: reschedule.policy: " in done.stderr
    assert f"{path}:14: policies.adaptive.limt: " in done.stderr
    assert done.stderr.count(f"{path}:4: ") == 1


def test_errors_of_files_that_the_configuration_names_have_a_line(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('[signing]\nprivate_key_file = "nowhere"\n[redis]\npassword_file = "away"\n')
    done = CliRunner().invoke(main, ["config", "check", "--config", str(path)])
    assert f"{path}:2: signing.private_key_file: {tmp_path}/nowhere cannot be read" in done.stderr
    assert f"{path}:4: redis.password_file: {tmp_path}/away cannot be read" in done.stderr
    done = CliRunner().invoke(main, ["controller", "--config", str(path)])
    assert (done.exit_code, f"{path}:2: signing.private_key_file: " in done.stderr) == (7, True)


@given(
    st.dictionaries(
        st.sampled_from(["gate", "redis", "a b"]),
        st.dictionaries(
            st.sampled_from(["x", "y", "z w"]), st.sampled_from(["1", '"a#b"', "[\n 1, # one\n 2]", '"""\n\n#\n[q]"""'])
        ),
    ),
    st.lists(st.sampled_from(["", "# c", "  "]), max_size=3),
)
def test_lines_of_any_file(content: dict[str, dict[str, str]], between: list[str]) -> None:
    rows: list[str] = []
    expected: dict[tuple[str, ...], int] = {}
    for section, fields in content.items():
        rows += [*between, f'["{section}"]']
        expected[section,] = len(rows)
        for name, value in fields.items():
            rows += between
            expected[section, name] = len(rows) + 1
            rows += f'"{name}" = {value}'.split("\n")
    path = Path("/dev/shm") / f"rechannel-test-{os.getpid()}.toml"
    path.write_text("\n".join(rows))
    try:
        assert loader.line_numbers(path) == expected
    finally:
        path.unlink()


@pytest.mark.parametrize("text", [None, "[a\n", "a = 1\n" + "\n" * 3000], ids=["missing", "broken", "long"])
def test_some_files_have_no_line_numbers(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "c.toml"
    if text is not None:
        path.write_text(text)
    assert loader.line_numbers(path) == {}


# -- errors --


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("[gate]\nmin_gain = 7", "gate.min_gain: 7 is out of bounds; it must be between 0 and 1 share"),
        ("[migration]\nmax_moves = 2.5", "2.5 is not a whole number (unit: moves)"),
        ("[migration]\nmax_moves = true", "True is not a whole number (unit: moves)"),
        ("[migration]\nmax_moves = inf", "inf is not a whole number (unit: moves)"),
        ("[gate]\nhorizon = inf", "inf is not a number (unit: seconds)"),
        ("[gate]\nhorizon = true", "True is not a number (unit: seconds)"),
        ("[gate]\nhorizon = '5x'", "gate.horizon: '5x' is not a time; write seconds, or text as in 90s, 5m or 1h30m"),
        ("[gate]\nhorizon = '30d'", "2592000.0 is out of bounds; it must be between 1 and 604800 seconds"),
        ("[gate]\nmin_gain = '5m'", "'5m' is not a number (unit: share)"),
        ("[gate]\nmin_gain = 1\nhorizon = \n", "rechannel.toml:3: not valid TOML"),
        ("[cluster]\nname = 3", "3 is not text; put it in quotes"),
        ("[reschedule]\nmode = 'maybe'", "'maybe' is not one of observe, apply"),
        ('[link]\nspread = "false"', "'false' is neither true nor false"),
        ("stray = 1", "stray: stands outside a section"),
        ("[nonsense]\na = 1", "[nonsense]: no such section; known are cluster, redis"),
        ("[agent]\nwindw = 5", "agent.windw: no such field; did you mean window? known are node"),
        ("[[", "rechannel.toml: not valid TOML"),
        ("\x00", "rechannel.toml:1: not valid TOML"),
        ("[policies]\nadaptive = 3", "policies.adaptive: names no parameter"),
        ("policies = 3", "policies: stands outside a section"),
        ("[policies.adaptive]\nlimit = inf", "policies.adaptive.limit: inf is neither"),
        ("[policies.adaptive]\nlimit = [nan]", "policies.adaptive.limit: [nan] is neither"),
        ("[policies.adaptive.mode]\na = 1", "policies.adaptive.mode: {'a': 1} is neither"),
        ("[policies.adaptive]\nmode = [[1]]", "policies.adaptive.mode: [[1]] is neither"),
        ("[policies.adaptive]\nmode = 2024-01-01", "policies.adaptive.mode: datetime.date"),
        (f"[policies.adaptive]\nmax_moves = {10**400}", "policies.adaptive.max_moves: 1000"),
        (("POLICIES__ADAPTIVE", "light"), "policies.adaptive: names no parameter"),
        (("POLICIES__ADAPTIVE__LIMIT", "inf"), "policies.adaptive.limit: inf is neither"),
        (("GATE__COOLDOWN", "nan"), "gate.cooldown: 'nan' is not a time; write seconds"),
        (("GATE__MIN_GAIN", "abc"), "gate.min_gain: 'abc' is not a number (unit: share)"),
        (("MIGRATION__MAX_MOVES", "many"), "'many' is not a whole number (unit: moves)"),
        (("MIGRATION__MAX_MOVES", "1.5"), "'1.5' is not a whole number (unit: moves)"),
        (("MIGRATION__MAX_MOVES", "true"), "'true' is not a whole number (unit: moves)"),
        (("MIGRATION__MAX_MOVES", "1e3"), "'1e3' is not a whole number (unit: moves)"),
        (("RESCHEDULE__EXCLUDED", "Funday 1"), "'Funday 1' does not fit; write periods as in Mon-Fri"),
        (("RESCHEDULE__TIMOUT", "1"), "reschedule.timout: no such field; did you mean timeout? known are mode"),
        (("GAT__MIN_GAIN", "1"), "RECHANNEL_GAT__MIN_GAIN: no such section 'gat'; did you mean gate? known"),
        (("LINK__SPREAD", "yes"), "link.spread: 'yes' is neither true nor false"),
    ],
)
def test_an_error_names_value_bound_and_cure(source: str | tuple[str, str], sentence: str) -> None:
    (error,) = errors_of(source) if isinstance(source, str) else errors_of(**dict([source]))
    assert sentence in error


def test_all_errors_are_reported_at_once() -> None:
    errors = errors_of(
        "stray = 1\n[gate]\nmin_gain = 7\n[agent]\nwindw = 5\nwindow = 'long'\nmetrics = 'h:99999'\n"
        "[redis]\ntls_key_file = '/k'\n[nonsense]\na = 1\n",
        MIGRATION__MAX_MOVES="1.5",
    )
    fields = ("stray", "gate.min_gain", "agent.windw", "agent.window", "[nonsense]", "migration.max_moves")
    between = ("agent.metrics", "redis.tls_certificate_file and redis.tls_key_file", "redis.tls_key_file")
    assert len(errors) == len(fields) + len(between)
    assert all(field in "\n".join(errors) for field in (*fields, *between))


def test_a_rule_between_fields_has_the_line_of_the_one_that_is_set() -> None:
    (error,) = errors_of("[redis]\nurl = 'rediss://h/0'\ntls_key_file = '/k'\n")
    assert "rechannel.toml:3: redis.tls_certificate_file and redis.tls_key_file" in error


def test_rules_between_fields_are_not_checked_for_a_field_with_an_error() -> None:
    errors = errors_of("[controller]\nlease = 4\n[redis]\ntimeout = 99\n")
    assert [error.split(": ")[1] for error in errors] == ["redis.timeout"]


def test_every_wrong_text_of_a_list_is_named() -> None:
    *texts, section = errors_of(
        '[reschedule]\nexcluded = ["Funday 01:00-02:00", "Mon 01:00-02:00", "Mon 25:00-26:00", 3]\n[gat]\n'
    )
    assert "[gat]: no such section; did you mean gate? known are " in section
    assert [error.partition("excluded: ")[2].split(" ")[0] for error in texts] == ["'Funday", "'Mon", "3"]
    assert all("rechannel.toml:2: " in error for error in texts)


# -- values --


def test_a_time_may_be_text_with_units() -> None:
    assert load_text("[gate]\nhorizon = '1h30m'\n").gate.horizon == 5400
    assert load_text(GATE__HORIZON="1h30m").gate.horizon == 5400
    assert load_text(GATE__HORIZON="90").gate.horizon == 90


@pytest.mark.parametrize(("text", "value"), [("5", 5), (" 5 ", 5), ("1_000", 1000)])
def test_a_whole_number_of_the_environment(text: str, value: int) -> None:
    assert load_text(MIGRATION__MAX_MOVES=text).migration.max_moves == value


def test_a_whole_number_may_be_written_with_a_fraction_of_zero() -> None:
    assert repr(load_text("[migration]\nmax_moves = 5.0\n").migration.max_moves) == "5"


def test_truth_values_of_file_and_environment() -> None:
    assert load_text("[link]\nspread = false\n").link.spread is False
    assert load_text("[link]\nspread = false\n", LINK__SPREAD="True").link.spread is True


def test_policies_have_a_table_each_and_the_environment_wins() -> None:
    text = (
        '[policies.adaptive]\nmode = "light"\nlimit = 0.8\n[policies.fair-redistribution]\nsub_clusters = false\n'
        '[policies.data-locality]\ndata_nodes = ["a", "b"]\n[policies.even]\n'
    )
    assert load_text(text).policies == {
        "adaptive": {"mode": "light", "limit": 0.8},
        "fair-redistribution": {"sub_clusters": False},
        "data-locality": {"data_nodes": ["a", "b"]},
        "even": {},
    }
    result = load_text(
        text,
        POLICIES__ADAPTIVE__LIMIT="0.7",
        POLICIES__ADAPTIVE__MAX_MOVES="9",
        POLICIES__FAIR_REDISTRIBUTION__WEIGHT="inverse-distance",
        POLICIES__FAIR_REDISTRIBUTION__SUB_CLUSTERS="true",
    ).policies
    assert result["adaptive"] == {"mode": "light", "limit": 0.7, "max_moves": 9}
    assert result["fair-redistribution"] == {"weight": "inverse-distance", "sub_clusters": True}


@pytest.mark.parametrize("text", ["light", "none", "a b", "", "light # not", "1\nother = 2", "1,2"])
def test_a_variable_that_is_no_value_of_toml_is_text(text: str) -> None:
    assert load_text(POLICIES__ADAPTIVE__MODE=text).policies == {"adaptive": {"mode": text}}
