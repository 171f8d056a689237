"""How exact the attribution of CPU is: partitions that burn known CPU, held against what the agents say of them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.monitors.bench import NODES, open_bench
from rechannel.daemon.model.cpu_attribution import attribute_cpu
from rechannel.wire.keys import BATCHES, WINDOWS
from rechannel.wire.measurements import AgentWindow, BatchReport

PARTITIONS = 8
KEYS = 48
WARM_UP = 2


def measure(directory: Path, cores: int, files: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Return the error of each partition's Python CPU, on two executors with so many cores."""
    with open_bench(directory, cores) as bench:
        name = f"accuracy-{cores}"
        bench.start_agents()
        plan = {"kind": "accuracy", "warm_up": WARM_UP}
        conf = {"spark.sql.shuffle.partitions": str(PARTITIONS)}
        application = bench.start_application(name, plan, conf, cores)
        for number in range(WARM_UP):
            _feed(application, number)
        bench.wait("it is warm", (application / "asks-0").exists)
        _pause(bench.settings.agent.window)
        begin = time.time()
        say(f"{cores}-core executors: {files} batches of known cost")
        for number in range(WARM_UP, WARM_UP + files):
            _feed(application, number)
        (application / "ready-0").touch()
        bench.wait("all is burned", (application / "asks-1").exists)
        _pause(bench.settings.agent.window)
        end = time.time()
        (application / "ready-1").touch()
        bench.wait("the end", (application / "asks-2").exists)
        with bench.store() as store:
            (application_id,) = store.applications(0)
            batches = [item.body for item in store.last(BATCHES, application_id, BATCHES.bound)]
            bodies = {node: [item.body for item in store.last(WINDOWS, node, WINDOWS.bound)] for node in NODES}
        (application / "ready-2").touch()
        burned = {int(partition): seconds for partition, seconds in bench.result(application, name)["burned"].items()}
    windows = {
        node: [body for body in found if isinstance(body, AgentWindow) and begin <= body.start and body.end <= end]
        for node, found in bodies.items()
    }
    found = attribute_cpu(application_id, [body for body in batches if isinstance(body, BatchReport)], windows)
    python: dict[int, float] = {}
    for part, cpu in found.parts.items():
        if part.stage >= 0:
            python[part.partition] = python.get(part.partition, 0.0) + cpu.python
    errors = {partition: python.get(partition, 0.0) / seconds - 1 for partition, seconds in burned.items()}
    used = sum(executor.jvm + executor.python for executor in found.executors.values())
    shared = sum(cpu.total for cpu in found.parts.values()) + sum(item.idle for item in found.executors.values())
    total = sum(burned.values())
    return {
        "cores": cores,
        "burned_seconds": total,
        "lightest": min(burned.values()),
        "heaviest": max(burned.values()),
        "mean_error": sum(abs(error) * burned[partition] for partition, error in errors.items()) / total,
        "worst_error": max(map(abs, errors.values())),
        "errors": errors,
        "parts_over_used": shared / used,
    }


def _feed(application: Path, number: int) -> None:
    # Rows cost 1 to 24 ms, forty of each key: tasks of one to three seconds, some partitions heavier than others.
    rows = [{"k": key, "cost": 0.001 * (1 + (key * key) % 24)} for key in range(KEYS) for _ in range(40)]
    path = application / "inbox" / f"{number:03d}.json"
    partial = application / f"partial-{number}"
    partial.write_text("".join(json.dumps(row) + "\n" for row in rows))
    stamp = time.time() - 1000 + number  # Spark reads files in the order of their times
    os.utime(partial, (stamp, stamp))
    partial.rename(path)


def _pause(window: float) -> None:
    """Let the open window and a whole one pass."""
    time.sleep(2 * window + 0.5)
