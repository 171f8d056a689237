"""Small plans, and interruptions of them.

Each interruption happens now and returns what follows after more events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rechannel.wire.messages import DesiredMove, DesiredPlacement
from unit.migration.driver_model import Driver, Query, World, a_move, limits
from unit.migration.laws import Laws, laws

Event = Callable[[], object]
Interruption = Callable[[World], dict[int, Event]]  # done now; returns what follows after so many events more


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


def bounded_rate() -> World:
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


PLANS = [several_steps, bounded_rate, idle_query, exchange]


def one_round(world: World) -> Iterator[Event]:
    """One batch of every query that has input, in turns, with the link looking whenever one became quiet."""
    yield world.lead
    yield world.run_once
    queries = [query for query in world.driver.queries.values() if not query.idle]
    for _ in range(max(1 + 3 * len(query.jobs) for query in queries)):
        for query in queries:
            yield lambda query=query: world.advance(query)  # type: ignore[misc]
        if any(query.quiet for query in queries):
            yield world.run_once
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
    world.paused, world.racing, world.link.failing_steers = False, -1, 0
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
    world.run_once()
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
            old.publish(old.migration.desired)

    return {7: world.succeed, 9: late}


def emptied(world: World) -> dict[int, Event]:
    """Redis is emptied: the message is lost, if it was not read yet."""
    world.slot = None
    return {}


def doubled(world: World) -> dict[int, Event]:
    if world.slot is not None:
        world.link.accept(world.slot)
        world.link.accept(world.slot)
    return {}


def reordered(world: World) -> dict[int, Event]:
    """Messages of before come again, the last first, also after those of a new leader."""

    def again() -> None:
        for envelope in reversed(world.history):
            world.link.accept(envelope)

    again()
    return {5: world.succeed, 10: again}


def silence(world: World) -> dict[int, Event]:
    world.controller = None
    return {}


def asleep(world: World) -> dict[int, Event]:
    """The driver's machine sleeps, or is cut off, until what was wanted has expired; then comes an old message."""
    world.now += 40.0
    for envelope in world.history:
        world.link.accept(envelope)
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
            world.link.accept(world.history[-1])

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


def failing_steers(world: World) -> dict[int, Event]:
    """Steers fail."""
    world.link.failing_steers = 3
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
    "steers fail": failing_steers,
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
