"""Directory of the event stream: its lock, its renewal and its removal."""

from __future__ import annotations

import fcntl
import os
import shutil

import pytest

from rechannel.migration.link.event_feed import EventFeed, remove_leftovers
from rechannel.migration.spark.gateway import SparkCallError


class FakeAdapter:
    """Writes what Spark would write."""

    def __init__(self) -> None:
        self.directories = []
        self.alive = True
        self.stopped = 0
        self.drops = 0
        self.fails = False

    def start_event_stream(self, directory, part_bytes):
        self.directories.append(directory)
        (directory / "eventlog_v2_rechannel").mkdir()
        self.write(b"one\n")

    def write(self, text: bytes) -> None:
        with (self.directories[-1] / "eventlog_v2_rechannel" / "events_1_rechannel").open("ab") as file:
            file.write(text)

    def stop_event_stream(self):
        self.stopped += 1
        if self.fails:
            raise SparkCallError("java.io.FileNotFoundException")

    def stop_watchdog(self):
        self.stopped += 1

    def send_heartbeat(self):
        return self.alive

    def dropped_events(self):
        return self.drops


@pytest.fixture
def adapter():
    return FakeAdapter()


@pytest.fixture
def feed(adapter, tmp_path):
    feed = EventFeed(adapter, str(tmp_path), 1000)
    feed.open()
    yield feed
    feed.close()


def test_it_reads_what_spark_writes_and_leaves_nothing(feed, adapter, tmp_path):
    assert feed.read(0.0) == [b"one"]
    adapter.write(b"two\n")
    assert feed.read(1.0) == [b"two"]
    assert not feed.pop_incomplete()
    feed.close()
    assert list(tmp_path.iterdir()) == []


def test_files_are_removed_though_spark_fails(feed, adapter, tmp_path):
    adapter.fails = True
    feed.close()
    assert adapter.stopped == 2, "each step, whatever became of the one before"
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_somebody_removed_is_made_anew(feed, adapter, tmp_path):
    feed.read(0.0)
    for directory in tmp_path.iterdir():
        shutil.rmtree(directory)
    feed.read(1.0)
    assert feed.openings == 2
    assert feed.read(2.0) == [b"one"]
    assert feed.pop_incomplete()


def test_a_stream_that_the_watchdog_ended_is_opened_anew(feed, adapter):
    adapter.alive = False
    feed.read(10.0)
    assert feed.openings == 2
    assert feed.pop_incomplete()


def test_events_that_spark_dropped_are_told_once(feed, adapter):
    adapter.drops = 3
    feed.read(10.0)
    assert feed.dropped == 3
    assert feed.pop_incomplete()
    feed.read(20.0)
    assert not feed.pop_incomplete()


def test_what_killed_drivers_left_is_removed_and_nothing_else(tmp_path):
    names = ("living", "killed", "newborn", "of-somebody")
    living, killed, _, foreign = directories = [tmp_path / f"rechannel-{name}" for name in names]
    for directory in directories:
        directory.mkdir()
    for directory in (living, killed):
        (directory / "lock").touch()
    (foreign / "notes.txt").touch()
    os.utime(foreign, (0, 0))
    (tmp_path / "rechannel-link").symlink_to(foreign)
    with (living / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert remove_leftovers(tmp_path) == 1
    left = sorted(path.name.removeprefix("rechannel-") for path in tmp_path.iterdir())
    assert left == ["link", "living", "newborn", "of-somebody"]
