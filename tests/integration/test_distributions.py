"""Both distributions as a user gets them: built as for a release, installed in empty environments, and run."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from integration.common import until

from rechannel.conf.settings import RedisSettings
from rechannel.wire.keys import WINDOWS
from rechannel.wire.measurements import AgentWindow
from rechannel.wire.redis.store import Store
from testbed.installation import copy_tree, install, outside_environment, release_script
from testbed.processes import ROOT, ProcessGroup
from testbed.redis_server import RedisServer

pytestmark = [pytest.mark.redis, pytest.mark.timeout(900)]
SERVER: dict[str, str] = {}
NODE = "127.0.0.2"
MOST_BYTES = 30e6  # of a node's environment without pip
IMPORT_ALL = """
import importlib, importlib.resources, pathlib, pkgutil, sys
import rechannel
assert pathlib.Path(rechannel.__file__).is_relative_to(sys.argv[1]), rechannel.__file__
names = [info.name for info in pkgutil.walk_packages(rechannel.__path__, "rechannel.")]
for name in names:
    importlib.import_module(name)
assert (importlib.resources.files("rechannel.conf") / "rechannel.toml").is_file()
from rechannel.daemon.view.status import ControllerView
from rechannel.daemon.web import rendering
from rechannel.daemon.web.page import routes
from rechannel.daemon.web.view_model import build_document
assert routes(lambda: None)  # reads the static files
assert "production" in rendering.page(build_document(ControllerView(cluster="production"), 1e9), 3.0)
print(len(names))
"""
ATTACH = """
import sys, pyspark, rechannel
assert "numpy" not in sys.modules
link = rechannel.attach(None)
print(pyspark.__file__, rechannel.__file__, link.active, link.problem, sep="\\n")
"""


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wheels and source archives of this tree; the release script itself compares two builds and checks contents."""
    place = tmp_path_factory.mktemp("release")
    tree = copy_tree(place / "tree")
    command = [sys.executable, str(tree / ".ci/release.py"), "--out", str(place / "dist")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, env=outside_environment())
    assert done.returncode == 0, done.stderr
    return place / "dist"


