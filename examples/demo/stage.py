"""The running demo: cluster, Redis, Rechannel's processes and the application, each its own process."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.demo.data import open_replay
from examples.demo.feed import Feeder, ProgressReader
from examples.demo.queries import QUERIES, Layout
from examples.demo.rechannel_view import SECTIONS, RechannelView
from examples.demo.report import Screen
from testbed.processes import ManagedProcess, ProcessGroup
from testbed.progress import JsonLines
from testbed.spark_cluster import QUICK_CHECKPOINTS, SparkOptions, StandaloneCluster, WorkerSpec
from testbed.stack import ROOT, Stack

__all__ = ["ADDED", "NODES", "Options", "Stage", "open_stage"]

NODES = ("127.0.0.2", "127.0.0.3")
ADDED = ("127.0.0.4", "127.0.0.5")


@dataclass(frozen=True)
class Options:
    """Size of the demo."""

    rows: int = 100  # flights in the first files; later ones are as long as the machine asks for
    partitions: int = 8
    executor_cores: int = 1
    service_ms: int = 5
    with_rechannel: bool = True


@dataclass
class Stage:
    """Everything that runs."""

    options: Options
    root: Path
    stack: Stack
    feeder: Feeder
    progress: ProgressReader
    app: ManagedProcess
    view: RechannelView | None

    @property
    def group(self) -> ProcessGroup:
        """The processes of the run."""
        return self.stack.group

    @property
    def cluster(self) -> StandaloneCluster:
        """The Spark cluster."""
        return self.stack.cluster

    @property
    def queries(self) -> list[str]:
        """The names of the queries."""
        return list(QUERIES)

    def add_node(self, node: str) -> None:
        """Start one more worker with its agent."""
        self.cluster.add_worker(_worker(node, self.options))
        if self.view is not None:
            self.stack.start_agent(node)

    def finished(self) -> dict[str, int]:
        """Take in the application's progress; return how many batches each query has finished."""
        self.progress.poll()
        return {query: self.progress.finished(query) for query in self.queries}

    def feed(self) -> dict[str, int]:
        """Take in progress, check that everybody lives, feed what may be fed; return the batches finished."""
        finished = self.finished()
        self.group.check()
        self.feeder.advance(min(finished.values()))
        return finished

    def result(self) -> dict[str, Any]:
        """Return what the application wrote at its end."""
        written: dict[str, Any] = json.loads((self.root / "result.json").read_text())
        return written


def _worker(node: str, options: Options) -> WorkerSpec:
    return WorkerSpec(node, options.executor_cores, 1024)


def _spark_conf(cluster: StandaloneCluster, options: Options) -> dict[str, str]:
    return cluster.conf(options.executor_cores) | {
        "spark.app.name": "rechannel-demo",
        "spark.driver.memory": "1g",
        "spark.executorEnv.PYTHONPATH": str(ROOT),
        "spark.sql.shuffle.partitions": str(options.partitions),
        **QUICK_CHECKPOINTS,
        # By default a task that waits 3 s for its executor runs on an idle one, for example the drained one.
        "spark.locality.wait": "30s",
        "spark.sql.streaming.pollingDelay": "100ms",  # a query that waits for its next file leaves the driver in peace
        # Thousands of tiny batches are this demo's, not production's: without these, compaction makes every tenth slow.
        "spark.sql.streaming.fileSource.log.compactInterval": "1000",
        "spark.sql.streaming.fileSink.log.compactInterval": "1000",
    }


@contextlib.contextmanager
def open_stage(root: Path, options: Options, screen: Screen) -> Iterator[Stage]:
    """Start everything up to the running application; stop everything when the block ends."""
    replay = open_replay(root / "replay")
    screen.say(f"replay: {len(replay.flights):,} flights of 2013 in the order of time")
    screen.say(f"load: each row takes {options.service_ms} ms, as if it asked a service")

    def cluster(group: ProcessGroup, path: Path) -> StandaloneCluster:
        workers = [_worker(node, options) for node in NODES]
        return StandaloneCluster(group, path, workers, SparkOptions())

    with Stack(root, SECTIONS, cluster) as stack:
        screen.say(f"spark: standalone master and {len(NODES)} workers on {', '.join(NODES)}")
        view = RechannelView(stack) if options.with_rechannel else None
        if view is not None:
            screen.say(f"redis: {stack.redis.binary}, private socket")
            stack.start_controller()
            for node in NODES:
                stack.start_agent(node)
            screen.say(f"rechannel: a controller, and an agent for each of {len(NODES)} nodes")
        (root / "conf.json").write_text(json.dumps(_spark_conf(stack.cluster, options), indent=2))
        feeder = Feeder(replay, Layout(root).inbox, root / "control", options.rows)
        feeder.advance(0)
        command = ["-m", "examples.demo.app", "--root", str(root), "--conf", str(root / "conf.json")]
        command += ["--service-ms", str(options.service_ms), *(["--attach"] if view is not None else [])]
        app = stack.start_driver("app", command)
        progress = ProgressReader(JsonLines(root / "progress.jsonl"))
        yield Stage(options, root, stack, feeder, progress, app, view)
