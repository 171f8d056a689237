"""Stages of a query as its last batches measured them, and their shuffles. Pure.

A stateful stage has one entry for each partition; every other stage, and a stateful stage that cannot be placed, is
floating: entry e is what was observed on executor e. All figures are means over the given batches. A batch in which a
stage or partition did not run counts as zero, because `batches_per_second` counts it too. Shuffle matrices are the
exception: they are means over the batches in which the shuffle was reported.

Map outputs are joined by task id, which is unique within an application: what a map task left on its executor's disk
gives the bytes for each downstream partition, and the batch report the stage and partition of that task. Volumes
are bytes per second at the rate of the batches, not of the agents' windows: a batch may last longer than a window.

Busy seconds are those of a reference executor: a task's seconds times the speed of its executor, where it is known.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rechannel.daemon.model.task_columns import ColumnarTasks, columnar_tasks, task_columns
from rechannel.policies.analysis.service_rate import Observations
from rechannel.policies.model.arrays import BoolArray, FloatArray, IntArray, is_in, ranks, sum_rows_by_index
from rechannel.policies.model.shuffles import DenseShuffle
from rechannel.policies.model.workload import Stage
from rechannel.wire.measurements import BatchReport, MapOutput, StageRun
from rechannel.wire.messages import QueryState, StatefulStage

_SHORTEST_PERIOD = 1e-3
_IDLE_RATE = 1e-3  # batches per second of a query that was not measured: rates have to be positive
_NEVER = math.inf, -math.inf
# Entries of all dense shuffle matrices, 80 MB; beyond: further shuffles are left out, and the decision says so.
MAX_MATRIX_ENTRIES = 20_000_000
_LARGEST = 2.0**53  # bytes of a map output for one partition, as in messages
_ROWS_AT_ONCE = 256  # map outputs that are read together

Pair = tuple[str, str]


@dataclass(frozen=True, eq=False)
class QueryModel:
    """A query's stages in the order they run, and the shuffles between them.

    ``placed``: key of a placeable stage -> the stage as the link reports it; ``skipped``: reason -> shuffles, or map
    outputs, left out.
    """

    stages: tuple[Stage, ...]
    shuffles: tuple[DenseShuffle, ...]
    placed: Mapping[str, StatefulStage]
    skipped: Counter[str]


@dataclass(frozen=True, eq=False)
class ModelInputs:
    """Observations of one application that all its queries are modeled with.

    ``executors``: executor -> index; ``speed``: of each of them, (E,); ``map_outputs``: task -> what it wrote, as its
    agent reported it.
    """

    now: float
    executors: Mapping[str, int]
    speed: FloatArray
    map_outputs: Mapping[int, MapOutput]

    @cached_property
    def reported_tasks(self) -> IntArray:
        """Tasks whose outputs were reported, in ascending order, (n,)."""
        return np.sort(np.fromiter(self.map_outputs, dtype=np.int64, count=len(self.map_outputs)))


def batch_period(batches: Sequence[BatchReport], now: float) -> float:
    """Return the seconds between the starts of batches; it grows with a query's silence."""
    starts = [batch.start for batch in batches]
    gaps = len(starts) - 1
    mean = (starts[-1] - starts[0]) / gaps if gaps else batches[-1].end - batches[-1].start
    return max(mean, now - batches[-1].end, _SHORTEST_PERIOD)


def stage_keys(query: str, batch: BatchReport) -> list[tuple[str, StageRun]]:
    """Name a batch's stages as they ran: ``query/ordinal``, floating ``query/f<position>``."""
    keyed = []
    floating = 0
    for run in sorted(batch.stages, key=lambda item: item.spark_stage):
        if run.stateful_stage >= 0:
            keyed.append((f"{query}/{run.stateful_stage}", run))
        else:
            keyed.append((f"{query}/f{floating}", run))
            floating += 1
    return keyed


