"""How far each partition's newest snapshot lies behind: what a move's target has to replay.

Spark's coordinator is told of every snapshot of a state store that reaches the checkpoint (4.1 and newer, both of
Spark's providers). One store is asked for at a time, so that no turn of the link takes longer than a call, and a round
over all of them takes a second for each but no longer than `ROUND`. Partitions that are about to move come first;
those of a query without a batch for some minutes are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from rechannel.migration.link.report import StageStores
from rechannel.migration.spark.adapter import StoreId
from rechannel.migration.spark.gateway import UnsupportedSparkError

ROUND = 60.0  # seconds in which every store is asked for once
SHORTEST, LONGEST = 0.1, 1.0  # seconds between two calls
_IDLE = 180.0  # seconds without a commit, after which Spark makes no snapshot any more
UNKNOWN = -1
NOT_ASKED = 2**31  # batches: further than any bound, so that what is to move waits for the answer

Unit = tuple[str, int]  # run, stage


class Snapshots:
    """How many batches each partition's newest snapshot lies behind; of its operators' stores the oldest counts.

    ``ask`` returns the state version of a store's newest snapshot, -1 if none is known; ``committed`` is run
    -> last committed batch. Batch b leaves version b + 1. ``supported``: whether this Spark tells at all.
    """

    def __init__(self, ask: Callable[[StoreId], int], committed: Mapping[str, int], *, supported: bool = True) -> None:
        self._ask = ask
        self._committed = committed
        self._next = 0.0
        self._round: Iterator[tuple[Unit, int]] = iter(())
        self._versions: dict[Unit, dict[int, int]] = {}
        self._commits: dict[str, tuple[int, float]] = {}  # run -> its last commit, and when that was seen
        self._rest = SHORTEST
        self._turn_of = 0  # among the partitions that are about to move
        self.supported = supported

    def of(self, run: str, stage: int, partitions: int) -> list[int]:
        """Return the lag of each partition, `UNKNOWN` where it was not asked for yet; [] if nothing is known."""
        found = self._versions.get((run, stage))
        return [self._lag(run, found.get(partition, -1)) for partition in range(partitions)] if found else []

    def replay(
        self, wanted: Sequence[tuple[str, int, int]], runs: Mapping[str, str]
    ) -> dict[tuple[str, int, int], int]:
        """Return (query, stage, partition) -> lag, `NOT_ASKED` where an answer is still to come.

        ``wanted``: (run, stage, partition); ``runs``: query -> its run. Nothing where this Spark does not tell.
        """
        if not self.supported or not wanted:
            return {}
        queries = {run: query for query, run in runs.items()}
        lags = {}
        for run, stage, partition in wanted:
            version = self._versions.get((run, stage), {}).get(partition)
            if run in queries:
                lags[queries[run], stage, partition] = NOT_ASKED if version is None else self._lag(run, version)
        return lags

    def turn(self, stages: Mapping[Unit, StageStores], now: float, first: Sequence[tuple[str, int, int]] = ()) -> None:
        """Ask for the next partition, if it is time. Raises what the call raises, after stepping on.

        ``first``: (run, stage, partition) of those that are asked for, by turns, before all others.
        """
        if not self.supported or now < self._next:
            return
        wanted = [((run, stage), partition) for run, stage, partition in first if (run, stage) in stages]
        if wanted:
            self._turn_of = (self._turn_of + 1) % len(wanted)
            self._next = now + SHORTEST
            self._look(stages, *wanted[self._turn_of])
            return
        unit = next(self._round, None)
        if unit is None:
            self._versions = {key: found for key, found in self._versions.items() if key in stages}
            busy = self._busy(stages, now)
            self._round = _partitions(busy)
            self._rest = max(SHORTEST, min(LONGEST, ROUND / max(sum(stage.size for stage in busy.values()), 1)))
            self._next = now + (SHORTEST if busy else LONGEST)
            return
        self._next = now + self._rest
        self._look(stages, *unit)

    def _busy(self, stages: Mapping[Unit, StageStores], now: float) -> dict[Unit, StageStores]:
        """Return the stages of runs that committed something lately."""
        commits = {run: self._committed.get(run, -1) for run, _ in stages}
        seen = self._commits
        self._commits = {
            run: seen[run] if seen.get(run, (-2, 0.0))[0] == batch else (batch, now) for run, batch in commits.items()
        }
        return {key: stage for key, stage in stages.items() if now - self._commits[key[0]][1] < _IDLE}

    def _look(self, stages: Mapping[Unit, StageStores], key: Unit, partition: int) -> None:
        """One store of each operator stands for all: its stores are committed, and their snapshots made, together."""
        known = stages.get(key)
        if known is None or not known.operators:
            return
        stores = [
            StoreId(item.checkpoint, item.run, item.operator, partition, names[0]) for item, names in known.operators
        ]
        try:
            self._versions.setdefault(key, {})[partition] = min(self._ask(store) for store in stores)
        except UnsupportedSparkError:
            self.supported = False

    def _lag(self, run: str, version: int) -> int:
        return max(0, self._committed.get(run, -1) + 1 - version) if version >= 0 else UNKNOWN


def _partitions(stages: Mapping[Unit, StageStores]) -> Iterator[tuple[Unit, int]]:
    for key, stage in list(stages.items()):
        for partition in range(stage.size if stage.operators else 0):
            yield key, partition
