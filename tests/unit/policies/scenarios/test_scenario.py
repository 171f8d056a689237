"""The written form of a scenario: nothing is lost, and every mistake is named with its path."""

from __future__ import annotations

import copy
import json
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from rechannel.policies.model.arrays import ModelError
from rechannel.policies.model.cluster import UNPLACED, Topology
from rechannel.policies.model.placement import Placement
from rechannel.policies.model.shuffles import SparseShuffle
from rechannel.policies.model.workload import Workload
from rechannel.policies.scenarios.scenario import Scenario, ScenarioError, from_document, to_document
from unit.policies.random_clusters import Situation, cluster_of, placement_of, situations, workload_of


def document() -> dict[str, Any]:
    """Three executors on two nodes, a floating source, two stages, a dense and a sparse shuffle."""
    executors = [
        {"name": "e0", "node": "n0", "cores": 2.0, "memory_bytes": 1e9, "speed": 1.0, "available": True},
        {"name": "e1", "node": "n0", "cores": 2.0, "memory_bytes": None, "speed": 0.5, "available": False},
        {"name": "e2", "node": "n1", "cores": 4.0, "memory_bytes": None, "speed": 1.0, "available": True},
    ]
    topology = {
        "subclusters": {"n0": 0, "n1": 1},
        "distances": [[1.0, 2.0], [2.0, 1.0]],
        "bandwidth_bytes_per_second": {"n0": None, "n1": 125e6},
    }

    def stage(key: str, placeable: bool, n: int) -> dict[str, Any]:
        numbers = {name: [0.1 * (i + 1) for i in range(n)] for name in ("busy", "rows", "state_bytes")}
        return {"key": key, "query": "q", "placeable": placeable, "batches_per_second": 0.2, **numbers}

    return {
        "format": 1,
        "name": "two nodes",
        "cluster": {"executors": executors, "topology": topology},
        "stages": [stage("s", False, 3), stage("a", True, 2), stage("b", True, 4)],
        "streams": [
            {"upstream": "s", "downstream": "a", "volume": [[1.0, 2.0], [3.0, 4.0], [5.0, 1 / 3]]},
            {"upstream": "a", "downstream": "b", "edges": [[0, 1, 0.1], [1, 3, 1e9]]},
        ],
        "current": {"a": ["e0", None], "b": ["e2", "e2", "e1", "e0"]},
    }


