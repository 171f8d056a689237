"""Cases of the testbed: queries, partitions, rows and service times, drawn from a seed or set by options. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TypeVar

import msgspec
import numpy as np

from rechannel.policies.model.arrays import FloatArray

Value = TypeVar("Value")

OVERHEAD = 0.1  # seconds of a task without its rows on two busy cores, or so: cases have enough rows to mostly sleep
ASLEEP = 0.75  # share of a task's time that is to be slept, on average over the tasks
LEAST_LOAD = 1.2  # seconds of service on the busiest task slot in a cycle, at best
PLANNING = 0.5  # seconds of a batch without its tasks, or so
SMALL, LARGE = (12, 16, 24, 32), (48, 64)  # partitions; the large numbers only where few queries have them
MOST_TASKS = 128  # of all queries in a cycle: what two cores start while executors sleep


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """A change of loads from batch number ``batch`` on.

    From there on, partition p has the rows that partition ``order[p]`` had before.
    """

    batch: int
    order: list[int]


class Spike(msgspec.Struct, frozen=True, kw_only=True):
    """Batches, from ``batch`` up to and without ``end``, in which a row takes ``times`` as long."""

    batch: int
    end: int
    times: float


class SlowNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node that is slow from a ``batch`` of the first query on.

    A row takes ``times`` as long on its ``executor``, a number.
    """

    batch: int
    executor: int
    times: float


class QueryCase(msgspec.Struct, frozen=True, kw_only=True):
    """One query: the rows of each partition in every batch, and the seconds of its trigger (0: back to back).

    ``drift``, ``spike``: changes of the rows and of their time, None where every batch is alike. ``times``: the service
    times that a row takes. ``begun``: batch of the first query in which it starts.
    """

    name: str
    rows: list[int]
    interval: float = 0.0
    drift: Drift | None = None
    spike: Spike | None = None
    times: float = 1.0
    begun: int = 0

    @property
    def partitions(self) -> int:
        """Number of partitions."""
        return len(self.rows)

    def rows_in(self, batch: int) -> list[int]:
        """Return the rows of each partition in one batch."""
        if self.drift is None or batch < self.drift.batch:
            return self.rows
        return [self.rows[source] for source in self.drift.order]

    def at(self, batch: int) -> QueryCase:
        """Return the query that one batch is of: its rows and their time in every batch, and no change."""
        spiked = self.spike is not None and self.spike.batch <= batch < self.spike.end
        times = self.spike.times if self.spike is not None and spiked else self.times
        return msgspec.structs.replace(self, rows=self.rows_in(batch), times=times, drift=None, spike=None)


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster and its queries.

    ``cores`` are those of each executor. ``burned``: share of a row's time in which it works instead of sleeping.
    ``noise``: cores that a process beside the cluster burns, 0 for none. ``spread``: links spread a new query, as they
    do by default. ``slow``: None where all nodes are alike.
    """

    seed: int
    executors: int
    cores: int
    service_ms: int
    queries: list[QueryCase]
    scheduler: str = "FIFO"
    zipf: float = 0.0
    noise: float = 0.0
    spread: bool = True
    slow: SlowNode | None = None
    burned: float = 0.0

    @property
    def slots(self) -> int:
        """Tasks that run at once."""
        return self.executors * self.cores

    @property
    def triggered(self) -> bool:
        """Whether queries have intervals."""
        return any(query.interval for query in self.queries)

    def slept(self) -> list[list[float]]:
        """Return the seconds that each partition's rows take in a batch, by query."""
        return [[count * query.times * self.service_ms / 1000 for count in query.rows] for query in self.queries]

    def at(self, batch: int) -> Case:
        """Return the case that one batch is of: its rows in every batch, its slow node from the start, no change."""
        slow = msgspec.structs.replace(self.slow, batch=0) if self.slow and batch >= self.slow.batch else None
        return msgspec.structs.replace(self, queries=[query.at(batch) for query in self.queries], slow=slow)

    def of(self, names: Collection[str]) -> Case:
        """Return the case with these queries alone."""
        return msgspec.structs.replace(self, queries=[query for query in self.queries if query.name in names])

    def summary(self) -> str:
        """Return the case in a few words."""
        sizes = "/".join(str(query.partitions) for query in self.queries)
        kind = "triggers" if self.triggered else "back to back"
        noise = f", noise {self.noise:g}" if self.noise else ""
        burned = f", {self.burned:.0%} burned" if self.burned else ""
        cluster = f"{self.executors}x{self.cores}"
        return f"{len(self.queries)}q {sizes}p {cluster} {kind} {self.scheduler} z{self.zipf:g}{noise}{burned}"


