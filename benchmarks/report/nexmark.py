"""Nexmark's queries as a reader sees them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["section"]


def section(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the part of the page: one row for each query, as ``python -m benchmarks.nexmark --json`` has them."""
    lines = [
        "## Nexmark",
        "",
        "`python -m benchmarks.nexmark`: each query alone in Spark's local mode, with no part of Rechannel beside",
        "it, on four partitions. Of its batches, back to back, the first three are not counted; p99 of so few is",
        "the longest. Events/s are the events of a batch over the mean batch, state rows those at the end. The",
        "output is held against the batch computation over the same events. What differs from the original queries,",
        "and which cannot be had in Structured Streaming, stands with the queries.",
        "",
        "| query | batches | events/s | mean batch (s) | p99 (s) | state rows | rows lost | doubled | audit |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for row in rows:
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
    return "\n".join([*lines, ""])


def _verdict(audit: Mapping[str, Any]) -> str:
    return "exact" if audit["ok"] else "**differs**"
