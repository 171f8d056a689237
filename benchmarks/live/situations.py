"""Events of the cluster or the input during a measurement. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

NODES = 4
_REST = 30  # batches

Event = Literal["none", "join", "kill", "slow", "drift", "spike"]


@dataclass(frozen=True)
class Situation:
    """One event, and whether a way may act before it: what was good then need not be good after it."""

    name: str
    summary: str
    event: Event
    acts_before: bool = False
    nodes: int = NODES  # of which Spark has executors when it begins
    rest: int = 0  # batches after the moves until what came of them is measured: a new executor compiles its code

    @property
    def in_input(self) -> bool:
        """Whether the event is one of the input, and comes at a place in the cycle of batches."""
        return self.event in ("drift", "spike")


@dataclass(frozen=True)
class Shape:
    """The cluster: ``quota`` in cores of the machine for each node, ``link`` in Mbit/s, ``partitions`` of each stage.

    All nodes together leave a good part of two cores to driver, Redis and the rest: else nodes would wait for those,
    and what is measured would be chance.

    ``rootless``: as for who is not root, on loopback addresses and with quotas that are held by stopping processes.
    ``speeds``: shares of the quota that the nodes get, where they are unequal. ``interval``: seconds from batch to
    batch, 0: as soon as the last one is over.
    """

    quota: float = 0.3
    link: float = 100.0
    partitions: int = 12
    rootless: bool = False
    speeds: tuple[float, ...] = ()
    interval: float = 0.0


@dataclass(frozen=True)
class Lengths:
    """Lengths of the parts of a turn, in batches. ``event``: its place in the cycle of the input."""

    before: int
    waiting: int  # after the event, before a way may act: what it has to see first
    after: int
    cycle: int
    event: int


SITUATIONS: dict[str, Situation] = {
    situation.name: situation
    for situation in (
        Situation(
            "steady", "Skewed keys that stay as they are, on a placement as Spark's first batch makes it.", "none"
        ),
        Situation("drift", "Other keys become popular after all variants adapted to the first ones.", "drift", True),
        Situation("joined", "A fourth node joins three.", "join", nodes=NODES - 1, rest=_REST),
        Situation(
            "lost", "An executor is killed with SIGKILL; its worker starts another one.", "kill", True, rest=_REST
        ),
        Situation("slowed", "One node gets half the CPU that it had.", "slow", True),
        Situation("spike", "Half as many rows again come with every batch from then on.", "spike"),
    )
}


def as_spark_would(executors: Sequence[str], stages: Mapping[int, int], seed: int) -> dict[tuple[int, int], str]:
    """Return executor by (stage, partition), spread as unevenly as Spark's first batches were seen to be.

    Whoever is free takes the next task, and that is chance: shares from a gamma distribution of shape 4, as the
    placements of twelve partitions on four executors have it that were read off real starts (1, 4, 6 and 1, for one).
    """
    random = np.random.default_rng(seed)
    placement = {}
    for stage, partitions in sorted(stages.items()):
        shares = random.gamma(4.0, size=len(executors))
        # No executor may be left out: on a fresh cluster all of them ask for tasks.
        first = random.permutation(len(executors))[:partitions]
        rest = random.choice(len(executors), max(0, partitions - len(first)), p=shares / shares.sum())
        drawn = random.permutation(np.concatenate([first, rest]))
        placement.update({(stage, partition): executors[int(at)] for partition, at in enumerate(drawn)})
    return placement
