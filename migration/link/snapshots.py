"""How far each partition's newest snapshot lies behind: what a move's target has to replay.

Spark's coordinator is told of every snapshot of a state store that reaches the checkpoint (4.1 and newer, both of
Spark's providers). One store is asked for at a time, so that no turn of the link takes longer than a call, and a round
over all of them takes a second for each but no longer than `ROUND`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from rechannel.migration.link.report import KnownStage
from rechannel.migration.link.spark_adapter import StoreId, UnsupportedSparkError

ROUND = 60.0  # seconds in which every store is asked for once
SHORTEST, LONGEST = 0.1, 1.0  # seconds between two calls
UNKNOWN = -1

Unit = tuple[str, int]  # run, stage


class Snapshots:
    """How many batches each partition's newest snapshot lay behind; of its operators' stores the oldest counts.

    ``ask`` returns the state version of a store's newest snapshot, -1 if none is known; ``committed`` is run
    -> last committed batch. Batch b leaves version b + 1.
    """

    def __init__(self, ask: Callable[[StoreId], int], committed: Mapping[str, int]) -> None:
        self._ask = ask
        self._committed = committed
        self._next = 0.0
        self._round: Iterator[tuple[Unit, int, list[StoreId]]] = iter(())
        self._found: dict[Unit, dict[int, int]] = {}
        self.supported = True

    def of(self, run: str, stage: int, partitions: int) -> list[int]:
        """Return the lag of each partition, `UNKNOWN` where it was not asked for yet; [] if nothing is known."""
        found = self._found.get((run, stage))
        return [found.get(partition, UNKNOWN) for partition in range(partitions)] if found else []

    def turn(self, stages: Mapping[Unit, KnownStage], now: float) -> None:
        """Ask for the next partition, if it is time. Raises what the call raises, after stepping on."""
        if not self.supported or now < self._next:
            return
        unit = next(self._round, None)
        if unit is None:
            self._found = {key: found for key, found in self._found.items() if key in stages}
            self._round = _partitions(stages)
            self._next = now + SHORTEST if stages else now + 1.0
            return
        (key, partition, stores), count = unit, sum(stage.size for stage in stages.values())
        self._next = now + max(SHORTEST, min(LONGEST, ROUND / max(count, 1)))
        if key not in stages:
            return
        try:
            version = min(self._ask(store) for store in stores)
            lag = max(0, self._committed.get(key[0], -1) + 1 - version) if version >= 0 else UNKNOWN
            self._found.setdefault(key, {})[partition] = lag
        except UnsupportedSparkError:
            self.supported = False


def _partitions(stages: Mapping[Unit, KnownStage]) -> Iterator[tuple[Unit, int, list[StoreId]]]:
    """One store of each operator stands for all: its stores are committed, and their snapshots made, together."""
    for key, stage in list(stages.items()):
        for partition in range(stage.size if stage.operators else 0):
            first = [(item, names[0]) for item, names in stage.operators]
            yield key, partition, [StoreId(it.checkpoint, it.run, it.operator, partition, name) for it, name in first]
