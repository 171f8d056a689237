"""Bodies of the messages between agents, links, controllers and the command line.

`rechannel.wire.envelope` wraps them and defines how they may change; `rechannel.wire.measurements` has the bodies with
measurements. Times are seconds since the epoch (UTC), durations seconds, sizes bytes, unless a field says otherwise.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec

from rechannel.wire.codes import Scope
from rechannel.wire.measurements import AgentEvidence, AgentWindow, BatchReport, Body, BoundedFloat, Int53, Timestamp

# Short texts by name, at most 64.
Labels: TypeAlias = Annotated[dict[str, Annotated[str, msgspec.Meta(max_length=512)]], msgspec.Meta(max_length=64)]


#: attribute of an executor in Spark that names its node, where its host names its pod alone
NODE_ATTRIBUTE = "RECHANNEL_NODE"


class ExecutorInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An executor."""

    executor: str
    host: str
    cores: Int53
    added: Timestamp
    memory: Int53 = 0
    node: str = ""  # its machine by `NODE_ATTRIBUTE`, "" without one
    labels: Labels = {}  # of its machine

    @property
    def node_name(self) -> str:
        """Name of its node; its host where Spark knows no other."""
        return self.node or self.host

    @property
    def agent_names(self) -> tuple[str, ...]:
        """Names that its agent may report under: its node, or its host, as of an agent in its pod."""
        return tuple(dict.fromkeys((self.node_name, self.host)))


class Operator(msgspec.Struct, frozen=True, kw_only=True):
    """A stateful operator of a query, and the names of its state stores."""

    operator: Int53
    name: str
    stores: list[str]


class StatefulStage(msgspec.Struct, frozen=True, kw_only=True):
    """A stateful stage; the unit of migration is one of its partitions with all its stores."""

    stage: Int53  # numbers the stateful stages of a query from 0
    partitions: Int53
    operators: list[Operator]
    placement: list[str]  # executor of the last successful task of each partition, "" if unknown
    # Batches that the newest snapshot of each partition lies behind, as of the last check; -1: no snapshot in this run,
    # or not checked lately. Empty if this Spark version does not report snapshots.
    snapshot_lag: list[Int53] = []


class QueryState(msgspec.Struct, frozen=True, kw_only=True):
    """A streaming query in the driver."""

    query: str
    run: str
    name: str
    batch: Int53
    active: bool
    stages: list[StatefulStage]
    problem: str = ""  # the reason why this query cannot be moved, "" if it can
    batch_started: Timestamp = 0.0  # start of the batch that is not committed yet, 0 without one
    interval: BoundedFloat = 0.0  # seconds from one trigger to the next; 0: immediately, or unknown
    pool: str = ""  # of the scheduler; "" without one of its own


class Unit(NamedTuple):
    """A partition of a stateful stage: the unit of migration."""

    query: str
    stage: int
    partition: int


class PartitionMove(msgspec.Struct, frozen=True, kw_only=True):
    """A partition's move to ``target``; moves of a lower step come first."""

    move: str
    query: str
    stage: Int53
    partition: Int53
    source: str
    target: str
    step: Int53

    @property
    def unit(self) -> Unit:
        """The moved partition."""
        return Unit(self.query, self.stage, self.partition)

    def shared_fields(self) -> dict[str, Any]:
        """Return the fields that every message about a move has."""
        return {name: getattr(self, name) for name in PartitionMove.__struct_fields__}


class MoveView(PartitionMove, frozen=True, kw_only=True):
    """A move and its state."""

    state: str
    reason: str = ""
    missed_batches: Int53 = 0


class DrainedNode(msgspec.Struct, frozen=True, kw_only=True):
    """A drained node: no state may be placed on it."""

    node: str
    since: Timestamp
    user: str = ""
    reason: str = ""
    remove: bool = False  # its executors are released once they are empty
    deadline: Timestamp = 0.0  # time from which they are released even if they are not; 0: never


class StandingOrders(Body, frozen=True, tag="standing-orders", kw_only=True):
    """Pause and drains, signed: links place nothing while paused, and never on drains."""

    paused: bool = False
    drains: list[DrainedNode] = []


class LastPlacement(Body, frozen=True, tag="last-placement", kw_only=True):
    """Last placement of a query, from which a restarted query is placed."""

    query: str
    name: str
    batch: Int53
    operators: dict[Int53, list[str]]  # operator -> executor of each partition
    hosts: dict[str, str]  # executor -> its node


