"""The live comparison's section and headline, from the figures alone.

This module computes the cells; the text is in ``templates/live.md.j2`` and ``templates/summary.md.j2``. Pure.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.live.situations import SITUATIONS
from benchmarks.live.summary import BETTER, METRICS, Cell, Noise, group, left_out, noise, still, table
from benchmarks.live.variants import ADAPTIVE, SPARK
from benchmarks.report.templates import render
from benchmarks.workloads.registry import all_workloads

# What the papers report for their own systems, on other engines and machines: not comparable figure by figure.
_SOURCES = {
    "stream-classification": "DSC-Heron over Heron's round robin, average of its topologies: latency -8.35 %, traffic "
    "-7.07 %, throughput +6.83 %, CPU spread -41.44 %",
    "locality-fairness": "the L/F scheduler, page view: latency 19.58 % (simple) and 12.13 % (unique) below even",
    "fair-redistribution": "pipelined migration: no figures in its text; see the simulation",
    "round-robin": "Twister2's schedulers: no measured results",
}
_RIVAL = "even"
_WORTH = 0.03  # a ratio that near to 1 is no difference worth the name, even where chance does less

Session = Mapping[str, Any]
Cells = Mapping[str, Mapping[str, Cell]]


def headline(figures: Mapping[str, Any]) -> str:
    """Return the default policy and ``even`` over Spark as it is, one row for each situation."""
    groups = group(figures["rows"])
    chance = noise(groups)
    rows, differences = [], []
    reaches: dict[int, float] = {}
    compared = 0
    for label, sessions in groups.items():
        cells = {name: cells["mean"] for name, cells in table(sessions, chance).items() if "mean" in cells}
        if (own := cells.get(ADAPTIVE.name)) is None:
            continue
        pair = (_cell(cell, " to ", beyond="**") for cell in (own, cells.get(_RIVAL)))
        rows.append([label, *pair, str(own.sessions)])
        reaches[own.sessions] = own.reach
        compared += _RIVAL in cells
        if difference := _difference(_RIVAL, sessions, chance):
            differences.append(f"{difference} in *{label}*")
    context = {
        "adaptive": ADAPTIVE.name,
        "rival": _RIVAL,
        "rows": rows,
        "reaches": [
            f"{reach:.2f} ({'1 session' if count == 1 else f'{count} sessions'})"
            for count, reach in sorted(reaches.items())
            if math.isfinite(reach)
        ],
        "compared": compared,
        "differences": differences,
        "quick": figures.get("quick", False),
    }
    return render("summary", context, wrap=False)


def section(figures: Mapping[str, Any]) -> str:
    """Return the section of the page."""
    groups = group(figures["rows"])
    sessions = [session for alike in groups.values() for session in alike]
    chance = noise(groups)
    measured = {session["situation"] for session in sessions}
    context = {
        "testbed": _testbed([session["testbed"] for session in sessions if "testbed" in session]),
        "exact": _exactness(figures["rows"]),
        "spark": SPARK.name,
        "adaptive": ADAPTIVE.name,
        "titles": METRICS,
        "chance": _chance(chance),
        "situations": [_situation(label, alike, chance) for label, alike in groups.items()],
        "missing": [name for name in SITUATIONS if name not in measured],
        "flaws": left_out(figures["rows"]),
    }
    return render("live", context, wrap=False)


def _testbed(testbeds: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    if not testbeds:
        return None
    return {
        "nodes": max(len(testbed["nodes"]) for testbed in testbeds),
        "machine": testbeds[0]["machine"],
        "memory": testbeds[0]["memory"],
        **{name: list(dict.fromkeys(testbed[name] for testbed in testbeds)) for name in ("network", "cpu")},
    }


def _exactness(sessions: Sequence[Session]) -> dict[str, int]:
    ended = [session for session in sessions if "end" in session]
    audits = [audit for session in ended for audit in session["end"]["audit"].values()]
    by_sign = [audit for audit in audits if "rows_lost" in audit]
    turns = [turn for session in sessions for turn in session.get("figures", ())]
    failed = {True: 0, False: 0}  # by whether the situation itself kills an executor
    for session in ended:
        attempts = max(session["end"]["failed_attempts"], session.get("link", {}).get("failed", 0))
        failed[session["situation"] in ("lost", "joined")] += attempts
    return {
        "sessions": len(ended),
        "turns": len(turns),
        **{name: sum(turn[name] for turn in turns) for name in ("landed", "given_up")},
        **{name: sum(audit.get(name, 0) for audit in audits) for name in ("lost", "doubled", "different")},
        "wrong": sum(not audit["ok"] for audit in audits),
        "audits": len(audits),
        "counting": len(by_sign),
        **{name: sum(audit[name] for audit in by_sign) for name in ("rows_lost", "rows_doubled")},
        "failed": failed[False],
        "failed_by_kill": failed[True],
    }


def _chance(chance: Mapping[str, Noise]) -> dict[str, Any] | None:
    counted = {metric: noise for metric, noise in chance.items() if noise.count}
    if not counted:
        return None
    by_label: dict[str, list[str]] = {}
    for label, ratio in counted["mean"].ratios:
        by_label.setdefault(label, []).append(f"{ratio:.2f}")
    return {
        "turns": counted["mean"].count,
        "reaches": [f"{METRICS[metric]} {noise.reach(1):.2f}" for metric, noise in counted.items()],
        "ratios": [f"{label} {', '.join(ratios)}" for label, ratios in by_label.items()],
    }


def _situation(label: str, sessions: Sequence[Session], chance: Mapping[str, Noise]) -> dict[str, Any]:
    cells = table(sessions, chance)
    if not cells:
        return {"label": label, "rows": []}
    first = sessions[0]
    situation, source = SITUATIONS[first["situation"]], first["input"]
    workload = all_workloads().get(first["workload"])
    metrics = _metrics(cells, after_rest=bool(situation.rest), paced=bool(first["shape"].get("interval")))
    counts = sorted({turn["batches"] for session in sessions for turn in session["figures"]})
    order = sorted(cells, key=lambda name: cells[name]["mean"].middle if "mean" in cells[name] else math.inf)
    unequal = situation.event == "slow" or bool(first["shape"].get("speeds"))
    spiked = source.get("spike", 1) != 1
    return {
        "label": label,
        **{name: getattr(situation, name) for name in ("summary", "acts_before", "rest")},
        "workload": f" `{workload.name}`: {workload.summary}" if workload else "",
        "input": source,
        "spiked": f"{source['rows'] * source['spike']:,.0f}" if spiked else "",
        "partitions": first["shape"]["partitions"],
        "batches": " to ".join(dict.fromkeys([str(counts[0]), str(counts[-1])])),
        "commands": _commands(sessions),
        "titles": [METRICS[metric] for metric in metrics],
        "rows": [_row(name, sessions, cells.get(name), metrics) for name in [*order, SPARK.name]],
        "verdict": _verdict(cells, metrics, sessions, chance, unequal=unequal),
        "sources": [(name, reported) for name, reported in _SOURCES.items() if name in cells],
        "turns": [_turns(session) for session in sessions],
    }


def _metrics(cells: Cells, *, after_rest: bool, paced: bool) -> list[str]:
    """Return the metrics with figures; throughput of batches without a pause is one over the mean batch."""
    hidden = {name for name, shown in (("soon", after_rest), ("throughput", paced)) if not shown}
    return [metric for metric in METRICS if metric not in hidden and any(metric in own for own in cells.values())]


def _commands(sessions: Sequence[Session]) -> list[str]:
    """Return the commands that measured the sessions, each once."""
    lines = (
        " ".join(["python -m benchmarks.live", *session.get("command", ()), "--json FILE"]) for session in sessions
    )
    return [f"`{line}`" for line in dict.fromkeys(lines)]


def _row(name: str, sessions: Sequence[Session], cells: Mapping[str, Cell] | None, metrics: Sequence[str]) -> list[str]:
    own = [session for session in sessions if any(turn["way"] == name for turn in session["figures"])]
    turns = [turn for session in own for turn in session["figures"] if turn["way"] == name]
    ratios = ["1" if cells is None else _cell(cells.get(metric), "-", within="*") for metric in metrics]
    seconds = statistics.median(turn["mean"] for turn in turns)
    placed = "/".join(str(count) for count in turns[0]["placed"].values())
    return [f"`{name}`", str(len(own)), f"{seconds:.2f}", *ratios, _moves(own, name), placed]


def _orders(session: Session, turn: int) -> list[Mapping[str, Any]]:
    """Return the decisions of a turn, the one after the event last."""
    return next((list(phase.get("orders", ())) for phase in session["phases"] if phase["turn"] == turn), [])


def _moves(sessions: Sequence[Session], name: str) -> str:
    """Return the moves of a variant's decisions, in their order: medians over sessions."""
    counts = [
        [order["moves"] for order in _orders(session, turn["turn"])]
        for session in sessions
        for turn in session["figures"]
        if turn["way"] == name != SPARK.name
    ]
    return " + ".join(f"{statistics.median(each):g}" for each in zip(*counts, strict=False)) or "0"


