"""Results survive a run that is broken off, are merged by run, and told in one table."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.drills import results
from tests.drills.results import Result

HELD = Result(
    "Redis hangs while nothing moves",
    "Redis hangs",
    "while nothing moves",
    "hdfs",
    held=True,
    recovered=4.0,
    counted_from="mend",
    gap=2.0,
    usual_gap=1.0,
)
ORDER = [("Redis hangs", "while nothing moves"), ("the driver is killed", "during a migration")]


def test_a_run_is_kept_and_found_again(tmp_path: Path):
    path = tmp_path / "out" / "drills.json"
    results.save(path, results.merge(results.load(path), HELD))
    document = results.load(path)
    assert results.is_done(document, HELD.scenario, "hdfs", 1)
    assert not results.is_done(document, HELD.scenario, "hdfs", 2)
    assert not results.is_done(document, HELD.scenario, "rocksdb", 1)
    assert [entry.name for entry in path.parent.iterdir()] == ["drills.json"]


def test_a_run_that_did_not_hold_is_made_again_and_replaced():
    broken = dataclasses.replace(HELD, held=False, problems=["late"])
    document = results.merge({"runs": []}, broken)
    assert not results.is_done(document, HELD.scenario, "hdfs", 1)
    document = results.merge(document, HELD)
    assert [run["held"] for run in document["runs"]] == [True]


def test_what_could_not_be_run_is_tried_again_and_is_no_problem():
    document = results.merge({"runs": []}, dataclasses.replace(HELD, held=False, skipped="needs root"))
    assert not results.is_done(document, HELD.scenario, "hdfs", 1)
    assert "skipped: needs root" in results.table(document["runs"], ORDER)
    assert results.problems(document["runs"]) == ""


def rows(*actual: Result) -> list[str]:
    document: results.Document = {"runs": []}
    for result in actual:
        document = results.merge(document, result)
    return results.table(document["runs"], ORDER).splitlines()


def test_the_table_sums_rows_and_spreads_times():
    again = dataclasses.replace(HELD, repetition=2, recovered=10.0, failed_attempts=2)
    other = dataclasses.replace(HELD, provider="rocksdb", recovered=6.0, lost=3, held=False)
    head, rule, row = rows(HELD, again, other)
    assert len({line.count("|") for line in (head, rule, row)}) == 1
    cells = [cell.strip() for cell in row.split("|")[1:-1]]
    assert cells == [
        "Redis hangs",
        "while nothing moves",
        "**hdfs 2 of 2, rocksdb 0 of 1**",
        "3",
        "0",
        "0 to 2",
        "6 / 10 s",
        "mend",
        "2.0 s / 1.0 s",
        "",
    ]


def test_migrations_are_told_with_the_reasons_of_what_was_given_up():
    moving = Result(
        "the driver is killed during a migration",
        "the driver is killed",
        "during a migration",
        "hdfs",
        held=True,
        migration="…",
        landed=9,
        abandoned={"run-ended": 3},
    )
    assert rows(moving)[-1].endswith("| 9 moves landed, abandoned: 3 run-ended |")
    assert "not recovered" in rows(moving)[-1]


def test_a_skipped_row_is_as_wide_as_the_others():
    lines = rows(dataclasses.replace(HELD, held=False, skipped="needs root"))
    assert len({line.count("|") for line in lines}) == 1


def test_what_stands_between_the_marks_is_replaced_and_nothing_else():
    page = "a\n<!-- faults -->\nold\n<!-- end of faults -->\nb\n"
    once = results.between_marks(page, "faults", "new")
    assert once == "a\n<!-- faults -->\n\nnew\n\n<!-- end of faults -->\nb\n"
    assert results.between_marks(once, "faults", "new") == once
    with pytest.raises(ValueError, match="chaos"):
        results.between_marks(page, "chaos", "new")
