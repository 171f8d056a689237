"""Failures of the drill with SIGTERM that are ours, and their report."""

from __future__ import annotations

from typing import Any

import pytest

from tests.drills import reliability, results, sigterm


def run(*lost: int, cured: bool = False, attached: bool = False, doubled: int = 0) -> dict[str, Any]:
    tries = [
        {"batch": 2 * at + 1, "lost": rows, "doubled": doubled, "mapped": 0.5, "ended": 2.0 + at, "committed": rows > 0}
        for at, rows in enumerate(lost)
    ]
    return {"cured": cured, "attached": attached, "tries": tries, "problems": []}


GOOD = {"exceptions": {}, "problem": "", "failures": 0}


@pytest.mark.parametrize(
    ("actual", "result", "problems"),
    [
        (run(0, 700), GOOD, []),  # Spark's own
        (run(0, 0, cured=True), GOOD, []),
        (run(0, 700, cured=True), GOOD, ["700 rows were lost though spark.shuffle.sort.bypassMergeThreshold=0"]),
        (run(0, doubled=3), GOOD, ["3 rows were counted twice"]),
        (run(0), GOOD | {"exceptions": {"counts": "x"}}, ["counts failed: x"]),
        (run(0, attached=True), GOOD | {"problem": "x", "failures": 2}, ["the link: 2 failed turns, x"]),
    ],
)
def test_rows_that_spark_loses_are_a_failure_only_with_the_cure(actual, result, problems):
    assert sigterm.problems(actual, result) == problems


def test_the_table_has_a_row_for_each_way():
    lines = sigterm.table([run(0, 0, cured=True, attached=True), run(0, 1700, 300)]).splitlines()[2:]
    assert lines == [
        "| 200, the default | not there | 3 | 2 | 2 | 2,000 | 0 | 3.0 / 4.0 s | yes |",
        "| 0 | attached | 2 | 0 | 0 | 0 | 0 | 3.0 / 3.0 s | yes |",
    ]


def test_a_way_that_is_run_again_replaces_the_older_run():
    runs = sigterm.merged([run(1), run(0, cured=True)], run(5))
    assert [(one["cured"], one["tries"][0]["lost"]) for one in runs] == [(True, 0), (False, 5)]


def test_the_page_has_the_table(tmp_path):
    page = tmp_path / "reliability.md"
    reliability.write(page, {"runs": [], "sigterm": [run(0, 1700)]} | {"machine": reliability.machine()})
    assert results.BEGIN.format(name="sigterm") in page.read_text()
    assert "| 1,700 |" in page.read_text()
