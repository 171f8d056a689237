"""``python -m benchmarks.live [--quick] --json FILE``: Spark as it is and every policy on a real cluster."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.live import comparison
from benchmarks.live.archive import rounded
from benchmarks.live.runs import runs
from benchmarks.live.situations import NODES, SITUATIONS, Shape
from benchmarks.live.summary import left_out
from benchmarks.live.variants import QUICK, SPARK, variants
from benchmarks.report.results import keeping, machine, say, write

REPEATS = 3
QUICK_REPEATS = 1
WORKLOAD = "word-count"
LONGEST = 5.0  # seconds from batch to batch


def main() -> None:
    """Measure session after session, and keep what there is in a file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.live", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="only even and adaptive, once each, in shorter parts: 90 minutes"
    )
    parser.add_argument("--repeats", type=int, metavar="N", help="how often each way goes through each situation")
    parser.add_argument("--situation", action="append", metavar="NAME", help=f"only this one: {', '.join(SITUATIONS)}")
    parser.add_argument("--workload", action="append", metavar="NAME", help=f"which to run [default: {WORKLOAD}]")
    parser.add_argument("--way", action="append", metavar="NAME", help="only these ways; spark is always among them")
    parser.add_argument("--link", type=float, default=Shape.link, metavar="MBIT", help="rate of each node's link")
    parser.add_argument("--quota", type=float, default=Shape.quota, metavar="CORES", help="CPU of each node")
    parser.add_argument("--speeds", type=float, nargs="+", metavar="S", help="of the nodes, as shares of the quota")
    parser.add_argument(
        "--interval", type=float, default=Shape.interval, metavar="SECONDS", help="from batch to batch: a fixed rate"
    )
    parser.add_argument("--rootless", action="store_true", help="loopback addresses, quotas by stopping processes")
    parser.add_argument("--rows", type=int, metavar="N", help="of a batch [default: the workload's]")
    parser.add_argument("--keys", type=int, metavar="N", help="different keys [default: the workload's]")
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
        chosen = variants(tuple(dict.fromkeys((SPARK.name, *names))) if names else ())
    except ValueError as error:
        parser.error(str(error))
    if not 0 <= arguments.interval <= LONGEST:
        parser.error(f"--interval: from 0 to {LONGEST:g}")
    speeds = tuple(arguments.speeds or ())
    if speeds and (len(speeds) != NODES or min(speeds) <= 0):
        parser.error(f"--speeds: {NODES} of them, all above 0")
    shape = Shape(
        quota=arguments.quota,
        link=arguments.link,
        rootless=arguments.rootless,
        speeds=speeds,
        interval=arguments.interval,
    )
    lengths = comparison.QUICK_LENGTHS if arguments.quick else comparison.LENGTHS
    repeats = arguments.repeats or (QUICK_REPEATS if arguments.quick else REPEATS)
    figures: dict[str, Any] = {"machine": machine(), "quick": arguments.quick, "sessions": []}
    if arguments.resume and arguments.json.exists():
        kept = json.loads(arguments.json.read_text())
        figures["quick"] |= kept["quick"]
        figures["sessions"] = [
            session for session in kept["sessions"] if session.get("figures") and "error" not in session
        ]
    done = {_identity(one) for one in figures["sessions"]}
    wanted = [
        (situation, workload, repeat)
        for repeat in range(repeats)
        for workload in arguments.workload or [WORKLOAD]
        for situation in arguments.situation or SITUATIONS
    ]
    _save(figures, arguments.json, arguments.runs)
    root, began = Path(tempfile.mkdtemp(prefix="rechannel-live-")), time.monotonic()
    try:
        for number, (situation, workload, repeat) in enumerate(wanted):
            minutes = (time.monotonic() - began) / 60
            seed = arguments.seed + repeat
            given = comparison.input_of(
                workload, SITUATIONS[situation], lengths, arguments.rows, arguments.keys, arguments.skew
            )
            order = comparison.in_turns(chosen, f"{seed} {situation}")
            keep: dict[str, Any] = {
                "situation": situation,
                "workload": workload,
                "repeat": repeat,
                "seed": seed,
                "shape": asdict(shape),
                "lengths": asdict(lengths),
                "input": asdict(given),
                "ways": sorted({way.name for way in order}),
            }
            if _identity(keep) in done:
                continue
            say(f"session {number + 1} of {len(wanted)} after {minutes:.1f} minutes: {situation}, {workload}")
            keep |= {"began": time.time(), "machine": machine(), "command": _command(sys.argv[1:])}
            figures["sessions"].append(keep)
            with keeping(f"{situation}, {workload}", keep, lambda: _save(figures, arguments.json, arguments.runs)):
                comparison.measure(root / str(number), SITUATIONS[situation], given, order, lengths, shape, keep)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    say(f"all sessions: {(time.monotonic() - began) / 60:.1f} minutes")
    if missing := left_out(figures):
        say("not measured:\n" + "\n".join(missing))
        raise SystemExit(1)


def _save(figures: Mapping[str, Any], whole: Path, to_calibrate: Path | None) -> None:
    """Write what there is, should the next session fail."""
    write(whole, figures)
    if to_calibrate is not None:
        write(to_calibrate, rounded(runs(figures)))


def _command(words: Sequence[str]) -> list[str]:
    """What was asked for, without the names of files."""
    files = {"--json", "--runs"}
    return [
        word
        for before, word in zip(["", *words], words, strict=False)
        if word.partition("=")[0] not in files and before not in files
    ]


def _identity(session: Mapping[str, Any]) -> str:
    """What makes a session one that was measured already."""
    names = ("situation", "workload", "seed", "shape", "lengths", "input", "ways")
    return json.dumps([session.get(name) for name in names], sort_keys=True)


if __name__ == "__main__":
    main()
