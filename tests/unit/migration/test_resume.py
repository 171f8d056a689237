"""Every interrupted prefix of a plan against a model of driver and controllers: nothing is done twice, all of it ends.

The laws stand in `Laws`. A run of a small plan is cut after each of its events by each kind of interruption, and goes
on from there; after that, chance writes the scripts.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rechannel.migration.moves import TRANSITIONS, Move, MoveState, Reason
from rechannel.wire.messages import DesiredMove, DesiredPlacement, Envelope, MoveTransition
from unit.migration.driver_model import Driver, Link, Query, Unit, World, a_move, limits

Event = Callable[[], object]
Interruption = Callable[[World], dict[int, Event]]  # done now; returns what follows after so many events more


class Laws:
    """What must hold of one link, from its first event to its last."""

    def __init__(self) -> None:
        self.last: dict[str, str] = {}  # move -> its state by the journal
        self.said: Counter[str] = Counter()  # move -> times it was steered
        self.told_in: dict[str, int] = {}  # move -> batch begun last when Spark was told of it
        self.told_at: dict[str, float] = {}
        self.turn: dict[str, int] = {}  # move -> stages run when it was steered first
        self.brought: dict[Unit, str] = {}  # where a landed move left its partition, and nothing moved it since
        self.misses: set[tuple[str, int]] = set()
        self.after: Counter[str] = Counter()
        self.order = (0, 0)  # epoch and sequence of the last message obeyed
        self._checked = (0, 0)

    def law(self, name: str, holds: bool, breach: str) -> None:
        assert holds, f"{name}: {breach}"

    def written(self, link: Link, line: MoveTransition) -> None:
        before, after = line.before, MoveState(line.after)
        assert before == self.last.get(line.move, ""), f"{line.move}: {before} -> {after} does not follow"
        assert after in TRANSITIONS[MoveState(before)] if before else after is MoveState.PLANNED
        self.last[line.move] = after
        self.after[after] += 1
        query, unit = link.world.driver.queries[line.query], (line.query, line.stage, line.partition)
        if after is MoveState.STEERED:
            assert line.target in link.world.driver.executors, f"{line.move}: steered to an executor that is gone"
        if after is MoveState.DRAINED:
            assert query.placement[line.stage][line.partition] == line.target
            assert query.ran[line.stage][line.partition] <= query.committed
            self.brought[unit] = line.target
        if after is MoveState.KILLED and line.reason == Reason.CLOSED:
            holder = next(move.holder for move in link.reconciler.moves if move.wanted.move == line.move)
            # What came back since, or is about to, has a new copy.
            home = query.placement[line.stage][line.partition], query.preferred[line.stage][line.partition]
            left = 0 if holder in home else link.world.driver.copies[unit].get(holder, 0)
            again = link.world.driver.opened.get((unit, holder), 0) > self.turn[line.move]
            self.law("old evidence" if again else "evidence", not left, f"{line.move}: executor {holder} has it open")
        if after is MoveState.RELEASED_IDLE:
            still = link.world.now - query.active_at
            late = link.world.now - self.told_at[line.move] >= link.reconciler.limits.deadline_seconds
            self.law("idle", still >= 9.9 or late, f"{line.move}: counts as idle {still:.1f} s after a batch")

    def accepted(self, link: Link, envelope: Envelope) -> None:
        assert envelope.expires > link.world.now, "an expired message is obeyed"
        order = (envelope.epoch, envelope.sequence)
        assert order >= self.order, f"message {order} is obeyed after {self.order}"
        self.order = order

    def looked_at(self, link: Link, query: Query) -> None:
        for move in link.reconciler.moves:
            name, stage, partition = move.unit
            if move.state not in (MoveState.STEERED, MoveState.RELEASED_IDLE) or (name, move.run) != (
                query.name,
                query.run,
            ):
                continue
            ran = query.ran[stage][partition]
            missed = ran > self.told_in[move.wanted.move] and query.placement[stage][partition] != move.wanted.target
            if missed and not _held(link, move) and not _expired(link, move):
                self.misses.add((move.wanted.move, ran))

    def told(self, link: Link, move: Move, *, again: bool) -> None:
        world, wanted, name = link.world, move.wanted, move.wanted.move
        query = world.driver.queries[wanted.query]
        where, ran = query.placement[wanted.stage][wanted.partition], query.ran[wanted.stage][wanted.partition]
        assert query.quiet, f"{name}: steered while a job runs"
        assert query.run == move.run, f"{name}: steered in another run"
        assert wanted.target in world.driver.executors, f"{name}: steered to an executor that is gone"
        written = [line.after for line in link.disk if line.move == name]
        assert written, f"{name}: steered before anything was journaled"
        assert written[-1] == MoveState.STEERED, f"{name}: steered before it was journaled"
        if again:
            self.law("read back", ran <= self.told_in[name], f"{name}: told again after a batch, off the journal")
            if ran <= self.told_in[name]:
                self.law("read back while held", not _held(link, move) and not _expired(link, move), name)
            return
        assert not _held(link, move), f"{name}: steered while held"
        assert not _expired(link, move), f"{name}: steered though expired"
        self.law("leaving", wanted.target not in world.leaving, f"{name}: steered to an executor that is to leave")
        assert where != wanted.target
        self.brought.pop(move.unit, None)
        self.said[name] += 1
        assert self.said[name] == self.after_of(link, name), f"{name}: told without its line"
        if name in self.told_in:
            assert ran > self.told_in[name], f"{name}: steered twice for one batch"
            accepted = link.accepted.body if link.accepted is not None else None
            over = isinstance(accepted, DesiredPlacement) and accepted.decision == f"{move.decision}-stop"
            self.law("stop", not over, f"{name}: steered again after the stop")
        else:
            self._begun(link, move)
        self.turn.setdefault(name, world.driver.turns)
        self.told_in[name], self.told_at[name] = query.batch, world.now
        self._paced(link, query)

    @staticmethod
    def after_of(link: Link, name: str) -> int:
        return sum(line.move == name and line.after == MoveState.STEERED for line in link.sent)

    @staticmethod
    def _begun(link: Link, move: Move) -> None:
        if not move.until:
            assert link.accepted is not None
            assert isinstance(link.accepted.body, DesiredPlacement)
            assert move.decision == link.accepted.body.decision, f"{move.wanted.move}: its decision is over"
        for other in link.reconciler.moves:
            if other.decision == move.decision and other.wanted.step < move.wanted.step:
                assert not other.unsettled, f"{move.wanted.move} overtook {other.wanted.move}"
                closing = other.state is MoveState.DRAINED and not link.reconciler.limits.overlap
                assert not closing, f"{move.wanted.move} overlaps {other.wanted.move}"

    def _paced(self, link: Link, query: Query) -> None:
        most = link.reconciler.limits
        pending = [
            move.wanted
            for move in link.reconciler.moves
            if move.state == "steered"
            and move.wanted.query == query.name
            and query.ran[move.wanted.stage][move.wanted.partition] <= self.told_in.get(move.wanted.move, -1)
            and query.placement[move.wanted.stage][move.wanted.partition] != move.wanted.target
        ]
        assert len(pending) <= most.moves_per_batch, "one batch takes over more partitions than it may"
        size = sum(wanted.bytes for wanted in pending)
        few = len(pending) == 1 or size <= most.bytes_per_batch
        self.law("bytes", few, f"one batch takes over {size:g} bytes")

    def unsettled(self, unit: Unit) -> None:
        self.brought.pop(unit, None)

    def check(self, link: Link) -> None:
        moves, checked = link.reconciler.moves, (len(link.sent), link.reconciler.missed)
        assert link.reconciler.missed == len(self.misses)
        if checked == self._checked:
            return
        self._checked = checked
        assert {move.wanted.move: str(move.state) for move in moves} == self.last, "the journal tells another story"
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
                assert where == self.brought.get(unit, where), f"{unit} was brought elsewhere"


def _held(link: Link, move: Move) -> bool:
    held = not move.until and link.accepted is not None and getattr(link.accepted.body, "hold", False)
    return link.reconciler.paused or held


def _expired(link: Link, move: Move) -> bool:
    return link.world.now >= (move.until or (link.accepted.expires if link.accepted is not None else 0.0))


def laws(world: World) -> Laws:
    assert isinstance(world.link.watch, Laws)
    return world.link.watch


# -- small plans --


def desired(world: World, name: str, *moves: DesiredMove) -> DesiredPlacement:
    return DesiredPlacement(
        decision=name, runs={query.name: query.run for query in world.driver.queries.values()}, moves=list(moves)
    )


def several_steps() -> World:
    """Two queries; two stages, one with two stores; jobs without state; old copies closed early."""
    a = Query("a", [[0, 1]], {0: ["0", "0", "1"], 1: ["0", "1"]}, stores={1: 2})
    b = Query("b", [[], [0]], {0: ["0", "0", "2"]})
    world = World(Driver([a, b], "012", "early"), limits(), Laws)
    order(
        world,
        a_move(("a", 0, 0), "0", "1", 0),
        a_move(("b", 0, 0), "0", "2", 0),
        a_move(("a", 1, 0), "0", "2", 1),
        a_move(("a", 0, 1), "0", "2", 1),
        a_move(("b", 0, 1), "0", "1", 2),
    )
    return world


def bounded_pace() -> World:
    """More partitions and bytes in one step than one batch may take over; old copies closed at the maintenance."""
    a = Query("a", [[0, 1]], {0: ["0", "0", "0"], 1: ["0"]}, stores={0: 2})
    b = Query("b", [[0]], {0: ["1", "1"]})
    world = World(Driver([a, b], "012", "late"), limits(moves_per_batch=2, bytes_per_batch=100.0, max_replay=2), Laws)
    units = [("a", 0, 0), ("a", 0, 1), ("a", 0, 2)]
    heavy = [a_move(unit, "0", "12"[unit[2] % 2], 0, size=60.0) for unit in units]
    order(world, *heavy, a_move(("a", 1, 0), "0", "2", 1), a_move(("b", 0, 1), "1", "0", 1, size=500.0))
    return world


def idle_query() -> World:
    """One of the queries gets no input; nobody hears of what is closed; no step overlaps the one before it."""
    a = Query("a", [[0]], {0: ["0", "0", "1"]})
    b = Query("b", [[0]], {0: ["0", "1"]}, idle=True)
    world = World(Driver([a, b], "012", "unseen"), limits(overlap=False, presume=3.0), Laws)
    order(
        world,
        a_move(("b", 0, 0), "0", "1", 0),
        a_move(("a", 0, 0), "0", "1", 0),
        a_move(("a", 0, 1), "0", "2", 1),
        a_move(("b", 0, 1), "1", "2", 1),
    )
    return world


def exchange() -> World:
    """Executors exchange partitions, twice the same partition's neighbor; a short deadline."""
    a = Query("a", [[0, 1]], {0: ["0", "1"], 1: ["0", "1"]})
    b = Query("b", [[0]], {0: ["0", "1"]})
    world = World(Driver([a, b], "012", "late"), limits(deadline_batches=2, max_replay=0, deadline_seconds=40), Laws)
    order(
        world,
        a_move(("a", 0, 0), "0", "1", 0),
        a_move(("a", 0, 1), "1", "0", 0),
        a_move(("b", 0, 0), "0", "1", 1),
        a_move(("b", 0, 1), "1", "0", 1),
        a_move(("a", 1, 0), "0", "1", 2),
        a_move(("a", 1, 1), "1", "0", 2),
    )
    return world


