"""A query's placement where nobody needs to decide: put back what ran before, spread what is new, spread what was lost.

* A query with a checkpoint gets its partitions put back before its first batch, from where they ran last; what cannot
  be put back (its node is gone, nothing is remembered) is spread evenly.
* A query without one has no stores yet: it is spread at the boundary after its first batch, while its state is small.
* When an executor is lost, the partitions it held are spread anew at the next boundary, not left where they fell.

All of it by count, for nothing is measured yet; the controller's decisions come later and know better.
`InitialPlacement` is
called from the link's thread, `started` alone from a second one, for whose answer the query waits a bounded time.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from rechannel.migration.spark.adapter import SparkAdapter, StoreId
from rechannel.migration.spark.checkpoint import KnownOperator
from rechannel.migration.spark.hooks import START_WAIT
from rechannel.policies.spread import spread_evenly
from rechannel.wire.messages import DesiredMove, ExecutorInfo, LastPlacement

_LOG = structlog.get_logger("rechannel.link")
_BUDGET = 0.8 * START_WAIT  # seconds from a query's start in which it is placed; the rest is moved afterwards
_GATHER = 15.0  # seconds after the attach in which executors of before are waited for: a restarted driver's come late
_GATHER_EVERY = 0.1
_STILL = 1.0  # seconds without a new executor after which none is expected any more
_KEPT_QUERIES = 1000  # remembered here, the latest

Executors = Mapping[str, ExecutorInfo]
Placement = dict[int, list[str]]  # operator -> executor per partition


def put_back(last: LastPlacement | None, operators: Sequence[KnownOperator], executors: Executors) -> Placement:
    """Return where each operator's partitions shall run: where they ran last, the rest spread evenly.

    An executor of before is the same one if it lives on the same host, else another executor of that host stands in for
    it (a restarted driver has new executors). ``executors``: those that may hold partitions. What was remembered for
    another number of partitions is not used.
    """
    cores = {name: max(1, info.cores) for name, info in executors.items()}
    stand_in = _stand_ins(last.hosts if last is not None else {}, executors)
    held: Counter[str] = Counter()
    result: Placement = {}
    for operator in operators:
        before = last.operators.get(operator.operator, []) if last is not None else []
        where = [stand_in.get(name, "") for name in before]
        if len(where) != operator.partitions:
            where = [""] * operator.partitions
        lost = [partition for partition, name in enumerate(where) if not name]
        # Equal for operators of equal size, since nothing of this query is counted: those of one stage stay together.
        result[operator.operator] = spread_evenly(where, cores, movable=lost, held=held)
    return result


def _stand_ins(hosts: Mapping[str, str], executors: Executors) -> dict[str, str]:
    same = {name: name for name, host in hosts.items() if name in executors and executors[name].host == host}
    free: dict[str, list[str]] = {}
    for name in sorted(executors):
        if name not in same:
            free.setdefault(executors[name].host, []).append(name)
    for name in sorted(hosts):
        if name not in same and free.get(hosts[name]):
            same[name] = free[hosts[name]].pop(0)
    return same


@dataclass
class _Start:
    """A run whose partitions were put back before its first batch."""

    wanted: Placement


@dataclass
class PlacementRequest:
    """Moves of the link's own for one query, and why."""

    why: str
    moves: list[DesiredMove] = field(default_factory=list)


