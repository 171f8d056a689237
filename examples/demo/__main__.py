"""Run the demo: ``python -m examples.demo``."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from examples.demo.eventlog import EventLog
from examples.demo.rechannel_view import Decision, RechannelView, Transition, count_moves, unsettled
from examples.demo.report import Screen, Timeline, batch_figures, placement_rows
from examples.demo.stage import ADDED, NODES, Options, Stage, open_stage

_MOVING = 8  # batches that the moves take, or so: for the progress bar alone
_PATIENCE = 90.0  # seconds until Rechannel has the figures a decision needs
_CHANGE_PATIENCE = 90.0  # seconds for nodes to get their share, and for one to be emptied, or so many batches:
_CHANGE_BATCHES = 20  # partitions move at the ends of batches, which are long on a slow machine
_ROWS_SHARE = 0.7  # of a batch that rows are to take; tasks then take more, as they are more than their rows
_MOST_ROWS = 3000  # in a file: a hundred batches of the flights of a year
_WITHOUT_CHANGE = 0.02  # share of a batch; a prediction below it has no sign


@dataclass(frozen=True)
class Plan:
    """Batches of each part of the run, by the slowest query, and the time limit."""

    warm_up: int = 10
    before: int = 15
    after: int = 15
    seconds: float = 900.0


@dataclass
class Run:
    """One run of the demo, from the first batch to the verdict."""

    stage: Stage
    plan: Plan
    screen: Screen
    timeline: Timeline = field(default_factory=Timeline)
    decisions: list[Decision] = field(default_factory=list)
    transitions: list[Transition] = field(default_factory=list)
    predicted: dict[str, tuple[float, float]] = field(default_factory=dict)
    task_share: float = 0.0
    executors: dict[str, Any] = field(default_factory=dict)
    changes: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.log = EventLog(self.stage.root / "events")
        self._deadline = time.monotonic() + self.plan.seconds
        self._shown = 0.0

    def _until(self, batches: int, note: str) -> None:
        """Feed until the slowest query has finished so many batches, the files are used up, or the time is over."""
        while True:
            finished = self.stage.feed()
            self._show(finished, note)
            if min(finished.values()) >= batches or self.stage.feeder.closed or time.monotonic() > self._deadline:
                return
            time.sleep(0.1)

    def _show(self, finished: dict[str, int], note: str) -> None:
        if time.monotonic() - self._shown >= (0.5 if self.screen.terminal else 10.0):
            self._shown = time.monotonic()
            batches = self.stage.progress.batches
            last = {query: batches[query][-1].trigger_ms for query in finished if batches[query]}
            plan = self.plan
            total = 4 + plan.warm_up + plan.before + plan.after + _MOVING
            self.screen.progress(finished, last, note, total)

    def go(self) -> dict[str, Any]:
        """Run all the phases and return what ``--json`` writes."""
        stage, view, queries = self.stage, self.stage.view, self.stage.queries
        self._deadline = time.monotonic() + self.plan.seconds
        self._until(self.plan.warm_up, "warming up")
        if not min(stage.finished().values()):
            raise RuntimeError(f"a query finished no batch in {self.plan.seconds:g} s; --seconds allows for more")
        self._calibrate()
        # The files of the old size that are under way, and the first two of the new one.
        self._until(min(stage.finished().values()) + stage.feeder.lead + 2, "warming up")
        if view is not None:
            # Asked before the measuring begins: the command line itself takes a good part of a core for a second.
            self._wait_ready(view)
        self.timeline.measured_from = time.time()
        self._until(min(stage.finished().values()) + self.plan.before, "before")
        self.log.poll()
        self.task_share = self._busiest_share(self.plan.before)
        self.executors["before"] = self._executors()
        self.screen.placement("Before the nodes are added", self.log, queries)
        self._join()
        self._until(min(stage.finished().values()) + self.plan.after, "after")
        self.log.poll()
        self.screen.placement(f"With {' and '.join(ADDED)}", self.log, queries)
        self.executors["after"] = self._executors()
        self.timeline.ended = time.time()
        if view is not None:
            self._drain(view)
        stage.feeder.close()
        return self._verdict()

    def _busiest_share(self, batches: int) -> float:
        """Return the share of the time that the busiest executor spent in stateful tasks, of the last batches."""
        total: dict[str, float] = defaultdict(float)
        for query in self.stage.queries:
            newest = self.stage.progress.batches[query][-batches:]
            mean = sum(batch.trigger_ms for batch in newest) / 1000 / len(newest)
            for executor, seconds in self.log.busy_seconds(query, batches).items():
                total[executor] += seconds / mean
        return max(total.values())

    def _calibrate(self) -> None:
        """Have the files grow until rows take most of a batch: on a slow machine Spark's own part is longer."""
        stage = self.stage
        batch = median(batch.trigger_ms for query in stage.queries for batch in stage.progress.batches[query][-5:])
        # Every row passes through each query, and executors share the rows.
        per_row = stage.options.service_ms * len(stage.queries) / len(NODES)
        other = max(batch - per_row * stage.feeder.rows, 0.0)
        rows = other * _ROWS_SHARE / (1 - _ROWS_SHARE) / per_row
        stage.feeder.rows = round(min(max(rows, stage.feeder.rows), _MOST_ROWS))
        self.screen.say(
            f"calibrated: {other:.0f} ms of a batch are Spark's own; files of {stage.feeder.rows} flights now"
        )

    def _executors(self) -> dict[str, Any]:
        return {
            query: [
                {"host": host, "executor": executor, "partitions": count, "busy_share": round(share, 4)}
                for host, executor, count, share in placement_rows(self.log, query)
            ]
            for query in self.stage.queries
        }

    def _wait_ready(self, view: RechannelView) -> None:
        deadline = time.monotonic() + _PATIENCE
        while not view.ready():
            if time.monotonic() > deadline:
                raise TimeoutError(f"Rechannel is not ready: {view.problem}")
            for _ in range(20):
                self._show(self.stage.feed(), "waiting for figures")
                time.sleep(0.1)
        view.follow()

    def _join(self) -> None:
        """Add nodes under load; nobody asks for anything."""
        changed_at = self.timeline.changed_at = time.time()
        self.screen.say(f"{' and '.join(ADDED)} are added; nobody asks for anything", "bold")
        for node in ADDED:
            self.stage.add_node(node)
        self._wait_for("joined", "nodes join", lambda: set(ADDED) <= set(self.log.executors.values()))
        if self.stage.view is not None:
            self._wait_for("shared", "the new executors get their share", self._shared)
            applied = [decision for decision in self.decisions if decision.applied and decision.at >= changed_at]
            for decision in applied:
                self.screen.decision(decision)
            self.predicted = predicted_batches(applied)
        self.timeline.settled = time.time()

    def _drain(self, view: RechannelView) -> None:
        """Empty a node under load."""
        node = NODES[-1]
        self.screen.say(f"drain: {view.drain(node)}", "bold")
        self._wait_for("drained", f"draining {node}", lambda: node not in self.log.executors.values())
        self.screen.placement(f"After {node} was drained and its executor released", self.log, self.stage.queries)

    def _wait_for(self, what: str, note: str, ready: Callable[[], bool]) -> None:
        began = time.monotonic()
        batches = self.stage.progress.batches.values()
        patience = max(_CHANGE_PATIENCE, _CHANGE_BATCHES * max(its[-1].trigger_ms for its in batches) / 1000)
        while not ready():
            if time.monotonic() - began > patience or self.stage.feeder.closed:
                self.changes[what] = None
                self.screen.say(f"{note}: not within {patience:.0f} s", "red")
                return
            self._show(self.stage.feed(), note)
            if self.stage.view is not None:
                self._take_in(self.stage.view)
            self.log.poll()
            time.sleep(0.1)
        self.changes[what] = round(time.monotonic() - began, 1)

    def _shared(self) -> bool:
        """Whether every new node holds partitions and nothing moves any longer."""
        rows = [row for query in self.stage.queries for row in placement_rows(self.log, query)]
        holding = {host for host, _, count, _ in rows if count}
        return set(ADDED) <= holding and not unsettled(self.transitions)

    def _take_in(self, view: RechannelView) -> None:
        self.decisions, transitions = view.history()
        for transition in transitions[len(self.transitions) :]:
            self.screen.say(str(transition))
        self.transitions = transitions

    def _verdict(self) -> dict[str, Any]:
        self.screen.say("the stream ends here: sentinel fed, last batches and audit under way")
        while self.stage.app.alive():
            self.stage.finished()
            time.sleep(0.2)
        self.stage.finished()
        if not (self.stage.root / "result.json").exists():
            raise RuntimeError(f"the application ended without a result:\n{self.stage.app.log_tail(40)}")
        result = self.stage.result()
        batches = self.stage.progress.batches
        figures = {query: batch_figures(self.timeline, batches[query]) for query in self.stage.queries}
        return {
            "with_rechannel": self.stage.view is not None,
            "rows_per_file": self.stage.feeder.rows,
            "task_share": round(self.task_share, 3),
            "predicted_batch_s": self.predicted,
            "audit": result["audit"],
            "errors": result.get("errors", []),
            "restarts": result["restarts"],
            "failed_task_attempts": result["failed_task_attempts"],
            "moves": count_moves(self.transitions),
            "batch_ms": figures,
            "executors": self.executors,
            "seconds_to_change": self.changes,
        }


