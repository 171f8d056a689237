"""``python -m benchmarks.monitors [--quick] [--only PART] --json FILE``: the tables of ``docs/monitoring.md``."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from benchmarks.monitors import accuracy, fleet, overhead
from benchmarks.report.results import Result, ResultFile, argument_parser
from benchmarks.report.templates import columns

PARTS = {
    "overhead": "Cost of agents and link to a query, by partitions of a stage",
    "accuracy": "Error of the CPU attributed to partitions of known cost, by cores of an executor",
    "fleet": "Load of many agents on one Redis",
}
# Partitions, phases with link and agents (each between two without), batches in each phase, whether they have state.
WHOLE = ((10, 4, 25, True), (100, 3, 12, True), (400, 2, 6, True), (2_500, 1, 2, True), (10_000, 1, 2, False))
QUICK = ((10, 2, 15, True), (100, 2, 8, True), (400, 1, 5, True), (10_000, 1, 1, False))

TABLES = {
    "overhead": {
        "partitions": "{partitions}",
        "batch without": "{batch_seconds_off:.3f} s",
        "batch with": "{batch_seconds_on:.3f} s",
        "ratio: median (all)": "{batch_ratio:.3f} ({ratios})",
        "largest / smallest without, with": "{off_spread:.3f}, {on_spread:.3f}",
        "driver Python CPU a batch": "{driver_python_cpu_off:.4f} → {driver_python_cpu_on:.4f} s",
        "link's threads": "{link_cores:.4f} cores, {link_us_per_task:.0f} µs a task",
        "link's listener in the JVM": "{link_listener_us_per_task:.0f} µs a task",
        "its calls of the JVM": "{py4j_us_per_task:.0f} µs a task",
        "Spark's own event log": "{event_log_us_per_task:.0f} µs a task",
        "driver JVM CPU a batch": "{driver_jvm_cpu_off:.3f} → {driver_jvm_cpu_on:.3f} s",
        "agent, cores": "{agent_cores:.4f}",
        "agent, RSS": "{agent_rss:,.0f} B",
    },
    "accuracy": {
        "cores of an executor": "{cores}",
        "burned": "{burned_seconds:.1f} s",
        "lightest, heaviest partition": "{lightest:.2f}, {heaviest:.2f} s",
        "mean error": "{mean_error:.1%}",
        "worst partition": "{worst_error:.1%}",
        "parts / used": "{parts_over_used:.4f}",
    },
    "fleet": {
        "agents": "{agents:,}",
        "one window": "{window_bytes:,} B",
        "bytes/s": "{bytes_per_second:,.0f} B/s",
        "commands/s": "{commands_per_second:,.0f}",
        "Redis, cores": "{redis_cores:.3f}",
        "memory, first window": "{memory_one_window_each:,} B",
        "memory, streams full": "{memory_full:,} B",
        "latest push behind its time": "{worst_lateness_seconds:.2f} s",
    },
}


def main() -> None:
    """Run the requested parts, print their tables, and leave the figures in a file."""
    parser = argument_parser(
        "benchmarks.monitors", __doc__, "fewer partitions, pairs and agents: some minutes", tuple(PARTS)
    )
    options = parser.parse_args()
    quick = options.quick
    results = ResultFile(options.json)
    with tempfile.TemporaryDirectory(prefix="rechannel-bench-", ignore_cleanup_errors=True) as directory:
        root = Path(directory)
        for part in options.only or PARTS:
            rows: list[dict[str, Any]] = []
            results.figures[part] = Result.of(PARTS[part], {"rows": rows}, quick=quick)
            try:
                if part == "overhead":
                    for partitions, rounds, batches, stateful in QUICK if quick else WHOLE:
                        path = root / f"overhead-{partitions}"
                        rows.append(overhead.measure(path, partitions, rounds, batches, stateful=stateful))
                elif part == "accuracy":
                    for cores in (1, 2):
                        rows.append(accuracy.measure(root / f"accuracy-{cores}", cores, 3 if quick else 6))
                else:
                    rows.append(fleet.measure(root / "fleet", 200 if quick else 1000, 15 if quick else 30))
                ratios = [", ".join(f"{ratio:.3f}" for ratio in row.get("batch_ratios", ())) for row in rows]
                cells = [{**row, "ratios": text} for row, text in zip(rows, ratios, strict=True)]
                print(f"\n{columns(cells, TABLES[part])}", flush=True)
            finally:
                results.save()


if __name__ == "__main__":
    main()
