"""Placement as rows of the document: executors by node, load by partition. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rechannel.daemon.view.status import BUSY, ApplicationStatus, ExecutorStatus, PartitionStatus, QueryStatus
from rechannel.daemon.web import limits
from rechannel.daemon.web.limits import clip_name, clip_sentence, cut, natural_key
from rechannel.wire.printable import partition_name, query_name

SHADES = 5

Row = dict[str, Any]
Unit = tuple[str, int, int]  # query, stage, partition


@dataclass(frozen=True)
class _Layout:
    """An application with its shown executors and its partitions by executor and stage."""

    status: ApplicationStatus
    executors: list[ExecutorStatus]
    partitions: Mapping[str, Mapping[tuple[str, int], list[PartitionStatus]]]  # executor -> query and stage -> those
    loads: Mapping[Unit, float]

    @property
    def group_count(self) -> int:
        """Number of groups: stages on shown executors."""
        return sum(map(len, self.partitions.values()))


def application_rows(statuses: Sequence[ApplicationStatus]) -> tuple[list[Row], str]:
    """Return the applications with their nodes, and the sentence on what is left out."""
    if not statuses:
        return [], ""
    shown = statuses[: limits.APPLICATIONS]
    layouts = [_layout(status, max(limits.LEAST_CELLS, limits.EXECUTORS // len(shown))) for status in shown]
    groups = max(1, sum(layout.group_count for layout in layouts))
    per_group = max(limits.LEAST_CELLS, limits.CELLS // groups)
    rows = [_application(layout, index, per_group, limits.GROUPS // len(shown)) for index, layout in enumerate(layouts)]
    counts = [
        (len(rows), len(statuses), "applications"),
        (
            sum(len(layout.executors) for layout in layouts),
            sum(len(status.executors) for status in statuses),
            "executors, the busiest",
        ),
        (
            sum(row["partitions_shown"] for row in rows),
            sum(len(status.partitions) for status in statuses),
            "partitions",
        ),
    ]
    parts = [f"{part:,} of {total:,} {noun}" for part, total, noun in counts if part < total]
    return rows, f"Shown are {', '.join(parts)}; `rechannel status --partitions` shows all." if parts else ""


def busiest_partitions(statuses: Sequence[ApplicationStatus]) -> list[Row]:
    """Return the busiest partitions of all applications, busiest first."""
    loads = [
        (load, part)
        for status in statuses
        for rates in [_rates(status.queries)]
        for part in status.partitions
        if (load := _load(part, rates)) is not None
    ]
    loads.sort(key=lambda item: -item[0])
    return [
        {
            "partition": unit_name(part.query, part.stage, part.partition, part.name),
            "executor": clip_name(part.executor),
            "load": load,
            "state_bytes": part.state_bytes,
        }
        for load, part in loads[: limits.TOP]
    ]


def unit_name(query: str, stage: int, partition: int, name: str) -> str:
    """Return the name of a partition; ``name``: that of its query."""
    return partition_name(query, stage, partition, clip_name(query_name(query, name)))


def _rates(queries: Sequence[QueryStatus]) -> dict[str, float]:
    return {item.query: item.batches_per_second for item in queries if item.batches_per_second is not None}


def _load(part: PartitionStatus, rates: Mapping[str, float]) -> float | None:
    """Cores that a partition keeps busy."""
    rate = rates.get(part.query)
    return None if part.busy_seconds is None or rate is None else _finite(part.busy_seconds * rate)


def _finite(value: float | None) -> float | None:
    """Return None for a figure that is no number, as after an overflow."""
    return value if value is not None and math.isfinite(value) else None


def _layout(status: ApplicationStatus, max_executors: int) -> _Layout:
    rates = _rates(status.queries)
    busiest_first = sorted(
        status.executors,
        key=lambda item: (-(_finite(item.utilization) or 0.0), -item.partitions, natural_key(item.executor)),
    )
    executors = busiest_first[:max_executors]
    ids = {item.executor for item in executors}
    partitions: dict[str, dict[tuple[str, int], list[PartitionStatus]]] = defaultdict(lambda: defaultdict(list))
    loads: dict[Unit, float] = {}
    for part in status.partitions:
        load = _load(part, rates)
        if load is not None:
            loads[part.query, part.stage, part.partition] = load
        if part.executor in ids:
            partitions[part.executor][part.query, part.stage].append(part)
    return _Layout(status, executors, partitions, loads)


def _application(layout: _Layout, index: int, per_group: int, max_groups: int) -> Row:
    status = layout.status
    moving: dict[Unit, str] = {move.unit: move.target for move in status.moves[: limits.MOVES]}
    max_load = max(layout.loads.values(), default=0.0)
    # Busiest executors first: beyond the limit, the least busy ones are shown without groups.
    groups: dict[str, list[Row]] = {}
    room = max_groups
    for executor in layout.executors:
        by_stage = layout.partitions.get(executor.executor, {})
        stages = sorted(by_stage.items(), key=lambda item: (query_name(item[0][0], item[1][0].name), item[0]))
        shown = stages[: max(0, room)]
        room -= len(shown)
        groups[executor.executor] = [_group(parts, layout.loads, max_load, moving, per_group) for _, parts in shown]
    by_node: dict[str, list[ExecutorStatus]] = defaultdict(list)
    for executor in layout.executors:
        by_node[executor.node].append(executor)
    nodes = [
        _node(node, sorted(executors, key=lambda item: natural_key(item.executor)), groups, f"a{index}n{number}")
        for number, (node, executors) in enumerate(sorted(by_node.items(), key=lambda item: natural_key(item[0])))
    ]
    by_name = sorted(status.queries, key=lambda item: (not item.active, query_name(item.query, item.name)))
    queries, queries_left_out = cut(by_name, limits.QUERIES, "queries")
    return {
        "id": f"a{index}",
        "application": clip_name(status.application),
        "name": clip_name(status.name),
        "spark_version": clip_name(status.spark_version),
        "ready": status.readiness.ready,
        "readiness": clip_sentence(status.readiness.summary),
        "silent": status.silent,
        "last_heard": status.last_heard,
        "problems": [clip_sentence(problem) for problem in status.problems[: limits.PROBLEMS]],
        "queries": [_query(query, layout) for query in queries],
        "queries_left_out": queries_left_out,
        "nodes": nodes,
        "partitions_shown": sum(len(group["cells"]) for rows in groups.values() for group in rows),
    }


def _query(query: QueryStatus, layout: _Layout) -> Row:
    partitions = sum(stage.partitions for stage in query.stages)
    own = [load for unit, load in layout.loads.items() if unit[0] == query.query]
    return {
        "name": clip_name(query_name(query.query, query.name)),
        "batch": query.batch,
        "active": query.active,
        "problem": clip_sentence(query.problem),
        "batch_seconds": query.batch_seconds,
        "partitions": partitions,
        "busiest": max(own, default=None),
    }


def _node(node: str, executors: Sequence[ExecutorStatus], groups: Mapping[str, list[Row]], key: str) -> Row:
    return {
        "id": key,
        "node": clip_name(node),
        "drained": any(item.drained for item in executors),
        "executors": [
            _executor(item, groups[item.executor], f"{key}e{number}") for number, item in enumerate(executors)
        ],
    }


def _executor(status: ExecutorStatus, groups: list[Row], key: str) -> Row:
    cpu = None if status.cpu is None else _finite(status.cpu + (status.python_cpu or 0.0))
    utilization = _finite(status.utilization)
    return {
        "id": key,
        "executor": clip_name(status.executor),
        "cores": status.cores,
        "partitions": status.partitions,
        "utilization": utilization,
        "over": utilization is not None and utilization > BUSY,
        "cpu": cpu,
        "node_cpu": _finite(status.node_cpu),
        "memory": status.rss_bytes,
        "remarks": clip_sentence(status.remark),
        "groups": groups,
    }


def _group(
    parts: Sequence[PartitionStatus],
    loads: Mapping[Unit, float],
    max_load: float,
    moving: Mapping[Unit, str],
    room: int,
) -> Row:
    """Return the ``room`` busiest partitions of one stage on one executor, by number."""
    first = parts[0]
    by_load = sorted(parts, key=lambda part: -loads.get((part.query, part.stage, part.partition), 0.0))
    shown = sorted(by_load[:room], key=lambda part: part.partition)
    return {
        "query": clip_name(query_name(first.query, first.name)),
        "stage": first.stage,
        "cells": [
            _cell(part.partition, loads.get(unit), max_load, moving.get(unit))
            for part in shown
            for unit in [(part.query, part.stage, part.partition)]
        ],
        "left_out": len(parts) - len(shown),
    }


def _cell(partition: int, load: float | None, max_load: float, target: str | None) -> Row:
    shade = None
    if load is not None:
        shade = min(SHADES - 1, int(SHADES * max(0.0, load / max_load))) if max_load > 0 else 0
    row: Row = {"partition": partition, "load": load, "shade": shade}
    return row if target is None else {**row, "to": clip_name(target)}
