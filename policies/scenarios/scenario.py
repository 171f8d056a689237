"""Scenario on which policies are compared, and its written form.

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

The fields are those of ``model``: ``busy`` in seconds per batch, ``rows`` per batch, ``volume`` in bytes per second.
``streams`` are the shuffles: each has either ``volume``, a row for each entry upstream, or ``edges``, a list of
``[upstream entry, downstream entry, bytes per second]``. ``memory_bytes`` and a node's bandwidth are null where not
known. May be left out: ``memory_bytes``, ``speed`` (1), ``available`` (true), ``topology``, ``streams``, and of
``current`` the stages that are on no executor; a single partition that is on none is null there.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
from msgspec import Meta

from rechannel.policies.model.arrays import FloatArray, IntArray, ModelError
from rechannel.policies.model.cluster import UNPLACED, Cluster, Topology
from rechannel.policies.model.placement import Placement
from rechannel.policies.model.shuffles import DenseShuffle, Shuffle, SparseShuffle
from rechannel.policies.model.workload import Stage, Workload

FORMAT = 1
"""Version of the written form."""

_T = TypeVar("_T")
_LARGEST = sys.float_info.max
_Name = Annotated[str, Meta(min_length=1)]
_Whole = Annotated[int, Meta(ge=0)]
_Number = Annotated[float, Meta(ge=0, le=_LARGEST)]
_Positive = Annotated[float, Meta(gt=0, le=_LARGEST)]
# As the constructor of Cluster takes them.
_COLUMNS = ("name", "node", "cores", "memory_bytes", "speed", "available")


class ScenarioError(ModelError):
    """Document that describes no scenario; ``problems`` names every mistake with its path."""

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
    """Return plain values from which :func:`from_document` makes the same scenario."""
    cluster = scenario.cluster
    measured = cluster.cores.tolist(), _nullable(cluster.memory_bytes), cluster.speed.tolist()
    rows = zip(cluster.executors, cluster.nodes, *measured, cluster.available.tolist(), strict=True)
    described: dict[str, Any] = {"executors": [dict(zip(_COLUMNS, row, strict=True)) for row in rows]}
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
        "streams": [_shuffle_document(shuffle) for shuffle in scenario.workload.shuffles],
        "current": current,
    }


def _nullable(values: FloatArray) -> list[float | None]:
    return [None if math.isinf(value) else value for value in values.tolist()]


def _shuffle_document(shuffle: Shuffle) -> dict[str, Any]:
    ends = {"upstream": shuffle.upstream, "downstream": shuffle.downstream}
    if isinstance(shuffle, DenseShuffle):
        return {**ends, "volume": shuffle.matrix().tolist()}
    edges = zip(*(column.tolist() for column in shuffle.above(0.0)), strict=True)
    return {**ends, "edges": [list(edge) for edge in edges]}


def from_document(document: object) -> Scenario:
    """Return the scenario that plain values describe.

    Raises :class:`ScenarioError` with the first mistake of every part: executor, topology, stage, shuffle, stage of the
    current placement.
    """
    problems: list[str] = []
    top: _Document | None = _read(document, _Document, "", problems)
    if top is None:
        raise ScenarioError(problems)
    if top.format != FORMAT:
        problems.append(f"format: expected {FORMAT}, got {top.format}: written by another version")
    cluster = _cluster(top.cluster, problems)
    stages = _stages(top.stages, problems)
    shuffles = _shuffles(top.streams, stages, problems)
    current = _current(top.current, stages, cluster, problems)
    if problems or cluster is None:
        raise ScenarioError(problems)
    return Scenario(top.name, cluster, Workload(stages, shuffles), Placement(current))


# The parts of a document. Each is converted by itself, so that a mistake in one does not hide those in others.


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    format: int
    name: _Name
    cluster: Any
    stages: list[Any]
    streams: list[Any] = []
    current: dict[str, Any] = {}


class _Cluster(msgspec.Struct, forbid_unknown_fields=True):
    executors: Annotated[list[Any], Meta(min_length=1)]
    topology: Any = None


class _Executor(msgspec.Struct, forbid_unknown_fields=True):
    name: _Name
    node: _Name
    cores: _Positive
    memory_bytes: _Number | None = None
    speed: _Positive = 1.0
    available: bool = True


class _Topology(msgspec.Struct, forbid_unknown_fields=True):
    subclusters: dict[str, Any]
    distances: list[list[_Number]]
    bandwidth_bytes_per_second: dict[str, Any]


class _Stage(msgspec.Struct, forbid_unknown_fields=True):
    key: _Name
    query: _Name
    placeable: bool
    batches_per_second: _Number
    busy: list[_Number]
    rows: list[_Number]
    state_bytes: list[_Number]


class _Shuffle(msgspec.Struct, forbid_unknown_fields=True):
    upstream: _Name
    downstream: _Name
    volume: list[list[_Number]] | None = None
    edges: list[tuple[_Whole, _Whole, _Number]] | None = None


def _read(value: object, kind: Any, path: str, problems: list[str]) -> Any:
    """Convert a part of the document; None, and a problem with its path, where that cannot be."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at `$")
    where = (path + place.rstrip("`")).lstrip(".") or "document"
    if str(_LARGEST) in problem:
        problem = "Expected a finite number"
    if "unknown field" in problem:
        problem += f", there are: {', '.join(getattr(kind, '__struct_fields__', ()))}"
    problems.append(f"{where}: {problem[0].lower()}{problem[1:]}")
    return None


