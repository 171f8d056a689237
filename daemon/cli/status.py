"""The command ``status``: what Redis knows, put together with a fresh queue model. It needs no leading controller."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import click
import msgspec

from rechannel.conf.settings import Settings
from rechannel.daemon.control import scheduled_plans
from rechannel.daemon.control.standing_orders import partitions_on
from rechannel.daemon.decide.pipeline import stream_classes
from rechannel.daemon.model.collector import ApplicationMessages, Collector
from rechannel.daemon.model.forecast import StageForecast
from rechannel.daemon.model.silence import silence
from rechannel.daemon.model.snapshot import (
    NotReady,
    Snapshot,
    build_snapshot,
    fresh_usage,
    measured_only,
    slow_sentence,
    take_snapshot,
)
from rechannel.daemon.view import partitions
from rechannel.daemon.view.last_leader import leading
from rechannel.migration.moves import UNSETTLED
from rechannel.policies.analysis.queueing import executor_utilization
from rechannel.wire import keys
from rechannel.wire.display_names import count, query_name
from rechannel.wire.exit_codes import CommandError, ExitCode
from rechannel.wire.messages import Drain, LinkReport, PendingPlans, QueryState, StandingOrders
from rechannel.wire.printable import plain
from rechannel.wire.redis.store import Store

Row = dict[str, Any]


def run(
    settings: Settings,
    *,
    application: str,
    query: str,
    node: str,
    partitions: bool,
    verbose: bool,
    as_json: bool,
) -> None:
    """Show the status, of one application, query or node where one is named."""
    store = Store(settings.redis, settings.cluster.name)
    document = collect(store, settings, time.time(), details=partitions)
    document["applications"] = _only(document["applications"], "application", application)
    _filter(
        document["applications"],
        "queries",
        query,
        lambda row: (row["query"], query_name(row["query"], row["name"])),
        "query",
    )
    _filter(document["applications"], "executors", node, lambda row: (row["node"],), "node")
    for row in document["applications"]:
        kept = {item["query"] for item in row["queries"]}, {item["executor"] for item in row["executors"]}
        for field in ("partitions", "hot_streams"):
            row[field] = [item for item in row[field] if item["query"] in kept[0]]
        row["partitions"] = [item for item in row["partitions"] if not node or item["executor"] in kept[1]]
    if as_json:
        click.echo(json.dumps(document))
        return
    from rechannel.daemon.cli import tables

    tables.status(document, time.time(), verbose=verbose)


def collect(
    store: Store, settings: Settings, now: float, *, details: bool = False, collector: Collector | None = None
) -> Row:
    """Return the whole status as plain values; with ``details`` also what is known of each partition.

    A ``collector`` that is kept between two calls reads only what is new.
    """
    collector = collector or Collector(store, settings, lambda: now)
    found = [collector.gather(name) for name in collector.refresh()]
    controller = None
    if (leader := leading(store, now)) is not None:
        controller = msgspec.to_builtins(leader.state)
        del controller["type"]
        controller["last_heard"] = max(0.0, now - leader.heard)
    drains = _orders(store)
    facts = [item for item in found if item is not None]
    return {
        "at": now,
        "controller": controller,
        "applications": [_application(item, settings, now, controller, drains, details=details) for item in facts],
        "drains": [_drain(drain, [item.report for item in facts], now) for drain in drains.values()],
        "waiting": waiting(store, settings, now),
        "rejected_messages": store.rejected,
    }


def follow_drain(settings: Settings, nodes: Sequence[str], stop: threading.Event, *, as_json: bool) -> None:
    """Show how far the drains of nodes are, until nothing is left of them or one ends."""
    store = Store(settings.redis, settings.cluster.name)
    last: dict[str, Row] = {}
    while True:
        rows = {row["node"]: row for row in collect(store, settings, time.time())["drains"]}
        for node in nodes:
            if node not in rows:
                raise CommandError(ExitCode.REFUSED, f"{node} is not drained any more")
            if rows[node] != last.get(node):
                click.echo(json.dumps(rows[node]) if as_json else f"{node}: {plain(rows[node]['sentence'])}")
            last[node] = rows[node]
        if all(last[node]["state"] in ("empty", "released") for node in nodes) or stop.wait(settings.link.report):
            return


def waiting(store: Store, settings: Settings, now: float) -> list[Row]:
    """Return the saved plans that wait for their time, without what stands in them."""
    found = store.get(keys.PENDING)
    body = found.body if found is not None else None
    zone = settings.reschedule.time_zone
    rows = []
    for plan in body.plans if isinstance(body, PendingPlans) else ():
        row = {name: value for name, value in msgspec.to_builtins(plan).items() if name != "plan"}
        rows.append({**row, "sentence": scheduled_plans.sentence(plan, now, zone)})
    return rows


def _orders(store: Store) -> dict[str, Drain]:
    found = store.get(keys.ORDERS)
    body = found.body if found is not None else None
    return {drain.node: drain for drain in body.drains} if isinstance(body, StandingOrders) else {}


def _drain(drain: Drain, reports: list[LinkReport], now: float) -> Row:
    left = sum(partitions_on(report, [drain.node])[drain.node] for report in reports)
    there = [info.executor for report in reports for info in report.executors if info.host == drain.node]
    overdue = 0 < drain.deadline <= now
    running = count(len(there), "executor")
    if left:
        what = "1 partition is" if left == 1 else f"{left} partitions are"
        state, sentence = "draining", f"{what} left on {running}"
        if overdue:
            sentence += ", the deadline has passed"
        stuck = sorted(
            f"{query_name(query.query, query.name)} cannot be moved: {query.problem}"
            for report in reports
            for query in report.queries
            if query.problem and any(set(stage.placement) & set(there) for stage in query.stages)
        )
        sentence = "; ".join([sentence, *stuck])
    elif drain.remove and there:
        state, sentence = "releasing", f"empty; {running} to be released at a batch boundary"
    elif there:
        verb = "runs" if len(there) == 1 else "run"
        state, sentence = "empty", f"empty; {running} still {verb} source and stateless tasks"
    else:
        state, sentence = "released", "no executor runs there"
    row = msgspec.to_builtins(drain)
    return {**row, "state": state, "partitions": left, "executors": there, "overdue": overdue, "sentence": sentence}


def _application(
    facts: ApplicationMessages,
    settings: Settings,
    now: float,
    controller: Row | None,
    drains: Mapping[str, Drain],
    *,
    details: bool,
) -> Row:
    report = facts.report
    silent = silence(facts.reported, settings, now)  # then nothing else is the cause, and no controller knows better
    at = now if silent is None else facts.reported  # of an ended driver the last that is known
    measured = measured_only(settings)  # what is expected stands beside it
    arguments = (facts.application, report, facts.batches, facts.windows, measured, at, frozenset(drains))
    ready = take_snapshot(*arguments)
    model = build_snapshot(*arguments) if isinstance(ready, NotReady) else ready
    words = (controller or {}).get("applications", {}).get(facts.application, "") if silent is None else ""
    ready = silent or ready
    names = {query.query: query.name for query in report.queries}
    return {
        "application": facts.application,
        "name": report.name,
        "spark_version": report.spark_version,
        "last_heard": max(0.0, now - facts.reported),
        "silent": silent is not None,
        "readiness": {
            "ready": not isinstance(ready, NotReady),
            "code": ready.code if isinstance(ready, NotReady) else "ready",
            "sentence": ready.sentence if isinstance(ready, NotReady) else "ready",
            "transient": ready.transient if isinstance(ready, NotReady) else None,
            "ready_in": ready.ready_in if isinstance(ready, NotReady) else None,
            "controller": words,
        },
        "executors": _executors(facts, model, settings, at, drains, silent=silent is not None),
        "queries": [_query(query, model, report.starts) for query in report.queries],
        "shuffles_seen": model.shuffles_seen if model is not None else None,
        "streams": stream_classes(model) if model is not None else {},
        "hot_streams": partitions.hot(model) if model is not None else [],
        "partitions": partitions.rows(facts, model) if details else [],
        "moves": [
            {**msgspec.to_builtins(view), "name": names.get(view.query, "")}
            for view in report.moves
            if view.state in UNSETTLED
        ],
        "forecasts": [_forecast(one, settings) for one in model.outlooks.values()] if model is not None else [],
        "settled_moves": sum(view.state not in UNSETTLED for view in report.moves),
        "counters": {
            "landed": report.landed,
            "missed": report.missed,
            "abandoned": report.abandoned,
            "drifted": report.drifted,
            "failed_tasks": report.failed_tasks,
            "rejected_messages": report.rejected_messages,
        },
        "problems": list(report.problems),
    }


def _forecast(one: StageForecast, settings: Settings) -> Row:
    return {
        "stage": one.key,
        "name": one.name,
        "slots": one.slots,
        "seconds_ahead": one.seconds,
        "comparisons": one.outlook.comparisons if one.outlook is not None else 0,
        "error": one.error,
        "partitions": one.used,
        "decided_on": settings.reschedule.forecast and one.used > 0,
        "sentence": one.sentence() + ("" if settings.reschedule.forecast else "; shown only (reschedule.forecast)"),
    }


def _executors(
    facts: ApplicationMessages,
    model: Snapshot | None,
    settings: Settings,
    now: float,
    drains: Mapping[str, Drain],
    *,
    silent: bool,
) -> list[Row]:
    usage = fresh_usage(facts.application, facts.windows, settings, now)
    held: dict[str, int] = {}
    for query in facts.report.queries:
        for stage in query.stages if query.active else ():
            for executor in stage.placement:
                held[executor] = held.get(executor, 0) + 1
    rows: list[Row] = []
    infos = {info.executor: info for info in facts.report.executors}
    for info in infos.values():
        window, used = usage.get(info.executor, (None, None))
        seconds = max(window.end - window.start, 1e-9) if window is not None else 1.0
        rows.append(
            {
                "executor": info.executor,
                "node": info.host,
                "cores": info.cores,
                "partitions": held.get(info.executor, 0),
                "utilization": None,
                "arrival_rate": None,
                "service_rate": None,
                "speed": None,
                "slow": "",
                "cpu": used.jvm_cpu / seconds if used else None,
                "python_cpu": used.python_cpu / seconds if used else None,
                "node_cpu": window.node_cpu / seconds / max(1, window.cores) if window is not None else None,
                "rss_bytes": used.jvm_rss + used.python_rss if used else None,
                "fresh": used is not None,
                "drained": info.host in drains,
                "releasing": info.executor in facts.report.releasing,
            }
        )
    if model is not None:
        queue = executor_utilization(model.cluster, model.workload, model.placement)
        for row in rows:
            index = model.cluster.index_of(row["executor"])
            row["utilization"] = float(queue.utilization[index])
            row["arrival_rate"] = float(queue.arrival_rate[index])
            row["speed"] = float(model.cluster.speed[index])
            row["slow"] = slow_sentence(model.cluster, model.rates, index)
            rate = float(queue.service_rate[index])
            row["service_rate"] = rate if math.isfinite(rate) else None
    for row in rows:
        row["remark"] = _remark(row, silent=silent)
    return rows


def _remark(row: Row, *, silent: bool) -> str:
    """Say what else is to be known of an executor; that it is drained stands beside its node."""
    remarks = {
        "no fresh agent figures": not row["fresh"] and not silent,  # the agents of an ended driver have none to give
        f"slow: {row['slow']}": row["slow"],
        "about to be released": row["releasing"],
    }
    return ", ".join(text for text, holds in remarks.items() if holds)


def _query(query: QueryState, model: Snapshot | None, starts: Mapping[str, str]) -> Row:
    known = model is not None and query.query in model.batch_seconds
    stages = []
    for stage in query.stages:
        placement: dict[str, list[int]] = {}
        for partition, executor in enumerate(stage.placement):
            placement.setdefault(executor or "unknown", []).append(partition)
        stages.append(
            {
                "stage": stage.stage,
                "partitions": stage.partitions,
                "operators": [operator.name for operator in stage.operators],
                "placement": dict(sorted(placement.items(), key=lambda item: (len(item[0]), item[0]))),
            }
        )
    return {
        "query": query.query,
        "name": query.name,
        "run": query.run,
        "batch": query.batch,
        "active": query.active,
        "problem": query.problem,
        "start": starts.get(query.query, ""),
        "batch_seconds": model.batch_seconds[query.query] if model is not None and known else None,
        "batches_per_second": 1 / model.batch_period[query.query] if model is not None and known else None,
        "stages": stages,
    }


def _only(rows: list[Row], field: str, wanted: str) -> list[Row]:
    if not wanted:
        return rows
    found = [row for row in rows if row[field] == wanted]
    if not found:
        _unknown(field, wanted, [row[field] for row in rows])
    return found


def _filter(applications: list[Row], field: str, wanted: str, names: Any, what: str) -> None:
    if not wanted:
        return
    known = [names(row)[-1] for application in applications for row in application[field]]
    for application in applications:
        application[field] = [row for row in application[field] if wanted in names(row)]
    if not any(application[field] for application in applications):
        _unknown(what, wanted, known)


def _unknown(what: str, wanted: str, known: list[str]) -> None:
    listed = ", ".join(sorted(set(known))) or "none"
    raise CommandError(ExitCode.REFUSED, f"unknown {what} {wanted}; known are {listed}")
