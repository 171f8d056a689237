"""Checks of this host, its settings and Redis. Pure: facts in, findings out.

`rechannel.daemon.doctor.cluster` has the checks of agents, links and Spark; `rechannel.daemon.cli.doctor` collects the
facts.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rechannel.conf import lease_timing
from rechannel.conf.loader import LoadResult
from rechannel.conf.settings import CONFIG_VARIABLE, Settings
from rechannel.daemon.doctor.finding import Finding, failed, ok, warning
from rechannel.daemon.model.application_messages import averaging_time
from rechannel.wire import keys
from rechannel.wire.keys import Role

OLDEST_PYTHON = (3, 11)
CLOCK_WARNING, CLOCK_FAILURE = 1.0, 5.0  # seconds; the second is the length of an agent's window
_FULL = 0.8  # share of Redis' memory
_SLOW = 0.25  # of redis.timeout, for one call
_JAVA = {3: 8, 4: 17}  # major version of Spark -> the oldest Java
_NEWEST_JAVA = ((4, 1), 21)  # versions of Spark before this one support no newer Java
_MISSING_KEYS = ("signing.private_key_file is not set, so", "signing.public_key_file is not set: a link")
#: prefix of a mistake or a note -> its check, if that is not "configuration"
_CHECKS = {"signing.": "signing-keys", "Redis ": "redis-rights"}
#: prefix of a mistake or a note -> the cure of one that names none
_CURES = (
    ("signing.", "bring both files from one `rechannel config keys DIR`"),
    ("RECHANNEL_", "unset that variable, or write its name as `rechannel config show` has it"),
    ("", "change that setting, or its file"),
)
TIME_SERVICE = "run a time service (chrony, systemd-timesyncd) on that machine"


@dataclass(frozen=True)
class HostFacts:
    """Versions on this host.

    ``requirements``: packages that the metadata of the installed Rechannel requires, empty if it is not installed;
    ``packages``: versions of those that are installed. ``java``: "" for none, None if not looked for. ``conflict``:
    problem and cure of two distributions that overwrite each other.
    """

    python: tuple[int, int, int]
    requirements: Sequence[str]
    packages: Mapping[str, str]
    java: str | None
    conflict: tuple[str, str] = ("", "")


@dataclass(frozen=True)
class RedisFacts:
    """INFO of Redis, seconds that the call took, and seconds by which its clock is ahead."""

    info: Mapping[str, Any]
    seconds: float
    ahead: float


@dataclass(frozen=True)
class RedisPermissions:
    """Permissions of a Redis user: (pattern of a key, "read" or "write"); role in its name."""

    user: str
    role: Role | None
    allowed: frozenset[tuple[str, str]]
    administrator: bool


def check_host(facts: HostFacts) -> list[Finding]:
    """Check Python, packages and Java."""
    version = ".".join(map(str, facts.python))
    oldest = ".".join(map(str, OLDEST_PYTHON))
    if facts.python[:2] < OLDEST_PYTHON:
        python = failed("python", f"Python {version} is too old", f"use Python {oldest} or newer")
    else:
        python = ok("python", f"Python {version}")
    java = [] if facts.java is None else [_check_java(facts.java, facts.packages.get("pyspark", ""))]
    return [python, *_check_packages(facts), *java]


def _check_packages(facts: HostFacts) -> list[Finding]:
    if not facts.requirements:
        sentence = "Rechannel is not installed as a package, so the versions of its packages are not checked"
        return [warning("packages", sentence, "install it as docs/install.md says")]
    sentence, cure = facts.conflict
    findings = [failed("packages", sentence, cure)] if sentence else []
    for requirement in facts.requirements:
        name, low, high = parse_requirement(requirement)
        version = facts.packages.get(name, "")
        report = warning if name == "pyspark" else failed  # only the machines of drivers need it
        rule = f">={low}{f',<{high}' if high else ''}"
        cure = f"pip install '{name}{rule}'"
        if not version:
            where = ", which the machines of the drivers need" if name == "pyspark" else ""
            findings.append(report("packages", f"{name} is not installed{where}", cure, name))
        elif parse_version(version) < parse_version(low) or (high and parse_version(version) >= parse_version(high)):
            findings.append(report("packages", f"{name} {version} does not fit: {rule} is needed", cure, name))
    return findings or [ok("packages", f"all {len(facts.requirements)} packages are installed in versions that fit")]


def parse_requirement(text: str) -> tuple[str, str, str]:
    """Return name, oldest version and first version too new ("": none) of a requirement."""
    match = re.match(r"[\w.-]+", text)
    name = match[0] if match else text
    bounds = dict(re.findall(r"(>=|<)\s*([\w.]+)", text))
    return name.lower(), bounds.get(">=", "0"), bounds.get("<", "")


def _check_java(version: str, pyspark: str) -> Finding:
    spark = parse_version(pyspark)
    least = _JAVA.get(spark[0] if spark else 4, 17)
    spark_name = f"Spark {pyspark}" if spark else "Spark 4"
    if not version:
        cure = f"install Java {least} or newer, and set JAVA_HOME, where drivers or executors are to run"
        return warning("java", "no Java was found; only machines of drivers and executors need one", cure)
    parts = parse_version(version)
    major = parts[1] if parts[:1] == (1,) and len(parts) > 1 else (parts[0] if parts else 0)  # 1.8 is Java 8
    if major < least:
        cure = f"install Java {least} or newer, and set JAVA_HOME"
        return failed("java", f"Java {version} is too old for {spark_name}, which needs {least}", cure)
    before, newest = _NEWEST_JAVA
    if spark and spark < before and major > newest:
        sentence = f"Java {version} is newer than {spark_name} was made for"
        return warning("java", sentence, f"use Java {least} or {newest}")
    return ok("java", f"Java {version} fits {spark_name}")


def check_configuration(
    loaded: LoadResult, mistakes: Sequence[str], notes: Sequence[str], *, keys_unchecked: str = ""
) -> list[Finding]:
    """Sort the mistakes and notes of `config check` into checks.

    ``keys_unchecked``: reason for which it did not check the files of the signing keys.
    """
    findings = []
    for text, report in [*((text, failed) for text in mistakes), *((text, warning) for text in notes)]:
        if text.startswith(_MISSING_KEYS):
            continue  # `_check_keys` reports those that the role needs
        check = next((check for prefix, check in _CHECKS.items() if text.startswith(prefix)), "configuration")
        sentence, _, cure = text.rpartition("; ")
        if not sentence:
            sentence, cure = text, next(cure for prefix, cure in _CURES if text.startswith(prefix))
        findings.append(report(check, loaded.with_locations([sentence])[0], cure))
    checks = {item.check for item in findings}
    if "configuration" not in checks:
        findings.insert(0, _check_source(loaded))
    if keys_unchecked:
        findings.append(ok("signing-keys", f"not checked: {keys_unchecked}"))
    elif "signing-keys" not in checks:
        findings.append(_check_keys(loaded.settings))
    return findings


def _check_source(loaded: LoadResult) -> Finding:
    source = loaded.describe()
    if loaded.path is None and not loaded.origins:
        cure = f"name a file: `export {CONFIG_VARIABLE}=FILE`; `rechannel config init` writes one"
        return warning("configuration", source, cure)
    return ok("configuration", f"{source}; all values and the files that they name are valid")


def _check_keys(settings: Settings) -> Finding:
    """Check that the settings name the keys that the role of the Redis user needs."""
    check, role = "signing-keys", role_of_user(settings)
    private, public = bool(settings.signing.private_key_file), bool(settings.signing.public_key_file)
    if role in (Role.AGENT, Role.VIEWER, Role.OPERATOR):
        return ok(check, f"the role {role} needs none")
    pair = "make a pair with `rechannel config keys DIR`, and name its"
    if role is Role.CONTROLLER and not private:
        sentence = "signing.private_key_file is not set, which every controller needs"
        return failed(check, sentence, f"{pair} signing.key there")
    if not private and not public:
        sentence = "neither signing.private_key_file nor signing.public_key_file is set"
        link = "link accepts no placement"
        effect = f"its {link}" if role is Role.LINK else f"no controller starts, and a {link}"
        cure = f"{pair} signing.pub for drivers and controllers, its signing.key for controllers alone"
        return failed(check, f"{sentence}: {effect}", cure)
    if not private:
        return ok(check, "public keys are set, which is all that a driver needs; a controller needs a private one too")
    return ok(check, "the pair matches, and others cannot read the private key")


def role_of_user(settings: Settings) -> Role | None:
    """Return the role in the name of the Redis user, if `rechannel acl` made that name."""
    match = _match_user(settings)
    return Role(match[1]) if match else None


def node_of_user(settings: Settings) -> str:
    """Return the node that the Redis user is for, by its name; else that of the settings.

    An agent without `agent.node` finds its node's name by its executors, so it may be no host name of this machine.
    """
    match = _match_user(settings)
    return match[3] if match and match[1] == Role.AGENT and match[3] else settings.node


def _match_user(settings: Settings) -> re.Match[str] | None:
    name = re.escape(settings.cluster.name)
    return re.fullmatch(rf"rechannel-{name}-({'|'.join(Role)})(-(.*))?", settings.redis.username)


def check_times(settings: Settings) -> list[Finding]:
    """Check time limits against each other, beyond those that loading the settings checks."""
    findings = []
    controller, rules = settings.controller, settings.reschedule
    measured = averaging_time(settings)
    if rules.timeout < measured:
        sentence = f"reschedule.timeout ({rules.timeout:g} s) is shorter than what a decision averages ({measured:g} s)"
        findings.append(warning("times", sentence, f"raise reschedule.timeout to {measured:g} or more"))
    call = lease_timing.longest_call(settings.redis)
    spare = controller.lease - lease_timing.least_lease(call)
    return findings or [
        ok(
            "times",
            f"they are consistent; the lease of {controller.lease:g} s is {max(spare, 0):.1f} s longer than needed",
        )
    ]


def check_redis(server: RedisFacts, timeout: float) -> list[Finding]:
    """Check the server by its INFO; ``timeout`` is redis.timeout."""
    info = server.info
    version = str(info.get("valkey_version") or info.get("redis_version") or "")
    name = "Valkey" if info.get("valkey_version") else "Redis"
    if server.seconds > _SLOW * timeout:
        sentence = f"a call took {server.seconds:.2f} s of the {timeout:g} s of redis.timeout"
        speed = warning("redis", sentence, "check the network and slow commands, or raise redis.timeout")
    else:
        speed = ok("redis", f"{name} answers in {server.seconds * 1000:.1f} ms")
    old = parse_version(str(info.get("redis_version", "0")))[:2] < (7, 0)
    if old:
        sentence = f"{name} {version or 'of unknown version'} is too old"
        age = failed("redis-version", sentence, "use Redis 7.0 or newer, or Valkey")
    else:
        age = ok("redis-version", f"{name} {version}")
    checks = (_check_replication, _check_eviction, _check_memory, _check_persistence)
    return [speed, age, *(check(info) for check in checks), check_clock(server)]


def _check_replication(info: Mapping[str, Any]) -> Finding:
    if info.get("role", "master") != "master":
        cure = "name the master in redis.url, or let sentinels find it (sentinel://)"
        return failed("redis-role", "this server is a replica and takes no writes", cure)
    return ok("redis-role", "the server takes writes")


def _check_eviction(info: Mapping[str, Any]) -> Finding:
    policy, limit, evicted = info.get("maxmemory_policy", ""), _number(info, "maxmemory"), _number(info, "evicted_keys")
    cure = "in redis.conf: maxmemory-policy noeviction"
    if policy != "noeviction" and (limit or evicted):
        lost = f", and has dropped {evicted:.0f} already" if evicted else ""
        sentence = f"maxmemory-policy is {policy}: when full, Redis drops keys such as the lease{lost}"
        return failed("redis-eviction", sentence, cure)
    if policy != "noeviction":
        return warning("redis-eviction", f"maxmemory-policy is {policy}, which drops keys once maxmemory is set", cure)
    return ok("redis-eviction", "maxmemory-policy is noeviction")


def _check_memory(info: Mapping[str, Any]) -> Finding:
    used, limit = _number(info, "used_memory"), _number(info, "maxmemory")
    usage = f"{used / 2**20:.0f} MiB of {limit / 2**20:.0f} MiB" if limit else f"{used / 2**20:.0f} MiB"
    if limit and used > _FULL * limit:
        sentence = f"{usage} are used; when full it refuses writes"
        return warning("redis-memory", sentence, "raise maxmemory in redis.conf")
    return ok("redis-memory", f"{usage} are used")


def _check_persistence(info: Mapping[str, Any]) -> Finding:
    check = "redis-persistence"
    for field in ("rdb_last_bgsave_status", "aof_last_write_status", "aof_last_bgrewrite_status"):
        if info.get(field, "ok") != "ok":
            cure = "see Redis' log and its disk; it may refuse writes until it can save"
            return failed(check, f"Redis could not save ({field} is {info[field]})", cure)
    if _number(info, "aof_enabled"):
        return ok(check, "every write goes to an append-only file")
    if _number(info, "rdb_saves"):
        return ok(check, "Redis saves snapshots; a crash loses the writes after the last one")
    cure = "in redis.conf: appendonly yes, or save 60 1"
    return warning(check, "Redis has saved nothing since it started: a restart loses drains, pauses and history", cure)


def check_clock(server: RedisFacts) -> Finding:
    """Check this host's clock, less the time that the call took."""
    offset = max(0.0, abs(server.ahead) - server.seconds)
    if offset <= CLOCK_WARNING:
        return ok("clock", "this machine's clock agrees with Redis'")
    direction = "behind" if server.ahead > 0 else "ahead of"
    report = failed if offset > CLOCK_FAILURE else warning
    return report("clock", f"this machine's clock is {abs(server.ahead):.1f} s {direction} Redis'", TIME_SERVICE)


