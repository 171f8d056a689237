"""The queries that aggregate bids: over windows in append mode, over all time in update mode.

In append mode a row comes out once, when the watermark has passed its window: Flink's windows do the same. Where Flink
updates a row of all time again and again, Structured Streaming does so too for one aggregation (update mode: q17, q18);
several stateful operators in a row need append mode, and with it a window (q15, q16, q19). The watermark is four
seconds behind, as nexmark-flink's.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from benchmarks.nexmark.events import Events
from benchmarks.workloads.base import Output

DELAY = "4 seconds"
"""How far the watermark is behind the latest event."""
PERIOD = "10 seconds"
"""The windows' length, and the gap of sessions: nexmark-flink's, short instead of hours for results in seconds."""
SLIDE = "2 seconds"
TOP = 10

_RANKS = ("price < 10000", "price >= 10000 and price < 1000000", "price >= 1000000")


def q5(events: Events) -> Output:
    """Hot items: the auctions with the most bids in the last ten seconds, every two seconds.

    In meaning: ``num`` = bids by sliding window and auction; of each window the auctions whose ``num`` is the window's
    maximum, all of them if several share it. Flink joins the counts with their maxima; here three aggregations follow
    one another: counts by auction, the auctions of each count, the greatest count. They need one source instead of two,
    and all three close a window in the same batch.
    """
    bids = events.bids().withWatermark("dateTime", DELAY)
    counts = bids.groupBy(F.window("dateTime", PERIOD, SLIDE), "auction").agg(F.count(F.lit(1)).alias("num"))
    sharing = counts.groupBy("window", "num").agg(F.collect_list("auction").alias("auctions"))
    most = sharing.groupBy("window").agg(F.max(F.struct("num", "auctions")).alias("most"))
    hot = most.select(F.explode("most.auctions").alias("auction"), "most.num", *_bounds())
    return Output("nexmark-q5", hot, "append", closes="endtime")


def q11(events: Events) -> Output:
    """User sessions: the number of bids of a user in each time of activity.

    Bids counted by bidder and session, a session ending ten seconds after its last bid. Flink's and Spark's session
    windows are alike; the row comes out when the watermark has passed the session's end.
    """
    bids = events.bids().withWatermark("dateTime", DELAY)
    sessions = bids.groupBy("bidder", F.session_window("dateTime", PERIOD))
    counted = sessions.agg(F.count(F.lit(1)).alias("bid_count"), *_session()).drop("session_window")
    return Output("nexmark-q11", counted, "append", closes="endtime")


def q12(events: Events) -> Output:
    """Processing-time windows: the number of bids of a user in each ten seconds of processing.

    Flink reads the clock. A clock cannot be replayed, so the time is that which the bid's batch stands for
    (``arrival``: the batch's number times its seconds): what the clock would say of a run that keeps up. Nothing comes
    late by that time, so the watermark is no time behind.
    """
    bids = events.bids().withWatermark("arrival", "0 seconds")
    counts = bids.groupBy("bidder", F.window("arrival", PERIOD)).agg(F.count(F.lit(1)).alias("bid_count"))
    return Output("nexmark-q12", counts.select("bidder", "bid_count", *_bounds()), "append", closes="endtime")


def q15(events: Events) -> Output:
    """Bidding statistics: bids, different bidders and different auctions, in all and by three ranks of price.

    Flink's are by day and updated all the time, with ``count(DISTINCT ...) FILTER``. Structured Streaming has no
    distinct aggregates: here each bid counts once for its bidder and once for its auction; those are aggregated first,
    and what they had is counted after. Two aggregations need append mode, so the report is by ten seconds instead of by
    day.
    """
    report = _report(events, [])
    return Output("nexmark-q15", report, "append", closes="endtime")


def q16(events: Events) -> Output:
    """Channel statistics: q15's report for each channel, with the latest minute of a bid.

    As q15: exact, by ten seconds instead of by day.
    """
    report = _report(events, ["channel"])
    return Output("nexmark-q16", report, "append", closes="endtime")


def q17(events: Events) -> Output:
    """Auction statistics: an auction's bids of a day, by rank of price, and their least, greatest and whole price.

    One aggregation over all time, as in Flink: update mode, no watermark, and state that grows with the auctions. The
    average is not a column: it is ``sum_price div total_bids`` (Spark keeps an average's sum as a double, which depends
    on the order of rows).
    """
    totals = [F.min("price").alias("min_price"), F.max("price").alias("max_price"), F.sum("price").alias("sum_price")]
    bids = events.bids().withColumn("day", F.date_format("dateTime", "yyyy-MM-dd"))
    report = bids.groupBy("auction", "day").agg(*_ranked(), *totals)
    return Output("nexmark-q17", report, "update", keys=("auction", "day"), counts="total_bids")


def q18(events: Events) -> Output:
    """Last bid: each bidder's last bid on each auction.

    Flink numbers the rows by time and keeps the first; Structured Streaming numbers no rows, and its own deduplication
    keeps the first that came. Here it is the maximum of the bid as a structure that begins with its time, in update
    mode: the columns are fields of ``last``. The state grows with every pair of bidder and auction, as in Flink.
    """
    last = F.max(F.struct("dateTime", "event", "price", "channel", "url", "extra")).alias("last")
    return Output(
        "nexmark-q18", events.bids().groupBy("bidder", "auction").agg(last), "update", keys=("bidder", "auction")
    )


def q19(events: Events) -> Output:
    """Top ten: the ten highest bids on each auction.

    Flink updates the ranks all the time (``ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC) <= 10``). Row
    numbers over a stream are not to be had in Structured Streaming: here an auction's bids are collected in a session
    window, and their ten highest come out, ranked, when there was no bid for ten seconds. An auction's bids come within
    a few thousand events, so at a hundred events a second or more the rows are those that Flink's end with.
    """
    bids = events.bids().withWatermark("dateTime", DELAY)
    bid = F.struct("price", "event", "bidder", "channel", "url", "dateTime", "extra")
    sessions = bids.groupBy("auction", F.session_window("dateTime", PERIOD))
    collected = sessions.agg(F.collect_list(bid).alias("bids"), *_session())
    best = F.slice(F.sort_array("bids", asc=False), 1, TOP)
    ranked = collected.select("auction", F.posexplode(best).alias("place", "bid"), "endtime")
    fields = [F.col(f"bid.{name}") for name in ("bidder", "price", "channel", "url", "dateTime", "extra")]
    top = ranked.select("auction", *fields, F.expr("cast(place + 1 as long)").alias("rank_number"), "endtime")
    return Output("nexmark-q19", top, "append", closes="endtime")


def _bounds() -> list[Column]:
    return [F.col("window.start").alias("starttime"), F.col("window.end").alias("endtime")]


def _session() -> list[Column]:
    """Return a session's bounds, out of its bids.

    The window has them as well, but it is a grouping key: Spark pushes a condition on its end below the aggregation, to
    where each row is a session by itself, and the batch computation would have sessions that never ended.
    """
    ends = F.max(F.col("dateTime") + F.expr(f"interval {PERIOD}"))
    return [F.min("dateTime").alias("starttime"), ends.alias("endtime")]


def _ranked() -> list[Column]:
    """Return counts of bids: all of them, and of each rank of price."""
    ranks = [F.count(F.expr(f"if({rank}, 1, null)")).alias(f"rank{at}_bids") for at, rank in enumerate(_RANKS, 1)]
    return [F.count(F.lit(1)).alias("total_bids"), *ranks]


def _report(events: Events, keys: list[str]) -> DataFrame:
    names = ["total", *(f"rank{at}" for at in range(1, len(_RANKS) + 1))]
    both = F.array(*(F.struct(F.lit(kind).alias("kind"), F.col(kind).alias("id")) for kind in ("bidder", "auction")))
    bids = events.bids().withWatermark("dateTime", DELAY).withColumn("who", F.explode(both))
    latest = F.max("dateTime").alias("latest")
    by_who = bids.groupBy(F.window("dateTime", PERIOD), *keys, "who.kind", "who.id").agg(*_ranked(), latest)
    bidder = F.col("kind") == "bidder"
    counts = [F.sum(F.when(bidder, F.col(f"{name}_bids")).otherwise(0)).alias(f"{name}_bids") for name in names]
    for kind in ("bidder", "auction"):
        had = [((F.col("kind") == kind) & (F.col(f"{name}_bids") > 0), f"{name}_{kind}s") for name in names]
        counts += [F.count(F.when(some, 1)).alias(column) for some, column in had]
    report = by_who.groupBy("window", *keys).agg(F.max("latest").alias("latest"), *counts)
    day, minute = F.date_format("latest", "yyyy-MM-dd").alias("day"), F.date_format("latest", "HH:mm").alias("minute")
    count_columns = [F.col(column) for column in report.columns if column not in ("window", "latest", *keys)]
    return report.select(*keys, day, *([minute] if keys else []), *count_columns, *_bounds())
