"""What `rechannel doctor` checks of this machine, its settings and Redis. Pure: facts in, findings out.

`rechannel.daemon.doctor.cluster` holds the checks of agents, links and Spark, `rechannel.daemon.cli.doctor` gathers the
facts. `CATALOG` names every check; docs/doctor.md is held to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rechannel.conf import lease_timing
from rechannel.conf.loader import LoadResult
from rechannel.conf.redis_url import SENTINEL_SCHEME
from rechannel.conf.settings import CONFIG_VARIABLE, Settings
from rechannel.wire import keys
from rechannel.wire.exit_codes import ExitCode
from rechannel.wire.keys import Role

#: check -> what it is about. The page docs/doctor.md says of each what it means and what to do.
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

#: package -> the oldest version that will do, and the first that will not ("": any). As in pyproject.toml.
NEEDED = {
    "apscheduler": ("3.11", "4"),
    "click": ("8.1", ""),
    "cryptography": ("43", ""),
    "inotify-simple": ("1.3.5", ""),
    "jinja2": ("3.1.5", ""),
    "msgspec": ("0.19", ""),
    "numpy": ("1.26", ""),
    "prometheus-client": ("0.20", ""),
    "psutil": ("6", ""),
    "pyspark": ("3.5", "5"),
    "redis": ("5.2", ""),
    "rich": ("13.9", ""),
    "starlette": ("0.46", ""),
    "structlog": ("24.4", ""),
    "uvicorn": ("0.34", ""),
}
OLDEST_PYTHON = (3, 11)
CLOCK_WARNING, CLOCK_FAILURE = 1.0, 5.0  # seconds; the second is a window of the agents
_FULL = 0.8  # share of Redis' memory
_SLOW = 0.25  # share of redis.timeout that one call takes
_JAVA = {3: 8, 4: 17}  # major version of Spark -> the oldest Java
_NEWEST_JAVA = ((4, 1), 21)  # Sparks older than this end with that Java
_MISSING_KEYS = ("signing.private_key_file is not set, so", "signing.public_key_file is not set: a link")
#: how a mistake or a note begins -> the check that tells it, where that is not "configuration"
_CHECKS = {"signing.": "signing-keys", "Redis ": "redis-rights"}
#: the same -> the cure of one that names none
_CURES = (
    ("signing.", "bring both files from one `rechannel config keys DIR`"),
    ("RECHANNEL_", "unset that variable, or write its name as `rechannel config show` has it"),
    ("", "change that setting, or its file"),
)
_TIME = "let a time service (chrony, systemd-timesyncd) set the clock of that machine"


class Severity(StrEnum):
    """How a check went."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True)
class Finding:
    """What one check says of one ``subject`` ("" where there is only one), with the ``cure`` where it is not well."""

    check: str
    verdict: Severity
    sentence: str
    cure: str = ""
    subject: str = ""


@dataclass(frozen=True)
class HostFacts:
    """Versions on this machine: Python's, of packages by name (those that are missing left out), Java's ("": none)."""

    python: tuple[int, int, int]
    packages: Mapping[str, str]
    java: str


@dataclass(frozen=True)
class RedisFacts:
    """What Redis says of itself (INFO), how many seconds that took, and by how many its clock is ahead of ours."""

    info: Mapping[str, Any]
    seconds: float
    ahead: float


@dataclass(frozen=True)
class RedisPermissions:
    """What a user was found to be allowed: (pattern of a key, "read" or "write"). ``named`` is the role in its name."""

    user: str
    named: Role | None
    may: frozenset[tuple[str, str]]
    administrator: bool


def ok(check: str, sentence: str, subject: str = "") -> Finding:
    """Say that all is well."""
    return Finding(check, Severity.OK, sentence, "", subject)


def warning(check: str, sentence: str, cure: str, subject: str = "") -> Finding:
    """Say what is not as it should be, but can be lived with."""
    return Finding(check, Severity.WARNING, sentence, cure, subject)


def failed(check: str, sentence: str, cure: str, subject: str = "") -> Finding:
    """Say what keeps Rechannel from doing its work."""
    return Finding(check, Severity.FAILED, sentence, cure, subject)


def exit_of(found: Iterable[Finding]) -> ExitCode:
    """Return the exit code: only what failed counts, and the cause before its consequences."""
    bad = {item.check for item in found if item.verdict is Severity.FAILED}
    if bad & {"configuration", "signing-keys", "times"}:
        return ExitCode.CONFIGURATION
    if any(check.startswith("redis") for check in bad):
        return ExitCode.REDIS
    return ExitCode.NOT_READY if bad else ExitCode.DONE


