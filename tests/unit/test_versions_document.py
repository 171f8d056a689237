"""The table of versions in docs/compatibility.md is made of a run's results; environments get the right packages."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from rechannel.migration.spark import versions
from tests.versions.document import BEGIN, END, between_marks, held, page_part
from tests.versions.environment import PINS, name_of, still_valid

CELL = {"moves": {"busy": 6, "idle": 3, "missed": 1, "abandoned": 0}, "batches": 12, "exact": True, "error": ""}
FOUND: dict[str, Any] = {
    "spark": "4.0.5",
    "python": "3.11.7",
    "java": "17.0.1",
    "packages": {"numpy": "2.4.6", "pyspark": "4.0.5"},
    "moved": {
        "cells": {"HDFS-backed": {"aggregation": CELL}, "RocksDB": {"aggregation": CELL}},
        "failed_tasks": 0,
        "closed": {"closed": 2, "presumed": 1},
    },
    "changed": {
        "problems": [],
        "snapshot_lags": [0, 4],
        "restarted": "6 of 6 partitions placed before its first batch; all landed",
        "drained": True,
        "failed_tasks": 0,
        "wrong": {},
        "link": {"problem": "", "failures": 0, "exceptions": {}},
    },
}


def test_each_version_has_a_row_and_the_features_follow():
    text = page_part({"4.3": {"error": "no | network"}, "4.0": FOUND})
    rows = [line for line in text.splitlines() if line.startswith("| 4.")]
    assert rows[0].startswith("| 4.0.5 | 1 queries exact, 6 + 3 | 1 queries exact, 6 + 3 | 0 | 2 logged, 1 presumed |")
    assert "| known |" in rows[0]
    assert rows[1].startswith("| 4.3 | **no \\| network** |")
    assert "In all 18 moves landed, 2 steers missed" in text
    assert "numpy 2.4.6" in text
    for feature in versions.FEATURES:
        assert f"| {feature.name} | {versions.format_version(feature.since)} |" in text


def test_differing_packages_are_named_with_their_spark():
    other = copy.deepcopy(FOUND) | {"spark": "3.5.9", "packages": {"numpy": "1.26.4"}}
    assert "numpy 1.26.4 (3.5.9), 2.4.6 (4.0.5)" in page_part({"4.0": FOUND, "3.5": other})


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("moved", "failed_tasks"), 1),
        (("changed", "failed_tasks"), 1),
        (("changed", "wrong"), {"counts": {}}),
        (("changed", "link"), {"problem": "gave up"}),
        (("moved", "cells"), {}),
        (("moved", "cells"), {"RocksDB": {"aggregation": CELL | {"exact": False}}}),
        (("moved", "cells"), {"RocksDB": {"aggregation": CELL | {"moves": {"busy": 3}}}}),
    ],
)
def test_a_run_with_any_failure_does_not_hold(path, value):
    assert held(FOUND)
    result = copy.deepcopy(FOUND)
    result[path[0]][path[1]] = value
    assert not held(result)
    assert not held({"error": "it ended"})


def test_only_the_text_between_the_marks_is_replaced():
    page = f"before\n\n{BEGIN}\n\nold\n\n{END}\n\nafter\n"
    assert between_marks(page, "new") == f"before\n\n{BEGIN}\n\nnew\n\n{END}\n\nafter\n"
    with pytest.raises(ValueError, match="has no"):
        between_marks("nothing", "new")


def test_an_environment_has_the_projects_pins_except_those_of_spark():
    lines = ["# words", "numpy==2.4.6", "py4j==0.10.9.9", "pyspark==4.3.0", "inotify_simple==2.0.1"]
    assert still_valid(lines, ()) == ["numpy==2.4.6", "inotify_simple==2.0.1"]
    assert still_valid(lines, PINS["3.5"]) == ["inotify_simple==2.0.1"]
    assert name_of("inotify-simple>=1") == name_of("inotify_simple==2.0.1")
