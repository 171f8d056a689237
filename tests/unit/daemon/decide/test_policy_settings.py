"""Policy of a decision with its parameters, and errors in the policy sections."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from rechannel.conf.loader import LoadResult
from rechannel.conf.settings import GateSettings, MigrationSettings, Settings, SettingsError
from rechannel.daemon.cli import config as cli_config
from rechannel.daemon.decide import pipeline, policy_settings
from rechannel.daemon.decide.policy_settings import parameters_for, policy_errors, policy_for
from rechannel.daemon.service import signer_of
from rechannel.migration.plan.cost import LoadRates
from rechannel.policies.model.arrays import ScaleOutError
from rechannel.policies.registry import POLICIES
from rechannel.wire.commands import Drain, Pause
from rechannel.wire.messages import Decision
from unit.daemon.fakes import (
    CONFIG,
    ask,
    cycle,
    decide,
    decisions,
    leading,
    order,
    published_placement,
    ruled,
    settings,
)

NODE = "127.0.0.5"  # holds partitions 10 and 11


def configured(**policies: dict[str, object]) -> Settings:
    return dataclasses.replace(
        CONFIG, policies={name.replace("_", "-"): arguments for name, arguments in policies.items()}
    )


def drained(leader, node: str = NODE) -> None:
    order(leader, Drain(nodes=[node]))
    leader.follow()


# -- parameters --


def test_parameters_follow_from_the_settings():
    gate = GateSettings(max_utilization=0.8, horizon=60.0)
    config = Settings(gate=gate, migration=MigrationSettings(max_moves=7))
    assert parameters_for("adaptive", config, LoadRates(2.0, 1e6)) == {
        "max_moves": 7,
        "min_step": 0.03,
        "limit": 0.8,
        "move_seconds": 2.0,
        "load_rate": 1e6,
        "horizon": 60.0,
    }
    assert parameters_for("fair-redistribution", config) == {"max_moves": 7, "limit": 0.8}
    assert parameters_for("round-robin", config) == {}
    assert parameters_for("magic", config) == {}


def test_what_is_configured_wins_except_that_a_drain_moves_nothing_else():
    config = configured(adaptive={"mode": "light", "limit": 0.5, "max_moves": 3}, bottleneck={"lookback": "none"})
    chosen = parameters_for("adaptive", config)
    assert (chosen["mode"], chosen["limit"], chosen["max_moves"]) == ("light", 0.5, 3)
    assert parameters_for("adaptive", config, drain=True)["max_moves"] == 0
    assert parameters_for("bottleneck", config, drain=True) == {"lookback": None}
    text = configured(fair_redistribution={"weight": "none"})
    assert parameters_for("fair-redistribution", text)["weight"] == "none", "a word of its own"


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_the_default_settings_suit_every_policy(policy: str):
    for drain in (False, True):
        POLICIES[policy].parameters(**parameters_for(policy, Settings(), drain=drain))


# -- mistakes --


def test_the_defaults_are_no_mistake():
    assert policy_errors(Settings()) == []
    fine = configured(
        adaptive={"mode": "light"},
        fair_redistribution={"weight": "inverse-distance", "max_moves": "none"},
        data_locality={"data_nodes": ["a", "b"]},
        first_fit={},
    )
    assert policy_errors(fine) == []


@pytest.mark.parametrize(
    ("inputs", "messages_value"),
    [
        ({"adaptive": {"mode": "heavy"}}, "policies.adaptive.mode: expected one of full, light, got 'heavy'"),
        ({"adaptive": {"limit": True}}, "policies.adaptive.limit: expected a number above 0 to 10, got True"),
        ({"adaptive": {"min_step": "none"}}, "policies.adaptive.min_step: expected a number from 0 to 1, got 'none'"),
        (
            {"fair-redistribution": {"wait": "none"}},
            "policies.fair-redistribution.wait: no such parameter; did you mean weight? known are limit, weight, ",
        ),
        ({"balance": {}}, "[policies.balance]: no policy is called 'balance'; known are adaptive, "),
    ],
)
def test_mistakes_have_their_field_and_the_cure(inputs, messages_value):
    (result,) = policy_errors(dataclasses.replace(Settings(), policies=inputs))
    assert result.startswith(messages_value)


def test_every_mistake_is_found_at_once():
    config = dataclasses.replace(
        settings(policy="magic"),
        policies={"adaptive": {"mode": "heavy", "size": 1}, "even": {"slots": 0}, "balance": {}},
    )
    fields = ["reschedule.policy", "policies.adaptive.mode", "policies.adaptive.size"]
    fields += ["policies.even.slots", "[policies.balance]"]
    assert [result.partition(": ")[0] for result in policy_errors(config)] == fields
    with pytest.raises(SettingsError) as caught:
        signer_of(config)
    assert all(field in str(caught.value) for field in fields)
    logged, _ = cli_config.examine(LoadResult(config, {}, ()))
    assert [result.partition(": ")[0] for result in logged] == fields


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_odd_values_are_mistakes_and_nothing_worse(policy: str):
    odd = (-1, 0, 1.5, 2**62, True, "", "none", "x", [], ["x"], [1], [True, "x"])
    for field in dataclasses.fields(POLICIES[policy].parameters):
        for value in odd:
            result = policy_errors(dataclasses.replace(Settings(), policies={policy: {field.name: value}}))
            assert all(text.startswith(f"policies.{policy}.{field.name}: ") for text in result)


# -- asked for by name --


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_policy_can_be_asked_for(store, clock, world, policy: str):
    leader = leading(world)
    answer = ask(leader, store, "rebalance", policy=policy, force=True)
    decision = msgspec.convert(answer.data["decision"], Decision)
    assert (decision.policy, decision.trigger) == (policy, "operator")
    assert decision.result == "applied" or decision.reason in ("nothing-to-do", "law"), decision.sentence
    assert decisions(store) == [decision]
    if decision.result == "applied":
        assert published_placement(store).moves == decision.moves
    assert leader.settings.reschedule.policy == "adaptive"


def test_it_is_asked_for_one_decision_alone(store, world):
    leader = leading(world)
    ask(leader, store, "plan", policy="round-robin")
    leader.decide_all()
    assert [decision.policy for decision in decisions(store)] == ["round-robin", "adaptive"]


@pytest.mark.parametrize("verb", ["plan", "rebalance"])
def test_an_unknown_name_is_refused_with_the_known_ones(store, clock, world, verb: str):
    leader = leading(world)
    answer = ask(leader, store, verb, policy="magic")
    assert (answer.code, answer.data) == (1, {})
    assert answer.sentence == f"no policy is called 'magic'; known are {', '.join(sorted(POLICIES))}"
    assert decisions(store) == []


def test_refusals_and_silences_name_the_policy_too(world):
    leader = leading(world)
    world.ready()
    order(leader, Pause())
    query = {"policy": "even", "apply": True}
    assert (decide(leader, **query).policy, decide(leader, **query).reason) == ("even", "paused")
    leader.close()
    assert decide(leader, **query).policy == "even"


def test_its_configured_parameters_are_used(world):
    leader = leading(world, configured(even={"slots": 1}))
    decision = decide(leader, force=True, policy="even")
    assert [load.partitions_after for load in decision.executors] == [12, 0, 0, 0]


def test_light_mode_moves_nothing_that_is_not_overloaded(world):
    leader = leading(world, configured(adaptive={"mode": "light"}))
    (decision,) = leader.decide_all()
    assert (decision.result, decision.reason) == ("planned", "nothing-to-do")


# -- drains --


def test_a_drain_is_decided_by_its_own_policy(store, world):
    config = ruled("observe", policy="even")
    assert (policy_for("drain", config), policy_for("timeout", config)) == ("adaptive", "even")
    leader = leading(world, config)
    drained(leader)
    (decision,) = decisions(store)
    assert (decision.trigger, decision.policy, decision.result) == ("drain", "adaptive", "applied")
    assert {move.partition for move in decision.moves} == {10, 11}


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_whatever_policy_drains_only_what_has_to_leave_does(store, world, monkeypatch, policy: str):
    monkeypatch.setattr(policy_settings, "DRAIN_POLICY", policy)
    leader = leading(world, ruled("observe"))
    drained(leader)
    (decision,) = decisions(store)
    assert (decision.policy, decision.result) == (policy, "applied")
    assert {(move.partition, move.source) for move in decision.moves} == {(10, "3"), (11, "3")}
    assert {move.target for move in decision.moves} <= {"0", "1", "2"}


@pytest.fixture
def cramped(monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A drain policy that allows an executor no more than one partition of a stage."""
    monkeypatch.setattr(policy_settings, "DRAIN_POLICY", "round-robin")
    return configured(round_robin={"instances_per_executor": 1})


