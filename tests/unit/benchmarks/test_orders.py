"""Orders to an application by files, and the pace of synthetic messages."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from benchmarks.monitors.fleet import Pace
from benchmarks.orders import Orders, serve


def test_orders_are_answered_one_after_the_other_until_the_last(tmp_path: Path) -> None:
    def wait(_what: str, ready: Any) -> None:
        while not ready():
            threads[0].join(0.01)
            assert threads[0].is_alive() or ready()

    orders = Orders(cast("Any", SimpleNamespace(directory=tmp_path, wait=wait)))
    verbs = {"add": lambda left, right: {"sum": left + right}, "finish": lambda: {"last": True}}
    threads = [threading.Thread(target=serve, args=(tmp_path, verbs, lambda: None), daemon=True)]
    threads[0].start()
    assert orders.send("add", left=1, right=2) == {"sum": 3}
    assert orders.send("add", left=3, right=4) == {"sum": 7}
    assert orders.send("finish") == {"last": True}
    threads[0].join(10)
    assert not threads[0].is_alive()


def test_actions_that_are_due_are_repeated_in_the_order_of_their_times() -> None:
    calls: list[str] = []
    pace = Pace()
    pace.every(1e-3, [lambda: calls.append("a"), lambda: calls.append("b")])
    pace.run(time.monotonic() + 5e-3)
    assert len(calls) >= 4
    assert calls == ["a", "b"] * (len(calls) // 2) + ["a"] * (len(calls) % 2)
    assert pace.late >= 0
