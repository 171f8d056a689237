"""The live comparison as a reader sees it. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.live.situations import SITUATIONS
from benchmarks.live.summary import BETTER, METRICS, Cell, group, table
from benchmarks.live.ways import ADAPTIVE, SPARK

__all__ = ["headline", "section"]

# What the papers report for their own systems, on other engines and machines: not comparable figure by figure.
_SOURCES = (
    (
        "DSC-Heron, average over its topologies",
        "latency -8.35 %, traffic -7.07 %, throughput +6.83 %, CPU spread -41.44 %",
    ),
    ("L/F scheduler, page view", "latency 19.58 % (simple) and 12.13 % (unique) below even"),
    ("pipelined migration", "no figures in its text; see the simulation"),
    ("Twister2's schedulers", "no measured results"),
)
_HOW = f"""\
In a session one query runs through all ways by turns, in an order that chance decides. Every way begins on the same
placement, drawn as unevenly as Spark's first batches place partitions, goes through the event, and is asked once (twice
where it may adapt before the event). Durations and throughput are first taken over those that the way itself began
with: what slowly changes over a session is then not taken for a way's. `{SPARK.name}` is nobody asked and nothing
spread, twice in each session: what those two differ by is **noise**, and no figure within it is called a difference.
The default policy (`{ADAPTIVE.name}`) goes through the gate, as it does for whoever runs Rechannel; the policies of the
literature are done as they propose (`--force`), as their own systems would."""
_READ = """\
Every cell is the way over Spark as it is in the same session: the median over sessions, in brackets the least and the
most. Less is better but for throughput. *Italic: within the noise.* The p99 of so few batches is nearly the longest
one."""
_SHOWN = ("mean", "p99", "throughput", "bytes_per_row", "cpu_spread", "memory_spread", "all", "longest")


def headline(figures: Mapping[str, Any]) -> str:
    """Return the sentences that the README may say: by situation, the default policy over Spark as it is."""
    parts = []
    for (workload, situation), sessions in group(figures).items():
        cell = table(sessions).get(ADAPTIVE.name, {}).get("mean")
        if cell is not None:
            verdict = "within the noise" if cell.in_noise else f"noise up to {cell.noise:.2f}"
            parts.append(f"{situation} ({workload}): **{cell.middle:.2f}** ({verdict})")
    return "; ".join(parts)


def section(figures: Mapping[str, Any]) -> str:
    """Return the part of the page."""
    groups = group(figures)
    sessions = figures["sessions"]
    lines = [
        "## Live, on a real cluster",
        "",
        _testbed(sessions),
        "",
        _HOW,
        "",
        _READ,
        "",
        *_exact(sessions),
        "",
        "![mean batch duration over Spark's, by situation and way](images/live-latency.svg)",
        "",
        "![batch durations since the event](images/live-timeline.svg)",
        "",
    ]
    for (workload, situation), found in groups.items():
        lines += _situation(workload, situation, found)
    lines += [
        "**What the sources report** of their own systems, on other engines and machines:",
        "",
        *(f"* {name}: {said}" for name, said in _SOURCES),
        "",
    ]
    return "\n".join(lines)


def _testbed(sessions: Sequence[Mapping[str, Any]]) -> str:
    known = [session["testbed"] for session in sessions if "testbed" in session]
    if not known:
        return "Nothing was measured."
    one, box = known[0], known[0]["machine"]
    loads = [each["machine"]["load_average"] for each in known]
    return (
        f"{max(len(each['nodes']) for each in known)} nodes on one machine of {box['cores']} cores "
        f"({box['processor']}, {box['memory_mb'] // 1024} GB), Spark {box['spark']}. "
        f"Network: {_each(known, 'network')}. CPU: {_each(known, 'cpu')}. Memory: {one['memory']}. "
        f"Load average when a session began: {min(loads):g} to {max(loads):g}."
    )


def _each(testbeds: Sequence[Mapping[str, Any]], name: str) -> str:
    return "; in other sessions: ".join(dict.fromkeys(each[name] for each in testbeds))


def _exact(sessions: Sequence[Mapping[str, Any]]) -> list[str]:
    ended = [session for session in sessions if "end" in session]
    audits = [found for session in ended for found in session["end"]["audit"].values()]
    lost, doubled = (sum(found[name] for found in audits) for name in ("lost", "doubled"))
    failed = sum(session["end"]["failed_attempts"] for session in ended)
    killed = sum(session["end"]["failed_attempts"] for session in ended if session["situation"] in ("lost", "joined"))
    phases = [phase for session in sessions for phase in session.get("figures", ())]
    moved = sum(phase["landed"] for phase in phases)
    given_up = sum(phase["given_up"] for phase in phases)
    wrong = sum(not found["ok"] for found in audits)
    return [
        f"{len(ended)} sessions, {len(phases)} phases: {moved} moves landed, {given_up} given up.",
        f"Rows lost: {lost}, doubled: {doubled}; outputs unlike the batch computation: {wrong} of {len(audits)}.",
        f"Failed task attempts: {failed}, of which {killed} where the situation itself kills or stops an executor.",
    ]


def _situation(workload: str, situation: str, sessions: Sequence[Mapping[str, Any]]) -> list[str]:
    cells = table(sessions)
    noise = next(iter(cells.values()))["mean"].noise
    shown = [metric for metric in _SHOWN if any(metric in found for found in cells.values())]
    order = sorted(cells, key=lambda way: (way == SPARK.name, cells[way]["mean"].middle))
    seconds = statistics.median(
        phase["mean"] for session in sessions for phase in session["figures"] if phase["way"] == SPARK.name
    )
    lines = [
        f"### {situation}, {workload}",
        "",
        (
            f"{SITUATIONS[situation].summary} {len(sessions)} session(s); Spark's mean batch {seconds:.2f} s; noise of "
            f"the mean {noise:.2f}."
        ),
        "",
        f"| way | {' | '.join(METRICS[metric] for metric in shown)} | moves |",
        f"| --- |{' ---: |' * (len(shown) + 1)}",
    ]
    for way in order:
        moves = [phase["moves"] for session in sessions for phase in session["figures"] if phase["way"] == way]
        row = [_cell(cells[way].get(metric)) for metric in shown]
        lines.append(f"| `{way}` | {' | '.join(row)} | {statistics.median(moves):g} |")
    return [*lines, "", _verdict(cells), ""]


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return "-"
    spread = f" ({cell.least:.2f}-{cell.most:.2f})" if cell.sessions > 1 else ""
    return f"*{cell.middle:.2f}*{spread}" if cell.in_noise else f"{cell.middle:.2f}{spread}"


def _verdict(cells: Mapping[str, Mapping[str, Cell]]) -> str:
    """Say plainly where the default policy is ahead, and where it is not."""
    own = cells.get(ADAPTIVE.name)
    if own is None:
        return "The default policy was not measured here."
    ahead: list[str] = []
    behind: list[str] = []
    for metric, cell in own.items():
        if cell.in_noise:
            continue
        better = cell.middle > 1 if BETTER.get(metric) else cell.middle < 1
        (ahead if better else behind).append(METRICS[metric])
    rivals = {way: found["mean"] for way, found in cells.items() if way not in (ADAPTIVE.name, SPARK.name)}
    faster = [way for way, cell in rivals.items() if cell.middle * own["mean"].noise < own["mean"].middle]
    sentences = [
        (
            f"Against Spark as it is, `{ADAPTIVE.name}` is ahead in {', '.join(ahead) or 'nothing'}, behind in "
            f"{', '.join(behind) or 'nothing'}, and within the noise in the rest."
        )
    ]
    if rivals:
        sentences.append(
            f"By the mean batch, beyond the noise faster than it: {', '.join(f'`{way}`' for way in faster)}."
            if faster
            else "By the mean batch no other policy is faster than it beyond the noise."
        )
    return " ".join(sentences)
