from __future__ import annotations

import os
import socket
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest

from rechannel.monitors.node.processes import (
    VERIFY,
    YOUNG,
    ProcessDeniedError,
    ProcessGoneError,
    ProcessTable,
    ProcessWatcher,
    find_host,
    local_directories,
    machine_usage,
    own_names,
)
from unit.monitors.fakes import DAEMON, NODE, START, FakeClock, FakeProcess, FakeTable, backend


def _watcher(table: FakeTable, clock: FakeClock | None = None) -> ProcessWatcher:
    return ProcessWatcher(NODE, table, (clock or FakeClock()).monotonic)


def test_executor_of_this_node_is_described_by_its_command_line_and_environment() -> None:
    java = FakeProcess(
        10, arguments=backend(), cpu=7.0, rss=100, environ={"SPARK_EXECUTOR_DIRS": "/a:/b"}, cwd="/var/spark/app-1/0"
    )
    (sample,) = _watcher(FakeTable(java)).sample()
    executor = sample.executor
    assert (executor.application, executor.executor, executor.host, executor.cores) == ("app-1", "0", NODE, 2)
    assert executor.directories == (Path("/a"), Path("/b"))
    assert executor.log == Path("/var/spark/app-1/0/stderr")
    assert (executor.pid, executor.started) == (10, START)
    assert (sample.jvm_cpu, sample.jvm_rss, sample.python_workers) == (7.0, 100, 0)


def test_executors_of_other_nodes_are_not_sampled_but_named() -> None:
    table = FakeTable(
        FakeProcess(10, arguments=backend("127.0.0.3")),
        FakeProcess(11, arguments=backend("127.0.0.4")),
        FakeProcess(12),
    )
    watcher = _watcher(table)
    assert watcher.sample() == []
    assert watcher.other_hosts == ["127.0.0.3", "127.0.0.4"]
    del table.processes[10]
    watcher.sample()
    assert watcher.other_hosts == ["127.0.0.4"]


def test_a_shell_that_mentions_the_backend_is_no_executor() -> None:
    shell = FakeProcess(9, arguments=["bash", "-c", " ".join(backend()) + " 2>stderr"])
    java = FakeProcess(10, ppid=9, arguments=backend())
    (sample,) = _watcher(FakeTable(shell, java)).sample()
    assert sample.executor.pid == 10


@pytest.mark.parametrize("order", [(10, 11), (11, 10)])
def test_a_fork_of_the_executor_before_its_exec_is_not_a_second_executor(order: tuple[int, int]) -> None:
    jvm, fork = order
    table = FakeTable(FakeProcess(jvm, arguments=backend()), FakeProcess(fork, ppid=jvm, arguments=backend()))
    watcher = _watcher(table)
    (sample,) = watcher.sample()
    assert (sample.executor.pid, sample.python_workers) == (jvm, 0)
    table.processes[fork].arguments = ["python3", "-m", "pyspark.worker"]
    assert watcher.sample()[0].python_workers == 1


def test_a_process_that_becomes_an_executor_by_exec_is_detected() -> None:
    clock, child = FakeClock(), FakeProcess(10, arguments=["java", "org.apache.spark.deploy.worker.Worker"])
    watcher = _watcher(FakeTable(child), clock)
    assert watcher.sample() == []
    clock.pass_time(YOUNG / 2)
    child.arguments = backend()
    assert len(watcher.sample()) == 1


def test_processes_are_opened_once() -> None:
    table = FakeTable(FakeProcess(10, arguments=backend()), *(FakeProcess(pid) for pid in range(100, 200)))
    clock = FakeClock()
    watcher = _watcher(table, clock)
    for _ in range(5):
        watcher.sample()
        clock.pass_time(YOUNG)
    assert table.opened == 101


Sampled = tuple[FakeTable, ProcessWatcher]


def _family() -> FakeTable:
    return FakeTable(
        FakeProcess(12, ppid=11, arguments=DAEMON, cpu=2.0, rss=20),
        FakeProcess(13, ppid=11, arguments=DAEMON, cpu=3.0, rss=30),
        FakeProcess(14, ppid=13, arguments=["grep"], cpu=0.5, rss=5),
        FakeProcess(11, ppid=10, arguments=DAEMON, cpu=1.0, rss=10),
        FakeProcess(10, arguments=backend(), cpu=50.0, environ={"SPARK_LOCAL_DIRS": "/a"}),
        FakeProcess(99, ppid=1, arguments=DAEMON, cpu=1000.0),
    )


