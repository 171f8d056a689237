"""Executors of a drained node: cordon when empty, release at a boundary, replacement."""

from __future__ import annotations

import msgspec
import pytest

from rechannel.migration.link.executor_release import (
    UNLIMITED,
    ExecutorReleaser,
    ReleaseInputs,
    collect_inputs,
    executor_target,
)
from rechannel.monitors.spark import events
from rechannel.monitors.spark.task_table import TaskTable
from rechannel.wire.codes import MoveState
from rechannel.wire.messages import DrainedNode
from unit.daemon import fakes
from unit.migration.fake_cluster import FakeCluster, info
from unit.migration.samples import accepted_move


def releasing(*hosts: str, dynamic: bool = False, **options: bool) -> tuple[FakeCluster, ExecutorReleaser]:
    cluster = FakeCluster(*hosts)
    return cluster, ExecutorReleaser(cluster, dynamic=dynamic, **options)


def drained(node: str, *, remove: bool = True, deadline: float = 0.0) -> dict[str, DrainedNode]:
    return {node: DrainedNode(node=node, since=10.0, remove=remove, deadline=deadline)}


def inputs(cluster: FakeCluster, drains, holders=(), batches=None, between_batches=(), overdue=()) -> ReleaseInputs:
    executors = cluster.executors | cluster.unseen
    return ReleaseInputs(executors, drains, set(holders), batches or {}, set(between_batches), set(overdue), (), ())


def steps(cluster: FakeCluster, releaser: ExecutorReleaser, drains, times, order=None, holders=()) -> None:
    """Let the link take a step at each of these times, and then the master."""
    for now in times:
        releaser.advance(inputs(cluster, drains, holders=holders), now)
        cluster.schedule(now, order)


def test_an_executor_is_cordoned_when_empty_and_released_at_a_boundary():
    cluster, releaser = releasing("a", "b", "c")
    releaser.advance(inputs(cluster, drained("c"), holders=["2"], batches={"q": 5}), 20.0)
    assert cluster.cordoned == [], "it holds state"
    releaser.advance(inputs(cluster, drained("c"), batches={"q": 5}), 21.0)
    assert cluster.cordoned == ["2"]
    assert cluster.hosts() == ["a", "b", "c"], "batch 5 may want its map output"
    releaser.advance(inputs(cluster, drained("c"), batches={"q": 6}), 22.0)
    assert cluster.hosts() == ["a", "b"]
    assert cluster.limit == 2
    cluster.schedule(23.0)
    assert cluster.hosts() == ["a", "b"], "the drained node gets no new one"


def test_a_drain_by_the_name_of_a_node_releases_its_pods():
    cluster, releaser = releasing("pod-1", "pod-2", "pod-3")
    nodes = {"0": "worker-1", "1": "worker-2", "2": "worker-2"}
    cluster.executors = {
        name: msgspec.structs.replace(item, node=nodes[name]) for name, item in cluster.executors.items()
    }
    for now in (20.0, 21.0):
        releaser.advance(inputs(cluster, drained("worker-2")), now)
    assert (cluster.cordoned, cluster.hosts()) == (["1", "2"], ["pod-1"])


def test_where_a_cordoned_executor_would_end_by_itself_it_goes_between_two_batches_of_all():
    cluster, releaser = releasing("a", "b", cordon_ends_executor=True)
    releaser.advance(inputs(cluster, drained("b"), batches={"p": 5, "q": 5}, between_batches=["p"]), 20.0)
    assert (cluster.cordoned, releaser.releasing) == ([], ["1"]), "nothing is placed there any more all the same"
    releaser.advance(inputs(cluster, drained("b"), batches={"p": 6, "q": 6}, between_batches=["q"]), 81.0)
    assert cluster.hosts() == ["a", "b"]
    assert "no query runs a batch" in releaser.problem
    releaser.advance(inputs(cluster, drained("b"), batches={"p": 6, "q": 6}, between_batches=["p", "q"]), 82.0)
    assert (cluster.hosts(), cluster.cordoned, releaser.problem) == (["a"], [], "")


