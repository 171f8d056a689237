"""Runs the soak for some hours and says whether attaching costs more and more: ``python -m tests.soak --hours 2``.

Exit code 1: a bound was not held, or a batch was not exact. A run of fewer than 5,000 batches is not held to bounds.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.report.results import Result, read_results, revision, rounded, write_json
from testbed.processes import ProcessDiedError
from testbed.stack import StackError
from tests.drills.session import to_stderr
from tests.soak import figures, page
from tests.soak.world import SIDES, World

_MOVES = 180.0  # seconds between two times at which all partitions change places
_SAMPLE = 30.0  # seconds
_COLLECT = 120.0  # seconds between two collections of garbage
_FEWEST = 20  # of each of these in a short run
_RUNS, _STARTS = "runs", "starts"
_MEASURES = {_RUNS: "Two drivers, one with Rechannel, by run", _STARTS: "Starts of a query in one driver"}


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--hours", type=float, default=2.0, metavar="H", help="fractions too [default: 2]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="figures; a run is added to those it holds")
    parser.add_argument("--document", type=Path, metavar="FILE", help="write the tables between its marks")
    parser.add_argument("--starts", type=Path, metavar="PREFIX", help="figures of `make soak-starts` for the document")
    parser.add_argument("--render", action="store_true", help="run nothing, only write the document")
    parser.add_argument("--keep", type=Path, metavar="DIRECTORY", help="where logs and everything measured stay")
    return parser.parse_args()


def main() -> int:
    """Run what was asked for."""
    options = arguments()
    results = read_results(options.json)
    runs, starts = (results[part].rows if part in results else [] for part in (_RUNS, _STARTS))
    new: dict[str, list[dict[str, Any]]] = {}
    if latest := starts_of(options.starts):
        starts = new[_STARTS] = latest
    code = 0
    if not options.render:
        try:
            run = soak(options.hours, options.keep)
        except (StackError, ProcessDiedError) as error:
            to_stderr(f"the soak was broken off: {error}")
            return 1
        runs = new[_RUNS] = [*runs, run]
        sys.stdout.write(f"{page.milestones(run['milestones'])}\n\n{page.slopes(run)}\n")
        code = tell(run)
    if options.json is not None and new:
        results |= {part: Result.of(_MEASURES[part], {"rows": rows}) for part, rows in new.items()}
        write_json(options.json, results, indent=None)
    if options.document is not None and runs:
        page.write(options.document, runs, starts)
        to_stderr(f"{options.document} is written")
    return code


def soak(hours: float, keep: Path | None = None) -> dict[str, Any]:
    """Run for some hours; returns what was found."""
    directory = Path(tempfile.mkdtemp(prefix="rechannel-soak-")) if keep is None else keep.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    seconds = hours * 3600
    every = min(_SAMPLE, seconds / _FEWEST)
    moves_every = min(_MOVES, seconds / 4)
    try:
        with World(directory, min(_COLLECT, seconds / _FEWEST)) as world:
            to_stderr(f"every query has a batch; {seconds:g} s from now on")
            began = time.monotonic()
            samples, refused, moves = [world.sample()], [], 0
            while (passed := time.monotonic() - began) < seconds:
                if passed >= (moves + 1) * moves_every:
                    moves += 1
                    if why := world.move():
                        refused.append(why)
                        to_stderr(f"moves were refused: {why}")
                time.sleep(max(0.0, min(len(samples) * every, seconds) - (time.monotonic() - began)))
                world.check()
                samples.append(world.sample())
                if len(samples) % 20 == 0:
                    to_stderr(
                        f"{time.monotonic() - began:.0f} s, {samples[-1]['with']['batches']} batches with Rechannel"
                    )
            end = world.stop()
        measured = {"samples": samples, "hours": hours, "orders": moves, "refused": refused, **end}
        write_json(directory / "measured.json", measured, indent=None)
    finally:
        if keep is None:
            shutil.rmtree(directory, ignore_errors=True)
    return summary(measured)


def summary(run: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of a run, from which the page is made."""
    for side in SIDES:
        for line in run[side]["batches"]:
            line["at"] = figures.epoch(line["at"])
    copied = ("hours", "orders", "counters", "left_behind")
    return {name: run[name] for name in copied} | {
        "revision": revision(),
        "refused": len(run["refused"]),
        "cores": os.cpu_count(),
        "batches": {side: run["samples"][-1][side]["batches"] for side in SIDES},
        "compared": figures.compared(run),
        "wrong": figures.audit(run),
        "milestones": rounded(figures.milestones(run)),
        "done": [sample["with"]["batches"] for sample in run["samples"]],
        "series": figures.series(run),
    }


def tell(run: dict[str, Any]) -> int:
    """Say what does not hold; returns the exit code."""
    wrong = list(run["wrong"])
    if run["refused"] and run["refused"] == run["orders"]:
        wrong.append("no move was ever accepted")
    if run["left_behind"]:
        wrong.append(f"the link left files behind: {', '.join(run['left_behind'])}")
    above = [judged.name for judged in figures.judge(run["done"], run["series"]) if not judged.held]
    count = run["batches"]["with"]
    if count >= figures.JUDGED:
        wrong += [f"not below its bound: {name}" for name in above]
    else:
        to_stderr(f"{count} batches are too few for slopes, {figures.JUDGED} are needed; not held to bounds")
    for sentence in wrong:
        to_stderr(f"DOES NOT HOLD: {sentence}")
    to_stderr(f"{count} batches with Rechannel, {run['compared']} compared, {run['counters']}")
    return 1 if wrong else 0


def starts_of(prefix: Path | None) -> list[dict[str, Any]]:
    """Return the figures of the starts, a row for each way of pinning threads."""
    if prefix is None:
        return []
    paths = {name: Path(f"{prefix}-{name}.json") for name in ("pinned", "not-pinned")}
    return [{"name": name, **rounded(json.loads(path.read_text()))} for name, path in paths.items() if path.exists()]


if __name__ == "__main__":
    raise SystemExit(main())
