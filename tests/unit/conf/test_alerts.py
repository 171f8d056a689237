"""Alert rules: what they name exists, each says what to do, and promtool agrees."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from unit.conf.test_dashboard import ROOT, mistakes

RULES = ROOT / "conf" / "alerts" / "rechannel.rules.yml"
TESTS = ROOT / "conf" / "alerts" / "rechannel.tests.yml"
ALERTS = dict(re.findall(r"- alert: (\w+)\n(.*?)(?=\n      - alert:|\Z)", RULES.read_text(), re.DOTALL))


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_is_whole(name: str) -> None:
    text = ALERTS[name]
    (expression,) = re.findall(r"expr: (.*)", text)
    assert mistakes(expression) == []
    assert re.search(r"\n        for: \d+[mh]\n", text)
    assert re.search(r"severity: (info|warning|critical)\n", text)
    assert all(f"          {word}: " in text for word in ("summary", "action"))
    assert f"runbook: docs/handbook.md#{name.lower()}" in text


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_is_tested(name: str) -> None:
    assert name in TESTS.read_text()


@pytest.mark.parametrize("words", [("check", "rules", RULES), ("test", "rules", TESTS)], ids=["check", "test"])
def test_promtool_agrees(words: tuple[str | Path, ...]) -> None:
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("promtool is not installed (Debian package prometheus): the alert rules are NOT tested")
    done = subprocess.run([tool, *words], capture_output=True, text=True, cwd=TESTS.parent)
    assert done.returncode == 0, done.stdout + done.stderr
