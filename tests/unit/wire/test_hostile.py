"""Hostile content of Redis: nothing crashes on it, and only signed messages steer. Memory: see test_bounds.

Valid messages of every kind are altered: other types, huge and negative numbers, NaN, deep nesting, huge and odd text,
missing and doubled parts, other application, epoch, sequence, expiry and signature. The controller must not even need
its catch-alls: a failed job or application is a failure here.
"""

from __future__ import annotations

import base64
import io
import json
from contextlib import nullcontext
from typing import Any, get_args

import msgspec
import pytest
import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import assume, example, given
from hypothesis import strategies as st
from rich.console import Console

from rechannel.conf.settings import RedisSettings
from rechannel.daemon.cli import history, tables, top
from rechannel.daemon.control.decision_log import applied_decisions, read_decision_log
from rechannel.daemon.control.leadership import LeaderContext, LeaderElection
from rechannel.daemon.control.outcomes import OutcomeHistory, OutcomeTracker
from rechannel.daemon.model.application_messages import ApplicationMessages
from rechannel.daemon.model.collector import Collector
from rechannel.daemon.model.snapshot import build_snapshot, take_snapshot
from rechannel.daemon.view.status_builder import read_status
from rechannel.migration.link.driver_state import DriverState
from rechannel.migration.link.initial_placement import restore_placement
from rechannel.migration.link.mailbox import Mailbox
from rechannel.migration.link.reconciler import Reconciler
from rechannel.migration.spark.checkpoint import CheckpointOperator
from rechannel.wire import keys
from rechannel.wire.envelope import Envelope, EnvelopeFactory, MessageError, decode, encode
from rechannel.wire.keys import KeyRule
from rechannel.wire.measurements import AgentEvidence
from rechannel.wire.messages import (
    AnyBody,
    DesiredPlacement,
    LastPlacement,
    MigrationOutcome,
    StandingOrders,
)
from rechannel.wire.signing import Signer
from unit.daemon import fakes
from unit.daemon.fake_store import NOW, FakeStore
from unit.daemon.fakes import APP, CONFIG, QUERY, SIGNER, VERIFIER, clocks, controller
from unit.migration.one_stage import LIMITS
from unit.wire.hostile import (
    CLOSED,
    CRASHES,
    DECISION,
    DESIRED,
    FUZZ,
    HOST,
    LAST,
    LINE,
    MOVE,
    ORDERS,
    PLACEMENT,
    SEEDS,
    SPOILS,
    WRITES,
    put,
    put_all,
    seal,
    sealed,
    spoiled,
    world,
)


def test_there_is_a_seed_for_every_kind_of_message() -> None:
    kinds = {type(body) for _, _, body in SEEDS}
    assert kinds == set(get_args(AnyBody))


# -- reading --


@FUZZ
@given(st.sampled_from(SEEDS), SPOILS)
def test_an_altered_message_is_decoded_whole_or_refused(seed: tuple[KeyRule, str, AnyBody], spoils: Any) -> None:
    data = spoiled(seal(seed[0], seed[2]), spoils)
    try:
        envelope = decode(data, cluster="default")
    except MessageError:
        return
    again = decode(encode(envelope), cluster="default")
    assert msgspec.structs.replace(again, raw_bytes=envelope.raw_bytes) == envelope, "whatever its spaces"


@given(st.binary(max_size=200))
@example(b"[" * 100_000)
@example(b'{"a":' * 50_000)
@example(b'{"schema":2,"cluster":"' + b"\xed\xa0\x80" + b'"}')
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(MessageError):
        decode(data)


@pytest.mark.parametrize(
    "number", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 400, "1" + "0" * 31, "-1e31", "null"]
)
def test_numbers_out_of_bounds_are_refused_with_their_message(number: str) -> None:
    whole = encode(sealed(fakes.window(0))).decode()
    for field in ('"node_cpu":3.0', '"memory_total":8589934592', '"stolen":0.0', '"throttled":0.0', '"cpu_limit":0.0'):
        assert field in whole
        name = field.partition(":")[0]
        with pytest.raises(MessageError):
            decode(whole.replace(field, f"{name}:{number}").encode())


def test_a_window_of_an_agent_that_reads_no_limits_is_read() -> None:
    window = sealed(fakes.window(0))
    older = encode(window)
    for field in (b',"stolen":0.0', b',"throttled":0.0', b',"cpu_limit":0.0'):
        assert field in older
        older = older.replace(field, b"")
    assert decode(older).body == window.body


# -- the controller --


