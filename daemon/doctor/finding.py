"""Results of checks; docs/doctor.md has a section for each check."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from rechannel.wire.exit_codes import ExitCode


class Severity(StrEnum):
    """Result of a check."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True)
class Finding:
    """Result of a check of one ``subject`` ("" if there is only one), with the ``cure``."""

    check: str
    verdict: Severity
    sentence: str
    cure: str = ""
    subject: str = ""


def ok(check: str, sentence: str, subject: str = "") -> Finding:
    """Return a finding without a problem."""
    return Finding(check, Severity.OK, sentence, "", subject)


def warning(check: str, sentence: str, cure: str, subject: str = "") -> Finding:
    """Return a finding of a problem with which Rechannel still works."""
    return Finding(check, Severity.WARNING, sentence, cure, subject)


def failed(check: str, sentence: str, cure: str, subject: str = "") -> Finding:
    """Return a finding of a problem with which Rechannel does not work."""
    return Finding(check, Severity.FAILED, sentence, cure, subject)


def exit_code_of(findings: Iterable[Finding]) -> ExitCode:
    """Return the exit code: only failed checks count, a cause before its consequences."""
    failures = {item.check for item in findings if item.verdict is Severity.FAILED}
    if failures & {"configuration", "signing-keys", "times"}:
        return ExitCode.CONFIGURATION
    if any(check.startswith("redis") for check in failures):
        return ExitCode.REDIS
    return ExitCode.NOT_READY if failures else ExitCode.DONE
