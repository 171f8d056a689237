"""Hostile content of Redis: nothing crashes on it, only signed messages steer, and memory stays bounded.

Valid messages of every kind are altered: other types, huge and negative numbers, NaN, deep nesting, huge and odd text,
missing and doubled parts, other application, epoch, sequence, expiry and signature. The controller must not even need
its catch-alls: a failed job or application is a failure here.
"""

from __future__ import annotations

import base64
import copy
import io
import json
import os
from collections.abc import Iterator, Sequence
from typing import Any, get_args

import msgspec
import pytest
import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from rich.console import Console

from rechannel.conf.settings import RedisSettings
from rechannel.daemon.cli import history, tables, top
from rechannel.daemon.control.decision_log import applied_decisions, read_decision_log
from rechannel.daemon.control.leadership import LeaderContext, LeaderElection
from rechannel.daemon.control.outcomes import LoadRateEstimator, OutcomeTracker
from rechannel.daemon.model import collector as collect
from rechannel.daemon.model.application_messages import ApplicationMessages
from rechannel.daemon.model.collector import Collector, implausibility
from rechannel.daemon.model.snapshot import build_snapshot, take_snapshot
from rechannel.daemon.view.status_builder import read_status
from rechannel.migration.link.driver_state import DriverState, ReconcilerLimits
from rechannel.migration.link.initial_placement import restore_placement
from rechannel.migration.link.mailbox import Mailbox
from rechannel.migration.link.reconciler import Reconciler
from rechannel.migration.spark.checkpoint import CheckpointOperator
from rechannel.wire import keys
from rechannel.wire.envelope import Envelope, EnvelopeFactory, MessageError, decode, encode
from rechannel.wire.keys import KeyRule
from rechannel.wire.measurements import AgentEvidence, BatchReport, ClosedStore, StreamRow
from rechannel.wire.messages import (
    AnyBody,
    ControllerState,
    Decision,
    DesiredMove,
    DesiredPlacement,
    DrainedNode,
    ExecutorLoad,
    LastPlacement,
    MigrationOutcome,
    MigrationPrice,
    MoveTransition,
    Refusal,
    Reply,
    Request,
    ScheduledPlan,
    ScheduledPlans,
    StandingOrders,
)
from rechannel.wire.signing import Signer
from unit.daemon import fakes
from unit.daemon.fakes import APP, CONFIG, NOW, QUERY, SIGNER, VERIFIER, FakeClock, FakeStore, World, clocks, controller
from unit.wire.samples import sample

