"""A real standalone Spark cluster, each node with its own address (mostly 127.0.0.x), directories and CPU quota."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil

from testbed.processes import Block, ManagedProcess, ProcessGroup, wait_until
from testbed.quota import CpuQuota, Throttle, available
from testbed.redis_server import free_port

_BACKEND = "CoarseGrainedExecutorBackend"
_PATIENCE = 300.0  # seconds for each process of a cluster that starts
#: Options of a Java machine that lives for a few minutes: with the quick compiler alone, batches are at their steady
#: speed after a dozen instead of a hundred.
QUICK_JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
FULL_JAVA = "-XX:+UseSerialGC"  # of one whose speed is measured
#: Properties of applications on local disks: Spark's usual class starts a process, `readlink`, for each file that it
#: puts in place.
QUICK_CHECKPOINTS = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    )
}
_LOG4J = """\
rootLogger.level = {level}
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{{yy/MM/dd HH:mm:ss.SSS}} %p %c{{1}}: %m%n%ex
logger.jetty.name = org.sparkproject.jetty
logger.jetty.level = warn
"""


@dataclass(frozen=True)
class WorkerSpec:
    """One node: its address, what it offers to Spark, and the CPU quota that makes it real (None: no quota)."""

    host: str
    cores: int = 2
    memory_mb: int = 1024
    quota: float | None = None


@dataclass(frozen=True)
class ExecutorProcess:
    """An executor found on a node."""

    host: str
    executor_id: str
    pid: int


def spark_home() -> Path:
    """Return the Spark that ships in the pyspark package."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("pyspark is not installed")
    return Path(spec.origin).parent


def _wait_for_port(host: str, port: int, process: ManagedProcess, timeout_s: float) -> None:
    def listens() -> bool:
        with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1):
            return True
        return False

    wait_until(listens, f"{process.name} listens on {host}:{port}", timeout_s, 0.1, process.log_tail, [process])


def _option(command: list[str], name: str) -> str:
    return command[command.index(name) + 1] if name in command[:-1] else ""


@dataclass(frozen=True)
class SparkOptions:
    """Size of the executors, Java options of executors and drivers, and the log level of all Spark processes."""

    executor_memory_mb: int = 640
    java_options: str = QUICK_JAVA
    log_level: str = "info"


@dataclass(frozen=True)
class Site:
    """Location of the processes of a cluster.

    ``inside``: the block in which the processes of an address are started and its ports are tried: a network namespace,
    or nothing at all; ``cgroups``: False holds quotas by stopping processes (`Throttle`), as without control groups.
    """

    master_host: str = "127.0.0.1"
    driver_host: str = "127.0.0.1"
    inside: Callable[[str], AbstractContextManager[None]] = lambda _host: contextlib.nullcontext()
    cgroups: bool = True


_DEFAULT_SPARK, _DEFAULT_SITE = SparkOptions(), Site()


