"""The demo's stateful queries: a windowed aggregation, and Python state per aircraft."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that PySpark's users know it by
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = [
    "DELAY_COLUMNS",
    "FLIGHT_SCHEMA",
    "QUERIES",
    "TOUR_COLUMNS",
    "TOUR_GAP_S",
    "Layout",
    "delays_by_destination",
    "flights_stream",
    "tours_by_aircraft",
]

FLIGHT_SCHEMA = (
    "seq long, event_time timestamp, event_s long, carrier string, flight int, tailnum string, "
    "origin string, dest string, dep_delay int, distance int"
)
WATERMARK = "1 hour"
TOUR_GAP_S = 24 * 3600
DELAY_COLUMNS = (
    "window_s",
    "dest",
    "flights",
    "cancelled",
    "delay_min",
    "worst_min",
    "in_rain",
    "wind_tenths",
    "score",
)
TOUR_COLUMNS = ("tailnum", "first_s", "last_s", "legs", "delay_min", "worst_min", "longest_gap_s", "miles")
_TOUR_STATE = ", ".join(f"{column} long" for column in TOUR_COLUMNS[1:])
_TOUR_SCHEMA = f"tailnum string, {_TOUR_STATE}"


@dataclass(frozen=True)
class Layout:
    """Directories of a run: input, checkpoints and output."""

    root: Path

    @property
    def inbox(self) -> Path:
        """The directory that the queries read flights from."""
        return self.root / "inbox"

    @property
    def weather(self) -> Path:
        """The hourly weather."""
        return self.root / "replay" / "weather.parquet"

    def checkpoint(self, query: str) -> Path:
        """The checkpoint of a query."""
        return self.root / "checkpoints" / query

    def sink(self, query: str) -> Path:
        """The output of a query."""
        return self.root / "sinks" / query


def flights_stream(spark: SparkSession, layout: Layout) -> DataFrame:
    """Return the flights as a stream, one file per micro-batch in the order of the files' times."""
    return (
        spark.readStream.schema(FLIGHT_SCHEMA)
        .option("maxFilesPerTrigger", 1)
        .parquet(str(layout.inbox))
        .withWatermark("event_time", WATERMARK)
    )


def delays_by_destination(flights: DataFrame, weather: DataFrame, service_ms: int = 0) -> DataFrame:
    """Delays per destination airport and hour, with the weather at the origin: a windowed aggregation.

    With ``service_ms`` each row sleeps in the stateful stage of the batch that it comes in. Slept when its window
    closes, its time would often fall into a batch without input, which Spark runs when a query is ahead of the feed.
    """
    joined = flights.withColumn("hour_s", F.expr("event_s - event_s % 3600")).join(
        F.broadcast(weather), ["origin", "hour_s"], "left"
    )
    rows = joined.withColumn("window", F.window("event_time", "1 hour"))
    if service_ms:
        slept = F.reflect(F.lit("java.lang.Thread"), F.lit("sleep"), F.lit(service_ms).cast("long"))
        # Partitioned as the state is, so that Spark needs no further exchange and the sleep is in the stateful stage.
        rows = rows.repartition("window", "dest").withColumn("slept", slept)
    grouped = rows.groupBy("window", "dest").agg(
        F.count("slept" if service_ms else F.lit(1)).alias("flights"),
        F.sum(F.expr("int(dep_delay is null)")).alias("cancelled"),
        F.coalesce(F.sum("dep_delay"), F.lit(0)).alias("delay_min"),
        F.coalesce(F.max("dep_delay"), F.lit(0)).cast("long").alias("worst_min"),
        F.sum(F.expr("int(coalesce(rain_hundredths, 0) > 0)")).alias("in_rain"),
        F.sum(F.expr("coalesce(wind_tenths, 0)")).alias("wind_tenths"),
    )
    score = F.expr("greatest(delay_min, 0) * (100 + in_rain * 25 div flights) + wind_tenths div flights")
    return grouped.select(
        F.unix_timestamp("window.start").alias("window_s"),
        *DELAY_COLUMNS[1:-1],
        score.alias("score"),
    )


