"""Shuffle index files: new ones, bad ones, bounds of a pass, with and without inotify."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from rechannel.monitors.node import shuffle
from rechannel.monitors.node.inotify import DirectoryWatch
from rechannel.monitors.node.processes import Executor
from rechannel.monitors.node.shuffle import IndexFileError, ShuffleReader, read_index
from unit.monitors.fakes import START, executor, listing_reader, reasons


class _Bench:
    """A reader, and the local directory of an executor with one leaf."""

    def __init__(self, root: Path, watch: DirectoryWatch | None = None) -> None:
        self.root, self.leaf, self.now = root, root / "blockmgr-1/0c", START
        self.watch = watch
        self.reader = listing_reader() if watch is None else ShuffleReader(watch, lambda: self.now)
        self.leaf.mkdir(parents=True)

    def write(self, task: int, *, leaf: Path | None = None, renamed: bool = False) -> None:
        """Write a map output of one partition; ``renamed``: as Spark does."""
        path = (leaf or self.leaf) / f"shuffle_1_{task}_0.index"
        path.parent.mkdir(parents=True, exist_ok=True)
        first = path.with_suffix(".tmp") if renamed else path
        first.write_bytes(struct.pack(">2q", 0, task))
        first.rename(path)

    def watched(self) -> int:
        return 0 if self.watch is None else len(self.watch._watch)

    def settle(self, at: float) -> None:
        os.utime(self.leaf, (at, at))

    def tasks(self, who: Executor | None = None) -> list[int]:
        """Return the map tasks that a pass reads."""
        self.reader.read_changes()
        return [row.map_task for row in self.reader.read(who or executor(self.root))]


@pytest.fixture
def listing(tmp_path: Path) -> _Bench:
    return _Bench(tmp_path)


@pytest.fixture
def watching(tmp_path: Path) -> Iterator[_Bench]:
    bench = _Bench(tmp_path, DirectoryWatch())
    yield bench
    bench.reader.close()


# -- by listing --


def test_a_map_output_gives_bytes_for_each_downstream_partition_once(listing: _Bench) -> None:
    (listing.leaf / "shuffle_3_41_0.index").write_bytes(struct.pack(">4q", 0, 10, 10, 25))
    (row,) = listing.reader.read(executor(listing.root))
    assert (row.application, row.executor, row.shuffle, row.map_task, row.sizes) == ("app-1", "0", 3, 41, [10, 0, 15])
    assert listing.tasks() == []
    assert reasons(listing.reader) == {}


def test_files_of_other_names_are_ignored(listing: _Bench) -> None:
    listing.write(1, leaf=listing.root / "other/0c")
    listing.write(1, leaf=listing.root / "blockmgr-1")
    for name in ("shuffle_1_1_0.data", "shuffle_1_1_0.index.0f3c", "shuffle_1_1_1.index", "temp_0.index"):
        (listing.leaf / name).write_bytes(struct.pack(">2q", 0, 1))
    assert listing.tasks() == []


def test_new_files_are_read_in_existing_and_new_directories(listing: _Bench) -> None:
    assert listing.tasks() == []
    for task, leaf in enumerate(("blockmgr-1/00", "blockmgr-1/00", "blockmgr-1/3f", "blockmgr-2/00")):
        listing.write(task, leaf=listing.root / leaf)
        assert listing.tasks() == [task]


def test_a_directory_that_did_not_change_is_not_listed(listing: _Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    assert listing.tasks() == []
    listing.write(1)
    listing.settle(START - 100)
    assert listing.tasks() == [1]
    monkeypatch.setattr(shuffle.os, "listdir", lambda path: pytest.fail(f"listed {path}"))
    assert listing.tasks() == []


def test_a_directory_changed_a_moment_ago_is_listed_again(listing: _Bench) -> None:
    for task in (1, 2):
        listing.write(task)
        listing.settle(START)  # within one tick of the file system's clock
        assert listing.tasks() == [task]


def test_files_from_before_the_agent_are_not_reported(listing: _Bench) -> None:
    old = executor(listing.root, started=START - 1000)
    listing.write(1)
    assert listing.tasks(old) == []
    listing.write(2)
    listing.write(3, leaf=listing.root / "blockmgr-1/0d")
    assert sorted(listing.tasks(old)) == [2, 3]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "index file empty"),
        (b"\0" * 12, "index file cut off"),
        (b"\0" * 8, "index file cut off"),
        (struct.pack(">3q", 0, 9, 4), "index file holds no rising offsets"),
        (struct.pack(">3q", 5, 9, 14), "index file holds no rising offsets"),
        (b"\0" * 8 * 101, "index file too big"),
    ],
)
def test_a_bad_file_is_counted_once_by_reason(
    listing: _Bench, content: bytes, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shuffle, "LARGEST_INDEX", 800)
    bad = listing.leaf / "shuffle_1_1_0.index"
    bad.write_bytes(content)
    listing.write(2)
    with pytest.raises(IndexFileError, match=reason):
        read_index(bad)
    assert [listing.tasks(), listing.tasks()] == [[2], []]
    assert reasons(listing.reader) == {reason: 1}


def test_a_file_that_vanishes_before_it_is_read_is_counted(listing: _Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shuffle.os, "listdir", lambda _: ["shuffle_3_41_0.index"])
    assert listing.tasks() == []
    assert reasons(listing.reader) == {"index file vanished": 1}


def test_a_directory_that_vanishes_is_no_error(listing: _Bench) -> None:
    listing.write(1)
    assert listing.tasks() == [1]
    (listing.leaf / "shuffle_1_1_0.index").unlink()
    listing.leaf.rmdir()
    assert listing.tasks() == []
    listing.leaf.parent.rmdir()
    assert listing.tasks(executor(listing.root / "never")) == []
    assert reasons(listing.reader) == {}


def test_a_pass_over_its_budget_goes_on_in_the_next(listing: _Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shuffle, "BUDGET", 10)
    for task in range(4):
        listing.write(task, leaf=listing.root / f"blockmgr-1/0{task}")
    passes = [listing.tasks() for _ in range(4)]
    assert sorted(passes) == [[0], [1], [2], [3]]
    assert reasons(listing.reader) == {"shuffle directories put off to the next pass": 4}


def test_executors_that_share_a_local_directory_report_no_map_output_twice(listing: _Bench) -> None:
    listing.write(1)
    first, second = executor(listing.root), executor(listing.root, name="1", pid=11)
    assert len([*listing.tasks(first), *listing.tasks(second)]) == 1
    listing.write(2)
    listing.reader.retain({(11, START)})
    assert listing.tasks(second) == [2]
    listing.reader.retain({(11, START)})
    assert listing.tasks(second) == []


def test_what_an_ended_executor_left_is_not_new_to_one_that_starts_later(listing: _Bench) -> None:
    """As where YARN's shuffle service keeps it in the directories of the application."""
    listing.write(1)
    listing.settle(START)
    later = executor(listing.root, name="1", pid=11, started=START + 60)
    assert listing.tasks(later) == []
    listing.write(2)
    assert listing.tasks(later) == [2]


