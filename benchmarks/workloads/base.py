"""Workloads and the rows that all of them read.

Spark's ``rate-micro-batch`` source gives every batch the same few numbers; each stands for a slice of rows. What a
batch brings therefore follows from its number alone, on every placement and after every restart, and the same
expressions over a plain range of numbers bring the same rows to a batch computation, with which the output is compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name PySpark's own documentation uses

SLICES = 4  # of a batch, one source task each
_BITS = 53  # of a hash that a double holds exactly


@dataclass(frozen=True)
class Input:
    """Number and skew of the rows.

    ``rows`` in a batch; ``keys`` that there are; ``skew``: exponent of Zipf's law over them, 0 for even. In every
    ``cycle`` of batches (0: there is none), the batches from position ``spike_at`` on bring ``spike`` times as many
    rows, and those from each position in ``drift_at`` on have other keys that are popular. An event comes ``seconds``
    of event time after the batch before it.
    """

    rows: int
    keys: int = 10_000
    skew: float = 1.0
    seed: int = 0
    cycle: int = 0
    spike_at: int = 0
    spike: float = 1.0
    drift_at: tuple[int, ...] = ()
    seconds: int = 1

    def __post_init__(self) -> None:
        if self.rows < SLICES or self.keys < 1 or self.skew < 0 or self.seconds < 1:
            raise ValueError(f"rows >= {SLICES}, keys >= 1, skew >= 0, seconds >= 1: {self}")
        if (self.drift_at or self.spike != 1.0) and self.cycle < 1:
            raise ValueError(f"spike and drift_at are positions in a cycle: set cycle: {self}")

    def size(self, batch: int) -> int:
        """Rows of a batch."""
        spiked = self.cycle and self.spike != 1.0 and batch % self.cycle >= self.spike_at
        return int(self.rows * self.spike) if spiked else self.rows


@dataclass(frozen=True)
class Output:
    """One query of a workload.

    ``mode`` is ``append`` where a row is final, ``update`` where later rows of the same ``keys`` replace it; then the
    other columns are plain counts, sums, minima and maxima of longs and texts, so that the state of operator 0 *is* the
    output, field by field. ``closes``: event-time column (a timestamp) of an ``append`` row that is out once the
    watermark has reached it; "" where rows come out at once. Columns are longs, texts and timestamps: sums of doubles
    depend on their order. ``counts``: the column of an ``update`` output that counts the input's rows, by which its
    audit tells lost rows from doubled ones; "" where there is none.
    """

    name: str
    frame: DataFrame
    mode: Literal["append", "update"]
    keys: tuple[str, ...] = ()
    closes: str = ""
    counts: str = ""


@dataclass(frozen=True)
class Workload:
    """Queries over one input. ``build`` is called with a streaming feed to run it, with a replay to check it."""

    name: str
    summary: str
    source: str
    build: Callable[[Feed], list[Output]]
    rows: int  # in a batch, for a batch of about a second on two shared cores
    keys: int = 10_000
    skew: float = 1.0


class Feed:
    """The rows, as a stream or replayed. ``replay``: so many batches at once as a plain frame; None: the stream."""

    def __init__(self, spark: SparkSession, arguments: Input, partitions: int, replay: int | None = None) -> None:
        self.spark, self.input, self.partitions, self.replay = spark, arguments, partitions, replay

    @property
    def streaming(self) -> bool:
        """Whether it is the stream."""
        return self.replay is None

    def rows(self, share: float = 1.0) -> DataFrame:
        """Return ``batch``, ``number`` (unique over the whole input), ``time`` (event time) and ``epoch`` (of drift).

        ``share`` of the input's rows comes; calls with different shares bring the same numbers as far as they go.
        Every call is a source of its own: a self-join reads twice.
        """
        arguments, most = self.input, max(self.input.rows, int(self.input.rows * self.input.spike))
        if self.replay is None:
            source = self.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", SLICES)
            values = source.option("numPartitions", SLICES).load().select("value")
        else:
            values = self.spark.range(self.replay * SLICES).select(F.col("id").alias("value"))
        batch, part = F.expr(f"value div {SLICES}"), F.expr(f"value % {SLICES}")
        place = f"(value div {SLICES}) % {arguments.cycle}" if arguments.cycle else "0"
        size = f"if({place} >= {arguments.spike_at}, {int(arguments.rows * arguments.spike)}L, {arguments.rows}L)"
        size = (
            f"cast(({size if arguments.cycle and arguments.spike != 1.0 else f'{arguments.rows}L'}) * {share}D as long)"
        )
        low, high = (f"({size} * (value % {SLICES} + {at}) div {SLICES})" for at in (0, 1))
        places = F.expr(f"if({high} > {low}, sequence({low}, {high} - 1), array())")  # Spark's would count down
        epoch = sum((F.expr(f"cast({place} >= {at} as long)") for at in arguments.drift_at), F.lit(0).cast("long"))
        rows = values.select(batch.alias("batch"), part.alias("part"), epoch.alias("epoch"), places.alias("places"))
        rows = rows.select("batch", "epoch", F.explode("places").alias("place"))
        # From the first millisecond on: Spark's first watermark is 0, and what is not later is dropped.
        since = f"(batch * {most}L + place) * {arguments.seconds * 1000}L div {most}L + 1L"
        return rows.select(
            "batch",
            F.expr(f"batch * {most}L + place").alias("number"),
            F.expr(f"timestamp_millis({since})").alias("time"),
            "epoch",
        )

    def key(self, number: Column | None = None, salt: int = 0) -> Column:
        """Return a key for each row, 0 to ``keys - 1``, by the input's skew, popular ones changing with the epoch."""
        rank = pick(uniform(F.col("number") if number is None else number, self.input.seed * 1000 + salt), self.input)
        return F.expr(f"(epoch * {self.input.keys // 3 + 1}L)").__add__(rank) % F.lit(self.input.keys)


def uniform(number: Column, salt: int) -> Column:
    """Return an even share in [0, 1) that follows from a number."""
    return F.shiftrightunsigned(F.xxhash64(number, F.lit(salt)), 64 - _BITS) / F.lit(float(2**_BITS))


def pick(share: Column, arguments: Input) -> Column:
    """Return a rank from 0 for an even share: the inverse of the continuous power law with exponent ``skew``."""
    keys, skew = float(arguments.keys), arguments.skew
    if skew == 0.0:
        rank = F.floor(share * keys)
    elif skew == 1.0:
        rank = F.floor(F.pow(F.lit(keys + 1), share)) - 1
    else:
        power = 1.0 - skew
        rank = F.floor(F.pow(share * ((keys + 1) ** power - 1) + 1, F.lit(1.0 / power))) - 1
    return F.least(rank, F.lit(arguments.keys - 1)).cast("long")
