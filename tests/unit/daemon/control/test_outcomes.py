"""Outcomes of migrations: measured, learned from, and rolled back after a regression."""

from __future__ import annotations

import dataclasses

import msgspec
import numpy as np
import pytest

from rechannel.conf.settings import MigrationSettings
from rechannel.daemon.control import outcomes as outcomes_module
from rechannel.daemon.control.controller import Controller
from rechannel.daemon.control.outcomes import OutcomeHistory
from rechannel.daemon.decide.policy_settings import SAVED_PLAN
from rechannel.daemon.decide.proposed_placement import ProposedPlacement
from rechannel.daemon.model.snapshot import Snapshot
from rechannel.policies.model.placement import Placement
from rechannel.policies.prediction.correction import GainShare
from rechannel.wire import keys
from rechannel.wire.commands import Pause, Resume, Rollback, Stop
from rechannel.wire.messages import Decision, DesiredMove, MigrationOutcome
from unit.daemon.fake_store import NOW, FakeStore
from unit.daemon.fakes import (
    APP,
    CONFIG,
    World,
    app,
    ask,
    batch,
    controller,
    cycle,
    decide,
    decisions,
    go_on,
    leading,
    order,
    published_placement,
    refuses,
    ruled,
    transition,
)

USUAL = 5.0  # seconds of a batch before
LOAD = 0.7  # seconds a moved partition's first task lasts longer


def outcomes(store: FakeStore) -> list[MigrationOutcome]:
    return [envelope.body for envelope in store.last(keys.OUTCOMES, "", 1000)]  # type: ignore[misc]


def tell(world: World, decision: str, move: DesiredMove, number: int, **how: str) -> None:
    """A line of the link's journal; ``how``: as of `transition`."""
    line = transition(move, decision=decision, batch=number, at=world.clock(), **how)
    world._send(keys.JOURNAL, world.application, line)


def land(world: World, settled: float = 4.0, *, batches: int = 6, rows: int = 400, number: int = 10) -> None:
    """All desired moves land, a step in each batch; then come ``batches`` more that last ``settled`` seconds each."""
    clock = world.clock
    desired = published_placement(world.store, world.application)
    for move in desired.moves:
        tell(world, desired.decision, move, -1, before="", after="planned", reason="accepted")
    steps = sorted({move.step for move in desired.moves})
    for at in range(number, number + len(steps) + batches):
        moved = [move for move in desired.moves if steps.index(move.step) == at - number]
        for move in moved:
            world.placement[move.partition] = move.target
        lasts = USUAL if moved else settled
        clock.sleep(lasts)
        # Where batches become longer, it is because the moved partitions take longer on their new executors.
        slow = {} if moved else {move.partition: 0.1 + settled - USUAL for move in desired.moves if settled > USUAL}
        busy = slow | {move.partition: 0.1 + LOAD for move in moved}
        made = batch(at, world.placement, busy, end=clock())
        made = msgspec.structs.replace(made, start=clock() - lasts, end=clock(), input_rows=rows)
        world._send(keys.BATCHES, world.application, made)
        for move in moved:
            tell(world, desired.decision, move, at, before="steered", after="drained", reason="landed")
    world.obey("drained")


def moved(leader: Controller, world: World, settled: float = 4.0, **how: int) -> Decision:
    (decision,) = leader.decide_all()
    assert decision.result == "applied"
    land(world, settled, **how)
    cycle(leader)
    return decision


def test_a_decision_tells_its_cost_before_it_is_made(leader):
    decision = decide(leader)
    assert decision.migration_cost is not None
    assert decision.migration_cost.steps == 1 + max(move.step for move in decision.moves)
    assert decision.migration_cost.bytes == pytest.approx(1000 * len(decision.moves)), "state alone: no lag is known"
    assert decision.migration_cost.moves == 0
    assert decision.migration_cost.overhead == outcomes_module.UNMEASURED.overhead
    assert decision.migration_cost.batch_before["q1"] == pytest.approx(5.0)
    assert decision.migration_cost.peak["q1"] <= 5.0
    assert decision.migration_cost.total >= 5.0 * decision.migration_cost.steps - 5.0


