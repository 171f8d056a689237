"""Every command in every page is one that there is, and those that need no cluster are run."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from rechannel.daemon.cli.main import main

from .pages import PAGES, ROOT, block_commands, mentioned, name
from .shell import put_program

ALONE = ("config", "policies", "simulate", "doctor", "acl")  # they ask no controller and no Spark
SUBMIT = "submit"
EVERYWHERE = 100  # commands in all pages, at least


def variants(command: str) -> list[list[str]]:
    """Return the commands that a line stands for: `a | b`, `x|y` and `[optional]` are how pages write them."""
    commands_ = []
    for part in re.split(r" \| ", command.removeprefix("rechannel ").replace("…", "x")):
        part = re.sub(r"\[(?:[A-Z- ]+|--[^]]*)\]", lambda it: it[0][1:-1] if it[0].startswith("[--") else "", part)
        arguments = [word.strip('",;.') for word in re.findall(r'"[^"]*"|\S+', part)]
        choices = [word.split("|") if "|" in word and not word.startswith("-") else [word] for word in arguments]
        commands_ += [list(chosen) for chosen in itertools.product(*choices)]
    return commands_


def resolve(arguments: list[str]) -> tuple[click.Command, list[str]]:
    command: click.Command = main
    left = list(arguments)
    while isinstance(command, click.Group) and left and not left[0].startswith("-"):
        word = left.pop(0)
        if word == "COMMAND":
            break  # any of them
        assert word in command.commands, f"{' '.join(arguments)}: there is no {word}"
        command = command.commands[word]
    return command, left


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_command_and_option_is_there(page: Path):
    for line in mentioned(page):
        for arguments in variants(line):
            command, left = resolve(arguments)
            if command.name == SUBMIT:
                continue  # its other options are spark-submit's
            option_names = {option for item in command.params for option in (*item.opts, *item.secondary_opts)}
            option_names |= {"--help", "-h", "--version"}
            for word in left:
                assert not word.startswith("-") or word.split("=")[0] in option_names, f"{line}: {word}"


def test_pages_do_hold_commands():
    assert sum(len(mentioned(page)) for page in PAGES) > EVERYWHERE


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with what commands of pages name: a key pair, a configuration, files of Spark's and scripts."""
    etc = tmp_path / "etc"
    assert CliRunner().invoke(main, ["config", "keys", str(etc)]).exit_code == 0
    (etc / "rechannel.toml").write_text(
        f'[redis]\nurl = "redis://127.0.0.1:1/0"\ntimeout = 0.05\n[signing]\nprivate_key_file = "{etc}/signing.key"\n'
        f'public_key_file = "{etc}/signing.pub"\n'
    )
    (tmp_path / "spark-defaults.conf").write_text("spark.locality.wait 3s\n")
    for script in ("script.py", "visits.py"):
        (tmp_path / script).write_text("print(1)\n")
    monkeypatch.setenv("RECHANNEL_CONFIG", str(etc / "rechannel.toml"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def placed(arguments: list[str], place: Path) -> list[str]:
    """Put this machine's names for what pages name; makes what a command expects to be there, or not to be."""
    arguments = [word.replace("/etc/rechannel", str(place / "etc")) for word in arguments]
    changes = "--rotate" in arguments or "--retire" in arguments
    directory = place / ("etc" if changes else "new")
    names = {"NODE": "node-1", "NAME": "someone", "DIR": str(directory), "FILE": str(place / "new.toml")}
    arguments = [names.get(word, word) for word in arguments]
    if arguments[:2] == ["config", "keys"] and not changes:
        shutil.rmtree(arguments[-1], ignore_errors=True)
    elif "--retire" in arguments:
        assert CliRunner().invoke(main, ["config", "keys", "--rotate", arguments[-1]]).exit_code == 0
        shutil.move(place / "etc" / "signing.next.key", place / "etc" / "signing.key")
    if arguments[0] == "acl" and "--print" not in arguments:
        arguments.append("--print")
    if arguments[0] == SUBMIT:
        arguments.insert(1, "--dry-run")
    return arguments


RIGHT = {"doctor": (0, 4, 5, 7)}  # there is no Redis here
RUN = [
    pytest.param(page, line, id=f"{page.name}: {line[10:60]}")
    for page in PAGES
    for line in dict.fromkeys(
        [*block_commands(page), *(line for line in mentioned(page) if " DIR" in line or " /etc" in line)]
    )
    if line.split()[1] in (*ALONE, SUBMIT) and page.name != "cli.md"
]


@pytest.mark.parametrize(("page", "line"), RUN)
def test_what_needs_no_cluster_is_run(page: Path, line: str, place: Path):
    if page.name == "tutorial.md" and line.split()[1] != SUBMIT:
        pytest.skip("test_tutorial runs it where it stands")
    if page.name == "writing-a-policy.md" and "longest-first" in line:
        pytest.skip("test_writing_a_policy runs it where that policy is installed")
    for arguments in variants(line):
        arguments = placed(arguments, place)
        done = CliRunner().invoke(main, arguments)
        assert done.exit_code in RIGHT.get(arguments[0], (0,)), f"{arguments}: {done.output}"
        assert done.output.strip()


def test_the_readme_configures_what_can_be_used(tmp_path: Path):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    block = next(block for block in re.findall(r"^```sh\n(.*?)^```$", text, re.M | re.S) if "<<END" in block)
    programs = tmp_path / "programs"
    put_program(programs)
    path = os.pathsep.join([str(programs), os.environ["PATH"]])
    environment = {"PATH": path, "PYTHONPATH": str(ROOT / "src"), "HOME": str(tmp_path)}
    script = block.replace("/etc/rechannel", str(tmp_path / "etc"))
    arguments = ["bash", "-euc", script]
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "the configuration can be used" in done.stdout


def test_something_of_each_kind_is_run():
    kinds = {param.values[1].split()[1] for param in RUN}
    assert kinds == {*ALONE, SUBMIT}
