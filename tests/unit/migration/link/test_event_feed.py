"""Directory of the event stream: its lock, its renewal and its removal."""

from __future__ import annotations

import fcntl
import os
import shutil
from unittest.mock import Mock, create_autospec

import pytest

from rechannel.migration.link.event_feed import EventFeed, remove_leftovers
from rechannel.migration.spark.adapter import SparkAdapter
from rechannel.migration.spark.gateway import SparkCallError


def write(parent, text: bytes) -> None:
    """Write what Spark would write into the only directory."""
    (directory,) = parent.glob("rechannel-*")
    path = directory / "eventlog_v2_rechannel" / "events_1_rechannel"
    path.parent.mkdir(exist_ok=True)
    with path.open("ab") as file:
        file.write(text)


@pytest.fixture
def adapter():
    adapter = create_autospec(SparkAdapter, instance=True)
    adapter.start_event_stream.side_effect = lambda directory, _: write(directory.parent, b"one\n")
    adapter.send_heartbeat.return_value, adapter.dropped_events.return_value = True, 0
    return adapter


@pytest.fixture
def feed(adapter, tmp_path):
    feed = EventFeed(adapter, str(tmp_path))
    feed.open()
    yield feed
    feed.close()


def test_it_reads_what_spark_writes_and_leaves_nothing(feed, tmp_path):
    assert feed.read() == [b"one"]
    write(tmp_path, b"two\n")
    assert feed.read() == [b"two"]
    assert not feed.pop_incomplete()
    feed.close()
    assert list(tmp_path.iterdir()) == []


def test_files_are_removed_though_spark_fails(feed, adapter, tmp_path):
    adapter.stop_event_stream.side_effect = SparkCallError("java.io.FileNotFoundException")
    feed.close()
    adapter.stop_watchdog.assert_called_once_with()
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_somebody_removed_is_made_anew(feed, tmp_path):
    feed.read()
    for directory in tmp_path.iterdir():
        shutil.rmtree(directory)
    feed.read()
    assert feed.openings == 2
    assert feed.read() == [b"one"]
    assert feed.pop_incomplete()


def test_a_stream_that_the_watchdog_ended_is_opened_anew(feed, adapter):
    adapter.send_heartbeat.return_value = False
    feed.beat(10.0)
    assert feed.openings == 2
    assert feed.pop_incomplete()


def test_events_that_spark_dropped_are_reported_once(feed, adapter):
    adapter.dropped_events.return_value = 3
    feed.beat(10.0)
    assert feed.dropped == 3
    assert feed.pop_incomplete()
    feed.beat(20.0)
    assert not feed.pop_incomplete()


def test_events_that_spark_dropped_for_an_earlier_link_are_not_reported_again(adapter, tmp_path):
    adapter.dropped_events.return_value = 5
    feed = EventFeed(adapter, str(tmp_path))
    feed.open()
    feed.beat(10.0)
    assert (feed.dropped, feed.pop_incomplete()) == (0, False)
    adapter.dropped_events.return_value = 6
    feed.beat(20.0)
    assert (feed.dropped, feed.pop_incomplete()) == (1, True)
    feed.close()


def test_directories_of_killed_drivers_are_removed_and_no_others(tmp_path):
    names = ("living", "killed", "newborn", "of-somebody")
    living, killed, _, foreign = directories = [tmp_path / f"rechannel-{name}" for name in names]
    for directory in directories:
        directory.mkdir()
    for directory in (living, killed):
        (directory / "eventlog_v2_rechannel").mkdir()
    (foreign / "notes.txt").touch()
    (tmp_path / "rechannel-link").symlink_to(killed)
    lock = os.open(living, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    remove_leftovers(tmp_path)
    os.close(lock)
    left = sorted(path.name.removeprefix("rechannel-") for path in tmp_path.iterdir())
    assert left == ["link", "living", "newborn", "of-somebody"]


def test_a_living_directory_stays_though_its_idle_files_were_aged_out(feed, tmp_path):
    (directory,) = tmp_path.iterdir()
    for path in directory.iterdir():
        if path.is_file():
            path.unlink()
    os.utime(directory, (0, 0))
    remove_leftovers(tmp_path)
    assert directory.exists()


def test_a_directory_stays_though_another_link_looks_at_it_before_it_is_locked(adapter, tmp_path, monkeypatch):
    lock = fcntl.flock

    def look_and_lock(descriptor, operation):
        monkeypatch.setattr(fcntl, "flock", lock)
        remove_leftovers(tmp_path)
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", look_and_lock)
    feed = EventFeed(adapter, str(tmp_path))
    feed.open()
    assert feed.read() == [b"one"]
    feed.close()


def test_where_directories_cannot_be_locked_links_open_and_remove_none(adapter, tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError("as NFS")))
    feed = EventFeed(adapter, str(tmp_path))
    feed.open()
    remove_leftovers(tmp_path)
    assert feed.read() == [b"one"]
    feed.close()
