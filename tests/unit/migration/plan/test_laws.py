from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from rechannel.conf.settings import GateSettings, MigrationSettings, Settings
from rechannel.migration.plan.cost import LoadRates
from rechannel.migration.plan.gate import JUDGED_DRAWS
from rechannel.migration.plan.inputs import Cooldown, PlanInputs, PlanOptions, ReviewedPlan
from rechannel.migration.plan.laws import review_plan
from rechannel.policies.analysis.placement_cost import executor_busy
from rechannel.policies.model.placement import Move, Placement
from rechannel.policies.model.workload import Stage, Workload
from rechannel.policies.prediction.correction import GainShare
from rechannel.policies.prediction.gain import predict_changes
from rechannel.policies.prediction.model import PredictionModel, QueryTiming
from rechannel.wire.messages import GainCorrection, Operator, QueryState, StatefulStage, Unit
from unit.daemon import fakes
from unit.policies.prediction.cases import drawn, rare_visitor
from unit.policies.random_clusters import cluster_of


def stage(key: str, busy: list[float], rate: float = 0.1) -> Stage:
    query = key.partition("/")[0]
    return Stage(key, query, True, rate, np.array(busy), np.ones(len(busy)), np.full(len(busy), 1000.0))


def state(query: str = "q", partitions: int = 4, **changes: Any) -> QueryState:
    return msgspec.structs.replace(fakes.query([""] * partitions, query), **{"name": query, **changes})


def inputs(**changes: Any) -> PlanInputs:
    default = {
        "cluster": cluster_of(2),
        "workload": Workload((stage("q/0", [2.0, 2.0, 2.0, 2.0]),)),
        "current": Placement({"q/0": np.zeros(4, dtype=int)}),
        "stage_ids": {"q/0": ("q", 0)},
        "queries": {"q": state()},
    }
    return with_timing(**(default | changes))


def with_timing(**fields: Any) -> PlanInputs:
    """Return inputs whose batches last as long as their tasks."""
    model = PredictionModel(fields["cluster"], fields["workload"], {})
    return PlanInputs(prediction=model, **fields)


def inputs_of(model: PredictionModel, current: Placement) -> PlanInputs:
    """Return inputs of queries with one stage each."""
    return PlanInputs(
        cluster=model.cluster,
        workload=model.workload,
        current=current,
        stage_ids={it.key: (it.query, 0) for it in model.workload.stages},
        queries={it.query: state(it.query, it.n) for it in model.workload.stages},
        prediction=model,
    )


HALVES = Placement({"q/0": np.array([0, 1, 0, 1])})


def test_a_plan_that_pays_is_accepted_with_ids_steps_and_names() -> None:
    plan = review_plan(HALVES, inputs(), Settings(), PlanOptions("d1"))
    assert plan.code == "ok"
    assert [(move.move, move.partition, move.source, move.target, move.step) for move in plan.moves] == [
        ("d1.0", 1, "e0", "e1", 0),
        ("d1.1", 3, "e0", "e1", 1),
    ]
    assert [move.bytes for move in plan.moves] == [1000.0, 1000.0], "its whole state"
    assert plan.refusals == ()
    assert plan.sentence == (
        "2 of 4 partitions in 2 steps: batch of q 8.00 → 4.00 s (-50%), gain 240.0 s over 600 s against a cost of 0.5 s"
    )


def test_a_gain_of_which_less_is_expected_is_judged_by_that() -> None:
    before = review_plan(HALVES, inputs(), Settings(), PlanOptions("d1"))
    shares = {"q": GainShare(0.5, 3), "gone": GainShare(0.5, 3)}
    plan = review_plan(HALVES, inputs(gain_shares=shares), Settings(), PlanOptions("d1"))
    assert before.corrections == {}
    uncorrected = before.batch_time_after["q"]
    assert plan.corrections == {"q": GainCorrection(share=0.5, migrations=3, uncorrected=uncorrected)}
    assert plan.batch_time_after == {"q": pytest.approx(8 * 0.5**0.5, abs=0.01)}
    assert "batch of q 8.00 → 5.66 s (-29%)" in plan.sentence
    strict = Settings(gate=GateSettings(min_gain=0.4))
    assert review_plan(HALVES, inputs(), strict, PlanOptions("d1")).code == "ok"
    assert review_plan(HALVES, inputs(gain_shares=shares), strict, PlanOptions("d1")).code == "gate"


