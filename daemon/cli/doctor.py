"""The command ``doctor``: collects facts, runs the checks, and prints the findings."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import click

from rechannel.conf.loader import read_settings
from rechannel.conf.settings import Settings
from rechannel.daemon.cli import config
from rechannel.daemon.doctor import cluster, finding, host, machine, machine_facts, spark_properties
from rechannel.daemon.doctor.cluster import ApplicationFacts, NodeFacts
from rechannel.daemon.doctor.finding import Finding, Severity
from rechannel.daemon.doctor.host import HostFacts, RedisFacts, RedisPermissions
from rechannel.daemon.doctor.machine_facts import Sources
from rechannel.daemon.model.application_messages import max_window_age
from rechannel.daemon.view.last_leader import leading
from rechannel.wire import distribution, keys
from rechannel.wire.envelope import Envelope, bodies_of
from rechannel.wire.exit_codes import CommandError, ExitCode
from rechannel.wire.keys import KeyNameError, KeyRule, Role
from rechannel.wire.measurements import AgentWindow, BatchReport
from rechannel.wire.messages import ExecutorInfo, LinkReport
from rechannel.wire.printable import plain
from rechannel.wire.redis.errors import StoreError, StoreForbiddenError
from rechannel.wire.redis.store import Store

_BATCHES = 20  # newest ones of an application, for the length of its stages
_WINDOWS, _NODES_READ = 8, 200  # newest windows of a node, of so many nodes: one may have a megabyte
_NODES = 1000  # at most
_PLACEHOLDER = "doctor"  # in a key, for an application, a query or a request
_COLORS = {Severity.OK: "green", Severity.WARNING: "yellow", Severity.FAILED: "red"}
_JAVA_TIMEOUT = 20.0  # seconds
_NO_KEYS = "agents need none"

# Sent to find out whether they are allowed. Redis checks the permission first; then it refuses the writes because of
# their form, and the reads return nothing.
_WRITES = {
    "stream": ("XADD", "{}", "no-id", "m", "x"),
    "string": ("SET", "{}", "x", "NO-OPTION"),
    "sorted set": ("ZADD", "{}", "no-number", "x"),
}
_READS = {
    "stream": ("XREVRANGE", "{}", "-", "+", "COUNT", "1"),
    "string": ("GETRANGE", "{}", "1", "0"),
    "sorted set": ("ZRANGEBYSCORE", "{}", "+inf", "-inf"),
}
_ADMINISTRATION = ("CONFIG", "GET", "maxmemory-policy")


def run(path: str | None, *, spark_conf: str, machine_only: bool, as_json: bool) -> ExitCode:
    """Run all checks, or some, and print the findings; returns the exit code.

    ``spark_conf``: only those of a file of Spark settings; ``machine_only``: only those of this machine.
    """
    if spark_conf and machine_only:
        raise CommandError(ExitCode.USAGE, "--conf checks a file and --machine this machine; give one of them")
    if spark_conf:
        findings = cluster.check_settings(read_spark_properties(Path(spark_conf)), spark_conf)
    elif machine_only:
        findings = run_machine_checks(path, Sources())
    else:
        findings = run_checks(path)
    print_findings(findings, as_json=as_json)
    return finding.exit_code_of(findings)


def run_checks(path: str | None) -> list[Finding]:
    """Collect facts and check them; without a usable configuration only those of this host."""
    loaded = read_settings(path)
    mistakes, notes = config.examine(loaded)
    keys_unchecked = "" if distribution.has_signatures() else f"{_NO_KEYS}, and cryptography is not installed"
    findings = host.check_host(collect_host_facts())
    findings += host.check_configuration(loaded, mistakes, notes, keys_unchecked=keys_unchecked)
    if loaded.errors:
        return findings
    settings = loaded.settings
    findings += host.check_times(settings)
    try:
        store = Store(settings.redis, settings.cluster.name)
        try:
            findings += _check_redis(store, settings)
        finally:
            store.close()
    except StoreError as error:
        sentence, _, cure = str(error).rpartition("; ")
        cure = cure if sentence else "see redis.url and the server"
        findings.append(finding.failed("redis", sentence or str(error), cure))
    return findings


def run_machine_checks(path: str | None, sources: Sources) -> list[Finding]:
    """Check what an agent needs of this machine, without Redis."""
    loaded = read_settings(path)
    findings = host.check_host(collect_host_facts(java=False))
    findings += host.check_configuration(loaded, *config.examine(loaded, of_node=True), keys_unchecked=_NO_KEYS)
    return findings + machine.check_machine(machine_facts.collect(loaded.settings.agent.node, sources))


def print_findings(findings: Sequence[Finding], *, as_json: bool) -> None:
    """Print findings as JSON, or as lines with their cures."""
    counts = {severity: sum(item.verdict is severity for item in findings) for severity in Severity}
    if as_json:
        checks = [asdict(item) for item in findings]
        click.echo(json.dumps({"ok": not counts[Severity.FAILED], "counts": counts, "checks": checks}))
        return
    for item in findings:
        subject = f" {item.subject}:" if item.subject else ""
        verdict = click.style(f"{item.verdict:<8}", fg=_COLORS[item.verdict], bold=item.verdict is Severity.FAILED)
        line = verdict + plain(f"{item.check}:{subject} {item.sentence}")
        click.echo(line, color=False if os.environ.get("NO_COLOR") else None)
        if item.cure:
            click.echo(f"        → {plain(item.cure)}")
    click.echo(f"{counts[Severity.FAILED]} failed, {counts[Severity.WARNING]} warnings, {counts[Severity.OK]} ok")


def collect_host_facts(*, java: bool = True) -> HostFacts:
    """Return the versions of what is installed on this host, and what Rechannel requires."""
    names = distribution.installed()
    requirements = importlib.metadata.requires(names[0]) or [] if names else []
    requirements = [text for text in requirements if "extra ==" not in text]
    packages = {}
    for name in {host.parse_requirement(text)[0] for text in requirements}:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            packages[name] = importlib.metadata.version(name)
    version = find_java_version(os.environ) if java else None
    return HostFacts(sys.version_info[:3], requirements, packages, version, conflict=distribution.conflict())


def find_java_version(environ: Mapping[str, str]) -> str:
    """Return the version of the Java that Spark starts; "" for none."""
    home = environ.get("JAVA_HOME", "")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java", path=environ.get("PATH"))
    try:
        # The same Java that Spark starts.
        done = subprocess.run([java or "java", "-version"], capture_output=True, text=True, timeout=_JAVA_TIMEOUT)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return ""
    match = re.search(r'version "([^"]+)"', done.stderr + done.stdout)
    return match[1] if match else ""


def read_spark_properties(path: Path) -> dict[str, str]:
    """Read a file of Spark settings; CommandError if it cannot be read."""
    try:
        return spark_properties.read(path)
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(ExitCode.REFUSED, f"--conf: {path} cannot be read") from error


def _check_redis(store: Store, settings: Settings) -> list[Finding]:
    """Check Redis and the cluster; raises StoreError if Redis does not answer."""
    start, clock = time.monotonic(), time.time()
    info = store.info()
    seconds = time.monotonic() - start
    ahead = float(info.get("server_time_usec", clock * 1e6)) / 1e6 - (clock + seconds / 2)
    findings = host.check_redis(RedisFacts(info, seconds, ahead), settings.redis.timeout)
    if any(item.check == "redis-version" and item.verdict is Severity.FAILED for item in findings):
        return findings
    permissions = probe_permissions(store, settings)
    findings.append(host.check_permissions(permissions))
    if not permissions.administrator and not host.permissions_of(Role.VIEWER) <= permissions.allowed:
        sentence = "the running cluster is not checked, which requires the rights of a viewer"
        return [*findings, finding.warning("links", sentence, "use the configuration of a viewer or an operator")]
    try:
        return findings + _check_cluster(store, settings, ahead, info)
    except StoreForbiddenError as error:
        cure = "make the user again with `rechannel acl add-role`"
        return [*findings, finding.failed("redis-rights", str(error), cure)]


def probe_permissions(store: Store, settings: Settings) -> RedisPermissions:
    """Find out what the Redis user may do; Redis notes refusals in its ACL log."""
    administrator = store.can_run(*_ADMINISTRATION)
    allowed, name = set(), host.node_of_user(settings)
    for rule in keys.TABLE:
        key = store.keys(rule, name if "{node}" in rule.pattern else _PLACEHOLDER)
        for verb, commands in (("read", _READS), ("write", _WRITES)):
            if administrator or store.can_run(*(word.format(key) for word in commands[rule.kind])):
                allowed.add((rule.pattern, verb))
    user = settings.redis.username or "default"
    return RedisPermissions(user, host.role_of_user(settings), frozenset(allowed), administrator)


def _check_cluster(store: Store, settings: Settings, ahead: float, info: Mapping[str, Any]) -> list[Finding]:
    now = time.time() + ahead  # by Redis' clock
    clocks: dict[str, float] = {}  # sender -> seconds by which its clock is ahead of Redis'
    names = store.applications(now - keys.APPLICATIONS.ttl)
    applications = [facts for name in names if (facts := _application_facts(store, name, now, clocks)) is not None]
    executors: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for application in applications:
        for executor in application.report.executors if application.report else ():
            executors[_reporting_name(store, executor)].add((application.application, executor.executor))
    agents = list_agents(store)
    nodes = {}
    for number, name in enumerate([*sorted(executors), *sorted(set(agents or ()) - executors.keys())][:_NODES]):
        arrival, last = _newest_message(store, keys.WINDOWS, name)
        window = last.body if last is not None and isinstance(last.body, AgentWindow) else None
        if last is not None:
            clocks[last.sender] = last.time - arrival
        newest = store.last(keys.WINDOWS, name, _WINDOWS) if last is not None and number < _NODES_READ else []
        several = cluster.has_several_agents(newest)
        nodes[name] = NodeFacts(frozenset(executors[name]), window, now - arrival, several)
    arrival, decision = _newest_message(store, keys.DECISIONS, "")
    if decision is not None:
        clocks[decision.sender] = decision.time - arrival
    leader = leading(store, now)
    return [
        cluster.check_memory(info, applications, len(executors)),
        *host.check_clocks(clocks),
        cluster.check_controller(leader.state if leader is not None else None),
        *cluster.check_agents(nodes, max_window_age(settings), listed=agents is not None),
        *cluster.check_links(applications),
        *cluster.check_spark(applications),
    ]


def _reporting_name(store: Store, executor: ExecutorInfo) -> str:
    """Return the name of an executor's agent: its host if one is in its pod, else its node."""
    in_pod = executor.node and keys.is_valid_name(executor.host) and store.last(keys.WINDOWS, executor.host, 1)
    return executor.host if in_pod else executor.node_name


