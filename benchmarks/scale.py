"""``python -m benchmarks.scale [--quick] [--json FILE] [--document FILE]``: decisions and agents, by size.

A decision is measured from the messages in Redis to the placement. Messages are synthetic
(:mod:`benchmarks.simulation.fleet`), Redis and every step of the decision are real, in this process: reading and
decoding, the model, the residuals, the policy, the laws with the predicted gain, the record of the decision, and the
signed placement. A batch is mostly overhead in these messages, so that no plan gains enough: the decision is one that
an operator forces. *Cold* is the first decision of a controller, *warm* the one after another batch of each query and
another window of each agent.

Beside it stand the placements of ``adaptive``, ``even`` and METIS for the same model.

Then agents push windows at their real pace, each over a connection of its own, and a controller's collector reads them
once in each window: the load of Redis, and how old a window is when the collector has it.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import math
import multiprocessing
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from benchmarks.monitors import fleet as agents
from benchmarks.policies.measure import timed
from benchmarks.policies.optimum import metis, optimal_seconds
from benchmarks.report.results import Result, ResultFile, argument_parser, progress, read_results, write_page
from benchmarks.report.templates import render
from benchmarks.simulation.fleet import APPLICATION, Messages, Shape
from rechannel.conf.settings import Settings
from rechannel.daemon.control.cluster_state import MAX_CLUSTER_SIZES
from rechannel.daemon.decide.pipeline import DecisionRequest, PlanBasis, apply_laws, ask_policy, record_decision
from rechannel.daemon.model.application_messages import ApplicationMessages
from rechannel.daemon.model.collector import MAX_EXECUTORS, Collector
from rechannel.daemon.model.readiness import NotReady
from rechannel.daemon.model.snapshot import take_snapshot
from rechannel.daemon.model.task_columns import MAX_PARTITIONS
from rechannel.daemon.service import tune_garbage_collection
from rechannel.monitors.node.output_share import choose_outputs
from rechannel.policies.adaptive.lower_bounds import certified_bound
from rechannel.policies.adaptive.policy import ADAPTIVE
from rechannel.policies.analysis.placement_cost import inter_executor_volume, placement_cost
from rechannel.policies.prediction.replay import MAX_REPLAYED
from rechannel.policies.registry import propose
from rechannel.policies.scenarios.scenario import Scenario
from rechannel.wire import keys
from rechannel.wire.codes import Trigger
from rechannel.wire.envelope import EnvelopeFactory
from rechannel.wire.messages import Decision, DesiredPlacement
from rechannel.wire.redis.store import Store
from rechannel.wire.signing import Signer
from testbed.stack import Stack, StackError

PARTITIONS = 100  # of an executor
STAGES = 4
LARGEST_STAGE = 4_000  # partitions: each window has the sizes of 20 map outputs for all of them
SIZES, QUICK = (100, 1_000, 4_000), (100,)
# Executors, cores and queries of the models whose placements are compared.
COMPARED, QUICK_COMPARED = ((100, 1, 1), (100, 1, 25), (1_000, 1, 25)), ((100, 1, 1),)
SMALL = Shape(4, 1, STAGES, 16, cores=1)  # HiGHS proves the optimum of such stages
AGENTS, QUICK_AGENTS = (1_000, 4_000), (100,)
PUSHES = 12  # windows that each agent pushes, of which the first ones are not counted
CORES = (1, 4)
QUERIES = (1, 25, 125)
_ROUNDS = 100  # in which all messages are read


def main() -> None:
    """Measure every size in a process of its own, and write the page."""
    parser = argument_parser("benchmarks.scale", __doc__, f"{QUICK[0]} executors alone")
    parser.add_argument("--executors", type=int, nargs="+", metavar="N", help=f"sizes [default: {SIZES}]")
    parser.add_argument("--queries", type=int, nargs="+", metavar="N", default=QUERIES, help=f"[default: {QUERIES}]")
    parser.add_argument("--no-run", action="store_true", help="measure nothing, write the page from the figures")
    parser.add_argument("--earlier", type=Path, metavar="FILE", help="results of an earlier revision, for the page")
    parser.add_argument("--document", type=Path, metavar="FILE", help="page to write, as docs/scale.md")
    options = parser.parse_args()
    results = ResultFile(options.json)
    if not options.no_run:
        _measure(options, results)
    if options.earlier:
        results.figures["earlier"] = read_results(options.earlier)["scale"]
        results.save()
    if options.document:
        write_page(options.document, page(results.figures))


def _measure(options: argparse.Namespace, results: ResultFile) -> None:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in a controller
    compared = QUICK_COMPARED if options.quick else COMPARED
    parts: dict[str, tuple[str, Callable[[Any], list[dict[str, Any]]], Iterable[Any]]] = {
        "scale": ("A decision from the messages in Redis to the plan, by size", measure, _shapes(options)),
        "placements": (
            "Placements of the same model: stage time over the least possible",
            measure_placements,
            [SMALL, *(_shape(*size) for size in compared)],
        ),
        "agents": (
            "Agents on one Redis, and the age of their windows in the controller",
            measure_agents,
            QUICK_AGENTS if options.quick else AGENTS,
        ),
    }
    for name, (measures, work, sizes) in parts.items():
        rows: list[dict[str, Any]] = []
        results.figures[name] = Result.of(measures, {"rows": rows}, quick=options.quick)
        for size in sizes:  # each in a process of its own: its memory is that of this size
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
                rows += pool.submit(work, size).result()
            results.save()
            progress(json.dumps(rows[-1]))


def page(results: Mapping[str, Result]) -> str:
    """Return the page of the results."""
    scale = results["scale"].figures()
    bounds = {"executors": MAX_EXECUTORS, "partitions": MAX_PARTITIONS, "replayed": MAX_REPLAYED}
    bounds["cluster_sizes"] = MAX_CLUSTER_SIZES
    others: dict[str, Any] = {name: results[name].rows for name in ("placements", "agents")}
    others["earlier"] = _earlier_rows(results)
    others["before"] = results.get("earlier")
    return render("scale", scale | others | {"growth": _growth(scale["rows"]), "bounds": bounds}, wrap=False)


def _earlier_rows(results: Mapping[str, Result]) -> list[dict[str, Any]]:
    """Return the rows of an earlier revision, each with today's of the same size as ``today``."""
    if "earlier" not in results:
        return []
    sizes = "executors", "cores", "queries"
    today = {tuple(row[name] for name in sizes): row for row in results["scale"].rows}
    every = ((row, today.get(tuple(row[name] for name in sizes))) for row in results["earlier"].rows)
    return [row | {"today": other} for row, other in every if other is not None]


