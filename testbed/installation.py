"""This project installed as users do it: from a copy of the tree, into an empty environment."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

from testbed.processes import ROOT

_HIDDEN = ("RECHANNEL", "PYTHONPATH", "SPARK_", "PYSPARK_", "VIRTUAL_ENV")
_PATIENCE = 900.0  # seconds for one requirement, with PySpark


def release_script() -> ModuleType:
    """Return the module that builds releases, which is in no package."""
    spec = importlib.util.spec_from_file_location("release", ROOT / ".ci" / "release.py")
    if spec is None or spec.loader is None:
        raise ImportError(".ci/release.py cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def copy_tree(target: Path) -> Path:
    """Copy the tree without what a release leaves out, and return the target.

    Without .git: the tree is built, and not the last commit.
    """
    shutil.copytree(ROOT, target, symlinks=True, ignore=shutil.ignore_patterns(*release_script().LEFT_OUT))
    return target


def outside_environment(**variables: str) -> dict[str, str]:
    """Return the variables of a process that sees nothing of this checkout."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_HIDDEN)} | variables


def install(place: Path, requirement: str, *options: str, tree: Path = ROOT) -> Path:
    """Make an empty environment and install one requirement in it; returns its directory of programs.

    ``options`` are pip's; relative requirements start at ``tree``. RuntimeError has what pip printed.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True, timeout=120)  # noqa: S603  ours
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(place / "bin" / "python")]
    command = [*pip, "install", "-q", *options, requirement]
    done = subprocess.run(  # noqa: S603  pip
        command, cwd=tree, env=outside_environment(), capture_output=True, text=True, check=False, timeout=_PATIENCE
    )
    if done.returncode:
        raise RuntimeError(f"{requirement} cannot be installed: {done.stderr}")
    return place / "bin"
