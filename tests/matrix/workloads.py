"""Every kind of state a PySpark user can write, each with its expected output, computed in plain Python.

The input is a list of `Row` in the order of time; no row is late, and the last file, the sentinel, lies a day ahead and
pushes the watermark over everything. So the output does not depend on where the batches are cut.
"""

from __future__ import annotations

import functools
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  the name PySpark's own documentation uses
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

try:
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
except ImportError:  # before Spark 4.0, where the queries that need them cannot run
    StatefulProcessor = object  # type: ignore[assignment, misc]

SCHEMA = "seq long, key long, pair long, at timestamp"
FILES = 9
ROWS_PER_FILE = 48
KEYS = 13
FILE_SECONDS = 12
SENTINEL_KEY = -1
_FIRST = 1_700_000_000 // 60 * 60
_DAY = 86_400
_DELAY = "5 seconds"


class Row(NamedTuple):
    """An input row; ``at`` in seconds. ``pair`` is shared by two rows at most two seconds apart."""

    seq: int
    key: int
    pair: int
    at: int


Output = Counter[tuple[Any, ...]]


def files() -> list[list[Row]]:
    """Return the input, file by file; squares make some keys heavy."""
    expected_rows = []
    for number in range(FILES):
        first = number * ROWS_PER_FILE
        expected_rows.append(
            [
                Row(seq, (seq // 2) ** 2 % KEYS, seq // 2, _FIRST + number * FILE_SECONDS + (seq - first) // 4)
                for seq in range(first, first + ROWS_PER_FILE)
            ]
        )
    return expected_rows


def sentinels() -> list[list[Row]]:
    """Return the files that end the stream: the second one makes every operator of a chain emit all it holds."""
    end = FILES * ROWS_PER_FILE
    return [
        [Row(end + 2 * day + side, SENTINEL_KEY, (end + 2 * day) // 2, _FIRST + _DAY * (day + 1)) for side in (0, 1)]
        for day in range(2)
    ]


@dataclass(frozen=True)
class Workload:
    """A stateful query. ``build`` gets the stream (a function, for a second reading) and returns the query's frame.

    ``mode`` is the output mode; with ``update`` the last output row of each key counts. ``conf`` is set for this query
    alone. ``runs`` is how often ``foreachBatch`` runs the plan of each batch. ``python``: its state is Python's; such
    queries run in a wave of their own, for each batch starts Python in the driver, which a full box is too slow for.
    ``restless``: by processing time there is always a next batch, so the query is never done with what is available.
    """

    name: str
    build: Callable[[Callable[[], DataFrame]], DataFrame]
    expected: Callable[[list[Row]], Output]
    mode: str = "append"
    rocksdb_only: bool = False
    python: bool = False
    restless: bool = False
    runs: int = 1
    conf: dict[str, str] = field(default_factory=dict)


def _closed(rows: list[Row]) -> list[Row]:
    """The rows that the watermark has passed in the end: all but the last sentinel's."""
    last = max(row.at for row in rows)
    return [row for row in rows if row.at < last]


def _once(items: Any) -> Output:
    return Counter(set(items))


def _marked(stream: Callable[[], DataFrame]) -> DataFrame:
    return stream().withWatermark("at", _DELAY)


def _seconds(column: str) -> Any:
    return F.unix_timestamp(column).alias("s")


# -- aggregations --


def _aggregation(stream: Callable[[], DataFrame]) -> DataFrame:
    return stream().groupBy("key").agg(F.count(F.lit(1)).alias("n"), F.sum("seq").alias("total"))


def _counted(rows: list[Row]) -> Output:
    count, total = Counter(row.key for row in rows), Counter[int]()
    for row in rows:
        total[row.key] += row.seq
    return _once((key, count[key], total[key]) for key in count)


def _windowed(stream: Callable[[], DataFrame]) -> DataFrame:
    grouped = _marked(stream).groupBy(F.window("at", "10 seconds"), "key").count()
    return grouped.select(_seconds("window.start"), "key", "count")


def _counted_windows(rows: list[Row]) -> Output:
    count = Counter((row.at // 10 * 10, row.key) for row in rows)
    return _once((start, key, n) for (start, key), n in count.items())


def _global(stream: Callable[[], DataFrame]) -> DataFrame:
    return stream().agg(F.count(F.lit(1)).alias("n"), F.max("seq").alias("top")).select(F.lit(0), "n", "top")


# -- deduplication --


def _distinct(stream: Callable[[], DataFrame]) -> DataFrame:
    return stream().dropDuplicates(["pair"]).select("pair")


def _distinct_marked(stream: Callable[[], DataFrame]) -> DataFrame:
    return _marked(stream).dropDuplicates(["key", "at"]).select("key", _seconds("at"))


def _distinct_within(stream: Callable[[], DataFrame]) -> DataFrame:
    return _marked(stream).dropDuplicatesWithinWatermark(["pair"]).select("pair")


# -- joins --


def _joined(kind: str) -> Callable[[Callable[[], DataFrame]], DataFrame]:
    def build(stream: Callable[[], DataFrame]) -> DataFrame:
        left = _marked(stream).where("seq % 2 = 0").select("pair", "seq", F.col("at").alias("left_at"))
        right = (
            _marked(stream)
            .where("seq % 6 = 1")
            .select(F.col("pair").alias("right_pair"), F.col("seq").alias("right_seq"), F.col("at").alias("right_at"))
        )
        near = "pair = right_pair and right_at between left_at - interval 2 seconds and left_at + interval 2 seconds"
        return left.join(right, F.expr(near), kind).select("pair", "seq", "right_seq")

    return build


def _pairs(rows: list[Row], outer: bool) -> Output:
    right = {row.pair: row.seq for row in rows if row.seq % 6 == 1}
    return _once(
        (row.pair, row.seq, right.get(row.pair))
        for row in rows
        if row.seq % 2 == 0 and (row.pair in right or (outer and row.key != SENTINEL_KEY))
    )


# -- sessions --


def _sessions(stream: Callable[[], DataFrame]) -> DataFrame:
    grouped = _marked(stream).groupBy(F.session_window("at", "3 seconds"), "key").count()
    return grouped.select(_seconds("session_window.start"), "key", "count")


def _session_rows(rows: list[Row]) -> Output:
    expected_rows: list[tuple[int, int, int]] = []
    times: dict[int, list[int]] = defaultdict(list)
    for row in _closed(rows):
        times[row.key].append(row.at)
    for key, seen in times.items():
        start, last, count = seen[0], seen[0], 0
        for at in seen:
            if at - last > 3:  # sessions that touch are one
                expected_rows.append((start, key, count))
                start, count = at, 0
            last, count = at, count + 1
        expected_rows.append((start, key, count))
    return _once(expected_rows)


# -- Python state --


def _count_in_python(key: tuple[int], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    count, total = state.get if state.exists else (0, 0)
    for frame in frames:
        count, total = count + len(frame), total + int(frame["seq"].sum())
    state.update((count, total))
    yield pd.DataFrame({"key": [key[0]], "n": [count], "total": [total]})


def _in_python(stream: Callable[[], DataFrame]) -> DataFrame:
    return (
        stream()
        .groupBy("key")
        .applyInPandasWithState(
            _count_in_python,
            "key long, n long, total long",
            "n long, total long",
            "update",
            GroupStateTimeout.NoTimeout,
        )
    )


class _CountAndAlarm(StatefulProcessor):
    """Counts the rows of a key; a timer, set by the first row of a minute, emits and clears the count."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._count = handle.getValueState("count", "n long")
        self._sequence = handle.getListState("sequence", "seq long")
        self._minutes = handle.getMapState("minutes", "minute long", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        count = self._count.get()[0] if self._count.exists() else 0
        for frame in rows:
            count += len(frame)
            self._sequence.appendList([(int(seq),) for seq in frame["seq"]])
            for minute, n in Counter((frame["at"].astype("datetime64[s]").astype("int64") // 60).tolist()).items():
                expected_rows = self._minutes.getValue((int(minute),))
                if expected_rows is None:
                    self._handle.registerTimer((int(minute) + 1) * 60_000)
                self._minutes.updateValue((int(minute),), ((expected_rows[0] if expected_rows else 0) + n,))
        self._count.update((count,))
        yield pd.DataFrame({"key": [], "minute": [], "n": [], "so_far": []}, dtype="int64")

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        minute = expiredTimerInfo.getExpiryTimeInMs() // 60_000 - 1
        expected_rows = self._minutes.getValue((minute,))
        self._minutes.removeKey((minute,))
        listed = sum(1 for _ in self._sequence.get())
        agreed = listed == self._count.get()[0]
        yield pd.DataFrame({"key": [key[0]], "minute": [minute], "n": [expected_rows[0]], "so_far": [int(agreed)]})

    def close(self) -> None:
        """Nothing to close."""


def _timers(stream: Callable[[], DataFrame]) -> DataFrame:
    schema = "key long, minute long, n long, so_far long"
    return _marked(stream).groupBy("key").transformWithStateInPandas(_CountAndAlarm(), schema, "Append", "EventTime")


def _minutes(rows: list[Row]) -> Output:
    count = Counter((row.key, row.at // 60) for row in rows)
    last = max(minute for _, minute in count)
    return _once((key, minute, n, 1) for (key, minute), n in count.items() if minute != last)


class _CountWithTtl(StatefulProcessor):
    """Counts the rows of a key in states that live for a day: their expiry is written beside them."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", "n long", ttlDurationMs=_DAY * 1000)
        self._totals = handle.getMapState("totals", "what long", "n long", ttlDurationMs=_DAY * 1000)

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        count = self._count.get()[0] if self._count.exists() else 0
        total = self._totals.getValue((0,))[0] if self._totals.containsKey((0,)) else 0
        for frame in rows:
            count, total = count + len(frame), total + int(frame["seq"].sum())
        self._count.update((count,))
        self._totals.updateValue((0,), (total,))
        yield pd.DataFrame({"key": [key[0]], "n": [count], "total": [total]})

    def close(self) -> None:
        """Nothing to close."""


def _ttl(stream: Callable[[], DataFrame]) -> DataFrame:
    schema = "key long, n long, total long"
    return stream().groupBy("key").transformWithStateInPandas(_CountWithTtl(), schema, "Update", "ProcessingTime")


# -- several operators --


def _one_stage(stream: Callable[[], DataFrame]) -> DataFrame:
    """Two stateful operators over the same keys: no shuffle between them, so they share a stage and its partitions."""
    distinct = _marked(stream).dropDuplicates(["key", "at"])
    return distinct.groupBy("key", "at").count().select("key", _seconds("at"), "count")


def _two_stages(stream: Callable[[], DataFrame]) -> DataFrame:
    distinct = _marked(stream).dropDuplicates(["pair", "at"])
    grouped = distinct.groupBy(F.window("at", "10 seconds"), "key").count()
    return grouped.select(_seconds("window.start"), "key", "count")


def _distinct_windows(rows: list[Row]) -> Output:
    seen: dict[tuple[int, int], Row] = {}
    for row in _closed(rows):
        seen.setdefault((row.pair, row.at), row)
    return _counted_windows(list(seen.values()))


_JOIN_FORMAT = "spark.sql.streaming.join.stateFormatVersion"

WORKLOADS = (
    Workload("aggregation", _aggregation, _counted, mode="update"),
    Workload(
        "global aggregation",
        _global,
        lambda rows: _once([(0, len(rows), max(row.seq for row in rows))]),
        mode="update",
    ),
    Workload("windowed aggregation", _windowed, lambda rows: _counted_windows(_closed(rows))),
    Workload("dropDuplicates", _distinct, lambda rows: _once((row.pair,) for row in rows)),
    Workload("dropDuplicates with watermark", _distinct_marked, lambda rows: _once((row.key, row.at) for row in rows)),
    Workload("dropDuplicatesWithinWatermark", _distinct_within, lambda rows: _once((row.pair,) for row in rows)),
    *(
        Workload(
            f"join, {kind.replace('_', ' ')}, format {number}",
            _joined(kind),
            functools.partial(_pairs, outer=kind != "inner"),
            rocksdb_only=number >= 3,
            conf={_JOIN_FORMAT: str(number)},
        )
        for kind in ("inner", "left_outer")
        for number in (2, 3, 4)
    ),
    Workload("session window", _sessions, _session_rows),
    Workload("applyInPandasWithState", _in_python, _counted, mode="update", python=True),
    Workload("transformWithState, timers", _timers, _minutes, rocksdb_only=True, python=True),
    Workload("transformWithState, TTL", _ttl, _counted, mode="update", rocksdb_only=True, python=True, restless=True),
    Workload("two operators in one stage", _one_stage, lambda rows: _once((r.key, r.at, 1) for r in _closed(rows))),
    Workload("two stages", _two_stages, _distinct_windows),
    Workload("foreachBatch that runs the plan three times", _aggregation, _counted, mode="update", runs=3),
)

_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
_HDFS = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"

STORES: dict[str, dict[str, str]] = {
    "HDFS-backed": {_PROVIDER: _HDFS},
    "RocksDB": {_PROVIDER: _ROCKSDB, _CHANGELOG: "false"},
    "RocksDB, changelog": {_PROVIDER: _ROCKSDB, _CHANGELOG: "true"},
    "RocksDB, changelog, checkpoint format 2": {_PROVIDER: _ROCKSDB, _CHANGELOG: "true", _FORMAT: "2"},
}


# Names of queries, a semicolon between two: only these. Read by the application and by who moves it.
CHOSEN = frozenset(filter(None, os.environ.get("MATRIX_QUERIES", "").split(";")))


@dataclass(frozen=True)
class Wave:
    """Queries that run at once: those of one store whose state is Spark's own, or Python's."""

    store: str
    python: bool

    @property
    def workloads(self) -> list[Workload]:
        """The queries of this wave that its store can hold."""
        possible = [item for item in WORKLOADS if self.store != "HDFS-backed" or not item.rocksdb_only]
        return [item for item in possible if item.python is self.python and (not CHOSEN or item.name in CHOSEN)]


WAVES = tuple(Wave(store, python) for store in STORES for python in (False, True))
