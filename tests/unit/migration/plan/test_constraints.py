from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from rechannel.conf.settings import GateSettings, MigrationSettings, Settings
from rechannel.migration.plan.constraints import PlanInputs, ReviewedPlan, dispose
from rechannel.policies.analysis.placement_cost import executor_busy
from rechannel.policies.model.cluster import Cluster
from rechannel.policies.model.placement import Placement
from rechannel.policies.model.workload import Stage, Workload
from rechannel.wire.messages import Operator, QueryState, StatefulStage

OPERATORS = [Operator(operator=0, name="aggregate", stores=["default"])]


def cluster(size: int, available: list[bool] | None = None) -> Cluster:
    return Cluster(
        executors=tuple(f"e{index}" for index in range(size)),
        nodes=tuple(f"n{index}" for index in range(size)),
        cores=np.ones(size),
        memory_bytes=np.full(size, np.inf),
        speed=np.ones(size),
        available=np.array([True] * size if available is None else available),
    )


def stage(key: str, busy: list[float], rate: float = 0.1) -> Stage:
    query = key.partition("/")[0]
    return Stage(key, query, True, rate, np.array(busy), np.ones(len(busy)), np.full(len(busy), 1000.0))


def state(query: str = "q", partitions: int = 4, **changes: Any) -> QueryState:
    known = {
        "query": query,
        "run": f"run-{query}",
        "name": query,
        "batch": 5,
        "active": True,
        "stages": [StatefulStage(stage=0, partitions=partitions, operators=OPERATORS, placement=[])],
    }
    return QueryState(**{**known, **changes})


def facts(**changes: Any) -> PlanInputs:
    known = PlanInputs(
        cluster=cluster(2),
        workload=Workload((stage("q/0", [2.0, 2.0, 2.0, 2.0]),)),
        current=Placement({"q/0": np.zeros(4, dtype=int)}),
        stages={"q/0": ("q", 0)},
        queries={"q": state()},
    )
    return dataclasses.replace(known, **changes)


HALVES = Placement({"q/0": np.array([0, 1, 0, 1])})


def test_a_plan_that_pays_is_accepted_with_ids_steps_and_names() -> None:
    found = dispose(HALVES, facts(), Settings(), decision="d1")
    assert found.code == "ok"
    assert [(move.move, move.partition, move.source, move.target, move.step) for move in found.moves] == [
        ("d1.0", 1, "e0", "e1", 0),
        ("d1.1", 3, "e0", "e1", 1),
    ]
    assert found.refusals == ()
    assert found.sentence == (
        "2 of 4 partitions in 2 steps: critical path of q 8.00 → 4.00 s (-50%), gain 240.0 s over 600 s "
        "against a cost of 1.0 s"
    )


NO_STORES = [StatefulStage(stage=0, partitions=4, operators=[Operator(operator=0, name="x", stores=[])], placement=[])]
NO_OPERATORS = [StatefulStage(stage=0, partitions=4, operators=[], placement=[])]


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize(
    ("changes", "law", "words"),
    [
        pytest.param({"cluster": cluster(2, [True, False])}, "target", "e1 is not available", id="target drained"),
        pytest.param({"queries": {}}, "query-problem", "not active", id="query unknown"),
        pytest.param({"queries": {"q": state(active=False)}}, "query-problem", "not active", id="query ended"),
        pytest.param({"queries": {"q": state(problem="real-time mode")}}, "query-problem", "real-time", id="problem"),
        pytest.param({"queries": {"q": state(run="")}}, "run-unknown", "run id", id="run unknown"),
        pytest.param({"queries": {"q": state(stages=[])}}, "stores-unknown", "stage 0", id="stage unknown"),
        pytest.param({"queries": {"q": state(stages=NO_OPERATORS)}}, "stores-unknown", "stage 0", id="no operators"),
        pytest.param({"queries": {"q": state(stages=NO_STORES)}}, "stores-unknown", "stage 0", id="no stores"),
        pytest.param({"stages": {}}, "stores-unknown", "no such", id="stage not placeable"),
        pytest.param({"queries": {"q": state(partitions=1)}}, "partition", "has 1 partition", id="partition unknown"),
        pytest.param({"in_flight": frozenset({("q", 0, 1), ("q", 0, 3)})}, "in-flight", "already", id="in flight"),
    ],
)
def test_no_force_skips_a_hard_law(changes: dict[str, Any], law: str, words: str, force: bool) -> None:
    found = dispose(HALVES, facts(**changes), Settings(), decision="d", force=force)
    assert (found.code, found.moves) == ("law", ())
    assert {refusal.law for refusal in found.refusals} == {law}
    assert words in found.refusals[0].detail
    assert words in found.sentence


