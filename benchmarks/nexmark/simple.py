"""The queries without state: each bid by itself. Their rows come out at once, in append mode, as many as Flink's."""

from __future__ import annotations

from pyspark.sql import functions as F  # noqa: N812

from benchmarks.nexmark.events import Events
from benchmarks.workloads.base import Output

SIDE_ROWS = 10_000  # of q13's side input

_EURO = "cast(0.908 * price as decimal(23, 3))"


def q0(events: Events) -> Output:
    """Pass through: what bringing and writing the bids costs by itself.

    ``SELECT auction, bidder, price, dateTime, extra FROM bid``.
    """
    return Output("nexmark-q0", events.bids().select("auction", "bidder", "price", "dateTime", "extra"), "append")


def q1(events: Events) -> Output:
    """Currency conversion: each bid's price in euros.

    ``SELECT auction, bidder, 0.908 * price AS price, dateTime, extra FROM bid``.
    """
    converted = events.bids().select("auction", "bidder", F.expr(_EURO).alias("price"), "dateTime", "extra")
    return Output("nexmark-q1", converted, "append")


def q2(events: Events) -> Output:
    """Selection: the bids on every 123rd auction.

    ``SELECT auction, price FROM bid WHERE auction % 123 = 0``.
    """
    return Output("nexmark-q2", events.bids().where("auction % 123 = 0").select("auction", "price"), "append")


def q10(events: Events) -> Output:
    """Log to files: each bid with the day and the minute that name its partition.

    ``SELECT auction, bidder, price, dateTime, extra, day(dateTime) AS dt, minute(dateTime) AS hm FROM bid``, written to
    files by ``dt`` and ``hm``. Here the rows are made, and go where all queries' rows go: to no file. To measure files,
    write ``frame`` with ``partitionBy("dt", "hm")``; Spark commits a batch's files as a whole, not after a minute.
    """
    logged = events.bids().select(
        "auction",
        "bidder",
        "price",
        "dateTime",
        "extra",
        F.date_format("dateTime", "yyyy-MM-dd").alias("dt"),
        F.date_format("dateTime", "HH:mm").alias("hm"),
    )
    return Output("nexmark-q10", logged, "append")


def q13(events: Events) -> Output:
    """Bounded side input: each bid with the value of its auction in a small table.

    ``SELECT auction, bidder, price, dateTime, value FROM bid JOIN side_input ON auction % 10000 = key``: Flink looks
    the row up in a file as of the bid's processing time; here the table is a static frame that Spark broadcasts.
    """
    side = events.feed.spark.range(SIDE_ROWS).select(F.col("id").alias("key"), F.expr("cast(id as string) as value"))
    bids = events.bids().withColumn("key", F.expr(f"auction % {SIDE_ROWS}"))
    joined = bids.join(F.broadcast(side), "key").select("auction", "bidder", "price", "dateTime", "value")
    return Output("nexmark-q13", joined, "append")


def q14(events: Events) -> Output:
    """Calculation: bids of a range of prices, by day and night, with the letters "c" in their text counted.

    The count is a user's function in Flink, of Spark's own functions here; prices between 1 and 50 million in euros.
    """
    hour = F.hour("dateTime")
    part = F.when(hour.between(8, 18), "dayTime").when((hour <= 6) | (hour >= 20), "nightTime").otherwise("otherTime")
    bids = events.bids().where("0.908 * price > 1000000 and 0.908 * price < 50000000")
    calculated = bids.select(
        "auction",
        "bidder",
        F.expr(_EURO).alias("price"),
        part.alias("bidTimeType"),
        "dateTime",
        "extra",
        F.expr("cast(length(extra) - length(replace(extra, 'c', '')) as long)").alias("c_counts"),
    )
    return Output("nexmark-q14", calculated, "append")


def q21(events: Events) -> Output:
    """Channel ids: four by name, the others out of the URL; bids without any are left out.

    Spark's ``regexp_extract`` gives an empty text where Flink's gives null.
    """
    by_url = F.expr("nullif(regexp_extract(url, '(&|^)channel_id=([^&]*)', 2), '')")
    by_name = F.expr("case lower(channel) when 'apple' then '0' when 'google' then '1' when 'facebook' then '2'"
                   " when 'baidu' then '3' end")  # fmt: skip
    bids = events.bids().select(
        "auction", "bidder", "price", "channel", F.coalesce(by_name, by_url).alias("channel_id")
    )
    return Output("nexmark-q21", bids.where("channel_id is not null"), "append")


def q22(events: Events) -> Output:
    """Directories of the URL: its third, fourth and fifth part between slashes.

    ``SELECT auction, bidder, price, channel, split(url, '/')[3] AS dir1, ... FROM bid``.
    """
    parts = F.split("url", "/")
    directories = [parts.getItem(at + 2).alias(f"dir{at}") for at in (1, 2, 3)]
    return Output("nexmark-q22", events.bids().select("auction", "bidder", "price", "channel", *directories), "append")
