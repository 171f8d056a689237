"""Warm-up of executors that join: a small job on each, before its first tasks come.

First tasks load classes, generate and compile code, and start Python workers, which import pandas and pyarrow. The job
pays for that while the queries go on elsewhere. It prefers the executor, which is no pin: after ``spark.locality.wait``
Spark runs it on another one, so the place where it ran is checked. If it fails, the executor is just not warm.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import structlog

from rechannel.migration.spark.gateway import LinkError, translate_errors
from rechannel.wire.messages import ExecutorInfo

_LOG = structlog.get_logger("rechannel.link")
_GROUP = "rechannel-warm-up-"  # begin of the name of a job group
_LONGEST = 20.0  # seconds after which the job is canceled
_RUNS = 2  # of the job: what the first one compiled is used in the second
_PYTHON = ("Pandas", "Python", "PySpark")  # in names of operators that run Python workers
_FIELD = '{"name":"value","type":"integer","nullable":true,"metadata":{}}'
_EVENTS_WAIT = 2000  # milliseconds for the place of a task to be known


class ExecutorWarmUp:
    """Warms executors of one application, one job at a time, on a thread of its own.

    ``run_job`` warms executors, with or without Python workers, under a job group, and returns those it ran on, None if
    unknown; ``cancel`` ends a job group.
    """

    def __init__(
        self,
        run_job: Callable[[list[ExecutorInfo], bool, str], set[str] | None],
        cancel: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run_job, self._cancel, self._clock = run_job, cancel, clock
        self._present: frozenset[str] | None = None
        self._thread: threading.Thread | None = None
        self._until = 0.0
        self._group = ""

    def advance(self, executors: Mapping[str, ExecutorInfo], operators: Callable[[], Iterable[str]]) -> None:
        """Warm the executors that joined since the last call, unless a job runs.

        ``executors``: the live ones; those of the first call, and those that join before a stateful stage is known, are
        warmed by the queries' own first batches.
        ``operators``: returns the names of the stateful operators; without any there is nothing to warm for.
        """
        if self._is_running():
            if self._clock() >= self._until:
                self.end()
            return
        if self._present is not None and executors.keys() == self._present:
            return
        joined = [] if self._present is None else [executors[name] for name in executors.keys() - self._present]
        self._present = frozenset(executors)
        if not joined or not (names := list(operators())):
            return
        python = any(part in name for name in names for part in _PYTHON)
        self._until = self._clock() + _LONGEST
        self._group = _GROUP + secrets.token_hex(4)
        job = joined, python, self._group
        self._thread = threading.Thread(target=self._warm, args=job, name="rechannel-warm-up", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Cancel the job if one runs; its thread ends with it."""
        if self._is_running():
            self._until = self._clock() + _LONGEST
            try:
                self._cancel(self._group)
            except LinkError as error:
                _LOG.warning("executors were not warmed", error=str(error))

    def _is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _warm(self, executors: list[ExecutorInfo], python: bool, group: str) -> None:
        began, names = self._clock(), sorted(info.executor for info in executors)
        try:
            ran = self._run_job(executors, python, group)
        except LinkError as error:
            _LOG.warning("executors were not warmed", executors=names, error=str(error))
        else:
            missed = "unknown" if ran is None else sorted(set(names) - ran)
            _LOG.info("executors-warmed", executors=names, missed=missed, seconds=round(self._clock() - began, 2))


def run_warm_up(spark: Any, executors: list[ExecutorInfo], python: bool, group: str) -> set[str] | None:
    """Run a job with a task for each executor; return those it ran on, None if unknown.

    Uses PySpark and its connection, without a time limit: on a thread of its own only. LinkError if it fails.
    """
    context = spark.sparkContext
    with translate_errors(), _own_thread(context):
        context.setJobGroup(group, f"Rechannel warms {', '.join(info.executor for info in executors)}", True)
        frame = _pinned_frame(spark, executors)
        for _ in range(_RUNS):
            # A local function: executors get its code, since they have no package of ours.
            used = frame.mapInPandas(lambda batches: batches, "value int") if python else frame.selectExpr("value + 1")
            used.write.format("noop").mode("overwrite").save()
        try:
            with translate_errors():
                return _places(context, group)
        except LinkError:
            return None  # Spark's listeners are late


def cancel_warm_up(context: Any, group: str) -> None:
    """Cancel the job of a group that runs; ``context``: Spark's own, in the JVM."""
    with translate_errors():
        context.cancelJobGroup(group)


def _pinned_frame(spark: Any, executors: list[ExecutorInfo]) -> Any:
    """Return a data frame with a partition of one row for each executor, which it prefers.

    Source: ``SparkContext.makeRDD`` with locations, ``ExecutorCacheTaskLocation``.
    """
    from pyspark.sql import DataFrame

    context, jvm = spark.sparkContext, spark.sparkContext._jvm
    to_seq = jvm.org.apache.spark.api.python.PythonUtils.toSeq
    values = context._gateway.new_array(jvm.java.lang.Object, 1)
    values[0] = 1
    row = jvm.org.apache.spark.sql.RowFactory.create(values)
    located = [jvm.scala.Tuple2(row, to_seq([f"executor_{info.host}_{info.executor}"])) for info in executors]
    any_class = jvm.scala.reflect.ClassTag.Any()
    rows = context._jsc.sc().makeRDD(to_seq(located), any_class)
    schema = spark._jsparkSession.parseDataType(f'{{"type":"struct","fields":[{_FIELD}]}}')
    java_rows = jvm.org.apache.spark.api.java.JavaRDD(rows, any_class)
    return DataFrame(spark._jsparkSession.createDataFrame(java_rows, schema), spark)


def _places(context: Any, group: str) -> set[str]:
    """Return the executors on which tasks of a job group ran."""
    scala_context, tracker = context._jsc.sc(), context.statusTracker()
    scala_context.listenerBus().waitUntilEmpty(_EVENTS_WAIT)
    stages = {stage for job in tracker.getJobIdsForGroup(group) for stage in tracker.getJobInfo(job).stageIds}
    places = set()
    for stage in stages:
        tasks = scala_context.statusStore().taskList(stage, 0, 1000)
        places |= {str(tasks.apply(number).executorId()) for number in range(tasks.size())}
    return places


@contextlib.contextmanager
def _own_thread(context: Any) -> Iterator[None]:
    """Close this thread's connection to the JVM, which PySpark keeps open with pinned threads.

    Source: ``pyspark.util.InheritableThread``. Without pinned threads connections are shared, and so would be the job
    group: LinkError.
    """
    client = context._gateway._gateway_client
    if not hasattr(client, "get_thread_connection"):
        raise LinkError("PYSPARK_PIN_THREAD is off: the link's jobs could not be distinguished from the script's")
    try:
        yield
    finally:
        connection = client.get_thread_connection()
        if connection is not None:
            with contextlib.suppress(ValueError):
                client.deque.remove(connection)
            connection.close()