def build_query_model(
    query: QueryState,
    batches: Sequence[BatchReport],
    inputs: ModelInputs,
    *,
    placeable: bool,
    max_entries: int,
) -> QueryModel:
    """Model one query from its last batches, oldest first and at least one.

    ``placeable``: model stateful stages by partition, rather than by executor. Shuffles that would bring the matrices
    beyond ``max_entries`` together are left out.
    """
    stages = [stage for stage in query.stages if placeable and stage.partitions > 0]
    partitions = {f"{query.query}/{stage.stage}": stage.partitions for stage in stages}
    rate = 1.0 / batch_period(batches, inputs.now)
    keyed = [stage_keys(query.query, batch) for batch in batches]
    order = _running_order(keyed, partitions)
    totals = {key: _StageTotals(partitions.get(key, len(inputs.executors)), key in partitions) for key in order}
    for batch in keyed:
        for key, run in batch:
            totals[key].add(run, inputs)
    matrices = _ShuffleMatrices(inputs, totals, max_entries)
    for number, batch in enumerate(keyed):
        matrices.add(number, batch)
    position = {key: index for index, key in enumerate(order)}
    return QueryModel(
        stages=tuple(
            Stage(
                key=key,
                query=query.query,
                placeable=key in partitions,
                batches_per_second=rate,
                busy=total.busy / len(batches),
                rows=total.rows / len(batches),
                state_bytes=total.state,
            )
            for key, total in totals.items()
        ),
        shuffles=tuple(
            shuffle
            for shuffle in matrices.means(rate)
            if position[shuffle.upstream] < position[shuffle.downstream] and shuffle.volume.any()
        ),
        placed={f"{query.query}/{stage.stage}": stage for stage in stages},
        skipped=matrices.skipped,
    )


def placeholder_model(query: QueryState) -> QueryModel:
    """Model an unmeasured query: its partitions cost nothing, and are placed by count."""
    placed = {f"{query.query}/{stage.stage}": stage for stage in query.stages if stage.partitions > 0}
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
        for key, stage in placed.items()
    )
    return QueryModel(stages, (), placed, Counter())


def _running_order(keyed: Sequence[list[tuple[str, StageRun]]], partitions: Mapping[str, int]) -> list[str]:
    """Order stage keys as they run in the fullest batch, and what that lacks after them."""
    fullest = max(range(len(keyed)), key=lambda index: (len(keyed[index]), index))
    keys = [key for key, _ in keyed[fullest]]
    keys += [key for batch in keyed for key, _ in batch]
    return list(dict.fromkeys([*keys, *partitions]))


class _StageTotals:
    """Sums over batches for the entries of one stage; its state is that of the last batch."""

    def __init__(self, size: int, by_partition: bool) -> None:
        self.busy = np.zeros(size)
        self.rows = np.zeros(size)
        self.state = np.zeros(size)
        self.by_partition = by_partition

    def entries(self, tasks: ColumnarTasks, executors: Mapping[str, int]) -> IntArray:
        """Return the entry of each task, (n,), or a number outside the stage."""
        return tasks.column("partition").astype(np.int64) if self.by_partition else tasks.executors_in(executors)

    def add(self, run: StageRun, inputs: ModelInputs) -> None:
        """Add what the tasks of one batch took."""
        tasks, size = task_columns(run), len(self.busy)
        executor = tasks.executors_in(inputs.executors)
        entry = tasks.partition if self.by_partition else executor
        inside = (entry >= 0) & (entry < size)
        speed = np.where(executor >= 0, inputs.speed[executor], 1.0)
        self.busy += np.bincount(entry[inside], (tasks.busy * speed)[inside], size)
        self.rows += np.bincount(entry[inside], tasks.rows[inside], size)
        if self.by_partition:
            self.state[entry[inside]] = tasks.amount("state_bytes")[inside]
        else:
            self.state[:] = np.bincount(entry[inside], tasks.amount("state_bytes")[inside], size)


