"""``python -m benchmarks.monitors [--quick] [--only PART] --json FILE``: the tables of ``docs/monitoring.md``."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.monitors import accuracy, fleet, overhead
from benchmarks.report.results import write

PARTS = ("overhead", "accuracy", "fleet")
# Partitions, phases with link and agents (each between two without), batches in each phase.
WHOLE = ((10, 4, 25), (100, 3, 12), (400, 2, 6))
QUICK = ((10, 2, 15), (100, 2, 8), (400, 1, 5))


def main() -> None:
    """Run the parts that are asked for, print their tables, and leave the figures in a file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.monitors", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer partitions, pairs and agents: some minutes")
    parser.add_argument("--only", choices=PARTS, action="append", help="only this part; may be given twice")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the figures go")
    arguments = parser.parse_args()
    parts = arguments.only or PARTS
    quick = arguments.quick
    root = Path(tempfile.mkdtemp(prefix="rechannel-bench-"))
    figures: dict[str, Any] = {"quick": quick}
    try:
        if "overhead" in parts:
            rows = figures["overhead"] = []
            for partitions, rounds, batches in QUICK if quick else WHOLE:
                rows.append(overhead.measure(root / f"overhead-{partitions}", partitions, rounds, batches, _say))
            _overhead_table(rows)
        if "accuracy" in parts:
            files = 3 if quick else 6
            rows = figures["accuracy"] = []
            for cores in (1, 2):
                rows.append(accuracy.measure(root / f"accuracy-{cores}", cores, files, _say))
            _accuracy_table(rows)
        if "fleet" in parts:
            figures["fleet"] = fleet.measure(root / "fleet", 200 if quick else 1000, 15 if quick else 30, _say)
            _fleet_table(figures["fleet"])
    finally:
        shutil.rmtree(root, ignore_errors=True)
        if arguments.json:  # what there is, should a part have failed
            write(arguments.json, figures)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _table(head: list[str], rows: list[list[str]]) -> None:
    lines = ["", f"| {' | '.join(head)} |", f"| {' | '.join('---' for _ in head)} |"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


def _overhead_table(rows: list[dict[str, Any]]) -> None:
    head = [
        "partitions",
        "batch without",
        "batch with",
        "ratio: median (all)",
        "largest / smallest without, with",
    ]
    head += ["driver Python CPU a batch", "driver JVM CPU a batch", "agent, cores", "agent, RSS"]
    _table(
        head,
        [
            [
                str(row["partitions"]),
                f"{row['batch_seconds_off']:.3f} s",
                f"{row['batch_seconds_on']:.3f} s",
                f"{row['batch_ratio']:.3f} ({', '.join(f'{ratio:.3f}' for ratio in row['batch_ratios'])})",
                f"{row['off_spread']:.3f}, {row['on_spread']:.3f}",
                f"{row['driver_python_cpu_off'] * 1e3:.1f} → {row['driver_python_cpu_on'] * 1e3:.1f} ms",
                f"{row['driver_jvm_cpu_off'] * 1e3:.0f} → {row['driver_jvm_cpu_on'] * 1e3:.0f} ms",
                f"{row['agent_cores']:.4f}",
                f"{row['agent_rss'] / 2**20:.1f} MiB",
            ]
            for row in rows
        ],
    )


def _accuracy_table(rows: list[dict[str, Any]]) -> None:
    _table(
        [
            "cores of an executor",
            "burned",
            "lightest, heaviest partition",
            "mean error",
            "worst partition",
            "parts / used",
        ],
        [
            [
                str(row["cores"]),
                f"{row['burned_seconds']:.1f} s",
                f"{row['lightest']:.2f}, {row['heaviest']:.2f} s",
                f"{row['mean_error']:.1%}",
                f"{row['worst_error']:.1%}",
                f"{row['parts_over_used']:.4f}",
            ]
            for row in rows
        ],
    )


def _fleet_table(row: dict[str, Any]) -> None:
    _table(
        [
            "agents",
            "one window",
            "bytes/s",
            "commands/s",
            "Redis, cores",
            "memory, first window",
            "memory, streams full",
            "latest push behind its time",
        ],
        [
            [
                f"{row['agents']:,}",
                f"{row['window_bytes'] / 1e3:.1f} kB",
                f"{row['bytes_per_second'] / 1e6:.2f} MB/s",
                f"{row['commands_per_second']:,.0f}",
                f"{row['redis_cores']:.3f}",
                f"{row['memory_one_window_each'] / 2**20:.0f} MiB",
                f"{row['memory_full'] / 2**20:.0f} MiB",
                f"{row['worst_lateness_seconds']:.2f} s",
            ]
        ],
    )


if __name__ == "__main__":
    main()
