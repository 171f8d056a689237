"""The sections of ``docs/policies.md`` on the optimum and on time."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from benchmarks.report.tables import by_policy, filled, middle, ran_on, seconds, table

__all__ = ["growth", "optimum", "scale"]

_GOAL_WARM, _GOAL_COLD = 1.0, 5.0


def optimum(found: dict[str, Any]) -> str:
    """How far from the exact optimum, and METIS."""
    rows = [row for row in found["instances"] if row["proved"]]
    lines = [
        "## Against the exact optimum",
        filled(
            f"""{len(found["instances"])} random instances: one query of one or two stages of 2 to 17 partitions,
            2 to 6 one-core executors of unequal speed, nothing saturated, placed at random. The optimum is
            HiGHS', a mixed integer program for each stage; it was proved for {len(rows)} of them, and only those
            count. {ran_on(found)}."""
        ),
    ]
    if rows:
        head = ["policy", "above the optimum, median", "mean", "worst", "exactly optimal"]
        lines.append(table(head, [_above(policy, rows) for policy in rows[0]["policies"]]))
        certified = [row["policies"]["adaptive"] / row["bound"] - 1 for row in rows]
        slack = [row["optimum"] / row["bound"] - 1 for row in rows]
        lines.append(
            filled(
                f"""What `adaptive` says of itself (path over bound less one) is {median(certified):.2%} in the
                median and {max(certified):.1%} at worst; the optimum itself is {median(slack):.2%} and
                {max(slack):.1%} above the bound. HiGHS needed
                {seconds(median(row["highs_seconds"] for row in rows))} in the median,
                {seconds(max(row["highs_seconds"] for row in rows))} at most."""
            )
        )
    rest = [row["policies"]["adaptive"] / row["optimum"] - 1 for row in found["instances"] if not row["proved"]]
    if rest:
        lines.append(
            f"Where it was not proved, `adaptive` is {min(rest):+.2%} to {max(rest):+.2%} off the best HiGHS found."
        )
    if found["graphs"]:
        lines.append(
            "### Beside a graph partitioner\n\n"
            + filled(
                """METIS divides the graph of the partitions into as many parts as there are executors: edges
                weigh their bytes, partitions their busy time. It minimizes the cut under even load over all
                stages together, and starts from nothing. The *cut* is the share of all bytes that travels between
                executors. Medians over the seeds."""
            )
        )
        head = ["graph", "policy", "cut", "path over bound", "highest utilization", "load spread", "decision"]
        names = dict.fromkeys(row["generator"] for row in found["graphs"])
        lines.append(table(head, [line for name in names for line in _graph(found["graphs"], name)]))
    return "\n\n".join(lines)


def _above(policy: str, rows: Sequence[dict[str, Any]]) -> list[str]:
    above = [row["policies"][policy] / row["optimum"] - 1 for row in rows]
    exact = sum(value < 1e-6 for value in above)
    figures = (median(above), sum(above) / len(above), max(above))
    return [policy, *(f"{max(value, 0.0):.2%}" for value in figures), f"{exact} of {len(rows)}"]


def _graph(rows: Sequence[dict[str, Any]], name: str) -> list[list[str]]:
    lines = []
    for policy, group in by_policy(row for row in rows if row["generator"] == name).items():
        of = {key: middle(row[key] for row in group) or 0.0 for key in group[0] if key not in ("generator", "policy")}
        cells = [
            f"{of['cut']:.1%}",
            f"{of['path']:.3f}",
            f"{of['highest_utilization']:.0%}",
            f"{of['load_spread']:.3f}",
        ]
        lines.append([name, policy, *cells, seconds(of["seconds"])])
    return lines


def scale(found: dict[str, Any]) -> str:
    """The default policy at a thousand executors."""
    tasks = max(row["tasks"] for row in found["rows"])
    lines = [
        "## A thousand executors" if tasks >= 90_000 else "## Many executors",
        filled(
            f"""Processor time of one process on one core; making the situation is not counted. *Classification*
            is finding the cut above which a stream is high; cold and warm contain it once more. *Cold* starts
            from where Spark's first batch leaves partitions, *warm* from `adaptive`'s own answer after every busy
            time changed by up to a tenth. *With checks* is the same through the registry, which measures both
            placements. Peak memory is the whole process', with the situation in it. The goals: classification
            and warm below {_GOAL_WARM:g} s together, cold below {_GOAL_COLD:g} s. {ran_on(found)}."""
        ),
        filled(
            """Dense: queries of four stages of 200 partitions, every pair of consecutive stages a full block,
            busy seconds by Zipf's law, half of all cores busy. Sparse: four queries of five stages, ten streams
            for each task."""
        ),
    ]
    head = [
        "shuffles",
        "cores an executor",
        "executors",
        "tasks",
        "pairs",
        "classification",
        "cold",
        "warm",
        "classification + warm",
        "warm with checks",
    ]
    lines.append(table(head, [_large(row) for row in found["rows"]]))
    head = [
        "shuffles",
        "cores an executor",
        "path over bound: before, cold, changed, warm",
        "moves: cold, warm",
        "memory: situation, peak",
    ]
    lines.append(table(head, [_answer(row) for row in found["rows"] if "cold" in row]))
    missed = [
        f"{row['kind']} with {row['cores']} core(s)"
        for row in found["rows"]
        if "cold" not in row or row["classification"] + row["warm"] >= _GOAL_WARM or row["cold"] >= _GOAL_COLD
    ]
    lines.append(f"Goals missed: {'; '.join(missed)}." if missed else "All goals were met.")
    return "\n\n".join(lines)


def _large(row: dict[str, Any]) -> list[str]:
    if "cold" not in row:
        return [row["kind"], str(row["cores"]), "", f"{row['tasks']:,}", "", "", _ended(row), "", "", ""]
    times = [
        row["classification"],
        row["cold"],
        row["warm"],
        row["classification"] + row["warm"],
        row["warm_with_checks"],
    ]
    counts = [f"{row[key]:,}" for key in ("executors", "tasks", "pairs")]
    return [row["kind"], str(row["cores"]), *counts, *map(seconds, times)]


def _answer(row: dict[str, Any]) -> list[str]:
    paths = ", ".join(f"{row[key]:.2f}" for key in ("before", "after_cold", "before_warm", "after_warm"))
    moves = f"{row['cold_moves']:,}, {row['warm_moves']:,}"
    return [row["kind"], str(row["cores"]), paths, moves, f"{row['built_mib']:.0f}, {row['peak_mib']:.0f} MiB"]


def growth(found: dict[str, Any]) -> str:
    """Every policy at growing sizes, and the literal readings."""
    lines = [
        "## How the time grows",
        filled(
            f"""Processor time of one decision from Spark's placement, each in a process of its own on one core,
            with an executor for every hundred tasks (one core each in dense, four in sparse situations). A run
            that takes more than the time told is ended and no larger one is tried, but with `adaptive`, which
            looks at a large situation less often than at a small one; the largest is run only where the growth so
            far predicts less than {found["limit"]:g} s. {ran_on(found)}."""
        ),
        "![decision time by number of tasks](images/policies-growth.svg)",
    ]
    for kind in dict.fromkeys(row["kind"] for row in found["rows"]):
        rows = [row for row in found["rows"] if row["kind"] == kind]
        sizes = sorted({row["size"] for row in rows})
        names = dict.fromkeys(row["what"] for row in rows)
        body = [[name, *(_cell(rows, name, size) for size in sizes)] for name in names]
        lines.append(f"**{kind.capitalize()} shuffles**, about so many tasks:")
        lines.append(table(["policy", *(f"{size:,}" for size in sizes)], body))
    lines.append(
        filled(
            """*Literal* are the printed algorithms read word for word, in `benchmarks/policies/reference_implementations.py`: loops
            over stream objects that look through all high streams at every step of a cluster, recursion for
            pipelines."""
        )
        + " "
        + _checked(found["checks"])
    )
    if found["redistribution"]:
        lines.append(_redistribution(found["redistribution"]))
    return "\n\n".join(lines)


def _cell(rows: Sequence[dict[str, Any]], name: str, size: int) -> str:
    for row in rows:
        if (row["what"], row["size"]) == (name, size):
            if "seconds" in row:
                return seconds(row["seconds"])
            if "predicted" in row:
                return f"not run ({seconds(row['predicted'])} predicted)"
            return _ended(row)
    return ""


def _ended(row: dict[str, Any]) -> str:
    return "no figure, too busy" if "starved" in row else f"over {row['over']:g} s"


def _checked(checks: dict[str, dict[str, bool]]) -> str:
    wrong = [f"{name} ({kind})" for kind, by_name in checks.items() for name, same in by_name.items() if not same]
    if wrong:
        return f"Their answers differ from the policies' on small sizes: {', '.join(wrong)}."
    return "On small sizes their answers are equal to the policies', which is checked in every run."


def _redistribution(rows: Sequence[dict[str, Any]]) -> str:
    text = filled(
        """Redistribution of tasks dealt out in blocks (sources, targets, block before, block after): counting
        every task of a period, the closed forms of the classes, and the coloring of edges that migrations use.
        *Steps* are rounds in which every node sends and receives at most one message, *cost* the largest message
        of each step, summed. The closed forms look at every pair of nodes, counting at every task of a period:
        which is faster depends on the layout."""
    )
    head = [
        "layout",
        "messages",
        "counting",
        "closed forms",
        "same classes",
        "coloring",
        "steps: by class, coloring",
        "cost: by class, coloring",
    ]
    body = []
    for row in rows:
        time, steps, cost = row["seconds"], row["steps"], row["cost"]
        body.append(
            [
                ", ".join(map(str, row["layout"])),
                f"{row['messages']:,}",
                seconds(time["literal"]),
                seconds(time["classes"]),
                "yes" if row["same"] else "no",
                seconds(time["koenig"]),
                f"{steps['class']:,}, {steps['koenig']:,}",
                f"{cost['class']:,.0f}, {cost['koenig']:,.0f}",
            ]
        )
    return f"{text}\n\n{table(head, body)}"
