"""Rights of the agent's user: real processes, users and capabilities. Needs root: `make test-root`.

An executor runs as one user, its local directory closed to all others, as Spark makes it.
"""

from __future__ import annotations

import ctypes
import json
import os
import struct
import subprocess
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from unit.monitors.fakes import backend

from rechannel.monitors.node.inotify import DirectoryWatch
from rechannel.monitors.node.processes import ProcessWatcher
from rechannel.monitors.node.shuffle import ShuffleReader

SPARK, STRANGER = 41_001, 41_002  # users; no account is needed
NODE = f"node-of-{os.getpid()}"  # these tests may run in several processes, and each is to see its own executor
DAC_READ_SEARCH, SYS_PTRACE = 2, 19
PR_SET_KEEPCAPS = 8


def _has(capability: int) -> bool:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapBnd"))
    return bool(int(line.split()[1], 16) >> capability & 1)


pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(
        os.geteuid() != 0 or not _has(SYS_PTRACE), reason="needs root with CAP_SYS_PTRACE to become other users"
    ),
]


@pytest.fixture
def executor(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that looks like an executor of user SPARK and has left one map output."""
    for parent in [tmp_path, *tmp_path.parents]:
        if parent.owner() == "root" and parent.stat().st_mode & 0o777 == 0o700:
            parent.chmod(0o711)
    local = tmp_path / "executor"
    leaf = local / "blockmgr-1/0c"
    leaf.mkdir(parents=True)
    (leaf / "shuffle_3_41_0.index").write_bytes(struct.pack(">3q", 0, 10, 30))
    for path in [local, *local.rglob("*")]:
        os.chown(path, SPARK, SPARK)
        path.chmod(0o700 if path.is_dir() else 0o600)
    text = ["java", "-c", "read line", *backend(NODE)[3:]]
    process = subprocess.Popen(
        text,
        executable="/bin/sh",
        stdin=subprocess.PIPE,
        cwd=local,
        env={"SPARK_EXECUTOR_DIRS": str(local)},
        user=SPARK,
        group=SPARK,
        extra_groups=[],
    )
    yield process
    process.kill()
    process.wait()
    assert process.stdin is not None
    process.stdin.close()


def _become(user: int, capabilities: tuple[int, ...]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    bits = sum(1 << capability for capability in capabilities)
    header = struct.pack("Ii", 0x20080522, 0)
    data = struct.pack("6I", bits, bits, 0, 0, 0, 0)
    if libc.capset(header, data) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def _as(user: int, *capabilities: int, look: Callable[[], Any]) -> Any:
    """Return what a process of that user with those capabilities sees."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _become(user, capabilities)
            answer = json.dumps(look())
        except BaseException:  # noqa: BLE001 - handed to the test
            answer = json.dumps(traceback.format_exc())
        os.write(writer, answer.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        answer = file.read()
    os.waitpid(child, 0)
    return json.loads(answer)


def _look() -> dict[str, Any]:
    watcher, shuffle = ProcessWatcher(NODE), ShuffleReader(DirectoryWatch(), lambda: 0.0)
    samples = watcher.sample()
    rows = [row.sizes for sample in samples for row in shuffle.read(sample.executor)]
    shuffle.close()
    reasons = {*watcher.skipped, *watcher.lasting, *shuffle.skipped}
    return {
        "executors": len(samples),
        "memory": [sample.jvm_rss > 0 for sample in samples],
        "rows": rows,
        "reasons": sorted(reason for reason in reasons if "executor 0" in reason),
    }


ALL = {"executors": 1, "memory": [True], "rows": [[10, 20]], "reasons": []}


def test_sparks_own_user_sees_everything(executor: subprocess.Popen[bytes]) -> None:
    assert _as(SPARK, look=_look) == ALL


def test_another_user_sees_cpu_and_memory_and_names_the_rights_it_lacks(executor: subprocess.Popen[bytes]) -> None:
    assert _as(STRANGER, look=_look) == {
        **ALL,
        "rows": [],
        "reasons": [
            "executor 0: rights missing to read its environment",
            "executor 0: rights missing to read its working directory",
        ],
    }


def test_two_capabilities_make_up_for_it(executor: subprocess.Popen[bytes]) -> None:
    assert _as(STRANGER, SYS_PTRACE, DAC_READ_SEARCH, look=_look) == ALL


def test_one_capability_alone_does_not(executor: subprocess.Popen[bytes]) -> None:
    result = _as(STRANGER, SYS_PTRACE, look=_look)
    assert result["rows"] == []
    assert result["reasons"] == ["executor 0: rights missing to read its environment"]
    result = _as(STRANGER, DAC_READ_SEARCH, look=_look)
    assert result["rows"] == []
    assert len(result["reasons"]) == 2
