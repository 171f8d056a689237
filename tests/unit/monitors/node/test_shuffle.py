from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from rechannel.monitors.node import shuffle
from rechannel.monitors.node.inotify import DirectoryWatch
from rechannel.monitors.node.shuffle import IndexFileError, ShuffleReader, read_index
from unit.monitors.fakes import START, executor, listing_reader, reasons


def _index(path: Path, *offsets: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack(f">{len(offsets)}q", *offsets))
    return path


def _settle(leaf: Path, at: float = START - 100) -> None:
    os.utime(leaf, (at, at))


def test_a_map_output_gives_bytes_for_each_downstream_partition_once(tmp_path: Path) -> None:
    _index(tmp_path / "blockmgr-1/0c/shuffle_3_41_0.index", 0, 10, 10, 25)
    reader = listing_reader()
    (row,) = reader.read(executor(tmp_path))
    assert (row.application, row.executor, row.shuffle, row.map_task, row.sizes) == ("app-1", "0", 3, 41, [10, 0, 15])
    assert list(reader.read(executor(tmp_path))) == []
    assert reasons(reader) == {}


def test_files_of_other_names_are_left_alone(tmp_path: Path) -> None:
    leaf = tmp_path / "blockmgr-1/0c"
    for name in ("shuffle_1_1_0.data", "shuffle_1_1_0.index.0f3c", "shuffle_1_1_1.index", "temp_0.index"):
        _index(leaf / name, 0, 1)
    _index(tmp_path / "other/0c/shuffle_1_1_0.index", 0, 1)
    _index(tmp_path / "blockmgr-1/shuffle_1_1_0.index", 0, 1)
    assert list(listing_reader().read(executor(tmp_path))) == []


def test_new_files_in_known_and_new_directories_are_found(tmp_path: Path) -> None:
    reader = listing_reader()
    assert list(reader.read(executor(tmp_path))) == []
    for batch, leaf in enumerate(("blockmgr-1/00", "blockmgr-1/00", "blockmgr-1/3f", "blockmgr-2/00")):
        _index(tmp_path / leaf / f"shuffle_{batch}_0_0.index", 0, batch)
        assert [row.shuffle for row in reader.read(executor(tmp_path))] == [batch]


def test_a_directory_that_did_not_change_is_not_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = _index(tmp_path / "blockmgr-1/0c/shuffle_3_41_0.index", 0, 1)
    _settle(file.parent)
    reader = listing_reader()
    assert len(list(reader.read(executor(tmp_path)))) == 1

    def fail(path: str) -> list[str]:
        raise AssertionError(f"listed {path}")

    monkeypatch.setattr(shuffle.os, "listdir", fail)
    assert list(reader.read(executor(tmp_path))) == []


def test_a_directory_changed_a_moment_ago_is_listed_again(tmp_path: Path) -> None:
    file = _index(tmp_path / "blockmgr-1/0c/shuffle_3_41_0.index", 0, 1)
    _settle(file.parent, START)
    reader = listing_reader()
    assert len(list(reader.read(executor(tmp_path)))) == 1
    _index(file.parent / "shuffle_3_42_0.index", 0, 1)
    _settle(file.parent, START)  # within one tick of the file system's clock
    assert [row.map_task for row in reader.read(executor(tmp_path))] == [42]


def test_what_an_executor_left_before_the_agent_came_is_no_news(tmp_path: Path) -> None:
    old = executor(tmp_path, started=START - 1000)
    _index(tmp_path / "blockmgr-1/0c/shuffle_3_41_0.index", 0, 1)
    reader = listing_reader()
    assert list(reader.read(old)) == []
    _index(tmp_path / "blockmgr-1/0c/shuffle_3_42_0.index", 0, 1)
    _index(tmp_path / "blockmgr-1/0d/shuffle_3_43_0.index", 0, 1)
    assert sorted(row.map_task for row in reader.read(old)) == [42, 43]


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
    tmp_path: Path, content: bytes, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shuffle, "LARGEST_INDEX", 800)
    bad = _index(tmp_path / "blockmgr-1/0c/shuffle_3_41_0.index")
    bad.write_bytes(content)
    _index(bad.parent / "shuffle_3_42_0.index", 0, 1)
    with pytest.raises(IndexFileError, match=reason):
        read_index(bad)
    reader = listing_reader()
    assert [row.map_task for row in reader.read(executor(tmp_path))] == [42]
    assert list(reader.read(executor(tmp_path))) == []
    assert reasons(reader) == {reason: 1}


