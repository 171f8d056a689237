"""What the reconciler works with: its limits, and what the driver knows at one moment. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from rechannel.conf.settings import Settings


@dataclass(frozen=True)
class ReconcilerLimits:
    """When to give up, and how fast to go.

    ``presume`` is two of Spark's maintenance intervals, in seconds. ``max_replay``: batches that a move's newest
    snapshot may lie behind; it is waited for no longer than ``snapshot_patience`` seconds. ``overlap``: whether a step
    may begin before the old copies of the one before it are closed.
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
        """Return those of the settings, where Spark keeps house every ``maintenance`` seconds."""
        link, pace = settings.link, settings.migration
        return cls(
            link.deadline_batches,
            link.deadline_seconds,
            2 * maintenance,
            pace.moves_per_batch,
            pace.bytes_per_batch,
            pace.max_replay,
            pace.overlap,
        )

    @property
    def snapshot_patience(self) -> float:
        """Seconds: within ``presume`` Spark makes a snapshot if it makes one at all."""
        return min(self.presume, self.deadline_seconds / 2)


@dataclass(frozen=True)
class DriverState:
    """What the driver knows at this moment.

    ``placement``: (query, stage) -> executor per partition; ``ran``: the batch in which that was; ``runs``: query ->
    current run; ``stores``: (query, stage) whose state stores are known; ``batches``: query -> last batch begun;
    ``quiet``: queries that run no job now; ``closed``: executors that may be given nothing, since they are to leave;
    ``replay``: (query, stage, partition) of what is to be steered next -> batches that its newest snapshot lies behind.
    """

    executors: Collection[str]
    placement: Mapping[tuple[str, int], list[str]]
    ran: Mapping[tuple[str, int], list[int]]
    runs: Mapping[str, str]
    stores: Collection[tuple[str, int]]
    batches: Mapping[str, int]
    quiet: Collection[str] = ()
    closed: Collection[str] = ()
    replay: Mapping[tuple[str, int, int], int] = field(default_factory=dict)

    def executor_of(self, query: str, stage: int, partition: int) -> str:
        """Return where a partition last ran, "" if unknown."""
        where = self.placement.get((query, stage), [])
        return where[partition] if 0 <= partition < len(where) else ""

    def ran_in(self, query: str, stage: int, partition: int) -> int:
        """Return the batch in which a partition last ran, -1 if unknown."""
        ran = self.ran.get((query, stage), [])
        return ran[partition] if 0 <= partition < len(ran) else -1

    def replay_of(self, query: str, stage: int, partition: int) -> int:
        """Return how many batches a partition's newest snapshot lies behind, -1 if unknown."""
        return self.replay.get((query, stage, partition), -1)
