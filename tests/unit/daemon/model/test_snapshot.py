from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from rechannel.daemon.model import query_model
from rechannel.daemon.model.snapshot import NotReady, Snapshot, build_snapshot, coverage_of, take_snapshot
from rechannel.policies.analysis.queueing import executor_utilization
from rechannel.wire.measurements import BatchReport, StageRun, StreamRow
from rechannel.wire.messages import LinkReport
from unit.daemon.fakes import APP, NOW, QUERY, batch, query, report, settings, task, window

WHERE = ["0", "0", "1", "2"]
WINDOWS = {f"127.0.0.{e + 2}": [window(e)] for e in range(4)}
BATCHES = [batch(number, WHERE, {0: 2.0, 1: 1.0}) for number in (7, 8, 9)]


def snapshot(
    seen: LinkReport | None = None, batches: list[BatchReport] | None = None, windows: object = None, now: float = NOW
) -> Snapshot | NotReady:
    return take_snapshot(
        APP,
        report([query(WHERE)]) if seen is None else seen,
        BATCHES if batches is None else batches,
        WINDOWS if windows is None else windows,  # type: ignore[arg-type]
        settings(),
        now,
    )


def taken(**given: object) -> Snapshot:
    found = snapshot(**given)  # type: ignore[arg-type]
    assert isinstance(found, Snapshot), found
    return found


def test_what_another_executor_loads_is_the_state_and_what_came_after_its_snapshot() -> None:
    rows = [(task(0, 0, "0", rows=50), 400), (task(1, 1, "0", rows=50), 0)]
    tasks = [msgspec.structs.replace(row, state_rows=200, state_size=size) for row, size in rows]
    stages = [StageRun(spark_stage=1, parents=[], stateful=0, tasks=tasks)]
    made = msgspec.structs.replace(batch(9, "00"), stages=stages)
    (stage,) = query("00").stages
    assert query_model.load_bytes(stage, QUERY, [made]).tolist() == [400.0, 1000.0], "without its size, what it takes"
    aged = msgspec.structs.replace(stage, snapshot_lag=[4, -1])
    assert query_model.load_bytes(aged, QUERY, [made]).tolist() == [400.0 + 4 * 100.0, 1000.0]
    assert query_model.load_bytes(aged, "another", [made]).tolist() == [0.0, 0.0]


def test_the_model_of_one_query() -> None:
    found = taken()
    assert found.cluster.executors == ("0", "1", "2", "3")
    assert found.cluster.nodes == ("127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5")
    assert found.cluster.cores.tolist() == [1, 1, 1, 1]
    assert found.cluster.memory_bytes.tolist() == [math.inf] * 4
    assert [stage.key for stage in found.workload.stages] == [f"{QUERY}/f0", f"{QUERY}/0"]
    source, state = found.workload.stages
    assert (source.placeable, state.placeable) == (False, True)
    assert source.busy.tolist() == pytest.approx([0.1] * 4)
    assert state.busy.tolist() == pytest.approx([2.0, 1.0, 0.1, 0.1])
    assert state.rows.tolist() == [50] * 4
    assert state.state_bytes.tolist() == [1000] * 4
    assert state.batches_per_second == pytest.approx(0.2)
    assert found.placement[f"{QUERY}/0"].tolist() == [0, 0, 1, 2]
    assert found.stages == {f"{QUERY}/0": (QUERY, 0)}
    assert found.batch_seconds == {QUERY: pytest.approx(5.0)}
    assert found.coverage.share == 1
    queue = executor_utilization(found.cluster, found.workload, found.placement)
    assert queue.utilization.tolist() == pytest.approx([0.62, 0.04, 0.04, 0.02])


def test_time_spent_waiting_for_others_data_is_not_work() -> None:
    waiting = [only_state(made, [task(1, p, WHERE[p], run=2.0, wait=1.5) for p in range(4)]) for made in BATCHES]
    assert taken(batches=waiting).workload.stage(f"{QUERY}/0").busy.tolist() == pytest.approx([0.5] * 4)


