"""Cost of agents and link: the same query without and with them, by turns, in one run."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks.monitors.session import MonitorSession
from benchmarks.report.results import progress
from testbed.processes import cpu_seconds

STARTING = 4.0  # seconds of an agent's life that are not looked at: Python and its imports


def measure(directory: Path, partitions: int, rounds: int, batches: int) -> dict[str, Any]:
    """Return medians and ratios for one number of partitions, on two one-core executors."""
    with MonitorSession(directory, cores=1) as session:
        plan = {"kind": "overhead", "rounds": rounds, "batches": batches, "warm_up": batches}
        application = session.start_application(f"overhead-{partitions}", plan, partitions)
        agents: list[tuple[float, float]] = []
        samples: list[_Sample] = []
        # Odd phases are those with link and agents; an application that asks for one has ended the one before.
        for number in range(2 * rounds + 2):
            session.await_phase(application, number)
            progress(f"{partitions} partitions: phase {number} of {2 * rounds + 1}")
            if samples:
                agents += [sample.usage() for sample in samples]
                samples = []
                session.stop_agents()
            elif number % 2 == 1:
                processes = session.start_agents()
                time.sleep(STARTING)
                samples = [_Sample(process.pid) for process in processes]
            (application / f"ready-{number}").touch()
        result = session.result(application)
    agent = {"agent_cores": max(cores for cores, _ in agents), "agent_rss": max(rss for _, rss in agents)}
    return {"partitions": partitions, **_summed(result["phases"]), **agent}


class _Sample:
    """CPU and memory of a process from now on."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._cpu = cpu_seconds(self._process)
        self._at = time.monotonic()

    def usage(self) -> tuple[float, float]:
        """Return the cores it used since, and its resident bytes."""
        used = cpu_seconds(self._process) - self._cpu
        return used / (time.monotonic() - self._at), float(self._process.memory_info().rss)


def _summed(phases: list[dict[str, Any]]) -> dict[str, Any]:
    off, on = (
        [statistics.median(phase["seconds"]) for phase in phases if phase["on"] is state] for state in (False, True)
    )
    cpu = {
        (state, part): statistics.mean(phase["cpu"][part] for phase in phases if phase["on"] is state)
        for state in (False, True)
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
