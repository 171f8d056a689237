"""Three published algorithms read word for word, with plain loops over plain objects.

The package has the same algorithms over arrays. These are here to be compared with: the answers have to be equal, the
time shows what the difference in form is worth.

* the pipelines of the locality/fairness-aware scheduler (Son and Moon 2020, Algorithms 3 and 4), by recursion
* scheduling by stream classification (DSC-Heron, Algorithms 1 to 3), for clusters whose bandwidth is not known
* the steps of a block-cyclic redistribution class by class, by counting every task of a period
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import fsum, gcd, lcm
from typing import Literal

from benchmarks.policies.block_cyclic import PairClass
from rechannel.policies.published.units import Units

_TIE = 1e-9
_ALPHA = 0.7


def pipelines(parts: Sequence[int], edges: Iterable[tuple[int, int]]) -> list[dict[int, int]]:
    """Pipelines of a job: for some of its operators the instance taken, by operator.

    ``parts``: instances of each operator, in topological order; ``edges``: pairs of operators.
    """
    edges = sorted(edges)
    before = [[up for up, down in edges if down == operator] for operator in range(len(parts))]
    after = [[down for up, down in edges if up == operator] for operator in range(len(parts))]
    remaining = [list(range(count)) for count in parts]
    result: list[dict[int, int]] = []

    def visit(operator: int, pipeline: dict[int, int]) -> None:
        if operator in pipeline or not remaining[operator]:
            return
        pipeline[operator] = remaining[operator].pop(0)
        for neighbor in before[operator] + after[operator]:
            visit(neighbor, pipeline)

    while any(remaining):
        pipeline: dict[int, int] = {}
        visit(next(operator for operator, rest in enumerate(remaining) if rest), pipeline)
        result.append(pipeline)
    return result


@dataclass
class Flow:
    """One stream between two instances, in bytes per second."""

    source: int
    target: int
    volume: float
    kind: Literal["high", "mid", "low"] = "mid"


def stream_classification(units: Units) -> list[int]:
    """Executor of each unit, with the policy's default parameters."""
    return _StreamScheduling(units).run()


class _StreamScheduling:
    """The new placement as it grows; an end that is not a unit is where a floating stage runs."""

    def __init__(self, units: Units) -> None:
        cluster = units.cluster
        triples = zip(units.source.tolist(), units.target.tolist(), units.volume.tolist(), strict=True)
        self.flows = [Flow(*triple) for triple in triples]
        self.size, self.available = units.size, cluster.available.tolist()
        self.work, self.state = units.load.tolist(), units.memory.tolist()
        self.capacity, self.memory = units.capacity.tolist(), cluster.memory_bytes.tolist()
        self.load, self.held = units.fixed.tolist(), [0.0] * cluster.size
        self.old = [executor if executor >= 0 else None for executor in units.home().tolist()]
        self.where: dict[int, int] = {units.size + executor: executor for executor in range(cluster.size)}
        self.hot: list[Flow] = []

    def run(self) -> list[int]:
        """Algorithm 3."""
        self.classify()
        self.flows.sort(key=lambda flow: (-flow.volume, flow.source, flow.target))
        followed = [flow for flow in self.flows if flow.kind != "low" and self.reachable(flow)]
        self.hot = [flow for flow in followed if flow.kind == "high"]
        for flow in followed:
            self.place(flow)
        for flow in self.flows:
            for end in (flow.source, flow.target):
                self.put(end, None)
        for unit in range(self.size):
            self.put(unit, None)
        return [self.where[unit] for unit in range(self.size)]

    def classify(self) -> None:
        """Algorithm 1."""
        count = max(len(self.flows), 1)
        mean = fsum(flow.volume for flow in self.flows) / count
        deviation = fsum(abs(flow.volume - mean) for flow in self.flows) / count
        for flow in self.flows:
            if abs(flow.volume - mean) > deviation + _TIE * mean:
                flow.kind = "high" if flow.volume > mean else "low"

    def reachable(self, flow: Flow) -> bool:
        """Return whether no end of it is fixed to an executor that is not available."""
        return all(end < self.size or self.available[end - self.size] for end in (flow.source, flow.target))

    def place(self, flow: Flow) -> None:
        """Both ends of a stream to one executor, and with a HIGH one all that HIGH streams tie to it."""
        ends = flow.source, flow.target
        placed = [self.where[end] for end in ends if end in self.where]
        if len(placed) == 2:
            return
        old = placed or sorted({home for end in ends if (home := self.old[end]) is not None})
        executor = min(old, key=self.utilization, default=None)
        for end in ends:
            self.put(end, executor)
            executor = self.where[end] if executor is None else executor
        if flow.kind == "high" and executor is not None:
            self.cluster(flow.source, flow.target, executor)

    def cluster(self, source: int, target: int, executor: int) -> None:
        """Algorithm 2."""
        for flow in self.hot:
            if source < self.size and flow.target == source and flow.source not in self.where:
                self.put(flow.source, executor)
                self.cluster(flow.source, source, executor)
        for flow in self.hot:
            if target < self.size and flow.source == target and flow.target not in self.where:
                self.put(flow.target, executor)
                self.cluster(target, flow.target, executor)

    def put(self, unit: int, executor: int | None) -> None:
        """Place a unit that is nowhere: there if it fits, else on the least utilized executor that it fits on."""
        if unit in self.where:
            return
        if executor is None or not self.fits(unit, executor):
            everyone = [each for each, there in enumerate(self.available) if there]
            executor = min([each for each in everyone if self.fits(unit, each)] or everyone, key=self.utilization)
        self.where[unit] = executor
        self.load[executor] += self.work[unit]
        self.held[executor] += self.state[unit]

    def fits(self, unit: int, executor: int) -> bool:
        """Return whether processor and memory suffice."""
        cpu = self.load[executor] + self.work[unit] <= _ALPHA * self.capacity[executor] * (1 + _TIE)
        memory = self.held[executor] + self.state[unit] <= self.memory[executor] * (1 + _TIE)
        return bool(self.available[executor] and cpu and memory)

    def utilization(self, executor: int) -> float:
        """Load over capacity."""
        return float(self.load[executor] / self.capacity[executor])


def classes(sources: int, targets: int, before: int, after: int) -> list[PairClass]:
    """Classes of a redistribution of blocks of ``before`` over ``sources`` nodes to blocks of ``after``.

    Every task of a period is looked at. In a class, sources that send to the same targets form a block; source i and
    target j of a block meet in step j - i modulo the longer side.
    """
    sent: dict[tuple[int, int], int] = {}
    for task in range(lcm(sources * before, targets * after)):
        pair = (task // before % sources, task // after % targets)
        sent[pair] = sent.get(pair, 0) + 1
    g = gcd(sources * before, targets * after)
    members: dict[int, list[tuple[int, int]]] = {}
    for source, target in sorted(sent):
        members.setdefault((source * before - target * after) % g, []).append((source, target))
    result = []
    for key in sorted(members):
        pairs = members[key]
        blocks: dict[tuple[int, ...], list[int]] = {}
        for source in sorted({source for source, _ in pairs}):
            blocks.setdefault(tuple(target for one, target in pairs if one == source), []).append(source)
        steps = {
            (source, target): (j - i) % max(len(senders), len(receivers))
            for receivers, senders in blocks.items()
            for i, source in enumerate(senders)
            for j, target in enumerate(receivers)
        }
        result.append(PairClass(key, sent[pairs[0]], tuple(pairs), tuple(steps[pair] for pair in pairs)))
    return result
