"""Every message that crosses between agents, links, controllers and the CLI.

A message is an `Envelope` around one typed body. Bodies only grow fields with defaults; what breaks old readers
raises `SCHEMA`. Times are seconds since the epoch (UTC), durations seconds, sizes bytes, unless a field says otherwise.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec

from rechannel.wire.keys import MAX_MESSAGE_BYTES
from rechannel.wire.measurements import (
    AgentEvidence,
    AgentWindow,
    BatchReport,
    Body,
    BoundedFloat,
    ClosedStore,
    ExecutorUsage,
    Int53,
    StageRun,
    StreamRow,
    TaskRow,
    Timestamp,
)

__all__ = [
    "MAX_MESSAGE_BYTES",
    "SCHEMA",
    "AgentEvidence",
    "AgentWindow",
    "AnyBody",
    "BatchReport",
    "Body",
    "BodyT",
    "BoundedFloat",
    "ClosedStore",
    "ControllerState",
    "Decision",
    "DesiredMove",
    "DesiredPlacement",
    "Drain",
    "Envelope",
    "ExecutorInfo",
    "ExecutorLoad",
    "ExecutorUsage",
    "Int53",
    "LastPlacement",
    "LinkReport",
    "MessageError",
    "MigrationOutcome",
    "MigrationPrice",
    "MoveTransition",
    "MoveView",
    "Operator",
    "QueryState",
    "Refusal",
    "Reply",
    "Request",
    "StageRun",
    "StandingOrders",
    "StatefulStage",
    "StreamRow",
    "TaskRow",
    "Timestamp",
    "body_of",
    "decode",
    "encode",
    "signed_bytes",
]

SCHEMA = 1


Environment: TypeAlias = Annotated[dict[str, Annotated[str, msgspec.Meta(max_length=512)]], msgspec.Meta(max_length=64)]


class MessageError(ValueError):
    """A message that must not be used: malformed, of another schema, too large, expired or not for this reader."""


class ExecutorInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An executor as the driver knows it."""

    executor: str
    host: str
    cores: Int53
    added: Timestamp
    memory: Int53 = 0


class Operator(msgspec.Struct, frozen=True, kw_only=True):
    """A stateful operator of a query with the names of its state stores."""

    operator: Int53
    name: str
    stores: list[str]


class StatefulStage(msgspec.Struct, frozen=True, kw_only=True):
    """The unit of migration is one partition of such a stage with all the stores of its operators.

    ``stage`` counts the query's stateful stages in a batch from 0. ``placement[p]`` is the executor the last
    successful task of partition p ran on ("" when unknown). ``snapshot_lag[p]`` is how many batches its newest
    snapshot lay behind when it was asked for last (-1: none known in this run); empty when this Spark does not tell.
    """

    stage: Int53
    partitions: Int53
    operators: list[Operator]
    placement: list[str]
    snapshot_lag: list[Int53] = []


class QueryState(msgspec.Struct, frozen=True, kw_only=True):
    """A streaming query as the link sees it."""

    query: str
    run: str
    name: str
    batch: Int53
    active: bool
    stages: list[StatefulStage]
    problem: str = ""  # why this query cannot be moved, in plain words
    began: Timestamp = 0.0  # when the batch began that is not committed yet, 0 when there is none
    interval: BoundedFloat = 0.0  # seconds from one trigger to the next; 0: at once, or not told


class MoveView(msgspec.Struct, frozen=True, kw_only=True):
    """A move and how far it has come."""

    move: str
    query: str
    stage: Int53
    partition: Int53
    source: str
    target: str
    step: Int53
    state: str
    reason: str = ""
    misses: Int53 = 0


class Drain(msgspec.Struct, frozen=True, kw_only=True):
    """A node that is to hold no state.

    ``remove``: its executors are released once they are empty. ``deadline``: when that is done even if they are not
    (seconds since the epoch; 0: never).
    """

    node: str
    since: Timestamp
    user: str = ""
    reason: str = ""
    remove: bool = False
    deadline: Timestamp = 0.0


