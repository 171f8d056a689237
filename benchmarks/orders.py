"""Orders of a benchmark to its Spark application, by files: ``orders/<n>.json``, answered by ``answers/<n>.json``."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from testbed.driver import write_answer
from testbed.stack import Stack


class Orders:
    """The benchmark's end, on a running stack."""

    def __init__(self, stack: Stack) -> None:
        self._stack, self._count = stack, 0
        for name in ("orders", "answers"):
            (stack.directory / name).mkdir()

    def send(self, verb: str, **arguments: Any) -> dict[str, Any]:
        """Have the application do something, and return its answer; StackError if none comes."""
        name = f"{self._count}.json"
        self._count += 1
        write_answer(self._stack.directory / "orders" / name, {"do": verb, **arguments})
        path = self._stack.directory / "answers" / name
        self._stack.wait(f"the application's answer to {verb}", path.exists)
        answer: dict[str, Any] = json.loads(path.read_text())
        return answer


def serve(directory: Path, verbs: Mapping[str, Callable[..., dict[str, Any]]], check: Callable[[], None]) -> None:
    """Follow the orders in a directory until ``finish``; call ``check`` while there is none."""
    number, verb = 0, ""
    while verb != "finish":
        path = directory / "orders" / f"{number}.json"
        while not path.exists():
            check()
            time.sleep(0.05)
        order = json.loads(path.read_text())
        verb = order.pop("do")
        write_answer(directory / "answers" / path.name, verbs[verb](**order))
        number += 1
