"""The only module that speaks py4j: everything Rechannel asks of a Spark driver, and every foreign error translated.

Stock Spark, no jar of ours. What is used is public in bytecode though ``private[sql]`` or ``private[spark]`` in Scala:
``StateStoreCoordinatorRef``, ``EventLoggingListener``, ``StreamExecution.lastExecution``, ``AppStatusStore``.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError

from rechannel.wire.messages import ExecutorInfo

OLDEST_SPARK = (4, 0)
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
class ActiveQuery:
    """A running streaming query; ``problem`` says why it cannot be moved, "" if it can."""

    query: str
    run: str
    name: str
    idle: bool
    problem: str


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
        numbers = tuple(int(part) for part in re.findall(r"\d+", self.version)[:2])
        if numbers < OLDEST_SPARK:
            raise UnsupportedSparkError(f"Spark {self.version} is too old; 4.0 or newer is needed")
        with _translated():
            self._jvm: Any = spark._jvm
            self._context: Any = spark._jsc.sc()
            self.application = str(spark.sparkContext.applicationId)
            self.name = str(spark.sparkContext.appName)
            self._coordinator = spark._jsparkSession.streams().stateStoreCoordinator()
            self._none: Any = getattr(getattr(self._jvm.scala, "None$"), "MODULE$")
            self._nil: Any = getattr(getattr(self._jvm.scala.collection.immutable, "Nil$"), "MODULE$")
        self._listener: Any = None
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
                    host=str(row.hostPort()).rpartition(":")[0],
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
        idle = not query._jsq.status().isTriggerActive()
        return ActiveQuery(str(query.id), str(query.runId), str(query.name or ""), idle, problem)

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
                    partitions=int(info.numPartitions()),
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

    def store_names(self, checkpoint: str, operator: int) -> list[str]:
        """Read an operator's store names from its metadata in the checkpoint; empty when there is none yet.

        Source: ``OperatorStateMetadata`` (v1 is one file, v2 a directory with a file per batch; the newest counts).
        """
        with _translated():
            root = self._jvm.org.apache.hadoop.fs.Path(f"{checkpoint}/{operator}/_metadata")
            files = root.getFileSystem(self._context.hadoopConfiguration())
            path = self._jvm.org.apache.hadoop.fs.Path(root, "metadata")
            if not files.exists(path):
                versions = self._jvm.org.apache.hadoop.fs.Path(root, "v2")
                if not files.exists(versions):
                    return []
                named = [
                    status.getPath() for status in files.listStatus(versions) if status.getPath().getName().isdigit()
                ]
                if not named:
                    return []
                path = max(named, key=lambda item: int(item.getName()))
            stream = files.open(path)
            try:
                text = self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
            finally:
                stream.close()
        return sorted(_store_names(str(text)))

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

    def _provider(self, store: StoreId) -> Any:
        state = getattr(self._jvm, _STATE)
        name = state.StateStoreId(store.checkpoint, store.operator, store.partition, store.store)
        return state.StateStoreProviderId(name, self._jvm.java.util.UUID.fromString(str(uuid.UUID(store.run))))


def trigger_problem(execution: str, trigger: str) -> str:
    """Say why a query of these Spark classes cannot be moved, "" if it can."""
    if "RealTime" in trigger or "Continuous" in trigger or "Continuous" in execution:
        return f"runs with {trigger}: no batch boundary to move at; use a micro-batch trigger"
    return ""


def _store_names(text: str) -> set[str]:
    # The file starts with a version line ("v1"), then one JSON document.
    start = text.find("{")
    if start < 0:
        raise SparkCallError("operator metadata in the checkpoint is not what Spark writes")
    try:
        document = json.loads(text[start:])
        return {str(store["storeName"]) for store in document["stateStoreInfo"]}
    except (ValueError, KeyError, TypeError) as error:
        raise SparkCallError(f"operator metadata in the checkpoint cannot be read: {error}") from error


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
    except (ConnectionError, OSError, AttributeError) as error:
        # py4j's sockets and a session whose context was stopped under us
        raise DriverGoneError(f"the Spark session is over: {error}") from error