def order(world: World, *moves: DesiredMove, name: str = "d1") -> None:
    assert world.controller is not None
    world.controller.order(desired(world, name, *moves))


PLANS = [several_steps, bounded_pace, idle_query, exchange]


def one_round(world: World) -> Iterator[Event]:
    """One batch of every query that has input, in turns, with the link looking whenever one became quiet."""
    yield world.lead
    yield world.look
    queries = [query for query in world.driver.queries.values() if not query.idle]
    for _ in range(max(1 + 3 * len(query.jobs) for query in queries)):
        for query in queries:
            yield lambda query=query: world.advance(query)  # type: ignore[misc]
        if any(query.quiet for query in queries):
            yield world.look
    yield world.maintain
    yield lambda: world.tick(2.0)


def run(world: World, cut: int, interruption: Interruption) -> bool:
    """Run a plan to its end, interrupted after so many events; False where it has ended before."""
    later: dict[int, Event] = {}
    count = 0
    while world.link.reconciler.busy or count < 3 or (count > cut and later):
        for event in one_round(world):
            event()
            laws(world).check(world.link)
            if count == cut:
                later = {count + after: follow for after, follow in interruption(world).items()}
            elif count in later:
                later.pop(count)()
            count += 1
        assert count < 500, "it does not end"
    return cut < count