def plain(value: Any) -> Any:
    """All fields of a scenario and its parts as plain values."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Placement):
        return {key: array.tolist() for key, array in value.assignments.items()}
    if is_dataclass(value):
        return type(value), {one.name: plain(getattr(value, one.name)) for one in fields(value) if one.init}
    return [plain(one) for one in value] if isinstance(value, tuple) else value


def test_meaning_of_the_document() -> None:
    scenario = from_document(document())
    cluster, workload = scenario.cluster, scenario.workload
    assert scenario.name == "two nodes"
    assert cluster.memory_bytes.tolist() == [1e9, np.inf, np.inf]
    assert cluster.bandwidth.tolist() == [np.inf, np.inf, 125e6]
    assert cluster.distances_from(0).tolist() == [0, 0, 2]
    assert cluster.available.tolist() == [True, False, True]
    assert [stage.placeable for stage in workload.stages] == [False, True, True]
    assert isinstance(workload.shuffles[1], SparseShuffle)
    assert workload.shuffles[1].shape == (2, 4)
    assert scenario.current["a"].tolist() == [0, UNPLACED]


def test_round_trip_through_json() -> None:
    written = to_document(from_document(document()))
    assert written == document()
    assert to_document(from_document(json.loads(json.dumps(written)))) == written


@settings(max_examples=50)
@given(situations())
def test_round_trip_of_any_scenario(situation: Situation) -> None:
    scenario = Scenario("any", *situation)
    assert plain(from_document(json.loads(json.dumps(to_document(scenario))))) == plain(scenario)


def test_optional_fields() -> None:
    partial = document()
    partial["cluster"]["executors"] = [{"name": "e0", "node": "n0", "cores": 1}]
    partial["stages"] = partial["stages"][1:]
    del partial["cluster"]["topology"], partial["streams"], partial["current"]
    scenario = from_document(partial)
    cluster = scenario.cluster
    assert (cluster.memory_bytes[0], cluster.speed[0], cluster.available[0]) == (np.inf, 1, True)
    assert cluster.topology is None
    assert scenario.current == placement_of(a=[UNPLACED] * 2, b=[UNPLACED] * 4)


def changed(path: str, value: Any) -> dict[str, Any]:
    """The document with one value set, or taken away where it is ``...``."""
    whole: Any = copy.deepcopy(document())
    place, *steps = [whole, *path.split("/")]
    for step in steps[:-1]:
        place = place[int(step) if isinstance(place, list) else step]
    last: Any = int(steps[-1]) if isinstance(place, list) else steps[-1]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return whole


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        ("format", 2, "format: expected 1, got 2"),
        ("format", ..., "document: object missing required field `format`"),
        ("name", "", "name: expected `str` of length >= 1"),
        ("colour", 1, "document: object contains unknown field `colour`, there are: format, name, cluster"),
        ("cluster", [], "cluster: expected `object`, got `array`"),
        ("cluster/executors", {}, "cluster.executors: expected `array`, got `object`"),
        ("cluster/executors", [], "cluster.executors: expected `array` of length >= 1"),
        ("cluster/executors/1/name", "e0", "cluster: executors: names must be unique, 'e0' stands twice"),
        ("cluster/executors/1/node", 7, "cluster.executors[1].node: expected `str`, got `int`"),
        ("cluster/executors/0/cores", 0, "cluster.executors[0].cores: expected `float` > 0.0"),
        ("cluster/executors/0/speed", "fast", "cluster.executors[0].speed: expected `float`, got `str`"),
        ("cluster/executors/0/memory_bytes", -1, "cluster.executors[0].memory_bytes: expected `float` >= 0.0"),
        ("cluster/executors/0/available", 1, "cluster.executors[0].available: expected `bool`, got `int`"),
        ("cluster/topology/subclusters/n1", 2, "cluster: subcluster: outside 0..1"),
        ("cluster/topology/subclusters/n1", 0.5, "cluster.topology.subclusters.n1: expected `int`, got `float`"),
        ("cluster/topology/subclusters/n1", ..., "cluster.topology.subclusters.n1: is missing"),
        ("cluster/topology/distances/0", [1.0], "cluster.topology: distances[1]: expected 1 entries"),
        ("cluster/topology/distances", [[1.0, 2.0]], "cluster: distances: expected a square"),
        (
            "cluster/topology/bandwidth_bytes_per_second/n1",
            0,
            "cluster.topology.bandwidth_bytes_per_second.n1: expected `float` > 0.0",
        ),
        ("stages/1", 3, "stages[1]: expected `object`, got `int`"),
        ("stages/1/key", "b", "stages: keys must be unique, 'b' stands twice"),
        ("stages/2/busy/3", -0.5, "stages[2].busy[3]: expected `float` >= 0.0"),
        ("stages/2/busy/3", True, "stages[2].busy[3]: expected `float`, got `bool`"),
        ("stages/2/rows/0", float("nan"), "stages[2].rows[0]: expected `float` >= 0.0"),
        ("stages/2/rows/0", float("inf"), "stages[2].rows[0]: expected a finite number"),
        ("stages/2/rows/0", 10**400, "stages[2].rows[0]: number out of range"),
        ("stages/2/rows", [1.0], "stages[2]: stage 'b': rows: expected 4 entries, got 1"),
        ("stages/0/busy", [1.0], "stages[0]"),
        ("stages/1/batches_per_second", -1, "stages[1].batches_per_second: expected `float` >= 0.0"),
        ("stages/2/query", "other", "streams[1]: shuffle 'a' to 'b': joins two queries"),
        ("streams/0/upstream", "x", "streams[0]: shuffle 'x' to 'a': upstream: no such stage"),
        ("streams/0/upstream", "b", "streams[0]: shuffle 'b' to 'a': upstream must come before downstream"),
        ("streams/0/volume/1", [1.0], "streams[0]: volume[1]: expected 2 entries as in the first row, got 1"),
        ("streams/0/volume/1/1", -1, "streams[0].volume[1][1]: expected `float` >= 0.0"),
        ("streams/0/volume", [[1.0, 2.0]], "streams[0]: shuffle 's' to 'a': volume: expected shape (3, 2), got (1, 2)"),
        ("streams/0/volume", ..., "streams[0]: expected either volume or edges"),
        ("streams/1/volume", [[1.0]], "streams[1]: expected either volume or edges"),
        ("streams/1/edges/1", [1, 3], "streams[1].edges[1]: expected `array` of length 3, got 2"),
        ("streams/1/edges/1/0", -1, "streams[1].edges[1][0]: expected `int` >= 0"),
        ("streams/1/edges/1/1", 4, "streams[1]: shuffle 'a' to 'b': targets: outside 0..3"),
        ("streams/1/edges/1/2", "many", "streams[1].edges[1][2]: expected `float`, got `str`"),
        ("streams/1/edges/1", [0, 1, 2.0], "streams[1]: shuffle 'a' to 'b': sources and targets: a pair stands twice"),
        ("current/a/1", "e9", "current.a[1]: no executor is called 'e9'"),
        ("current/a", ["e0"], "current: assignments: a: expected 2 entries, got 1"),
        ("current/s", ["e0"] * 3, "current: assignments: stages differ from the placeable ones of the workload: ['s']"),
    ],
)
def test_mistake_with_its_path(path: str, value: Any, problem: str) -> None:
    with pytest.raises(ScenarioError) as error:
        from_document(changed(path, value))
    assert any(one.startswith(problem) for one in error.value.problems), error.value.problems
    assert isinstance(error.value, ModelError)


def test_stage_that_is_left_out_of_current_is_on_no_executor() -> None:
    assert from_document(changed("stages/0/placeable", True)).current["s"].tolist() == [UNPLACED] * 3


def test_all_parts_with_a_mistake() -> None:
    wrong = document()
    wrong["stages"][2]["busy"][1] = wrong["stages"][2]["busy"][3] = -1
    wrong["stages"][1]["extra"] = 0
    wrong["cluster"]["executors"][0]["cores"] = "two"
    del wrong["cluster"]["topology"]["distances"]
    wrong["streams"][0]["volume"][0][1] = -2
    wrong["streams"][1]["edges"].append("x")
    wrong["current"]["a"][0] = 7
    with pytest.raises(ScenarioError) as error:
        from_document(wrong)
    assert {problem.partition(": ")[0] for problem in error.value.problems} == {
        "cluster.executors[0].cores",
        "cluster.topology",
        "stages[1]",
        "stages[2].busy[1]",
        "streams[0].volume[0][1]",
        "streams[1].edges[2]",
        "current.a[0]",
    }


@pytest.mark.parametrize("nothing", [None, [], "x", 3])
def test_value_that_is_no_document(nothing: object) -> None:
    with pytest.raises(ScenarioError, match="document: expected `object`, got"):
        from_document(nothing)


def test_scenario_that_does_not_fit_together() -> None:
    workload = workload_of({"a": [1.0, 1.0]})
    with pytest.raises(ScenarioError, match=r"name: must not be empty; current: assignments"):
        Scenario("", cluster_of(2), workload, placement_of(a=[0]))


def test_one_sub_cluster_and_bandwidth_for_each_node() -> None:
    topology = Topology(np.array([0, 1]), np.array([1.0, 2.0]), np.ones((2, 2)))
    with pytest.raises(ScenarioError) as error:
        Scenario("x", replace(cluster_of(2), topology=topology), Workload(()), Placement({}))
    assert error.value.problems == (
        "cluster: 'e1' has another sub-cluster than 'e0' of its node",
        "cluster: 'e1' has another bandwidth than 'e0' of its node",
    )
