from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.report.results import read_results
from tests.soak import figures, page, queries
from tests.soak.__main__ import summary, tell

BATCHES_A_SAMPLE = 40
ROOT = Path(__file__).parents[3]


def held(threads: float = 10.0) -> dict[str, float]:
    return {"memory": 100 * figures.MIB, "threads": threads, "descriptors": 20, "cpu": 0.0}


def batch(name: str, number: int, at: float) -> dict[str, Any]:
    text = f"2026-01-01T{int(at) // 3600:02d}:{int(at) // 60 % 60:02d}:{int(at) % 60:02d}.000Z"
    return {"query": name, "batch": number, "seconds": 0.1, "at": text, "out": f"[1, {number}]"}


def side(samples: int) -> dict[str, Any]:
    each = samples * BATCHES_A_SAMPLE // len(queries.NAMES)
    return {
        "batches": [
            batch(name, number, number * samples * 30 / each) for number in range(each) for name in queries.NAMES
        ],
        "starts": [{"query": "loop", "start": 0.05, "at": float(at)} for at in range(0, samples * 30, 7)],
        "foreach": {"batches": each, "counts": queries.counted(each)},
        "exceptions": {},
        "problem": "",
    }


def run(samples: int = 200, leak: float = 0.0) -> dict[str, Any]:
    """A run whose driver with Rechannel opens ``leak`` threads every 1,000 batches."""
    made: dict[str, Any] = {name: side(samples) for name in ("with", "without")}
    made["samples"] = []
    for index in range(samples):
        batches = index * BATCHES_A_SAMPLE + 1
        cpu = held() | {"cpu": batches * 0.05}
        ours = cpu | {"threads": 12 + leak * batches / 1000}
        both = {
            "batches": batches,
            "jvm": cpu,
            "executors": cpu,
            "disk": 1000,
            "jvm_heap": None,
            "executors_heap": None,
        }
        if index % 4 == 0:
            both["jvm_heap"] = both["executors_heap"] = 80 * figures.MIB
        made["samples"].append(
            {
                "at": 1767225600.0 + index * 30,
                "with": both | {"python": ours},
                "without": both | {"python": cpu},
                "ours": {name: held() for name in ("controller", "agents", "redis")},
            }
        )
    for name in ("with", "without"):
        for line in made[name]["starts"]:
            line["at"] += 1767225600.0
    return made | {"hours": 2.0, "counters": {"landed": 7}, "refused": [], "orders": 3, "left_behind": []}


def test_a_run_that_costs_nothing_more_holds_and_one_that_leaks_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert tell(summary(run())) == 0
    assert tell(summary(run(leak=1.0))) == 1
    assert "not below its bound: driver, Python: threads" in capsys.readouterr().err


def test_a_short_run_is_not_held_to_bounds_but_to_its_output() -> None:
    assert tell(summary(run(samples=30, leak=1.0))) == 0
    broken = run(samples=30)
    broken["with"]["batches"][40]["out"] = "[2, 9]"
    broken["with"]["foreach"]["counts"]["0"] += 1
    summed = summary(broken)
    assert tell(summed) == 1
    assert [sentence.split(":")[0] for sentence in summed["wrong"]] == [queries.NAMES[0], "with"]


def test_a_query_that_failed_or_was_never_compared_is_told() -> None:
    failed = run(samples=30)
    failed["with"]["exceptions"] = {"join": "OutOfMemoryError\n at ..."}
    failed["without"]["batches"] = [line for line in failed["without"]["batches"] if line["query"] != "dedup"]
    assert summary(failed)["wrong"] == ["dedup: no batch can be compared", "with: join: OutOfMemoryError"]


def test_the_page_has_a_row_for_every_resource_and_keeps_what_else_it_has(tmp_path: Path) -> None:
    document = tmp_path / "reliability.md"
    document.write_text("# Reliability\n\n<!-- faults -->\nold\n<!-- end of faults -->\n")
    sample = {
        "starts": 50,
        "python threads": 5,
        "python descriptors": 9,
        "python memory": 80 * figures.MIB,
        "jvm threads": 260,
        "jvm descriptors": 324,
        "jvm heap": 90 * figures.MIB,
    }
    starts = {"name": "pinned", "samples": {name: [sample, sample] for name in ("with", "without")}}
    starts |= {"times": {name: [0.02] * 50 for name in ("with", "without")}}
    for _ in range(2):
        page.write(document, [summary(run())], [starts])
    text = document.read_text()
    assert text.count("## What attaching costs") == 1
    assert "<!-- faults -->\nold\n<!-- end of faults -->" in text
    for resource in (*figures.RESOURCES, *figures.OURS):
        assert f"| {resource.name}" in text
    assert "| with Rechannel / without it | after 1 batch | after 1,000 batches | after 7,961 batches |" in text
    assert "| pinned | 50 | 5 / 5 | 9 / 9 | 80 / 80 | 260 / 260 | 324 / 324 | 90 / 90 | 20 ms / 20 ms |" in text
    assert "| pinned | python threads | too few samples |  | 0.5 | no |" in text


def test_the_page_is_that_of_its_figures(tmp_path: Path) -> None:
    runs, starts = (read_results(ROOT / "docs/figures/soak.json")[part].rows for part in ("runs", "starts"))
    written = tmp_path / "reliability.md"
    written.write_text((ROOT / "docs/reliability.md").read_text())
    page.write(written, runs, starts)
    assert written.read_text() == (ROOT / "docs/reliability.md").read_text()


def test_the_cpu_at_a_milestone_is_that_of_five_minutes() -> None:
    spiky = run()
    for name in ("with", "without"):
        for index, sample in enumerate(spiky["samples"]):
            sample[name]["jvm"] = held() | {"cpu": index * 2.0 + 20.0 * (index // 10)}
            sample[name]["python"] = held()
    rows = [row for row in summary(spiky)["milestones"] if row["batches"] > 1]
    assert [row["driver: CPU of a batch"] for row in rows] == [pytest.approx(100.0)] * len(rows)
