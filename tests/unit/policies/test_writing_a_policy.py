"""The policy of docs/writing-a-policy.md, installed from the page, and entry points that are broken."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings

from rechannel.conf.settings import Settings
from rechannel.daemon.cli.main import main
from rechannel.daemon.decide.policy_settings import policy_errors
from rechannel.policies.entry_points import GROUP
from rechannel.policies.model.arrays import ModelError
from rechannel.policies.registry import POLICIES, PolicyLawError, installed_policies, known_policies, propose
from unit.daemon.fake_store import FakeClock, FakeStore
from unit.daemon.fakes import World, controller, decide
from unit.daemon.fakes import settings as controller_settings
from unit.policies.laws import check_proposal
from unit.policies.random_clusters import Situation, cluster_of, placement_of, situations, workload_of

PAGE = (Path(__file__).parents[3] / "docs" / "writing-a-policy.md").read_text(encoding="utf-8")
SITUATION = (cluster_of(2), workload_of({"a": [3.0, 2.0, 1.0]}, rate=0.15), placement_of(a=[0, 0, 0]))

Install = Callable[..., None]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.M | re.S)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Write a distribution of one module as ``pip install`` leaves it; its modules are forgotten afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)

    def write(distribution: str, module: str, source: str, **entries: str) -> None:
        (tmp_path / f"{module}.py").write_text(source, encoding="utf-8")
        metadata = tmp_path / f"{distribution.replace('-', '_')}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        lines = [f"{name.replace('_', '-')} = {value}" for name, value in entries.items()]
        (metadata / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *lines, ""]))
        installed_policies.cache_clear()

    yield write
    installed_policies.cache_clear()
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def page(install: Install) -> None:
    """Install the policy of the page, by the names that its pyproject.toml has."""
    project = tomllib.loads(blocks("toml")[0])
    (module,) = project["tool"]["setuptools"]["py-modules"]
    entries = project["project"]["entry-points"][GROUP]
    install(project["project"]["name"], module, blocks("python")[0], **entries)


def test_length_of_the_policy_on_the_page() -> None:
    (source,) = blocks("python")
    assert len([line for line in source.splitlines() if line]) <= 45
    assert max(map(len, source.splitlines())) <= 120


@pytest.mark.usefixtures("page")
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(situation=situations())
def test_policy_of_the_page_keeps_the_laws(situation: Situation) -> None:
    check_proposal(*situation, propose("longest-first", *situation))


@pytest.mark.usefixtures("page")
def test_parameters() -> None:
    assert propose("longest-first", *SITUATION).placement == placement_of(a=[0, 1, 1])
    stays = propose("longest-first", *SITUATION, {"stay": 1})
    assert stays.moves == ()
    for values, problem in (
        ({"stay": 2}, "stay: expected a number from 0 to 1, got 2"),
        ({"stay": "x"}, "stay: expected a number from 0 to 1, got 'x'"),
        ({"sty": 1}, "policy 'longest-first' has no parameter 'sty', it has: stay"),
    ):
        with pytest.raises(ValueError, match=re.escape(problem)):
            propose("longest-first", *SITUATION, values)


@pytest.mark.usefixtures("page")
def test_settings_of_the_page() -> None:
    chosen = tomllib.loads(blocks("toml")[1])
    reschedule = replace(Settings().reschedule, policy=chosen["reschedule"]["policy"])
    fine = replace(Settings(), reschedule=reschedule, policies=chosen["policies"])
    assert policy_errors(fine) == []
    assert policy_errors(replace(fine, policies={"longest-first": {"stay": "x", "stey": 1}})) == [
        "policies.longest-first.stay: expected a number from 0 to 1, got 'x'",
        "policies.longest-first.stey: no such parameter; did you mean stay? known are stay",
    ]
    unknown = replace(fine, reschedule=replace(reschedule, policy="longest"))
    (mistake,) = policy_errors(unknown)
    assert mistake.startswith("reschedule.policy: no policy is called 'longest'; did you mean longest-first? known are")


@pytest.mark.usefixtures("page")
def test_command_line() -> None:
    listed = json.loads(CliRunner().invoke(main, ["policies", "--json"]).output)
    assert {"name": "longest-first", "source": "Graham 1969", "parameters": {"stay": 0.1}}.items() <= next(
        one for one in listed["policies"] if one["name"] == "longest-first"
    ).items()
    assert listed["errors"] == []
    arguments = "simulate --policy longest-first,even --workload word-count --set longest-first.stay=0.05 --json"
    result = CliRunner().invoke(main, arguments.split())
    assert result.exit_code == 0, result.output
    rows = json.loads(result.output)["policies"]
    assert [(row["policy"], row["error"]) for row in rows] == [("longest-first", ""), ("even", "")]
    assert rows[0]["moves"] > 0
    assert rows[0]["notes"][0] == "24 partitions, longest first"


@pytest.mark.usefixtures("page")
def test_decision_of_a_controller() -> None:
    clock = FakeClock()
    store = FakeStore(clock)
    world = World(store, clock)
    leader = controller(store, clock, controller_settings(policy="longest-first"))
    leader.run_leader_cycle()
    world.ready()
    decision = decide(leader, force=True)
    assert (decision.policy, decision.result) == ("longest-first", "planned"), decision.sentence
    assert decision.moves
    assert "12 partitions, longest first" in decision.notes


# -- broken entry points --

POLICY = """
from dataclasses import dataclass
from rechannel.policies import PolicyAnswer, placement_cost

