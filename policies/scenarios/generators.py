"""Scenarios generated from a seed: jobs of the literature, and synthetic ones.

The same seed and parameters always give the same scenario. In all of them, busy seconds are a stage's cost per row
times its rows. They are scaled to the requested ``utilization``, or to less where one task would need more than
:data:`MOST_OF_A_CORE` otherwise. The state takes :data:`STATE_SHARE` of the executors' memory, or less where one
partition would be larger than :data:`LARGEST_STATE` of the smallest executor's. Unless stated, partitions are where
Spark's first batch leaves them: on the executors that were free, so unevenly and without regard to anything else.

Sources: the five operator graphs and the page views are those of Son and Moon, Locality/Fairness-Aware Job Scheduling
in Distributed Stream Processing Engines, Electronics 9(11) 2020; the word counts those on which the stream
classification strategy of Heron (DSC-Heron, Zhang and others) was measured. Where their engines run an operator
anywhere, it is a placeable stage here. Their local-or-shuffle grouping depends on the placement, which volumes of a
scenario cannot: it is taken as a shuffle to all alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from rechannel.policies.model.arrays import FloatArray, IntArray, ModelError, sum_by_index
from rechannel.policies.model.cluster import Cluster, Topology
from rechannel.policies.model.placement import Placement
from rechannel.policies.model.shuffles import DenseShuffle, Shuffle, SparseShuffle
from rechannel.policies.model.workload import Stage, Workload
from rechannel.policies.scenarios.scenario import Scenario

MOST_OF_A_CORE = 0.95
"""Busy seconds per second of the largest task at most: one that needs more cannot keep up wherever it runs."""

STATE_SHARE = 0.2
"""Share of the executors' memory that all state together takes."""

LARGEST_STATE = 0.25
"""Share of the smallest executor's memory that the state of one partition takes at most."""

_ROW_BYTES = 1024.0
_MEMORY = 4.0 * 2**30
_GIGABIT = 125e6  # bytes per second
_OPERATORS = {  # instances of each operator in turn
    "linear": (1,) * 8,
    "ascent": (1, 2, 3, 4, 5, 6, 7, 8),
    "descent": (8, 7, 6, 5, 4, 3, 2, 1),
    "diamond": (2, 4, 6, 8, 8, 6, 4, 2),
    "star": (8, 6, 4, 2, 2, 4, 6, 8),
}
_PAGES = (0.7, 0.2, 0.1)  # share of the clicks
_USERS = 100


class GeneratorError(ModelError):
    """Specification that makes no scenario; the message has the range and the cure."""


class Parameter(NamedTuple):
    """A number from ``minimum`` to ``maximum``, whole if its default is, or a choice."""

    name: str
    default: int | float | str
    meaning: str
    minimum: float = 0
    maximum: float = math.inf
    choices: tuple[str, ...] = ()


class Generator(NamedTuple):
    """One generator: ``function`` takes all ``parameters`` by name."""

    function: Callable[..., Scenario]
    summary: str
    parameters: tuple[Parameter, ...]


