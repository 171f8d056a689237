"""Reconciler: the moves to steer, by the desired placement and the driver's state.

Pure: facts in, transitions and instructions out; the caller journals every transition before it acts on it. No message
is an order to be carried out once: whatever is lost or repeated, the next batch boundary compares afresh.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from rechannel.migration.link.driver_state import UNKNOWN, DriverState, ReconcilerLimits
from rechannel.migration.link.throttle import MoveThrottle
from rechannel.migration.moves import MoveSet, OwnMoves, RunUnit, TrackedMove
from rechannel.wire.codes import MoveReason, MoveState
from rechannel.wire.envelope import Envelope, MessageError
from rechannel.wire.measurements import ClosedStore
from rechannel.wire.messages import DesiredPlacement, MoveTransition, Unit

_IDLE = 10.0  # seconds without a batch after which a steered move counts as released: nothing waits for it any longer
_CLOCK_DIFFERENCE = 5.0  # seconds between the clocks of driver and agent; more is a failure to `rechannel doctor`
_LONG_IDLE = 60.0  # seconds without a batch after which one may load any number of partitions

Transitions = list[MoveTransition]
Checked = tuple[Transitions, bool]  # of a move, and whether it is to be steered


class Reconciler:
    """The accepted placement and its moves. ``paused`` follows the standing orders."""

    def __init__(self, limits: ReconcilerLimits) -> None:
        self.limits = limits
        self._throttle = MoveThrottle(limits.moves_per_batch, limits.bytes_per_batch)
        self.epoch, self.leader = 0, ""  # of the accepted placement
        self.decision = ""
        self.hold = False  # by the desired placement
        self.paused = False  # by the standing orders
        self.landed = self.missed = self.abandoned = 0
        self._sequence = -1
        self._expires = 0.0
        self._moves = MoveSet()
        self._named: Collection[str] = ()  # moves in the accepted placement
        self._last_batches: dict[str, int] = {}  # query -> last batch begun at the last `tick`
        self._busy_at: dict[str, float] = {}  # query -> time at which it last ran a job, as far as `tick` saw

    @property
    def moves(self) -> list[TrackedMove]:
        """All moves that are not final."""
        return list(self._moves)

    @property
    def reported_moves(self) -> list[TrackedMove]:
        """Moves not final, and final ones that the placement names: a controller counts them."""
        return [*self._moves, *self._moves.final(self._named)]

    @property
    def moving(self) -> set[Unit]:
        """The partition of every move that may still land."""
        return {move.unit for move in self._moves if move.open}

    @property
    def units_up_next(self) -> list[RunUnit]:
        """The partitions to be prepared or steered next."""
        steps = self._lowest_steps()
        return [
            move.run_unit
            for move in self._moves
            if move.unsteered and move.desired.step <= steps[move.decision] + 1 and not self._is_held(move)
        ]

    @property
    def waiting_queries(self) -> set[str]:
        """Queries at whose batch boundaries something is to be done now."""
        return {move.query for move in self._moves if move.open and not self._is_held(move)}

    @property
    def waiting(self) -> bool:
        """Whether a batch boundary is awaited: something is to be steered and nothing holds it."""
        return any(move.awaits_batch and not self._is_held(move) for move in self._moves)

    def was_steered_to(self, unit: Unit, executor: str) -> bool:
        """Whether a partition was steered to an executor, even if superseded."""
        return self._moves.steered_to(unit, executor)

    def steered_not_run(self, query: str, driver: DriverState, now: float) -> list[TrackedMove]:
        """Return the moves of a query that were steered and did not run since, unless held."""
        return [
            move
            for move in self._moves
            if move.state is MoveState.STEERED
            and move.query == query
            and driver.last_batch_of(move.unit) <= move.steered_batch
            and not (self._is_held(move) or self._is_expired(move, now) or self._is_superseded(move))
        ]

    # -- new moves --

    def accept_desired(self, envelope: Envelope, driver: DriverState, now: float) -> Transitions:
        """Take over a desired placement whose signature was checked; the same one is renewed.

        Raises MessageError for an older epoch (a deposed leader), an expired or older message, and a placement that
        names a move or a partition twice.
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
        units, names = [move.unit for move in desired.moves], dict.fromkeys(move.move for move in desired.moves)
        if len(set(units)) != len(units) or len(names) != len(units):
            raise MessageError("desired placement names a move or a partition twice")
        self.epoch, self._sequence, self._expires = envelope.epoch, envelope.sequence, envelope.expires
        self.leader, self.hold, self._named = envelope.sender, desired.hold, names
        if desired.decision == self.decision:
            return []
        transitions = self._abandon_superseded(desired, now)
        self.decision = desired.decision
        for item in desired.moves:
            if item.move in self._moves:
                continue
            move = TrackedMove(item, desired.decision, desired.runs.get(item.query, ""))
            self._moves.add(move)
            transitions.append(move.first_transition(now))
            if driver.runs.get(item.query) != move.run:
                evidence = "the query has another run now"
                transitions.append(self._abandon(move, MoveReason.RUN_ENDED, now, evidence=evidence))
        self._moves.forget_final(self.decision)
        return transitions

    def add_own_moves(self, own: OwnMoves, now: float) -> Transitions:
        """Take over moves of the link's own, beside the desired placement's."""
        units = {item.unit for item in own.moves}
        transitions = [
            self._abandon(move, MoveReason.SUPERSEDED, now, evidence=f"decision {own.decision}")
            for move in self._moves
            if move.open and move.unit in units
        ]
        for item in own.moves:
            move = TrackedMove(item, own.decision, own.run, expires_at=now + self.limits.deadline_seconds)
            self._moves.add(move)
            transitions.append(move.first_transition(now, own.why))
        self._moves.forget_final(self.decision)
        return transitions

    def _abandon_superseded(self, desired: DesiredPlacement, now: float) -> Transitions:
        units = {move.unit for move in desired.moves}
        transitions = []
        for move in self._moves:
            own = bool(move.expires_at) and move.unit not in units  # the link's own, and not touched by the decision
            waits = move.unsteered and not own
            replaced = move.awaits_landing and move.unit in units
            if move.name not in self._named and (waits or replaced):
                evidence = f"decision {desired.decision}"
                transitions.append(self._abandon(move, MoveReason.SUPERSEDED, now, evidence=evidence))
        return transitions

    # -- at a batch boundary --

    def advance_at_boundary(self, query: str, driver: DriverState, now: float) -> tuple[Transitions, list[TrackedMove]]:
        """Give up or count what missed at a boundary; return transitions, and moves to steer.

        A move that is held, expired, final or of another run is passed over. Any other one is either

        * steered already: it has landed or has not run yet (nothing to do), or it missed: `_check_missed`;
        * or still to be steered: `_check_unsteered`.
        """
        transitions: Transitions = []
        due: list[TrackedMove] = []
        steps = self._lowest_steps()
        self._start_clocks(steps, {query}, now)
        for move in self._moves:
            if move.query != query or not move.open or driver.runs.get(query) != move.run:
                continue
            if self._is_expired(move, now) or self._is_held(move):
                continue
            if move.awaits_landing:
                changes, steerable = self._check_missed(move, driver, now)
            else:
                ahead = move.desired.step - steps[move.decision]
                changes, steerable = self._check_unsteered(move, ahead, driver, now)
            transitions += changes
            if steerable:
                due.append(move)
        loading = [move for move in self._loading(query, now) if move not in due]
        return transitions, self._throttle.select(query, due, loading)

    def _check_missed(self, move: TrackedMove, driver: DriverState, now: float) -> Checked:
        """Check a steered move, which may have to be steered again."""
        current, last_ran = driver.executor_of(move.unit), driver.last_batch_of(move.unit)
        # Landed and awaits its commit, or has not run since.
        if current == move.target or last_ran <= move.steered_batch:
            return [], False
        # Missed once too often.
        if transitions := self._count_miss(move, last_ran, current, now):
            return transitions, False
        # Missed, and superseded: do not steer again.
        last_batch = driver.batches.get(move.query, -1)
        if self._is_superseded(move):
            return [self._abandon(move, MoveReason.SUPERSEDED, now, batch=last_batch)], False
        # Missed, and its target is gone or unusable.
        if not driver.accepts_moves(move.target):
            return [self._abandon(move, MoveReason.TARGET_GONE, now, batch=last_batch)], False
        # Missed.
        return [], True

    def _check_unsteered(self, move: TrackedMove, ahead: int, driver: DriverState, now: float) -> Checked:
        """Check a move that is ``ahead`` steps after the current one."""
        current, last_batch = driver.executor_of(move.unit), driver.batches.get(move.query, -1)
        # Its step has not come. With overlap, the next step is prepared beside the current one.
        if ahead > int(self.limits.overlap):
            return [], False
        if not driver.accepts_moves(move.target):
            return [self._abandon(move, MoveReason.TARGET_GONE, now, batch=last_batch)], False
        if current == move.target:
            return [self._abandon(move, MoveReason.ALREADY_THERE, now, batch=last_batch)], False
        # Its first batch, the reading of its plan, or a snapshot is still to come; the deadline bounds the wait.
        stores_known = (move.query, move.desired.stage) in driver.known_stages
        if not current or not stores_known or not (ready := self._readiness(move, driver, now)):
            return [], False
        if move.state is not MoveState.PLANNED:
            return [], not ahead
        reason, age = ready
        evidence = f"committed on executor {current}, {age}"
        prepared = move.transition(MoveState.PREPARED, reason, at=now, batch=last_batch, evidence=evidence)
        return [prepared], not ahead

    def _readiness(self, move: TrackedMove, driver: DriverState, now: float) -> tuple[MoveReason, str] | None:
        """Return why a move's state may be loaded now, None to wait."""
        lag = driver.lag_of(move.unit)
        if lag == UNKNOWN:
            return MoveReason.READY, "its snapshot's age is not known"
        if lag <= self.limits.max_lag:
            return MoveReason.READY, f"its snapshot lies at most {lag} batches behind"
        waited = now - move.current_since
        if move.current_since < 0 or waited < self.limits.snapshot_patience:
            return None
        return MoveReason.SNAPSHOT_LATE, f"its snapshot lies {lag} batches behind after {waited:.0f} s of waiting"

    def _loading(self, query: str, now: float) -> list[TrackedMove]:
        """Return the moves whose state the query's next batch will load: steered and not yet run.

        A query that has been idle for a minute has as much time to spare: what waits for its batch counts no more.
        """
        idle_seconds = now - self._busy_at.get(query, now)
        states = {MoveState.STEERED} | ({MoveState.RELEASED_IDLE} if idle_seconds < _LONG_IDLE else set())
        return [move for move in self._moves if move.state in states and move.query == query]

    def _count_miss(self, move: TrackedMove, batch: int, current: str, now: float) -> Transitions:
        # A batch counts once, and is seen again until the move is steered anew, which the throttle or a job puts off.
        if batch > move.last_miss_batch:
            self.missed += 1
            move.misses += 1
            move.last_miss_batch = batch
        if move.misses < self.limits.deadline_batches:
            return []
        evidence = f"ran on executor {current or '?'} in {move.misses} batches"
        return [self._abandon(move, MoveReason.DEADLINE, now, batch=batch, evidence=evidence)]

    def is_still_due(self, move: TrackedMove, driver: DriverState) -> bool:
        """Return whether a move that was due is to be steered, after the events since then."""
        return (
            (move.unsteered or move.awaits_landing)
            and driver.runs.get(move.query) == move.run
            and driver.accepts_moves(move.target)
            and driver.executor_of(move.unit) != move.target
        )

    def record_steer(self, move: TrackedMove, driver: DriverState, now: float) -> Transitions:
        """Record that a move is steered; the caller publishes that, then tells Spark."""
        last_batch, current = driver.batches.get(move.query, -1), driver.executor_of(move.unit)
        reason, evidence = MoveReason.LOCATION_SET, ""
        if move.awaits_landing:
            reason, evidence = MoveReason.LOCATION_SET_AGAIN, f"it ran on executor {current or '?'}"
        transitions = [move.transition(MoveState.STEERED, reason, at=now, batch=last_batch, evidence=evidence)]
        move.steered_batch, move.steered_at, move.holder = last_batch, now, current
        return transitions

    # -- events of the driver --

    def handle_batch(
        self, query: str, batch: int, driver: DriverState, now: float, seconds: float = 0.0
    ) -> Transitions:
        """Take in a committed batch: moves whose partition ran on its target are drained.

        ``driver``: its state after that batch; ``seconds``: length of the batch, 0 if unknown.
        """
        transitions = []
        landed = self.landed
        self._busy_at[query] = now
        for move in self._moves:
            if move.query != query or not move.awaits_landing:
                continue
            current = driver.executor_of(move.unit)
            # A steer may come between two jobs of a batch: that batch can land the move, and proves no miss.
            if current == move.target and batch >= move.steered_batch:
                evidence = f"batch {batch} committed, its task ran on executor {current}"
                landing = move.transition(MoveState.DRAINED, MoveReason.LANDED, at=now, batch=batch, evidence=evidence)
                move.drained_at = now
                self.landed += 1
                transitions += [landing, *self._kill_if_old_copy_gone(move, driver, now)]
            elif (
                move.state is MoveState.RELEASED_IDLE
                and current != move.target
                and batch > move.steered_batch
                and self._is_expired(move, now)  # else the next boundary steers it again
            ):
                evidence = f"batch {batch} ran it on executor {current or '?'}"
                transitions.append(self._abandon(move, MoveReason.DEADLINE, now, batch=batch, evidence=evidence))
        if seconds > 0:
            self._throttle.record_batch(query, seconds, self.landed - landed)
        if self.landed > landed:
            self._restart_deadlines(now, lambda move: move.query == query)
        return transitions

    def handle_closed_store(
        self,
        store: ClosedStore,
        stores: Collection[tuple[int, str]],
        stage: int,
        query: str,
        now: float,
        closed_at: float,
    ) -> Transitions:
        """Take in that an executor closed a store.

        With the last store of a partition its move is killed. ``stores``: operator and name of every store that the
        stage's partitions have; ``query``: that of the store's run; ``closed_at``: time by the agent's clock. What was
        closed before a move was steered is no evidence for it: the partition came back to the executor since.
        """
        transitions = []
        for move in self._moves:
            if move.unit != (query, stage, store.partition) or (move.holder, move.run) != (store.executor, store.run):
                continue
            if not (move.awaits_landing or move.state is MoveState.DRAINED):
                continue
            if closed_at < move.steered_at - _CLOCK_DIFFERENCE:
                continue
            move.closed_stores.add((store.operator, store.store))
            if not move.closed_stores >= set(stores):
                continue
            if move.state is MoveState.DRAINED:
                evidence = f"executor {move.holder}: {store.evidence}"
                transitions.append(self._kill(move, MoveReason.CLOSED, now, evidence))
            else:
                move.early_evidence = store.evidence
        return transitions

    def handle_executor_loss(self, executor: str, now: float) -> Transitions:
        """Take in that an executor is lost: moves to it are abandoned, copies on it are dead."""
        transitions = []
        for move in self._moves:
            if move.open and move.target == executor:
                transitions.append(self._abandon(move, MoveReason.TARGET_GONE, now))
            elif move.state is MoveState.DRAINED and move.holder == executor:
                transitions.append(self._kill(move, MoveReason.EXECUTOR_GONE, now, f"executor {executor} is gone"))
        return transitions

    def handle_run_end(self, query: str, run: str, now: float) -> Transitions:
        """Take in that a run is over: Spark unloads its stores, and nothing of it can be moved."""
        transitions = []
        self._throttle.remove_query(query)
        for move in self._moves:
            if move.query != query or move.run != run:
                continue
            if move.open:
                transitions.append(self._abandon(move, MoveReason.RUN_ENDED, now))
            elif move.state is MoveState.DRAINED:
                transitions.append(self._kill(move, MoveReason.RUN_ENDED, now, "the query's run is over"))
        return transitions

    # -- time --

    def tick(self, driver: DriverState, now: float) -> Transitions:
        """Let time pass: each move by its state.

        * planned, prepared: abandoned at its expiry or its deadline;
        * steered: abandoned if it missed and its placement expired, or at its deadline if it missed, else released when
          its query is idle;
        * drained: presumed killed after two maintenance intervals.
        """
        self._restart_deadlines(now, self._is_held)
        self._start_clocks(self._lowest_steps(), {move.query for move in self._moves}, now)
        self._note_busy_queries(driver, now)
        transitions: Transitions = []
        for move in self._moves:
            if move.unsteered:
                transitions += self._tick_unsteered(move, driver, now)
            elif move.state is MoveState.STEERED:
                transitions += self._tick_steered(move, driver, now)
            elif move.state is MoveState.DRAINED and now - move.drained_at >= self.limits.presume:
                evidence = f"two maintenance intervals ({self.limits.presume:g} s) passed"
                transitions.append(self._kill(move, MoveReason.PRESUMED, now, evidence))
        return transitions

    def _note_busy_queries(self, driver: DriverState, now: float) -> None:
        """Note which queries run a job now, or began a batch since the last tick.

        A query that is seen for the first time began its batch at a time that is not known: it counts as busy now.
        """
        for query in driver.runs:
            batch = driver.batches.get(query, -1)
            if query not in driver.quiet or batch != self._last_batches.get(query, -1):
                self._busy_at[query] = now
            self._last_batches[query] = batch
        self._busy_at = {query: at for query, at in self._busy_at.items() if query in driver.runs}
        self._last_batches = {query: batch for query, batch in self._last_batches.items() if query in driver.runs}

    def _tick_unsteered(self, move: TrackedMove, driver: DriverState, now: float) -> Transitions:
        age = now - move.current_since if move.current_since >= 0 else 0.0
        if self._is_expired(move, now):
            return [self._abandon_expired(move, now)]
        if not self._is_held(move) and age >= self.limits.deadline_seconds:
            stores_known = (move.query, move.desired.stage) in driver.known_stages
            return [self._abandon(move, MoveReason.DEADLINE if stores_known else MoveReason.STORES_UNKNOWN, now)]
        return []

    def _tick_steered(self, move: TrackedMove, driver: DriverState, now: float) -> Transitions:
        # No batch is to come for a query that has stood still for long, and the next step need not wait for it.
        still = now - self._busy_at.setdefault(move.query, now) >= _IDLE
        idle = still and driver.batches.get(move.query, -1) <= move.steered_batch
        late = now - move.steered_at >= self.limits.deadline_seconds
        missed = driver.last_batch_of(move.unit) > move.steered_batch and driver.executor_of(move.unit) != move.target
        if missed and self._is_expired(move, now):  # no boundary steers it again
            return [self._abandon_expired(move, now)]
        if late and move.misses:
            return [self._abandon(move, MoveReason.DEADLINE, now)]
        if late or idle:
            return [move.transition(MoveState.RELEASED_IDLE, MoveReason.NO_BATCH, at=now, batch=move.steered_batch)]
        return []

    def _start_clocks(self, steps: Mapping[str, int], queries: Collection[str], now: float) -> None:
        """Start the clocks of these queries' moves of the current step; ``steps``: by decision."""
        for move in self._moves:
            current = move.unsteered and move.desired.step == steps[move.decision]
            if current and move.query in queries and move.current_since < 0 and not self._is_held(move):
                move.current_since = now

    def _lowest_steps(self) -> dict[str, int]:
        """Return the lowest step of each decision's moves that await a batch.

        Without overlap, moves that are drained and not killed count too. A move of a query that runs no batch holds no
        other back: it counts as released after some seconds (`tick`).
        """
        steps: dict[str, int] = {}
        for move in self._moves:
            if move.awaits_batch or (move.state is MoveState.DRAINED and not self.limits.overlap):
                steps[move.decision] = min(steps.get(move.decision, move.desired.step), move.desired.step)
        return steps

    def _restart_deadlines(self, now: float, waits: Callable[[TrackedMove], bool]) -> None:
        """Restart the deadlines of moves that wait for something else than their batch."""
        for move in self._moves:
            if move.unsteered and move.current_since >= 0 and waits(move):
                move.current_since = now

    # -- one move --

    def _is_held(self, move: TrackedMove) -> bool:
        return self.paused or (self.hold and not move.expires_at)

    def _is_expired(self, move: TrackedMove, now: float) -> bool:
        return now >= (move.expires_at or self._expires)

    def _is_superseded(self, move: TrackedMove) -> bool:
        """Whether another decision is wanted by now."""
        return not move.expires_at and move.decision != self.decision

    def _abandon(
        self, move: TrackedMove, reason: MoveReason, now: float, *, batch: int = -1, evidence: str = ""
    ) -> MoveTransition:
        transition = move.transition(MoveState.ABANDONED, reason, at=now, batch=batch, evidence=evidence)
        self._moves.set_final(move)
        self.abandoned += 1
        return transition

    def _abandon_expired(self, move: TrackedMove, now: float) -> MoveTransition:
        evidence = "" if move.expires_at else "no controller renews it"
        return self._abandon(move, MoveReason.EXPIRED, now, evidence=evidence)

    def _kill_if_old_copy_gone(self, move: TrackedMove, driver: DriverState, now: float) -> Transitions:
        # Executors often close the old copy while the batch still runs, before its commit makes the move drained.
        if move.early_evidence is not None:
            return [self._kill(move, MoveReason.CLOSED, now, f"executor {move.holder}: {move.early_evidence}")]
        if move.holder not in driver.executors:
            return [self._kill(move, MoveReason.EXECUTOR_GONE, now, f"executor {move.holder} is gone")]
        return []

    def _kill(self, move: TrackedMove, reason: MoveReason, now: float, evidence: str) -> MoveTransition:
        transition = move.transition(MoveState.KILLED, reason, at=now, evidence=evidence)
        self._moves.set_final(move)
        return transition