def test_the_outcome_stands_beside_the_prediction(leader, store, world):
    decision = moved(leader, world)
    (result,) = outcomes(store)
    assert (result.decision, result.verdict, result.landed) == (decision.decision, "confirmed", len(decision.moves))
    assert result.predicted == decision.migration_cost
    assert result.batch_before == {"q1": pytest.approx(5.0)}
    assert result.batch_after == {"q1": pytest.approx(4.0)}
    assert result.peak == {"q1": pytest.approx(USUAL)}
    assert result.total == pytest.approx(USUAL * (1 + max(move.step for move in decision.moves)))
    assert sorted(result.loads) == [(pytest.approx(1000.0), pytest.approx(LOAD))] * len(decision.moves)
    assert "name-of-q1 5.00 → 4.00 s" in result.sentence
    leader.follow()
    assert len(outcomes(store)) == 1


@pytest.mark.parametrize(("settled", "rows", "verdict"), [(4.0, 400, "confirmed"), (8.0, 600, "not-judged")])
def test_the_cool_down_ends_once_the_outcome_is_confirmed(leader, store, world, clock, settled, rows, verdict):
    moved(leader, world, settled, rows=rows)
    (result,) = outcomes(store)
    assert result.verdict == verdict
    cooldown = app(leader).migrations.cooldown_left(clock())
    assert (cooldown == 0.0) == (verdict == "confirmed")


def test_the_next_cost_has_learned(leader, store, world, clock):
    decision = moved(leader, world)
    learned = decide(leader, force=True)
    assert learned.migration_cost is None or learned.migration_cost.moves == len(decision.moves)
    rates = leader._services.history.rates()
    assert rates.moves == len(decision.moves)
    assert rates.overhead == pytest.approx(LOAD, abs=0.3)
    other = controller(store, clock, name="b")
    leader.close()
    other.run_leader_cycle()
    assert other._services.history.rates() == rates, "a new leader reads it in Redis"


def test_an_outcome_that_was_stored_twice_counts_once(leader, store, world, clock):
    """As after a lost answer of Redis: it is measured anew, and the last one counts."""
    decision = moved(leader, world)
    (first,) = outcomes(store)
    again = msgspec.structs.replace(first, at=clock(), gain_shares={"q1": 0.0})
    store.append(keys.OUTCOMES, "", world.author.envelope(again, ttl=600, application=APP))
    own, read = leader._services.history, OutcomeHistory(leader._context)
    own.add(again)
    for history in (own, read):
        assert history.rates().moves == len(decision.moves)
        assert history.gain_shares() == {"q1": GainShare(pytest.approx(0.5), 1)}
        assert history.last_of(decision.decision) == again


def test_gains_that_did_not_come_true_are_expected_of_every_leader(leader, store, world, clock):
    promised = moved(leader, world, settled=4.9).migration_cost
    (result,) = outcomes(store)
    assert promised.batch_after["q1"] < 4.74
    share = result.gain_shares["q1"]
    assert 0 < share < 1
    expected = leader._services.history.gain_shares()
    assert expected == {"q1": GainShare(pytest.approx((1 + share) / 2), 1)}
    other = controller(store, clock, name="b")
    leader.close()
    other.run_leader_cycle()
    assert other._services.history.gain_shares() == expected, "a new leader reads it in Redis"
    clock.sleep(keys.OUTCOMES.ttl + 1)
    assert other._services.history.gain_shares() == {}, "as when Redis has dropped them"


def test_an_outcome_that_another_migration_overtook_is_not_published(leader, store, world, monkeypatch):
    measure = outcomes_module.measure_outcome

    def overtaken(decision, *others):
        assert leader._lock._owner == 0, "the controller's lock is free"
        app(leader).outcome.start_tracking(msgspec.structs.replace(decision, decision="another"))
        return measure(decision, *others)

    monkeypatch.setattr(outcomes_module, "measure_outcome", overtaken)
    moved(leader, world, settled=8.0)
    assert outcomes(store) == []
    assert app(leader).rollback is None


