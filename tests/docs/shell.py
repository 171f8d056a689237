"""A shell that runs the commands of a page, one after the other, as somebody at a terminal would."""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from .pages import Block

PROGRAM = '#!/bin/sh\nexec "{python}" -m rechannel "$@"\n'  # the command of this checkout

_PATIENCE = 60.0  # seconds for one command
_AGAIN = 2.0  # seconds between two tries


def put_program(directory: Path) -> None:
    """Make a directory with the command `rechannel` of this checkout, whatever is installed."""
    directory.mkdir()
    program = directory / "rechannel"
    program.write_text(PROGRAM.format(python=sys.executable), encoding="utf-8")
    program.chmod(0o755)


class Shell:
    """One bash that lives through a whole page; all that it started ends with it. ``replaced``: words to swap."""

    def __init__(self, directory: Path, environment: Mapping[str, str], replaced: Mapping[str, str]) -> None:
        self.where = directory
        self.log: list[str] = []
        self._environment = dict(environment)
        self._replaced = replaced

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=self.where,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        return self

    def __exit__(self, *exc: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()

    def run(self, block: Block) -> str:
        """Run a block as its comment says; returns what it said. AssertionError where that is not right."""
        if block.name:
            (self.where / block.name).write_text(self._swapped(block.text), encoding="utf-8")
            return ""
        deadline = time.monotonic() + block.within
        while True:
            output, wrong = "", ""
            for command in block.commands:
                code, text = self._command(command, block.interrupt)
                output += text
                right = block.exits if not block.interrupt else (124,)
                if not block.background and right is not None and code not in right:
                    wrong = f"exit code {code}"
                    break
            if not wrong and block.says and not re.search(block.says, output):
                wrong = f"it does not say {block.says!r}"
            if not wrong:
                return output
            assert time.monotonic() < deadline, f"{block.commands}: {wrong}\n{output}\n{self._files()}"
            time.sleep(_AGAIN)

    def _command(self, command: str, interrupt: float) -> tuple[int, str]:
        command = self._swapped(command)
        if interrupt:
            command = f"timeout --signal=INT {interrupt:g} {command}"
        mark = f"@{uuid.uuid4().hex}@"
        assert self._process.stdin is not None
        self._process.stdin.write(f"{{ {command}\n}} < /dev/null\nprintf '{mark} %d %s\\n' $? \"$PWD\"\n".encode())
        self._process.stdin.flush()
        output = self._until(mark, _PATIENCE + interrupt + (300 if "--follow" in command else 0))
        text, _, tail = output.partition(mark)
        code, _, where = tail.strip().partition(" ")
        self.where = Path(where)
        self.log.append(f"$ {command}\n{text}")
        return int(code), text

    def _until(self, mark: str, patience: float) -> str:
        assert self._process.stdout is not None
        output, deadline = b"", time.monotonic() + patience
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while not (mark.encode() in output and output.endswith(b"\n")):
                assert time.monotonic() < deadline, f"no end within {patience:g} s: {output.decode(errors='replace')}"
                if selector.select(1.0):
                    chunk = os.read(self._process.stdout.fileno(), 65_536)
                    assert chunk, "the shell has ended"
                    output += chunk
        return output.decode("utf-8", "replace")

    def _swapped(self, text: str) -> str:
        for old, new in self._replaced.items():
            text = text.replace(old, new)
        return text

    def _files(self) -> str:
        result = sorted(self.where.glob("*.log")) if self.where.is_dir() else []
        return "\n".join(f"{path.name}: {path.read_text(errors='replace')[-1500:]}" for path in result)