def machine(facts: HostFacts) -> list[Finding]:
    """Check Python, packages and Java."""
    version = ".".join(map(str, facts.python))
    oldest = ".".join(map(str, OLDEST_PYTHON))
    if facts.python[:2] < OLDEST_PYTHON:
        first = failed("python", f"Python {version} is too old", f"use Python {oldest} or newer")
    else:
        first = ok("python", f"Python {version}")
    return [first, *_packages(facts.packages), _java(facts)]


def _packages(installed: Mapping[str, str]) -> list[Finding]:
    found = []
    for name, (low, high) in NEEDED.items():
        rule = f">={low}{f',<{high}' if high else ''}"
        version = installed.get(name, "")
        say = warning if name == "pyspark" else failed  # only the driver's machine needs it
        cure = f"pip install '{name}{rule}'"
        if not version:
            where = ", which the machines of the drivers need" if name == "pyspark" else ""
            found.append(say("packages", f"{name} is not installed{where}", cure, name))
        elif version_of(version) < version_of(low) or (high and version_of(version) >= version_of(high)):
            found.append(say("packages", f"{name} {version} does not fit: {rule} is needed", cure, name))
    return found or [ok("packages", f"all {len(NEEDED)} packages are here, in versions that fit")]


def _java(facts: HostFacts) -> Finding:
    spark = version_of(facts.packages.get("pyspark", ""))
    least = _JAVA.get(spark[0] if spark else 4, 17)
    named = f"Spark {facts.packages['pyspark']}" if spark else "Spark 4"
    if not facts.java:
        cure = f"install Java {least} or newer, and set JAVA_HOME, where drivers or executors are to run"
        return warning("java", "no Java was found; only machines of drivers and executors need one", cure)
    parts = version_of(facts.java)
    major = parts[1] if parts[:1] == (1,) and len(parts) > 1 else (parts[0] if parts else 0)  # 1.8 is Java 8
    if major < least:
        cure = f"install Java {least} or newer, and set JAVA_HOME"
        return failed("java", f"Java {facts.java} is too old for {named}, which needs {least}", cure)
    before, newest = _NEWEST_JAVA
    if spark and spark < before and major > newest:
        return warning("java", f"Java {facts.java} is newer than {named} was made for", f"use Java {least} or {newest}")
    return ok("java", f"Java {facts.java} will do for {named}")


def configuration(loaded: LoadResult, mistakes: Sequence[str], notes: Sequence[str]) -> list[Finding]:
    """Sort what `config check` finds: keys have a check of their own, and so has what Redis lets others do."""
    found = []
    for text, say in [*((text, failed) for text in mistakes), *((text, warning) for text in notes)]:
        if text.startswith(_MISSING_KEYS):
            continue  # which of the two are needed depends on who they are for
        check = next((check for mark, check in _CHECKS.items() if text.startswith(mark)), "configuration")
        told, _, cure = text.rpartition("; ")
        told, cure = (told, cure) if told else (text, next(cure for mark, cure in _CURES if text.startswith(mark)))
        found.append(say(check, loaded.with_locations([told])[0], cure))
    seen = {item.check for item in found}
    if "configuration" not in seen:
        found.insert(0, _source(loaded))
    if "signing-keys" not in seen:
        found.append(_keys(loaded.settings))
    return found


def _source(loaded: LoadResult) -> Finding:
    used = loaded.describe()
    if loaded.path is None and not loaded.origins:
        cure = f"name a file: `export {CONFIG_VARIABLE}=FILE`; `rechannel config init` writes one"
        return warning("configuration", used, cure)
    return ok("configuration", f"{used}; all values and the files they name can be used")


def _keys(settings: Settings) -> Finding:
    """Check that those keys are named that the user of these settings needs."""
    check, role = "signing-keys", named_role(settings)
    private, public = bool(settings.signing.private_key_file), bool(settings.signing.public_key_file)
    if role in (Role.AGENT, Role.VIEWER, Role.OPERATOR):
        return ok(check, f"the role {role} needs none")
    pair = "make a pair with `rechannel config keys DIR`, and name its"
    if role is Role.CONTROLLER and not private:
        sentence = "signing.private_key_file is not set: no controller starts without"
        return failed(check, sentence, f"{pair} signing.key there")
    if not private and not public:
        sentence = "neither signing.private_key_file nor signing.public_key_file is set"
        whom = (
            "its link obeys nobody" if role is Role.LINK else "no controller starts with that, and a link obeys nobody"
        )
        cure = f"{pair} signing.pub for drivers and controllers, its signing.key for controllers alone"
        return failed(check, f"{sentence}: {whom}", cure)
    if not private:
        return ok(check, "public keys are set, which is all that a driver needs; a controller needs a private one too")
    return ok(check, "the pair matches, and others cannot read the private key")


