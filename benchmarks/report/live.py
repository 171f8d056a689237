"""The live comparison as a reader sees it. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.live.catalog import workloads
from benchmarks.live.situations import SITUATIONS
from benchmarks.live.summary import BETTER, METRICS, Cell, Noise, group, left_out, noise, still, table
from benchmarks.live.variants import ADAPTIVE, SPARK

__all__ = ["headline", "section"]

# What the papers report for their own systems, on other engines and machines: not comparable figure by figure.
_SOURCES = {
    "stream-classification": "DSC-Heron over Heron's round robin, average of its topologies: latency -8.35 %, traffic "
    "-7.07 %, throughput +6.83 %, CPU spread -41.44 %",
    "locality-fairness": "the L/F scheduler, page view: latency 19.58 % (simple) and 12.13 % (unique) below even",
    "fair-redistribution": "pipelined migration: no figures in its text; see the simulation",
    "round-robin": "Twister2's schedulers: no measured results",
}
_HOW = f"""\
**How it is measured.** In a session one query runs through all ways by turns, in an order that chance decides. A way's
turn begins with every partition on the same uneven placement, drawn as Spark's first batches were seen to place them;
then comes the event (none in `steady`), ten or more batches later the way is asked for a decision, its moves are
carried out, and the batches that follow are measured. Where it says so, a way is asked before the event
too. `{SPARK.name}` is the same turn with nobody asked: nothing moves. It stands first, last, and after every one or two
of the others.
Before the first turn a hundred batches run unmeasured, twenty of them under the nodes' quotas.

**What runs beside it.** Link, agents and controller are there in every turn, those of `{SPARK.name}` too; what they
themselves cost is in [monitoring](monitoring.md). The controller looks on and decides when asked: no cooldown, no
decision by timeout or overload, and the gate does not refuse because executors are busy, as all of them are on purpose.
For the rest the default policy (`{ADAPTIVE.name}`) goes through the gate; the policies of the literature are done as
they propose (`--force`), as their own systems would. What links do by themselves by default (`link.spread`: spread what
a new query or a lost executor leaves behind) is switched off.

**How to read it.** Each figure is divided by Spark's at the same time, read off a line between the turns before and
after it in which nothing moved, so that slow changes (code that is compiled, other work) cancel; 0.80 means a fifth
less than Spark. Less is better, but for throughput. A turn in which nothing moved (`{SPARK.name}`, or a way that found
nothing to move), treated in the same way, should give 1; how far it is off is chance. From all such turns, over all
sessions of this page, comes the range that chance alone reaches in 95 of 100 cases. *In italics is what lies within
it*, or where sessions do not agree on the side: no difference is claimed there. With so many figures, one in twenty is
beyond it by chance all the same. Several sessions are told by their geometric mean, with the least and the most in
brackets. The range is for the placements that were measured: another one to begin with can change a ratio by more
(`slowed`), and a few sessions do not tell by how much."""
_COLUMNS = f"""\
* *sessions*: how many the row is made of
* *seconds*: the mean batch, median over turns; as ratios are made turn by turn, these are not to be divided
* no *throughput* where batches follow each other without a pause: it is one over the mean batch
* *{METRICS["p99"]}* of so few batches is the longest of them
* *{METRICS["bytes_per_row"]}*: what left the nodes for each row of input, to other nodes, driver and Redis; the
  checkpoint is on the machine's own disk, so state that moves does not go over these links
* *{METRICS["cpu_spread"]}*, *{METRICS["memory_spread"]}*: standard deviation over nodes of what executors and Python
  workers use, over the mean; where nodes are unequal, equal use is nobody's aim
