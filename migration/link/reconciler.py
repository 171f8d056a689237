"""Desired against observed: which partition to steer now, and how far each move has come.

Pure: facts in, journal lines and instructions out; the caller journals every line before it acts on it. No message is
an order to be carried out once: whatever is lost or repeated, the next batch boundary compares afresh.
"""

from __future__ import annotations

from collections.abc import Collection

from rechannel.migration.link.driver_state import DriverState, ReconcilerLimits
from rechannel.migration.link.throttle import MoveThrottle
from rechannel.migration.moves import Move
from rechannel.wire.codes import MoveReason, MoveState
from rechannel.wire.envelope import Envelope, MessageError
from rechannel.wire.measurements import ClosedStore
from rechannel.wire.messages import DesiredMove, DesiredPlacement, MoveTransition

_KEPT_SETTLED = 1000  # settled moves remembered, so that a decision said again is not begun again
_IDLE = 10.0  # seconds without a batch after which a steered move counts as released: nothing waits for it any longer
_LONG_IDLE = 60.0  # seconds without a batch after which one may load any number of partitions


class Reconciler:
    """Holds the accepted placement and its moves."""

    def __init__(self, limits: ReconcilerLimits) -> None:
        self.limits = limits
        self._pace = MoveThrottle(limits.moves_per_batch, limits.bytes_per_batch)
        self.epoch = 0
        self.decision = ""
        self.hold = False  # said by the desired placement
        self.paused = False  # said by the standing orders
        self.landed = 0
        self.missed = 0
        self.abandoned = 0
        self._sequence = -1
        self._expires = 0.0
        self._moves: dict[str, Move] = {}
        self._begun: dict[str, int] = {}  # query -> last batch begun at the last `tick`
        self._busy_at: dict[str, float] = {}  # query -> when it last ran a job, as far as `tick` saw
        self._released: dict[str, set[tuple[int, str]]] = {}

    @property
    def moves(self) -> list[Move]:
        """All moves of the accepted placement and those still awaiting their kill."""
        return list(self._moves.values())

    @property
    def busy(self) -> bool:
        """Whether some move still needs a batch boundary."""
        return any(move.unsettled for move in self._moves.values())

    def accept(self, envelope: Envelope, observed: DriverState, now: float) -> list[MoveTransition]:
        """Take over a desired placement whose signature was checked; the same one again only renews its expiry.

        Raises MessageError for an older epoch (a deposed leader), an expired message, or an unknown or wrong target.
        """
        desired = envelope.body
        if not isinstance(desired, DesiredPlacement):
            raise MessageError(f"expected a desired placement, got {type(desired).__name__}")
        if envelope.epoch < self.epoch:
            raise MessageError(f"desired placement of epoch {envelope.epoch}; epoch {self.epoch} was accepted already")
        if envelope.expires <= now:
            raise MessageError("desired placement is expired; check the clocks of controller and driver")
        if envelope.epoch == self.epoch and envelope.sequence < self._sequence:
            # One epoch has one sender. Its clock may be set back; its sequence never is.
            raise MessageError("desired placement is older than the accepted one")
        units = [(move.query, move.stage, move.partition) for move in desired.moves]
        if len(set(units)) != len(units) or len({move.move for move in desired.moves}) != len(units):
            raise MessageError("desired placement names a move or a partition twice")
        self.epoch, self._sequence, self._expires = envelope.epoch, envelope.sequence, envelope.expires
        self.hold = desired.hold
        if desired.decision == self.decision:
            return []
        lines = self._supersede(desired, now)
        self.decision = desired.decision
        for wanted in desired.moves:
            if wanted.move in self._moves:
                continue
            move = Move(wanted, desired.decision, desired.runs.get(wanted.query, ""), now)
            self._moves[wanted.move] = move
            lines.append(move.begin(now))
            if observed.runs.get(wanted.query) != move.run:
                lines.append(self._abandon(move, MoveReason.RUN_ENDED, now, evidence="the query has another run now"))
        self._trim()
        return lines

    def add(self, decision: str, wanted: list[DesiredMove], run: str, why: str, now: float) -> list[MoveTransition]:
        """Take over moves of the link's own, all of one query; they live beside those of the desired placement."""
        units = {(item.query, item.stage, item.partition) for item in wanted}
        lines = [
            self._abandon(move, MoveReason.SUPERSEDED, now, evidence=f"decision {decision}")
            for move in self._moves.values()
            if move.open and move.unit in units
        ]
        for item in wanted:
            move = Move(item, decision, run, now, until=now + self.limits.deadline_seconds)
            self._moves[item.move] = move
            lines.append(move.begin(now, why))
        self._trim()
        return lines

    @property
    def moving(self) -> set[tuple[str, int, int]]:
        """The (query, stage, partition) of every move that may still land."""
        return {move.unit for move in self._moves.values() if move.open}

    @property
    def unsteered(self) -> list[tuple[str, int, int]]:
        """The (run, stage, partition) of the moves to be prepared or steered next: their snapshots' age counts."""
        steps = self._lowest_steps()
        return [
            (move.run, move.wanted.stage, move.wanted.partition)
            for move in self._moves.values()
            if move.state in (MoveState.PLANNED, MoveState.PREPARED)
            and move.wanted.step <= steps[move.decision] + 1
            and not self._held(move)
        ]

    @property
    def waiting_queries(self) -> set[str]:
        """Queries at whose batch boundaries something is to be done now."""
        return {move.wanted.query for move in self._moves.values() if move.open and not self._held(move)}

    @property
    def waiting(self) -> bool:
        """Whether a batch boundary is looked for now: something is to be steered and nothing holds it."""
        return any(move.unsettled and not self._held(move) for move in self._moves.values())

    def _held(self, move: Move) -> bool:
        return self.paused or (self.hold and not move.until)

    def _expired(self, move: Move, now: float) -> bool:
        return now >= (move.until or self._expires)

    def due(self, query: str, observed: DriverState, now: float) -> tuple[list[MoveTransition], list[Move]]:
        """At a quiet moment of a query: moves given up, and moves to `steer` now, one after the other."""
        lines: list[MoveTransition] = []
        due: list[Move] = []
        steps = self._current_steps(query, now)
        last_batch = observed.batches.get(query, -1)
        for move in list(self._moves.values()):
            wanted = move.wanted
            if (
                wanted.query != query
                or not move.open
                or observed.runs.get(query) != move.run
                or self._expired(move, now)
                or self._held(move)
            ):
                continue
            current = observed.executor_of(query, wanted.stage, wanted.partition)
            if move.state in (MoveState.STEERED, MoveState.RELEASED_IDLE):
                ran_in = observed.ran_in(query, wanted.stage, wanted.partition)
                if current == wanted.target or ran_in <= move.steered_batch:
                    continue  # landed and awaits its commit, or has not run since
                given_up = self._miss(move, ran_in, current, now)
                lines += given_up
                if given_up:
                    continue
                if self._ended(move):
                    lines.append(self._abandon(move, MoveReason.SUPERSEDED, now, batch=last_batch))
                elif wanted.target not in observed.executors or wanted.target in observed.closed:
                    lines.append(self._abandon(move, MoveReason.TARGET_GONE, now, batch=last_batch))
                else:
                    due.append(move)
                continue
            ahead = wanted.step - steps[move.decision]
            if ahead > int(self.limits.overlap):
                continue
            if wanted.target not in observed.executors or wanted.target in observed.closed:
                lines.append(self._abandon(move, MoveReason.TARGET_GONE, now, batch=last_batch))
            elif current == wanted.target:
                lines.append(self._abandon(move, MoveReason.ALREADY_THERE, now, batch=last_batch))
            elif current and (query, wanted.stage) in observed.stores and (ready := self._ready(move, observed, now)):
                if move.state is MoveState.PLANNED:
                    evidence = f"committed on executor {current}, {ready[1]}"
                    lines.append(move.to(MoveState.PREPARED, ready[0], at=now, batch=last_batch, evidence=evidence))
                if not ahead:
                    due.append(move)
            # Else its first batch, its plan's reading or a snapshot is still to come; the deadline bounds the wait.
        return lines, self._pace.allowed(query, due, [move for move in self._loading(query, now) if move not in due])

    def _loading(self, query: str, now: float) -> list[Move]:
        """Moves whose state the query's next batch will load, said and not yet run.

        A query that has been quiet for a minute has as much time to spare: what waits for its batch counts no more.
        """
        quiet = now - self._busy_at.get(query, now)
        states = {MoveState.STEERED} | ({MoveState.RELEASED_IDLE} if quiet < _LONG_IDLE else set())
        return [move for move in self._moves.values() if move.state in states and move.wanted.query == query]

    def _ready(self, move: Move, observed: DriverState, now: float) -> tuple[MoveReason, str] | None:
        """Say why a move's state may be loaded now: there is little to replay, or it was waited for long enough."""
        lag = observed.replay_of(*move.unit)
        if lag < 0:
            return MoveReason.READY, "its snapshot's age is not known"
        if lag <= self.limits.max_replay:
            return MoveReason.READY, f"its snapshot lies {lag} batches behind"
        waited = now - move.current_since
        if move.current_since < 0 or waited < self.limits.snapshot_patience:
            return None
        return MoveReason.SNAPSHOT_LATE, f"its snapshot lies {lag} batches behind after {waited:.0f} s of waiting"

    def steer(self, move: Move, observed: DriverState, now: float) -> list[MoveTransition]:
        """Take the step of a move that is due; publish the lines, then tell Spark."""
        wanted = move.wanted
        last_batch = observed.batches.get(wanted.query, -1)
        current = observed.executor_of(wanted.query, wanted.stage, wanted.partition)
        lines = []
        if move.state in (MoveState.STEERED, MoveState.RELEASED_IDLE):
            evidence = f"it ran on executor {current or '?'}"
            lines.append(move.to(MoveState.STEERED, MoveReason.SAID_AGAIN, at=now, batch=last_batch, evidence=evidence))
        else:
            lines.append(move.to(MoveState.STEERED, MoveReason.SAID, at=now, batch=last_batch))
        self._released.pop(wanted.move, None)  # whatever was closed before is open where it ran last
        move.steered_batch, move.steered_at, move.holder = last_batch, now, current
        return lines

    def _current_steps(self, query: str, now: float) -> dict[str, int]:
        """Return the step that each decision's moves may take, and note since when a query's have their turn."""
        steps = self._lowest_steps()
        for move in self._moves.values():
            turn = move.state in (MoveState.PLANNED, MoveState.PREPARED) and move.wanted.step == steps[move.decision]
            if turn and move.wanted.query == query and move.current_since < 0 and not self._held(move):
                move.current_since = now
        return steps

    def _lowest_steps(self) -> dict[str, int]:
        """Return the lowest step of all unsettled moves of each decision; without overlap, of unkilled ones too.

        A move of a query that runs no batch holds nobody back: it counts as released after some seconds (`tick`).
        """
        steps: dict[str, int] = {}
        for move in self._moves.values():
            if move.unsettled or (move.state is MoveState.DRAINED and not self.limits.overlap):
                steps[move.decision] = min(steps.get(move.decision, move.wanted.step), move.wanted.step)
        return steps

    def asked_for(self, query: str, stage: int, partition: int, executor: str) -> bool:
        """Whether a partition was steered to an executor; one superseded after its steer may land all the same."""
        return any(
            move.steered_at > 0
            and move.state is not MoveState.KILLED
            and move.wanted.target == executor
            and move.unit == (query, stage, partition)
            for move in self._moves.values()
        )

    def steered_now(self, query: str, observed: DriverState, now: float) -> list[Move]:
        """Return the moves of a query that Spark has been told of, that wait for a batch, and that nothing holds."""
        return [
            move
            for move in self._moves.values()
            if move.state is MoveState.STEERED
            and move.wanted.query == query
            and observed.ran_in(*move.unit) <= move.steered_batch
            and not (self._held(move) or self._expired(move, now) or self._ended(move))
        ]

    def _ended(self, move: Move) -> bool:
        """Whether its decision is no longer the one that is wanted: what was said stands, nothing is said again."""
        return not move.until and move.decision != self.decision

    def batch_done(
        self, query: str, batch: int, observed: DriverState, now: float, seconds: float = 0.0
    ) -> list[MoveTransition]:
        """A batch of ``seconds`` (0: unknown) is committed: moves whose partition ran on its target are drained."""
        lines = []
        landed = self.landed
        self._busy_at[query] = now
        for move in self._moves.values():
            wanted = move.wanted
            if wanted.query != query or move.state not in (MoveState.STEERED, MoveState.RELEASED_IDLE):
                continue
            current = observed.executor_of(query, wanted.stage, wanted.partition)
            if current == wanted.target and batch >= move.steered_batch:
                evidence = f"batch {batch} committed, its task ran on executor {current}"
                lines.append(move.to(MoveState.DRAINED, MoveReason.LANDED, at=now, batch=batch, evidence=evidence))
                move.drained_at = now
                self.landed += 1
                lines += self._killed_if_released(move, observed, now)
            elif (
                move.state is MoveState.RELEASED_IDLE
                and current != wanted.target
                and batch > move.steered_batch
                and self._expired(move, now)  # else the next boundary says it again
            ):
                evidence = f"batch {batch} ran it on executor {current or '?'}"
                lines.append(self._abandon(move, MoveReason.DEADLINE, now, batch=batch, evidence=evidence))
        if seconds > 0:
            self._pace.batch(query, seconds, self.landed - landed)
        if self.landed > landed:
            self._restart_clocks(now, query)
        return lines

    def _restart_clocks(self, now: float, query: str = "") -> None:
        """What waits because others land first, or because all is on hold, has its whole time from then on."""
        for move in self._moves.values():
            waits = move.state in (MoveState.PLANNED, MoveState.PREPARED) and move.current_since >= 0
            if waits and (move.wanted.query == query if query else self._held(move)):
                move.current_since = now

    def closed(
        self, store: ClosedStore, stores: Collection[tuple[int, str]], stage: int, query: str, now: float
    ) -> list[MoveTransition]:
        """An executor says it let go of a store; a move is killed when that holds for all stores of its partition.

        ``stores``: (operator, store name) of every store the stage's partitions have.
        """
        lines = []
        for move in self._moves.values():
            wanted = move.wanted
            if (wanted.query, wanted.stage, wanted.partition, move.holder) != (
                query,
                stage,
                store.partition,
                store.executor,
            ) or move.run != store.run:
                continue
            if move.state not in (MoveState.STEERED, MoveState.RELEASED_IDLE, MoveState.DRAINED):
                continue
            released = self._released.setdefault(wanted.move, set())
            released.add((store.operator, store.store))
            if move.state is MoveState.DRAINED and released >= set(stores):
                lines.append(self._kill(move, MoveReason.CLOSED, now, f"executor {move.holder}: {store.evidence}"))
            elif released >= set(stores):
                self._released[wanted.move].add((-1, store.evidence))  # complete before the drain was told
        return lines

    def executor_gone(self, executor: str, now: float) -> list[MoveTransition]:
        """An executor is lost: moves towards it are given up, copies on it are dead."""
        lines = []
        for move in self._moves.values():
            if move.open and move.wanted.target == executor:
                lines.append(self._abandon(move, MoveReason.TARGET_GONE, now))
            elif move.state is MoveState.DRAINED and move.holder == executor:
                lines.append(self._kill(move, MoveReason.EXECUTOR_GONE, now, f"executor {executor} is gone"))
        return lines

    def run_ended(self, query: str, run: str, now: float) -> list[MoveTransition]:
        """A run of a query is over: Spark unloads all its stores, nothing of it can be moved any more."""
        lines = []
        self._pace.forget(query)
        for move in self._moves.values():
            if move.wanted.query != query or move.run != run:
                continue
            if move.open:
                lines.append(self._abandon(move, MoveReason.RUN_ENDED, now))
            elif move.state is MoveState.DRAINED:
                lines.append(self._kill(move, MoveReason.RUN_ENDED, now, "the query's run is over"))
        return lines

    def tick(self, observed: DriverState, now: float) -> list[MoveTransition]:
        """Let time pass: deadlines, expiry, presumed kills."""
        lines: list[MoveTransition] = []
        self._restart_clocks(now)
        for query in {move.wanted.query for move in self._moves.values() if move.unsettled and not self._held(move)}:
            self._current_steps(query, now)
        for query in observed.runs:
            begun = observed.batches.get(query, -1)
            if query not in observed.quiet or begun != self._begun.get(query, begun):
                self._busy_at[query] = now
            self._begun[query] = begun
        self._busy_at = {query: at for query, at in self._busy_at.items() if query in observed.runs}
        self._begun = {query: batch for query, batch in self._begun.items() if query in observed.runs}
        for move in self._moves.values():
            age = now - move.current_since if move.current_since >= 0 else 0.0
            if move.state in (MoveState.PLANNED, MoveState.PREPARED):
                if self._expired(move, now):
                    evidence = "" if move.until else "no controller renews it"
                    lines.append(self._abandon(move, MoveReason.EXPIRED, now, evidence=evidence))
                elif not self._held(move) and age >= self.limits.deadline_seconds:
                    known = (move.wanted.query, move.wanted.stage) in observed.stores
                    reason = MoveReason.DEADLINE if known else MoveReason.STORES_UNKNOWN
                    lines.append(self._abandon(move, reason, now))
            elif move.state is MoveState.STEERED:
                query = move.wanted.query
                # A query that stands still for long: nothing is to come, and the next step need not wait for it.
                still = now - self._busy_at.setdefault(query, now) >= _IDLE
                idle = still and observed.batches.get(query, -1) <= move.steered_batch
                late = now - move.steered_at >= self.limits.deadline_seconds
                if late and move.misses:
                    lines.append(self._abandon(move, MoveReason.DEADLINE, now))
                elif late or idle:
                    lines.append(
                        move.to(MoveState.RELEASED_IDLE, MoveReason.NO_BATCH, at=now, batch=move.steered_batch)
                    )
            elif move.state is MoveState.DRAINED and now - move.drained_at >= self.limits.presume:
                evidence = f"two maintenance intervals ({self.limits.presume:g} s) passed"
                lines.append(self._kill(move, MoveReason.PRESUMED, now, evidence))
        return lines

    def _miss(self, move: Move, batch: int, current: str, now: float) -> list[MoveTransition]:
        if batch > move.missed_in:  # else it is told again because it could not be journaled, not because it missed
            self.missed += 1
            move.misses += 1
            move.missed_in = batch
        if move.misses < self.limits.deadline_batches:
            return []
        evidence = f"ran on executor {current or '?'} in {move.misses} batches"
        return [self._abandon(move, MoveReason.DEADLINE, now, batch=batch, evidence=evidence)]

    def _supersede(self, desired: DesiredPlacement, now: float) -> list[MoveTransition]:
        named = {move.move for move in desired.moves}
        units = {(move.query, move.stage, move.partition) for move in desired.moves}
        lines = []
        for move in self._moves.values():
            wanted = move.wanted
            ours = bool(move.until) and move.unit not in units  # of the link itself, and not touched by the decision
            waits = move.state in (MoveState.PLANNED, MoveState.PREPARED) and not ours
            replaced = move.state in (MoveState.STEERED, MoveState.RELEASED_IDLE) and move.unit in units
            if wanted.move not in named and (waits or replaced):
                lines.append(self._abandon(move, MoveReason.SUPERSEDED, now, evidence=f"decision {desired.decision}"))
        return lines

    def _abandon(
        self, move: Move, reason: MoveReason, now: float, *, batch: int = -1, evidence: str = ""
    ) -> MoveTransition:
        self.abandoned += 1
        self._released.pop(move.wanted.move, None)
        return move.to(MoveState.ABANDONED, reason, at=now, batch=batch, evidence=evidence)

    def _kill(self, move: Move, reason: MoveReason, now: float, evidence: str) -> MoveTransition:
        self._released.pop(move.wanted.move, None)
        return move.to(MoveState.KILLED, reason, at=now, evidence=evidence)

    def _killed_if_released(self, move: Move, observed: DriverState, now: float) -> list[MoveTransition]:
        # Executors often close the old copy while the batch still runs, before its commit makes the move drained.
        early = [text for number, text in self._released.get(move.wanted.move, set()) if number == -1]
        if early:
            return [self._kill(move, MoveReason.CLOSED, now, f"executor {move.holder}: {early[0]}")]
        if move.holder not in observed.executors:
            return [self._kill(move, MoveReason.EXECUTOR_GONE, now, f"executor {move.holder} is gone")]
        return []

    def _trim(self) -> None:
        done = [name for name, move in self._moves.items() if move.state in (MoveState.KILLED, MoveState.ABANDONED)]
        for name in done[:-_KEPT_SETTLED]:
            del self._moves[name]