def _shapes(options: argparse.Namespace) -> Iterator[Shape]:
    for executors in options.executors or (QUICK if options.quick else SIZES):
        for cores in CORES:
            for queries in options.queries:
                shape = _shape(executors, cores, queries)
                if shape.partitions <= LARGEST_STAGE:
                    yield shape


def _shape(executors: int, cores: int, queries: int) -> Shape:
    return Shape(executors, queries, STAGES, executors * PARTITIONS // queries // STAGES, cores=cores)


def _size_of(shape: Shape) -> dict[str, Any]:
    return {"executors": shape.agents, "cores": shape.cores, "queries": shape.queries, "partitions": shape.total}


@contextlib.contextmanager
def _open_messages(shape: Shape, **redis_options: str) -> Iterator[tuple[Stack, Messages]]:
    """Run a Redis, and open the messages of all agents and of the link."""
    sections = {"redis": {"timeout": 10.0}, "controller": {"lease": 60.0}}
    with (
        tempfile.TemporaryDirectory(prefix="rechannel-scale-") as root,
        Stack(Path(root) / "stack", sections, redis_options={"maxmemory": "0", **redis_options}) as stack,
    ):
        messages = Messages(stack.settings, shape)
        with contextlib.closing(messages.store):
            yield stack, messages


def _fill(messages: Messages) -> int:
    """Send enough for a decision; return the number of the newest batches."""
    messages.fill()
    newest = messages.number
    messages.send_report()  # filling may take longer than the last one holds
    return newest


def measure(shape: Shape) -> list[dict[str, Any]]:
    """Return the seconds of each part of a cold and a warm decision, by the wall and of the processor, as a row."""
    tune_garbage_collection()  # as in a controller
    figures = _size_of(shape)
    with _open_messages(shape) as (stack, messages):
        newest = _fill(messages)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        collector = Collector(messages.store, stack.settings, time.time)
        figures["cold"] = _decide(collector, messages, stack.settings, newest)
        messages.send_batches()
        messages.send_windows()
        figures["warm"] = _decide(collector, messages, stack.settings, messages.number)
        figures["memory_mib"] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return [figures]


def measure_placements(shape: Shape) -> list[dict[str, Any]]:
    """Return stage time over the least possible, traffic and seconds of each policy, for one model."""
    with _open_messages(shape) as (stack, messages):
        newest = _fill(messages)
        read = _read(Collector(messages.store, stack.settings, time.time), shape, newest)
        snapshot = take_snapshot(read, stack.settings, time.time())
    if isinstance(snapshot, NotReady):
        raise StackError(snapshot.sentence)
    cluster, workload, current = snapshot.cluster, snapshot.prediction.workload, snapshot.placement
    least = certified_bound(cluster, workload)
    volume = sum(shuffle.summary()[1] for shuffle in workload.shuffles)
    answers = {"as it is": (0.0, current)}
    for policy in (ADAPTIVE.name, "even"):
        seconds, proposal = timed(partial(propose, policy, cluster, workload, current))
        answers[policy] = seconds, proposal.placement
    if importlib.util.find_spec("pymetis") is not None:
        answers["METIS"] = timed(lambda: metis(Scenario("scale", cluster, workload, current)))
    rows = [
        {
            "policy": policy,
            "seconds": seconds,
            "stage_time": placement_cost(cluster, workload, placement).stage_time / least,
            "crossing": inter_executor_volume(cluster, workload, placement) / volume if volume else None,
        }
        for policy, (seconds, placement) in answers.items()
    ]
    if shape == SMALL:
        stages = workload.placeable
        seconds, optima = timed(lambda: [optimal_seconds(stage.busy, cluster.speed) for stage in stages])
        total = sum(stage.batches_per_second * best for stage, (best, _) in zip(stages, optima, strict=True))
        name = "HiGHS" if all(proved for _, proved in optima) else "HiGHS, not proved"
        rows.append({"policy": name, "seconds": seconds, "stage_time": total / least, "crossing": None})
    return [_size_of(shape) | row for row in rows]


def measure_agents(count: int) -> list[dict[str, Any]]:
    """Return what agents cost Redis, and the age of their windows once a controller has read them, as a row."""
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(limit, 3 * count + 1024), limit))
    with _open_messages(Shape(count, 1, 1, count), maxclients=str(2 * count + 100)) as (stack, messages):
        collector = Collector(messages.store, stack.settings, time.time)
        pushes = multiprocessing.get_context("spawn").Process(target=push_windows, args=(stack.settings, count))
        pushes.start()
        try:
            return [{"agents": count} | _follow(messages, collector, pushes)]
        finally:
            pushes.kill()
            pushes.join()


