"""Every fault: its target, its strike, its repair.

A fault is mended by whoever mends it in the field: what was killed is started again after `RESTART` seconds, as the
units in ``systemd/`` do it, executors by Spark's own worker; pauses, cuts and full disks end after a while.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import redis

from rechannel.wire.redis.errors import StoreError
from tests.drills import network
from tests.drills.machine import faketime_why_not, signal_tree, tmpfs_why_not
from tests.drills.world import CONTROLLERS, NODES, World

RESTART = 2.0  # seconds: RestartSec of the units
AWAY = 20.0  # seconds that a killed Redis is away
PAUSE = 30.0  # seconds that what is paused or cut off stays so
JUMP = 3600  # seconds

Mend = Callable[[], None]


@dataclass(frozen=True)
class Fault:
    """One kind of fault.

    ``part``: what it hits; two faults of one part never overlap. ``strike`` returns how it is mended, ``lasts`` seconds
    later. ``healed_from``: whether recovery is counted from the ``strike`` (others step in, or the part is started
    again) or from the ``mend`` (until then nobody can). ``stalls``: whether it hits the queries themselves.
    ``prepare``: what has to be set up. ``ends_run``: whether the queries' run ends, and with it the moves under way.
    ``idle`` and ``moving``: whether it makes sense while nothing moves, and during a migration.
    """

    name: str
    part: str
    lasts: float
    strike: Callable[[World], Mend]
    healed_from: str = "mend"
    stalls: bool = False
    ends_run: bool = False
    idle: bool = True
    moving: bool = True
    prepare: Callable[[World], None] | None = None
    needs: tuple[Callable[[], str], ...] = field(default=(), repr=False)

    def why_not(self) -> str:
        """Say why it cannot be had on this machine, "" if it can."""
        return "; ".join(why for need in self.needs if (why := need()))


def _nothing() -> None:
    return


def _kill(world: World, name: str, start: Mend) -> Mend:
    if not world.alive(name):
        return _nothing
    world.group.kill(name)

    def mend() -> None:
        if not world.alive(name):
            start()

    return mend


def _pause(world: World, name: str) -> Mend:
    world.pause(name)
    return lambda: world.resume(name)


def _cut(world: World, part: str) -> Mend:
    net = world.network
    if net is None:
        return _nothing
    net.cut(part)
    return lambda: net.mend(part)


def _leader(world: World) -> str:
    """Return the controller that leads; while nobody says so, the first that runs."""
    leader = world.leader(time.time() - 20)
    return leader or next((name for name in CONTROLLERS if world.alive(f"controller-{name}")), CONTROLLERS[0])


def _kill_agent(world: World) -> Mend:
    return _kill(world, f"agent-{NODES[0]}", lambda: world.start_agent(NODES[0]))


def _cut_driver(world: World) -> Mend:
    return _cut(world, "cluster")


def _kill_leader(world: World) -> Mend:
    name = _leader(world)
    return _kill(world, f"controller-{name}", lambda: world.start_controller(name))


def _pause_leader(world: World) -> Mend:
    return _pause(world, f"controller-{_leader(world)}")


def _cut_leader(world: World) -> Mend:
    return _cut(world, _leader(world))


def _jump(world: World, seconds: int) -> Mend:
    def back() -> None:
        world.fake_clock.write_text("+0s\n")

    world.fake_clock.write_text(f"{seconds:+d}s\n")
    return back


def _fake_clocks(world: World) -> None:
    """Have both controllers live by a clock that can be set: it jumps for whichever leads, and for its stand-by."""
    world.fake_clock.write_text("+0s\n")
    for name in CONTROLLERS:
        world.group.kill(f"controller-{name}")
        world.start_controller(name, fake_clock=True)


def _kill_redis(world: World) -> Mend:
    return _kill(world, "redis", world.start_redis)


def _lose_redis(world: World) -> Mend:
    return _kill(world, "redis", lambda: world.start_redis(empty=True))


def _empty_redis(world: World) -> Mend:
    client = redis.Redis(unix_socket_path=str(world.redis.socket_path), socket_timeout=10)
    with contextlib.suppress(redis.RedisError), contextlib.closing(client):
        client.flushall()
    return _nothing


def _kill_driver(world: World) -> Mend:
    return _kill(world, "driver", world.start_application)


def _kill_executor(world: World, node: str) -> Mend:
    world.cluster.kill_executor(node)
    return _nothing


def _pause_executor(world: World, node: str) -> Mend:
    pids = [executor.pid for executor in world.cluster.executors(node)]
    for pid in pids:
        signal_tree(pid, signal.SIGSTOP)

    def mend() -> None:
        for pid in pids:
            signal_tree(pid, signal.SIGCONT)

    return mend


def _node_of(world: World, end: str) -> str:
    """Return the node of the executor that the next move leaves (``source``) or goes to (``target``)."""
    try:
        report = world.report()
    except StoreError:
        report = None  # Redis is down too
    if report is not None:
        hosts = {info.executor: info.host for info in report.body.executors}
        for state in ("steered", "prepared", "planned"):
            for view in report.body.moves:
                if view.state == state and getattr(view, end) in hosts:
                    return str(hosts[getattr(view, end)])
    return NODES[0]


def _fill_disk(world: World) -> Mend:
    """Fill the link's own disk to the last byte; what frees itself meanwhile is not filled again."""
    ballast = world.link_directory / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        for size in (2**20, 2**12, 1):
            with contextlib.suppress(OSError):
                while file.write(b"\0" * size):
                    pass
    return lambda: ballast.unlink(missing_ok=True)


