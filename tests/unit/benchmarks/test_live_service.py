"""The testbed with known truth: its cases, the optimum, the fewest moves, the record of a run and the table."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.live.service import truth
from benchmarks.live.service.__main__ import main
from benchmarks.live.service.cases import Case, Draw, QueryCase, draw
from benchmarks.live.service.report import report, summary
from benchmarks.live.service.results import BatchLine, DecisionLine, RunResult, read, write
from benchmarks.live.service.run import task_figures, truths
from benchmarks.live.service.truth import Goal, fewest_moves, goals, optimum
from rechannel.wire.measurements import TaskRow

PAIR = ["service-0", "service-1"]


# -- cases --


@pytest.mark.parametrize("seed", range(40))
def test_a_drawn_case_lies_within_its_bounds_and_comes_again(seed: int) -> None:
    case = draw(seed)
    assert case == draw(seed)
    assert 1 <= len(case.queries) <= 4
    assert case.cores in (1, 2)
    assert 2 <= case.executors <= 5
    assert 0.8 <= case.zipf <= 1.5
    assert case.noise < 1
    for query, seconds in zip(case.queries, case.slept(), strict=True):
        assert 12 <= query.partitions <= 64
        assert min(query.rows) >= 1
        assert query.interval == 0 or query.interval > max(seconds)


@given(st.integers(0, 1000), st.floats(0.8, 1.5))
def test_a_setting_changes_nothing_of_what_is_drawn_beside_it(seed: int, zipf: float) -> None:
    drawn, fixed = draw(seed), draw(seed, Draw(zipf=zipf))
    assert fixed.zipf == zipf
    assert (fixed.executors, fixed.cores, fixed.scheduler, fixed.noise) == (
        *(drawn.executors, drawn.cores),
        *(drawn.scheduler, drawn.noise),
    )
    assert [query.partitions for query in fixed.queries] == [query.partitions for query in drawn.queries]


def test_every_setting_is_taken() -> None:
    fixed = Draw(queries=2, executors=4, cores=2, partitions=12, zipf=1.0, triggers=True, scheduler="FAIR", noise=0.3)
    case = draw(5, fixed)
    assert (case.executors, case.cores, case.zipf, case.scheduler, case.noise) == (4, 2, 1.0, "FAIR", 0.3)
    assert [query.partitions for query in case.queries] == [12, 12]
    assert case.triggered
    assert case.summary() == "2q 12/12p 4x2 triggers FAIR z1, noise 0.3"


# -- truth --


def goal(seconds: list[float], home: list[int], executors: int, cores: int = 1) -> Goal:
    return Goal(("q",), np.array(seconds), np.array(home), executors, cores)


@st.composite
def small_goals(draw_value: st.DrawFn) -> Goal:
    executors, cores = draw_value(st.integers(2, 3)), draw_value(st.integers(1, 2))
    count = draw_value(st.integers(2, 6))
    seconds = draw_value(st.lists(st.integers(1, 40), min_size=count, max_size=count))
    home = draw_value(st.lists(st.integers(0, executors - 1), min_size=count, max_size=count))
    return goal([each / 10 for each in seconds], home, executors, cores)


def placements(of: Goal) -> list[np.ndarray]:
    return [np.array(home) for home in itertools.product(range(of.executors), repeat=len(of.home))]


@settings(max_examples=40)
@given(small_goals())
def test_the_optimum_is_that_of_all_placements(of: Goal) -> None:
    least = min(of.busiest(home) for home in placements(of))
    best = optimum(of)
    assert best.bound <= least + 1e-9
    assert least - 1e-9 <= best.seconds <= least * 1.002 + 1e-6


@settings(max_examples=40)
@given(small_goals(), st.floats(1.0, 1.5))
def test_the_fewest_moves_are_those_of_all_placements(of: Goal, share: float) -> None:
    limit = share * min(of.busiest(home) for home in placements(of)) + 1e-6
    fewest = fewest_moves(of, limit)
    least = min(int((home != of.home).sum()) for home in placements(of) if of.busiest(home) <= limit)
    assert fewest.moves == least == fewest.bound


def test_no_plan_reaches_a_load_below_the_largest_partition() -> None:
    assert fewest_moves(goal([2.0, 1.0], [0, 0], 2), 1.9).moves is None


def test_queries_back_to_back_count_together_and_queries_with_triggers_apart() -> None:
    seconds, homes = [[1.0, 2.0], [4.0, 8.0]], [[0, 1], [0, 1]]
    (both,) = goals(PAIR, seconds, homes, (2, 1), together=True)
    assert both.loads() == [5.0, 10.0]
    assert [one.busiest() for one in goals(PAIR, seconds, homes, (2, 1), together=False)] == [2.0, 8.0]


def test_two_cores_halve_the_load_but_not_a_partition() -> None:
    of = goal([4.0, 1.0, 1.0], [0, 0, 1], 2, cores=2)
    assert of.loads() == [2.5, 0.5]
    assert of.busiest() == 4.0


# -- a run --


def case(interval: float = 0.0) -> Case:
    queries = [QueryCase(name=name, rows=[40, 20, 20], interval=interval) for name in PAIR]
    return Case(seed=3, executors=2, cores=1, service_ms=25, queries=queries, zipf=1.0)


def run(first: str = "d1", **other: object) -> RunResult:
    before, after = [[0, 0, 0], [0, 0, 0]], [[0, 1, 1], [0, 1, 1]]
    names = [(name, 10.0 * at, seconds) for name in PAIR for at, seconds in enumerate((4.0, 4.0, 6.0, 2.0, 2.0))]
    decision = DecisionLine(
        decision="d1",
        at=19.0,
        settled=29.0,
        trigger="timeout",
        outcome="applied",
        reason="ok",
        sentence="moves",
        moves=4,
        batch_before={"service-0": 4.0, "service-1": 4.0},
        batch_after={"service-0": 2.0, "service-1": 2.5},
        peak={"service-0": 6.0, "service-1": 3.0},
    )
    fields: dict[str, Any] = {
        "command": ["--seed", "3"],
        "seed": 3,
        "variant": "adaptive",
        "case": case(),
        "machine": {},
        "began": 0.0,
        "before_from": 0.0,
        "before_until": 19.0,
        "after_from": 30.0,
        "after_until": 60.0,
        "first": first,
        "placed_before": before,
        "placed_after": after,
        "exact": True,
        "asleep": 0.8,
        "load_average": [3.2, 1.8],
        "batches": [BatchLine(name, int(at), at, seconds) for name, at, seconds in names],
        "decisions": [decision] if first else [],
        "truth": truths(case(), 0.0, before, after),
    }
    return RunResult(**{**fields, **other})


def test_the_truth_of_a_run() -> None:
    (goal,) = run().truth
    assert (goal.loads_before, goal.loads_after) == ([4.0, 0.0], [2.0, 2.0])
    assert (goal.busiest_before, goal.busiest_after, goal.optimum) == (4.0, 2.0, 2.0)
    # One query's partition of a second and the other two half seconds would do: two of them for the same load.
    assert (goal.moves, goal.fewest_same) == (4, 2)
    assert len(truths(case(4.0), 0.0, [[0, 0, 0]] * 2, [[0, 1, 1]] * 2)) == 2


def test_a_plan_that_was_carried_out_is_known_where_no_program_is_solved_in_time() -> None:
    goal = Goal(("query",), np.array([1.0, 0.5, 0.5]), np.array([0, 0, 0]), 2, 1)
    plan = np.array([1, 0, 0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(truth, "assign_staying", lambda *_: (None, 0))
        patch.setattr(truth, "_descent", lambda *_: None)
        assert fewest_moves(goal, 1.0, plan=plan).moves == 1
        assert fewest_moves(goal, 1.0, plan=goal.home).moves is None, "that plan does not reach the load"


def test_the_figures_of_a_query() -> None:
    first, second = run().figures()
    assert (first.before, first.after, first.ratio, first.error) == (4.0, 2.0, 0.5, 0.0)
    assert second.error == pytest.approx(0.25)
    assert (second.peak, second.peak_predicted) == (6.0, 3.0)
    assert (first.count_before, first.count_after) == (2, 2)


def test_a_file_holds_the_whole_run(tmp_path: Path) -> None:
    path = tmp_path / "below" / "run.json"
    write(path, run())
    assert msgspec.to_builtins(read(path)) == msgspec.to_builtins(run())


def summed(*runs: RunResult) -> str:
    return "\n".join(summary(runs))


def test_the_summary_of_runs() -> None:
    still = run(first="", placed_after=[[0, 0, 0]] * 2, variant="none")
    text = summed(run(), still, run(error="it broke\nhere"))
    assert "runs: 3, 2 of them" not in text
    assert "runs: 3, 1 of them with moves, 1 failed" in text
    assert "asleep: 80% to 80% of stateful tasks' time, at least 70% in 2 of 2" in text
    assert "predicted batch against measured, 2 queries: median 0%, p90 25%" in text
    assert "longest batch while moving against predicted, 2 queries: median 0%, p90 50%" in text
    assert "moves over the fewest for the same load within 2 %: 4 to 2 (2.00)" in text
    assert "busiest executor over the optimum after the first decision: median 1.000" in text
    assert "queries that lost more than 5 %: 0 of 2" in text
    assert "chance (nothing moved), 2 queries: after/before 0.500 to 0.500" in text
    assert "assessed" not in text
    near, far = {"service-0": 0.46, "service-1": 0.1}, {"service-0": 0.5}
    text = summed(run(assessed=near), run(assessed=far))
    assert "3 queries: within 5 points of what came in 2 (67%), off by median 4%, p90 40%" in text
    assert summary([])[0] == "runs: 0, 0 of them with moves, 0 failed"


def test_a_loss_is_named() -> None:
    longer = [BatchLine(name, at, 10.0 * at, seconds) for name in PAIR for at, seconds in ((0, 2.0), (4, 3.0))]
    assert "lost more than 5 %: 2 of 2 (seed 3 service-0, seed 3 service-1)" in summed(run(batches=longer))


def test_the_table_is_printed_from_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [tmp_path / name for name in ("one.json", "other.json")]
    write(paths[0], run())
    write(paths[1], run(error="it broke\nhere", placed_after=[], truth=[], batches=[]))
    assert main(["--workload", "service", "--report", *map(str, paths)]) == 0
    table = capsys.readouterr().out
    assert "| 4.00 -> 2.50 | +25% | 6.00/3.00 |" in table
    assert "| 4/2 | 2.00 -> 1.00 | 1 | 80% | 3/2 |" in table
    assert "it broke |" in table
    assert report([]).startswith("| run | variant |")


def test_tasks_tell_what_they_take_beside_their_rows() -> None:
    def task(partition: int, seconds: float) -> TaskRow:
        return TaskRow(0, partition, "0", 5.0, 5.0 + seconds, 0.0, 0.0, 0.0, 0, 0, 0, 0, 0, 0, 0, 0.0)

    overhead, asleep = task_figures(case(), {"service-0": [task(0, 1.1), task(1, 0.6), task(2, 0.7)]})
    assert overhead == pytest.approx(0.1)
    assert asleep == pytest.approx(2.0 / 2.4)
    assert task_figures(case(), {}) == (0.0, 0.0)
    assert task_figures(case(), {"service-0": [task(0, 1.1)]}, 6.0) == (0.0, 0.0)
