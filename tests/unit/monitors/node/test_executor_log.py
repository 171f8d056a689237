from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from rechannel.monitors.node.executor_log import ClosedStoreReader
from rechannel.wire.measurements import ClosedStore
from unit.monitors.fakes import executor

RUN = "64704fd1-ee7d-46f1-bdcb-39a5a5a98401"


def _message(verb: str = "Closed", partition: int = 4, store: str = "default") -> str:
    return (
        f"{verb} StateStoreProviderId[ storeId=StateStoreId[ operatorId=0, partitionId={partition}, "
        f"storeName={store} ], queryRunId={RUN} ]"
    )


def _line(verb: str = "Closed", partition: int = 4, store: str = "default") -> str:
    return f"26/11/21 22:43:20 INFO StateStore: {_message(verb, partition, store)}\n"


def _write(log: Path, text: str) -> None:
    with log.open("a") as file:
        file.write(text)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    file = tmp_path / "stderr"
    file.write_text("Spark Executor Command: java\n" + _line(partition=99))
    return file


def _partitions(stores: list[ClosedStore]) -> list[int]:
    return [store.partition for store in stores]


def test_a_closed_store_is_reported_once_and_what_stood_there_before_is_not(log: Path) -> None:
    reader, who = ClosedStoreReader(), executor(log.parent)
    assert reader.read(who) == []
    _write(log, _line())
    (store,) = reader.read(who)
    assert (store.application, store.executor, store.run) == ("app-1", "0", RUN)
    assert (store.operator, store.partition, store.store) == (0, 4, "default")
    assert "Closed" in store.evidence
    assert reader.read(who) == []
    reader.close()


def test_structured_logs_are_understood(log: Path) -> None:
    reader, who = ClosedStoreReader(), executor(log.parent)
    reader.read(who)
    entry = {"ts": "2026-11-21T22:45:00.000Z", "level": "INFO", "msg": _message(store="left-keyToNumValues")}
    _write(log, json.dumps({**entry, "context": {"state_store_provider_id": _message("")}, "logger": "StateStore"}))
    _write(log, "\n")
    (store,) = reader.read(who)
    assert store.store == "left-keyToNumValues"
    reader.close()


def test_announcements_and_other_lines_are_no_evidence(log: Path) -> None:
    reader, who = ClosedStoreReader(), executor(log.parent)
    reader.read(who)
    queued = _message("Queuing provider from task thread for maintenance and close provider=").replace("= ", "=")
    _write(log, f"INFO StateStore: {queued}.taskId=113Removed provider from loadedProviders\n")
    _write(log, _line("Closing") + _line("Skipping close for") + "Closed StateStoreProviderId[ storeId=\n\xff\n")
    assert reader.read(who) == []
    reader.close()


def test_an_unfinished_line_waits_for_its_end(log: Path) -> None:
    reader, who = ClosedStoreReader(), executor(log.parent)
    reader.read(who)
    line = _line()
    _write(log, line[:60])
    assert reader.read(who) == []
    _write(log, line[60:])
    assert _partitions(reader.read(who)) == [4]
    reader.close()


def test_a_renamed_log_is_read_to_its_end_before_the_new_one(log: Path) -> None:
    reader, who = ClosedStoreReader(), executor(log.parent)
    reader.read(who)
    _write(log, _line(partition=1))
    log.rename(log.with_name("stderr--2026-11-21"))
    _write(log, _line(partition=2))
    stores = [store for _ in range(3) for store in reader.read(who)]
    assert _partitions(stores) == [1, 2]
    reader.close()


def test_a_truncated_log_is_read_from_its_start(log: Path) -> None:
    reader, who = ClosedStoreReader(), executor(log.parent)
    _write(log, "x" * 1000 + "\n")
    reader.read(who)
    log.write_text(_line(partition=7))
    assert _partitions(reader.read(who)) == [7]
    assert reader.skipped == {"executor log truncated": 1}
    reader.close()


def test_a_vanished_log_raises_nothing_and_a_new_one_is_picked_up(log: Path) -> None:
    reader, who = ClosedStoreReader(), executor(log.parent)
    reader.read(who)
    log.unlink()
    assert reader.read(who) == []
    _write(log, _line(partition=8))
    assert _partitions([*reader.read(who), *reader.read(who)]) == [8]
    reader.close()


def test_a_log_that_is_not_there_is_named_in_every_window(tmp_path: Path) -> None:
    reader, who = ClosedStoreReader(), executor(tmp_path, name="3")
    for _ in range(2):
        assert reader.read(who) == []
        assert Counter(reader.lasting.values()) == {"executor 3: no stderr in its working directory": 1}
    (tmp_path / "stderr").write_text("")
    reader.read(who)
    assert not reader.lasting and not reader.skipped
    reader.close()


def test_a_pass_is_bounded(log: Path) -> None:
    reader, who = ClosedStoreReader(pass_bytes=2 * len(_line())), executor(log.parent)
    reader.read(who)
    _write(log, "".join(_line(partition=n) for n in range(5)))
    assert [_partitions(reader.read(who)) for _ in range(4)] == [[0, 1], [2, 3], [4], []]
    reader.close()


def test_a_log_too_far_ahead_is_given_up_to_its_end_and_a_line_too_long_is_passed_over(log: Path) -> None:
    size = 2 * len(_line())
    reader, who = ClosedStoreReader(pass_bytes=size, backlog_bytes=10 * size), executor(log.parent)
    reader.read(who)
    _write(log, "y" * (size + 5) + "\n" + _line(partition=1))
    assert _partitions([*reader.read(who), *reader.read(who)]) == [1]
    _write(log, "".join(_line(partition=n) for n in range(50)))
    assert _partitions(reader.read(who)) == [48, 49]
    assert reader.skipped == {
        "executor log line too long": 1,
        "executor log too fast: part left unread": 1,
    }
    reader.close()


def test_logs_of_ended_executors_are_closed(log: Path) -> None:
    reader, who = ClosedStoreReader(), executor(log.parent)
    reader.read(who)
    reader.retain(set())
    _write(log, _line())
    assert reader.read(who) == []  # first seen again
    reader.close()