* *{METRICS["all"]}*: from the event (in `steady`: the begin) on, with the waiting, the decision and the moves
* *{METRICS["longest"]}*: the longest of the twelve batches from the question on
* *moves*: before the event, where a way adapts before, and after it; median over sessions
* *placed*: partitions on each node when it was measured, in the first session"""
_COMPARED = (ADAPTIVE.name, "even")
_WORTH = 0.03  # a ratio that near to 1 is no difference worth the name, even where chance does less


def headline(figures: Mapping[str, Any], least: int = 1) -> str:
    """Return by situation the default policy and ``even`` over Spark as it is.

    Only what has at least so many sessions, if anything has.
    """
    whole = group(figures)
    chance = noise(whole)
    often = {
        label: sessions
        for label, sessions in whole.items()
        if sum(any(phase["way"] == ADAPTIVE.name for phase in each["figures"]) for each in sessions) >= least
    }
    groups = often or whole
    lines = [
        f"| mean batch over Spark's | `{_COMPARED[0]}` | `{_COMPARED[1]}` | sessions |",
        "| --- | ---: | ---: | ---: |",
    ]
    apart = []
    compared = 0
    reaches: dict[int, float] = {}
    for label, sessions in groups.items():
        cells = {way: found["mean"] for way, found in table(sessions, chance).items() if "mean" in found}
        if ADAPTIVE.name not in cells:
            continue
        said = " | ".join(_shown(cells.get(way)) for way in _COMPARED)
        lines.append(f"| {label} | {said} | {cells[ADAPTIVE.name].sessions} |")
        reaches[cells[ADAPTIVE.name].sessions] = cells[ADAPTIVE.name].reach
        compared += _COMPARED[1] in cells
        if word := _against(_COMPARED[1], sessions, chance):
            apart.append(f"{word} in *{label}*")
    if len(lines) == 2:
        return ""
    differ = f"`{_COMPARED[0]}` is {'; '.join(apart)}" if apart else "nowhere a difference beyond chance"
    count = len(whole) - len(groups)
    more = f" What was measured once ({count} more) is on the page alone." if count else ""
    known = [f"{reach:.2f} of {_sessions(count)}" for count, reach in sorted(reaches.items()) if math.isfinite(reach)]
    factor = f"up to a factor of {', '.join(known)}" if known else "what is not known yet"
    said = (
        "Less is better; in brackets the least and the most of the sessions, each with a starting placement of its "
        f"own. Chance alone makes {factor} (95 %); bold is what is beyond that, on the same side in all sessions. "
        f"Between `{_COMPARED[0]}` and `{_COMPARED[1]}` (as many partitions on each node), in {compared} "
        f"{'comparison' if compared == 1 else 'comparisons'}: {differ}.{more}"
    )
    return "\n".join([*lines, "", said])


def section(figures: Mapping[str, Any]) -> str:
    """Return the part of the page."""
    groups = group(figures)
    counted = [session for sessions in groups.values() for session in sessions]
    chance = noise(groups)
    lines = ["## Live, on a real cluster", "", _testbed(counted), "", *_exact(figures["sessions"]), ""]
    if counted:
        lines += ["![mean batch duration over Spark's, by situation and way](images/live-latency.svg)", ""]
        lines += ["Gray: what chance alone does (95 %); lines: from the least to the most over sessions.", ""]
        lines += ["![batch durations since the event](images/live-timeline.svg)", ""]
        lines += ["Of each situation's first session: the default policy's turn, and those of Spark beside it.", ""]
    lines += [_HOW, "", _chances(chance), "", "Columns:", "", _COLUMNS, ""]
    for label, found in groups.items():
        lines += _situation(label, found, chance)
    missing = [name for name in SITUATIONS if not any(session["situation"] == name for session in counted)]
    if missing:
        lines += [f"Not measured for this page: {', '.join(missing)}.", ""]
    if flaws := left_out(figures):
        lines += ["**Left out, and why**:", "", *(f"* {flaw}" for flaw in flaws), ""]
    return "\n".join(lines)


def _testbed(sessions: Sequence[Mapping[str, Any]]) -> str:
    known = [session["testbed"] for session in sessions if "testbed" in session]
    if not known:
        return "Nothing was measured."
    one, box = known[0], known[0]["machine"]
    return (
        f"{max(len(each['nodes']) for each in known)} nodes on one machine of {box['cores']} cores "
        f"({box['processor']}, {box['memory_mb'] // 1024} GB), Spark {box['spark']}. "
        f"Network: {_each(known, 'network')}. CPU: {_each(known, 'cpu')}. Memory: {one['memory']}."
    )


def _commands(sessions: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what was called, each once."""
    said = (" ".join(["python -m benchmarks.live", *session.get("command", ()), "--json FILE"]) for session in sessions)
    return [f"`{command}`" for command in dict.fromkeys(said)]