def _turns(session: Session) -> str:
    """Return a session's turns with the last decision of each, and its seconds from the question to the last move."""
    start: Mapping[str, int] = next((turn["placed"] for turn in session["figures"] if turn["way"] == SPARK.name), {})
    event = SITUATIONS[session["situation"]].event
    texts = []
    for turn in session["figures"]:
        # Where Spark waits too long for an executor, it runs a partition elsewhere, and there it stays.
        strayed = still(turn) and event != "kill" and turn["placed"] != start
        placed = f" on {'/'.join(map(str, turn['placed'].values()))}" if strayed else ""
        texts.append(f"{turn['way']} {turn['mean']:.2f} s{placed}{_last_decision(session, turn)}")
    return f"seed {session['seed']}: {', '.join(texts)}"


def _last_decision(session: Session, turn: Mapping[str, Any]) -> str:
    orders = _orders(session, turn["turn"]) if turn["way"] != SPARK.name else []
    if not orders:
        return ""
    last = orders[-1]
    if last.get("moves"):
        seconds = f" in {last['settled'] - last['asked']:.0f} s" if "settled" in last else ""
        return f" ({last['moves']} moves{seconds})"
    return f" (no move: {last['sentence'].partition(': gain')[0].removeprefix('nothing to move: ')})"


