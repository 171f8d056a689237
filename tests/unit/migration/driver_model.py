"""Pure model of a Spark driver with its link, and of the controllers that give it orders.

`Driver` is Spark (`unit.migration.spark_model`). `Link` drives the real reconciler and the real steering as
`rechannel.migration.link.loop` does. `Controller` publishes, renews, holds and stops as
`rechannel.daemon.control.migrations` does, into a single slot, as Redis holds it. `World` joins them under one clock;
each of its methods is one event. The link's `Laws` receive everything that they are about.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Self

import msgspec

from rechannel.daemon.control.migrations import RunningMigration
from rechannel.migration.link.driver_state import DriverState, ReconcilerLimits
from rechannel.migration.link.reconciler import Reconciler
from rechannel.migration.link.steering import Steering
from rechannel.migration.moves import OwnMoves, TrackedMove
from rechannel.migration.spark.gateway import SparkCallError
from rechannel.wire.envelope import Envelope, EnvelopeFactory, MessageError
from rechannel.wire.messages import DesiredPlacement, ExecutorInfo, LinkReport, MoveTransition, Unit
from unit.daemon.fakes import report
from unit.migration.laws import Laws
from unit.migration.one_stage import LIMITS
from unit.migration.samples import a_move
from unit.migration.spark_model import Driver, Phase, Query

TTL = 30.0  # seconds that a desired placement holds
_EVENT = 0.05  # seconds that one event takes
_SNAPSHOT_EVERY = 2  # batches


class Steered:
    """What `Steering` asks of Spark, of the events and of the plans. A move stands for the one store of its partition.

    Events come without delay.
    """

    def __init__(self, link: Link) -> None:
        self._link = link

    @property
    def executors(self) -> dict[str, ExecutorInfo]:
        """The live executors."""
        names = self._link.world.driver.executors
        return {name: ExecutorInfo(executor=name, host="", cores=1, added=0.0) for name in names}

    @property
    def jobs(self) -> frozenset[str]:
        """Queries that run a job, in place of its number."""
        return frozenset(query.name for query in self._link.world.driver.queries.values() if not query.quiet)

    def active_jobs(self) -> frozenset[str]:
        """The same, by Spark."""
        return self.jobs

    def is_quiet(self, name: str) -> bool:
        """Whether a query runs no job."""
        return self._link.world.driver.queries[name].quiet

    def stores_of_move(self, move: TrackedMove) -> list[TrackedMove]:
        """Return the store of a move's partition."""
        return [move]

    @property
    def coordinator(self) -> Self:
        """Itself: the model answers for it too."""
        return self

    def locations(self, moves: Sequence[TrackedMove]) -> list[str]:
        """Return where Spark would run their tasks."""
        return [self._preferred(move)[move.desired.partition] for move in moves]

    def steer(self, targets: Sequence[tuple[TrackedMove, ExecutorInfo]]) -> None:
        """Tell Spark where to run the tasks; a call that fails has done so for those before the one that failed."""
        link = self._link
        for move, _ in targets:
            link.laws.steered(link, move)
        for move, target in targets:
            if link.failing_steers:
                link.failing_steers -= 1
                raise SparkCallError("no")
            self._preferred(move)[move.desired.partition] = target.executor

    def _preferred(self, move: TrackedMove) -> list[str]:
        return self._link.world.driver.queries[move.query].preferred[move.desired.stage]


