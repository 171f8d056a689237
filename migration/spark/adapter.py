"""Calls into one Spark driver, each with a time limit and with translated errors.

Stock Spark, no jar of ours. These are public in bytecode though ``private[sql]`` or ``private[spark]`` in Scala:
``StateStoreCoordinatorRef``, ``EventLoggingListener``, ``StreamExecution.lastExecution``, ``AppStatusStore``,
``CoarseGrainedSchedulerBackend``, ``DAGScheduler``, ``LiveListenerBus``.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from rechannel.migration.spark import versions
from rechannel.migration.spark.checkpoint import Checkpoints
from rechannel.migration.spark.coordinator import Coordinator
from rechannel.migration.spark.executor_control import ExecutorControl
from rechannel.migration.spark.gateway import Gateway, LinkError, UnsupportedSparkError, split_names, translate_errors
from rechannel.migration.spark.handles import Handles
from rechannel.migration.spark.hooks import EventFilter, StartHook, Watchdog
from rechannel.migration.spark.locality_wait import LocalityWait
from rechannel.migration.spark.warm_up import ExecutorWarmUp, cancel_warm_up, run_warm_up
from rechannel.monitors.spark import events
from rechannel.monitors.spark.event_gaps import SparkState
from rechannel.wire.messages import NODE_ATTRIBUTE, ExecutorInfo

_LISTENER_QUEUE = "rechannel"
# Where the trait of all stateful operators lives, by version.
_STATEFUL_OPERATOR = (
    "org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperator",
    "org.apache.spark.sql.execution.streaming.StatefulOperator",
)
# StreamExecution.toString, in the map of all active queries.
_ACTIVE_QUERY = re.compile(r"\[id = ([0-9a-f-]{36}), runId = ([0-9a-f-]{36})\]")
# AccumulatorV2.toString, in the map of an operator's metrics.
_METRIC = re.compile(r"\(id: (\d+), name: ")
_EVENT_LOG = {
    "spark.eventLog.rolling.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.eventLog.includeTaskMetricsAccumulators": "false",
    "spark.eventLog.logBlockUpdates.enabled": "false",
    "spark.eventLog.logStageExecutorMetrics": "false",
    "spark.eventLog.overwrite": "true",
}


@dataclass(frozen=True)
class PlannedOperator:
    """A stateful operator in the last plan."""

    operator: int
    name: str
    partitions: int
    checkpoint: str  # Spark's own qualified form of <checkpoint>/state
    run: str
    metrics: frozenset[int]  # ids of its SQL metrics


@dataclass(frozen=True)
class ActiveQuery:
    """A running query."""

    query: str
    run: str
    name: str
    problem: str  # why it cannot be moved
    interval: float = 0.0  # of its trigger, or 0


class SparkAdapter:
    """Calls into one driver. Every method raises only `LinkError` and its subclasses."""

    def __init__(self, spark: Any) -> None:
        module = type(spark).__module__
        if ".connect" in module or not hasattr(spark, "_jsparkSession"):
            raise UnsupportedSparkError(
                "a Spark Connect session has no driver JVM to steer; attach in a classic session, inside the driver"
            )
        self._python_context = spark.sparkContext
        self.name = str(spark.sparkContext.appName)
        self._watchdog: Watchdog | None = None
        self._writer: Any = None
        self._listener: Any = None
        self._start_listener: Any = None
        self._directory: Any = None
        self._operator_class: Any = None
        with translate_errors():
            self.gateway = Gateway(spark.sparkContext._gateway)
        try:
            with translate_errors():
                self._jvm: Any = self.gateway.jvm
                # PySpark's own `version` and `applicationId` would ask the JVM without a time limit.
                self._session: Any = self.gateway.share(spark._jsparkSession)
                self.version = str(self._session.version())
                if refusal := versions.refusal(self.version):
                    raise UnsupportedSparkError(refusal)
                self.reports_snapshots = versions.has_feature(self.version, versions.SNAPSHOTS)
                self._context: Any = self._session.sparkContext()
                if self._context.isStopped():
                    raise LinkError("this Spark session is stopped: create a new one, and attach that")
                self.application = str(self._context.applicationId())
                self._handles = Handles(self.gateway)
                self.coordinator = Coordinator(self._handles, self._session)
                self._parse_uuid = self._jvm.java.util.UUID.fromString  # looked up once: py4j asks for every part
                self._none: Any = self.gateway.scala_object(self._jvm.scala, "None")
                self._drops = (
                    self._context.listenerBus()
                    .metrics()
                    .metricRegistry()
                    .counter(f"queue.{_LISTENER_QUEUE}.numDroppedEvents")
                )
                self.executor_control = ExecutorControl(self.gateway, self._context, lambda: self._watchdog)
                self.locality_wait = LocalityWait(self._context, lambda: self._watchdog)
                self.checkpoints = Checkpoints(self.gateway, self._context.hadoopConfiguration())
                self.warm_up = ExecutorWarmUp(partial(run_warm_up, spark), partial(cancel_warm_up, self._context))
        except BaseException:
            with contextlib.suppress(LinkError):
                self.close()
            raise

    def setting(self, key: str, default: str) -> str:
        """Read a Spark SQL or core setting."""
        with translate_errors():
            return str(self._session.conf().get(key, default))

    @property
    def is_over(self) -> bool:
        """Whether the Spark session is over: stopped, or its JVM ended."""
        if self._python_context._jsc is None:
            return True
        try:
            with translate_errors():
                return bool(self._context.isStopped())
        except LinkError as error:
            return _is_connection_refused(error.__cause__)

    def close(self) -> None:
        """Release every Java object and connection: nothing keeps a stopped SparkContext alive."""
        gateway = self.gateway
        with contextlib.suppress(AttributeError, LinkError):  # an attach may have failed before there was any
            self.warm_up.end()
        for name in vars(self).keys() - {"version", "application", "name"}:
            setattr(self, name, None)
        with translate_errors():
            gateway.close()

    # -- the event stream --

    def start_event_stream(self, directory: Path, part_bytes: int) -> None:
        """Have Spark write its event stream to a private directory, in parts of this size.

        The listener has a queue of its own on Spark's bus, as Spark's own event log has: neither delays or drops the
        other's events. The directory is deleted when the JVM ends, unless by a kill -9; if the link sends no heartbeat,
        the watchdog takes the listener out and deletes the directory.
        """
        with translate_errors():
            self._directory = self._jvm.java.io.File(str(directory))
            self._jvm.org.apache.spark.util.ShutdownHookManager.registerShutdownDeleteDir(self._directory)
            self._watchdog = Watchdog(self._handles, str(directory))
            conf = self._context.conf().clone()
            # The settings of the application's own event log (events left out of it, say) are not meant for this one.
            for pair in conf.getAllWithPrefix("spark.eventLog."):
                conf.remove(f"spark.eventLog.{pair._1()}")
            for key, value in {**_EVENT_LOG, "spark.eventLog.rolling.maxFileSize": f"{part_bytes}b"}.items():
                conf.set(key, value)
            self._writer = self._jvm.org.apache.spark.scheduler.EventLoggingListener(
                "rechannel",
                self._none,
                self._jvm.java.net.URI(directory.resolve().as_uri()),
                conf,
                self._context.hadoopConfiguration(),
            )
            self._writer.start()
            self._listener = EventFilter(self._handles, self._writer).listener
            remove = ("org.apache.spark.scheduler.SparkListenerInterface", self._listener)
            self._watchdog.add(self._context, "org.apache.spark.SparkContext", "removeSparkListener", remove)
            self._watchdog.add(self._writer, "org.apache.spark.scheduler.EventLoggingListener", "stop")
            self.executor_control.renew_limit()
            self.locality_wait.renew()
            self._context.listenerBus().addToQueue(self._listener, _LISTENER_QUEUE)

    def stop_event_stream(self) -> None:
        """Take the listener out again."""
        with translate_errors():
            try:
                if self._listener is not None:
                    self._context.removeSparkListener(self._listener)
                    self._listener = None
            finally:
                writer, self._writer = self._writer, None
                if writer is not None:
                    writer.stop()

    def stop_watchdog(self) -> None:
        """End the watchdog, and leave the directory to the link.

        It goes on if the listener could not be taken out, the limit of executors not be lifted, or the locality wait
        not be restored: without heartbeats, it does that.
        """
        watchdog, self._watchdog = self._watchdog, None
        if self._listener is not None or self.executor_control.lift_failed or self.locality_wait.restore_failed:
            self._listener = None
            return
        if watchdog is not None:
            watchdog.stop()
        with translate_errors():
            self._jvm.org.apache.spark.util.ShutdownHookManager.removeShutdownDeleteDir(self._directory)

    def send_heartbeat(self) -> bool:
        """Tell the watchdog that the link is alive; False if it has taken everything out."""
        return self._watchdog is not None and self._watchdog.send_heartbeat()

    def dropped_events(self) -> int:
        """Return how many events Spark's bus dropped for the link, in all."""
        with translate_errors():
            return int(self._drops.getCount())

    # -- executors, jobs and queries --

    def executors(self) -> list[ExecutorInfo]:
        """List the live executors (the driver itself left out).

        It takes as many calls for a thousand as for one. Source: ``AppStatusStore.executorList``, written as Spark's
        REST interface writes it.
        """
        with translate_errors():
            jackson = self._jvm.com.fasterxml.jackson
            mapper = jackson.databind.ObjectMapper()
            mapper.registerModule(jackson.module.scala.DefaultScalaModule())
            rows = json.loads(mapper.writeValueAsString(self._context.statusStore().executorList(True)))
            return [_executor_info(row) for row in rows if row["id"] != "driver"]

    def spark_state(self) -> SparkState:
        """Read Spark's own state in four calls, to be compared with the event stream."""
        with translate_errors():
            active = str(self._session.sharedState().activeStreamingQueries().toString())
            return SparkState(
                executors=split_names(self._executor_ids()),
                jobs=self.active_jobs(),
                runs={run: query for query, run in _ACTIVE_QUERY.findall(active)},
            )

    def _executor_ids(self) -> str:
        try:
            with translate_errors():
                return str(self._context.schedulerBackend().getExecutorIds().mkString(","))
        except UnsupportedSparkError:
            return ""  # local mode has no executors

    def active_jobs(self) -> frozenset[int]:
        """Return the jobs that run now, by Spark's scheduler."""
        with translate_errors():
            return frozenset(map(int, split_names(str(self._active_jobs().keysIterator().mkString(",")))))

    def _active_jobs(self) -> Any:
        return self._context.dagScheduler().jobIdToActiveJob()

    def job(self, number: int) -> events.JobStarted | None:
        """Return the start event of an active job, without its stages; None if it has ended.

        A job that names no query and opens state stores has one artificial stage that tells so.
        """
        with translate_errors():
            entry = self._active_jobs().get(number)
            if not entry.isDefined():
                return None
            job = entry.get()
            properties = job.properties()

            def read(key: str, default: str = "") -> str:
                return str(properties.getProperty(key, default)) if properties else default

            query, run = read("sql.streaming.queryId"), read("spark.jobGroup.id")
            lineage = "" if query else str(job.finalStage().rdd().toDebugString())
            stateful = any(name in lineage for name in events.STATE_RDDS)
            stages = (events.StageInfo(-1, (), 0, True),) if stateful else ()
            batch, pool = int(read("streaming.sql.batchId", "-1")), read("spark.scheduler.pool")
            return events.JobStarted(number, query, run, batch, 0.0, stages, pool)

    def query(self, query: str) -> ActiveQuery | None:
        """Return a running query of this session; None if it is of another session or has ended."""
        with translate_errors():
            execution = self._execution(query)
            if execution is None:
                return None
            kind = str(execution.getClass().getSimpleName())
            trigger = execution.trigger()
            name = str(trigger.getClass().getSimpleName())
            interval = trigger.intervalMs() / 1000 if name == "ProcessingTimeTrigger" else 0.0
            run = str(execution.runId().toString())
            return ActiveQuery(query, run, str(execution.name() or ""), trigger_problem(kind, name), interval)

    def is_idle(self, query: str) -> bool:
        """Whether a query's trigger is not active: it waits for the next batch, or for data.

        Of any session: ``SharedState.activeStreamingQueries`` has the ``StreamExecution`` of each, by the query's id.
        """
        with translate_errors():
            execution = self._session.sharedState().activeStreamingQueries().get(self._parse_uuid(query))
            return execution is not None and not execution.status().isTriggerActive()

    def _execution(self, query: str) -> Any:
        wrapper = self._session.streams().get(query)
        if wrapper is None:
            return None
        # StreamingQueryManager hands out a StreamingQueryWrapper; what has no wrapper is the StreamExecution itself.
        wrapped = str(wrapper.getClass().getSimpleName()) == "StreamingQueryWrapper"
        return wrapper.streamingQuery() if wrapped else wrapper

    def operators(self, query: str, run: str) -> list[PlannedOperator]:
        """Read the operators from the plan of the run's last batch; empty before its first."""
        with translate_errors():
            execution = self._execution(query)
            if execution is None or str(execution.runId().toString()) != run:
                return []
            last = execution.lastExecution()
            return [] if last is None else list(self._walk(last.executedPlan()))

    def _walk(self, root: Any) -> Iterator[PlannedOperator]:
        # A plan that adaptive execution changes at run time would hide its nodes; with state, Spark leaves it alone.
        stack = [root]
        while stack:
            node = stack.pop()
            kind = str(node.getClass().getSimpleName()) if self._is_stateful(node) else ""
            # StateStoreRestore only reads the store of the StateStoreSave above it.
            if kind and node.stateInfo().isDefined() and "Restore" not in kind:
                info = node.stateInfo().get()
                yield PlannedOperator(
                    operator=int(info.operatorId()),
                    name=kind.removesuffix("Exec"),
                    # The state info has the session's number, also where all rows go to one partition.
                    partitions=_partitions_in(node) or int(info.numPartitions()),
                    checkpoint=str(info.checkpointLocation()),
                    run=str(info.queryRunId()),
                    metrics=frozenset(map(int, _METRIC.findall(str(node.metrics().toString())))),
                )
            children = node.children()
            stack += [children.apply(index) for index in range(children.size())]

    def _is_stateful(self, node: Any) -> bool:
        if self._operator_class is None:
            self._operator_class = self.gateway.loaded_class(*_STATEFUL_OPERATOR)
        return bool(self._operator_class.isInstance(node))

    # -- queries that start --

    def watch_starts(self) -> StartHook:
        """Have each query of this session wait, at most `START_WAIT`, before its first batch.

        Source: ``StreamExecution.runStream`` posts ``QueryStartedEvent`` and waits for its listeners; all other events
        are asynchronous.
        """
        hook = StartHook(self._handles)
        with translate_errors():
            streams = self._session.streams()
            self._start_listener = hook.listener
            if self._watchdog is not None:
                remove = ("org.apache.spark.sql.streaming.StreamingQueryListener", hook.listener)
                owner = "org.apache.spark.sql.streaming.StreamingQueryManager"
                self._watchdog.add(streams, owner, "removeListener", remove)
            streams.addListener(hook.listener)
        return hook

    def stop_watching_starts(self) -> None:
        """Take the listener of starts out again."""
        listener, self._start_listener = self._start_listener, None
        if listener is not None:
            with translate_errors():
                self._session.streams().removeListener(listener)

    def started_query(self, event: Any) -> tuple[str, str, str, float] | None:
        """Return query, run, state directory and time of a ``QueryStartedEvent``; None if ended.

        The directory is Spark's own form of <checkpoint>/state. The time is in seconds since the epoch; source:
        ``StreamExecution.runStream``, which reads the clock before it posts the event.
        """
        with translate_errors():
            query, run = str(event.id().toString()), str(event.runId().toString())
            execution = self._execution(query)
            if execution is None:
                return None
            started = datetime.fromisoformat(str(event.timestamp())).timestamp()
            return query, run, f"{execution.resolvedCheckpointRoot()}/state", started