def test_the_best_placement_of_a_query_is_not_promised_to_be_better_than_that() -> None:
    plan = review_plan(HALVES, inputs(gain_shares={"q": GainShare(1.25, 9)}), Settings(), PlanOptions("d1", force=True))
    assert plan.batch_time_after == {"q": pytest.approx(4.0, abs=0.01)}, "not 8 * 0.5^1.25 = 3.36 s"


def test_a_plan_that_only_makes_the_slowest_batches_longer_is_refused() -> None:
    model, current, planned = rare_visitor()
    plan = review_plan(planned, inputs_of(model, current), Settings(), PlanOptions("d"))
    assert plan.code == "gate"
    (refusal,) = plan.refusals
    assert (refusal.law, refusal.limit, refusal.unit) == ("gate", 0.05, "share")
    assert "the slowest batches would lose more than gate.max_loss 5%: 95th percentile of" in refusal.detail
    before, after = plan.batch_p95["right"]
    assert after > 1.1 * before
    assert plan.batch_time_after["right"] < 1.05 * plan.batch_time_before["right"]
    without = planned.with_moves([Move("rare/0", 0, 3, 2)])
    assert review_plan(without, inputs_of(model, current), Settings(), PlanOptions("d")).code == "ok"


def test_a_plan_is_not_judged_on_the_draws_that_it_was_chosen_on() -> None:
    model, current = drawn(2, noise=0.3, log_error=0.2)
    planned = Placement({key: np.arange(len(at)) % 4 for key, at in current.assignments.items()})
    plan = review_plan(planned, inputs_of(model, current), Settings(), PlanOptions("d"))
    chosen_on, judged_on = (predict_changes(model, current, planned, seed=seed) for seed in (0, JUDGED_DRAWS))
    assert plan.batch_time_after == {query: pytest.approx(change.after) for query, change in judged_on.items()}
    assert plan.batch_time_after != {query: pytest.approx(change.after) for query, change in chosen_on.items()}


@pytest.mark.parametrize("share", [0.5, 1.25])
def test_where_nothing_moves_nothing_is_corrected(share: float) -> None:
    still = inputs(gain_shares={"q": GainShare(share, 9)})
    plan = review_plan(still.current, still, Settings(), PlanOptions("d1"))
    assert (plan.code, plan.corrections) == ("nothing-to-do", {})
    assert plan.batch_time_after == plan.batch_time_before


def one_stage(operators: list[Operator], partitions: int = 4) -> list[StatefulStage]:
    return [StatefulStage(stage=0, partitions=partitions, operators=operators, placement=[])]


NO_STORES = one_stage([Operator(operator=0, name="x", stores=[])])


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize(
    ("changes", "law", "detail"),
    [
        pytest.param({"cluster": cluster_of(2, [1])}, "target", "e1 is not available", id="target drained"),
        pytest.param({"queries": {}}, "query-problem", "not active", id="query unknown"),
        pytest.param({"queries": {"q": state(active=False)}}, "query-problem", "not active", id="query ended"),
        pytest.param({"queries": {"q": state(problem="real-time mode")}}, "query-problem", "real-time", id="problem"),
        pytest.param({"queries": {"q": state(run="")}}, "run-unknown", "run id", id="run unknown"),
        pytest.param({"queries": {"q": state(stages=[])}}, "stores-unknown", "stage 0", id="stage unknown"),
        pytest.param({"queries": {"q": state(stages=one_stage([]))}}, "stores-unknown", "stage 0", id="no operators"),
        pytest.param({"queries": {"q": state(stages=NO_STORES)}}, "stores-unknown", "stage 0", id="no stores"),
        pytest.param({"stage_ids": {}}, "stores-unknown", "no such", id="stage not placeable"),
        pytest.param({"queries": {"q": state(partitions=1)}}, "partition", "has 1 partition", id="partition unknown"),
        pytest.param({"in_flight": frozenset({("q", 0, 1), ("q", 0, 3)})}, "in-flight", "already", id="in flight"),
    ],
)
def test_no_force_skips_a_hard_law(changes: dict[str, Any], law: str, detail: str, force: bool) -> None:
    plan = review_plan(HALVES, inputs(**changes), Settings(), PlanOptions("d", force=force))
    assert (plan.code, plan.moves) == ("law", ())
    assert {refusal.law for refusal in plan.refusals} == {law}
    assert detail in plan.refusals[0].detail
    assert detail in plan.sentence


