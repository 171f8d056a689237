"""What is measured on: Redis, a standalone cluster with an agent on each node, a controller, the application."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.migration.app import NAME
from rechannel.conf.loader import load
from rechannel.conf.settings import Settings
from rechannel.wire import keys
from rechannel.wire.messages import ControllerState, LinkReport, MoveTransition, QueryState
from rechannel.wire.redis.store import Store
from rechannel.wire.signing import make_keys
from testbed.processes import ProcessGroup
from testbed.redis_server import RedisServer
from testbed.spark_cluster import StandaloneCluster, WorkerSpec

__all__ = ["NODES", "Bench", "BenchError", "Place", "open_bench"]

Place = tuple[str, int, int]  # query, stage, partition

ROOT = Path(__file__).parents[2]
NODES = ("127.0.0.81", "127.0.0.82", "127.0.0.83", "127.0.0.84")
PATIENCE = 600.0  # seconds for anything
_CLI = "rechannel.daemon.cli.main"


class BenchError(RuntimeError):
    """The benchmark cannot go on with this row."""


@dataclass
class Bench:
    """What the measurements work with."""

    group: ProcessGroup
    cluster: StandaloneCluster
    store: Store
    settings: Settings
    directory: Path
    environment: dict[str, str]
    application: str = ""  # id, once its link reports
    _orders: int = 0
    _controller: dict[str, str] | None = None
    _read: int = 0  # bytes of the progress file taken in
    batches: list[dict[str, Any]] = field(default_factory=list)  # in the order of their commits
    _seen: str = "0"  # id of the journal's last entry taken in
    _journal: list[MoveTransition] = field(default_factory=list)

    def wait(self, what: str, ready: Callable[[], bool], patience: float = PATIENCE, every: float = 0.1) -> None:
        """Wait until something is so, while all processes live; BenchError when it does not come."""
        deadline = time.monotonic() + patience
        while not ready():
            self.group.check()
            if time.monotonic() > deadline:
                raise BenchError(f"{what}: not within {patience:g} s")
            time.sleep(every)

    # -- the application --

    def start_application(self, plan: Mapping[str, Any], conf: Mapping[str, str]) -> None:
        """Start the application and wait until its link reports a query whose partitions are all placed."""
        for name in ("orders", "answers"):
            (self.directory / name).mkdir()
        every = self.cluster.conf(1) | {
            "spark.app.name": "rechannel-migration",
            "spark.cores.max": str(len(NODES)),
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": "-XX:+UseSerialGC",
            "spark.executorEnv.PYTHONPATH": self.environment["PYTHONPATH"],
            **conf,
        }
        (self.directory / "plan.json").write_text(json.dumps({**plan, "conf": every}))
        command = [sys.executable, "-m", "benchmarks.migration.app", str(self.directory)]
        environment = self.cluster.driver_environment() | self.environment
        self.group.start("application", command, env=environment, cwd=ROOT)
        self.wait("the application's link reports", self._reports)

    def _reports(self) -> bool:
        known = self.store.applications(time.time() - 60)
        self.application = known[0] if known else ""
        return bool(known) and self.query() is not None

    def order(self, verb: str, **arguments: Any) -> dict[str, Any]:
        """Have the application do something, and return its answer."""
        number = self._orders
        self._orders += 1
        partial = self.directory / "order.partial"
        partial.write_text(json.dumps({"do": verb, **arguments}))
        partial.rename(self.directory / "orders" / f"{number}.json")
        answer = self.directory / "answers" / f"{number}.json"
        self.wait(f"the application's answer to {verb}", answer.exists)
        found: dict[str, Any] = json.loads(answer.read_text())
        return found

    def poll(self) -> list[dict[str, Any]]:
        """Take in the progress events that have come; returns all so far."""
        path = self.directory / "progress.jsonl"
        if path.exists():
            with path.open("rb") as file:
                file.seek(self._read)
                for line in file:
                    if line.endswith(b"\n"):
                        self._read += len(line)
                        self.batches.append(json.loads(line))
        return self.batches

    def wait_batches(self, count: int) -> None:
        """Wait until so many more batches are committed."""
        until = len(self.poll()) + count
        self.wait(f"{count} batches", lambda: len(self.poll()) >= until)

    # -- Rechannel --

    def controller(self, environment: Mapping[str, str]) -> None:
        """Have a controller with these settings; one that has them already stays."""
        if dict(environment) == self._controller:
            return
        self.group.stop("controller")
        since = time.time()
        command = [sys.executable, "-m", _CLI, "controller"]
        self.group.start("controller", command, env=self.environment | dict(environment))
        self._controller = dict(environment)

        def leads() -> bool:
            found = self.store.get(keys.STATE)
            return found is not None and isinstance(found.body, ControllerState) and found.time > since

        self.wait("a controller leads", leads, 60)

    def report(self) -> LinkReport | None:
        """Return the link's last report."""
        found = self.store.get(keys.REPORT, self.application) if self.application else None
        return found.body if found is not None and isinstance(found.body, LinkReport) else None

    def query(self) -> QueryState | None:
        """Return the query as the link sees it, once all its partitions are placed."""
        report = self.report()
        for query in report.queries if report else []:
            if query.name == NAME and query.active and query.stages and all(query.stages[0].placement):
                return query if query.stages[0].operators else None
        return None

    def ready(self) -> str:
        """Return why no decision can be made now, "" if it can."""
        code, answer = self.ask("status")
        if code or not answer.get("applications"):
            return str(answer.get("error", "no application"))
        found = answer["applications"][0]["readiness"]
        return "" if found["ready"] else str(found["sentence"])

    def await_ready(self, patience: float = 180.0) -> None:
        """Wait until a decision is possible; BenchError with what is missing when it does not come."""
        problem = [""]

        def ready() -> bool:
            problem[0] = self.ready()
            return not problem[0]

        try:
            self.wait("a decision is possible", ready, patience, every=1.0)
        except BenchError as error:
            raise BenchError(f"{error}: {problem[0]}") from error

    def ask(self, *words: str) -> tuple[int, dict[str, Any]]:
        """Run a command of Rechannel's, in this process: starting Python would take CPU from what is measured."""
        from rechannel.daemon.cli import main as cli

        output, errors, code = io.StringIO(), io.StringIO(), 0
        saved = dict(os.environ)
        os.environ.update(self.environment)
        try:
            with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
                cli.main(args=[*words, "--json"], prog_name="rechannel", standalone_mode=True)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        finally:
            os.environ.clear()
            os.environ.update(saved)
        try:
            answer: dict[str, Any] = json.loads(output.getvalue())
        except json.JSONDecodeError:
            answer = {"error": (errors.getvalue() or output.getvalue()).strip()[-500:]}
        return code, answer

    def apply(self, moves: Mapping[int, str], reason: str) -> dict[str, Any]:
        """Order that partitions go to executors; returns the decision, or raises BenchError with the refusal."""
        query = self.query()
        if query is None:
            raise BenchError("the link reports no query")
        stage = query.stages[0].stage
        return self.order_moves({(query.query, stage, at): target for at, target in moves.items()}, reason)

    def order_moves(self, moves: Mapping[Place, str], reason: str) -> dict[str, Any]:
        """Order that partitions go to executors, as :meth:`apply`, of any query and stage."""
        report = self.report()
        if report is None:
            raise BenchError("the link reports nothing")
        holders = {
            (query.query, stage.stage, partition): executor
            for query in report.queries
            for stage in query.stages
            for partition, executor in enumerate(stage.placement)
        }
        plan = {
            "format": 1,
            "cluster": self.settings.cluster.name,
            "application": self.application,
            "decision": "benchmark",
            "at": time.time(),
            "executors": {item.executor: item.host for item in report.executors},
            "runs": {item.query: item.run for item in report.queries},
            "moves": [
                {
                    "query": place[0],
                    "stage": place[1],
                    "partition": place[2],
                    "source": holders[place],
                    "target": target,
                }
                for place, target in moves.items()
            ],
        }
        path = self.directory / "moves.json"
        path.write_text(json.dumps(plan))
        code, answer = self.ask("apply", str(path), "--force", "--reason", reason)
        if code:
            raise BenchError(f"the moves were refused ({code}): {answer.get('error') or answer.get('sentence')}")
        found: dict[str, Any] = answer["decision"]
        return found

    def journal(self, decision: str) -> list[dict[str, Any]]:
        """Return the journal's lines of a decision."""
        while True:
            self._seen, lines = self.store.read(keys.JOURNAL, self.application, self._seen)
            if not lines:
                break
            self._journal += [line.body for line in lines if isinstance(line.body, MoveTransition)]
        return [msgspec.to_builtins(body) for body in self._journal if body.decision == decision]


