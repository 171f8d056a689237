"""Agents and executors in pods: namespaces, users and roots as the kernel has them, without a cluster.

Each pod has a PID, mount, network and UTS namespace of its own, an address, a root directory, and local directories on
a file system that is mounted in there alone. Its executor is a process with the command line and the environment that
Spark's image starts on Kubernetes. Agents are whole but for Redis, and run as a user without capabilities.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import encodings.idna  # noqa: F401  for the names of machines; the agent's user may not read where Python is
import os
import shutil
import signal
import struct
import subprocess
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from unit.monitors.fakes import FakeStore

from rechannel.conf.settings import AgentSettings, Settings
from rechannel.monitors.node.agent import run_agent
from rechannel.wire.measurements import AgentWindow
from testbed.namespaces import trial
from testbed.processes import wait_until

SPARK = 185  # user and group
NODE = "worker-1"
SECONDS = 6.0  # in which an agent looks
WINDOW = 1.0
LOCAL = "/var/data/spark-1"
NEWPID, NEWNS, NEWNET = 0x20000000, 0x00020000, 0x40000000
MS_REC, MS_PRIVATE = 0x4000, 1 << 18

problem = trial('unshare --pid --mount --uts --fork sh -ec "ip link set lo up && mount -t tmpfs none /mnt"')
pytestmark = [
    pytest.mark.root,
    pytest.mark.timeout(120),
    pytest.mark.skipif(bool(problem), reason=f"pods need root and namespaces: {problem}"),
]

# The first process of the pod, as the container runtime sets it up; arguments: root, address, burning, the executor.
POD = """
root=$1 address=$2 burning=$3; shift 3
hostname "pod-$address"
ip link set lo up
ip address add "$address/32" dev lo
for part in bin sbin lib lib64 usr; do
    if [ -L "/$part" ]; then ln -s "$(readlink "/$part")" "$root/$part"
    elif [ -d "/$part" ]; then mkdir "$root/$part"; mount --bind "/$part" "$root/$part"; fi
done
mkdir -p "$root/proc" "$root/dev" "$root/opt/java/bin" "$root/var/data"
touch "$root/dev/null"
mount --bind /dev/null "$root/dev/null"
mount -t proc proc "$root/proc"
mount -t tmpfs none "$root/var/data"
mkdir -p "$root$LOCAL/blockmgr-1/0c"
chown -R "$SPARK:$SPARK" "$root/var/data"
chmod 700 "$root$LOCAL"
ln -s /bin/sh "$root/opt/java/bin/java"
env -i SPARK_LOCAL_DIRS="$LOCAL" SPARK_EXECUTOR_ATTRIBUTE_RECHANNEL_NODE="$NODE" \\
    "$(command -v chroot)" --userspec="$SPARK:$SPARK" "$root" /opt/java/bin/java -c "$burning" "$@" &
wait
"""
BURN = "while :; do :; done"
JVM_BURNS = BURN
WORKER_BURNS = f"/bin/sh -c '{BURN}' python3 -m pyspark.daemon pyspark.worker & wait"


@dataclass(frozen=True)
class Pod:
    """A pod with an executor; ``java``: the executor's process as the host sees it."""

    address: str
    executor: str
    first: int  # its process with the number 1
    java: int

    def write_index(self, task: int, *sizes: int) -> None:
        """Leave the index file of a map task, as Spark's shuffle writer does."""
        directory = Path(f"/proc/{self.java}/root{LOCAL}/blockmgr-1/0c")
        offsets = [sum(sizes[:end]) for end in range(len(sizes) + 1)]
        partial = directory / "partial"
        partial.write_bytes(struct.pack(f">{len(offsets)}q", *offsets))
        os.chown(partial, SPARK, SPARK)
        partial.chmod(0o600)
        partial.rename(directory / f"shuffle_3_{task}_0.index")


def start_pod(root: Path, address: str, executor: str, burning: str) -> tuple[subprocess.Popen[bytes], Pod]:
    root.mkdir()
    arguments = [
        *("org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend", "--driver-url"),
        *("spark://CoarseGrainedScheduler@driver-svc:7078", "--executor-id", executor, "--cores", "2"),
        *("--app-id", "spark-0f3c", "--hostname", address, "--resourceProfileId", "0", "--podName", f"exec-{executor}"),
    ]
    first = subprocess.Popen(
        [
            *("unshare", "--pid", "--mount", "--net", "--uts", "--fork", "--kill-child"),
            *("sh", "-euc", POD, "pod", str(root), address, burning, *arguments),
        ],
        env=os.environ | {"LOCAL": LOCAL, "SPARK": str(SPARK), "NODE": NODE},
        start_new_session=True,
    )

    def child(parent: int, name: str) -> int:
        assert first.poll() is None, "the pod ended"
        for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
            with contextlib.suppress(OSError):  # a command that has ended
                if Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0] == name.encode():
                    return int(pid)
        return 0

    one = wait_until(lambda: child(first.pid, "sh"), f"pod {address}", 20.0)
    java = wait_until(lambda: child(one, "/opt/java/bin/java"), f"executor in pod {address}", 20.0)
    return first, Pod(address, executor, one, java)


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[tuple[Pod, Pod]]:
    """Two pods of one node: the JVM of the first burns a core, the Python worker of the second another."""
    for parent in [tmp_path, *tmp_path.parents]:
        if parent.owner() == "root" and parent.stat().st_mode & 0o777 == 0o700:
            parent.chmod(0o711)
    started = []
    try:
        started.append(start_pod(tmp_path / "a", "10.244.1.7", "5", JVM_BURNS))
        started.append(start_pod(tmp_path / "b", "10.244.1.8", "6", WORKER_BURNS))
        yield started[0][1], started[1][1]
    finally:
        for process, _ in started:
            os.killpg(process.pid, signal.SIGKILL)  # the kernel ends the namespace with its first process
            process.wait()
        for name in ("a", "b"):
            shutil.rmtree(tmp_path / name, ignore_errors=True)