class Link:
    """The link: its mail, its journal and its looks at the queries' boundaries, around the real parts."""

    def __init__(self, world: World, limits: ReconcilerLimits) -> None:
        self.world, self.laws = world, Laws()
        self.reconciler = Reconciler(limits)
        self.sent: list[MoveTransition] = []
        self.failing_steers = 0  # steers that Spark does not take from now on
        self.accepted: Envelope | None = None
        self.refused = 0
        self.fallen: dict[str, set[Unit]] = {}  # by query: what a lost executor held
        self._last_read: Envelope | None = None
        self._numbers = 0
        steered: Any = Steered(self)
        self._steering = Steering(
            steered,
            steered,
            self.reconciler,
            steered,
            catch_up_with_events=lambda: world.race(self._looked_at),
            journal=self.write,
        )

    @property
    def busy(self) -> bool:
        """Whether some move still needs a batch boundary."""
        return any(move.awaits_batch for move in self.reconciler.moves)

    def observed(self) -> DriverState:
        """What the link knows at this moment, by reference."""
        if self.world.view is None:
            self.world.view = self._observed(self.world.driver)
        return self.world.view

    def _observed(self, driver: Driver) -> DriverState:
        met = [query for query in driver.queries.values() if query.discovered]
        placed = [(query, stage) for query in met for stage in query.placement if query.last_ran[stage][0] >= 0]
        lags = {
            Unit(query.name, stage, number): query.committed - batch
            for query, stage in placed
            for number, batch in enumerate(query.snapshots[stage])
            if batch >= 0
        }
        return DriverState(
            executors=driver.executors,
            placement={(query.name, stage): query.placement[stage] for query, stage in placed},
            last_ran={(query.name, stage): query.last_ran[stage] for query, stage in placed},
            runs={query.name: query.run for query in met},
            known_stages={(query.name, stage) for query, stage in placed},
            batches={query.name: query.batch for query in met if query.batch >= 0},
            quiet={query.name for query in met if query.quiet and query.trusted},
            unusable=self.world.unusable,
            snapshot_lag=lags,
        )

    def report(self) -> LinkReport:
        """What the controllers read of it."""
        moves = [move.view() for move in self.reconciler.reported_moves]
        return report([], moves=moves, decision=self.reconciler.decision, accepted_epoch=self.reconciler.epoch)

    def mail(self) -> None:
        """Take the orders, the desired placement that stands in the slot, and the executors' evidence."""
        self.reconciler.paused = self.world.paused
        if self.world.slot is not None and self.world.slot != self._last_read:
            self._last_read = self.world.slot
            self.accept(self.world.slot)
        while self.world.driver.evidence:
            store = self.world.driver.evidence.popleft()
            query = next((item for item in self.world.driver.queries.values() if item.run == store.run), None)
            if query is None:
                continue
            stores = [(store.operator, str(number)) for number in range(query.stores.get(store.operator, 1))]
            now = self.world.now
            self.write(self.reconciler.handle_closed_store(store, stores, store.operator, query.name, now, now))

    def accept(self, envelope: Envelope) -> None:
        """Obey a desired placement, or refuse it."""
        try:
            lines = self.reconciler.accept_desired(envelope, self.observed(), self.world.now)
        except MessageError:
            self.refused += 1
            return
        self.laws.accepted(self, envelope)
        self.accepted = envelope
        self.write(lines)

    def boundary(self, query: Query) -> None:
        """Look at a query, and steer what is due if it is quiet."""
        if not (query.discovered and query.trusted and query.quiet):
            return
        self._spread_lost(query)
        self.laws.boundary(self, query)
        self._looked_at = query
        self._steering.handle_boundary(query.name, self.observed, lambda: self.world.now)

    def _spread_lost(self, query: Query) -> None:
        if not (fallen := self.fallen.pop(query.name, set())):
            return
        names = [name for name in self.world.driver.executors if name not in self.world.unusable]
        if self.reconciler.paused or not names:
            return
        moves = []
        for unit in sorted(fallen - self.reconciler.moving):
            source, target = query.placement[unit[1]][unit[2]], names[unit[2] % len(names)]
            if source != target:
                self._numbers += 1
                moves.append(a_move(unit, source, target, 0, name=f"link-{query.run}-{self._numbers}"))
        if moves:
            own = OwnMoves(f"link-{self._numbers}", query.run, "its executor was lost", moves)
            self.write(self.reconciler.add_own_moves(own, self.world.now))

    def tick(self) -> None:
        """Let the reconciler see that time passes."""
        self.write(self.reconciler.tick(self.observed(), self.world.now))

    def write(self, lines: Sequence[MoveTransition]) -> None:
        """Publish lines."""
        for line in lines:
            self.sent.append(line)
            self.laws.journaled(self, line)