@pytest.fixture
def sampled() -> Sampled:
    """The family, sampled once."""
    table = _family()
    watcher = _watcher(table)
    watcher.sample()
    return table, watcher


def test_python_usage_has_every_descendant_and_worker_count_only_workers() -> None:
    (sample,) = _watcher(_family()).sample()
    assert (sample.python_cpu, sample.python_rss, sample.python_workers) == (6.5, 65, 2)
    assert sample.jvm_cpu == 50.0


def test_cpu_of_an_ended_worker_counts_once(sampled: Sampled) -> None:
    table, watcher = sampled
    del table.processes[12]
    assert watcher.sample()[0].python_cpu == 6.5
    table.add(FakeProcess(12, ppid=11, arguments=DAEMON, cpu=0.25))  # its pid used again
    assert watcher.sample()[0].python_cpu == 6.75


def test_cpu_of_a_worker_that_ends_while_it_is_read_counts(sampled: Sampled) -> None:
    table, watcher = sampled
    table.processes[12].ended = True
    (sample,) = watcher.sample()
    assert (sample.python_cpu, sample.python_workers) == (6.5, 1)
    assert watcher.skipped == {"process of an executor vanished while read": 1}


def test_executor_that_ends_while_read_is_counted_not_raised(sampled: Sampled) -> None:
    table, watcher = sampled
    table.processes[10].ended = True
    assert watcher.sample() == []
    assert watcher.skipped == {"executor vanished while read": 1}
    assert watcher.sample() == []


def test_an_ended_executor_is_dropped_with_its_workers(sampled: Sampled) -> None:
    table, watcher = sampled
    table.processes.clear()
    assert watcher.sample() == []
    table.add(FakeProcess(10, arguments=backend(executor="5"), cpu=1.0))
    (sample,) = watcher.sample()
    assert (sample.executor.executor, sample.python_cpu) == ("5", 0.0)


def test_missing_rights_are_lasting_reasons_and_do_not_hide_the_executor() -> None:
    java = FakeProcess(10, arguments=backend(executor="3"), cpu=1.0, denied=frozenset({"environment", "directory"}))
    watcher = _watcher(FakeTable(java))
    (sample,) = watcher.sample()
    assert (sample.executor.directories, sample.executor.log) == ((), None)
    expected = {
        "executor 3: rights missing to read its environment": 1,
        "executor 3: rights missing to read its working directory": 1,
    }
    assert Counter(watcher.lasting) == expected


def test_missing_rights_to_the_usage_of_an_executor_are_counted() -> None:
    watcher = _watcher(FakeTable(FakeProcess(10, arguments=backend(executor="3"), denied=frozenset({"usage"}))))
    assert watcher.sample() == []
    assert watcher.skipped["executor 3: rights missing to read its usage"] == 1


@pytest.mark.parametrize(
    "arguments",
    [
        backend()[:6],
        [*backend()[:-5], "many", *backend()[-4:]],
        [*backend()[:-5], "9" * 40, *backend()[-4:]],  # no reader takes such a number
        backend(executor=os.fsdecode(b"\xff")),  # cannot be sent
        backend(executor="9" * 100_000),
    ],
    ids=["cut", "word", "number", "bytes", "length"],
)
def test_an_unparseable_command_line_is_no_executor(arguments: list[str]) -> None:
    watcher = _watcher(FakeTable(FakeProcess(10, arguments=arguments), FakeProcess(11, arguments=backend())))
    assert [sample.executor.pid for sample in watcher.sample()] == [11]
    assert watcher.sample()


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"SPARK_EXECUTOR_DIRS": "/a:/b", "SPARK_LOCAL_DIRS": "/c"}, ("/a", "/b")),
        ({"SPARK_LOCAL_DIRS": "/a, /b"}, ("/a", "/b")),
        ({"CONTAINER_ID": "c", "LOCAL_DIRS": "/y", "SPARK_EXECUTOR_DIRS": "/a"}, ("/y",)),
        ({"LOCAL_DIRS": "/y"}, ("/y",)),
        ({}, ()),
    ],
)
def test_local_directories_follow_the_order_of_spark(environment: dict[str, str], expected: tuple[str, ...]) -> None:
    assert local_directories(environment) == tuple(map(Path, expected))


