"""The repository's layout: every part at the root is the part that is imported."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = ("conf", "daemon", "migration", "monitors", "policies", "wire")


@pytest.mark.parametrize("part", PARTS)
def test_each_part_is_a_relative_link_to_the_root(part):
    link = ROOT / "src" / "rechannel" / part
    assert link.is_symlink()
    assert not link.readlink().is_absolute()
    assert link.resolve() == ROOT / part


def test_no_part_is_missing_and_modules_have_at_most_500_lines():
    assert {path.name for path in (ROOT / "src" / "rechannel").iterdir() if path.is_symlink()} == set(PARTS)
    for part in PARTS:
        for module in (ROOT / part).rglob("*.py"):
            assert len(module.read_text().splitlines()) <= 500, module