def only_state(made: BatchReport, tasks: list[object]) -> BatchReport:
    run = StageRun(spark_stage=99, parents=[], stateful=0, tasks=tasks)  # type: ignore[arg-type]
    return BatchReport(query=made.query, batch=made.batch, start=made.start, end=made.end, input_rows=1, stages=[run])


def test_a_partition_that_did_not_run_in_a_batch_counts_as_idle_there() -> None:
    partial = [*BATCHES[:2], only_state(BATCHES[2], [task(1, 0, "0", run=2.0)])]
    state = taken(batches=partial).workload.stage(f"{QUERY}/0")
    assert state.busy.tolist() == pytest.approx([2.0, 2 / 3, 0.2 / 3, 0.2 / 3])
    assert state.state_bytes.tolist() == [1000] * 4, "its state is still there"


def test_a_stage_run_again_counts_once() -> None:
    twice = [task(1, 0, "1", run=9.0), task(2, 0, "0", run=2.0)]
    twice[0] = type(twice[0])(
        *[getattr(twice[0], f) if f != "finish" else NOW - 60 for f in twice[0].__struct_fields__]
    )
    again = [only_state(made, twice) for made in BATCHES]
    assert taken(batches=again).workload.stage(f"{QUERY}/0").busy[0] == pytest.approx(2.0)


def test_only_the_last_batches_count() -> None:
    old = [batch(number, WHERE, {0: 50.0}) for number in (3, 4, 5)]
    assert taken(batches=[*BATCHES, *old]).workload.stage(f"{QUERY}/0").busy[0] == pytest.approx(2.0)


def test_a_fast_query_is_averaged_over_the_whole_windows() -> None:
    # Batches of a second: of twenty, those of the last three windows of five seconds count, not only the least three.
    fast = [batch(number, WHERE, {0: 9.0 if number < -6 else 1.0}, period=1.0) for number in range(-10, 7)]
    fast += [batch(number, WHERE, {0: 4.0}, period=1.0) for number in (7, 8, 9)]
    assert taken(batches=fast).workload.stage(f"{QUERY}/0").busy[0] == pytest.approx((13 * 1.0 + 3 * 4.0) / 16)


def test_a_slow_query_is_averaged_over_the_least_number_of_batches() -> None:
    slow = [batch(number, WHERE, {0: float(number)}, period=60.0) for number in range(10)]
    windows = {node: [window(number)] for number, node in enumerate(WINDOWS)}
    assert taken(batches=slow, windows=windows).workload.stage(f"{QUERY}/0").busy[0] == pytest.approx(8.0)


def test_an_idle_querys_rate_falls_with_its_silence() -> None:
    windows = {node: [window(number, end=NOW + 95)] for number, node in enumerate(WINDOWS)}
    found = taken(windows=windows, now=NOW + 100)
    assert found.workload.stage(f"{QUERY}/0").batches_per_second == pytest.approx(0.01)


def test_partitions_of_executors_that_are_gone_are_on_no_executor() -> None:
    assert taken(seen=report([query(["0", "7", "", "2"])])).placement[f"{QUERY}/0"].tolist() == [0, -1, -1, 2]


def test_executors_follow_by_number() -> None:
    many = report([query(WHERE)], count=12)
    windows = {f"127.0.0.{e + 2}": [window(e)] for e in range(12)}
    assert taken(seen=many, windows=windows).cluster.executors == tuple(str(e) for e in range(12))


def stream_rows(numbers: tuple[int, ...] = (7, 8, 9)) -> list[StreamRow]:
    return [StreamRow(APP, str(e), 0, number * 1000 + e, [100 * e, 10, 0, 0]) for number in numbers for e in range(4)]