class _WorkloadBuilder:
    """Builder of a workload: stages with rows and relative costs, scaled at the end."""

    def __init__(
        self, cluster: Cluster, seed: int, utilization: float, costs: tuple[float, float] = (0.5, 2.0)
    ) -> None:
        """``costs``: lowest and highest relative cost of a row."""
        self.random = np.random.default_rng(seed)
        self.cluster, self.utilization, self.costs = cluster, utilization, costs
        self.stages: list[Stage] = []
        self.shuffles: list[Shuffle] = []

    def stage(
        self, key: str, rows: FloatArray, state: FloatArray | None = None, *, rate: float = 1.0, query: str = "q"
    ) -> Stage:
        """Add a stage of these rows per batch; ``state`` is relative, by default the rows."""
        cost = self.random.uniform(*self.costs)
        stage = Stage(key, query, True, rate, rows * cost, rows, rows if state is None else state)
        self.stages.append(stage)
        return stage

    def source(self, key: str, rows: float, *, rate: float, query: str) -> Stage:
        """Add a floating stage: each executor reads about its share of ``rows``."""
        share = self.random.uniform(0.8, 1.2, self.cluster.size) * self.cluster.cores * self.cluster.available
        stage = self.stage(key, rows * share / share.sum(), np.zeros(self.cluster.size), rate=rate, query=query)
        self.stages[-1] = replace(stage, placeable=False)
        return self.stages[-1]

    def shuffle(self, up: Stage, down: Stage, out: FloatArray | None = None) -> None:
        """Add a shuffle in which every entry sends all it has by the shares downstream.

        ``out`` are the rows per batch that leave each entry, all its rows unless given.
        """
        share = down.rows / max(down.rows.sum(), 1e-300)
        sent = up.rows if out is None else out
        self.shuffles.append(DenseShuffle(up.key, down.key, np.outer(sent, share) * up.batches_per_second * _ROW_BYTES))

    def scenario(self, start: str = "spark") -> Scenario:
        """Scale busy seconds and state, and place everything."""
        cluster, stages = self.cluster, self.stages
        available = cluster.available
        work = sum(stage.batches_per_second * stage.busy.sum() for stage in stages)
        largest = max(stage.batches_per_second * stage.busy.max() for stage in stages)
        capacity = (cluster.cores * cluster.speed)[available].sum()
        busy = min(self.utilization * capacity / work, MOST_OF_A_CORE * cluster.speed[available].min() / largest)
        state, most = sum(one.state_bytes.sum() for one in stages), max(one.state_bytes.max() for one in stages)
        memory = cluster.memory_bytes[available]
        size = min(STATE_SHARE * memory.sum() / state, LARGEST_STATE * memory.min() / most) if state else 0.0
        scaled = (replace(one, busy=one.busy * busy, state_bytes=np.floor(one.state_bytes * size)) for one in stages)
        workload = Workload(tuple(scaled), tuple(self.shuffles))
        placed, current = 0, {}
        for stage in workload.placeable:
            in_turn = (placed + np.arange(stage.n)) % cluster.size
            current[stage.key] = in_turn if start == "round-robin" else self._spark_start(stage.n)
            placed += stage.n
        return Scenario("generated", cluster, workload, Placement(current))

    def _spark_start(self, count: int) -> IntArray:
        chance = self.random.gamma(4.0, size=self.cluster.size) * self.cluster.cores
        return self.random.choice(self.cluster.size, count, p=chance / chance.sum())


def generate(spec: str) -> Scenario:
    """Return the scenario of a name and parameters, ``random-dag:seed=3,stages=12``.

    Raises :class:`GeneratorError` for an unknown name, an unknown parameter or one outside its range.
    """
    name, _, rest = spec.partition(":")
    generator = GENERATORS.get(name)
    if generator is None:
        raise GeneratorError(f"no generator is called {name!r}, there are: {', '.join(GENERATORS)}")
    by_name = {parameter.name: parameter for parameter in generator.parameters}
    values: dict[str, Any] = {parameter.name: parameter.default for parameter in generator.parameters}
    for item in rest.split(",") if rest else ():
        key, equals, text = item.partition("=")
        if key not in by_name or not equals:
            raise GeneratorError(
                f"{name}: {item!r} sets no parameter, write one of: {', '.join(by_name)} as NAME=VALUE"
            )
        values[key] = _parse(name, by_name[key], text)
    return replace(generator.function(**values), name=spec)


def _parse(owner: str, parameter: Parameter, text: str) -> int | float | str:
    if parameter.choices:
        if text in parameter.choices:
            return text
        expected = f"one of {', '.join(parameter.choices)}"
    else:
        kind = int if isinstance(parameter.default, int) else float
        expected = (
            f"{'a whole number' if kind is int else 'a number'} from {parameter.minimum:,g} to {parameter.maximum:,.0f}"
        )
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if parameter.minimum <= value <= parameter.maximum:
            return value
    example = f"{parameter.name}={parameter.default}"
    raise GeneratorError(
        f"{owner}: {parameter.name}={text}: expected {expected} ({parameter.meaning}); for example {example}"
    )


def _equal_cluster(executors: int, per_node: int, cores: float = 1.0) -> Cluster:
    ones = np.ones(executors)
    names = tuple(f"e{i}" for i in range(executors)), tuple(f"n{i // per_node}" for i in range(executors))
    return Cluster(*names, ones * cores, ones * _MEMORY, ones, ones > 0)


def _zipf(count: int, exponent: float = 1.0) -> FloatArray:
    weights = np.arange(1, count + 1, dtype=np.float64) ** -exponent
    shares: FloatArray = weights / weights.sum()
    return shares


def _hash_shares(random: np.random.Generator, weights: Sequence[float] | FloatArray, parts: int) -> FloatArray:
    """Share of each partition if every key goes to one by its hash."""
    return sum_by_index(random.integers(parts, size=len(weights)), np.asarray(weights), parts)


