"""Initial placement of starting queries, and of partitions whose executor was lost.

The controller takes no part in it.

* A query with a checkpoint gets its partitions restored before its first batch, to the executors they last ran on; what
  cannot be restored (its node is gone, nothing is remembered) is spread evenly.
* A query without one has no stores yet: it is spread after the jobs of its first batch, while its state is small.
* When an executor is lost, the partitions it held are spread anew at the next boundary, not left where they fell. Until
  then, stages wait less for executors (`LocalityWait`), since they would wait for the lost one too.

All of it by count, since nothing is measured yet; the controller's decisions come later, with measurements.
`InitialPlacement` is called from the link's thread, `place_before_first_batch` alone from that of `StartWatcher`, for
whose answer the query waits a bounded time.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from rechannel.migration.moves import OwnMoves
from rechannel.migration.spark.adapter import SparkAdapter
from rechannel.migration.spark.checkpoint import CheckpointOperator
from rechannel.migration.spark.coordinator import StoreId
from rechannel.migration.spark.gateway import LinkError
from rechannel.migration.spark.hooks import START_WAIT, StartHook
from rechannel.migration.spread import spread_evenly
from rechannel.wire.bounded_dict import BoundedDict
from rechannel.wire.messages import DesiredMove, ExecutorInfo, LastPlacement, Unit

_LOG = structlog.get_logger("rechannel.link")
_AT_ONCE = 100  # partitions that are steered by one call, which takes some ten milliseconds
_BUDGET = 0.8 * START_WAIT  # seconds from a query's start in which it is placed; the rest is moved afterwards
_ARRIVAL_WAIT = 15.0  # seconds after the attach in which a restarted driver's executors are waited for
_ARRIVAL_POLL = 0.1
_START_POLL = 2  # seconds of waiting in Spark for a start, before it is checked whether the link ends
_ARRIVAL_GAP = 1.0  # seconds without a new executor after which none is expected any more
_LONGEST_SHORT_WAIT = 120.0  # seconds: a query may run no batch, and others are not to drift meanwhile
_MAX_QUERIES = 1000  # queries whose placement a link remembers; beyond: the oldest are forgotten

Executors = Mapping[str, ExecutorInfo]
ExecutorsByOperator = dict[int, list[str]]  # operator -> executor of each partition


def restore_placement(
    last: LastPlacement | None, operators: Sequence[CheckpointOperator], executors: Executors
) -> ExecutorsByOperator:
    """Return a placement as near to the last one as these executors allow.

    An executor is the same as before if it lives on the same node; otherwise another executor of that node replaces it
    (a restarted driver has new executors). Partitions without one are spread evenly. A last placement with another
    number of partitions is not used.
    """
    cores = {name: max(1, info.cores) for name, info in executors.items()}
    replacements = _replacements(last.hosts if last is not None else {}, executors)
    held: Counter[str] = Counter()
    result: ExecutorsByOperator = {}
    for operator in operators:
        before = last.operators.get(operator.operator, []) if last is not None else []
        placement = [replacements.get(name, "") for name in before]
        if len(placement) != operator.partitions:
            placement = [""] * operator.partitions
        lost = [partition for partition, name in enumerate(placement) if not name]
        # Equal for operators of equal size, since nothing of this query is counted: those of one stage stay together.
        result[operator.operator] = spread_evenly(placement, cores, movable=lost, held=held)
    return result


def _replacements(nodes: Mapping[str, str], executors: Executors) -> dict[str, str]:
    """Return the executor that stands for each one of before, itself where it is still there."""
    result = {name: name for name, node in nodes.items() if name in executors and executors[name].node_name == node}
    free: dict[str, list[str]] = {}
    for name in sorted(executors):
        if name not in result:
            free.setdefault(executors[name].node_name, []).append(name)
    for name in sorted(nodes):
        if name not in result and free.get(nodes[name]):
            result[name] = free[nodes[name]].pop(0)
    return result


@dataclass(frozen=True)
class _MoveReasons:
    """Reasons to move a query's partitions at its next quiet moment."""

    restored: ExecutorsByOperator | None  # the placement that was restored before the first batch
    new: Collection[int]  # stages to be spread: the query has no checkpoint
    lost: Mapping[int, set[int]]  # stage -> partitions that a lost executor held

    def __bool__(self) -> bool:
        return self.restored is not None or bool(self.new or self.lost)

    def restored_stage(self, operators: Sequence[int], current: list[str]) -> list[str]:
        """Return the restored placement of a stage; the current one if none of its size is known."""
        restored = (self.restored or {}).get(operators[0], current) if operators else current
        return restored if len(restored) == len(current) else current


