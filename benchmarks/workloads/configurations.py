"""Chains of stateful stages: the source's configurations, two with branches, and one whose keys follow each other.

In the source a configuration says how many instances each of eight operators has, messages passing through all of
them. Spark gives every stateful stage of a query the same number of partitions, so instances become *keys*: a stage
with twice the instances has twice the keys, and so twice the state and twice the rows that go on to the next. Of the
eight operators, four are kept, a batch of eight stages being mostly the starting of tasks. A configuration's largest
number stands for all keys of the input:

=========  ===================  ==========
name       source, instances    here, keys
=========  ===================  ==========
linear     1 1 1 1 1 1 1 1      8 8 8 8
ascent     1 2 3 4 5 6 7 8      2 4 6 8
descent    8 7 6 5 4 3 2 1      8 6 4 2
diamond    2 4 6 8 8 6 4 2      2 8 8 2
star       8 6 4 2 2 4 6 8      8 2 2 8
=========  ===================  ==========

All five are chains. ``fork-join`` and ``fan-in`` have the branches: two aggregations of the same rows that a
stream-stream join brings together, and three of different rows that a union does. A branch reads the source anew, as
Spark has no fork. ``correlated`` is the chain where it matters where tasks are: each partition sends nearly all that it
has to one partition of the next stage; in all others, every partition sends to every one.

A stage counts messages by key. An aggregation tells a count once, when event time has passed it, so what goes on is one
row for each key, and ``FAN`` messages are made of it, each with a key of its own by the input's skew. The window is a
session that no two moments share: unlike a window, a session is no part of what Spark shuffles by, so that a key stays
with its partition, and a popular one makes one partition heavy for as long as it is popular. A batch is a moment; every
stage holds the rows of one or two batches, and sends on those of the one before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from benchmarks.workloads.base import Feed, Output, Workload, pick, uniform

SHAPES = {
    "linear": (8, 8, 8, 8),
    "ascent": (2, 4, 6, 8),
    "descent": (8, 6, 4, 2),
    "diamond": (2, 8, 8, 2),
    "star": (8, 2, 2, 8),
}
"""Keys of each stage, in eighths of the input's."""
FAN = 8  # messages made of a row
BRANCHES = 3
ASTRAY = 20  # one of so many keys follows none
TRIES = 8  # keys that are tried for each partition: one in 3,000 finds none that the right partition holds


def _source(feed: Feed, keys: int, salt: int = 0, share: float = 1.0) -> DataFrame:
    """Messages: the moment ``at``, ``key``, ``epoch`` and a ``count`` of one."""
    rows = feed.rows(share).select(
        F.timestamp_seconds(F.col("batch") * feed.input.seconds).alias("at"),
        _popular(feed, keys, uniform(F.col("number"), feed.input.seed * 1000 + salt)).alias("key"),
        "epoch",
        F.lit(1).cast("long").alias("count"),
    )
    return rows.withWatermark("at", "0 seconds")