def _operator_graph(counts: Sequence[int]) -> Callable[..., Scenario]:
    def make(*, seed: int, scale: str, utilization: float) -> Scenario:
        times = int(scale)
        builder = _WorkloadBuilder(_equal_cluster(8 * times, times), seed, utilization)
        rows = 1000.0 * counts[0] * times  # a row of 1 KiB each millisecond from each instance of the first operator
        stages = [builder.stage(f"op{i}", np.full(n * times, rows / (n * times))) for i, n in enumerate(counts, 1)]
        for up, down in pairwise(stages):
            builder.shuffle(up, down)
        return builder.scenario()

    return make


def _page_view(*, seed: int, utilization: float, unique: bool) -> Scenario:
    builder = _WorkloadBuilder(_equal_cluster(8, 1), seed, utilization, (0.9, 1.1))
    pages = builder.random.integers(4, size=len(_PAGES))  # by hash
    keyed, here = sum_by_index(pages, np.array(_PAGES), 4), sum_by_index(pages, np.ones(len(_PAGES)), 4)
    source, view = (builder.stage(key, np.full(4, 1000.0), np.zeros(4)) for key in ("source", "view"))
    count = builder.stage("unique" if unique else "count", 4000.0 * keyed, here * (_USERS if unique else 1))
    out = here / 3 if unique else count.rows  # a unique count is reported every three seconds
    sink = builder.stage("sink", np.full(4, out.sum() / 4), np.zeros(4))
    builder.shuffle(source, view)
    builder.shuffle(view, count)
    builder.shuffle(count, sink, out)
    return builder.scenario()


def _word_count(
    spouts: int, splitters: int, counters: int, words_per_line: int, vocabulary: int
) -> Callable[..., Scenario]:
    """Return a generator that counts words.

    Each spout sends a thousand lines a second, whose bytes divide over ``words_per_line`` words.
    """

    def make(*, seed: int, zipf: float, start: str, utilization: float) -> Scenario:
        builder = _WorkloadBuilder(_equal_cluster(6, 1, cores=2.0), seed, utilization)
        stages = [builder.stage("spout", np.full(spouts, 1000.0), np.zeros(spouts))]
        total = 1000.0 * spouts
        if splitters:
            stages.append(builder.stage("split", np.full(splitters, total / splitters), np.zeros(splitters)))
        shares = _hash_shares(builder.random, _zipf(vocabulary, zipf), counters)
        stages.append(builder.stage("count", total * words_per_line * shares))
        for up, down in pairwise(stages):
            builder.shuffle(up, down)
        return builder.scenario(start)

    return make