class _Tour:
    """A chain of an aircraft's departures from New York, none more than a day after the one before."""

    __slots__ = ("delay", "first", "gap", "last", "legs", "miles", "worst")

    def __init__(self, *values: int) -> None:
        self.first, self.last, self.legs, self.delay, self.worst, self.gap, self.miles = values

    def fly(self, at: int, delay: int, miles: int) -> None:
        self.gap = max(self.gap, at - self.last)
        self.last = at
        self.legs += 1
        self.delay += delay
        self.worst = max(self.worst, delay)
        self.miles += miles

    def values(self) -> tuple[int, ...]:
        return (self.first, self.last, self.legs, self.delay, self.worst, self.gap, self.miles)


def _departures(frames: Iterable[pd.DataFrame]) -> list[tuple[int, int, int]]:
    """Return time, delay and miles of each departure, in the order of time."""
    rows: list[tuple[int, int, int]] = []
    for frame in frames:
        seconds = frame["event_time"].to_numpy().astype("datetime64[s]").astype("int64").tolist()
        delays = frame["dep_delay"].fillna(0).astype("int64").tolist()  # none where no delay was recorded
        rows += zip(seconds, delays, frame["distance"].tolist(), strict=True)
    return sorted(rows, key=itemgetter(0))


def _tour_updater(service_ms: int) -> Callable[..., Iterator[pd.DataFrame]]:
    def update(key: tuple[Any, ...], frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        tour = _Tour(*state.get) if state.exists else None
        finished: list[tuple[Any, ...]] = []
        if state.hasTimedOut:
            if tour is not None:
                finished.append((key[0], *tour.values()))
            state.remove()
        else:
            departures = _departures(frames)
            if service_ms:
                time.sleep(service_ms * len(departures) / 1000)
            for at, delay, miles in departures:
                if tour is not None and at - tour.last > TOUR_GAP_S:
                    finished.append((key[0], *tour.values()))
                    tour = None
                if tour is None:
                    tour = _Tour(at, at, 0, 0, 0, 0, 0)
                tour.fly(at, delay, miles)
            if tour is not None:
                state.update(tour.values())
                state.setTimeoutTimestamp((tour.last + TOUR_GAP_S) * 1000 + 1)
        if finished:
            yield pd.DataFrame(finished, columns=list(TOUR_COLUMNS))

    return update


def tours_by_aircraft(flights: DataFrame, service_ms: int = 0) -> DataFrame:
    """Follow every aircraft by its tail number and sum up each of its tours once it is over: Python state."""
    return (
        flights.where("tailnum is not null")
        .select("tailnum", "event_time", "dep_delay", "distance")
        .groupBy("tailnum")
        .applyInPandasWithState(
            _tour_updater(service_ms), _TOUR_SCHEMA, _TOUR_STATE, "append", GroupStateTimeout.EventTimeTimeout
        )
    )


def _write_batch_to(directory: Path) -> Callable[[DataFrame, int], None]:
    def write(batch: DataFrame, batch_id: int) -> None:
        # Idempotent: a batch that runs again writes the same file again.
        directory.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(row.asDict()) + "\n" for row in batch.collect()]
        partial = directory / f".batch-{batch_id:06d}.jsonl"
        partial.write_text("".join(lines))
        partial.replace(directory / f"batch-{batch_id:06d}.jsonl")

    return write


def _start_delays(spark: SparkSession, layout: Layout, service_ms: int) -> DataStreamWriter:
    frame = delays_by_destination(flights_stream(spark, layout), spark.read.parquet(str(layout.weather)), service_ms)
    return frame.writeStream.foreachBatch(_write_batch_to(layout.sink("delays")))


def _start_tours(spark: SparkSession, layout: Layout, service_ms: int) -> DataStreamWriter:
    frame = tours_by_aircraft(flights_stream(spark, layout), service_ms)
    return frame.writeStream.format("json").option("path", str(layout.sink("tours")))


QUERIES: dict[str, Callable[[SparkSession, Layout, int], DataStreamWriter]] = {
    "delays": _start_delays,
    "tours": _start_tours,
}