class Controller:
    """A leader in one epoch: it publishes one migration, renews it, and finds in the slot what one before it began."""

    def __init__(self, world: World, epoch: int) -> None:
        self.world, self.epoch = world, epoch
        self.migration: RunningMigration | None = None
        self._factory = EnvelopeFactory("c", f"controller-{epoch}", lambda: world.now)
        current = world.slot.body if world.slot is not None else None
        if world.slot is not None and isinstance(current, DesiredPlacement) and world.slot.expires > world.now:
            self.migration = RunningMigration("a", current, world.slot.time, TTL)

    def order(self, desired: DesiredPlacement) -> None:
        """Begin a migration, in place of the one that runs."""
        self.migration = RunningMigration("a", desired, self.world.now, TTL)
        self._renew(self.migration)

    def stop(self) -> None:
        """End the migration that runs."""
        if self.migration is not None:
            self.migration = self.migration.stopped(self.world.now)
            self._renew(self.migration)

    def follow(self) -> None:
        """Read the link's report and renew what is not reached yet."""
        if self.migration is None:
            return
        self.migration.update(self.world.link.report(), self.world.now)
        over = self.migration.end_reason(self.world.now)
        if over == "settled":  # then nothing is wanted any more
            self.migration.desired = msgspec.structs.replace(self.migration.desired, moves=[])
        if over in ("", "settled"):
            self._renew(self.migration)
        if over:
            self.migration = None

    def _renew(self, migration: RunningMigration) -> None:
        world = self.world
        migration.desired = msgspec.structs.replace(migration.desired, hold=world.paused)
        current = world.slot
        if current is not None and current.epoch > self.epoch:
            return
        same = current is not None and current.epoch == self.epoch and current.body == migration.desired
        if same and current is not None and current.expires - world.now > TTL * 2 / 3:
            return
        self.publish(migration.desired)

    def publish(self, desired: DesiredPlacement) -> None:
        """Write into the slot, whatever stands there."""
        self.world.slot = self._factory.envelope(desired, ttl=TTL, application="a", epoch=self.epoch)
        self.world.history.append(self.world.slot)