@pytest.mark.parametrize(
    ("changes", "code", "partitions", "refusals"),
    [
        ({"in_flight": frozenset({("q", 0, 1)})}, "ok", [3], [("in-flight", "move")]),
        ({"queries": {"q": state(run="")}}, "law", [], [("run-unknown", "query")]),
    ],
    ids=["a move of several", "a query, once"],
)
def test_reach_of_a_refusal(
    changes: dict[str, Any], code: str, partitions: list[int], refusals: list[tuple[str, str]]
) -> None:
    plan = review_plan(HALVES, inputs(**changes), Settings(), PlanOptions("d"))
    assert (plan.code, [move.partition for move in plan.moves]) == (code, partitions)
    assert [(refusal.law, refusal.scope) for refusal in plan.refusals] == refusals


def test_an_executor_is_never_lifted_above_the_limit_and_above_what_it_was_anywhere() -> None:
    busy = inputs(workload=Workload((stage("q/0", [2.0] * 4, rate=1.0),)))
    worse = Placement({"q/0": np.array([1, 1, 1, 1])})
    halves = inputs(workload=busy.workload, current=HALVES)
    at_limit = review_plan(worse, halves, Settings(), PlanOptions("d", force=True))
    assert (at_limit.code, at_limit.moves) == ("utilization", ())
    assert at_limit.sentence == (
        "executor e1 would be 800% busy, above gate.max_utilization 95% and above today's highest 400%"
    )
    # Queries back to back with fixed rows use an executor as far as they can: no queue grows.
    fixed = {"q": QueryTiming(0.0, fixed_rows=True)}
    closed = replace(halves, prediction=replace(halves.prediction, timing=fixed))
    assert review_plan(worse, closed, Settings(), PlanOptions("d", force=True)).code == "ok"
    triggered = {"q": replace(fixed["q"], interval=1.0)}
    at_intervals = replace(halves, prediction=replace(halves.prediction, timing=triggered))
    refused = review_plan(worse, at_intervals, Settings(), PlanOptions("d", force=True))
    assert (refused.code, refused.sentence) == (at_limit.code, at_limit.sentence)
    # Overload as high as today's is no reason to stay: this one at least moves half of it away.
    assert review_plan(HALVES, busy, Settings(), PlanOptions("d")).code == "ok"


@pytest.mark.parametrize(
    ("changes", "gate", "law"),
    [
        ({"cooldown": Cooldown(100.0, 300.0)}, GateSettings(), "cooldown"),
        ({}, GateSettings(min_gain=0.6), "gate"),
        ({"rates": LoadRates(1000.0, 50e6)}, GateSettings(), "gate"),
    ],
)
def test_force_skips_the_soft_laws(changes: dict[str, Any], gate: GateSettings, law: str) -> None:
    arguments = inputs(**changes), Settings(gate=gate)
    refused = review_plan(HALVES, *arguments, PlanOptions("d"))
    assert (refused.code, refused.moves, refused.refusals[0].law) == (law, (), law)
    forced = review_plan(HALVES, *arguments, PlanOptions("d", force=True))
    assert (forced.code, len(forced.moves), forced.refusals) == ("ok", 2, ())


def test_measured_bytes_to_load_take_the_place_of_the_state() -> None:
    measured = inputs(bytes_to_load={"q/0": np.array([1.0, 20.0, 1.0, 40.0])})
    plan = review_plan(HALVES, measured, Settings(), PlanOptions("d"))
    assert [(move.partition, move.bytes) for move in plan.moves] == [(1, 20.0), (3, 40.0)]


