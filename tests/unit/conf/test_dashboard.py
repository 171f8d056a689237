"""Dashboard and alert rules: every query names metrics and labels that exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rechannel.daemon.view import metrics as controller_metrics
from rechannel.monitors.node import metrics

ROOT = Path(__file__).parents[3]
LABELS = {item.name: set(item.labels) for item in (*controller_metrics.TABLE, *metrics.TABLE)}
ADDED = {"instance", "cluster"}  # by Prometheus, and to every series
_SELECTOR = re.compile(r"\b(rechannel_\w+)(?:\{([^}]*)\})?")
_BY = re.compile(r"\bby \(([^)]*)\)")


def mistakes(expression: str) -> list[str]:
    """What an expression names that is not there; grouping labels have to be those of a metric in it."""
    result, existing = [], set(ADDED)
    for name, matchers in _SELECTOR.findall(expression):
        if name not in LABELS:
            result.append(f"no metric {name}")
            continue
        existing |= LABELS[name]
        expected = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))
        result += [f"{name} has no label {label}" for label in expected - LABELS[name] - ADDED]
        if f"increase({name}" in expression or f"rate({name}" in expression:
            result += [] if name.endswith("_total") else [f"{name} is no counter"]
    for labels in _BY.findall(expression):
        result += [f"no label {label}" for label in set(labels.split(", ")) - existing]
    return result if _SELECTOR.search(expression) else ["names no metric"]


def panels() -> list[dict[str, Any]]:
    return list(json.loads((ROOT / "conf" / "grafana" / "rechannel.json").read_text())["panels"])


def expressions() -> Iterator[tuple[str, str, str]]:
    for panel in panels():
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"], target["legendFormat"]


@pytest.mark.parametrize(("title", "expression", "legend"), list(expressions()))
def test_a_panel_queries_existing_metrics(title: str, expression: str, legend: str) -> None:
    assert mistakes(expression) == []
    grouped = {label for labels in _BY.findall(expression) for label in labels.split(", ")}
    assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= grouped
    assert all('cluster="$cluster"' in matchers for _, matchers in _SELECTOR.findall(expression))


def test_panels_do_not_overlap_and_ids_are_given_once() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        assert max(x for x, _ in cells) < 24
        taken |= cells
    assert len({panel["id"] for panel in panels()}) == len(panels())


@pytest.mark.parametrize(
    "expression",
    [
        "up",
        "rechannel_nothing",
        'rechannel_paused{x="1"}',
        "sum by (x) (rechannel_paused)",
        "rate(rechannel_paused[1m])",
    ],
)
def test_missing_metrics_and_labels_are_detected(expression: str) -> None:
    assert mistakes(expression)
