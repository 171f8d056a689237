"""Placement of starting queries and of partitions whose executor was lost."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from rechannel.migration.link import initial_placement
from rechannel.migration.link.initial_placement import InitialPlacement, restore_placement
from rechannel.migration.spark.checkpoint import CheckpointOperator
from rechannel.migration.spark.gateway import LinkError
from rechannel.migration.spark.locality_wait import LocalityWait
from rechannel.wire.messages import ExecutorInfo, LastPlacement, Unit


def executors(**hosts: str) -> dict[str, ExecutorInfo]:
    return {name[1:]: ExecutorInfo(executor=name[1:], host=host, cores=1, added=0.0) for name, host in hosts.items()}


def pods(**nodes: str) -> dict[str, ExecutorInfo]:
    return {
        name[1:]: ExecutorInfo(executor=name[1:], host=f"pod-{name}", node=node, cores=1, added=0.0)
        for name, node in nodes.items()
    }


def last(where: list[str], **hosts: str) -> LastPlacement:
    named = {name[1:]: host for name, host in hosts.items()}
    return LastPlacement(query="q", name="", batch=7, operators={0: where}, hosts=named)


OPERATOR = CheckpointOperator(0, 4, ("default",))
THREE = executors(e0="a", e1="b", e2="c")


class FakeAdapter:
    def __init__(self, operators=(OPERATOR,)):
        self.checkpoints = SimpleNamespace(operators=lambda checkpoint: list(operators))
        self.steered = []
        self.locality_wait = Mock(spec=LocalityWait, is_short=True)
        self.coordinator = SimpleNamespace(steer=self.steer)

    def steer(self, targets):
        for store, target in targets:
            self.steered.append((store.operator, store.partition, store.store, target.host, target.executor))


@pytest.mark.parametrize(
    ("remembered", "now", "expected"),
    [
        (last(["2", "2", "1", "0"], e0="a", e1="b", e2="c"), THREE, ["2", "2", "1", "0"]),
        # A restarted driver: the same hosts under other names.
        (last(["0", "1", "0", "1"], e0="b", e1="a"), executors(e0="a", e1="b"), ["1", "0", "1", "0"]),
        # Two executors on one host stand in for two of before.
        (last(["0", "1", "0", "1"], e0="a", e1="a"), executors(e5="a", e6="a"), ["5", "6", "5", "6"]),
        # Pods have new addresses, on the nodes of before.
        (last(["0", "1", "0", "1"], e0="a", e1="b"), pods(e5="b", e6="a"), ["6", "5", "6", "5"]),
    ],
)
def test_partitions_are_put_back_where_they_ran(remembered, now, expected):
    assert restore_placement(remembered, [OPERATOR], now) == {0: expected}


def test_partitions_that_cannot_be_put_back_are_spread():
    placement = restore_placement(last(["0", "1", "9", "9"], e0="a", e1="b", e9="gone"), [OPERATOR], THREE)[0]
    assert placement[:2] == ["0", "1"]
    assert Counter(placement).most_common(1)[0][1] == 2
    assert set(placement) == {"0", "1", "2"}


@pytest.mark.parametrize("remembered", [None, last(["0"] * 3, e0="a")])
def test_nothing_remembered_or_for_other_partitions_means_an_even_start(remembered):
    placement = restore_placement(remembered, [OPERATOR, CheckpointOperator(1, 4, ("default",))], THREE)
    assert sorted(Counter(placement[0]).values()) == [1, 1, 2]
    assert placement[0] == placement[1], "operators of one stage stay together"


def test_a_restarted_query_is_steered_before_its_first_batch_all_stores():
    join = CheckpointOperator(0, 2, ("left", "right"))
    adapter = FakeAdapter([join])
    starts = InitialPlacement(adapter, lambda: THREE, set, lambda query: last(["2", "1"], e0="a", e1="b", e2="c"))
    starts.place_before_first_batch("q", "run", "file:/c/state")
    assert adapter.steered == [
        (0, 0, "left", "c", "2"),
        (0, 0, "right", "c", "2"),
        (0, 1, "left", "b", "1"),
        (0, 1, "right", "b", "1"),
    ]
    assert starts.start_reports(["q"])["q"] == "2 of 2 partitions placed before its first batch, as they ran last"
    placement = {("q", 0): ["2", "0"]}
    request = starts.request_moves("q", "run", {0: [0]}, placement, [], committed=True)
    assert [(move.partition, move.source, move.target) for move in request.moves] == [(1, "0", "1")], "one missed"
    assert starts.request_moves("q", "run", {0: [0]}, placement, [], committed=True) is None, "once"


def test_many_partitions_are_steered_in_parts_all_their_stores_by_one_call():
    join, parts = CheckpointOperator(0, 250, ("left", "right")), []
    adapter = FakeAdapter([join])
    adapter.coordinator.steer = parts.append
    before = [str(partition % 3) for partition in range(250)]
    starts = InitialPlacement(adapter, lambda: THREE, set, lambda query: last(before, e0="a", e1="b", e2="c"))
    starts.place_before_first_batch("q", "run", "file:/c/state")
    assert [len(part) for part in parts] == [200, 200, 100]
    stores = [(store.partition, store.store, target.executor) for part in parts for store, target in part]
    assert stores == [(p, s, before[p]) for p in range(250) for s in ("left", "right")]
    assert starts.start_reports(["q"])["q"].startswith("250 of 250 partitions")


def test_a_query_that_ran_under_this_driver_needs_no_redis_and_its_checkpoint_is_read_once():
    starts = InitialPlacement(FakeAdapter(), lambda: THREE, set, lambda query: pytest.fail("asked Redis"))
    saved = starts.save_last_placement("q", "name", 3, {0: ["0", "1", "2", "0"]}, THREE)
    assert saved is not None
    assert saved.hosts == {"0": "a", "1": "b", "2": "c"}
    assert starts.save_last_placement("q", "name", 4, {0: ["0", "1", "2", "0"]}, THREE) is None, (
        "unchanged is not said again"
    )
    starts.remove_run("q", "run1")
    starts.place_before_first_batch("q", "run2", "file:/c/state")
    assert [item[4] for item in starts._adapter.steered] == ["0", "1", "2", "0"]
    starts._adapter.checkpoints.operators = pytest.fail
    starts.remove_run("q", "run2")
    starts.place_before_first_batch("q", "run3", "file:/c/state")
    assert len(starts._adapter.steered) == 8


def test_a_new_query_is_spread_after_its_first_batch():
    starts = InitialPlacement(FakeAdapter([]), lambda: THREE, set, lambda query: None)
    starts.place_before_first_batch("q", "run", "file:/c/state")
    placement = {("q", 0): ["0"] * 4, ("other", 0): ["1", "1"]}
    assert starts.request_moves("q", "run", {}, placement, [], committed=True) is None, "its stages are not known yet"
    request = starts.request_moves("q", "run", {0: [0]}, placement, [], committed=True)
    assert request.why == "a new query is spread evenly"
    assert Counter(move.target for move in request.moves) == {"1": 1, "2": 1} or len(request.moves) == 3
    assert starts.request_moves("q", "run", {0: [0]}, placement, [], committed=True) is None


def test_a_new_query_is_spread_as_the_jobs_of_its_first_batch_end_each_stage_once():
    starts = InitialPlacement(FakeAdapter([]), lambda: THREE, set, lambda query: None)
    starts.place_before_first_batch("q", "run", "file:/c/state")
    placement = {("q", 0): ["0"] * 3, ("q", 1): ["0"] * 6}
    first, second = {0: [0]}, {0: [0], 1: [1]}
    moves = []
    for stages, committed in ((first, False), (first, False), (second, False), (second, True), (second, True)):
        own = starts.request_moves("q", "run", stages, placement, [], committed=committed)
        moves.append(Counter(move.stage for move in own.moves) if own is not None else None)
    assert moves == [{0: 2}, None, {1: 4}, None, None]
    assert starts.start_reports(["q"])["q"] == "6 partitions spread after its first batch"
    assert not starts.has_pending


def test_a_restarted_query_is_mended_after_its_whole_first_batch_lost_partitions_at_once():
    adapter = FakeAdapter()
    starts = InitialPlacement(adapter, lambda: THREE, set, lambda query: last(["2"] * 4, e2="c"))
    starts.place_before_first_batch("q", "run", "file:/c/state")
    placement = {("q", 0): ["0", "2", "2", "2"]}
    assert starts.request_moves("q", "run", {0: [0]}, placement, [], committed=False) is None
    starts.record_lost_executor("9", {("q", 0): ["2", "2", "2", "9"]})
    own = starts.request_moves("q", "run", {0: [0]}, placement, [], committed=False)
    assert (own.why, [move.partition for move in own.moves]) == ("their executor was lost", [3])
    own = starts.request_moves("q", "run", {0: [0]}, placement, [Unit("q", 0, 3)], committed=True)
    assert [(move.partition, move.target) for move in own.moves] == [(0, "2")]
    assert not starts.has_pending


@pytest.mark.parametrize("operators", [[OPERATOR], []], ids=["restarted", "new"])
def test_nothing_is_remembered_of_a_run_that_ends_while_it_is_placed(operators):
    adapter = FakeAdapter()

    def read(_checkpoint):
        starts.remove_run("q", "run")  # by the link's thread: the query is stopped meanwhile
        return operators

    adapter.checkpoints.operators = read
    starts = InitialPlacement(adapter, lambda: THREE, set, lambda query: None)
    starts.place_before_first_batch("q", "run", "file:/c/state")
    assert not starts.has_pending
    assert adapter.steered == []


def test_moves_of_the_next_link_of_an_application_have_other_names():
    names = []
    for _ in range(2):
        starts = InitialPlacement(FakeAdapter([]), lambda: THREE, set, lambda query: None)
        starts.record_lost_executor("9", {("q", 0): ["9", "1", "2", "0"]})
        own = starts.request_moves("q", "0123456789", {0: [0]}, {("q", 0): ["1"] * 4}, [], committed=True)
        assert own.decision.startswith("link-01234567-")
        assert {move.move.rpartition(".")[0] for move in own.moves} == {own.decision}
        names += [move.move for move in own.moves]
    assert len(set(names)) == len(names) == 2


def test_partitions_that_move_already_are_left_out():
    starts = InitialPlacement(FakeAdapter([]), lambda: THREE, set, lambda query: None)
    starts.place_before_first_batch("q", "run", "file:/c/state")
    moving = [Unit("q", 0, partition) for partition in range(4)]
    assert starts.request_moves("q", "run", {0: [0]}, {("q", 0): ["0"] * 4}, moving, committed=True) is None


def test_a_query_that_was_there_before_us_is_left_as_it_is():
    starts = InitialPlacement(FakeAdapter([]), lambda: THREE, set, lambda query: None)
    assert starts.request_moves("q", "run", {0: [0]}, {("q", 0): ["0"] * 4}, [], committed=True) is None


def test_partitions_of_a_lost_executor_are_spread_and_no_others():
    starts = InitialPlacement(FakeAdapter([]), lambda: executors(e0="a", e1="b"), set, lambda query: None)
    starts.record_lost_executor("2", {("q", 0): ["0", "0", "2", "2", "1", "2"]})
    # They fell on one executor in the batch that was running.
    request = starts.request_moves(
        "q", "run", {0: [0]}, {("q", 0): ["0", "0", "0", "0", "1", "0"]}, [Unit("q", 0, 5)], committed=True
    )
    assert {(move.partition, move.target) for move in request.moves} == {(2, "1"), (3, "1")}
    assert starts.request_moves("q", "run", {0: [0]}, {("q", 0): ["0"] * 6}, [], committed=True) is None


@pytest.mark.parametrize("why", ["they ran elsewhere", "two minutes have passed"])
def test_stages_wait_less_for_a_lost_executor_until_its_partitions_ran_elsewhere(why):
    adapter, now = FakeAdapter([]), [0.0]
    starts = InitialPlacement(
        adapter, lambda: executors(e0="a", e1="b"), set, lambda query: None, lambda: now[0], pytest.fail
    )
    starts.record_lost_executor("2", {("q", 0): ["0"] * 4, ("r", 0): ["1"] * 4})
    assert not adapter.locality_wait.shorten.called, "it held nothing"
    placement = {("q", 0): ["0", "2"], ("r", 0): ["1", "2"]}
    starts.record_lost_executor("2", placement)
    assert adapter.locality_wait.shorten.called
    for query in ("q", "r"):
        starts.restore_wait(placement)
        assert not adapter.locality_wait.restore.called, "a query's next batch would still prefer it"
        placement |= {(query, 0): ["0", "1"]} if why == "they ran elsewhere" else {}
    now[0] = 120.0 if why == "two minutes have passed" else 1.0
    starts.restore_wait(placement)
    assert adapter.locality_wait.restore.called


@pytest.mark.parametrize("begins", [True, False])
def test_waits_that_cannot_be_set_or_need_not_be_change_nothing_else(begins):
    adapter = FakeAdapter([])
    adapter.locality_wait.shorten.side_effect = LinkError("the JVM is busy")
    starts = InitialPlacement(adapter, lambda: executors(e0="a", e1="b") if begins else None, set, lambda query: None)
    starts.record_lost_executor("2", {("q", 0): ["0", "2"]})
    assert adapter.locality_wait.shorten.called is begins
    assert starts.is_pending("q", "run")


def test_lost_executors_are_not_remembered_where_waits_are_short_anyway():
    adapter = FakeAdapter([])
    adapter.locality_wait.is_short = False  # after `shorten` too
    starts = InitialPlacement(adapter, lambda: executors(e0="a"), set, lambda query: None)
    for number in range(10):
        starts.record_lost_executor(str(number), {("q", 0): [str(number)]})
        starts.restore_wait({("q", 0): ["0"]})
    assert not starts._gone


@pytest.mark.parametrize(
    ("arrivals", "waited", "used"),
    [
        ({"2": 0.5}, 0.5, {"0", "1", "2"}),
        ({"1": 0.6, "2": 1.4}, 1.4, {"0", "1", "2"}),  # each arrival renews the wait
        ({"2": 60.0}, 1.0, {"0", "1"}),  # nothing arrives any more
        ({"0": 60.0, "1": 60.0, "2": 60.0}, 4.0, set()),  # nothing at all: no batch could run either
        ({"0": 2.0, "1": 60.0, "2": 60.0}, 3.0, {"0"}),
    ],
)
def test_a_restarted_driver_waits_for_its_executors_while_they_arrive(arrivals, waited, used):
    now = [100.0]
    remembered = last(["0", "1", "2", "2"], e0="a", e1="b", e2="c")

    def sleep(seconds: float) -> None:
        now[0] += seconds

    def allowed():
        return {name: info for name, info in THREE.items() if now[0] >= 100.0 + arrivals.get(name, 0.0)}

    adapter = FakeAdapter()
    starts = InitialPlacement(adapter, allowed, set, lambda query: remembered, lambda: now[0], sleep)
    starts.place_before_first_batch("q", "run", "file:/c/state")
    assert now[0] == pytest.approx(100.0 + waited, abs=0.2)
    assert {item[4] for item in adapter.steered} == used


def test_the_last_placement_names_nodes_and_a_steer_names_the_host_of_a_pod():
    adapter, now = FakeAdapter(), pods(e5="b", e6="a")
    starts = InitialPlacement(
        adapter, lambda: now, set, lambda query: last(["0"] * 4, e0="a"), lambda: 0.0, pytest.fail
    )
    starts.place_before_first_batch("q", "run", "file:/c/state")
    assert {item[3:] for item in adapter.steered} == {("pod-e6", "6")}
    saved = starts.save_last_placement("q", "", 8, {0: ["6", "6", "5", "5"]}, now)
    assert saved is not None and saved.hosts == {"5": "b", "6": "a"}


def test_a_start_does_not_wait_for_hosts_of_which_none_is_back():
    remembered = last(["0", "1", "2", "2"], e0="pod-1", e1="pod-2", e2="pod-3")
    starts = InitialPlacement(FakeAdapter(), lambda: THREE, set, lambda query: remembered, lambda: 0.0, pytest.fail)
    starts.place_before_first_batch("q", "run", "file:/c/state")
    assert starts.start_reports(["q"])["q"].endswith("evenly, as no earlier placement is known")


@pytest.fixture
def one_at_once(monkeypatch):
    monkeypatch.setattr(initial_placement, "_AT_ONCE", 1)


def steer_slowly(adapter, now):
    """Each call takes 1.5 s."""
    steer = adapter.coordinator.steer

    def slow(targets):
        now[0] += 1.5
        steer(targets)

    adapter.coordinator.steer = slow


def test_a_start_that_failed_is_not_reported_as_that_of_an_earlier_run():
    adapter = FakeAdapter()
    starts = InitialPlacement(adapter, lambda: THREE, set, lambda query: last(["2", "1", "2", "1"], e1="b", e2="c"))
    starts.place_before_first_batch("q", "run-1", "file:/c/state")
    adapter.coordinator.steer = Mock(side_effect=LinkError("no"))
    with pytest.raises(LinkError):
        starts.place_before_first_batch("q", "run-2", "file:/c/state")
    assert starts.start_reports(["q"]) == {}
    starts.request_moves("q", "run-2", {0: [0]}, {("q", 0): ["2", "0", "2", "0"]}, [], committed=True)
    assert starts.start_reports(["q"])["q"] == "not placed before its first batch; 2 missed and are moved now"


@pytest.mark.usefixtures("one_at_once")
def test_a_start_that_takes_long_is_left_to_the_moves_after_the_first_batch():
    now, adapter = [0.0], FakeAdapter()
    steer_slowly(adapter, now)
    starts = InitialPlacement(adapter, lambda: THREE, set, lambda query: None, lambda: now[0], pytest.fail)
    starts.place_before_first_batch("q", "run", "file:/c/state")
    assert starts.start_reports(["q"])["q"].startswith("3 of 4 partitions placed before its first batch")
    assert starts.is_pending("q", "run")


@pytest.mark.usefixtures("one_at_once")
@pytest.mark.parametrize(("waited", "steered"), [(-1.0, 3), (1.5, 2), (3.9, 1), (4.1, 0), (60.0, 0)])
def test_the_time_in_which_a_start_is_steered_counts_from_the_querys_start(waited, steered):
    now, adapter = [100.0], FakeAdapter()
    steer_slowly(adapter, now)
    starts = InitialPlacement(adapter, lambda: THREE, set, lambda query: last(["2"] * 4, e2="c"), lambda: now[0])
    starts.place_before_first_batch("q", "run", "file:/c/state", waited)
    assert len(adapter.steered) == steered
    request = starts.request_moves(
        "q", "run", {0: [0]}, {("q", 0): ["2"] * steered + ["0"] * (4 - steered)}, [], committed=True
    )
    assert len(request.moves) == 4 - steered, "the rest is moved after the first batch"


def test_moves_that_may_not_be_begun_are_not_made_up_for():
    allowed = None
    adapter = FakeAdapter()
    starts = InitialPlacement(adapter, lambda: allowed, set, lambda query: None)
    starts.place_before_first_batch("q", "run", "file:/c/state")
    starts.record_lost_executor("2", {("q", 0): ["2"] * 4})
    assert starts.request_moves("q", "run", {0: [0]}, {("q", 0): ["0"] * 4}, [], committed=True) is None
    allowed = THREE
    assert starts.request_moves("q", "run", {0: [0]}, {("q", 0): ["0"] * 4}, [], committed=True) is None
    assert adapter.steered == []
