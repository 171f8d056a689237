from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import pytest

from rechannel.daemon.model.readiness import NotReady
from rechannel.daemon.model.snapshot import Snapshot, build_snapshot, take_snapshot
from rechannel.policies.analysis.queueing import executor_utilization
from rechannel.wire.codes import NotReadyReason, SlowCause
from rechannel.wire.measurements import AgentWindow, BatchReport, MapOutput, StageRun, TaskRow
from rechannel.wire.messages import LinkReport, QueryState
from unit.daemon.fake_store import NOW
from unit.daemon.fakes import APP, QUERY, batch, query, report, settings, task, window
from unit.daemon.model.builders import messages, with_tasks

Windows = Mapping[str, Sequence[AgentWindow]]

WHERE = ["0", "0", "1", "2"]
TWELVE = [str(partition % 4) for partition in range(12)]
WINDOWS = {f"127.0.0.{e + 2}": [window(e)] for e in range(4)}
BATCHES = [batch(number, WHERE, {0: 2.0, 1: 1.0}) for number in (7, 8, 9)]


def snapshot(
    link: LinkReport | None = None,
    batches: list[BatchReport] | None = None,
    windows: Windows | None = None,
    now: float = NOW,
) -> Snapshot | NotReady:
    link = report([query(WHERE)]) if link is None else link
    windows = WINDOWS if windows is None else windows
    return take_snapshot(messages(link, BATCHES if batches is None else batches, windows), settings(), now)


def ready(**arguments: object) -> Snapshot:
    result = snapshot(**arguments)  # type: ignore[arg-type]
    assert isinstance(result, Snapshot), result
    return result


@pytest.mark.parametrize("agent", [None, "worker-1"], ids=["in each pod", "beside the pods"])
def test_pods_are_on_the_node_that_they_name_and_are_measured_from_inside_or_outside(agent: str | None) -> None:
    link = report([query(WHERE)])
    pods = [msgspec.structs.replace(info, node="worker-1") for info in link.executors]
    together = msgspec.structs.replace(window(0), node="worker-1", executors=[window(e).executors[0] for e in range(4)])
    windows = WINDOWS if agent is None else {agent: [together]}
    result = ready(link=msgspec.structs.replace(link, executors=pods), windows=windows)
    assert result.cluster.nodes == ("worker-1",) * 4
    assert (result.coverage.fresh, result.notes) == (4, ())


def test_the_model_of_one_query() -> None:
    result = ready()
    assert result.notes == ()
    assert result.cluster.speed.tolist() == [1, 1, 1, 1]
    assert result.cluster.executors == ("0", "1", "2", "3")
    assert result.cluster.nodes == ("127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5")
    assert result.cluster.cores.tolist() == [1, 1, 1, 1]
    assert result.cluster.memory_bytes.tolist() == [math.inf] * 4
    assert [stage.key for stage in result.workload.stages] == [f"{QUERY}/f0", f"{QUERY}/0"]
    source, state = result.workload.stages
    assert (source.placeable, state.placeable) == (False, True)
    assert source.busy.tolist() == pytest.approx([0.1] * 4)
    assert state.busy.tolist() == pytest.approx([2.0, 1.0, 0.1, 0.1])
    assert state.rows.tolist() == [50] * 4
    assert state.state_bytes.tolist() == [1000] * 4
    assert state.batches_per_second == pytest.approx(0.2)
    assert result.placement[f"{QUERY}/0"].tolist() == [0, 0, 1, 2]
    assert result.stage_ids == {f"{QUERY}/0": (QUERY, 0)}
    assert result.recent_batch_seconds == {QUERY: pytest.approx(5.0)}
    assert (result.coverage.fresh, result.coverage.silent) == (4, ())
    queue = executor_utilization(result.cluster, result.workload, result.placement)
    assert queue.utilization.tolist() == pytest.approx([0.62, 0.04, 0.04, 0.02])


def outputs_of(number: int, executors: Sequence[int] = range(4)) -> list[MapOutput]:
    """What the source tasks of a batch sent to each of four partitions."""
    return [
        MapOutput(application=APP, executor=str(e), shuffle=1, map_task=number * 1000 + e, sizes=[100, 200, 300, 400])
        for e in executors
    ]


# -- the branches of the model and of readiness --


