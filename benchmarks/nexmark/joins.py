"""The queries that join: persons with auctions, and auctions with bids.

A join of two streams keeps the rows of both sides until the watermark has passed all that could match them. Where
the original's condition gives no such time, the state is for ever (q3 and q23, as in Flink) or is bounded by what the
generator can bring (q4, q9, q20): the rows are the same. Aggregations of what a join gave follow in append mode only;
the join tells them a watermark that is as far behind as its condition reaches, and their rows close that much later
(``closes``).
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from benchmarks.nexmark.events import Events
from benchmarks.nexmark.windows import DELAY, PERIOD
from benchmarks.workloads.base import Output

_PERSON = ("name", "emailAddress", "creditCard", "city", "state")
_AUCTION = ("itemName", "description", "initialBid", "reserve", "expires", "seller", "category", "extra")


def q3(events: Events) -> Output:
    """Local item suggestion: sellers in Oregon, Idaho or California in category 10, with their auctions.

    ``SELECT name, city, state, auction.id FROM auction JOIN person ON seller = person.id WHERE category = 10 AND state
    IN ('OR', 'ID', 'CA')``. Without a time in its condition the join keeps every person and auction that passed the
    filters, as in Flink: rows come out at once, and the state grows.
    """
    persons = (
        events.persons()
        .where("state in ('OR', 'ID', 'CA')")
        .select("name", "city", "state", F.col("id").alias("seller"))
    )
    auctions = events.auctions().where("category = 10").select("id", "seller")
    joined = auctions.join(persons, "seller").select("name", "city", "state", "id")
    return Output("nexmark-q3", joined, "append")


def q4(events: Events) -> Output:
    """Average price for a category: of the winning bids of all auctions.

    An auction's winning bid is its highest one while it is open; ``final`` is their average by category, in whole
    cents. Flink updates the average over all time. Here three operators follow one another (join, highest price,
    average), which needs append mode: the average is of the auctions that opened in each ten seconds.
    """
    winning = _bids_while_open(events, ["category"], ["price"])
    highest = winning.groupBy("id", "category", "opened").agg(F.max("price").alias("final"))
    by_category = highest.groupBy("category", F.window("opened", PERIOD))
    totals = by_category.agg(F.sum("final").alias("sum"), F.count(F.lit(1)).alias("auctions"))
    final = F.expr("sum div auctions").alias("final")
    average = totals.select("category", final, F.col("window.start").alias("starttime"), _closes(events, "window.end"))
    return Output("nexmark-q4", average, "append", closes="closes")


def q7(events: Events) -> Output:
    """Highest bid: the highest bids of each ten seconds.

    ``bid JOIN (SELECT max(price), window FROM bid GROUP BY window)`` on the price and the window, as in Flink: every
    bid is kept by the join until its window's maximum is there. Bids on the boundary belong to the later window alone
    (the original's ``BETWEEN`` has them in both).
    """
    names = ["auction", "price", "bidder", "dateTime", "extra"]
    bids = _windowed(events.bids(), *names)
    highest = _windowed(events.bids(), "price").groupBy("window").agg(F.max("price").alias("price"))
    joined = bids.join(highest, ["window", "price"]).select(*names, F.col("window.end").alias("endtime"))
    return Output("nexmark-q7", joined, "append", closes="endtime")


def q8(events: Events) -> Output:
    """New users: persons who registered and opened an auction within the same ten seconds.

    Persons and the different sellers of a window, joined on id and window. Persons are different anyway, so only the
    sellers are aggregated; the rows come out when their window closes.
    """
    auctions = _windowed(events.auctions(), "seller")
    sellers = auctions.groupBy("window", F.col("seller").alias("id")).agg(F.count(F.lit(1)).alias("opened"))
    persons = _windowed(events.persons(), "id", "name")
    joined = persons.join(sellers, ["window", "id"])
    starttime, endtime = F.col("window.start").alias("starttime"), F.col("window.end").alias("endtime")
    return Output("nexmark-q8", joined.select("id", "name", starttime, endtime), "append", closes="endtime")


def q9(events: Events) -> Output:
    """Winning bids: the highest bid of each auction while it was open, the earliest one of equals.

    Flink numbers an auction's bids and updates the first. Here it is one aggregation after the join: the maximum of the
    bid as a structure that begins with its price and how early it came. It comes out once, when the auction is over.
    """
    bid = ["price", "event", "bidder", "bid_dateTime", "bid_extra"]
    joined = _bids_while_open(events, list(_AUCTION), bid)
    best = F.max(F.struct("price", (-F.col("event")).alias("early"), *bid[2:])).alias("bid")
    # All rows of an auction have the same values of it: the first one will do.
    winning = joined.groupBy("id", "opened").agg(F.first(F.struct(*_AUCTION)).alias("auction"), best)
    columns = [F.col("opened").alias("dateTime"), F.col("auction.*"), F.col("bid.price"), F.col("bid.bidder")]
    columns += [F.col("bid.bid_dateTime"), F.col("bid.bid_extra"), _closes(events, "opened")]
    return Output("nexmark-q9", winning.select("id", *columns), "append", closes="closes")


def q20(events: Events) -> Output:
    """Expanded bids: each bid on an auction of category 10 with that auction.

    Flink's join has no time in its condition and keeps every bid for ever. No bid is further from its auction than the
    generator's reach (``Events.reach``), early or late: with that in the condition the rows are the same, come out at
    once as well, and the state stays as large as the reach.
    """
    bids = events.bids().withWatermark("dateTime", DELAY).drop("event", "arrival")
    bids = bids.withColumnsRenamed({"dateTime": "bid_dateTime", "extra": "bid_extra"})
    auctions = events.auctions().where("category = 10").withWatermark("dateTime", DELAY)
    auctions = auctions.select("id", F.col("dateTime").alias("auction_dateTime"), *_AUCTION)
    auctions = auctions.withColumnRenamed("extra", "auction_extra")
    reach = f"interval '{events.reach}' second"
    near = f"bid_dateTime between auction_dateTime - {reach} and auction_dateTime + {reach}"
    joined = bids.join(auctions, F.expr(f"auction = id and {near}")).drop("id")
    return Output("nexmark-q20", joined, "append")


def q23(events: Events) -> Output:
    """Bids with their bidder and everything the bidder sells: a join of all three kinds, in two operators.

    ``bid JOIN person ON person.id = bidder JOIN auction ON seller = bidder``, for ever, as in Flink. Who sells is
    joined with who is there first: the rows that then wait for bids are few.
    """
    persons = events.persons().select("id", *_PERSON, F.col("extra").alias("person_extra"))
    auctions = events.auctions().select(
        "seller",
        *(name for name in _AUCTION if name not in ("seller", "extra")),
        F.col("dateTime").alias("auction_dateTime"),
        F.col("extra").alias("auction_extra"),
    )
    bids = events.bids().select("bidder", "price", "channel", "url", F.col("extra").alias("bid_extra"))
    sellers = persons.join(auctions, F.col("id") == F.col("seller"))
    joined = bids.join(sellers, F.col("bidder") == F.col("id")).withColumnRenamed("id", "person_id")
    return Output("nexmark-q23", joined, "append")


def _windowed(events: DataFrame, *columns: str) -> DataFrame:
    """Return columns of events with their window, which from here on is the only event time there is."""
    plain_columns = [_plain(name) if name == "dateTime" else F.col(name) for name in columns]
    return events.withWatermark("dateTime", DELAY).select(F.window("dateTime", PERIOD).alias("window"), *plain_columns)


def _plain(time: str) -> Column:
    """Return a time that Spark does not take for an event time: a stateful operator may have one only."""
    return F.timestamp_micros(F.unix_micros(time)).alias(time)


def _bids_while_open(events: Events, auction: list[str], bid: list[str]) -> DataFrame:
    """Join auctions with the bids on them from when they opened, ``opened``, until they expired.

    ``expires`` tells Spark nothing of how long to keep an auction, since the watermark is on when it opened; that no
    auction is open for longer than the generator's longest does.
    """
    auctions = events.auctions().withWatermark("dateTime", DELAY)
    auctions = auctions.select("id", F.col("dateTime").alias("opened"), *dict.fromkeys([*auction, "expires"]))
    bids = events.bids().withWatermark("dateTime", DELAY)
    bids = bids.withColumn("bid_extra", F.col("extra")).withColumnRenamed("dateTime", "bid_dateTime")
    bids = bids.select("auction", *dict.fromkeys([*bid, "bid_dateTime"]))
    longest = f"interval '{events.longest / 1000:.3f}' second"
    open_ = f"bid_dateTime >= opened and bid_dateTime <= expires and bid_dateTime <= opened + {longest}"
    joined = auctions.join(bids, F.expr(f"auction = id and {open_}"))
    return joined.select("id", "opened", *auction, *(_plain(name) if name == "bid_dateTime" else name for name in bid))


def _closes(events: Events, column: str) -> Column:
    """Return the watermark under which a row that the join's watermark has to pass comes out."""
    return (F.col(column) + F.expr(f"interval '{(events.longest + 1) / 1000:.3f}' second")).alias("closes")
