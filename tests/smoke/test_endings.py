"""However a driver ends or hangs, the link leaves nothing: no listener, no file, no object."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from pyspark.java_gateway import launch_gateway

from rechannel.migration.spark.hooks import START_WAIT
from rechannel.wire import keys
from testbed.processes import ManagedProcess, wait_until
from testbed.spark_cluster import QUICK_CHECKPOINTS, spark_home
from testbed.stack import PATIENCE, Stack
from tests.smoke.endings_app import listeners

pytestmark = [pytest.mark.spark, pytest.mark.redis]
WAIT = "spark.locality.wait"
SESSIONS = 3
TICK = 8  # seconds of the watchdog; the link beats every five


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
    def holds() -> bool:
        process.require_alive()
        return done()

    wait_until(holds, what, PATIENCE, 0.2, lambda: process.log_tail(30))


@pytest.fixture
def start(stack: Stack, tmp_path: Path) -> Iterator[Callable[..., Driver]]:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    names = []

    def start(
        *,
        attach: bool = True,
        sessions: int = 0,
        most: int = 0,
        hangs: bool = False,
        short: bool = False,
        conf: Mapping[str, str] = MappingProxyType({}),
        **environment: str,
    ) -> Driver:
        directory = tmp_path / f"driver-{attach}"
        spark = stack.cluster.conf(executor_cores=1) | QUICK_CHECKPOINTS
        spark |= {"spark.cores.max": "1", "spark.sql.shuffle.partitions": "2", **conf}
        plan = {"spark": spark, "attach": attach, "sessions": sessions, "tick": TICK, "most": most, "hangs": hangs}
        plan["short"] = short
        names.append(name := f"{tmp_path.name}-{attach}")
        # Without a directory of its own, the link's files are temporary ones.
        environment |= {"TMPDIR": str(temporary), "RECHANNEL_LINK__DIRECTORY": ""}
        process = stack.start_module("tests.smoke.endings_app", directory, plan, name, **environment)
        return Driver(process, directory, temporary)

    yield start
    for name in names:
        stack.group.kill(name)


def end(stack: Stack, driver: Driver, number: signal.Signals) -> None:
    process = stack.group.processes.pop(driver.process.name)  # it may end now
    process.popen.send_signal(number)
    process.popen.wait(PATIENCE)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_no_file(number: signal.Signals, stack: Stack, start: Callable[..., Driver]) -> None:
    driver = start()
    driver.ready()
    assert driver.ours()
    end(stack, driver, number)
    wait_until(lambda: driver.ours() == [], "no file is left once the JVM has ended too", PATIENCE)


def test_a_script_that_hangs_fills_no_disk_and_is_attached_again(stack: Stack, start: Callable[..., Driver]) -> None:
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
    stack.end_driver(driver.process.name)
    assert driver.ours() == []


def test_more_events_than_the_limit_are_removed_and_the_link_begins_anew(
    stack: Stack, start: Callable[..., Driver]
) -> None:
    driver = start(most=1)
    driver.ready()
    (before,) = driver.ours()
    wait(driver.process, "the watchdog cleans up", lambda: before not in driver.ours())
    batch = driver.batches()
    wait(driver.process, "the link is back", lambda: bool(driver.ours()))
    wait(driver.process, "the query goes on", lambda: driver.batches() > batch + 2)
    (driver.directory / "stop").touch()
    stack.end_driver(driver.process.name)
    assert driver.ours() == []


def test_a_start_waits_for_a_link_that_hangs_five_seconds_and_then_not_at_all(start: Callable[..., Driver]) -> None:
    ready = start(hangs=True).ready()
    assert not ready["callbacks"], "the JVM calls Python on the threads of queries"
    first, later = ready["starts"]
    assert START_WAIT <= first < START_WAIT + 3
    assert later < START_WAIT / 2


def test_events_that_spark_drops_are_counted_and_read_from_its_state(
    stack: Stack, start: Callable[..., Driver]
) -> None:
    """A queue of one event, as many are lost in each batch."""
    driver = start(conf={"spark.scheduler.listenerbus.eventqueue.rechannel.capacity": "1"})
    driver.ready()

    def is_complete() -> bool:
        for envelope in (store.get(keys.REPORT, name) for name in store.applications(0)):
            if envelope is not None and any("listener bus dropped" in problem for problem in envelope.body.problems):
                stages = [stage.placement for query in envelope.body.queries for stage in query.stages]
                return stages == [["0", "0"]]
        return False

    with stack.open_store() as store:
        wait(driver.process, "drops are reported, and the placement is there", is_complete)
    batch = driver.batches()
    wait(driver.process, "the query goes on", lambda: driver.batches() > batch + 2)


def test_a_script_that_is_killed_leaves_the_jvm_as_it_was(
    stack: Stack, start: Callable[..., Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a notebook server whose JVM several scripts share."""
    for name, value in stack.cluster.driver_environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SPARK_HOME", str(spark_home()))
    gateway = launch_gateway(popen_kwargs={"stderr": subprocess.DEVNULL})
    jvm: Any = gateway.jvm
    try:
        parameters = gateway.java_parameters
        driver = start(
            short=True,
            conf={WAIT: "30s"},
            PYSPARK_GATEWAY_PORT=str(parameters.port),
            PYSPARK_GATEWAY_SECRET=parameters.auth_token,
            PYSPARK_PIN_THREAD="true",
        )
        before = driver.ready()["listeners"]
        session = jvm.org.apache.spark.sql.classic.SparkSession.getDefaultSession().get()
        assert listeners(session) > before
        conf = session.sparkContext().conf()
        wait(driver.process, "the locality wait is short", lambda: conf.get(WAIT) == "1000ms")
        end(stack, driver, signal.SIGKILL)
        wait_until(lambda: not driver.ours() and listeners(session) <= before, "the link is gone", PATIENCE, 0.2)
        batch = driver.batches()
        wait_until(lambda: driver.batches() > batch, "the query goes on", PATIENCE, 0.2)
        assert (driver.ours(), listeners(session), conf.get(WAIT)) == ([], before, "30s")
    finally:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(PATIENCE)


@pytest.mark.slow
def test_no_stopped_session_is_kept_alive(start: Callable[..., Driver]) -> None:
    alive = {attach: start(attach=attach, sessions=SESSIONS).ready()["alive"] for attach in (False, True)}
    if alive[False] == SESSIONS:
        pytest.skip("PySpark itself keeps every stopped session: nothing can be said about the link")
    assert alive[True] <= alive[False]