def _cell(cell: Cell | None, to: str, *, within: str = "", beyond: str = "") -> str:
    """Return a ratio and its spread over sessions; marks around what is ``within`` chance, and ``beyond`` it."""
    if cell is None:
        return "-"
    spread = f" ({cell.least:.2f}{to}{cell.most:.2f})" if cell.sessions > 1 else ""
    mark = within if cell.in_noise else beyond
    return f"{mark}{cell.middle:.2f}{mark}{spread}"


def _difference(name: str, sessions: Sequence[Session], chance: Mapping[str, Noise]) -> str:
    """Return "faster" or "slower", the default policy against another variant; "" where chance may explain it.

    Only sessions in which both moved something count, as what there is to gain differs from one to the next; they have
    to agree on the side. That both are divided by the same turns of Spark is left out, which errs on the side of "".
    """
    logs = list(_log_ratios(name, sessions, {"mean": chance["mean"]}))
    if not logs or min(logs) <= 0 <= max(logs):
        return ""
    beyond = abs(statistics.fmean(logs)) > math.sqrt(2) * math.log(chance["mean"].reach(len(logs)))
    return ("faster" if logs[0] > 0 else "slower") if beyond else ""


def _log_ratios(name: str, sessions: Sequence[Session], chance: Mapping[str, Noise]) -> Iterator[float]:
    pair = {name, ADAPTIVE.name}
    for session in sessions:
        if pair <= {turn["way"] for turn in session["figures"] if not still(turn)}:
            cells = table([session], chance)
            if all("mean" in cells.get(each, {}) for each in pair):
                yield math.log(cells[name]["mean"].middle / cells[ADAPTIVE.name]["mean"].middle)


def _verdict(
    cells: Cells, metrics: Sequence[str], sessions: Sequence[Session], chance: Mapping[str, Noise], *, unequal: bool
) -> str:
    """Return where the default policy is ahead of Spark and of the other variants, and where it is not."""
    own = cells.get(ADAPTIVE.name)
    if own is None:
        return "The default policy was not measured here."
    ahead: list[str] = []
    behind: list[str] = []
    for metric in metrics:
        # Where nodes are unequal, equal use of them is nobody's aim.
        if metric not in own or own[metric].in_noise or (unequal and metric == "cpu_spread"):
            continue
        if abs(own[metric].middle - 1) < _WORTH:
            continue
        better = own[metric].middle > 1 if BETTER.get(metric) else own[metric].middle < 1
        (ahead if better else behind).append(METRICS[metric])
    text = (
        f"Against Spark as it is, `{ADAPTIVE.name}` is better in {', '.join(ahead) or 'nothing'}, and worse in "
        f"{', '.join(behind) or 'nothing'}; other differences are within chance or 3 %."
    )
    others = [name for name in cells if name != ADAPTIVE.name]
    if "mean" not in own or not others:
        return text
    sentence = {name: _difference(name, sessions, chance) for name in others}
    differences = [f"it is {word} than `{name}`" for name, word in sentence.items() if word]
    return f"{text} By the mean batch, beyond chance: {', '.join(differences) or 'no other variant differs from it'}."
