"""Assessments of made-up logs whose truth is known."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import zstandard

from rechannel.daemon.assess import recording as recording_module
from rechannel.daemon.assess.assessment import assess
from rechannel.daemon.assess.files import EventLogError
from rechannel.daemon.assess.period import trigger_interval
from rechannel.daemon.assess.result import ApplicationAssessment, Limit, QueryAssessment, Verdict

from .spark_log import QUERY, SparkLog, line

THREE = {"0": 1, "1": 1, "2": 1}
CROWDED = ["0", "0", "0", "0", "1", "2"]  # two moves make it even
TURNS = ["0", "1", "2"] * 2
OTHER = {"query": "3f5a1c52-0000-4000-8000-000000000002", "run": "other-run", "name": "other"}


def log_of(executors: dict[str, int] = THREE, **options: object) -> SparkLog:
    log = SparkLog(**options)  # type: ignore[arg-type]
    log.begin(executors)
    return log


def application(log: SparkLog, directory: Path, batches: int = 32) -> ApplicationAssessment:
    path = directory / "app-1"
    path.write_bytes(log.text())
    (result,) = assess([path], batches).applications
    return result


def query(log: SparkLog, directory: Path, batches: int = 32) -> QueryAssessment:
    (result,) = application(log, directory, batches).queries
    return result


def ran(placement: Sequence[str], count: int = 20, *, executors: dict[str, int] = THREE, **options: Any) -> SparkLog:
    """A log of batches whose partitions take half a second each; ``options``: of `SparkLog.batches`."""
    log = log_of(executors)
    log.batches(count, placement, options.pop("seconds", [0.5] * len(placement)), **options)
    return log


def crowded(**options: object) -> SparkLog:
    log = log_of(**options)
    log.batches(20, CROWDED, [0.5] * 6)
    return log


@pytest.mark.parametrize("version", ["3.5.8", "4.0.1"])
def test_uneven_state_is_worth_moving(tmp_path: Path, version: str):
    log = crowded(version=version)
    log.terminate()
    log.end()
    result = application(log, tmp_path)
    assert (result.name, result.application, result.spark_version) == ("clicks", "app-20251009105320-0000", version)
    assert result.notes == []
    (one,) = result.queries
    assert (one.query, one.name, one.verdict, one.batches) == (QUERY, "clicks", Verdict.YES, 20)
    assert one.sentence.startswith("yes: 4")
    # four partitions of 0.5 s in a row, where two would be even; 0.3 s of planning and commit, 0.05 s of sources
    assert one.seconds == pytest.approx(2.35, rel=0.03)
    assert one.unevenness == pytest.approx(2.0, rel=0.03)
    assert one.lost == pytest.approx(1.0, rel=0.05)
    assert one.best is not None
    assert one.best.seconds == pytest.approx(1.35, rel=0.05)
    assert one.best.moves == 2
    assert one.even is not None
    assert one.even.seconds == pytest.approx(1.35, rel=0.05)
    assert 0.3 < one.best.least <= one.best.saved
    assert abs(one.residual or 0.0) < 0.05
    assert {it.executor: round(it.now, 1) for it in one.executors} == {"0": 2.0, "1": 0.5, "2": 0.5}
    assert {round(it.best, 1) for it in one.executors} == {1.0}
    assert "stateful operators: stateStoreSave" in one.notes


def test_what_was_promised_comes_true(tmp_path: Path):
    promised, measured = query(crowded(), tmp_path), query(ran(TURNS), tmp_path)
    assert promised.best is not None
    assert promised.best.seconds == pytest.approx(measured.seconds, rel=0.05)


def test_even_state_is_not(tmp_path: Path):
    one = query(ran(TURNS), tmp_path)
    assert one.verdict is Verdict.NO
    assert one.sentence == "no: 0% shorter batches at best, by 2 moves; less than 5% is not worth moving"


def test_a_small_gain_is_not_either(tmp_path: Path):
    one = query(ran("000112", seconds=[0.02] * 6, extra=0.5), tmp_path)
    assert one.verdict is Verdict.NO
    assert one.best is not None
    assert one.best.saved < 0.1


def test_a_hot_partition_is_named_with_what_it_takes(tmp_path: Path):
    (stage,) = query(ran(TURNS, seconds=[0.2, 0.2, 3.0, 0.2, 0.2, 0.2]), tmp_path).stages
    assert (stage.limit, stage.hottest) == (Limit.HOT_PARTITION, 2)
    assert stage.hottest_seconds == pytest.approx(3.0, rel=0.03)
    assert "partition 2 alone takes 3.0" in stage.sentence or "partition 2 alone takes 2.9" in stage.sentence


def test_too_few_partitions_are_named(tmp_path: Path):
    (stage,) = query(ran("0120", executors={"0": 2, "1": 2, "2": 2}, seconds=[1.0] * 4), tmp_path).stages
    assert stage.limit is Limit.TOO_FEW_PARTITIONS
    assert "4 partitions are too few for 6 cores" in stage.sentence


def test_tasks_of_several_cores_leave_fewer_slots(tmp_path: Path):
    log = log_of({"0": 2, "1": 2, "2": 2}, properties={"spark.task.cpus": "2"})
    log.executors = dict.fromkeys(THREE, 1)
    log.batches(20, CROWDED, [0.5] * 6)
    assert query(log, tmp_path).verdict is Verdict.YES


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (ran(TURNS, stateful=False), "stateless"),
        (ran(["driver"] * 6, executors={"driver": 4}), "one executor"),
        (ran(CROWDED, 2), "too few batches: 2 batches since query"),
        (ran("01", operators=200), "runs 2 tasks, but its operators have 200 partitions"),
    ],
    ids=["no state", "one executor", "few batches", "partitions joined in one task"],
)
def test_what_is_not_assessable(tmp_path: Path, log: SparkLog, reason: str):
    one = query(log, tmp_path)
    assert one.verdict is Verdict.NOT_ASSESSABLE
    assert reason in one.sentence


def test_batches_that_the_model_does_not_explain_are_not_assessable(tmp_path: Path):
    log = log_of()
    for number in range(20):
        # Half of the tasks' work waits for something outside: the driver launches them late, one after the other.
        log.batch(number, TURNS, [0.2] * 6)
        state, progress = log.lines[-3:-1], json.loads(log.lines[-1])
        progress["progress"]["durationMs"]["triggerExecution"] = 50
        log.lines[-3:] = [*state, json.dumps(progress, separators=(",", ":")).encode() + b"\n"]
    one = query(log, tmp_path)
    assert one.verdict is Verdict.NOT_ASSESSABLE
    assert "does not explain" in one.sentence
    assert one.residual is not None


def test_only_batches_since_the_executors_changed_count(tmp_path: Path):
    log = ran("0001", executors={"0": 1, "1": 1})
    log.add_executor("2")
    log.batches(5, "0121", [0.5] * 4, first=20)
    one = query(log, tmp_path)
    assert one.batches == 5
    assert len(one.executors) == 3
    assert len(one.timeline) == 25


def test_a_period_with_too_few_batches_is_not_the_one(tmp_path: Path):
    log = crowded()
    log.remove_executor("2")
    log.batches(1, "000011", [0.5] * 6, first=20)
    one = query(log, tmp_path)
    assert one.batches == 20
    assert len(one.executors) == 3


def test_only_batches_since_the_placement_changed_count(tmp_path: Path):
    log = crowded()
    log.batches(7, TURNS, [0.5] * 6, first=20)
    one = query(log, tmp_path)
    assert one.batches == 6  # the seventh loaded state
    assert one.verdict is Verdict.NO


def test_a_partition_that_strays_is_where_it_mostly_runs(tmp_path: Path):
    log = log_of()
    for number in range(20):
        log.batch(number, CROWDED if number % 3 else ["1", *CROWDED[1:]], [0.5] * 6)
    one = query(log, tmp_path)
    assert any("Spark ran a partition elsewhere" in note for note in one.notes)
    assert {it.executor: round(it.now, 1) for it in one.executors}["0"] == pytest.approx(2.0, abs=0.2)


def test_newest_batches_can_be_limited(tmp_path: Path):
    assert query(ran(CROWDED, 30), tmp_path, batches=8).batches == 8


def test_queries_of_one_application_are_assessed_together(tmp_path: Path):
    log = log_of({str(number): 1 for number in range(4)})
    other = log.beside()
    log.batches(20, ["0"] * 5 + ["1"], [0.5] * 6)
    other.batches(24, ["2", "3"] * 2, [1.0] * 4, **OTHER)
    log.side_by_side(other)
    second, first = application(log, tmp_path).queries
    assert (first.name, first.verdict) == ("clicks", Verdict.YES)
    assert (second.name, second.verdict) == ("other", Verdict.NO)
    assert first.best is not None
    assert 0.2 < first.best.saved < 0.5
    assert first.stages[0].limit is Limit.NONE  # the other query is in the way


def test_pools_of_a_fair_scheduler_take_turns(tmp_path: Path):
    def short_one(**pool: str) -> QueryAssessment:
        log = log_of({"0": 1, "1": 1}, properties={"spark.scheduler.mode": "FAIR"})
        other = log.beside()
        log.batches(20, ["0", "0", "1"], [0.05] * 3, extra=0.5, **pool)
        other.batches(12, ["0"] * 5 + ["1"], [0.2] * 6, **OTHER, **({"pool": "other"} if pool else {}))
        log.side_by_side(other)
        return next(it for it in application(log, tmp_path).queries if it.name == "clicks")

    pooled, together = short_one(pool="clicks"), short_one()
    # In one pool its tasks wait for all those of the job before; in one of their own for the task that runs.
    assert pooled.residual < together.residual - 0.05


def test_a_query_that_ended_long_ago_is_assessed_by_its_own_time(tmp_path: Path):
    log = ran(CROWDED, 15)
    log.terminate()
    log.batches(15, TURNS, [0.1] * 6, **OTHER)
    first, second = application(log, tmp_path).queries
    assert (first.verdict, second.verdict) == (Verdict.YES, Verdict.NO)
    assert first.until < second.since


@pytest.mark.parametrize(
    ("event", "effect"),
    [
        ("SparkListenerTaskEnd", "the work of partitions and their executors are unknown"),
        ("SparkListenerExecutorAdded", "the executors and their cores are unknown"),
        ("SparkListenerJobStart", "the batches and their stages are unknown"),
        ("StreamingQueryListener$QueryProgressEvent", "the ends of batches are unknown"),
    ],
)
def test_events_that_a_setting_left_out_are_named(tmp_path: Path, event: str, effect: str):
    log = crowded(properties={"spark.eventLog.excludedPatterns": event})
    log.lines = [text for text in log.lines if f'{event}"'.encode() not in text[:120]]
    result = application(log, tmp_path)
    (note,) = [note for note in result.notes if event in note]
    assert f"spark.eventLog.excludedPatterns is {event}" in note
    assert effect in note
    assert [one.verdict for one in result.queries] == [Verdict.NOT_ASSESSABLE]


def test_ends_of_stages_are_not_needed(tmp_path: Path):
    log = crowded()
    log.lines = [text for text in log.lines if b"SparkListenerStageCompleted" not in text[:60]]
    assert query(log, tmp_path).verdict is Verdict.YES


def test_batches_without_tasks_are_counted(tmp_path: Path):
    log = crowded()
    compacted = [text for text in log.lines[:200] if b"QueryProgressEvent" in text or b"Executor" in text[:40]]
    log.lines = [*log.lines[:4], *compacted, *log.lines[200:]]
    one = query(log, tmp_path)
    assert one.verdict is Verdict.YES
    assert any("of 20 batches have no tasks in the log" in note for note in one.notes)


def test_a_log_without_its_beginning_knows_no_executors(tmp_path: Path):
    log = crowded()
    log.lines = log.lines[60:]
    result = application(log, tmp_path)
    assert any("the beginning of the log is missing" in note for note in result.notes)
    assert [one.verdict for one in result.queries] == [Verdict.NOT_ASSESSABLE]


def test_an_application_without_streams(tmp_path: Path):
    assert application(log_of(), tmp_path).notes == ["the log has no streaming query"]


def test_a_torn_line_is_no_error(tmp_path: Path):
    log = crowded()
    log.lines.append(b'{"Event":"SparkListenerTaskEnd","Sta')
    result = application(log, tmp_path)
    assert result.notes == []
    assert result.queries[0].verdict is Verdict.YES


HOSTILE = [
    b"\n",
    b"\xff\xfe\x00\n",
    b"[" * 200_000 + b"\n",
    line("SparkListenerTaskEnd", Stage_ID=1, Task_Info={"Task ID": 1, "Index": 10**12, "Partition ID": 10**12}),
    line("SparkListenerTaskEnd", Stage_ID=1, Task_Info={"Task ID": 1, "Index": 1, "Finish Time": 10**400}),
    line("SparkListenerTaskEnd", Stage_ID=1, Task_Info={"Task ID": 10**30, "Index": 1}),
    line("SparkListenerStageCompleted", Stage_Info={"Stage ID": 1, "Number of Tasks": 2**62}),
    line("SparkListenerExecutorAdded", Executor_ID="9", Executor_Info={"Total Cores": -5}),
    b'{"Event":"SparkListenerTaskEnd","Stage ID":1,"Task Info":{"Task ID":1,"Index":0,"Accumulables":[{"Update":'
    + b"[" * 5000
    + b"]" * 5000
    + b"}]}}\n",
]


@pytest.mark.parametrize("hostile", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_lines_change_nothing(tmp_path: Path, hostile: bytes):
    log = crowded()
    log.lines.insert(40, hostile)
    result = application(log, tmp_path)
    assert result.notes == ["1 line could not be read"]
    assert result.queries[0].verdict is Verdict.YES


def test_a_log_that_never_ends_its_jobs_is_read_up_to_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recording_module, "_CHECKED_EVERY", 10)
    monkeypatch.setattr(recording_module, "_MAX_OPEN", 50)
    log = crowded()
    stages = [{"Stage ID": 5, "Number of Tasks": 1}]
    log.lines += [line("SparkListenerJobStart", Job_ID=number, Stage_Infos=stages) for number in range(1000, 1100)]
    result = application(log, tmp_path)
    assert "read up to there alone: the log has more than 50 jobs" in result.notes[0]
    assert result.queries[0].verdict is Verdict.YES


def test_memory_is_bounded_by_dropping_the_oldest_queries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recording_module, "_MAX_TASKS", 40)
    monkeypatch.setattr(recording_module, "_MAX_TASKS_IN_ALL", 60)
    log = ran(CROWDED, 15)
    log.terminate()
    log.batches(15, TURNS, [0.1] * 6, **OTHER)
    log.terminate(OTHER["query"], OTHER["run"])
    first, second = application(log, tmp_path).queries
    assert "no room in memory" in first.sentence
    assert second.batches == 4


def test_rolled_and_compressed_logs_and_directories(tmp_path: Path):
    text = crowded().lines
    rolled = tmp_path / "eventlog_v2_app-1"
    rolled.mkdir()
    (rolled / "appstatus_app-1").touch()
    for number in range(4):
        part = b"".join(text[number * 60 : (number + 1) * 60 if number < 3 else None])
        (rolled / f"events_{number + 1}_app-1.zstd").write_bytes(zstandard.ZstdCompressor().compress(part))
    (tmp_path / "app-2").write_bytes(crowded().text())
    (tmp_path / "notes.txt").write_text("no log at all\n")
    (tmp_path / "app-3.zstd").write_bytes(b"\x28\xb5\x2f\xfdxx")
    result = assess([tmp_path])
    assert [one.log for one in result.applications] == ["app-2", "eventlog_v2_app-1"]
    assert all(one.queries[0].verdict is Verdict.YES for one in result.applications)
    assert [text.partition(": ")[2] for text in result.skipped][1] == "has no event of Spark"
    assert "app-3.zstd" in result.skipped[0]


def test_a_named_file_that_is_no_log_is_an_error(tmp_path: Path):
    path = tmp_path / "notes.txt"
    path.write_text("no log\n" * 1000)
    with pytest.raises(EventLogError, match="has no event of Spark"):
        assess([path])


@pytest.mark.parametrize(
    ("starts", "interval"),
    [
        ([1000.0, 1010.01, 1020.02, 1030.0, 1040.03], 10.0),
        ([1000.0, 1001.4, 1002.7, 1004.2, 1005.5], 0.0),
        ([1000.0, 1010.0], 0.0),
        ([1000.0, 1000.01, 1000.02, 1000.03], 0.0),
        ([number * 1100 / 1000 for number in range(1_545_454_545, 1_545_454_550)], 1.1),
    ],
)
def test_the_interval_of_a_trigger(starts: list[float], interval: float):
    assert trigger_interval(starts) == interval
