"""Nexmark's queries as a reader sees them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["section"]


def section(figures: Mapping[str, Any]) -> str:
    """Return the part of the page: one row for each query of what ``python -m benchmarks.nexmark --json`` writes."""
    box = figures["machine"]
    lines = [
        "## Nexmark",
        "",
        "`python -m benchmarks.nexmark --json FILE`: each query alone, once, with no part of Rechannel beside it.",
        f"Spark {figures['spark']} (`{figures['master']}`), {figures['partitions']} partitions, {box['cores']} shared",
        f"cores, load average {box['load_average']:g} at the start. Of its batches, back to back, the first three are",
        "not counted; p99 of so few is the longest. Events/s are the events of a batch over the mean batch, state rows",
        "those at the end. The output is held against the batch computation over the same events. What differs from",
        "the original queries, and which cannot be had in Structured Streaming, is in `benchmarks/nexmark/README.md`.",
        "",
        "| query | batches | events/s | mean batch (s) | p99 (s) | state rows | rows lost | doubled | audit |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for row in figures["queries"]:
        audit = row["audit"]
        said = ["-", "-", "not made"] if audit is None else [audit["lost"], audit["doubled"], _verdict(audit)]
        cells = [
            f"{row['query'].removeprefix('nexmark-')}",
            str(row["batches"]),
            f"{row['events_per_second']:,.0f}",
            f"{row['mean']:.2f}",
            f"{row['p99']:.2f}",
            f"{row['state_rows']:,}",
            *(str(each) for each in said),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    if figures["failed"]:
        lines += ["", "**Not run to the end**:", ""]
        lines += [f"* {query}: {reason}" for query, reason in figures["failed"].items()]
    return "\n".join([*lines, ""])


def _verdict(audit: Mapping[str, Any]) -> str:
    if audit["ok"]:
        return "exact"
    by_sign = (
        f", input rows: {audit['rows_lost']} lost, {audit['rows_doubled']} doubled" if "rows_lost" in audit else ""
    )
    return f"**differs**{by_sign}"