def test_what_one_law_refuses_leaves_the_rest() -> None:
    found = dispose(HALVES, facts(in_flight=frozenset({("q", 0, 1)})), Settings(), decision="d")
    assert found.code == "ok"
    assert [move.partition for move in found.moves] == [3]
    assert [(refusal.law, refusal.scope) for refusal in found.refusals] == [("in-flight", "move")]


def test_a_refusal_that_reaches_a_query_is_told_once() -> None:
    found = dispose(HALVES, facts(queries={"q": state(run="")}), Settings(), decision="d")
    assert [(refusal.law, refusal.scope) for refusal in found.refusals] == [("run-unknown", "query")]


def test_an_executor_is_never_lifted_above_the_limit_and_above_what_it_was_anywhere() -> None:
    busy = facts(workload=Workload((stage("q/0", [2.0] * 4, rate=1.0),)))
    worse = Placement({"q/0": np.array([1, 1, 1, 1])})
    split = busy.current
    at_limit = dispose(worse, dataclasses.replace(busy, current=HALVES), Settings(), decision="d", force=True)
    assert (at_limit.code, at_limit.moves) == ("law", ())
    assert at_limit.sentence == (
        "executor e1 would be 800% busy, above gate.max_utilization 95% and above today's highest 400%"
    )
    # Overload as high as today's is no reason to stay: this one at least moves half of it away.
    assert dispose(HALVES, dataclasses.replace(busy, current=split), Settings(), decision="d").code == "ok"


@pytest.mark.parametrize(
    ("changes", "gate", "law"),
    [
        ({"resting": 100.0}, GateSettings(), "cooldown"),
        ({}, GateSettings(min_gain=0.6), "gate"),
        ({}, GateSettings(move_cost=1000), "gate"),
    ],
)
def test_force_skips_the_soft_laws(changes: dict[str, Any], gate: GateSettings, law: str) -> None:
    asked = facts(**changes), Settings(gate=gate)
    refused = dispose(HALVES, *asked, decision="d")
    assert (refused.code, refused.moves, refused.refusals[0].law) == (law, (), law)
    forced = dispose(HALVES, *asked, decision="d", force=True)
    assert (forced.code, len(forced.moves), forced.refusals) == ("ok", 2, ())


def test_nothing_to_do_is_no_refusal() -> None:
    found = dispose(facts().current, facts(resting=9.0), Settings(), decision="d")
    assert (found.code, found.moves, found.refusals) == ("nothing-to-do", (), ())


def test_the_lightest_moves_wait_when_there_are_too_many() -> None:
    uneven = facts(workload=Workload((stage("q/0", [2.0, 1.0, 2.0, 3.0]),)))
    found = dispose(HALVES, uneven, Settings(migration=MigrationSettings(max_moves=1)), decision="d")
    assert [move.partition for move in found.moves] == [3]
    assert found.refusals[0].detail == "1 of 2 moves wait: migration.max_moves is 1"


def test_partitions_on_no_known_executor_are_placed_without_gain() -> None:
    lost = facts(current=Placement({"q/0": np.array([0, -1, 0, -1])}), resting=50.0)
    found = dispose(HALVES, lost, Settings(), decision="d")
    assert found.code == "ok"
    assert {move.source for move in found.moves} == {""}
    assert found.verdict is not None
    assert (found.verdict.gain, found.verdict.cost) == (0.0, 0.0)


milliseconds = st.integers(0, 3000).map(lambda count: count / 1000)  # nothing finer is measured


@st.composite
def situations(draw: st.DrawFn) -> tuple[Placement, PlanInputs, Settings, bool]:
    size = draw(st.integers(1, 4))
    stages, states, known = [], {}, {}
    current, wanted = {}, {}
    for number in range(draw(st.integers(1, 3))):
        name, partitions = f"q{number}", draw(st.integers(1, 5))
        key = f"{name}/0"
        busy = draw(st.lists(milliseconds, min_size=partitions, max_size=partitions))
        stages.append(stage(key, busy, rate=draw(milliseconds) / 3))
        current[key] = np.array(draw(st.lists(st.integers(-1, size - 1), min_size=partitions, max_size=partitions)))
        places = st.sampled_from([*range(size)] * 3 + [-1, size])
        wanted[key] = np.array(draw(st.lists(places, min_size=partitions, max_size=partitions)))
        odd = draw(
            st.sampled_from(["", "", "", "", "no key", "no stores", "no operators", "no run", "ended", "problem"])
        )
        if odd != "no key":
            known[key] = (name, 0)
        stores = [] if odd == "no stores" else ["default"]
        operators = [] if odd == "no operators" else [Operator(operator=0, name="o", stores=stores)]
        reported = draw(st.sampled_from([partitions, partitions, 0, 1]))
        states[name] = state(
            name,
            active=odd != "ended",
            run="" if odd == "no run" else "r",
            problem="real-time mode" if odd == "problem" else "",
            stages=[StatefulStage(stage=0, partitions=reported, operators=operators, placement=[])],
        )
    flying = draw(st.frozensets(st.tuples(st.sampled_from(sorted(states)), st.just(0), st.integers(0, 4)), max_size=3))
    situation = PlanInputs(
        cluster=cluster(size, draw(st.lists(st.sampled_from([True, True, False]), min_size=size, max_size=size))),
        workload=Workload(tuple(stages)),
        current=Placement(current),
        stages=known,
        queries=states,
        in_flight=flying,
        resting=draw(st.sampled_from([0.0, 10.0])),
    )
    limits = Settings(
        gate=GateSettings(max_utilization=draw(st.floats(0.05, 2)), min_gain=draw(st.floats(0, 0.3))),
        migration=MigrationSettings(max_moves=draw(st.integers(1, 6)), moves_per_executor=draw(st.integers(1, 2))),
    )
    return Placement(wanted), situation, limits, draw(st.booleans())


