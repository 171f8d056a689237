"""Where partitions are: executors grouped by node, and how busy each partition is. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rechannel.daemon.view.model import ApplicationView, ExecutorView, PartitionView, QueryView
from rechannel.daemon.web import limits
from rechannel.daemon.web.limits import left_out, name, natural, sentence
from rechannel.wire.printable import partition_name, query_name

BUSY = 0.95  # utilization above which `rechannel status` warns too
SHADES = 5

Row = dict[str, Any]
Unit = tuple[str, int, int]  # query, stage, partition


@dataclass(frozen=True)
class _Known:
    """An application with what its partitions are shown by."""

    view: ApplicationView
    executors: list[ExecutorView]  # those that are shown
    held: Mapping[str, Mapping[tuple[str, int], list[PartitionView]]]  # executor -> query and stage -> partitions
    loads: Mapping[Unit, float]
    groups: int


def applications(views: Sequence[ApplicationView]) -> tuple[list[Row], str]:
    """Return the applications with their nodes, and a sentence on what is left out ("" if nothing is)."""
    shown = views[: limits.APPLICATIONS]
    known = [_known(view, max(limits.LEAST_CELLS, limits.EXECUTORS // len(shown))) for view in shown]
    groups = max(1, sum(item.groups for item in known))
    per_group = max(limits.LEAST_CELLS, limits.CELLS // groups)
    rows = [_application(item, index, per_group, limits.GROUPS // len(shown)) for index, item in enumerate(known)]
    counted = [
        (len(rows), len(views), "applications"),
        (
            sum(len(item.executors) for item in known),
            sum(len(view.executors) for view in views),
            "executors, the busiest",
        ),
        (sum(row["partitions_shown"] for row in rows), sum(len(view.partitions) for view in views), "partitions"),
    ]
    parts = [f"{shown:,} of {there:,} {what}" for shown, there, what in counted if shown < there]
    how = "`rechannel status --partitions` tells all"
    return rows, f"Shown are {', '.join(parts)}; {how}." if parts else ""


def busiest(views: Sequence[ApplicationView]) -> list[Row]:
    """Return the busiest partitions of all applications, busiest first."""
    found = [
        (load, part)
        for view in views
        for part, load in ((part, _load(part, _rates(view.queries))) for part in view.partitions)
        if load is not None
    ]
    found.sort(key=lambda item: -item[0])
    return [
        {
            "partition": _unit(part.query, part.stage, part.partition, part.name),
            "executor": name(part.executor),
            "load": load,
            "state_bytes": part.state_bytes,
        }
        for load, part in found[: limits.HOT]
    ]


def unit_name(queries: Sequence[QueryView], unit: Unit) -> str:
    """Return how a partition is called: by its query's name where it has one."""
    query, stage, partition = unit
    called = next((item.name for item in queries if item.query == query), "")
    return _unit(query, stage, partition, called)


def _unit(query: str, stage: int, partition: int, called: str) -> str:
    return partition_name(query, stage, partition, name(query_name(query, called)))


def _rates(queries: Sequence[QueryView]) -> dict[str, float]:
    return {item.query: item.batches_per_second for item in queries if item.batches_per_second is not None}


def _load(part: PartitionView, rates: Mapping[str, float]) -> float | None:
    """Cores that a partition keeps busy."""
    rate = rates.get(part.query)
    return None if part.busy_seconds is None or rate is None else _finite(part.busy_seconds * rate)


def _finite(value: float | None) -> float | None:
    """A figure that is none (an overflow, nothing over nothing) is not known."""
    return value if value is not None and math.isfinite(value) else None


def _known(view: ApplicationView, most: int) -> _Known:
    rates = _rates(view.queries)
    busiest_first = sorted(
        view.executors, key=lambda item: (-(_finite(item.utilization) or 0.0), -item.partitions, natural(item.executor))
    )
    executors = busiest_first[:most]
    ids = {item.executor for item in executors}
    held: dict[str, dict[tuple[str, int], list[PartitionView]]] = defaultdict(lambda: defaultdict(list))
    loads: dict[Unit, float] = {}
    for part in view.partitions:
        load = _load(part, rates)
        if load is not None:
            loads[part.query, part.stage, part.partition] = load
        if part.executor in ids:
            held[part.executor][part.query, part.stage].append(part)
    return _Known(view, executors, held, loads, sum(len(groups) for groups in held.values()))


