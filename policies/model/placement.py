"""Executor of every stateful partition, and the moves between two placements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from rechannel.policies.model.arrays import IntArray, ModelError, check_lengths, read_only
from rechannel.policies.model.cluster import UNPLACED, Cluster
from rechannel.policies.model.workload import Workload


@dataclass(frozen=True, order=True)
class Move:
    """Change of the executor of one partition.

    ``source`` is :data:`UNPLACED` where it was on no known executor.
    """

    stage: str
    partition: int
    source: int
    target: int


@dataclass(frozen=True, eq=False)
class Placement:
    """Executor index of every partition of every placeable stage.

    :data:`UNPLACED` where a partition has none.
    """

    assignments: Mapping[str, IntArray]

    def __post_init__(self) -> None:
        checked: dict[str, IntArray] = {}
        for key, values in self.assignments.items():
            array = np.asarray(values)
            if array.ndim != 1 or not (array.dtype.kind in "iu" or array.size == 0):
                raise ModelError(f"assignments[{key!r}]: expected a flat array of executor indices")
            checked[key] = read_only(array.astype(np.int64, copy=False))
        object.__setattr__(self, "assignments", MappingProxyType(checked))

    def __getitem__(self, key: str) -> IntArray:
        return self.assignments[key]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Placement):
            return NotImplemented
        return self.assignments.keys() == other.assignments.keys() and all(
            np.array_equal(array, other[key]) for key, array in self.assignments.items()
        )

    def __hash__(self) -> int:
        return hash(frozenset((key, array.tobytes()) for key, array in self.assignments.items()))

    def on_available(self, cluster: Cluster) -> dict[str, IntArray]:
        """Return the assignments, with :data:`UNPLACED` for an executor that is not available."""
        return {key: np.where(cluster.available[array], array, UNPLACED) for key, array in self.assignments.items()}

    def filled_from(self, planned: Placement) -> Placement:
        """Return this placement with unplaced partitions where they are planned."""
        return Placement(
            {key: np.where(array == UNPLACED, planned[key], array) for key, array in self.assignments.items()}
        )

    def evacuated_to(self, planned: Placement, cluster: Cluster) -> Placement:
        """Return this placement with the partitions that cannot stay where they are planned."""
        return Placement(self.on_available(cluster)).filled_from(planned)

    def with_moves(self, moves: Iterable[Move]) -> Placement:
        """Return this placement with the partitions of some moves on their targets."""
        changed: dict[str, IntArray] = {}
        for move in moves:
            if move.stage not in changed:
                changed[move.stage] = self[move.stage].copy()
            changed[move.stage][move.partition] = move.target
        return Placement({**self.assignments, **changed})

    def moves_from(self, old: Placement) -> tuple[Move, ...]:
        """Return the moves that turn ``old`` into this placement, by stage and partition.

        A stage that ``old`` does not know comes from nowhere. A changed number of partitions is a
        :class:`ModelError`: Spark fixes it for the life of a checkpoint.
        """
        moves: list[Move] = []
        for key, targets in self.assignments.items():
            sources = old.assignments.get(key, np.full(len(targets), UNPLACED, dtype=np.int64))
            check_lengths(f"assignments[{key!r}], ", len(targets), old=sources)
            moves.extend(
                Move(key, int(i), int(sources[i]), int(targets[i])) for i in np.flatnonzero(sources != targets)
            )
        return tuple(moves)

    def validate(self, cluster: Cluster, workload: Workload) -> None:
        """Raise :class:`ModelError` unless this is a placement of the workload on the cluster.

        Unplaced partitions are allowed. Checks the workload against the cluster too: a floating stage must have one
        entry for each executor.
        """
        for stage in workload.stages:
            if not stage.placeable and stage.n != cluster.size:
                raise ModelError(f"stage {stage.key!r}: floating, expected {cluster.size} entries, got {stage.n}")
        expected = {stage.key: stage.n for stage in workload.placeable}
        if self.assignments.keys() != expected.keys():
            differing = sorted(self.assignments.keys() ^ expected.keys())
            raise ModelError(f"assignments: stages differ from the placeable ones of the workload: {differing}")
        if not expected:
            return
        # All at once: this is asked for again and again, and there are hundreds of stages.
        every, size = np.concatenate(list(self.assignments.values())), cluster.size
        outside = bool(every.size) and (every.min() < UNPLACED or every.max() >= size)
        for key, array in self.assignments.items():
            if len(array) != expected[key]:
                check_lengths("assignments: ", expected[key], **{key: array})
            if outside and ((array < UNPLACED) | (array >= size)).any():
                raise ModelError(f"assignments[{key!r}]: executor index outside {UNPLACED}..{size - 1}")


@dataclass(frozen=True)
class PolicyAnswer:
    """Answer of a policy: a placement, and sentences about how it was reached."""

    placement: Placement
    notes: tuple[str, ...] = ()
