"""Small plans, and interruptions of them.

Each interruption happens now and returns what follows after more events, None if nothing does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial

from rechannel.wire.messages import DesiredMove, DesiredPlacement, Unit
from unit.migration.driver_model import World, limits
from unit.migration.samples import a_move
from unit.migration.spark_model import Driver, Query

Event = Callable[[], object]
Interruption = Callable[[World], dict[int, Event] | None]


# -- small plans --


def order(world: World, *moves: DesiredMove, name: str = "d1") -> None:
    """Have the leader order moves."""
    assert world.controller is not None
    runs = {query.name: query.run for query in world.driver.queries.values()}
    world.controller.order(DesiredPlacement(decision=name, runs=runs, moves=list(moves)))


def ordered(queries: list[Query], closing: str, plan: str, **changes: float) -> World:
    """Return a world of three executors in which a plan was ordered.

    Parameters
    ----------
    queries
        What runs.
    closing
        When executors close old copies, see `Driver`.
    plan
        Moves such as ``a.0.1: 0>2 @60`` (query, stage and partition: source > target @ bytes), ``|`` between steps.
    **changes
        Limits of the link other than the usual ones.
    """
    world, moves = World(Driver(queries, "012", closing), limits(**changes)), []
    for step, texts in enumerate(plan.split("|")):
        for text in texts.split(","):
            query, stage, partition, source, target, *size = re.findall(r"\w+", text)
            unit = query, int(stage), int(partition)
            moves.append(a_move(unit, source, target, step, size=float(size[0]) if size else 0.0))
    order(world, *moves)
    return world


def several_steps() -> World:
    """Two queries; two stages, one with two stores; jobs without state; old copies closed early."""
    a = Query("a", [[0, 1]], {0: ["0", "0", "1"], 1: ["0", "1"]}, stores={1: 2})
    b = Query("b", [[], [0]], {0: ["0", "0", "2"]})
    return ordered([a, b], "early", "a.0.0: 0>1, b.0.0: 0>2 | a.1.0: 0>2, a.0.1: 0>2 | b.0.1: 0>1")


def bounded_rate() -> World:
    """More partitions and bytes in one step than one batch may take over; old copies closed at the maintenance."""
    a = Query("a", [[0, 1]], {0: ["0", "0", "0"], 1: ["0"]}, stores={0: 2})
    b = Query("b", [[0]], {0: ["1", "1"]})
    plan = "a.0.0: 0>1 @60, a.0.1: 0>2 @60, a.0.2: 0>1 @60 | a.1.0: 0>2, b.0.1: 1>0 @500"
    return ordered([a, b], "late", plan, moves_per_batch=2, bytes_per_batch=100.0, max_lag=2)


def idle_query() -> World:
    """One of the queries gets no input; nobody hears of what is closed; no step overlaps the one before it."""
    a = Query("a", [[0]], {0: ["0", "0", "1"]})
    b = Query("b", [[0]], {0: ["0", "1"]}, idle=True)
    plan = "b.0.0: 0>1, a.0.0: 0>1 | a.0.1: 0>2, b.0.1: 1>2"
    return ordered([a, b], "unseen", plan, overlap=False, presume=3.0)


def exchange() -> World:
    """Executors exchange partitions, twice the same partition's neighbor; a short deadline."""
    a = Query("a", [[0, 1]], {0: ["0", "1"], 1: ["0", "1"]})
    b = Query("b", [[0]], {0: ["0", "1"]})
    plan = "a.0.0: 0>1, a.0.1: 1>0 | b.0.0: 0>1, b.0.1: 1>0 | a.1.0: 0>1, a.1.1: 1>0"
    return ordered([a, b], "late", plan, deadline_batches=2, max_lag=0, deadline_seconds=40)


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
    while world.link.busy or count < 3 or (count > cut and later):
        for event in one_round(world):
            event()
            world.link.laws.check(world.link)
            if count == cut:
                later = {count + after: follow for after, follow in (interruption(world) or {}).items()}
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
            world.link.laws.check(world.link)
            if not (world.link.reconciler.moving if final else world.link.busy):
                break
            world.tick(3.0)
        world.tick(1.0)
    world.run_once()
    world.tick(world.limits.presume)
    world.link.laws.check(world.link)
    world.link.laws.check_end(world)


# -- interruptions --


def setting(**changes: object) -> Interruption:
    """Return an interruption that sets attributes of the world."""
    return lambda world: vars(world).update(changes)


def while_a_batch_strays(interruption: Interruption) -> Interruption:
    """Return an interruption in whose batch everything runs where it ran last."""

    def interrupt(world: World) -> dict[int, Event] | None:
        stray_back(world)
        return interruption(world)

    return interrupt


def new_leader(world: World) -> dict[int, Event]:
    """The controller dies, another one takes over; the old one's last message comes late."""
    old, world.controller = world.controller, None

    def late() -> None:
        if old is not None and old.migration is not None:
            old.publish(old.migration.desired)

    return {7: world.succeed, 9: late}


def doubled(world: World) -> None:
    if world.slot is not None:
        world.link.accept(world.slot)
        world.link.accept(world.slot)


