"""Page views: clicks with a page, a status, a zip code and a user, counted by page, or by page's different users.

Shares of pages, statuses, zip codes and users are those of the source (and of the Spark example it took them from);
with every drift the pages change places. The source has four steps: source, view, count, sink. Only the way from view
to count is by key, and only there does Spark shuffle: the other three steps run in the tasks on either side.

*Unique* differs more. Storm's count keeps a set of users for each page, in the task the page belongs to, and tells its
sizes every three seconds, over all time. Spark's ``dropDuplicates`` shuffles by everything that it compares, so its
partitions are even whatever is popular; the skew is in the count by page behind it. And since two stateful steps in
one query need event time, users are unique in three seconds of event time, not for ever.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from benchmarks.workloads.base import Feed, Output, Workload, uniform

PAGES = ("http://foo.com/", "http://foo.com/news", "http://foo.com/contact")
SHARES = (0.7, 0.2, 0.1)
ERRORS = 0.05
OK, MISSING = 200, 404
ZIPS = (94709, 94117)
USERS = 100
SECONDS = 3


def _clicks(feed: Feed) -> DataFrame:
    """Make the clicks as lines of text, and take them apart again: the source, and the view."""
    number = F.col("number")
    share = uniform(number, 11)
    rank = F.when(share < SHARES[0], 0).when(share < SHARES[0] + SHARES[1], 1).otherwise(2)
    page = F.get(F.array(*map(F.lit, PAGES)), ((rank + F.col("epoch")) % len(PAGES)).cast("int"))
    status = F.when(uniform(number, 12) < ERRORS, MISSING).otherwise(OK)
    place = F.when(uniform(number, 13) < 1 / len(ZIPS), ZIPS[0]).otherwise(ZIPS[1])
    fields = [page, *(column.cast("string") for column in (status, place, feed.key() + 1))]
    lines = feed.rows().select("batch", F.concat_ws("\t", *fields).alias("line"))
    parts = lines.select("batch", F.split("line", "\t").alias("part"))
    columns = ("page", "string"), ("status", "int"), ("zip", "int"), ("user", "int")
    return parts.select("batch", *(F.get("part", at).cast(kind).alias(name) for at, (name, kind) in enumerate(columns)))


def simple(feed: Feed) -> list[Output]:
    """Count views and errors by page."""
    clicks = _clicks(feed).repartition(feed.partitions, "page").groupBy("page")
    counts = clicks.agg(F.count(F.lit(1)).alias("views"), F.sum((F.col("status") != OK).cast("long")).alias("errors"))
    return [Output("page-view", counts, "update", ("page",), counts="views")]


def unique(feed: Feed) -> list[Output]:
    """Count each page's different users in every three seconds.

    A session of one moment stands for the window, as it is not among the columns that Spark shuffles by: a page stays
    with one partition, as it does in Storm.
    """
    length = SECONDS * max(1, feed.input.seconds)
    # Not from 0 on: Spark's first watermark is 0, and what is not later than the watermark is dropped.
    start = F.expr(f"(batch * {feed.input.seconds}L div {length} + 1) * {length}L")
    clicks = _clicks(feed).withColumn("at", F.timestamp_seconds(start)).withWatermark("at", f"{length} seconds")
    users = clicks.select("at", "page", "user").dropDuplicates(["at", "page", "user"])
    spans = users.repartition(feed.partitions, "page").groupBy(F.session_window("at", "1 second").alias("span"), "page")
    counts = spans.agg(F.count(F.lit(1)).alias("users"))
    return [
        Output("unique-page-view", counts.select(F.col("span.end").alias("end"), "page", "users"), "append", (), "end")
    ]


WORKLOADS = [
    Workload(
        "page-view",
        "Clicks of users, counted by page; there are three pages, and seven of ten clicks go to one.",
        "L/F scheduler, simple page view",
        simple,
        rows=500_000,
        keys=USERS,
        skew=0.0,
    ),
    Workload(
        "unique-page-view",
        "Clicks, different users counted by page in every three seconds: two stateful stages.",
        "L/F scheduler, unique page view",
        unique,
        rows=200_000,
        keys=USERS,
        skew=0.0,
    ),
]
