"""Task table: jobs, batches, placements and unconfirmed that follow from events."""

from __future__ import annotations

import msgspec
import pytest

from rechannel.monitors.spark import events, task_table
from unit.monitors import spark_lines as lines


def fold(table: task_table.TaskTable, *texts: bytes) -> list[task_table.Notice]:
    notices = []
    for text in texts:
        event = events.parse(text)
        if event is not None:
            notices += table.add(event)
    return notices


def one_batch(batch: int, executors: str, first_stage: int) -> list[bytes]:
    source, stateful = first_stage, first_stage + 1
    return [
        lines.job_start(first_stage, [(source, [], False), (stateful, [source], True)], batch=batch),
        lines.task_end(source, 0, "0", task=first_stage * 10, state=False),
        lines.stage_end(source),
        *(
            lines.task_end(stateful, partition, executor, task=first_stage * 10 + 1 + partition)
            for partition, executor in enumerate(executors)
        ),
        lines.stage_end(stateful),
        lines.job_end(first_stage),
    ]


@pytest.fixture
def table():
    return task_table.TaskTable()


@pytest.fixture
def running(table):
    """A table with one committed batch."""
    fold(table, *one_batch(0, "01", 0), lines.progress(0))
    return table


def test_a_batch_is_reported_with_placement_and_stages(table):
    notices = fold(table, *one_batch(0, "01", 0), lines.progress(0))
    kinds = [type(notice).__name__ for notice in notices]
    assert kinds == ["QueryBusy", "StatefulStageFinished", "BatchDone"]
    assert notices[1].accumulators == {7}
    report = notices[-1].report
    assert (report.batch, report.input_rows, report.start, report.end) == (0, 10, 1.0, 3.0)
    assert [(stage.stateful_stage, stage.parents, len(stage.tasks)) for stage in report.stages] == [
        (-1, [], 1),
        (0, [0], 2),
    ]
    assert table.placement == {("q", 0): ["0", "1"]}


def test_a_partition_that_runs_elsewhere_than_before_is_reported(running):
    notices = fold(running, *one_batch(1, "00", 10), lines.progress(1))
    assert [notice for notice in notices if isinstance(notice, task_table.PartitionMoved)] == [
        task_table.PartitionMoved("q", 0, 1, "1", "0")
    ]
    notices = fold(running, *one_batch(2, "00", 20), lines.progress(2))
    assert not any(isinstance(notice, task_table.PartitionMoved) for notice in notices)


@pytest.mark.parametrize("first", [lines.started(), lines.progress(0)])
def test_a_job_belongs_to_the_run_of_its_query_whatever_its_group(table, first):
    fold(table, first)
    (busy,) = fold(table, lines.job_start(9, [(9, [], True)], batch=1, group="users-own"))
    assert (busy, table.runs) == (task_table.QueryBusy("q", "run"), {"run": "q"})
    fold(table, lines.terminated())
    assert (table.runs, table.jobs) == ({}, set())
    (busy,) = fold(table, lines.started("run-2"), lines.job_start(10, [(10, [], True)], batch=1, group="users-own"))
    assert busy.run == "run-2"


def test_a_run_whose_start_was_lost_is_that_of_spark_itself(table):
    fold(table, lines.started("run-1"), lines.job_start(1, [(1, [], True)], group="users-own"))
    table.correct_runs({"run-1": "q"})
    assert table.runs == {"run-1": "q"}
    table.correct_runs({"run-2": "q"})
    (busy,) = fold(table, lines.job_start(2, [(2, [], True)], batch=1, group="run-2"))
    assert busy.run == "run-2"


def test_a_query_is_quiet_between_its_jobs_only(table):
    assert table.is_quiet("q") is None
    fold(table, *one_batch(0, "01", 0))
    assert table.is_quiet("q") is None, "a job of before the attach may still run"
    fold(table, lines.progress(0))
    assert table.is_quiet("q") is True
    batch = one_batch(1, "01", 2)
    fold(table, *batch[:-1])
    assert table.is_quiet("q") is False
    assert fold(table, batch[-1]) == []
    assert table.is_quiet("q") is True
    fold(table, lines.job_start(5, [(8, [], True)], batch=1), lines.job_start(6, [(9, [], True)], batch=1))
    fold(table, lines.job_end(5))
    assert table.is_quiet("q") is False
    fold(table, lines.job_end(6))
    assert table.is_quiet("q") is True


def test_a_query_whose_start_was_seen_is_quiet_as_soon_as_the_jobs_of_its_first_batch_are_over(table):
    fold(table, lines.started())
    assert not table.has_state("q")
    batch = one_batch(0, "01", 0)
    fold(table, batch[0])
    assert (table.is_quiet("q"), table.has_state("q")) == (False, True), "by the job's stages"
    fold(table, *batch[1:])
    assert (table.is_quiet("q"), table.in_batch("q"), table.has_state("q")) == (True, True, True)
    fold(table, lines.terminated())
    assert (table.is_quiet("q"), table.has_state("q")) == (None, False)


def test_no_query_is_quiet_while_a_job_without_a_query_opens_state(running):
    """foreachBatch from a thread of the user's own loses the query's name."""
    fold(running, lines.job_start(7, [(9, [], False)], query=""))
    assert running.is_quiet("q") is True, "a job without state concerns no query"
    fold(running, lines.job_start(8, [(10, [], True)], query=""))
    assert running.is_quiet("q") is False
    fold(running, lines.job_end(8))
    assert running.is_quiet("q") is True