def named_role(settings: Settings) -> Role | None:
    """Return the role in the name of the Redis user, as `rechannel acl` makes it."""
    found = re.match(rf"rechannel-{re.escape(settings.cluster.name)}-({'|'.join(Role)})(-|$)", settings.redis.username)
    return Role(found[1]) if found else None


def times(settings: Settings) -> list[Finding]:
    """Check time limits against each other; those that must hold are mistakes of the configuration already."""
    found = []
    controller, rules = settings.controller, settings.reschedule
    takeover = controller.lease + controller.observe
    if controller.placement_ttl <= takeover:
        sentence = (
            f"controller.placement_ttl ({controller.placement_ttl:g} s) is over before a stand-by takes over "
            f"({takeover:g} s): a running migration stands still then"
        )
        found.append(warning("times", sentence, f"raise controller.placement_ttl above {takeover:g}"))
    measured = settings.agent.window * rules.windows
    if rules.timeout < measured:
        sentence = f"reschedule.timeout ({rules.timeout:g} s) is shorter than what a decision averages ({measured:g} s)"
        found.append(warning("times", sentence, f"raise reschedule.timeout to {measured:g} or more"))
    if settings.link.report * 3 > keys.REPORT.ttl:
        sentence = (
            f"link.report ({settings.link.report:g} s): a report lasts {keys.REPORT.ttl} s, so one late is missed"
        )
        found.append(warning("times", sentence, f"lower link.report to {keys.REPORT.ttl // 3}"))
    call = lease_timing.longest_call(settings.redis.timeout, sentinels=settings.redis.url.startswith(SENTINEL_SCHEME))
    spare = controller.lease - lease_timing.least_lease(controller.observe, call)
    return found or [
        ok("times", f"they fit; the lease of {controller.lease:g} s is {max(spare, 0):.1f} s over the least")
    ]


def redis(server: RedisFacts, timeout: float) -> list[Finding]:
    """Check the server by what it says of itself; ``timeout`` is redis.timeout."""
    info = server.info
    version = str(info.get("valkey_version") or info.get("redis_version") or "")
    name = "Valkey" if info.get("valkey_version") else "Redis"
    if server.seconds > _SLOW * timeout:
        sentence = f"a call took {server.seconds:.2f} s of the {timeout:g} s of redis.timeout"
        first = warning("redis", sentence, "see to the network and to slow commands, or raise redis.timeout")
    else:
        first = ok("redis", f"{name} answers in {server.seconds * 1000:.1f} ms")
    old = version_of(str(info.get("redis_version", "0")))[:2] < (7, 0)
    second = (
        failed(
            "redis-version", f"{name} {version or 'of unknown version'} is too old", "use Redis 7.0 or newer, or Valkey"
        )
        if old
        else ok("redis-version", f"{name} {version}")
    )
    return [first, second, _role(info), _eviction(info), _memory(info), _persistence(info), clock(server)]


def _role(info: Mapping[str, Any]) -> Finding:
    if info.get("role", "master") != "master":
        cure = "name the master in redis.url, or let sentinels find it (sentinel://)"
        return failed("redis-role", "this server is a replica and takes no writes", cure)
    return ok("redis-role", "the server takes writes")


def _eviction(info: Mapping[str, Any]) -> Finding:
    policy, limit, gone = info.get("maxmemory_policy", ""), _number(info, "maxmemory"), _number(info, "evicted_keys")
    cure = "in redis.conf: maxmemory-policy noeviction"
    if policy != "noeviction" and (limit or gone):
        lost = f", and {gone:.0f} are gone already" if gone else ""
        return failed(
            "redis-eviction", f"maxmemory-policy is {policy}: when full, Redis drops keys such as the lease{lost}", cure
        )
    if policy != "noeviction":
        return warning("redis-eviction", f"maxmemory-policy is {policy}, which drops keys once maxmemory is set", cure)
    return ok("redis-eviction", "maxmemory-policy is noeviction")


def _memory(info: Mapping[str, Any]) -> Finding:
    used, limit = _number(info, "used_memory"), _number(info, "maxmemory")
    words = (
        f"{used / 2**20:.0f} MiB of {limit / 2**20:.0f} MiB are used" if limit else f"{used / 2**20:.0f} MiB are used"
    )
    if limit and used > _FULL * limit:
        return warning("redis-memory", f"{words}; when full it refuses writes", "raise maxmemory in redis.conf")
    return ok("redis-memory", words)


