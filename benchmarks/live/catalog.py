"""Every workload by name."""

from __future__ import annotations

from benchmarks.workloads.base import Workload

__all__ = ["workloads"]


def workloads() -> dict[str, Workload]:
    """Return the workloads of the source systems, and Nexmark's queries."""
    from benchmarks.nexmark.queries import WORKLOADS as NEXMARK
    from benchmarks.workloads.registry import WORKLOADS

    return {**WORKLOADS, **{workload.name: workload for workload in NEXMARK}}
