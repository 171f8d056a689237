"""The live comparison's arithmetic: placements to begin with, figures of a phase, ratios and their noise, the page."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.live.archive import compact, merge
from benchmarks.live.comparison import in_turns
from benchmarks.live.figures import turn_figures
from benchmarks.live.situations import Shape, as_spark_would
from benchmarks.live.summary import Cell, group, left_out, noise, table
from benchmarks.live.variants import QUICK, SPARK, variants
from benchmarks.report import live, page
from benchmarks.report.numbers import percentile
from benchmarks.report.results import Result, rounded
from rechannel.policies.registry import POLICIES
from testbed.progress import Batch, batches

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
    assert {way.policy for way in variants() if way.policy} == set(POLICIES)
    assert [way.name for way in variants() if not way.policy] == ["spark"]
    assert [way.name for way in variants() if way.policy and not way.force] == ["adaptive"]
    assert [way.name for way in variants(QUICK)] == list(QUICK)
    with pytest.raises(ValueError, match="no such variant: evn; there are spark, adaptive"):
        variants(("evn",))


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
        "turn": 1,
        "moved_at": ZERO + 16,
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


def seconds_each() -> tuple[list[Batch], dict[int, int]]:
    """Return thirty batches of a second, and the thousand rows of each."""
    existing = batches([progress(n, n, 1.0) for n in range(30)])
    return existing, {batch.number: 1000 for batch in existing}


def test_a_phase_is_measured_between_its_marks() -> None:
    # 10 batches of 1 s before the event; 10 of 0.8 s up to 18; then of 0.5 s; one of 3 s while moving.
    lines = [progress(n, n, 1.0) for n in range(10)]
    lines += [progress(10 + n, 10 + n, 0.8) for n in range(5)]
    lines += [progress(15, 15, 3.0), progress(16, 18, 1.9)]
    lines += [progress(17 + n, 20 + n / 2, 0.5) for n in range(20)]
    lines += [progress(37, 30, 9.0)]  # the next phase's
    existing = batches(lines)
    rows = {batch.number: 1000 for batch in existing}
    result = turn_figures(phase(), existing, [sample(at / 2) for at in range(80)], rows)
    assert result["before"] == pytest.approx(1.0)
    assert result["between"] == pytest.approx(0.8)
    assert result["mean"] == result["p99"] == pytest.approx(0.5)
    assert result["batches"] == 20
    assert result["throughput"] == pytest.approx(2000)
    assert result["longest"] == pytest.approx(3.0)
    assert result["soon"] == pytest.approx((1.9 + 19 * 0.5) / 20)
    assert result["all"] == pytest.approx((5 * 0.8 + 3 + 1.9 + 20 * 0.5) / 27)
    assert result["bytes_per_row"] == pytest.approx(400 * 10 / 20_000)
    assert result["cpu_per_row"] == pytest.approx(0.6 * 10 / 20_000)
    assert result["cpu_spread"] == pytest.approx(0.1 / 0.3)
    assert result["memory_spread"] == pytest.approx(0.5)
    assert (result["moves"], result["landed"], result["given_up"], result["refused"]) == (3, 2, 1, [])


def test_a_refusal_is_kept_and_too_few_batches_are_no_figure() -> None:
    existing, rows = seconds_each()
    refused = {"asked": ZERO + 15, "moves": 0, "sentence": "the gain is too small", "code": 1}
    samples = [sample(at) for at in range(40)]
    result = turn_figures(phase(orders=[refused]), existing, samples, rows)
    assert result["refused"] == ["the gain is too small"]
    with pytest.raises(ValueError, match="only 10 batches before and 2 after"):
        turn_figures(phase(end=ZERO + 22), existing, samples, {})
    result = turn_figures(phase(), existing, samples[:1], rows)
    assert math.isnan(result["memory_spread"])


def test_nodes_are_looked_at_within_the_phase_and_only_where_they_stay() -> None:
    existing, rows = seconds_each()
    # The next phase kills a node as soon as it begins, at 30.
    gone = {"at": ZERO + 30.01, "sent": {"node1": 9e9}, "cpu": {"node1": 30.0}, "memory": {"node1": 1}}
    result = turn_figures(phase(), existing, [*(sample(at) for at in range(30)), gone], rows)
    assert result["memory_spread"] == pytest.approx(0.5)
    assert result["cpu_spread"] == pytest.approx(0.1 / 0.3)
    assert result["bytes_per_row"] == pytest.approx(400 * 10 / 10_000)
    within = {**gone, "at": ZERO + 29.5}
    assert math.isnan(turn_figures(phase(), existing, [*(sample(at) for at in range(30)), within], rows)["cpu_spread"])


def test_without_links_and_quotas_their_figures_are_not_known() -> None:
    existing, rows = seconds_each()
    samples = [{"at": ZERO + at, "sent": {}, "cpu": {"node1": None}, "memory": {"node1": 1}} for at in range(40)]
    result = turn_figures(phase(), existing, samples, rows)
    assert math.isnan(result["bytes_per_row"])
    assert math.isnan(result["cpu_spread"])


@given(st.lists(st.floats(0.1, 100), min_size=1), st.floats(0.01, 1))
def test_a_percentile_is_one_of_the_values_and_not_below_so_many(values: list[float], share: float) -> None:
    result = percentile(values, share)
    assert result in values
    assert sum(value <= result for value in values) >= share * len(values) - 1e-9


def session(means: list[tuple[str, float]], **other: Any) -> dict[str, Any]:
    names = ("mean", "soon", "p99", "throughput", "bytes_per_row", "cpu_spread", "memory_spread", "all", "longest")
    figures = [
        {**dict.fromkeys(names, value), "way": way, "turn": turn, "landed": 1, "given_up": 0, "batches": 17}
        | {"placed": {"node1": 3, "node2": 1}, "moves": 0 if way == "spark" else 1}
        for turn, (way, value) in enumerate(means)
    ]
    box = {"cores": 2, "memory_mb": 4096, "processor": "p", "spark": "4.3.0", "load_average": 0.5}
    audit = {"ok": True, "lost": 0, "doubled": 0, "rows": 5, "different": 0}
    return {
        "situation": "steady",
        "workload": "word-count",
        "repeat": 0,
        "seed": 0,
        "began": float(next(BEGINNINGS)),
        "command": ["--quick"],
        "shape": asdict(Shape()),
        "lengths": {"after": 18},
        "input": {"rows": 1000, "keys": 10, "skew": 1.0},
        "phases": [],
        "figures": figures,
        "exact": True,
        "testbed": {"machine": box, "nodes": {"node1": {}}, "network": "n", "cpu": "c", "memory": "m"},
        "end": {"audit": {"q": audit}, "failed_attempts": 0},
        **other,
    }


BEGINNINGS = itertools.count()
SPARKS = [("spark", 1.0), ("spark", 1.01), ("spark", 1.0)]  # chance of a hundredth


def test_a_way_is_divided_by_what_spark_beside_it_says_for_its_place() -> None:
    # The machine becomes faster by the same factor with every turn, and that is nobody's merit.
    slowing = [("spark", 1.0), ("even", 0.5), ("spark", 0.25), ("adaptive", 0.1), ("spark", 0.0625)]
    result = table([session(slowing)], noise({"steady": [session(slowing)]}))
    assert result["even"]["mean"].middle == pytest.approx(1.0)
    assert result["adaptive"]["mean"].middle == pytest.approx(0.8)
    assert result.keys() == {"even", "adaptive"}
    assert result["adaptive"]["mean"].reach == pytest.approx(1.0), "Spark's middle turn is just where it is expected"


def test_chance_is_what_sparks_middle_turns_show_and_is_pooled_over_sessions() -> None:
    one = session([("spark", 1.0), ("adaptive", 0.7), ("spark", math.e**0.1), ("even", 0.7), ("spark", 1.0)])
    other = session([("spark", 2.0), ("adaptive", 1.4), ("spark", 2 * math.e**-0.1), ("even", 1.4), ("spark", 2.0)])
    lone = session([("spark", 1.0), ("adaptive", 0.7), ("spark", 1.0)])
    chance = noise({"steady": [one, lone], "lost": [other]})["mean"]
    assert chance.ratios == (("steady", pytest.approx(math.e**0.1)), ("lost", pytest.approx(math.e**-0.1)))
    assert (chance.count, chance.freedom, chance.error) == (2, 2, pytest.approx(0.1))
    assert chance.reach(1) == pytest.approx(math.exp(0.1 * 4.30))
    assert chance.reach(4) == pytest.approx(math.exp(0.1 * 4.30 / 2))
    assert noise({"steady": [lone]})["mean"].reach(1) == math.inf
    assert table([lone], noise({"steady": [lone]}))["adaptive"]["mean"].in_noise, (
        "nothing is claimed where chance is not known"
    )


def test_a_way_that_moved_nothing_is_spark_as_it_is() -> None:
    one = session([("spark", 1.0), ("even", 1.1), ("adaptive", 0.77), ("spark", 1.1)])
    one["figures"][1]["moves"] = 0
    assert noise({"steady": [one]})["mean"].count == 1
    cells = table([one], noise({"steady": [one]}))
    assert cells["adaptive"]["mean"].middle == pytest.approx(0.7), "between even, where nothing moved, and Spark"
    assert cells["even"]["mean"].middle == pytest.approx(1.1 / 1.1 ** (1 / 3)), "never over itself"


def test_of_equal_ways_about_one_in_twenty_is_beyond_chance() -> None:
    random = np.random.default_rng(1)
    order = ["spark", "adaptive", "spark", "even", "spark"]
    beyond = 0
    assert noise({"steady": [session([*SPARKS, *SPARKS])]})["mean"].freedom == pytest.approx(
        4**2 / (4 + 6 * 4 / 9 + 4 / 36)
    )
    for _ in range(1000):
        drawn = [
            session([(way, float(value)) for way, value in zip(order, np.exp(random.normal(0, 0.1, 5)), strict=True)])
            for _ in range(4)
        ]
        beyond += not table(drawn[:1], noise({"steady": drawn}))["adaptive"]["mean"].in_noise
    assert 25 <= beyond <= 80


@pytest.mark.parametrize(
    ("cell", "within"),
    [
        (Cell(0.95, 0.95, 0.95, 1, 1.1), True),
        (Cell(1.05, 1.05, 1.05, 1, 1.1), True),
        (Cell(0.8, 0.7, 1.01, 3, 1.1), True),
        (Cell(0.8, 0.7, 0.9, 3, 1.1), False),
        (Cell(1.3, 1.2, 1.4, 3, 1.1), False),
        (Cell(0.1, 0.1, 0.1, 1, math.inf), True),
    ],
)
def test_what_may_be_chance_is_called_so(cell: Cell, within: bool) -> None:
    assert cell.in_noise is within


@pytest.mark.parametrize("count", [1, 2, 3, 5, 11])
def test_spark_stands_first_last_and_beside_every_way(count: int) -> None:
    names = tuple(variants())[: count + 1]
    order = in_turns(names, "0 steady")
    assert order[0] == order[-1] == SPARK
    assert sorted(way.name for way in order if way != SPARK) == sorted(way.name for way in names if way != SPARK)
    assert all(SPARK in order[at : at + 3] for at in range(len(order) - 2))
    assert count == 1 or order.count(SPARK) >= 3, "else nothing tells what chance does"
    assert order == in_turns(names, "0 steady")


def test_ways_are_compared_in_sessions_that_have_both() -> None:
    one = session([*SPARKS, ("adaptive", 0.2), ("spark", 1.0)])
    other = session([*SPARKS, ("adaptive", 0.9), ("even", 0.9), ("spark", 1.0)])
    text = live.section({"quick": True, "rows": [one, other]})
    assert "beyond chance: no other variant differs from it." in text, "there was more to gain where even did not run"
    assert "nowhere a difference beyond chance" in live.headline({"rows": [one, other]})
    idle = session([*SPARKS, ("adaptive", 0.5), ("even", 1.0), ("spark", 1.0)])
    idle["figures"][4]["moves"] = 0
    assert "no other variant differs from it." in live.section({"quick": True, "rows": [idle]}), "nothing moved"
    unlike = [session([*SPARKS, ("adaptive", 0.5), ("even", even), ("spark", 1.0)]) for even in (0.9, 0.4)]
    assert "no other variant differs from it." in live.section({"quick": True, "rows": unlike}), "they do not agree"


def test_a_turn_that_was_not_where_it_began_is_marked() -> None:
    one = session(SPARKS)
    one["figures"][2]["placed"] = {"node1": 1, "node2": 2}
    lines = live.section({"quick": True, "rows": [one, session([("adaptive", 1.0), *SPARKS])]})
    assert "spark 1.01 s, spark 1.00 s on 1/2" in lines


def test_the_page_says_where_it_is_ahead_and_where_not() -> None:
    one = session([*SPARKS, ("adaptive", 0.7), ("even", 0.5), ("spark", 1.0)])
    text = live.section({"quick": True, "rows": [one]})
    assert "`adaptive` is better in mean batch" in text
    assert "beyond chance: it is slower than `even`." in text
    assert "Rows of the outputs lost: 0, doubled: 0, with another value: 0;" in text
    assert "steady, word-count 1.01, 0.99" in text, "each turn that chance is known of"
    assert "Made by `python -m benchmarks.live --quick --json FILE`." in text, "so that it can be typed"
    assert (
        "`word-count`: Words, counted; nothing is combined before the shuffle. 1,000 rows a batch, 10 keys in the input"
        in text
    )
    assert "| throughput |" not in text, "without a pause it is one over the mean batch"
    assert "Not measured for this page: drift, joined, lost, slowed, spike." in text
    slow = session([*SPARKS, ("adaptive", 1.01), ("even", 1.0), ("spark", 1.0)])
    text = live.section({"quick": True, "rows": [slow]})
    assert "better in nothing, and worse in nothing" in text
    assert "beyond chance: no other variant differs from it" in text
    certain = session([("spark", 1.0), ("spark", 1.0), ("spark", 1.0), ("adaptive", 0.98), ("spark", 1.0)])
    assert "better in nothing" in live.section({"quick": True, "rows": [certain]}), "2 % is nothing worth the name"
    paced = session([*SPARKS, ("adaptive", 0.7), ("spark", 1.0)], shape=asdict(Shape(interval=2.0)))
    text = live.section({"quick": True, "rows": [paced]})
    assert "### steady, word-count, a batch every 2 s" in text
    assert "worse in throughput" in text


def test_every_turn_stands_there_with_what_was_decided_last() -> None:
    one = session([*SPARKS, ("adaptive", 0.7), ("even", 0.9), ("spark", 1.0)])
    before = {"asked": ZERO, "settled": ZERO + 3, "moves": 7, "sentence": "moving 7"}
    after = {"asked": ZERO + 15, "settled": ZERO + 24, "moves": 2, "sentence": "moving 2"}
    refused = {"asked": ZERO + 15, "moves": 0, "sentence": "a path would shorten by 7.8%: gain 1.2 s against 3.4 s"}
    one["phases"] = [phase("adaptive", turn=3, orders=[before, after]), phase("even", turn=4, orders=[before, refused])]
    text = live.section({"quick": True, "rows": [one]})
    assert "adaptive 0.70 s (2 moves in 9 s), even 0.90 s (no move: a path would shorten by 7.8%), spark 1.00 s" in text
    rows = {line.split("`")[1]: line for line in text.splitlines() if line.startswith("| `")}
    assert "| 7 + 2 |" in rows["adaptive"] and "| 7 + 0 |" in rows["even"] and "| 0 |" in rows["spark"]


def test_a_new_executors_first_batches_are_told_apart() -> None:
    joined = session([*SPARKS, ("adaptive", 0.7), ("spark", 1.0)], situation="joined")
    usual = session([*SPARKS, ("adaptive", 0.7), ("spark", 1.0)])
    text = live.section({"quick": True, "rows": [joined, usual]})
    assert text.count("| first batches after the moves |") == 1


def test_a_session_with_a_lost_row_stands_on_the_page_and_does_not_count() -> None:
    audit = {"ok": False, "lost": 2, "doubled": 0, "rows": 5, "different": 0}
    one = session(SPARKS, exact=False, end={"audit": {"q": audit}, "failed_attempts": 3})
    text = page.render({"live": {"quick": False, "rows": [one]}})
    assert "Rows of the outputs lost: 2" in text
    assert "unlike the batch computation: 1 of 1" in text
    assert "Failed task attempts: 3" in text
    assert "* steady, word-count, seed 0: its output was not exact" in text
    assert "### steady" not in text


def test_rows_of_the_input_are_told_by_sign_where_the_output_counts_them() -> None:
    audit = {"ok": False, "lost": 0, "doubled": 0, "rows": 5, "different": 3, "rows_lost": 7, "rows_doubled": 2}
    old = {"ok": True, "lost": 0, "doubled": 0, "rows": 5, "different": 0}
    one = session(SPARKS, exact=False, end={"audit": {"q": audit, "old": old}, "failed_attempts": 0})
    text = page.render({"live": {"quick": False, "rows": [one]}})
    assert "Rows of the input lost: 7, doubled: 2, in the 1 outputs that count them." in text


def test_only_equal_sessions_are_taken_together_and_what_is_left_out_is_told() -> None:
    failed = {"situation": "lost", "workload": "w", "seed": 0, "error": "x\nlog: ..."}
    sessions = [session(SPARKS), session(SPARKS), failed, session(SPARKS, shape=asdict(Shape(link=1000.0)))]
    sessions += [session(SPARKS, input={"rows": 5, "keys": 10, "skew": 1.0})]
    sessions += [session([("even", 1.0)])]
    sessions[0]["phases"] = [{"turn": 3, "way": "even", "error": "the moves did not land\n(log)"}]
    result = group(sessions)
    assert {name: len(each) for name, each in result.items()} == {
        "steady, word-count, 1,000 rows": 2,
        "steady, word-count, 1000 Mbit/s": 1,
        "steady, word-count, 5 rows": 1,
    }
    assert left_out(sessions) == [
        "steady, word-count, seed 0, run 4, even: the moves did not land",
        "lost, w, seed 0: x",
        "steady, word-count, seed 0: no run of spark was measured",
    ]


def test_the_headline_compares_the_variants_with_spark() -> None:
    text = live.headline(
        {"quick": True, "rows": [session([*SPARKS, ("adaptive", 0.7), ("even", 0.5), ("spark", 1.0)])]}
    )
    assert "| steady, word-count | **0.70** | **0.50** | 1 |" in text
    assert "(1 session), in 95 of 100 cases" in text
    assert "(the same number of partitions on each node) once: it is slower in *steady, word-count*." in text


def test_what_is_kept_makes_the_same_page_and_several_runs_make_one() -> None:
    one = session([*SPARKS, ("adaptive", 0.7), ("spark", 1.0)])
    one |= {"phases": [phase("spark"), phase("adaptive", model={"much": [1.0] * 1000})]}
    one["phases"] += [{"turn": 2, "way": "even", "error": "it failed"}]
    one |= {"batches": [progress(n, n, 1.0) for n in range(60)]}
    other = session(SPARKS, batches=one["batches"])
    broken = session([], situation="lost", phases=[], error="x")
    run = Result.of("m", {"rows": [one, broken]}, quick=True)
    stored = compact(run)
    assert live.section(stored.figures()) == live.section(run.figures())
    assert "even: it failed" in live.section(stored.figures())
    assert "model" not in stored.rows[0]["phases"][1]
    assert [batch["batch"] for batch in stored.rows[0]["batches"]] == list(range(30))
    both = merge([stored, Result.of("m", {"rows": run.rows}), Result.of("m", {"rows": [other]})])
    assert both.quick
    assert len(both.rows) == 3, "each of them once"
    assert compact(both).rows[2]["batches"] == [], "those of the first are drawn"


def test_figures_are_kept_with_four_digits_or_decimals() -> None:
    arguments = {
        "small": 0.000123456,
        "large": 1763888000.123456,
        "none": float("nan"),
        "rows": [{"whole": 7, "word": "w"}],
    }
    assert rounded(arguments) == {"small": 0.0001235, "large": 1763888000.1235, "none": None, "rows": arguments["rows"]}


def test_every_test_bed_that_figures_come_from_is_stated() -> None:
    one, other = session(SPARKS), session(SPARKS)
    other["testbed"] = {**other["testbed"], "network": "loopback"}
    text = live.section({"rows": [one, other, one]})
    assert "| network | n |\n| network, other sessions | loopback |\n| CPU | c |\n" in text
    assert list(group([one, other])) == ["steady, word-count", "steady, word-count, others"]


def test_the_page_names_the_parts_that_were_not_measured() -> None:
    text = page.render({"live": {"quick": True, "rows": [session(SPARKS)]}})
    assert "Not measured for this page yet: `benchmarks.simulation`, `benchmarks.nexmark`." in text