class Draw(msgspec.Struct, frozen=True, kw_only=True):
    """What is set; None is drawn. ``load``: seconds of service on the busiest slot at best."""

    queries: int | None = None
    executors: int | None = None
    cores: int | None = None
    partitions: int | None = None
    zipf: float | None = None
    triggers: bool | None = None
    scheduler: str | None = None
    noise: float | None = None
    load: float | None = None
    service_ms: int = 25
    spread: bool = True


def draw(seed: int, fixed: Draw = Draw()) -> Case:  # noqa: B008  immutable
    """Draw a case. What is set changes nothing of what is drawn for the rest."""
    random = np.random.default_rng(seed)
    queries = _set(fixed.queries, 1 + int(random.choice(4, p=(0.25, 0.4, 0.2, 0.15))))
    cores = _set(fixed.cores, 1 + int(random.random() < 0.25))
    executors = _set(fixed.executors, int(random.integers(3, 6)) if cores == 1 else int(random.integers(2, 4)))
    zipf = _set(fixed.zipf, round(float(random.uniform(0.8, 1.5)), 2))
    triggers = _set(fixed.triggers, bool(random.random() < 0.35))
    scheduler = _set(fixed.scheduler, "FAIR" if random.random() < 0.3 else "FIFO")
    noise = _set(fixed.noise, float(random.choice((0.0, 0.5), p=(0.7, 0.3))))
    sizes = _sizes(random, queries, fixed.partitions)
    shares = random.uniform(0.5, 1.5, queries)
    slots = executors * cores
    load = _set(fixed.load, max(LEAST_LOAD, sum(sizes) * OVERHEAD * ASLEEP / (1 - ASLEEP) / slots))
    weights = [_weights(random, size, zipf) * share for size, share in zip(sizes, shares / shares.sum(), strict=True)]
    total = min(load * slots, load / max(float(each.max()) for each in weights))  # seconds of all rows in a cycle
    drawn = []
    for number, each in enumerate(weights):
        rows = [max(1, round(float(weight) * total * 1000 / fixed.service_ms)) for weight in each]
        interval = _interval(random, load, max(rows) * fixed.service_ms / 1000)
        drawn.append(QueryCase(name=f"service-{number}", rows=rows, interval=interval if triggers else 0.0))
    return Case(
        seed=seed,
        executors=executors,
        cores=cores,
        service_ms=fixed.service_ms,
        queries=drawn,
        scheduler=scheduler,
        zipf=zipf,
        noise=noise,
        spread=fixed.spread,
    )


def _set(fixed: Value | None, drawn: Value) -> Value:
    return drawn if fixed is None else fixed


def _sizes(random: np.random.Generator, queries: int, fixed: int | None) -> list[int]:
    """Return partitions by query; every draw is made, whatever is set."""
    choices = SMALL + LARGE if queries == 1 else SMALL
    sizes = [int(random.choice(choices)) for _ in range(queries)]
    if fixed is not None:
        return [fixed] * queries
    while sum(sizes) > MOST_TASKS:
        sizes[sizes.index(max(sizes))] //= 2
    return sizes


def _weights(random: np.random.Generator, partitions: int, zipf: float) -> FloatArray:
    """Return the shares of the partitions by Zipf's law, in an order by chance."""
    weights = np.arange(1, partitions + 1, dtype=float) ** -zipf
    return random.permutation(weights / weights.sum())


def _interval(random: np.random.Generator, load: float, largest: float) -> float:
    """Return the seconds of a trigger that leaves executors idle for a good part of the time."""
    utilization = float(random.uniform(0.4, 0.7))
    return math.ceil(10 * max(load / utilization, 1.3 * (largest + PLANNING))) / 10
