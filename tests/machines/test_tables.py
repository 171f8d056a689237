"""Tables of the booted machines against the page and the units; no machine is needed."""

from __future__ import annotations

import json

import pytest

from testbed.processes import ROOT
from tests.machines import hardening, page
from tests.machines.installing import AGENT, CONTROLLER
from tests.machines.site import page_blocks
from tests.machines.steps import Outcome


@pytest.mark.parametrize("unit", [AGENT, CONTROLLER])
def test_every_line_of_a_unit_is_supervision_or_is_tried_or_says_why_not(unit: str) -> None:
    lines = hardening.hardening_lines(unit)
    assert len(lines) > 20
    assert not [name for name in lines if (name in hardening.ATTEMPTS) == (name in hardening.UNTRIED)]


def test_the_page_has_the_blocks_that_the_suite_runs() -> None:
    install, upgrade = page_blocks("Install"), page_blocks("Upgrade")
    assert [block.splitlines()[0].split("#")[0].strip() for block in install[:2]] == [
        "make install ROLE=agent",
        "make install",
    ]
    assert [block.splitlines()[-1] for block in install[2:]] == [
        f"systemctl enable --now {CONTROLLER}",
        f"systemctl enable --now {AGENT}",
    ]
    assert [block.splitlines()[-1].split()[:3] for block in upgrade] == [
        ["systemctl", "restart", AGENT],
        ["systemctl", "restart", CONTROLLER],
    ]


def test_a_failed_step_stands_on_the_page() -> None:
    outcomes = [
        Outcome("Install", "a", "done", 3.0),
        Outcome("Faults", "b", "done", 9.0, recovered=4.0, lost=0, doubled=0),
        Outcome("Faults", "c", seconds=1.0, failure="not so\nmore"),
    ]
    text = page.tables(outcomes)
    assert "| a | done | 3 |" in text
    assert "| b | done | 4 | 0 | 0 |" in text
    assert "| c | **failed**: not so |  |  |  |" in text


def test_the_page_is_that_of_the_figures() -> None:
    document = json.loads((ROOT / "docs/figures/machines.json").read_text())
    assert (ROOT / "docs/machines.md").read_text() == page.page(document)
