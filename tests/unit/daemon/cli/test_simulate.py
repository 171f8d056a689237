"""Commands ``policies`` and ``simulate``."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rechannel.policies.analysis.placement_cost import (
    executor_busy,
    inter_executor_volume,
    inter_node_volume,
    placement_cost,
)
from rechannel.policies.model.arrays import ModelError, ScaleOutError
from rechannel.policies.model.cluster import Cluster
from rechannel.policies.model.placement import Placement, PolicyAnswer
from rechannel.policies.model.shuffles import DenseShuffle
from rechannel.policies.model.workload import Workload
from rechannel.policies.policy import FunctionPolicy, Objective
from rechannel.policies.registry import POLICIES
from rechannel.policies.scenarios.compare import compare, cost_of
from rechannel.policies.scenarios.generators import GENERATORS, generate
from rechannel.policies.scenarios.scenario import Scenario, from_document, to_document
from unit.daemon.cli.command import run
from unit.policies.random_clusters import cluster_of, critical_path, placement_of, workload_of


def scenario() -> Scenario:
    """Two partitions on one of four executors, and two that are well placed."""
    shuffle = DenseShuffle("a", "b", np.array([[100.0, 0.0], [0.0, 10.0]]))
    workload = workload_of({"a": [1.0, 1.0], "b": [2.0, 2.0]}, [shuffle], rate=0.2)
    return Scenario("four", cluster_of(4), workload, placement_of(a=[0, 0], b=[0, 2]))


@dataclasses.dataclass(frozen=True)
class Turns:
    max_moves: int | None = None
    min_step: float = 0.005

    def __post_init__(self) -> None:
        if self.min_step > 1:
            raise ModelError(f"min_step: expected at most 1, got {self.min_step}")


@dataclasses.dataclass(frozen=True)
class Words:
    """Parameters of every kind that a policy may have."""

    nodes: tuple[str, ...] | None = None
    word: str = "x"
    flag: bool = False
    bound: float = float("inf")


SEEN: list[object] = []


def turns(cluster: Cluster, workload: Workload, current: Placement, parameters: Turns) -> PolicyAnswer:
    """Partition i of stage a goes to executor i; b stays."""
    there = dict(current.assignments)
    first = workload.placeable[0]
    there[first.key] = np.flatnonzero(cluster.available)[np.arange(first.n) % cluster.available.sum()]
    return PolicyAnswer(Placement(there), ("in turn",))


def refuse(cluster: Cluster, workload: Workload, current: Placement, parameters: object) -> PolicyAnswer:
    SEEN.append(parameters)
    raise ScaleOutError("no room: add [executors]")


def cost(cluster: Cluster, workload: Workload, placement: Placement, parameters: object) -> Objective:
    return placement_cost(cluster, workload, placement)


@pytest.fixture(autouse=True)
def _two_policies(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that works and one that refuses, whatever there is otherwise."""
    for name in list(POLICIES):
        monkeypatch.delitem(POLICIES, name)
    for entry in (
        FunctionPolicy("turns", turns, cost, Turns, "In turn."),
        FunctionPolicy("refuser", refuse, cost, Words, "Refuses.", "A paper"),
    ):
        monkeypatch.setitem(POLICIES, entry.name, entry)
    SEEN.clear()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "four.json"
    path.write_text(json.dumps(to_document(scenario())))
    return path


def test_the_figures_are_those_of_the_metrics() -> None:
    example = scenario()
    cluster, workload, current = example.cluster, example.workload, example.current
    now = cost_of(example, current)
    assert now.seconds_per_batch == pytest.approx(sum(critical_path(cluster, workload, current).values())) == 4.0
    assert now.seconds_per_second == pytest.approx(0.2 * 4.0)
    share = executor_busy(cluster, workload, current)
    assert now.highest_utilization == pytest.approx(share.max()) == pytest.approx(0.8)
    assert now.load_spread == pytest.approx(share.std() / share.mean())
    assert now.inter_node_bytes_per_second == inter_node_volume(cluster, workload, current) == 10
    assert now.inter_executor_bytes_per_second == inter_executor_volume(cluster, workload, current) == 10
    assert now.cohesion == pytest.approx(2.0)
    assert now.coupling == pytest.approx(2.0 + 2 / 40)


def test_executors_that_leave_count_in_no_load_figure() -> None:
    example = scenario()
    leaving = dataclasses.replace(example.cluster, available=np.array([True, True, False, True]))
    now = cost_of(dataclasses.replace(example, cluster=leaving), example.current)
    assert now.highest_utilization == pytest.approx(0.8)
    assert now.load_spread == pytest.approx(np.array([0.8, 0, 0]).std() / (0.8 / 3))


def test_policies_are_compared_by_the_clock_of_the_caller() -> None:
    example = scenario()
    ticks = itertools.count(0.0, 0.5)
    done, refused = compare(example, ["turns", "refuser"], {}, lambda: next(ticks))
    assert (done.decision_seconds, refused.decision_seconds) == (0.5, 0.5)
    assert done.figures == cost_of(example, placement_of(a=[0, 1], b=[0, 2]))
    assert done.figures is not None and done.figures.seconds_per_batch == 3.0
    assert (done.moves, done.bytes_moved, done.notes, done.error) == (1, 1.0, ("in turn",), "")
    assert (refused.figures, refused.moves, refused.error) == (None, 0, "no room: add [executors]")


def test_a_wrong_parameter_fails_that_policy_alone() -> None:
    wrong, other = compare(scenario(), ["turns", "refuser"], {"turns": {"min_step": 7}}, lambda: 0.0)
    assert (wrong.figures, wrong.error) == (None, "min_step: expected at most 1, got 7")
    assert other.error == "no room: add [executors]"