def test_streams_are_joined_by_task_id() -> None:
    windows = {
        f"127.0.0.{e + 2}": [window(e, streams=[row for row in stream_rows() if row.executor == str(e)])]
        for e in range(4)
    }
    (stream,) = taken(windows=windows).workload.streams
    assert (stream.upstream, stream.downstream) == (f"{QUERY}/f0", f"{QUERY}/0")
    expected = np.array([[0, 10, 0, 0], [100, 10, 0, 0], [200, 10, 0, 0], [300, 10, 0, 0]])
    np.testing.assert_allclose(stream.volume, expected * 0.2)


@pytest.mark.parametrize(
    ("rows", "note"),
    [
        pytest.param([StreamRow("other", "0", 0, 9000, [1, 1, 1, 1])], "", id="another application's"),
        pytest.param([StreamRow(APP, "0", 0, 123456, [1, 1, 1, 1])], "", id="a task nobody reported"),
        pytest.param([StreamRow(APP, "0", 0, 9000, [1, 1])], "fits no stage", id="other partitions"),
        pytest.param([StreamRow(APP, "0", 0, 9000, [-1, 1, 1, 1])], "fits no stage", id="negative"),
    ],
)
def test_stream_rows_that_fit_nothing_are_skipped(rows: list[StreamRow], note: str) -> None:
    found = taken(windows={**WINDOWS, "127.0.0.2": [window(0, streams=rows)]})
    assert found.workload.streams == ()
    assert any(note in text for text in found.notes) == bool(note)


def test_batches_seen_in_part_do_not_lessen_a_stream() -> None:
    windows = {**WINDOWS, "127.0.0.2": [window(0, streams=stream_rows((9,)))]}
    (stream,) = taken(windows=windows).workload.streams
    assert stream.volume[3].tolist() == pytest.approx([60, 2, 0, 0])


def test_a_floating_readers_stream_goes_to_where_it_ran() -> None:
    chained = []
    for made in BATCHES:
        sink = StageRun(
            spark_stage=2 * made.batch + 2,
            parents=[2 * made.batch + 1],
            stateful=-1,
            tasks=[task(made.batch * 1000 + 500 + p, p, str(3 - p), run=0.2) for p in range(2)],
        )
        chained.append(
            BatchReport(
                query=QUERY, batch=made.batch, start=made.start, end=made.end, input_rows=1, stages=[*made.stages, sink]
            )
        )
    rows = [StreamRow(APP, "0", 1, 9100, [40, 60])]
    found = taken(batches=chained, windows={**WINDOWS, "127.0.0.2": [window(0, streams=rows)]})
    (stream,) = found.workload.streams
    assert (stream.upstream, stream.downstream) == (f"{QUERY}/0", f"{QUERY}/f1")
    assert stream.volume[0].tolist() == pytest.approx([0, 0, 12, 8])


def test_a_query_that_cannot_be_moved_still_loads_its_executors() -> None:
    other = [batch(number, WHERE, {0: 4.0}, name="q2") for number in (7, 8, 9)]
    seen = report([query(WHERE), query(WHERE, "q2", problem="real-time mode")])
    found = taken(seen=seen, batches=[*BATCHES, *other])
    assert [stage.key for stage in found.workload.placeable] == [f"{QUERY}/0"]
    fixed = found.workload.stage("q2/0")
    assert not fixed.placeable
    assert fixed.busy.tolist() == pytest.approx([4.1, 0.1, 0.1, 0])


def test_a_young_query_does_not_hold_up_the_others() -> None:
    young = [batch(9, WHERE, {0: 4.0}, name="q2")]
    found = taken(seen=report([query(WHERE), query(WHERE, "q2")]), batches=[*BATCHES, *young])
    assert {stage.query for stage in found.workload.placeable} == {QUERY}
    assert not found.workload.stage("q2/0").placeable


def not_ready(**given: object) -> NotReady:
    found = snapshot(**given)  # type: ignore[arg-type]
    assert isinstance(found, NotReady)
    return found


