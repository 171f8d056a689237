"""Random faults at Poisson times, several at once, while one migration follows the other: ``make chaos MINUTES=10``.

The seed settles which fault strikes when and for how long; what it meets is the machine's affair. At the end everything
is mended and must recover by itself, and all that was written is audited.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import random
import secrets
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rechannel.wire.redis.errors import StoreError
from testbed.processes import ProcessDiedError
from tests.drills import audit, results
from tests.drills.faults import FAULTS, Fault, Mend
from tests.drills.network import NetworkError
from tests.drills.scenarios import until_well
from tests.drills.session import to_stderr
from tests.drills.world import PATIENCE, PROVIDERS, DrillError, World

MEAN_GAP = 25.0  # seconds between two strikes, on average
_SHORTEST, _LONGEST = 2.0, 45.0
_APPLY_EVERY = 10.0


@dataclass(frozen=True)
class Strike:
    """A fault by its name, ``at`` seconds after the start, mended ``lasts`` seconds later."""

    at: float
    fault: str
    lasts: float


def schedule(seed: int, seconds: float, faults: Sequence[Fault], mean_gap: float = MEAN_GAP) -> list[Strike]:
    """Return the strikes of a seed, in order: a Poisson process of ``1 / mean_gap`` a second.

    A strike on a part that is down already is left out; all are mended before the time is over.
    """
    chance = random.Random(seed)
    strikes: list[Strike] = []
    busy_until: dict[str, float] = {}
    at = chance.expovariate(1 / mean_gap)
    while at < seconds:
        fault = chance.choice(faults)
        # Drawn always, so that what a fault lasts does not shift all that comes after it.
        lasts = min(_LONGEST, max(_SHORTEST, chance.expovariate(1 / 15.0)))
        lasts = round(lasts if fault.lasts else 0.0, 1)
        if busy_until.get(fault.part, 0.0) <= at and at + lasts <= seconds:
            strikes.append(Strike(round(at, 1), fault.name, lasts))
            busy_until[fault.part] = at + lasts + _SHORTEST
        at += chance.expovariate(1 / mean_gap)
    return strikes


def possible() -> list[Fault]:
    """Return the faults that this machine allows; those that need preparing are left to their own scenarios."""
    return [fault for fault in FAULTS if fault.prepare is None and not fault.why_not()]


def run(seed: int, minutes: float, provider: str, *, directory: Path | None = None) -> dict[str, Any]:
    """Run chaos on a world of its own; returns what came of it. Logs are kept where something did not hold."""
    faults = possible()
    for fault in FAULTS:
        if why := fault.why_not():
            to_stderr(f"LEFT OUT: {fault.name}: {why}")
    strikes = schedule(seed, minutes * 60, faults)
    to_stderr(
        f"seed {seed}: {len(strikes)} faults in {minutes:g} minutes; again: make chaos MINUTES={minutes:g} SEED={seed}"
    )
    place = (directory or Path(tempfile.mkdtemp(prefix="rechannel-chaos-"))) / f"chaos-{seed}-{provider}"
    shutil.rmtree(place, ignore_errors=True)
    result: dict[str, Any] = {
        "seed": seed,
        "minutes": minutes,
        "provider": provider,
        "strikes": [dataclasses.asdict(strike) for strike in strikes],
        "problems": [],
        "recovered": -1.0,
    }
    world = World(place, provider)
    try:
        with world:
            until_well(world, "all is well before the first fault")
            decisions = _storm(world, strikes, {fault.name: fault for fault in faults}, minutes * 60)
            since, batches = time.time(), world.last_batches()
            world.wait("all is well after the last fault", lambda: world.lacking(since, batches), PATIENCE * 2)
            result["recovered"] = round(time.time() - since, 1)
            world.wait("no move is left under way", world.moving)
            end = world.stop_application()
            result["problems"] += [f"query {name}: {text}" for name, text in end["exceptions"].items()]
            result["problems"] += world.watch.leaders.problems()
            result["migrations"] = len(decisions)
    except (DrillError, ProcessDiedError, NetworkError, TimeoutError) as error:
        result["problems"].append(str(error)[:4000])
    _audit(world, result)
    for problem in result["problems"]:
        to_stderr(f"did not hold: {problem}")
    to_stderr(
        f"{result['batches']} batches audited, {result['lost']} rows lost, {result['doubled']} doubled; seed {seed}"
    )
    if result["held"]:
        shutil.rmtree(place, ignore_errors=True)
    else:
        to_stderr(f"logs are kept in {place}")
    return result


def _audit(world: World, result: dict[str, Any]) -> None:
    journal = world.journal()
    checked = audit.audit(world.app_directory)
    last = {line["move"]: line for line in journal}
    result["problems"] += [*checked.wrong, *audit.taken_twice(journal)]
    result |= {
        "batches": checked.batches,
        "lost": checked.lost,
        "doubled": checked.doubled,
        "landed": sum(line["after"] in ("drained", "killed") for line in last.values()),
        "abandoned": sum(line["after"] == "abandoned" for line in last.values()),
        "reasons": dict(Counter(line["reason"] for line in last.values() if line["after"] == "abandoned")),
        "held": checked.exact and not result["problems"],
    }


def _storm(world: World, strikes: list[Strike], faults: dict[str, Fault], seconds: float) -> list[str]:
    """Strike and mend by the schedule, and have migrations run as often as they can; returns their decisions."""
    began = time.monotonic()
    waiting, mends = list(strikes), list[tuple[float, str, Mend]]()
    decisions: list[str] = []
    next_apply = 0.0
    try:
        while (now := time.monotonic() - began) < seconds or mends:
            for item in [item for item in mends if item[0] <= now]:
                mends.remove(item)
                item[2]()
                to_stderr(f"{now:6.1f} s  mended: {item[1]}")
            if waiting and waiting[0].at <= now:
                strike = waiting.pop(0)
                to_stderr(f"{now:6.1f} s  struck: {strike.fault}, for {strike.lasts:g} s")
                mends.append((now + strike.lasts, strike.fault, faults[strike.fault].strike(world)))
            elif now >= next_apply and world.alive("redis") and not any("Redis" in name for _, name, _ in mends):
                next_apply = now + _APPLY_EVERY
                with contextlib.suppress(DrillError, StoreError):
                    decisions.append(_migrate(world))
            world.group.check()
            time.sleep(0.3)
    finally:
        for _, _, mend in mends:
            mend()
    return decisions


def _migrate(world: World) -> str:
    """Begin a migration where none runs; raises `DrillError` where that is not possible now."""
    if end := world.moving():
        raise DrillError(end)
    return world.start_migration(wait=3.0)[0]


def merged(runs: list[dict[str, Any]], run: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the runs with one added, in place of an older one of the same seed, length and provider."""
    own = run["seed"], run["minutes"], run["provider"]
    return [*(item for item in runs if (item["seed"], item["minutes"], item["provider"]) != own), run]


def main() -> int:
    """Run chaos from the command line; 1 if anything did not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.drills.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=None, help="[default: a new one, which is told]")
    parser.add_argument("--provider", choices=sorted(PROVIDERS), default="hdfs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="add what was found to this file")
    options = parser.parse_args()
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    result = run(seed, options.minutes, options.provider)
    if options.json is not None:
        document = results.load(options.json)
        document["chaos"] = merged(document.get("chaos", []), result)
        results.save(options.json, document)
    else:
        sys.stdout.write(json.dumps(result, indent=1) + "\n")
    return 0 if result["held"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