def _popular(feed: Feed, keys: int, share: Column) -> Column:
    """Return a key for an even share, other ones being popular with each epoch."""
    return (pick(share, replace(feed.input, keys=keys)) + F.col("epoch") * (keys // 3 + 1)) % keys


def _stage(feed: Feed, rows: DataFrame) -> DataFrame:
    """Count messages by moment and key: ``at`` (a little later), ``end`` (when it was told), key, epoch, count."""
    gap = f"{900 * feed.input.seconds} milliseconds"  # shorter than from one moment to the next
    spans = rows.repartition(feed.partitions, "key").groupBy(F.session_window("at", gap).alias("span"), "key")
    counts = spans.agg(F.max("epoch").alias("epoch"), F.sum("count").alias("count"))
    return counts.select(F.window_time("span").alias("at"), F.col("span.end").alias("end"), "key", "epoch", "count")


def _out(name: str, frame: DataFrame) -> list[Output]:
    return [Output(name, frame.select("end", "key", "count"), "append", (), "end")]


def _chain(name: str) -> Callable[[Feed], list[Output]]:
    def build(feed: Feed) -> list[Output]:
        first, *others = (max(1, feed.input.keys * eighths // 8) for eighths in SHAPES[name])
        frame = _stage(feed, _source(feed, first))
        for salt, keys in enumerate(others, 1):
            frame = _stage(feed, _onward(feed, frame, keys, salt))
        return _out(name, frame)

    return build


def _onward(feed: Feed, frame: DataFrame, keys: int, salt: int) -> DataFrame:
    """Make each row ``FAN`` messages for the next stage."""
    messages = frame.select("at", F.col("key").alias("of"), "epoch", "count", _each())
    key = _popular(feed, keys, uniform(F.col("of") * FAN + F.col("each"), feed.input.seed * 1000 + salt))
    return messages.select("at", key.alias("key"), "epoch", "count")


def _each() -> Column:
    return F.explode(F.array(*(F.lit(number).cast("long") for number in range(FAN)))).alias("each")


def fork_join(feed: Feed) -> list[Output]:
    """Count the same messages by two keys that each has; join both counts by key, and count in fewer keys."""
    keys = feed.input.keys
    halves = (_source(feed, keys, salt=salt) for salt in (0, 1))
    left, right = (
        _stage(feed, half).select(*(F.col(name).alias(f"{side}_{name}") for name in ("at", "key", "epoch", "count")))
        for side, half in zip(("left", "right"), halves, strict=True)
    )
    # Equal moments, said as a range: in an equation they would be part of what is shuffled by.
    same = (F.col("left_at") >= F.col("right_at")) & (F.col("left_at") <= F.col("right_at"))
    both = left.join(right, (F.col("left_key") == F.col("right_key")) & same).select(
        F.col("left_at").alias("at"),
        F.col("left_key").alias("key"),
        F.col("left_epoch").alias("epoch"),
        (F.col("left_count") + F.col("right_count")).alias("count"),
    )
    return _out("fork-join", _stage(feed, _onward(feed, both, max(1, keys // 2), 2)))


def fan_in(feed: Feed) -> list[Output]:
    """Count three streams of messages apart; unite what comes of them, and count that."""
    keys = feed.input.keys
    branches = (_stage(feed, _source(feed, keys, salt, 1 / BRANCHES)) for salt in range(BRANCHES))
    united = reduce(DataFrame.unionByName, branches)
    return _out("fan-in", _stage(feed, _onward(feed, united, keys, BRANCHES)))


def correlated(feed: Feed) -> list[Output]:
    """Chain three stages so that a partition's keys become keys of the next partition, one key in twenty apart."""
    tries = TRIES * feed.partitions
    rows = _source(feed, feed.input.keys)
    frame = _stage(feed, rows.withColumn("key", F.col("key") * tries))
    for _ in range(2):
        key = follower(F.col("key"), tries, feed.partitions)
        messages = frame.select("at", key.alias("key"), "epoch", "count", _each()).drop("each")
        frame = _stage(feed, messages)
    return _out("correlated", frame)


def follower(key: Column, tries: int, partitions: int) -> Column:
    """Return a key that the partition after ``key``'s holds: Spark's own hash, tried on the keys set aside for it."""
    base = F.floor(key / tries) * tries
    partition = (F.pmod(F.hash(key), F.lit(partitions)) + 1) % partitions
    tried = F.sequence(base, base + (tries - 1))
    candidates = F.filter(tried, lambda one: F.pmod(F.hash(one), F.lit(partitions)) == partition)
    astray = F.floor(key / tries) % ASTRAY == 0
    return F.when(astray, base).otherwise(F.coalesce(F.get(candidates, 0), base))


def _workload(name: str, summary: str, source: str, build: Callable[[Feed], list[Output]], rows: int) -> Workload:
    return Workload(name, summary, source, build, rows, keys=4_000)


WORKLOADS = [
    *(
        _workload(
            name, f"Four chained aggregations, {name} in their keys.", f"L/F scheduler, {name}", _chain(name), rows
        )
        for name, rows in (
            ("linear", 40_000),
            ("ascent", 60_000),
            ("descent", 40_000),
            ("diamond", 40_000),
            ("star", 40_000),
        )
    ),
    _workload("fork-join", "Two aggregations, joined, and one behind them.", "own: a fork", fork_join, 30_000),
    _workload("fan-in", "Three aggregations, united, and one behind them.", "own: a union", fan_in, 60_000),
    _workload(
        "correlated",
        "Three chained aggregations; a partition sends nearly all to one other: where tasks are matters.",
        "DSC-Heron and Twister2 data locality: sparse streams",
        correlated,
        60_000,
    ),
]