FUZZ = settings(
    max_examples=int(os.environ.get("RECHANNEL_FUZZ", "25")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
CRASHES = {"application-failed", "request-failed", "job-failed"}
HOST = "127.0.0.2"
PLACEMENT = list("000000112233")

# -- a valid message of every kind, and how it is spoiled --

PRICE = sample(MigrationPrice, batch_before={QUERY: 5.0}, peak={QUERY: 6.0}, batch_after={QUERY: 4.0}, load_rate=1e8)
MOVE = DesiredMove(move="d.0", query=QUERY, stage=0, partition=0, source="0", target="1", step=0, bytes=10.0)
LINE = sample(MoveTransition, query=QUERY, stage=0, partition=0, before="steered", after="drained", at=NOW - 5)
DECISION = sample(
    Decision,
    at=NOW - 20,
    trigger="timeout",
    outcome="applied",
    executors=[sample(ExecutorLoad, executor=str(e), node=f"127.0.0.{e + 2}") for e in range(4)],
    moves=[MOVE],
    refusals=[Refusal(law="gate", scope="plan", detail="no")],
    batch_time_before={QUERY: 5.0},
    names={QUERY: "name"},
    price=PRICE,
    runs={QUERY: "run-1"},
)
OUTCOME = sample(
    MigrationOutcome,
    decision="earlier",
    at=NOW - 30,
    batch_before={QUERY: 5.0},
    peak={QUERY: 6.0},
    batch_after={QUERY: 4.0},
    verdict="kept",
    predicted=PRICE,
)
DESIRED = DesiredPlacement(decision="d", runs={QUERY: "run-1"}, moves=[MOVE])
ORDERS = StandingOrders(paused=True, drains=[DrainedNode(node=HOST, since=NOW - 9, deadline=NOW + 60)])
LAST = sample(LastPlacement, query=QUERY, operators={0: PLACEMENT}, hosts={"0": HOST, "1": "127.0.0.3"})
CLOSED = sample(ClosedStore, application=APP, executor="0", run="run-1", operator=0, partition=0, store="default")
STATE = sample(ControllerState, since=NOW, mode="apply", next_decision=NOW + 9, applications={APP: "r"})
PLAN = sample(
    ScheduledPlan, at=NOW - 60, application=APP, begin=NOW - 30, end=NOW + 60, window="02:00-05:00", plan="{}"
)
STREAMS = [StreamRow(APP, "0", 0, 9000, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12])]

# Every kind of key that holds messages, with one that fits.
SEEDS: list[tuple[KeyRule, str, AnyBody]] = [
    (keys.REPORT, APP, fakes.report([fakes.query(PLACEMENT)])),
    (keys.BATCHES, APP, fakes.batch(9, PLACEMENT)),
    (keys.WINDOWS, HOST, fakes.window(0, streams=STREAMS)),
    (keys.EVIDENCE, HOST, AgentEvidence(node=HOST, closed=[CLOSED])),
    (keys.JOURNAL, APP, LINE),
    (keys.DESIRED, APP, DESIRED),
    (keys.DECISIONS, "", DECISION),
    (keys.APPLIED, "", DECISION),
    (keys.OUTCOMES, "", OUTCOME),
    (keys.STATE, "", STATE),
    (keys.ORDERS, "", ORDERS),
    (keys.SCHEDULED_PLANS, "", ScheduledPlans(plans=[PLAN])),
    (keys.PLACEMENT, QUERY, LAST),
    (keys.REQUESTS, "", Request(request="r1", user="root", reason="r", command={"verb": "plan", "drain": [HOST]})),
    (keys.REPLY, "r1", Reply(request="r1", code=0, sentence="s", data={"a": 1})),
]
HOSTILE = st.one_of(
    st.sampled_from([None, True, False, 0, -1, 1, 2**31, 2**53, 2**53 + 1, 2**63, 2**64, -(2**63), 10**400, 0.1, -0.0]),
    st.sampled_from([1e-300, 1e11, 1e15, 1e30, 1e31, 1.7e308, -1e308, float("nan"), float("inf"), float("-inf")]),
    st.sampled_from(["", "\x00", "../..", "{app}", "\ud800", "é" * 300, "x" * 10_000, "a\nb", "[red]", "\x1b[2J", "‮"]),
    st.sampled_from([[], {}, [[]], [None], [0] * 1000, [[[[[[[]]]]]]], {"": None}, {"type": "request"}, ["0"] * 5000]),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
)
# Of the type that is expected, so that it is read: what is behind the reading must bear it too.
WHOLES = st.one_of(
    st.sampled_from([0, -1, 1, 2, 11, 12, 13, 10_001, 2**31, 2**52, 2**53, -(2**53)]), st.integers(-20, 20)
)
REALS = st.one_of(
    st.sampled_from([0.0, -1.0, 1e-300, 1e30, -1e30, 1e11, -1e11, NOW, NOW + 1e6, NOW - 1e6, 1e11 - 1]),
    st.floats(-1e11, 1e11),
)
TEXTS = st.one_of(
    st.sampled_from(["", QUERY, APP, "0", "1", "9", "drained", "steered", "applied", "é" * 300, "²", "1" * 5000]),
    st.sampled_from(["x" * 10_000, "a\nb", "[/red]", "\x1b[2J", "\x00", "\u202e", "../..", "a/b", "q1/0", "{0}", "%s"]),
    st.text(max_size=20),
)
LIKE = st.tuples(WHOLES, REALS, TEXTS, st.integers(0, 3))
SPOILS = st.lists(
    st.one_of(
        st.tuples(st.integers(0, 2**20), st.sampled_from(["set", "drop"]), HOSTILE),
        *[st.tuples(st.integers(0, 2**20), st.just("like"), LIKE)] * 3,
    ),
    min_size=1,
    max_size=6,
)


def like(value: Any, requested: tuple[int, float, str, int]) -> Any:
    """Another value of the same type, or as many copies of a list's or a table's entries."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float | str):
        return requested[{int: 0, float: 1, str: 2}[type(value)]]
    if isinstance(value, list):
        return copy.deepcopy(value * requested[3])
    if isinstance(value, dict):
        return {key: value[key] for key in list(value)[: requested[3]]} | (
            {requested[2]: next(iter(value.values()))} if value else {}
        )
    return value


def paths(value: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a document of dicts and lists."""
    items: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*here, key)
        yield from paths(inner, (*here, key))