def become(group: int) -> None:
    """Give up every right but those of Spark's user."""
    os.setgroups([])
    os.setresgid(group, group, group)
    os.setresuid(SPARK, SPARK, SPARK)
    status = Path("/proc/self/status").read_text()
    assert "CapEff:\t0000000000000000" in status


def enter(pod: Pod) -> None:
    """Become a sidecar of a pod: its processes and network, and a mount namespace of its own."""
    libc = ctypes.CDLL(None, use_errno=True)
    spaces = {kind: os.open(f"/proc/{pod.first}/ns/{kind}", os.O_RDONLY) for kind in ("pid", "net")}
    assert libc.setns(spaces["net"], NEWNET) == 0
    assert libc.setns(spaces["pid"], NEWPID) == 0  # of the children
    if child := os.fork():
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    assert libc.unshare(NEWNS) == 0
    assert libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None) == 0
    assert libc.mount(b"proc", b"/proc", b"proc", 0, None) == 0


def watch(node: str, prepare: Callable[[], None], pods: tuple[Pod, Pod], group: int = SPARK) -> list[AgentWindow]:
    """Run an agent for `SECONDS` while map tasks end, and return its windows."""
    reader, writer = os.pipe()
    agent = os.fork()
    if agent == 0:
        try:
            prepare()
            become(group)
            store, stop = FakeStore(), threading.Event()
            threading.Timer(SECONDS, stop.set).start()
            settings = dataclasses.replace(Settings(), agent=AgentSettings(node=node, window=WINDOW))
            run_agent(settings, stop=stop, store_factory=lambda _: store)  # type: ignore[arg-type,return-value]
            answer = msgspec.json.encode(store.windows)
        except BaseException:  # noqa: BLE001 - handed to the test
            answer = msgspec.json.encode(traceback.format_exc())
        with os.fdopen(writer, "wb") as file:
            file.write(answer)
        os._exit(0)
    os.close(writer)
    over = threading.Event()

    def write() -> None:
        task = 0
        while not over.wait(0.1):
            task += 1
            pods[0].write_index(task, 10, 20)
            pods[1].write_index(task, 300, 0, 500)

    writing = threading.Thread(target=write)
    writing.start()
    with os.fdopen(reader, "rb") as file:
        answer = file.read()
    over.set()
    writing.join()
    os.waitpid(agent, 0)
    document = msgspec.json.decode(answer)
    assert isinstance(document, list), document
    return msgspec.convert(document, list[AgentWindow])


def measured(windows: list[AgentWindow]) -> dict[tuple[str, str], tuple[set[tuple[int, ...]], float, float]]:
    """Return by executor and host: sizes of map outputs, CPU seconds of the JVM and of Python."""
    usages = [usage for window in windows for usage in window.executors]
    sizes = {(out.executor, tuple(map(int, out.read_sizes()))) for window in windows for out in window.map_outputs}
    return {
        (executor, host): (
            {it for name, it in sizes if name == executor},
            sum(usage.jvm_cpu for usage in usages if usage.executor == executor),
            sum(usage.python_cpu for usage in usages if usage.executor == executor),
        )
        for executor, host in {(usage.executor, usage.host) for usage in usages}
    }


def test_an_agent_of_the_node_measures_the_executors_of_all_pods(pods: tuple[Pod, Pod]) -> None:
    windows = watch(NODE, lambda: None, pods)
    assert {window.node for window in windows} == {NODE}
    executors = measured(windows)
    assert executors.keys() == {("5", "10.244.1.7"), ("6", "10.244.1.8")}
    sizes, jvm, python = executors["5", "10.244.1.7"]
    assert (sizes, python) == ({(10, 20)}, 0.0)
    other_sizes, other_jvm, other_python = executors["6", "10.244.1.8"]
    assert other_sizes == {(300, 0, 500)}
    assert jvm > 0.5 > 10 * other_jvm, "seconds of a core that others may share"
    assert other_python > 0.5
    reasons = {reason for window in windows for reason in window.skipped}
    assert not [it for it in reasons if it.startswith(("executor 5", "executor 6")) or "watched" in it], reasons


def test_an_agent_in_a_pod_measures_the_executor_of_that_pod(pods: tuple[Pod, Pod]) -> None:
    windows = watch("", lambda: enter(pods[1]), pods)
    assert {window.node for window in windows} == {"10.244.1.8"}, "the address of the pod, without a setting"
    executors = measured(windows)
    assert executors.keys() == {("6", "10.244.1.8")}
    sizes, jvm, python = executors["6", "10.244.1.8"]
    assert sizes == {(300, 0, 500)}
    assert python > 0.5 > 10 * jvm
    assert {usage.pid for window in windows for usage in window.executors} != {pods[1].java}, "its number in the pod"


def test_another_group_than_that_of_the_executors_is_not_enough(pods: tuple[Pod, Pod]) -> None:
    windows = watch(NODE, lambda: None, pods, group=SPARK + 1)
    assert measured(windows) == {}
    reason = "executor of another host: rights missing to read its node"
    skipped = sum(window.skipped.get(reason, 0) for window in windows)
    assert skipped >= len(pods), "more where this machine has other executors"


def test_the_agent_of_another_node_takes_none_of_them(pods: tuple[Pod, Pod]) -> None:
    assert measured(watch("worker-2", lambda: None, pods)) == {}
