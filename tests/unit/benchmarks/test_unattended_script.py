"""Scripts of unattended runs from seeds, and the drift, spike and slow node of a case."""

from __future__ import annotations

import itertools
import operator
from collections import Counter

import msgspec
import pytest

from benchmarks.live.service.cases import Case, Drift, QueryCase, SlowNode, Spike, draw
from benchmarks.unattended.run import phases_of
from benchmarks.unattended.script import EVENTS, batch_seconds, draw_script

# -- the drift of a case --


def test_a_drift_permutes_the_loads_from_its_batch_on() -> None:
    query = QueryCase(name="q", rows=[40, 20, 10], drift=Drift(batch=7, order=[2, 0, 1]))
    assert query.rows_in(6) == [40, 20, 10]
    assert query.rows_in(7) == query.rows_in(8) == [10, 40, 20]
    case = Case(seed=1, executors=2, cores=1, service_ms=25, queries=[query])
    assert case.at(7) == Case(
        seed=1, executors=2, cores=1, service_ms=25, queries=[QueryCase(name="q", rows=[10, 40, 20])]
    )
    assert case.slept() == case.at(0).slept() == [[1.0, 0.5, 0.25]]


@pytest.mark.parametrize("seed", range(5))
def test_a_case_without_a_drift_is_as_it_was(seed: int) -> None:
    case = draw(seed)
    assert case.at(0) == case.at(1000) == case
    old = msgspec.to_builtins(case)
    for query in old["queries"]:
        assert query.pop("drift") is query.pop("spike") is None
        assert query.pop("times") == 1.0
    assert old.pop("slow") is None
    assert msgspec.convert(old, Case) == case, "files of before can be read"


# -- scripts --


@pytest.mark.parametrize("seed", range(20))
def test_a_script_comes_again_and_has_every_event_once(seed: int) -> None:
    script = draw_script(seed)
    assert script == draw_script(seed)
    assert Counter(script.kinds) == Counter(EVENTS.keys())
    assert (script.kinds[0], script.kinds[-1]) == ("start", "drained")
    begins = [*(phase.batch for phase in script.phases), script.end]
    assert begins[0] == 0
    assert all(later - earlier >= 10 for earlier, later in itertools.pairwise(begins))
    lengths = [end - phase.batch for phase, end in zip(script.phases, script.ends(), strict=True)]
    seconds = [batch_seconds(script.case_at(phase), phase) for phase in script.phases]
    assert sum(map(operator.mul, lengths, seconds)) == pytest.approx(30 * 60, rel=0.05)
    case = script.case
    assert (case.cores, case.scheduler, case.noise, case.triggered) == (1, "FIFO", 0.0, False)
    assert len(case.queries) in (2, 3)
    executors, queries, slow = case.executors, len(case.queries) - 1, False
    for phase in script.phases:
        executors += (phase.kind == "joined") - (phase.kind == "drained")
        queries += (phase.kind == "started") - (phase.kind == "stopped")
        slow |= phase.kind == "slowed"
        assert len(phase.speeds) == executors
        assert phase.queries == [query.name for query in script.case_at(phase).queries]
        assert len(phase.queries) == queries > 0
        assert (min(phase.speeds) < 1) == slow or phase.kind == "drained"
        assert (phase.executor >= 0) == (phase.kind in ("lost", "slowed", "drained"))


@pytest.mark.parametrize("seed", range(20))
def test_a_drift_makes_another_partition_the_heaviest_and_leaves_the_sum(seed: int) -> None:
    script = draw_script(seed)
    query, *others = script.case.queries
    (drifted,) = [phase for phase in script.phases if phase.kind == "drift"]
    before, after = query.rows_in(drifted.batch - 1), query.rows_in(drifted.batch)
    assert sorted(before) == sorted(after)
    assert before.index(max(before)) != after.index(max(after))
    assert all(other.drift is None for other in others)


@pytest.mark.parametrize("seed", range(20))
def test_a_spike_lasts_for_its_phase_and_a_slow_node_stays_slow(seed: int) -> None:
    script = draw_script(seed)
    phases = {phase.kind: (phase, end) for phase, end in zip(script.phases, script.ends(), strict=True)}
    phase, end = phases["spike"]
    times = [script.case.at(batch).queries[0].times for batch in (phase.batch - 1, phase.batch, end - 1, end)]
    assert times == [1.0, 1.6, 1.6, 1.0]
    phase, _ = phases["slowed"]
    assert script.case.slow == SlowNode(batch=phase.batch, executor=phase.executor, times=1.6)
    assert phase.speeds[phase.executor] == pytest.approx(1 / 1.6)


def test_a_case_has_the_row_times_and_the_slow_node_of_its_batch() -> None:
    query = QueryCase(name="q", rows=[40, 20], spike=Spike(batch=3, end=5, times=1.5))
    slow = SlowNode(batch=4, executor=1, times=2)
    case = Case(seed=1, executors=2, cores=1, service_ms=25, queries=[query], slow=slow)
    assert case.at(2).slept() == case.at(5).slept() == [[1.0, 0.5]]
    assert case.at(3).slept() == [[1.5, 0.75]]
    assert case.at(3).slow is None
    assert case.at(4).slow == SlowNode(batch=0, executor=1, times=2)
    assert case.at(4).at(0) == case.at(4)


def test_seeds_differ_and_short_scripts_have_fewer_events() -> None:
    assert len({tuple(draw_script(seed).kinds) for seed in range(20)}) > 5
    assert {len(draw_script(seed).case.queries) for seed in range(20)} == {2, 3}
    short = draw_script(3, minutes=8)
    assert len(short.kinds) == 3
    assert "drained" not in short.kinds
    assert draw_script(3, minutes=60).kinds == draw_script(3).kinds


def test_spark_as_it_is_drains_no_node() -> None:
    script = draw_script(1)
    assert [phase.kind for phase, _ in phases_of(script, "adaptive")] == script.kinds
    for way in ("none", "restart"):
        phases = phases_of(script, way)
        assert [phase.kind for phase, _ in phases] == script.kinds[:-1]
        assert phases[-1][1] == script.phases[-1].batch