@pytest.mark.parametrize(
    ("hosts", "drains", "options", "cordoned", "stay"),
    [
        ("ab", drained("b", remove=False), {}, [], "ab"),
        ("a", drained("a"), {}, [], "a"),
        ("ab", drained("a") | drained("b"), {}, [], "ab"),
        ("ab", drained("b"), {"dynamic": True}, ["1"], "ab"),
    ],
    ids=["without remove", "the last executor", "all executors", "dynamic allocation removes it"],
)
def test_executors_that_stay(hosts, drains, options, cordoned, stay):
    cluster, releaser = releasing(*hosts, **options)
    releaser.advance(inputs(cluster, drains), 20.0)
    assert (cluster.cordoned, cluster.hosts(), cluster.limit == UNLIMITED) == (cordoned, [*stay], True)


def test_a_busy_executor_stays_and_the_target_that_its_refused_release_set_is_left_to_spark_again():
    cluster, releaser = releasing("a", "b")
    cluster.busy = {"1"}
    releaser.advance(inputs(cluster, drained("b")), 20.0)
    assert (cluster.cordoned, cluster.hosts(), cluster.limit) == (["1"], ["a", "b"], 2)
    releaser.restore_target()
    assert cluster.limit == UNLIMITED


def test_a_release_that_spark_refuses_is_tried_again_every_five_seconds():
    cluster, releaser = releasing("a", "b")
    cluster.busy = {"1"}
    for now in range(20, 40):
        releaser.advance(inputs(cluster, drained("b")), float(now))
    assert cluster.counts == 4, "RDDs are counted once for each try"
    cluster.busy = set()
    releaser.advance(inputs(cluster, drained("b")), 40.0)
    assert cluster.hosts() == ["a"]


def test_a_deadline_that_has_passed_does_not_wait_for_state():
    cluster, releaser = releasing("a", "b")
    releaser.advance(inputs(cluster, drained("b"), holders=["1"]), 29.0)
    assert cluster.cordoned == []
    releaser.advance(inputs(cluster, drained("b"), holders=["1"], overdue=["b"]), 30.0)
    assert cluster.hosts() == ["a"]


def test_a_deadline_is_a_time_of_the_clock():
    drains = drained("b", deadline=30.0)
    overdue = [collect_inputs(TaskTable(), [], drains, [], now).overdue for now in (29.0, 30.0)]
    assert overdue == [set(), {"b"}]


def test_an_executor_that_an_earlier_link_cordoned_is_released():
    cluster, releaser = releasing("a", "b")
    cluster.cordoned.append("1")
    releaser.advance(inputs(cluster, drained("b")), 20.0)
    assert cluster.hosts() == ["a"]


@pytest.mark.parametrize("order", [["a", "b", "c", "d"], ["c", "d", "b", "a"]])
def test_an_added_node_is_used_and_a_lost_executor_replaced_in_any_order_of_the_master(order):
    cluster, releaser = releasing("a", "b", "c")
    steps(cluster, releaser, drained("c"), range(20, 38, 6), order)
    assert cluster.hosts() == ["a", "b"]
    cluster.workers.append("d")
    steps(cluster, releaser, drained("c"), range(38, 74, 6), order)
    assert cluster.hosts() == ["a", "b", "d"]
    del cluster.executors[next(name for name, item in cluster.executors.items() if item.host == "b")]
    steps(cluster, releaser, drained("c"), range(74, 110, 6), order)
    assert cluster.hosts() == ["a", "b", "d"]


def test_where_cores_max_binds_and_the_master_prefers_the_drained_node_releases_are_rare_and_reported():
    cluster, releaser = releasing("a", "b")
    cluster.most = 2
    steps(cluster, releaser, drained("b"), range(20, 30, 5), ["b", "d"])
    cluster.workers.append("d")
    steps(cluster, releaser, drained("b"), range(30, 1020, 5), ["b", "d"])
    assert 1 < cluster.kills < 8
    assert releaser.problem == "executors were started on drained b again: stop Spark's worker there"
    cluster.workers.remove("b")
    cluster.executors = {name: item for name, item in cluster.executors.items() if item.host != "b"}
    steps(cluster, releaser, drained("b"), range(2000, 2018, 6))
    assert (cluster.hosts(), releaser.problem) == (["a", "d"], "")