@dataclass
class Parameters:
    size: int = 1

class Policy:
    name, summary, source, parameters = "mine", "Mine.", "", Parameters
    def place(self, cluster, workload, current, parameters):
        return PolicyAnswer(current)
    def objective(self, cluster, workload, placement, parameters):
        return placement_cost(cluster, workload, placement)
"""


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("import a_module_that_is_missing", "ModuleNotFoundError: No module named 'a_module_that_is_missing'"),
        ("raise SystemExit('no')", "SystemExit: no"),
        ("x = 1", "AttributeError: module 'mine' has no attribute 'Policy'"),
        (POLICY.replace('"mine"', '"yours"'), "name: expected 'mine' as in the entry point, got 'yours'"),
        (POLICY.replace('"Mine."', "None"), "summary: expected a text"),
        (POLICY.replace(", Parameters\n", ", dict\n"), "parameters: expected a dataclass"),
        (POLICY.replace("int = 1", "int"), "TypeError: Parameters.__init__() missing 1 required positional argument"),
        (POLICY.replace("place(self, cluster, ", "place(self, "), "place: expected the arguments cluster, workload,"),
        (POLICY.replace("def objective", "def measure"), "objective: expected a method"),
    ],
)
def test_broken_entry_point(install: Install, page: None, source: str, problem: str) -> None:
    install("my-policies", "mine", source, mine="mine:Policy")
    (error,) = installed_policies().errors
    assert error.startswith(f"policy 'mine' of my-policies 1.0 (entry point 'mine:Policy') cannot be used: {problem}")
    assert set(known_policies()) == {*POLICIES, "longest-first"}
    result = CliRunner().invoke(main, ["policies"])
    assert (result.exit_code, result.stderr) == (0, f"warning: {error}\n")
    with pytest.raises(ModelError, match="'mine', valid names: adaptive, "):
        propose("mine", *SITUATION)
    (mistake,) = policy_errors(replace(Settings(), policies={"mine": {}}))
    assert mistake.startswith(f"[policies.mine]: no policy is called 'mine'; {error}; ")


def test_name_that_is_taken(install: Install) -> None:
    install("one", "first", POLICY, mine="first:Policy", even="first:Policy")
    install("two", "second", POLICY, mine="second:Policy")
    reserved, twice = installed_policies().errors
    assert reserved.startswith("policy 'even' of one 1.0") and "a built-in policy has that name" in reserved
    assert twice.startswith("policy 'mine' of two 1.0") and "another distribution provides" in twice
    assert known_policies()["even"] is POLICIES["even"]


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("1 / 0", "policy 'mine' failed: ZeroDivisionError: division by zero"),
        ("current", "policy 'mine' answered with no PolicyAnswer"),
        ("PolicyAnswer(current, (1,))", "policy 'mine' answered with no PolicyAnswer"),
        ("current.assignments['a'].sort()", "policy 'mine' failed: ValueError"),
    ],
)
def test_policy_that_fails(install: Install, body: str, problem: str) -> None:
    install("my-policies", "mine", POLICY.replace("return PolicyAnswer(current)", f"return {body}"), mine="mine:Policy")
    with pytest.raises(PolicyLawError, match=re.escape(problem)):
        propose("mine", *SITUATION)


def test_parameter_of_another_type(install: Install) -> None:
    install("my-policies", "mine", POLICY, mine="mine:Policy")
    assert propose("mine", *SITUATION, {"size": np.int64(2)}).moves == ()
    with pytest.raises(ModelError, match="size: Expected `int`, got `str`, got 'x'"):
        propose("mine", *SITUATION, {"size": "x"})
