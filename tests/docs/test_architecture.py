"""docs/architecture.md against the tree: named files exist, and every room has its row; named tests exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .code_names import PARTS
from .pages import DOCS, ROOT

MAP = DOCS / "architecture.md"
NAMING = (MAP, ROOT / "CONTRIBUTING.md", *sorted((DOCS / "decisions").glob("*.md")))
_FILE = re.compile(r"(?<![\w./-])(?:[\w-]+/)+[\w-]+\.(?:py|md|toml|yml|json)\b")


@pytest.mark.parametrize("page", NAMING, ids=lambda page: page.name)
def test_every_file_that_a_page_names_exists(page: Path):
    text = re.sub(r"\]\([^)]*\)", "]", page.read_text(encoding="utf-8"))  # links have a test of their own
    assert [path for path in _FILE.findall(text) if not (ROOT / path).is_file()] == []


def test_a_name_in_parentheses_is_defined_in_the_file_before_it():
    named = re.findall(r"`((?:[\w-]+/)+[\w-]+\.py)` \(`(\w+)`", MAP.read_text(encoding="utf-8"))
    assert len(named) > 2
    undefined = [
        f"{path}: {name}"
        for path, name in named
        if not re.search(rf"\b(def|class) {name}\b", (ROOT / path).read_text(encoding="utf-8"))
    ]
    assert undefined == []


def test_every_room_has_a_row_and_every_row_is_a_room():
    modules = [path for part in PARTS for path in (ROOT / part).rglob("*.py") if path.name != "__init__.py"]
    rooms = {f"{path.parent.relative_to(ROOT)}/" for path in modules}
    rows = re.findall(r"^\| `([\w/]+/)` \|", MAP.read_text(encoding="utf-8"), re.M)
    assert len(rows) == len(set(rows))
    assert rooms - set(rows) == set()
    assert [row for row in rows if not (ROOT / row).is_dir()] == []


@pytest.mark.parametrize(("page", "least"), [("threat-model.md", 10), ("roadmap.md", 40)])
def test_every_test_that_a_page_names_exists(page: str, least: int):
    text = (DOCS / page).read_text(encoding="utf-8")
    tests = list((ROOT / "tests").rglob("*.py"))
    functions = {name for path in tests for name in re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8"))}
    named = re.findall(r"`(test_\w+)`", text)
    assert len(named) > least
    assert set(named) - functions == set()
    files = re.findall(r"`([\w/]*test_\w+\.py)`", text)
    assert [path for path in files if not any(str(test).endswith(f"/{path}") for test in tests)] == []
