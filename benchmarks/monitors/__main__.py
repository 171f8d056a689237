"""``python -m benchmarks.monitors [--quick] [--only PART] --json FILE``: the tables of ``docs/monitoring.md``."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.monitors import accuracy, fleet, overhead
from benchmarks.report.results import Result, ResultFile, argument_parser, read_results
from benchmarks.report.templates import table

PARTS = {
    "overhead": "Cost of agents and link to a query, by partitions of a stage",
    "accuracy": "Error of the CPU attributed to partitions of known cost, by cores of an executor",
    "fleet": "Load of many agents on one Redis",
}
UNITS = {
    "s": "batch_seconds_off batch_seconds_on period_off period_on driver_python_cpu_off driver_python_cpu_on "
    "driver_jvm_cpu_off driver_jvm_cpu_on burned_seconds lightest heaviest worst_lateness_seconds",
    "1": "batch_ratio batch_ratios off_spread on_spread mean_error worst_error errors parts_over_used",
    "cores": "cores agent_cores redis_cores",
    "bytes": "agent_rss window_bytes memory_one_window_each memory_full",
    "bytes/s": "bytes_per_second",
    "commands/s": "commands_per_second",
    "partitions": "partitions",
    "agents": "agents",
    "connections": "connections",
}
# Partitions, phases with link and agents (each between two without), batches in each phase.
WHOLE = ((10, 4, 25), (100, 3, 12), (400, 2, 6))
QUICK = ((10, 2, 15), (100, 2, 8), (400, 1, 5))

Row = Mapping[str, Any]


def main() -> None:
    """Run the requested parts, print their tables, and leave the figures in a file."""
    parser = argument_parser(
        "benchmarks.monitors", __doc__, "fewer partitions, pairs and agents: some minutes", tuple(PARTS)
    )
    options = parser.parse_args()
    quick = options.quick
    results = ResultFile(options.json, dict(read_results(options.json)))
    with tempfile.TemporaryDirectory(prefix="rechannel-bench-", ignore_cleanup_errors=True) as directory:
        root = Path(directory)
        for part in options.only or PARTS:
            rows: list[Row] = []
            results.figures[part] = Result.of(PARTS[part], {"rows": rows}, UNITS, quick=quick)
            try:
                if part == "overhead":
                    for partitions, rounds, batches in QUICK if quick else WHOLE:
                        rows.append(overhead.measure(root / f"overhead-{partitions}", partitions, rounds, batches))
                    _print_overhead(rows)
                elif part == "accuracy":
                    for cores in (1, 2):
                        rows.append(accuracy.measure(root / f"accuracy-{cores}", cores, 3 if quick else 6))
                    _print_accuracy(rows)
                else:
                    rows.append(fleet.measure(root / "fleet", 200 if quick else 1000, 15 if quick else 30))
                    _print_fleet(rows)
            finally:
                results.save()


def _print_overhead(rows: Sequence[Row]) -> None:
    head = (
        "partitions | batch without | batch with | ratio: median (all) | largest / smallest without, with | "
        "driver Python CPU a batch | driver JVM CPU a batch | agent, cores | agent, RSS"
    )
    cells = [
        (
            row["partitions"],
            f"{row['batch_seconds_off']:.3f} s",
            f"{row['batch_seconds_on']:.3f} s",
            f"{row['batch_ratio']:.3f} ({', '.join(f'{ratio:.3f}' for ratio in row['batch_ratios'])})",
            f"{row['off_spread']:.3f}, {row['on_spread']:.3f}",
            f"{row['driver_python_cpu_off'] * 1e3:.1f} → {row['driver_python_cpu_on'] * 1e3:.1f} ms",
            f"{row['driver_jvm_cpu_off'] * 1e3:.0f} → {row['driver_jvm_cpu_on'] * 1e3:.0f} ms",
            f"{row['agent_cores']:.4f}",
            f"{row['agent_rss'] / 2**20:.1f} MiB",
        )
        for row in rows
    ]
    print(f"\n{table(head, cells)}", flush=True)


def _print_accuracy(rows: Sequence[Row]) -> None:
    head = "cores of an executor | burned | lightest, heaviest partition | mean error | worst partition | parts / used"
    cells = [
        (
            row["cores"],
            f"{row['burned_seconds']:.1f} s",
            f"{row['lightest']:.2f}, {row['heaviest']:.2f} s",
            f"{row['mean_error']:.1%}",
            f"{row['worst_error']:.1%}",
            f"{row['parts_over_used']:.4f}",
        )
        for row in rows
    ]
    print(f"\n{table(head, cells)}", flush=True)


def _print_fleet(rows: Sequence[Row]) -> None:
    head = (
        "agents | one window | bytes/s | commands/s | Redis, cores | memory, first window | memory, streams full | "
        "latest push behind its time"
    )
    cells = [
        (
            f"{row['agents']:,}",
            f"{row['window_bytes'] / 1e3:.1f} kB",
            f"{row['bytes_per_second'] / 1e6:.2f} MB/s",
            f"{row['commands_per_second']:,.0f}",
            f"{row['redis_cores']:.3f}",
            f"{row['memory_one_window_each'] / 2**20:.0f} MiB",
            f"{row['memory_full'] / 2**20:.0f} MiB",
            f"{row['worst_lateness_seconds']:.2f} s",
        )
        for row in rows
    ]
    print(f"\n{table(head, cells)}", flush=True)


if __name__ == "__main__":
    main()
