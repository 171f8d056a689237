"""Debian packages of this tree, and a machine to install them on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.installation import copy_tree, outside_environment
from testbed.processes import ROOT
from tests.machines.machine import Machine, Machines, why_not


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Both packages: those in the directory RECHANNEL_DEBS, else new ones of this tree."""
    place = tmp_path_factory.mktemp("packages")
    directory = Path(os.environ.get("RECHANNEL_DEBS") or place / "deb")
    if not directory.is_dir():
        if shutil.which("dh") is None:
            pytest.skip("needs debhelper: the packages are NOT built")
        command = [sys.executable, str(copy_tree(place / "tree") / ".ci/deb.py"), "--out", str(directory)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=outside_environment())
        assert done.returncode == 0, done.stderr
    return {name: next(directory.glob(f"{name}_*.deb")) for name in ("rechannel", "rechannel-agent")}


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    if reason := why_not():
        pytest.skip(reason)
    with Machines(ROOT / "out/machines", ("debian",), tmp_path, {}) as machines:
        yield machines.machines["debian"]