class StandingOrders(Body, frozen=True, tag="standing-orders", kw_only=True):
    """What holds until the controller says otherwise. Signed: links spread nothing while paused, nor onto drains."""

    paused: bool = False
    drains: list[Drain] = []


class LastPlacement(Body, frozen=True, tag="last-placement", kw_only=True):
    """Where the partitions of a query ran last, so that a restarted query gets them back.

    ``operators[o][p]`` is the executor of partition p of operator o; ``hosts`` the host of each executor named.
    """

    query: str
    name: str
    batch: Int53
    operators: dict[Int53, list[str]]
    hosts: dict[str, str]


class LinkReport(Body, frozen=True, tag="link-report", kw_only=True):
    """All that a link knows about its application; the last one wins."""

    name: str
    spark_version: str
    attached: Timestamp
    executors: list[ExecutorInfo]
    queries: list[QueryState]
    moves: list[MoveView]
    decision: str = ""  # of the accepted placement
    accepted_epoch: Int53 = 0
    failed_tasks: Int53 = 0
    missed: Int53 = 0
    landed: Int53 = 0
    abandoned: Int53 = 0
    rejected_messages: Int53 = 0
    problems: list[str] = []
    drifted: Int53 = 0  # partitions that Spark ran elsewhere than before though nobody asked
    starts: dict[str, str] = {}  # query -> how its partitions were spread or put back when it started
    orders: str = ""  # the signed standing orders that the link obeys, as a message: they outlive an emptied Redis
    releasing: list[str] = []  # executors that get no task any more: about to be released, or retired by the cluster
    environment: Environment = {}  # release of the link, its Python, and the Spark settings that matter to us


class DesiredMove(msgspec.Struct, frozen=True, kw_only=True):
    """One partition to bring to ``target``; moves of a lower step come first."""

    move: str
    query: str
    stage: Int53
    partition: Int53
    source: str
    target: str
    step: Int53
    bytes: BoundedFloat = (
        0.0  # what the target has to load, as far as known: its state, and what came after the snapshot
    )


class DesiredPlacement(Body, frozen=True, tag="desired-placement", kw_only=True):
    """What the controller wants. Signed; bound to application, epoch and expiry by its envelope.

    ``runs`` binds it to the runs it was decided for. ``hold`` means: begin no further move.
    """

    decision: str
    runs: dict[str, str]
    moves: list[DesiredMove]
    hold: bool = False


class MoveTransition(Body, frozen=True, tag="move-transition", kw_only=True):
    """A line of the journal; only the link writes these."""

    move: str
    decision: str
    query: str
    stage: Int53
    partition: Int53
    source: str
    target: str
    step: Int53
    before: str
    after: str
    reason: str
    evidence: str
    batch: Int53
    at: Timestamp


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """A typed no: which law, how far it reaches (``move``, ``executor``, ``query``, ``plan``), and the numbers.

    ``measured`` and ``limit`` in ``unit``, where the law is one of numbers; ``until``: when it holds no more, where
    that is known (seconds since the epoch; 0: it is not).
    """

    law: str
    reach: str
    detail: str
    measured: BoundedFloat | None = None
    limit: BoundedFloat | None = None
    unit: str = ""
    until: Timestamp = 0.0


class ExecutorLoad(msgspec.Struct, frozen=True, kw_only=True):
    """An executor before and after a decision. Utilization is arrival over service (rows/s), before as after."""

    executor: str
    node: str
    partitions_before: Int53
    partitions_after: Int53
    arrival_before: BoundedFloat
    arrival_after: BoundedFloat
    service: BoundedFloat
    utilization_before: BoundedFloat
    utilization_after: BoundedFloat
    service_after: BoundedFloat = 0.0