def check_clocks(ahead: Mapping[str, float]) -> list[Finding]:
    """Check the clocks of senders: part -> seconds by which its clock is ahead of Redis'."""
    findings = []
    for part, seconds in sorted(ahead.items()):
        # A message takes a moment to arrive, so its sender seems to be behind.
        offset = seconds if seconds > 0 else max(0.0, -seconds - CLOCK_WARNING)
        if offset > CLOCK_WARNING:
            report = failed if offset > CLOCK_FAILURE else warning
            direction = "ahead of" if seconds > 0 else "behind"
            sentence = f"its messages are {abs(seconds):.1f} s {direction} Redis' clock"
            findings.append(report("clock-parts", sentence, TIME_SERVICE, part))
    agree = f"the clocks of {len(ahead)} parts agree with Redis'" if ahead else "no part has written anything yet"
    return findings or [ok("clock-parts", agree)]


def check_permissions(facts: RedisPermissions) -> Finding:
    """Compare the permissions of a user with those that its role needs: no less, and no more."""
    check, user, allowed = "redis-rights", f"the user {facts.user}", facts.allowed
    cure = "make a user of its role with `rechannel acl add-role ROLE`, and set redis.username and redis.password_file"
    if facts.administrator:
        return warning(check, f"{user} has all rights, such as CONFIG", cure)
    needed = {role: permissions_of(role) for role in Role}
    role = facts.role or next((role for role in Role if needed[role] == allowed), None)
    if role is None:  # the largest role within the permissions
        role = max((role for role in Role if needed[role] <= allowed), key=lambda role: len(needed[role]), default=None)
    if role is None:
        return failed(check, f"{user} lacks rights for any role; it may {_list(allowed)}", cure)
    if missing := needed[role] - allowed:
        again = f"give the role its rights again: `rechannel acl add-{'node' if role is Role.AGENT else 'role'}`"
        return failed(check, f"{user} lacks for the role {role}: {_list(missing)}", again)
    if more := allowed - needed[role]:
        return warning(check, f"{user} may more than the role {role}: {_list(more)}", cure)
    return ok(check, f"{user} has the role {role}: may {_list(allowed)}, and nothing else")


def permissions_of(role: Role) -> frozenset[tuple[str, str]]:
    """Return the permissions of a role: (pattern of a key, "read" or "write")."""
    reads = {(rule.pattern, "read") for rule in keys.TABLE if rule.read_by(role)}
    return frozenset(reads | {(rule.pattern, "write") for rule in keys.TABLE if rule.written_by(role)})


def parse_version(text: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: (4, 1, 0) for 4.1.0rc1."""
    match = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def _list(permissions: Collection[tuple[str, str]]) -> str:
    keys_by_verb = {verb: sorted(key for key, act in permissions if act == verb) for verb in ("read", "write")}
    return "; ".join(f"{verb} {', '.join(names)}" for verb, names in keys_by_verb.items() if names) or "nothing"


def _number(info: Mapping[str, Any], name: str) -> float:
    value = info.get(name, 0)
    return float(value) if isinstance(value, (int, float)) else 0.0
