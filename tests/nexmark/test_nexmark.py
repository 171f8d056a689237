"""Nexmark on a real Spark: the generator's laws, and every query's output held against the batch computation."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.nexmark.events import FIRST_ID, HOT_EVERY, IN_FLIGHT, LEAD, Events
from benchmarks.nexmark.queries import QUERIES, workload
from benchmarks.workloads.base import Feed, Input, Output, Workload
from benchmarks.workloads.measure import QueryFigures, measure

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

pytestmark = pytest.mark.spark

ROOT = Path(__file__).resolve().parents[2]
GIVEN = Input(rows=1000, seconds=5)
BATCHES = 4  # the first window of ten seconds closes in the last one
LONGER = {"q4": 9, "q9": 8, "q11": 12, "q12": 5, "q19": 8}  # auctions are open for 16 seconds, sessions for a while
PARTITIONS = 2
IN_CI = ("q3", "q5")


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("test-nexmark").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
    builder = builder.config("spark.sql.session.timeZone", "UTC").config("spark.sql.shuffle.partitions", PARTITIONS)
    # A test is over before much of it is worth compiling.
    builder = builder.config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    session = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    session.sparkContext.setLogLevel("FATAL")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def events(spark: SparkSession) -> dict[str, list[Row]]:
    generator = Events(Feed(spark, Input(rows=10_000), PARTITIONS, replay=3))
    return {kind: getattr(generator, kind)().orderBy("event").collect() for kind in ("persons", "auctions", "bids")}


def last_person(event: int) -> int:
    return event // 50 + FIRST_ID


def last_auction(event: int) -> int:
    return event // 50 * 3 + 2 + FIRST_ID


def test_in_every_fifty_events_are_a_person_three_auctions_and_46_bids(events: dict[str, list[Row]]) -> None:
    places = {kind: {row.event % 50 for row in rows} for kind, rows in events.items()}
    assert places == {"persons": {0}, "auctions": {1, 2, 3}, "bids": set(range(4, 50))}
    assert {kind: len(rows) for kind, rows in events.items()} == {"persons": 600, "auctions": 1800, "bids": 27_600}


def test_ids_count_up_from_the_first(events: dict[str, list[Row]]) -> None:
    assert [row.id for row in events["persons"]] == list(range(FIRST_ID, FIRST_ID + 600))
    assert [row.id for row in events["auctions"]] == list(range(FIRST_ID, FIRST_ID + 1800))


def test_references_are_to_what_was_there_or_is_about_to_come(events: dict[str, list[Row]]) -> None:
    for row in events["auctions"]:
        assert FIRST_ID <= row.seller <= last_person(row.event) + LEAD
    for row in events["bids"]:
        assert FIRST_ID <= row.bidder <= last_person(row.event) + LEAD
        oldest = last_auction(row.event) - max(IN_FLIGHT, HOT_EVERY)
        assert max(FIRST_ID, oldest) <= row.auction <= last_auction(row.event) + LEAD


def test_the_hot_ones_are_as_hot_as_nexmarks(events: dict[str, list[Row]]) -> None:
    def hot(base: int, last: int) -> int:
        return (last - FIRST_ID) // HOT_EVERY * HOT_EVERY + FIRST_ID + base

    auctions, bids = events["auctions"], events["bids"]
    sold = sum(row.seller == hot(0, last_person(row.event)) for row in auctions) / len(auctions)
    bid = sum(row.auction == hot(0, last_auction(row.event)) for row in bids) / len(bids)
    by = sum(row.bidder == hot(1, last_person(row.event)) for row in bids) / len(bids)
    named = sum(row.channel in ("Google", "Facebook", "Baidu", "Apple") for row in bids) / len(bids)
    # The others hit the hot one by chance now and then.
    assert (sold, bid, by, named) == pytest.approx((0.75, 0.505, 0.75, 0.5), abs=0.03)


def test_prices_are_even_by_their_logarithm(events: dict[str, list[Row]]) -> None:
    prices = [row.price for row in events["bids"]]
    assert 100 <= min(prices) < max(prices) <= 100_000_000
    below = [sum(price < 10**power for price in prices) / len(prices) for power in range(3, 8)]
    assert below == pytest.approx([1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6], abs=0.02)


def test_auctions_are_open_for_as_long_as_a_hundred_more_take_on_average(events: dict[str, list[Row]]) -> None:
    lengths = [(row.expires - row.dateTime).total_seconds() for row in events["auctions"]]
    assert min(lengths) > 0 and max(lengths) <= 2 * 0.166 + 0.001  # 100 * 50 / 3 events of 10,000 a second
    assert sum(lengths) / len(lengths) == pytest.approx(0.166, rel=0.1)
    assert all(row.reserve > row.initialBid and row.category in range(10, 15) for row in events["auctions"])


def test_texts_are_of_the_kinds_nexmark_has(events: dict[str, list[Row]]) -> None:
    person, bids = events["persons"][0], events["bids"]
    assert person.state in ("AZ", "CA", "ID", "OR", "WA", "WY")
    assert "@" in person.emailAddress and len(person.creditCard) == 19
    for kind, size, texts, fixed in (
        ("persons", 200, ("name", "emailAddress", "creditCard", "city", "state", "extra"), 8),
        ("auctions", 500, ("itemName", "description", "extra"), 48),
        ("bids", 100, ("extra",), 32),
    ):
        sizes = [sum(len(row[text]) for text in texts) + fixed for row in events[kind]]
        assert sum(sizes) / len(sizes) == pytest.approx(size, rel=0.02)
    others = [row for row in bids if row.channel.startswith("channel-")]
    assert sum("channel_id=" in row.url for row in others) / len(others) == pytest.approx(0.9, abs=0.02)
    assert len({row.url for row in bids if row.channel == "Apple"}) == 1


def test_larger_batches_leave_no_gap_between_the_events(spark: SparkSession) -> None:
    source = Input(rows=100, cycle=3, spike_at=1, spike=2.0)
    generator = Events(Feed(spark, source, PARTITIONS, replay=4))
    frames = (generator.persons(), generator.auctions(), generator.bids())
    numbers = reduce(lambda left, right: left.union(right), (frame.select("event") for frame in frames))
    assert sorted(row.event for row in numbers.collect()) == list(range(100 + 200 + 200 + 100))


def test_another_seed_brings_other_events(spark: SparkSession) -> None:
    def prices(seed: int) -> list[int]:
        generator = Events(Feed(spark, Input(rows=200, seed=seed), PARTITIONS, replay=1))
        return [row.price for row in generator.bids().orderBy("event").collect()]

    assert prices(0) == prices(0) != prices(1)


def measured(spark: SparkSession, chosen: Workload, batches: int = BATCHES) -> QueryFigures:
    (figures,) = measure(chosen, Feed(spark, GIVEN, PARTITIONS), batches)
    return figures


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in IN_CI else pytest.mark.slow) for name in QUERIES]
)
def test_a_query_puts_out_what_the_batch_computation_does(spark: SparkSession, name: str) -> None:
    result = measured(spark, workload(name), LONGER.get(name, BATCHES))
    assert result.audit is not None
    assert result.audit["ok"], result.audit
    assert result.audit["rows"] > 0


def broken(name: str, change: Callable[[DataFrame], DataFrame]) -> Workload:
    """Return a workload whose stream, and not its replay, is changed."""
    whole = workload(name)

    def build(feed: Feed) -> list[Output]:
        (output,) = whole.build(feed)
        return [replace(output, frame=change(output.frame)) if feed.streaming else output]

    return replace(whole, build=build)


def test_the_audit_finds_a_lost_row(spark: SparkSession) -> None:
    # Every bid comes out of q0, so that some of two batches have such a price.
    result = measured(spark, broken("q0", lambda frame: frame.where("price % 7 != 0")), batches=2)
    assert result.audit is not None
    assert not result.audit["ok"] and result.audit["lost"] > 0


@pytest.mark.slow
def test_the_audit_finds_a_doubled_row(spark: SparkSession) -> None:
    result = measured(spark, broken("q0", lambda frame: frame.union(frame.where("price % 7 = 0"))), batches=2)
    assert result.audit is not None
    assert not result.audit["ok"] and result.audit["doubled"] > 0


@pytest.mark.slow
def test_the_audit_finds_a_changed_row(spark: SparkSession) -> None:
    result = measured(
        spark, broken("q0", lambda frame: frame.withColumn("price", frame["price"] + frame["price"] % 2)), batches=2
    )
    assert result.audit is not None
    assert not result.audit["ok"] and result.audit["different"]


@pytest.mark.slow
def test_the_command_prints_a_table_and_writes_a_file(tmp_path: Path) -> None:
    file = tmp_path / "out" / "nexmark.json"
    command = [sys.executable, "-m", "benchmarks.nexmark", "--queries", "q0,q18", "--master", "local[2]"]
    command += ["--events-per-batch", "500", "--batches", "4", "--partitions", "2", "--json", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[-2:]] == ["q0", "q18"]
    assert [result["audit"]["ok"] for result in json.loads(file.read_text())["nexmark"]["rows"]] == [True, True]
