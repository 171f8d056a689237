"""What `rechannel doctor` checks of the running cluster: controller, agents, links, each application's Spark. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from rechannel import __version__
from rechannel.daemon.doctor.node import Finding, failed, ok, warning
from rechannel.migration.spark import compatibility, versions
from rechannel.wire.envelope import Envelope
from rechannel.wire.measurements import AgentWindow
from rechannel.wire.messages import ControllerState, LinkReport
from rechannel.wire.redis import capacity

_OVERLAPS, _SHARED = 3, 0.4  # windows of the last ones, that have such a share of their time in common
_LISTED = 5  # nodes
_COMPLETE = 0.8  # share of a window's samples
_BUSY_WAIT = 10  # a wait that is so many times a stage holds a batch up more than it helps
_DEFAULT_WAIT = 3.0  # seconds


@dataclass(frozen=True)
class Application:
    """An application on the list: its link's last report (None: silent, or unreadable) and its age in seconds.

    ``unreadable``: there is a message, but not one that this release reads. ``stages``: query -> median seconds of its
    stateful stages.
    """

    application: str
    report: LinkReport | None
    age: float = 0.0
    unreadable: bool = False
    stages: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Node:
    """A node: its executors, and the agent's last window (None: none) with its age in seconds.

    ``several``: more than one agent reports for it.
    """

    executors: frozenset[tuple[str, str]]  # application and executor
    window: AgentWindow | None
    age: float = 0.0
    several: bool = False


def controller(state: ControllerState | None) -> Finding:
    """Check that somebody leads."""
    if state is None:
        cure = "start `rechannel controller`; if it runs, see its log"
        return failed("controller", "no controller leads: nothing is decided, and orders stay unanswered", cure)
    held = ", paused" if state.paused else ""
    return ok("controller", f"{state.leader} leads in epoch {state.epoch}, mode {state.mode}{held}")


def memory(info: Mapping[str, Any], applications: Sequence[Application], nodes: int) -> Finding:
    """Check that Redis (``info``: INFO) has room for all that this cluster's keys may come to hold."""
    reports = [item.report for item in applications if item.report is not None]
    need = capacity.required_memory(nodes, [_capacity(report) for report in reports])
    limit = info.get("maxmemory", 0)
    limit = float(limit) if isinstance(limit, int | float) else 0.0
    holds = f"the keys of {nodes} nodes and {len(reports)} applications take up to {capacity.format_mib(need)}"
    if not limit:
        return ok("redis-memory", f"{holds}; maxmemory is not set")
    if limit < need:
        sentence = f"maxmemory is {capacity.format_mib(limit)}, but {holds}: when full, Redis refuses what is measured"
        return warning("redis-memory", sentence, f"in redis.conf: maxmemory {math.ceil(need / 2**20)}mb, or more")
    return ok("redis-memory", f"{holds}, and maxmemory is {capacity.format_mib(limit)}")


def _capacity(report: LinkReport) -> capacity.Application:
    partitions = sum(stage.partitions for query in report.queries for stage in query.stages)
    return capacity.Application(len(report.executors), len(report.queries), partitions)


def several(messages: Sequence[Envelope]) -> bool:
    """Whether these messages of a node, in the order of their arrival, come from more than one agent at a time.

    The windows of one follow upon each other; a message that was pushed twice is the same twice, and a restart or a
    clock that was set may let two overlap.
    """
    windows = {(item.time, item.sequence): item.body for item in messages if isinstance(item.body, AgentWindow)}
    overlaps = 0
    for before, after in pairwise(windows.values()):
        shared = min(before.end, after.end) - max(before.start, after.start)
        overlaps += shared > _SHARED * min(before.end - before.start, after.end - after.start)
    return overlaps >= _OVERLAPS