def test_policies_shows_names_sources_and_parameters() -> None:
    done = run("policies", "--json")
    answer = json.loads(done.stdout)
    policies_shown = {one["name"]: one for one in answer["policies"]}
    assert policies_shown["turns"]["parameters"] == {"max_moves": None, "min_step": 0.005}
    assert (policies_shown["refuser"]["summary"], policies_shown["refuser"]["source"]) == ("Refuses.", "A paper")
    assert policies_shown["refuser"]["parameters"]["bound"] == "inf", "infinity is no JSON"
    assert [one["name"] for one in answer["generators"]] == list(GENERATORS)
    assert answer["generators"][0]["parameters"]["seed"]["default"] == 0
    table = run("policies")
    assert all(word in table.stdout for word in ("turns", "max_moves=None", "A paper", "random-dag", "stages=8 (1 to"))


def test_simulate_prints_a_table(file: Path) -> None:
    done = run("simulate", "--workload", file)
    lines = [line.split() for line in done.stdout.splitlines()]
    assert done.stdout.startswith("four: 4 executors, 2 stages with 4 partitions, 2 streams")
    assert ["as", "it", "is", "4.000", "0.800", "80%"] in [line[:6] for line in lines]
    assert "refuser refused: no room: add [executors]" in done.stdout
    assert done.stdout.count("note of turns") == 1


def test_simulate_prints_json(file: Path) -> None:
    done = run("simulate", "--workload", file, "--policy", "turns", "--json")
    answer: dict[str, Any] = json.loads(done.stdout)
    assert (answer["scenario"], answer["executors"], answer["partitions"]) == ("four", 4, 4)
    assert answer["current"] == dataclasses.asdict(cost_of(scenario(), scenario().current))
    assert [row["policy"] for row in answer["policies"]] == ["turns"]
    assert answer["policies"][0]["figures"]["seconds_per_batch"] < 4.0
    assert answer["policies"][0]["decision_seconds"] >= 0


def test_selected_policies_run_once_each_in_the_order_given(file: Path) -> None:
    done = run("simulate", "--workload", file, "--policy", "refuser,turns,refuser", "--json")
    assert [row["policy"] for row in json.loads(done.stdout)["policies"]] == ["refuser", "turns"]


def test_a_saved_scenario_equals_the_generated_one(tmp_path: Path) -> None:
    path = tmp_path / "saved.json"
    first = run("simulate", "--workload", "drained:executors=4,stages=2", "--policy", "turns", "--save", path, "--json")
    assert to_document(from_document(json.loads(path.read_text()))) == to_document(
        generate("drained:executors=4,stages=2")
    )
    again = json.loads(run("simulate", "--workload", path, "--policy", "turns", "--json").stdout)
    before = json.loads(first.stdout)["policies"][0]
    assert again["policies"][0] | {"decision_seconds": 0} == before | {"decision_seconds": 0}


def test_parameters_are_parsed_by_type(file: Path) -> None:
    settings = ('refuser.nodes=["n0","n1"]', "refuser.word=y=z", "refuser.flag=true", "refuser.bound=2")
    run("simulate", "--workload", file, *itertools.chain(*(("--set", one) for one in settings)))
    assert [Words(("n0", "n1"), "y=z", True, 2.0)] == SEEN
    run("simulate", "--workload", file, "--set", "refuser.nodes=None", "--set", "refuser.bound=inf")
    assert SEEN[-1] == Words()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "Missing option '--workload'"),
        (
            ("--workload", "linear", "--policy", "magic"),
            "no policy is called 'magic', there are: refuser, turns, or all",
        ),
        (("--workload", "linear:scale=3"), "linear: scale=3: expected one of 1, 10"),
        (("--workload", "linear", "--set", "turns"), "write POLICY.PARAMETER=VALUE"),
        (("--workload", "linear", "--policy", "refuser", "--set", "turns.max_moves=1"), "POLICY one of: refuser"),
        (("--workload", "linear", "--set", "turns.depth=1"), "'depth', it has: max_moves, min_step"),
        (("--workload", "linear", "--set", "turns.max_moves=few"), "turns.max_moves=few: Expected `int | null`"),
        (("--workload", "linear", "--set", "turns.min_step=7"), "min_step: expected at most 1, got 7.0"),
    ],
)
def test_wrong_usage_lists_the_valid_names(arguments: tuple[str, ...], sentence: str) -> None:
    assert sentence in run("simulate", *arguments, code=2).stderr


def test_an_invalid_scenario_file_is_refused(tmp_path: Path) -> None:
    absent = run("simulate", "--workload", tmp_path / "absent.json", "--json", code=1)
    assert json.loads(absent.stdout)["code"] == 1
    assert "cannot be read (No such file or directory), and no generator is called so: linear" in absent.stderr

    path = tmp_path / "broken.json"
    path.write_text("{")
    assert "is not JSON" in run("simulate", "--workload", path, code=1).stderr
    path.write_bytes(b'"\xff"')
    assert "is not JSON" in run("simulate", "--workload", path, code=1).stderr

    wrong = to_document(scenario())
    wrong["stages"][1]["busy"][1] = -1
    wrong["current"]["a"][0] = "e9"
    path.write_text(json.dumps(wrong))
    done = run("simulate", "--workload", path, code=1)
    assert "stages[1].busy[1]: expected `float` >= 0.0; current.a[0]: no executor is called 'e9'" in done.stderr
    assert "Traceback" not in done.output


def test_an_unwritable_file_is_refused(file: Path, tmp_path: Path) -> None:
    done = run("simulate", "--workload", file, "--policy", "turns", "--save", tmp_path / "no" / "file", code=1)
    assert "cannot be written" in done.stderr
