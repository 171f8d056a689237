"""Table of all Redis keys: writer, readers, bounds and time to live of each.

The rules of `rechannel acl` (`patterns`, `commands`) and the table in `docs/redis-keys.md` are made from `TABLE`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

_NAME = re.compile(r"[A-Za-z0-9._:@-]{1,128}")
_PLACEHOLDER = re.compile(r"\{(\w+)\}")

MAX_MESSAGE_BYTES = 16 * 2**20  # bytes of a message; beyond: it is rejected, and counted
_KIB, _MIB = 2**10, 2**20


class KeyNameError(ValueError):
    """A name of a cluster, node or application that must not be part of a key."""


class Role(StrEnum):
    """Roles of Redis users. An operator may also do everything that a viewer may."""

    AGENT = "agent"
    LINK = "link"
    CONTROLLER = "controller"
    VIEWER = "viewer"
    OPERATOR = "operator"


@dataclass(frozen=True)
class KeyRule:
    """Properties of one kind of key."""

    pattern: str  # its name after the prefix of the cluster
    kind: str  # its Redis type
    writer: Role
    readers: tuple[Role, ...]
    bound: int  # most entries of a stream, or members of a set
    ttl: int  # seconds, 0 for none
    holds: str  # its content, for the documentation
    size: int = MAX_MESSAGE_BYTES  # most bytes: a longer string is not written, a stream is trimmed to its newest entry

    def written_by(self, role: Role) -> bool:
        """Whether a role may write the key."""
        return self.writer in _roles(role)

    def read_by(self, role: Role) -> bool:
        """Whether a role may read the key."""
        return not _roles(role).isdisjoint(self.readers)


def _roles(role: Role) -> frozenset[Role]:
    return frozenset({role, Role.VIEWER} if role is Role.OPERATOR else {role})


def _string(pattern: str, writer: Role, readers: tuple[Role, ...], ttl: int, holds: str, **size: int) -> KeyRule:
    return KeyRule(pattern, "string", writer, readers, 1, ttl, holds, **size)


def _stream(
    pattern: str, writer: Role, readers: tuple[Role, ...], bound: int, ttl: int, holds: str, **size: int
) -> KeyRule:
    return KeyRule(pattern, "stream", writer, readers, bound, ttl, holds, **size)


_DAY = 86_400
_FORTNIGHT = 14 * _DAY
_VIEWED = (Role.CONTROLLER, Role.VIEWER)
_CONTROLLER = (Role.CONTROLLER,)

WINDOWS = _stream("node:{node}:windows", Role.AGENT, _VIEWED, 64, 3600, "measurements of the node", size=2 * _MIB)
EVIDENCE = _stream("node:{node}:evidence", Role.AGENT, (Role.LINK,), 4096, 3600, "closed state stores", size=512 * _KIB)
AGENT_LIMITS = _string(
    "agents:limits", Role.CONTROLLER, (Role.AGENT,), _DAY, "map outputs that each agent may send", size=_KIB
)
APPLICATIONS = KeyRule(
    "applications", "sorted set", Role.LINK, _VIEWED, 10_000, _DAY, "application ids by time last seen", size=4 * _MIB
)
REPORT = _string("app:{app}:report", Role.LINK, _VIEWED, 60, "state of the application")
BATCHES = _stream(
    "app:{app}:batches", Role.LINK, _VIEWED, 512, 3600, "finished batches with their tasks", size=192 * _MIB
)
JOURNAL = _stream("app:{app}:journal", Role.LINK, _VIEWED, 20_000, _FORTNIGHT, "journal of moves", size=8 * _MIB)
DESIRED = _string("app:{app}:desired", Role.CONTROLLER, (Role.LINK, Role.CONTROLLER), 3600, "signed desired placement")
DECISIONS = _stream(
    "decisions", Role.CONTROLLER, _VIEWED, 1000, _FORTNIGHT, "every decision with its numbers", size=32 * _MIB
)
APPLIED = _stream("applied", Role.CONTROLLER, _CONTROLLER, 1000, _FORTNIGHT, "decisions with moves", size=32 * _MIB)
OUTCOMES = _stream("outcomes", Role.CONTROLLER, _VIEWED, 500, _FORTNIGHT, "result of each migration", size=8 * _MIB)
LEASE = _string("controller:lease", Role.CONTROLLER, _CONTROLLER, 600, "the leader and its epoch", size=_KIB)
EPOCH = _string("controller:epoch", Role.CONTROLLER, _CONTROLLER, 0, "highest epoch used", size=_KIB)
STATE = _string("controller:state", Role.CONTROLLER, _VIEWED, 60, "state of the controller")
ORDERS = _string("orders", Role.CONTROLLER, (Role.LINK, *_VIEWED), 0, "signed: pause and drained nodes")
SCHEDULED_PLANS = _string("scheduled-plans", Role.CONTROLLER, _VIEWED, 0, "signed: scheduled plans")
PLACEMENT = _string("query:{query}:placement", Role.LINK, (Role.LINK,), _FORTNIGHT, "last placement of a query")
PAUSED = _string("controller:paused", Role.CONTROLLER, _CONTROLLER, 0, "present while paused", size=_KIB)
QUESTIONS = _stream("questions", Role.VIEWER, _CONTROLLER, 1000, _DAY, "requests of viewers: plans only, no orders")
REQUESTS = _stream("requests", Role.OPERATOR, _CONTROLLER, 1000, _DAY, "orders of operators")
CLAIM = _string(
    "claim:{request}", Role.CONTROLLER, _CONTROLLER, 87_000, "leader of a request, set before it acts", size=_KIB
)
REPLY = _string(
    "reply:{request}", Role.CONTROLLER, _VIEWED, 600, "the answer, under an id that only the requester knows"
)

TABLE = tuple(rule for rule in vars().values() if isinstance(rule, KeyRule))


class Keys:
    """Full names of the keys of one cluster."""

    def __init__(self, cluster: str) -> None:
        self._prefix = f"rechannel:{{{_checked(cluster, 'cluster')}}}:"

    def __call__(self, rule: KeyRule, name: str = "") -> str:
        """Return the full key of a rule; ``name`` fills the one placeholder of its pattern."""
        placeholder = _PLACEHOLDER.search(rule.pattern)
        if placeholder is None:
            return self._prefix + rule.pattern
        return self._prefix + rule.pattern.replace(placeholder[0], _checked(name, placeholder[1]))

    def acl_pattern(self, rule: KeyRule) -> str:
        """Return the ACL pattern that matches all keys of a rule."""
        return self._prefix + _PLACEHOLDER.sub("*", rule.pattern)


def is_valid_name(name: str) -> bool:
    """Whether a name may be part of a key."""
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
# Readers ask for the size of a key first: other users may have written it.
_READING = {
    "stream": ("xrange", "xrevrange", "memory|usage"),
    "string": ("getrange",),
    "sorted set": ("zrangebyscore", "memory|usage"),
}
# Commands to connect and to check the server.
_CONNECTING = ("info", "ping", "hello", "auth", "select", "client|setname")
# Not known to older servers. Clients work without it, but Redis logs each refusal.
EXTRA = ("+client|setinfo",)
# For the scripts of the lease, and to end a pause by deleting its key.
_MORE = {Role.CONTROLLER: ("evalsha", "script|load", "get", "pttl", "pexpire", "del", "exists")}


def patterns(role: Role, cluster: str, name: str) -> list[str]:
    """Return the keys that a role may read and write, as ACL rules.

    An agent is limited to the keys of the node ``name``; without one it may write those of all nodes, for pods, whose
    names are not known before. Other roles get all keys of their kind: the id of an application is known only after its
    driver has started.
    """
    keys = Keys(cluster)
    _checked(name or cluster, "name")
    rules = []
    for rule in TABLE:
        rights = ("R" if rule.read_by(role) else "") + ("W" if rule.written_by(role) else "")
        if rights:
            key = keys(rule, name) if role is Role.AGENT and name else keys.acl_pattern(rule)
            rules.append(f"~{key}" if rights == "RW" else f"%{rights}~{key}")
    return rules


def commands(role: Role) -> list[str]:
    """Return the commands that a role may use, as ACL rules that refuse all others."""
    allowed = dict.fromkeys(_CONNECTING)
    for rule in TABLE:
        allowed |= dict.fromkeys(_READING[rule.kind] if rule.read_by(role) else ())
        allowed |= dict.fromkeys(_WRITING[rule.kind] if rule.written_by(role) else ())
    return ["-@all", *(f"+{command}" for command in (*allowed, *_MORE.get(role, ())))]