def load_bytes(stage: StatefulStage, query: str, batches: Sequence[BatchReport]) -> FloatArray:
    """Return the bytes that another executor would load of each partition, (partitions,).

    These are the state, and the changes since its newest snapshot where its age is known: a batch changes no more rows
    of the state than it brings, nor more than there are. An age that is not known is taken as the mean of the others.
    The bytes are 0 where nothing was measured.
    """
    size, changed, runs_of = np.zeros(stage.partitions), np.zeros(stage.partitions), np.zeros(stage.partitions)
    own = (batch for batch in batches if batch.query == query)
    for run in (run for batch in own for run in batch.stages if run.stateful_stage == stage.stage):
        tasks = task_columns(run)
        inside = tasks.partition < stage.partitions
        partition = tasks.partition[inside]
        loaded, in_memory, rows = (tasks.amount(name) for name in ("state_size", "state_bytes", "state_rows"))
        state = np.where(loaded > 0, loaded, in_memory)[inside]
        size[partition] = state
        changed[partition] += state * np.minimum(1.0, tasks.rows / np.maximum(rows, 1.0))[inside]
        runs_of[partition] += 1
    lags = np.zeros(stage.partitions)
    reported = np.array(stage.snapshot_lag[: stage.partitions], dtype=np.float64)
    measured = reported[reported >= 0]
    lags[: len(reported)] = np.where(reported >= 0, reported, measured.mean() if len(measured) else 0.0)
    return size + lags * changed / np.maximum(runs_of, 1)


def task_observations(
    batches: Iterable[BatchReport], first: Mapping[str, int], executors: Mapping[str, int]
) -> Observations:
    """Lay out what tasks took, for :mod:`rechannel.policies.analysis.service_rate`.

    ``first``: query -> number of the oldest of its last batches, those that count as now.
    """
    stages: dict[str, int] = {}
    no = np.empty(0, dtype=np.int64)
    runs: list[tuple[int, bool, int, int]] = [(0, False, 0, 0)]  # stage, whether it is now, batch, tasks
    columns: list[tuple[IntArray, IntArray, FloatArray, FloatArray]] = [(no, no, np.empty(0), np.empty(0))]
    for batch in batches:
        now = batch.batch >= first.get(batch.query, 0)
        for key, run in stage_keys(batch.query, batch):
            tasks = task_columns(run)
            runs.append((stages.setdefault(key, len(stages)), now, batch.batch, len(tasks)))
            partition = tasks.partition if run.stateful_stage >= 0 else np.full(len(tasks), -1)
            columns.append((partition, tasks.executors_in(executors), tasks.busy, tasks.rows))
    partition, executor, busy, rows = (np.concatenate(column) for column in zip(*columns, strict=True))
    *of_runs, sizes = np.array(runs, dtype=np.int64).T
    stage, is_now, number = (np.repeat(column, sizes) for column in of_runs)
    return Observations(stage, partition, executor, is_now > 0, busy, rows, number)


def skip_first_tasks(observed: Observations, first: IntArray) -> Observations:
    """Leave out each executor's first tasks of each stage, of which ``first`` has the number.

    The tasks of executors that are gone, with number -1, all stay.
    """
    before = ranks(observed.stage * (len(first) + 1) + observed.executor + 1)
    counts = (observed.executor < 0) | (before >= first[observed.executor])
    return Observations(**{name: column[counts] for name, column in vars(observed).items()})


def shuffle_coverage(
    batches: Iterable[BatchReport], reported: IntArray, spans: Mapping[str, tuple[float, float]]
) -> float | None:
    """Return the share of map outputs that agents reported, None if there were none to report.

    ``reported``: tasks whose outputs they reported, in ascending order; ``spans``: executor -> start and end of what
    its agent's windows cover. A window that is still open is not reported yet: outputs outside the spans do not count.
    """
    reported_outputs = outputs = 0
    covers: dict[tuple[str, ...], FloatArray] = {}
    for batch in batches:
        parents = {parent for run in batch.stages for parent in run.parents}
        for run in (run for run in batch.stages if run.spark_stage in parents):
            tasks = task_columns(run)
            if tasks.executors not in covers:
                covers[tasks.executors] = np.array([spans.get(name, _NEVER) for name in tasks.executors]).reshape(-1, 2)
            start, end = covers[tasks.executors][tasks.executor].T
            covered = (tasks.amount("bytes_out") > 0) & (start <= tasks.launch) & (tasks.finish <= end)
            outputs += int(covered.sum())
            reported_outputs += int(is_in(tasks.task[covered], reported).sum())
    return reported_outputs / outputs if outputs else None