def test_an_executor_is_released_once_though_spark_reports_late_that_it_is_gone():
    cluster, releaser = releasing("a", "b", "c")
    cluster.reported = False
    steps(cluster, releaser, drained("c"), [20.0 + 0.1 * step for step in range(20)])
    assert (cluster.kills, cluster.limit, cluster.hosts()) == (1, 2, ["a", "b"])
    assert releaser.releasing == ["2"]
    cluster.unseen.clear()
    releaser.advance(inputs(cluster, drained("c")), 30.0)
    assert releaser.releasing == []


def test_nodes_drained_one_after_the_other_leave_the_rest_alone():
    cluster, releaser = releasing("a", "b", "c", "d")
    order = ["d", "c", "b", "a"]
    steps(cluster, releaser, drained("d"), range(20, 45, 5), order)
    steps(cluster, releaser, drained("d") | drained("c"), range(45, 320, 5), order)
    assert (cluster.hosts(), cluster.kills, cluster.limit) == (["a", "b"], 2, 2)


def test_two_executors_of_one_node_that_empty_at_different_moments():
    cluster, releaser = releasing("a", "b")
    cluster.executors["9"] = info("9", "b")
    steps(cluster, releaser, drained("b"), range(20, 40, 5), holders=["9"])
    steps(cluster, releaser, drained("b"), range(40, 170, 5))
    assert (cluster.hosts(), cluster.kills, cluster.limit) == (["a"], 2, 1)


@pytest.mark.parametrize(("standalone", "limit"), [(True, UNLIMITED), (False, 2)])
def test_undrained_the_target_is_the_one_of_before(standalone, limit):
    cluster, releaser = releasing("a", "b")
    cluster.standalone = standalone
    releaser.advance(inputs(cluster, drained("b")), 20.0)
    releaser.advance(inputs(cluster, drained("b")), 26.0)
    assert cluster.limit == 1
    releaser.advance(inputs(cluster, {}), 32.0)
    assert cluster.limit == limit
    cluster.schedule(33.0)
    assert cluster.hosts() == ["a", "b"]


def test_the_target_is_left_to_spark_though_the_first_call_for_it_fails():
    cluster, releaser = releasing("a", "b")
    steps(cluster, releaser, drained("b"), [20.0, 26.0])
    cluster.fails = True
    releaser.advance(inputs(cluster, {}), 32.0)
    cluster.fails = False
    releaser.advance(inputs(cluster, {}), 38.0)
    assert cluster.limit == UNLIMITED


def test_a_link_that_ends_leaves_the_target_to_spark():
    cluster, releaser = releasing("a", "b")
    releaser.restore_target()
    releaser.advance(inputs(cluster, drained("b")), 20.0)
    assert cluster.limit == 1
    releaser.restore_target()
    assert cluster.limit == UNLIMITED


def test_an_executor_is_kept_while_rdds_live_on_executors_alone_until_the_deadline():
    cluster, releaser = releasing("a", "b")
    cluster.local = 2
    for now in (10.0, 20.0, 99.0):
        releaser.advance(inputs(cluster, drained("b")), now)
        assert "localCheckpoint" in releaser.problem
    assert cluster.kills == 0
    releaser.advance(inputs(cluster, drained("b"), overdue=["b"]), 104.0)
    assert cluster.kills == 1
    assert cluster.without_link == UNLIMITED, "without the link, nobody would lift the limit"


def test_an_executor_that_empties_between_two_counts_of_rdds_is_kept_for_them_and_released_once_there_are_none():
    cluster, releaser = releasing("a", "b")
    cluster.local = 1
    steps(cluster, releaser, drained("b"), [20.0], holders=["1"])
    steps(cluster, releaser, drained("b"), [22.0, 24.0])
    assert (cluster.cordoned, cluster.kills) == (["1"], 0)
    assert "localCheckpoint" in releaser.problem
    cluster.local = 0
    steps(cluster, releaser, drained("b"), [30.0])
    assert (cluster.hosts(), releaser.problem) == (["a"], "")


