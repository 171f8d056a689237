"""Inputs and result of planning a migration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rechannel.migration.plan.cost import UNMEASURED, LoadRates, PlanCost
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
from rechannel.wire.messages import DesiredMove, GainCorrection, QueryState, Refusal, Unit


@dataclass(frozen=True)
class Cooldown:
    """Cool-down after a migration, in seconds."""

    left: float = 0.0
    total: float = 0.0
    reason: str = ""  # where it is longer than usual


@dataclass(frozen=True)
class PlanInputs:
    """State of an application that a plan is made for; keys are those of placeable stages."""

    cluster: Cluster
    workload: Workload
    current: Placement
    stage_ids: Mapping[str, tuple[str, int]]  # key -> (query, number of the stage in the link's report)
    queries: Mapping[str, QueryState]
    prediction: PredictionModel  # that batches are predicted from
    in_flight: frozenset[Unit] = frozenset()  # partitions of moves that await a batch
    cooldown: Cooldown = Cooldown()
    # key -> bytes to load of each partition; the stage's state where it is missing
    bytes_to_load: Mapping[str, FloatArray] = field(default_factory=dict)
    measured_batch_seconds: Mapping[str, float] = field(default_factory=dict)  # query -> mean of its measured batches
    batch_period: Mapping[str, float] = field(default_factory=dict)  # query -> seconds from one start to the next
    rates: LoadRates = UNMEASURED
    cold: Mapping[str, ColdStage] = field(default_factory=dict)  # key -> first tasks, where some executor ran few
    gain_shares: Mapping[str, GainShare] = field(default_factory=dict)  # query -> expected of a gain; missing: all


@dataclass(frozen=True)
class PlanOptions:
    """Terms of a plan."""

    decision: str  # becomes part of each move's id
    force: bool = False  # skips the soft laws
    rollback: bool = False  # the partitions return to where they were
    moves_left: int | None = None  # of the hour's, None for any number
    mending: str = ""  # gain of the moves beside those off executors that are not available, which were judged before


@dataclass(frozen=True)
class ReviewedPlan:
    """Moves that may be made of a proposal, and the reasons against the others."""

    code: PlanResult | Law  # the law that refused the whole plan, or `law` if no move is permitted
    sentence: str
    moves: tuple[DesiredMove, ...]  # empty unless the code is `ok`
    refusals: tuple[Refusal, ...]
    gate: GateResult | None  # None without permitted moves
    cost: PlanCost | None  # by `rates`; None without permitted moves
    rates: LoadRates
    # Where the permitted moves lead, even if a soft law or the utilization refused them afterwards: the numbers of a
    # refusal are shown too.
    placement: Placement
    queue_before: QueueReport
    queue_after: QueueReport
    batch_time_before: dict[str, float]  # query -> seconds of a batch now
    batch_time_after: dict[str, float]  # query -> predicted seconds with the moves
    batch_error: dict[str, float]  # query -> standard error of that prediction
    batch_p95: dict[str, tuple[float, float]]  # query -> predicted 95th percentile, now and with the moves
    corrections: dict[str, GainCorrection]  # query -> correction of its predicted batch, if it was corrected
    reasons: dict[str, str] = field(default_factory=dict)  # id of a move -> its reason, of the first hundred
