"""The workloads by name."""

from __future__ import annotations

from benchmarks.nexmark.queries import WORKLOADS as NEXMARK
from benchmarks.workloads import configurations, flights, in_python, page_views, words
from benchmarks.workloads.base import Workload

WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for module in (words, page_views, configurations, in_python, flights)
    for workload in module.WORKLOADS
}
"""The workloads of the source systems."""


def all_workloads() -> dict[str, Workload]:
    """Return the workloads of the source systems and Nexmark's queries."""
    return {**WORKLOADS, **{workload.name: workload for workload in NEXMARK}}