def let_it_end(world: World, *, renewed: bool = True) -> None:
    """Let the world go on undisturbed until nothing is left to do; idle queries get input in the end."""
    world.paused, world.racing, world.link.failing, world.link.deaf = False, -1, 0, 0
    world.driver.strays.clear()
    if renewed and world.controller is None:
        world.succeed()
    for final in (False, True):
        for query in world.driver.queries.values():
            query.idle = query.idle and not final
        for _ in range(60):
            for event in one_round(world):
                event()
            laws(world).check(world.link)
            if not (world.link.reconciler.moving if final else world.link.reconciler.busy):
                break
            world.tick(3.0)
        world.tick(1.0)
    world.look()
    world.tick(world.limits.presume)
    laws(world).check(world.link)
    laws(world).check_end(world)


# -- interruptions --


def nothing(world: World) -> dict[int, Event]:
    return {}


def new_leader(world: World) -> dict[int, Event]:
    """The controller dies, another one takes over; the old one's last message comes late."""
    old = world.controller
    world.controller = None

    def late() -> None:
        if old is not None and old.migration is not None:
            old.put(old.migration.desired)

    return {7: world.succeed, 9: late}


def emptied(world: World) -> dict[int, Event]:
    """Redis is emptied: the message is lost, if it was not read yet."""
    world.slot = None
    return {}


