"""Table of Spark's versions: link, package range and documentation agree with it."""

from __future__ import annotations

import re
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest

from rechannel.migration.link.snapshot_lag import SnapshotLag
from rechannel.migration.moves import RunUnit
from rechannel.migration.spark import compatibility, versions

ROOT = Path(__file__).parents[4]
OLDEST, NEWEST = versions.TESTED[0], versions.TESTED[-1]


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("4.3.0", (4, 3)),
        ("3.5.9", (3, 5)),
        ("4.1.0-SNAPSHOT", (4, 1)),
        ("4.10.2", (4, 10)),
        ("5", (5, 0)),
        ("", (0, 0)),
    ],
)
def test_a_version_is_read_as_its_first_two_numbers(text, version):
    assert versions.minor_version(text) == version


def test_the_versions_are_in_order_and_every_feature_came_with_one_of_them():
    assert all(before < after for before, after in pairwise(versions.TESTED))
    assert {feature.since for feature in versions.FEATURES} <= set(versions.TESTED)
    assert OLDEST not in {feature.since for feature in versions.FEATURES}, "what all have needs no row"


def test_the_newest_version_has_every_feature_and_no_problem():
    assert all(versions.has_feature(f"{versions.format_version(NEWEST)}.0", feature) for feature in versions.FEATURES)
    assert versions.problems(f"{versions.format_version(NEWEST)}.7") == []


@pytest.mark.parametrize("version", versions.TESTED, ids=versions.format_version)
def test_a_missing_feature_is_a_problem_with_the_version_that_has_it(version):
    own = f"{versions.format_version(version)}.1"
    missing = [feature for feature in versions.FEATURES if feature.loss and version < feature.since]
    sentences = versions.problems(own)
    assert len(sentences) == len(missing)
    for sentence, feature in zip(sentences, missing, strict=True):
        assert sentence.startswith(f"Spark {own} ")
        assert versions.format_version(feature.since) in sentence
    assert compatibility.sentences(own, lambda key, default: default)[: len(sentences)] == sentences


def test_an_untested_version_is_steered_and_reported():
    newer = f"{NEWEST[0]}.{NEWEST[1] + 1}.0"
    assert versions.refusal(newer) == ""
    (sentences,) = versions.problems(newer)
    assert newer in sentences
    assert versions.format_version(NEWEST) in sentences


def test_an_older_version_is_refused_with_the_cure():
    older = f"{OLDEST[0]}.{OLDEST[1] - 1}.4"
    assert older in versions.refusal(older)
    assert versions.format_version(OLDEST) in versions.refusal(older)
    assert versions.refusal(f"{versions.format_version(OLDEST)}.0") == ""


def test_without_reports_of_snapshots_none_are_read():
    snapshots = SnapshotLag(pytest.fail, {"run": 3}, supported=False)
    snapshots.advance({}, 1.0)
    assert snapshots.unit_lags([RunUnit("run", 0, 0)], {"query": "run"}) == {}


def test_the_package_requires_a_tested_spark():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (needed,) = (text for text in project["dependencies"] if text.startswith("pyspark"))
    assert needed == f"pyspark>={versions.format_version(OLDEST)},<{NEWEST[0] + 1}"


def test_the_pages_name_the_oldest_that_can_be_steered():
    for page in ("README.md", "docs/index.md", "docs/compatibility.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        assert re.search(rf"Spark {re.escape(versions.format_version(OLDEST))}\b", text), page