@contextlib.contextmanager
def open_bench(directory: Path, executor_memory_mb: int) -> Iterator[Bench]:
    """Start Redis, cluster and agents in an existing directory; everything is gone when the block ends."""
    private, public = make_keys(directory / "keys")
    with ProcessGroup(directory / "logs") as group, RedisServer(group) as redis:
        config = directory / "rechannel.toml"
        config.write_text(
            f'[redis]\nurl = "{redis.url}"\ntimeout = 10.0\n[controller]\nlease = 45.0\n'
            f'[signing]\nprivate_key_file = "{private}"\npublic_key_file = "{public}"\n'
            f'[link]\ndirectory = "{directory / "link"}"\n'  # removed with the row, also when the driver is killed
            # Nothing is moved but by order, no rest follows, and no order is refused since the machine is busy.
            "[reschedule]\ntimeout = 3600.0\n[gate]\ncooldown = 0.0\nmax_utilization = 10.0\n"
        )
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("RECHANNEL_")},
            "RECHANNEL_CONFIG": str(config),
            "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in ("src", ".")),
        }
        settings = load(config, {})
        workers = [WorkerSpec(node, 1, executor_memory_mb + 100, None) for node in NODES]
        with contextlib.ExitStack() as stack:
            cluster = StandaloneCluster(group, directory / "cluster", workers, executor_memory_mb=executor_memory_mb)
            stack.enter_context(cluster)
            store = Store(settings.redis, settings.cluster.name)
            stack.callback(store.close)
            for node in NODES:
                command = [sys.executable, "-m", _CLI, "agent", "--node", node]
                group.start(f"agent-{node}", command, env=environment)
            yield Bench(group, cluster, store, settings, directory, environment)
