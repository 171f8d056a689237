"""A situation that policies can be tried on, and its written form.

The document is plain values (dict, list, str, int, float, bool, None), so it is JSON as it stands::

    {"format": 1, "name": "two nodes",
     "cluster": {"executors": [{"name": "e0", "node": "n0", "cores": 2, "memory_bytes": null, "speed": 1.0,
                                "available": true}],
                 "topology": {"subclusters": {"n0": 0}, "distances": [[1.0]],
                              "bandwidth_bytes_per_second": {"n0": null}}},
     "stages": [{"key": "q/0", "query": "q", "placeable": true, "batches_per_second": 0.2,
                 "busy": [0.5], "rows": [100.0], "state_bytes": [4096.0]}],
     "streams": [{"upstream": "q/0", "downstream": "q/1", "volume": [[10.0]]}],
     "current": {"q/0": ["e0"]}}

The fields are those of ``model``: ``busy`` in seconds per batch, ``rows`` per batch, ``volume`` in bytes per second. A
stream has either ``volume``, a row for each entry upstream, or ``edges``, a list of ``[upstream entry, downstream
entry, bytes per second]``. ``memory_bytes`` and a node's bandwidth are null where not known. May be left out:
``memory_bytes``, ``speed`` (1), ``available`` (true), ``topology``, ``streams``, and of ``current`` the stages that are
on no executor; a single partition that is on none is null there.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np

from rechannel.policies.model.arrays import FloatArray, IntArray, ModelError
from rechannel.policies.model.cluster import UNPLACED, Cluster, Topology
from rechannel.policies.model.placement import Placement
from rechannel.policies.model.streams import SparseStream, Stream, StreamLike
from rechannel.policies.model.workload import Stage, Workload

__all__ = ["FORMAT", "Scenario", "ScenarioError", "from_document", "to_document"]

FORMAT = 1
"""Version of the written form."""

_T = TypeVar("_T")
_Read = Callable[[Any, str], Any]
_Field = tuple[_Read] | tuple[_Read, Any]
# As the constructor of Cluster takes them.
_COLUMNS = ("name", "node", "cores", "memory_bytes", "speed", "available")
_BY_NODE = ("subclusters", "bandwidth_bytes_per_second")


class ScenarioError(ModelError):
    """The document describes no scenario; ``problems`` names every mistake with its path."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("scenario: " + "; ".join(self.problems))


@dataclass(frozen=True, eq=False)
class Scenario:
    """A cluster, the workload on it and where its partitions are.

    Raises :class:`ScenarioError` unless they fit together, and where two executors of one node differ in sub-cluster
    or bandwidth, which belong to the node.
    """

    name: str
    cluster: Cluster
    workload: Workload
    current: Placement

    def __post_init__(self) -> None:
        problems = [] if self.name else ["name: must not be empty"]
        cluster = self.cluster
        for what, values in (("sub-cluster", cluster.subcluster), ("bandwidth", cluster.bandwidth)):
            _, first = np.unique(cluster.node_of, return_index=True)
            for index in np.flatnonzero(values != values[first][cluster.node_of]):
                other = cluster.executors[first[cluster.node_of[index]]]
                problems.append(f"cluster: {cluster.executors[index]!r} has another {what} than {other!r} of its node")
        try:
            self.current.validate(cluster, self.workload)
        except ModelError as error:
            problems.append(f"current: {error}")
        if problems:
            raise ScenarioError(problems)


def to_document(scenario: Scenario) -> dict[str, Any]:
    """Plain values from which :func:`from_document` makes the same scenario, bit by bit."""
    cluster = scenario.cluster
    executors = [
        {"name": name, "node": node, "cores": cores, "memory_bytes": memory, "speed": speed, "available": available}
        for name, node, cores, memory, speed, available in zip(
            cluster.executors,
            cluster.nodes,
            cluster.cores.tolist(),
            _nullable(cluster.memory_bytes),
            cluster.speed.tolist(),
            cluster.available.tolist(),
            strict=True,
        )
    ]
    described: dict[str, Any] = {"executors": executors}
    if cluster.topology is not None:
        described["topology"] = {
            "subclusters": dict(zip(cluster.nodes, cluster.subcluster.tolist(), strict=True)),
            "distances": cluster.topology.distances.tolist(),
            "bandwidth_bytes_per_second": dict(zip(cluster.nodes, _nullable(cluster.bandwidth), strict=True)),
        }
    stages = [
        {
            "key": stage.key,
            "query": stage.query,
            "placeable": stage.placeable,
            "batches_per_second": stage.batches_per_second,
            **{name: getattr(stage, name).tolist() for name in ("busy", "rows", "state_bytes")},
        }
        for stage in scenario.workload.stages
    ]
    names = [*cluster.executors, None]  # UNPLACED is the last index
    current = {key: [names[i] for i in array.tolist()] for key, array in scenario.current.assignments.items()}
    return {
        "format": FORMAT,
        "name": scenario.name,
        "cluster": described,
        "stages": stages,
        "streams": [_stream_document(stream) for stream in scenario.workload.streams],
        "current": current,
    }


