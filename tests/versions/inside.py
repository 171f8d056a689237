"""Tests of one version of Spark, in an environment that has it: ``python -m versions.inside DIRECTORY FILE``.

Two acts on one real standalone cluster of three nodes, with an agent on each and one Redis. In the first, queries on
both of Spark's stores have every partition moved again and again, as in ``tests/matrix``. In the second, with a real
controller, a query is stopped and started again, and a node is drained and its executor released.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
import sys
import time
from collections import Counter
from importlib import metadata
from pathlib import Path
from typing import Any

from matrix.workloads import CHOSEN, WAVES
from smoke.loop import Loop, open_loop

from rechannel.migration.spark import versions
from rechannel.wire import keys
from rechannel.wire.messages import LinkReport, MoveTransition
from rechannel.wire.signing import Signer
from testbed.processes import wait_until

ROOT = Path(__file__).parents[2]
NODES = ["127.0.0.44", "127.0.0.45", "127.0.0.46"]
STORES = ("HDFS-backed", "RocksDB")
PACKAGES = ("numpy", "pandas", "py4j", "pyarrow", "pyspark")
_MOVED, _CHANGED = "moved", "changed"
# So that there are snapshots, and old copies close, within the minutes that this takes.
_BUSY_MAINTENANCE = {
    "spark.sql.streaming.stateStore.maintenanceInterval": "5s",
    "spark.sql.streaming.stateStore.minDeltasForSnapshot": "3",
}


def conf(loop: Loop) -> dict[str, str]:
    """Return what both applications set."""
    return loop.cluster.conf(executor_cores=2) | _BUSY_MAINTENANCE


def moved(loop: Loop) -> dict[str, Any]:
    """Have every partition moved again and again; what landed, and whether all rows are exact."""
    from matrix.mover import Mover, Turns, start

    waves = [wave for wave in WAVES if wave.store in STORES and wave.workloads]
    process = start(loop, _MOVED, waves, conf(loop))
    with loop.open_store() as store:
        signer = Signer.from_file(loop.directory / "keys" / "signing.key")
        mover = Mover(store, signer, _MOVED, loop.directory / _MOVED, process.require_alive, Turns(1))
        mover.run(waves)
        lines = [item.body for item in store.last(keys.JOURNAL, mover.application, keys.JOURNAL.bound)]
    loop.end_driver(_MOVED)
    closed = Counter(line.reason for line in lines if isinstance(line, MoveTransition) and line.after == "killed")
    return {
        "cells": {store: {name: vars(cell) for name, cell in cells.items()} for store, cells in mover.cells.items()},
        "failed_tasks": sum(mover.failed.values()),
        "closed": dict(closed),
    }


def changed(loop: Loop) -> dict[str, Any]:
    """Restart a query and drain a node under a real controller; what was said of both, and whether all is exact."""
    from smoke.app import wrong_counts

    def starts() -> dict[str, str]:
        current = report(loop)
        return (
            {query.name: current.initial_placements.get(query.query, "") for query in current.queries}
            if current
            else {}
        )

    def lags() -> list[int]:
        current = report(loop)
        stages = [stage for query in current.queries for stage in query.stages] if current else []
        return [lag for stage in stages for lag in stage.snapshot_lag if lag >= 0]

    def drained() -> bool:
        states = [row["state"] for row in loop.document().get("drains", []) if row["node"] == NODES[2]]
        current = report(loop)
        return (
            current is not None and states == ["released"] and NODES[2] not in {one.host for one in current.executors}
        )

    loop.start_application(_CHANGED, conf(loop))
    loop.start_controller("controller-1")
    loop.wait("both queries are spread", lambda: [bool(text) for text in starts().values()] == [True, True])
    loop.wait("all is measured", lambda: loop.status(_CHANGED).get("readiness", {}).get("ready", False))
    link_report = report(loop)
    (loop.directory / _CHANGED / "restart").touch()
    loop.wait("it ran again", lambda: "before its first batch" in starts().get("counts", ""))
    loop.wait("it is put back", lambda: starts().get("counts", "").endswith((" landed", " now")))
    restarted = starts()["counts"]
    if link_report is not None and versions.has_feature(link_report.spark_version, versions.SNAPSHOTS):
        with contextlib.suppress(TimeoutError):
            wait_until(lags, "snapshots are told of", 60.0, 1.0)
    first_lags = lags()
    code, answer = loop.cli("drain", NODES[2], "--remove", "--reason", "a test")
    if code:
        raise RuntimeError(f"the drain was refused: {answer}")
    loop.wait("the node is released", drained)
    last = report(loop)
    result = loop.stop_application(_CHANGED)
    loop.group.stop("controller-1")
    return {
        "problems": link_report.problems if link_report else [],
        "snapshot_lags": first_lags,
        "restarted": restarted,
        "drained": True,
        "failed_tasks": last.failed_tasks if last else -1,
        "wrong": wrong_counts(result),
        "link": {name: result[name] for name in ("problem", "failures", "exceptions")},
    }


def report(loop: Loop) -> LinkReport | None:
    """Return the last report of the second act's application."""
    with loop.open_store() as store:
        for name in store.applications(time.time() - 60):
            current = store.get(keys.REPORT, name)
            if current is not None and isinstance(current.body, LinkReport) and current.body.name == _CHANGED:
                return current.body
    return None


def java() -> str:
    """Return the version of Java that Spark starts."""
    home = os.environ.get("JAVA_HOME")
    command = [f"{home}/bin/java" if home else "java", "-version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stderr.split('"')[1]


def main(directory: Path, file: Path) -> None:
    began = time.time()
    current: dict[str, Any] = {
        "spark": metadata.version("pyspark"),
        "python": platform.python_version(),
        "java": java(),
        "packages": {name: metadata.version(name) for name in PACKAGES},
        "queries": sorted(CHOSEN),
    }
    with open_loop(directory, NODES, (2, 2048)) as loop:
        # Without the checkout's own `src`: what is tried is what was installed.
        loop.environment["PYTHONPATH"] = os.pathsep.join((str(ROOT), str(ROOT / "tests")))
        for node in NODES:
            loop.start_agent(node, f"agent-{node}-1")
        current["moved"] = moved(loop)
        file.write_text(json.dumps(current, indent=1))  # whatever becomes of the second act
        current["changed"] = changed(loop)
    current["seconds"] = round(time.time() - began)
    file.write_text(json.dumps(current, indent=1))


if __name__ == "__main__":
    main(*(Path(argument) for argument in sys.argv[1:3]))
