"""The migration benchmark's arithmetic and its page, from a constructed run."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from benchmarks.migration import plots
from benchmarks.migration.matrix import Row, rows
from benchmarks.migration.report import render
from benchmarks.migration.summary import phase_figures, row_figures
from benchmarks.migration.variants import LIVE, VARIANTS
from testbed.progress import batches

START = 1_700_000_000.0
QUIET = 8


class Story:
    """Batches that follow each other, and the phases among them."""

    def __init__(self) -> None:
        self.now = START
        self.lines: list[dict[str, Any]] = []
        self.phases: list[dict[str, Any]] = []

    def batch(self, seconds: float) -> int:
        stamp = datetime.fromtimestamp(self.now, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        number = len(self.lines)
        self.lines.append({"batch": number, "timestamp": stamp, "milliseconds": {"triggerExecution": seconds * 1000}})
        self.now += seconds
        return number

    def quiet(self) -> float:
        since = self.now
        for index in range(QUIET):
            self.batch(0.9 if index % 2 else 1.1)
        return since

    def move(self, variant: str, repeat: int, added: list[float]) -> None:
        phase = {
            "variant": variant,
            "repeat": repeat,
            "quiet_from": self.quiet(),
            "ordered": self.now,
            "loaded_bytes": 5_000_000,
        }
        journal: list[dict[str, Any]] = []
        moves: list[dict[str, Any]] = []
        tasks: list[list[float]] = []
        begun = self.now
        for step, extra in enumerate(added):
            move = f"{variant}{repeat}.{step}"
            moves.append({"move": move, "query": "q", "partition": step, "step": step, "bytes": 2e6})
            steered = self.now
            number = self.batch(1.0 + extra)
            tasks += [[index, step, 0.2] for index in range(number - QUIET, number)] + [[number, step, 0.2 + extra]]
            times = {"planned": begun, "prepared": steered, "steered": steered, "drained": self.now, "killed": self.now}
            journal += [
                {"move": move, "step": step, "partition": step, "after": after, "at": at, "batch": number}
                for after, at in times.items()
            ]
        cost = {"peak": {"q": 1.0 + max(added)}, "total": (self.now - begun) * 1.1}
        for _ in range(5):
            self.batch(1.0)
        decision = {"decision": f"{variant}{repeat}", "moves": moves, "migration_cost": cost}
        self.phases.append(phase | {"decision": decision, "journal": journal, "tasks": tasks, "end": self.now})

    def restart(self, repeat: int, away: float) -> None:
        phase = {"variant": "restart", "repeat": repeat, "quiet_from": self.quiet(), "loaded_bytes": 9_000_000}
        stopping = self.now
        self.now += away
        for seconds in (2.0, 1.0, 1.0, 1.0, 1.0, 1.0):
            self.batch(seconds)
        times = {"stopping": stopping, "stopped": stopping + 0.2, "started": stopping + 0.5}
        self.phases.append(phase | {"ordered": stopping, "restart": times, "end": self.now})


def record() -> dict[str, Any]:
    story = Story()
    for repeat in range(2):
        story.move("live", repeat, [0.2, 0.1 + 0.1 * repeat])
        story.restart(repeat, 3.0)
        story.move("at-once", repeat, [0.8])
        story.move("one-by-one", repeat, [0.2, 0.2])
    audit = {"batches": 99, "lost": 0, "doubled": 0, "different": 0, "unknown": 0, "keys": 9, "rows": 900, "ok": True}
    return {
        "row": Row(1_000_000, 0.25, "HDFS-backed", "slow").as_dict(),
        "query": "q",
        "phases": story.phases,
        "batches": story.lines,
        "link": {"failed": 0, "missed": 0, "drifted": 1},
        "end": {"audit": audit | {"wanted_rows": 900}, "failed_attempts": 0},
    }


def figures(*records: dict[str, Any], problem: str = "") -> dict[str, Any]:
    machine = {"cores": 2, "architecture": "x86_64", "python": "3.11.0", "load_average": 0.5}
    arguments = {"partitions": 11, "executors": 4, "rows": 100_000, "quiet": 8, "maintenance": 10}
    return {
        "machine": machine,
        "quick": True,
        "repeats": 2,
        "slow_disk_problem": problem,
        "settings": arguments | {"latency": 0.005, "rate": 50e6},
        "rows": list(records),
    }


def test_a_live_move_is_measured_by_the_batches_from_the_order_to_two_after_the_last_landing() -> None:
    row = record()
    result = phase_figures(row["phases"][0], batches(row["batches"]), "q")
    assert result["steady"] == pytest.approx(1.0)
    assert result["peak_ratio"] == pytest.approx(1.2)
    assert result["extra"] == pytest.approx(0.3)
    assert result["window"] == 4
    assert result["landing"] == pytest.approx(2.3)
    assert result["state_bytes"] == 4e6
    assert result["peak_error"] == pytest.approx(0.0, abs=1e-6)
    assert result["total_error"] == pytest.approx(0.1)
    assert result["load"] == pytest.approx(0.15)
    assert result["settled"] == 2
    assert (result["landed"], result["abandoned"], result["missed"]) == (2, 0, 0)


def test_a_restart_is_measured_by_the_gap_between_two_commits() -> None:
    row = record()
    result = phase_figures(row["phases"][1], batches(row["batches"]), "q")
    assert result["gap"] == pytest.approx(5.0)
    assert result["peak_ratio"] == pytest.approx(5.0)
    assert result["extra"] == pytest.approx(5.0 - 1.0, abs=0.11)  # the period's median is that of seven
    assert result["landing"] == pytest.approx(5.0)
    assert result["settled"] == 1


def test_a_batch_that_was_already_running_when_it_was_ordered_counts() -> None:
    row = record()
    phase = row["phases"][0] | {"ordered": row["phases"][0]["ordered"] - 0.5}
    assert phase_figures(phase, batches(row["batches"]), "q")["window"] == 5


def test_repeated_steers_are_counted() -> None:
    row = record()
    phase = row["phases"][0]
    again = next(line for line in phase["journal"] if line["after"] == "steered")
    result = phase_figures(phase | {"journal": [*phase["journal"], again]}, batches(row["batches"]), "q")
    assert result["missed"] == 1


def test_repeats_are_given_by_median_minimum_and_maximum() -> None:
    result = row_figures(record())
    assert result["variants"]["live"]["extra"] == pytest.approx([0.35, 0.3, 0.4])
    assert list(result["variants"]) == [variant.name for variant in VARIANTS]
    assert not result["problems"]


def test_a_phase_that_broke_off_is_a_problem_and_not_a_figure() -> None:
    row = record()
    del row["phases"][0]["end"]
    result = row_figures(row | {"error": "BenchError: no"})
    assert result["variants"][LIVE.name]["extra"] == pytest.approx([0.4, 0.4, 0.4])
    assert len(result["problems"]) == 2


def test_the_page_depends_on_the_figures_alone() -> None:
    page = render(json.loads(json.dumps(figures(record()))))
    assert page == render(figures(record()))
    text = " ".join(page.split())
    assert "in 1 of 1 rows. * **Longest batch predicted" in text
    assert "| 1M-hdfs-3of11-slow | 1.00 s | 1.10 | " in page
    assert "takes 5 ms for each operation and passes 50 MB/s" in text
    assert "predicted within 25%**: of live moves in 1 of 1 rows, of all variants in 3 of 3 pairs" in text
    assert "## Overlap" in page
    assert all(len(line) <= 120 for line in page.splitlines() if not line.startswith(("|", "!", "    ")))


@pytest.mark.parametrize("problem", ["", "no FUSE"])
def test_the_page_notes_where_the_rows_cover_every_pair(problem: str) -> None:
    every = [{"row": row.as_dict()} for row in rows(quick=False, slow_disk=not problem)]
    assert "every two values" in render(figures(*every, problem=problem))
    assert "every two values" not in render(figures(*every[1:], problem=problem))


def test_figures_within_the_noise_are_marked() -> None:
    row = record()
    for line in row["batches"]:
        line["milliseconds"]["triggerExecution"] = 1000
    page = render(figures(row))
    assert "1.00 ≈" in page
    assert "0.0 s ≈" in page


def test_the_page_lists_failed_rows_and_a_missing_slow_disk() -> None:
    failed = {"row": record()["row"], "phases": [], "batches": [], "error": "BenchError: it does not end"}
    page = render(figures(failed, problem="no FUSE"))
    assert "BenchError: it does not end" in page
    assert "Local disk only" in page
    assert "## In short" not in page


def test_the_same_figures_make_the_same_plots(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for name in ("a", "b"):
        plots.draw(figures(record()), tmp_path / name)
    for name in ("migration-peak.png", "migration-batches.png"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
