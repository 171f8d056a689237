"""``python -m benchmarks.live [--quick] --json FILE``: Spark as it is and every policy on a real cluster."""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.live import comparison
from benchmarks.live.runs import runs
from benchmarks.live.session import Shape
from benchmarks.live.situations import SITUATIONS
from benchmarks.live.ways import QUICK, SPARK, ways
from benchmarks.policies.machine import keeping, machine, say

REPEATS = 3
QUICK_REPEATS = 1
WORKLOAD = "word-count"


def main() -> None:
    """Measure session after session, and keep what there is in a file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.live", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="Spark, even and adaptive, once each, in shorter parts: 70 minutes"
    )
    parser.add_argument("--repeats", type=int, metavar="N", help="how often each way goes through each situation")
    parser.add_argument("--situation", action="append", metavar="NAME", help=f"only this one: {', '.join(SITUATIONS)}")
    parser.add_argument("--workload", action="append", metavar="NAME", help=f"which to run [default: {WORKLOAD}]")
    parser.add_argument("--way", action="append", metavar="NAME", help="only these ways; spark is always among them")
    parser.add_argument("--link", type=float, default=Shape.link, metavar="MBIT", help="rate of each node's link")
    parser.add_argument("--quota", type=float, default=Shape.quota, metavar="CORES", help="CPU of each node")
    parser.add_argument("--rootless", action="store_true", help="loopback addresses, quotas by stopping processes")
    parser.add_argument("--rows", type=int, metavar="N", help="of a batch [default: the workload's]")
    parser.add_argument("--skew", type=float, metavar="S", help="exponent of Zipf's law over the keys")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of placements and of the order of ways")
    parser.add_argument("--resume", action="store_true", help="go on with what FILE does not have yet")
    parser.add_argument("--json", type=Path, metavar="FILE", required=True, help="the figures")
    parser.add_argument("--runs", type=Path, metavar="FILE", help="the same as the simulation is calibrated with")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.situation or () if name not in SITUATIONS]:
        parser.error(f"no such situation: {', '.join(unknown)}; there are {', '.join(SITUATIONS)}")
    names = tuple(arguments.way or (QUICK if arguments.quick else ()))
    try:
        chosen = ways(tuple(dict.fromkeys((SPARK.name, *names))) if names else ())
    except ValueError as error:
        parser.error(str(error))
    shape = Shape(quota=arguments.quota, link=arguments.link, rootless=arguments.rootless)
    lengths = comparison.QUICK_LENGTHS if arguments.quick else comparison.LENGTHS
    repeats = arguments.repeats or (QUICK_REPEATS if arguments.quick else REPEATS)
    figures: dict[str, Any] = {"machine": machine(), "quick": arguments.quick, "sessions": []}
    if arguments.resume and arguments.json.exists():
        kept = json.loads(arguments.json.read_text())["sessions"]
        figures["sessions"] = [session for session in kept if "error" not in session]
    done = {(one["situation"], one["workload"], one["repeat"], one["shape"]["link"]) for one in figures["sessions"]}
    wanted = [
        (situation, workload, repeat)
        for repeat in range(repeats)
        for workload in arguments.workload or [WORKLOAD]
        for situation in arguments.situation or SITUATIONS
        if (situation, workload, repeat, shape.link) not in done
    ]
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    root, began = Path(tempfile.mkdtemp(prefix="rechannel-live-")), time.monotonic()
    try:
        for number, (situation, workload, repeat) in enumerate(wanted):
            minutes = (time.monotonic() - began) / 60
            say(f"session {number + 1} of {len(wanted)} after {minutes:.1f} minutes: {situation}, {workload}")
            seed = arguments.seed + repeat
            # Spark stands twice among the ways: what differs between the two is noise.
            order = [*chosen, SPARK]
            random.Random(f"{seed} {situation}").shuffle(order)  # noqa: S311  no secret
            keep: dict[str, Any] = {
                "situation": situation,
                "workload": workload,
                "repeat": repeat,
                "seed": seed,
                "shape": asdict(shape),
                "lengths": asdict(lengths),
            }
            figures["sessions"].append(keep)
            with keeping(
                f"{situation}, {workload}", keep, lambda: arguments.json.write_text(json.dumps(figures, indent=1))
            ):
                given = comparison.input_of(workload, SITUATIONS[situation], lengths, arguments.rows, arguments.skew)
                comparison.measure(root / str(number), SITUATIONS[situation], given, order, lengths, shape, keep)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    if arguments.runs:
        arguments.runs.parent.mkdir(parents=True, exist_ok=True)
        arguments.runs.write_text(json.dumps(runs(figures)))
    say(f"all sessions: {(time.monotonic() - began) / 60:.1f} minutes")
    if any("error" in session or not session["exact"] for session in figures["sessions"]):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