def test_where_the_drains_policy_finds_no_room_the_other_one_decides(store, world, cramped):
    leader = leading(world, cramped)
    drained(leader)
    (decision,) = decisions(store)
    assert (decision.policy, decision.result, len(decision.moves)) == ("adaptive", "applied", 2)
    assert decision.notes[0].startswith("adaptive decides instead of round-robin, which finds no room: stage 'q1/0'")


def test_where_no_policy_finds_room_it_is_refused(store, world, cramped):
    rules = ruled("observe", policy="round-robin").reschedule
    leader = leading(world, dataclasses.replace(cramped, reschedule=rules))
    drained(leader)
    (decision,) = decisions(store)
    assert (decision.policy, decision.result, decision.reason) == ("round-robin", "refused", "scale-out")


def test_only_a_drain_falls_back(world, monkeypatch):
    leader = leading(world)

    def full(*_: object) -> None:
        raise ScaleOutError("add executors")

    monkeypatch.setattr(pipeline, "propose", full)
    decision = decide(leader, policy="fair-redistribution")
    result = (decision.policy, decision.reason, decision.sentence)
    assert result == ("fair-redistribution", "scale-out", "add executors")


def test_a_drain_that_waited_goes_on_with_the_rest(store, world):
    """The drained node's partitions are more than one migration may move."""
    config = dataclasses.replace(CONFIG, migration=MigrationSettings(max_moves=1))
    leader = leading(world, config)
    drained(leader)
    assert [refusal.law for refusal in decisions(store)[-1].refusals] == ["max-moves"]
    (first,) = published_placement(store).moves
    world.placement[first.partition] = first.target
    world.obey("drained")
    cycle(leader, world, 11)
    leader.follow()
    assert {move.partition for decision in decisions(store) for move in decision.moves} == {10, 11}
