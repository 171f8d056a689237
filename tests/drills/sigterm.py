"""The drill *an executor is ended with SIGTERM while old shuffle files make its end slow* (SPARK-37473).

What is lost here is lost by Spark: it happens without Rechannel too, and does not count as a failure of ours. With the
cure, ``spark.shuffle.sort.bypassMergeThreshold=0``, a lost row does. What makes it likely is done on purpose: thousands
of old shuffle files, and a map task that ends while its executor deletes them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from testbed.spark_cluster import QUICK_JAVA
from tests.drills import audit
from tests.drills.session import to_stderr
from tests.drills.sigterm_app import MAP_TASKS, QUERY, ROWS, SLOW_EVERY, SLOW_S, is_slow
from tests.drills.world import NODES, PATIENCE, World, WorldOptions

SETTING, CURE = "spark.shuffle.sort.bypassMergeThreshold", "0"
PARTITIONS = 12
OLD_FILES, FILLING_S = 150_000, 30.0  # as many as can be had in that time; deleting takes about half of it
_SUBDIRECTORIES = 64  # spark.diskStore.subDirectories
_HOOKS_S = 0.3  # from SIGTERM until files are deleted
_LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yy/MM/dd HH:mm:ss.SSS} %p %c{1}: %m%n%ex
logger.tasks.name = org.apache.spark.scheduler.TaskSetManager
logger.tasks.level = info
"""


@dataclass(frozen=True)
class Try:
    """One executor that was ended. Rows; seconds since SIGTERM. ``committed``: a map task of it still succeeded."""

    batch: int
    lost: int
    doubled: int
    mapped: float
    ended: float
    committed: bool


