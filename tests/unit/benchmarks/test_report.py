"""The schema of results and their files, the report's archive, and its section on Nexmark."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks import scale
from benchmarks.predictions import __main__ as predictions
from benchmarks.report import __main__ as report
from benchmarks.report.page import figures_of, nexmark_section, render
from benchmarks.report.results import Result, ResultFile, read_results, rounded
from benchmarks.unattended import page as unattended

MACHINE = {"cores": 2, "load_average": 0.5}
ROOT = Path(__file__).parents[3]


def test_a_result_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    figures = {"machine": MACHINE, "seed": 3, "limit": None, "rows": [{"name": "a", "mean": 1.5, "ratio": {"best": 2}}]}
    result = Result.of("a measurement", figures, quick=True)
    ResultFile(tmp_path / "out" / "file.json", {"part": result}).save()
    (stored,) = read_results(tmp_path / "out" / "file.json").values()
    assert stored.figures() == result.figures()
    assert stored.units == {"mean": "s", "ratio": "1"}
    assert result.command.startswith("python -m ")
    assert result.figures().items() >= {**figures, "quick": True}.items()
    assert read_results(tmp_path / "none.json") == {}
    ResultFile(tmp_path / "out" / "file.json", {"other": result}).save()
    assert list(read_results(tmp_path / "out" / "file.json")) == ["part", "other"], "other commands' parts stay"
    (tmp_path / "old.json").write_text('{"part": {"machine": {}, "rows": []}}')
    with pytest.raises(msgspec.ValidationError, match="measures"):
        read_results(tmp_path / "old.json")


@pytest.mark.parametrize("name", ["live", "simulation", "nexmark"])
def test_every_figure_of_the_archive_has_a_unit(name: str) -> None:
    results = read_results(ROOT / "docs" / "figures" / f"{name}.json")
    for result in results.values():
        assert [names for names in result.names() if not result.units.keys() & names] == []
    assert rounded(results) == results


def test_make_bench_runs_every_benchmark() -> None:
    programs = {path.parent.name for path in (ROOT / "benchmarks").glob("*/__main__.py")}
    programs |= {path.stem for path in (ROOT / "benchmarks").glob("*.py") if "__main__" in path.read_text()}
    assert set(re.findall(r"-m benchmarks\.(\w+) --", (ROOT / "Makefile").read_text())) == programs


@pytest.mark.parametrize(
    ("name", "page"), [("scale", scale.page), ("predictions", predictions.page), ("unattended", unattended.page)]
)
def test_a_page_is_that_of_its_figures(name: str, page: Callable[[Mapping[str, Result]], str]) -> None:
    assert page(read_results(ROOT / "docs" / "figures" / f"{name}.json")) == (ROOT / f"docs/{name}.md").read_text()


def test_the_page_of_all_benchmarks_is_that_of_its_figures() -> None:
    directory = ROOT / "docs" / "figures"
    results = {name: read_results(directory / f"{name}.json") for name in ("live", "simulation", "nexmark")}
    notes = (directory / "notes.txt").read_text()
    assert render({"notes": notes, **figures_of(results)}) == (ROOT / "docs/benchmarks.md").read_text()


def figures(**other: Any) -> dict[str, Any]:
    row = {
        "query": "nexmark-q3",
        "batches": 30,
        "events_per_second": 1234.5,
        "mean": 0.5,
        "p99": 0.75,
        "state_rows": 7,
        "audit": {"ok": True, "lost": 0, "doubled": 0},
    }
    existing = {"machine": MACHINE, "spark": "4.3.0", "master": "local[*]", "partitions": 4, "command": "c"}
    return {**existing, "rows": [row], "failed": {}, **other}


def test_the_page_lists_a_failed_query_with_its_reason() -> None:
    assert "| q3 | 30 | 1,234 | 0.50 | 0.75 | 7 | 0 | 0 | exact |" in nexmark_section(figures())
    assert "Not run to the end" not in nexmark_section(figures())
    logged = nexmark_section(figures(failed={"q7": "no batch in 600 s"}))
    assert "**Not run to the end**:\n\n* q7: no batch in 600 s" in logged


def write(monkeypatch: pytest.MonkeyPatch, directory: Path, *options: str) -> None:
    arguments, page = directory / "live.json", directory / "page" / "page.md"
    ResultFile(arguments, {"live": Result(measures="m", command="c", revision="", machine={}, quick=True)}).save()
    page.parent.mkdir(exist_ok=True)
    command = ["report", "--live", str(arguments), "--document", str(page), "--keep", str(directory / "kept"), *options]
    monkeypatch.setattr(sys, "argv", command)
    report.main()


def test_the_archive_has_notes_and_runs_and_drops_those_of_other_figures(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    notes, one, two = tmp_path / "said.txt", tmp_path / "one.json", tmp_path / "two.json"
    notes.write_text("* of these figures\n")
    one.write_text('[{"name": "a"}, {"name": "b"}]')
    two.write_text('[{"name": "b"}, {"name": "c"}]')
    write(monkeypatch, tmp_path, "--notes", str(notes), "--runs", str(one), "--runs", str(two))
    stored = tmp_path / "kept"
    assert (stored / "notes.txt").read_text() == notes.read_text()
    assert [run["name"] for run in json.loads((stored / "runs.json").read_text())] == ["a", "b", "c"]
    assert "* of these figures" in (tmp_path / "page" / "page.md").read_text()
    own = ("--notes", str(stored / "notes.txt"), "--runs", str(stored / "runs.json"))
    before = {path.name: path.read_bytes() for path in stored.iterdir()}
    write(monkeypatch, tmp_path, *own)
    assert {path.name: path.read_bytes() for path in stored.iterdir()} == before
    write(monkeypatch, tmp_path)
    assert [path.name for path in stored.iterdir()] == ["live.json"], "what belongs to other figures is gone"