def _nullable(values: FloatArray) -> list[float | None]:
    return [None if math.isinf(value) else value for value in values.tolist()]


def _stream_document(stream: StreamLike) -> dict[str, Any]:
    ends = {"upstream": stream.upstream, "downstream": stream.downstream}
    if isinstance(stream, Stream):
        return {**ends, "volume": stream.volume.tolist()}
    edges = zip(*(column.tolist() for column in stream.above(0.0)), strict=True)
    return {**ends, "edges": [list(edge) for edge in edges]}


def from_document(document: object) -> Scenario:
    """The scenario that plain values describe; :class:`ScenarioError` with every mistake unless they describe one."""
    read = _Reader()
    top = read.record(
        document,
        "",
        format=(read.version,),
        name=(read.text,),
        cluster=(read.cluster,),
        stages=(read.list_of(read.stage),),
        streams=(read.list_of(read.stream), []),
        current=(read.by_name(read.list_of(read.name_or_null)), {}),
    )
    if top is not None:
        cluster, stages = top["cluster"], read.checked_stages(top["stages"], top["cluster"])
        streams = read.fitted_streams(top["streams"], stages)
        current = read.placement(top["current"], stages, cluster)
        if not read.problems:
            return Scenario(top["name"], cluster, Workload(stages, streams), Placement(current))
    raise ScenarioError(read.problems)