def test_an_rdd_that_is_checkpointed_while_the_executor_waits_for_a_boundary_keeps_it():
    cluster, releaser = releasing("a", "b")
    releaser.advance(inputs(cluster, drained("b"), batches={"q": 5}), 20.0)
    cluster.local = 1
    releaser.advance(inputs(cluster, drained("b"), batches={"q": 6}), 21.0)
    assert (cluster.cordoned, cluster.kills) == (["1"], 0)


@pytest.mark.parametrize("error", ["fails", "answer_is_lost"])
def test_an_error_of_spark_is_reported_and_the_call_repeated(error):
    cluster, releaser = releasing("a", "b")
    setattr(cluster, error, True)
    releaser.advance(inputs(cluster, drained("b")), 20.0)
    assert "could not be released: no" in releaser.problem
    setattr(cluster, error, False)
    releaser.advance(inputs(cluster, drained("b")), 21.0)
    assert releaser.problem == ""
    assert cluster.cordoned == ["1"]
    assert cluster.hosts() == ["a"]


@pytest.mark.parametrize(
    ("hosts", "workers", "drained_hosts", "target"),
    [("ab", "abc", "c", 2), ("ab", "abcd", "c", 3), ("ab", None, "c", 2), ("a", "ab", "", 3)],
    ids=["none is free", "one host is free", "no standalone master", "one is missing, and one host is free"],
)
def test_target_of_an_application(hosts, workers, drained_hosts, target):
    assert executor_target(hosts, 2, workers, drained_hosts) == target


def test_state_that_was_steered_away_from_an_idle_query_no_longer_counts():
    table = TaskTable()
    table.executors = {"0": info("0", "a"), "1": info("1", "b")}
    table.placement = {("q", 0): ["0", "1"], ("other", 0): ["0"]}
    move = accepted_move(1, "1", "0")
    move.state = MoveState.RELEASED_IDLE
    assert collect_inputs(table, ["q"], {}, [], 0.0).holders == {"0", "1"}
    assert collect_inputs(table, ["q"], {}, [move], 0.0).holders == {"0"}


class Application:
    """An application on hosts a and b, by the events since the attach; executor 1, on b, is to be released."""

    def __init__(self, *queries: str, others: tuple[str, ...] = ()) -> None:
        self.cluster, self.releaser = releasing("a", "b")
        self.table = TaskTable()
        self.table.executors.update(self.cluster.executors)
        self.queries, self.others = queries, others
        self._jobs = 0

    def begin(self, query: str, batch: int, *, state: bool = True) -> events.JobStarted:
        """Begin a job of two tasks."""
        self._jobs += 1
        job = events.JobStarted(
            self._jobs, query, f"run-{query}", batch, 1.0, (events.StageInfo(self._jobs, (), 2, state),)
        )
        self.table.add(job)
        return job

    def end(self, job: events.JobStarted, executors: str) -> None:
        (stage,) = job.stages
        for partition, executor in enumerate(executors):
            row = fakes.task(job.job, partition, executor)
            self.table.add(events.TaskEnded(stage.stage, 0, "", row, stage.stateful))
        self.table.add(events.StageEnded(stage.stage, 0, "", frozenset(), 2))
        self.table.add(events.JobEnded(job.job, 2.0))

    def commit(self, job: events.JobStarted) -> None:
        self.table.add(events.QueryProgressed(job.query, job.run, job.batch, 10, 1.0))

    def run(self, query: str, batch: int, executors: str) -> events.JobStarted:
        """Run a whole batch of one job."""
        job = self.begin(query, batch)
        self.end(job, executors)
        self.commit(job)
        return job

    def release(self, now: float, *, deadline: float = 0.0) -> tuple[list[str], int]:
        """Let the link take a step; return the executors that are cordoned, and the number of those that are killed."""
        drains = drained("b", deadline=deadline)
        self.releaser.advance(collect_inputs(self.table, self.queries, drains, [], now, self.others), now)
        return self.cluster.cordoned, self.cluster.kills


