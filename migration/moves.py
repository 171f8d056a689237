"""The life of a move: one partition of one stateful stage on its way from one executor to another.

::

    planned ──> prepared ──> steered ──> drained ──> killed
       │            │         │ ↺ ^ │       ^
       │            │         │   │ └──> released_idle ──> (a batch came after all) drained
       v            v         v   └────────┤   (… and missed: said again)
    abandoned <───────────────┘ <──────────┘

* *planned*: accepted from the controller's desired placement, or the link's own (a new query, a lost executor).
* *prepared*: the partition is committed in the checkpoint, its stores are known, its target lives, and its newest
  snapshot lies few enough batches behind (``migration.max_replay``), which bounds what the target must replay; or that
  was waited for long enough. The next step is prepared while the current one is steered.
* *steered*: Spark was told the new executor, between two batches; told again (↺) after each batch that missed it.
* *drained*: a batch that ran the partition on its target is committed; the old copy has nothing left to give.
* *killed*: the old executor let go of its copy, by evidence or presumed after two maintenance intervals.
* *released_idle*: steered, and no batch runs; the state is durable, and the next batch goes to the target.
* *abandoned*: given up, with a reason. Harmless: the partition stays where it is.
"""

from __future__ import annotations

from dataclasses import dataclass

from rechannel.wire.codes import MoveReason, MoveState
from rechannel.wire.messages import DesiredMove, MoveTransition, MoveView

TRANSITIONS: dict[MoveState, frozenset[MoveState]] = {
    MoveState.PLANNED: frozenset({MoveState.PREPARED, MoveState.ABANDONED}),
    MoveState.PREPARED: frozenset({MoveState.STEERED, MoveState.ABANDONED}),
    MoveState.STEERED: frozenset({MoveState.STEERED, MoveState.DRAINED, MoveState.RELEASED_IDLE, MoveState.ABANDONED}),
    MoveState.RELEASED_IDLE: frozenset({MoveState.STEERED, MoveState.DRAINED, MoveState.ABANDONED}),
    MoveState.DRAINED: frozenset({MoveState.KILLED}),
    MoveState.KILLED: frozenset(),
    MoveState.ABANDONED: frozenset(),
}
UNSETTLED = frozenset({MoveState.PLANNED, MoveState.PREPARED, MoveState.STEERED})


class IllegalTransitionError(RuntimeError):
    """A step the state machine does not have: a defect of ours, never of the user's."""


@dataclass
class Move:
    """A move and its story so far.

    ``missed_in``: the last batch that was counted as a miss.
    ``holder`` is the executor that really held the partition when it was steered (it may have drifted off the planned
    source); ``steered_batch`` is the last batch begun before it was steered. ``until``: when a move of the link's own
    expires; those of a desired placement expire with it (0).
    """

    wanted: DesiredMove
    decision: str
    run: str
    accepted_at: float
    state: MoveState = MoveState.PLANNED
    reason: MoveReason = MoveReason.ACCEPTED
    misses: int = 0
    holder: str = ""
    steered_batch: int = -1
    steered_at: float = 0.0
    current_since: float = -1.0  # when its step became the current one; -1 before
    drained_at: float = 0.0
    until: float = 0.0
    missed_in: int = -1

    @property
    def unit(self) -> tuple[str, int, int]:
        """What is moved: (query, stage, partition)."""
        return self.wanted.query, self.wanted.stage, self.wanted.partition

    @property
    def unsettled(self) -> bool:
        """Still on its way: later steps wait for it."""
        return self.state in UNSETTLED

    @property
    def open(self) -> bool:
        """May still land: on its way, or released while its query is idle."""
        return self.state in UNSETTLED or self.state is MoveState.RELEASED_IDLE

    def to(
        self, state: MoveState, reason: MoveReason, *, at: float, batch: int = -1, evidence: str = ""
    ) -> MoveTransition:
        """Take a step and return its line for the journal; IllegalTransitionError when the table has no such step."""
        if state not in TRANSITIONS[self.state]:
            raise IllegalTransitionError(f"move {self.wanted.move}: {self.state} -> {state} ({reason})")
        before, self.state, self.reason = self.state, state, reason
        return self._line(before, at=at, batch=batch, evidence=evidence)

    def begin(self, at: float, evidence: str = "") -> MoveTransition:
        """Return the journal's first line of this move."""
        return self._line(None, at=at, batch=-1, evidence=evidence)

    def view(self) -> MoveView:
        """Return what a report shows of the move."""
        wanted = self.wanted
        return MoveView(
            move=wanted.move,
            query=wanted.query,
            stage=wanted.stage,
            partition=wanted.partition,
            source=wanted.source,
            target=wanted.target,
            step=wanted.step,
            state=self.state,
            reason=self.reason,
            missed_batches=self.misses,
        )

    def _line(self, before: MoveState | None, *, at: float, batch: int, evidence: str) -> MoveTransition:
        wanted = self.wanted
        return MoveTransition(
            move=wanted.move,
            decision=self.decision,
            query=wanted.query,
            stage=wanted.stage,
            partition=wanted.partition,
            source=wanted.source,
            target=wanted.target,
            step=wanted.step,
            before=before or "",
            after=self.state,
            reason=self.reason,
            evidence=evidence,
            batch=batch,
            at=at,
        )