def _dag(builder: _WorkloadBuilder, *, stages: int, partitions: int, edges: int, streams: str) -> Scenario:
    """Build queries of about four stages, which read from earlier layers or a floating source."""
    random = builder.random
    for number, members in enumerate(np.array_split(np.arange(stages), max(1, stages // 4))):
        query, rate = f"q{number}", float(random.choice([0.1, 0.2, 0.5, 1.0]))
        layers = np.arange(len(members)) * max(1, len(members) - 1) // len(members)
        source = builder.source(f"{query}/source", random.uniform(2e3, 2e4) / rate, rate=rate, query=query)
        stages_of_query: list[Stage] = []
        for i, layer in enumerate(layers.tolist()):
            earlier = [stage for stage, one in zip(stages_of_query, layers.tolist(), strict=False) if one < layer]
            picked = random.permutation(len(earlier))[:edges].tolist()
            inputs = [earlier[one] for one in picked] or [source]
            key, share = f"{query}/{i}", random.permutation(_zipf(partitions, 0.0 if streams == "uniform" else 1.0))
            rows = np.zeros(partitions)
            for up in inputs:
                sent = np.outer(up.rows * random.uniform(0.3, 1.0), share)
                if streams == "correlated" and up is not source:  # the keys upstream say where most rows go
                    sent *= 0.2
                    sent[np.arange(partitions), random.permutation(partitions)] += 4 * sent.sum(axis=1)
                rows += sent.sum(axis=0)
                builder.shuffles.append(DenseShuffle(up.key, key, sent * rate * _ROW_BYTES))
            stages_of_query.append(builder.stage(key, rows, rate=rate, query=query))
    return builder.scenario()


def _random_dag(*, seed: int, executors: int, utilization: float, **shape: Any) -> Scenario:
    return _dag(_WorkloadBuilder(_equal_cluster(executors, 2, cores=2.0), seed, utilization), **shape)


def _heterogeneous(*, seed: int, executors: int, utilization: float, **shape: Any) -> Scenario:
    random, cluster = np.random.default_rng(seed), _equal_cluster(executors, 2)
    cores, speed = random.choice([1.0, 2.0, 4.0], executors), random.choice([0.5, 1.0, 2.0], executors)
    memory = random.choice([0.5, 1.0, 2.0], executors) * _MEMORY
    unequal = replace(cluster, cores=cores, speed=speed, memory_bytes=memory)
    return _dag(_WorkloadBuilder(unequal, seed, utilization), edges=2, streams="zipf", **shape)


def _drained(*, seed: int, executors: int, utilization: float, **shape: Any) -> Scenario:
    cluster = _equal_cluster(executors, 2, cores=2.0)
    leaving = replace(cluster, available=np.array([node != "n0" for node in cluster.nodes]))
    return _dag(_WorkloadBuilder(leaving, seed, utilization), edges=2, streams="zipf", **shape)


def _chains(*, seed: int, executors: int, chains: int, length: int, partitions: int, utilization: float) -> Scenario:
    cluster = _equal_cluster(executors, 2, cores=2.0)
    topology = Topology(cluster.node_of % 2, np.full(executors, _GIGABIT), np.array([[1.0, 2.0], [2.0, 1.0]]))
    builder = _WorkloadBuilder(replace(cluster, topology=topology), seed, utilization)
    random, width = builder.random, min(3, partitions)
    total = 0.4 * executors * _GIGABIT / _ROW_BYTES / chains / max(1, length - 1)  # rows per second of a chain
    for number in range(chains):
        query, rate = f"q{number}", 0.5
        rows = random.lognormal(0.0, 0.5, partitions)
        rows *= total / rate / rows.sum()
        up = builder.stage(f"{query}/0", rows, rate=rate, query=query)
        for i in range(1, length):
            # Nine rows of ten go to the one partition that has the same keys, the others to two more.
            offsets = np.concatenate([[0], 1 + random.choice(max(1, partitions - 1), width - 1, replace=False)])
            targets = (random.permutation(partitions)[:, None] + offsets) % partitions
            parts = np.array([0.9, 0.07, 0.03])[:width]
            sent = up.rows[:, None] * parts / parts.sum()
            down = builder.stage(
                f"{query}/{i}", sum_by_index(targets.ravel(), sent.ravel(), partitions), rate=rate, query=query
            )
            ends = np.repeat(np.arange(partitions), width), targets.ravel()
            volumes = (sent * rate * _ROW_BYTES).ravel()
            builder.shuffles.append(SparseShuffle(up.key, down.key, (partitions, partitions), *ends, volumes))
            up = down
    return builder.scenario()


def _spark_blocks(
    *, seed: int, executors: int, queries: int, stages: int, partitions: int, utilization: float
) -> Scenario:
    builder = _WorkloadBuilder(_equal_cluster(executors, 2, cores=4.0), seed, utilization)
    for number in range(queries):
        query, rate = f"q{number}", float(builder.random.choice([0.1, 0.2, 0.5]))
        rows = builder.random.uniform(3e4, 1e5) / rate
        up = builder.source(f"{query}/source", rows, rate=rate, query=query)
        for i in range(stages):
            share = builder.random.permutation(_zipf(partitions))
            down = builder.stage(f"{query}/{i}", rows * share, rate=rate, query=query)
            builder.shuffle(up, down)
            up = down
    return builder.scenario()


def _sparse(*, seed: int, executors: int, tasks: int, edges: int, utilization: float) -> Scenario:
    """Build four queries of five stages with few streams between their entries.

    Entry u sends to a run of entries of the next stage, scattered over its numbers.
    """
    builder = _WorkloadBuilder(_equal_cluster(executors, 4, cores=4.0), seed, utilization)
    random, queries, length = builder.random, 4, 5
    sizes = [len(part) for part in np.array_split(np.arange(tasks), queries * length)]
    pairs = [(i, i + 1) for i in range(queries * length) if (i + 1) % length]
    shares = [len(part) for part in np.array_split(np.arange(edges), len(pairs))]
    most = len(pairs) * min(sizes[up] * sizes[down] for up, down in pairs)
    if edges > most:
        raise GeneratorError(f"sparse: edges={edges}: {tasks} tasks get at most {most}; lower it or raise tasks")
    rows = [np.zeros(size) for size in sizes]
    rate, keys = 0.5, [f"q{i // length}/{i % length}" for i in range(queries * length)]
    for (up, down), count in zip(pairs, shares, strict=True):
        run = -(-count // sizes[up])
        chosen = random.permutation(sizes[up] * run)[:count]
        sources, offset = np.divmod(chosen, run)
        targets = random.permutation(sizes[down])[(sources * sizes[down] // sizes[up] + offset) % sizes[down]]
        sent = 10.0 * (1.0 + random.pareto(2.0, count))
        rows[down] += sum_by_index(targets, sent, sizes[down])
        if up % length == 0:
            rows[up] += sum_by_index(sources, sent, sizes[up])
        shape, volumes = (sizes[up], sizes[down]), sent * rate * _ROW_BYTES
        builder.shuffles.append(SparseShuffle(keys[up], keys[down], shape, sources, targets, volumes))
    for key, counted in zip(keys, rows, strict=True):
        builder.stage(key, counted, rate=rate, query=key.partition("/")[0])
    return builder.scenario()


_COMMON = (
    Parameter("seed", 0, "every number makes another scenario", 0, 2**32 - 1),
    Parameter("utilization", 0.5, "busy share of all cores together", 0.01, 1.0),
)
_EXECUTORS = Parameter("executors", 8, "executors of the cluster", 1, 10_000)
_AT_LEAST_FOUR = _EXECUTORS._replace(minimum=4)
_STAGES = Parameter("stages", 8, "placeable stages of all queries together", 1, 1000)
_PARTITIONS = Parameter("partitions", 16, "partitions of each stage", 1, 2000)
_SCALE = Parameter("scale", "1", "1: 8 executors, 10: 80 executors and ten times the instances", choices=("1", "10"))
_WORDS = (
    Parameter("zipf", 1.0, "exponent of the words' frequencies, 0 is all alike", 0.0, 3.0),
    Parameter("start", "spark", "current placement: as Spark leaves it, or in turn", choices=("spark", "round-robin")),
)


def _table() -> Mapping[str, Generator]:
    dag = (_STAGES, _PARTITIONS)
    edges = Parameter("edges", 2, "stages that one reads from at most", 1, 100)
    kinds = Parameter("streams", "zipf", "how rows divide downstream", choices=("zipf", "correlated", "uniform"))
    queries = Parameter("queries", 2, "queries", 1, 200)
    each = Parameter("stages", 2, "stateful stages of each query", 1, 50)
    rows: dict[str, tuple[Callable[..., Scenario], str, tuple[Parameter, ...]]] = {
        name: (_operator_graph(counts), f"eight operators of {', '.join(map(str, counts))} instances", (_SCALE,))
        for name, counts in _OPERATORS.items()
    }
    rows |= {
        "page-view": (partial(_page_view, unique=False), "clicks counted by page, four instances of each operator", ()),
        "unique-page-view": (
            partial(_page_view, unique=True),
            "unique visitors by page, reported every three seconds",
            (),
        ),
        "word-count": (_word_count(8, 0, 16, 1, 10_000), "8 spouts, 16 counters", _WORDS),
        "sentence-word-count": (_word_count(4, 10, 10, 10, 131_072), "4 spouts, 10 splitters, 10 counters", _WORDS),
        "file-word-count": (_word_count(4, 10, 10, 12, 10_000), "the same on the lines of a book", _WORDS),
        "random-dag": (_random_dag, "queries of stages in layers", (*dag, _EXECUTORS, edges, kinds)),
        "chains": (
            _chains,
            "chained stages whose keys agree, over links of finite bandwidth",
            (
                _EXECUTORS,
                Parameter("chains", 4, "queries", 1, 200),
                Parameter("length", 4, "stages of each query", 1, 50),
                _PARTITIONS,
            ),
        ),
        "spark-blocks": (_spark_blocks, "dense shuffles as Spark has them", (_EXECUTORS, queries, each, _PARTITIONS)),
        "sparse": (
            _sparse,
            "few streams between many tasks",
            (
                _EXECUTORS._replace(default=100),
                Parameter("tasks", 2000, "placeable tasks", 20, 100_000),
                Parameter("edges", 20_000, "streams between tasks", 16, 1_000_000),
            ),
        ),
        "heterogeneous": (_heterogeneous, "unequal cores, speeds and memory", (*dag, _EXECUTORS)),
        "drained": (_drained, "one node is to be emptied", (*dag, _AT_LEAST_FOUR)),
    }
    return {
        name: Generator(make, summary, (_COMMON[0], *own, _COMMON[1])) for name, (make, summary, own) in rows.items()
    }


GENERATORS: Mapping[str, Generator] = _table()
"""Every generator by name."""
