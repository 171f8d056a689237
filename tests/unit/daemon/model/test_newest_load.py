"""Load of the newest batches."""

from __future__ import annotations

import dataclasses
import math

import msgspec
import pytest

from rechannel.daemon.model.application_messages import last_batches, of_present_load
from rechannel.daemon.model.newest_load import NewestLoad, measure_newest_load
from rechannel.wire.messages import QueryState
from unit.daemon.fake_store import NOW
from unit.daemon.fakes import QUERY, batch, query, report, settings
from unit.daemon.model.builders import messages

WHERE = ["0", "0", "1", "2"]
CORES = dict.fromkeys(("0", "1", "2", "3"), 1)
BATCHES = [batch(number, WHERE, {0: 2.0, 1: 1.0}) for number in (7, 8, 9)]
AT = BATCHES[-1].end


def load(*queries: QueryState, cores: dict[str, int] = CORES, now: float = AT) -> NewestLoad:
    other = [batch(number, WHERE, {3: 4.0}, name="q2") for number in (8, 9)]
    return measure_newest_load(queries, {QUERY: BATCHES, "q2": other}, cores, now)


def test_the_imbalance_is_that_of_the_newest_batches_of_all_queries() -> None:
    # Four source tasks of 0.1 s run anywhere; the stateful ones take 2, 1, 0.1 and 0.1 s.
    assert load(query(WHERE)).imbalance() == pytest.approx(3.1 / 0.9, rel=0.05)
    both = load(query(WHERE), query(WHERE, "q2"))
    assert both.imbalance() == pytest.approx((0.1 + 4.1) / 2.0, rel=0.05), "executor 2 has the heaviest partition of q2"
    assert both.newest == {QUERY: 9, "q2": 9}
    assert both.start_after({QUERY: 8, "q2": 9}) == BATCHES[-1].start
    assert both.start_after(both.newest) == math.inf


def test_queries_are_awaited_for_some_time() -> None:
    both = load(query(WHERE), query(WHERE, "q2"))
    assert both.tells(0.0, 2, math.inf)
    assert [both.tells(BATCHES[0].start, 3, patience) for patience in (10.0, 20.0)] == [True, False]
    assert not both.tells(BATCHES[1].start, 3, 0.0)
    stuck = query(WHERE, "q2", problem="real-time mode")
    assert load(query(WHERE), stuck).tells(0.0, 3, math.inf), "a query that cannot be moved is not awaited"


def test_cores_intervals_and_silence_lower_a_query_s_load() -> None:
    slow = msgspec.structs.replace(query(WHERE, "q2"), interval=500.0)
    assert load(query(WHERE), slow).imbalance() == pytest.approx(load(query(WHERE)).imbalance(), rel=0.05)
    assert load(query(WHERE), cores=CORES | {"0": 4}).imbalance() < load(query(WHERE)).imbalance()
    assert load(query(WHERE), query(WHERE, "q2"), now=AT + 500).imbalance() == pytest.approx(2.1, rel=0.1)


def test_only_active_queries_and_executors_that_may_hold_partitions_count() -> None:
    stuck = query(WHERE, "q2", problem="real-time mode")
    assert load(query(WHERE), stuck).imbalance() == load(query(WHERE), query(WHERE, "q2")).imbalance()
    assert load(query(WHERE), query(WHERE, "idle"), query(WHERE, "q2", active=False)).newest == {QUERY: 9}
    assert load(query(WHERE), cores={"0": 1}).imbalance() == 1.0
    assert load(query(WHERE), cores={}).imbalance() == 1.0
    assert load().imbalance() == 1.0


def test_a_decision_averages_the_batches_of_the_present_load() -> None:
    many = [batch(number, WHERE, {0: 2.0}, period=1.0) for number in range(10)]
    seen = messages(report([query(WHERE)]), many, {})
    assert len(last_batches(seen, QUERY, settings(), NOW)) == 10
    since = dataclasses.replace(seen, load_since=many[-4].start)
    assert last_batches(since, QUERY, settings(), NOW) == many[-4:]
    assert len(last_batches(dataclasses.replace(seen, load_since=NOW), QUERY, settings(), NOW)) == 3
    assert of_present_load(many[-3:], many[-2].start, 2) == many[-2:], "one of before would be a third of the load"
    assert of_present_load(many[-3:], many[-1].start, 2) == many[-3:], "too few"
    assert of_present_load(many[-3:], 0.0, 2) == many[-3:], "the load did not change"
