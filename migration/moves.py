"""State machine of a move: a partition of a stateful stage on its way to an executor.

A move is *drained* when the first batch on its target is committed. (An operator drains a *node*: another thing.) A
change of state is a *transition*; a *step* is a group of moves that are steered together.

::

    planned ──> prepared ──> steered ──> drained ──> killed
       │            │         │ ↺ ^ │       ^
       │            │         │   │ └──> released_idle ──> (a batch came after all) drained
       v            v         v   └────────┤   (… and missed: steered again)
    abandoned <───────────────┘ <──────────┘

* *planned*: accepted from the controller's desired placement, or made by the link (a new query, a lost executor).
* *prepared*: the partition is committed in the checkpoint, its stores are known, its target is alive, and its newest
  snapshot lies few enough batches behind (100), which bounds what the target must replay; or the
  link has waited for that snapshot long enough. The next step is prepared while the current one is steered.
* *steered*: Spark was told the new executor, between two batches; told again (↺) after each batch that missed it.
* *drained*: a batch that ran the partition on its target is committed; the old copy has nothing left to give.
* *killed*: the copy on the old executor is closed, by evidence or presumed after two maintenance intervals.
* *released_idle*: steered, and no batch runs; the state is durable, and the next batch goes to the target.
* *abandoned*: given up, with a reason. Harmless: the partition stays where it is.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rechannel.wire.codes import MoveReason, MoveState
from rechannel.wire.messages import DesiredMove, MoveTransition, MoveView, Unit

TRANSITIONS: dict[MoveState, frozenset[MoveState]] = {
    MoveState.PLANNED: frozenset({MoveState.PREPARED, MoveState.ABANDONED}),
    MoveState.PREPARED: frozenset({MoveState.STEERED, MoveState.ABANDONED}),
    MoveState.STEERED: frozenset({MoveState.STEERED, MoveState.DRAINED, MoveState.RELEASED_IDLE, MoveState.ABANDONED}),
    MoveState.RELEASED_IDLE: frozenset({MoveState.STEERED, MoveState.DRAINED, MoveState.ABANDONED}),
    MoveState.DRAINED: frozenset({MoveState.KILLED}),
    MoveState.KILLED: frozenset(),
    MoveState.ABANDONED: frozenset(),
}
BYTES_PER_BATCH = 4e9  # of state that one batch takes over at most, so that it does not load for minutes
AWAITING_BATCH = frozenset({MoveState.PLANNED, MoveState.PREPARED, MoveState.STEERED})  # later steps wait for these
FINAL = frozenset({MoveState.KILLED, MoveState.ABANDONED})  # states that no transition leaves
_MAX_FINAL = 1000  # final moves that a link remembers; beyond: the oldest would begin again if ordered again


class IllegalTransitionError(RuntimeError):
    """Transition that the state machine does not have: a defect, never of the user."""


class RunUnit(NamedTuple):
    """A partition of a stateful stage in one run of a query."""

    run: str
    stage: int
    partition: int


@dataclass(frozen=True)
class OwnMoves:
    """Moves of the link's own in one run of a query, and why."""

    decision: str
    run: str
    why: str
    moves: Sequence[DesiredMove]


