"""Versions of the Debian packages: in dpkg's order those of Python are in theirs."""

from __future__ import annotations

import importlib
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
# In order; on the right what Debian calls them.
VERSIONS = {
    "0.2.0": "0.2.0",
    "0.2.1.dev3+g1a2b3c4": "0.2.1~dev3+g1a2b3c4",
    "0.2.1rc1.dev2": "0.2.1~rc1~dev2",
    "0.2.1rc1": "0.2.1~rc1",
    "0.2.1": "0.2.1",
    "0.2.1.post1": "0.2.1.post1",
    "0.2.2.dev1+g0dev1.d20260101": "0.2.2~dev1+g0dev1.d20260101",
    "0.10.0": "0.10.0",
}


@pytest.fixture
def deb(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / ".ci")
    return importlib.import_module("deb")


def test_versions_are_in_debians_form(deb: ModuleType) -> None:
    assert {version: deb.debian_version(version) for version in VERSIONS} == VERSIONS


@pytest.mark.skipif(shutil.which("dpkg") is None, reason="dpkg is missing: the order of versions is NOT checked")
@pytest.mark.parametrize(("earlier", "later"), list(pairwise(VERSIONS.values())))
def test_dpkg_orders_them_as_python_does(earlier: str, later: str) -> None:
    subprocess.run(["dpkg", "--compare-versions", earlier, "lt", later], check=True)


def test_the_changelog_has_version_and_time(deb: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    deb.write_changelog(tmp_path / "changelog", "0.3.0rc2")
    lines = (tmp_path / "changelog").read_text().splitlines()
    assert lines[0] == "rechannel (0.3.0~rc2) unstable; urgency=medium"
    assert lines[-1].endswith(">  Tue, 14 Nov 2023 22:13:20 -0000")