def test_a_lost_job_end_is_healed_by_the_commit(table):
    fold(table, *one_batch(0, "01", 0), lines.progress(0), *one_batch(1, "01", 2)[:-1])
    assert table.is_quiet("q") is False
    fold(table, lines.progress(1))
    assert table.is_quiet("q") is True
    assert not table._jobs
    assert not table._tasks


def test_a_batch_whose_job_start_was_healed_begins_with_its_trigger(table):
    first, *rest = one_batch(0, "01", 0)
    started, progressed = events.parse(first), events.parse(lines.progress(0))
    table.add(msgspec.structs.replace(started, at=0.0))
    fold(table, *rest)
    (*_, done) = table.add(msgspec.structs.replace(progressed, triggered=0.5))
    assert (done.report.start, done.report.end) == (0.5, 3.0)


def test_a_job_over_a_part_of_the_partitions_leaves_the_others_as_they_were(table):
    fold(table, *one_batch(0, "0120", 0), lines.progress(0))
    fold(
        table,
        lines.job_start(5, [(8, [], True)], batch=1, tasks=1),
        lines.task_end(8, 0, "2"),
        lines.stage_end(8),
        lines.job_end(5),
    )
    assert table.placement == {("q", 0): ["2", "1", "2", "0"]}
    assert table.last_ran == {("q", 0): [1, 0, 0, 0]}


def test_a_stage_that_reads_a_cached_copy_does_not_change_the_placement(table):
    fold(table, *one_batch(0, "01", 0))
    notices = fold(
        table,
        lines.job_start(5, [(8, [], True)], batch=0),
        lines.task_end(8, 0, "7", state=False),
        lines.task_end(8, 1, "7", state=False),
        lines.stage_end(8),
        lines.job_end(5),
        lines.progress(0),
    )
    assert table.placement == {("q", 0): ["0", "1"]}
    assert [stage.stateful_stage for stage in notices[-1].report.stages] == [-1, 0, -1]


def test_placement_follows_the_last_successful_task(table):
    fold(table, *one_batch(0, "01", 0), lines.progress(0), *one_batch(1, "21", 4), lines.progress(1))
    assert table.placement == {("q", 0): ["2", "1"]}


def test_a_retried_stage_keeps_its_successful_tasks(table):
    notices = fold(
        table,
        lines.job_start(0, [(0, [], True)]),
        lines.task_end(0, 0, "0"),
        lines.task_end(0, 1, "1", reason="FetchFailed"),
        lines.stage_end(0, failure="fetch failed"),
        lines.task_end(0, 1, "2", attempt=1),
        lines.stage_end(0, attempt=1),
        lines.job_end(0),
        lines.progress(0),
    )
    assert table.placement == {("q", 0): ["0", "2"]}
    assert table.failed_tasks == 1
    assert len(notices[-1].report.stages[0].tasks) == 2


def test_a_killed_copy_is_no_failure(table):
    fold(table, lines.job_start(0, [(0, [], True)]), lines.task_end(0, 0, "0", reason="TaskKilled"))
    assert table.failed_tasks == 0


def test_executors_come_and_go_and_a_terminated_query_is_removed(table):
    fold(table, lines.executor_added("3", "n1", 4), *one_batch(0, "01", 0))
    assert (table.executors["3"].node_name, table.executors["3"].cores) == ("n1", 4)
    fold(table, lines.executor_added("3", "10.244.1.7", APP_ID="app-1", RECHANNEL_NODE="worker-1"))
    assert (table.executors["3"].host, table.executors["3"].node_name) == ("10.244.1.7", "worker-1")
    fold(table, lines.executor_removed("3"), lines.terminated())
    assert table.executors == {}
    assert table.placement == {}
    assert table.is_quiet("q") is None


def test_events_of_a_batch_from_before_the_attach_are_ignored(table):
    notices = fold(table, lines.task_end(3, 0, "0"), lines.stage_end(3), lines.job_end(2), lines.progress(7))
    assert notices == []
    assert table.is_quiet("q") is True


def test_a_query_is_surveyed_once_all_jobs_of_a_batch_were_seen(table):
    fold(table, *one_batch(7, "01", 0), lines.progress(7))
    assert table.surveyed == set(), "jobs of batch 7 may have run before the attach"
    fold(table, *one_batch(8, "01", 2))
    assert table.surveyed == set(), "its next job may open the state of another stage"
    fold(table, lines.progress(8))
    assert table.surveyed == {"q"}
    fold(table, lines.terminated())
    assert table.surveyed == set()
    fold(table, lines.started("run-2"))
    assert table.surveyed == {"q"}, "it has no state before its first batch"


def test_uncommitted_batches_are_bounded(table):
    for number in range(100):
        fold(table, *one_batch(number, "01", number * 2))
    assert len(table._batches["q"]) <= 4
    assert not table._tasks


def test_tasks_of_a_stage_whose_end_was_lost_count_when_its_job_ends(table):
    fold(table, *(line for line in one_batch(0, "01", 2) if b"StageCompleted" not in line))
    assert table.placement == {("q", 0): ["0", "1"]}
    assert not table._tasks


def test_a_commit_includes_the_batches_before_it(table):
    fold(table, *one_batch(0, "01", 0), *one_batch(1, "01", 2), lines.progress(1))
    assert not table._batches["q"]


def test_a_failed_stage_leaves_no_doubt(running):
    fold(
        running,
        lines.job_start(5, [(8, [], True)], batch=1),
        lines.task_end(8, 0, "0"),
        lines.stage_end(8, 0, "lost", 2),
    )
    assert not running.unconfirmed