def test_a_file_that_vanishes_between_listing_and_reading_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "blockmgr-1/0c").mkdir(parents=True)
    monkeypatch.setattr(shuffle.os, "listdir", lambda _: ["shuffle_3_41_0.index"])
    reader = listing_reader()
    assert list(reader.read(executor(tmp_path))) == []
    assert reasons(reader) == {"index file vanished": 1}


def test_a_directory_that_vanishes_is_forgotten(tmp_path: Path) -> None:
    file = _index(tmp_path / "blockmgr-1/0c/shuffle_3_41_0.index", 0, 1)
    reader = listing_reader()
    list(reader.read(executor(tmp_path)))
    file.unlink()
    file.parent.rmdir()
    assert list(reader.read(executor(tmp_path))) == []
    file.parent.parent.rmdir()
    assert list(reader.read(executor(tmp_path / "never"))) == []
    assert reasons(reader) == {}


def test_a_pass_over_its_budget_goes_on_in_the_next(tmp_path: Path) -> None:
    for leaf in range(4):
        _index(tmp_path / f"blockmgr-1/0{leaf}/shuffle_0_{leaf}_0.index", 0, 1)
    reader = listing_reader(budget=10)
    passes = [[row.map_task for row in reader.read(executor(tmp_path))] for _ in range(4)]
    assert [len(rows) for rows in passes] == [1, 1, 1, 1]
    assert sorted(task for rows in passes for task in rows) == [0, 1, 2, 3]
    assert reasons(reader) == {"shuffle directories put off to the next pass": 4}


def test_executors_that_share_a_local_directory_report_no_map_output_twice(tmp_path: Path) -> None:
    _index(tmp_path / "blockmgr-1/0c/shuffle_3_41_0.index", 0, 1)
    reader = listing_reader()
    first, second = executor(tmp_path), executor(tmp_path, name="1", pid=11)
    assert len([*reader.read(first), *reader.read(second)]) == 1
    reader.retain({(11, START)})
    assert len(list(reader.read(second))) == 1


def test_missing_rights_are_counted_with_the_executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> None:
        raise PermissionError(path)

    monkeypatch.setattr(shuffle.os, "scandir", refuse)
    reader = listing_reader()
    assert list(reader.read(executor(tmp_path))) == []
    assert reasons(reader) == {"executor 0: rights missing to read its local directories": 1}


class _Time:
    now = START

    def __call__(self) -> float:
        return self.now


def _bring(leaf: Path, name: str, *offsets: int) -> None:
    """Write a file as Spark does: under another name, then renamed."""
    _index(leaf / f"{name}.tmp", *offsets).rename(leaf / name)


@pytest.fixture
def watching() -> Iterator[tuple[ShuffleReader, DirectoryWatch, _Time]]:
    watch, now = DirectoryWatch(), _Time()
    reader = ShuffleReader(watch, wall=now)
    yield reader, watch, now
    reader.close()


Watching = tuple[ShuffleReader, DirectoryWatch, _Time]