class StandaloneCluster(Block):
    """A master and workers, each its own process in ``group``; all of it is gone when the block ends."""

    def __init__(
        self,
        group: ProcessGroup,
        directory: Path,
        workers: Iterable[WorkerSpec],
        options: SparkOptions = _DEFAULT_SPARK,
        site: Site = _DEFAULT_SITE,
    ) -> None:
        self._group = group
        self.directory = directory
        self.specs = list(workers)
        self.options = options
        self.site = site
        self.master_port = 0
        self.workers: dict[str, WorkerSpec] = {}
        self.quotas: dict[str, CpuQuota | Throttle] = {}

    @property
    def master_url(self) -> str:
        """The address that a driver connects to."""
        return f"spark://{self.site.master_host}:{self.master_port}"

    def work_dir(self, host: str) -> Path:
        """Return where a worker keeps its applications: ``<app>/<executor>/stderr`` is an executor's log."""
        return self.directory / f"worker-{host}" / "work"

    def local_dir(self, host: str) -> Path:
        """Return the root of a worker's shuffle files."""
        return self.directory / f"worker-{host}" / "local"

    def environment(self, host: str, **extra: str) -> dict[str, str]:
        """Return the environment of a Spark process on a node, free of the caller's own Spark settings."""
        env = {key: value for key, value in os.environ.items() if not key.startswith(("SPARK_", "PYSPARK_"))}
        return env | {
            "SPARK_HOME": str(spark_home()),
            "SPARK_CONF_DIR": str(self.directory / "conf"),
            "SPARK_LOCAL_IP": host,
            "SPARK_NO_DAEMONIZE": "1",
            **extra,
        }

    def start(self) -> Self:
        """Start the master, then all the workers; executors come when an application connects."""
        conf_dir = self.directory / "conf"
        conf_dir.mkdir(parents=True, exist_ok=True)
        (conf_dir / "log4j2.properties").write_text(_LOG4J.format(level=self.options.log_level))
        env = self.environment(
            self.site.master_host,
            SPARK_DAEMON_MEMORY="192m",
            SPARK_DAEMON_JAVA_OPTS=f"{QUICK_JAVA} -Dspark.master.rest.enabled=false",
        )
        command = [str(spark_home() / "bin" / "spark-class"), "org.apache.spark.deploy.master.Master"]
        with self.site.inside(self.site.master_host):
            self.master_port = free_port(self.site.master_host)
            command += ["--host", self.site.master_host, "--port", str(self.master_port), "--webui-port", "0"]
            master = self._group.start("spark-master", command, env=env, cwd=self.directory)
            _wait_for_port(self.site.master_host, self.master_port, master, _PATIENCE)
        ports = {spec.host: self._launch(spec) for spec in self.specs}
        for host, port in ports.items():
            self._await_worker(host, port, _PATIENCE)
        return self

    def add_worker(self, spec: WorkerSpec) -> None:
        """Start one more worker; a running application gets an executor on it at once."""
        self._await_worker(spec.host, self._launch(spec), 60.0)

    def _await_worker(self, host: str, port: int, timeout_s: float) -> None:
        with self.site.inside(host):
            _wait_for_port(host, port, self._group.processes[f"spark-worker-{host}"], timeout_s)

    def _launch(self, spec: WorkerSpec) -> int:
        if spec.host in self.workers:
            raise ValueError(f"there is a worker on {spec.host} already")
        for path in (self.work_dir(spec.host), self.local_dir(spec.host)):
            path.mkdir(parents=True, exist_ok=True)
        if spec.quota is not None and spec.host not in self.quotas:
            grouped = self.site.cgroups and available()
            self.quotas[spec.host] = CpuQuota.create(spec.host, spec.quota) if grouped else Throttle(spec.quota)
        env = self.environment(
            spec.host,
            SPARK_LOCAL_DIRS=str(self.local_dir(spec.host)),
            SPARK_DAEMON_MEMORY="128m",
            SPARK_DAEMON_JAVA_OPTS=QUICK_JAVA,
        )
        command = [str(spark_home() / "bin" / "spark-class"), "org.apache.spark.deploy.worker.Worker"]
        command += ["--cores", str(spec.cores), "--memory", f"{spec.memory_mb}m", "--host", spec.host]
        command += ["--work-dir", str(self.work_dir(spec.host)), "--webui-port", "0"]
        quota = self.quotas.get(spec.host)
        with self.site.inside(spec.host):
            port = free_port(spec.host)
            worker = self._group.start(
                f"spark-worker-{spec.host}",
                [*command, "--port", str(port), self.master_url],
                env=env,
                cwd=self.directory,
                cgroup=quota.path if isinstance(quota, CpuQuota) else None,
            )
        if isinstance(quota, Throttle):
            quota.add(worker.pid)
        self.workers[spec.host] = spec
        return port

    def stop_worker(self, host: str, *, kill: bool = False) -> None:
        """Stop a worker and its executors, in good order or outright."""
        name = f"spark-worker-{host}"
        if kill:
            self._group.kill(name)
        else:
            self._group.stop(name)
        self.workers.pop(host, None)

    def executors(self, host: str | None = None) -> list[ExecutorProcess]:
        """Return the live executors of this cluster, of one node or of all."""
        result = []
        for name in self.workers if host is None else [host]:
            process = self._group.processes.get(f"spark-worker-{name}")
            if process is None:
                continue
            with contextlib.suppress(psutil.NoSuchProcess):
                for child in psutil.Process(process.pid).children(recursive=True):
                    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                        command = child.cmdline()
                        if any(part.endswith(_BACKEND) for part in command):
                            result.append(ExecutorProcess(name, _option(command, "--executor-id"), child.pid))
        return result

    def kill_executor(self, host: str) -> list[ExecutorProcess]:
        """Kill the executors of one node with ``SIGKILL``; the worker starts new ones by itself."""
        killed = self.executors(host)
        for executor in killed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(executor.pid, signal.SIGKILL)
        return killed

    def set_quota(self, cores: float | None, host: str | None = None) -> None:
        """Hold one node, or every node, to this many cores from now on; None lifts the limit.

        Needs quotas in the specs: KeyError for a host that has none.
        """
        for quota in self.quotas.values() if host is None else [self.quotas[host]]:
            quota.set(cores)

    def drop_quota(self, host: str) -> None:
        """Remove the quota of a node whose worker is stopped; nothing to do if it has none."""
        quota = self.quotas.pop(host, None)
        if quota is not None:
            quota.remove()

    def driver_environment(self) -> dict[str, str]:
        """Return the environment for a driver: PySpark reads its workers' interpreter from there, not from the conf."""
        extra = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        return self.environment(self.site.driver_host, **extra)

    def conf(self, executor_cores: int = 2) -> dict[str, str]:
        """Return what a driver of this cluster has to set: addresses, executors' size, no UI, nothing tuned."""
        return {
            "spark.master": self.master_url,
            "spark.driver.host": self.site.driver_host,
            "spark.driver.bindAddress": self.site.driver_host,
            "spark.executor.cores": str(executor_cores),
            "spark.executor.memory": f"{self.options.executor_memory_mb}m",
            "spark.executor.extraJavaOptions": self.options.java_options,
            "spark.driver.extraJavaOptions": self.options.java_options,
            "spark.pyspark.python": sys.executable,
            "spark.pyspark.driver.python": sys.executable,
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.local.dir": str(self.directory / "driver-local"),
        }

    def close(self) -> None:
        """Stop workers and master, remove the quotas and the shuffle files; logs stay in the directory."""
        for host in list(self.workers):
            self.stop_worker(host)
        self._group.stop("spark-master")
        for host in list(self.quotas):
            self.drop_quota(host)
        for path in [self.directory / "driver-local", *self.directory.glob("worker-*/local")]:
            shutil.rmtree(path, ignore_errors=True)
