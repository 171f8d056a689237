"""Views with sample figures; in `tests`, ``python -m unit.daemon.web.sample`` serves them as a web page."""

from __future__ import annotations

import argparse
import dataclasses
import math
import time
from typing import Any

from rechannel.daemon.control.leadership import Role
from rechannel.daemon.control.migrations import MigrationStatus
from rechannel.daemon.view.status import (
    ApplicationStatus,
    ControllerView,
    DecisionView,
    DrainState,
    DrainStatus,
    ExecutorStatus,
    HotStream,
    LeaderStatus,
    LinkCounters,
    MoveStatus,
    PartitionStatus,
    QueryStatus,
    ReadinessStatus,
    StageStatus,
)
from rechannel.wire.messages import ExecutorLoad, Refusal
from unit.sample_messages import decision, desired_move, migration_cost, outcome

_APPLICATION = "app-20260301090000-0007"
_QUERIES = {
    "clicks": ("5e3d1f0a-8a3c-4a64-9a7e-2f4b8c1d0e11", 16, 3.1),
    "sessions": ("b1c2d3e4-1111-4222-8333-444455556666", 12, 4.4),
    "orders-join": ("0f9e8d7c-aaaa-4bbb-8ccc-ddddeeeeffff", 24, 2.6),
}
_NODES = ("node-1", "node-2", "node-3", "node-4")
_EXECUTORS = 8  # two on each node, numbered from 0
_MOVED = 6  # of the running migration
_DRAINED = "node-4"


def sample(now: float, step: int = 0) -> ControllerView:
    """Return the view of a cluster in the middle of a migration; it goes on with each ``step``."""
    held = _held()
    landed = step % (_MOVED + 1)
    for query, partition, _, target in _moves()[:landed]:
        held[query, partition] = target
    return ControllerView(
        at=now,
        cluster="production",
        name="controller-1/3fa2b1",
        role=Role.LEADING,
        controller=LeaderStatus(
            leader="controller-1/3fa2b1",
            since=now - 86_400,
            epoch=7,
            mode="apply",
            next_decision=now + 300 - (3 * step) % 300,
            last_sentence=f"{_APPLICATION}: {landed} of {_MOVED} moves have landed",
        ),
        redis_up=True,
        redis_round_trip=0.0004,
        read_at=now,
        applications=(_application(held, landed, step),),
        migrations=_migrations(landed),
        drains=(_drain(now, held),),
        decisions=_decisions(now),
        version="sample",
    )


def empty(now: float) -> ControllerView:
    """Return the view of a leader to whom no application has reported."""
    leader = LeaderStatus("c", epoch=1)
    return dataclasses.replace(sample(now), controller=leader, applications=(), migrations=(), drains=(), decisions=())


def away(now: float) -> ControllerView:
    """Return the view of a controller that lost Redis, and with it the lead."""
    view = sample(now)
    return dataclasses.replace(
        view,
        role=Role.STANDING_BY,
        controller=dataclasses.replace(view.leader, leader=""),
        redis_up=False,
        redis_problem="redis.internal:6379: connection refused",
        redis_round_trip=None,
        read_at=now - 95,
    )


def _weight(query: str, partition: int) -> float:
    """Busy seconds a batch: few partitions have most of it, as with real keys."""
    return 1.5 / math.pow(1 + (partition * 5 + len(query) * 3) % 11, 1.25)


def _held() -> dict[tuple[str, int], int]:
    """Which executor holds which partition: a first micro-batch that used few of them."""
    return {
        (name, partition): (partition * partition + len(name)) % _EXECUTORS if partition % 3 else partition % 3 + 1
        for name, (_, partitions, _) in _QUERIES.items()
        for partition in range(partitions)
    }


def _moves() -> list[tuple[str, int, int, int]]:
    leaving = [(unit, executor) for unit, executor in _held().items() if executor in (1, 6)]
    heaviest = sorted(leaving, key=lambda item: -_weight(*item[0]))[:_MOVED]
    return [(*unit, executor, (5, 3, 0)[number % 3]) for number, (unit, executor) in enumerate(heaviest)]


