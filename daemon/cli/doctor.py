"""The command ``doctor``: gathers the facts, has them checked, and shows what was found. It changes nothing."""

from __future__ import annotations

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
from rich.markup import escape

from rechannel.conf.loader import read_settings
from rechannel.conf.settings import Settings
from rechannel.daemon.cli import config as cli_config
from rechannel.daemon.cli import tables
from rechannel.daemon.doctor import cluster as doctor_cluster
from rechannel.daemon.doctor import node as doctor
from rechannel.daemon.doctor import spark_properties
from rechannel.daemon.doctor.cluster import Application, Node
from rechannel.daemon.doctor.node import Finding, HostFacts, RedisFacts, RedisPermissions, Severity
from rechannel.daemon.model.application_messages import max_window_age
from rechannel.daemon.view.last_leader import leading
from rechannel.wire import keys
from rechannel.wire.envelope import Envelope
from rechannel.wire.exit_codes import CommandError, ExitCode
from rechannel.wire.keys import KeyNameError, KeyRule, Role
from rechannel.wire.measurements import AgentWindow, BatchReport
from rechannel.wire.messages import LinkReport
from rechannel.wire.printable import plain
from rechannel.wire.redis.errors import StoreError, StoreForbiddenError
from rechannel.wire.redis.store import Store

_BATCHES = 20  # of an application that are looked at
_WINDOWS, _LOOKED_INTO = 8, 200  # of a node, for so many nodes: one may be a megabyte
_NODES = 1000  # at most
_NAMED = "doctor"  # what stands in a key for an application, a query or a request
_STYLES = {Severity.OK: "green", Severity.WARNING: "yellow", Severity.FAILED: "bold red"}
_JAVA_PATIENCE = 20.0  # seconds

# Sent to learn whether they are allowed. Redis looks at the rights before it looks at what these ask for: the ones that
# write are refused for their form, the ones that read ask for nothing.
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


def run(config: str | None, *, spark_conf: str, as_json: bool) -> ExitCode:
    """Check everything that can be reached, or one file of Spark settings; returns the exit code."""
    found = doctor_cluster.settings(spark_defaults(Path(spark_conf)), spark_conf) if spark_conf else examine(config)
    show(found, as_json=as_json)
    return doctor.exit_of(found)


def examine(config: str | None) -> list[Finding]:
    """Gather the facts and check them. Without a usable configuration only this machine is looked at."""
    loaded = read_settings(config)
    mistakes, notes = cli_config.examine(loaded)
    found = [*doctor.machine(this_machine()), *doctor.configuration(loaded, mistakes, notes)]
    if loaded.errors:
        return found
    settings = loaded.settings
    found += doctor.times(settings)
    try:
        store = Store(settings.redis, settings.cluster.name)
        try:
            found += _of_redis(store, settings)
        finally:
            store.close()
    except StoreError as error:
        sentence, _, cure = str(error).rpartition("; ")
        cure = cure if sentence else "see redis.url and the server"
        found.append(doctor.failed("redis", sentence or str(error), cure))
    return found


def show(found: Sequence[Finding], *, as_json: bool) -> None:
    """Print what was found: JSON, or lines with the cures."""
    counts = {verdict: sum(item.verdict is verdict for item in found) for verdict in Severity}
    if as_json:
        document = {"ok": not counts[Severity.FAILED], "counts": counts, "checks": [asdict(item) for item in found]}
        click.echo(json.dumps(document))
        return
    console = tables.new_console()
    for item in found:
        subject = f" {item.subject}:" if item.subject else ""
        style = _STYLES[item.verdict]
        said = escape(plain(f"{item.check}:{subject} {item.sentence}"))
        console.print(f"[{style}]{item.verdict:<8}[/{style}]{said}")
        if item.cure:
            console.print(f"        → {escape(plain(item.cure))}")
    words = [f"{counts[Severity.FAILED]} failed", f"{counts[Severity.WARNING]} warnings", f"{counts[Severity.OK]} ok"]
    console.print(", ".join(words))


