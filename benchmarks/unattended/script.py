"""Scripts of events on a case, drawn from a seed. Pure.

Events strike as batches of the first query begin, not at times: so every way has the same rows in the same phases, and
a phase has as many batches in each of them. The phases of a slow way last longer.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import accumulate

import msgspec

from benchmarks.live.service.cases import OVERHEAD, PLANNING, Case, Draw, Drift, draw

START, DRIFT, LOST, JOINED, STEADY, DRAINED = "start", "drift", "lost", "joined", "steady", "drained"
EVENTS = {
    START: "the queries start, and the Java machines warm up",
    DRIFT: "the loads of the first query's partitions are permuted, so that others are heavy",
    LOST: "an executor is killed with SIGKILL, and its worker starts another one",
    JOINED: "one more node comes, with an agent and an executor",
    STEADY: "nothing happens",
    DRAINED: "`rechannel drain` is ordered for a node; always the last, since Spark has no such order",
}
MINUTES = 20.0
LEAST = 4.0  # minutes of a script for each of its events: a shorter script has fewer
_FIRST = 2.0  # times the length of a usual phase: the first decision comes after `reschedule.timeout`
_SHORTEST, _LONGEST = 0.8, 1.2  # times the length of a usual phase
_ZIPF = 0.8  # small enough that no single partition is the bound, even on one executor more
_PARTITIONS = {1: 24, 2: 16}  # of each query, by the number of queries


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """A phase, from its event to the next one.

    ``batch``: of the first query, with whose begin the event strikes; ``executor``: number of the one that is lost or
    drained, -1 without one; ``executors``: those that may hold partitions in the phase.
    """

    kind: str
    batch: int
    executors: int
    executor: int = -1


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """Events on a case.

    ``end``: batch of the first query with whose begin it is over; ``batch_seconds``: of a batch, as expected.
    """

    seed: int
    minutes: float
    case: Case
    phases: list[Phase]
    end: int
    batch_seconds: float

    @property
    def kinds(self) -> list[str]:
        """Kinds of the phases in their order."""
        return [phase.kind for phase in self.phases]

    def ends(self) -> list[int]:
        """Return the batch with whose begin each phase is over."""
        return [*(phase.batch for phase in self.phases[1:]), self.end]


def draw_script(seed: int, minutes: float = MINUTES) -> Script:
    """Draw the script of a seed that lasts about so many minutes."""
    chance = random.Random(seed)  # noqa: S311  not for secrets
    case = _case(chance, seed)
    kinds = [DRIFT, LOST, JOINED, STEADY]
    chance.shuffle(kinds)
    kinds = [START, *[*kinds, DRAINED][: max(1, int(minutes / LEAST))]]
    lengths = [_FIRST, *(chance.uniform(_SHORTEST, _LONGEST) for _ in kinds[1:])]
    seconds = _batch_seconds(case)
    scale = minutes * 60 / seconds / sum(lengths)
    begins = [round(length * scale) for length in accumulate(lengths, initial=0.0)]
    phases, executors = [], case.executors
    for kind, begin in zip(kinds, begins[:-1], strict=True):
        executors += {JOINED: 1, DRAINED: -1}.get(kind, 0)
        number = chance.randrange(case.executors) if kind in (LOST, DRAINED) else -1
        phases.append(Phase(kind=kind, batch=begin, executors=executors, executor=number))
    order = _permutation(chance, case.queries[0].rows)
    if DRIFT in kinds:
        replace, first = msgspec.structs.replace, case.queries[0]
        drift = Drift(batch=phases[kinds.index(DRIFT)].batch, order=order)
        case = replace(case, queries=[replace(first, drift=drift), *case.queries[1:]])
    return Script(seed=seed, minutes=minutes, case=case, phases=phases, end=begins[-1], batch_seconds=seconds)


def _case(chance: random.Random, seed: int) -> Case:
    """Draw one or two queries back to back on one-core executors."""
    queries, executors = chance.choice((1, 2)), chance.choice((3, 4))
    fixed = Draw(
        queries=queries,
        executors=executors,
        cores=1,
        partitions=_PARTITIONS[queries],
        zipf=_ZIPF,
        triggers=False,
        scheduler="FIFO",
        noise=0.0,
    )
    return draw(seed, fixed)


def _batch_seconds(case: Case) -> float:
    """Return the seconds that a batch takes on an even placement, or so."""
    tasks = sum(query.partitions for query in case.queries)
    return (sum(map(sum, case.slept())) + OVERHEAD * tasks) / case.slots + PLANNING


def _permutation(chance: random.Random, rows: Sequence[int]) -> list[int]:
    """Return an order of the partitions in which another one is the heaviest."""
    order, heaviest = list(range(len(rows))), rows.index(max(rows))
    while order[heaviest] == heaviest:
        chance.shuffle(order)
    return order