def test_not_ready_without_executors() -> None:
    assert not_ready(seen=report([query(WHERE)], count=0)).code == "no-executors"


def test_not_ready_without_an_active_query() -> None:
    assert not_ready(seen=report([query(WHERE, active=False)])).code == "no-active-query"


def test_not_ready_when_no_query_can_be_moved_and_waiting_does_not_help() -> None:
    found = not_ready(seen=report([query(WHERE, problem="runs in real-time mode")]))
    assert (found.code, found.transient) == ("query-problem", False)
    assert found.sentence == "no query can be moved: name-of-q1: runs in real-time mode"


def test_not_ready_before_enough_batches_says_how_long() -> None:
    found = not_ready(batches=BATCHES[2:])
    assert (found.code, found.transient, found.ready_in) == ("too-few-batches", True, pytest.approx(10))
    assert found.sentence == "query name-of-q1 has 1 measured batch, 3 are needed (reschedule.batches)"
    assert not_ready(batches=[]).ready_in is None


def test_silent_agents_hold_no_decision_up_and_are_named() -> None:
    found = taken(windows={**WINDOWS, "127.0.0.3": [], "127.0.0.5": [window(3, end=NOW - 21)]})
    assert found.coverage.silent == ("127.0.0.3", "127.0.0.5")
    unknown = "the sizes of streams from there are taken as unknown"
    assert found.notes == (f"no agent reports from nodes 127.0.0.3, 127.0.0.5: {unknown}",)
    none = taken(windows={})
    assert none.notes == (f"no agent reports from any node: {unknown}",)
    assert none.shuffles_seen is None
    assert none.workload.streams == ()
    assert taken().notes == ()
    for one in (found, none):
        for mine, whole in zip(one.workload.stages, taken().workload.stages, strict=True):
            assert mine.busy.tolist() == whole.busy.tolist()


def test_nothing_is_said_of_shuffles_that_agents_reported_before_they_fell_silent() -> None:
    sent = [streams_of(number) for number in (7, 8, 9)]
    old = {node: [msgspec.structs.replace(window(e, end=NOW - 60), streams=sent[0])] for e, node in enumerate(WINDOWS)}
    assert taken(windows=old).shuffles_seen is None


def streams_of(number: int, executors: Sequence[int] = range(4)) -> list[StreamRow]:
    """What the source tasks of a batch sent to each of four partitions."""
    return [
        StreamRow(application=APP, executor=str(e), shuffle=1, map_task=number * 1000 + e, sizes=[100, 200, 300, 400])
        for e in executors
    ]


def test_what_a_silent_node_sent_speaks_neither_for_nor_against_its_executors() -> None:
    rows = [row for number in (7, 8, 9) for row in streams_of(number, (0, 1, 2))]
    windows = {**WINDOWS, "127.0.0.2": [window(0, streams=rows)]}
    whole = taken(windows={**windows, "127.0.0.3": [window(1, streams=streams_of(7, (3,)))]})
    (zero,) = whole.workload.streams
    assert zero.volume[3].sum() < zero.volume[0].sum(), "a task of a node that reports and told nothing sent nothing"
    (stream,) = taken(windows={**windows, "127.0.0.5": []}).workload.streams
    assert stream.volume[3].tolist() == pytest.approx(stream.volume[0].tolist())
    assert stream.volume[3].sum() > 0


def test_another_applications_executor_of_the_same_name_covers_nothing() -> None:
    windows = {node: [window(number, application="other")] for number, node in enumerate(WINDOWS)}
    assert coverage_of(APP, report([query(WHERE)]), windows, settings(), NOW).share == 0


def test_not_ready_still_has_a_model_to_look_at() -> None:
    built = build_snapshot(APP, report([query(WHERE)]), BATCHES[2:], {}, settings(), NOW)
    assert built is not None
    assert built.workload.placeable == ()
    assert built.coverage.share == 0