def reordered(world: World) -> dict[int, Event]:
    """Messages of before come again, the last first, also after those of a new leader."""

    def again() -> None:
        for envelope in reversed(world.history):
            world.link.accept(envelope)

    again()
    return {5: world.succeed, 10: again}


def asleep(world: World) -> None:
    """The driver's machine sleeps, or is cut off, until what was wanted has expired; then comes an old message."""
    world.now += 40.0
    for envelope in world.history:
        world.link.accept(envelope)
    for query in world.driver.queries.values():
        world.link.boundary(query)


def stopped(world: World) -> None:
    if world.controller is not None:
        world.controller.stop()


def stopped_by_the_next_leader(world: World) -> dict[int, Event]:
    def stop() -> None:
        world.succeed()
        stopped(world)

    world.controller = None
    return {3: stop}


def held(world: World) -> dict[int, Event]:
    world.paused = True
    return {30: partial(setattr, world, "paused", False)}


def held_while_a_batch_strays(world: World) -> dict[int, Event]:
    stray_back(world)
    return {1: partial(setattr, world, "paused", True), 31: partial(setattr, world, "paused", False)}


def driver_dies(world: World) -> dict[int, Event]:
    world.driver_dies()
    return {4: lambda: world.history and world.link.accept(world.history[-1])}


def lose(executor: str) -> Interruption:
    def lost(world: World) -> dict[int, Event]:
        world.lose(executor)
        return {20: lambda: world.join("3"), 40: lambda: world.lose("3")}

    return lost


def leaves(executor: str) -> Interruption:
    """An executor is to leave, and does."""

    def leaving(world: World) -> dict[int, Event]:
        world.unusable.add(executor)
        return {40: lambda: world.lose(executor)}

    return leaving


def failing_steers(world: World) -> None:
    world.link.failing_steers = 3


def superseded(world: World) -> None:
    """Another decision, which wants some of the partitions elsewhere."""
    moves = []
    for query in world.driver.queries.values():
        for unit in query.units[::2]:
            where = query.placement[unit[1]][unit[2]]
            target = "012"[("012".index(where) + 2) % 3] if where in "012" else "0"
            moves.append(a_move(unit, where, target, unit[2] % 2, name=f"d2.{unit}"))
    if world.controller is not None:
        order(world, *moves, name="d2")


def superseded_and_brought_back(world: World) -> dict[int, Event]:
    """Redis goes back in time: after another decision the first one stands there again, of a new leader."""
    first = world.history[0]
    superseded(world)

    def back() -> None:
        world.slot = first
        world.succeed()

    return {6: back}


def restart(name: str) -> Interruption:
    return lambda world: world.restart(world.driver.queries[name])


def stray(where: str) -> Interruption:
    """Return the interruption that the next batch runs everything where it ran last ("back"), or elsewhere ("away")."""

    def interrupt(world: World) -> None:
        world.driver.strays = {unit: where for query in world.driver.queries.values() for unit in query.units}

    return interrupt


stray_back = stray("back")


def stray_ever(world: World) -> dict[int, Event]:
    """Batch after batch runs everything where it ran last, and lasts long."""

    def again() -> None:
        stray_back(world)
        world.slow = True

    again()
    return dict.fromkeys(range(3, 60, 3), again)


def failed_task(world: World) -> None:
    """One task fails and is run again elsewhere."""
    world.driver.strays = {Unit("a", 0, 0): "away", Unit("b", 0, 0): "away"}


def overwritten(world: World) -> dict[int, Event]:
    """Tasks that outlived their stage report themselves again, as often as one looks."""

    def again() -> None:
        for query in world.driver.queries.values():
            for unit in query.units if query.quiet else []:
                world.overwrite(unit)

    again()
    return dict.fromkeys(range(1, 10), again)


INTERRUPTIONS: dict[str, Interruption] = {
    "nothing": setting(),
    "a new leader": new_leader,
    "an emptied Redis": setting(slot=None),  # the message is lost, if it was not read yet
    "doubled messages": doubled,
    "reordered messages": reordered,
    "no leader any more": setting(controller=None),
    "the driver sleeps": asleep,
    "stop": stopped,
    "stop while a batch strays": while_a_batch_strays(stopped),
    "stop by the next leader": stopped_by_the_next_leader,
    "hold and release": held,
    "hold while a batch strays": held_while_a_batch_strays,
    "the driver dies": driver_dies,
    "executor 0 is lost": lose("0"),
    "executor 1 is lost": lose("1"),
    "executor 2 is lost": lose("2"),
    "executor 1 leaves": leaves("1"),
    "executor 1 leaves while a batch strays": while_a_batch_strays(lambda world: world.unusable.add("1")),
    "steers fail": failing_steers,
    "another decision": superseded,
    "another decision, and back": superseded_and_brought_back,
    "query a restarts": restart("a"),
    "query b restarts": restart("b"),
    "a batch runs where it ran": stray_back,
    "a batch runs elsewhere": stray("away"),
    "no batch obeys": stray_ever,
    "a task fails": failed_task,
    "steers are overwritten": overwritten,
    "a batch begins before a steer": setting(racing=0),
    "a batch begins between two steers": setting(racing=1),
    "a slow batch": setting(slow=True),
}
