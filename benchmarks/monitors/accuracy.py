"""Error of the CPU attribution: partitions that burn known CPU, compared with the figures of the agents."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from benchmarks.monitors.session import NODES, MonitorSession
from benchmarks.report.results import progress
from rechannel.daemon.model.cpu_attribution import attribute_cpu
from rechannel.wire.keys import BATCHES, WINDOWS
from rechannel.wire.measurements import AgentWindow, BatchReport

PARTITIONS = 8
KEYS = 48
WARM_UP = 2


def measure(directory: Path, cores: int, files: int) -> dict[str, Any]:
    """Return the error of each partition's Python CPU, on two executors with so many cores."""
    with MonitorSession(directory, cores) as session:
        session.start_agents()
        orders = session.start_application("accuracy", PARTITIONS)
        for number in range(WARM_UP):
            _feed(directory, number)
        orders.send("process")
        _pause(session.settings.agent.window)
        begin = time.time()
        progress(f"{cores}-core executors: {files} batches of known cost")
        for number in range(WARM_UP, WARM_UP + files):
            _feed(directory, number)
        burned = {int(partition): seconds for partition, seconds in orders.send("process").items()}
        _pause(session.settings.agent.window)
        end = time.time()
        with session.open_store() as store:
            (application_id,) = store.applications(0)
            batches = [item.body for item in store.last(BATCHES, application_id, BATCHES.bound)]
            bodies = {node: [item.body for item in store.last(WINDOWS, node, WINDOWS.bound)] for node in NODES}
        orders.send("finish")
    windows = {
        node: [body for body in own if isinstance(body, AgentWindow) and begin <= body.start and body.end <= end]
        for node, own in bodies.items()
    }
    attribution = attribute_cpu(application_id, [body for body in batches if isinstance(body, BatchReport)], windows)
    python: dict[int, float] = {}
    for part, cpu in attribution.parts.items():
        if part.stage >= 0:
            python[part.partition] = python.get(part.partition, 0.0) + cpu.python
    errors = {partition: python.get(partition, 0.0) / seconds - 1 for partition, seconds in burned.items()}
    used = sum(executor.jvm + executor.python for executor in attribution.executors.values())
    shared = sum(cpu.total for cpu in attribution.parts.values())
    shared += sum(executor.idle for executor in attribution.executors.values())
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


def _feed(directory: Path, number: int) -> None:
    # Rows cost 1 to 24 ms, forty of each key: tasks of one to three seconds, some partitions heavier than others.
    rows = [{"k": key, "cost": 0.001 * (1 + (key * key) % 24)} for key in range(KEYS) for _ in range(40)]
    path = directory / "inbox" / f"{number:03d}.json"
    partial = directory / f"partial-{number}"
    partial.write_text("".join(json.dumps(row) + "\n" for row in rows))
    stamp = time.time() - 1000 + number  # Spark reads files in the order of their times
    os.utime(partial, (stamp, stamp))
    partial.rename(path)


def _pause(window: float) -> None:
    """Let the open window and a whole one pass."""
    time.sleep(2 * window + 0.5)