class InitialPlacement:
    """Sees to queries that start and to partitions whose executor was lost.

    ``allowed()``: executors that may hold partitions now, None while nothing may be begun; ``drained()``: nodes that
    are to hold none; ``recall(query)``: the last placement that Redis remembers.
    """

    def __init__(
        self,
        adapter: SparkAdapter,
        allowed: Callable[[], Executors | None],
        drained: Callable[[], Collection[str]],
        recall: Callable[[str], LastPlacement | None],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._words: dict[str, str] = {}  # query -> what was done at its start
        self._adapter = adapter
        self._allowed = allowed
        self._drained = drained
        self._recall = recall
        self._clock = clock
        self._sleep = sleep
        self._gather_until = clock() + _GATHER
        self._lock = threading.Lock()
        self._last: dict[str, LastPlacement] = {}
        self._put_back: dict[str, _Start] = {}  # by run, until its first batch
        self._fresh: set[str] = set()  # runs to be spread after their first batch
        self._lost: dict[tuple[str, int], set[int]] = {}  # (query, stage) -> partitions
        self._number = 0

    def words(self, queries: Collection[str]) -> dict[str, str]:
        """Return what was done at the start of each of these queries."""
        with self._lock:
            return {query: text for query, text in self._words.items() if query in queries}

    # -- while the query waits for its first batch --

    def started(self, query: str, run: str, checkpoint: str) -> None:
        """See to a query before its first batch."""
        until = self._clock() + _BUDGET
        operators = self._adapter.checkpoints.operators(checkpoint)
        with self._lock:
            if not operators:
                self._fresh.add(run)
            last = self._last.get(query)
        if not operators or self._allowed() is None:
            return
        last = last or self._recall(query)
        executors = self._gathered(set(last.hosts.values()) if last is not None else set(), until)
        if not executors:
            return
        placement = put_back(last, operators, executors)
        with self._lock:
            self._put_back[run] = _Start(placement)  # before anything is steered: what is late is moved later
        steered = self._steer(run, checkpoint, operators, placement, executors, until)
        total = sum(operator.partitions for operator in operators)
        remembered = "as they ran last" if self._is_back(last, executors) else "evenly, for nothing is remembered of it"
        sentence = f"{steered} of {total} partitions placed before its first batch, {remembered}"
        self._say(query, sentence)
        _LOG.info("query-started", query=query, run=run, sentence=sentence)

    def _steer(
        self,
        run: str,
        checkpoint: str,
        operators: Sequence[KnownOperator],
        placement: Placement,
        executors: Executors,
        until: float,
    ) -> int:
        """Tell Spark each partition's place, as far as time allows; return how many were told."""
        steered = 0
        for operator in operators:
            for partition, name in enumerate(placement[operator.operator]):
                if self._clock() > until:
                    return steered
                for store in operator.stores:
                    identity = StoreId(checkpoint, run, operator.operator, partition, store)
                    self._adapter.steer(identity, executors[name].host, name)
                steered += 1
        return steered

    @staticmethod
    def _is_back(last: LastPlacement | None, executors: Executors) -> bool:
        """Whether some node of the last placement is there again."""
        return last is not None and any(info.host in last.hosts.values() for info in executors.values())

    def _say(self, query: str, sentence: str) -> None:
        with self._lock:
            self._words.pop(query, None)
            self._words[query] = sentence
            while len(self._words) > _KEPT_QUERIES:
                del self._words[next(iter(self._words))]

    def _gathered(self, hosts: set[str], until: float) -> Executors:
        """Wait for the executors of before, while those of a starting application still arrive.

        Nobody waits for nodes of which none is back: in a cluster of pods, hosts of before do not return.
        """
        executors, arrived = self._allowed() or {}, self._clock()
        while True:
            here = {info.host for info in executors.values()}
            hopeless = bool(here) and here.isdisjoint(hosts)
            now = self._clock()
            still = bool(here) and now >= arrived + _STILL
            complete = bool(here) and hosts <= here.union(self._drained())
            if complete or hopeless or still or now >= min(until, self._gather_until):
                return executors
            self._sleep(_GATHER_EVERY)
            latest = self._allowed() or {}
            if latest.keys() - executors.keys():
                arrived = self._clock()
            executors = latest

    # -- on the link's thread --

    def ran(
        self, query: str, name: str, batch: int, operators: Mapping[int, list[str]], executors: Executors
    ) -> LastPlacement | None:
        """Take note of where a query's partitions ran; returns what is to be remembered if it changed."""
        known = {name for where in operators.values() for name in where}
        if not operators or "" in known or not known <= executors.keys():
            return None
        hosts = {name: executors[name].host for name in sorted(known)}
        with self._lock:
            last = self._last.get(query)
            if last is not None and (last.operators, last.hosts) == (operators, hosts):
                return None
            found = LastPlacement(query=query, name=name, batch=batch, operators=dict(operators), hosts=hosts)
            self._last.pop(query, None)
            self._last[query] = found
            while len(self._last) > _KEPT_QUERIES:
                del self._last[next(iter(self._last))]
        return found

    def lost(self, executor: str, placement: Mapping[tuple[str, int], list[str]]) -> None:
        """Remember which partitions an executor took with it."""
        for key, where in placement.items():
            partitions = {partition for partition, name in enumerate(where) if name == executor}
            if partitions:
                self._lost.setdefault(key, set()).update(partitions)

    def ended(self, query: str, run: str) -> None:
        """Forget a run that is over; where it ran is kept for its restart."""
        with self._lock:
            self._put_back.pop(run, None)
            self._fresh.discard(run)
        for key in [key for key in self._lost if key[0] == query]:
            del self._lost[key]

    def pending(self, query: str, run: str) -> bool:
        """Whether something of a query is to be moved at its next quiet moment."""
        return (
            run in self._put_back
            or run in self._fresh
            or (bool(self._lost) and any(key[0] == query for key in self._lost))
        )

    def due(
        self,
        query: str,
        run: str,
        stages: Mapping[int, Sequence[int]],
        placement: Mapping[tuple[str, int], list[str]],
        moving: Iterable[tuple[str, int, int]],
    ) -> PlacementRequest | None:
        """At a quiet moment of a query: what of it is to be moved. ``stages``: each stage with its operators.

        ``moving``: (query, stage, partition) that are moved already. Called when all stages of a finished batch are
        known. What may not be begun now is not made up for later: the next decision sees it.
        """
        with self._lock:
            begun, fresh = self._put_back.get(run), run in self._fresh
        lost = {stage: self._lost[query, stage] for stage in stages if (query, stage) in self._lost}
        executors = self._allowed()
        if not (begun or fresh or lost) or not stages:
            return None
        if not executors:
            self._settle(query, run, None, False, 0, lost)
            return None
        wish = PlacementRequest("")
        busy = set(moving)
        cores = {name: max(1, info.cores) for name, info in executors.items()}
        held = Counter(name for (other, _), where in placement.items() if other != query for name in where)
        for stage in sorted(stages):
            where = placement.get((query, stage), [])
            if begun is not None:
                wanted = begun.wanted.get(stages[stage][0], where) if stages[stage] else where
                wanted = wanted if len(wanted) == len(where) else where
            else:
                movable = None if fresh else [p for p in lost.get(stage, ()) if (query, stage, p) not in busy]
                wanted = spread_evenly(where, cores, movable=movable, held=held)
            held.update(wanted)
            self._number += 1
            wish.moves += [
                DesiredMove(
                    move=f"link-{run[:8]}-{self._number}.{partition}",
                    query=query,
                    stage=stage,
                    partition=partition,
                    source=source,
                    target=target,
                    step=0,
                )
                for partition, (source, target) in enumerate(zip(where, wanted, strict=True))
                if source != target and target in executors and (query, stage, partition) not in busy
            ]
        wish.why = self._settle(query, run, begun, fresh, len(wish.moves), lost)
        return wish if wish.moves else None

    def _settle(
        self, query: str, run: str, begun: _Start | None, fresh: bool, moves: int, lost: Mapping[int, set[int]]
    ) -> str:
        with self._lock:
            self._put_back.pop(run, None)
            self._fresh.discard(run)
            for stage in lost:
                del self._lost[query, stage]
            words = self._words.get(query, "")
        if begun is not None:
            self._say(query, words + (f"; {moves} missed and are moved now" if moves else "; all landed"))
            return "a restarted query's partitions that did not land where they ran last"
        if fresh:
            self._say(query, f"{moves} partitions spread after its first batch")
            return "a new query is spread evenly"
        return "their executor was lost"
