"""Calls that cordon and release executors, and limit their number."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rechannel.migration.spark.gateway import Gateway, LinkError, UnsupportedSparkError, split_names, translate_errors
from rechannel.migration.spark.hooks import WATCHDOG_TICK, Watchdog

_MASTER_TIMEOUT = 5  # seconds to find a master, and as many for its answer
_MASTER_REST = 60.0  # seconds for which a master that did not answer is left out
# Seconds after a change of the watchdog in which the one before may still lift the limit, where it could not be ended.
_DOUBTFUL = 2 * WATCHDOG_TICK + 10.0


class ExecutorControl:
    """Calls into Spark's scheduler backend and a standalone master."""

    def __init__(
        self,
        gateway: Gateway,
        context: Any,
        watchdog: Callable[[], Watchdog | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._silent_until: dict[str, float] = {}  # address of a master that is left out -> until when
        self._gateway, self._jvm, self._context, self._watchdog = gateway, gateway.jvm, context, watchdog
        self.lift_failed = False  # the limit is still to be lifted
        self._doubtful_until = 0.0  # until when the limit is set again and again
        self._limit: tuple[int, int] | None = None  # executors now, and without the link; None without a limit
        self._clean_up: tuple[Watchdog, int] | None = None  # watchdog that lifts the limit, and to which number

    def cordon(self, executor: str) -> bool:
        """Have Spark offer an executor no task any more, for good; False if it does not know it.

        Source: ``CoarseGrainedSchedulerBackend.decommissionExecutors``. The driver's half works on every application;
        the executor's half (migrating blocks) only where ``spark.decommission.enabled`` was set at the start.
        """
        with translate_errors():
            none = self._gateway.scala_object(self._jvm.scala, "None")
            info = self._jvm.org.apache.spark.scheduler.ExecutorDecommissionInfo("drained by rechannel", none)
            return bool(self._context.schedulerBackend().decommissionExecutor(executor, info, False, False))

    def releasing(self) -> set[str]:
        """Return executors that get no task any more: decommissioned, or cordoned by the link."""
        try:
            with translate_errors():
                pending = self._context.schedulerBackend().executorsPendingDecommission()
                return set(split_names(str(pending.keysIterator().mkString(","))))
        except UnsupportedSparkError:
            return set()  # local mode has no executors

    def release(self, executor: str, remaining: int, without_link: int) -> bool:
        """End an idle executor; False while a task runs on it.

        The application may have ``remaining`` others, and ``without_link`` in all if the link is gone. Killing one
        executor lowers Spark's target by one, and a target that was never set counts as 0: then nothing would ever be
        replaced. So it is set first.
        """
        with translate_errors():
            self._set_limit(remaining + 1, without_link)
            released = bool(self._context.schedulerBackend().killExecutor(executor))
        if released:
            self._limit = remaining, without_link
        return released

    def limit_executors(self, most: int, without_link: int) -> bool:
        """Let the application have ``most`` executors; False if that is the limit already.

        The watchdog sets the limit to ``without_link`` if the link is gone.
        """
        changed = self._limit != (most, without_link)
        if changed or self._clock() < self._doubtful_until:
            self._set_limit(most, without_link)
        return changed

    def renew_limit(self) -> None:
        """Set the limit again after a change of the watchdog.

        The one before may have lifted it; where that one could not be ended, it is about to.
        """
        if self._limit is not None:
            self._doubtful_until = self._clock() + _DOUBTFUL
            self._set_limit(*self._limit)

    def lift_limit(self, most: int) -> None:
        """Let the application have this many executors, and leave their number to Spark again."""
        self.lift_failed = True
        with translate_errors():
            self._context.requestTotalExecutors(most, 0, self._empty_map())
        self._limit, self.lift_failed = None, False

    def _set_limit(self, most: int, without_link: int) -> None:
        watchdog = self._watchdog()
        with translate_errors():
            if watchdog is not None and self._clean_up != (watchdog, without_link):
                arguments = ("int", without_link), ("int", 0), ("scala.collection.immutable.Map", self._empty_map())
                owner = "org.apache.spark.SparkContext"
                watchdog.add(self._context, owner, "requestTotalExecutors", *arguments, result="boolean")
                self._clean_up = watchdog, without_link
            self._context.requestTotalExecutors(most, 0, self._empty_map())
        self._limit, self.lift_failed = (most, without_link), False

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
        """Ask a standalone master for the hosts of its live workers; None without a master.

        Source: ``RpcEnv.asyncSetupEndpointRefByURI``; ``setupEndpointRef`` would wait for ``spark.rpc.lookupTimeout``.
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
                if self._clock() < self._silent_until.get(address, 0.0):
                    continue
                try:
                    with translate_errors():
                        reference = timeout.awaitResult(rpc.asyncSetupEndpointRefByURI(f"spark://Master@{address}"))
                        state = reference.askSync(request, timeout, any_class)
                except LinkError:  # of several masters one may be down
                    self._silent_until[address] = self._clock() + _MASTER_REST
                    continue
                if str(state.status().toString()) == "ALIVE":
                    return sorted({str(worker.host()) for worker in state.workers() if worker.isAlive()})
        return None