def _persistence(info: Mapping[str, Any]) -> Finding:
    check = "redis-persistence"
    for field in ("rdb_last_bgsave_status", "aof_last_write_status", "aof_last_bgrewrite_status"):
        if info.get(field, "ok") != "ok":
            cure = "see Redis' log and its disk; it may refuse writes until it can save"
            return failed(check, f"Redis could not save ({field} is {info[field]})", cure)
    if _number(info, "aof_enabled"):
        return ok(check, "every write goes to an append-only file")
    if _number(info, "rdb_saves"):
        return ok(check, "Redis saves snapshots; what came after the last is lost when it crashes")
    cure = "in redis.conf: appendonly yes, or save 60 1"
    return warning(
        check, "Redis has saved nothing since it started: a restart forgets drains, pauses and history", cure
    )


def clock(server: RedisFacts) -> Finding:
    """Check this machine's clock; how long the call took is allowed for."""
    off = max(0.0, abs(server.ahead) - server.seconds)
    words = f"this machine's clock is {abs(server.ahead):.1f} s {'behind' if server.ahead > 0 else 'ahead of'} Redis'"
    if off > CLOCK_FAILURE:
        return failed("clock", words, _TIME)
    return (
        warning("clock", words, _TIME)
        if off > CLOCK_WARNING
        else ok("clock", "this machine's clock agrees with Redis'")
    )


def clocks(ahead: Mapping[str, float]) -> list[Finding]:
    """Check the clocks of those who write: part -> by how many seconds its clock is ahead of Redis'."""
    found = []
    for part, seconds in sorted(ahead.items()):
        # A message takes a moment to arrive, which looks like a clock that is behind.
        off = seconds if seconds > 0 else max(0.0, -seconds - CLOCK_WARNING)
        words = f"its messages are {abs(seconds):.1f} s {'ahead of' if seconds > 0 else 'behind'} Redis' clock"
        if off > CLOCK_WARNING:
            say = failed if off > CLOCK_FAILURE else warning
            found.append(say("clock-parts", words, _TIME, part))
    known = f"the clocks of {len(ahead)} parts agree with Redis'" if ahead else "no part has written anything yet"
    return found or [ok("clock-parts", known)]


def rights(facts: RedisPermissions) -> Finding:
    """Compare what a user may with what its role needs: no less, and no more."""
    check, user = "redis-rights", f"the user {facts.user}"
    cure = "make a user of its role with `rechannel acl add-role ROLE`, and set redis.username and redis.password_file"
    if facts.administrator:
        return warning(check, f"{user} may do everything, as CONFIG", cure)
    wanted = {role: needs(role) for role in Role}
    role = facts.named or next((role for role in Role if wanted[role] == facts.may), None)
    if role is None:
        held = [role for role in Role if wanted[role] <= facts.may]
        role = max(held, key=lambda role: len(wanted[role]), default=None)
    if role is None:
        return failed(check, f"{user} lacks rights for any role; it may {_listed(facts.may)}", cure)
    if missing := wanted[role] - facts.may:
        again = f"give the role its rights again: `rechannel acl add-{'node' if role is Role.AGENT else 'role'}`"
        return failed(check, f"{user} lacks for the role {role}: {_listed(missing)}", again)
    if more := facts.may - wanted[role]:
        return warning(check, f"{user} may more than the role {role}: {_listed(more)}", cure)
    return ok(check, f"{user} has the role {role}: may {_listed(facts.may)}, and nothing else")


def needs(role: Role) -> frozenset[tuple[str, str]]:
    """Return what a role may do: pattern of a key, and read or write."""
    reads = {(rule.pattern, "read") for rule in keys.TABLE if rule.read_by(role)}
    return frozenset(reads | {(rule.pattern, "write") for rule in keys.TABLE if rule.written_by(role)})


def version_of(text: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: of 4.1.0rc1 4, 1 and 0."""
    match = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def _listed(rights: Iterable[tuple[str, str]]) -> str:
    words = [f"{verb} {', '.join(sorted(key for key, act in rights if act == verb))}" for verb in ("read", "write")]
    return "; ".join(word for word in words if not word.endswith(" ")) or "nothing"


def _number(info: Mapping[str, Any], name: str) -> float:
    value = info.get(name, 0)
    return float(value) if isinstance(value, (int, float)) else 0.0