def test_this_machine_shows_this_process() -> None:
    table = ProcessTable()
    assert os.getpid() in table.pids()
    me = table.open(os.getpid())
    assert me.parent() == os.getppid()
    assert me.directory() == str(Path.cwd())
    assert me.usage().cpu > 0
    assert me.usage().rss > 2**20
    assert "PATH" in me.environment()
    assert me.command_line()
    assert machine_usage().cores >= 1
    assert 0 < machine_usage().memory_used < machine_usage().memory_total


@pytest.mark.parametrize(
    ("foreign", "translated"),
    [
        (psutil.AccessDenied(1), ProcessDeniedError),
        (PermissionError(), ProcessDeniedError),
        (psutil.NoSuchProcess(1), ProcessGoneError),
        (psutil.ZombieProcess(1), ProcessGoneError),
        (OSError(), ProcessGoneError),
        (IndexError(), ProcessGoneError),
    ],
)
def test_every_foreign_error_is_translated(
    foreign: Exception, translated: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    me = ProcessTable().open(os.getpid())

    def fail(_: object) -> float:
        raise foreign

    monkeypatch.setattr(psutil.Process, "cmdline", fail)
    with pytest.raises(translated):
        me.command_line()


def test_a_reused_pid_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    me = ProcessTable().open(os.getpid())
    monkeypatch.setattr(psutil.Process, "is_running", lambda _: False)
    with pytest.raises(ProcessGoneError):
        for _ in range(VERIFY):
            me.usage()


def test_a_pid_that_does_not_exist_is_gone() -> None:
    with pytest.raises(ProcessGoneError):
        ProcessTable().open(2**22 + 1)


def test_the_host_of_this_machines_executors_is_found_by_name_or_address() -> None:
    table = FakeTable(FakeProcess(9, arguments=["bash"]), FakeProcess(10, arguments=backend("10.1.2.3")))
    assert find_host(table, {"box", "10.1.2.3"}) == "10.1.2.3"
    assert find_host(table, {"box", "127.0.0.1"}) == "", "another machine's name, or a test bed's node"


def test_this_machine_is_known_by_its_name_and_addresses() -> None:
    assert {socket.gethostname(), "127.0.0.1"} <= own_names()


# Composed from the code that launches executors there (ExecutorRunnable.prepareCommand with YARN's default container
# executor; the Kubernetes image's entrypoint.sh). Neither was recorded on a running cluster.
_YARN_JAVA = [
    *("/usr/lib/jvm/java-17/bin/java", "-server", "-Xmx1024m", "-Djava.io.tmpdir=/yarn/tmp"),
    *("-Dspark.yarn.app.container.log.dir=/var/log/yarn/c7", "-XX:OnOutOfMemoryError=kill %p"),
    *("org.apache.spark.executor.YarnCoarseGrainedExecutorBackend", "--driver-url"),
    *("spark://CoarseGrainedScheduler@driver:4040", "--executor-id", "3", "--hostname", "worker-1", "--cores", "4"),
    *("--app-id", "application_1700000000000_0007", "--resourceProfileId", "0"),
]
_YARN_ENVIRONMENT = {
    "CONTAINER_ID": "container_1700000000000_0007_01_000004",
    "LOCAL_DIRS": "/disk1/appcache/application_1700000000000_0007,/disk2/appcache/application_1700000000000_0007",
    "LOG_DIRS": "/disk2/log/c7,/var/log/yarn/c7",  # any of them may have the container's files
}
_POD_JAVA = [
    *("/opt/java/openjdk/bin/java", "-Dspark.driver.port=7078", "-Xmx1g", "-cp", "/opt/spark/conf::/opt/spark/jars/*"),
    *("org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend", "--driver-url"),
    *("spark://CoarseGrainedScheduler@driver-svc:7078", "--executor-id", "5", "--cores", "2", "--app-id", "spark-0f3c"),
    *("--hostname", "10.244.1.7", "--resourceProfileId", "0", "--podName", "app-exec-5"),
]


def test_a_yarn_container_is_one_executor_with_its_own_logs_and_directories() -> None:
    shell = ["/bin/bash", "-c", " ".join([*_YARN_JAVA, "1>/var/log/yarn/c7/stdout", "2>/var/log/yarn/c7/stderr"])]
    table = FakeTable(
        FakeProcess(9, arguments=shell),
        FakeProcess(10, ppid=9, arguments=_YARN_JAVA, environ=_YARN_ENVIRONMENT, cpu=3.0, cwd="/disk1/appcache/c7"),
        FakeProcess(11, ppid=10, arguments=DAEMON),
        FakeProcess(12, ppid=11, arguments=DAEMON, cpu=2.0),
    )
    (sample,) = ProcessWatcher("worker-1", table).sample()
    executor = sample.executor
    assert (executor.application, executor.executor, executor.cores) == ("application_1700000000000_0007", "3", 4)
    assert executor.directories == tuple(map(Path, _YARN_ENVIRONMENT["LOCAL_DIRS"].split(",")))
    assert executor.log == Path("/var/log/yarn/c7/stderr")
    assert (sample.jvm_cpu, sample.python_cpu, sample.python_workers) == (3.0, 2.0, 1)


def test_the_executor_of_a_pod_is_its_java_process_not_tini() -> None:
    table = FakeTable(
        FakeProcess(1, ppid=0, arguments=["/usr/bin/tini", "-s", "--", *_POD_JAVA], cpu=0.1),
        FakeProcess(14, ppid=1, arguments=_POD_JAVA, environ={"SPARK_LOCAL_DIRS": "/var/data/spark-77"}, cpu=3.0),
        FakeProcess(15, ppid=14, arguments=DAEMON),
        FakeProcess(16, ppid=15, arguments=DAEMON, cpu=2.0),
    )
    (sample,) = ProcessWatcher("10.244.1.7", table).sample()
    assert (sample.executor.executor, sample.executor.pid, sample.executor.log) == ("5", 14, None)
    assert sample.executor.directories == (Path("/proc/14/root/var/data/spark-77"),)
    assert (sample.jvm_cpu, sample.python_cpu) == (3.0, 2.0)
    assert find_host(table, {"10.244.1.7"}) == "10.244.1.7"


def _pod(pid: int, host: str, **process: Any) -> FakeProcess:
    arguments = [host if argument == "10.244.1.7" else argument for argument in _POD_JAVA]
    return FakeProcess(pid, arguments=arguments, **process)


def test_an_agent_beside_the_pods_takes_those_whose_environment_names_its_node() -> None:
    here, there = ({"SPARK_EXECUTOR_ATTRIBUTE_RECHANNEL_NODE": node} for node in ("worker-1", "worker-2"))
    table = FakeTable(
        _pod(10, "10.244.1.7", environ=here),
        _pod(11, "10.244.1.8", environ=here),
        _pod(12, "10.244.2.1", environ=there),
        _pod(13, "10.244.2.2"),
        _pod(14, "10.244.2.3", environ=here, denied=frozenset({"environment"})),
    )
    watcher = ProcessWatcher("worker-1", table)
    assert [sample.executor.host for sample in watcher.sample()] == ["10.244.1.7", "10.244.1.8"]
    assert watcher.other_hosts == ["10.244.2.1", "10.244.2.2", "10.244.2.3"]
    assert watcher.skipped == {"executor of another host: rights missing to read its node": 1}


def test_a_process_that_only_looks_like_an_executor_is_none() -> None:
    arguments = [it for it in _POD_JAVA if it not in ("--hostname", "10.244.1.7")]
    environment = {"SPARK_LOCAL_DIRS": "/var/data/spark-77", "SPARK_EXECUTOR_ATTRIBUTE_RECHANNEL_NODE": "worker-1"}
    assert (
        ProcessWatcher("worker-1", FakeTable(FakeProcess(14, arguments=arguments, environ=environment))).sample() == []
    )