def push_windows(settings: Settings, count: int) -> None:
    """Push windows at the pace of so many agents."""
    stores = [Store(settings.redis, settings.cluster.name) for _ in range(count)]
    authors = [EnvelopeFactory(settings.cluster.name, f"agent:{number}") for number in range(count)]

    def push(number: int) -> None:
        body = agents.window(number, time.time(), 1)
        body = replace(body, map_outputs=choose_outputs(body.map_outputs, MAX_CLUSTER_SIZES // count))
        stores[number].append(keys.WINDOWS, body.node, authors[number].envelope(body, ttl=keys.WINDOWS.ttl))

    pace = agents.Pace()
    pace.every(agents.WINDOW, [partial(push, number) for number in range(count)])
    pace.run(time.monotonic() + PUSHES * agents.WINDOW)


def _follow(messages: Messages, collector: Collector, pushes: multiprocessing.process.BaseProcess) -> dict[str, Any]:
    """Read once in each window, as a controller does, until the agents end."""
    store = messages.store
    newest: dict[str, float] = {}
    ages: list[float] = []
    reads: list[float] = []
    before, began = store.info("all"), time.monotonic()
    counted = began
    while pushes.is_alive():
        messages.send_report()
        started, cpu = time.monotonic(), time.process_time()
        collector.refresh()
        read = collector.gather(APPLICATION)
        reads.append(time.process_time() - cpu)
        now = time.time()
        for host, windows in (read.windows if read else {}).items():
            for window in windows:
                if window.end > newest.get(host, 0.0):
                    newest[host] = window.end
                    ages.append(now - window.end)
        if time.monotonic() < began + 3 * agents.WINDOW:  # all agents have connected by then
            before, counted, ages, reads = store.info("all"), time.monotonic(), [], []
        time.sleep(max(0.0, started + agents.WINDOW - time.monotonic()))
    after = store.info("all")
    load = agents.redis_load(before, after, time.monotonic() - counted)
    return load | {
        "memory_mib": after["used_memory"] / 2**20,
        "windows": len(ages),
        "age": dict(zip(("median", "p99"), np.percentile(ages, (50, 99)).tolist(), strict=True)),
        "read_cpu": float(np.median(reads)),
    }


def _read(collector: Collector, shape: Shape, newest: int) -> ApplicationMessages:
    """Read until the newest batch of each query is there."""
    for _ in range(_ROUNDS):  # each reads a bounded number of bytes
        collector.refresh()
        messages = collector.gather(APPLICATION)
        if messages and sum(batch.batch == newest for batch in messages.batches) == shape.queries:
            return messages
    raise StackError("the report was rejected, or batches are missing")


def _decide(collector: Collector, messages: Messages, settings: Settings, newest: int) -> dict[str, Any]:
    """Return the seconds of a decision by its parts; ``newest``: number of the batch of each query that is in Redis."""
    laps: dict[str, tuple[float, float]] = {}
    now = time.time()

    def lap(name: str, work: Callable[[], Any]) -> Any:
        wall, cpu = time.perf_counter(), time.process_time()
        result = work()
        laps[name] = time.perf_counter() - wall, time.process_time() - cpu
        return result

    read = lap("read", lambda: _read(collector, messages.shape, newest))
    snapshot = lap("model", lambda: take_snapshot(read, settings, now))
    if isinstance(snapshot, NotReady):
        raise StackError(snapshot.sentence)
    lap("residuals", lambda: snapshot.residuals)
    request = DecisionRequest("scale", now, Trigger.OPERATOR, ADAPTIVE.name, apply=True, force=True)
    basis = PlanBasis(read, settings)
    proposed = lap("policy", lambda: ask_policy(request, snapshot, settings, basis.rates))
    plan = lap("laws", lambda: apply_laws(request, basis, snapshot, proposed))
    signer = Signer.from_file(settings.signing.private_key_file)
    decision = lap("record", lambda: record_decision(request, basis, snapshot, proposed, plan))
    lap("publish", lambda: _publish(messages.store, signer, decision))
    return {
        "wall": {name: wall for name, (wall, _) in laps.items()},
        "cpu": {name: cpu for name, (_, cpu) in laps.items()},
        "wall_seconds": sum(wall for wall, _ in laps.values()),
        "cpu_seconds": sum(cpu for _, cpu in laps.values()),
        "moves": len(plan.moves),
        "sentence": plan.sentence,
    }


def _publish(store: Store, signer: Signer, decision: Decision) -> None:
    """Write a decision and the placement that it orders."""
    author = EnvelopeFactory(store.cluster, "controller")
    store.append(keys.DECISIONS, "", author.envelope(decision, ttl=keys.DECISIONS.ttl, application=APPLICATION))
    desired = DesiredPlacement(decision=decision.decision, runs=decision.runs, moves=decision.moves)
    envelope = author.envelope(desired, ttl=keys.DESIRED.ttl, application=APPLICATION)
    store.put(keys.DESIRED, APPLICATION, signer.sign(envelope))


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