def _each(testbeds: Sequence[Mapping[str, Any]], name: str) -> str:
    return "; in other sessions: ".join(dict.fromkeys(each[name] for each in testbeds))


def _exact(sessions: Sequence[Mapping[str, Any]]) -> list[str]:
    ended = [session for session in sessions if "end" in session]
    audits = [found for session in ended for found in session["end"]["audit"].values()]
    lost, doubled = (sum(found[name] for found in audits) for name in ("lost", "doubled"))
    kill = [session for session in ended if session["situation"] in ("lost", "joined")]
    others = [session for session in ended if session not in kill]
    failed, killed = (
        sum(max(each["end"]["failed_attempts"], each.get("link", {}).get("failed", 0)) for each in some)
        for some in (others, kill)
    )
    phases = [phase for session in sessions for phase in session.get("figures", ())]
    moved = sum(phase["landed"] for phase in phases)
    given_up = sum(phase["given_up"] for phase in phases)
    different = sum(found.get("different", 0) for found in audits)
    signed = [found for found in audits if "rows_lost" in found]
    short, over = (sum(found[name] for found in signed) for name in ("rows_lost", "rows_doubled"))
    of_input = f" Rows of the input lost: {short}, doubled: {over}, in the {len(signed)} outputs that count them."
    wrong = sum(not found["ok"] for found in audits)
    aside = ", whose session counts for nothing else" if wrong else ""
    return [
        f"{len(ended)} sessions, {len(phases)} turns: {moved} moves landed, {given_up} given up.",
        f"Rows of the outputs lost: {lost}, doubled: {doubled}, with another value: {different};",
        f"outputs unlike the batch computation: {wrong} of {len(audits)}{aside}.{of_input if signed else ''}",
        f"Failed task attempts: {failed}; {killed} more where the situation itself ends an executor.",
    ]


def _chances(chance: Mapping[str, Noise]) -> str:
    known = {metric: found for metric, found in chance.items() if found.count}
    if not known:
        return "What chance does is not known: no turn in which nothing moved has another on either side."
    said = ", ".join(f"{METRICS[metric]} {found.reach(1):.2f}" for metric, found in known.items())
    by_label: dict[str, list[str]] = {}
    for label, ratio in known["mean"].ratios:
        by_label.setdefault(label, []).append(f"{ratio:.2f}")
    each = "; ".join(f"{label} {', '.join(ratios)}" for label, ratios in by_label.items())
    return (
        f"What chance reaches in one session, as a factor, from {known['mean'].count} such turns: {said}.\n\n"
        f"It is not the same in all situations. The mean batch of each of these turns, which should be 1: {each}. "
        "Where they are far from 1, the common range may be too narrow; where they are near, too wide."
    )


