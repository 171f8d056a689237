"""A record-at-a-time engine (Storm) as a fluid: rates and queues of tasks on nodes, in ticks.

A topology is a line of components, each with parallel tasks. In a tick a task serves its queue; tasks of one node share
its one core in proportion to their work. Served tuples go on to the next component, to each task its share, at the next
tick: at once on the same node, else over the receiving node's link. A task that is out of service serves nothing and
its queue grows; nothing is lost except by variants that lose tuples.

Assumptions, as the paper has none of these: latency is Little's law on the queues, the waiting of an M/G/1 queue with
processor sharing at its node's load, and a hop each between components (10 ms between nodes, 0.25 ms within one); word
counts are hashed by Zipf's law, other components share evenly; a migration takes half of the links it uses. Times are
seconds, rates tuples per second.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rechannel.policies.model.arrays import FloatArray, IntArray, sum_by_index
from rechannel.policies.model.cluster import Cluster, Topology
from rechannel.policies.model.placement import Placement
from rechannel.policies.model.shuffles import DenseShuffle
from rechannel.policies.model.workload import Stage, Workload

LINK = 12.5e6  # bytes per second: 100 Mbit/s
SUBCLUSTER = 5  # nodes
COMPONENTS = 5  # a spout and four bolts
TUPLE_BYTES = 200.0
UTILIZATION = 0.55  # of all nodes by all jobs
STATE = 20e6  # mean bytes of a bolt's state
VOCABULARY = 1000  # words
_REMOTE, _LOCAL = 0.010, 0.00025  # seconds of one hop
_FULL = 0.98  # load above which waiting is the queue's, not the formula's
_KEYED = 3  # the components from here on are grouped by word
_OUT = np.array([1.0, 3.0, 1.0, 1.0, 0.0])  # tuples that each component makes of one: sentences become words


@dataclass
class Jobs:
    """Topologies side by side. Arrays over tasks (N,) unless noted; components are numbered through all jobs.

    ``component``: of each task; ``share``: of its component's input; ``service``: CPU seconds per tuple;
    ``state``: bytes. ``rate`` (components,): tuples per second that a component receives when all goes well.
    """

    component: IntArray
    share: FloatArray
    service: FloatArray
    state: FloatArray
    rate: FloatArray

    @property
    def size(self) -> int:
        """Number of tasks."""
        return len(self.component)

    @property
    def count(self) -> int:
        """Number of components of all jobs."""
        return len(self.rate)

    @property
    def arrivals(self) -> FloatArray:
        """Tuples per second of each task, (N,)."""
        return np.asarray(self.rate[self.component] * self.share)

    def load(self, node: IntArray, size: int) -> FloatArray:
        """Share of each node's core that its tasks want, (nodes,)."""
        return sum_by_index(node, self.arrivals * self.service, size)

    def reshuffle(self, random: np.random.Generator, part: float = 1.0) -> None:
        """Other words become frequent: that part of the keyed components' shares is drawn anew."""
        for component in range(self.count):
            if component % COMPONENTS >= _KEYED:
                members = np.flatnonzero(self.component == component)
                self.share[members] = (1 - part) * self.share[members] + part * _hashed(random, len(members))


def nodes(count: int) -> Cluster:
    """Nodes of one core and 1 GB in sub-clusters of five."""
    ones = np.ones(count)
    group = np.arange(count) // SUBCLUSTER
    far = 2.0 - np.eye(int(group.max()) + 1)
    topology = Topology(group, np.full(count, LINK), far)
    names = tuple(f"n{i}" for i in range(count))
    return Cluster(names, names, ones, ones * 1e9, ones, ones > 0, topology)


