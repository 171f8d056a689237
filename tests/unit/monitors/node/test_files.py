"""Files of any kind in place of an index file or a log: none holds the agent up."""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from rechannel.monitors.node import files, shuffle
from rechannel.monitors.node.executor_log import ClosedStoreReader
from rechannel.monitors.node.inotify import DirectoryWatch
from rechannel.monitors.node.shuffle import IndexFileError, ShuffleReader, read_index
from unit.monitors.fakes import START, executor, listing_reader, reasons

pytestmark = pytest.mark.timeout(20)  # a plain open of a pipe waits for ever
INDEX = struct.pack(">3q", 0, 5, 9)


Maker = Callable[[Path], object]


def _link(path: Path) -> None:
    target = path.parent.parent.parent / "elsewhere"
    target.write_bytes(INDEX)
    path.symlink_to(target)


MAKERS: dict[str, Maker] = {
    "fifo": os.mkfifo,
    "socket": lambda path: os.mknod(path, stat.S_IFSOCK | 0o600),  # a bound socket's path may have 107 bytes only
    "link": _link,
    "loop": lambda path: path.symlink_to(path.name),
    "device": lambda path: path.symlink_to("/dev/zero"),
    "directory": Path.mkdir,
}
STRANGE = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


@pytest.fixture
def leaf(tmp_path: Path) -> Path:
    path = tmp_path / "local/blockmgr-1/0c"
    path.mkdir(parents=True)
    return path


@pytest.fixture
def root(leaf: Path) -> Path:
    return leaf.parents[1]


@STRANGE
def test_no_index_file_is_read_that_is_not_a_regular_one(leaf: Path, root: Path, make: Maker) -> None:
    make(leaf / "shuffle_1_1_0.index")
    (leaf / "shuffle_1_2_0.index").write_bytes(INDEX)
    with pytest.raises(IndexFileError, match="not a regular file"):
        read_index(leaf / "shuffle_1_1_0.index")
    reader = listing_reader()
    assert [row.map_task for row in reader.read(executor(root))] == [2]
    assert reasons(reader) == {"index file not a regular file": 1}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes devices")
