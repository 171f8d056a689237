"""Results of checks, and the catalog of all checks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from rechannel.wire.exit_codes import ExitCode

#: check -> its subject; docs/doctor.md has a section for each
CATALOG = {
    "python": "the Python that runs this",
    "packages": "the packages it needs, in versions that fit",
    "java": "a Java that the Spark installed here can run on",
    "configuration": "values, policies' parameters, and the files that are named",
    "signing-keys": "the key pair: there, matching, closed to others",
    "times": "time limits against each other",
    "redis": "Redis can be reached, lets us in, and is quick enough",
    "redis-version": "Redis 7.0 or newer, or Valkey",
    "redis-role": "it takes writes",
    "redis-eviction": "it evicts nothing",
    "redis-memory": "it has room",
    "redis-persistence": "it keeps drains, pauses and history across a restart",
    "redis-rights": "what the Redis user of this configuration may do",
    "clock": "this machine's clock against Redis'",
    "clock-parts": "the clocks of agents, links and controllers against Redis'",
    "controller": "a controller leads",
    "agents": "an agent on every node with executors, its windows fresh",
    "links": "every application's link: heard, of our release, without problems",
    "spark-settings": "settings of an application that change what Rechannel can do",
    "spark-shuffle": "rows that Spark itself may lose when executors are ended by others",
    "spark-locality": "spark.locality.wait against the length of the stages",
    "spark-cores": "spark.task.cpus: how many tasks an executor runs at a time",
    "spark-scheduler": "spark.scheduler.mode",
}


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
    """Return a finding of a problem that does not keep Rechannel from working."""
    return Finding(check, Severity.WARNING, sentence, cure, subject)


def failed(check: str, sentence: str, cure: str, subject: str = "") -> Finding:
    """Return a finding of a problem that keeps Rechannel from working."""
    return Finding(check, Severity.FAILED, sentence, cure, subject)


def exit_code_of(findings: Iterable[Finding]) -> ExitCode:
    """Return the exit code: only failed checks count, a cause before its consequences."""
    failures = {item.check for item in findings if item.verdict is Severity.FAILED}
    if failures & {"configuration", "signing-keys", "times"}:
        return ExitCode.CONFIGURATION
    if any(check.startswith("redis") for check in failures):
        return ExitCode.REDIS
    return ExitCode.NOT_READY if failures else ExitCode.DONE
