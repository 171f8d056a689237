"""The section on simulations for ``docs/benchmarks.md``, from the figures alone: same figures, same text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.report.tables import amount, rate, seconds, table, wrapped
from benchmarks.simulation.fleet import WINDOW
from benchmarks.simulation.variants import WAYS

__all__ = ["section"]

_OPENING = """## Simulation past the machine

`python -m benchmarks.simulation --json FILE --live RUNS` makes it (`--only PART` one part), RUNS being what `python
-m benchmarks.live --runs` writes (ours: `docs/figures/runs.json`). Nothing in it was measured on Spark unless it says
so. Batches are discrete events on simulated executors; the policies, the gate and the planner of steps that act on them
are those that are shipped."""
_METRICS = {"tuples_std": "std of tuples per node", "load_std": "std of busy share per node", "latency": "mean latency"}
_UNITS = {"tuples_std": "{:.1f} %", "load_std": "{:.1f} points", "latency": "{:.2f} s"}
_EQUAL = 0.03  # a ratio of medians that close to one is no difference, however often it points one way
_WHOLE = ("|", "#", "!")


def section(results: Mapping[str, Any]) -> str:
    """Markdown of what there are figures for; parts that were not run are left out."""
    parts = [_OPENING]
    for name, told in (
        ("calibration", _calibration),
        ("paper", _paper),
        ("hour", _expansion),
        ("large", _large),
        ("decisions", _decisions),
        ("fleet", _fleet),
    ):
        if name in results:
            parts += told(results[name])
    lines = "\n\n".join(parts).splitlines()
    return "\n".join(line if line.startswith(_WHOLE) else wrapped(line) for line in lines) + "\n"


def _ran(part: Mapping[str, Any]) -> str:
    machine = part["machine"]
    quick = ", made with `--quick`" if part["quick"] else ""
    return f"{machine['cores']} shared cores, load average {machine['load_average']:g} at the start{quick}"


def _calibration(part: Mapping[str, Any]) -> list[str]:
    rows = []
    for name, one in part["errors"].items():
        others = [part[guess].get(name, {}) for guess in ("constant", "turn")]
        pairs = (f"{_share(each.get('median'))}, {_share(each.get('p90'))}" for each in (one, *others))
        rows.append([name, str(one["batches"]), *pairs, _share(one["bias"], sign=True)])
    head = ["held-out batches", "count", "model", "constant of the workload", "of the turn", "model, with its sign"]
    said = [f"{workload}: {part['runs'][workload]} turns, {_fit(one)}" for workload, one in part["fits"].items()]
    return [
        "### Against live batches",
        (
            "Fitted to every second batch of live sessions, each workload by itself, and held against the others of "
            f"these. Fits: {'; '.join(said)}."
        ),
        "Errors, median and 90th percentile:",
        table(head, rows),
        (
            "*unseen*: all batches of each situation, predicted by a fit to the other situations of its workload, if "
            "it has any. *Constant*: the median of those batches of the workload, or of just this turn, that the fit "
            "has seen, for a guess without a model; the turn's knows what the placement came to. Where state is small, "
            "the rate of its loads is hardly known. The fits go into this table alone; what is simulated below states "
            "its costs."
        ),
    ]


def _fit(one: Mapping[str, Any]) -> str:
    """Say what was fitted."""
    scale = f"{one['scale']:.3f}" if one["scale_known"] else "1 (paths are too alike to tell)"
    load = f"{seconds(one['load_overhead'])} and {rate(one['load_rate'])}" if one["loads_known"] else "not known"
    return f"overhead of a batch {seconds(one['overhead'])}, service scale {scale}, loads {load}"


def _share(value: float | None, *, sign: bool = False) -> str:
    return "-" if value is None else f"{value:+.1%}" if sign else f"{value:.1%}"


def _paper(part: Mapping[str, Any]) -> list[str]:
    rows = []
    known = {row["way"] for row in part["rows"]}
    for way in (way.name for way in WAYS if way.name in known):
        own = [row for row in part["rows"] if row["way"] == way]
        during = [_middle([row[metric]["during"] for row in own], metric) for metric in _METRICS]
        moved = [row["seconds"] for row in own if row["moves"]]
        rows.append(
            [
                way,
                f"{median(row['moves'] for row in own):g}",
                seconds(median(moved)) if moved else "-",
                *during,
                _middle([row["latency"]["after"] for row in own], "latency"),
            ]
        )
    sizes = sorted({row["size"] for row in part["rows"]})
    return [
        "### The pipelined-migration paper's experiment",
        (
            f"Lines of a spout and four bolts on {', '.join(map(str, sizes))} nodes, {part['seeds']} repetitions each; "
            "Storm as a fluid, whose assumptions are in `benchmarks/simulation/fluid_engine.py` and `variants.py`. Medians over "
            "all runs with quartiles, of the hundred seconds after the order."
        ),
        table(["way", "moves", "lasts", *_METRICS.values(), "latency afterwards"], rows),
        _claims(part["claims"]),
        *_why(part["rows"]),
        *_stops(part["rows"], "during"),
        "![deviation of load and latency around a migration](images/simulation-migration.svg)",
        f"One run: the first seed on {sizes[-1]} nodes.",
        (
            "A caution: as long as sources pause, no node serves anything and the deviation is zero, so a way that "
            "stops everything looks balanced meanwhile. The busy share and the tuples are told as they are; latency "
            "shows what it costs."
        ),
    ]


def _why(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say why the default policy is behind the paper's in the seconds after the order, where it moves more."""
    moves, lasts = (
        {
            way: median([row[name] for row in rows if row["way"] == way and row["moves"]] or [0])
            for way in ("proposed", "adaptive")
        }
        for name in ("moves", "seconds")
    )
    if moves["adaptive"] <= moves["proposed"]:
        return []
    return [
        (
            f"Where `adaptive` is behind the proposed way here: in runs that moved anything, it moves "
            f"{moves['adaptive']:g} instances and not {moves['proposed']:g}, so more of the hundred seconds is "
            f"migration ({seconds(lasts['adaptive'])} against {seconds(lasts['proposed'])}). It looks for the shortest "
            "batches from then on, and knows nothing of deviation; the last column has what either leaves behind."
        )
    ]


