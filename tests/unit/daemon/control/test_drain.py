"""Drains and changed executors, as the leading controller sees to them."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from structlog.testing import capture_logs

from rechannel.daemon.control.controller import Controller
from rechannel.daemon.control.standing_orders import partitions_on
from rechannel.wire import keys
from rechannel.wire.commands import Drain, Pause, Resume, Undrain
from rechannel.wire.envelope import Envelope, EnvelopeFactory, encode
from rechannel.wire.exit_codes import ExitCode
from rechannel.wire.messages import DrainedNode, StandingOrders
from rechannel.wire.redis.errors import StoreUnavailableError
from rechannel.wire.signing import Signer
from unit import sample_messages as samples
from unit.daemon.control.test_outcomes import land
from unit.daemon.fake_store import FakeStore
from unit.daemon.fakes import (
    APP,
    CONFIG,
    VERIFIER,
    World,
    app,
    ask,
    batch,
    controller,
    cycle,
    decide,
    decisions,
    desired,
    leading,
    order,
    published_placement,
    query,
    read_reply,
    refuses,
    report,
    request,
    ruled,
    settings,
    window,
)

NODE = "127.0.0.5"  # holds partitions 10 and 11


def drain(leader: Controller, node: str = NODE, **more) -> str:
    return order(leader, Drain(nodes=[node], **more)).sentence


def orders(store: FakeStore) -> StandingOrders:
    envelope = store.get(keys.ORDERS)
    VERIFIER.check(envelope)
    assert isinstance(envelope.body, StandingOrders)
    return envelope.body


def test_a_drain_by_the_name_of_a_node_empties_its_pods(store, world):
    world.ready()
    pods = [
        msgspec.structs.replace(info, node="worker-2" if info.executor in "23" else "worker-1")
        for info in store.get(keys.REPORT, APP).body.executors
    ]
    body = msgspec.structs.replace(store.get(keys.REPORT, APP).body, executors=pods)
    store.put(keys.REPORT, APP, EnvelopeFactory("default", "test", world.clock).envelope(body, ttl=60, application=APP))
    leader = controller(store, world.clock, lead=True)
    assert drain(leader, "worker-2") == "draining worker-2: 4 partitions move off 2 executors"
    leader.follow()
    assert {(move.source, move.target in "01") for move in published_placement(store).moves} == {
        ("2", True),
        ("3", True),
    }


def test_a_drain_is_said_to_the_links_and_moves_what_has_to_leave_alone(store, world):
    leader = leading(world, ruled("observe"))
    assert drain(leader) == f"draining {NODE}: 2 partitions move off 1 executor"
    assert [item.node for item in orders(store).drains] == [NODE]
    leader.follow()
    decision = decisions(store)[-1]
    assert (decision.trigger, decision.result) == ("drain", "applied")
    assert [(move.partition, move.source) for move in published_placement(store).moves] == [(10, "3"), (11, "3")]
    assert {move.target for move in published_placement(store).moves} <= {"0", "1", "2"}


def test_a_drain_acts_in_observe_mode_and_without_any_measurement(store, clock):
    world = World(store, clock)
    world.report()  # no batch was ever measured: the query is idle, or agents are away
    leader = controller(store, clock, settings("observe"), lead=True)
    drain(leader)
    leader.follow()
    assert decisions(store)[-1].result == "applied"
    assert len(published_placement(store).moves) == 2


def test_what_is_steered_and_idle_is_done_and_the_migration_ends(leader, store, world):
    drain(leader)
    leader.follow()
    world.obey("released_idle")
    assert partitions_on(leader._services.collector.refresh()[APP], [NODE]) == {NODE: 0}
    assert leader.follow() == "no migration runs"
    before = len(decisions(store))
    for _ in range(5):
        cycle(leader, world, 30)
    assert "drain" not in [decision.trigger for decision in decisions(store)][before:], "nothing is left to do"


def test_what_is_abandoned_is_tried_again_but_not_at_once(leader, store, world):
    drain(leader)
    leader.follow()
    world.obey("abandoned")
    leader.follow()
    assert len(decisions(store)) == 1
    cycle(leader, world, 11)
    assert [decision.trigger for decision in decisions(store)] == ["drain", "drain"]


def test_other_decisions_put_nothing_on_a_drained_node(leader, store, world):
    world.placement = list("000000112222")
    world.ready()
    drain(leader)
    decide(leader, apply=True, force=True)
    assert published_placement(store).moves
    assert "3" not in {move.target for move in published_placement(store).moves}


def test_a_drain_waits_while_all_is_paused(leader, store):
    order(leader, Pause())
    assert "resume" in drain(leader)
    assert orders(store).paused
    leader.follow()
    assert desired(store) is None
    order(leader, Resume())
    leader.follow()
    assert desired(store) is not None


def report_orders(world: World, signed: Envelope) -> None:
    """The link reports the orders that it obeys, with their signature."""
    last_report = report([query(world.placement)])
    world._send(keys.REPORT, APP, msgspec.structs.replace(last_report, standing_orders=encode(signed).decode()))


@pytest.mark.parametrize("lost", ["nothing", "redis", "memory", "both"])
def test_drains_are_remembered(leader, store, clock, world, lost):
    drain(leader, remove=True, deadline=60.0)
    signed = store.get(keys.ORDERS)
    if lost in ("redis", "both"):
        store.empty()
    follower = leader
    if lost in ("memory", "both"):
        leader.close()
        clock.sleep(30)
        follower = controller(store, clock, name="b")
    world.ready()
    if lost == "both":
        report_orders(world, signed)
    follower.run_leader_cycle()
    (drained,) = orders(store).drains
    assert (drained.node, drained.remove, drained.deadline) == (NODE, True, signed.body.drains[0].deadline)


def test_forged_orders_are_not_adopted(store, world):
    forged = StandingOrders(drains=[DrainedNode(node="127.0.0.2", since=0.0, remove=True)])
    world._send(keys.ORDERS, "", forged)
    leader = leading(world)
    assert leader._services.standing_orders.drains == {}
    assert orders(store).drains == [], "they are replaced"


def other_keys_orders(world: World, body: StandingOrders) -> Envelope:
    """Orders as a leader of an earlier epoch signed them, with a key that this controller does not know."""
    signer = Signer(Ed25519PrivateKey.generate())
    envelope = signer.sign(EnvelopeFactory("default", "controller:old", world.clock).envelope(body, ttl=1e6, epoch=1))
    world.store.put(keys.ORDERS, "", envelope)
    return envelope


def test_orders_of_an_unknown_key_are_left_and_all_is_paused_until_somebody_orders(store, clock, world):
    old = other_keys_orders(world, StandingOrders(drains=[DrainedNode(node=NODE, since=1.0)]))
    world.ready()
    leader = controller(store, clock)
    with capture_logs() as logs:
        for _ in range(3):
            leader.run_leader_cycle()
            clock.sleep(1)
        order(leader, Pause())
    (line,) = [line for line in logs if line["log_level"] == "error"]
    assert "signing.public_key_file" in line["sentence"]
    assert leader.lead.paused
    assert encode(store.get(keys.ORDERS)) == encode(old)
    drain(leader)
    order(leader, Resume())
    assert [item.node for item in orders(store).drains] == [NODE]
    assert not orders(store).paused


def test_orders_of_an_unknown_key_stop_nobody_who_knows_better(leader, store, world):
    drain(leader)
    other_keys_orders(world, StandingOrders(paused=True))
    leader.run_leader_cycle()
    assert not leader.lead.paused
    assert [item.node for item in orders(store).drains] == [NODE]


def test_orders_of_an_unknown_key_that_say_nothing_are_replaced(store, clock, world):
    other_keys_orders(world, StandingOrders())
    leader = controller(store, clock, lead=True)
    assert not leader.lead.paused
    assert orders(store) == StandingOrders()


def test_undrain_and_its_mistakes(leader, store):
    refuses(leader, Drain(nodes=["10.0.0.1"]), r"unknown node 10\.0\.0\.1; known are 127\.0\.0\.2, ")
    refuses(leader, Undrain(nodes=[NODE]), "is not drained; drained are none")
    drain(leader)
    order(leader, Undrain(nodes=[NODE]))
    assert orders(store).drains == []


@pytest.mark.parametrize(
    ("mode", "paused", "phrase"),
    [
        ("observe", False, "in observe mode nothing moves there automatically: `rechannel rebalance --apply` does it"),
        ("apply", False, "in about 2 s it is decided whether moving partitions there pays"),
        ("apply", True, "paused: `rechannel resume` first"),
    ],
)
def test_the_end_of_a_drain_promises_what_happens(store, world, mode, paused, phrase):
    leader = leading(world, ruled(mode))
    drain(leader)
    leader.lead.pause(paused)
    answer = ask(leader, store, "undrain", nodes=[NODE])
    assert (answer.code, answer.sentence) == (ExitCode.DONE, f"{NODE} may hold state again; {phrase}")
    assert answer.data["moves_automatically"] is (mode == "apply" and not paused)


def test_the_end_of_a_drain_says_that_its_migration_goes_on(leader):
    drain(leader)
    leader.follow()
    assert "the running migration goes on: `rechannel stop` ends it" in order(leader, Undrain(nodes=[NODE])).sentence


def test_several_nodes_are_drained_together_or_not_at_all(leader, store):
    refuses(leader, Drain(nodes=[NODE, "10.0.0.1"]), "unknown node")
    assert leader._services.standing_orders.drains == {}
    message = order(leader, Drain(nodes=[NODE, "127.0.0.4"], remove=True)).sentence
    assert message == f"draining {NODE}, 127.0.0.4: 4 partitions move off 2 executors, which are then released"
    assert [item.node for item in orders(store).drains] == ["127.0.0.4", NODE]
    refuses(leader, Undrain(nodes=[NODE, "127.0.0.2"]), r"node 127\.0\.0\.2 is not drained; drained are 127\.0\.0\.4, ")
    order(leader, Undrain(nodes=[NODE, "127.0.0.4"]))
    assert orders(store).drains == []


def test_a_node_can_be_drained_before_it_has_executors_once_its_agent_reports(leader, store, world):
    refuses(
        leader, Drain(nodes=["127.0.0.9"]), r"can be drained in advance once its agent reports: `rechannel agent --node"
    )
    new = msgspec.structs.replace(window(0, end=world.clock()), node="127.0.0.9", executors=[])
    world._send(keys.WINDOWS, "127.0.0.9", new)
    assert drain(leader, "127.0.0.9") == "127.0.0.9: no executor runs there; those that start hold no state"
    assert [item.node for item in orders(store).drains] == ["127.0.0.9"]
    order(leader, Undrain(nodes=["127.0.0.9"]))
    world.clock.sleep(61)
    refuses(leader, Drain(nodes=["127.0.0.9"]), "unknown node")
    refuses(leader, Drain(nodes=["no such/node"]), "unknown node")


def test_a_dry_run_says_what_a_drain_would_move_and_drains_nothing(leader, store):
    answer = ask(leader, store, "plan", stream=keys.QUESTIONS, drain=[NODE, "127.0.0.4"])
    assert (answer.code, answer.data["nodes"]) == (0, [NODE, "127.0.0.4"])
    (plan,) = answer.data["plans"]
    assert plan["application"] == APP
    assert plan["decision"]["sentence"].startswith("would move 4 partitions in ")
    assert {move["source"] for move in plan["decision"]["moves"]} == {"2", "3"}
    assert {move["target"] for move in plan["decision"]["moves"]} <= {"0", "1"}
    assert leader._services.standing_orders.drains == {}
    assert desired(store) is None
    assert not any("bserve" in note for note in plan["decision"]["notes"]), "a drain is carried out in both modes"


def test_each_dry_run_is_in_the_history_under_its_id(store, clock):
    world = World(store, clock)
    world.queries = [query(list("0123"), problem="real-time mode")]
    leader = leading(world)
    for name in ("r1", "r2"):
        (plan,) = ask(leader, store, "plan", name=name, drain=[NODE]).data["plans"]
        assert plan["decision"]["decision"] == decisions(store)[-1].decision


def test_a_dry_run_warns_of_an_overload(store, clock, world):
    world.ready()
    for number in range(7, 10):  # each executor is three quarters busy
        busy = dict.fromkeys(range(12), 1.2)
        world._send(keys.BATCHES, APP, batch(number, list("001122330123"), busy, end=clock()))
    world.placement = list("001122330123")
    world.report()
    leader = controller(store, clock, lead=True)
    answer = ask(leader, store, "plan", drain=[NODE])
    ((plan),) = answer.data["plans"]
    message = " ".join([plan["decision"]["sentence"], *plan["decision"]["notes"]])
    assert "add executors" in message
    assert "% busy" in message


def test_a_dry_run_of_what_cannot_be_drained_says_why(leader, store):
    answer = ask(leader, store, "plan", drain=["10.0.0.1"])
    assert (answer.code, "unknown node 10.0.0.1" in answer.sentence) == (1, True)


@pytest.mark.parametrize("stand_by", [False, True])
def test_neither_a_drain_nor_what_was_before_it_holds_the_decision_after_undrain(store, clock, world, stand_by):
    """What `undrain` promises comes true at once, though the drain and a migration before it have just ended."""
    leader = leading(world)
    leader.decide_all()
    land(world, 8.0, rows=600)  # under another load, so that it is not confirmed
    cycle(leader)
    assert app(leader).migrations.cooldown_left(clock()) > 0
    drain(leader)
    leader.follow()
    assert decisions(store)[-1].trigger == "drain"
    before = app(leader).migrations.cooldown_timer.migration_ended
    land(world, number=40)
    if stand_by:
        leader.close()
        leader = controller(store, clock, name="b")
    cycle(leader)
    if not stand_by:
        assert app(leader).migrations.cooldown_timer.migration_ended == before, (
            "the drain is followed by no cool-down of its own"
        )
    assert partitions_on(leader._services.collector.reports[APP], [NODE]) == {NODE: 0}
    order(leader, Undrain(nodes=[NODE]))
    assert app(leader).migrations.cooldown_left(clock()) == 0
    for _ in range(6):
        cycle(leader, world, 3)
    last = decisions(store)[-1]
    assert (last.trigger, last.result) == ("executors", "applied"), last.sentence
    assert "3" in {move.target for move in last.moves}


def test_the_last_node_is_not_drained(leader):
    nodes = [f"127.0.0.{number}" for number in range(2, 6)]
    refuses(leader, Drain(nodes=nodes), r"no executor to move to: add a node first$")
    for node in nodes[1:]:
        drain(leader, node)
    others = r"no executor to move to: add a node first, or undrain 127\.0\.0\.3, 127\.0\.0\.4, 127\.0\.0\.5$"
    refuses(leader, Drain(nodes=["127.0.0.2"]), rf"leaves app-\S+ {others}")


@pytest.mark.parametrize(
    ("verb", "arguments", "code", "text"),
    [
        ("drain", {"nodes": [NODE], "remove": True, "deadline": 60}, 0, "which is then released"),
        ("drain", {"nodes": [NODE, " 127.0.0.4"]}, 0, f"draining {NODE}, 127.0.0.4: 4 partitions"),
        ("drain", {"nodes": [NODE], "deadline": "soon"}, 1, "Expected `float`, got `str` - at `$.deadline`"),
        ("drain", {"nodes": [NODE], "deadline": 1e12}, 1, "deadline: expected 0 to 3.1536e+08 seconds"),
        ("drain", {}, 1, "drain: Object missing required field `nodes`"),
        ("drain", {"nodes": []}, 1, "unknown node"),
    ],
)
def test_requests(leader, store, verb, arguments, code, text):
    answer = ask(leader, store, verb, **arguments)
    assert (answer.code, text in answer.sentence) == (code, True)


def test_an_executor_that_joins_is_acted_on_once_the_set_is_stable(store, clock, world):
    config = dataclasses.replace(ruled(settle=10.0), gate=dataclasses.replace(CONFIG.gate, cooldown=0.0))
    leader = controller(store, clock, config)

    def report_with(count: int) -> None:
        body = report([query(world.placement)], count=count)
        world._send(keys.REPORT, APP, body)
        store.register_application(APP, clock())
        world.measure()
        cycle(leader)

    report_with(3)
    assert decisions(store) == [], "the executors of the beginning are no change"
    clock.sleep(20)
    report_with(4)
    clock.sleep(5)
    report_with(4)
    assert decisions(store) == []
    clock.sleep(6)
    report_with(4)
    (decision,) = decisions(store)
    assert (decision.trigger, decision.result) == ("executors", "applied")
    clock.sleep(60)
    report_with(4)
    assert len(decisions(store)) == 1


def test_partitions_are_counted_on_nodes():
    body = report([query("0011"), query("3300", "q2", active=False)])
    held = {"127.0.0.2": 2, "127.0.0.3": 2, "elsewhere": 0}
    assert partitions_on(body, list(held)) == held
    gone = samples.move_view(target="2", state="released_idle")
    assert partitions_on(report([query("0011")], moves=[gone]), ["127.0.0.2"]) == {"127.0.0.2": 1}


def test_a_drain_that_cannot_go_on_is_told_once(store, clock):
    world = World(store, clock)
    world.queries = [query(list("0123"), problem="real-time mode")]
    leader = leading(world)
    drain(leader)
    for _ in range(5):
        cycle(leader, world, 30)
    assert [decision.result for decision in decisions(store)] == ["planned"]


def test_links_that_remember_a_pause_bring_it_back(leader, store, clock, world):
    order(leader, Pause())
    signed = store.get(keys.ORDERS)
    store.empty()
    clock.sleep(30)
    report_orders(world, signed)
    store.register_application(APP, clock())
    follower = controller(store, clock, name="b", lead=True)
    assert follower.lead.paused
    assert orders(store).paused


def test_an_undrain_that_redis_did_not_hear_is_tried_again(leader, store):
    drain(leader)
    request(store, "undrain", nodes=[NODE])
    store.unsendable = keys.ORDERS
    with pytest.raises(StoreUnavailableError):
        leader.answer_requests()
    store.unsendable = None
    assert leader.answer_requests() == 1
    assert read_reply(store).code == 0
    assert orders(store).drains == []


def test_an_undrain_is_said_though_redis_was_emptied_meanwhile(leader, store):
    drain(leader)
    order(leader, Undrain(nodes=[NODE]))
    store.empty()
    leader.run_leader_cycle()
    assert orders(store).drains == [], "a link that missed it must hear of it"
