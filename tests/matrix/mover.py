"""Plays the controller for one application of the matrix: moves every partition of every query, again and again.

Busy: while files wait and batches run back to back. Idle: while no batch runs; the next file comes afterwards.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matrix.app import checkpoint
from matrix.workloads import FILES, WAVES, Row, Wave, Workload, files, sentinels
from rechannel.migration.moves import AWAITING_BATCH
from rechannel.wire import keys
from rechannel.wire.codes import MoveState
from rechannel.wire.envelope import EnvelopeFactory
from rechannel.wire.messages import DesiredMove, DesiredPlacement, LinkReport
from rechannel.wire.redis.store import Store
from rechannel.wire.signing import Signer
from testbed.processes import ManagedProcess, wait_until
from testbed.stack import ROOT, Stack

OPEN = {*AWAITING_BATCH, MoveState.RELEASED_IDLE}  # what is released while its query is idle lands with the next file
FIRST_FILES = 2  # until the stages are known, and the link has spread the new queries
IDLE_ROUNDS = 2
PARTITIONS = 3
_PATIENCE = 900.0  # seconds for one phase on a busy box


@dataclass
class Cell:
    """One workload on one store."""

    moves: Counter[str] = field(default_factory=Counter)  # busy, idle: landed; missed, abandoned
    batches: int = 0
    exact: bool = False
    error: str = ""


class Turns:
    """Has the applications begin each wave together; waves of Python state have the box to themselves, one by one.

    Planning transformWithState starts a Python process in the driver, and Spark waits for it ten seconds at most.
    """

    def __init__(self, applications: int) -> None:
        self.barrier = threading.Barrier(applications, timeout=_PATIENCE)
        self._alone = threading.Lock()

    def wave(self, wave: Wave) -> contextlib.AbstractContextManager[Any]:
        self.barrier.wait()
        return self._alone if wave.python else contextlib.nullcontext()


def start(stack: Stack, name: str, waves: list[Wave], conf: Mapping[str, str]) -> ManagedProcess:
    """Start an application that runs these waves, in a directory of its name."""
    directory = stack.directory / name
    for number, wave in enumerate(WAVES):
        if wave in waves:
            (directory / f"inbox-{number}").mkdir(parents=True)
    own = {
        "spark.app.name": name,
        "spark.sql.shuffle.partitions": str(PARTITIONS),
        "spark.sql.session.timeZone": "UTC",
        "spark.executorEnv.PYTHONPATH": str(ROOT / "tests"),
        "spark.sql.streaming.pollingDelay": "100ms",
    }
    python_path = os.pathsep.join((stack.environment["PYTHONPATH"], str(ROOT / "tests")))
    return stack.start_module("matrix.app", directory, {**conf, **own}, PYTHONPATH=python_path)


class Mover:
    """Runs one application through all its waves."""

    def __init__(
        self, store: Store, signer: Signer, name: str, directory: Path, check: Callable[[], None], turns: Turns
    ) -> None:
        self._turns = turns
        self.directory = directory
        self.cells: dict[str, dict[str, Cell]] = {}
        self.failed: dict[str, int] = {}
        self.application = ""
        self._store, self._signer, self._name, self._check = store, signer, name, check
        self._author = EnvelopeFactory(store.cluster, f"mover-{name}")
        self._decisions = 0
        self._fed = 0

    def run(self, waves: list[Wave]) -> None:
        try:
            for number, wave in enumerate(WAVES):
                if wave in waves:
                    with self._turns.wave(wave):
                        (self.directory / f"go-{number}").touch()
                        self._one(number, wave)
        except BaseException:
            self._turns.barrier.abort()  # the others must not wait for us
            raise

    # -- one wave --

    def _one(self, number: int, wave: Wave) -> None:
        store, workloads = wave.store, wave.workloads
        self.cells.setdefault(store, {}).update({workload.name: Cell() for workload in workloads})
        self._fed = 0
        failed = self._report().failed_tasks if number and self._actual() else 0
        for rows in files()[:FIRST_FILES]:
            self._feed(number, rows)
        self._wait("queries start", (self.directory / f"running-{number}").exists)
        running = set(json.loads((self.directory / f"running-{number}").read_text()))
        live = [workload for workload in workloads if workload.name in running]
        self._wait("stages are known", lambda: len(self._names(running)) == len(running - self._dead(number)))
        self._wait("the first files are read", lambda: self._idle(live, number) and self._settled())
        for rows in files()[FIRST_FILES : FILES - IDLE_ROUNDS]:
            self._feed(number, rows)
        while not self._idle(live, number):
            self._rotate(running, store, "busy", lambda: self._idle(live, number))
        for rows in files()[FILES - IDLE_ROUNDS :]:
            self._wait("queries are idle", lambda: self._idle(live, number))
            self._rotate(running, store, "idle", None, lambda rows=rows: self._feed(number, rows))  # type: ignore[misc]
        for rows in sentinels():
            self._feed(number, rows)
        self._wait("the end is read", lambda: self._idle(live, number))
        (self.directory / f"finish-{number}").touch()
        result = self.directory / f"result-{number}.json"
        failing = 0

        def written() -> bool:
            nonlocal failing
            failing = max(failing, self._actual()[1].failed_tasks if self._actual() else 0)
            return result.exists()

        self._wait("the result is written", written)
        self.failed[store] = self.failed.get(store, 0) + failing - failed
        self._audit(json.loads(result.read_text()), workloads, store)

    def _rotate(
        self,
        running: set[str],
        store: str,
        phase: str,
        over: Callable[[], bool] | None,
        feed: Callable[[], None] | None = None,
    ) -> None:
        """Move every partition to the next executor, and wait until all have settled or the phase is over."""
        report = self._report()
        names = {query.query: query.name for query in report.queries}
        executors = sorted(info.executor for info in report.executors)
        self._decisions += 1
        moves = []
        for query in self._names(running):
            for stage in query.stages:
                for partition, source in enumerate(stage.placement):
                    target = executors[(executors.index(source) + 1) % len(executors)]
                    name = f"d{self._decisions}.{len(moves)}"
                    moves.append(
                        DesiredMove(
                            move=name,
                            query=query.query,
                            stage=stage.stage,
                            partition=partition,
                            source=source,
                            target=target,
                            step=0,
                        )
                    )
        runs = {query.query: query.run for query in report.queries}
        desired = DesiredPlacement(decision=f"d{self._decisions}", runs=runs, moves=moves)
        mine = {move.move for move in moves}
        states: dict[str, Any] = {}

        def settled() -> bool:
            current = self._report()
            states.update({view.move: view for view in current.moves if view.move in mine})
            done = len(states) == len(mine) and all(view.state not in OPEN for view in states.values())
            return done or (over is not None and over())

        def steered() -> bool:
            settled()
            return len(states) == len(mine) and all(view.state != "planned" for view in states.values())

        self.application = self._actual()[0]
        envelope = self._author.envelope(desired, ttl=600, application=self.application, epoch=1)
        self._store.put(keys.DESIRED, self.application, self._signer.sign(envelope))
        if feed is not None:
            self._wait("idle queries are steered", steered)
            feed()
        self._wait("moves settle", settled)
        for view in states.values():
            cell = self.cells[store][names[view.query]]
            cell.moves[phase] += view.state in ("drained", "killed")
            cell.moves["abandoned"] += view.state == "abandoned"
            cell.moves["missed"] += view.missed_batches

    def _audit(self, result: dict[str, Any], workloads: list[Workload], store: str) -> None:
        rows = [row for part in [*files(), *sentinels()] for row in part]
        for workload in workloads:
            cell = self.cells[store][workload.name]
            cell.error = result["errors"].get(workload.name, "")
            written = result["written"][workload.name]
            cell.batches = len(written)
            current = Counter[tuple[Any, ...]]()
            last: dict[Any, tuple[Any, ...]] = {}
            for batch in sorted(written, key=int):
                for row in written[batch]:
                    current[tuple(row)] += 1
                    last[row[0]] = tuple(row)
            if workload.mode == "update":
                current = Counter(last.values())
            expected = workload.expected(rows)
            cell.exact = not cell.error and current == expected
            if not cell.exact and not cell.error:
                missing, extra = expected - current, current - expected
                cell.error = (
                    f"{missing.total()} rows missing ({sorted(missing, key=str)[:3]}), {extra.total()} too many "
                    f"({sorted(extra, key=str)[:3]})"
                )

    # -- what is known --

    def _actual(self) -> tuple[str, LinkReport] | tuple[()]:
        for name in self._store.applications(time.time() - 60):
            envelope = self._store.get(keys.REPORT, name)
            if envelope is not None and isinstance(envelope.body, LinkReport) and envelope.body.name == self._name:
                return name, envelope.body
        return ()

    def _report(self) -> LinkReport:
        self._wait("the link reports", lambda: bool(self._actual()))
        current = self._actual()
        assert current
        return current[1]

    def _settled(self) -> bool:
        return all(view.state not in AWAITING_BATCH for view in self._report().moves)

    def _names(self, running: set[str]) -> list[Any]:
        current = self._actual()
        queries = current[1].queries if current else []
        names = {info.executor for info in current[1].executors} if current else set()
        return [
            query
            for query in queries
            if query.name in running
            and query.stages
            and all(stage.operators and set(stage.placement) <= names for stage in query.stages)
        ]

    def _idle(self, workloads: list[Workload], number: int) -> bool:
        dead = self._dead(number)
        alive = [workload for workload in workloads if workload.name not in dead]
        return all(self._is_idle(checkpoint(self.directory, number, workload)) for workload in alive)

    def _dead(self, number: int) -> set[str]:
        path = self.directory / f"dead-{number}"
        text = path.read_text() if path.exists() else ""
        return set(json.loads(text)) if text else set()

    def _is_idle(self, path: Path) -> bool:
        """All that was fed is committed, off Spark's own logs: needs nothing of ours."""
        read = [max(_numbers(source), default=-1) + 1 for source in (path / "sources").glob("*")]
        offsets, commits = _numbers(path / "offsets"), _numbers(path / "commits")
        return bool(read) and min(read) >= self._fed and max(offsets, default=-1) == max(commits, default=-2)

    def _feed(self, number: int, rows: list[Row]) -> None:
        inbox = self.directory / f"inbox-{number}"
        inbox.mkdir(exist_ok=True)
        path = inbox / f"{self._fed:03d}.json"
        partial = inbox / f".{path.name}"
        lines = [
            json.dumps({**row._asdict(), "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(row.at))}) + "\n"
            for row in rows
        ]
        partial.write_text("".join(lines))
        # Spark reads files in the order of their times.
        stamp = time.time() - 1000 + self._fed
        os.utime(partial, (stamp, stamp))
        partial.rename(path)
        self._fed += 1

    def _wait(self, what: str, ready: Callable[[], bool]) -> None:
        def holds() -> bool:
            if ready():
                return True
            self._check()
            return False

        wait_until(holds, f"{self._name}: {what}", _PATIENCE, 0.3)


def _numbers(path: Path) -> list[int]:
    # Every tenth file of a source's log is compacted and called <number>.compact.
    stems = [item.name.removesuffix(".compact") for item in path.iterdir()] if path.is_dir() else []
    return [int(stem) for stem in stems if stem.isdigit()]
