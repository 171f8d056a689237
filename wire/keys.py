"""The Redis key space: every key with its one writer, its readers, its bound and its time to live.

`TABLE` is the single source: `docs/redis-keys.md` is generated from it, the users of `rechannel acl` are made from it
(`patterns`, `commands`), and tests hold the three together.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

_NAME = re.compile(r"[A-Za-z0-9._:@-]{1,128}")
_PLACEHOLDER = re.compile(r"\{(\w+)\}")

MAX_MESSAGE_BYTES = 16 * 2**20
_KIB, _MIB = 2**10, 2**20


class KeyNameError(ValueError):
    """A cluster, node or application name that cannot be part of a key."""


class Role(StrEnum):
    """Who comes to Redis. An operator may also do all that a viewer may."""

    AGENT = "agent"
    LINK = "link"
    CONTROLLER = "controller"
    VIEWER = "viewer"
    OPERATOR = "operator"


@dataclass(frozen=True)
class KeyRule:
    """What holds for one kind of key.

    ``bound`` is entries for streams, members for sets; ``ttl`` in seconds. ``size`` is how many bytes of messages a key
    holds at most: a longer string is not written, a stream is trimmed to it. A stream's newest entry stays in any case.
    """

    pattern: str
    kind: str
    writer: Role
    readers: tuple[Role, ...]
    bound: int
    ttl: int
    holds: str
    size: int = MAX_MESSAGE_BYTES

    def written_by(self, role: Role) -> bool:
        """Whether a role may write it."""
        return self.writer in _as(role)

    def read_by(self, role: Role) -> bool:
        """Whether a role may read it."""
        return not _as(role).isdisjoint(self.readers)


def _as(role: Role) -> frozenset[Role]:
    return frozenset({role, Role.VIEWER} if role is Role.OPERATOR else {role})


WINDOWS = KeyRule(
    "node:{node}:windows",
    "stream",
    Role.AGENT,
    (Role.CONTROLLER, Role.VIEWER),
    64,
    3600,
    "what the node measured",
    size=2 * _MIB,
)
EVIDENCE = KeyRule(
    "node:{node}:evidence",
    "stream",
    Role.AGENT,
    (Role.LINK,),
    4096,
    3600,
    "state stores that executors closed",
    size=512 * _KIB,
)
APPLICATIONS = KeyRule(
    "applications",
    "sorted set",
    Role.LINK,
    (Role.CONTROLLER, Role.VIEWER),
    10_000,
    86_400,
    "application ids by time last seen",
    size=4 * _MIB,
)
REPORT = KeyRule("app:{app}:report", "string", Role.LINK, (Role.CONTROLLER, Role.VIEWER), 1, 60, "what the link sees")
BATCHES = KeyRule(
    "app:{app}:batches",
    "stream",
    Role.LINK,
    (Role.CONTROLLER, Role.VIEWER),
    512,
    3600,
    "finished batches with their tasks",
    size=96 * _MIB,
)
JOURNAL = KeyRule(
    "app:{app}:journal",
    "stream",
    Role.LINK,
    (Role.CONTROLLER, Role.VIEWER),
    20_000,
    14 * 86_400,
    "moves, step by step",
    size=8 * _MIB,
)
DESIRED = KeyRule(
    "app:{app}:desired", "string", Role.CONTROLLER, (Role.LINK, Role.CONTROLLER), 1, 3600, "signed desired placement"
)
DECISIONS = KeyRule(
    "decisions",
    "stream",
    Role.CONTROLLER,
    (Role.CONTROLLER, Role.VIEWER),
    1000,
    14 * 86_400,
    "every decision with its numbers",
    size=32 * _MIB,
)
APPLIED = KeyRule(
    "applied",
    "stream",
    Role.CONTROLLER,
    (Role.CONTROLLER,),
    1000,
    14 * 86_400,
    "the decisions that moved something: the budget of moves, and what can be undone",
    size=32 * _MIB,
)
OUTCOMES = KeyRule(
    "outcomes",
    "stream",
    Role.CONTROLLER,
    (Role.CONTROLLER, Role.VIEWER),
    500,
    14 * 86_400,
    "what became of each migration",
    size=8 * _MIB,
)
LEASE = KeyRule(
    "controller:lease", "string", Role.CONTROLLER, (Role.CONTROLLER,), 1, 600, "who leads, and its epoch", size=_KIB
)
EPOCH = KeyRule(
    "controller:epoch", "string", Role.CONTROLLER, (Role.CONTROLLER,), 1, 0, "highest epoch given out", size=_KIB
)
STATE = KeyRule(
    "controller:state",
    "string",
    Role.CONTROLLER,
    (Role.CONTROLLER, Role.VIEWER),
    1,
    60,
    "what the controller is doing",
)
ORDERS = KeyRule(
    "orders",
    "string",
    Role.CONTROLLER,
    (Role.LINK, Role.CONTROLLER, Role.VIEWER),
    1,
    0,
    "signed: what is paused and what is drained",
)
PENDING = KeyRule(
    "pending",
    "string",
    Role.CONTROLLER,
    (Role.CONTROLLER, Role.VIEWER),
    1,
    0,
    "signed: saved plans that wait for their time",
)
PLACEMENT = KeyRule(
    "query:{query}:placement", "string", Role.LINK, (Role.LINK,), 1, 14 * 86_400, "where a query's partitions ran last"
)
PAUSED = KeyRule(
    "controller:paused", "string", Role.CONTROLLER, (Role.CONTROLLER,), 1, 0, "present while paused", size=_KIB
)
QUESTIONS = KeyRule(
    "questions",
    "stream",
    Role.VIEWER,
    (Role.CONTROLLER,),
    1000,
    86_400,
    "what viewers ask: plans, never an order",
)
REQUESTS = KeyRule("requests", "stream", Role.OPERATOR, (Role.CONTROLLER,), 1000, 86_400, "what operators order")
CLAIM = KeyRule(
    "claim:{request}",
    "string",
    Role.CONTROLLER,
    (Role.CONTROLLER,),
    1,
    87_000,
    "which leader took a request up, before it carried it out",
    size=_KIB,
)
REPLY = KeyRule(
    "reply:{request}",
    "string",
    Role.CONTROLLER,
    (Role.CONTROLLER, Role.VIEWER),
    1,
    600,
    "the answer, under an id that only who asked knows",
)

TABLE = (
    WINDOWS,
    EVIDENCE,
    APPLICATIONS,
    REPORT,
    BATCHES,
    JOURNAL,
    DESIRED,
    DECISIONS,
    APPLIED,
    OUTCOMES,
    LEASE,
    EPOCH,
    STATE,
    ORDERS,
    PENDING,
    PLACEMENT,
    PAUSED,
    QUESTIONS,
    REQUESTS,
    CLAIM,
    REPLY,
)


class Keys:
    """Full key names of one cluster."""

    def __init__(self, cluster: str) -> None:
        self._prefix = f"rechannel:{{{_checked(cluster, 'cluster')}}}:"

    def __call__(self, rule: KeyRule, name: str = "") -> str:
        """Return the full key of a rule; ``name`` fills the one placeholder of its pattern."""
        placeholder = _PLACEHOLDER.search(rule.pattern)
        if placeholder is None:
            return self._prefix + rule.pattern
        return self._prefix + rule.pattern.replace(placeholder[0], _checked(name, placeholder[1]))

    def acl_pattern(self, rule: KeyRule) -> str:
        """Return the pattern, as Redis' ACL has it, of all keys of a rule."""
        return self._prefix + _PLACEHOLDER.sub("*", rule.pattern)


