"""Stages of all queries, and the shuffles between them."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from rechannel.policies.model.arrays import FloatArray, ModelError, check_lengths, float_array
from rechannel.policies.model.shuffles import Shuffle


@dataclass(frozen=True, eq=False)
class Stage:
    """Tasks of one stage of one query.

    A placeable stage has one entry for each partition, which a policy places. A floating stage (a source, or other
    stateless tasks, which run anywhere each batch) has one entry for each executor of the cluster: what was observed
    there. ``busy`` is busy seconds per batch on a reference executor, ``rows`` the input rows per batch,
    ``state_bytes`` the size of the state, ``batches_per_second`` how often the stage runs.
    """

    key: str
    query: str
    placeable: bool
    batches_per_second: float
    busy: FloatArray
    rows: FloatArray
    state_bytes: FloatArray

    def __post_init__(self) -> None:
        owner = f"stage {self.key!r}: "
        if not self.key:
            raise ModelError("stage key: must not be empty")
        rate = float(self.batches_per_second)
        if not np.isfinite(rate) or rate < 0:
            raise ModelError(f"{owner}batches_per_second: must be finite and not negative, got {rate}")
        object.__setattr__(self, "batches_per_second", rate)
        for name in ("busy", "rows", "state_bytes"):
            object.__setattr__(self, name, float_array(owner + name, getattr(self, name)))
        if self.n == 0:
            raise ModelError(f"{owner}busy: at least one entry is needed")
        check_lengths(owner, self.n, rows=self.rows, state_bytes=self.state_bytes)

    @property
    def n(self) -> int:
        """Number of entries: partitions of a placeable stage, executors of a floating one."""
        return len(self.busy)

    def with_busy(self, busy: FloatArray) -> Stage:
        """Return the stage with other busy seconds, (n,), which alone are checked."""
        owner, stage = f"stage {self.key!r}: ", copy(self)
        object.__setattr__(stage, "busy", float_array(f"{owner}busy", busy))
        check_lengths(owner, self.n, busy=stage.busy)
        return stage


@dataclass(frozen=True, eq=False)
class Workload:
    """Stages of all queries, and the shuffles between them.

    The stages of one query stand in the order they run.
    """

    stages: tuple[Stage, ...]
    shuffles: tuple[Shuffle, ...] = ()
    _order: Mapping[str, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "stages", tuple(self.stages))
        object.__setattr__(self, "shuffles", tuple(self.shuffles))
        object.__setattr__(self, "_order", {stage.key: i for i, stage in enumerate(self.stages)})
        if len(self._order) != len(self.stages):
            keys = [stage.key for stage in self.stages]
            twice = next(key for i, key in enumerate(keys) if key in keys[:i])
            raise ModelError(f"stages: keys must be unique, {twice!r} stands twice")
        if len({stage.n for stage in self.stages if not stage.placeable}) > 1:
            raise ModelError("stages: floating stages must all have one entry for each executor")
        for shuffle in self.shuffles:
            self._check_shuffle(shuffle)

    def _check_shuffle(self, shuffle: Shuffle) -> None:
        owner = f"shuffle {shuffle.upstream!r} to {shuffle.downstream!r}: "
        for name in ("upstream", "downstream"):
            if getattr(shuffle, name) not in self._order:
                raise ModelError(f"{owner}{name}: no such stage")
        if self._order[shuffle.upstream] >= self._order[shuffle.downstream]:
            raise ModelError(f"{owner}upstream must come before downstream in stages")
        upstream, downstream = self.stage(shuffle.upstream), self.stage(shuffle.downstream)
        if upstream.query != downstream.query:
            raise ModelError(f"{owner}joins two queries")
        if shuffle.shape != (upstream.n, downstream.n):
            raise ModelError(f"{owner}volume: expected shape {(upstream.n, downstream.n)}, got {shuffle.shape}")

    def with_busy(self, busy: Mapping[str, FloatArray]) -> Workload:
        """Return the workload with other busy seconds of some stages, by key."""
        stages = (stage.with_busy(busy[stage.key]) if stage.key in busy else stage for stage in self.stages)
        return Workload(tuple(stages), self.shuffles)

    def stage(self, key: str) -> Stage:
        """Return the stage of that key; KeyError if there is none."""
        return self.stages[self._order[key]]

    @cached_property
    def placeable(self) -> tuple[Stage, ...]:
        """Stages whose partitions a policy places, in order."""
        return tuple(stage for stage in self.stages if stage.placeable)

    @property
    def partitions(self) -> int:
        """Number of partitions that a policy places."""
        return sum(stage.n for stage in self.placeable)

    @cached_property
    def streams(self) -> tuple[int, float, float]:
        """Number of streams, and mean and mean absolute deviation of their volume.

        The volume is in bytes per second. A pair of entries that exchanges nothing is no stream and does not lower the
        mean.
        """
        summaries = [shuffle.summary() for shuffle in self.shuffles]
        count = sum(pairs for pairs, _ in summaries)
        if not count:
            return 0, 0.0, 0.0
        mean = sum(volume for _, volume in summaries) / count
        # The deviations above the mean add up to those below it.
        return count, mean, 2 * sum(shuffle.beyond(mean) for shuffle in self.shuffles) / count

    @cached_property
    def queries(self) -> tuple[str, ...]:
        """Queries by first appearance."""
        return tuple(dict.fromkeys(stage.query for stage in self.stages))