def test_a_stage_of_no_partitions_is_left_out() -> None:
    empty = query([])
    found = build_snapshot(APP, report([empty]), BATCHES, WINDOWS, settings(), NOW)
    assert found is not None
    assert found.stages == {}


def test_settings_bound_what_is_looked_at() -> None:
    more = dataclasses.replace(settings(), reschedule=dataclasses.replace(settings().reschedule, batches=5))
    found = take_snapshot(APP, report([query(WHERE)]), BATCHES, WINDOWS, more, NOW)
    assert isinstance(found, NotReady)


def test_executors_of_drained_nodes_and_those_that_leave_are_not_available() -> None:
    leaving = msgspec.structs.replace(report([query(WHERE)]), releasing_executors=["1"])
    found = take_snapshot(APP, leaving, BATCHES, WINDOWS, settings(), NOW, ["127.0.0.4"])
    assert isinstance(found, Snapshot)
    assert found.cluster.available.tolist() == [True, False, False, True]


def test_the_whole_model_has_queries_that_were_never_measured() -> None:
    seen = report([query(WHERE), query(["3", "3"], "idle"), query(["3"], "stuck", problem="real-time")])
    found = build_snapshot(APP, seen, BATCHES, {}, settings(), NOW, whole=True)
    assert found is not None
    assert found.stages == {f"{QUERY}/0": (QUERY, 0), "idle/0": ("idle", 0)}
    assert found.workload.stage("idle/0").busy.tolist() == [0, 0]
    assert found.placement["idle/0"].tolist() == [3, 3]
    assert set(found.batch_seconds) == {QUERY}


def slowed(number: int, times: float) -> BatchReport:
    """Batch with twelve partitions over four executors, of which executor 2 takes so many times as long."""
    made = batch(number, [str(p % 4) for p in range(12)])
    stages = []
    for run in made.stages:
        tasks = [
            msgspec.structs.replace(item, run=item.run * (times if item.executor == "2" else 1.0)) for item in run.tasks
        ]
        stages.append(msgspec.structs.replace(run, tasks=tasks))
    return msgspec.structs.replace(made, stages=stages)


def test_a_slow_executor_is_slow_and_its_partitions_are_not_heavy() -> None:
    where = [str(p % 4) for p in range(12)]
    found = taken(seen=report([query(where)]), batches=[slowed(number, 2.0) for number in range(10)])
    assert found.cluster.speed.tolist() == pytest.approx([1, 1, 0.5, 1], rel=0.05)
    assert found.workload.stage(f"{QUERY}/0").busy.tolist() == pytest.approx([0.1] * 12, rel=0.05)
    assert found.workload.stage(f"{QUERY}/f0").busy.tolist() == pytest.approx([0.1] * 4, rel=0.05)
    (note,) = found.notes
    assert note.startswith("executor 2 on 127.0.0.4 is slow: its tasks take 2.0 times what others' take")


def joined(age: float) -> LinkReport:
    """Executor 2 was added so many seconds ago, the others an hour ago."""
    made = report([query([str(p % 4) for p in range(12)])])
    added = [
        msgspec.structs.replace(info, added=NOW - (age if info.executor == "2" else 3600.0)) for info in made.executors
    ]
    return msgspec.structs.replace(made, executors=added)


def test_an_executor_that_is_new_is_not_slow_yet() -> None:
    batches = [slowed(number, 2.0) for number in range(10)]
    found = taken(seen=joined(30.0), batches=batches)
    assert found.cluster.speed.tolist() == [1, 1, 1, 1]
    assert found.workload.stage(f"{QUERY}/0").busy.tolist() == pytest.approx([0.1] * 12, rel=0.05), "as elsewhere"
    (note,) = found.notes
    assert note.endswith("its tasks take 2.0 times what others' take, which does not count as long as it is new")
    assert taken(seen=joined(130.0), batches=batches).cluster.speed.tolist() == pytest.approx([1, 1, 0.5, 1], rel=0.05)


