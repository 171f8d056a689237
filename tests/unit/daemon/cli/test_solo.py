"""Commands and live solo runs: the only one is used where no other configuration is named or found."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rechannel.conf import loader, solo_runs
from unit.daemon.cli.command import run, write_config

SHOW = ("config", "show", "--json")


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[Path]]:
    """Have so many live runs; returns their configurations."""
    monkeypatch.delenv("RECHANNEL_CONFIG", raising=False)
    monkeypatch.delenv("RECHANNEL_REDIS__URL", raising=False)

    def live(count: int) -> list[Path]:
        runs = [tmp_path / f"run-{number}.toml" for number in range(count)]
        for path in runs:
            path.write_text(f'[cluster]\nname = "{path.stem}"\n')
        monkeypatch.setattr(solo_runs, "live_runs", lambda: runs)
        return runs

    return live


def shown_cluster(*options: object) -> str:
    done = run(*SHOW, *options)
    name: str = json.loads(done.stdout)["settings"]["cluster"]["name"]
    return name


def test_the_only_live_run_is_used_and_named_on_standard_error(live: Callable[[int], list[Path]]) -> None:
    (path,) = live(1)
    done = run(*SHOW)
    assert done.stderr == f"rechannel: configuration: {path} (the live solo run)\n"
    assert shown_cluster() == "run-0"


def test_errors_name_the_configuration_of_the_run(live: Callable[[int], list[Path]]) -> None:
    (path,) = live(1)
    path.write_text('[redis]\nurl = "unix:///nowhere.sock"\n')
    done = run("status", code=5)
    assert f"Configuration: {path}" in done.stderr


def test_several_live_runs_are_listed_with_the_option_to_choose(live: Callable[[int], list[Path]]) -> None:
    first, second = live(2)
    done = run("status", "--json", code=2)
    sentence = f"there are 2 live solo runs; name one of them: --config {first}, --config {second}"
    assert json.loads(done.stdout) == {"error": sentence, "code": 2}
    assert done.stderr == f"rechannel: {sentence}\n"
    assert shown_cluster("--config", second) == "run-1"


@pytest.mark.parametrize("count", [1, 2])
def test_a_named_configuration_wins(
    live: Callable[[int], list[Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    live(count)
    named = write_config(tmp_path, '[cluster]\nname = "named"\n')
    assert shown_cluster("--config", named) == "named"
    monkeypatch.setenv("RECHANNEL_CONFIG", str(named))
    assert shown_cluster() == "named"
    monkeypatch.delenv("RECHANNEL_CONFIG")
    monkeypatch.setenv("RECHANNEL_REDIS__URL", "redis://elsewhere:1/0")
    done = run(*SHOW)
    assert done.stderr == ""
    assert shown_cluster() == "default"


def test_a_file_that_is_there_wins_and_the_run_is_mentioned(
    live: Callable[[int], list[Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = live(2)
    file = write_config(tmp_path, '[cluster]\nname = "installed"\n')
    monkeypatch.setattr(loader, "SEARCH_PATH", (file,))
    done = run(*SHOW)
    mention = f"solo runs are live too: --config {first}, --config {second}\n"
    assert done.stderr == f"rechannel: configuration: {file}; {mention}"
    assert shown_cluster() == "installed"


def test_a_check_that_reads_no_configuration_needs_no_choice(live: Callable[[int], list[Path]], tmp_path: Path) -> None:
    live(2)
    path = tmp_path / "spark-defaults.conf"
    path.write_text("")
    assert run("doctor", "--conf", path).stderr == ""


def test_without_a_run_nothing_is_said(live: Callable[[int], list[Path]]) -> None:
    live(0)
    assert run(*SHOW).stderr == ""


@pytest.mark.parametrize("command", ["controller", "agent"])
def test_daemons_join_no_run(live: Callable[[int], list[Path]], monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    (path,) = live(1)
    path.write_text("no toml")
    monkeypatch.setenv("RECHANNEL_GATE__MIN_GAIN", "much")
    done = run(command, code=7)
    assert "min_gain" in done.stderr
    assert "toml" not in done.stderr
