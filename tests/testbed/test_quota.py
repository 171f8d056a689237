from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from rechannel.monitors.node.processes import Executor
from rechannel.monitors.node.throttling import ThrottlingReader
from testbed.processes import cpu_seconds, wait_until
from testbed.quota import CpuQuota, Throttle, available

pytestmark = pytest.mark.root
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


def _quota(kind: type[CpuQuota | Throttle]) -> CpuQuota | Throttle:
    return CpuQuota.create("test", 0.2) if kind is CpuQuota else Throttle(0.2)


@pytest.mark.parametrize("kind", [pytest.param(CpuQuota, marks=needs_quota), Throttle])
def test_holds_a_process_and_its_children(kind: type[CpuQuota | Throttle]) -> None:
    burn = "while True: pass"
    quota = _quota(kind)
    try:
        code = f"import subprocess, sys; sys.stdin.read(1); subprocess.run([sys.executable, '-c', {burn!r}])"
        with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as parent:
            quota.add(parent.pid)
            assert parent.stdin is not None
            parent.stdin.write(b"x")
            parent.stdin.flush()
            wait_until(lambda: len(quota.pids()) == 2, "both are held", 60.0)
            child = psutil.Process(parent.pid).children()[0]
            began, used = time.monotonic(), cpu_seconds(child)
            time.sleep(2.5)
            # 0.2 of this time, and half a second in which nobody knew of it.
            assert cpu_seconds(child) - used < 0.5 * (time.monotonic() - began)
            quota.set(None)
            before = cpu_seconds(child)
            wait_until(lambda: cpu_seconds(child) > before + 0.1, "it runs on", 60.0)
            assert child.status() != psutil.STATUS_STOPPED
            child.kill()
    finally:
        quota.remove()


@needs_quota
def test_an_agent_reads_the_limit_and_the_throttled_time() -> None:
    quota = CpuQuota.create("test", 0.1)
    try:
        with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
            quota.add(process.pid)
            read = lambda: ThrottlingReader().read(Executor("app", "0", "node", process.pid, 0.0, 1))[-1]  # noqa: E731
            wait_until(lambda: read().throttled > 0, "it is throttled", 60.0)
            before, began = read(), time.monotonic()
            time.sleep(2.0)
            after, seconds = read(), time.monotonic() - began
            process.kill()
        assert after.cores == pytest.approx(0.1)
        assert after.path.endswith(quota.path.name)
        grown = min(after.throttled - before.throttled, after.periods - before.periods)
        assert 0.3 * seconds < grown < 1.1 * seconds + 0.1
    finally:
        quota.remove()
    assert not quota.path.exists()


def test_what_is_stopped_goes_on_when_nobody_holds_it_any_more() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        throttle = Throttle(0.01)
        try:
            throttle.add(process.pid)
            result = psutil.Process(process.pid)
            wait_until(lambda: result.status() == psutil.STATUS_STOPPED, "the process is stopped", 60.0, 0.01)
            throttle.remove()
            assert result.status() != psutil.STATUS_STOPPED
        finally:
            throttle.remove()
            process.kill()


@pytest.mark.parametrize("cores", [0.0, -1.0])
def test_a_limit_of_nothing_is_refused(cores: float) -> None:
    with pytest.raises(ValueError, match="cores: expected more than 0"):
        Throttle(cores)