class World:
    """Driver, link and controllers under one clock. Each method is one event."""

    def __init__(self, driver: Driver, limits: ReconcilerLimits) -> None:
        self.driver, self.limits = driver, limits
        self.now = 1000.0
        self.slot: Envelope | None = None
        self.history: list[Envelope] = []
        self.paused = False
        self.unusable: set[str] = set()
        self.racing = -1  # steers after which the next batch begins in the middle of a boundary; -1: it does not
        self.view: DriverState | None = None  # what the link knows, until one of the queries goes on
        self.slow = False  # whether the batch that is committed next lasted long
        self.link = Link(self, limits)
        self.controller: Controller | None = Controller(self, 1)
        self.epoch = 1

    def lead(self) -> None:
        """The leader, if there is one, does its round."""
        self.now += _EVENT
        if self.controller is not None:
            self.controller.follow()

    def succeed(self) -> None:
        """Another controller takes the lead."""
        self.epoch = max(self.epoch, self.link.reconciler.epoch) + 1
        self.controller = Controller(self, self.epoch)

    def run_once(self) -> None:
        """One turn of the link: mail, boundaries, and now and then a tick."""
        self.now += _EVENT
        self.link.mail()
        for query in self.driver.queries.values():
            self.link.boundary(query)

    def tick(self, seconds: float) -> None:
        """Time passes."""
        self.now += seconds
        self.link.tick()

    def race(self, query: Query) -> bool:
        """A moment between two steers, in which the next batch may begin; True, as the link then knows all events."""
        if self.racing > 0:
            self.racing -= 1
        elif self.racing == 0:
            self.racing = -1
            if not query.idle:
                self.advance(query)
        return True

    def advance(self, query: Query) -> None:
        """A query takes its next step: begin, run, end of a job, or commit."""
        self.now += _EVENT
        query.active_at, self.view = self.now, None
        if query.phase in (Phase.IDLE, Phase.ENDED):
            if query.phase is Phase.IDLE:
                query.batch, query.job = query.batch + 1, 0
            query.discovered, query.phase = True, Phase.BEGUN
        elif query.phase is Phase.BEGUN:
            for stage in query.jobs[query.job]:
                self.link.laws.release(self.driver.run_stage(query, stage))
            query.phase = Phase.RAN
        elif query.phase is Phase.RAN:
            query.job += 1
            query.phase = Phase.ENDED if query.job < len(query.jobs) else Phase.UNCOMMITTED
        else:
            query.phase, query.committed, query.trusted = Phase.IDLE, query.batch, True
            seconds, self.slow = (3.0 if self.slow else 1.0), False
            lines = self.link.reconciler.handle_batch(query.name, query.batch, self.link.observed(), self.now, seconds)
            self.link.write(lines)

    def maintain(self) -> None:
        """The executors' maintenance: now and then snapshots, and old copies are closed."""
        self.view = None
        for query in self.driver.queries.values():
            if query.committed % _SNAPSHOT_EVERY == 0 and query.committed >= 0:
                query.snapshots = {stage: [query.committed] * len(where) for stage, where in query.placement.items()}
        for executor in self.driver.executors:
            self.driver.close_old(executor)

    def lose(self, executor: str) -> None:
        """An executor is lost; what it ran in a job that goes on is run again."""
        if executor not in self.driver.executors or len(self.driver.executors) == 1:
            return
        self.driver.executors.remove(executor)
        for query in self.driver.queries.values():
            held = {unit for unit in query.units if query.placement[unit[1]][unit[2]] == executor}
            if query.discovered:
                self.link.fallen.setdefault(query.name, set()).update(held)
            self.link.laws.release([unit for unit in query.units if query.preferred[unit[1]][unit[2]] == executor])
            if query.phase is Phase.RAN:
                for stage in query.jobs[query.job]:
                    self.link.laws.release(self.driver.run_stage(query, stage, only=executor))
        for holders in self.driver.copies.values():
            holders.pop(executor, None)
        self.link.write(self.link.reconciler.handle_executor_loss(executor, self.now))

    def join(self, executor: str) -> None:
        """An executor joins."""
        if executor not in self.driver.executors:
            self.driver.executors.append(executor)

    def overwrite(self, unit: Unit) -> None:
        """A task that outlived its stage reports its own executor again."""
        query = self.driver.queries[unit[0]]
        where = query.placement[unit[1]][unit[2]]
        if query.preferred[unit[1]][unit[2]] != where and where in self.driver.executors:
            query.preferred[unit[1]][unit[2]] = where
            self.link.laws.release([unit])

    def restart(self, query: Query) -> None:
        """A query ends and starts again: a new run, whose partitions were put back before its first batch."""
        old, query.runs, self.view = query.run, query.runs + 1, None
        query.run = f"{query.name}-run-{query.runs}"
        query.phase, query.discovered, query.trusted = Phase.IDLE, False, False
        for unit in query.units:
            query.last_ran[unit[1]][unit[2]] = query.snapshots[unit[1]][unit[2]] = -1
            where = query.placement[unit[1]][unit[2]]
            query.preferred[unit[1]][unit[2]] = where
            self.driver.copies[unit] = {where: query.stores.get(unit[1], 1)} if where in self.driver.executors else {}
        self.link.laws.release(query.units)
        self.link.fallen.pop(query.name, None)
        self.link.write(self.link.reconciler.handle_run_end(query.name, old, self.now))

    def driver_dies(self) -> None:
        """The driver dies and starts again: new runs, and a link that knows nothing."""
        self.driver.evidence.clear()
        for query in self.driver.queries.values():
            self.restart(query)
        self.link = Link(self, self.limits)


def limits(**changes: float) -> ReconcilerLimits:
    """Return tight limits, with those given."""
    return dataclasses.replace(LIMITS, **changes)  # type: ignore[arg-type]
