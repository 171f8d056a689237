"""Closed stores in the logs of executors: lines, renamed and truncated logs, bounds."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from rechannel.monitors.node import executor_log
from rechannel.monitors.node.executor_log import ClosedStoreReader
from rechannel.wire.measurements import ClosedStore
from unit.monitors.fakes import executor

RUN = "64704fd1-ee7d-46f1-bdcb-39a5a5a98401"


def _message(verb: str = "Closed", partition: int = 4, store: str = "default") -> str:
    return (
        f"{verb} StateStoreProviderId[ storeId=StateStoreId[ operatorId=0, partitionId={partition}, "
        f"storeName={store} ], queryRunId={RUN} ]"
    )


def _line(verb: str = "Closed", partition: int = 4) -> str:
    return f"26/11/21 22:43:20 INFO StateStore: {_message(verb, partition)}\n"


class _Log:
    """A log that holds a closed store already, and its reader."""

    def __init__(self, root: Path) -> None:
        self.path, self.executor, self.reader = root / "stderr", executor(root, name="3"), ClosedStoreReader()
        self.path.write_text("Spark Executor Command: java\n" + _line(partition=99))

    def write(self, text: str) -> None:
        with self.path.open("a") as file:
            file.write(text)

    def read(self) -> list[ClosedStore]:
        return self.reader.read(self.executor)

    def partitions(self, passes: int = 1) -> list[int]:
        return [store.partition for _ in range(passes) for store in self.read()]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[_Log]:
    result = _Log(tmp_path)
    assert result.read() == []
    yield result
    result.reader.close()


def test_a_closed_store_is_reported_once_without_those_of_before(log: _Log) -> None:
    log.write(_line())
    (store,) = log.read()
    assert (store.application, store.executor, store.run) == ("app-1", "3", RUN)
    assert (store.operator, store.partition, store.store) == (0, 4, "default")
    assert "Closed" in store.evidence
    assert log.read() == []


def test_structured_logs_are_parsed(log: _Log) -> None:
    entry = {"ts": "2026-11-21T22:45:00.000Z", "level": "INFO", "msg": _message(store="left-keyToNumValues")}
    log.write(json.dumps({**entry, "context": {"state_store_provider_id": _message("")}, "logger": "StateStore"}))
    log.write("\n")
    assert [store.store for store in log.read()] == ["left-keyToNumValues"]


def test_announcements_and_other_lines_are_no_evidence(log: _Log) -> None:
    queued = _message("Queuing provider from task thread for maintenance and close provider=").replace("= ", "=")
    log.write(f"INFO StateStore: {queued}.taskId=113Removed provider from loadedProviders\n")
    log.write(_line("Closing") + _line("Skipping close for") + "Closed StateStoreProviderId[ storeId=\n\xff\n")
    assert log.read() == []


def test_an_unfinished_line_waits_for_its_end(log: _Log) -> None:
    line = _line()
    log.write(line[:60])
    assert log.read() == []
    log.write(line[60:])
    assert log.partitions() == [4]


def test_a_renamed_log_is_read_to_its_end_before_the_new_one(log: _Log) -> None:
    log.write(_line(partition=1))
    log.path.rename(log.path.with_name("stderr--2026-11-21"))
    log.write(_line(partition=2))
    assert log.partitions(passes=3) == [1, 2]


def test_a_truncated_log_is_read_from_its_start(log: _Log) -> None:
    log.write("x" * 1000 + "\n")
    log.read()
    log.path.write_text(_line(partition=7))
    assert log.partitions() == [7]
    assert log.reader.skipped == {"executor log truncated": 1}


def test_a_deleted_log_is_followed_by_a_new_one(log: _Log) -> None:
    log.path.unlink()
    assert log.read() == []
    log.write(_line(partition=8))
    assert log.partitions(passes=2) == [8]


def test_a_missing_log_is_a_lasting_reason(tmp_path: Path) -> None:
    log = _Log(tmp_path)
    log.path.unlink()
    for _ in range(2):
        assert log.read() == []
        assert Counter(log.reader.lasting.values()) == {"executor 3: no stderr in its working directory": 1}
    log.path.write_text("")
    log.read()
    assert not log.reader.lasting and not log.reader.skipped
    log.reader.close()


def test_a_pass_is_bounded(log: _Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor_log, "PASS_BYTES", 2 * len(_line()))
    log.write("".join(_line(partition=n) for n in range(5)))
    assert [log.partitions() for _ in range(4)] == [[0, 1], [2, 3], [4], []]


def test_a_backlog_and_a_line_over_their_limits_are_skipped(log: _Log, monkeypatch: pytest.MonkeyPatch) -> None:
    size = 2 * len(_line())
    monkeypatch.setattr(executor_log, "PASS_BYTES", size)
    monkeypatch.setattr(executor_log, "BACKLOG_BYTES", 10 * size)
    log.write("y" * (size + 5) + "\n" + _line(partition=1))
    assert log.partitions(passes=2) == [1]
    log.write("".join(_line(partition=n) for n in range(50)))
    assert log.partitions() == [48, 49]
    assert log.reader.skipped == {"executor log line too long": 1, "executor log too fast: part left unread": 1}


def test_logs_of_ended_executors_are_closed(log: _Log) -> None:
    log.reader.retain(set())
    log.write(_line())
    assert log.read() == []  # first seen again