def test_a_new_executor_that_becomes_slower_or_is_faster_is_believed() -> None:
    became = [slowed(number, 1.0) for number in range(7)] + [slowed(number, 2.0) for number in (7, 8, 9)]
    assert taken(seen=joined(30.0), batches=became).cluster.speed[2] < 0.65
    faster = [slowed(number, 0.5) for number in range(10)]
    assert taken(seen=joined(30.0), batches=faster).cluster.speed[2] == pytest.approx(2.0, rel=0.1)


def test_an_executor_that_just_became_slow_is_told_by_its_own_past() -> None:
    where = [str(p % 4) for p in range(12)]
    batches = [slowed(number, 1.0) for number in range(7)] + [slowed(number, 2.0) for number in (7, 8, 9)]
    (note,) = taken(seen=report([query(where)]), batches=batches).notes
    assert "what they took there before" in note


def test_equal_executors_have_speed_one_and_no_note() -> None:
    found = taken()
    assert found.cluster.speed.tolist() == [1, 1, 1, 1]
    assert found.notes == ()


def rare_batches(new_since: int, slow: dict[int, float]) -> tuple[list[BatchReport], LinkReport]:
    """A batch every five minutes; executor 3 joins at one, and its tasks take so many times as long in each."""
    made = []
    for number in range(4, 10):
        start = NOW - 300.0 * (10 - number)
        there = range(4) if number >= new_since else range(3)
        source = [
            task(number * 1000 + 10 * e + copy, copy, str(e), run=1.0 * (slow.get(number, 1.0) if e == 3 else 1.0))
            for e in there
            for copy in range(2)
        ]
        state = [
            task(
                number * 1000 + 100 + p, p, str(p % len(there)), run=slow.get(number, 1.0) if p % len(there) == 3 else 1
            )
            for p in range(12)
        ]
        stages = [
            StageRun(spark_stage=2 * number, parents=[], stateful=-1, tasks=source),
            StageRun(spark_stage=2 * number + 1, parents=[2 * number], stateful=0, tasks=state),
        ]
        made.append(BatchReport(query=QUERY, batch=number, start=start, end=start + 20, input_rows=400, stages=stages))
    body = report([query([str(p % 4) for p in range(12)])])
    added = [NOW - 86_400.0] * 3 + [NOW - 300.0 * (10 - new_since) - 1]
    infos = [msgspec.structs.replace(info, added=at) for info, at in zip(body.executors, added, strict=True)]
    return made, msgspec.structs.replace(body, executors=infos)


def test_the_first_tasks_of_a_new_executor_say_nothing_of_its_speed_however_long_ago_they_were() -> None:
    """It is older than `reschedule.warm_up`, as batches are rare, and its code was compiled in its first tasks."""
    batches, seen = rare_batches(9, {9: 4.0})
    assert taken(seen=seen, batches=batches).cluster.speed.tolist() == [1, 1, 1, 1]
    batches, seen = rare_batches(7, {7: 4.0, 8: 1.5})
    assert taken(seen=seen, batches=batches).cluster.speed.tolist() == [1, 1, 1, 1]


def test_a_new_executor_that_is_slow_after_its_first_tasks_is_slow() -> None:
    batches, seen = rare_batches(5, dict.fromkeys(range(10), 4.0))
    assert taken(seen=seen, batches=batches).cluster.speed[3] < 0.5


def test_of_old_executors_every_task_counts() -> None:
    batches, seen = rare_batches(7, dict.fromkeys(range(10), 4.0))
    old = [msgspec.structs.replace(info, added=NOW - 86_400.0) for info in seen.executors]
    assert taken(seen=msgspec.structs.replace(seen, executors=old), batches=batches).cluster.speed[3] < 0.5
