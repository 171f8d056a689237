"""Input of the reconciler: its limits, and the driver's state at one moment. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from rechannel.conf.settings import Settings
from rechannel.migration.moves import BYTES_PER_BATCH
from rechannel.wire.messages import Unit

_DEADLINE_BATCHES = 6
# Batches since the last snapshot, whose changes a move's target replays; beyond: the move waits for the next snapshot.
_MAX_LAG = 100
# In place of the batches that a partition's newest snapshot lies behind: Spark knows of no snapshot, or does not tell,
# so that a move does not wait for one.
UNKNOWN = -1


@dataclass(frozen=True)
class ReconcilerLimits:
    """Deadlines of moves, and bounds on their rate."""

    deadline_batches: int  # missed batches after which a move is abandoned
    deadline_seconds: float  # seconds after which a move that waits or was steered is abandoned
    presume: float  # two maintenance intervals of Spark in seconds: an old copy is then presumed closed
    moves_per_batch: int
    bytes_per_batch: float
    max_lag: int  # batches that the newest snapshot of a move's partition may lie behind
    overlap: bool  # a step may begin before the old copies of the step before are closed

    @classmethod
    def of(cls, settings: Settings, maintenance: float) -> ReconcilerLimits:
        """Return the limits of the settings, for a maintenance interval of so many seconds."""
        link, migration = settings.link, settings.migration
        return cls(
            deadline_batches=_DEADLINE_BATCHES,
            deadline_seconds=link.deadline,
            presume=2 * maintenance,
            moves_per_batch=migration.moves_per_batch,
            bytes_per_batch=BYTES_PER_BATCH,
            max_lag=_MAX_LAG,
            overlap=migration.overlap,
        )

    @property
    def snapshot_patience(self) -> float:
        """Seconds to wait for a snapshot: within ``presume`` Spark makes one or none at all."""
        return min(self.presume, self.deadline_seconds / 2)


@dataclass(frozen=True)
class DriverState:
    """The driver's state at one moment."""

    executors: Collection[str]
    placement: Mapping[tuple[str, int], list[str]]  # (query, stage) -> executor that each partition last ran on
    last_ran: Mapping[tuple[str, int], list[int]]  # (query, stage) -> batch in which that was, by partition
    runs: Mapping[str, str]  # query -> its current run
    known_stages: Collection[tuple[str, int]]  # (query, stage) whose state stores are known
    batches: Mapping[str, int]  # query -> last batch begun
    quiet: Collection[str] = ()  # queries that run no job now
    unusable: Collection[str] = ()  # executors that are given no partition: on drained nodes, or being released
    # Partition to be steered next -> batches that its newest snapshot lies behind
    snapshot_lag: Mapping[Unit, int] = field(default_factory=dict)

    def executor_of(self, unit: Unit) -> str:
        """Return the executor that a partition last ran on, "" if unknown."""
        executors = self.placement.get((unit.query, unit.stage), [])
        return executors[unit.partition] if 0 <= unit.partition < len(executors) else ""

    def last_batch_of(self, unit: Unit) -> int:
        """Return the batch in which a partition last ran, -1 if unknown."""
        batches = self.last_ran.get((unit.query, unit.stage), [])
        return batches[unit.partition] if 0 <= unit.partition < len(batches) else -1

    def lag_of(self, unit: Unit) -> int:
        """Return the batches that a partition's newest snapshot lies behind, or `UNKNOWN`."""
        return self.snapshot_lag.get(unit, UNKNOWN)

    def accepts_moves(self, executor: str) -> bool:
        """Whether an executor is alive and may be given partitions."""
        return executor in self.executors and executor not in self.unusable
