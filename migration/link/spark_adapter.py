"""The only module that speaks py4j: everything Rechannel asks of a Spark driver, and every foreign error translated.

Stock Spark, no jar of ours. What is used is public in bytecode though ``private[sql]`` or ``private[spark]`` in Scala:
``StateStoreCoordinatorRef``, ``EventLoggingListener``, ``StreamExecution.lastExecution``, ``AppStatusStore``,
``CoarseGrainedSchedulerBackend``.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import structlog
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError

from rechannel.migration.link import versions
from rechannel.migration.link.layout import LayoutError, stores_of_metadata, stores_of_partition
from rechannel.wire.messages import ExecutorInfo

_LOG = structlog.get_logger("rechannel.link")
_MASTER_PATIENCE = 5  # seconds
_STATE = "org.apache.spark.sql.execution.streaming.state"
# Where the trait of all stateful operators lives, by version.
_STATEFUL_OPERATOR = (
    "org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperator",
    "org.apache.spark.sql.execution.streaming.StatefulOperator",
)


class LinkError(RuntimeError):
    """Something in the driver cannot be done."""


class DriverGoneError(LinkError):
    """The Spark session is over; stop."""


class UnsupportedSparkError(LinkError):
    """This Spark cannot be steered; give up and say so."""


class SparkCallError(LinkError):
    """One call failed; the next boundary is a new try."""


@dataclass(frozen=True)
class PlannedOperator:
    """A stateful operator in the plan of a query's last batch. ``metrics`` are the ids of its SQL metrics."""

    operator: int
    name: str
    partitions: int
    checkpoint: str  # Spark's own qualified form of <checkpoint>/state
    run: str
    metrics: frozenset[int]


@dataclass(frozen=True)
class StoreId:
    """A state store of one partition, as Spark's ``StateStoreProviderId`` names it."""

    checkpoint: str
    run: str
    operator: int
    partition: int
    store: str


@dataclass(frozen=True)
class KnownOperator:
    """A stateful operator as the checkpoint's metadata tells of it."""

    operator: int
    partitions: int
    stores: tuple[str, ...]


@dataclass(frozen=True)
class ActiveQuery:
    """A running query; ``problem``: why it cannot be moved, or ""; ``interval``: its trigger's in seconds, or 0."""

    query: str
    run: str
    name: str
    idle: bool
    problem: str
    interval: float = 0.0