def test_nothing_to_do_is_no_refusal() -> None:
    plan = review_plan(inputs().current, inputs(cooldown=Cooldown(9.0, 300.0)), Settings(), PlanOptions("d"))
    assert (plan.code, plan.moves, plan.refusals) == ("nothing-to-do", (), ())


def test_the_refusal_of_a_cool_down_has_no_limit_to_compare() -> None:
    at = inputs(cooldown=Cooldown(9.0, 300.0))
    (refusal,) = review_plan(HALVES, at, Settings(), PlanOptions("d")).refusals
    assert (refusal.law, refusal.measured, refusal.limit, refusal.unit) == ("cooldown", None, None, "")


def test_the_lightest_moves_wait_when_there_are_too_many() -> None:
    uneven = inputs(workload=Workload((stage("q/0", [2.0, 1.0, 2.0, 3.0]),)))
    plan = review_plan(HALVES, uneven, Settings(migration=MigrationSettings(max_moves=1)), PlanOptions("d"))
    assert [move.partition for move in plan.moves] == [3]
    assert plan.refusals[0].detail == "1 of 2 moves wait: migration.max_moves is 1"


def test_partitions_on_no_known_executor_are_placed_without_gain() -> None:
    lost = inputs(current=Placement({"q/0": np.array([0, -1, 0, -1])}), cooldown=Cooldown(50.0, 300.0))
    plan = review_plan(HALVES, lost, Settings(), PlanOptions("d"))
    assert plan.code == "ok"
    assert {move.source for move in plan.moves} == {""}
    assert plan.gate is not None
    assert (plan.gate.gain, plan.gate.cost) == (0.0, 0.0)


milliseconds = st.integers(0, 3000).map(lambda count: count / 1000)  # nothing finer is measured


@st.composite
def situations(draw: st.DrawFn) -> tuple[Placement, PlanInputs, Settings, bool]:
    size = draw(st.integers(1, 4))
    stages, states, keys = [], {}, {}
    current, proposed = {}, {}
    for number in range(draw(st.integers(1, 3))):
        name, partitions = f"q{number}", draw(st.integers(1, 5))
        key = f"{name}/0"
        busy = draw(st.lists(milliseconds, min_size=partitions, max_size=partitions))
        stages.append(stage(key, busy, rate=draw(milliseconds) / 3))
        current[key] = np.array(draw(st.lists(st.integers(-1, size - 1), min_size=partitions, max_size=partitions)))
        places = st.sampled_from([*range(size)] * 3 + [-1, size])
        proposed[key] = np.array(draw(st.lists(places, min_size=partitions, max_size=partitions)))
        odd = draw(
            st.sampled_from(["", "", "", "", "no key", "no stores", "no operators", "no run", "ended", "problem"])
        )
        if odd != "no key":
            keys[key] = (name, 0)
        stores = [] if odd == "no stores" else ["default"]
        operators = [] if odd == "no operators" else [Operator(operator=0, name="o", stores=stores)]
        reported = draw(st.sampled_from([partitions, partitions, 0, 1]))
        states[name] = state(
            name,
            active=odd != "ended",
            run="" if odd == "no run" else "r",
            problem="real-time mode" if odd == "problem" else "",
            stages=one_stage(operators, reported),
        )
    flying = draw(
        st.frozensets(st.builds(Unit, st.sampled_from(sorted(states)), st.just(0), st.integers(0, 4)), max_size=3)
    )
    situation = with_timing(
        cluster=cluster_of(size, sorted(draw(st.sets(st.integers(0, size - 1))))),
        workload=Workload(tuple(stages)),
        current=Placement(current),
        stage_ids=keys,
        queries=states,
        in_flight=flying,
        cooldown=Cooldown(draw(st.sampled_from([0.0, 10.0])), 300.0),
    )
    limits = Settings(
        gate=GateSettings(max_utilization=draw(st.floats(0.05, 2)), min_gain=draw(st.floats(0, 0.3))),
        migration=MigrationSettings(max_moves=draw(st.integers(1, 6)), moves_per_executor=draw(st.integers(1, 2))),
    )
    return Placement(proposed), situation, limits, draw(st.booleans())


