"""Input of the reconciler: its limits, and the driver's state at one moment. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from rechannel.conf.settings import Settings


@dataclass(frozen=True)
class ReconcilerLimits:
    """Deadlines of moves, and bounds on their rate.

    Attributes
    ----------
    deadline_batches : int
        Missed batches after which a move is abandoned.
    deadline_seconds : float
        Seconds after which a move that waits or was steered is abandoned.
    presume : float
        Two of Spark's maintenance intervals in seconds: an old copy is then presumed closed.
    max_replay : int
        Batches that a move's newest snapshot may lie behind; the wait for a newer one ends after
        ``snapshot_patience`` seconds.
    overlap : bool
        Whether a step may begin before the old copies of the step before are closed.
    """

    deadline_batches: int
    deadline_seconds: float
    presume: float
    moves_per_batch: int = 32
    bytes_per_batch: float = float("inf")
    max_replay: int = 1_000_000
    overlap: bool = True

    @classmethod
    def of(cls, settings: Settings, maintenance: float) -> ReconcilerLimits:
        """Return the limits of the settings, for a maintenance interval of so many seconds."""
        link, migration = settings.link, settings.migration
        return cls(
            link.deadline_batches,
            link.deadline_seconds,
            2 * maintenance,
            migration.moves_per_batch,
            migration.bytes_per_batch,
            migration.max_replay,
            migration.overlap,
        )

    @property
    def snapshot_patience(self) -> float:
        """Seconds to wait for a newer snapshot: within ``presume`` Spark makes one if it makes one at all."""
        return min(self.presume, self.deadline_seconds / 2)


@dataclass(frozen=True)
class DriverState:
    """The driver's state at one moment.

    Attributes
    ----------
    placement : mapping of (query, stage)
        The executor that each partition last ran on.
    last_ran : mapping of (query, stage)
        The batch in which that was, by partition.
    runs : mapping of query
        Its current run.
    known_stages : collection of (query, stage)
        Stages whose state stores are known.
    batches : mapping of query
        The last batch begun.
    quiet : collection of query
        Queries that run no job now.
    leaving : collection of executor
        Executors that must be given nothing, since they are to leave.
    replay : mapping of (query, stage, partition)
        Batches that the newest snapshot lies behind, for the partitions to be steered next.
    """

    executors: Collection[str]
    placement: Mapping[tuple[str, int], list[str]]
    last_ran: Mapping[tuple[str, int], list[int]]
    runs: Mapping[str, str]
    known_stages: Collection[tuple[str, int]]
    batches: Mapping[str, int]
    quiet: Collection[str] = ()
    leaving: Collection[str] = ()
    replay: Mapping[tuple[str, int, int], int] = field(default_factory=dict)

    def executor_of(self, query: str, stage: int, partition: int) -> str:
        """Return the executor that a partition last ran on, "" if unknown."""
        executors = self.placement.get((query, stage), [])
        return executors[partition] if 0 <= partition < len(executors) else ""

    def last_batch_of(self, query: str, stage: int, partition: int) -> int:
        """Return the batch in which a partition last ran, -1 if unknown."""
        batches = self.last_ran.get((query, stage), [])
        return batches[partition] if 0 <= partition < len(batches) else -1

    def replay_of(self, query: str, stage: int, partition: int) -> int:
        """Return the batches that a partition's newest snapshot lies behind, -1 if unknown."""
        return self.replay.get((query, stage, partition), -1)

    def accepts_moves(self, executor: str) -> bool:
        """Whether an executor is alive and not about to leave."""
        return executor in self.executors and executor not in self.leaving