class MigrationPrice(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan is expected to cost, in seconds and bytes.

    ``pause``: by how much the worst batch is longer; ``seconds``: the same summed over all; ``total``: from the order
    until the last partition has landed. ``batch_before``, ``peak``, ``batch_after``: query -> how long a batch is, its
    longest meanwhile, and afterwards. ``overhead`` (s) and ``load_rate`` (bytes/s) of one load, fitted to ``moves``
    that were made (0: by the settings).
    """

    steps: Int53
    bytes: BoundedFloat
    pause: BoundedFloat
    seconds: BoundedFloat
    total: BoundedFloat
    batch_before: dict[str, BoundedFloat]
    peak: dict[str, BoundedFloat]
    batch_after: dict[str, BoundedFloat]
    overhead: BoundedFloat
    load_rate: BoundedFloat
    moves: Int53 = 0
    usual: dict[
        str, tuple[BoundedFloat, BoundedFloat]
    ] = {}  # query -> median seconds and rows of its last batches before


class MigrationOutcome(Body, frozen=True, tag="migration-outcome", kw_only=True):
    """What became of a migration, beside what was predicted (`Decision.price`).

    ``total``: seconds from the order until the last partition had landed; ``batch_before`` and ``batch_after``: median
    batch of each query before and once settled; ``peak``: the longest batch in which a partition landed. ``loads``:
    bytes and added seconds of every move whose first batch was seen. ``verdict``: kept | regressed | not-judged.
    """

    decision: str
    at: Timestamp
    landed: Int53
    abandoned: Int53
    total: BoundedFloat
    batch_before: dict[str, BoundedFloat]
    peak: dict[str, BoundedFloat]
    batch_after: dict[str, BoundedFloat]
    loads: list[tuple[BoundedFloat, BoundedFloat]]
    verdict: str
    sentence: str
    predicted: MigrationPrice | None = None


class Decision(Body, frozen=True, tag="decision", kw_only=True):
    """What was decided, with its numbers; kept whether or not anything was moved."""

    decision: str
    at: Timestamp
    trigger: str
    user: str
    policy: str
    outcome: str  # applied | planned | refused | not-ready
    reason: str  # code
    sentence: str
    executors: list[ExecutorLoad] = []
    moves: list[DesiredMove] = []
    refusals: list[Refusal] = []
    batch_time_before: dict[str, BoundedFloat] = {}  # query -> predicted critical path, seconds
    batch_time_after: dict[str, BoundedFloat] = {}
    gain: BoundedFloat = 0.0  # seconds over the horizon
    cost: BoundedFloat = 0.0  # seconds
    streams: dict[str, Int53] = {}  # class -> count
    hot_streams: list[str] = []
    notes: list[str] = []
    names: dict[str, str] = {}  # query -> its name, where it has one
    price: MigrationPrice | None = None  # of the moves, or of those that the gate refused
    forced: bool = False
    undoes: str = ""  # the decision whose moves go back
    runs: dict[str, str] = {}  # query -> its run, of those that are moved
    why: dict[str, str] = {}  # move -> why this partition goes there, in words with numbers; of many moves the first
    asked: str = ""  # why the operator asked
    pending: str = ""  # the plan that waited, where this says what became of it
    batches: dict[str, Int53] = {}  # query -> its last batch, of those that are moved


class PendingPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A saved plan that waits for its time: ``begin`` to ``end``, seconds since the epoch.

    ``plan`` is the text of the file, ``window`` how its time was named.
    """

    pending: str
    at: Timestamp
    application: str
    begin: Timestamp
    end: Timestamp
    window: str
    plan: str
    moves: Int53
    user: str = ""
    reason: str = ""
    force: bool = False


class PendingPlans(Body, frozen=True, tag="pending-plans", kw_only=True):
    """The saved plans that wait. Signed: a leader takes up nothing that none before it wrote."""

    plans: list[PendingPlan] = []


class Request(Body, frozen=True, tag="request", kw_only=True):
    """Order or question of an operator; the leading controller answers it under its id.

    ``command`` is one of `rechannel.wire.commands`, encoded: plain JSON, so that a command of another release can
    still be answered.
    """

    request: str
    user: str
    reason: str = ""
    command: dict[str, Any] = {}

    @property
    def verb(self) -> str:
        """The verb of the command, which may be unknown here; "" if it has none."""
        verb = self.command.get("verb")
        return verb if isinstance(verb, str) else ""


class Reply(Body, frozen=True, tag="reply", kw_only=True):
    """The answer: ``code`` is the CLI's exit code, ``sentence`` for people, ``data`` for programs."""

    request: str
    code: Int53
    sentence: str
    data: dict[str, Any] = {}


class ControllerState(Body, frozen=True, tag="controller-state", kw_only=True):
    """What the leading controller is doing."""

    leader: str
    since: Timestamp
    epoch: Int53
    paused: bool
    mode: str
    next_decision: Timestamp
    last_sentence: str
    applications: dict[str, str] = {}  # application -> readiness in plain words


AnyBody: TypeAlias = (
    AgentWindow
    | AgentEvidence
    | LinkReport
    | BatchReport
    | DesiredPlacement
    | MoveTransition
    | Decision
    | Request
    | Reply
    | ControllerState
    | StandingOrders
    | LastPlacement
    | MigrationOutcome
    | PendingPlans
)
BodyT = TypeVar("BodyT", bound=Body)


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """Around every body: who says it, about what, when, until when, under which epoch, and the signature if any.

    ``application`` and ``run`` are empty where there is none. ``signature`` is base64 of Ed25519 over `signed_bytes`.
    ``said`` is no part of it but what a signed message was read from, up to the signature: another release may have
    put more into it than this one knows. Whoever changes a message that was read has it signed anew.
    """

    schema: Int53
    cluster: str
    application: str
    run: str
    sender: str
    sequence: Int53
    epoch: Int53
    time: Timestamp
    expires: Timestamp
    body: AnyBody
    signature: str = ""
    said: bytes | msgspec.UnsetType = msgspec.UNSET


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Envelope)