def spoiled(envelope: Envelope, spoils: Sequence[tuple[int, str, Any]]) -> bytes:
    """A valid message with some of its places changed, as bytes; what cannot be UTF-8 stays as it is."""
    document = json.loads(encode(envelope))
    for number, how, value in spoils:
        places = list(paths(document))
        path = places[number % len(places)]
        holder = document
        for key in path[:-1]:
            holder = holder[key]
        if how == "drop":
            del holder[path[-1]]
        elif how == "like":
            holder[path[-1]] = like(holder[path[-1]], value)
        else:
            holder[path[-1]] = copy.deepcopy(value)
        if not document:
            break
    return json.dumps(document, ensure_ascii=False).encode("utf-8", "surrogatepass")


def sealed(body: AnyBody, application: str = APP, *, signer: Signer | None = None, **changes: Any) -> Envelope:
    run = "run-1" if application else ""
    made = EnvelopeFactory("default", "hostile", lambda: NOW).envelope(
        body, ttl=60, application=application, run=run, epoch=1
    )
    made = msgspec.structs.replace(made, **changes)
    return signer.sign(made) if signer is not None else made


def seal(rule: KeyRule, body: AnyBody) -> Envelope:
    signer = SIGNER if rule in (keys.DESIRED, keys.ORDERS) else None
    return sealed(body, "" if rule in (keys.STATE, keys.ORDERS, keys.WINDOWS) else APP, signer=signer)


def put(store: FakeStore, rule: KeyRule, name: str, data: bytes) -> None:
    if rule.kind == "string":
        store.strings[store.keys(rule, name)] = (data, 1e12)
    else:
        store.append_raw(rule, name, data)


def put_all(store: FakeStore, writes: Any) -> None:
    for (rule, name, body), spoils in writes:
        put(store, rule, name, spoiled(seal(rule, body), spoils))


def world() -> tuple[FakeStore, FakeClock, World]:
    clock = FakeClock()
    store = FakeStore(clock)
    made = World(store, clock)
    made.ready()
    return store, clock, made


WRITES = st.lists(st.tuples(st.sampled_from(SEEDS), SPOILS), min_size=1, max_size=6)


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
    for field in ('"node_cpu":3.0', '"memory_total":8589934592'):
        assert field in whole
        name = field.partition(":")[0]
        with pytest.raises(MessageError):
            decode(whole.replace(field, f"{name}:{number}").encode())


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
    estimator = LoadRateEstimator(context)
    rates = estimator.rates()
    assert rates.overhead >= 0 and rates.load_rate > 0
    outcome = OutcomeTracker(APP, context, estimator)
    outcome.restore(applied_decisions(read_decision_log(store), APP))  # type: ignore[arg-type]
    assume(facts is not None and outcome.is_awaiting)
    assert facts is not None
    outcome.measure_outcome(facts)
    clock.sleep(1000)
    lead.renew(0)
    if outcome.is_awaiting:
        outcome.measure_outcome(facts)
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