def list_agents(store: Store) -> list[str] | None:
    """Return the nodes with an agent; None without permission to list keys."""
    try:
        return store.list_names(keys.WINDOWS)
    except StoreForbiddenError:
        return None


def _application_facts(store: Store, name: str, now: float, clocks: dict[str, float]) -> ApplicationFacts | None:
    """Read the facts of an application; None if it ended long ago or has no possible key."""
    rejected = store.rejected
    try:
        envelope = store.get(keys.REPORT, name)
        if envelope is None or not isinstance(envelope.body, LinkReport):
            recent = name in store.applications(now - 2 * keys.REPORT.ttl)
            unreadable = store.rejected > rejected or envelope is not None
            return ApplicationFacts(name, None, unreadable=unreadable) if recent or unreadable else None
        arrival, last = _newest_message(store, keys.BATCHES, name)
        if last is not None:
            clocks[last.sender] = last.time - arrival
        batches = bodies_of(store.last(keys.BATCHES, name, _BATCHES), BatchReport)
    except KeyNameError:
        return None
    stages = stage_seconds(batches, envelope.body)
    return ApplicationFacts(name, envelope.body, max(0.0, now - envelope.time), stages=stages)


def stage_seconds(batches: Sequence[BatchReport], report: LinkReport) -> dict[str, float]:
    """Return the median seconds of the stateful stages of each query, by name or id."""
    names = {query.query: query.name or query.query for query in report.queries}
    durations: dict[str, list[float]] = defaultdict(list)
    for batch in batches:
        for stage in batch.stages:
            if stage.stateful_stage >= 0 and stage.tasks:
                duration = max(task.finish for task in stage.tasks) - min(task.launch for task in stage.tasks)
                durations[names.get(batch.query, batch.query)].append(duration)
    return {query: median(seconds) for query, seconds in durations.items()}


def _newest_message(store: Store, rule: KeyRule, name: str) -> tuple[float, Envelope | None]:
    """Return arrival (by Redis' clock) and content of a stream's newest message; else 0, None.

    The id of an entry has the time of its arrival. Its difference to the time in the message is the difference between
    the clocks of Redis and the sender, plus the delay of the message.
    """
    for _ in range(3):
        before = store.last_id(rule, name)
        messages = store.last(rule, name, 1)
        if before == store.last_id(rule, name):  # nothing arrived between the two calls
            return (int(before.partition("-")[0]) / 1000, messages[-1]) if messages else (0.0, None)
    return 0.0, None