def test_a_device_is_not_read(leaf: Path) -> None:
    try:
        os.mknod(leaf / "shuffle_1_1_0.index", 0o600 | 0o020000, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("no devices are made here")
    # On a file system without devices it cannot even be opened.
    with pytest.raises((IndexFileError, PermissionError)):
        read_index(leaf / "shuffle_1_1_0.index")


@pytest.mark.parametrize("replaced", ["blockmgr-1", "blockmgr-1/0c"])
def test_no_link_out_of_the_local_directory_is_followed(root: Path, tmp_path: Path, replaced: str) -> None:
    other = tmp_path / "other" / replaced
    (other / "0c" if replaced == "blockmgr-1" else other).mkdir(parents=True)
    (tmp_path / "other/blockmgr-1/0c/shuffle_1_1_0.index").write_bytes(INDEX)
    reader = listing_reader()
    assert list(reader.read(executor(root))) == []  # the directory is known; then it is exchanged
    (root / replaced).rename(tmp_path / "moved")
    (root / replaced).symlink_to(other)
    assert list(reader.read(executor(root))) == []
    assert list(listing_reader().read(executor(root))) == []


def test_a_link_above_a_local_directory_is_followed(leaf: Path, root: Path, tmp_path: Path) -> None:
    (leaf / "shuffle_1_1_0.index").write_bytes(INDEX)
    (tmp_path / "disk").symlink_to(root)
    assert len(list(listing_reader().read(executor(tmp_path / "disk")))) == 1


def test_no_link_of_a_pod_is_followed_into_the_host(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    root = f"/proc/{os.getpid()}/root{tmp_path.resolve()}"
    with files.open_directory(f"{root}/real"):
        pass
    for link in ((f"{root}/link",), (root, "link")):
        with pytest.raises(OSError, match=r"\[Errno"), files.open_directory(*link):
            pass


def test_a_directory_whose_name_is_no_text_is_read_like_any_other(root: Path) -> None:
    odd = root / os.fsdecode(b"blockmgr-1/\xff")
    odd.mkdir()
    (odd / "shuffle_1_1_0.index").write_bytes(INDEX)
    reader = ShuffleReader(DirectoryWatch(), lambda: START)
    try:
        assert [row.map_task for row in reader.read(executor(root))] == [1]
    finally:
        reader.close()


def test_a_huge_sparse_file_is_not_read(leaf: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (leaf / "shuffle_1_1_0.index").open("wb") as file:
        file.truncate(2**40)
    monkeypatch.setattr(shuffle.os, "read", lambda *_: pytest.fail("it was read"))
    reader = listing_reader()
    assert list(reader.read(executor(root))) == []
    assert reasons(reader) == {"index file too big": 1}


def test_large_files_are_spread_over_passes(leaf: Path, root: Path) -> None:
    for number in range(40):
        with (leaf / f"shuffle_1_{number}_0.index").open("wb") as file:
            file.truncate(8 * 100_001)  # as sparse as its 100,000 empty partitions
    reader = listing_reader()
    passes = []
    while len(rows := list(reader.read(executor(root)))) and len(passes) < 50:
        passes.append([row.map_task for row in rows])
    assert max(map(len, passes)) <= 3
    assert sorted(number for numbers in passes for number in numbers) == list(range(40))


def test_files_deleted_while_they_are_read(leaf: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        (leaf / f"shuffle_1_{number}_0.index").write_bytes(INDEX)
    whole = os.read

    def read(descriptor: int, size: int) -> bytes:
        for path in leaf.iterdir():
            path.unlink()
        leaf.rmdir()
        monkeypatch.setattr(shuffle.os, "read", whole)
        return whole(descriptor, size)

    monkeypatch.setattr(shuffle.os, "read", read)
    reader = listing_reader()
    assert len(list(reader.read(executor(root)))) == 1
    assert reasons(reader) == {"index file vanished": 2}
    assert list(reader.read(executor(root))) == []


def test_a_file_cut_off_while_it_is_read(leaf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (leaf / "shuffle_1_1_0.index").write_bytes(INDEX)
    monkeypatch.setattr(shuffle.os, "read", lambda *_: INDEX[:-1])
    with pytest.raises(IndexFileError, match="cut off"):
        read_index(leaf / "shuffle_1_1_0.index")


def test_no_descriptor_stays_open(leaf: Path, root: Path) -> None:
    before = sum(1 for _ in Path("/proc/self/fd").iterdir())
    for number, make in enumerate(MAKERS.values()):
        make(leaf / f"shuffle_1_{number}_0.index")
    (leaf / "shuffle_2_1_0.index").write_bytes(INDEX)
    logs = ClosedStoreReader()
    os.mkfifo(root / "stderr")
    for _ in range(5):
        list(listing_reader().read(executor(root)))
        logs.read(executor(root))
    assert sum(1 for _ in Path("/proc/self/fd").iterdir()) == before


@STRANGE
def test_no_log_is_read_that_is_not_a_regular_file(root: Path, make: Maker) -> None:
    make(root / "stderr")
    reader, who = ClosedStoreReader(), executor(root)
    for _ in range(2):
        assert reader.read(who) == []
        assert Counter(reader.lasting.values()) == {"executor 0: its log is not a regular file": 1}
    (root / "stderr").rename(root / "away")
    (root / "stderr").write_text("a line\n")
    assert reader.read(who) == []
    assert not reader.lasting and not reader.skipped
    reader.close()


@STRANGE
def test_a_log_replaced_by_another_kind_of_file_is_not_read(root: Path, make: Maker) -> None:
    log, who, reader = root / "stderr", executor(root), ClosedStoreReader()
    log.write_text("a line\n")
    reader.read(who)
    log.rename(root / "stderr.1")
    make(log)
    assert reader.read(who) == []
    assert Counter(reader.lasting.values()) == {"executor 0: its log is not a regular file": 1}
    reader.close()


def test_a_log_that_cannot_be_opened_is_counted(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> tuple[int, int]:
        raise OSError(errno.EIO, "disk")

    monkeypatch.setattr(files, "open_regular", refuse)
    reader = ClosedStoreReader()
    assert reader.read(executor(root)) == []
    assert reader.skipped == {"executor log unreadable": 1}
