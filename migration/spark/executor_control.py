"""Calls that cordon and release executors, and limit their number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rechannel.migration.spark.gateway import Gateway, LinkError, UnsupportedSparkError, split_names, translate_errors
from rechannel.migration.spark.hooks import Watchdog

_MASTER_TIMEOUT = 5  # seconds


class ExecutorControl:
    """Calls into Spark's scheduler backend and a standalone master.

    ``watchdog()``: the running watchdog, if any.
    """

    def __init__(self, gateway: Gateway, context: Any, watchdog: Callable[[], Watchdog | None]) -> None:
        self._gateway, self._jvm, self._context, self._watchdog = gateway, gateway.jvm, context, watchdog

    def cordon(self, executor: str) -> bool:
        """Have Spark offer an executor no task any more; False if it does not know it.

        There is no way back.

        Source: ``CoarseGrainedSchedulerBackend.decommissionExecutors``. The driver's half works on every application;
        the executor's half (migrating blocks) only where ``spark.decommission.enabled`` was set at the start.
        """
        with translate_errors():
            none = self._gateway.scala_object(self._jvm.scala, "None")
            info = self._jvm.org.apache.spark.scheduler.ExecutorDecommissionInfo("drained by rechannel", none)
            return bool(self._context.schedulerBackend().decommissionExecutor(executor, info, False, False))

    def retiring(self) -> set[str]:
        """Return executors that get no task any more: decommissioned, or cordoned by the link."""
        try:
            with translate_errors():
                pending = self._context.schedulerBackend().executorsPendingDecommission()
                return set(split_names(str(pending.keysIterator().mkString(","))))
        except UnsupportedSparkError:
            return set()  # local mode has no executors

    def release(self, executor: str, remaining: int) -> bool:
        """End an idle executor; False while a task runs on it.

        The application may have ``remaining`` others.

        Killing one executor lowers Spark's target by one, and a target that was never set counts as 0: then nothing
        would ever be replaced. So it is set first.
        """
        with translate_errors():
            self.limit_executors(remaining + 1)
            return bool(self._context.schedulerBackend().killExecutor(executor))

    def limit_executors(self, most: int) -> None:
        """Let the application have this many executors."""
        with translate_errors():
            self._context.requestTotalExecutors(most, 0, self._empty_map())

    def lift_limit_without_link(self, most: int) -> None:
        """Have the watchdog set the limit to this number if the link is gone."""
        watchdog = self._watchdog()
        if watchdog is not None:
            arguments = ("int", most), ("int", 0), ("scala.collection.immutable.Map", self._empty_map())
            watchdog.add(
                self._context, "org.apache.spark.SparkContext", "requestTotalExecutors", *arguments, result="boolean"
            )

    def _empty_map(self) -> Any:
        return self._gateway.scala_object(self._jvm.scala.collection.immutable, "Map").empty()

    def local_checkpoints(self) -> int:
        """Count RDDs on executors alone (``localCheckpoint``): losing one fails the application."""
        with translate_errors():
            rdds = self._context.getPersistentRDDs().values().toSeq()
            return sum(bool(rdds.apply(index).isLocallyCheckpointed()) for index in range(rdds.size()))

    @property
    def standalone(self) -> bool:
        """Whether a standalone master runs the application."""
        with translate_errors():
            return str(self._context.master()).startswith("spark://")

    def worker_hosts(self) -> list[str] | None:
        """Ask a standalone master for the hosts of its live workers.

        None where there is no such master.
        """
        with translate_errors():
            if not self.standalone:
                return None
            master = str(self._context.master())
            spark = self._jvm.org.apache.spark
            deploy = spark.deploy
            tag = self._gateway.scala_object(self._jvm.scala.reflect, "ClassTag")
            any_class = tag.apply(self._jvm.java.lang.Class.forName("java.lang.Object"))
            request = self._gateway.scala_object(deploy, "DeployMessages$RequestMasterState")
            seconds = self._jvm.java.util.concurrent.TimeUnit.SECONDS
            timeout = spark.rpc.RpcTimeout(
                self._jvm.scala.concurrent.duration.FiniteDuration(_MASTER_TIMEOUT, seconds), "rechannel"
            )
            rpc = self._context.schedulerBackend().rpcEnv()
            for address in master.removeprefix("spark://").split(","):
                host, _, port = address.rpartition(":")
                try:
                    with translate_errors():
                        reference = rpc.setupEndpointRef(spark.rpc.RpcAddress(host, int(port)), "Master")
                        state = reference.askSync(request, timeout, any_class)
                except LinkError:
                    continue  # of several masters one may be down
                if str(state.status().toString()) == "ALIVE":
                    return sorted({str(worker.host()) for worker in state.workers() if worker.isAlive()})
        return None
