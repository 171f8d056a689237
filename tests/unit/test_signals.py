"""Tests of signals pass however pytest is started: with nohup, or in the background of a shell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent / "migration" / "link" / "test_submit_main.py"


@pytest.mark.root
def test_processes_of_tests_do_not_inherit_ignored_signals() -> None:
    program = f"trap '' INT QUIT HUP; exec {sys.executable} -m pytest -q -p no:cacheprovider -k a_signal_ends {TESTS}"
    done = subprocess.run(
        ["sh", "-c", program], cwd=TESTS.parents[3], capture_output=True, text=True, timeout=120, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout
