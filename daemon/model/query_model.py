"""What the last batches of a query say about its stages, and the agents' stream rows about the shuffles between them.

Pure. A stateful stage has one entry for each partition; every other stage, and a stateful stage that is not ours to
place, is floating: entry e is what was observed on executor e. All figures are means over the batches given, a batch
in which a stage or partition did not run counting as zero, because `batches_per_second` counts it too.

Streams are joined by task id, which is unique within an application: what a map task left on its executor's disk says
how much went to each downstream partition, and the batch report says which stage and partition that task was. Volumes
are bytes per second at the rate of the batches, not of the agents' windows: a batch may last longer than a window.

Busy seconds are those of a reference executor: what a task took times its executor's speed, where that is known.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rechannel.policies.analysis.service_rate import Observations
from rechannel.policies.model.arrays import FloatArray, IntArray
from rechannel.policies.model.streams import Stream
from rechannel.policies.model.workload import Stage
from rechannel.wire.measurements import BatchReport, StageRun, StreamRow, TaskRow
from rechannel.wire.messages import QueryState, StatefulStage

_SHORTEST_PERIOD = 1e-3
_IDLE_RATE = 1e-3  # batches per second of a query that was not measured: rates have to be positive
LARGEST_BLOCKS = 20_000_000  # entries of all dense shuffle blocks together: 160 MB


@dataclass(frozen=True, eq=False)
class QueryModel:
    """A query's stages in the order they run, and what is needed to join streams to them.

    ``placed`` is stage key -> the stage as the link reports it, for placeable stages alone.
    """

    stages: tuple[Stage, ...]
    streams: tuple[Stream, ...]
    placed: Mapping[str, StatefulStage]
    skipped: Counter[str]


def period(batches: Sequence[BatchReport], now: float) -> float:
    """Seconds from one batch's start to the next one's. An idle query's period grows with its silence."""
    starts = [batch.start for batch in batches]
    gaps = len(starts) - 1
    mean = (starts[-1] - starts[0]) / gaps if gaps else batches[-1].end - batches[-1].start
    return max(mean, now - batches[-1].end, _SHORTEST_PERIOD)


def stage_keys(query: str, batch: BatchReport) -> list[tuple[str, StageRun]]:
    """Name the stages of a batch in the order they ran: ``query/ordinal``, or ``query/f<position>`` for the rest."""
    named = []
    floating = 0
    for run in sorted(batch.stages, key=lambda item: item.spark_stage):
        if run.stateful >= 0:
            named.append((f"{query}/{run.stateful}", run))
        else:
            named.append((f"{query}/f{floating}", run))
            floating += 1
    return named


def model_query(
    query: QueryState,
    batches: Sequence[BatchReport],
    streams: Mapping[int, StreamRow],
    executors: Mapping[str, int],
    *,
    placeable: bool,
    now: float,
    speed: FloatArray | None = None,
    room: int = LARGEST_BLOCKS,
    silent: frozenset[str] = frozenset(),
) -> QueryModel:
    """Model one query from its last batches (oldest first, at least one) and its application's stream rows by task.

    ``executors`` is executor -> index, ``speed`` one figure for each of them (1 everywhere if not given), ``room`` how
    many entries its shuffle blocks may have together, ``silent`` the executors whose agents do not report.
    """
    speed = np.ones(len(executors)) if speed is None else speed
    known = [stage for stage in query.stages if placeable and stage.partitions > 0]
    sizes = {f"{query.query}/{stage.stage}": stage.partitions for stage in known}
    rate = 1.0 / period(batches, now)
    named = [stage_keys(query.query, batch) for batch in batches]
    order = _order(named, sizes)
    totals = {key: _Totals(sizes.get(key, len(executors))) for key in order}
    for batch in named:
        for key, run in batch:
            totals[key].add(run, executors, speed, by_partition=key in sizes)
    stages = tuple(
        Stage(
            key=key,
            query=query.query,
            placeable=key in sizes,
            batches_per_second=rate,
            busy=total.busy / len(batches),
            rows=total.rows / len(batches),
            state_bytes=total.state,
        )
        for key, total in totals.items()
    )
    skipped: Counter[str] = Counter()
    blocks = _blocks(named, streams, totals, executors, sizes, skipped, room, silent)
    position = {key: index for index, key in enumerate(order)}
    kept = tuple(
        Stream(up, down, volume * rate)
        for (up, down), volume in blocks.items()
        if position[up] < position[down] and volume.any()
    )
    placed = {f"{query.query}/{stage.stage}": stage for stage in known}
    return QueryModel(stages, kept, placed, skipped)