def is_valid_name(name: str) -> bool:
    """Whether a name can be part of a key."""
    return _NAME.fullmatch(name) is not None


def _checked(name: str, what: str) -> str:
    if not is_valid_name(name):
        raise KeyNameError(f"{what} {name[:140]!r}: use letters, digits and . _ : @ - only, 1 to 128 of them")
    return name


_WRITING = {
    "stream": ("xadd", "expire", "del"),
    "string": ("set",),
    "sorted set": ("zadd", "zremrangebyscore", "zremrangebyrank", "del"),
}
# Nothing is read whose size is not known: it may be anybody's.
_READING = {
    "stream": ("xrange", "xrevrange", "memory|usage"),
    "string": ("getrange",),
    "sorted set": ("zrangebyscore", "memory|usage"),
}
# What a client says when it connects, and asks of the server before it trusts it.
_CONNECTING = ("info", "ping", "hello", "auth", "select", "client|setname")
# What newer servers know beside. Where it is refused nothing is missed, but Redis notes every refusal.
EXTRA = ("+client|setinfo",)
# The lease is taken by a script, and a pause ends by removing its key.
_MORE = {Role.CONTROLLER: ("evalsha", "script|load", "get", "pttl", "pexpire", "del", "exists")}


def patterns(role: Role, cluster: str, name: str = "") -> list[str]:
    """Return the keys a role may write and read, as rules of Redis' ACL.

    An agent's are those of the node ``name`` alone. Other roles have all keys of their kind, whatever the user's name:
    Spark gives a driver its application's id only when it starts.
    """
    keys = Keys(cluster)
    _checked(name or cluster, "name")
    found = []
    for rule in TABLE:
        rights = ("R" if rule.read_by(role) else "") + ("W" if rule.written_by(role) else "")
        if rights:
            key = keys(rule, name) if role is Role.AGENT else keys.acl_pattern(rule)
            found.append(f"~{key}" if rights == "RW" else f"%{rights}~{key}")
    return found


def commands(role: Role) -> list[str]:
    """Return the commands a role may use, as rules of Redis' ACL: all others are refused."""
    wanted = dict.fromkeys(_CONNECTING)
    for rule in TABLE:
        wanted |= dict.fromkeys(_READING[rule.kind] if rule.read_by(role) else ())
        wanted |= dict.fromkeys(_WRITING[rule.kind] if rule.written_by(role) else ())
    return ["-@all", *(f"+{command}" for command in (*wanted, *_MORE.get(role, ())))]


def markdown() -> str:
    """Return the table of all keys in Markdown, as it stands in ``docs/redis-keys.md``."""
    lines = ["| key | kind | writer | readers | bound | bytes | ttl | holds |", f"|{' --- |' * 8}"]
    for rule in TABLE:
        ttl = f"{rule.ttl} s" if rule.ttl else "none"
        readers = ", ".join(rule.readers)
        bounds = f"{rule.bound:,}", _size(rule.size)
        cells = (f"`{rule.pattern}`", rule.kind, rule.writer, readers, *bounds, ttl, rule.holds)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _size(count: int) -> str:
    return f"{count // _MIB} MiB" if count >= _MIB else f"{count // _KIB} KiB"
