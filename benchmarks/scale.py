"""``python -m benchmarks.scale [--quick] [--json FILE] [--document FILE]``: the time of a decision, by size.

A decision is measured from the messages in Redis to the plan. Messages are synthetic
(:mod:`benchmarks.simulation.fleet`), Redis and every step of the decision are real, in this
process: reading and decoding, the model, the residuals, the policy, and the laws with the predicted gain. *Cold*
is the first decision of a controller, *warm* the one after another batch of each query.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.report.results import Result, ResultFile, argument_parser, progress, read_results, write_page
from benchmarks.report.templates import render
from benchmarks.simulation.fleet import APPLICATION, Messages, Shape
from rechannel.daemon.decide.pipeline import DecisionRequest, PlanBasis, apply_laws, ask_policy
from rechannel.daemon.model.collector import MAX_EXECUTORS, Collector
from rechannel.daemon.model.readiness import NotReady
from rechannel.daemon.model.snapshot import take_snapshot
from rechannel.daemon.model.task_columns import MAX_PARTITIONS
from rechannel.policies.adaptive.policy import ADAPTIVE
from rechannel.policies.prediction.replay import MAX_REPLAYED
from rechannel.wire.codes import Trigger
from testbed.stack import Stack, StackError

PARTITIONS = 100  # of an executor
STAGES = 4
LARGEST_STAGE = 4_000  # partitions: each window has the sizes of 20 map outputs for all of them
SIZES, QUICK = (100, 1_000), (100,)
CORES = (1, 4)
QUERIES = (1, 25, 125)
PARTS = ("read", "model", "residuals", "policy", "laws")


def main() -> None:
    """Measure every size in a process of its own, and print a line for each."""
    parser = argument_parser("benchmarks.scale", __doc__, f"{QUICK[0]} executors alone")
    parser.add_argument("--executors", type=int, nargs="+", metavar="N", help=f"sizes [default: {SIZES}]")
    parser.add_argument("--queries", type=int, nargs="+", metavar="N", default=QUERIES, help=f"[default: {QUERIES}]")
    parser.add_argument("--document", type=Path, metavar="FILE", help="page to write, as docs/scale.md")
    options = parser.parse_args()
    results = ResultFile(options.json, dict(read_results(options.json)))
    rows: list[dict[str, Any]] = []
    results.figures["scale"] = Result.of(
        "A decision from the messages in Redis to the plan, by size", {"rows": rows}, quick=options.quick
    )
    for shape in _shapes(options):
        with multiprocessing.get_context("spawn").Pool(1) as pool:  # memory is that of this size
            rows.append(pool.apply(measure, (shape,)))
        results.save()
        progress(_line(rows[-1]))
    growth = _growth(rows)
    for key, exponent in growth.items():
        progress(f"{key}: seconds grow as partitions to the power of {exponent:.2f}")
    if options.document:
        bounds = {"executors": MAX_EXECUTORS, "partitions": MAX_PARTITIONS, "replayed": MAX_REPLAYED}
        figures = results.figures["scale"].figures() | {"growth": growth, "bounds": bounds}
        write_page(options.document, render("scale", figures, wrap=False))


def _shapes(options: argparse.Namespace) -> Iterator[Shape]:
    for executors in options.executors or (QUICK if options.quick else SIZES):
        for cores in CORES:
            for queries in options.queries:
                partitions = executors * PARTITIONS // queries // STAGES
                if partitions <= LARGEST_STAGE:
                    yield Shape(executors, queries, STAGES, partitions, cores=cores)


def measure(shape: Shape) -> dict[str, Any]:
    """Return the seconds of each part of a cold and a warm decision, by the wall and of the processor."""
    figures: dict[str, Any] = {"executors": shape.agents, "cores": shape.cores, "queries": shape.queries}
    figures["partitions"] = shape.total
    with tempfile.TemporaryDirectory(prefix="rechannel-scale-") as root:
        sections = {"redis": {"timeout": 10.0}, "controller": {"lease": 60.0}}
        with Stack(Path(root) / "stack", sections, redis_options={"maxmemory": "0"}) as stack:
            messages = Messages(stack.settings, shape)
            with contextlib.closing(messages.store):
                messages.fill()
                before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                collector = Collector(messages.store, stack.settings, time.time)
                messages.send_report()  # filling may take longer than the last one holds
                figures["cold"] = _decide(collector, stack)
                messages.send_batches()
                figures["warm"] = _decide(collector, stack)
                figures["memory_mib"] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return figures


def _decide(collector: Collector, stack: Stack) -> dict[str, Any]:
    """Return the seconds of a decision by its parts."""
    laps: dict[str, tuple[float, float]] = {}
    now, settings = time.time(), stack.settings

    def lap(name: str, work: Callable[[], Any]) -> Any:
        wall, cpu = time.perf_counter(), time.process_time()
        result = work()
        laps[name] = time.perf_counter() - wall, time.process_time() - cpu
        return result

    def read() -> Any:
        messages, before, batches = None, -1, 0
        while batches != before:  # a refresh reads a bounded number of bytes
            collector.refresh()
            messages, before = collector.gather(APPLICATION) or messages, batches
            batches = sum(batch.batch for batch in messages.batches) if messages else 0
        return messages

    messages = lap("read", read)
    if messages is None:
        raise StackError("the report was rejected")
    snapshot = lap("model", lambda: take_snapshot(messages, settings, now))
    if isinstance(snapshot, NotReady):
        raise StackError(snapshot.sentence)
    lap("residuals", lambda: snapshot.residuals)
    request, basis = DecisionRequest("scale", now, Trigger.OPERATOR, ADAPTIVE.name), PlanBasis(messages, settings)
    proposed = lap("policy", lambda: ask_policy(request, snapshot, settings, basis.rates))
    plan = lap("laws", lambda: apply_laws(request, basis, snapshot, proposed))
    return {
        "wall": {name: wall for name, (wall, _) in laps.items()},
        "cpu": {name: cpu for name, (_, cpu) in laps.items()},
        "wall_seconds": sum(wall for wall, _ in laps.values()),
        "cpu_seconds": sum(cpu for _, cpu in laps.values()),
        "moves": len(plan.moves),
        "sentence": plan.sentence,
    }


def _line(row: dict[str, Any]) -> str:
    parts = " ".join(f"{name} {row['warm']['wall'][name]:.2f}" for name in PARTS)
    return (
        f"{row['executors']:,} executors of {row['cores']}, {row['queries']} queries, {row['partitions']:,} partitions"
        f": cold {row['cold']['wall_seconds']:.2f} s, warm {row['warm']['wall_seconds']:.2f} s ({parts}), "
        f"{row['memory_mib']:.0f} MiB"
    )


def _growth(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the exponent of growth from the smallest to the largest size, by cores and queries."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        kinds.setdefault(f"{row['cores']} cores, {row['queries']} queries", []).append(row)
    return {
        kind: math.log(alike[-1]["warm"]["wall_seconds"] / alike[0]["warm"]["wall_seconds"])
        / math.log(alike[-1]["partitions"] / alike[0]["partitions"])
        for kind, alike in kinds.items()
        if alike[-1]["partitions"] > alike[0]["partitions"]
    }


if __name__ == "__main__":
    main()
