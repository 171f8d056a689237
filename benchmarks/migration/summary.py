"""From a row's raw record to the figures of each variant: plain arithmetic over Spark's progress events. Pure.

Seconds throughout. A batch's duration is Spark's own ``triggerExecution``; its commit is its begin plus that.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.migration.overlap import overlap, spans
from benchmarks.migration.variants import ONE_BY_ONE, RESTART, VARIANTS
from benchmarks.report.numbers import median_of
from rechannel.wire.codes import MoveState
from testbed.progress import Batch, batches

GOAL = 1.25  # times the steady median
AFTERMATH = 2  # batches after the last landing that count as part of the migration
_TICK = 0.002  # Spark's times are whole milliseconds
CALM = 3  # batches in a row that are not slow: it has settled


def phase_figures(phase: Mapping[str, Any], committed: Sequence[Batch], query: str) -> dict[str, Any]:
    """Return the figures of one phase; KeyError or ValueError where it was not measured to its end."""
    ordered, end = phase["ordered"] + _TICK, phase["end"]
    quiet = [batch for batch in committed if batch.begin >= phase["quiet_from"] and batch.end <= ordered]
    if len(quiet) < CALM:
        raise ValueError(f"only {len(quiet)} quiet batches")
    seconds = [batch.seconds for batch in quiet]
    steady = statistics.median(seconds)
    after = [batch for batch in committed if ordered < batch.end and batch.begin < end]
    figures: dict[str, Any] = {
        "variant": phase["variant"],
        "repeat": phase["repeat"],
        "steady": steady,
        "quiet_peak_ratio": max(seconds) / steady,
        "quiet_deviation": statistics.stdev(seconds),
        "loaded_bytes": phase["loaded_bytes"],
    }
    ends = [batch.end for batch in quiet]
    period = statistics.median(right - left for left, right in itertools.pairwise(ends))
    if phase["variant"] == RESTART.name:
        figures |= _restarted(phase, committed, period, steady)
    else:
        figures |= _moved(phase, after, steady)
        figures |= _predicted(phase["decision"].get("migration_cost"), figures, query)
        figures["load"] = _load(phase, quiet)
        stages = spans(phase["journal"], overlapped=phase["variant"] != ONE_BY_ONE.name)
        figures["overlap"] = overlap(stages)
    figures["peak_ratio"] = figures["peak"] / steady
    figures["extra_noise"] = figures["quiet_deviation"] * math.sqrt(figures["window"])
    figures["settled"] = _settled(after, figures.pop("first_calm"), GOAL * steady, max(seconds))
    return figures


def _moved(phase: Mapping[str, Any], after: Sequence[Batch], steady: float) -> dict[str, Any]:
    landed = _reached(phase, MoveState.DRAINED)
    last = max((int(line["batch"]) for line in landed), default=-1)
    window = [batch for batch in after if batch.number <= last + AFTERMATH] if landed else list(after)
    if not window:
        raise ValueError("no batch was committed after the order")
    steered = [line["move"] for line in _reached(phase, MoveState.STEERED)]
    moves = phase["decision"]["moves"]
    return {
        "peak": max(batch.seconds for batch in window),
        "extra": math.fsum(batch.seconds - steady for batch in window),
        "window": len(window),
        "first_calm": last + 1,
        "landing": max(line["at"] for line in landed) - phase["ordered"] if landed else None,
        "moves": len(moves),
        "steps": len({move["step"] for move in moves}),
        "state_bytes": math.fsum(move.get("bytes", 0.0) for move in moves),
        "landed": len(landed),
        "abandoned": len(_reached(phase, MoveState.ABANDONED)),
        "missed": len(steered) - len(set(steered)),  # repeated steers
    }


def _reached(phase: Mapping[str, Any], state: MoveState) -> list[Mapping[str, Any]]:
    """Return the lines of a phase's journal by which moves came into a state."""
    return [line for line in phase["journal"] if line["after"] == state]


