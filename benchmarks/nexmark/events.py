"""Nexmark's persons, auctions and bids, each from its event's number alone.

The laws are those of Apache Beam's generator, which nexmark-flink's follows: in every fifty events the first is a
person, the next three are auctions, the rest are bids; ids count up from 1000; an auction's seller, a bid's auction and
its bidder are with a fixed chance a *hot* one, which is another one every hundred ids, and else any of those still
active or of the next ten that are yet to come; prices are even on a logarithmic scale; auctions are open as long as it
takes about a hundred more to open; an ``extra`` text fills an event up to its kind's usual size.

Where this generator differs:

* Random values are hashes of the event's number and of the seed, not a sequence: that is what lets any batch be brought
  again, by any task and in a batch computation.
* Texts are hexadecimal digits, so the letter that q14 counts is one in sixteen and not one in twenty-six.
* A channel's id is a hash of the channel's number, not its bits reversed; a directory of a URL has four characters.
* A bidder's id counts from 1000 as in Beam. In nexmark-flink it counts from 2000 (the first id is added twice), so that
  half of the bidders never register.
* The event's time is the feed's, from the first millisecond of 1970 on; no event is out of order, which is the default
  there too.
* Rates do not vary but by the feed's own ``spike``; its ``keys``, ``skew`` and ``drift`` are not used: Nexmark has its
  own hot keys, which move all the time.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  the name PySpark's own documentation uses

from benchmarks.workloads.base import Feed, Input, uniform

FIRST_ID = 1000  # of persons and of auctions
FIRST_CATEGORY = 10
CATEGORIES = 5
CHANNELS = 10_000  # beside the hot ones
HOT_EVERY = 100  # ids, another auction, seller and bidder is the hot one
LEAD = 10  # ids that may be referred to before they exist

_STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
_CITIES = (
    "Phoenix",
    "Los Angeles",
    "San Francisco",
    "Boise",
    "Portland",
    "Bend",
    "Redmond",
    "Seattle",
    "Kent",
    "Cheyenne",
)
_FIRST_NAMES = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter")
_LAST_NAMES = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")
_HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
_DIGEST = 128  # characters that one hash of a text gives


# Events of each kind in every TOTAL.
PERSONS, AUCTIONS, BIDS = 1, 3, 46
TOTAL = PERSONS + AUCTIONS + BIDS
# Of so many references all but one are to the hot one.
HOT_AUCTIONS, HOT_SELLERS, HOT_BIDDERS = 2, 4, 4
IN_FLIGHT = 100  # auctions that are open at a time
ACTIVE = 1000  # persons that sell and bid
PERSON_SIZE, AUCTION_SIZE, BID_SIZE = 200, 500, 100  # bytes of an event


class Events:
    """The three kinds of events of a feed. Each call is a source of its own; columns that are not asked for are free.

    Beside Nexmark's columns every event has ``event``, its number from 0 on without gaps, and ``arrival``, the time its
    batch stands for: the processing time of a run that keeps up, the same in a replay.
    """

    def __init__(self, feed: Feed) -> None:
        self.feed = feed

    def persons(self) -> DataFrame:
        """Return ``id, name, emailAddress, creditCard, city, state, dateTime, extra``."""
        card = F.concat_ws(" ", *(F.lpad(self._below(10_000, 10 + at).cast("string"), 4, "0") for at in range(4)))
        email = F.concat(self._word(7, 14), F.lit("@"), self._word(5, 16), F.lit(".com"))
        rows = self._kind(0, PERSONS).select(
            "event",
            (F.col("last_person") + FIRST_ID).alias("id"),
            F.concat_ws(" ", self._one_of(_FIRST_NAMES, 18), self._one_of(_LAST_NAMES, 19)).alias("name"),
            email.alias("emailAddress"),
            card.alias("creditCard"),
            self._one_of(_CITIES, 20).alias("city"),
            self._one_of(_STATES, 21).alias("state"),
            F.col("time").alias("dateTime"),
            "arrival",
        )
        return rows.withColumn(
            "extra", self._extra(PERSON_SIZE, ["name", "emailAddress", "creditCard", "city", "state"], 8, 22)
        )

    def auctions(self) -> DataFrame:
        """Return ``id, itemName, description, initialBid, reserve, dateTime, expires, seller, category, extra``."""
        first = self._price(30)
        seller = F.when(self._below(HOT_SELLERS, 37) > 0, F.expr(f"last_person div {HOT_EVERY} * {HOT_EVERY}"))
        rows = self._kind(PERSONS, AUCTIONS).select(
            "event",
            (F.col("last_auction") + FIRST_ID).alias("id"),
            self._word(20, 32).alias("itemName"),
            self._word(100, 34).alias("description"),
            first.alias("initialBid"),
            (first + self._price(31)).alias("reserve"),
            F.col("time").alias("dateTime"),
            F.timestamp_millis(F.unix_millis("time") + 1 + self._below(self.longest, 36)).alias("expires"),
            (seller.otherwise(self._active_person(38)) + FIRST_ID).alias("seller"),
            (self._below(CATEGORIES, 39) + FIRST_CATEGORY).alias("category"),
            "arrival",
        )
        return rows.withColumn("extra", self._extra(AUCTION_SIZE, ["itemName", "description"], 48, 40))

    def bids(self) -> DataFrame:
        """Return ``auction, bidder, price, channel, url, dateTime, extra``."""
        auction = F.when(self._below(HOT_AUCTIONS, 50) > 0, F.expr(f"last_auction div {HOT_EVERY} * {HOT_EVERY}"))
        # The second of each hundred: a hot bidder is never a hot seller.
        bidder = F.when(self._below(HOT_BIDDERS, 52) > 0, F.expr(f"last_person div {HOT_EVERY} * {HOT_EVERY} + 1"))
        oldest = F.greatest(F.col("last_auction") - IN_FLIGHT, F.lit(0))
        open_auction = oldest + self._below(F.col("last_auction") - oldest + 1 + LEAD, 51)
        # Hot channels are those below 0: they have a URL each like all others.
        site = F.when(self._below(2, 55) > 0, -1 - self._below(len(_HOT_CHANNELS), 56))
        rows = self._kind(PERSONS + AUCTIONS, BIDS).select(
            "event",
            (auction.otherwise(open_auction) + FIRST_ID).alias("auction"),
            (bidder.otherwise(self._active_person(53)) + FIRST_ID).alias("bidder"),
            self._price(54).alias("price"),
            site.otherwise(self._below(CHANNELS, 57)).alias("site"),
            F.col("time").alias("dateTime"),
            "arrival",
        )
        hot = F.element_at(F.array(*map(F.lit, _HOT_CHANNELS)), (-F.greatest(-F.col("site"), F.lit(1))).cast("int"))
        return rows.select(
            "event",
            "auction",
            "bidder",
            "price",
            F.when(F.col("site") < 0, hot).otherwise(F.concat(F.lit("channel-"), F.col("site"))).alias("channel"),
            _url(F.col("site")).alias("url"),
            "dateTime",
            "arrival",
            self._extra(BID_SIZE, [], 32, 58).alias("extra"),
        )

    @property
    def longest(self) -> int:
        """Milliseconds of event time that an auction is open at most: twice those in which ``in_flight`` more come."""
        source = self.feed.input
        events = IN_FLIGHT * TOTAL // AUCTIONS
        return max(2 * (events * source.seconds * 1000 // _most(source)), 1)

    @property
    def reach(self) -> int:
        """Seconds of event time that lie at most between an auction and any bid on it, early or late."""
        source = self.feed.input
        auctions = max(IN_FLIGHT, HOT_EVERY) + LEAD
        batches = (auctions + AUCTIONS) * TOTAL // (AUCTIONS * _least(source)) + 2
        return batches * source.seconds

    def _kind(self, first: int, count: int) -> DataFrame:
        """Return the events of one kind with their times and the last person and auction that there are by then."""
        rows = self.feed.rows().select(_event(self.feed.input).alias("event"), "batch", "time")
        rows = rows.where(F.expr(f"event % {TOTAL} >= {first} and event % {TOTAL} < {first + count}"))
        place = f"cast(event % {TOTAL} as long)"
        person = f"event div {TOTAL} * {PERSONS} + least({place}, {PERSONS - 1}L)"
        auction = f"event div {TOTAL} * {AUCTIONS} + least({place} - {PERSONS}L, {AUCTIONS - 1}L)"
        return rows.select(
            "event",
            "time",
            F.expr(f"timestamp_seconds(batch * {self.feed.input.seconds}L)").alias("arrival"),
            F.expr(person).alias("last_person"),
            F.expr(auction).alias("last_auction"),
        )

    def _share(self, salt: int) -> Column:
        return uniform(F.col("event"), self.feed.input.seed * 1000 + salt)

    def _below(self, bound: int | Column, salt: int) -> Column:
        return F.floor(self._share(salt) * bound).cast("long")

    def _price(self, salt: int) -> Column:
        """Return cents, even on a logarithmic scale from 1 to 1,000,000 dollars."""
        return F.floor(F.pow(F.lit(10.0), self._share(salt) * 6.0) * 100.0 + 0.5).cast("long")

    def _active_person(self, salt: int) -> Column:
        people = F.col("last_person") + 1
        active = F.least(people, F.lit(ACTIVE))
        return people - active + self._below(active + LEAD, salt)

    def _one_of(self, choices: tuple[str, ...], salt: int) -> Column:
        return F.element_at(F.array(*map(F.lit, choices)), (self._below(len(choices), salt) + 1).cast("int"))

    def _text(self, length: Column, most: int, salt: int) -> Column:
        named = F.concat_ws(" ", F.col("event").cast("string"), F.lit(str(self.feed.input.seed * 1000 + salt)))
        return F.repeat(F.sha2(named, 512), -(-most // _DIGEST)).substr(F.lit(1), length.cast("int"))

    def _word(self, bound: int, salt: int) -> Column:
        """Return a text of 3 to ``bound - 1`` characters; two salts are used."""
        return self._text(self._below(bound - 3, salt) + 3, bound, salt + 1)

    def _extra(self, size: int, texts: list[str], fixed: int, salt: int) -> Column:
        """Return what fills an event of these texts and ``fixed`` bytes up to a size, a fifth more or less."""
        left = F.greatest(sum((-F.length(text) for text in texts), F.lit(size - fixed)), F.lit(0))
        spread = F.floor(left * 0.2 + 0.5)
        return self._text(left - spread + self._below(2 * spread, salt), max(size - fixed, 0) * 6 // 5 + 1, salt + 1)


def _url(site: Column) -> Column:
    """Return a channel's page: three directories, and in nine of ten the channel's id as a parameter."""
    digits = F.lpad(F.lower(F.hex(F.xxhash64(site))), 16, "0")
    path = F.concat_ws("/", F.lit("https://www.nexmark.com"), *(digits.substr(at, 4) for at in (1, 5, 9)))
    channel = F.pmod(F.xxhash64(site, F.lit(1)), F.lit(2**31)).cast("string")
    has_id = (site >= 0) & (F.pmod(F.xxhash64(site, F.lit(2)), F.lit(10)) > 0)
    return F.concat(
        path, F.lit("/item.htm?query=1"), F.when(has_id, F.concat(F.lit("&channel_id="), channel)).otherwise("")
    )


def _most(source: Input) -> int:
    return max(source.rows, _spiked(source))


def _least(source: Input) -> int:
    return min(source.rows, _spiked(source))


def _spiked(source: Input) -> int:
    return int(source.rows * source.spike) if source.cycle else source.rows


def _event(source: Input) -> Column:
    """Return the number of a row without the gaps that a feed's numbers have where only some batches are larger."""
    if _most(source) == _least(source):
        return F.col("number")
    at, place = source.spike_at, f"batch % {source.cycle}"
    cycle = at * source.rows + (source.cycle - at) * _spiked(source)
    before = f"least({place}, {at}L) * {source.rows} + greatest({place} - {at}, 0L) * {_spiked(source)}"
    return F.expr(f"batch div {source.cycle} * {cycle} + {before} + number - batch * {_most(source)}L")
