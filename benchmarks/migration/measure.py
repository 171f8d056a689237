"""One row: a cluster of its own, a query that runs through all ways by turns, and the audit at the end."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.migration.bench import NODES, Bench, BenchError, open_bench
from benchmarks.migration.checkpoint import to_load
from benchmarks.migration.matrix import PARTITIONS, Row
from benchmarks.migration.placements import Placement, balanced, differences, shifted
from benchmarks.migration.variants import LIVE, RESTART, Variant, variants_for
from benchmarks.migration.workload import Input
from rechannel.wire import keys
from rechannel.wire.messages import BatchReport

__all__ = ["LATENCY", "MAINTENANCE", "QUIET", "RATE", "ROWS", "measure", "settings"]

ROWS = 100_000  # of each batch: about a second on two cores
KEYS_A_BATCH = 500_000  # of the preload
WARM_UP = 10  # batches after the preload
QUIET = 8  # batches before each order that count as steady
UNSTEADY = 2  # batches after a new link is attached that do not
SETTLE = 5  # batches watched after the last move has landed
CLOSING = 60.0  # seconds that old copies are waited for
MAINTENANCE = 10  # seconds; Spark's default is 60, and whoever waits for closings would wait so long for each
LATENCY = 0.005  # seconds for each operation of the slowed file system
RATE = 50e6  # bytes per second, likewise
_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_SETTLED = {"drained", "killed", "abandoned"}
_OVER = {"killed", "abandoned"}


def settings() -> dict[str, Any]:
    """What the figures were made with."""
    return {
        "partitions": PARTITIONS,
        "executors": len(NODES),
        "rows": ROWS,
        "quiet": QUIET,
        "maintenance": MAINTENANCE,
        "latency": LATENCY,
        "rate": RATE,
    }


def measure(root: Path, row: Row, repeats: int, say: Callable[[str], None], keep: dict[str, Any]) -> None:
    """Measure a row; what there is is in ``keep`` at any time, also when this raises."""
    directory = root / row.name
    given = Input(row.keys, ROWS, max(2, -(-row.keys // KEYS_A_BATCH)))
    keep |= {
        "row": row.as_dict(),
        "input": {"keys": given.keys, "rows": given.rows, "preload": given.preload},
        "phases": [],
    }
    memory = 2800 if row.keys > 1_000_000 and row.provider != "RocksDB" else 1000  # HDFS-backed state is on the heap
    try:
        # The disk is mounted before anybody writes to it, and unmounted after the last one is gone.
        with _checkpoint(directory, row) as checkpoint, open_bench(directory, memory) as bench:
            try:
                _run(bench, checkpoint, row, given, repeats, say, keep)
            finally:
                keep["batches"] = bench.poll()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def _checkpoint(directory: Path, row: Row) -> Iterator[Path]:
    """Where the checkpoint is to be."""
    local = directory / "disk"
    local.mkdir(parents=True)
    if row.disk == "local":
        yield local / "checkpoint"
        return
    from testbed.slow_disk import SlowDisk

    mounted = directory / "slow"
    mounted.mkdir()
    with SlowDisk(local, mounted, latency=LATENCY, bytes_per_second=RATE):
        yield mounted / "checkpoint"


def _run(
    bench: Bench,
    checkpoint: Path,
    row: Row,
    given: Input,
    repeats: int,
    say: Callable[[str], None],
    keep: dict[str, Any],
) -> None:
    conf = {
        "spark.sql.shuffle.partitions": str(PARTITIONS),
        "spark.sql.streaming.stateStore.maintenanceInterval": f"{MAINTENANCE}s",
    }
    if row.provider == "RocksDB":
        conf[_PROVIDER] = _ROCKSDB
    bench.controller(LIVE.controller)
    bench.start_application({"input": keep["input"], "checkpoint": str(checkpoint)}, conf)
    say(f"{row.name}: preloading {row.keys:,} keys")
    bench.wait_batches(max(1, given.preload + WARM_UP - len(bench.poll())))
    executors = sorted(item.executor for item in _report(bench).executors)
    here = balanced(placement(bench), executors)
    there = shifted(here, executors, row.as_dict()["moves"])
    keep["query"] = _query(bench)
    _get_ready(bench, LIVE, here, say)
    say(f"{row.name}: warm-up: there, a restart, and back")
    # The back file of the checkpoint is read, not the slowed mount: looking must not slow the query.
    state = bench.directory / "disk" / "checkpoint" / "state"
    for way, wanted in ((LIVE, there), (RESTART, there), (LIVE, here)):
        _act(bench, way, wanted, state, f"warm-up {way.name}")
        _get_ready(bench, LIVE, wanted, say, attach=False)
    at_home = True
    ways = variants_for(row.as_dict()["moves"])
    for repeat in range(repeats):
        half = len(ways) // 2 * (repeat % 2)  # not always in the same order
        for way in (*ways[half:], *ways[:half]):
            begin = here if at_home else there
            at_home ^= way.moves
            wanted = here if at_home else there
            say(f"{row.name}: {way.name}, {repeat + 1} of {repeats}")
            _get_ready(bench, way, begin, say)
            quiet_from = _quiet(bench)
            phase = {"way": way.name, "repeat": repeat, "quiet_from": quiet_from}
            keep["phases"].append(phase)
            phase |= _act(bench, way, wanted, state, f"{way.name} {repeat}")
            bench.group.check()
    report = _report(bench)
    keep["link"] = {"failed": report.failed_tasks, "missed": report.missed, "drifted": report.drifted}
    bench.group.processes["application"].require_alive()
    say(f"{row.name}: audit")
    keep["end"] = bench.order("finish")


def placement(bench: Bench) -> dict[int, str]:
    """Where the partitions are."""
    found: dict[int, str] = {}

    def known() -> bool:
        query = bench.query()
        if query is not None:
            found.update(enumerate(query.stages[0].placement))
        return query is not None

    bench.wait("the link knows the query", known)
    return found


def _query(bench: Bench) -> str:
    query = bench.query()
    return query.query if query else ""


def _report(bench: Bench) -> Any:
    report = bench.report()
    if report is None:
        raise BenchError("the link reports nothing")
    return report


def _get_ready(
    bench: Bench, way: Variant, begin: Placement, say: Callable[[str], None], *, attach: bool = True
) -> None:
    """Have controller and link of the way, and the partitions where they are to be at its begin."""
    bench.controller(way.controller)
    if attach:
        since = time.time()
        bench.order("attach", environment=dict(way.link))
        bench.wait("the new link reports", lambda: (found := bench.report()) is not None and found.attached >= since)
    bench.wait("the link knows the query", lambda: bench.query() is not None)
    bench.await_ready(120)
    strayed = differences(placement(bench), begin)
    if strayed:
        say(f"{len(strayed)} partitions are put where the phase begins")
        decision = bench.apply(strayed, "put back")
        _wait_over(bench, decision)
        if differences(placement(bench), begin):
            raise BenchError("the partitions do not go where the phase begins")


def _quiet(bench: Bench) -> float:
    """Let steady batches pass; returns since when they count."""
    bench.wait_batches(UNSTEADY)
    since = time.time()
    bench.wait_batches(QUIET + 1)
    return since


def _act(bench: Bench, way: Variant, wanted: Placement, state: Path, reason: str) -> dict[str, Any]:
    """Move or restart, and watch until it is over."""
    if not way.moves:
        sizes = sum(to_load(state, partition) for partition in wanted)
        restart = bench.order("restart")
        bench.wait_batches(SETTLE + 1)
        return {"ordered": restart["stopping"], "restart": restart, "loaded_bytes": sizes, "end": time.time()}
    moves = differences(placement(bench), wanted)
    sizes = sum(to_load(state, partition) for partition in moves)
    ordered = time.time()
    decision = bench.apply(moves, reason)
    phase = {"ordered": ordered, "answered": time.time(), "decision": decision, "loaded_bytes": sizes}
    phase["journal"] = _wait_over(bench, decision)
    bench.wait_batches(SETTLE)
    phase |= {"journal": bench.journal(decision["decision"]), "end": time.time()}
    return phase | {"tasks": _tasks(bench, {int(move["partition"]) for move in decision["moves"]})}


def _wait_over(bench: Bench, decision: dict[str, Any]) -> list[dict[str, Any]]:
    """Wait until every move of a decision has landed or is given up, and, for a while, until old copies are closed."""
    count = len(decision["moves"])

    def states(wanted: set[str]) -> int:
        lines = bench.journal(decision["decision"])
        return len({line["move"] for line in lines if line["after"] in wanted})

    bench.wait("the moves land", lambda: states(_SETTLED) >= count)
    with contextlib.suppress(BenchError):  # figures of what was closed are figures all the same
        bench.wait("the old copies are closed", lambda: states(_OVER) >= count, CLOSING)
    return bench.journal(decision["decision"])


def _tasks(bench: Bench, partitions: set[int]) -> list[list[float]]:
    """Batch, partition and run time in seconds of the moved partitions' tasks, out of Spark's event stream."""
    found = []
    for item in bench.store.last(keys.BATCHES, bench.application, keys.BATCHES.bound):
        if isinstance(item.body, BatchReport):
            tasks = [task for stage in item.body.stages if stage.stateful >= 0 for task in stage.tasks]
            found += [[item.body.batch, task.partition, task.run] for task in tasks if task.partition in partitions]
    return found
