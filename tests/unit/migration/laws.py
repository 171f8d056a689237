"""Laws of a link, checked on every event of the driver's model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rechannel.migration.moves import FINAL, TRANSITIONS, TrackedMove
from rechannel.wire.codes import MoveReason, MoveState
from rechannel.wire.envelope import Envelope
from rechannel.wire.messages import DesiredPlacement, MoveTransition, Unit

if TYPE_CHECKING:
    from unit.migration.driver_model import Link, World
    from unit.migration.spark_model import Query


class Laws:
    """Laws of one link, from its first event to its last."""

    def __init__(self) -> None:
        self.last: dict[str, str] = {}  # move -> its state by the journal
        self.steers: Counter[str] = Counter()  # move -> times it was steered
        self.steer_batch: dict[str, int] = {}  # move -> batch begun last when Spark was told of it
        self.steer_time: dict[str, float] = {}
        self.holder: dict[str, str] = {}  # move -> executor that had the partition when Spark was told last
        self.turn: dict[str, int] = {}  # move -> stages run when it was steered first
        self.landed_on: dict[Unit, str] = {}  # where a landed move left its partition, and nothing moved it since
        self.misses: set[tuple[str, int]] = set()
        self.after: Counter[str] = Counter()
        self.order = (0, 0)  # epoch and sequence of the last message obeyed
        self._checked = (0, 0)

    def journaled(self, link: Link, line: MoveTransition) -> None:
        before, after = line.before, MoveState(line.after)
        assert before == self.last.get(line.move, ""), f"{line.move}: {before} -> {after} does not follow"
        assert after in TRANSITIONS[MoveState(before)] if before else after is MoveState.PLANNED
        self.last[line.move] = after
        self.after[after] += 1
        query, unit = link.world.driver.queries[line.query], line.unit
        if after is MoveState.STEERED:
            assert line.target in link.world.driver.executors, f"{line.move}: steered to an executor that is gone"
        if after is MoveState.DRAINED:
            assert query.placement[line.stage][line.partition] == line.target
            assert query.last_ran[line.stage][line.partition] <= query.committed
            self.landed_on[unit] = line.target
        if after is MoveState.KILLED and line.reason == MoveReason.CLOSED:
            holder = self.holder[line.move]
            # What came back since, or is about to, has a new copy.
            home = query.placement[line.stage][line.partition], query.preferred[line.stage][line.partition]
            copies = 0 if holder in home else link.world.driver.copies[unit].get(holder, 0)
            again = link.world.driver.opened.get((unit, holder), 0) > self.turn[line.move]
            assert not copies, f"{'old ' if again else ''}evidence: {line.move}: executor {holder} has it open"
        if after is MoveState.RELEASED_IDLE:
            still = link.world.now - query.active_at
            late = link.world.now - self.steer_time[line.move] >= link.reconciler.limits.deadline_seconds
            assert still >= 9.9 or late, f"{line.move}: counts as idle {still:.1f} s after a batch"

    def accepted(self, link: Link, envelope: Envelope) -> None:
        assert envelope.expires > link.world.now, "an expired message is obeyed"
        order = (envelope.epoch, envelope.sequence)
        assert order >= self.order, f"message {order} is obeyed after {self.order}"
        self.order = order

    def boundary(self, link: Link, query: Query) -> None:
        for move in link.reconciler.moves:
            name, stage, partition = move.unit
            if not move.awaits_landing or (name, move.run) != (query.name, query.run):
                continue
            ran = query.last_ran[stage][partition]
            missed = ran > self.steer_batch[move.name] and query.placement[stage][partition] != move.target
            if missed and not _is_held(link, move) and not _is_expired(link, move):
                self.misses.add((move.name, ran))

    def steered(self, link: Link, move: TrackedMove) -> None:
        world, desired, name = link.world, move.desired, move.name
        query = world.driver.queries[desired.query]
        where, ran = query.placement[desired.stage][desired.partition], query.last_ran[desired.stage][desired.partition]
        assert query.quiet, f"{name}: steered while a job runs"
        assert query.run == move.run, f"{name}: steered in another run"
        assert desired.target in world.driver.executors, f"{name}: steered to an executor that is gone"
        written = [line.after for line in link.sent if line.move == name]
        assert written[-1:] == [MoveState.STEERED], f"{name}: steered before it was journaled"
        if written.count(MoveState.STEERED) == self.steers[name]:  # a steer that was overwritten is repeated
            assert ran <= self.steer_batch[name], f"{name}: told again after a batch, off the journal"
            assert not _is_held(link, move) and not _is_expired(link, move), f"{name}: told again while held"
            return
        assert not _is_held(link, move), f"{name}: steered while held"
        assert not _is_expired(link, move), f"{name}: steered though expired"
        assert desired.target not in world.unusable, f"{name}: steered to an executor that is to leave"
        assert where != desired.target
        self.landed_on.pop(move.unit, None)
        self.steers[name] += 1
        assert self.steers[name] == written.count(MoveState.STEERED), f"{name}: told without its line"
        if name in self.steer_batch:
            assert ran > self.steer_batch[name], f"{name}: steered twice for one batch"
            accepted = link.accepted.body if link.accepted is not None else None
            over = isinstance(accepted, DesiredPlacement) and accepted.decision == f"{move.decision}-stop"
            assert not over, f"{name}: steered again after the stop"
        else:
            self._check_order(link, move)
        self.turn.setdefault(name, world.driver.turns)
        self.steer_batch[name], self.steer_time[name], self.holder[name] = query.batch, world.now, where
        self._check_throttle(link, query)

    @staticmethod
    def _check_order(link: Link, move: TrackedMove) -> None:
        if not move.expires_at:
            assert link.accepted is not None
            assert isinstance(link.accepted.body, DesiredPlacement)
            assert move.decision == link.accepted.body.decision, f"{move.name}: its decision is over"
        for other in link.reconciler.moves:
            if other.decision == move.decision and other.desired.step < move.desired.step:
                assert not other.awaits_batch, f"{move.name} overtook {other.name}"
                closing = other.state is MoveState.DRAINED and not link.reconciler.limits.overlap
                assert not closing, f"{move.name} overlaps {other.name}"

    def _check_throttle(self, link: Link, query: Query) -> None:
        most = link.reconciler.limits
        pending = [
            move.desired
            for move in link.reconciler.moves
            if move.state is MoveState.STEERED
            and move.query == query.name
            and query.last_ran[move.desired.stage][move.desired.partition] <= self.steer_batch.get(move.name, -1)
            and query.placement[move.desired.stage][move.desired.partition] != move.target
        ]
        assert len(pending) <= most.moves_per_batch, "one batch takes over more partitions than it may"
        size = sum(desired.bytes for desired in pending)
        assert len(pending) == 1 or size <= most.bytes_per_batch, f"one batch takes over {size:g} bytes"

    def release(self, units: Iterable[Unit]) -> None:
        """Take in that chance moved partitions: their last landing says nothing any more."""
        for unit in units:
            self.landed_on.pop(unit, None)

    def check(self, link: Link) -> None:
        moves, checked = link.reconciler.moves, (len(link.sent), link.reconciler.missed)
        assert link.reconciler.missed == len(self.misses)
        if checked == self._checked:
            return
        self._checked = checked
        reported = {move.name: str(move.state) for move in link.reconciler.reported_moves}
        assert reported.items() <= self.last.items(), "the journal tells another story"
        assert {self.last[name] for name in self.last.keys() - reported.keys()} <= FINAL, "an open one is missing"
        accepted = link.accepted.body if link.accepted is not None else None
        named = accepted.moves if isinstance(accepted, DesiredPlacement) else []
        assert {move.move for move in named} <= reported.keys(), "the controller cannot count them"
        open_units = [move.unit for move in moves if move.open]
        assert len(open_units) == len(set(open_units)), "a partition has two open moves"
        counts = (link.reconciler.landed, link.reconciler.abandoned)
        assert counts == (self.after[MoveState.DRAINED], self.after[MoveState.ABANDONED])

    def check_end(self, world: World) -> None:
        states = Counter(self.last.values())
        assert set(states) <= {MoveState.KILLED, MoveState.ABANDONED}, states
        for query in world.driver.queries.values():
            for unit in query.units:
                where = query.placement[unit[1]][unit[2]]
                assert where in world.driver.executors
                assert where == self.landed_on.get(unit, where), f"{unit} landed elsewhere"


def _is_held(link: Link, move: TrackedMove) -> bool:
    hold = not move.expires_at and link.accepted is not None and getattr(link.accepted.body, "hold", False)
    return link.reconciler.paused or hold


def _is_expired(link: Link, move: TrackedMove) -> bool:
    return link.world.now >= (move.expires_at or (link.accepted.expires if link.accepted is not None else 0.0))