@FUZZ
@given(WRITES)
def test_the_controller_decides_or_gives_the_reason(writes: Any) -> None:
    store, clock, _ = world()
    leader = controller(store, clock)
    leader.run_leader_cycle()
    put_all(store, writes)
    with structlog.testing.capture_logs() as logs:
        for _ in range(2):
            leader.run_leader_cycle()
            leader.answer_requests()
            leader.follow()
            leader.decide_all()
            clock.sleep(15)
    assert not [line for line in logs if line["event"] in CRASHES], logs
    assert leader.lead.holds() or leader.run_leader_cycle().startswith("leading")


@FUZZ
@given(WRITES)
def test_only_what_this_leader_signed_is_ever_desired(writes: Any) -> None:
    store, clock, made = world()
    leader = controller(store, clock)
    leader.run_leader_cycle()
    put_all(store, writes)
    signed: list[Envelope] = []
    store.put, plain = (lambda rule, *rest, **more: (signed.append(rest[1]), plain(rule, *rest, **more))[1]), store.put  # type: ignore[method-assign]
    leader.run_leader_cycle()
    leader.decide_all()
    for envelope in signed:
        if isinstance(envelope.body, DesiredPlacement | StandingOrders):
            VERIFIER.check(envelope)
            decode(encode(envelope))  # its links can read it
    report = leader._services.collector.reports.get(APP)
    executors = {info.executor for info in report.executors} if report is not None else set()
    for envelope in signed:
        if isinstance(envelope.body, DesiredPlacement):
            assert {move.target for move in envelope.body.moves} <= executors
    assert made.application == APP


@FUZZ
@given(st.lists(st.tuples(st.sampled_from(SEEDS[:3]), SPOILS), max_size=5), st.randoms(use_true_random=False))
def test_repeated_and_reordered_batches_give_the_same_model(writes: Any, shuffler: Any) -> None:
    """A stream that was replayed backwards, twice, models the same batches."""
    store, clock, _ = world()
    batches = list(store.streams[store.keys(keys.BATCHES, APP)])
    facts = _facts(store)
    for _, data in reversed(batches + batches):
        store.append_raw(keys.BATCHES, APP, data)
    again = _facts(store)
    assert facts is not None and again is not None
    models = [take_snapshot(it, CONFIG, NOW) for it in (facts, again)]
    assert models[0].workload.stages[0].busy.tolist() == models[1].workload.stages[0].busy.tolist()  # type: ignore[union-attr]
    put_all(store, writes)
    entries = store.streams[store.keys(keys.BATCHES, APP)]
    data = [item for _, item in entries]
    shuffler.shuffle(data)
    for item in data:
        store.append_raw(keys.BATCHES, APP, item)
    result = _facts(store)
    if result is not None:
        build_snapshot(result, CONFIG, clock(), include_unmeasured=True)


def _facts(store: FakeStore) -> ApplicationMessages | None:
    collector = Collector(store, CONFIG, store.clock)  # type: ignore[arg-type]
    collector.refresh()
    return collector.gather(APP)


@FUZZ
@given(
    st.lists(
        st.tuples(st.sampled_from([keys.JOURNAL, keys.DECISIONS, keys.OUTCOMES, keys.BATCHES]), SPOILS),
        min_size=1,
        max_size=6,
    )
)
def test_an_outcome_is_measured_or_awaited(writes: Any) -> None:
    store, clock, _ = world()
    put(store, keys.DECISIONS, "", encode(seal(keys.DECISIONS, DECISION)))
    bodies = {rule: (name, body) for rule, name, body in SEEDS}
    for rule, spoils in writes:
        name, body = bodies[rule]
        put(store, rule, name, spoiled(seal(rule, body), spoils))
    facts = _facts(store)
    lead = LeaderElection(CONFIG, store, clocks(clock), "c")  # type: ignore[arg-type]
    lead.renew(0)
    context = LeaderContext(CONFIG, lead, SIGNER, EnvelopeFactory("default", "c", clock), clocks(clock))
    earlier = OutcomeHistory(context)
    rates = earlier.rates()
    assert rates.overhead >= 0 and rates.load_rate > 0
    assert all(0.5 <= expected.share <= 1.25 for expected in earlier.gain_shares().values())
    outcome = OutcomeTracker(APP, context, earlier, nullcontext)
    outcome.restore(applied_decisions(read_decision_log(store), APP))  # type: ignore[arg-type]
    assume(facts is not None and outcome.is_awaiting)
    assert facts is not None
    outcome.poll(facts)
    clock.sleep(1000)
    lead.renew(0)
    if outcome.is_awaiting:
        outcome.poll(facts)
    for envelope in store.last(keys.OUTCOMES, "", 10):
        assert isinstance(envelope.body, MigrationOutcome)


# -- the command line --