@dataclass
class _Reader:
    """Reads plain values and keeps every mistake with its path.

    What cannot be read becomes a stand-in, which nobody sees: any problem ends in :class:`ScenarioError`.
    """

    problems: list[str] = field(default_factory=list)

    def say(self, path: str, problem: object) -> None:
        self.problems.append(f"{path}: {problem}" if path else str(problem))

    def built(self, path: str, make: Callable[[], _T]) -> _T | None:
        try:
            return make()
        except ModelError as error:
            self.say(path, error)
            return None

    def record(self, value: object, path: str, **known: _Field) -> dict[str, Any] | None:
        """The fields of an object, each by its own reader, a default filled in; None where one is missing."""
        if not isinstance(value, Mapping):
            self.say(path or "document", "expected an object")
            return None
        dot = f"{path}." if path else ""
        for name in value:
            if name not in known:
                self.say(f"{dot}{name}", f"no such field, there are: {', '.join(known)}")
        found: dict[str, Any] = {}
        for name, (read, *default) in known.items():
            if name in value:
                found[name] = read(value[name], f"{dot}{name}")
            elif default:
                found[name] = read(default[0], f"{dot}{name}")
            else:
                self.say(f"{dot}{name}", "is missing")
        return found if len(found) == len(known) else None

    def list_of(self, read: _Read) -> _Read:
        def items(value: object, path: str) -> list[Any]:
            if isinstance(value, list):
                return [read(one, f"{path}[{i}]") for i, one in enumerate(value)]
            self.say(path, "expected a list")
            return []

        return items

    def by_name(self, read: _Read) -> _Read:
        def entries(value: object, path: str) -> dict[str, Any]:
            if isinstance(value, Mapping):
                return {name: read(one, f"{path}.{name}") for name, one in value.items()}
            self.say(path, "expected an object")
            return {}

        return entries

    def version(self, value: object, path: str) -> None:
        if value != FORMAT or isinstance(value, bool):
            self.say(path, f"expected {FORMAT}, got {value!r}: written by another version")

    def text(self, value: object, path: str) -> str:
        if isinstance(value, str) and value:
            return value
        self.say(path, "expected a text that is not empty")
        return ""

    def name_or_null(self, value: object, path: str) -> str | None:
        return None if value is None else self.text(value, path)

    def flag(self, value: object, path: str) -> bool:
        if not isinstance(value, bool):
            self.say(path, "expected true or false")
        return value is True

    def whole(self, value: object, path: str) -> int:
        if type(value) is int and 0 <= value <= sys.maxsize:
            return value
        self.say(path, "expected a whole number from 0")
        return 0

    def number(self, value: object, path: str) -> float:
        if _is_fine(value):
            return float(value)  # type: ignore[arg-type]
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.say(path, "expected a number")
        else:
            self.say(path, "must not be negative" if value < 0 else "must be finite")
        return 1.0

    def positive(self, value: object, path: str) -> float:
        number = self.number(value, path)
        if number == 0:
            self.say(path, "must be greater than zero")
        return number

    def limit(self, value: object, path: str) -> float:
        return math.inf if value is None else self.number(value, path)

    def bandwidth(self, value: object, path: str) -> float:
        return math.inf if value is None else self.positive(value, path)

    def numbers(self, value: object, path: str) -> FloatArray:
        fine = isinstance(value, list) and all(map(_is_fine, value))
        return np.array(value if fine else self.list_of(self.number)(value, path), dtype=np.float64)

    def matrix(self, value: object, path: str) -> FloatArray:
        rows = self.list_of(self.numbers)(value, path)
        for i, row in enumerate(rows):
            if len(row) != len(rows[0]):
                self.say(f"{path}[{i}]", f"expected {len(rows[0])} entries as in the first row, got {len(row)}")
        return np.array(rows if len({len(row) for row in rows}) == 1 else [[]], dtype=np.float64)

    def edges(self, value: object, path: str) -> list[Any]:
        if isinstance(value, list) and all(map(_is_edge, value)):
            return value  # the common case first: there may be a million
        read: list[Any] = self.list_of(self.edge)(value, path)
        return read

    def edge(self, value: object, path: str) -> list[float]:
        if isinstance(value, list) and len(value) == 3:
            reads = (self.whole, self.whole, self.number)
            return [read(one, f"{path}[{i}]") for i, (read, one) in enumerate(zip(reads, value, strict=True))]
        self.say(path, "expected [upstream entry, downstream entry, bytes per second]")
        return [0, 0, 0.0]

    def executor(self, value: object, path: str) -> dict[str, Any] | None:
        return self.record(
            value,
            path,
            name=(self.text,),
            node=(self.text,),
            cores=(self.positive,),
            memory_bytes=(self.limit, None),
            speed=(self.positive, 1.0),
            available=(self.flag, True),
        )

    def cluster(self, value: object, path: str) -> Cluster | None:
        before = len(self.problems)
        top = self.record(value, path, executors=(self.list_of(self.executor),), topology=(self.topology, None))
        executors = [one for one in top["executors"] if one] if top else []
        self.unique([one["name"] for one in executors], path + ".executors[{}].name")
        if not executors and len(self.problems) == before:
            self.say(f"{path}.executors", "at least one is needed")
        topology = top["topology"] if top else {}
        for key in _BY_NODE if topology else ():
            for node in dict.fromkeys(one["node"] for one in executors):
                if node not in topology[key]:
                    self.say(f"{path}.topology.{key}.{node}", "is missing")
        return None if len(self.problems) > before else self.built(path, lambda: _cluster(executors, topology))

    def topology(self, value: object, path: str) -> dict[str, Any]:
        by_node: tuple[_Read, ...] = (self.by_name(self.whole), self.by_name(self.bandwidth))
        known = {key: (read,) for key, read in zip(_BY_NODE, by_node, strict=True)}
        return self.record(value, path, **known, distances=(self.matrix,)) or {} if value is not None else {}

    def stage(self, value: object, path: str) -> Stage | None:
        before = len(self.problems)
        found = self.record(
            value,
            path,
            key=(self.text,),
            query=(self.text,),
            placeable=(self.flag,),
            batches_per_second=(self.number,),
            busy=(self.numbers,),
            rows=(self.numbers,),
            state_bytes=(self.numbers,),
        )
        return None if found is None or len(self.problems) > before else self.built(path, lambda: Stage(**found))

    def stream(self, value: object, path: str) -> dict[str, Any] | None:
        before, sparse = len(self.problems), isinstance(value, Mapping) and "edges" in value
        volume: _Field = (self.edges,) if sparse else (self.matrix,)
        ends = {"upstream": (self.text,), "downstream": (self.text,)}
        found = self.record(value, path, **ends, **{"edges" if sparse else "volume": volume})
        return None if len(self.problems) > before else found

    def checked_stages(self, stages: list[Stage | None], cluster: Cluster | None) -> tuple[Stage, ...]:
        """All stages if every one could be read, else none; what follows from them is then not looked at."""
        self.unique([stage.key if stage else "" for stage in stages], "stages[{}].key")
        for i, stage in enumerate(stages):
            if stage and cluster and not stage.placeable and stage.n != cluster.size:
                self.say(f"stages[{i}].busy", f"floating, expected {cluster.size} entries, got {stage.n}")
        known = tuple(stage for stage in stages if stage)
        return known if len({stage.key for stage in known}) == len(stages) else ()

    def fitted_streams(self, found: list[dict[str, Any] | None], stages: tuple[Stage, ...]) -> tuple[StreamLike, ...]:
        streams: list[StreamLike] = []
        for i, one in enumerate(found if stages else ()):
            checked = self.built(f"streams[{i}]", partial(_checked_stream, one, stages)) if one else None
            streams += [checked] if checked else []
        return tuple(streams)

    def placement(
        self, found: dict[str, list[str | None]], stages: tuple[Stage, ...], cluster: Cluster | None
    ) -> dict[str, IntArray]:
        sizes = {stage.key: stage.n for stage in stages if stage.placeable}
        for key, names in found.items():
            if stages and len(names) != sizes.get(key, 0):
                wrong = f"expected {sizes[key]} entries, got {len(names)}" if key in sizes else "no placeable stage"
                self.say(f"current.{key}", wrong)
            for i, name in enumerate(names):
                if cluster and name and cluster.index_of(name) == UNPLACED:
                    self.say(f"current.{key}[{i}]", f"no executor is called {name!r}")
        if self.problems or cluster is None:
            return {}
        nowhere: dict[str, list[str | None]] = {key: [None] * n for key, n in sizes.items()}
        return {key: _indices(cluster, names) for key, names in (nowhere | found).items()}

    def unique(self, names: Sequence[str], path: str) -> None:
        seen: set[str] = set()
        for i, name in enumerate(names):
            if name and name in seen:
                self.say(path.format(i), f"{name!r} stands twice")
            seen.add(name)