def predicted_batches(applied: Sequence[Decision]) -> dict[str, tuple[float, float]]:
    """Return each query's batch before the first of the decisions, and as the last of them predicts it."""
    result: dict[str, tuple[float, float]] = {}
    for decision in applied:
        for query, (before, after) in decision.batch_seconds.items():
            result[query] = (result.get(query, (before, after))[0], after)
    return result


def against_prediction(
    predicted: Mapping[str, tuple[float, float]], measured: Mapping[str, Mapping[str, Mapping[str, Any]]]
) -> list[str]:
    """Return the queries whose median batch went another way than predicted, or was not measured."""
    result = []
    for query, (before, after) in predicted.items():
        first, last = measured[query]["before"]["p50"], measured[query]["after"]["p50"]
        change = after / before - 1
        if first is None or last is None or (abs(change) > _WITHOUT_CHANGE and change * (last - first) <= 0):
            result.append(query)
    return result


def _judge(outcome: dict[str, Any], screen: Screen) -> bool:
    screen.durations(outcome["batch_ms"])
    predicted = outcome["predicted_batch_s"]
    for query, (before, after) in predicted.items():
        screen.say(f"predicted {query}: {before * 1000:.0f} → {after * 1000:.0f} ms ({after / before - 1:+.0%})")
    wrong = against_prediction(predicted, outcome["batch_ms"])
    for query in wrong:
        screen.say(f"{query}: its batches went another way than predicted", "red")
    screen.say(f"tasks took {outcome['task_share']:.0%} of the time of the busiest executor before")
    for query, verdict in outcome["audit"].get("queries", {}).items():
        screen.say(
            f"audit {query}: {verdict['actual']:,} rows of {verdict['expected']:,}, missing {verdict['missing']}, "
            f"extra {verdict['extra']}, different {verdict['different']}; "
            f"flights lost {verdict['rows_lost']}, doubled {verdict['rows_doubled']}"
        )
    for error in outcome["errors"]:
        screen.say(f"query error: {error.splitlines()[0]}", "red")
    moves = outcome["moves"]
    screen.say("moves: " + ", ".join(f"{name} {count}" for name, count in moves.items()))
    screen.say(f"query restarts: {outcome['restarts']}, failed task attempts: {outcome['failed_task_attempts']}")
    changed = all(seconds is not None for seconds in outcome["seconds_to_change"].values())
    ok = (
        bool(outcome["audit"]["ok"])
        and not outcome["restarts"]
        and not outcome["failed_task_attempts"]
        and changed
        and not wrong
    )
    screen.say(
        f"PASSED: the output is exact{', the gain has the predicted sign' if predicted else ''}" if ok else "FAILED",
        "bold green" if ok else "bold red",
    )
    return ok


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    options, plan = Options(), Plan()
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description="Rechannel's demo.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file as well")
    parser.add_argument("--without-rechannel", action="store_true", help="run everything else")
    parser.add_argument("--service-ms", type=int, default=options.service_ms, help="milliseconds that a row takes")
    parser.add_argument("--rows", type=int, default=options.rows, help="flights in the first files, before calibration")
    parser.add_argument("--partitions", type=int, default=options.partitions, help="shuffle partitions of each query")
    parser.add_argument("--warm-up", type=int, default=plan.warm_up, help="batches that are not measured")
    parser.add_argument("--before", type=int, default=plan.before, help="batches measured before nodes are added")
    parser.add_argument("--after", type=int, default=plan.after, help="batches measured after it")
    parser.add_argument("--seconds", type=float, default=plan.seconds, help="bound on the time spent feeding")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep logs, checkpoints and output in this directory")
    parsed = parser.parse_args(arguments)
    if parsed.service_ms < 1:
        parser.error("--service-ms: at least 1 millisecond")
    return parsed


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; 0 if the output is exact and batches went the way that was predicted."""
    parsed = _arguments(arguments)
    options = Options(
        rows=parsed.rows,
        partitions=parsed.partitions,
        service_ms=parsed.service_ms,
        with_rechannel=not parsed.without_rechannel,
    )
    plan = Plan(parsed.warm_up, parsed.before, parsed.after, parsed.seconds)
    screen = Screen()
    if parsed.json is not None and not parsed.json.resolve().parent.is_dir():
        screen.say(f"--json: there is no directory {parsed.json.resolve().parent}; make it first", "red")
        return 2
    root = parsed.keep.resolve() if parsed.keep else Path(tempfile.mkdtemp(prefix="rechannel-demo-"))
    if parsed.keep:
        root.mkdir(parents=True, exist_ok=True)
        if any(root.iterdir()):
            screen.say(f"{root} is not empty; name another directory", "red")
            return 2
    try:
        with open_stage(root, options, screen) as stage:
            outcome = Run(stage, plan, screen).go()
    except KeyboardInterrupt:
        screen.say("interrupted; everything is stopped", "red")
        return 130
    except (RuntimeError, OSError) as error:  # a part that died, or was not ready in time: its log is in the message
        screen.say(f"FAILED: {error}", "bold red")
        if parsed.json is not None:
            parsed.json.write_text(json.dumps({"ok": False, "error": str(error)}, indent=2) + "\n")
        return 1
    finally:
        screen.close()
        if not parsed.keep:
            shutil.rmtree(root, ignore_errors=True)
    ok = _judge(outcome, screen)
    outcome["ok"] = ok
    if parsed.json is not None:
        parsed.json.write_text(json.dumps(outcome, indent=2) + "\n")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