class LinkReport(Body, frozen=True, tag="link-report", kw_only=True):
    """State of an application, from its link; the last report wins."""

    name: str
    spark_version: str
    attached: Timestamp
    executors: list[ExecutorInfo]
    queries: list[QueryState]
    moves: list[MoveView]  # not final, and final ones that the accepted placement names
    decision: str = ""  # of the accepted placement
    accepted_epoch: Int53 = 0
    accepted_leaders: list[str] = []  # senders of what was accepted in that epoch
    failed_tasks: Int53 = 0
    missed: Int53 = 0
    landed: Int53 = 0
    abandoned: Int53 = 0
    rejected_messages: Int53 = 0
    problems: list[str] = []
    drifted_partitions: Int53 = 0  # times Spark ran a partition on another executor without a request
    initial_placements: dict[str, str] = {}  # query -> description of its placement at the start
    standing_orders: str = ""  # the signed message that the link obeys, in case Redis loses it
    releasing_executors: list[str] = []  # executors that get no more tasks: to be released, or retired by the cluster
    environment: Labels = {}  # versions of the link and of Python, and the Spark settings in use


class DesiredMove(PartitionMove, frozen=True, kw_only=True):
    """A move that the link is to make."""

    bytes: BoundedFloat = 0.0  # size of the state and the changes after its snapshot, as far as known


class DesiredPlacement(Body, frozen=True, tag="desired-placement", kw_only=True):
    """Signed moves; the envelope binds them to application, epoch and expiry."""

    decision: str
    runs: dict[str, str]  # query -> the run that it was decided for
    moves: list[DesiredMove]
    hold: bool = False  # the link begins no further move


class MoveTransition(PartitionMove, Body, frozen=True, tag="move-transition", kw_only=True):
    """A line of the journal of moves, written by the link."""

    decision: str
    before: str
    after: str
    reason: str
    evidence: str
    batch: Int53
    at: Timestamp


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """A law that refused something, the scope of the refusal, and the numbers behind it."""

    law: str
    scope: str = Scope.PLAN  # rechannel.wire.codes.Scope
    detail: str
    measured: BoundedFloat | None = None  # if the law compares numbers
    limit: BoundedFloat | None = None
    unit: str = ""  # of both
    until: Timestamp = 0.0  # end of the refusal, 0 if unknown


class ExecutorLoad(msgspec.Struct, frozen=True, kw_only=True):
    """An executor before and after a decision; utilization is arrival over service (rows/s)."""

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