@dataclass(frozen=True)
class Case:
    """What is different from the usual application, and the figures of its model; None for no model."""

    figures: dict[str, object] | None
    queries: tuple[QueryState, ...] = (query(WHERE),)
    batches: Sequence[BatchReport] = tuple(BATCHES)
    windows: Windows = field(default_factory=lambda: WINDOWS)
    drained: tuple[str, ...] = ()
    leaving: tuple[str, ...] = ()
    count: int = 4
    now: float = NOW
    include_unmeasured: bool = False

    def build(self) -> Snapshot | None:
        link = report(self.queries, count=self.count)
        link = msgspec.structs.replace(link, releasing_executors=list(self.leaving))
        inputs = messages(link, self.batches, self.windows)
        return build_snapshot(inputs, settings(), self.now, self.drained, include_unmeasured=self.include_unmeasured)


def figures(built: Snapshot) -> dict[str, object]:
    """Return what the cases speak of."""
    stages = built.workload.stages
    return {
        "executors": built.cluster.executors,
        "available": built.cluster.available.tolist(),
        "placement": {key: array.tolist() for key, array in built.placement.assignments.items()},
        "placeable": [stage.key for stage in stages if stage.placeable],
        "floating": [stage.key for stage in stages if not stage.placeable],
        "busy": {stage.key: [round(float(busy), 3) for busy in stage.busy] for stage in stages},
        "state": {stage.key: stage.state_bytes.tolist() for stage in stages},
        "rate": {stage.key: round(stage.batches_per_second, 3) for stage in stages},
        "measured": set(built.recent_batch_seconds),
        "fresh": built.coverage.fresh,
        "silent": built.coverage.silent,
        "shuffles": built.shuffle_coverage,
        "notes": built.notes,
    }


def only_state(item: BatchReport, tasks: list[TaskRow]) -> BatchReport:
    run = StageRun(spark_stage=99, parents=[], stateful_stage=0, tasks=tasks)
    return msgspec.structs.replace(item, input_rows=1, stages=[run])


