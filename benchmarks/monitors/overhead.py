"""What agents and link cost: the same query without and with them, by turns, in one run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from benchmarks.monitors.bench import cpu_seconds, open_bench

STARTING = 4.0  # seconds of an agent's life that are not looked at: Python and its imports


def measure(directory: Path, partitions: int, rounds: int, batches: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Return medians and ratios for one number of partitions, on two one-core executors."""
    with open_bench(directory, cores=1) as bench:
        name = f"overhead-{partitions}"
        plan = {"kind": "overhead", "rounds": rounds, "batches": batches, "warm_up": batches}
        conf = {"spark.sql.shuffle.partitions": str(partitions)}
        application = bench.start_application(name, plan, conf, 1)
        agents: list[tuple[float, float]] = []
        looks: list[_Look] = []
        # Odd phases are those with link and agents; an application that asks for one has ended the one before.
        for number in range(2 * rounds + 2):
            bench.wait(f"phase {number}", (application / f"asks-{number}").exists)
            say(f"{partitions} partitions: phase {number} of {2 * rounds + 1}")
            if looks:
                agents += [look.taken() for look in looks]
                looks = []
                bench.stop_agents()
            elif number % 2 == 1:
                started = bench.start_agents()
                time.sleep(STARTING)
                looks = [_Look(process.pid) for process in started]
            (application / f"ready-{number}").touch()
        result = bench.result(application, name)
    return {"partitions": partitions, **_summed(result["phases"]), **_agent_figures(agents)}


class _Look:
    """A process from now on."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._cpu = cpu_seconds(self._process)
        self._at = time.monotonic()

    def taken(self) -> tuple[float, float]:
        """Cores it used since, and its resident bytes."""
        used = cpu_seconds(self._process) - self._cpu
        return used / (time.monotonic() - self._at), float(self._process.memory_info().rss)


def _agent_figures(taken: list[tuple[float, float]]) -> dict[str, float]:
    return {"agent_cores": max(cores for cores, _ in taken), "agent_rss": max(rss for _, rss in taken)}


def _summed(phases: list[dict[str, Any]]) -> dict[str, Any]:
    off, on = (
        [statistics.median(phase["seconds"]) for phase in phases if phase["on"] is wanted] for wanted in (False, True)
    )
    cpu = {
        (wanted, part): statistics.mean(phase["cpu"][part] for phase in phases if phase["on"] is wanted)
        for wanted in (False, True)
        for part in ("python", "jvm")
    }
    # Each phase with them is held against the mean of the phases before and after: what drifts cancels out.
    ratios = [2 * with_ / (before + after) for before, with_, after in zip(off, on, off[1:], strict=False)]
    periods = {on: [phase["period"] for phase in phases if phase["on"] is on] for on in (False, True)}
    return {
        "batch_seconds_off": statistics.median(off),
        "batch_seconds_on": statistics.median(on),
        "batch_ratio": statistics.median(ratios),
        "batch_ratios": ratios,
        "off_spread": max(off) / min(off),
        "on_spread": max(on) / min(on),
        "period_off": statistics.median(periods[False]),
        "period_on": statistics.median(periods[True]),
        "driver_python_cpu_off": cpu[False, "python"],
        "driver_python_cpu_on": cpu[True, "python"],
        "driver_jvm_cpu_off": cpu[False, "jvm"],
        "driver_jvm_cpu_on": cpu[True, "jvm"],
    }
