"""All workloads by name."""

from __future__ import annotations

from benchmarks.workloads import configurations, flights, in_python, page_views, words
from benchmarks.workloads.base import Workload

__all__ = ["WORKLOADS"]

WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for module in (words, page_views, configurations, in_python, flights)
    for workload in module.WORKLOADS
}