class InitialPlacement:
    """Places queries that start and partitions whose executor was lost."""

    def __init__(
        self,
        adapter: SparkAdapter,
        usable_executors: Callable[[], Executors | None],
        drained_nodes: Callable[[], Collection[str]],
        read_last_placement: Callable[[str], LastPlacement | None],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._start_reports = BoundedDict[str, str](_MAX_QUERIES)  # query -> what was done at its start
        self._adapter = adapter
        self._usable_executors = usable_executors  # that may hold partitions now, None while nothing may be begun
        self._drained_nodes = drained_nodes
        self._read_last_placement = read_last_placement  # of a query, from Redis
        self._clock = clock
        self._sleep = sleep
        self._arrivals_until = clock() + _ARRIVAL_WAIT
        self._lock = threading.Lock()
        self._last = BoundedDict[str, LastPlacement](_MAX_QUERIES)
        # Of queries that ran in this driver before.
        self._operators = BoundedDict[str, list[CheckpointOperator]](_MAX_QUERIES)
        self._restored: dict[str, ExecutorsByOperator] = {}  # by run, until its first batch
        # run -> stage -> moves that spread it, until the first batch is committed.
        self._new_runs: dict[str, dict[int, int]] = {}
        self._ended_runs = deque[str](maxlen=_MAX_QUERIES)  # the last ones: a run may end while it is placed
        self._lost: dict[tuple[str, int], set[int]] = {}  # (query, stage) -> partitions
        self._gone: set[str] = set()  # lost executors for which the locality wait is short
        self._short_until = 0.0
        self._number, self._token = 0, secrets.token_hex(3)  # of moves; the next link of an application has another

    def start_reports(self, queries: Collection[str]) -> dict[str, str]:
        """Return what was done at the start of each of these queries."""
        with self._lock:
            return {query: text for query, text in self._start_reports.items() if query in queries}

    # -- while the query waits for its first batch --

    def place_before_first_batch(self, query: str, run: str, checkpoint: str, waited: float = 0.0) -> None:
        """Restore a query's placement before its first batch, if it has a checkpoint.

        ``waited``: seconds since its start. What is late is not steered, as its first batch may run by then; it is
        moved after that batch.
        """
        until = self._clock() + _BUDGET - max(0.0, waited)
        with self._lock:
            self._start_reports.pop(query, None)  # that of an earlier run
            last, operators = self._last.get(query), self._operators.get(query, [])
        operators = operators or self._adapter.checkpoints.operators(checkpoint)
        with self._lock:
            if not operators and run not in self._ended_runs:
                self._new_runs[run] = {}
            if last is not None and operators:  # after a whole batch, all stores are there, and remain the same
                self._operators[query] = operators
        if not operators or self._usable_executors() is None:
            return
        last = last or self._read_last_placement(query)
        executors = self._wait_for_executors(set(last.hosts.values()) if last is not None else set(), until)
        if not executors:
            return
        placement = restore_placement(last, operators, executors)
        with self._lock:
            if run in self._ended_runs:
                return
            self._restored[run] = placement  # before anything is steered: what is late is moved later
        steered = 0
        for operator in operators:
            targets = [executors[name] for name in placement[operator.operator]]
            steered += self._steer(checkpoint, run, operator, targets, until)
        total = sum(operator.partitions for operator in operators)
        remembered = last is not None and any(info.node_name in last.hosts.values() for info in executors.values())
        manner = "as they ran last" if remembered else "evenly, as no earlier placement is known"
        sentence = f"{steered} of {total} partitions placed before its first batch, {manner}"
        self._set_start_report(query, sentence)
        _LOG.info("query-started", query=query, run=run, sentence=sentence)

    def _steer(
        self, checkpoint: str, run: str, operator: CheckpointOperator, targets: Sequence[ExecutorInfo], until: float
    ) -> int:
        """Steer the partitions of an operator in Spark as far as time allows; return how many."""
        steered = 0
        while steered < len(targets) and self._clock() <= until:
            part = targets[steered : steered + _AT_ONCE]
            self._adapter.coordinator.steer(
                [
                    (StoreId(checkpoint, run, operator.operator, partition, store), target)
                    for partition, target in enumerate(part, steered)
                    for store in operator.stores
                ]
            )
            steered += len(part)
        return steered

    def _set_start_report(self, query: str, sentence: str) -> None:
        with self._lock:
            self._start_reports[query] = sentence

    def _wait_for_executors(self, nodes: set[str], until: float) -> Executors:
        """Wait for executors on these nodes, while those of a starting application still arrive.

        There is no wait for nodes of which none is back: a pod is a node of its own where nothing names its machine.
        """
        executors, arrived = self._usable_executors() or {}, self._clock()
        while True:
            nodes_here = {info.node_name for info in executors.values()}
            none_back = bool(nodes_here) and nodes_here.isdisjoint(nodes)
            now = self._clock()
            no_arrivals = bool(nodes_here) and now >= arrived + _ARRIVAL_GAP
            complete = bool(nodes_here) and nodes <= nodes_here.union(self._drained_nodes())
            if complete or none_back or no_arrivals or now >= min(until, self._arrivals_until):
                return executors
            self._sleep(_ARRIVAL_POLL)
            latest = self._usable_executors() or {}
            if latest.keys() - executors.keys():
                arrived = self._clock()
            executors = latest

    # -- on the link's thread --

    def save_last_placement(
        self, query: str, name: str, batch: int, operators: Mapping[int, list[str]], executors: Executors
    ) -> LastPlacement | None:
        """Save the placement of a batch; return it if it changed.

        ``operators``: the executor of each partition, "" where unknown: then nothing is saved.
        """
        used = {name for placement in operators.values() for name in placement}
        if not operators or "" in used or not used <= executors.keys():
            return None
        nodes = {name: executors[name].node_name for name in sorted(used)}
        with self._lock:
            last = self._last.get(query)
            if last is not None and (last.operators, last.hosts) == (operators, nodes):
                return None
            placement = LastPlacement(query=query, name=name, batch=batch, operators=dict(operators), hosts=nodes)
            self._last[query] = placement
        return placement

    def record_lost_executor(self, executor: str, placement: Mapping[tuple[str, int], list[str]]) -> None:
        """Remember the partitions that a lost executor held."""
        for key, executors in placement.items():
            partitions = {partition for partition, name in enumerate(executors) if name == executor}
            if partitions:
                self._lost.setdefault(key, set()).update(partitions)
        if self._lost and self._usable_executors() is not None:
            self._short_until = self._clock() + _LONGEST_SHORT_WAIT
            _set_wait(self._adapter.locality_wait.shorten)
            if self._adapter.locality_wait.is_short:
                self._gone.add(executor)

    def restore_wait(self, placement: Mapping[tuple[str, int], list[str]]) -> None:
        """Let stages wait as before if no partition last ran on a lost executor.

        Also after two minutes. ``placement``: the executor that each partition last ran on.
        """
        if not self._adapter.locality_wait.is_short:
            return
        if self._clock() >= self._short_until or not any(
            self._gone.intersection(names) for names in placement.values()
        ):
            self._gone.clear()
            _set_wait(self._adapter.locality_wait.restore)

    def remove_run(self, query: str, run: str) -> None:
        """Drop a run that is over; its last placement is kept for its restart."""
        with self._lock:
            self._restored.pop(run, None)
            self._new_runs.pop(run, None)
            self._ended_runs.append(run)
        for key in [key for key in self._lost if key[0] == query]:
            del self._lost[key]

    @property
    def has_pending(self) -> bool:
        """Whether something of any query is to be moved at its next quiet moment."""
        return bool(self._restored or self._new_runs or self._lost)

    def is_pending(self, query: str, run: str) -> bool:
        """Whether something of a query is to be moved at its next quiet moment."""
        return run in self._restored or run in self._new_runs or any(key[0] == query for key in self._lost)

    def request_moves(
        self,
        query: str,
        run: str,
        stages: Mapping[int, Sequence[int]],
        placement: Mapping[tuple[str, int], list[str]],
        moving: Iterable[Unit],
        *,
        committed: bool,
    ) -> OwnMoves | None:
        """Return the moves that a query needs at a quiet moment, None if it needs none.

        What may not be begun now is not made up for later: the next decision sees it. ``stages``: the operators of each
        that is mapped; ``placement``: where each partition of any query ran last; ``moving``: what is moved already;
        ``committed``: whether the run has committed a batch. Before, more jobs of its first batch may come.
        """
        if not stages:
            return None
        lost = {stage: self._lost[query, stage] for stage in stages if (query, stage) in self._lost}
        with self._lock:
            restored, spread = self._restored.get(run) if committed else None, self._new_runs.get(run)
        new = () if spread is None else stages.keys() - spread.keys()
        reasons, executors = _MoveReasons(restored, new, lost), self._usable_executors()
        self._remove_pending(query, run, lost, whole=committed or not executors)
        if not executors or not reasons:
            return None
        moves: list[DesiredMove] = []
        busy = set(moving)
        cores = {name: max(1, info.cores) for name, info in executors.items()}
        held = Counter(name for (other, _), names in placement.items() if other != query for name in names)
        for stage in sorted(stages):
            current = placement.get((query, stage), [])
            if reasons.restored is not None:
                goal = reasons.restored_stage(stages[stage], current)
            else:
                fallen = [number for number in lost.get(stage, ()) if (query, stage, number) not in busy]
                goal = spread_evenly(current, cores, movable=None if stage in reasons.new else fallen, held=held)
            held.update(goal)
            self._number += 1
            own = [
                move
                for move in _moves_of(f"link-{run[:8]}-{self._token}-{self._number}", query, stage, current, goal)
                if move.target in executors and (query, stage, move.partition) not in busy
            ]
            if spread is not None and stage in reasons.new:
                spread[stage] = len(own)
            moves += own
        why = self._report_moves(query, reasons, sum(spread.values()) if spread else len(moves))
        return OwnMoves(moves[0].move.rpartition(".")[0], run, why, moves) if moves else None

    def _remove_pending(self, query: str, run: str, lost: Iterable[int], *, whole: bool) -> None:
        """Drop what was to be moved.

        ``lost``: stages with partitions of a lost executor; ``whole``: what is left of the run's start, too.
        """
        if whole:
            with self._lock:
                self._restored.pop(run, None)
                self._new_runs.pop(run, None)
        for stage in lost:
            del self._lost[query, stage]

    def _report_moves(self, query: str, reasons: _MoveReasons, moves: int) -> str:
        """Report what came of a query's start; returns why its partitions are moved."""
        if reasons.restored is not None:
            with self._lock:
                report = self._start_reports.get(query, "not placed before its first batch")
            result = f"; {moves} missed and are moved now" if moves else "; all landed"
            self._set_start_report(query, report + result)
            return "a restarted query's partitions that did not land where they ran last"
        if reasons.new:
            self._set_start_report(query, f"{moves} partitions spread after its first batch")
            return "a new query is spread evenly"
        return "their executor was lost"


class StartWatcher:
    """Thread that places each starting query; it waits for that, at most `START_WAIT` seconds."""

    def __init__(self, adapter: SparkAdapter, placement: InitialPlacement, stop: threading.Event) -> None:
        self._adapter, self._placement, self._stop = adapter, placement, stop
        self._hook: StartHook | None = None
        self._thread = threading.Thread(target=self._run, name="rechannel-starts", daemon=True)

    def watch(self) -> None:
        """Watch starts by a new hook in Spark, which takes the place of an earlier one."""
        with contextlib.suppress(LinkError):
            self._adapter.stop_watching_starts()
        self._hook = self._adapter.watch_starts()

    def start(self) -> None:
        """Place what starts from now on."""
        self._thread.start()

    def join(self) -> None:
        """Wait for the end of the thread, once the link ends."""
        if self._thread.is_alive():
            self._thread.join(2 * _START_POLL)

    def _run(self) -> None:
        while (hook := self._hook) is not None and not self._stop.is_set():
            try:
                hook.send_heartbeat()
                if (start := hook.poll(_START_POLL)) is not None:
                    self._place(hook, start)
            except Exception as error:  # noqa: BLE001  without this thread, every start would wait in vain
                _LOG.debug("starting queries could not be read", error=str(error))
                self._stop.wait(1.0)

    def _place(self, hook: StartHook, start: Any) -> None:
        try:
            hook.send_heartbeat()
            started = self._adapter.started_query(hook.event(start))
            if started is not None:
                query, run, checkpoint, at = started
                waited = time.time() - at if at >= hook.waits_since else START_WAIT
                self._placement.place_before_first_batch(query, run, checkpoint, waited)
        except Exception as error:  # noqa: BLE001  whatever goes wrong, the query starts
            _LOG.warning("a query could not be placed at its start", error=str(error))
        finally:
            hook.release(start)


def _moves_of(name: str, query: str, stage: int, current: Sequence[str], goal: Sequence[str]) -> Iterator[DesiredMove]:
    """Yield a move for each partition of a stage whose goal is another executor."""
    for partition, (source, target) in enumerate(zip(current, goal, strict=True)):
        if source != target:
            yield DesiredMove(
                move=f"{name}.{partition}",
                query=query,
                stage=stage,
                partition=partition,
                source=source,
                target=target,
                step=0,
            )


def _set_wait(change: Callable[[], None]) -> None:
    """Change the locality wait; nothing else depends on it."""
    try:
        change()
    except LinkError as error:
        _LOG.warning("spark.locality.wait could not be set", error=str(error))