def _build(problems: list[str], path: str, make: Callable[..., _T], *arguments: Any) -> _T | None:
    """Call a constructor of the model; None, and a problem with its path, where it refuses."""
    try:
        return make(*arguments)
    except ModelError as error:
        problems.append(f"{path}: {error}" if path else str(error))
        return None


def _cluster(value: object, problems: list[str]) -> Cluster | None:
    before = len(problems)
    top: _Cluster | None = _read(value, _Cluster, "cluster", problems)
    if top is None:
        return None
    parts: list[_Executor | None] = [
        _read(one, _Executor, f"cluster.executors[{i}]", problems) for i, one in enumerate(top.executors)
    ]
    executors = [part for part in parts if part is not None]
    hosts = [executor.node for executor in executors]
    topology = None if top.topology is None else _topology(top.topology, hosts, problems)
    if len(problems) > before:
        return None
    columns = ([getattr(executor, name) for executor in executors] for name in _COLUMNS)
    names, nodes, cores, memory, speed, available = columns
    arguments = names, nodes, np.array(cores), _finite_or_inf(memory), np.array(speed), np.array(available), topology
    return _build(problems, "cluster", Cluster, *arguments)


def _topology(value: object, hosts: Sequence[str], problems: list[str]) -> Topology | None:
    """Read what is known of the nodes; ``hosts`` is the node of each executor."""
    before, path = len(problems), "cluster.topology"
    top: _Topology | None = _read(value, _Topology, path, problems)
    if top is None:
        return None
    columns: list[list[Any]] = []
    for name, kind in (("subclusters", _Whole), ("bandwidth_bytes_per_second", _Positive | None)):
        entries = getattr(top, name)
        problems += [f"{path}.{name}.{node}: is missing" for node in dict.fromkeys(hosts) if node not in entries]
        values = {node: _read(one, kind, f"{path}.{name}.{node}", problems) for node, one in entries.items()}
        columns.append([values.get(host) for host in hosts])
    distances = _build(problems, path, _matrix, "distances", top.distances)
    if len(problems) > before:
        return None
    return _build(problems, "cluster", Topology, np.array(columns[0]), _finite_or_inf(columns[1]), distances)


def _stages(values: Sequence[object], problems: list[str]) -> tuple[Stage, ...]:
    """Read all stages; none where one has a mistake, as references cannot be checked then."""
    stages: list[Stage] = []
    for i, value in enumerate(values):
        part: _Stage | None = _read(value, _Stage, f"stages[{i}]", problems)
        stage = _build(problems, f"stages[{i}]", Stage, *msgspec.structs.astuple(part)) if part else None
        stages += [stage] if stage else []
    workload = _build(problems, "", Workload, stages) if len(stages) == len(values) else None
    return workload.stages if workload else ()


def _shuffles(values: Sequence[object], stages: tuple[Stage, ...], problems: list[str]) -> tuple[Shuffle, ...]:
    shuffles: list[Shuffle] = []
    for i, value in enumerate(values):
        part: _Shuffle | None = _read(value, _Shuffle, f"streams[{i}]", problems)
        shuffle = _build(problems, f"streams[{i}]", _shuffle, part, stages) if part and stages else None
        shuffles += [shuffle] if shuffle else []
    return tuple(shuffles)


def _shuffle(part: _Shuffle, stages: tuple[Stage, ...]) -> Shuffle:
    sizes = {stage.key: stage.n for stage in stages}
    shuffle: Shuffle
    if part.volume is not None and part.edges is None:
        shuffle = DenseShuffle(part.upstream, part.downstream, _matrix("volume", part.volume))
    elif part.edges is not None and part.volume is None:
        shape = sizes.get(part.upstream, 0), sizes.get(part.downstream, 0)
        up, down, volumes = (np.array([edge[column] for edge in part.edges]) for column in range(3))
        shuffle = SparseShuffle(part.upstream, part.downstream, shape, up, down, volumes)
    else:
        raise ModelError("expected either volume or edges")
    Workload(stages, (shuffle,))  # whether it fits the stages
    return shuffle


def _current(
    values: Mapping[str, object], stages: tuple[Stage, ...], cluster: Cluster | None, problems: list[str]
) -> dict[str, IntArray]:
    placed = {stage.key: np.full(stage.n, UNPLACED) for stage in stages if stage.placeable}
    for key, value in values.items():
        names: list[str | None] | None = _read(value, list[_Name | None], f"current.{key}", problems)
        if names is None or cluster is None:
            continue
        placed[key] = np.array([UNPLACED if name is None else cluster.index_of(name) for name in names], dtype=np.int64)
        for i in np.flatnonzero(placed[key] == UNPLACED):
            if names[i] is not None:
                problems.append(f"current.{key}[{i}]: no executor is called {names[i]!r}")
    return placed


def _finite_or_inf(values: Sequence[float | None]) -> FloatArray:
    """Return the numbers, infinity in place of those that are unknown."""
    return np.array([math.inf if value is None else value for value in values], dtype=np.float64)


def _matrix(name: str, rows: Sequence[Sequence[float]]) -> FloatArray:
    for i, row in enumerate(rows):
        if len(row) != len(rows[0]):
            raise ModelError(f"{name}[{i}]: expected {len(rows[0])} entries as in the first row, got {len(row)}")
    return np.array(rows or [[]], dtype=np.float64)
