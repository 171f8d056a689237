"""Helpers for the tests of checks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rechannel.daemon.doctor.finding import Finding, Severity

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "doctor.md").read_text(encoding="utf-8")
#: check -> its section of the page
SECTIONS = dict(re.findall(r"^### `([\w-]+)`\n((?:(?!#).*\n)+)", PAGE, re.MULTILINE))
OK, WARNING, FAILED = Severity.OK, Severity.WARNING, Severity.FAILED
INFO: dict[str, Any] = {
    "redis_version": "7.2.4",
    "role": "master",
    "maxmemory_policy": "noeviction",
    "maxmemory": 0,
    "used_memory": 2**20,
    "aof_enabled": 1,
    "rdb_last_bgsave_status": "ok",
}


def of(findings: Sequence[Finding], check: str) -> list[Finding]:
    chosen = [item for item in findings if item.check == check]
    assert chosen, check
    for item in findings:
        assert item.check in SECTIONS
        assert bool(item.cure) == (item.verdict is not OK), item
    return chosen


def verdicts(findings: Sequence[Finding], check: str) -> list[Severity]:
    return [item.verdict for item in of(findings, check)]