class MigrationCost(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted cost of a plan, in seconds and bytes."""

    steps: Int53
    bytes: BoundedFloat
    pause: BoundedFloat  # added to the longest batch
    seconds: BoundedFloat  # added to all batches
    total: BoundedFloat  # from the order until the last partition has landed
    batch_before: dict[str, BoundedFloat]  # query -> length of a batch before
    peak: dict[str, BoundedFloat]  # query -> longest batch during the migration, at most
    batch_after: dict[str, BoundedFloat]  # query -> length of a batch after it
    overhead: BoundedFloat  # of one load
    load_rate: BoundedFloat  # bytes/s of one load
    moves: Int53 = 0  # earlier moves to which both are fitted; 0: they are `migration.plan.cost.UNMEASURED`
    batch_error: dict[str, BoundedFloat] = {}  # query -> standard error of batch_after
    # query -> median seconds and rows of its last batches
    recent_batches: dict[str, tuple[BoundedFloat, BoundedFloat]] = {}
    cold: dict[str, BoundedFloat] = {}  # executor -> seconds by which a first task there lasts longer
    # query -> median seconds between their starts, and the share of their rows that is proportional to that (0 to 1)
    recent_periods: dict[str, tuple[BoundedFloat, BoundedFloat]] = {}


class GainCorrection(msgspec.Struct, frozen=True, kw_only=True):
    """Correction of a predicted gain by what earlier ones brought."""

    share: BoundedFloat  # of the gain (in logarithms) that is expected
    migrations: Int53  # from which that is learned
    uncorrected: BoundedFloat  # seconds of the predicted batch without that


class MigrationOutcome(Body, frozen=True, tag="migration-outcome", kw_only=True):
    """Result of a migration, beside its prediction (`Decision.migration_cost`)."""

    decision: str
    at: Timestamp
    landed: Int53
    abandoned: Int53
    total: BoundedFloat  # from the order until the last partition landed
    batch_before: dict[str, BoundedFloat]  # query -> its median batch before
    peak: dict[str, BoundedFloat]  # query -> the longest batch in which a partition landed
    batch_after: dict[str, BoundedFloat]  # query -> its median batch once settled
    # bytes and added seconds of every move whose first batch was observed, without cold starts
    loads: list[tuple[BoundedFloat, BoundedFloat]]
    verdict: str  # rechannel.wire.codes.OutcomeVerdict
    sentence: str
    predicted: MigrationCost | None = None
    # query whose batches can be compared -> share of its promised, uncorrected gain that came true
    gain_shares: dict[str, BoundedFloat] = {}


class Decision(Body, frozen=True, tag="decision", kw_only=True):
    """A decision with its numbers, whether or not it moved anything."""

    decision: str
    at: Timestamp
    trigger: str
    user: str
    policy: str
    result: str  # rechannel.wire.codes.DecisionResult
    reason: str  # code
    sentence: str
    executors: list[ExecutorLoad] = []
    moves: list[DesiredMove] = []
    refusals: list[Refusal] = []
    batch_time_before: dict[str, BoundedFloat] = {}  # query -> mean seconds of its measured batches
    batch_time_after: dict[str, BoundedFloat] = {}  # query -> predicted seconds of a batch with the moves
    # query -> predicted 95th percentile of its batches in seconds, now and with the moves
    batch_p95: dict[str, tuple[BoundedFloat, BoundedFloat]] = {}
    # query -> share by which the replay of the present placement differs from its measured batches
    residuals: dict[str, BoundedFloat] = {}
    gain: BoundedFloat = 0.0  # seconds over the horizon
    cost: BoundedFloat = 0.0  # seconds that the moves add to the batches, as the gate compared
    streams: dict[str, Int53] = {}  # class -> count
    hot_streams: list[str] = []
    notes: list[str] = []
    names: dict[str, str] = {}  # query -> its name, if it has one
    migration_cost: MigrationCost | None = None  # of the moves, or of the moves that the gate refused
    forced: bool = False
    rollback_of: str = ""  # the decision whose moves this one rolls back
    runs: dict[str, str] = {}  # moved query -> its run
    move_reasons: dict[str, str] = {}  # move -> why the partition goes there, with numbers; for the first moves
    operator_reason: str = ""  # given by the operator
    scheduled_plan: str = ""  # id of the scheduled plan that this decision carried out or gave up
    last_batches: dict[str, Int53] = {}  # moved query -> its last batch
    corrections: dict[str, GainCorrection] = {}  # query -> correction that is part of batch_time_after


class ScheduledPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A saved plan that is to be carried out between ``begin`` and ``end``."""

    scheduled_plan: str  # its id
    at: Timestamp
    application: str
    begin: Timestamp
    end: Timestamp
    window: str  # the time as the operator wrote it
    plan: str  # the text of its file
    moves: Int53
    user: str = ""
    reason: str = ""
    force: bool = False


class ScheduledPlans(Body, frozen=True, tag="scheduled-plans", kw_only=True):
    """All scheduled plans, signed: leaders carry out only plans that a controller accepted."""

    plans: list[ScheduledPlan] = []


class Request(Body, frozen=True, tag="request", kw_only=True):
    """Order or question of an operator; the leading controller answers it under its id."""

    request: str
    user: str
    reason: str = ""
    command: dict[str, Any] = {}  # encoded by rechannel.wire.commands

    @property
    def verb(self) -> str:
        """The verb of the command, which may be unknown here; "" if it has none."""
        verb = self.command.get("verb")
        return verb if isinstance(verb, str) else ""


class Reply(Body, frozen=True, tag="reply", kw_only=True):
    """The answer to a request."""

    request: str
    code: Int53  # rechannel.wire.exit_codes.ExitCode
    sentence: str
    data: dict[str, Any] = {}  # for programs


class ControllerState(Body, frozen=True, tag="controller-state", kw_only=True):
    """State of the leading controller."""

    leader: str
    since: Timestamp
    epoch: Int53
    paused: bool
    mode: str
    next_decision: Timestamp
    last_sentence: str
    applications: dict[str, str] = {}  # application -> its readiness, in one sentence


class AgentLimits(Body, frozen=True, tag="agent-limits", kw_only=True):
    """Limits of every agent, by the number of agents.

    ``window_sizes``: sizes of map outputs that it sends in a window, on average.
    """

    window_sizes: Int53


AnyBody: TypeAlias = (
    AgentWindow
    | AgentEvidence
    | AgentLimits
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
    | ScheduledPlans
)