_NETWORK, _CLOCK = (network.why_not,), (faketime_why_not,)


def _of_clock(name: str, seconds: int) -> Fault:
    return Fault(name, "controller", PAUSE, lambda world: _jump(world, seconds), prepare=_fake_clocks, needs=_CLOCK)


def _of_executor(name: str, end: str, *, hangs: bool) -> Fault:
    """Return a fault of an executor: of one of the nodes while nothing moves, else of an ``end`` of the next move."""

    def strike(world: World) -> Mend:
        node = _node_of(world, end) if end else NODES[hangs]
        return (_pause_executor if hangs else _kill_executor)(world, node)

    when = {"idle": not end, "moving": bool(end)}
    if hangs:
        return Fault(f"{name} hangs", "executor", PAUSE, strike, stalls=True, **when)
    return Fault(f"{name} is killed", "executor", 0.0, strike, "strike", stalls=True, **when)


_GIVES, _TAKES = "the executor that gives partitions", "the executor that takes partitions"
FAULTS: tuple[Fault, ...] = (
    Fault("an agent is killed", "agent-1", RESTART, _kill_agent, "strike"),
    Fault("an agent hangs", "agent-2", PAUSE, lambda world: _pause(world, f"agent-{NODES[1]}")),
    Fault("an agent is cut off from Redis", "agent-3", PAUSE, lambda world: _cut(world, NODES[2]), needs=_NETWORK),
    Fault("the leading controller is killed", "controller", RESTART, _kill_leader, "strike"),
    Fault("the leading controller hangs", "controller", PAUSE, _pause_leader, "strike"),
    Fault("the leading controller is cut off from Redis", "controller", PAUSE, _cut_leader, "strike", needs=_NETWORK),
    _of_clock("the controllers' clocks jump an hour ahead and back", JUMP),
    _of_clock("the controllers' clocks jump an hour back and ahead", -JUMP),
    Fault("Redis is killed and comes back with what it had", "redis", AWAY, _kill_redis),
    Fault("Redis is killed and comes back empty", "redis", AWAY, _lose_redis),
    Fault("Redis hangs", "redis", PAUSE, lambda world: _pause(world, "redis")),
    Fault("Redis is emptied", "redis-content", 0.0, _empty_redis),
    Fault("the driver is killed", "driver", RESTART, _kill_driver, "strike", stalls=True, ends_run=True),
    Fault("the driver hangs", "driver", PAUSE, lambda world: _pause(world, "driver"), stalls=True),
    Fault("the driver is cut off from Redis", "driver-network", PAUSE, _cut_driver, needs=_NETWORK),
    _of_executor("an executor", "", hangs=False),
    _of_executor("an executor", "", hangs=True),
    _of_executor(_GIVES, "source", hangs=False),
    _of_executor(_TAKES, "target", hangs=False),
    _of_executor(_GIVES, "source", hangs=True),
    _of_executor(_TAKES, "target", hangs=True),
    Fault("the disk of the link's event stream is full", "disk", PAUSE, _fill_disk, needs=(tmpfs_why_not,)),
)
