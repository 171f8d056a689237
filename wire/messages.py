"""Bodies of the messages between agents, links, controllers and the command line.

`rechannel.wire.envelope` wraps them and tells how they may change; `rechannel.wire.measurements` has those of nodes
and batches. Times are seconds since the epoch (UTC), durations seconds, sizes bytes, unless a field says otherwise.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec

from rechannel.wire.measurements import (
    AgentEvidence,
    AgentWindow,
    BatchReport,
    Body,
    BoundedFloat,
    Int53,
    Timestamp,
)

# Up to 64 names, each with a short text.
Labels: TypeAlias = Annotated[dict[str, Annotated[str, msgspec.Meta(max_length=512)]], msgspec.Meta(max_length=64)]


class ExecutorInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An executor as the driver knows it. ``node`` ("" if unknown) and ``labels`` describe the machine it runs on."""

    executor: str
    host: str
    cores: Int53
    added: Timestamp
    memory: Int53 = 0
    node: str = ""
    labels: Labels = {}


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
    batch_started: Timestamp = 0.0  # when the batch began that is not committed yet, 0 when there is none
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
    missed_batches: Int53 = 0


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
    drifted_partitions: Int53 = 0  # partitions that Spark ran elsewhere than before though nobody asked
    initial_placements: dict[str, str] = {}  # query -> how its partitions were spread or put back when it started
    standing_orders: str = ""  # the signed message that the link obeys; a copy in case Redis loses its data
    releasing_executors: list[str] = []  # executors that get no more tasks: to be released, or retired by the cluster
    environment: Labels = {}  # release of the link, its Python, and the Spark settings that matter to us


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
    scope: str
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
    service_before: BoundedFloat
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
    recent_batches: dict[
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
    rollback_of: str = ""  # the decision whose moves go back
    runs: dict[str, str] = {}  # query -> its run, of those that are moved
    move_reasons: dict[str, str] = {}  # move -> why the partition goes there, with numbers; for the first moves
    operator_reason: str = ""  # why the operator asked
    pending_plan: str = ""  # the plan that waited, where this says what became of it
    last_batches: dict[str, Int53] = {}  # query -> its last batch, of those that are moved


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
    """An operator's wish; the leading controller answers it by id."""

    request: str
    verb: str
    user: str
    reason: str = ""
    arguments: dict[str, str] = {}


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