def agents(nodes: Mapping[str, Node], stale: float, *, listed: bool = True) -> list[Finding]:
    """Check that each node with executors is measured; a window older than ``stale`` seconds is not used.

    ``listed``: agents of nodes without executors are among them.
    """
    found = _odd_agents(nodes, stale)
    measured = {host: node for host, node in nodes.items() if node.executors}
    start = "start `rechannel agent` there as Spark's user; if it runs, set agent.node to the host Spark shows"
    for host, node in sorted(measured.items()):
        window = node.window
        if window is None:
            found.append(
                failed("agents", f"no agent was heard of, and it has {len(node.executors)} executors", start, host)
            )
        elif node.age > stale:
            sentence = f"the agent's last window is {node.age:.0f} s old; older than {stale:.0f} s is not used"
            found.append(failed("agents", sentence, "see the agent's log there, and whether it reaches Redis", host))
        elif unseen := node.executors - {(usage.application, usage.executor) for usage in window.executors}:
            sentence = f"the agent does not see {len(unseen)} of {len(node.executors)} executors"
            found.append(warning("agents", sentence, "run it as Spark's user, in the same PID namespace", host))
        elif window.complete < _COMPLETE:
            sentence = f"the agent took only {window.complete:.0%} of its samples"
            found.append(
                warning("agents", sentence, "the node is overloaded: raise agent.sample, or see what is", host)
            )
    if not found:
        said = f"{len(measured)} nodes with executors, each measured" if measured else "no executors are known"
        blind = "" if listed else "; agents of other nodes can be listed by an administrator of Redis alone"
        return [ok("agents", said + blind)]
    return found


def _odd_agents(nodes: Mapping[str, Node], stale: float) -> list[Finding]:
    """Find agents that report for one node together, and those whose node no application knows."""
    known = sorted(host for host, node in nodes.items() if node.executors)
    found = []
    for host, node in sorted(nodes.items()):
        if node.window is None or node.age > stale:
            continue
        if node.several:
            sentence = "more than one agent reports for it, and their figures mix"
            cure = "stop all but one; if they run on several machines, give each its own agent.node"
            found.append(warning("agents", sentence, cure, host))
        if known and not node.executors and not node.window.executors:
            listed = ", ".join(known[:_LISTED]) + (", …" if len(known) > _LISTED else "")
            sentence = f"an agent reports for it, but no application has executors there, only on {listed}"
            cure = "if executors run on that machine, set agent.node to the host Spark shows for them; else it is idle"
            found.append(warning("agents", sentence, cure, host))
    return found


def links(applications: Sequence[Application]) -> list[Finding]:
    """Check what each link says, and that it says something."""
    found = [found for application in applications for found in _link(application)]
    if not any(application.report or application.unreadable for application in applications):
        cure = "start a script with `rechannel submit`, or call rechannel.attach(spark) in its driver"
        found.append(failed("links", "no application reports", cure))
    return found


def _link(application: Application) -> list[Finding]:
    name, report = application.application, application.report
    if report is None and application.unreadable:
        cure = "use one release of Rechannel everywhere; if it is one, somebody else writes to that key"
        return [failed("links", "its report cannot be read: of another schema, or malformed", cure, name)]
    if report is None:
        cure = "if it still runs, see its driver's log (rechannel submit, rechannel.attach)"
        return [warning("links", "its link has been silent for a minute", cure, name)]
    found = []
    release = report.environment.get("rechannel", "")
    if release != __version__:
        of = f"of release {release}" if release else "of an older release, which does not tell its Spark's settings"
        found.append(warning("links", f"its link is {of}, this is {__version__}", "use one release everywhere", name))
    if refusal := versions.refusal(report.spark_version):
        found.append(warning("links", refusal, "see docs/compatibility.md for what each version has", name))
    if report.rejected_messages:
        sentence = f"its link refused {report.rejected_messages} messages: malformed, unsigned, or of another key"
        cure = "compare the controllers' key with its signing.public_key_file (`rechannel config check`)"
        found.append(warning("links", sentence, cure, name))
    known = {finding.sentence for finding in _findings(report)}  # spark-settings tells those
    for problem in report.problems:
        if problem not in known:
            sentence, cure = _apart(problem)
            found.append(warning("links", sentence, cure or "see the driver's log", name))
    found += [
        warning("links", f"query {query.name or query.query}: {query.problem}", "see docs/compatibility.md", name)
        for query in report.queries
        if query.problem
    ]
    said = f"its link was heard {application.age:.0f} s ago, on Spark {report.spark_version}"
    return found or [ok("links", said, name)]


def spark(applications: Sequence[Application]) -> list[Finding]:
    """Check the Spark settings of each application that tells them."""
    found = []
    for application in applications:
        report = application.report
        if report is not None and report.environment:
            found += settings(report.environment, application.application)
            found.append(_locality(report, application))
    return found


