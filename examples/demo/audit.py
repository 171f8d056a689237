"""The audit: a query's final output against a computation that knows nothing of streams, row for row."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import SparkSession

from examples.demo.data import SENTINEL_TAIL
from examples.demo.queries import DELAY_COLUMNS, TOUR_COLUMNS, TOUR_GAP_S, Layout

__all__ = ["AuditResult", "audit", "compare", "expected_delays", "expected_tours", "read_sink"]

Row = tuple[Any, ...]


@dataclass(frozen=True)
class AuditResult:
    """Result of the comparison of one query. ``different`` counts keys on both sides with other values.

    ``rows_lost`` and ``rows_doubled`` are flights: what the keys' counts have too little and too much, apart.
    """

    query: str
    expected: int
    actual: int
    missing: int
    extra: int
    different: int
    rows_lost: int = 0
    rows_doubled: int = 0

    @property
    def ok(self) -> bool:
        """Whether the output is what it has to be, and is not empty."""
        return self.expected > 0 and not (self.missing or self.extra or self.different)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields and the verdict."""
        return asdict(self) | {"ok": self.ok}


def compare(
    query: str, expected: Iterable[Row], actual: Iterable[Row], key_columns: int = 2, counts: int | None = None
) -> AuditResult:
    """Compare two collections of rows as multisets; a row that comes twice is an extra one.

    ``counts``: the column that counts rows of the input.
    """
    want, have = Counter(expected), Counter(actual)
    missing, extra = want - have, have - want
    wanted_keys = Counter(row[:key_columns] for row in missing.elements())
    different = sum((wanted_keys & Counter(row[:key_columns] for row in extra.elements())).values())
    balance: Counter[Row] = Counter()
    if counts is not None:
        for sign, rows in ((1, want), (-1, have)):
            for row, times in rows.items():
                balance[row[:key_columns]] += sign * int(row[counts]) * times
    return AuditResult(
        query,
        want.total(),
        have.total(),
        missing.total() - different,
        extra.total() - different,
        different,
        sum(number for number in balance.values() if number > 0),
        -sum(number for number in balance.values() if number < 0),
    )


def expected_delays(spark: SparkSession, layout: Layout) -> list[Row]:
    """Compute the windowed aggregation as plain batch SQL over the files that were fed."""
    spark.read.parquet(str(layout.inbox)).createOrReplaceTempView("audit_flights")
    spark.read.parquet(str(layout.weather)).createOrReplaceTempView("audit_weather")
    rows = spark.sql(
        """
        WITH hours AS (
          SELECT f.event_s - f.event_s % 3600 AS window_s, f.dest, count(*) AS flights,
                 count(*) - count(f.dep_delay) AS cancelled,
                 coalesce(sum(f.dep_delay), 0) AS delay_min,
                 coalesce(max(f.dep_delay), 0) AS worst_min,
                 count_if(w.rain_hundredths > 0) AS in_rain,
                 coalesce(sum(w.wind_tenths), 0) AS wind_tenths
          FROM audit_flights f
          LEFT JOIN audit_weather w ON w.origin = f.origin AND w.hour_s = f.event_s - f.event_s % 3600
          WHERE f.seq >= 0
          GROUP BY 1, 2)
        SELECT *, greatest(delay_min, 0) * (100 + in_rain * 25 div flights) + wind_tenths div flights AS score
        FROM hours
        """
    )
    return [tuple(row) for row in rows.select(*DELAY_COLUMNS).toPandas().itertuples(index=False, name=None)]


def expected_tours(layout: Layout) -> list[Row]:
    """Replay every aircraft's departures in plain pandas: no Spark, no state, no watermark."""
    flights = pd.concat(pd.read_parquet(path) for path in sorted(layout.inbox.glob("*.parquet")))
    flights = flights[flights["tailnum"].notna() & (flights["tailnum"] != SENTINEL_TAIL)]
    flights = flights.sort_values(["tailnum", "event_s", "seq"], ignore_index=True)
    gap = flights.groupby("tailnum")["event_s"].diff()
    fresh = gap.isna() | (gap > TOUR_GAP_S)
    flights["tour"] = fresh.cumsum()
    flights["gap"] = gap.mask(fresh, 0).astype("int64")
    flights["delay"] = flights["dep_delay"].fillna(0).astype("int64")
    tours = flights.groupby("tour").agg(
        tailnum=("tailnum", "first"),
        first_s=("event_s", "min"),
        last_s=("event_s", "max"),
        legs=("seq", "size"),
        delay_min=("delay", "sum"),
        worst_min=("delay", "max"),
        longest_gap_s=("gap", "max"),
        miles=("distance", "sum"),
    )
    tours["worst_min"] = tours["worst_min"].clip(lower=0)  # an early departure is no delay
    return list(tours[list(TOUR_COLUMNS)].itertuples(index=False, name=None))


def read_sink(layout: Layout, query: str) -> list[Row]:
    """Return what a query has written, in the audit's order of columns."""
    directory = layout.sink(query)
    columns = DELAY_COLUMNS if query == "delays" else TOUR_COLUMNS
    paths = _committed_files(directory) if (directory / "_spark_metadata").exists() else directory.glob("batch-*.jsonl")
    return [
        tuple(record[column] for column in columns)
        for path in sorted(paths)
        for record in map(json.loads, path.read_text().splitlines())
    ]


def _committed_files(directory: Path) -> set[Path]:
    """Return the files that Spark's file sink has committed; what lies beside them counts for nothing."""
    log = [path for path in (directory / "_spark_metadata").iterdir() if path.name[0].isdigit()]
    compacted = max((int(path.stem) for path in log if path.suffix == ".compact"), default=-1)
    names = set()
    for path in log:
        number, compact = int(path.stem), path.suffix == ".compact"
        if number > compacted or (number == compacted and compact):
            for line in path.read_text().splitlines()[1:]:
                names.add(directory / Path(json.loads(line)["path"]).name)
    return names


def audit(spark: SparkSession, layout: Layout, queries: Iterable[str]) -> list[AuditResult]:
    """Audit each query's sink against the input that was fed."""
    return [
        compare(
            query,
            expected_delays(spark, layout) if query == "delays" else expected_tours(layout),
            read_sink(layout, query),
            counts=DELAY_COLUMNS.index("flights") if query == "delays" else TOUR_COLUMNS.index("legs"),
        )
        for query in queries
    ]
