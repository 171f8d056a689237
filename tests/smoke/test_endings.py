"""However a driver ends or hangs, the link leaves nothing: no listener, no file, no object."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.java_gateway import launch_gateway

from smoke.endings_app import listeners
from testbed.processes import ManagedProcess, ProcessGroup
from testbed.redis_server import RedisServer
from testbed.spark_cluster import SparkOptions, StandaloneCluster, WorkerSpec, spark_home

pytestmark = [pytest.mark.spark, pytest.mark.redis]
ROOT = Path(__file__).parents[2]
TICK = 8  # seconds of the watchdog; the link beats every five
PATIENCE = 180.0  # seconds; a busy machine is slow


@dataclass(frozen=True)
class Place:
    group: ProcessGroup
    cluster: StandaloneCluster
    redis: RedisServer


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    directory = tmp_path_factory.mktemp("endings")
    workers = [WorkerSpec("127.0.0.95", 2, 2048)]
    with (
        ProcessGroup(directory / "logs") as group,
        RedisServer(group) as redis,
        StandaloneCluster(group, directory / "cluster", workers, SparkOptions(log_level="warn")) as cluster,
    ):
        yield Place(group, cluster, redis)


@dataclass(frozen=True)
class Driver:
    """A driver, its directory, and the one in which it keeps temporary files."""

    process: ManagedProcess
    directory: Path
    temporary: Path

    def ready(self) -> dict[str, Any]:
        wait(self.process, "the driver runs", (self.directory / "ready.json").exists)
        result: dict[str, Any] = json.loads((self.directory / "ready.json").read_text())
        return result

    def ours(self) -> list[Path]:
        return list(self.temporary.glob("rechannel*"))

    def batches(self) -> int:
        commits = (self.directory / "checkpoint" / "commits").glob("[0-9]*")
        return max((int(path.name) for path in commits if path.name.isdigit()), default=-1)


def wait(process: ManagedProcess, what: str, done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not done():
        process.require_alive()
        assert time.monotonic() < deadline, f"{what}: not within {PATIENCE:g} s\n{process.log_tail(30)}"
        time.sleep(0.2)


@pytest.fixture
def start(place: Place, tmp_path: Path) -> Iterator[Callable[..., Driver]]:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    config = tmp_path / "rechannel.toml"
    config.write_text(f'[cluster]\nname = "endings"\n[redis]\nurl = "{place.redis.url}"\n')
    names = []

    def start(*, attach: bool = True, sessions: int = 0, **environment: str) -> Driver:
        directory = tmp_path / f"driver-{attach}"
        directory.mkdir()
        spark = place.cluster.conf(executor_cores=1) | {"spark.cores.max": "1", "spark.sql.shuffle.partitions": "2"}
        plan = {"spark": spark, "attach": attach, "sessions": sessions, "tick": TICK}
        (directory / "conf.json").write_text(json.dumps(plan))
        environment = place.cluster.driver_environment() | {
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}{os.pathsep}{ROOT / 'tests'}",
            "RECHANNEL_CONFIG": str(config),
            "TMPDIR": str(temporary),
            **environment,
        }
        names.append(name := f"{tmp_path.name}-{attach}")
        command = [sys.executable, "-m", "smoke.endings_app", str(directory)]
        return Driver(place.group.start(name, command, env=environment, cwd=ROOT), directory, temporary)

    yield start
    for name in names:
        place.group.kill(name)


def end(place: Place, driver: Driver, number: signal.Signals) -> None:
    process = place.group.processes.pop(driver.process.name)  # it may end now
    process.popen.send_signal(number)
    process.popen.wait(PATIENCE)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_no_file(number: signal.Signals, place: Place, start: Callable[..., Driver]) -> None:
    driver = start()
    driver.ready()
    assert driver.ours()
    end(place, driver, number)
    deadline = time.monotonic() + PATIENCE
    while driver.ours() and time.monotonic() < deadline:  # the JVM ends after the script
        time.sleep(0.2)
    assert driver.ours() == []


def test_a_script_that_hangs_fills_no_disk_and_is_attached_again(place: Place, start: Callable[..., Driver]) -> None:
    driver = start()
    driver.ready()
    (before,) = driver.ours()
    driver.process.popen.send_signal(signal.SIGSTOP)
    try:
        wait(driver.process, "the watchdog cleans up", lambda: driver.ours() == [])
        batch = driver.batches()
        wait(driver.process, "the query goes on", lambda: driver.batches() > batch + 2)
        assert driver.ours() == []
    finally:
        driver.process.popen.send_signal(signal.SIGCONT)
    wait(driver.process, "the link is back", lambda: bool(driver.ours()))
    assert driver.ours() != [before]
    (driver.directory / "stop").touch()
    place.group.processes.pop(driver.process.name).popen.wait(PATIENCE)
    assert driver.ours() == []


def test_a_script_that_is_killed_leaves_the_jvm_as_it_was(
    place: Place, start: Callable[..., Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a notebook server whose JVM several scripts share."""
    for name, value in place.cluster.driver_environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SPARK_HOME", str(spark_home()))
    gateway = launch_gateway(popen_kwargs={"stderr": subprocess.DEVNULL})
    jvm: Any = gateway.jvm
    try:
        parameters = gateway.java_parameters
        driver = start(
            PYSPARK_GATEWAY_PORT=str(parameters.port),
            PYSPARK_GATEWAY_SECRET=parameters.auth_token,
            PYSPARK_PIN_THREAD="true",
        )
        before = driver.ready()["listeners"]
        session = jvm.org.apache.spark.sql.classic.SparkSession.getDefaultSession().get()
        assert listeners(session) > before
        end(place, driver, signal.SIGKILL)
        deadline = time.monotonic() + PATIENCE
        while (driver.ours() or listeners(session) > before) and time.monotonic() < deadline:
            time.sleep(0.2)
        batch = driver.batches()
        while driver.batches() <= batch and time.monotonic() < deadline:
            time.sleep(0.2)
        assert (driver.ours(), listeners(session), driver.batches() > batch) == ([], before, True)
    finally:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(PATIENCE)


def test_no_stopped_session_is_kept_alive(start: Callable[..., Driver]) -> None:
    alive = {attach: start(attach=attach, sessions=3).ready()["alive"] for attach in (False, True)}
    assert alive[True] <= alive[False]