def test_what_made_batches_longer_goes_back(leader, store, world):
    before = list(world.placement)
    decision = moved(leader, world, settled=8.0)
    (result,) = outcomes(store)
    assert result.verdict == "regressed"
    leader.follow()
    back = decisions(store)[-1]
    assert (back.trigger, back.result, back.policy) == ("rollback", "applied", "rollback")
    assert back.rollback_of == decision.decision
    assert published_placement(store).decision == back.decision
    assert {(move.partition, move.source, move.target) for move in back.moves} == {
        (move.partition, move.target, move.source) for move in decision.moves
    }
    land(world, 5.0, number=40)
    assert world.placement == before
    cycle(leader)
    assert [result.verdict for result in outcomes(store)][1:] in (["confirmed"], ["regressed"], ["not-judged"])
    cycle(leader, world, 600)
    assert decisions(store)[-1].trigger == "rollback", "what was rolled back is not rolled back again"
    left = app(leader).migrations.cooldown_left(world.clock())
    assert left > 300 - 1, "ended 900 s ago at most, and the cool-down is four times as long: 1,200 s"


@pytest.mark.parametrize("why", ["forced", "switched off", "load", "observe"])
def test_what_does_not_go_back_by_itself(store, world, why):
    config = ruled("observe" if why == "observe" else "apply")
    if why == "switched off":
        config = dataclasses.replace(CONFIG, migration=MigrationSettings(rollback=False))
    leader = leading(world, config)
    decide(leader, apply=True, force=why == "forced")
    land(world, 8.0, rows=600 if why == "load" else 400)
    cycle(leader)
    (outcome,) = outcomes(store)
    assert outcome.verdict == ("not-judged" if why == "load" else "regressed")
    leader.follow()
    assert [decision.trigger for decision in decisions(store)] == ["operator"]


def test_a_new_leader_measures_what_the_old_one_began(leader, store, world, clock):
    (decision,) = leader.decide_all()
    land(world)
    leader.close()
    other = controller(store, clock, name="b", lead=True)
    other.follow()
    assert [result.decision for result in outcomes(store)] == [decision.decision]
    other.close()
    third = controller(store, clock, name="c", lead=True)
    third.follow()
    assert len(outcomes(store)) == 1


def test_a_rollback_that_a_leader_did_not_get_to_is_taken_over(leader, store, world, clock):
    moved(leader, world, settled=8.0)
    assert outcomes(store)[0].verdict == "regressed"
    leader.close()
    other = controller(store, clock, name="b", lead=True)
    other.follow()
    assert decisions(store)[-1].trigger == "rollback"