class _ShuffleMatrices:
    """Mean bytes per batch between the entries of every two stages that a shuffle joins.

    Where the output of a task was not reported, the partitions that it went to are unknown. It is taken as the mean of
    the other tasks of its stage, which favors no placement.
    """

    def __init__(self, inputs: ModelInputs, totals: Mapping[str, _StageTotals], max_entries: int) -> None:
        self.skipped: Counter[str] = Counter()
        self._inputs = inputs
        self._totals = totals
        self._room = max_entries
        self._sums: dict[Pair, _RowSums] = {}
        self._batches: set[tuple[str, str, int]] = set()  # a batch with several jobs can run a stage more than once

    def add(self, number: int, batch: Sequence[tuple[str, StageRun]]) -> None:
        """Add the shuffles of one batch."""
        for up, run in batch:
            tasks = columnar_tasks(run).column("task").astype(np.int64)
            sent = np.flatnonzero(is_in(tasks, self._inputs.reported_tasks))
            outputs = [self._inputs.map_outputs[task] for task in tasks[sent].tolist()]
            for down, reader in batch if outputs else ():
                if run.spark_stage in reader.parents and (sums := self._row_sums(up, down)) is not None:
                    targets = None if self._totals[down].by_partition else self._targets(reader)
                    blocks = _blocks_of(outputs, sums.values.shape[1], targets)
                    self._add_run(sums, self._entries(up, run), sent, blocks)
                    self._batches.add((up, down, number))

    def means(self, rate: float) -> list[DenseShuffle]:
        """Return ``rate`` times the mean of each matrix over the batches that reported it."""
        count = Counter((up, down) for up, down, _ in self._batches)
        return [sums.scaled(*pair, rate / count[pair]) for pair, sums in self._sums.items()]

    def _row_sums(self, up: str, down: str) -> _RowSums | None:
        if (up, down) not in self._sums:
            shape = len(self._totals[up].busy), len(self._totals[down].busy)
            if shape[0] * shape[1] > self._room:
                self.skipped["shuffle too large for a dense block"] += 1
                return None
            self._room -= shape[0] * shape[1]
            self._sums[up, down] = _RowSums(*shape)
        return self._sums[up, down]

    def _targets(self, reader: StageRun) -> tuple[IntArray, IntArray]:
        """Return the partitions of a floating stage, and the executors that ran them, (n,) each."""
        tasks = task_columns(reader)
        executors = tasks.executors_in(self._inputs.executors)
        return tasks.partition[executors >= 0], executors[executors >= 0]

    def _entries(self, up: str, run: StageRun) -> tuple[IntArray, BoolArray]:
        """Return the entry of each task, -1 for none, and whether it wrote anything, (n,) each."""
        tasks = columnar_tasks(run)
        entries = self._totals[up].entries(tasks, self._inputs.executors)
        inside = (entries >= 0) & (entries < len(self._totals[up].busy))
        return np.where(inside, entries, -1), tasks.column("bytes_out") > 0

    def _add_run(
        self,
        sums: _RowSums,
        tasks: tuple[IntArray, BoolArray],
        sent: IntArray,
        blocks: Iterator[tuple[IntArray, FloatArray]],
    ) -> None:
        """Add what the tasks of a run have sent.

        ``blocks``: as `_blocks_of` yields them, of the tasks ``sent``.
        """
        entries, wrote = tasks
        total, count = np.zeros(sums.values.shape[1]), 0
        for places, rows in blocks:
            own = entries[sent[places]]
            if (own < 0).any():
                own, rows = own[own >= 0], rows[own >= 0]
            total += rows.sum(axis=0)
            count += len(own)
            senders, sender = np.unique(own, return_inverse=True)
            if len(senders) < len(own):
                own, rows = senders, sum_rows_by_index(sender, rows, len(senders))
            sums.add(own, rows)
        if count < len(sent):
            self.skipped["map output that fits no stage"] += len(sent) - count
        is_unknown = wrote & (entries >= 0)
        is_unknown[sent] = False
        times = np.bincount(entries[is_unknown], minlength=len(sums.row))
        sums.add_to_all(times, total / max(count, 1))