def doubled(world: World) -> dict[int, Event]:
    if world.slot is not None:
        world.link.take(world.slot)
        world.link.take(world.slot)
    return {}


def reordered(world: World) -> dict[int, Event]:
    """Messages of before come again, the last first, also after those of a new leader."""

    def again() -> None:
        for envelope in reversed(world.history):
            world.link.take(envelope)

    again()
    return {5: world.succeed, 10: again}


def silence(world: World) -> dict[int, Event]:
    world.controller = None
    return {}


def asleep(world: World) -> dict[int, Event]:
    """The driver's machine sleeps, or is cut off, until what was wanted has expired; then comes an old message."""
    world.now += 40.0
    for envelope in world.history:
        world.link.take(envelope)
    world.link.boundary(world.driver.queries["a"])
    world.link.boundary(world.driver.queries["b"])
    return {}


def stopped(world: World) -> dict[int, Event]:
    if world.controller is not None:
        world.controller.stop()
    return {}


def stopped_while_a_batch_strays(world: World) -> dict[int, Event]:
    stray_back(world)
    return stopped(world)


def stopped_by_the_next_leader(world: World) -> dict[int, Event]:
    def stop() -> None:
        world.succeed()
        stopped(world)

    world.controller = None
    return {3: stop}


def held(world: World) -> dict[int, Event]:
    world.paused = True

    def release() -> None:
        world.paused = False

    return {30: release}


def held_while_a_batch_strays(world: World) -> dict[int, Event]:
    stray_back(world)
    return {1: lambda: held(world) and None, 31: lambda: setattr(world, "paused", False)}


def driver_dies(world: World) -> dict[int, Event]:
    world.driver_dies()

    def again() -> None:
        if world.history:
            world.link.take(world.history[-1])

    return {4: again}


def lose(executor: str) -> Interruption:
    def lost(world: World) -> dict[int, Event]:
        world.lose(executor)
        return {20: lambda: world.join("3"), 40: lambda: world.lose("3")}

    return lost


def leaves(executor: str) -> Interruption:
    """An executor is to leave, and does."""

    def leaving(world: World) -> dict[int, Event]:
        world.leaving.add(executor)
        return {40: lambda: world.lose(executor)}

    return leaving


def leaves_while_a_batch_strays(world: World) -> dict[int, Event]:
    stray_back(world)
    world.leaving.add("1")
    return {}


def disk_full(writes: int) -> Interruption:
    def full(world: World) -> dict[int, Event]:
        world.link.failing = writes
        return {}

    return full


def disk_full_while_a_batch_strays(world: World) -> dict[int, Event]:
    stray_away(world)
    return {4: lambda: setattr(world.link, "failing", 2)}


def deaf(world: World) -> dict[int, Event]:
    """Steers fail."""
    world.link.deaf = 3
    return {}


def superseded(world: World) -> dict[int, Event]:
    """Another decision, which wants some of the partitions elsewhere."""
    moves = []
    for query in world.driver.queries.values():
        for unit in query.units[::2]:
            where = query.placement[unit[1]][unit[2]]
            target = "012"[("012".index(where) + 2) % 3] if where in "012" else "0"
            moves.append(a_move(unit, where, target, unit[2] % 2, name=f"d2.{unit}"))
    if world.controller is not None:
        order(world, *moves, name="d2")
    return {}


def superseded_and_brought_back(world: World) -> dict[int, Event]:
    """Redis goes back in time: after another decision the first one stands there again, of a new leader."""
    first = world.history[0]
    superseded(world)

    def back() -> None:
        world.slot = first
        world.succeed()

    return {6: back}


