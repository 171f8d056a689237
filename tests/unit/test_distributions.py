"""The light distribution: links to the files of the package, complete for what they import, with the same bounds."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from click.testing import CliRunner

from rechannel.conf.loader import read_settings
from rechannel.daemon.cli.main import OVERVIEW, main
from rechannel.daemon.doctor import host
from rechannel.daemon.doctor.finding import Severity
from rechannel.daemon.doctor.host import HostFacts
from rechannel.wire import distribution
from unit.daemon.cli.command import run

ROOT = Path(__file__).parents[2]
WHOLE, LIGHT = ROOT / "src", ROOT / "distributions/agent/src"
PROJECTS = [tomllib.loads((source.parent / "pyproject.toml").read_text())["project"] for source in (WHOLE, LIGHT)]
IMPORT_NAMES = {"inotify-simple": "inotify_simple", "prometheus-client": "prometheus_client"}
OF_SPARK = {"py4j", "pyspark"}  # which the cluster of a light driver brings
# Modules that import more of the package in functions: each command imports what it needs.
PARTIAL = {"rechannel.daemon.cli.main", "rechannel.daemon.cli.orders", "rechannel.daemon.cli.config"}


def files(source: Path) -> dict[str, Path]:
    """Return the files of a distribution by their place in the package."""
    paths = (Path(place, name) for place, _, names in os.walk(source / "rechannel", followlinks=True) for name in names)
    return {str(path.relative_to(source)): path for path in paths if "__pycache__" not in path.parts}


def modules() -> dict[str, Path]:
    names = {path.removesuffix(".py").replace("/", "."): file for path, file in files(LIGHT).items()}
    return {name.removesuffix(".__init__"): file for name, file in names.items() if file.suffix == ".py"}


def imports(tree: ast.AST, *, in_functions: bool) -> Iterator[str]:
    """Yield the imported modules but those for types; ``package.name`` for each name of a from-import."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        elif isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        elif in_functions or not isinstance(child, ast.FunctionDef | ast.Lambda):
            yield from imports(child, in_functions=in_functions)


def packages(requirements: list[str]) -> dict[str, str]:
    names = {re.match(r"[\w-]+", text)[0]: text for text in requirements}  # type: ignore[index]
    return {IMPORT_NAMES.get(name, name): text for name, text in names.items()}


def test_every_file_is_that_of_the_whole_distribution():
    light, whole = files(LIGHT), files(WHOLE)
    assert light
    assert [path for path in light if path not in whole or light[path].resolve() != whole[path].resolve()] == []
    links = [path for path in (LIGHT.parent).rglob("*") if path.is_symlink()]
    assert [path for path in links if path.readlink().is_absolute() or not path.exists()] == []


def test_a_package_is_complete_for_what_it_imports():
    present = modules()
    for name, file in present.items():
        tree = ast.parse(file.read_text())
        targets = {word for word in imports(tree, in_functions=name not in PARTIAL) if word.startswith("rechannel.")}
        assert {word for word in targets if word not in present and word.rpartition(".")[0] not in present} == set(), (
            name
        )
        assert {word.rpartition(".")[0] for word in present} - present.keys() - {""} == set()


@pytest.mark.parametrize(
    ("name", "more"), [("rechannel.monitors.node", set()), ("rechannel.", {"cryptography"} | OF_SPARK)]
)
def test_requirements_are_what_is_imported(name: str, more: set[str]):
    of_base = set(packages(PROJECTS[1]["dependencies"]))
    imported = set()
    for module, file in modules().items():
        if module.startswith(name):
            imported |= {word.partition(".")[0] for word in imports(ast.parse(file.read_text()), in_functions=True)}
    ours = set(packages([*PROJECTS[0]["dependencies"]])) | OF_SPARK
    assert (imported & ours) - more <= of_base
    if name == "rechannel.":
        assert of_base <= imported, "a requirement that nothing imports"


def test_bounds_are_those_of_the_whole_distribution():
    whole = packages(PROJECTS[0]["dependencies"])
    light = packages([*PROJECTS[1]["dependencies"], *PROJECTS[1]["optional-dependencies"]["driver"]])
    assert light.items() <= whole.items()
    for field in ("requires-python", "license", "scripts", "dynamic"):
        assert PROJECTS[0][field] == PROJECTS[1][field]


@pytest.fixture
def light(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distribution, "is_complete", lambda: False)
    monkeypatch.setattr(distribution, "has_signatures", lambda: False)


@pytest.mark.usefixtures("light")
def test_the_help_lists_what_is_there():
    text = CliRunner().invoke(main, ["--help"]).output
    listed = {name for section in OVERVIEW.values() for name in section if re.search(rf"^  {name} ", text, re.M)}
    assert listed == distribution.LIGHT_COMMANDS
    assert "Order:" not in text


@pytest.mark.usefixtures("light")
def test_a_command_that_is_not_there_names_the_distribution_that_has_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "rechannel.daemon.key_change", None)
    assert "pip install . in a checkout" in run("config", "keys", "none", code=1).stderr
    assert distribution.missing_part("cryptography") == ""


@pytest.mark.usefixtures("light")
def test_what_cannot_be_checked_is_named():
    done = run("config", "check")
    assert "not checked (needs the distribution rechannel): policies, controller.audit_file, signing" in done.stderr
    assert "no controller can start" not in done.stderr


def test_controllers_and_operators_need_no_pyspark():
    code = (
        "import importlib, pkgutil, sys; sys.modules |= {'py4j': None, 'pyspark': None}\n"
        "import rechannel.daemon as it\n"
        "[importlib.import_module(one.name) for one in pkgutil.walk_packages(it.__path__, 'rechannel.daemon.')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_two_distributions_in_one_environment_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(distribution, "installed", lambda: ["rechannel", "rechannel-agent"])
    for daemon in ("agent", "controller"):
        assert "both installed" in run(daemon, code=7).stderr
    facts = HostFacts((3, 12, 0), ["click>=8.1"], {"click": "8.1"}, "17", conflict=distribution.conflict())
    (finding,) = [item for item in host.check_host(facts) if item.check == "packages"]
    assert (finding.verdict, "pip uninstall" in finding.cure) == (Severity.FAILED, True)


def test_one_distribution_is_no_conflict(monkeypatch: pytest.MonkeyPatch):
    def find(name: str) -> str:
        if name != "rechannel-agent":
            raise metadata.PackageNotFoundError(name)
        return name

    monkeypatch.setattr(metadata, "distribution", find)
    assert distribution.installed() == ["rechannel-agent"]
    assert distribution.conflict() == ("", "")


def test_without_the_file_of_keys_doctor_does_not_call_them_right():
    findings = host.check_configuration(read_settings(None, {}), [], [], keys_unchecked="agents need none")
    (finding,) = [item for item in findings if item.check == "signing-keys"]
    assert finding.sentence.startswith("not checked")