def _move_fields(number: int) -> dict[str, Any]:
    """The fields that a move has in decisions and in reports."""
    name, partition, source, target = _moves()[number]
    places = {"source": str(source), "target": str(target), "step": number // 2}
    return {"query": _QUERIES[name][0], "stage": 0, "partition": partition, **places}


def _utilization(held: dict[tuple[str, int], int]) -> list[float]:
    """Utilization of each executor, by its number."""
    busy = [0.0] * _EXECUTORS
    for (name, partition), executor in held.items():
        busy[executor] += _weight(name, partition) / _QUERIES[name][2] / 2
    return busy


def _application(held: dict[tuple[str, int], int], landed: int, step: int) -> ApplicationStatus:
    partitions = tuple(
        PartitionStatus(
            query=_QUERIES[name][0],
            name=name,
            stage=0,
            partition=partition,
            executor=str(executor),
            busy_seconds=None if executor == 5 and partition == 5 else _weight(name, partition) * (1 + step % 3 / 10),
            state_bytes=int(8e7 * _weight(name, partition)),
        )
        for (name, partition), executor in sorted(held.items())
    )
    queries = tuple(
        QueryStatus(
            query=query,
            name=name,
            run="run",
            batch=418 + step,
            active=True,
            problem="",
            start="",
            batch_seconds=seconds,
            batches_per_second=1 / seconds,
            stages=(StageStatus(0, count, ("stateStoreSave",), {}),),
        )
        for name, (query, count, seconds) in _QUERIES.items()
    )
    states = ("steered", "prepared", "planned", "planned", "planned", "planned")
    moves = tuple(
        MoveStatus(
            move=f"20260301-101500-4f2a.{number}",
            state=states[number - landed],
            missed_batches=1 if number == landed == 2 else 0,
            name=_moves()[number][0],
            **_move_fields(number),
        )
        for number in range(landed, _MOVED)
    )
    return ApplicationStatus(
        application=_APPLICATION,
        name="web-analytics",
        spark_version="4.3.0",
        last_heard=0.0,
        silent=False,
        readiness=ReadinessStatus(True, "ready", "ready: 52 partitions on 8 executors"),
        shuffles_seen=0.98,
        executors=tuple(_executor(number, partitions) for number in range(_EXECUTORS)),
        queries=queries,
        partitions=partitions,
        hot_streams=(
            HotStream("q", "clicks/f0 on executor 1", "clicks/0 #0 on executor 1", 18.4e6, True),
            HotStream("q", "sessions/f0 on executor 2", "sessions/0 #3 on executor 1", 9.7e6, False),
            HotStream("q", "orders-join/f1 on executor 4", "orders-join/0 #12 on executor 1", 6.1e6, False),
        ),
        streams={"high": 3, "medium": 41, "low": 588},
        moves=moves,
        settled_moves=landed,
        counters=LinkCounters(landed=40 + landed, missed=1),
    )


_SLOW = "its tasks take 1.4 times what others' take"


def _executor(number: int, partitions: tuple[PartitionStatus, ...]) -> ExecutorStatus:
    own = [part for part in partitions if part.executor == str(number)]
    seconds = {name: period for name, (_, _, period) in _QUERIES.items()}
    busy = sum((part.busy_seconds or 0.0) / seconds[part.name] for part in own)
    node = _NODES[number // 2]
    return ExecutorStatus(
        executor=str(number),
        node=node,
        cores=2,
        partitions=len(own),
        utilization=busy / 2,
        arrival_rate=4000.0 * busy,
        service_rate=8000.0,
        speed=0.7 if number == 3 else 1.0,
        slow=_SLOW if number == 3 else "",
        cpu=busy * 0.6,
        python_cpu=busy * 0.3,
        node_cpu=min(1.0, 0.1 + busy * 0.5),
        rss_bytes=2_100_000_000 + 90_000_000 * len(own),
        fresh=number != 5,
        remark={3: f"slow: {_SLOW}", 5: "no fresh agent figures"}.get(number, ""),
        drained=node == _DRAINED,
    )


def _drain(now: float, held: dict[tuple[str, int], int]) -> DrainStatus:
    left = sum(executor in (6, 7) for executor in held.values())
    return DrainStatus(
        node=_DRAINED,
        since=now - 140,
        user="ada",
        reason="kernel update",
        remove=True,
        deadline=now + 460,
        state=DrainState.DRAINING,
        partitions=left,
        executors=("6", "7"),
        overdue=False,
        sentence=f"{left} partitions are left on 2 executors",
    )


def _migrations(landed: int) -> tuple[MigrationStatus, ...]:
    if landed == _MOVED:
        return ()
    sentence = f"{landed} of {_MOVED} moves have landed"
    return (MigrationStatus(_APPLICATION, "20260301-101500-4f2a", _MOVED, landed, 0, sentence, steps=3),)


def _decisions(now: float) -> tuple[DecisionView, ...]:
    query = _QUERIES["clicks"][0]
    held = _held()
    moved = held | {(name, partition): target for name, partition, _, target in _moves()}
    before, after = _utilization(held), _utilization(moved)
    loads = [
        ExecutorLoad(
            executor=str(number),
            node=_NODES[number // 2],
            partitions_before=list(held.values()).count(number),
            partitions_after=list(moved.values()).count(number),
            arrival_before=4000 * before[number],
            arrival_after=4000 * after[number],
            service_before=8000.0,
            utilization_before=before[number],
            utilization_after=after[number],
        )
        for number in range(_EXECUTORS)
    ]
    moves = [desired_move(move=f"m.{number}", **_move_fields(number)) for number in range(_MOVED)]
    applied = decision(
        decision="20260301-101500-4f2a",
        at=now - 43,
        sentence=f"6 of 52 partitions in 3 steps; the busiest executor goes from {max(before):.0%} to {max(after):.0%}",
        executors=loads,
        moves=moves,
        batch_time_before={query: 3.1},
        batch_time_after={query: 2.2},
        gain=174.0,
        cost=1.3,
        migration_cost=migration_cost(steps=3, bytes=412e6, pause=0.41, seconds=1.3, total=14.2, moves=40),
        names={query: "clicks"},
    )
    refused = decision(
        decision="20260301-101000-91cd",
        at=now - 343,
        trigger="operator",
        user="ada",
        result="refused",
        reason="gate",
        sentence="a critical path would shorten by 4% at most, gate.min_gain asks for 10%",
        executors=loads[:3],
        refusals=[
            Refusal(law="gate", scope="plan", detail="batch time 3.10 → 2.98 s: 4% gain, below gate.min_gain (10%)"),
            Refusal(law="utilization", detail="executor 3 would be 97% busy, the limit is 95%"),
        ],
        gain=23.0,
        cost=11.0,
        notes=["asked by ada: clicks lags behind"],
        hot_streams=["clicks 1/4 -> 2/7 (1.2 MB/s)"],
    )
    waiting = decision(
        decision="20260301-100500-0b17",
        at=now - 643,
        trigger="executors",
        result="not-ready",
        reason="too-few-batches",
        sentence="not ready: query clicks has 2 measured batches, 3 are needed (reschedule.batches)",
    )
    earlier = decision(
        decision="20260301-093000-7e55",
        at=now - 2743,
        sentence="9 of 52 partitions in 4 steps; batch time of clicks 4.6 → 3.2 s",
        gain=840.0,
        cost=6.0,
    )
    result = outcome(
        decision=earlier.decision,
        at=now - 2600,
        landed=9,
        total=31.0,
        sentence="9 of 9 partitions landed in 31 s; batches of clicks went from 4.6 to 3.1 s, 3.2 s was predicted",
    )
    return (
        DecisionView(_APPLICATION, applied),
        DecisionView(_APPLICATION, refused),
        DecisionView(_APPLICATION, waiting),
        DecisionView(_APPLICATION, earlier, result),
    )


def main() -> None:
    """Serve the sample on loopback until it is stopped."""
    import uvicorn
    from starlette.applications import Starlette

    from rechannel.daemon.web.page import routes

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8418)
    parser.add_argument("--state", choices=("moving", "empty", "away"), default="moving")
    chosen = parser.parse_args()
    makers = {
        "moving": lambda: sample(time.time(), int(time.time() / 3)),
        "empty": lambda: empty(time.time()),
        "away": lambda: away(time.time()),
    }
    uvicorn.run(Starlette(routes=routes(makers[chosen.state])), host="127.0.0.1", port=chosen.port, log_level="warning")


if __name__ == "__main__":
    main()