def unmeasured(query: QueryState) -> QueryModel:
    """Model a query of which nothing is known but where its partitions are: they cost nothing, so they go by count."""
    known = {f"{query.query}/{stage.stage}": stage for stage in query.stages if stage.partitions > 0}
    stages = tuple(
        Stage(
            key=key,
            query=query.query,
            placeable=True,
            batches_per_second=_IDLE_RATE,
            busy=np.zeros(stage.partitions),
            rows=np.zeros(stage.partitions),
            state_bytes=np.zeros(stage.partitions),
        )
        for key, stage in known.items()
    )
    return QueryModel(stages, (), known, Counter())


def _order(named: Sequence[list[tuple[str, StageRun]]], sizes: Mapping[str, int]) -> list[str]:
    """Stage keys in running order: the fullest batch leads (the latest of equals), what it lacks comes after."""
    fullest = max(range(len(named)), key=lambda index: (len(named[index]), index))
    keys = [key for key, _ in named[fullest]]
    keys += [key for batch in named for key, _ in batch]
    return list(dict.fromkeys([*keys, *sizes]))


class _Totals:
    """Sums over batches for the entries of one stage."""

    def __init__(self, size: int) -> None:
        self.busy = np.zeros(size)
        self.rows = np.zeros(size)
        self.state = np.zeros(size)

    def add(self, run: StageRun, executors: Mapping[str, int], speed: FloatArray, *, by_partition: bool) -> None:
        state = np.zeros_like(self.state)
        for task in latest_tasks(run):
            executor = executors.get(task.executor, -1)
            entry = task.partition if by_partition else executor
            if not 0 <= entry < len(self.busy):
                continue
            self.busy[entry] += busy_seconds(task) * (speed[executor] if executor >= 0 else 1.0)
            self.rows[entry] += max(0, task.rows_in)
            state[entry] += max(0, task.state_bytes)
            if by_partition:
                self.state[entry] = state[entry]
        if not by_partition:
            self.state = state


def load_bytes(stage: StatefulStage, query: str, batches: Sequence[BatchReport]) -> FloatArray:
    """Bytes that another executor would load of each partition, shape (partitions,); 0 where nothing was measured.

    The state, and what changed since its newest snapshot where its age is known: a batch changes no more rows of the
    state than it brings, nor more than there are.
    """
    size, changed, seen = np.zeros(stage.partitions), np.zeros(stage.partitions), np.zeros(stage.partitions)
    runs = (run for batch in batches if batch.query == query for run in batch.stages if run.stateful == stage.stage)
    for task in (task for run in runs for task in latest_tasks(run) if 0 <= task.partition < stage.partitions):
        known = float(max(0, task.state_size) or max(0, task.state_bytes))
        size[task.partition] = known
        changed[task.partition] += known * min(1.0, max(0, task.rows_in) / max(1, task.state_rows))
        seen[task.partition] += 1
    lags = np.zeros(stage.partitions)
    known_lags = [max(0, lag) for lag in stage.snapshot_lag[: stage.partitions]]
    lags[: len(known_lags)] = known_lags
    return size + lags * changed / np.maximum(seen, 1)


def busy_seconds(task: TaskRow) -> float:
    """Time a task was at work: not waiting for the network."""
    return max(0.0, task.run - task.fetch_wait)


def observations(batches: Iterable[BatchReport], last: Mapping[str, int], executors: Mapping[str, int]) -> Observations:
    """Lay out what tasks took, for `rechannel.policies.analysis.service_rate`.

    ``last``: query -> number of the oldest of its last batches, those that count as now.
    """
    stages: dict[str, int] = {}
    found: list[FloatArray] = [np.empty((0, 6))]
    for batch in batches:
        now = batch.batch >= last.get(batch.query, 0)
        for key, run in stage_keys(batch.query, batch):
            stage = stages.setdefault(key, len(stages))
            rows = [
                (
                    stage,
                    task.partition if run.stateful >= 0 else -1,
                    executors.get(task.executor, -1),
                    now,
                    busy_seconds(task),
                    max(0, task.rows_in),
                )
                for task in run.tasks
            ]
            # An array for each run: as tuples, all tasks together would take several times as much memory.
            found.append(np.array(rows, dtype=np.float64).reshape(len(rows), 6))
    table = np.concatenate(found).T
    stage, partition, executor = (column.astype(np.int64) for column in table[:3])
    return Observations(stage, partition, executor, table[3] > 0, table[4], table[5])


