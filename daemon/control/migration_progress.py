"""A migration from the leader's side: what was ordered, what the link says of it, and when it is over.

Pure, the time is an argument. The link owns the moves' states; this only reads them. A migration is over when every
move is settled (drained, killed, released while idle, or abandoned), or when its link never took it up, or is gone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rechannel.migration.moves import UNSETTLED
from rechannel.wire.codes import MoveState
from rechannel.wire.messages import DesiredPlacement, LinkReport
from rechannel.wire.printable import count

_STOP = "-stop"  # behind the id of the decision whose place it takes
_LANDED = frozenset({MoveState.DRAINED, MoveState.KILLED})


@dataclass(frozen=True)
class MigrationStatus:
    """A copy of a running migration for display.

    ``begun``: when this controller began to follow it. ``moves``: number ordered, of which ``landed`` and ``abandoned``
    are over.
    """

    application: str
    decision: str
    begun: float
    moves: int
    landed: int
    abandoned: int
    sentence: str


@dataclass
class RunningMigration:
    """One desired placement of one application.

    ``patience``: seconds without a sign of the link's obedience; ``epoch``: under which it was last published.
    """

    application: str
    desired: DesiredPlacement
    begun: float
    patience: float
    epoch: int = 0
    taken_up: bool = False
    last_sign: float = 0.0
    states: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.last_sign = max(self.last_sign, self.begun)

    def stopped(self, now: float) -> RunningMigration:
        """Return what takes its place so that it begins no further move.

        Nothing is wanted any more, so the link gives up what it has not said to Spark yet; what it has lands with the
        batch that runs next.
        """
        desired = DesiredPlacement(decision=f"{self.decision}{_STOP}", runs=self.desired.runs, moves=[])
        return RunningMigration(self.application, desired, now, self.patience)

    def update(self, report: LinkReport | None, now: float) -> None:
        """Take in what the link says of the moves. A settled move stays settled, though the link forgets it."""
        if report is None or report.decision != self.desired.decision:
            return
        self.taken_up = True
        self.last_sign = now
        wanted = {move.move for move in self.desired.moves}
        told = {view.move: view.state for view in report.moves if view.move in wanted}
        for move, state in told.items():
            if move not in self.settled or state not in UNSETTLED:
                self.states[move] = state

    @property
    def decision(self) -> str:
        """The id of the decision that is carried out, or ends."""
        return self.desired.decision.removesuffix(_STOP)

    @property
    def ending(self) -> bool:
        """Whether nothing is wanted any more."""
        return self.desired.decision.endswith(_STOP)

    @property
    def settled(self) -> set[str]:
        """Ids of the moves that need no further batch."""
        return {move for move, state in self.states.items() if state not in UNSETTLED}

    @property
    def landed(self) -> int:
        """Number of moves that are drained or killed."""
        return sum(state in _LANDED for state in self.states.values())

    @property
    def abandoned(self) -> int:
        """Number of moves given up."""
        return sum(state == MoveState.ABANDONED for state in self.states.values())

    def status(self) -> MigrationStatus:
        """Return a copy for display."""
        return MigrationStatus(
            application=self.application,
            decision=self.decision,
            begun=self.begun,
            moves=len(self.desired.moves),
            landed=self.landed,
            abandoned=self.abandoned,
            sentence=self.sentence(),
        )

    def over(self, now: float) -> str:
        """Return why the migration is over, "" while it is not."""
        if len(self.settled) == len(self.desired.moves) and (self.taken_up or self.desired.moves):
            return "settled"
        if not self.taken_up and now - self.begun > self.patience:
            return "not-taken-up"  # even if Redis was away meanwhile: its figures are old by now
        return "lost" if now - self.last_sign > self.patience else ""

    def sentence(self, why: str = "") -> str:
        """Say in plain words how far it is."""
        total = len(self.desired.moves)
        done = f"{self.landed} of {count(total, 'move')} landed"
        if self.abandoned:
            done += f", {self.abandoned} abandoned"
        name = f"migration {self.decision}"
        if self.ending:
            return f"{name} {'is ended' if why else 'is ending: no further move is begun, what Spark was told lands'}"
        if why == "settled":
            return f"{name} is over: {done}"
        if why == "not-taken-up":
            return (
                f"{name} is given up: the link of {self.application} did not take it up within {self.patience:g} s "
                "(does it trust this controller's public key? see its rejected_messages)"
            )
        if why == "lost":
            return f"{name} is given up: no word from the link for {self.patience:g} s, {done}"
        return f"{name} is {'on hold' if self.desired.hold else 'running'}: {done}"


def in_flight(report: LinkReport) -> frozenset[tuple[str, int, int]]:
    """Return the (query, stage, partition) of every move the link still works on."""
    return frozenset((view.query, view.stage, view.partition) for view in report.moves if view.state in UNSETTLED)