def _stops(rows: Sequence[Mapping[str, Any]], when: str) -> list[str]:
    """Say why MT-like is more even than DCR-like in tuples, where it is: its target, or that it stops everything."""
    names = ("MT-like", "MT's target, in steps", "DCR-like")
    known = {way: [row["tuples_std"][when] for row in rows if row["way"] == way] for way in names}
    if not all(known.values()):
        return []
    stopped, steps, drained = (median(values) for values in known.values())
    if stopped >= drained:
        return []
    why = (
        f"its target moves {_moved(rows, 'MT-like')} instances and not {_moved(rows, 'DCR-like')}"
        if steps < drained
        else "while everything stands still no node serves more than another"
    )
    said = (_UNITS["tuples_std"].format(value) for value in (stopped, drained, steps))
    return [
        (
            "Why MT-like's tuples deviate less than DCR-like's, against the paper's ranking: {}. Medians: MT-like {}, "
            "DCR-like {}, MT's target without a stop {}."
        ).format(why, *said)
    ]


def _pays(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say what the default policy buys with its moves over the hour, where it moves more than the proposed way."""
    own, paper = ([row for row in rows if row["way"] == way] for way in ("adaptive", "proposed"))
    if not own or not paper:
        return []
    moves, paper_moves = (median(row["moves"] for row in some) for some in (own, paper))
    even, paper_even = (median(row["tuples_std"]["whole"] for row in some) for some in (own, paper))
    late, paper_late = (median(row["latency"]["whole"] for row in some) for some in (own, paper))
    if moves <= paper_moves or late <= paper_late:
        return []
    return [
        (
            f"Why `adaptive` is behind in latency: it moves {moves:,g} instances in the hour, the proposed way "
            f"{paper_moves:,g}, and each move stops what it moves. Tuples deviate by "
            f"{_UNITS['tuples_std'].format(even)} for it, by {_UNITS['tuples_std'].format(paper_even)} with the "
            "proposed way."
        )
    ]


def _moved(rows: Sequence[Mapping[str, Any]], way: str) -> str:
    return f"{median([row['moves'] for row in rows if row['way'] == way]):,g}"


def _middle(values: Sequence[float], metric: str) -> str:
    ordered = sorted(values)
    low, high = ordered[len(ordered) // 4], ordered[(3 * len(ordered)) // 4]
    form = _UNITS[metric]
    return f"{form.format(median(ordered))} ({form.format(low)} to {form.format(high)})"


def _claims(found: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for one in found:
        low, high = one["ratio"][1:]
        share = one["holds"] / one["pairs"]
        verdict = (
            "holds" if share >= 0.9 else "mostly" if share >= 0.6 else "undecided" if share > 0.4 else "does not hold"
        )
        if abs(one["ratio"][0] - 1) < _EQUAL:
            verdict = "no difference worth the name"
        values = " < ".join(_UNITS[one["metric"]].format(value) for value in one["medians"])
        rows.append(
            [
                f"{one['less']} < {one['more']}",
                _METRICS[one["metric"]],
                values,
                f"{one['ratio'][0]:.2f} ({low:.2f} to {high:.2f})",
                f"{one['holds']} of {one['pairs']}",
                verdict,
            ]
        )
    return table(["claim", "metric", "medians as claimed", "ratio, quartiles", "pairs", "verdict"], rows)


def _expansion(part: Mapping[str, Any]) -> list[str]:
    rows = []
    for way in (way.name for way in WAYS):
        own = [row for row in part["rows"] if row["way"] == way]
        rows.append(
            [
                way,
                f"{median(row['migrations'] for row in own):g}",
                f"{median(row['moves'] for row in own):g}",
                *(_middle([row[metric]["whole"] for row in own], metric) for metric in _METRICS),
                _middle([row["latency"]["joining"] for row in own], "latency"),
            ]
        )
    return [
        "### An hour in which 85 nodes become 100",
        (
            f"{part['seconds']:g} simulated seconds, {part['seeds']} repetitions; fifteen nodes join at 45 s, other "
            "words become frequent every five minutes, each way decides when the nodes join and every ten minutes."
        ),
        table(["way", "migrations", "moves", *_METRICS.values(), "latency while they join"], rows),
        _claims(part["claims"]),
        *_pays(part["rows"]),
        *_stops(part["rows"], "whole"),
        "![deviation of load and latency over the hour](images/simulation-hour.svg)",
        "Means over the repetitions.",
    ]


def _named(row: Mapping[str, Any]) -> str:
    return f"{row['policy']}, {row['limit']:,} moves at once" if row["limit"] else str(row["policy"])


def _large(part: Mapping[str, Any]) -> list[str]:
    rows = []
    for row in part["rows"]:
        codes = [one["code"] for one in row["made"]]
        thought = [one["seconds"] for one in row["made"] if one["seconds"] > 0]
        ratio = row["over_as_is"]
        rows.append(
            [
                _named(row),
                seconds(row["mean"]),
                seconds(row["median"]),
                seconds(row["p95"]),
                f"{ratio['median']:.2f} ({ratio['best']:.2f} to {ratio['worst']:.2f})",
                f"{row['landed']:,}",
                f"{codes.count('ok')} of {len(codes)}" if codes else "-",
                seconds(median(thought)) if thought else "-",
            ]
        )
    return [
        f"### {part['executors']:,} executors, {part['partitions']:,} partitions",
        (
            f"{part['queries']} queries with dense shuffles, whose loads drift for {part['seconds']:g} s; a "
            f"decision every {part['every']:g} s with the shipped settings. What a batch, a task and a load cost is "
            "assumed (`benchmarks/simulation/large.py`), not taken from the fits above, which are of nodes of a third "
            f"of a core; differences smaller than their error are to be read as none. {_ran(part)}."
        ),
        table(
            [
                "policy",
                "batch, mean",
                "median",
                "95th percentile",
                "query over as it is, median (best to worst)",
                "partitions moved",
                "decisions that moved",
                "decision, processor time",
            ],
            rows,
        ),
        (
            "The largest difference that a policy makes to a query's mean batch, by the median query, is "
            f"{max(abs(row['over_as_is']['median'] - 1) for row in part['rows']):.0%}. Where that is below the "
            "fits' median error above, it is to be read as no difference."
        ),
        "![mean batch over the time](images/simulation-large.svg)",
    ]


def _decisions(part: Mapping[str, Any]) -> list[str]:
    rows, alone = [], ""
    for row in part["rows"]:
        if "alone" in row:
            one = row["alone"]
            if "cold" in one:
                alone = (
                    f"`adaptive` alone with its own defaults, which price no move, takes {seconds(one['cold'])} cold "
                    f"and {seconds(one['warm'])} warm at the same size."
                )
            continue
        if "problem" in row:
            rows.append([_named(row), row["problem"], "", "", "", ""])
            continue
        cold, warm = row["cold"], row["warm"]
        traced = row.get("traced_mib")
        rows.append(
            [
                _named(row),
                f"{seconds(cold['policy_seconds'])}, {seconds(cold['seconds'])}",
                f"{seconds(warm['policy_seconds'])}, {seconds(warm['seconds'])}",
                f"{row['built_mib']:,.0f} → {row['peak_mib']:,.0f} MiB",
                f"{traced:,.0f} MiB" if traced else "-",
                f"{cold['moves']:,} in {cold['steps']}",
            ]
        )
    head = [
        "policy",
        "cold: policy, whole decision",
        "warm: the same",
        "resident before → peak",
        "allocated",
        "moves in steps",
    ]
    told = "Each in a process of its own; processor time of one core."
    return [
        f"### One decision of {part['tasks']:,} partitions",
        f"{told} {_ran(part)}.",
        table(head, rows),
        *([alone] if alone else []),
    ]


def _fleet(part: Mapping[str, Any]) -> list[str]:
    shape, known, controller, server = part["shape"], part["bounds"], part["controller"], part["redis"]
    decision = part["decision"]
    said = f"`{decision['outcome']}`: {decision['sentence']}" if decision else "**none**"
    if decision is None or decision["outcome"] == "not-ready":
        said = f"**none within four minutes**: {said}"
    every, alone = known["every_output"], part["agents_alone"]
    late = part["worst_lateness_seconds"]
    caution = (
        "**The machine was too busy for this measurement**: messages were pushed "
        f"{seconds(late)} late, so what the controller could decide and how busy it and Redis were does not count."
    )
    return [
        f"### Redis and the controller with {shape['agents']:,} agents and {shape['total']:,} partitions",
        (
            f"A real server and a real controller, synthetic messages: {shape['queries']} queries of {shape['stages']} "
            f"stages of {shape['partitions']} partitions, a batch of each every {shape['period']:g} s. The messages "
            "say that batches last 3 s, whatever their tasks say, so the seconds of its decision are those of no "
            f"system; that it decides is what counts. Memory is that after {part['seconds']:.0f} s of messages, when "
            f"streams are not full yet; how it goes on over hours was not measured. {_ran(part)}."
        ),
        table(
            ["what", "figure"],
            [
                ["controller before it decides", f"{controller['cores']:.2f} cores, {controller['rss_mib']:,.0f} MiB"],
                [
                    "controller until it has decided",
                    (
                        f"{controller['deciding_cpu']:.1f} s of processor time in "
                        f"{controller['deciding_seconds']:.0f} s, {controller['deciding_rss_mib']:,.0f} MiB"
                    ),
                ],
                ["its decision", said],
                ["Redis", f"{server['cores']:.3f} cores, {server['memory_mib']:,.0f} MiB"],
                [
                    "into Redis",
                    f"{rate(server['bytes_in_per_second'])}, {server['commands_per_second']:,.0f} commands/s",
                ],
                ["out of Redis", rate(server["bytes_out_per_second"])],
                ["latest push behind its time", seconds(late)],
                [
                    "Redis with agents alone, their streams full",
                    f"{alone['redis_cores']:.3f} cores, {alone['memory_full'] / 2**20:,.0f} MiB",
                ],
            ],
        ),
        *([caution] if late > WINDOW else []),
        (
            f"Bounds: a message may have {amount(known['largest'])}. The link's report has {amount(known['report'])}, "
            f"a batch {amount(known['batch'])}, a window with twenty map outputs {amount(known['window'])}. Were all "
            f"partitions those of one stage of one query, its batch would have {amount(known['one_query_batch'])}, "
            f"which a link sends in parts of 4,000 tasks. Were every map output of these queries told, a "
            f"node would tell {every['outputs']} of them a window, {amount(every['window'])}, and all nodes "
            f"{rate(every['bytes_per_second'])}."
        ),
    ]
