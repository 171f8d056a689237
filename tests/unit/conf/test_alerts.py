"""Alert rules: what they name exists, each says what to do, and promtool agrees."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from unit.conf.test_dashboard import ROOT, mistakes

RULES = ROOT / "conf" / "alerts" / "rechannel.rules.yml"
TESTS = ROOT / "conf" / "alerts" / "rechannel.tests.yml"
ALERTS = dict(re.findall(r"- alert: (\w+)\n(.*?)(?=\n      - alert:|\Z)", RULES.read_text(), re.DOTALL))


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_has_all_parts(name: str) -> None:
    text = ALERTS[name]
    (expression,) = re.findall(r"expr: (.*)", text)
    assert mistakes(expression) == []
    assert re.search(r"\n        for: \d+[mh]\n", text)
    assert re.search(r"severity: (info|warning|critical)\n", text)
    assert all(f"          {word}: " in text for word in ("summary", "action"))
    assert f"runbook: docs/handbook.md#{name.lower()}" in text


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_is_tested(name: str) -> None:
    """Some test has it fire, with all of its labels: that it does not fire is told by no alert at all."""
    expected = [
        sample["labels"]
        for group in yaml.safe_load(TESTS.read_text())["tests"]
        for test in group["promql_expr_test"]
        for sample in test["exp_samples"]
        if sample["value"] == 1
    ]
    severity = re.search(r"severity: (\w+)", ALERTS[name])
    assert severity
    target = (f'alertname="{name}"', 'alertstate="firing"', f'severity="{severity[1]}"')
    assert any(all(word in labels for word in target) for labels in expected)


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_groups_by_cluster(name: str) -> None:
    (expression,) = re.findall(r"expr: (.*)", ALERTS[name])
    grouped = re.findall(r"\b(?:sum|max|min|group|count)\b(.{0,12})", expression)
    assert all(rest.startswith(" by (cluster") for rest in grouped)


@pytest.mark.parametrize("phrase", [("check", "rules", RULES), ("test", "rules", TESTS)], ids=["check", "test"])
def test_promtool_accepts_the_rules(phrase: tuple[str | Path, ...]) -> None:
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("promtool is not installed (Debian package prometheus): the alert rules are NOT tested")
    done = subprocess.run([tool, *phrase], capture_output=True, text=True, cwd=TESTS.parent)
    assert done.returncode == 0, done.stdout + done.stderr