@FUZZ
@given(WRITES)
def test_status_top_and_history_show_what_there_is(writes: Any) -> None:
    store, clock, _ = world()
    for (rule, name, body), spoils in writes:
        put(store, rule, name, encode(seal(rule, body)))
        put(store, rule, name, spoiled(seal(rule, body), spoils))
    status = read_status(store, CONFIG, clock(), partitions=True)  # type: ignore[arg-type]
    json.dumps(msgspec.to_builtins(status), allow_nan=False)
    console = Console(record=True, width=120, file=io.StringIO())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "new_console", lambda: console)
        tables.print_status(status, clock())
    for row in status.applications:
        for part in top.application(row):
            console.print(part)
    assert "\x1b[2J" not in console.export_text(styles=False)
    reader = history.HistoryReader(store, clock)  # type: ignore[arg-type]
    for entry in reader.first(100):
        json.dumps(entry, allow_nan=False)
        assert "\x1b" not in tables.history_line(entry)


def test_an_application_whose_name_is_no_key_does_not_hide_the_history_of_others() -> None:
    store, clock, _ = world()
    store.append(keys.DECISIONS, "", sealed(DECISION, "a/b"))
    store.append(keys.JOURNAL, APP, sealed(LINE))
    store.register_application("../..", NOW)
    result = history.HistoryReader(store, clock).first(10)  # type: ignore[arg-type]
    assert [(entry["type"], entry["application"]) for entry in result] == [("decision", "a/b"), ("move", APP)]


@pytest.mark.parametrize("name", ["²", "1" * 5000, "[/red]", "\x1b[2J\x9b2J", "\u202e1"])
def test_names_are_only_ever_shown(name: str) -> None:
    """Neither digits that are no number, nor markup, nor what would steer a terminal."""
    store, clock, _ = world()
    output = fakes.report([fakes.query([name, *PLACEMENT[1:]])])
    odd = msgspec.structs.replace(output.executors[0], executor=name, host=name)
    output = msgspec.structs.replace(output, executors=[odd, *output.executors[1:]], problems=[name], name=name)
    store.put(keys.REPORT, APP, sealed(output))
    [row] = read_status(store, CONFIG, clock(), partitions=True).applications  # type: ignore[arg-type]
    assert row.executors[0].executor == name
    console = Console(record=True, width=120, file=io.StringIO())
    for part in top.application(row):
        console.print(part)
    assert not {"\x1b", "\x9b", "\u202e"} & set(console.export_text(styles=False))


# -- the link --


def courier(store: FakeStore, application: str = APP) -> Mailbox:
    made = Mailbox(RedisSettings(), EnvelopeFactory("default", "link", store.clock), application, VERIFIER)
    made._store = store  # type: ignore[assignment]
    made._cursors = {HOST: "0"}
    return made


def observed(run: str = "run-1") -> DriverState:
    key = (QUERY, 0)
    return DriverState({"0", "1", "2", "3"}, {key: PLACEMENT}, {key: [9] * 12}, {QUERY: run}, {key}, {QUERY: 9})


@FUZZ
@given(st.sampled_from([keys.DESIRED, keys.ORDERS]), SPOILS)
def test_a_link_obeys_nothing_that_was_changed_after_it_was_signed(rule: KeyRule, spoils: Any) -> None:
    store, _, _ = world()
    carrier = courier(store)
    name, body = (APP, DESIRED) if rule is keys.DESIRED else ("", ORDERS)
    original = seal(rule, body)
    data = spoiled(original, spoils)
    put(store, rule, name, data)
    carrier._exchange()
    taken = carrier.pop_desired() or carrier.pop_orders()
    assert taken is None or taken == original
    if taken is None:
        assert carrier.rejected_messages + store.rejected >= 1


@FUZZ
@given(SPOILS)
def test_even_a_signed_placement_only_ever_moves_what_it_can(spoils: Any) -> None:
    """A controller gone mad: the reconciler takes it up or refuses it, and keeps its own laws."""
    try:
        wild = decode(spoiled(sealed(DESIRED), spoils))
    except MessageError:
        return
    reconciler = Reconciler(LIMITS)
    now = NOW
    try:
        reconciler.accept_desired(wild, observed(), now)
    except MessageError:
        return
    for _ in range(4):
        lines, due = reconciler.advance_at_boundary(QUERY, observed(), now)
        for move in due:
            assert move.desired.target in observed().executors
            assert 0 <= move.desired.partition < len(PLACEMENT)
            lines += reconciler.record_steer(move, observed(), now)
        reconciler.handle_batch(QUERY, 10, observed(), now, 1.0)
        reconciler.tick(observed(), now)
        now += 60
    reconciler.tick(observed(), max(now, wild.expires) + 200)
    assert not reconciler.waiting