def check_laws(wanted: Placement, at: PlanInputs, limits: Settings, force: bool, found: ReviewedPlan) -> None:
    """The laws, written down a second time and independently of the manager."""
    assert found.sentence
    assert bool(found.moves) == (found.code == "ok")
    if found.code in ("law", "gate", "cooldown"):
        assert found.refusals
        assert all(refusal.detail and refusal.law and refusal.scope for refusal in found.refusals)
    after = {key: array.copy() for key, array in at.current.assignments.items()}
    gives: Counter[tuple[str, int]] = Counter()
    takes: Counter[tuple[str, int]] = Counter()
    for move in found.moves:
        key = f"{move.query}/{move.stage}"
        known = at.queries[move.query]
        target = at.cluster.index_of(move.target)
        assert target >= 0
        assert at.cluster.available[target]
        assert key in at.stages
        assert known.active
        assert known.run
        assert not known.problem
        reported = known.stages[move.stage]
        assert reported.operators
        assert all(operator.stores for operator in reported.operators)
        assert 0 <= move.partition < reported.partitions
        assert (move.query, move.stage, move.partition) not in at.in_flight
        assert wanted[key][move.partition] == target
        assert at.cluster.index_of(move.source) == at.current[key][move.partition] != target
        after[key][move.partition] = target
        takes[move.target, move.step] += 1
        if move.source:
            gives[move.source, move.step] += 1
    assert max([*gives.values(), *takes.values()], default=0) <= limits.migration.moves_per_executor
    assert len(found.moves) <= limits.migration.max_moves
    assert len({move.move for move in found.moves}) == len(found.moves)
    assert len({(move.query, move.stage, move.partition) for move in found.moves}) == len(found.moves)
    if found.moves:
        before = executor_busy(at.cluster, at.workload, at.current).max()
        then = executor_busy(at.cluster, at.workload, Placement(after)).max()
        available = dict(zip(at.cluster.executors, at.cluster.available, strict=True))
        if all(not move.source or not available[move.source] for move in found.moves) and any(
            move.source for move in found.moves
        ):
            return  # what has to leave goes, whether it pays or not
        assert then <= max(before, limits.gate.max_utilization) * (1 + 1e-6)
        if not force and any(move.source for move in found.moves):
            assert at.resting == 0
            assert found.verdict is not None
            assert found.verdict.passes


@settings(max_examples=100, deadline=None)
@given(situations())
def test_whatever_is_proposed_the_laws_hold(situation: tuple[Placement, PlanInputs, Settings, bool]) -> None:
    wanted, at, limits, force = situation
    found = dispose(wanted, at, limits, decision="d", force=force)
    event(found.code)
    check_laws(wanted, at, limits, force, found)


def test_what_has_to_leave_goes_though_it_pays_nothing_and_overloads_the_rest() -> None:
    full = Workload((stage("q/0", [2.0, 2.0, 2.0, 2.0], rate=0.2),))
    at = facts(cluster=cluster(2, [False, True]), workload=full, current=HALVES, resting=100.0)
    found = dispose(Placement({"q/0": np.ones(4, dtype=int)}), at, Settings(), decision="d")
    assert found.code == "ok"
    assert [move.partition for move in found.moves] == [0, 2]
    assert found.sentence == (
        "2 partitions in 2 steps off n0; executor e1 would be 160% busy, above gate.max_utilization 95% and above "
        "today's highest 80%: add executors"
    )


def test_what_has_to_leave_does_not_take_other_moves_along() -> None:
    at = facts(cluster=cluster(3, [False, True, True]), current=Placement({"q/0": np.array([0, 1, 1, 2])}), resting=9.0)
    found = dispose(Placement({"q/0": np.array([2, 1, 2, 2])}), at, Settings(), decision="d")
    assert found.code == "cooldown", "a plan with moves of choice keeps the soft laws"