@dataclass
class TrackedMove:
    """A move with its state and its history."""

    desired: DesiredMove
    decision: str
    run: str
    state: MoveState = MoveState.PLANNED
    reason: MoveReason = MoveReason.ACCEPTED
    misses: int = 0  # batches that ran the partition elsewhere after it was steered
    last_miss_batch: int = -1  # the last batch that was counted as a miss
    holder: str = ""  # executor that had the partition when it was steered; it may have drifted off the planned source
    steered_batch: int = -1  # the last batch begun before it was steered
    steered_at: float = 0.0
    current_since: float = -1.0  # time at which its step became the current one; -1 before
    drained_at: float = 0.0
    expires_at: float = 0.0  # of a move of the link's own; others expire with their placement (0)
    closed_stores: set[tuple[int, str]] = field(default_factory=set)  # (operator, store) that its holder closed
    early_evidence: str | None = None  # that all of them are closed, if that came before it was drained

    @property
    def name(self) -> str:
        """The move's name in the journal."""
        return self.desired.move

    @property
    def query(self) -> str:
        """The query of the partition."""
        return self.desired.query

    @property
    def target(self) -> str:
        """The executor that is to take the partition."""
        return self.desired.target

    @property
    def unit(self) -> Unit:
        """The moved partition."""
        return self.desired.unit

    @property
    def run_unit(self) -> RunUnit:
        """The moved partition in its run."""
        return RunUnit(self.run, self.desired.stage, self.desired.partition)

    @property
    def unsteered(self) -> bool:
        """Whether it is not steered yet."""
        return self.state in (MoveState.PLANNED, MoveState.PREPARED)

    @property
    def awaits_landing(self) -> bool:
        """Whether it is steered and no batch has brought it to its target yet."""
        return self.state in (MoveState.STEERED, MoveState.RELEASED_IDLE)

    @property
    def awaits_batch(self) -> bool:
        """Whether it still awaits a batch: later steps wait for it."""
        return self.state in AWAITING_BATCH

    @property
    def open(self) -> bool:
        """Whether it may still land: on its way, or released while its query is idle."""
        return self.awaits_batch or self.state is MoveState.RELEASED_IDLE

    def transition(
        self, state: MoveState, reason: MoveReason, *, at: float, batch: int = -1, evidence: str = ""
    ) -> MoveTransition:
        """Change the state and return the transition, for the journal.

        Raises IllegalTransitionError for one that the table does not have. ``batch``: -1 for none; ``evidence``: what
        shows people that it is right.
        """
        if state not in TRANSITIONS[self.state]:
            raise IllegalTransitionError(f"move {self.name}: {self.state} -> {state} ({reason})")
        before, self.state, self.reason = self.state, state, reason
        if state is MoveState.STEERED or state in FINAL:
            # What was closed before a steer is open again where the partition ran last.
            self.closed_stores.clear()
            self.early_evidence = None
        return self._describe(before, at=at, batch=batch, evidence=evidence)

    def first_transition(self, at: float, evidence: str = "") -> MoveTransition:
        """Return the transition with which this move begins."""
        return self._describe(None, at=at, batch=-1, evidence=evidence)

    def view(self) -> MoveView:
        """Return what a report shows of the move."""
        fields = self.desired.shared_fields()
        return MoveView(**fields, state=self.state, reason=self.reason, missed_batches=self.misses)

    def _describe(self, before: MoveState | None, *, at: float, batch: int, evidence: str) -> MoveTransition:
        return MoveTransition(
            **self.desired.shared_fields(),
            decision=self.decision,
            before=before or "",
            after=self.state,
            reason=self.reason,
            evidence=evidence,
            batch=batch,
            at=at,
        )


def units_steered_away(moves: Iterable[TrackedMove | MoveView], executors: Container[str]) -> set[Unit]:
    """Return the partitions steered off while their query is idle: their state is durable."""
    return {move.unit for move in moves if move.state == MoveState.RELEASED_IDLE and move.target in executors}


class MoveSet:
    """Moves by name: live ones, and final ones that are remembered.

    It iterates over the live ones alone; they may become final meanwhile.
    """

    def __init__(self) -> None:
        self._live: dict[str, TrackedMove] = {}
        self._final: dict[str, TrackedMove] = {}

    def __iter__(self) -> Iterator[TrackedMove]:
        return iter(list(self._live.values()))

    def __contains__(self, name: str) -> bool:
        return name in self._live or name in self._final

    def add(self, move: TrackedMove) -> None:
        """Add a move that begins."""
        self._live[move.name] = move

    def set_final(self, move: TrackedMove) -> None:
        """Set apart a move whose state is final."""
        self._final[move.name] = self._live.pop(move.name)

    def final(self, names: Collection[str]) -> list[TrackedMove]:
        """Return the final moves among these names."""
        return [self._final[name] for name in names if name in self._final]

    def steered_to(self, unit: Unit, executor: str) -> bool:
        """Whether a move that is not killed steered a partition to an executor."""
        return any(
            move.steered_at > 0 and move.state is not MoveState.KILLED and move.target == executor and move.unit == unit
            for moves in (self._live, self._final)
            for move in moves.values()
        )

    def forget_final(self, decision: str) -> None:
        """Forget the oldest final moves beyond a limit, but none of this decision."""
        others = [name for name, move in self._final.items() if move.decision != decision]
        for name in others[:-_MAX_FINAL]:
            del self._final[name]