def test_in_a_watched_directory_the_kernel_tells_of_new_files_and_nothing_is_listed(
    tmp_path: Path, watching: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, watch, _ = watching
    leaf = tmp_path / "blockmgr-1/0c"
    _index(leaf / "shuffle_1_1_0.index", 0, 1)
    reader.read_changes()
    assert [row.map_task for row in reader.read(executor(tmp_path))] == [1]
    assert watch.watches == 1
    monkeypatch.setattr(shuffle.os, "listdir", lambda path: pytest.fail(f"listed {path}"))
    for task in (2, 3):
        _bring(leaf, f"shuffle_1_{task}_0.index", 0, task)
        _bring(leaf, f"shuffle_1_{task}_0.data", 0, task)
        reader.read_changes()
        assert [(row.map_task, row.sizes) for row in reader.read(executor(tmp_path))] == [(task, [task])]
        reader.read_changes()
        assert list(reader.read(executor(tmp_path))) == []
    assert reasons(reader) == {}


def test_a_file_that_is_both_listed_and_told_is_read_once(tmp_path: Path, watching: Watching) -> None:
    reader, watch, now = watching
    leaf = tmp_path / "blockmgr-1/0c"
    leaf.mkdir(parents=True)
    watch.watch(str(leaf))
    _bring(leaf, "shuffle_1_1_0.index", 0, 1)  # told, and there when the directory is first listed
    assert len(list(reader.read(executor(tmp_path)))) == 1
    for _ in range(3):
        now.now += shuffle.VERIFY_EVERY
        reader.read_changes()
        assert list(reader.read(executor(tmp_path))) == []
    assert reasons(reader) == {}


def test_a_directory_whose_changes_are_not_told_is_listed_from_then_on(tmp_path: Path, watching: Watching) -> None:
    reader, watch, now = watching
    leaf = tmp_path / "blockmgr-1/0c"
    leaf.mkdir(parents=True)
    assert list(reader.read(executor(tmp_path))) == []
    _index(leaf / "shuffle_1_1_0.index", 0, 1)  # no rename: nothing is told
    reader.read_changes()
    assert list(reader.read(executor(tmp_path))) == []
    now.now += shuffle.VERIFY_EVERY
    reader.read_changes()
    assert len(list(reader.read(executor(tmp_path)))) == 1
    assert list(reasons(reader)) == ["new files the kernel does not tell of: directory listed from now on"]
    assert watch.watches == 0
    _index(leaf / "shuffle_1_2_0.index", 0, 1)
    assert [row.map_task for row in reader.read(executor(tmp_path))] == [2]


def test_lost_events_have_every_directory_listed(
    tmp_path: Path, watching: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, watch, _ = watching
    leaf = tmp_path / "blockmgr-1/0c"
    leaf.mkdir(parents=True)
    assert list(reader.read(executor(tmp_path))) == []
    _bring(leaf, "shuffle_1_1_0.index", 0, 1)
    with monkeypatch.context() as patch:
        patch.setattr(watch, "read_events", lambda: False)
        reader.read_changes()
    assert [row.map_task for row in reader.read(executor(tmp_path))] == [1]
    assert len(reasons(reader)) == 1
    reader.read_changes()
    assert list(reader.read(executor(tmp_path))) == []
    assert watch.watches == 1


@pytest.mark.parametrize("lacking", ["instance", "watch"])
def test_without_inotify_directories_are_listed(tmp_path: Path, lacking: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(24, "no more")

    if lacking == "instance":
        monkeypatch.setattr("rechannel.monitors.node.inotify.INotify", fail)
    else:
        monkeypatch.setattr("rechannel.monitors.node.inotify.INotify.add_watch", fail)
    reader = ShuffleReader(DirectoryWatch(), wall=lambda: START)
    for task in (1, 2):
        _index(tmp_path / f"blockmgr-1/0c/shuffle_1_{task}_0.index", 0, 1)
        reader.read_changes()
        assert [row.map_task for row in reader.read(executor(tmp_path))] == [task]
    reader.close()


def test_watches_end_with_their_executor_and_directory(tmp_path: Path, watching: Watching) -> None:
    reader, watch, _ = watching
    for leaf in ("blockmgr-1/00", "blockmgr-1/01"):
        (tmp_path / leaf).mkdir(parents=True)
    assert list(reader.read(executor(tmp_path))) == []
    assert watch.watches == 2
    reader.retain(set())
    assert watch.watches == 0