def without_first(observed: Observations, first: IntArray) -> Observations:
    """Leave out the ``first`` so many tasks, (E,), of each executor in each stage; tasks are in the order of time."""
    key = observed.stage * len(first) + observed.executor
    order = np.argsort(key, kind="stable")
    begins = np.flatnonzero(np.r_[True, np.diff(key[order]) != 0])
    rank = np.empty(len(key), dtype=np.int64)
    rank[order] = np.arange(len(key)) - np.repeat(begins, np.diff(np.r_[begins, len(key)]))
    kept = (observed.executor < 0) | (rank >= first[observed.executor])
    return Observations(
        observed.stage[kept],
        observed.partition[kept],
        observed.executor[kept],
        observed.now[kept],
        observed.busy[kept],
        observed.rows[kept],
    )


def shuffles_seen(
    batches: Iterable[BatchReport], told: Container[int], spans: Mapping[str, tuple[float, float]]
) -> float | None:
    """Return the share of map outputs that agents reported, None if there were none to report.

    ``told``: tasks whose outputs they told; ``spans``: executor -> from when to when its agent's windows reach. A
    window that is still open has told nothing yet, so outputs of before and after are not counted.
    """
    sent = []
    for batch in batches:
        read = {parent for run in batch.stages for parent in run.parents}
        for run in batch.stages if read else ():
            for task in run.tasks if run.spark_stage in read else ():
                since, until = spans.get(task.executor, (math.inf, -math.inf))
                if task.bytes_out > 0 and since <= task.launch and task.finish <= until:
                    sent.append(task.task in told)
    return sum(sent) / len(sent) if sent else None


def latest_tasks(run: StageRun) -> Iterable[TaskRow]:
    """One task for each partition: a stage that was run again counts once."""
    return {task.partition: task for task in sorted(run.tasks, key=lambda task: task.finish)}.values()


def _blocks(
    named: Sequence[list[tuple[str, StageRun]]],
    by_task: Mapping[int, StreamRow],
    totals: Mapping[str, _Totals],
    executors: Mapping[str, int],
    sizes: Mapping[str, int],
    skipped: Counter[str],
    room: int,
    silent: frozenset[str],
) -> dict[tuple[str, str], FloatArray]:
    """Mean bytes per batch between the entries of every two stages that a shuffle joins.

    What a task on an executor whose agent is silent sent is unknown: it is taken as what the others sent on average, so
    that it speaks for no placement and against none.
    """
    sums: dict[tuple[str, str], FloatArray] = {}
    seen: set[tuple[str, str, int]] = set()  # a batch with several jobs can run a stage more than once
    for number, batch in enumerate(named):
        for up, run in batch:
            sent = [(task, by_task[task.task]) for task in run.tasks if task.task in by_task]
            if not sent:
                continue
            for down, reader in batch:
                if run.spark_stage not in reader.parents:
                    continue
                if (up, down) not in sums:
                    shape = (len(totals[up].busy), len(totals[down].busy))
                    if shape[0] * shape[1] > room:
                        skipped["shuffle too large for a dense block"] += 1
                        continue
                    room -= shape[0] * shape[1]
                    sums[up, down] = np.zeros(shape)
                block = sums[up, down]
                targets = None if down in sizes else _targets(reader, executors)
                untold = [task for task in run.tasks if task.executor in silent and task.task not in by_task]
                before = block.sum(axis=0) if untold else 0.0
                for task, row in sent:
                    entry = task.partition if up in sizes else executors.get(task.executor, -1)
                    if not _add(block, entry, row, targets):
                        skipped["stream row that fits no stage"] += 1
                mean = (block.sum(axis=0) - before) / len(sent) if untold else 0.0
                for task in untold:
                    entry = task.partition if up in sizes else executors[task.executor]
                    if 0 <= entry < len(block):
                        block[entry] += mean
                seen.add((up, down, number))
    batches = Counter((up, down) for up, down, _ in seen)
    return {pair: block / batches[pair] for pair, block in sums.items()}


def _targets(reader: StageRun, executors: Mapping[str, int]) -> dict[int, int]:
    return {task.partition: executors[task.executor] for task in reader.tasks if task.executor in executors}


def _add(block: FloatArray, entry: int, row: StreamRow, targets: Mapping[int, int] | None) -> bool:
    """Add what one map task sent; ``targets`` says where each partition of a floating reader ran."""
    sizes = np.asarray(row.sizes, dtype=np.float64)
    if not 0 <= entry < len(block) or (sizes < 0).any():
        return False
    if targets is None:
        if len(sizes) != block.shape[1]:
            return False
        block[entry] += sizes
        return True
    for partition, target in targets.items():
        if partition < len(sizes):
            block[entry, target] += sizes[partition]
    return True
