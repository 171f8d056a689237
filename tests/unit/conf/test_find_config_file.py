"""Choice of the configuration file, its announcement, and the line of a mistake."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from rechannel.conf import loader
from rechannel.conf.loader import load, read_settings
from rechannel.conf.settings import SettingsError
from rechannel.daemon.cli.main import main

AWAY = '[redis]\nurl = "redis://127.0.0.1:1/0"\ntimeout = 0.2\n'


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A working directory and the machine's own file, neither of which is there yet."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.delenv("RECHANNEL_CONFIG", raising=False)
    monkeypatch.setattr(loader, "SEARCH_PATH", (Path("rechannel.toml"), tmp_path / "etc.toml"))
    return here / "rechannel.toml", tmp_path / "etc.toml"


def test_the_order_of_the_places(places: tuple[Path, Path], tmp_path: Path) -> None:
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


def test_it_is_said_which_one_is_used(places: tuple[Path, Path], tmp_path: Path) -> None:
    own, machines = places
    none = f"no configuration file: RECHANNEL_CONFIG is not set, ./rechannel.toml does not exist, {machines} does not"
    assert read_settings(None, {}).describe() == f"{none} exist; defaults used"
    set_by = {"RECHANNEL_CLUSTER__NAME": "a"}
    assert read_settings(None, set_by).describe() == f"{none} exist; variables of the environment and defaults used"
    machines.write_text("")
    assert read_settings(None, {}).describe() == f"configuration: {machines}"
    own.write_text("")
    assert read_settings(None, {}).describe() == f"configuration: {own}"
    assert read_settings(None, {"RECHANNEL_CONFIG": "/x"}).describe() == "configuration: /x (RECHANNEL_CONFIG)"


def test_a_file_of_the_working_directory_that_anybody_can_choose_is_passed_over(places: tuple[Path, Path]) -> None:
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


def test_a_redis_that_is_away_is_told_with_the_configuration(places: tuple[Path, Path], tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["status"], env={"RECHANNEL_REDIS__URL": "redis://127.0.0.1:1/0"})
    assert done.exit_code == 5
    assert "No configuration file: RECHANNEL_CONFIG is not set, ./rechannel.toml does not exist" in done.stderr
    named = tmp_path / "named.toml"
    named.write_text(AWAY)
    for text in (["status", "--config", str(named)], ["status", "--config", str(named), "--json"]):
        done = CliRunner().invoke(main, text)
        assert f"Configuration: {named}" in done.stderr
    assert f"Configuration: {named}" in json.loads(done.stdout)["error"]
    done = CliRunner().invoke(main, ["config", "check"], env={"RECHANNEL_CONFIG": str(named)})
    assert (done.exit_code, f"configuration: {named} (RECHANNEL_CONFIG)\n" in done.stderr) == (0, True)


def test_mistakes_name_file_and_line(places: tuple[Path, Path], tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(
        '# a comment\n[gate] # one\n\nmin_gain = 7\n[reschedule]\nexcluded = [\n  "Funday 01:00-02:00",\n]\n'
        'policy = """\nmagic"""\n[gaet]\nx = 1\n[policies.adaptive]\n  limt = 1\n[redis]\ntls_key_file = "/k"\n'
    )
    with pytest.raises(SettingsError) as caught:
        load(path, {"RECHANNEL_GATE__COOLDOWN": "soon", "RECHANNEL_AGENT__WINDOW": "0.5"})
    logged = {mistake.split(": ")[1]: mistake.split(": ")[0] for mistake in caught.value.errors}
    assert logged == {
        "gate.min_gain": f"{path}:4",
        "gate.cooldown": "RECHANNEL_GATE__COOLDOWN",
        "reschedule.excluded": f"{path}:6",
        "[gaet]": f"{path}:11",
        "redis.tls_certificate_file and redis.tls_key_file": f"{path}",
        "redis.tls_key_file": f"{path}:16",
        "agent.sample": f"{path}",
    }
    done = CliRunner().invoke(main, ["config", "check", "--config", str(path)])
    assert f"{path}:9: reschedule.policy: " in done.stderr
    assert f"{path}:14: policies.adaptive.limt: " in done.stderr
    assert done.stderr.count(f"{path}:4: ") == 1


def test_mistakes_of_files_that_are_named_have_a_line(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('[signing]\nprivate_key_file = "nowhere"\n[redis]\npassword_file = "away"\n')
    done = CliRunner().invoke(main, ["config", "check", "--config", str(path)])
    assert f"{path}:2: signing.private_key_file: {tmp_path}/nowhere cannot be read" in done.stderr
    assert f"{path}:4: redis.password_file: {tmp_path}/away cannot be read" in done.stderr
    done = CliRunner().invoke(main, ["controller", "--config", str(path)])
    assert (done.exit_code, f"{path}:2: signing.private_key_file: " in done.stderr) == (7, True)


def test_files_are_relative_to_the_configuration_that_names_them(places: tuple[Path, Path], tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(
        '[redis]\nurl = "rediss://h:1/0"\npassword_file = "a"\ntls_ca_file = "b"\ntls_certificate_file = "../c"\n'
        'tls_key_file = "/d"\nsentinel_password_file = "e"\n[signing]\nprivate_key_file = "f"\npublic_key_file = "g/h"'
        '\n[controller]\naudit_file = "i"\n[link]\ndirectory = "j"\n'
    )
    result = load(os.path.relpath(path), {"RECHANNEL_SIGNING__PRIVATE_KEY_FILE": "k"})
    redis = result.redis
    files = (redis.password_file, redis.tls_ca_file, redis.tls_certificate_file, redis.tls_key_file)
    assert [os.path.normpath(name) for name in files] == [
        f"{tmp_path}/a",
        f"{tmp_path}/b",
        f"{tmp_path.parent}/c",
        "/d",
    ]
    assert os.path.normpath(redis.sentinel_password_file) == f"{tmp_path}/e"
    assert os.path.normpath(result.signing.public_key_file) == f"{tmp_path}/g/h"
    assert result.signing.private_key_file == "k"  # a shell's, relative to where it stands
    assert os.path.normpath(result.controller.audit_file) == f"{tmp_path}/i"
    assert os.path.normpath(result.link.directory) == f"{tmp_path}/j"
    assert load(None, {}).signing.private_key_file == ""


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
        rows += between
        rows.append(f'["{section}"]')
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


def test_no_lines_of_a_file_that_is_gone_odd_or_endless(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    assert loader.line_numbers(path) == {}
    path.write_text("[a\n")
    assert loader.line_numbers(path) == {}
    path.write_text("a = 1\n" + "\n" * 3000)
    assert loader.line_numbers(path) == {}
