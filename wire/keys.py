"""The Redis key space: every key with its one writer, its readers, its bound and its time to live.

`TABLE` is the single source; `docs/redis-keys.md` is generated from it and a test holds the two together.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_NAME = re.compile(r"[A-Za-z0-9._:@-]{1,128}")


class KeyNameError(ValueError):
    """A cluster, node or application name that cannot be part of a key."""


@dataclass(frozen=True)
class KeyRule:
    """What holds for one kind of key. ``bound`` is entries for streams, members for sets; ``ttl`` in seconds."""

    pattern: str
    kind: str
    writer: str
    readers: str
    bound: int
    ttl: int
    holds: str


WINDOWS = KeyRule(
    "node:{node}:windows", "stream", "agent of the node", "controller, CLI", 64, 3600, "what the node measured"
)
EVIDENCE = KeyRule(
    "node:{node}:evidence", "stream", "agent of the node", "links", 4096, 3600, "state stores that executors closed"
)
APPLICATIONS = KeyRule(
    "applications", "sorted set", "links", "controller, CLI", 10_000, 86_400, "application ids by time last seen"
)
REPORT = KeyRule(
    "app:{app}:report", "string", "link of the application", "controller, CLI", 1, 60, "what the link sees"
)
BATCHES = KeyRule(
    "app:{app}:batches",
    "stream",
    "link of the application",
    "controller",
    512,
    3600,
    "finished batches with their tasks",
)
JOURNAL = KeyRule(
    "app:{app}:journal",
    "stream",
    "link of the application",
    "controller, CLI",
    20_000,
    14 * 86_400,
    "moves, step by step",
)
DESIRED = KeyRule(
    "app:{app}:desired",
    "string",
    "leading controller",
    "link of the application, controllers",
    1,
    3600,
    "signed desired placement",
)
DECISIONS = KeyRule(
    "decisions", "stream", "leading controller", "CLI", 1000, 14 * 86_400, "every decision with its numbers"
)
OUTCOMES = KeyRule(
    "outcomes", "stream", "leading controller", "controllers, CLI", 500, 14 * 86_400, "what became of each migration"
)
LEASE = KeyRule("controller:lease", "string", "controllers", "controllers", 1, 600, "who leads, and its epoch")
EPOCH = KeyRule("controller:epoch", "string", "controllers", "controllers", 1, 0, "highest epoch given out")
STATE = KeyRule("controller:state", "string", "leading controller", "CLI", 1, 60, "what the controller is doing")
ORDERS = KeyRule(
    "orders", "string", "leading controller", "links, controllers", 1, 0, "signed: what is paused and what is drained"
)
PLACEMENT = KeyRule(
    "query:{query}:placement",
    "string",
    "link of the application that runs the query",
    "links",
    1,
    14 * 86_400,
    "where a query's partitions ran last",
)
PAUSED = KeyRule("controller:paused", "string", "leading controller", "controllers", 1, 0, "present while paused")
REQUESTS = KeyRule("requests", "stream", "operators", "leading controller", 1000, 86_400, "what operators ask for")
REPLY = KeyRule("reply:{request}", "string", "leading controller", "the operator who asked", 1, 600, "the answer")

TABLE = (
    WINDOWS,
    EVIDENCE,
    APPLICATIONS,
    REPORT,
    BATCHES,
    JOURNAL,
    DESIRED,
    DECISIONS,
    OUTCOMES,
    LEASE,
    EPOCH,
    STATE,
    ORDERS,
    PLACEMENT,
    PAUSED,
    REQUESTS,
    REPLY,
)


class Keys:
    """Full key names of one cluster."""

    def __init__(self, cluster: str) -> None:
        self._prefix = f"rechannel:{{{_checked(cluster, 'cluster')}}}:"

    def __call__(self, rule: KeyRule, name: str = "") -> str:
        """Return the full key of a rule; ``name`` fills the one placeholder of its pattern."""
        placeholder = re.search(r"\{(\w+)\}", rule.pattern)
        if placeholder is None:
            return self._prefix + rule.pattern
        return self._prefix + rule.pattern.replace(placeholder[0], _checked(name, placeholder[1]))


def _checked(name: str, what: str) -> str:
    if not _NAME.fullmatch(name):
        raise KeyNameError(f"{what} {name[:140]!r}: use letters, digits and . _ : @ - only, 1 to 128 of them")
    return name


def markdown() -> str:
    """Return the table of all keys in Markdown, as it stands in ``docs/redis-keys.md``."""
    lines = ["| key | kind | writer | readers | bound | ttl | holds |", "| --- | --- | --- | --- | --- | --- | --- |"]
    for rule in TABLE:
        ttl = f"{rule.ttl} s" if rule.ttl else "none"
        cells = (f"`{rule.pattern}`", rule.kind, rule.writer, rule.readers, f"{rule.bound:,}", ttl, rule.holds)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
