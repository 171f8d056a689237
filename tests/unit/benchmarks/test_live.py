"""The live comparison's arithmetic: placements to begin with, figures of a phase, ratios and their noise, the page."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.live.figures import percentile, phase_figures
from benchmarks.live.kept import compact, merged
from benchmarks.live.situations import SITUATIONS, as_spark_would
from benchmarks.live.summary import Cell, group, table
from benchmarks.live.ways import QUICK, ways
from benchmarks.report import live, page
from benchmarks.testbed.progress import batches
from rechannel.policies.registry import POLICIES

EXECUTORS = ["0", "1", "2", "3"]


@given(st.integers(0, 10_000), st.integers(4, 64))
def test_every_partition_begins_somewhere_and_no_executor_is_left_out(seed: int, partitions: int) -> None:
    placement = as_spark_would(EXECUTORS, {0: partitions, 1: partitions}, seed)
    assert set(placement) == {(stage, partition) for stage in (0, 1) for partition in range(partitions)}
    for stage in (0, 1):
        assert {placement[stage, partition] for partition in range(partitions)} == set(EXECUTORS)
    assert placement == as_spark_would(EXECUTORS, {0: partitions, 1: partitions}, seed)


def test_placements_to_begin_with_are_about_as_uneven_as_sparks_own() -> None:
    most = [max(Counter(as_spark_would(EXECUTORS, {0: 12}, seed).values()).values()) for seed in range(400)]
    # Read off real starts, 12 partitions on 4 executors: 1/4/6/1, 5/5/1/1 and 2/2/3/5.
    assert 4.4 < sum(most) / len(most) < 6.0


def test_every_policy_is_a_way_and_a_strange_name_is_refused() -> None:
    assert {way.policy for way in ways() if way.policy} == set(POLICIES)
    assert [way.name for way in ways() if not way.policy] == ["spark"]
    assert [way.name for way in ways() if way.policy and not way.force] == ["adaptive"]
    assert [way.name for way in ways(QUICK)] == list(QUICK)
    with pytest.raises(ValueError, match="no such way: evn; there are spark, adaptive"):
        ways(("evn",))


def progress(number: int, begin: float, seconds: float, query: str = "q") -> dict[str, Any]:
    stamp = f"2026-01-01T00:{int(begin) // 60:02d}:{int(begin) % 60:02d}.{round(begin % 1 * 1000):03d}Z"
    return {
        "query": query,
        "batch": number,
        "timestamp": stamp,
        "milliseconds": {"triggerExecution": round(seconds * 1000)},
    }


ZERO = batches([progress(0, 0, 0)])[0].begin


def phase(way: str = "even", **other: Any) -> dict[str, Any]:
    base = {
        "way": way,
        "situation": "steady",
        "seed": 0,
        "start_from": ZERO,
        "start_until": ZERO + 5,
        "before_from": ZERO,
        "event_at": ZERO + 10,
        "after_from": ZERO + 20,
        "end": ZERO + 30,
        "orders": [{"asked": ZERO + 15, "moves": 3, "landed": 2, "given_up": 1, "sentence": "", "code": 0}],
        "after_placed": {"node1": 3},
    }
    return base | other


def sample(at: float, share: float = 1.0) -> dict[str, Any]:
    return {
        "at": ZERO + at,
        "sent": {"node1": 100.0 * at, "node2": 300.0 * at},
        "cpu": {"node1": 0.2 * at, "node2": 0.4 * at * share},
        "memory": {"node1": 100, "node2": 300},
    }


def test_a_phase_is_measured_between_its_marks() -> None:
    # 10 batches of 1 s before the event; 10 of 0.8 s up to 18; then of 0.5 s; one of 3 s while moving.
    lines = [progress(n, n, 1.0) for n in range(10)]
    lines += [progress(10 + n, 10 + n, 0.8) for n in range(5)]
    lines += [progress(15, 15, 3.0)]
    lines += [progress(16 + n, 20 + n / 2, 0.5) for n in range(20)]
    known = batches(lines)
    rows = {batch.number: 1000 for batch in known}
    found = phase_figures(phase(), known, [sample(at / 2) for at in range(80)], rows)
    assert found["start"] == pytest.approx(1.0)
    assert found["before"] == pytest.approx(1.0)
    assert found["between"] == pytest.approx(0.8)
    assert found["mean"] == found["p99"] == pytest.approx(0.5)
    assert found["batches"] == 20
    assert found["throughput"] == pytest.approx(2000)
    assert found["longest"] == pytest.approx(3.0)
    assert found["all"] == pytest.approx((5 * 0.8 + 3 + 20 * 0.5) / 26)
    assert found["bytes_per_row"] == pytest.approx(400 * 10 / 20_000)
    assert found["cpu_per_row"] == pytest.approx(0.6 * 10 / 20_000)
    assert found["cpu_spread"] == pytest.approx(0.1 / 0.3)
    assert found["memory_spread"] == pytest.approx(0.5)
    assert (found["moves"], found["landed"], found["given_up"], found["refused"]) == (3, 2, 1, [])


def test_a_refusal_is_kept_and_too_few_batches_are_no_figure() -> None:
    lines = [progress(n, n, 1.0) for n in range(30)]
    known = batches(lines)
    refused = {"asked": ZERO + 15, "moves": 0, "sentence": "the gain is too small", "code": 1}
    samples = [sample(at) for at in range(40)]
    found = phase_figures(phase(orders=[refused]), known, samples, {batch.number: 1 for batch in known})
    assert found["refused"] == ["the gain is too small"]
    with pytest.raises(ValueError, match="only 5 batches at the start, 10 before and 2 after"):
        phase_figures(phase(end=ZERO + 22), known, samples, {})
    with pytest.raises(ValueError, match="no samples"):
        phase_figures(phase(), known, samples[:1], {batch.number: 1 for batch in known})


def test_without_links_and_quotas_their_figures_are_not_known() -> None:
    known = batches([progress(n, n, 1.0) for n in range(30)])
    samples = [{"at": ZERO + at, "sent": {}, "cpu": {"node1": None}, "memory": {"node1": 1}} for at in range(40)]
    found = phase_figures(phase(), known, samples, {batch.number: 1 for batch in known})
    assert math.isnan(found["bytes_per_row"])
    assert math.isnan(found["cpu_spread"])


@given(st.lists(st.floats(0.1, 100), min_size=1), st.floats(0.01, 1))
def test_a_percentile_is_one_of_the_values_and_not_below_so_many(values: list[float], share: float) -> None:
    found = percentile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-9


def session(mean: dict[str, list[float]], **other: Any) -> dict[str, Any]:
    names = ("mean", "p99", "throughput", "bytes_per_row", "cpu_spread", "memory_spread", "all", "longest")
    figures = [
        {**dict.fromkeys(names, value), "way": way, "start": 1.0, "moves": 1, "landed": 1, "given_up": 0}
        for way, values in mean.items()
        for value in values
    ]
    box = {"cores": 2, "memory_mb": 4096, "processor": "p", "spark": "4.3.0", "load_average": 0.5}
    audit = {"ok": True, "lost": 0, "doubled": 0, "rows": 5, "different": 0}
    return {
        "situation": "steady",
        "workload": "word-count",
        "repeat": 0,
        "figures": figures,
        "testbed": {"machine": box, "nodes": {"node1": {}}, "network": "n", "cpu": "c", "memory": "m"},
        "end": {"audit": {"q": audit}, "failed_attempts": 0},
        **other,
    }


def test_ways_are_divided_by_spark_in_the_same_session_and_noise_is_between_equals() -> None:
    found = table(
        [session({"spark": [1.0, 1.1], "adaptive": [0.63]}), session({"spark": [2.0, 2.0], "adaptive": [1.4]})]
    )
    cell = found["adaptive"]["mean"]
    assert (cell.least, cell.most) == (pytest.approx(0.6), pytest.approx(0.7))
    assert cell.middle == pytest.approx(0.65)
    assert cell.noise == pytest.approx(1.1)
    assert not cell.in_noise
    assert found["spark"]["mean"].in_noise


@pytest.mark.parametrize(
    ("cell", "noise"),
    [
        (Cell(0.95, 0.95, 0.95, 1, 1.1), True),
        (Cell(1.05, 1.05, 1.05, 1, 1.1), True),
        (Cell(0.8, 0.7, 1.01, 3, 1.1), True),
        (Cell(0.8, 0.7, 0.9, 3, 1.1), False),
        (Cell(1.3, 1.2, 1.4, 3, 1.1), False),
    ],
)
def test_what_may_be_noise_is_called_so(cell: Cell, noise: bool) -> None:
    assert cell.in_noise is noise


def test_the_page_says_where_it_is_ahead_and_where_not() -> None:
    one = session({"spark": [1.0, 1.02], "adaptive": [0.7], "even": [0.5]})
    text = live.section({"quick": True, "sessions": [one]})
    assert "`adaptive` is ahead in mean batch" in text
    assert "behind in throughput" in text
    assert "faster than it: `even`" in text
    assert "Rows lost: 0, doubled: 0" in text
    slow = session({"spark": [1.0, 1.02], "adaptive": [1.01], "even": [1.0]})
    text = live.section({"quick": True, "sessions": [slow]})
    assert "ahead in nothing, behind in nothing" in text
    assert "no other policy is faster" in text


def test_a_lost_row_stands_on_the_page() -> None:
    audit = {"ok": False, "lost": 2, "doubled": 0, "rows": 5, "different": 0}
    one = session({"spark": [1.0, 1.0]}, end={"audit": {"q": audit}, "failed_attempts": 3})
    text = page.render({"live": {"quick": False, "sessions": [one]}})
    assert "Rows lost: 2" in text
    assert "unlike the batch computation: 1 of 1" in text
    assert "Failed task attempts: 3" in text
    assert "not measured here" in text


def test_sessions_are_grouped_and_those_without_figures_left_out() -> None:
    found = group({"sessions": [session({"spark": [1.0]}), {"situation": "lost", "workload": "w", "error": "x"}]})
    assert list(found) == [("word-count", "steady")]
    assert set(SITUATIONS) == {"steady", "drift", "joined", "lost", "slowed", "spike"}


def test_what_is_kept_makes_the_same_page_and_several_runs_make_one() -> None:
    one = session({"spark": [1.0, 1.02], "adaptive": [0.7]})
    one |= {"phases": [phase("spark"), phase("adaptive", model={"much": [1.0] * 1000})]}
    one |= {"batches": [progress(n, n, 1.0) for n in range(60)]}
    audit = {"ok": False, "lost": 2, "doubled": 0, "rows": 5, "different": 0}
    broken = session({}, situation="lost", phases=[], end={"audit": {"q": audit}, "failed_attempts": 1})
    run = {"machine": {}, "quick": True, "sessions": [one, broken, {"situation": "lost", "error": "x"}]}
    kept = compact(run)
    assert live.section(kept) == live.section(run)
    assert "model" not in kept["sessions"][0]["phases"][1]
    assert [batch["batch"] for batch in kept["sessions"][0]["batches"]] == list(range(30))
    both = merged([kept, {**kept, "quick": False}])
    assert both["quick"]
    assert len(both["sessions"]) == 4
    assert compact(both)["sessions"][2]["batches"] == [], "those of the first are drawn"


def test_every_test_bed_that_figures_come_from_is_stated() -> None:
    one, other = session({"spark": [1.0]}), session({"spark": [1.0]})
    other["testbed"] = {**other["testbed"], "network": "loopback"}
    text = live.section({"sessions": [one, other, one]})
    assert "Network: n; in other sessions: loopback. CPU: c." in text


def test_what_slowly_changes_over_a_session_is_not_taken_for_a_way() -> None:
    one = session({"spark": [1.0, 2.0], "adaptive": [1.4]})
    for each, start in zip(one["figures"], (1.0, 2.0, 2.0), strict=True):  # the machine was twice as slow from then on
        each["start"] = start
        each["throughput"] = 100 / each["mean"]
    found = table([one])
    assert found["adaptive"]["mean"].noise == pytest.approx(1.0)
    assert found["adaptive"]["mean"].middle == pytest.approx(0.7)
    assert found["adaptive"]["throughput"].middle == pytest.approx(1 / 0.7)


def test_the_page_names_the_parts_that_were_not_measured() -> None:
    text = page.render({"live": {"quick": True, "sessions": [session({"spark": [1.0, 1.0]})]}})
    assert "Not measured for this page yet: `benchmarks.simulation`, `benchmarks.nexmark`." in text
