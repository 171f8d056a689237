"""docs/tutorial.md, block by block: on a real Redis, and as a whole on a real standalone Spark cluster too."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from testbed.redis_server import find_server, free_port

from .pages import DOCS, ROOT, blocks
from .shell import Shell, put_program

TUTORIAL = DOCS / "tutorial.md"
SPARK = ("spark-class", "rechannel submit")


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """Return a shell in an empty home, with what `make setup` makes on its path and ports that nobody uses."""
    programs = tmp_path / "programs"
    put_program(programs)
    (programs / "redis-server").symlink_to(find_server().path)
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_", "RECHANNEL"))
    }
    environment = inherited | {
        "HOME": str(tmp_path),
        "PATH": os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": str(ROOT / "src"),
        "COLUMNS": "160",
        "LC_ALL": "C.UTF-8",
    }
    return Shell(tmp_path, environment, {port: str(free_port()) for port in ("6390", "7077", "9418")})


def test_every_block_is_either_run_or_says_why_not():
    parts = blocks(TUTORIAL)
    assert [block.left_out for block in parts if block.left_out] == ["the tests run in what this makes"]
    for block in parts:
        assert block.name or block.commands, block.text
        assert all(line.startswith("$ ") for line in block.text.splitlines()) or block.name
        assert not block.name or f"`{block.name}`" in TUTORIAL.read_text(), "a reader has to be told its name"
        assert block.background == (bool(block.commands) and block.commands[-1].endswith("&"))


def test_the_script_of_the_tutorial_is_python():
    for block in blocks(TUTORIAL):
        if block.language == "python":
            compile(block.text, block.name, "exec")
            assert "rechannel" not in block.text, "it is attached as it is"


@pytest.mark.redis
def test_the_part_without_spark(shell: Shell):
    parts = [block for block in blocks(TUTORIAL) if not block.left_out]
    last = next(number for number, block in enumerate(parts) if any(SPARK[1] in it for it in block.commands))
    ends = [block for block in parts[last:] if "rechannel doctor" in block.commands or "wait" in block.commands]
    assert len(ends) == 2
    with shell:
        for block in [*parts[:last], *ends]:
            if not any(command.startswith("SPARK_LOCAL_IP") or SPARK[0] in command for command in block.commands):
                shell.run(block)
        assert not (shell.where / "rechannel-tutorial").exists()


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.redis
@pytest.mark.timeout(1800)
def test_the_whole_tutorial(shell: Shell):
    with shell:
        try:
            for block in blocks(TUTORIAL):
                if not block.left_out:
                    shell.run(block)
        finally:
            print("\n".join(shell.log))
        assert not (shell.where / "rechannel-tutorial").exists()