def _situation(label: str, sessions: Sequence[Mapping[str, Any]], chance: Mapping[str, Noise]) -> list[str]:
    cells = table(sessions, chance)
    if not cells:
        return [f"### {label}", "", f"Nothing but `{SPARK.name}` was measured here.", ""]
    situation, given = SITUATIONS[sessions[0]["situation"]], sessions[0]["input"]
    hidden = set() if situation.rest else {"soon"}
    if not sessions[0]["shape"].get("interval"):  # without a pause between batches it is one over the mean batch
        hidden.add("throughput")
    shown = [metric for metric in METRICS if metric not in hidden and any(metric in found for found in cells.values())]
    rest = (
        f" The new executor's code is compiled in the first batches after the moves: *{METRICS['soon']}* are those, "
        f"*mean batch* and *{METRICS['p99']}* are of the batches from {situation.rest} batches later on."
        if situation.rest
        else ""
    )
    adapts = " Every way is asked before it too." if situation.acts_before else ""
    known = workloads().get(sessions[0]["workload"])
    summary = f" `{known.name}`: {known.summary}" if known else ""
    spiked = f" ({given['rows'] * given['spike']:,.0f} from the event on)" if given.get("spike", 1) != 1 else ""
    counts = sorted({phase["batches"] for session in sessions for phase in session["figures"]})
    measured = " to ".join(dict.fromkeys([str(counts[0]), str(counts[-1])]))
    lines = [
        f"### {label}",
        "",
        (
            f"{situation.summary}{adapts}{rest}{summary} {given['rows']:,} rows a batch{spiked}, {given['keys']:,} keys"
            f" in the input, {sessions[0]['shape']['partitions']} partitions; {measured} batches measured in a turn. "
            f"Made by {', '.join(_commands(sessions))}."
        ),
        "",
        f"| way | sessions | seconds | {' | '.join(METRICS[metric] for metric in shown)} | moves | placed |",
        f"| --- | ---: | ---: |{' ---: |' * (len(shown) + 1)} --- |",
    ]
    order = sorted(cells, key=lambda way: cells[way]["mean"].middle if "mean" in cells[way] else math.inf)
    for way in [*order, SPARK.name]:
        having = [session for session in sessions if any(phase["way"] == way for phase in session["figures"])]
        phases = [phase for session in having for phase in session["figures"] if phase["way"] == way]
        row = [_cell(cells[way].get(metric)) if way in cells else "1" for metric in shown]
        seconds = statistics.median(phase["mean"] for phase in phases)
        placed = "/".join(str(count) for count in phases[0]["placed"].values())
        said = " | ".join([str(len(having)), f"{seconds:.2f}", *row, _moves(having, way), placed])
        lines.append(f"| `{way}` | {said} |")
    compared = {way: _against(way, sessions, chance) for way in cells if way != ADAPTIVE.name}
    unequal = situation.event == "slow" or bool(sessions[0]["shape"].get("speeds"))
    lines += ["", _verdict(cells, shown, compared, unequal=unequal)]
    lines += [f"`{way}`'s source reports of its own system: {said}." for way, said in _SOURCES.items() if way in cells]
    lines += ["", "Turns in order: mean batch, and the last decision (those before the event are in *moves*).", ""]
    return [*lines, *(f"* {_turns(session)}" for session in sessions), ""]


def _orders(session: Mapping[str, Any], turn: int) -> list[Mapping[str, Any]]:
    """Return the decisions of a turn, the one after the event last."""
    return next((list(phase.get("orders", ())) for phase in session["phases"] if phase["turn"] == turn), [])


def _moves(sessions: Sequence[Mapping[str, Any]], way: str) -> str:
    """Return the moves of a way's decisions, in their order: medians over sessions."""
    made = [
        [order["moves"] for order in _orders(session, phase["turn"])]
        for session in sessions
        for phase in session["figures"]
        if phase["way"] == way and way != SPARK.name
    ]
    return " + ".join(f"{statistics.median(each):g}" for each in zip(*made, strict=False)) or "0"


