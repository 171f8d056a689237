"""Live phases in the form that the simulation is calibrated and validated with (`LiveRun`)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.live.summary import in_full
from rechannel.conf.settings import Settings
from rechannel.daemon.model.collector import Collector
from rechannel.daemon.model.readiness import NotReady
from rechannel.daemon.model.snapshot import take_snapshot
from rechannel.policies.scenarios.scenario import Scenario, to_document
from rechannel.wire.redis.store import Store
from testbed.progress import Batch, batches


def model(store: Store, settings: Settings, application: str) -> dict[str, Any] | None:
    """Return the model that a controller would decide by just now, and which of its stages are whose; None: not yet."""
    collector = Collector(store, settings, time.time)
    collector.refresh()
    facts = collector.gather(application)
    if facts is None:
        return None
    snapshot = take_snapshot(facts, settings, time.time())
    if isinstance(snapshot, NotReady):
        return None
    scenario = Scenario(application, snapshot.cluster, snapshot.workload, snapshot.placement)
    return {
        "scenario": to_document(scenario),
        "stages": {f"{query} {number}": key for key, (query, number) in snapshot.stage_ids.items()},
        "names": {state.query: state.name for state in snapshot.queries.values()},
        "loads": {key: [float(size) for size in sizes] for key, sizes in snapshot.bytes_to_load.items()},
    }


def runs(sessions: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return records of `LiveRun`: each phase from its last model on, whose batches it knows."""
    records = []
    for session in sessions:
        committed = batches(session.get("batches", []))
        for phase in session.get("phases", []):
            if "end" in phase and phase.get("model"):
                records += _runs(session, phase, committed)
    return records


def _runs(session: Mapping[str, Any], phase: Mapping[str, Any], committed: Sequence[Batch]) -> list[dict[str, Any]]:
    snapshot, order = phase["model"], phase["orders"][-1]
    begin = phase["modeled_at"] - 10.0  # batches that the model was made of
    situation = in_full(session)
    records = []
    for query, name in snapshot["names"].items():
        shown = [
            batch for batch in committed if batch.query == name and begin <= batch.begin and batch.end <= phase["end"]
        ]
        moves = [
            {
                "stage": snapshot["stages"][f"{line['query']} {line['stage']}"],
                "partition": line["partition"],
                "source": line["source"],
                "target": line["target"],
                "bytes": snapshot["loads"][snapshot["stages"][f"{line['query']} {line['stage']}"]][line["partition"]],
                "batch": line["batch"],
            }
            for line in order.get("journal", ())
            if line["query"] == query and line["after"] == "drained"
        ]
        records.append(
            {
                "name": f"{situation}, seed {session['seed']}, turn {phase['turn'] + 1}, {phase['way']}",
                "workload": session["workload"],
                "situation": situation,
                "scenario": snapshot["scenario"],
                "query": _query_of(snapshot, query),
                "batches": [
                    {"batch": batch.number, "start": batch.begin, "milliseconds": batch.seconds * 1000}
                    for batch in shown
                ],
                "moves": moves,
            }
        )
    return records


def _query_of(snapshot: Mapping[str, Any], query: str) -> str:
    """Return what the scenario calls the query of these stages."""
    keys = {key for stage, key in snapshot["stages"].items() if stage.rpartition(" ")[0] == query}
    return next(str(stage["query"]) for stage in snapshot["scenario"]["stages"] if stage["key"] in keys)
