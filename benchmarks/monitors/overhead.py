"""Cost of agents and link: the same query without and with them, alternately, in one run."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks.monitors.app import THREADS
from benchmarks.monitors.session import MonitorSession
from benchmarks.report.results import progress
from testbed.processes import cpu_seconds

SETTLE = 3  # batches after a phase begins that do not count
MANY = 1_000  # partitions from which one such batch is enough
SOURCE_TASKS = 2  # of a batch, one for each core
STARTING = 4.0  # seconds of an agent's start that are not measured: Python and its imports


def measure(directory: Path, partitions: int, rounds: int, batches: int, *, stateful: bool) -> dict[str, Any]:
    """Return medians and ratios for one number of partitions, on two one-core executors."""
    with MonitorSession(directory, cores=1) as session:
        orders = session.start_application("overhead", partitions, stateful=stateful)
        settle = SETTLE if partitions < MANY else 1
        orders.send("phase", on=False, settle=settle, batches=batches)  # the warm-up
        agents: list[tuple[float, float]] = []
        phases = []
        for number in range(2 * rounds + 1):
            progress(f"{partitions} partitions: phase {number + 1} of {2 * rounds + 1}")
            on = number % 2 == 1
            samples = []
            if on:
                processes = session.start_agents()
                time.sleep(STARTING)
                samples = [_Sample(process.pid) for process in processes]
            phases.append(orders.send("phase", on=on, settle=settle, batches=batches))
            if on:
                agents += [sample.usage() for sample in samples]
                session.stop_agents()
        orders.send("finish")
    figures = _summed(phases)
    # What the link's own threads took; the difference of the two phases has the noise of the query's own work in it.
    link = statistics.mean(
        sum(cpu for name, cpu in phase["cpu"].items() if name.startswith("rechannel"))
        for phase in phases
        if phase["on"]
    )
    tasks = partitions + SOURCE_TASKS
    figures |= {"tasks": tasks, "link_cores": link / figures["period_on"], "link_us_per_task": link / tasks * 1e6}
    figures |= {f"{name}_us_per_task": figures[f"{name}_cpu"] / tasks * 1e6 for name in THREADS}
    agent = {"agent_cores": max(cores for cores, _ in agents), "agent_rss": max(rss for _, rss in agents)}
    return {"partitions": partitions, "stateful": stateful, **figures, **agent}


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
        for part in ("python", "jvm", *THREADS)
    }
    # Each phase with them is compared with the mean of the phases before and after, so that drift cancels out.
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
        "link_listener_cpu": cpu[True, "link_listener"],
        "event_log_cpu": (cpu[True, "event_log"] + cpu[False, "event_log"]) / 2,
        "py4j_cpu": cpu[True, "py4j"] - cpu[False, "py4j"],  # the query's own calls are in both
    }