def test_missing_rights_are_counted_with_the_executor(listing: _Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> None:
        raise PermissionError(path)

    monkeypatch.setattr(shuffle.os, "scandir", refuse)
    assert listing.tasks() == []
    assert reasons(listing.reader) == {"executor 0: rights missing to read its local directories": 1}


# -- by inotify --


def test_a_watched_directory_is_not_listed(watching: _Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    watching.write(1)
    assert watching.tasks() == [1]
    assert watching.watched() == 1
    monkeypatch.setattr(shuffle.os, "listdir", lambda path: pytest.fail(f"listed {path}"))
    for task in (2, 3):
        watching.write(task, renamed=True)
        (watching.leaf / "temporary").touch()
        (watching.leaf / "temporary").rename(watching.leaf / f"shuffle_1_{task}_0.data")
        assert [watching.tasks(), watching.tasks()] == [[task], []]
    assert reasons(watching.reader) == {}


def test_a_file_that_is_both_listed_and_reported_is_read_once(watching: _Bench) -> None:
    assert watching.watch is not None
    watching.watch.watch(str(watching.leaf))
    watching.write(1, renamed=True)  # reported, and present when the directory is first listed
    assert watching.tasks() == [1]
    for _ in range(3):
        watching.now += shuffle.VERIFY_EVERY
        assert watching.tasks() == []
    assert reasons(watching.reader) == {}


def test_a_directory_whose_changes_are_not_reported_is_listed_from_then_on(watching: _Bench) -> None:
    assert watching.tasks() == []
    watching.write(1)  # no rename: nothing is reported
    assert watching.tasks() == []
    watching.now += shuffle.VERIFY_EVERY
    assert watching.tasks() == [1]
    assert list(reasons(watching.reader)) == ["new files not reported by the kernel: directory listed from now on"]
    assert watching.watched() == 0
    watching.write(2)
    assert watching.tasks() == [2]


def test_every_directory_is_listed_after_lost_events(watching: _Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    assert watching.tasks() == []
    watching.write(1, renamed=True)
    with monkeypatch.context() as patch:
        patch.setattr(watching.watch, "read_events", lambda: False)
        watching.reader.read_changes()
    assert [row.map_task for row in watching.reader.read(executor(watching.root))] == [1]
    assert len(reasons(watching.reader)) == 1
    assert watching.tasks() == []
    assert watching.watched() == 1


@pytest.mark.parametrize("method", ["INotify", "INotify.add_watch"])
def test_without_inotify_directories_are_listed(watching: _Bench, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(24, "no more")

    monkeypatch.setattr(f"rechannel.monitors.node.inotify.{method}", fail)
    for task in (1, 2):
        watching.write(task)
        assert watching.tasks() == [task]
    assert watching.reader.skipped == {"shuffle directory that cannot be watched, listed instead": 1}


def test_watches_end_with_their_executor(watching: _Bench) -> None:
    (watching.root / "blockmgr-1/01").mkdir()
    assert watching.tasks() == []
    assert watching.watched() == 2
    watching.reader.retain(set())
    assert watching.watched() == 0


def test_a_directory_with_two_paths_is_watched_by_one_and_listed_by_the_other(
    watching: _Bench, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """As those of pods that share one of the host's directories: the kernel has one watch for both."""
    alias = tmp_path_factory.mktemp("other") / "root"
    alias.symlink_to(watching.root)
    first, second = executor(watching.root), executor(alias, name="1", pid=11)
    assert watching.tasks(first) == watching.tasks(second) == []
    assert watching.watched() == 1
    watching.write(1, renamed=True)
    assert (watching.tasks(first), watching.tasks(second)) == ([1], [1])
    for living in ({(10, START)}, set()):
        watching.reader.retain(living)
    assert watching.watched() == 0