def _cluster(executors: Sequence[Mapping[str, Any]], given: Mapping[str, Any]) -> Cluster:
    names, nodes, *columns = ([one[key] for one in executors] for key in _COLUMNS)
    topology = None
    if given:
        subcluster, bandwidth = (np.array([given[key][node] for node in nodes]) for key in _BY_NODE)
        topology = Topology(subcluster, bandwidth, given["distances"])
    cores, memory, speed, available = map(np.array, columns)
    return Cluster(tuple(names), tuple(nodes), cores, memory, speed, available, topology)


def _checked_stream(found: Mapping[str, Any], stages: tuple[Stage, ...]) -> StreamLike:
    stream = Stream(**found) if "volume" in found else _sparse(found, stages)
    Workload(stages, (stream,))
    return stream


def _sparse(found: Mapping[str, Any], stages: Sequence[Stage]) -> SparseStream:
    sizes = {stage.key: stage.n for stage in stages}
    shape = sizes.get(found["upstream"], 0), sizes.get(found["downstream"], 0)
    up, down, volumes = (np.array([edge[column] for edge in found["edges"]]) for column in range(3))
    return SparseStream(found["upstream"], found["downstream"], shape, up, down, volumes)


def _indices(cluster: Cluster, names: Sequence[str | None]) -> IntArray:
    return np.array([UNPLACED if name is None else cluster.index_of(name) for name in names], dtype=np.int64)


def _is_fine(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value <= sys.float_info.max  # type: ignore[operator]


def _is_edge(value: object) -> bool:
    if type(value) is not list or len(value) != 3:
        return False
    up, down, volume = value
    return type(up) is type(down) is int and 0 <= up <= sys.maxsize and 0 <= down <= sys.maxsize and _is_fine(volume)
