"""A whole Rechannel on real parts, whose parts can be killed, stopped, cut off and started again one by one.

Redis, a standalone cluster with three one-core executors, two controllers, an agent for each node, and an application
that can be audited at any time. Where root allows, every part lives in a network namespace of its own, and nothing of
it can be reached from outside; elsewhere all meet on a unix socket and on loopback addresses, and nothing can be cut.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import psutil

from rechannel.conf.loader import load
from rechannel.daemon.view.status_builder import read_status
from rechannel.migration.moves import AWAITING_BATCH
from rechannel.wire import keys
from rechannel.wire.envelope import Envelope
from rechannel.wire.messages import LinkReport
from rechannel.wire.redis.errors import StoreError
from testbed.processes import ProcessDiedError, wait_until
from testbed.redis_server import RedisServer
from testbed.spark_cluster import SparkOptions
from testbed.stack import Stack, clean_environment, next_executors, saved_plan, standalone, write_config
from tests.drills import network as networks
from tests.drills.audit import LINK_LOG, QUERIES, read_journal
from tests.drills.machine import FAKETIME, signal_tree, tmpfs_why_not
from tests.drills.watch import Watch

NODES = ("127.0.0.61", "127.0.0.62", "127.0.0.63")
CONTROLLERS = ("alpha", "beta")
CLUSTER_NAME = "drills"
APPLICATION = "drill"
PARTITIONS = 6
TMPFS_MB = 64
PATIENCE = 300.0 * float(os.environ.get("DRILLS_PATIENCE", "1"))  # seconds for each stage; a busy box is slow
PROVIDERS = {
    "hdfs": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
    "rocksdb": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
}


class DrillError(RuntimeError):
    """Something did not come about in time; the message says what, and how things stood."""


@dataclass(frozen=True)
class WorldOptions:
    """Application and settings of a world.

    Parameters
    ----------
    app
        Module of the application.
    trigger
        Time between two batches.
    cores
        Of an executor.
    spark
        Settings of the application's own.
    attached
        False leaves all of Rechannel out.
    """

    app: str = "tests.drills.app"
    trigger: str = "2 seconds"
    cores: int = 1
    spark: Mapping[str, str] = field(default_factory=dict)
    attached: bool = True


class World(Stack):
    """Everything a drill needs; all of it is gone when the block ends. Not for more than one thread."""

    watch: Watch

    def __init__(self, directory: Path, provider: str, options: WorldOptions | None = None) -> None:
        self.options = options or WorldOptions()
        sections: dict[str, dict[str, Any]] = {
            "cluster": {"name": CLUSTER_NAME},
            "agent": {"window": 2.0},
            "reschedule": {"mode": "observe", "timeout": 5.0, "settle": 3.0, "batches": 2},
            "gate": {"cooldown": 5.0, "max_utilization": 10},
            "migration": {"moves_per_batch": 1, "settle_batches": 2},
        }
        super().__init__(directory, sections)
        self.provider = provider
        self.app_directory = directory / "app"
        self.link_directory = directory / "link"
        self.network: networks.Network | None = None
        self.fake_clock = directory / "clock"
        self._link_url = ""  # of Redis, where the link takes another way to it

    # -- life --

    def start(self) -> Self:
        """Start every part; `scenarios.until_well` waits until they work together."""
        self.app_directory.mkdir(parents=True)
        self.link_directory.mkdir(mode=0o700)
        self.fake_clock.write_text("+0s\n")
        if not tmpfs_why_not():
            mount = ["mount", "-t", "tmpfs", "-o", f"size={TMPFS_MB}m,mode=700", "tmpfs", str(self.link_directory)]
            subprocess.run(mount, check=True)
            self._open.callback(subprocess.run, ["umount", "-l", str(self.link_directory)], check=False)
        self._open.enter_context(self.group)
        if not networks.why_not():
            self.network = networks.Network(self.group, ["cluster", *CONTROLLERS, *NODES])
        self.environment = clean_environment()
        if self.options.attached:
            self.redis = RedisServer(self.group, options=self._redis_options_here())
            self._open.callback(self.redis.close)
            self.start_redis()
            self.config = write_config(self.directory, self.redis.url, self._sections)
            self.settings = load(self.config, {})
            self.environment["RECHANNEL_CONFIG"] = str(self.config)
            self.watch = Watch(self.redis.socket_path)
            self._open.callback(self.watch.close)
            for name in CONTROLLERS:
                self.start_controller(name)
        cluster = standalone(NODES, self.options.cores, 768, SparkOptions(700))
        self.cluster = cluster(self.group, self.directory / "cluster")
        self._open.callback(self.cluster.close)
        with self.inside("cluster"):
            self.cluster.start()
        for node in NODES if self.options.attached else ():
            self.start_agent(node)
        self.start_application()
        return self

    def close(self) -> None:
        """Kill everything; logs, output and journals stay in the directory."""
        with contextlib.suppress(psutil.Error, OSError):
            for name in list(self.group.processes):
                self.resume(name)
        super().close()

    def _redis_options_here(self) -> dict[str, str]:
        # What is written survives a crash of the server, as an operator would have it.
        options = {"appendonly": "yes", "appendfsync": "everysec"}
        if self.network is not None:
            bind = " ".join(["127.0.0.1", *self.network.hub_addresses])
            options |= {"port": "6379", "bind": bind, "protected-mode": "no"}
        return options

    # -- parts --

    def inside(self, part: str) -> contextlib.AbstractContextManager[None]:
        """Block in which the processes of a part are started: its namespace, if there are any."""
        return contextlib.nullcontext() if self.network is None else self.network.inside(part)

    def _redis_from(self, part: str) -> dict[str, str]:
        """Return what tells a process in a part where Redis is."""
        if self.network is None:
            return {}
        return {"RECHANNEL_REDIS__URL": f"redis://{self.network.hub_from(part)}:6379/0"}

    def start_redis(self, *, empty: bool = False) -> None:
        """Start Redis with what it had written, or with nothing."""
        if empty:
            shutil.rmtree(self.redis.directory / "appendonlydir", ignore_errors=True)
        with self.inside(networks.HUB):
            self.redis.start()

    def start_controller(self, name: str, *, fake_clock: bool = False) -> None:
        """Start a controller; with ``fake_clock`` its clock is the machine's plus what the file `fake_clock` says."""
        environment = self._redis_from(name) | {"RECHANNEL_CONTROLLER__NAME": name}
        if fake_clock:
            environment |= {
                "LD_PRELOAD": str(FAKETIME),
                "FAKETIME_TIMESTAMP_FILE": str(self.fake_clock),
                "FAKETIME_NO_CACHE": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            }
        with self.inside(name):
            super().start_controller(f"controller-{name}", **environment)

    def start_agent(self, node: str) -> None:
        """Start the agent of a node, in its namespace."""
        with self.inside(node):
            super().start_agent(node, **self._redis_from(node))

    def start_application(self) -> None:
        """Start the application, or start it again from its checkpoints."""
        for left in ("stop", "result.json"):
            (self.app_directory / left).unlink(missing_ok=True)
        spark = self.cluster.conf(executor_cores=self.options.cores) | {
            "spark.app.name": APPLICATION,
            "spark.sql.shuffle.partitions": str(PARTITIONS),
            "spark.sql.streaming.stateStore.providerClass": PROVIDERS[self.provider],
            "spark.deploy.maxExecutorRetries": "-1",
            "spark.driver.memory": "700m",
            # A restarted driver must not starve behind the executors of the one that was killed.
            "spark.cores.max": str(len(NODES) * self.options.cores),
            **self.options.spark,
        }
        plan = {"spark": spark, "trigger": self.options.trigger, "attached": self.options.attached}
        redis = {"RECHANNEL_REDIS__URL": self._link_url} if self._link_url else self._redis_from("cluster")
        with self.inside("cluster"):
            self.start_module(self.options.app, self.app_directory, plan, "driver", **redis)

    def stop_application(self) -> dict[str, Any]:
        """Have the application end in good order; returns what it said at the end."""
        (self.app_directory / "stop").touch()
        process = self.group.processes.pop("driver")
        self.wait("the application ends", lambda: "" if not process.alive() else "it still runs")
        result = self.app_directory / "result.json"
        if not result.exists():
            raise DrillError(f"the application ended without a result:\n{process.log_tail(30)}")
        reason: dict[str, Any] = json.loads(result.read_text())
        return reason

    # -- hitting them --

    def alive(self, name: str) -> bool:
        """Whether a process of ours runs (or is stopped)."""
        process = self.group.processes.get(name)
        return process is not None and process.alive()

    def pause(self, name: str) -> None:
        """Stop a process, and what it started, in the middle of whatever it does (SIGSTOP)."""
        self._signal(name, signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """Let it go on (SIGCONT)."""
        self._signal(name, signal.SIGCONT)

    def _signal(self, name: str, number: int) -> None:
        if self.alive(name):
            signal_tree(self.group.processes[name].pid, number)

    # -- looking at them --

    def wait(self, what: str, missing: Callable[[], str], patience: float = PATIENCE, every: float = 1.0) -> None:
        """Wait until nothing is missing any more; `DrillError` when that takes too long, or a process has died."""
        lacking = [""]

        def holds() -> bool:
            lacking[0] = missing()
            if lacking[0]:
                self.group.check()
            return not lacking[0]

        try:
            wait_until(holds, what, patience, every)
        except (TimeoutError, ProcessDiedError) as error:
            raise DrillError(f"{what}: {lacking[0]}: {error}\n{self.logs(8)}") from error

    def leader(self, since: float = 0.0) -> str:
        """Return the controller that leads, by its own words later than ``since``; "" where nobody says so."""
        try:
            with self.open_store() as store:
                state = store.get(keys.STATE)
        except StoreError:
            return ""
        # A leader whose clock is ahead says so in the future; that is no word of now.
        if state is None or not since < state.time <= time.time() + 5:
            return ""
        return str(getattr(state.body, "leader", "")).partition("/")[0]

    def report(self) -> Envelope | None:
        """Return the newest report of the application's link."""
        with self.open_store() as store:
            latest = [store.get(keys.REPORT, name) for name in store.applications(0.0)]
        reports = [item for item in latest if item is not None and isinstance(item.body, LinkReport)]
        return max(reports, key=lambda item: (item.body.attached, item.time), default=None)

    def last_batches(self, queries: Iterable[str] = QUERIES) -> dict[str, int]:
        """Query -> its last batch that was written."""
        return {
            name: max((int(path.stem) for path in (self.app_directory / "out" / name).glob("[0-9]*.json")), default=-1)
            for name in queries
        }

    def lacking(self, since: float, batches: dict[str, int]) -> str:
        """Say what is not well yet, by words later than ``since`` alone; "" when all parts work together.

        Well is: a leader; a report of the link that knows batches after ``batches``; figures of every node; three
        executors and no partition elsewhere; ready for decisions.
        """
        try:
            return self._lacking(since, batches)
        except StoreError as error:
            return str(error)

    def _lacking(self, since: float, batches: dict[str, int]) -> str:
        behind = [name for name, last in self.last_batches().items() if last <= batches.get(name, -1)]
        if behind:
            return f"no commit of {', '.join(behind)} yet"
        if not self.leader(since):
            return "no leader has spoken"
        latest = self.report()
        if latest is None or latest.time <= since:
            return "the link has not reported"
        report = latest.body
        batches_seen = {query.name: query.batch for query in report.queries}
        blind = [name for name in QUERIES if batches_seen.get(name, -1) <= batches.get(name, -1)]
        if blind:
            return f"the link has seen no batch of {', '.join(blind)}"
        executors = {info.executor for info in report.executors}
        if len(executors) != len(NODES):
            return f"{len(executors)} of {len(NODES)} executors"
        if not all(
            query.stages and set(stage.placement) <= executors for query in report.queries for stage in query.stages
        ):
            return "partitions are not placed yet"
        with self.open_store() as store:
            for node in NODES:
                windows = store.last(keys.WINDOWS, node, 1)
                if not windows or windows[0].time <= since:
                    return f"no figures of {node}"
            status = read_status(store, self.settings, time.time())
        row = next((row for row in status.applications if row.application == latest.application), None)
        if row is None:
            return "no status of the application"
        return "" if row.readiness.ready else row.readiness.sentence

    def moving(self) -> str:
        """Say which moves are under way, "" if none is."""
        try:
            latest = self.report()
        except StoreError as error:
            return str(error)
        if latest is None:
            return "no report"
        open_ = [view for view in latest.body.moves if view.state in AWAITING_BATCH]
        return f"{len(open_)} moves under way, as {open_[0].move}: {open_[0].state}" if open_ else ""

    def failed_tasks(self) -> int:
        """Return the failed task attempts that the link has counted."""
        try:
            latest = self.report()
        except StoreError:
            return 0
        return latest.body.failed_tasks if latest is not None else 0

    def journal(self) -> list[dict[str, Any]]:
        """Return every transition of a move that links have logged, also those of drivers that are gone."""
        return read_journal(self.app_directory / LINK_LOG)

    # -- a long migration --

    def start_migration(self, wait: float | None = None) -> tuple[str, int]:
        """Have an operator apply a plan in which every partition goes to the next executor; (decision, moves).

        ``wait``: seconds for which an answer is waited for, if not the command's own.
        """
        path = self.directory / "plan.json"
        latest = self.report()
        if latest is None:
            raise DrillError("no report to make a plan of")
        plan = saved_plan(CLUSTER_NAME, latest.application, latest.body, next_executors(latest.body))
        path.write_text(json.dumps(plan))
        patience = [] if wait is None else ["--wait", f"{wait:g}"]
        try:
            code, answer = self.cli("apply", str(path), "--force", "--reason", "a drill", *patience, patience=120)
        except subprocess.TimeoutExpired as error:
            raise DrillError("rechannel apply did not end within 120 s") from error
        if code != 0:
            raise DrillError(f"the migration was refused: {answer.get('sentence') or answer.get('error')}")
        return str(answer["decision"]["decision"]), len(answer["decision"]["moves"])