def check_laws(proposed: Placement, at: PlanInputs, limits: Settings, force: bool, plan: ReviewedPlan) -> None:
    """The laws, written down a second time and independently of `review_plan`."""
    assert plan.sentence
    assert bool(plan.moves) == (plan.code == "ok")
    if plan.code in ("law", "gate", "cooldown", "utilization"):
        assert plan.refusals
        assert all(refusal.detail and refusal.law and refusal.scope for refusal in plan.refusals)
    after = {key: array.copy() for key, array in at.current.assignments.items()}
    gives: Counter[tuple[str, int]] = Counter()
    takes: Counter[tuple[str, int]] = Counter()
    for move in plan.moves:
        key = f"{move.query}/{move.stage}"
        state = at.queries[move.query]
        target = at.cluster.index_of(move.target)
        assert target >= 0
        assert at.cluster.available[target]
        assert key in at.stage_ids
        assert state.active and state.run and not state.problem
        reported = state.stages[move.stage]
        assert reported.operators
        assert all(operator.stores for operator in reported.operators)
        assert 0 <= move.partition < reported.partitions
        assert move.unit not in at.in_flight
        assert proposed[key][move.partition] == target
        assert at.cluster.index_of(move.source) == at.current[key][move.partition] != target
        after[key][move.partition] = target
        if move.source:
            takes[move.target, move.step] += 1
            gives[move.source, move.step] += 1
        else:
            assert move.step == 0, "it loads its state wherever it goes"
    assert max([*gives.values(), *takes.values()], default=0) <= limits.migration.moves_per_executor
    assert len(plan.moves) <= limits.migration.max_moves
    assert len({move.move for move in plan.moves}) == len(plan.moves)
    assert len({move.unit for move in plan.moves}) == len(plan.moves)
    if plan.moves:
        before = executor_busy(at.cluster, at.workload, at.current).max()
        then = executor_busy(at.cluster, at.workload, Placement(after)).max()
        available = dict(zip(at.cluster.executors, at.cluster.available, strict=True))
        if all(not move.source or not available[move.source] for move in plan.moves) and any(
            move.source for move in plan.moves
        ):
            return  # what has to leave goes, whether it pays or not
        assert then <= max(before, limits.gate.max_utilization) * (1 + 1e-6)
        if not force and any(move.source for move in plan.moves):
            assert at.cooldown.left == 0
            assert plan.gate is not None
            assert plan.gate.passes


@settings(max_examples=100)
@given(situations())
def test_the_laws_hold_for_any_proposal(situation: tuple[Placement, PlanInputs, Settings, bool]) -> None:
    proposed, at, limits, force = situation
    plan = review_plan(proposed, at, limits, PlanOptions("d", force=force))
    event(plan.code)
    check_laws(proposed, at, limits, force, plan)


def test_forced_moves_are_made_though_they_do_not_pay_and_overload_the_rest() -> None:
    full = Workload((stage("q/0", [2.0, 2.0, 2.0, 2.0], rate=0.2),))
    at = inputs(cluster=cluster_of(2, [0]), workload=full, current=HALVES, cooldown=Cooldown(100.0, 300.0))
    plan = review_plan(Placement({"q/0": np.ones(4, dtype=int)}), at, Settings(), PlanOptions("d"))
    assert plan.code == "ok"
    assert [move.partition for move in plan.moves] == [0, 2]
    assert plan.sentence == (
        "2 partitions in 2 steps off n0; executor e1 would be 160% busy, above gate.max_utilization 95% and above "
        "today's highest 80%: add executors"
    )


def test_forced_moves_do_not_take_other_moves_along() -> None:
    at = inputs(
        cluster=cluster_of(3, [0]),
        current=Placement({"q/0": np.array([0, 1, 1, 2])}),
        cooldown=Cooldown(9.0, 300.0),
    )
    plan = review_plan(Placement({"q/0": np.array([2, 1, 2, 2])}), at, Settings(), PlanOptions("d"))
    assert plan.code == "cooldown", "a plan with moves of choice keeps the soft laws"