def _application(known: _Known, index: int, per_group: int, most_groups: int) -> Row:
    view = known.view
    moving = {(move.query, move.stage, move.partition): move.target for move in view.moves[: limits.MOVES]}
    most = max(known.loads.values(), default=0.0)
    # Executors that are left without a group for want of room are the least busy ones.
    groups: dict[str, list[Row]] = {}
    room = most_groups
    for executor in known.executors:
        by_stage = known.held.get(executor.executor, {})
        kept = sorted(by_stage.items(), key=lambda item: (query_name(item[0][0], item[1][0].name), item[0]))[
            : max(0, room)
        ]
        room -= len(kept)
        groups[executor.executor] = [_group(parts, known.loads, most, moving, per_group) for _, parts in kept]
    by_node: dict[str, list[ExecutorView]] = defaultdict(list)
    for executor in known.executors:
        by_node[executor.node].append(executor)
    nodes = [
        _node(node, sorted(there, key=lambda item: natural(item.executor)), groups, f"a{index}n{number}")
        for number, (node, there) in enumerate(sorted(by_node.items(), key=lambda item: natural(item[0])))
    ]
    queries = sorted(view.queries, key=lambda item: (not item.active, query_name(item.query, item.name)))
    return {
        "id": f"a{index}",
        "application": name(view.application),
        "name": name(view.name),
        "spark_version": name(view.spark_version),
        "ready": view.ready,
        "readiness": sentence(view.sentence),
        "silent": view.silent,
        "last_heard": view.last_heard,
        "problems": [sentence(problem) for problem in view.problems[: limits.PROBLEMS]],
        "queries": [_query(query, known) for query in queries[: limits.QUERIES]],
        "queries_left_out": left_out(min(len(queries), limits.QUERIES), len(queries), "queries"),
        "nodes": nodes,
        "partitions_shown": sum(len(group["cells"]) for there in groups.values() for group in there),
    }


def _query(query: QueryView, known: _Known) -> Row:
    counted = sum(stage.partitions for stage in query.stages)
    own = [load for unit, load in known.loads.items() if unit[0] == query.query]
    return {
        "name": name(query_name(query.query, query.name)),
        "batch": query.batch,
        "active": query.active,
        "problem": sentence(query.problem),
        "batch_seconds": query.batch_seconds,
        "partitions": counted,
        "busiest": max(own, default=None),
    }


def _node(node: str, executors: Sequence[ExecutorView], groups: Mapping[str, list[Row]], key: str) -> Row:
    return {
        "id": key,
        "node": name(node),
        "drained": any(item.drained for item in executors),
        "executors": [
            _executor(item, groups[item.executor], f"{key}e{number}") for number, item in enumerate(executors)
        ],
    }


def _executor(view: ExecutorView, groups: list[Row], key: str) -> Row:
    cpu = None if view.cpu is None else _finite(view.cpu + (view.python_cpu or 0.0))
    utilization = _finite(view.utilization)
    return {
        "id": key,
        "executor": name(view.executor),
        "cores": view.cores,
        "partitions": view.partitions,
        "utilization": utilization,
        "over": utilization is not None and utilization > BUSY,
        "cpu": cpu,
        "node_cpu": _finite(view.node_cpu),
        "memory": view.rss_bytes,
        "remarks": sentence(view.remark),
        "groups": groups,
    }


def _group(
    parts: Sequence[PartitionView],
    loads: Mapping[Unit, float],
    most: float,
    moving: Mapping[Unit, str],
    room: int,
) -> Row:
    """The partitions of one query's stage on one executor, in the order of their numbers."""
    first = parts[0]
    by_load = sorted(parts, key=lambda part: -loads.get((part.query, part.stage, part.partition), 0.0))
    kept = sorted(by_load[:room], key=lambda part: part.partition)
    return {
        "query": name(query_name(first.query, first.name)),
        "stage": first.stage,
        "cells": [
            _cell(part.partition, loads.get(unit), most, moving.get(unit))
            for part in kept
            for unit in [(part.query, part.stage, part.partition)]
        ],
        "left_out": len(parts) - len(kept),
    }


def _cell(partition: int, load: float | None, most: float, target: str | None) -> Row:
    shade = None
    if load is not None:
        shade = min(SHADES - 1, int(SHADES * max(0.0, load / most))) if most > 0 else 0
    row: Row = {"partition": partition, "load": load, "shade": shade}
    return row if target is None else {**row, "to": name(target)}