KEY = f"{QUERY}/0"
USUAL = [2.0, 1.0, 0.1, 0.1]
NEEDED = "3 are needed (reschedule.batches)"
UNKNOWN = "the sizes of streams from there are taken as unknown"
OLD = [batch(number, WHERE, {0: 50.0}) for number in (3, 4, 5)]
# Batches of a second: of twenty, those of the last three windows of five seconds count, not only the least three.
FAST = [batch(number, WHERE, {0: 9.0 if number < -6 else 1.0}, period=1.0) for number in range(-10, 7)]
FAST += [batch(number, WHERE, {0: 4.0}, period=1.0) for number in (7, 8, 9)]
SLOW = [batch(number, WHERE, {0: float(number)}, period=60.0) for number in range(10)]
WAITING = [only_state(item, [task(1, p, WHERE[p], run=2.0, wait=1.5) for p in range(4)]) for item in BATCHES]
IN_PART = [*BATCHES[:2], only_state(BATCHES[2], [task(1, 0, "0", run=2.0)])]
TWICE = [
    only_state(item, [msgspec.structs.replace(task(1, 0, "1", run=9.0), finish=NOW - 60), task(2, 0, "0", run=2.0)])
    for item in BATCHES
]
SECOND = [batch(number, WHERE, {0: 4.0}, name="q2") for number in (7, 8, 9)]
STUCK = query(WHERE, "q2", problem="real-time mode")
CASES = {
    "no executors": Case(None, count=0),
    "no batch of any query": Case(None, batches=()),
    "no active query": Case(None, queries=(query(WHERE, active=False),)),
    "unmeasured": Case(
        {
            "placeable": [KEY, "idle/0"],
            "measured": {QUERY},
            "busy": {"idle/0": [0, 0]},
            "placement": {"idle/0": [3, 3]},
        },
        queries=(query(WHERE), query(["3", "3"], "idle"), query(["3"], "stuck", problem="real-time")),
        include_unmeasured=True,
    ),
    "too few batches": Case({"placeable": [], "floating": [f"{QUERY}/f0", KEY]}, batches=BATCHES[2:]),
    "a young query beside another": Case(
        {
            "placeable": [KEY],
            "floating": [f"{QUERY}/f0", "q2/f0", "q2/0"],
            "notes": (f"not moved: query name-of-q2 has 1 measured batch, {NEEDED}",),
        },
        queries=(query(WHERE), query(WHERE, "q2")),
        batches=[*BATCHES, SECOND[2]],
    ),
    "idle queries": Case(
        {
            "placeable": [KEY],
            "notes": (f"not moved: query name-of-q4 has 0 measured batches, {NEEDED}; so are 2 others",),
        },
        queries=(query(WHERE), *(query(WHERE, f"q{number}") for number in (2, 3, 4))),
    ),
    "a query that cannot be moved": Case(
        {"placeable": [KEY], "busy": {"q2/0": [4.1, 0.1, 0.1, 0]}}, (query(WHERE), STUCK), [*BATCHES, *SECOND]
    ),
    "a stage of no partitions": Case({"placeable": [], "placement": {}}, queries=(query([]),)),
    "executors by number": Case({"executors": tuple(map(str, range(12)))}, count=12),
    "executors that are gone": Case({"placement": {KEY: [0, -1, -1, 2]}}, queries=(query(["0", "7", "", "2"]),)),
    "drained and leaving": Case({"available": [True, False, False, True]}, drained=("127.0.0.4",), leaving=("1",)),
    "the last batches count": Case({"busy": {KEY: USUAL}}, batches=[*BATCHES, *OLD]),
    "a fast query over whole windows": Case({"busy": {KEY: [1.562, 0.1, 0.1, 0.1]}}, batches=FAST),
    "a slow query over the least batches": Case({"busy": {KEY: [8.0, 0.1, 0.1, 0.1]}}, batches=SLOW),
    "waiting for data is not work": Case({"busy": {KEY: [0.5] * 4}}, batches=WAITING),
    "idle in one batch": Case({"busy": {KEY: [2.0, 0.667, 0.067, 0.067]}, "state": {KEY: [1000] * 4}}, batches=IN_PART),
    "a stage that ran again": Case({"busy": {KEY: [2.0, 0, 0, 0]}}, batches=TWICE),
    "a silent query": Case({"rate": {KEY: 0.01}}, now=NOW + 100),
    "agents report": Case({"fresh": 4, "silent": (), "notes": ()}),
    "agents of two nodes are silent": Case(
        {
            "fresh": 2,
            "silent": ("127.0.0.3", "127.0.0.5"),
            "notes": (f"no agent reports from nodes 127.0.0.3, 127.0.0.5: {UNKNOWN}",),
            "busy": {KEY: USUAL},
        },
        windows={**WINDOWS, "127.0.0.3": [], "127.0.0.5": [window(3, end=NOW - 21)]},
    ),
    "no agent reports": Case(
        {"notes": (f"no agent reports from any node: {UNKNOWN}",), "shuffles": None, "busy": {KEY: USUAL}}, windows={}
    ),
    "agents reported before": Case(
        {"shuffles": None},
        windows={node: [window(e, end=NOW - 60, map_outputs=outputs_of(7))] for e, node in enumerate(WINDOWS)},
    ),
    "agents of another application": Case(
        {"fresh": 0}, windows={node: [window(e, application="other")] for e, node in enumerate(WINDOWS)}
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_model_of_an_application(case: Case) -> None:
    built = case.build()
    assert (built is None) == (case.figures is None)
    for name, expected in (case.figures or {}).items():
        actual = figures(built)[name]
        if isinstance(expected, dict) and isinstance(actual, dict) and expected:
            actual = {key: actual[key] for key in expected}
        assert actual == expected, name


READINESS = {
    "no-executors": (report([query(WHERE)], count=0), True, "the application has no executors"),
    "no-active-query": (report([query(WHERE, active=False)]), True, "no streaming query is active"),
    "query-problem": (report([STUCK]), False, "no query can be moved: name-of-q2: real-time mode"),
    "no-state": (
        report([msgspec.structs.replace(query(WHERE), stages=[])]),
        True,
        "no active query has a known stateful stage (yet)",
    ),
}


@pytest.mark.parametrize("code", READINESS)
def test_not_ready_whatever_the_batches(code: str) -> None:
    link, transient, sentence = READINESS[code]
    assert snapshot(link=link) == NotReady(NotReadyReason(code), sentence, transient)


def test_not_ready_before_enough_batches_says_how_long() -> None:
    result = snapshot(batches=BATCHES[2:])
    assert (result.code, result.transient, result.ready_in) == ("too-few-batches", True, pytest.approx(10))
    assert result.sentence == "query name-of-q1 has 1 measured batch, 3 are needed (reschedule.batches)"
    assert snapshot(batches=[]).ready_in is None
    more = dataclasses.replace(settings(), reschedule=dataclasses.replace(settings().reschedule, batches=5))
    assert isinstance(take_snapshot(messages(report([query(WHERE)]), BATCHES, WINDOWS), more, NOW), NotReady)


# -- speeds of executors --


def slowed(number: int, times: float) -> BatchReport:
    """Batch with twelve partitions over four executors, of which executor 2 takes so many times as long."""

    def change(item: TaskRow) -> TaskRow:
        return msgspec.structs.replace(item, run=item.run * (times if item.executor == "2" else 1.0))

    return with_tasks(batch(number, TWELVE), change)


LASTING = [slowed(number, 2.0) for number in range(10)]
BECAME = [*(slowed(number, 1.0) for number in range(7)), *LASTING[7:]]


def test_a_slow_executor_is_slow_and_its_partitions_are_not_heavy() -> None:
    result = ready(link=report([query(TWELVE)]), batches=LASTING)
    assert result.cluster.speed.tolist() == pytest.approx([1, 1, 0.5, 1], rel=0.05)
    assert result.workload.stage(f"{QUERY}/0").busy.tolist() == pytest.approx([0.1] * 12, rel=0.05)
    assert result.workload.stage(f"{QUERY}/f0").busy.tolist() == pytest.approx([0.1] * 4, rel=0.05)
    (note,) = result.notes
    assert note.startswith("executor 2 on 127.0.0.4 is slow: its tasks take 2.0 times what others' take")


def joined(age: float) -> LinkReport:
    """Executor 2 was added so many seconds ago, the others an hour ago."""
    body = report([query(TWELVE)])
    added = [
        msgspec.structs.replace(info, added=NOW - (age if info.executor == "2" else 3600.0)) for info in body.executors
    ]
    return msgspec.structs.replace(body, executors=added)


def test_an_executor_that_is_new_is_not_slow_yet() -> None:
    result = ready(link=joined(30.0), batches=LASTING)
    assert result.cluster.speed.tolist() == [1, 1, 1, 1]
    assert result.workload.stage(f"{QUERY}/0").busy.tolist() == pytest.approx([0.1] * 12, rel=0.05), "as elsewhere"
    (note,) = result.notes
    assert note.endswith("its tasks take 2.0 times what others' take, which is ignored while the executor is new")
    assert ready(link=joined(130.0), batches=LASTING).cluster.speed.tolist() == pytest.approx([1, 1, 0.5, 1], rel=0.05)


def test_a_new_executor_that_becomes_slower_or_is_faster_is_believed() -> None:
    assert ready(link=joined(30.0), batches=BECAME).cluster.speed[2] < 0.65
    faster = [slowed(number, 0.5) for number in range(10)]
    assert ready(link=joined(30.0), batches=faster).cluster.speed[2] == pytest.approx(2.0, rel=0.1)


def test_an_executor_that_just_became_slow_is_told_by_its_own_past() -> None:
    (note,) = ready(link=report([query(TWELVE)]), batches=BECAME).notes
    assert "what they took there before" in note


def disturbed(**shares: float) -> Windows:
    """Windows in which this took so much from executor 2 and its node, of 2 cores."""
    usage = msgspec.structs.replace(
        window(2).executors[0], throttled=shares.pop("throttled", 0.0), cpu_limit=0.5, jvm_cpu=1.0, python_cpu=0.0
    )
    changed = msgspec.structs.replace(window(2), executors=[usage], cores=2, **shares)
    return {**WINDOWS, "127.0.0.4": [changed]}


STOLEN, BUSY = {"stolen": 2.0}, {"node_cpu": 9.9}  # CPU seconds of ten


def test_a_throttled_executor_has_the_speed_of_its_tasks() -> None:
    windows = disturbed(throttled=2.0, **BUSY)
    for batches in (LASTING, BECAME):
        result = ready(link=report([query(TWELVE)]), batches=batches, windows=windows)
        tasks_alone = ready(link=report([query(TWELVE)]), batches=batches).cluster.speed
        assert result.cluster.speed.tolist() == pytest.approx([1, 1, tasks_alone[2], 1])
        assert result.cluster.speed[2] < 0.65
        (note,) = result.notes
        assert note.startswith("executor 2 on 127.0.0.4 is slow (throttled): its tasks take ")
        assert note.endswith(", its CPU limit of 0.5 cores throttled it for 40% of the time")
        assert result.slow["2"].cause == SlowCause.THROTTLED


@pytest.mark.parametrize(
    ("taken", "cause", "evidence"),
    [
        (STOLEN, SlowCause.STOLEN, "the hypervisor took 20% of its node's CPU"),
        (BUSY, SlowCause.BUSY, "other processes use 89% of its node's CPU"),
    ],
)
def test_cpu_that_others_took_counts_once_the_older_batches_show_it(
    taken: dict[str, float], cause: SlowCause, evidence: str
) -> None:
    result = ready(link=report([query(TWELVE)]), batches=BECAME, windows=disturbed(**taken))
    assert result.cluster.speed.tolist() == [1, 1, 1, 1]
    assert result.slow["2"].cause == cause
    assert result.slow["2"].evidence.endswith(f"{evidence}, which is ignored until its older batches are slow too")
    busy = result.workload.stage(f"{QUERY}/0").busy
    assert busy.tolist() == pytest.approx([0.1] * 12, rel=0.1), "its partitions are not heavy"
    result = ready(link=report([query(TWELVE)]), batches=LASTING, windows=disturbed(**taken))
    assert result.cluster.speed.tolist() == pytest.approx([1, 1, 0.5, 1], rel=0.05)
    assert result.slow["2"].evidence.endswith(evidence)


def test_windows_before_the_averaged_batches_tell_no_cause() -> None:
    (throttled,) = disturbed(throttled=2.0)["127.0.0.4"]
    aged = msgspec.structs.replace(throttled, start=NOW - 100, end=NOW - 95)
    for windows in ({"127.0.0.4": [aged, window(2)]}, {}):
        result = ready(link=report([query(TWELVE)]), batches=LASTING, windows=windows)
        assert result.slow["2"].cause == SlowCause.SLOW


def rare_batches(new_since: int, slow: dict[int, float]) -> tuple[list[BatchReport], LinkReport]:
    """A batch every five minutes; executor 3 joins at one, and its tasks take so many times as long in each."""
    batches = []
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
            StageRun(spark_stage=2 * number, parents=[], stateful_stage=-1, tasks=source),
            StageRun(spark_stage=2 * number + 1, parents=[2 * number], stateful_stage=0, tasks=state),
        ]
        batches.append(
            BatchReport(query=QUERY, batch=number, start=start, end=start + 20, input_rows=400, stages=stages)
        )
    body = report([query(TWELVE)])
    added = [NOW - 86_400.0] * 3 + [NOW - 300.0 * (10 - new_since) - 1]
    infos = [msgspec.structs.replace(info, added=at) for info, at in zip(body.executors, added, strict=True)]
    return batches, msgspec.structs.replace(body, executors=infos)


def test_the_first_tasks_of_a_new_executor_say_nothing_of_its_speed_however_long_ago_they_were() -> None:
    """It is older than the time of warming up, as batches are rare, and its code was compiled in its first tasks."""
    batches, link = rare_batches(9, {9: 4.0})
    assert ready(link=link, batches=batches).cluster.speed.tolist() == [1, 1, 1, 1]
    batches, link = rare_batches(7, {7: 4.0, 8: 1.5})
    assert ready(link=link, batches=batches).cluster.speed.tolist() == [1, 1, 1, 1]


def test_a_new_executor_that_is_slow_after_its_first_tasks_is_slow() -> None:
    batches, link = rare_batches(5, dict.fromkeys(range(10), 4.0))
    assert ready(link=link, batches=batches).cluster.speed[3] < 0.5


def test_of_old_executors_every_task_counts() -> None:
    batches, link = rare_batches(7, dict.fromkeys(range(10), 4.0))
    old = [msgspec.structs.replace(info, added=NOW - 86_400.0) for info in link.executors]
    assert ready(link=msgspec.structs.replace(link, executors=old), batches=batches).cluster.speed[3] < 0.5