def _restarted(phase: Mapping[str, Any], committed: Sequence[Batch], period: float, steady: float) -> dict[str, Any]:
    """The gap between two commits takes the place of the longest batch."""
    stopping = phase["restart"]["stopping"]
    before = [batch for batch in committed if batch.begin < stopping]  # an interrupted one is not in it
    after = [batch for batch in committed if batch.begin > stopping]
    if not before or not after:
        raise ValueError("no batch was committed before or after the restart")
    gap = after[0].end - before[-1].end
    rest = after[1 : 1 + AFTERMATH]
    return {
        "peak": max([gap, *(batch.seconds for batch in rest)]),
        "extra": gap - period + math.fsum(batch.seconds - steady for batch in rest),
        "gap": gap,
        "window": 1 + len(rest),
        "first_calm": after[0].number + 1,
        "landing": after[0].end - stopping,
    }


def _predicted(cost: Mapping[str, Any] | None, figures: Mapping[str, Any], query: str) -> dict[str, Any]:
    """Prediction and its error: predicted over measured, less one."""
    if not cost or query not in cost.get("peak", {}):
        return {}
    predicted: dict[str, Any] = {"predicted_peak": cost["peak"][query], "predicted_total": cost["total"]}
    predicted["peak_error"] = cost["peak"][query] / figures["peak"] - 1
    if figures["landing"]:
        predicted["total_error"] = cost["total"] / figures["landing"] - 1
    return predicted


def _load(phase: Mapping[str, Any], quiet: Sequence[Batch]) -> float | None:
    """Extra time of the moved partitions' first tasks on their targets, over their usual time; the median."""
    usual: dict[int, list[float]] = {}
    numbers = {batch.number for batch in quiet}
    for batch, partition, seconds in phase.get("tasks", ()):
        if batch in numbers:
            usual.setdefault(int(partition), []).append(seconds)
    landing = {int(line["partition"]): int(line["batch"]) for line in _reached(phase, MoveState.DRAINED)}
    loads = [
        seconds - statistics.median(usual[int(partition)])
        for batch, partition, seconds in phase.get("tasks", ())
        if landing.get(int(partition)) == batch and int(partition) in usual
    ]
    return statistics.median(loads) if loads else None


def _settled(after: Sequence[Batch], first_calm: int, limit: float, quiet_peak: float) -> int | None:
    """Batches from the order to the last one before several in a row are no longer than steady ones are."""
    calm = 0
    for index, batch in enumerate(after):
        slow = batch.number < first_calm or batch.seconds > max(limit, quiet_peak)
        calm = 0 if slow else calm + 1
        if calm == CALM:
            return index + 1 - CALM
    return None


def row_figures(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of a row: each variant's phases, and over them the median, the smallest and the largest."""
    committed = batches(record.get("batches", ()))
    query = record.get("query", "")
    problems: list[str] = [record["error"]] if record.get("error") else []
    phases = []
    for phase in record.get("phases", ()):
        try:
            phases.append(phase_figures(phase, committed, query))
        except (KeyError, ValueError) as error:
            problems.append(f"{phase['variant']} {phase['repeat'] + 1}: {error}")
    variants = {
        variant.name: _summed([phase for phase in phases if phase["variant"] == variant.name])
        for variant in VARIANTS
        if any(phase["variant"] == variant.name for phase in phases)
    }
    end = record.get("end", {})
    return {
        "row": record["row"],
        "variants": variants,
        "steady": median_of(phase["steady"] for phase in phases),
        "quiet_peak_ratio": max((phase["quiet_peak_ratio"] for phase in phases), default=None),
        "load": median_of(phase.get("load") for phase in phases if phase["variant"] != RESTART.name),
        "audit": end.get("audit"),
        "failed": end.get("failed_attempts"),
        "link": record.get("link"),
        "problems": problems,
    }


def _summed(phases: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Each figure as [median, smallest, largest]; those of the overlap as ``overlap.<name>``."""
    flat = [
        {name: value for name, value in phase.items() if name not in ("variant", "repeat", "overlap")}
        | {f"overlap.{name}": value for name, value in phase.get("overlap", {}).items()}
        for phase in phases
    ]
    summary = {}
    for name in dict.fromkeys(name for phase in flat for name in phase):
        values = [phase[name] for phase in flat if phase.get(name) is not None]
        if values:
            summary[name] = [statistics.median(values), min(values), max(values)]
    return summary