LIMITS = ReconcilerLimits(deadline_batches=3, deadline_seconds=100.0, presume=120.0)


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
        lines, due = reconciler.due(QUERY, observed(), now)
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
    for store_closed in carrier.pop_closed_stores():
        assert store_closed.application == APP
        assert not reconciler.handle_closed_store(
            store_closed, {(0, "default")}, 0, QUERY, NOW
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
    carrier._read_desired(store)  # type: ignore[arg-type]
    taken = carrier.pop_desired()
    if taken is not None:
        with pytest.raises(MessageError):
            reconciler.accept_desired(taken, observed(), NOW)
    else:
        assert carrier.rejected + store.rejected == 1
    assert {move.name: move.state for move in reconciler.moves} == before
    assert (reconciler.epoch, reconciler.decision) == (5, "d2")


def test_a_placement_decided_for_another_run_moves_nothing() -> None:
    reconciler = Reconciler(LIMITS)
    lines = reconciler.accept_desired(sealed(DESIRED, signer=SIGNER), observed("run-2"), NOW)
    assert [line.after for line in lines] == ["planned", "abandoned"]
    assert reconciler.due(QUERY, observed("run-2"), NOW) == ([], [])


def test_a_placement_said_again_begins_nothing_twice_and_lives_no_longer() -> None:
    reconciler = Reconciler(LIMITS)
    assert len(reconciler.accept_desired(GOOD, observed(), NOW)) == 1
    for _ in range(3):
        assert reconciler.accept_desired(GOOD, observed(), NOW + 30) == []
    assert reconciler.tick(observed(), GOOD.expires)[0].reason == "expired"


# -- what would make it grow --


def test_a_reports_size_is_what_it_brings_not_what_it_claims() -> None:
    """A hundred bytes must not make a controller lay out gigabytes."""
    store, clock, _ = world()
    claims = fakes.report([fakes.query(PLACEMENT)])
    stage = msgspec.structs.replace(claims.queries[0].stages[0], partitions=2**40)
    query = msgspec.structs.replace(claims.queries[0], stages=[stage])
    claims = msgspec.structs.replace(claims, queries=[query])
    store.put(keys.REPORT, APP, sealed(claims))
    collector = Collector(store, CONFIG, clock)  # type: ignore[arg-type]
    assert collector.refresh() == {}
    assert store.rejected == 1
    assert "1099511627776 partitions" in implausibility(claims)


def test_a_link_that_claims_a_huge_epoch_leaves_epochs_room() -> None:
    claims = msgspec.structs.replace(fakes.report([]), accepted_epoch=2**53)
    assert decode(encode(sealed(claims))).body == claims
    with pytest.raises(MessageError):
        decode(encode(sealed(msgspec.structs.replace(claims, accepted_epoch=2**53 + 1))))


def test_what_is_kept_of_batches_and_windows_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    store, clock, _ = world()
    monkeypatch.setattr(collect, "_BATCH_BYTES_KEPT", 60_000)
    monkeypatch.setattr(collect, "_WINDOW_BYTES_KEPT", 40_000)
    collector = Collector(store, CONFIG, clock)  # type: ignore[arg-type]
    for number in range(10, 400):
        store.append(keys.BATCHES, APP, sealed(fakes.batch(number, PLACEMENT), run="run-1"))
        store.append(keys.WINDOWS, HOST, sealed(fakes.window(0, streams=STREAMS * 20)))
        collector.refresh()
        facts = collector.gather(APP)
    assert facts is not None
    stored = [*facts.batches, *(window for some in facts.windows.values() for window in some)]
    assert 80_000 < sum(len(encode(sealed(body))) for body in stored) < 110_000
    assert facts.batches[-1].batch == 399


def gathered(store: FakeStore, clock: FakeClock, batches: Sequence[BatchReport], nodes: int) -> ApplicationMessages:
    """What a collector keeps of these batches, and of a window of every node with each of them."""
    store.put(keys.REPORT, APP, sealed(fakes.report([fakes.query(PLACEMENT)], count=nodes)))
    for batch in batches:
        store.append(keys.BATCHES, APP, sealed(batch, run="run-1"))
        for node in range(nodes):
            window = fakes.window(node, end=NOW + batch.batch, streams=STREAMS * 10)
            store.append(keys.WINDOWS, window.node, sealed(window))
    collector = Collector(store, CONFIG, clock)  # type: ignore[arg-type]
    collector.refresh()
    facts = collector.gather(APP)
    assert facts is not None
    return facts


def test_many_nodes_do_not_displace_the_batches_of_a_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do they with a query whose batches are a hundred times as large as a window."""
    store, clock, _ = world()
    need = CONFIG.reschedule.batches
    huge = [fakes.batch(number, PLACEMENT * 60) for number in range(10, 10 + 2 * need)]
    size = len(encode(sealed(huge[0])))
    monkeypatch.setattr(collect, "_BATCH_BYTES_KEPT", size)
    monkeypatch.setattr(collect, "_NEEDED_BYTES_KEPT", int((need + 0.5) * size))
    monkeypatch.setattr(collect, "_WINDOW_BYTES_KEPT", 50_000)
    facts = gathered(store, clock, huge, nodes=30)
    assert [batch.batch for batch in facts.batches] == list(range(10 + need, 10 + 2 * need))
    ends = [[window.end for window in stored] for stored in facts.windows.values()]
    assert len(ends) == 30 and all(stored and stored[-1] == NOW + 9 + 2 * need for stored in ends)
    windows = [window for stored in facts.windows.values() for window in stored]
    assert sum(len(encode(sealed(body))) for body in windows) <= 50_000


def test_huge_batches_do_not_displace_the_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    store, clock, _ = world()
    monkeypatch.setattr(collect, "_BATCH_BYTES_KEPT", 100_000)
    monkeypatch.setattr(collect, "_NEEDED_BYTES_KEPT", 100_000)
    huge = [fakes.batch(number, PLACEMENT * 60) for number in range(10, 13)]
    assert all(len(encode(sealed(batch))) > 60_000 for batch in huge), "more than six shares"
    facts = gathered(store, clock, huge, nodes=10)
    assert len(facts.windows) == 10
    assert min(len(stored) for stored in facts.windows.values()) >= 3
    assert len(facts.batches) <= 1


def test_reports_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    store, clock, _ = world()
    monkeypatch.setattr(collect, "_REPORT_BYTES", 20_000)
    for number in range(50):
        name = f"x-{number:02}"
        store.put(keys.REPORT, name, sealed(fakes.report([fakes.query(PLACEMENT)]), name))
        store.register_application(name, NOW)
    result = Collector(store, CONFIG, clock).refresh()  # type: ignore[arg-type]
    assert APP in result and 10 < len(result) < 30
    assert store.rejected == 51 - len(result)


def test_an_untrimmed_stream_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    store, clock, _ = world()
    reads: list[int] = []
    plain = store.read
    monkeypatch.setattr(
        store, "read", lambda rule, name, after, count=1000: (reads.append(count), plain(rule, name, after, count))[1]
    )
    entry = encode(sealed(fakes.window(0)))
    store.append_raw(keys.WINDOWS, HOST, entry)
    after, _ = collect.read_new_entries(store, keys.WINDOWS, HOST, "", first=64)  # type: ignore[arg-type]
    clock.sleep(1)
    store.streams[store.keys(keys.WINDOWS, HOST)] += [((int(clock() * 1000), n), entry) for n in range(5000)]
    after, result = collect.read_new_entries(store, keys.WINDOWS, HOST, after, first=64)  # type: ignore[arg-type]
    assert (len(result), after) == (64, f"{int(clock() * 1000)}-4999")
    assert sum(reads) <= 200 * 3