@pytest.mark.parametrize("ends_ago", [300.0, 700.0])
def test_a_rollback_that_waits_for_the_end_of_an_excluded_period_is_taken_over(store, clock, world, ends_ago):
    leader = leading(world)
    hour = int(clock() // 3600) % 24
    config = ruled(excluded=(f"{hour:02d}:00-{(hour + 2) % 24:02d}:00",))
    decide(leader, apply=True)
    leader.reload(config)
    land(world, 8.0)
    cycle(leader)
    leader.follow()
    assert [result.verdict for result in outcomes(store)] == ["regressed"]
    assert decisions(store)[-1].reason == "excluded"
    leader.close()
    clock.now = (NOW // 3600 + 2) * 3600 + ends_ago
    other = leading(world, config, "b")
    other.follow()
    assert (decisions(store)[-1].result == "applied") is (ends_ago < 600)


def test_what_is_ordered_since_then_stands(leader, world):
    decision = moved(leader, world)
    order(leader, Pause())
    order(leader, Rollback(application=APP), user="ann")
    assert app(leader).rollback.decision == decision
    leader.lead.pause(False)
    go_on(world, 1, leader)
    turned = {key: (where + 1) % 4 for key, where in {"q1/0": np.array([int(at) for at in world.placement])}.items()}
    made = decide(
        leader, apply=True, force=True, placement_source=lambda _: ProposedPlacement(Placement(turned), (), SAVED_PLAN)
    )
    assert made.result == "applied"
    assert app(leader).rollback is None


def test_rollback_by_hand(leader, store, world):
    before = list(world.placement)
    decision = moved(leader, world)
    made = order(leader, Rollback(application=APP), user="ann", reason="it was better before")
    assert "moving" in made.sentence
    assert msgspec.convert(made.data["decision"], Decision) == decisions(store)[-1]
    back = decisions(store)[-1]
    assert (back.user, back.rollback_of, back.result) == ("ann", decision.decision, "applied")
    land(world, 5.0, number=40)
    assert world.placement == before
    cycle(leader)
    refuses(leader, Rollback(application=APP), "nothing before it is left to roll back")


def test_an_operators_rollback_does_not_make_the_rest_longer(leader, world):
    moved(leader, world)
    assert "decision" in order(leader, Rollback(application=APP), user="ann").data
    land(world, 5.0, number=40)
    cycle(leader)
    go_on(world, 10, leader)
    assert app(leader).migrations.cooldown_left(world.clock()) == 290
    refused = decide(leader, apply=True)
    assert refused.sentence.startswith("the last migration ended 10 s ago, gate.cooldown is 300 s: 290 s to go")


def test_the_rest_after_a_mistake_is_told_with_its_true_numbers(leader, world):
    moved(leader, world, settled=8.0)
    leader.follow()
    land(world, 5.0, number=40)
    cycle(leader)
    go_on(world, 10, leader)
    refused = decide(leader, apply=True)
    assert refused.sentence.startswith(
        "the last migration ended 10 s ago, the cool-down after it is 1200 s, 4 times gate.cooldown, as it was rolled "
        "back: 1190 s to go"
    )
    (law,) = [refusal for refusal in refused.refusals if refusal.law == "cooldown"]
    assert (law.detail, law.measured) == (refused.sentence, None)


def test_whoever_stops_a_rollback_has_the_usual_cooldown(leader, world):
    moved(leader, world, settled=8.0)
    leader.follow()
    order(leader, Stop(application=APP))
    world.obey()
    leader.follow()
    assert 0 < app(leader).migrations.cooldown_left(world.clock()) <= 300


def test_a_second_rollback_by_a_nervous_finger_goes_no_decision_further_back(leader, store, world):
    first = moved(leader, world)
    go_on(world, 400, leader)
    second = decide(leader, apply=True, force=True, placement_source=swapped)
    land(world, number=40)
    cycle(leader)
    assert (first.result, second.result) == ("applied", "applied")
    order(leader, Rollback(application=APP), user="ann")
    back = decisions(store)[-1]
    assert back.rollback_of == second.decision
    go_on(world, 20, leader)
    again = (
        f"{second.decision} was rolled back 20 s ago, by {back.decision}; to roll back {first.decision} too, name it"
    )
    for _ in range(2):
        refuses(leader, Rollback(application=APP), again)
    assert decisions(store)[-1] == back
    assert app(leader).migrations.running.desired.decision == back.decision, "and it is not stopped either"
    order(leader, Rollback(application=APP, decision=first.decision), user="ann")
    assert app(leader).rollback.decision.decision == first.decision


def swapped(snapshot: Snapshot) -> ProposedPlacement:
    """Two partitions change places."""
    placement = {key: array.copy() for key, array in snapshot.placement.assignments.items()}
    placement["q1/0"][[10, 11]] = [2, 2]
    return ProposedPlacement(Placement(placement), (), SAVED_PLAN)


# -- plans that were cut to the moves of one migration --


def cut(world: World) -> Controller:
    """A controller that moves one partition at a time, of three that should go."""
    gate = dataclasses.replace(CONFIG.gate, min_gain=0.01)
    return leading(world, dataclasses.replace(CONFIG, migration=MigrationSettings(max_moves=1), gate=gate))


def turn(leader: Controller, world: World, number: int, settled: float = 4.9) -> None:
    """What is published_placement lands and settles, and the controller looks at it."""
    land(world, settled, number=number)
    cycle(leader)
    world.clock.sleep(3)
    world.report()
    cycle(leader)


def test_a_plan_that_was_cut_goes_on_without_a_cool_down(store, clock, world):
    leader = cut(world)
    leader.decide_all()
    number = 10
    while app(leader).migrations.running is not None and number < 400:
        turn(leader, world, number)
        number += 20
    made = [decision for decision in decisions(store) if decision.result == "applied"]
    assert len(made) >= 3, "all that should move has moved"
    assert [decision.trigger for decision in made] == ["timeout"] + ["continuation"] * (len(made) - 1)
    assert all(len(decision.moves) == 1 for decision in made)
    assert made[-1].at - made[0].at < 300, "within less than one cool-down"
    assert made[1].operator_reason == (
        "the plan before was cut to migration.max_moves and confirmed: at most 11 more moves may follow"
    )
    assert app(leader).migrations.continuation(clock()) == 0
    assert app(leader).migrations.cooldown_left(clock()) == 0, "its last part was confirmed too"


@pytest.mark.parametrize("why", ["regressed", "stopped", "observe", "excluded"])
def test_what_ends_a_plan_that_was_cut(store, world, why):
    leader = cut(world)
    leader.decide_all()
    if why == "stopped":
        order(leader, Stop(application=APP))
    if why == "observe":
        leader.reload(dataclasses.replace(leader.settings, reschedule=ruled("observe").reschedule))
    if why == "excluded":
        rules = ruled(excluded=("00:00-23:59",)).reschedule
        leader.reload(dataclasses.replace(leader.settings, reschedule=rules))
    turn(leader, world, 10, settled=9.0 if why == "regressed" else 4.9)
    made = [(decision.trigger, decision.result) for decision in decisions(store)]
    assert ("continuation", "applied") not in made
    if why == "regressed":
        assert made[-1] == ("rollback", "applied")
    if why == "excluded":
        assert made[-1] == ("continuation", "refused")


def test_a_plan_that_was_cut_goes_on_for_no_more_moves_than_there_are_partitions(clock, world):
    leader = cut(world)
    migrations, begun = app(leader).migrations, 0
    (decision,) = leader.decide_all()
    migrations.confirm(decision.decision)
    for _ in range(50):
        migrations.begin(msgspec.structs.replace(decision, trigger="continuation"))
        begun += 1
        migrations.running, migrations.cooldown_timer.migration_ended = None, clock()
        migrations.confirm(decision.decision)
        if not migrations.continuation(clock()):
            break
    assert begun == 11, "the first one, and these, are as many as there are partitions"


def test_rollback_ends_a_running_migration_first(leader, store, world):
    (decision,) = leader.decide_all()
    world.obey("drained", only=1)
    first = decision.moves[0]
    made = order(leader, Rollback(application=APP), user="ann")
    assert f"ends; then decision {decision.decision} is rolled back" in made.sentence
    assert made.data == {}
    assert published_placement(store).moves == []
    leader.follow()
    assert decisions(store)[-1] == decision, "the link has not given up the rest yet"
    world.placement[first.partition] = first.target
    world.obey()
    world.measure()
    cycle(leader)
    leader.follow()
    back = decisions(store)[-1]
    assert (back.trigger, back.rollback_of) == ("rollback", decision.decision)
    assert [(move.partition, move.target) for move in back.moves] == [(first.partition, first.source)]


def test_there_is_nothing_to_roll_back(leader, store, world):
    refuses(leader, Rollback(application=APP), r"no decision of the last days moved anything in app-1")
    decision = moved(leader, world)
    refuses(leader, Rollback(application=APP, decision="123"), "no decision 123 moved anything")
    for move in decision.moves:
        world.placement[move.partition] = "3" if move.source != "3" and move.target != "3" else "1"
    world.ready()
    order(leader, Rollback(application=APP, decision=decision.decision), user="ann")
    assert decisions(store)[-1].result in ("refused", "applied")


def test_a_rollback_waits_while_all_is_paused(leader, store, world):
    moved(leader, world)
    order(leader, Pause())
    assert "paused: `rechannel resume` first" in order(leader, Rollback(application=APP), user="ann").sentence
    for _ in range(70):  # longer than a rollback is tried for
        go_on(world, 10, leader)
        leader.follow()
    assert decisions(store)[-1].trigger == "timeout"
    order(leader, Resume())
    world.ready()
    leader.follow()
    assert decisions(store)[-1].trigger == "rollback"


def test_a_rollback_names_the_decision_that_is_made_and_the_one_that_is_undone(leader, store, world):
    decision = moved(leader, world)
    result = ask(leader, store, "rollback")
    made = result.data["decision"]
    assert made["rollback_of"] == decision.decision
    assert result.sentence.startswith(f"decision {made['decision']} (rollback of {decision.decision}): ")