def run(tries: int, *, cured: bool, attached: bool, directory: Path, until_lost: bool = False) -> dict[str, Any]:
    """End executors one after the other; ``until_lost``: no more than it takes to lose rows."""
    spark = {
        "spark.sql.shuffle.partitions": str(PARTITIONS),
        "spark.driver.extraJavaOptions": f"{QUICK_JAVA} -Dlog4j2.configurationFile={directory}/log4j2.properties",
    }
    if cured:
        spark[SETTING] = CURE
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "log4j2.properties").write_text(_LOG4J)
    named = f"{'with' if cured else 'without'} the cure, {'with' if attached else 'without'} Rechannel"
    to_stderr(f"an executor is ended with SIGTERM, {named}")
    made: list[Try] = []
    filled: dict[Path, float] = {}
    # As many cores as partitions: all of them run at once.
    app = WorldOptions("tests.drills.sigterm_app", "1 second", cores=PARTITIONS // 3, spark=spark, attached=attached)
    world = World(directory, "hdfs", app)
    with world:
        while len(made) < tries and not (until_lost and any(one.lost for one in made)):
            made.append(_end_one(world, audit.audit_query(world.app_directory, QUERY, ROWS), filled))
            one = made[-1]
            to_stderr(
                f"batch {one.batch}: {one.lost} rows lost, {one.doubled} doubled; its map task ended after "
                f"{one.mapped:.1f} s{' and counted' if one.committed else ''}, the executor after {one.ended:.1f} s"
            )
        result = world.stop_application()
    record = {"cured": cured, "attached": attached, "tries": [dataclasses.asdict(one) for one in made]}
    return record | {"problems": problems(record, result)}


def problems(record: Mapping[str, Any], result: Mapping[str, Any]) -> list[str]:
    """Name what is a failure: rows doubled, rows lost in spite of the cure, a query or a link that ended."""
    lost, doubled = (sum(one[name] for one in record["tries"]) for name in ("lost", "doubled"))
    failures = [f"{name} failed: {why}" for name, why in result["exceptions"].items()]
    if result["problem"] or result["failures"]:
        failures.append(f"the link: {result['failures']} failed turns, {result['problem']}")
    if doubled:
        failures.append(f"{doubled} rows were counted twice")
    if lost and record["cured"]:
        failures.append(f"{lost} rows were lost though {SETTING}={CURE}")
    return failures


def _end_one(world: World, before: audit.Audit, filled: dict[Path, float]) -> Try:
    app = world.app_directory
    world.wait("the next batch is a slow one", lambda: "" if is_slow(_last(world) + 1) else "not yet", every=0.1)
    batch = _last(world) + 1
    world.wait("all executors are there", lambda: "" if len(_directories(world)) == len(NODES) else "one is missing")
    for directory in _directories(world).values():
        if directory not in filled:
            filled[directory] = fill(directory)
    log = world.group.processes["driver"].log
    read = log.stat().st_size
    (app / f"go-{batch}").touch()
    slow: list[str] = []  # the executor's number, once it is known
    world.wait("a map task is slow", lambda: "" if slow or _slow_on(log, read, slow) else "none is", every=0.05)
    ends = time.monotonic() + SLOW_S
    (executor,) = (item for item in world.cluster.executors() if item.executor_id == slow[0])
    process = psutil.Process(executor.pid)
    filling = filled[_directories(world)[executor.host]]
    # A twentieth of the directory is to be gone when the map task ends. Deleting takes half as long as writing.
    time.sleep(max(0.0, ends - time.monotonic() - _HOOKS_S - filling * 0.5 * 0.05))
    struck = time.monotonic()
    process.send_signal(signal.SIGTERM)
    with contextlib.suppress(psutil.NoSuchProcess):
        process.wait(PATIENCE)
    ended = time.monotonic() - struck
    next_slow = batch + SLOW_EVERY - 1
    world.wait(
        "the next batch is written", lambda: "" if _last(world) >= next_slow else f"batch {_last(world)}", every=0.2
    )
    committed = f"{slow[1]} (executor {slow[0]})" in _finished(log, read)
    after = audit.audit_query(app, QUERY, ROWS)
    return Try(batch, after.lost - before.lost, after.doubled - before.doubled, ends - struck, ended, committed)


def _last(world: World) -> int:
    return world.last_batches([QUERY])[QUERY]


def _directories(world: World) -> dict[str, Path]:
    """Node -> where its executor keeps shuffle files; without the nodes that have none."""
    record = {}
    for node in NODES:
        executors = world.cluster.executors(node)
        blocks = [path for path in world.cluster.local_dir(node).glob("spark-*/executor-*/blockmgr-*") if path.is_dir()]
        if len(executors) == 1 and len(blocks) == 1:
            record[node] = blocks[0]
    return record


def _slow_on(log: Path, offset: int, record: list[str]) -> bool:
    """Find the map task that is slow, once the others have ended; puts its executor and its name in ``found``."""
    text = _tail(log, offset)
    started = re.search(r"Starting (task 0\.0 in stage \S+ \(TID \d+\)) \(\S+, ?executor (\d+), partition 0,", text)
    if started is None:
        return False
    task, executor = started.groups()
    stage = task.partition(" in ")[2].partition(" (")[0]
    if len(re.findall(rf"Finished task \d+\.0 in {re.escape(stage)} ", text)) < MAP_TASKS - 1:
        return False
    record += [executor, task]
    return True


def _finished(log: Path, offset: int) -> set[str]:
    """Return the tasks that succeeded, each with its executor."""
    pattern = r"Finished (task \S+ in stage \S+ \(TID \d+\)) in \d+ ms on \S+ (\(executor \d+\))"
    return {" ".join(record) for record in re.findall(pattern, _tail(log, offset))}


def _tail(log: Path, offset: int) -> str:
    with log.open(errors="replace") as file:
        file.seek(offset)
        return file.read()


def fill(directory: Path) -> float:
    """Put empty files where Spark keeps those of old shuffles until its driver collects garbage; return the seconds."""
    began = time.monotonic()
    for number in range(_SUBDIRECTORIES):
        (directory / f"{number:02x}").mkdir(exist_ok=True)
    for number in range(OLD_FILES):
        path = directory / f"{number % _SUBDIRECTORIES:02x}" / f"shuffle_999999_{number}_0.data"
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
        if time.monotonic() - began > FILLING_S:
            break
    return time.monotonic() - began


def merged(runs: Iterable[Mapping[str, Any]], run: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the runs with one in place of an older one made the same way."""
    return [one for one in runs if any(one[name] != run[name] for name in ("cured", "attached"))] + [run]


def table(runs: Iterable[Mapping[str, Any]]) -> str:
    """Return the runs in Markdown."""
    lines = [
        (
            f"| `{SETTING}` | Rechannel | executors ended | map tasks of theirs that succeeded meanwhile "
            "| batches short of rows | rows lost by Spark | rows doubled | the end took, median / longest | held |"
        ),
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for run_ in sorted(runs, key=lambda item: (item["cured"], item["attached"])):
        tries = run_["tries"]
        took = sorted(one["ended"] for one in tries)
        lines.append(
            f"| {CURE if run_['cured'] else '200, the default'} | {'attached' if run_['attached'] else 'not there'} "
            f"| {len(tries)} | {sum(one['committed'] for one in tries)} | {sum(one['lost'] > 0 for one in tries)} "
            f"| {sum(one['lost'] for one in tries):,} | {sum(one['doubled'] for one in tries)} "
            f"| {took[len(took) // 2]:.1f} / {took[-1]:.1f} s | {'**no**' if run_['problems'] else 'yes'} |"
        )
    return "\n".join(lines)