class _RowSums:
    """Sum of matrices over batches; entries of which nothing was reported share a row.

    ``row`` (U,): row of each entry, 0 for the common one; ``values`` (U + 1, D): rows that are not in use yet take
    no memory.
    """

    def __init__(self, entries: int, width: int) -> None:
        self.row = np.zeros(entries, dtype=np.int64)
        self.values: FloatArray = np.zeros((entries + 1, width), dtype="float32")
        self._used = 1

    def add(self, entries: IntArray, rows: FloatArray) -> None:
        """Add a row to each of some entries, which differ."""
        self._separate(entries)
        self.values[self.row[entries]] += rows

    def add_to_all(self, times: IntArray, row: FloatArray) -> None:
        """Add one row to each entry so many ``times``, (U,)."""
        self._separate(np.flatnonzero(times != 1))
        row = row.astype(self.values.dtype)
        self.values[0] += row
        own = np.flatnonzero((self.row > 0) & (times > 0))
        for start in range(0, len(own), _ROWS_AT_ONCE):  # all together would take the memory of the matrix
            part = own[start : start + _ROWS_AT_ONCE]
            self.values[self.row[part]] += times[part, None].astype(row.dtype) * row

    def scaled(self, upstream: str, downstream: str, factor: float) -> DenseShuffle:
        """Return the shuffle of ``factor`` times these sums, which cannot grow any more."""
        self.values.resize((self._used, self.values.shape[1]), refcheck=False)
        self.values *= factor
        if self.row.all():
            self.values[0] = 0.0
        self.values.setflags(write=False)  # so that it is not copied again
        return DenseShuffle(upstream, downstream, self.values, self.row)

    def _separate(self, entries: IntArray) -> None:
        """Give entries rows of their own, which begin as the common one."""
        new = entries[self.row[entries] == 0]
        end = self._used + len(new)
        self.values[self._used : end] = self.values[0]
        self.row[new] = np.arange(self._used, end)
        self._used = end


def _blocks_of(
    outputs: Sequence[MapOutput], size: int, targets: tuple[IntArray, IntArray] | None
) -> Iterator[tuple[IntArray, FloatArray]]:
    """Yield the places of map outputs that fit, (n,), and their bytes, (n, size).

    The bytes are those for each entry downstream. ``targets``: partitions that the readers of a floating stage read,
    and their executors.
    """
    partitions = size
    if targets is not None:  # all map tasks of a shuffle write for the same number of partitions
        partitions = Counter(output.partitions for output in outputs).most_common(1)[0][0]
    for start in range(0, len(outputs), _ROWS_AT_ONCE):
        chunk = outputs[start : start + _ROWS_AT_ONCE]
        places = np.flatnonzero([output.partitions == partitions for output in chunk])
        sizes = np.array([chunk[place].read_sizes() for place in places.tolist()]).reshape(len(places), partitions)
        plausible = np.asarray(((sizes >= 0) & (sizes <= _LARGEST)).all(axis=1))  # not what is no number
        sizes = sizes[plausible]
        if targets is not None:
            partition, executor = targets
            inside = partition < partitions
            sizes = sum_rows_by_index(executor[inside], sizes.T[partition[inside]], size).T
        yield start + places[plausible], sizes