def settings(given: Mapping[str, str], subject: str) -> list[Finding]:
    """Check Spark settings, of an application or of a file; those that are not given are at their default."""

    def read(key: str, default: str) -> str:
        return given.get(key, default)

    found = []
    for finding in compatibility.examine(read):
        sentence, cure = _apart(finding.sentence)
        say = failed if finding.code == "local-master" else warning
        found.append(say("spark-settings", sentence, cure or "see docs/compatibility.md", subject))
    if not found:
        found.append(ok("spark-settings", "no setting stands in the way", subject))
    return [
        *found,
        _shuffle(compatibility.advice(read), read(compatibility.BYPASS, "200"), subject),
        _cores(read("spark.task.cpus", "1"), subject),
        _scheduler(read("spark.scheduler.mode", ""), subject),
    ]


def _shuffle(advice: Sequence[compatibility.Finding], threshold: str, subject: str) -> Finding:
    if not advice:
        said = f"{compatibility.BYPASS} is {threshold}: no shuffle takes the writer that may lose rows (SPARK-37473)"
        return ok("spark-shuffle", said, subject)
    sentence, cure = _apart(advice[0].sentence)
    return warning("spark-shuffle", sentence, cure, subject)


def _cores(cores: str, subject: str) -> Finding:
    if not cores.strip().isdecimal() or int(cores) <= 1:
        return ok("spark-cores", "a task takes one core", subject)
    sentence = (
        f"spark.task.cpus={cores}: an executor runs one task for every {cores} cores, but utilization is counted in "
        "cores, and shows less load than there is"
    )
    cure = f"set spark.task.cpus to 1, or divide gate.max_utilization and reschedule.overload_utilization by {cores}"
    return warning("spark-cores", sentence, cure, subject)


def _scheduler(mode: str, subject: str) -> Finding:
    said = f"spark.scheduler.mode={mode or 'FIFO'} orders jobs, not their places: nothing to do"
    if mode.strip().upper() in ("", "FIFO", "FAIR"):
        return ok("spark-scheduler", said, subject)
    sentence = f"spark.scheduler.mode={mode} is none of Spark's: the application does not start with it"
    return warning("spark-scheduler", sentence, "set it to FIFO or FAIR", subject)


def _locality(report: LinkReport, application: Application) -> Finding:
    """Compare the wait with the stages: tasks drift in stages longer than it, and a long one holds short ones up."""
    name = application.application
    value = report.environment.get("spark.locality.wait", "3s")
    wait = compatibility.seconds(value)
    if wait is None or not application.stages:
        return ok("spark-locality", f"spark.locality.wait is {value}; no stage was measured yet", name)
    query, longest = max(application.stages.items(), key=lambda item: item[1])
    if longest > wait and report.drifted_partitions:
        sentence = (
            f"stages of {query} last {longest:.1f} s, longer than spark.locality.wait={value}, and "
            f"{report.drifted_partitions} partitions drifted: a task that waits behind others goes to any idle executor"
        )
        if longest > compatibility.LONG_WAIT:
            cure = "a wait that long would hold whole batches up, so some drift stays; shorten the stages if it matters"
            return ok("spark-locality", f"{sentence}; {cure}", name)
        # None that another check finds too short or too long.
        better = min(max(2 * longest, _DEFAULT_WAIT), compatibility.LONG_WAIT)
        return warning("spark-locality", sentence, f"set spark.locality.wait to {math.ceil(better)}s", name)
    if wait > _DEFAULT_WAIT and wait > _BUSY_WAIT * longest:
        sentence = (
            f"spark.locality.wait={value} is {wait / max(longest, 0.001):.0f} times the longest stage ({longest:.1f} s)"
            ": one busy executor holds a whole batch up for that long"
        )
        return warning("spark-locality", sentence, "set spark.locality.wait to 3s, the default", name)
    return ok(
        "spark-locality", f"spark.locality.wait is {value}, the longest stateful stage takes {longest:.1f} s", name
    )


def _findings(report: LinkReport) -> list[compatibility.Finding]:
    return compatibility.examine(lambda key, default: report.environment.get(key, default))


def _apart(text: str) -> tuple[str, str]:
    """Part a sentence from the cure that ends it; "" where it has none."""
    for mark in (". ", "; "):
        sentence, found, cure = text.rpartition(mark)
        if found:
            return sentence, cure.removesuffix(".")
    return text, ""