def restart(name: str) -> Interruption:
    def restarted(world: World) -> dict[int, Event]:
        world.restart(world.driver.queries[name])
        return {}

    return restarted


def stray_back(world: World) -> dict[int, Event]:
    """The next batch runs everything where it ran last."""
    world.driver.strays = {unit: "back" for query in world.driver.queries.values() for unit in query.units}
    return {}


def stray_away(world: World) -> dict[int, Event]:
    """The next batch runs everything on a third executor."""
    world.driver.strays = {unit: "away" for query in world.driver.queries.values() for unit in query.units}
    return {}


def stray_ever(world: World) -> dict[int, Event]:
    """Batch after batch runs everything where it ran last, and lasts long."""

    def again() -> None:
        stray_back(world)
        world.slow = True

    again()
    return dict.fromkeys(range(3, 60, 3), again)


def failed_task(world: World) -> dict[int, Event]:
    """One task fails and is run again elsewhere."""
    world.driver.strays = {("a", 0, 0): "away", ("b", 0, 0): "away"}
    return {}


def overwritten(world: World) -> dict[int, Event]:
    """Tasks that outlived their stage report themselves again, as often as one looks."""

    def again() -> None:
        for query in world.driver.queries.values():
            for unit in query.units if query.quiet else []:
                world.overwrite(unit)

    again()
    return dict.fromkeys(range(1, 10), again)


def races(after: int) -> Interruption:
    def race(world: World) -> dict[int, Event]:
        world.racing = after
        return {}

    return race


def slow(world: World) -> dict[int, Event]:
    world.slow = True
    return {}


INTERRUPTIONS: dict[str, Interruption] = {
    "nothing": nothing,
    "a new leader": new_leader,
    "an emptied Redis": emptied,
    "doubled messages": doubled,
    "reordered messages": reordered,
    "no leader any more": silence,
    "the driver sleeps": asleep,
    "stop": stopped,
    "stop while a batch strays": stopped_while_a_batch_strays,
    "stop by the next leader": stopped_by_the_next_leader,
    "hold and release": held,
    "hold while a batch strays": held_while_a_batch_strays,
    "the driver dies": driver_dies,
    "executor 0 is lost": lose("0"),
    "executor 1 is lost": lose("1"),
    "executor 2 is lost": lose("2"),
    "executor 1 leaves": leaves("1"),
    "executor 1 leaves while a batch strays": leaves_while_a_batch_strays,
    "the disk is full once": disk_full(1),
    "the disk is full for long": disk_full(8),
    "the disk is full while a batch strays": disk_full_while_a_batch_strays,
    "steers fail": deaf,
    "another decision": superseded,
    "another decision, and back": superseded_and_brought_back,
    "query a restarts": restart("a"),
    "query b restarts": restart("b"),
    "a batch runs where it ran": stray_back,
    "a batch runs elsewhere": stray_away,
    "no batch obeys": stray_ever,
    "a task fails": failed_task,
    "steers are overwritten": overwritten,
    "a batch begins before a steer": races(0),
    "a batch begins between two steers": races(1),
    "a slow batch": slow,
}


@pytest.mark.parametrize("kind", INTERRUPTIONS)
def test_whatever_interrupts_a_plan_wherever_it_goes_on_and_ends(kind: str) -> None:
    cases = 0
    for plan in PLANS:
        for cut in itertools.count():
            world = plan()
            try:
                if not run(world, cut, INTERRUPTIONS[kind]):
                    break
                let_it_end(world, renewed=kind != "no leader any more")
            except AssertionError as error:
                error.add_note(f"plan {plan.__name__}, {kind}, after event {cut}")
                raise
            cases += 1
    assert cases >= 200


def test_thousands_of_cases_are_tried() -> None:
    """The longest plan is cut most often; all kinds together are well over five thousand cases."""
    cuts = [next(cut for cut in itertools.count() if not run(plan(), cut, nothing)) for plan in PLANS]
    assert sum(cuts) * len(INTERRUPTIONS) >= 5000


# -- by chance --

QUERIES = st.sampled_from("ab")
KINDS = st.sampled_from([kind for kind in INTERRUPTIONS if kind != "nothing"])


