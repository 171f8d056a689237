"""Inputs and result of planning a migration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rechannel.migration.plan.cost import UNMEASURED, LoadRates, MigrationCost
from rechannel.migration.plan.gate import GateResult
from rechannel.policies.analysis.cold_start import ColdStage
from rechannel.policies.analysis.queueing import QueueReport
from rechannel.policies.model.arrays import FloatArray
from rechannel.policies.model.cluster import Cluster
from rechannel.policies.model.placement import Placement
from rechannel.policies.model.workload import Workload
from rechannel.policies.prediction.correction import GainShare
from rechannel.policies.prediction.model import PredictionModel
from rechannel.wire.codes import Law, PlanResult
from rechannel.wire.messages import DesiredMove, GainCorrection, QueryState, Refusal


@dataclass(frozen=True)
class Cooldown:
    """Rest after a migration in seconds, with a reason where it is longer than usual."""

    left: float = 0.0
    total: float = 0.0
    reason: str = ""


@dataclass(frozen=True)
class PlanInputs:
    """State of an application that a plan is made for.

    Attributes
    ----------
    stages
        Key of a placeable stage -> (query, number of the stage in the link's report).
    in_flight
        (query, stage, partition) of moves that await a batch.
    bytes_to_load
        Key of a stage -> bytes to load of each partition; the stage's state where it is missing.
    batch_seconds, batch_period
        Query -> mean seconds of its measured batches, and from the start of one to the start of the next.
    prediction
        Model that batches are predicted from; made of the workload where None.
    rates
        Measured cost of loading; that of the settings where None.
    cold
        Key of a stage -> its first tasks, where some executor ran few of them.
    gain_shares
        Query -> what is expected of a gain promised to it; all of it where it is missing.
    """

    cluster: Cluster
    workload: Workload
    current: Placement
    stages: Mapping[str, tuple[str, int]]
    queries: Mapping[str, QueryState]
    in_flight: frozenset[tuple[str, int, int]] = frozenset()
    cooldown: Cooldown = Cooldown()
    bytes_to_load: Mapping[str, FloatArray] = field(default_factory=dict)
    batch_seconds: Mapping[str, float] = field(default_factory=dict)
    batch_period: Mapping[str, float] = field(default_factory=dict)
    prediction: PredictionModel | None = None
    rates: LoadRates = UNMEASURED
    cold: Mapping[str, ColdStage] = field(default_factory=dict)
    gain_shares: Mapping[str, GainShare] = field(default_factory=dict)


@dataclass(frozen=True)
class PlanOptions:
    """Terms of a plan.

    ``decision`` becomes part of each move's id. ``force`` skips the soft laws. ``rollback``: the partitions return to
    where they were. ``moves_left``: moves left of the hour's, None for any number.
    """

    decision: str
    force: bool = False
    rollback: bool = False
    moves_left: int | None = None


@dataclass(frozen=True)
class ReviewedPlan:
    """Moves that may be made of a proposal, and the reasons against the others.

    Attributes
    ----------
    code
        ``ok``, ``nothing-to-do``, ``law`` if no move is permitted, or the law that refused the whole plan.
    moves
        Empty unless the code is ``ok``.
    placement
        Where the permitted moves lead, even if a soft law or the utilization refused them afterwards: the numbers of a
        refusal are shown too.
    batch_time_before, batch_time_after, batch_error
        Query -> seconds of a batch now, predicted seconds with the moves, and the standard error of that prediction.
    corrections
        Query -> correction of its predicted batch, of those that were corrected.
    gate, cost
        Gain against cost, and what the moves cost by ``rates``; None without permitted moves.
    reasons
        Id of a move -> its reason, of the first hundred.
    """

    code: PlanResult | Law
    sentence: str
    moves: tuple[DesiredMove, ...]
    refusals: tuple[Refusal, ...]
    gate: GateResult | None
    cost: MigrationCost | None
    rates: LoadRates
    placement: Placement
    queue_before: QueueReport
    queue_after: QueueReport
    batch_time_before: dict[str, float]
    batch_time_after: dict[str, float]
    batch_error: dict[str, float]
    corrections: dict[str, GainCorrection]
    reasons: dict[str, str] = field(default_factory=dict)
