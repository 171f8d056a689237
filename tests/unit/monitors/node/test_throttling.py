"""Throttling: control groups v1 and v2 as recorded files, in hosts and containers, and whatever else stands there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from rechannel.monitors.node.throttling import LimitedGroup, ThrottlingReader
from unit.monitors.fakes import executor

V1_MOUNTS = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpuacct rw,relatime shared:4 - cgroup cgroup rw,cpuacct
33 31 0:30 / /sys/fs/cgroup/cpu rw,relatime shared:5 - cgroup cgroup rw,cpu
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
V1_GROUPS = "9:name=systemd:/\n2:cpuacct:/\n1:cpu:/spark/executor\n0::/\n"
V1_STAT = "nr_periods 100\nnr_throttled 40\nthrottled_time 3000000000\nnr_bursts 0\nburst_time 0\n"
V2_MOUNTS = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V2_GROUPS = "0::/kubepods.slice/pod1.slice/executor.scope\n"
V2_STAT = """\
usage_usec 8000000
user_usec 7000000
system_usec 1000000
nr_periods 100
nr_throttled 40
throttled_usec 3000000
"""
POD = "sys/fs/cgroup/kubepods.slice/pod1.slice"


class _Machine:
    """The directory /proc with the executor 10, and the file system that the executor sees."""

    def __init__(self, root: Path, groups: str, mounts: str) -> None:
        self.root = root
        (root / "10/root").mkdir(parents=True)
        self.write("cgroup", groups)
        self.write("mountinfo", mounts)
        self.reader = ThrottlingReader(root)

    def write(self, name: str, text: str) -> None:
        path = self.root / "10" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def group(self, name: str, files: Mapping[str, str]) -> None:
        for file, text in files.items():
            self.write(f"root/{name}/{file}", text)

    def read(self) -> tuple[LimitedGroup, ...]:
        return self.reader.read(executor())


@pytest.fixture
def v2(tmp_path: Path) -> _Machine:
    machine = _Machine(tmp_path, V2_GROUPS, V2_MOUNTS)
    machine.group(POD, {"cpu.max": "max 100000\n", "cpu.stat": V2_STAT})
    machine.group(f"{POD}/executor.scope", {"cpu.max": "50000 100000\n", "cpu.stat": V2_STAT})
    return machine


def test_a_limit_of_v2(v2: _Machine) -> None:
    assert v2.read() == (LimitedGroup("/kubepods.slice/pod1.slice/executor.scope", 0.5, 3.0, 4.0),)


def test_a_limit_of_v1_beside_v2_without_the_controller(tmp_path: Path) -> None:
    machine = _Machine(tmp_path, V1_GROUPS, V1_MOUNTS)
    limits = {"cpu.cfs_quota_us": "150000\n", "cpu.cfs_period_us": "100000\n", "cpu.stat": V1_STAT}
    machine.group("sys/fs/cgroup/cpu", {**limits, "cpu.cfs_quota_us": "-1\n"})
    machine.group("sys/fs/cgroup/cpu/spark/executor", limits)
    assert machine.read() == (LimitedGroup("/spark/executor", 1.5, 3.0, 4.0),)


def test_limits_above_the_executor_are_read_too(v2: _Machine) -> None:
    v2.write(f"root/{POD}/cpu.max", "200000 50000\n")
    assert [(group.path, group.cores) for group in v2.read()] == [
        ("/kubepods.slice/pod1.slice", 4.0),
        ("/kubepods.slice/pod1.slice/executor.scope", 0.5),
    ]


def test_a_container_shows_its_own_group_as_the_mount(tmp_path: Path) -> None:
    mounts = "812 700 0:26 /../executor /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw\n"
    machine = _Machine(tmp_path, "0::/../executor\n", mounts)
    machine.group("sys/fs/cgroup", {"cpu.max": "50000 100000\n", "cpu.stat": V2_STAT})
    assert machine.read() == (LimitedGroup("/../executor", 0.5, 3.0, 4.0),)


def test_an_executor_that_moves_to_another_group(v2: _Machine) -> None:
    v2.read()
    v2.write("cgroup", "0::/kubepods.slice\n")
    assert v2.read() == ()
    v2.reader.retain(set())
    v2.write("cgroup", V2_GROUPS)
    assert len(v2.read()) == 1


def test_an_executor_that_ended_has_no_figures(tmp_path: Path) -> None:
    assert ThrottlingReader(tmp_path).read(executor()) == ()


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("cgroup", ""),
        ("cgroup", "0:\n\n:::\n"),
        ("cgroup", "0::/../other\n"),
        ("cgroup", "0::no path\n"),
        ("cgroup", "0::/" + "a/" * 40),
        ("mountinfo", "\n - \n1 2 - cgroup2\n"),
        ("mountinfo", V2_MOUNTS.replace("cgroup2", "tmpfs")),
        ("mountinfo", V2_MOUNTS.replace(" / ", " /kubepods.slice/pod2.slice ")),
        *[
            (f"root/{POD}/executor.scope/cpu.max", text)
            for text in ("", "x y", "5", "-5 100", "5 0", "5 " + "9" * 4000)
        ],
        *[
            (f"root/{POD}/executor.scope/cpu.stat", text)
            for text in ("", "garbage", "nr_throttled 1\n", "nr_throttled -1\nthrottled_usec 1e9\n", "\0" * 9000)
        ],
    ],
)
def test_garbage_is_no_figure_and_no_error(v2: _Machine, file: str, text: str) -> None:
    v2.write(file, text)
    assert v2.read() == ()


def test_no_link_of_a_container_is_followed(v2: _Machine) -> None:
    directory = v2.root / "10/root" / POD
    (directory / "executor.scope").rename(directory / "elsewhere")
    (directory / "executor.scope").symlink_to("elsewhere")
    assert v2.read() == ()