class SparkAdapter:
    """Calls into one driver. Every method raises only the errors above."""

    def __init__(self, spark: Any) -> None:
        module = type(spark).__module__
        if ".connect" in module or not hasattr(spark, "_jsparkSession"):
            raise UnsupportedSparkError(
                "a Spark Connect session has no driver JVM to steer; attach in a classic session, inside the driver"
            )
        self._spark = spark
        self.version = str(spark.version)
        if refusal := versions.refusal(self.version):
            raise UnsupportedSparkError(refusal)
        self.tells_snapshots = versions.has(self.version, versions.SNAPSHOTS)
        with _translated():
            self._jvm: Any = spark._jvm
            self._context: Any = spark._jsc.sc()
            self.application = str(spark.sparkContext.applicationId)
            self.name = str(spark.sparkContext.appName)
            self._coordinator = spark._jsparkSession.streams().stateStoreCoordinator()
            self._none: Any = getattr(getattr(self._jvm.scala, "None$"), "MODULE$")
            self._nil: Any = getattr(getattr(self._jvm.scala.collection.immutable, "Nil$"), "MODULE$")
        self._listener: Any = None
        self._start_listener: Any = None
        self._operator_class: Any = None

    def setting(self, key: str, default: str) -> str:
        """Read a Spark SQL or core setting."""
        with _translated():
            return str(self._spark.conf.get(key, default))

    # -- the event stream --

    def start_event_stream(self, directory: Path, part_bytes: int) -> None:
        """Have Spark write its event stream to a private directory, in parts of this size."""
        with _translated():
            conf = self._context.conf().clone()
            for key, value in (
                ("spark.eventLog.rolling.enabled", "true"),
                ("spark.eventLog.rolling.maxFileSize", f"{part_bytes}b"),
                ("spark.eventLog.compress", "false"),
                ("spark.eventLog.includeTaskMetricsAccumulators", "false"),
                ("spark.eventLog.logBlockUpdates.enabled", "false"),
                ("spark.eventLog.logStageExecutorMetrics", "false"),
                ("spark.eventLog.overwrite", "true"),
            ):
                conf.set(key, value)
            listener = self._jvm.org.apache.spark.scheduler.EventLoggingListener(
                "rechannel",
                self._none,
                self._jvm.java.net.URI(directory.resolve().as_uri()),
                conf,
                self._context.hadoopConfiguration(),
            )
            listener.start()
            self._listener = listener  # known before it is added: whatever fails from here on can be undone
            self._context.addSparkListener(listener)

    def stop_event_stream(self) -> None:
        """Take the listener out again."""
        listener, self._listener = self._listener, None
        if listener is not None:
            with _translated():
                self._context.removeSparkListener(listener)
                listener.stop()

    # -- what runs --

    def executors(self) -> list[ExecutorInfo]:
        """List the live executors (the driver itself left out)."""
        with _translated():
            found = self._context.statusStore().executorList(True)
            rows = [found.apply(index) for index in range(found.size())]
            return [
                ExecutorInfo(
                    executor=str(row.id()),
                    host=_host(str(row.hostPort())),
                    cores=int(row.totalCores()),
                    added=row.addTime().getTime() / 1000,
                    memory=int(row.maxMemory()),
                )
                for row in rows
                if row.id() != "driver"
            ]

    def queries(self) -> list[ActiveQuery]:
        """List this session's running streaming queries."""
        with _translated():
            return [self._query(query) for query in self._spark.streams.active]

    def _query(self, query: Any) -> ActiveQuery:
        execution = query._jsq.streamingQuery()
        kind = str(execution.getClass().getSimpleName())
        trigger = str(execution.trigger().getClass().getSimpleName())
        problem = trigger_problem(kind, trigger)
        interval = execution.trigger().intervalMs() / 1000 if trigger == "ProcessingTimeTrigger" else 0.0
        idle = not query._jsq.status().isTriggerActive()
        return ActiveQuery(str(query.id), str(query.runId), str(query.name or ""), idle, problem, interval)

    def operators(self, run: str) -> list[PlannedOperator]:
        """Read the stateful operators off the plan of the run's last batch; empty before its first."""
        with _translated():
            for query in self._spark.streams.active:
                if str(query.runId) == run:
                    last = query._jsq.streamingQuery().lastExecution()
                    return [] if last is None else list(self._walk(last.executedPlan()))
        return []

    def _walk(self, root: Any) -> Iterator[PlannedOperator]:
        stack = [root]
        while stack:
            node = stack.pop()
            kind = str(node.getClass().getSimpleName())
            if kind == "AdaptiveSparkPlanExec":
                stack.append(node.executedPlan())
                continue
            if kind.endswith("QueryStageExec"):
                stack.append(node.plan())
                continue
            # StateStoreRestore only reads the store of the StateStoreSave above it.
            if self._stateful(node) and node.stateInfo().isDefined() and "Restore" not in kind:
                info = node.stateInfo().get()
                metrics = node.metrics().values().toSeq()
                yield PlannedOperator(
                    operator=int(info.operatorId()),
                    name=kind.removesuffix("Exec"),
                    # The state info has the session's number, also where all rows go to one partition.
                    partitions=_partitions_in(node) or int(info.numPartitions()),
                    checkpoint=str(info.checkpointLocation()),
                    run=str(info.queryRunId()),
                    metrics=frozenset(int(metrics.apply(index).id()) for index in range(metrics.size())),
                )
            children = node.children()
            stack += [children.apply(index) for index in range(children.size())]

    def _stateful(self, node: Any) -> bool:
        if self._operator_class is None:
            for name in _STATEFUL_OPERATOR:
                try:
                    self._operator_class = self._jvm.org.apache.spark.util.Utils.classForName(name, True, False)
                    break
                except Py4JJavaError:
                    continue
            else:
                raise UnsupportedSparkError(f"Spark {self.version} has no StatefulOperator that we know")
        return bool(self._operator_class.isInstance(node))

    def known_operators(self, checkpoint: str) -> list[KnownOperator]:
        """Read all stateful operators off a checkpoint (Spark's form of <checkpoint>/state); none before a first batch.

        Source: ``OperatorStateMetadata`` (v1 is one file, v2 a directory with a file per batch; the newest counts; none
        before 4.0, where the directories tell).
        """
        with _translated():
            files = self._path(checkpoint).getFileSystem(self._context.hadoopConfiguration())
            numbers = sorted(int(name) for name in self._names(files, checkpoint) if name.isdigit())
            found = [self._known_operator(files, checkpoint, number) for number in numbers]
            return [operator for operator in found if operator is not None]

    def store_names(self, checkpoint: str, operator: int) -> list[str]:
        """Read an operator's store names off the checkpoint; empty when it does not tell yet."""
        with _translated():
            files = self._path(checkpoint).getFileSystem(self._context.hadoopConfiguration())
            found = self._known_operator(files, checkpoint, operator)
            return [] if found is None else list(found.stores)

    def _path(self, *parts: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path("/".join(parts))

    def _known_operator(self, files: Any, checkpoint: str, operator: int) -> KnownOperator | None:
        root = (checkpoint, str(operator))
        found = self._names(files, *root)
        names = self._store_names(files, root, found)
        # A directory for each partition there is: the metadata counts those that a single-partition stage never has.
        partitions = sum(name.isdigit() for name in found)
        return KnownOperator(operator, partitions, tuple(names)) if names else None

    def _store_names(self, files: Any, root: tuple[str, str], found: list[str]) -> list[str]:
        if "_metadata" not in found:  # left by a Spark before 4.0
            return stores_of_partition(self._names(files, *root, "0"))
        path = self._path(*root, "_metadata", "metadata")
        if not files.exists(path):
            named = [name for name in self._names(files, *root, "_metadata", "v2") if name.isdigit()]
            if not named:
                return []
            path = self._path(*root, "_metadata", "v2", max(named, key=int))
        stream = files.open(path)
        try:
            return stores_of_metadata(str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")))
        finally:
            stream.close()

    def _names(self, files: Any, *parts: str) -> list[str]:
        path = self._path(*parts)
        statuses = files.listStatus(path) if files.exists(path) else []
        return [str(status.getPath().getName()) for status in statuses]

    # -- queries that start --

    def watch_starts(self, started: Callable[[str, str, str], None]) -> None:
        """Have ``started(query, run, checkpoint)`` called before a query's first batch, inside its ``start()``.

        ``checkpoint`` is Spark's own qualified form of <checkpoint>/state. Source: ``StreamExecution.runStream`` posts
        ``QueryStartedEvent`` and waits for its listeners, all other events are asynchronous.
        """
        from pyspark.java_gateway import ensure_callback_server_started

        with _translated():
            ensure_callback_server_started(self._spark.sparkContext._gateway)  # type: ignore[no-untyped-call]
            listener = _StartListener(lambda event: self._started(event, started))
            self._start_listener = self._jvm.org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper(
                listener
            )
            self._spark._jsparkSession.streams().addListener(self._start_listener)

    def stop_watching_starts(self) -> None:
        """Take that listener out again."""
        listener, self._start_listener = self._start_listener, None
        if listener is not None:
            with _translated():
                self._spark._jsparkSession.streams().removeListener(listener)

    def _started(self, event: Any, started: Callable[[str, str, str], None]) -> None:
        with _translated():
            query, run = str(event.id().toString()), str(event.runId().toString())
            found = self._spark._jsparkSession.streams().get(event.id())
            if found is None:
                return  # of another session
            execution = found.streamingQuery() if hasattr(found, "streamingQuery") else found
            root = str(execution.resolvedCheckpointRoot())
        started(query, run, f"{root}/state")

    # -- steering --

    def location(self, store: StoreId) -> str:
        """Return the executor that the coordinator prefers for a store, "" if it knows none."""
        with _translated():
            found = self._coordinator.getLocation(self._provider(store))
            return str(found.get()).rpartition("_")[2] if found.isDefined() else ""

    def steer(self, store: StoreId, host: str, executor: str) -> None:
        """Tell the coordinator that a store is active on an executor: the next batch's task prefers it."""
        with _translated():
            self._coordinator.reportActiveInstance(self._provider(store), host, executor, self._nil)

    def latest_snapshot(self, store: StoreId) -> int:
        """Return the version of a store's newest snapshot that the coordinator was told of, -1 if of none.

        Source: ``StateStoreCoordinatorRef`` (4.1 and newer); UnsupportedSparkError on older ones.
        """
        with _translated():
            found = self._coordinator.getLatestSnapshotVersionForTesting(self._provider(store))
            return int(found.get()) if found.isDefined() else -1

    # -- executors that leave --

    def cordon(self, executor: str) -> bool:
        """Have Spark offer an executor no task any more; False if it knows no such executor. There is no way back.

        Source: ``CoarseGrainedSchedulerBackend.decommissionExecutors``. The driver's half works on every application;
        the executor's half (migrating blocks) only where ``spark.decommission.enabled`` was set at the start.
        """
        with _translated():
            info = self._jvm.org.apache.spark.scheduler.ExecutorDecommissionInfo("drained by rechannel", self._none)
            return bool(self._context.schedulerBackend().decommissionExecutor(executor, info, False, False))

    def retiring(self) -> set[str]:
        """Return the executors that Spark offers no task any more: decommissioned by the cluster, or cordoned by us."""
        try:
            with _translated():
                pending = self._context.schedulerBackend().executorsPendingDecommission()
                return {name for name in str(pending.keysIterator().mkString(",")).split(",") if name}
        except UnsupportedSparkError:
            return set()  # local mode has no executors

    def release(self, executor: str, remaining: int) -> bool:
        """End an idle executor; the application may have ``remaining`` others. False while a task runs on it.

        Killing one executor lowers Spark's target by one, and a target that was never set counts as 0: then nothing
        would ever be replaced. So it is set first.
        """
        with _translated():
            self.limit_executors(remaining + 1)
            return bool(self._context.schedulerBackend().killExecutor(executor))

    def limit_executors(self, most: int) -> None:
        """Let the application have this many executors."""
        with _translated():
            empty = getattr(getattr(self._jvm.scala.collection.immutable, "Map$"), "MODULE$").empty()
            self._context.requestTotalExecutors(most, 0, empty)

    @property
    def standalone(self) -> bool:
        """Whether a standalone master runs the application."""
        with _translated():
            return str(self._context.master()).startswith("spark://")

    def worker_hosts(self) -> list[str] | None:
        """Ask a standalone master for the hosts of its live workers; None where there is no such master to ask."""
        with _translated():
            if not self.standalone:
                return None
            master = str(self._context.master())
            spark = self._jvm.org.apache.spark
            deploy = spark.deploy
            tag = getattr(getattr(self._jvm.scala.reflect, "ClassTag$"), "MODULE$")
            any_class = tag.apply(self._jvm.java.lang.Class.forName("java.lang.Object"))
            question = getattr(getattr(deploy, "DeployMessages$RequestMasterState$"), "MODULE$")
            seconds = self._jvm.java.util.concurrent.TimeUnit.SECONDS
            patience = spark.rpc.RpcTimeout(
                self._jvm.scala.concurrent.duration.FiniteDuration(_MASTER_PATIENCE, seconds), "rechannel"
            )
            rpc = self._context.schedulerBackend().rpcEnv()
            for address in master.removeprefix("spark://").split(","):
                host, _, port = address.rpartition(":")
                try:
                    reference = rpc.setupEndpointRef(spark.rpc.RpcAddress(host, int(port)), "Master")
                    state = reference.askSync(question, patience, any_class)
                except Py4JJavaError:
                    continue  # of several masters one may be down
                if str(state.status().toString()) == "ALIVE":
                    return sorted({str(worker.host()) for worker in state.workers() if worker.isAlive()})
        return None

    def _provider(self, store: StoreId) -> Any:
        state = getattr(self._jvm, _STATE)
        name = state.StateStoreId(store.checkpoint, store.operator, store.partition, store.store)
        return state.StateStoreProviderId(name, self._jvm.java.util.UUID.fromString(str(uuid.UUID(store.run))))


def _host(text: str) -> str:
    """Return the host of host:port; an executor whose block manager has not registered yet has no port."""
    return re.sub(r":\d+$", "", text)


def _partitions_in(node: Any) -> int:
    """Return in how many partitions an operator's input comes, 0 if its input does not say."""
    children = node.children()
    return int(children.apply(0).outputPartitioning().numPartitions()) if children.size() else 0


class _StartListener:
    """What PySpark's own listener is to Spark, but cheap: it takes the start of a query apart and nothing else."""

    class Java:
        """The interface that py4j gives it in the JVM."""

        implements: ClassVar[list[str]] = ["org.apache.spark.sql.streaming.PythonStreamingQueryListener"]

    def __init__(self, started: Callable[[Any], None]) -> None:
        self._on_start = started

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802  the names are Spark's
        """Hand the event on; whatever goes wrong, the query starts."""
        try:
            self._on_start(event)
        except Exception as error:  # noqa: BLE001
            _LOG.warning("a query's start could not be seen to", error=str(error))

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """The event stream tells of it."""

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """The event stream tells of it."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """The event stream tells of it."""


def trigger_problem(execution: str, trigger: str) -> str:
    """Say why a query of these Spark classes cannot be moved, "" if it can."""
    if "RealTime" in trigger or "Continuous" in trigger or "Continuous" in execution:
        return f"runs with {trigger}: no batch boundary to move at; use a micro-batch trigger"
    return ""


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except Py4JNetworkError as error:
        raise DriverGoneError(f"the driver's JVM is gone: {error}") from error
    except Py4JJavaError as error:
        text = str(error.java_exception) if error.java_exception is not None else str(error)
        if "stopped SparkContext" in text or "RpcEnvStoppedException" in text:
            raise DriverGoneError(text) from error
        raise SparkCallError(text.splitlines()[0] if text else "a call into Spark failed") from error
    except Py4JError as error:
        if "does not exist" in str(error):
            raise UnsupportedSparkError(f"this Spark lacks a method we need: {str(error).splitlines()[0]}") from error
        raise SparkCallError(str(error)) from error
    except LayoutError as error:
        raise SparkCallError(str(error)) from error
    except (ConnectionError, OSError, AttributeError) as error:
        # py4j's sockets and a session whose context was stopped under us
        raise DriverGoneError(f"the Spark session is over: {error}") from error
