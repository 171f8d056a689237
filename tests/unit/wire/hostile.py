"""Valid messages of every kind, and strategies that alter them."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from rechannel.wire import keys
from rechannel.wire.envelope import Envelope, EnvelopeFactory, encode
from rechannel.wire.keys import KeyRule
from rechannel.wire.measurements import AgentEvidence, ClosedStore, MapOutput
from rechannel.wire.messages import (
    AgentLimits,
    AnyBody,
    ControllerState,
    Decision,
    DesiredMove,
    DesiredPlacement,
    DrainedNode,
    ExecutorLoad,
    GainCorrection,
    LastPlacement,
    MigrationCost,
    MigrationOutcome,
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
from unit.daemon.fake_store import NOW, FakeClock, FakeStore
from unit.daemon.fakes import APP, QUERY, SIGNER, World
from unit.wire.samples import sample

FUZZ = settings(
    max_examples=int(os.environ.get("RECHANNEL_FUZZ", "25")),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
CRASHES = {"application-failed", "request-failed", "job-failed"}
HOST = "127.0.0.2"
PLACEMENT = list("000000112233")

# -- a valid message of every kind, and how it is spoiled --

COST = sample(MigrationCost, batch_before={QUERY: 5.0}, peak={QUERY: 6.0}, batch_after={QUERY: 4.0}, load_rate=1e8)
MOVE = DesiredMove(move="d.0", query=QUERY, stage=0, partition=0, source="0", target="1", step=0, bytes=10.0)
LINE = sample(MoveTransition, query=QUERY, stage=0, partition=0, before="steered", after="drained", at=NOW - 5)
DECISION = sample(
    Decision,
    at=NOW - 20,
    trigger="timeout",
    result="applied",
    executors=[sample(ExecutorLoad, executor=str(e), node=f"127.0.0.{e + 2}") for e in range(4)],
    moves=[MOVE],
    refusals=[Refusal(law="gate", scope="plan", detail="no")],
    batch_time_before={QUERY: 5.0},
    names={QUERY: "name"},
    migration_cost=COST,
    runs={QUERY: "run-1"},
    corrections={QUERY: GainCorrection(share=0.7, migrations=4, uncorrected=3.6)},
)
OUTCOME = sample(
    MigrationOutcome,
    decision="earlier",
    at=NOW - 30,
    batch_before={QUERY: 5.0},
    peak={QUERY: 6.0},
    batch_after={QUERY: 4.0},
    verdict="confirmed",
    predicted=COST,
    gain_shares={QUERY: 0.7},
)
DESIRED = DesiredPlacement(decision="d", runs={QUERY: "run-1"}, moves=[MOVE])
ORDERS = StandingOrders(paused=True, drains=[DrainedNode(node=HOST, since=NOW - 9, deadline=NOW + 60)])
LAST = sample(LastPlacement, query=QUERY, operators={0: PLACEMENT}, hosts={"0": HOST, "1": "127.0.0.3"})
CLOSED = sample(ClosedStore, application=APP, executor="0", run="run-1", operator=0, partition=0, store="default")
STATE = sample(ControllerState, since=NOW, mode="apply", next_decision=NOW + 9, applications={APP: "r"})
PLAN = sample(
    ScheduledPlan, at=NOW - 60, application=APP, begin=NOW - 30, end=NOW + 60, window="02:00-05:00", plan="{}"
)
MAP_OUTPUTS = [MapOutput(APP, "0", 0, 9000, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12])]

# Every kind of key that holds messages, with one that fits.
SEEDS: list[tuple[KeyRule, str, AnyBody]] = [
    (keys.REPORT, APP, fakes.report([fakes.query(PLACEMENT)])),
    (keys.BATCHES, APP, fakes.batch(9, PLACEMENT)),
    (keys.WINDOWS, HOST, fakes.window(0, map_outputs=MAP_OUTPUTS)),
    (keys.EVIDENCE, HOST, AgentEvidence(node=HOST, closed=[CLOSED])),
    (keys.JOURNAL, APP, LINE),
    (keys.DESIRED, APP, DESIRED),
    (keys.DECISIONS, "", DECISION),
    (keys.APPLIED, "", DECISION),
    (keys.OUTCOMES, "", OUTCOME),
    (keys.STATE, "", STATE),
    (keys.AGENT_LIMITS, "", AgentLimits(window_sizes=100)),
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
    st.sampled_from([0.0, -1.0, 1e-300, 1e30, -1e30, 1e11, -1e11, -6e10, NOW, NOW + 1e6, NOW - 1e6, 1e11 - 1]),
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
