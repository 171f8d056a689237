"""Measurement of one row: a cluster of its own, a query that runs through all variants, and the audit."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.migration.checkpoint import to_load
from benchmarks.migration.matrix import PARTITIONS, Row
from benchmarks.migration.placements import Placement, balanced, differences, shifted
from benchmarks.migration.session import NODES, MigrationSession
from benchmarks.migration.variants import LIVE, RESTART, Variant, variants_for
from benchmarks.migration.workload import Input
from benchmarks.report.results import progress
from rechannel.wire import keys
from rechannel.wire.codes import MoveState
from rechannel.wire.measurements import BatchReport
from testbed.session import LANDED_OR_ABANDONED
from testbed.slow_disk import SlowDisk
from testbed.stack import StackError

ROWS = 100_000  # of each batch: about a second on two cores
KEYS_A_BATCH = 500_000  # of the preload
WARM_UP = 10  # batches after the preload
QUIET = 8  # batches before each order that count as steady
UNSTEADY = 2  # batches after a new link is attached that do not
SETTLE = 5  # batches watched after the last move has landed
CLOSING = 60.0  # seconds that old copies are waited for
MAINTENANCE = 10  # seconds; with Spark's default of 60, each wait for a closing would last so long
LATENCY = 0.005  # seconds for each operation of the slowed file system
RATE = 50e6  # bytes per second, likewise
_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_CLOSED = frozenset({MoveState.KILLED, MoveState.ABANDONED})


def settings() -> dict[str, Any]:
    """Return the constants that the page states."""
    return {
        "partitions": PARTITIONS,
        "executors": len(NODES),
        "rows": ROWS,
        "quiet": QUIET,
        "maintenance": MAINTENANCE,
        "latency": LATENCY,
        "rate": RATE,
    }


def measure(root: Path, row: Row, repeats: int, record: dict[str, Any]) -> None:
    """Measure a row; ``record`` has the figures so far at any time, also when this raises."""
    directory = root / row.name
    source = Input(row.keys, ROWS, max(2, -(-row.keys // KEYS_A_BATCH)))
    record |= {
        "row": row.as_dict(),
        "input": {"keys": source.keys, "rows": source.rows, "preload": source.preload},
        "phases": [],
    }
    memory = 2800 if row.keys > 1_000_000 and row.provider != "RocksDB" else 1000  # HDFS-backed state is on the heap
    try:
        # The disk is mounted before any process writes to it, and unmounted after the last one ended.
        with _checkpoint(directory, row) as checkpoint, MigrationSession(directory, memory) as session:
            try:
                _Measurement(session, row, record).run(checkpoint, source, repeats)
            finally:
                record["batches"] = session.poll()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def _checkpoint(directory: Path, row: Row) -> Iterator[Path]:
    """Yield the place of the checkpoint, on a slowed disk if the row has one."""
    local = directory / "disk"
    local.mkdir(parents=True)
    if row.disk == "local":
        yield local / "checkpoint"
        return
    mounted = directory / "slow"
    mounted.mkdir()
    with SlowDisk(local, mounted, latency=LATENCY, bytes_per_second=RATE):
        yield mounted / "checkpoint"


@dataclass
class _Measurement:
    """The phases of one row on a running session."""

    session: MigrationSession
    row: Row
    record: dict[str, Any]

    def run(self, checkpoint: Path, source: Input, repeats: int) -> None:
        """Preload the state, run all variants alternately, and audit the state."""
        session, row, moves = self.session, self.row, self.row.as_dict()["moves"]
        conf = {
            "spark.sql.shuffle.partitions": str(PARTITIONS),
            "spark.sql.streaming.stateStore.maintenanceInterval": f"{MAINTENANCE}s",
        }
        if row.provider == "RocksDB":
            conf[_PROVIDER] = _ROCKSDB
        session.use_controller(LIVE.controller)
        session.start_application({"input": self.record["input"], "checkpoint": str(checkpoint)}, conf)
        progress(f"{row.name}: preloading {row.keys:,} keys")
        session.wait_batches(max(1, source.preload + WARM_UP - len(session.poll())))
        executors = sorted(executor.executor for executor in session.require_report().executors)
        here = balanced(session.placement(), executors)
        there = shifted(here, executors, moves)
        query = session.query()
        self.record["query"] = query.query if query else ""
        self._prepare(LIVE, here)
        progress(f"{row.name}: warm-up: there, a restart, and back")
        for variant, target in ((LIVE, there), (RESTART, there), (LIVE, here)):
            self._act(variant, target, f"warm-up {variant.name}")
            self._prepare(LIVE, target, attach=False)
        at_home = True
        variants = variants_for(moves)
        for repeat in range(repeats):
            half = len(variants) // 2 * (repeat % 2)  # not always in the same order
            for variant in (*variants[half:], *variants[:half]):
                begin = here if at_home else there
                at_home ^= variant.moves
                progress(f"{row.name}: {variant.name}, {repeat + 1} of {repeats}")
                self._prepare(variant, begin)
                phase = {"variant": variant.name, "repeat": repeat, "quiet_from": self._quiet()}
                self.record["phases"].append(phase)
                phase |= self._act(variant, here if at_home else there, f"{variant.name} {repeat}")
                session.group.check()
        report = session.require_report()
        self.record["link"] = {
            "failed": report.failed_tasks,
            "missed": report.missed,
            "drifted": report.drifted_partitions,
        }
        session.group.processes["application"].require_alive()
        progress(f"{row.name}: audit")
        self.record["end"] = session.orders.send("finish")

    def _prepare(self, variant: Variant, begin: Placement, *, attach: bool = True) -> None:
        """Have controller and link of the variant, and the partitions where it begins."""
        session = self.session
        session.use_controller(variant.controller)
        if attach:
            since = time.time()
            session.orders.send("attach", environment=dict(variant.link))
            session.wait("the new link reports", lambda: session.attached_since(since))
        session.wait("the link knows the query", session.query)
        session.await_ready(120)
        strayed = differences(session.placement(), begin)
        if strayed:
            progress(f"{len(strayed)} partitions are moved to the placement at the begin")
            self._await_end(session.apply(strayed, "put back"))
            if differences(session.placement(), begin):
                raise StackError("the partitions do not reach the placement at the begin")

    def _quiet(self) -> float:
        """Let steady batches pass; return since when they count."""
        self.session.wait_batches(UNSTEADY)
        since = time.time()
        self.session.wait_batches(QUIET + 1)
        return since

    def _act(self, variant: Variant, target: Placement, reason: str) -> dict[str, Any]:
        """Move or restart, and watch until it is over."""
        session = self.session
        if not variant.moves:
            size = self._bytes_to_load(target)
            restart = session.orders.send("restart")
            session.wait_batches(SETTLE + 1)
            return {"ordered": restart["stopping"], "restart": restart, "loaded_bytes": size, "end": time.time()}
        moves = differences(session.placement(), target)
        size = self._bytes_to_load(moves)
        ordered = time.time()
        decision = session.apply(moves, reason)
        phase = {"ordered": ordered, "answered": time.time(), "decision": decision, "loaded_bytes": size}
        self._await_end(decision)
        session.wait_batches(SETTLE)
        phase |= {"journal": session.journal(decision["decision"]), "end": time.time()}
        return phase | {"tasks": self._tasks({int(move["partition"]) for move in decision["moves"]})}

    def _bytes_to_load(self, partitions: Placement) -> int:
        # The back file of the checkpoint is read, not the slowed mount: looking must not slow the query.
        state = self.session.directory / "disk" / "checkpoint" / "state"
        return sum(to_load(state, partition) for partition in partitions)

    def _await_end(self, decision: dict[str, Any]) -> None:
        """Wait until every move has landed or is given up, and, for a while, until old copies are closed."""
        session, count = self.session, len(decision["moves"])
        session.wait("the moves land", lambda: len(session.moves_in(decision, LANDED_OR_ABANDONED)) >= count)
        with contextlib.suppress(StackError):  # the figures count without closings, too
            session.wait(
                "the old copies are closed", lambda: len(session.moves_in(decision, _CLOSED)) >= count, CLOSING
            )

    def _tasks(self, partitions: set[int]) -> list[list[float]]:
        """Return batch, partition and run time in seconds of the moved partitions' tasks, from Spark's event stream."""
        session = self.session
        rows: list[list[float]] = []
        for envelope in session.store.last(keys.BATCHES, session.application, keys.BATCHES.bound):
            if isinstance(envelope.body, BatchReport):
                tasks = [task for stage in envelope.body.stages if stage.stateful_stage >= 0 for task in stage.tasks]
                batch = envelope.body.batch
                rows += [[batch, task.partition, task.run] for task in tasks if task.partition in partitions]
        return rows