def this_machine() -> HostFacts:
    """Return the versions of what is installed here."""
    packages = {}
    for name in doctor.NEEDED:
        try:
            packages[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return HostFacts(sys.version_info[:3], packages, java_version(os.environ))


def java_version(environ: Mapping[str, str]) -> str:
    """Return the version of the Java that Spark would take: JAVA_HOME's, else the first of the path; "" for none."""
    home = environ.get("JAVA_HOME", "")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java", path=environ.get("PATH"))
    try:
        # The Java that Spark itself would start.
        done = subprocess.run([java or "java", "-version"], capture_output=True, text=True, timeout=_JAVA_PATIENCE)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return ""
    match = re.search(r'version "([^"]+)"', done.stderr + done.stdout)
    return match[1] if match else ""


def spark_defaults(path: Path) -> dict[str, str]:
    """Read a file such as spark-defaults.conf."""
    try:
        return spark_properties.read(path)
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(ExitCode.REFUSED, f"--conf: {path} cannot be read") from error


def _of_redis(store: Store, settings: Settings) -> list[Finding]:
    """Check Redis, and all that is known through it. Raises StoreError where it cannot be asked."""
    began, clock = time.monotonic(), time.time()
    info = store.server_info()
    seconds = time.monotonic() - began
    ahead = float(info.get("server_time_usec", clock * 1e6)) / 1e6 - (clock + seconds / 2)
    found = doctor.redis(RedisFacts(info, seconds, ahead), settings.redis.timeout)
    if found[1].verdict is Severity.FAILED:
        return found
    rights = rights_of(store, settings)
    found.append(doctor.rights(rights))
    if not rights.administrator and not doctor.needs(Role.VIEWER) <= rights.may:
        sentence = "the running cluster was not looked at: that takes the rights of a viewer"
        return [*found, doctor.warning("links", sentence, "use the configuration of a viewer or an operator")]
    try:
        return found + _of_cluster(store, settings, ahead, info)
    except StoreForbiddenError as error:
        return [*found, doctor.failed("redis-rights", str(error), "make the user anew with `rechannel acl add-role`")]


def rights_of(store: Store, settings: Settings) -> RedisPermissions:
    """Try what the user of these settings may do, without doing it; Redis notes what it refuses in its ACL log."""
    user = settings.redis.username or "default"
    administrator = store.can_run(*_ADMINISTRATION)
    may = set()
    for rule in keys.TABLE:
        key = store.keys(rule, settings.node if "{node}" in rule.pattern else _NAMED)
        for verb, commands in (("read", _READS), ("write", _WRITES)):
            if administrator or store.can_run(*(word.format(key) for word in commands[rule.kind])):
                may.add((rule.pattern, verb))
    return RedisPermissions(user, doctor.named_role(settings), frozenset(may), administrator)


def _of_cluster(store: Store, settings: Settings, ahead: float, server: Mapping[str, Any]) -> list[Finding]:
    now = time.time() + ahead  # by Redis' clock
    clocks: dict[str, float] = {}
    applications = [_application(store, name, now, clocks) for name in store.applications(now - keys.APPLICATIONS.ttl)]
    heard = [item for item in applications if item is not None]
    executors: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for item in heard:
        for info in item.report.executors if item.report else ():
            executors[info.host].add((item.application, info.executor))
    agents = agents_of(store)
    nodes = {}
    strangers = sorted(set(agents or ()) - executors.keys())
    for number, host in enumerate([*sorted(executors), *strangers][:_NODES]):
        arrived, last = _newest(store, keys.WINDOWS, host)
        window = last.body if last is not None and isinstance(last.body, AgentWindow) else None
        if last is not None:
            clocks[last.sender] = last.time - arrived
        newest = store.last(keys.WINDOWS, host, _WINDOWS) if last is not None and number < _LOOKED_INTO else []
        nodes[host] = Node(frozenset(executors[host]), window, now - arrived, doctor_cluster.several(newest))
    arrived, decision = _newest(store, keys.DECISIONS, "")
    if decision is not None:
        clocks[decision.sender] = decision.time - arrived
    return [
        doctor_cluster.memory(server, heard, len(executors)),
        *doctor.clocks(clocks),
        doctor_cluster.controller(leader.state if (leader := leading(store, now)) is not None else None),
        *doctor_cluster.agents(nodes, max_window_age(settings), listed=agents is not None),
        *doctor_cluster.links(heard),
        *doctor_cluster.spark(heard),
    ]


def agents_of(store: Store) -> list[str] | None:
    """List the nodes that agents report for, whether executors are known there or not; None without that right."""
    try:
        return store.list_names(keys.WINDOWS)
    except StoreForbiddenError:
        return None


def _application(store: Store, name: str, now: float, clocks: dict[str, float]) -> Application | None:
    """Look at an application; None for one that ended more than a report's life ago, or that can have no key."""
    rejected = store.rejected
    try:
        envelope = store.get(keys.REPORT, name)
        if envelope is None or not isinstance(envelope.body, LinkReport):
            recent = name in store.applications(now - 2 * keys.REPORT.ttl)
            unreadable = store.rejected > rejected or envelope is not None
            return Application(name, None, unreadable=unreadable) if recent or unreadable else None
        arrived, last = _newest(store, keys.BATCHES, name)
        if last is not None:
            clocks[last.sender] = last.time - arrived
        reports = [item.body for item in store.last(keys.BATCHES, name, _BATCHES)]
    except KeyNameError:
        return None
    stages = stage_seconds([body for body in reports if isinstance(body, BatchReport)], envelope.body)
    return Application(name, envelope.body, max(0.0, now - envelope.time), stages=stages)


def stage_seconds(reports: Sequence[BatchReport], report: LinkReport) -> dict[str, float]:
    """Return the median seconds of the stateful stages of each query, by its name where it has one."""
    names = {query.query: query.name or query.query for query in report.queries}
    found: dict[str, list[float]] = defaultdict(list)
    for batch in reports:
        for stage in batch.stages:
            if stage.stateful >= 0 and stage.tasks:
                began, ended = min(task.launch for task in stage.tasks), max(task.finish for task in stage.tasks)
                found[names.get(batch.query, batch.query)].append(ended - began)
    return {query: median(seconds) for query, seconds in found.items()}


def _newest(store: Store, rule: KeyRule, name: str) -> tuple[float, Envelope | None]:
    """Return the newest message of a stream and when it arrived, by Redis' clock; 0 and None where there is none.

    Redis counts a stream's entries by the time of their arrival: beside the time in the message that is the difference
    of two clocks, and of the little while that it travelled.
    """
    for _ in range(3):
        before = store.last_id(rule, name)
        found = store.last(rule, name, 1)
        if before == store.last_id(rule, name):  # nothing came in between
            return (int(before.partition("-")[0]) / 1000, found[-1]) if found else (0.0, None)
    return 0.0, None