@FUZZ
@given(st.lists(SPOILS, min_size=1, max_size=4))
def test_hostile_evidence_and_placements_change_nothing_in_a_link(writes: Any) -> None:
    store, _, _ = world()
    carrier = courier(store)
    reconciler = Reconciler(LIMITS)
    reconciler.accept_desired(sealed(DESIRED), observed(), NOW)
    for spoils in writes:
        put(store, keys.EVIDENCE, HOST, spoiled(sealed(AgentEvidence(node=HOST, closed=[CLOSED])), spoils))
    carrier._exchange()
    for closing in carrier.pop_closings():
        assert closing.store.application == APP
        assert not reconciler.handle_closed_store(
            closing.store, {(0, "default")}, 0, QUERY, NOW, closing.at
        )  # nothing was steered yet
    existing = fakes.executors()
    for spoils in writes:
        try:
            last = decode(spoiled(sealed(LAST), spoils)).body
        except MessageError:
            continue
        if isinstance(last, LastPlacement):
            requested = restore_placement(
                last, [CheckpointOperator(0, 12, ("default",))], {info.executor: info for info in existing}
            )
            assert {name for where in requested.values() for name in where} <= {info.executor for info in existing}


def _signature(envelope: Envelope) -> Envelope:
    raw = bytearray(base64.b64decode(envelope.signature))
    raw[7] ^= 1
    return msgspec.structs.replace(envelope, signature=base64.b64encode(bytes(raw)).decode())


GOOD = sealed(DESIRED, signer=SIGNER)
LATER = msgspec.structs.replace(DESIRED, decision="d2", moves=[msgspec.structs.replace(MOVE, move="d2.0", target="2")])
BROKEN: dict[str, Envelope] = {
    "no signature": sealed(DESIRED),
    "a bit of the signature": _signature(GOOD),
    "another key's signature": sealed(DESIRED, signer=Signer(Ed25519PrivateKey.generate())),
    "a signature that is no base64": msgspec.structs.replace(GOOD, signature="é!"),
    "another message's signature": msgspec.structs.replace(GOOD, signature=sealed(LATER, signer=SIGNER).signature),
    "another target": msgspec.structs.replace(GOOD, body=LATER),
    "a later expiry": msgspec.structs.replace(GOOD, expires=NOW + 9999),
    "a higher epoch": msgspec.structs.replace(GOOD, epoch=99),
    "a higher sequence": msgspec.structs.replace(GOOD, sequence=99),
    "another application": sealed(DESIRED, "app-2", signer=SIGNER),
    "another cluster": sealed(DESIRED, signer=SIGNER, cluster="other"),
    "another kind of message": sealed(ORDERS, signer=SIGNER),
    "expired": sealed(DESIRED, signer=SIGNER, expires=NOW - 1),
    "an older epoch": sealed(LATER, signer=SIGNER, epoch=4, sequence=500),
    "an older sequence": sealed(LATER, signer=SIGNER, epoch=5, sequence=2),
}


@pytest.mark.parametrize("what", BROKEN)
def test_each_binding_alone_keeps_a_placement_from_being_obeyed(what: str) -> None:
    store, _, _ = world()
    carrier, reconciler = courier(store), Reconciler(LIMITS)
    reconciler.accept_desired(sealed(LATER, signer=SIGNER, epoch=5, sequence=3), observed(), NOW)
    before = {move.name: move.state for move in reconciler.moves}
    store.strings[store.keys(keys.DESIRED, APP)] = (encode(BROKEN[what]), 1e12)
    carrier._receive_desired(store)  # type: ignore[arg-type]
    taken = carrier.pop_desired()
    if taken is not None:
        with pytest.raises(MessageError):
            reconciler.accept_desired(taken, observed(), NOW)
    else:
        assert carrier.rejected_messages == 1
    assert {move.name: move.state for move in reconciler.moves} == before
    assert (reconciler.epoch, reconciler.decision) == (5, "d2")


def test_a_placement_decided_for_another_run_moves_nothing() -> None:
    reconciler = Reconciler(LIMITS)
    lines = reconciler.accept_desired(sealed(DESIRED, signer=SIGNER), observed("run-2"), NOW)
    assert [line.after for line in lines] == ["planned", "abandoned"]
    assert reconciler.advance_at_boundary(QUERY, observed("run-2"), NOW) == ([], [])


def test_a_placement_said_again_begins_nothing_twice_and_lives_no_longer() -> None:
    reconciler = Reconciler(LIMITS)
    assert len(reconciler.accept_desired(GOOD, observed(), NOW)) == 1
    for _ in range(3):
        assert reconciler.accept_desired(GOOD, observed(), NOW + 30) == []
    assert reconciler.tick(observed(), GOOD.expires)[0].reason == "expired"