def encode(envelope: Envelope) -> bytes:
    """Serialize a message (JSON, so that people can read Redis); one that was read, as it was read."""
    if isinstance(envelope.said, bytes):
        return _with(envelope.said, envelope.signature)
    return _ENCODER.encode(envelope)


def decode(data: bytes, *, cluster: str | None = None) -> Envelope:
    """Read a message whole and checked, or raise MessageError. Expiry is the reader's to check: it has the clock."""
    if len(data) > MAX_MESSAGE_BYTES:
        raise MessageError(f"message of {len(data)} bytes exceeds {MAX_MESSAGE_BYTES}")
    try:
        envelope = _DECODER.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise MessageError(f"malformed message: {error}") from error
    if envelope.schema != SCHEMA:
        raise MessageError(f"message of schema {envelope.schema}; this release reads {SCHEMA}: upgrade the older side")
    if cluster is not None and envelope.cluster != cluster:
        raise MessageError(f"message for cluster {envelope.cluster!r}, not {cluster!r}")
    tail = _tail(envelope.signature)
    # The signature comes last in what `encode` writes. What is written otherwise is nobody's who signs.
    kept = bool(envelope.signature) and data.endswith(tail)
    return msgspec.structs.replace(envelope, said=data[: -len(tail)] if kept else msgspec.UNSET)


def body_of(envelope: Envelope, kind: type[BodyT]) -> BodyT:
    """Return the body if it is of this kind, else raise MessageError."""
    if not isinstance(envelope.body, kind):
        raise MessageError(f"expected {kind.__name__}, got {type(envelope.body).__name__}")
    return envelope.body


def signed_bytes(envelope: Envelope) -> bytes:
    """Return the bytes a signature covers: the whole message as it was written, without the signature."""
    if isinstance(envelope.said, bytes):
        return _with(envelope.said, "")
    return _ENCODER.encode(msgspec.structs.replace(envelope, signature=""))


def _with(said: bytes, signature: str) -> bytes:
    return said + _tail(signature)


def _tail(signature: str) -> bytes:
    return b',"signature":' + _ENCODER.encode(signature) + b"}"