def test_a_link_that_attached_in_a_batch_releases_nothing_until_it_has_seen_a_whole_one():
    application = Application("q")
    assert application.release(20.0) == ([], 0), "q runs, and may hold state anywhere"
    second = application.begin("q", 7)  # it wants the map output of the first one, which was not seen, on executor 1
    assert application.release(21.0) == ([], 0)
    application.end(second, "00")
    application.commit(second)
    assert application.release(81.9) == ([], 0), "the first one may have opened the state of another stage"
    job = application.begin("q", 8)
    application.end(job, "00")
    assert application.release(82.0) == ([], 0)
    application.commit(job)
    assert application.release(83.0) == (["1"], 0)
    assert application.release(85.0) == (["1"], 1)


def test_a_batch_that_began_before_the_cordon_is_waited_for_though_it_was_read_later():
    application = Application("q")
    application.run("q", 6, "00")
    application.run("q", 7, "00")
    assert application.release(20.0) == (["1"], 0)
    unread = application.begin("q", 8)  # it may have tasks on executor 1
    assert application.release(22.0) == (["1"], 0)
    application.end(unread, "00")
    application.commit(unread)
    assert application.release(23.0) == (["1"], 1)


def test_after_the_deadline_a_release_waits_for_the_batch_in_which_the_link_attached():
    application = Application("q")
    assert application.release(20.0, deadline=15.0) == (["1"], 0)
    second = application.begin("q", 7)
    assert application.release(21.0, deadline=15.0) == (["1"], 0)
    application.end(second, "00")
    application.commit(second)
    assert application.release(22.0, deadline=15.0) == (["1"], 1)


@pytest.mark.parametrize("session", ["attached", "another"])
def test_a_query_that_runs_no_batch_holds_a_release_up_for_a_minute(session):
    application = Application("q") if session == "attached" else Application(others=("q",))
    application.release(20.0)
    application.table.assume_quiet("q")
    assert application.release(30.0) == ([], 0)
    assert application.release(89.0) == ([], 0)
    assert application.release(90.0) == (["1"], 0)
    assert application.release(92.0) == (["1"], 1)


def test_a_query_without_state_holds_a_release_up_for_a_batch():
    application = Application("q")
    application.table.assume_quiet("q")
    job = application.begin("q", 3, state=False)
    application.end(job, "01")
    assert application.release(20.0) == ([], 0)
    application.commit(job)
    assert application.release(21.0) == (["1"], 0)
    assert application.release(23.0) == (["1"], 1)


def test_state_and_batches_of_another_session_count_and_its_state_waits_for_the_deadline():
    application = Application()
    application.table.assume_quiet("q")
    application.run("q", 3, "01")
    running = application.begin("q", 4)
    assert application.release(20.0) == ([], 0)
    assert application.releaser.problem.startswith("executors 1 are kept: they hold state of queries of another Spark")
    assert application.release(100.0, deadline=99.0) == (["1"], 0), "batch 4 may want its map output"
    assert application.releaser.problem == ""
    application.end(running, "00")
    application.commit(running)
    assert application.release(101.0, deadline=99.0) == (["1"], 1)


def test_a_query_of_another_session_that_has_ended_holds_nothing_up():
    application = Application()
    application.table.assume_quiet("q")
    job = application.run("q", 3, "01")
    assert application.release(20.0) == ([], 0)
    application.table.add(events.QueryTerminated("q", job.run))
    assert application.release(21.0) == (["1"], 1)


def test_queries_that_start_one_after_the_other_do_not_hold_a_release_up_for_ever():
    application = Application()
    application.table.add(events.QueryStarted("q", "run-q"))
    running = application.begin("q", 0)
    assert application.release(20.0) == (["1"], 0), "its first batch may want the map output"
    application.table.add(events.QueryStarted("r", "run-r"))
    application.begin("r", 0)
    application.end(running, "00")
    application.commit(running)
    assert application.release(21.0) == (["1"], 1)
