"""Sample messages: each function returns a valid message, with the given fields changed."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from rechannel.wire.messages import (
    ControllerState,
    Decision,
    DesiredMove,
    MigrationCost,
    MigrationOutcome,
    MoveTransition,
    MoveView,
    ScheduledPlan,
)
from unit.daemon.fake_store import NOW
from unit.daemon.fakes import APP, QUERY

_PARTITION: dict[str, Any] = {"query": QUERY, "stage": 0, "partition": 0, "source": "0", "target": "1", "step": 0}
_MOVE = DesiredMove(move="d.0", **_PARTITION)
_MOVE_VIEW = MoveView(move="d.0", state="steered", **_PARTITION)
_TRANSITION = MoveTransition(
    move="d.0",
    decision="d",
    **_PARTITION,
    before="planned",
    after="prepared",
    reason="ready",
    evidence="",
    batch=9,
    at=NOW,
)
_DECISION = Decision(
    decision="d",
    at=NOW,
    trigger="timeout",
    user="",
    policy="adaptive",
    result="applied",
    reason="ok",
    sentence="",
)
_BATCHES: dict[str, Any] = {"batch_before": {QUERY: 5.0}, "peak": {QUERY: 6.0}, "batch_after": {QUERY: 4.0}}
_MIGRATION_COST = MigrationCost(
    steps=1, bytes=1e6, pause=0.5, seconds=1.0, total=10.0, **_BATCHES, overhead=0.1, load_rate=1e8
)
_OUTCOME = MigrationOutcome(
    decision="d",
    at=NOW,
    landed=1,
    abandoned=0,
    total=9.0,
    **_BATCHES,
    loads=[],
    verdict="confirmed",
    sentence="1 of 1",
)
_STATE = ControllerState(
    leader="c/1", since=NOW, epoch=1, paused=False, mode="observe", next_decision=NOW + 60, last_sentence=""
)
_PLAN = ScheduledPlan(
    scheduled_plan="plan-1",
    at=NOW,
    application=APP,
    begin=NOW + 60,
    end=NOW + 90,
    window="02:00-03:00",
    plan="{}",
    moves=3,
)


def desired_move(**changes: Any) -> DesiredMove:
    """Partition 0 of a stage is to go from executor 0 to 1."""
    return replace(_MOVE, **changes)


def move_view(**changes: Any) -> MoveView:
    """The same move in a report of its link, steered."""
    return replace(_MOVE_VIEW, **changes)


def transition(**changes: Any) -> MoveTransition:
    """The same move in the journal, planned before and prepared now."""
    return replace(_TRANSITION, **changes)


def decision(**changes: Any) -> Decision:
    """An applied decision by timeout, without moves and figures."""
    return replace(_DECISION, **changes)


def migration_cost(**changes: Any) -> MigrationCost:
    """The cost of one step with 1 MB of state."""
    return replace(_MIGRATION_COST, **changes)


def outcome(**changes: Any) -> MigrationOutcome:
    """One move landed, and batches became shorter."""
    return replace(_OUTCOME, **changes)


def controller_state(**changes: Any) -> ControllerState:
    """A leader in mode observe that decides in a minute."""
    return replace(_STATE, **changes)


def scheduled_plan(**changes: Any) -> ScheduledPlan:
    """A saved plan of three moves that waits for a minute."""
    return replace(_PLAN, **changes)
