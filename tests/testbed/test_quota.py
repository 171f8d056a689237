from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from benchmarks.testbed.quota import CpuQuota, available

needs_quota = pytest.mark.skipif(not available(), reason=available().reason)


def test_says_why_there_is_none(tmp_path: Path) -> None:
    state = available(tmp_path)
    assert not state
    assert "no cpu controller" in state.reason
    with pytest.raises(PermissionError, match="no cpu controller"):
        CpuQuota.create("node", 0.5, root=tmp_path)


def test_v2_writes_cpu_max(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu memory\n")
    (tmp_path / "cgroup.subtree_control").write_text("memory\n")
    quota = CpuQuota.create("node", 0.4, root=tmp_path)
    assert quota.version == 2
    assert (quota.path / "cpu.max").read_text() == "20000 50000"
    quota.set(None)
    assert (quota.path / "cpu.max").read_text() == "max 50000"


@needs_quota
def test_holds_a_process_and_its_children() -> None:
    burn = "import time; end = time.monotonic() + 2\nwhile time.monotonic() < end: pass"
    with CpuQuota.create("test", 0.2) as quota:
        code = f"import subprocess, sys; sys.stdin.read(1); subprocess.run([sys.executable, '-c', {burn!r}])"
        with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as parent:
            quota.add(parent.pid)
            assert parent.stdin is not None
            parent.stdin.write(b"x")
            parent.stdin.flush()
            time.sleep(1.5)
            assert len(quota.pids()) == 2
            child = psutil.Process(parent.pid).children()[0]
            used = sum(child.cpu_times()[:2])
            assert used < 0.75
            assert quota.throttled_s() > 0
        path = quota.path
    assert not path.exists()
