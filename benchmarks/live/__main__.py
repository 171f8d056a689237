"""``python -m benchmarks.live [--quick] --json FILE``: Spark as it is and every policy on a real cluster."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.live import comparison
from benchmarks.live.comparison import Plan
from benchmarks.live.runs import runs
from benchmarks.live.service import __main__ as service
from benchmarks.live.situations import NODES, SITUATIONS, Shape
from benchmarks.live.summary import left_out
from benchmarks.live.variants import QUICK, SPARK, Variant, variants
from benchmarks.report.results import (
    Result,
    ResultFile,
    argument_parser,
    machine,
    progress,
    read_results,
    rounded,
    without_files,
    write_json,
)

PART = "live"  # of a result file
# Where a name is of two kinds, such as ``before``, it has the unit of what is around it.
_UNITS = {
    "s": "figures phases interval began before_from event_at moved_at after_from",
    "1": "skew spike speeds load_average cpu_spread memory_spread",
    "batches": "lengths cycle drift_at spike_at",
    "cores": "quota",
    "Mbit/s": "link link_mbit",
    "MB": "memory_mb",
    "rows/s": "throughput",
    "bytes/row": "bytes_per_row",
    "s/row": "cpu_per_row",
    "moves": "given_up",
    "partitions": "placed",
    "turns": "turn",
}
REPEATS = 3
QUICK_REPEATS = 1
WORKLOAD = "word-count"
LONGEST = 5.0  # seconds from batch to batch


def main() -> None:
    """Measure session after session, and keep the figures in a file; the testbed with known truth has its own part."""
    arguments = [each.removeprefix("--workload=") for each in sys.argv[1:]]
    if "--report" in arguments or service.WORKLOAD in arguments:
        raise SystemExit(service.main(sys.argv[1:]))
    parser = _parser()
    options = parser.parse_args()
    chosen, shape = _checked(parser, options)
    plans = list(_plans(options, chosen, shape))
    sessions: list[dict[str, Any]] = []
    quick = options.quick
    if options.resume and (stored := read_results(options.json).get(PART)):
        quick |= stored.quick
        sessions += [session for session in stored.rows if session.get("figures") and "error" not in session]
    measures = "batches under Spark as it is and under every policy, alternating"
    result = Result.of(measures, {"rows": sessions}, quick=quick, units=_UNITS)
    measured = {Plan.identity(session) for session in sessions}

    def write_runs() -> None:
        if options.runs is not None:
            write_json(options.runs, rounded(runs(sessions)))

    results = ResultFile(options.json, {PART: result}, write_runs)
    results.save()
    began, command = time.monotonic(), without_files(sys.argv[1:], "--json", "--runs")
    with tempfile.TemporaryDirectory(prefix="rechannel-live-", ignore_cleanup_errors=True) as root:
        for number, plan in enumerate(plans):
            record = plan.record()
            if Plan.identity(record) in measured:
                continue
            name = f"{plan.situation.name}, {plan.workload}"
            minutes = (time.monotonic() - began) / 60
            progress(f"session {number + 1} of {len(plans)} after {minutes:.1f} minutes: {name}")
            record |= {"began": time.time(), "machine": machine(), "command": command}
            sessions.append(record)
            with results.entry(name, record):
                comparison.measure(Path(root) / str(number), plan, record)
    progress(f"all sessions: {(time.monotonic() - began) / 60:.1f} minutes")
    if missing := left_out(sessions):
        progress("not measured:\n" + "\n".join(missing))
        raise SystemExit(1)


def _parser() -> argparse.ArgumentParser:
    parser = argument_parser("benchmarks.live", __doc__, "only even and adaptive, once, in shorter parts: 90 minutes")
    add = parser.add_argument
    add("--repeats", type=int, metavar="N", help="how often each variant goes through each situation")
    add("--situation", action="append", metavar="NAME", help=f"only this one: {', '.join(SITUATIONS)}")
    add("--workload", action="append", metavar="NAME", help=f"which to run [default: {WORKLOAD}]")
    add("--variant", action="append", metavar="NAME", help="only these variants; spark is always among them")
    add("--link", type=float, default=Shape.link, metavar="MBIT", help="rate of each node's link")
    add("--quota", type=float, default=Shape.quota, metavar="CORES", help="CPU of each node")
    add("--speeds", type=float, nargs="+", metavar="S", default=(), help="of the nodes, as shares of the quota")
    add("--interval", type=float, default=Shape.interval, metavar="SECONDS", help="from batch to batch: a fixed rate")
    add("--rootless", action="store_true", help="loopback addresses, quotas by stopping processes")
    add("--rows", type=int, metavar="N", help="of a batch [default: the workload's]")
    add("--keys", type=int, metavar="N", help="different keys [default: the workload's]")
    add("--skew", type=float, metavar="S", help="exponent of Zipf's law over the keys")
    add("--seed", type=int, default=0, metavar="N", help="of placements and of the order of variants")
    add("--resume", action="store_true", help="measure only the sessions that are not in FILE")
    add("--runs", type=Path, metavar="FILE", help="the runs that the simulation is calibrated with")
    return parser


def _checked(parser: argparse.ArgumentParser, options: argparse.Namespace) -> tuple[list[Variant], Shape]:
    if options.json is None:
        parser.error("--json is needed")
    if unknown := [name for name in options.situation or () if name not in SITUATIONS]:
        parser.error(f"no such situation: {', '.join(unknown)}; there are {', '.join(SITUATIONS)}")
    if not 0 <= options.interval <= LONGEST:
        parser.error(f"--interval: from 0 to {LONGEST:g}")
    if options.speeds and (len(options.speeds) != NODES or min(options.speeds) <= 0):
        parser.error(f"--speeds: {NODES} of them, all above 0")
    names = tuple(options.variant or (QUICK if options.quick else ()))
    try:
        chosen = variants(tuple(dict.fromkeys((SPARK.name, *names))) if names else ())
    except ValueError as error:
        parser.error(str(error))
    return chosen, Shape(
        quota=options.quota,
        link=options.link,
        rootless=options.rootless,
        speeds=tuple(options.speeds),
        interval=options.interval,
    )


def _plans(options: argparse.Namespace, chosen: Sequence[Variant], shape: Shape) -> Iterator[Plan]:
    lengths = comparison.QUICK_LENGTHS if options.quick else comparison.LENGTHS
    own_input = {name: value for name in ("rows", "keys", "skew") if (value := getattr(options, name)) is not None}
    for repeat in range(options.repeats or (QUICK_REPEATS if options.quick else REPEATS)):
        for workload in options.workload or [WORKLOAD]:
            for name in options.situation or SITUATIONS:
                seed = options.seed + repeat
                source = comparison.input_of(workload, SITUATIONS[name], lengths, own_input)
                order = comparison.in_turns(chosen, f"{seed} {name}")
                yield Plan(SITUATIONS[name], workload, source, tuple(order), lengths, shape, repeat, seed)


if __name__ == "__main__":
    main()