class AnyScript(RuleBasedStateMachine):
    """Any order of events and interruptions."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.later: list[tuple[int, Event]] = []

    @initialize(plan=st.sampled_from(PLANS))
    def begin(self, plan: Callable[[], World]) -> None:
        self.world = plan()

    @rule(name=QUERIES, steps=st.integers(1, 4))
    def advance(self, name: str, steps: int) -> None:
        for _ in range(steps):
            self.world.advance(self.world.driver.queries[name])
        self._next()

    @rule()
    def look(self) -> None:
        self.world.look()
        self._next()

    @rule()
    def a_round(self) -> None:
        for event in one_round(self.world):
            event()
        self._next()

    @rule()
    def lead(self) -> None:
        self.world.lead()
        self._next()

    @rule(seconds=st.sampled_from([0.5, 1.0, 5.0, 40.0]))
    def tick(self, seconds: float) -> None:
        self.world.tick(seconds)
        self._next()

    @rule()
    def maintain(self) -> None:
        self.world.maintain()
        self._next()

    @rule(kind=KINDS)
    def interrupt(self, kind: str) -> None:
        self.later += [(self.count + after, event) for after, event in INTERRUPTIONS[kind](self.world).items()]
        self._next()

    @precondition(lambda self: self.world.controller is None)
    @rule()
    def succeed(self) -> None:
        self.world.succeed()
        self._next()

    @rule(unit=st.sampled_from([("a", 0, 0), ("a", 0, 1), ("b", 0, 0)]), goal=st.sampled_from("0123"))
    def order_one(self, unit: Unit, goal: str) -> None:
        if self.world.controller is not None:
            where = self.world.driver.queries[unit[0]].placement[unit[1]][unit[2]]
            order(self.world, a_move(unit, where, goal, 0, name=f"x{self.count}"), name=f"x{self.count}")
        self._next()

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "world"):
            laws(self.world).check(self.world.link)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            let_it_end(self.world)

    def _next(self) -> None:
        self.count += 1
        due = [event for at, event in self.later if at <= self.count]
        self.later = [(at, event) for at, event in self.later if at > self.count]
        for event in due:
            event()


TestAnyScript = AnyScript.TestCase
TestAnyScript.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


# -- breaches there were --


def one_move(*more: DesiredMove, partitions: int = 1, **given: float) -> World:
    """Return a world whose link steered the first of some partitions from 0 to 1."""
    a = Query("a", [[0]], {0: ["0"] * partitions})
    world = World(Driver([a], "012", "late"), limits(**given), Laws)
    order(world, a_move(("a", 0, 0), "0", "1", 0, size=60.0), *more)
    world.look()
    return world


def batch(world: World, *, steps: int = 4) -> None:
    for _ in range(steps):
        world.advance(world.driver.queries["a"])


def test_one_batch_takes_over_no_more_bytes_however_often_its_boundary_is_looked_at() -> None:
    world = one_move(a_move(("a", 0, 1), "0", "1", 0, size=60.0), partitions=2, bytes_per_batch=100.0)
    world.look()


def test_a_query_with_short_batches_is_not_idle() -> None:
    world = one_move(partitions=2)
    for _ in range(12):  # whenever a second is over, the query happens to be quiet
        world.tick(1.0)
        batch(world)
    order(world, a_move(("a", 0, 1), "0", "1", 0), name="d2")
    world.look()
    world.tick(1.0)


def test_nothing_is_said_again_to_an_executor_that_is_to_leave() -> None:
    world = one_move()
    stray_back(world)
    world.leaving.add("1")
    batch(world)
    world.look()


def test_a_copy_that_was_closed_and_opened_again_is_not_closed() -> None:
    world = one_move()
    world.maintain()  # executor 0 closes its copy, for the partition is executor 1's by now
    world.look()
    stray_back(world)  # and opens it again
    batch(world)
    world.look()
    batch(world)


def test_what_missed_is_not_read_back_but_said_again() -> None:
    world = one_move()
    stray_back(world)
    world.paused = True
    batch(world)
    world.look()


def test_nothing_is_read_back_while_held() -> None:
    world = one_move()
    world.paused = True
    world.overwrite(("a", 0, 0))
    world.look()


def test_nothing_is_said_again_after_a_stop() -> None:
    world = one_move()
    stray_back(world)
    stopped(world)
    batch(world)
    world.look()


def test_a_query_whose_last_batch_is_not_committed_yet_is_not_idle() -> None:
    world = one_move(partitions=2)
    world.tick(1.0)
    world.tick(11.0)  # nothing comes: released
    order(world, a_move(("a", 0, 1), "0", "1", 0), name="d2")
    batch(world, steps=3)
    world.look()
    world.tick(1.0)
    assert [move.state for move in world.link.reconciler.moves][-1] is MoveState.STEERED
