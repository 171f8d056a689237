"""Checks of the running cluster: controller, agents, links and Spark. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from rechannel.daemon.doctor.finding import Finding, failed, ok, warning
from rechannel.migration.spark import compatibility, versions
from rechannel.wire.envelope import Envelope
from rechannel.wire.measurements import AgentWindow
from rechannel.wire.messages import ControllerState, LinkReport
from rechannel.wire.redis import capacity
from rechannel.wire.version import __version__

_OVERLAPS, _SHARED = 3, 0.4  # pairs of windows with at least this share of their time in common
_LISTED = 5  # nodes
_COMPLETE = 0.8  # share of a window's samples
_BUSY_WAIT = 10  # times the longest stage; a longer wait delays batches more than it helps
_DEFAULT_WAIT = 3.0  # seconds
_NO_AGENTS = (
    "no agent reports from any of the {nodes} nodes with executors; decisions need none, but sizes of streams, CPU and "
    "memory are unknown"
)
_START_AGENTS = "start `rechannel agent` on each node; a solo run goes without"


@dataclass(frozen=True)
class ApplicationFacts:
    """Last report of an application's link (None: silent or unreadable) and its age.

    ``unreadable``: there is a report, but this release cannot read it. ``stages``: query -> median seconds of its
    stateful stages.
    """

    application: str
    report: LinkReport | None
    age: float = 0.0
    unreadable: bool = False
    stages: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class NodeFacts:
    """Executors of a node, and the last window of its agent (None: none) with its age.

    ``several``: more than one agent reports for the node.
    """

    executors: frozenset[tuple[str, str]]  # application and executor
    window: AgentWindow | None
    age: float = 0.0
    several: bool = False


def check_controller(state: ControllerState | None) -> Finding:
    """Check that a controller leads."""
    if state is None:
        cure = "start `rechannel controller`; if it runs, see its log"
        return failed("controller", "no controller leads: nothing is decided, and orders are not answered", cure)
    held = ", paused" if state.paused else ""
    return ok("controller", f"{state.leader} leads in epoch {state.epoch}, mode {state.mode}{held}")


def check_memory(info: Mapping[str, Any], applications: Sequence[ApplicationFacts], nodes: int) -> Finding:
    """Check that Redis has room for the largest size of all keys of the cluster."""
    reports = [item.report for item in applications if item.report is not None]
    need = capacity.required_memory(nodes, [_capacity_of(report) for report in reports])
    maxmemory = info.get("maxmemory", 0)
    limit = float(maxmemory) if isinstance(maxmemory, int | float) else 0.0
    size = f"the keys of {nodes} nodes and {len(reports)} applications take up to {capacity.format_mib(need)}"
    if not limit:
        return ok("redis-memory", f"{size}; maxmemory is not set")
    if limit < need:
        sentence = f"maxmemory is {capacity.format_mib(limit)}, but {size}: when full, Redis refuses measurements"
        return warning("redis-memory", sentence, f"in redis.conf: maxmemory {math.ceil(need / 2**20)}mb, or more")
    return ok("redis-memory", f"{size}, and maxmemory is {capacity.format_mib(limit)}")


def _capacity_of(report: LinkReport) -> capacity.Application:
    partitions = sum(stage.partitions for query in report.queries for stage in query.stages)
    return capacity.Application(len(report.executors), len(report.queries), partitions)


def has_several_agents(messages: Sequence[Envelope]) -> bool:
    """Whether messages of a node (in order of arrival) come from several agents at a time.

    The windows of one agent follow each other. A message that was sent twice counts once, and a restart or a changed
    clock may let two windows overlap.
    """
    windows = {(item.time, item.sequence): item.body for item in messages if isinstance(item.body, AgentWindow)}
    overlaps = 0
    for before, after in pairwise(windows.values()):
        shared = min(before.end, after.end) - max(before.start, after.start)
        overlaps += shared > _SHARED * min(before.end - before.start, after.end - after.start)
    return overlaps >= _OVERLAPS


def check_agents(nodes: Mapping[str, NodeFacts], stale: float, *, listed: bool = True) -> list[Finding]:
    """Check that each node with executors has windows newer than ``stale`` seconds.

    ``listed``: agents of nodes without executors are included.
    """
    findings = _check_unexpected_agents(nodes, stale)
    busy = {host: node for host, node in nodes.items() if node.executors}
    if busy and not any(node.window for node in nodes.values()):
        return [warning("agents", _NO_AGENTS.format(nodes=len(busy)), _START_AGENTS)]
    findings += [finding for host, node in sorted(busy.items()) if (finding := _check_agent(host, node, stale))]
    if findings:
        return findings
    measured = f"{len(busy)} nodes with executors, each measured" if busy else "no executors are known"
    windows = [node.window for node in busy.values() if node.window is not None]
    limits = [usage.cpu_limit for window in windows for usage in window.executors if usage.cpu_limit > 0]
    if limits:
        measured += f"; executors with a CPU limit: {len(limits)}, the lowest {min(limits):.3g} cores"
    restriction = "" if listed else "; agents of other nodes can be listed by an administrator of Redis alone"
    return [ok("agents", measured + restriction)]


def _check_agent(host: str, node: NodeFacts, stale: float) -> Finding | None:
    """Check the agent of a node with executors; None if there is no problem."""
    window = node.window
    if window is None:
        cure = "start `rechannel agent` there as Spark's user; if it runs, set agent.node to the host Spark shows"
        return failed("agents", f"no agent reports for it, but it has {len(node.executors)} executors", cure, host)
    if node.age > stale:
        sentence = f"the agent's last window is {node.age:.0f} s old; older than {stale:.0f} s is not used"
        return failed("agents", sentence, "see the agent's log there, and whether it reaches Redis", host)
    if unseen := node.executors - {(usage.application, usage.executor) for usage in window.executors}:
        sentence = f"the agent does not see {len(unseen)} of {len(node.executors)} executors"
        return warning("agents", sentence, "run it as Spark's user, in the same PID namespace", host)
    if window.complete < _COMPLETE:
        sentence = f"the agent took only {window.complete:.0%} of its samples"
        return warning("agents", sentence, "the node is overloaded: reduce its load", host)
    return None


def _check_unexpected_agents(nodes: Mapping[str, NodeFacts], stale: float) -> list[Finding]:
    """Find nodes with several agents, and agents of nodes that no application knows."""
    hosts = sorted(host for host, node in nodes.items() if node.executors)
    findings = []
    for host, node in sorted(nodes.items()):
        if node.window is None or node.age > stale:
            continue
        if node.several:
            sentence = "more than one agent reports for it, and their figures are mixed up"
            cure = "stop all but one; if they run on several machines, give each its own agent.node"
            findings.append(warning("agents", sentence, cure, host))
        if hosts and not node.executors and not node.window.executors:
            names = ", ".join(hosts[:_LISTED]) + (", …" if len(hosts) > _LISTED else "")
            sentence = f"an agent reports for it, but no application has executors there, only on {names}"
            cure = "if executors run on that machine, set agent.node to the host that Spark shows; else it is idle"
            findings.append(warning("agents", sentence, cure, host))
    return findings


def check_links(applications: Sequence[ApplicationFacts]) -> list[Finding]:
    """Check that every link reports, and the problems that it reports."""
    findings = [finding for application in applications for finding in _check_link(application)]
    if not any(application.report or application.unreadable for application in applications):
        cure = "start a script with `rechannel submit`, or call rechannel.attach(spark) in its driver"
        findings.append(failed("links", "no application reports", cure))
    return findings


def _check_link(application: ApplicationFacts) -> list[Finding]:
    name, report = application.application, application.report
    if report is None and application.unreadable:
        cure = "use one release of Rechannel everywhere; if you do, another program writes to that key"
        return [failed("links", "its report cannot be read: of another schema, or malformed", cure, name)]
    if report is None:
        cure = "if it still runs, see its driver's log (rechannel submit, rechannel.attach)"
        return [warning("links", "its link has been silent for a minute", cure, name)]
    findings = []
    release = report.environment.get("rechannel", "")
    if release != __version__:
        origin = f"of release {release}" if release else "of an older release, which reports no settings of Spark"
        sentence = f"its link is {origin}, this is {__version__}"
        findings.append(warning("links", sentence, "use one release everywhere", name))
    if refusal := versions.refusal(report.spark_version):
        findings.append(warning("links", refusal, "see docs/compatibility.md for the features of each version", name))
    if report.rejected_messages:
        sentence = f"its link refused {report.rejected_messages} messages: malformed, unsigned, or of another key"
        cure = "compare the controllers' key with its signing.public_key_file (`rechannel config check`)"
        findings.append(warning("links", sentence, cure, name))
    findings_of_settings = compatibility.check_settings(report.environment.get)
    of_settings = {finding.sentence for finding in findings_of_settings}  # reported as spark-settings
    for problem in report.problems:
        if problem not in of_settings:
            sentence, cure = _split_cure(problem)
            findings.append(warning("links", sentence, cure or "see the driver's log", name))
    findings += [
        warning("links", f"query {query.name or query.query}: {query.problem}", "see docs/compatibility.md", name)
        for query in report.queries
        if query.problem
    ]
    sentence = f"its link reported {application.age:.0f} s ago, on Spark {report.spark_version}"
    return findings or [ok("links", sentence, name)]


def check_spark(applications: Sequence[ApplicationFacts]) -> list[Finding]:
    """Check the Spark settings of each application that reports them."""
    findings = []
    for application in applications:
        report = application.report
        if report is not None and report.environment:
            findings += check_settings(report.environment, application.application)
            findings.append(_check_locality(report, application))
    return findings


def check_settings(settings: Mapping[str, str], subject: str) -> list[Finding]:
    """Check Spark settings of an application or a file; a missing one has its default."""
    findings = []
    for finding in compatibility.check_settings(settings.get):
        sentence, cure = _split_cure(finding.sentence)
        report = failed if finding.code == compatibility.LOCAL_MASTER else warning
        findings.append(report("spark-settings", sentence, cure or "see docs/compatibility.md", subject))
    return [
        *(findings or [ok("spark-settings", "no setting restricts Rechannel", subject)]),
        _check_shuffle(settings, subject),
        _check_cores(settings.get("spark.task.cpus", "1"), subject),
        _check_scheduler(settings.get("spark.scheduler.mode", ""), subject),
    ]


def _check_shuffle(settings: Mapping[str, str], subject: str) -> Finding:
    advice = compatibility.advice(settings.get)
    if not advice:
        threshold = settings.get(compatibility.BYPASS, "200")
        reason = "no shuffle uses the writer that may lose rows (SPARK-37473)"
        return ok("spark-shuffle", f"{compatibility.BYPASS} is {threshold}: {reason}", subject)
    sentence, cure = _split_cure(advice[0].sentence)
    return warning("spark-shuffle", sentence, cure, subject)


def _check_cores(cores: str, subject: str) -> Finding:
    if not cores.strip().isdecimal() or int(cores) <= 1:
        return ok("spark-cores", "a task takes one core", subject)
    sentence = (
        f"spark.task.cpus={cores}: an executor runs one task for every {cores} cores, but utilization is counted in "
        "cores, and shows less load than there is"
    )
    cure = f"set spark.task.cpus to 1, or divide gate.max_utilization by {cores}"
    return warning("spark-cores", sentence, cure, subject)


def _check_scheduler(mode: str, subject: str) -> Finding:
    if mode.strip().upper() in ("", "FIFO", "FAIR"):
        sentence = f"spark.scheduler.mode={mode or 'FIFO'} orders jobs, and has no effect on placement"
        return ok("spark-scheduler", sentence, subject)
    sentence = f"spark.scheduler.mode={mode} does not exist in Spark: the application does not start"
    return warning("spark-scheduler", sentence, "set it to FIFO or FAIR", subject)


def _check_locality(report: LinkReport, application: ApplicationFacts) -> Finding:
    """Compare the wait with the stages: it should be longer, but not by far."""
    name = application.application
    key, value = compatibility.locality_wait(report.environment.get, "process")  # tasks with state name executors
    wait = compatibility.seconds(value)
    if wait is None or not application.stages:
        return ok("spark-locality", f"{key} is {value}; no stage was measured yet", name)
    query, longest = max(application.stages.items(), key=lambda item: item[1])
    if longest > wait and report.drifted_partitions:
        sentence = (
            f"stages of {query} last {longest:.1f} s, longer than {key}={value}, and "
            f"{report.drifted_partitions} partitions drifted: a task that waits behind others goes to any idle executor"
        )
        if longest > compatibility.LONG_WAIT:
            cure = "a longer wait would delay whole batches, so some drift stays; shorten the stages if it matters"
            return ok("spark-locality", f"{sentence}; {cure}", name)
        # Within the limits that `check_settings` accepts.
        better = min(max(2 * longest, _DEFAULT_WAIT), compatibility.LONG_WAIT)
        return warning("spark-locality", sentence, f"set {key} to {math.ceil(better)}s", name)
    if wait > _DEFAULT_WAIT and wait > _BUSY_WAIT * longest:
        sentence = (
            f"{key}={value} is {wait / max(longest, 0.001):.0f} times the longest stage ({longest:.1f} s)"
            ": one busy executor delays a whole batch for that long"
        )
        return warning("spark-locality", sentence, f"set {key} to 3s, the default", name)
    sentence = f"{key} is {value}, the longest stateful stage takes {longest:.1f} s"
    return ok("spark-locality", sentence, name)


def _split_cure(text: str) -> tuple[str, str]:
    """Split a text into a sentence and the cure at its end, "" if it has none."""
    for separator in (". ", "; "):
        sentence, separated, cure = text.rpartition(separator)
        if separated:
            return sentence, cure.removesuffix(".")
    return text, ""