@pytest.fixture(scope="module")
def node(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The environment of a node, which has only the light wheel."""
    return environment_of(tmp_path_factory.mktemp("node"), f"{only(dist, 'rechannel_agent-*.whl')}")


def only(directory: Path, pattern: str) -> Path:
    (path,) = directory.glob(pattern)
    return path


def environment_of(directory: Path, requirement: str) -> Path:
    """Make an empty environment with one requirement of the versions that are tested; returns its programs."""
    return install(directory, requirement, "-c", str(ROOT / "constraints.txt"))


def run(program: Path, *arguments: str, code: int = 0, **variables: str) -> str:
    """Run a program of an environment in its own directory, and return what it prints."""
    command = [str(program), *arguments]
    done = subprocess.run(
        command,
        env=outside_environment(**variables),
        cwd=program.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_whole_distribution_in_an_empty_environment(dist: Path, tmp_path: Path):
    programs = environment_of(tmp_path / "whole", str(only(dist, "rechannel-*.whl")))
    counted = run(programs / "python", "-c", IMPORT_ALL, str(tmp_path / "whole"))
    package = ROOT / "src" / "rechannel"
    modules = [path for part in package.iterdir() if part.is_dir() for path in part.rglob("*.py")]
    modules += [path for path in package.glob("*.py") if path.name != "__init__.py"]
    assert int(counted) == len(modules)
    run(programs / "rechannel", "config", "check")
    assert "undrain" in run(programs / "rechannel", "--help")


def test_a_node_is_light_and_says_what_it_lacks(node: Path):
    files = [path for path in node.parent.joinpath("lib").rglob("*") if path.is_file() and not path.is_symlink()]
    assert sum(path.stat().st_size for path in files) < MOST_BYTES
    heavy = "'numpy', 'pyspark', 'starlette', 'jinja2', 'cryptography'"
    search = f"from importlib.util import find_spec; print([name for name in ({heavy}) if find_spec(name)])"
    assert run(node / "python", "-c", search) == "[]\n"
    listed = run(node / "rechannel", "--help")
    assert "agent " in listed
    assert "undrain" not in listed
    for line in ("status", "rebalance", "controller", "config keys x", "acl add-node x", "simulate --workload x"):
        command = line.split()
        assert "pip install . in a checkout" in run(node / "rechannel", *command, code=1)


def test_the_agent_of_a_node_reports_a_window_and_ends(node: Path, server: RedisServer, tmp_path: Path):
    config = tmp_path / "rechannel.toml"
    config.write_text(f'[redis]\nurl = "{server.url}"\n[agent]\nnode = "{NODE}"\nwindow = 0.5\n')
    variables = outside_environment(RECHANNEL_CONFIG=str(config))
    assert "can be used" in run(node / "rechannel", "config", "check", RECHANNEL_CONFIG=str(config))
    store = Store(RedisSettings(url=server.url), "default")
    with ProcessGroup(tmp_path / "logs") as group:
        agent = group.start("agent", [str(node / "rechannel"), "agent"], env=variables)
        (envelope, *_) = until(lambda: store.last(WINDOWS, NODE, 1), "a window of the agent")
        checks = run(
            node / "rechannel", "doctor", "--json", code=4, RECHANNEL_CONFIG=str(config)
        )  # no link, no controller
        agent.popen.send_signal(signal.SIGTERM)
        assert agent.popen.wait(30) == 0
    store.close()
    assert isinstance(envelope.body, AgentWindow)
    failed = {item["check"] for item in json.loads(checks)["checks"] if item["verdict"] == "failed"}
    assert failed == {"controller", "links"}


def test_a_light_driver_takes_the_pyspark_of_its_cluster(dist: Path, tmp_path: Path):
    programs = environment_of(tmp_path / "driver", f"{only(dist, 'rechannel_agent-*.whl')}[driver]")
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    home = Path(spec.origin).parent
    libraries = home / "python" / "lib"
    run(programs / "python", "-c", "import pyspark", code=1)
    path = os.pathsep.join([str(libraries / "pyspark.zip"), str(only(libraries, "py4j-*-src.zip"))])  # as spark-submit
    spark, package, active, problem = run(programs / "python", "-c", ATTACH, PYTHONPATH=path).splitlines()[:4]
    assert Path(spark).is_relative_to(libraries)
    assert Path(package).is_relative_to(tmp_path / "driver")
    assert active == "False"
    assert "No module named" not in problem
    script = tmp_path / "job.py"
    script.write_text("")
    shown = run(programs / "rechannel", "submit", "--dry-run", str(script), SPARK_HOME=str(home))
    assert str(home / "bin" / "spark-submit") in shown


def test_two_distributions_in_one_environment_are_refused(node: Path, dist: Path, tmp_path: Path):
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "install", "--no-deps"]
    subprocess.run([*pip, "--target", str(tmp_path), str(only(dist, "rechannel-*.whl"))], check=True, timeout=120)
    path = os.pathsep.join([str(tmp_path), *map(str, node.parent.glob("lib/python*/site-packages"))])
    assert "both installed" in run(node / "python", "-m", "rechannel", "agent", code=7, PYTHONPATH=path)


def test_a_release_is_refused_for_files_that_do_not_belong_and_builds_that_differ(dist: Path, tmp_path: Path):
    release = release_script()
    expected = release.package_files(ROOT)
    release.check_contents(dist, "rechannel", expected)
    for wrong in (expected | {"rechannel/lost.py"}, expected - {"rechannel/__init__.py"}):
        with pytest.raises(release.ReleaseError):
            release.check_contents(dist, "rechannel", wrong)
    other = tmp_path / "other"
    shutil.copytree(dist, other)
    release.check_same(dist, other)
    only(other, "rechannel-*.tar.gz").write_bytes(b"")
    with pytest.raises(release.ReleaseError, match="two builds differ"):
        release.check_same(dist, other)