def _host(text: str) -> str:
    """Return the host of host:port; without a block manager there is no port yet."""
    return re.sub(r":\d+$", "", text)


def _partitions_in(node: Any) -> int:
    """Return the number of partitions of an operator's input, 0 if its input does not tell."""
    children = node.children()
    return int(children.apply(0).outputPartitioning().numPartitions()) if children.size() else 0


def trigger_problem(execution: str, trigger: str) -> str:
    """Return why a query of these Spark classes cannot be moved, "" if it can."""
    if "RealTime" in trigger or "Continuous" in trigger or "Continuous" in execution:
        return f"runs with {trigger}: no batch boundary to move at; use a micro-batch trigger"
    return ""


def _executor_info(row: Mapping[str, Any]) -> ExecutorInfo:
    return ExecutorInfo(
        executor=str(row["id"]),
        host=_host(str(row["hostPort"])),
        cores=int(row["totalCores"]),
        added=row["addTime"] / 1000,
        memory=int(row["maxMemory"]),
        node=str(row.get("attributes", {}).get(NODE_ATTRIBUTE, "")),
    )


def _is_connection_refused(error: BaseException | None) -> bool:
    """Whether a call failed because the JVM no longer listens at its port."""
    while error is not None:
        if isinstance(error, ConnectionRefusedError):
            return True
        error = getattr(error, "cause", None) or error.__cause__
    return False