def make_jobs(tasks: int, size: int, seed: int) -> Jobs:
    """Return about so many tasks, in topologies of 4 to 16 tasks a component, that keep ``size`` nodes busy.

    They want :data:`UTILIZATION` of all cores. A bolt's state is from half to one and a half of :data:`STATE`; spouts
    have none.
    """
    random = np.random.default_rng(seed)
    widths: list[int] = []
    tasks = max(tasks, 4 * COMPONENTS)
    while sum(widths) + 4 * COMPONENTS <= tasks:
        left = (tasks - sum(widths)) // COMPONENTS
        most = left if left < 8 else min(16, left)
        widths += random.integers(4, max(4, most) + 1, COMPONENTS).tolist()
    component = np.repeat(np.arange(len(widths)), widths)
    rate = np.ones(len(widths))
    share = np.concatenate(
        [
            _hashed(random, width) if index % COMPONENTS >= _KEYED else np.full(width, 1 / width)
            for index, width in enumerate(widths)
        ]
    )
    for job in range(len(widths) // COMPONENTS):
        first = job * COMPONENTS
        rate[first] = 200.0 * random.uniform(0.5, 1.5)
        for index in range(1, COMPONENTS):
            rate[first + index] = rate[first + index - 1] * _OUT[index - 1]
    service = random.uniform(0.5, 1.5, len(widths))[component]
    work = rate[component] * share * service
    service = service * (UTILIZATION * size / work.sum())
    # No task may need more than most of a core: no placement could serve it.
    service *= min(1.0, 0.8 / float((rate[component] * share * service).max()))
    held = np.where(component % COMPONENTS == 0, 0.0, STATE * random.uniform(0.5, 1.5, len(component)))
    return Jobs(component, share, service, held, rate)


def _hashed(random: np.random.Generator, parts: int) -> FloatArray:
    weights = 1.0 / np.arange(1, VOCABULARY + 1) ** 0.8
    return sum_by_index(random.integers(parts, size=VOCABULARY), weights / weights.sum(), parts)


def view(jobs: Jobs, node: IntArray, *, whole: bool = False) -> tuple[Workload, Placement]:
    """Return the jobs in the policies' model: a component is a stage that runs every second, a job a query.

    ``whole``: one stage a job, without streams, for a policy that minimizes stage after stage: components of this
    engine all work at the same time, where the stages of a micro-batch follow each other.
    """
    arrivals = jobs.arrivals
    stages: list[Stage] = []
    shuffles: list[DenseShuffle] = []
    placed: dict[str, IntArray] = {}
    key = jobs.component // COMPONENTS if whole else jobs.component
    for number in range(int(key.max()) + 1):
        members = np.flatnonzero(key == number)
        job = number if whole else number // COMPONENTS
        name, query = f"c{number}", f"j{job}"
        busy = arrivals[members] * jobs.service[members]
        stages.append(Stage(name, query, True, 1.0, busy, arrivals[members], jobs.state[members]))
        placed[name] = node[members]
        if not whole and number % COMPONENTS:
            before = np.flatnonzero(key == number - 1)
            sent = arrivals[before] * _OUT[(number - 1) % COMPONENTS] * TUPLE_BYTES
            shuffles.append(DenseShuffle(f"c{number - 1}", name, np.outer(sent, jobs.share[members])))
    return Workload(tuple(stages), tuple(shuffles)), Placement(placed)


class Fluid:
    """The engine. ``node`` of each task may be changed between ticks, as may ``down`` and ``paused``.

    ``down`` (N,): out of service; ``paused``: sources emit nothing, what would come from outside waits; ``frozen``
    (nodes,): the share of each link that a migration takes.
    """

    def __init__(self, jobs: Jobs, node: IntArray, size: int, tick: float = 0.5) -> None:
        self.jobs, self.node, self.size, self.tick = jobs, node.copy(), size, tick
        self.down = np.zeros(jobs.size, np.bool_)
        self.paused = False
        self.frozen = np.zeros(size)
        self.queue = np.zeros(jobs.size)
        self.transit = np.zeros(jobs.size)
        self.spout = jobs.component % COMPONENTS == 0
        self.entered = 0.0
        self.left = 0.0
        self._sent = np.zeros(jobs.count)  # tuples that components made in the last tick
        self._sent_at = np.zeros((jobs.count, size))  # the same by node

    @property
    def in_flight(self) -> float:
        """Tuples between the sources and the end."""
        return float(self.queue[~self.spout].sum() + self.transit.sum() + self._sent.sum())

    def step(self) -> tuple[FloatArray, FloatArray]:
        """One tick; returns the tuples that each node served, and the CPU seconds that took, (nodes,) both."""
        jobs, node = self.jobs, self.node
        outside = np.where(self.spout, jobs.arrivals * self.tick, 0.0)
        self.entered += float(outside.sum())
        self.queue += outside
        self._deliver()
        able = ~self.down & ~(self.spout & self.paused)
        work = np.where(able, self.queue * jobs.service, 0.0)
        demand = sum_by_index(node, work, self.size)
        fraction = np.minimum(1.0, self.tick / np.maximum(demand, 1e-12))
        served = np.where(able, self.queue * fraction[node], 0.0)
        self.queue -= served
        output = served * _OUT[jobs.component % COMPONENTS]
        self._sent = sum_by_index(jobs.component, output, jobs.count)
        flat = jobs.component * self.size + node
        self._sent_at = sum_by_index(flat, output, jobs.count * self.size).reshape(jobs.count, self.size)
        last = jobs.component % COMPONENTS == COMPONENTS - 1
        self.left += float(served[last].sum())
        return sum_by_index(node, served, self.size), demand * fraction

    def _deliver(self) -> None:
        """Pass the output of the last tick to the next components, over links unless it stays on its node."""
        jobs, node = self.jobs, self.node
        before = np.where(self.spout, 0, jobs.component - 1)
        comes = np.where(self.spout, 0.0, self._sent[before] * jobs.share)
        local = np.where(self.spout, 0.0, self._sent_at[before, node] * jobs.share)
        self.transit += comes - local
        queued = sum_by_index(node, self.transit, self.size) * TUPLE_BYTES
        room = LINK * (1.0 - self.frozen) * self.tick
        fraction = np.minimum(1.0, room / np.maximum(queued, 1e-12))[node]
        arrived = self.transit * fraction
        self.transit -= arrived
        self.queue += local + arrived

    def latency(self) -> float:
        """Mean seconds from source to end, over all jobs by their rates."""
        jobs = self.jobs
        waiting = sum_by_index(jobs.component, self.queue + self.transit, jobs.count)
        load = np.minimum(jobs.load(self.node, self.size), _FULL)
        own = jobs.share * jobs.service / (1.0 - load[self.node])
        each = waiting / jobs.rate + sum_by_index(jobs.component, own, jobs.count)
        by_job = each.reshape(-1, COMPONENTS).sum(axis=1)
        weight = jobs.rate.reshape(-1, COMPONENTS)[:, 0]
        return float(by_job @ weight / weight.sum()) + self._hops()

    def _hops(self) -> float:
        jobs = self.jobs
        at = sum_by_index(jobs.component * self.size + self.node, jobs.share, jobs.count * self.size)
        shares = at.reshape(-1, COMPONENTS, self.size)
        near = (shares[:, 1:] * shares[:, :-1]).sum(axis=(1, 2))
        return float(np.mean(near * _LOCAL + (COMPONENTS - 1 - near) * _REMOTE))

    def lose(self) -> None:
        """Lose everything between sources and end, to come again from the sources: a restart without a checkpoint."""
        jobs = self.jobs
        gone = sum_by_index(jobs.component, np.where(self.spout, 0.0, self.queue) + self.transit, jobs.count)
        gone[1:] += self._sent[:-1]  # on its way to the component behind
        first = jobs.rate.reshape(-1, COMPONENTS)[:, :1]
        again = (gone.reshape(-1, COMPONENTS) / jobs.rate.reshape(-1, COMPONENTS) * first).sum(axis=1)
        self.queue = np.where(self.spout, self.queue + again[jobs.component // COMPONENTS] * jobs.share, 0.0)
        self.transit[:] = 0.0
        self._sent[:] = 0.0
        self._sent_at[:] = 0.0