def _turns(session: Mapping[str, Any]) -> str:
    """Return a session's turns with what each way was told, and how long it took from the question to the last move."""
    said = []
    start: Mapping[str, int] = next((phase["placed"] for phase in session["figures"] if phase["way"] == SPARK.name), {})
    for phase in session["figures"]:
        orders = _orders(session, phase["turn"]) if phase["way"] != SPARK.name else []
        last: Mapping[str, Any] = orders[-1] if orders else {}
        decided = ""
        if last.get("moves"):
            took = f" in {last['settled'] - last['asked']:.0f} s" if "settled" in last else ""
            decided = f" ({last['moves']} moves{took})"
        elif last:
            decided = f" (no move: {last['sentence'].partition(': gain')[0].removeprefix('nothing to move: ')})"
        # Where Spark waits too long for an executor, it runs a partition elsewhere, and there it stays.
        strayed = still(phase) and SITUATIONS[session["situation"]].event != "kill" and phase["placed"] != start
        on = f" on {'/'.join(map(str, phase['placed'].values()))}" if strayed else ""
        said.append(f"{phase['way']} {phase['mean']:.2f} s{on}{decided}")
    return f"seed {session['seed']}: {', '.join(said)}"


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return "-"
    spread = f" ({cell.least:.2f}-{cell.most:.2f})" if cell.sessions > 1 else ""
    return f"*{cell.middle:.2f}*{spread}" if cell.in_noise else f"{cell.middle:.2f}{spread}"


def _sessions(count: int) -> str:
    return "1 session" if count == 1 else f"{count} sessions"


def _shown(cell: Cell | None) -> str:
    if cell is None:
        return "-"
    spread = f" ({cell.least:.2f} to {cell.most:.2f})" if cell.sessions > 1 else ""
    return f"{cell.middle:.2f}{spread}" if cell.in_noise else f"**{cell.middle:.2f}**{spread}"


def _against(way: str, sessions: Sequence[Mapping[str, Any]], chance: Mapping[str, Noise]) -> str:
    """Say how the default policy is against another way beyond chance, each having its own; "" where it is not.

    Only sessions in which both moved something count, as what there is to gain differs from one to the next; they have
    to agree on the side. That both are divided by the same turns of Spark is left out, which errs on the side of "".
    """
    pairs = []
    for session in sessions:
        if {way, ADAPTIVE.name} <= {phase["way"] for phase in session["figures"] if not still(phase)}:
            found = table([session], {"mean": chance["mean"]})
            if all("mean" in found.get(name, {}) for name in (way, ADAPTIVE.name)):
                pairs.append(math.log(found[way]["mean"].middle / found[ADAPTIVE.name]["mean"].middle))
    if not pairs or min(pairs) <= 0 <= max(pairs):
        return ""
    beyond = abs(statistics.fmean(pairs)) > math.sqrt(2) * math.log(chance["mean"].reach(len(pairs)))
    return ("faster" if pairs[0] > 0 else "slower") if beyond else ""


def _verdict(
    cells: Mapping[str, Mapping[str, Cell]], shown: Sequence[str], compared: Mapping[str, str], *, unequal: bool
) -> str:
    """Say plainly where the default policy is ahead, and where it is not; ``compared``: what `_against` says by way."""
    own = cells.get(ADAPTIVE.name)
    if own is None:
        return "The default policy was not measured here."
    ahead: list[str] = []
    behind: list[str] = []
    for metric in shown:
        # Where nodes are unequal, equal use of them is nobody's aim.
        if metric not in own or own[metric].in_noise or (unequal and metric == "cpu_spread"):
            continue
        if abs(own[metric].middle - 1) < _WORTH:
            continue
        better = own[metric].middle > 1 if BETTER.get(metric) else own[metric].middle < 1
        (ahead if better else behind).append(METRICS[metric])
    sentences = [
        (
            f"Against Spark as it is, `{ADAPTIVE.name}` is ahead in {', '.join(ahead) or 'nothing'}, behind in "
            f"{', '.join(behind) or 'nothing'}, and within chance, or 3 %, in the rest."
        )
    ]
    if "mean" in own:
        apart = [f"it is {word} than `{way}`" for way, word in compared.items() if word]
        if compared:
            sentences.append(
                f"By the mean batch, in sessions in which both moved something, beyond chance: "
                f"{', '.join(apart) or 'no other way differs from it'}."
            )
    return " ".join(sentences)
