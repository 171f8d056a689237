"""A day of batches: what the link holds in memory and leaves on disk does not grow."""

from __future__ import annotations

import gc
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rechannel.conf.settings import LinkSettings, Settings
from rechannel.migration.link import loop, mailbox
from rechannel.migration.link.loop import LinkCycle
from rechannel.migration.spark.adapter import ActiveQuery
from rechannel.monitors.spark.event_gaps import SparkState
from rechannel.wire.messages import ExecutorInfo
from unit.daemon.fake_store import NOW, FakeClock, FakeStore
from unit.migration.link.test_link_work import PARTITIONS, IdleSpark
from unit.monitors import spark_lines

HOURS, PERIOD, EXECUTORS = 24, 20.0, 4  # a batch every twenty seconds
BATCHES = int(3600 / PERIOD)  # of an hour
FILES = 10  # of the event stream in an hour


class BusySpark(IdleSpark):
    """An adapter with one query, which is restarted every hour on other executors."""

    def __init__(self) -> None:
        super().__init__(queries=1, nodes=0)
        self.hour, self.batch, self.files = -1, 0, 0
        self.stream = Path()
        self._file: Any = None

    @property
    def run(self) -> str:
        return f"run{self.hour}"

    def _start_event_stream(self, directory: Path, _: int) -> None:
        self.stream = directory / "eventlog_v2_app"
        self.stream.mkdir()

    def _spark_state(self) -> SparkState:
        return SparkState(frozenset(info.executor for info in self.infos), frozenset(), {self.run: "q"})

    def _query(self, name: str) -> ActiveQuery:
        return ActiveQuery("q", self.run, "name", "")

    def begin_hour(self) -> None:
        gone = self.infos
        self.hour += 1
        names = [str(EXECUTORS * self.hour + number) for number in range(EXECUTORS)]
        self.infos = [ExecutorInfo(executor=name, host=f"host-{name}", cores=1, added=NOW) for name in names]
        self.write(
            *([spark_lines.terminated().replace(b'"run"', f'"run{self.hour - 1}"'.encode())] if self.hour else []),
            *(spark_lines.executor_removed(info.executor) for info in gone),
            *(spark_lines.executor_added(info.executor, info.host) for info in self.infos),
        )

    def write_batch(self) -> None:
        number = self.batch
        self.batch += 1
        if number % (BATCHES // FILES) == 0:
            self._open_next_file()
        ran = [self.infos[part % EXECUTORS].executor for part in range(PARTITIONS)]
        self.write(
            spark_lines.job_start(number, [(number, [], True)], "q", number, PARTITIONS),
            *(spark_lines.task_end(number, part, at, number * PARTITIONS + part) for part, at in enumerate(ran)),
            spark_lines.stage_end(number, tasks=PARTITIONS),
            spark_lines.job_end(number),
            spark_lines.progress(number),
        )

    def write(self, *lines: bytes) -> None:
        if self._file is None:
            self._open_next_file()
        for line in lines:
            self._file.write(line.replace(b'"run"', f'"{self.run}"'.encode()) + b"\n")
        self._file.flush()

    def _open_next_file(self) -> None:
        self.close_file()
        self.files += 1
        self._file = (self.stream / f"events_{self.files}_app").open("ab")

    def close_file(self) -> None:
        if self._file is not None:
            self._file.close()


def test_a_day_of_batches_leaves_neither_memory_nor_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    store: Any = FakeStore(clock)
    monkeypatch.setattr(mailbox, "Store", lambda *_: store)
    monkeypatch.setattr(loop, "time", SimpleNamespace(time=clock, monotonic=clock))
    spark: Any = BusySpark()
    cycle = LinkCycle(spark, Settings(link=LinkSettings(directory=str(tmp_path))), threading.Event())
    cycle._feed.open()
    blocks, files = [], []
    for _ in range(HOURS):
        spark.begin_hour()
        for _ in range(BATCHES):
            spark.write_batch()
            for _ in range(2):
                clock.sleep(PERIOD / 2)
                cycle.run()
                cycle._mailbox._exchange()
        (query,) = cycle._report().queries
        assert (query.run, query.batch, len(query.stages)) == (spark.run, spark.batch - 1, 1)
        assert {*query.stages[0].placement} == {info.executor for info in spark.infos}
        store.empty()
        for held in (store.writes, store.reads):
            held.clear()
        gc.collect()
        blocks.append(sys.getallocatedblocks())
        files.append(len(list(spark.stream.iterdir())))
    cycle._feed.close()
    spark.close_file()
    assert max(files) <= 2, "a file is deleted once it was read"
    # A number or a name left behind by each batch would be thousands of blocks.
    assert max(blocks[3:]) - min(blocks[3:]) < HOURS * BATCHES / 10, blocks
