"""Scripts of events on a case, drawn from a seed. Pure.

Events strike as batches of the first query begin, not at times: so every way has the same rows in the same phases, and
a phase has as many batches in each of them. The phases of a slow way last longer. A node slows with a batch of each
query: they run back to back, one batch of each in a cycle, so that is at the same time, or nearly.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec

from benchmarks.live.service.cases import OVERHEAD, PLANNING, Case, Draw, Drift, SlowNode, Spike, draw

START, DRIFT, SPIKE, SLOWED = "start", "drift", "spike", "slowed"
LOST, JOINED, STARTED, STOPPED, STEADY, DRAINED = "lost", "joined", "started", "stopped", "steady", "drained"
_TIMES = 1.6  # as long as before a row takes in a spike, or on a slow node
EVENTS = {
    START: "one or two queries start, and the Java machines warm up",
    DRIFT: "the loads of the first query's partitions are permuted, so that others are heavy",
    SPIKE: "the first query's rows take longer until the next event",
    SLOWED: "rows take longer on one node from here on",
    LOST: "an executor is killed with SIGKILL, and its worker starts another one",
    JOINED: "one more node comes, with an agent and an executor",
    STARTED: "one more query starts",
    STOPPED: "that query is stopped",
    STEADY: "nothing happens",
    DRAINED: "`rechannel drain` is ordered for a node; always the last, since Spark has no such order",
}
MINUTES = 30.0
LEAST = 2.4  # minutes of a script for each of its events: a shorter script has fewer
_FIRST = 2.0  # times the length of a usual phase: until the Java machines have compiled
_SHORTEST, _LONGEST = 0.8, 1.2  # times the length of a usual phase
_ZIPF = 0.8  # small enough that no single partition is the bound, even on one executor more
_PARTITIONS = {1: 24, 2: 16, 3: 12}  # of each query, by the number of queries


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """A phase, from its event to the next one.

    ``batch``: of the first query, with whose begin the event strikes; ``executor``: number of the one that is lost,
    slowed or drained, -1 without one; ``speeds``: of the executors that may hold partitions in the phase; ``queries``:
    names of those that run.
    """

    kind: str
    batch: int
    speeds: list[float]
    queries: list[str]
    executor: int = -1


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """Events on a case; ``end``: batch of the first query with whose begin it is over."""

    seed: int
    minutes: float
    case: Case
    phases: list[Phase]
    end: int

    def case_at(self, phase: Phase) -> Case:
        """Return the case of a phase: the queries that run in it, and no change."""
        return self.case.at(phase.batch).of(phase.queries)

    @property
    def kinds(self) -> list[str]:
        """Kinds of the phases in their order."""
        return [phase.kind for phase in self.phases]

    def ends(self) -> list[int]:
        """Return the batch with whose begin each phase is over."""
        return [*(phase.batch for phase in self.phases[1:]), self.end]


def draw_script(seed: int, minutes: float = MINUTES, burned: float = 0.0) -> Script:
    """Draw the script of a seed that lasts about so many minutes; ``burned``: as of a `Case`."""
    chance = random.Random(seed)  # noqa: S311  not for secrets
    kinds = _kinds(chance, max(1, int(minutes / LEAST)))
    case = _case(chance, seed, joining=STARTED in kinds)
    lengths = [_FIRST, *(chance.uniform(_SHORTEST, _LONGEST) for _ in kinds[1:])]
    everyone = [query.name for query in case.queries]
    running = everyone[: len(everyone) - (STARTED in kinds)]
    executors = dict.fromkeys(range(case.executors), 1.0)  # number -> speed
    phases: list[Phase] = []
    begin = 0.0  # batch
    for kind, length in zip(kinds, lengths, strict=True):
        running = {STARTED: everyone, STOPPED: everyone[:-1]}.get(kind, running)
        number = chance.choice(list(executors)) if kind in (LOST, SLOWED, DRAINED) else -1
        if kind == JOINED:
            executors[len(executors)] = 1.0  # no node has been drained before
        elif kind == SLOWED:
            executors[number] /= _TIMES
        elif kind == DRAINED:
            del executors[number]
        speeds = list(executors.values())
        phases.append(Phase(kind=kind, batch=round(begin), speeds=speeds, queries=running, executor=number))
        seconds = batch_seconds(case, phases[-1])
        begin += length * minutes * 60 / sum(lengths) / seconds
    ends = [*(phase.batch for phase in phases[1:]), round(begin)]
    case = _changed(case, phases, ends, _permutation(chance, case.queries[0].rows))
    case = msgspec.structs.replace(case, burned=burned)
    return Script(seed=seed, minutes=minutes, case=case, phases=phases, end=ends[-1])


def _kinds(chance: random.Random, count: int) -> list[str]:
    """Draw the events: the start, others in an order by chance, the drain at the end if all of them have room."""
    kinds = [DRIFT, SPIKE, SLOWED, LOST, JOINED, STARTED, STOPPED, STEADY]
    chance.shuffle(kinds)
    first, second = sorted((kinds.index(STARTED), kinds.index(STOPPED)))
    kinds[first], kinds[second] = STARTED, STOPPED
    return [START, *kinds, DRAINED][:count]


def _case(chance: random.Random, seed: int, *, joining: bool) -> Case:
    """Draw queries back to back on one-core executors: one or two, and one that starts later."""
    queries, executors = chance.choice((1, 2)) + joining, chance.choice((3, 4))
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


def _changed(case: Case, phases: Sequence[Phase], ends: Sequence[int], order: list[int]) -> Case:
    """Return the case with the changes that phases make to it."""
    replace, (first, *others) = msgspec.structs.replace, case.queries
    for phase, end in zip(phases, ends, strict=True):
        if phase.kind == DRIFT:
            first = replace(first, drift=Drift(batch=phase.batch, order=order))
        elif phase.kind == SPIKE:
            first = replace(first, spike=Spike(batch=phase.batch, end=end, times=_TIMES))
        elif phase.kind == SLOWED:
            case = replace(case, slow=SlowNode(batch=phase.batch, executor=phase.executor, times=_TIMES))
        elif phase.kind == STARTED:
            others[-1] = replace(others[-1], begun=phase.batch)
    return replace(case, queries=[first, *others])


def batch_seconds(case: Case, phase: Phase) -> float:
    """Return the seconds that a batch takes on an even placement, or so."""
    active = case.of(phase.queries)
    tasks = sum(query.partitions for query in active.queries)
    return (sum(map(sum, active.slept())) + OVERHEAD * tasks) / sum(phase.speeds) + PLANNING


def _permutation(chance: random.Random, rows: Sequence[int]) -> list[int]:
    """Return an order of the partitions in which another one is the heaviest."""
    order, heaviest = list(range(len(rows))), rows.index(max(rows))
    while order[heaviest] == heaviest:
        chance.shuffle(order)
    return order
