"""Run the demo: ``python -m examples.demo``."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from examples.demo.eventlog import EventLog
from examples.demo.rechannel_view import RechannelView, Transition, count_moves, unsettled
from examples.demo.report import Screen, Timeline, batch_figures, placement_rows
from examples.demo.stage import ADDED, NODES, Options, Stage, open_stage

_MOVING = 8  # batches that the moves take, or so: for the progress bar alone
_PATIENCE = 90.0  # seconds until Rechannel has the figures a decision needs
_CHANGE_PATIENCE = 90.0  # seconds for a node to be emptied, and for an added one to get its share


@dataclass(frozen=True)
class Plan:
    """Batches of each part of the run, by the slowest query, and the time limit."""

    warm_up: int = 4
    before: int = 6
    after: int = 10
    seconds: float = 200.0


@dataclass
class Run:
    """One run of the demo, from the first batch to the verdict."""

    stage: Stage
    plan: Plan
    screen: Screen
    timeline: Timeline = field(default_factory=Timeline)
    transitions: list[Transition] = field(default_factory=list)
    executors: dict[str, Any] = field(default_factory=dict)
    changes: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.log = EventLog(self.stage.root / "events")
        self._deadline = time.monotonic() + self.plan.seconds
        self._shown = 0.0

    def _until(self, batches: int, note: str) -> int:
        """Feed until the slowest query has finished so many batches, the files are used up, or the time is over."""
        while True:
            finished = self.stage.feed()
            self._show(finished, note)
            slowest = min(finished.values())
            if slowest >= batches or self.stage.feeder.closed or time.monotonic() > self._deadline:
                return slowest
            time.sleep(0.1)

    def _show(self, finished: dict[str, int], note: str) -> None:
        if time.monotonic() - self._shown >= (0.5 if self.screen.terminal else 10.0):
            self._shown = time.monotonic()
            batches = self.stage.progress.batches
            last = {query: batches[query][-1].trigger_ms for query in finished if batches[query]}
            plan = self.plan
            total = 2 + plan.warm_up + plan.before + plan.after + _MOVING
            self.screen.progress(finished, last, note, total)

    def go(self) -> dict[str, Any]:
        """Run all the phases and return what ``--json`` writes."""
        queries = self.stage.queries
        self._deadline = time.monotonic() + self.plan.seconds
        self._until(2, "first batches")
        self.stage.hold()
        slowest = self._until(2 + self.plan.warm_up, "warming up")
        if self.stage.view is not None:
            # Asked before the measuring begins: the command line itself takes a good part of a core for a second.
            self._wait_ready(self.stage.view)
            slowest = min(self.stage.finished().values())
        self.timeline.measured_from = time.time()
        slowest = self._until(slowest + self.plan.before, "before")
        self.log.poll()
        self.executors["before"] = self._executors()
        self.screen.placement("What Spark did by itself", self.log, queries)
        if self.stage.view is not None:
            self._rebalance(self.stage.view)
            self._until(min(self.stage.finished().values()) + self.plan.after, "after")
            self._take_in(self.stage.view)
            self.log.poll()
            self.screen.placement("After", self.log, queries)
        self.log.poll()
        self.executors["after"] = self._executors()
        self.timeline.ended = time.time()
        if self.stage.view is not None:
            self._change(self.stage.view)
        self.stage.feeder.close()
        self.stage.cluster.set_quota(None)  # the measuring is over; the audit needs not wait
        return self._verdict()

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

    def _rebalance(self, view: RechannelView) -> None:
        self.timeline.ordered_at = time.time()
        decision = view.trigger_rebalance()
        self.screen.decision(decision)
        while decision.accepted and not self.stage.feeder.closed and time.monotonic() < self._deadline:
            self._show(self.stage.feed(), "during")
            self._take_in(view)
            if self.transitions and not unsettled(self.transitions):
                break
            time.sleep(0.1)
        self.timeline.settled = time.time()

    def _change(self, view: RechannelView) -> None:
        """Drain a node and add another, under load."""
        node = NODES[-1]
        self.screen.say(f"drain: {view.drain(node)}", "bold")
        self._wait_for("drained", f"draining {node}", lambda: node not in self.log.executors.values())
        self.screen.placement(f"After {node} was drained and its executor released", self.log, self.stage.queries)
        self.stage.add_node()
        self.screen.say(f"{ADDED} is added; nobody asks for anything", "bold")
        self._wait_for("joined", f"{ADDED} joins", lambda: ADDED in self.log.executors.values())
        self.stage.hold()
        self._wait_for("shared", f"{ADDED} gets its share", self._added_holds)
        self.screen.say(f"the controller: {view.last_sentence()}")
        self.screen.placement(f"After {ADDED} was added", self.log, self.stage.queries)

    def _wait_for(self, what: str, note: str, ready: Callable[[], bool]) -> None:
        began = time.monotonic()
        while not ready():
            if time.monotonic() - began > _CHANGE_PATIENCE or self.stage.feeder.closed:
                self.changes[what] = None
                self.screen.say(f"{note}: not within {_CHANGE_PATIENCE:g} s", "red")
                return
            self._show(self.stage.feed(), note)
            if self.stage.view is not None:
                self._take_in(self.stage.view)
            self.log.poll()
            time.sleep(0.1)
        self.changes[what] = round(time.monotonic() - began, 1)

    def _added_holds(self) -> bool:
        rows = {query: placement_rows(self.log, query) for query in self.stage.queries}
        return all(any(host == ADDED and count for host, _, count, _ in placement) for placement in rows.values())

    def _take_in(self, view: RechannelView) -> None:
        log = self.stage.group.processes["history"].log
        transitions = view.transitions(log.read_text(errors="replace"))
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
            "load": self.stage.load,
            "with_rechannel": self.stage.view is not None,
            "audit": result["audit"],
            "errors": result.get("errors", []),
            "restarts": result["restarts"],
            "failed_task_attempts": result["failed_task_attempts"],
            "moves": count_moves(self.transitions),
            "batch_ms": figures,
            "executors": self.executors,
            "seconds_to_change": self.changes,
        }


def _judge(outcome: dict[str, Any], screen: Screen) -> bool:
    screen.durations(outcome["batch_ms"])
    for query, verdict in outcome["audit"].get("queries", {}).items():
        screen.say(
            f"audit {query}: {verdict['actual']:,} rows of {verdict['expected']:,}, missing {verdict['missing']}, "
            f"extra {verdict['extra']}, different {verdict['different']}; "
            f"flights lost {verdict['rows_lost']}, doubled {verdict['rows_doubled']}"
        )
    for error in outcome["errors"]:
        screen.say(f"query error: {error.splitlines()[0]}", "red")
    moves = outcome["moves"]
    if not moves["planned"] and outcome["with_rechannel"]:
        screen.say("nothing was moved: see the decision above for why", "yellow")
    screen.say("moves: " + ", ".join(f"{name} {count}" for name, count in moves.items()))
    screen.say(f"query restarts: {outcome['restarts']}, failed task attempts: {outcome['failed_task_attempts']}")
    changed = all(seconds is not None for seconds in outcome["seconds_to_change"].values())
    ok = bool(outcome["audit"]["ok"]) and not outcome["restarts"] and not outcome["failed_task_attempts"] and changed
    screen.say("PASSED: the output is exact" if ok else "FAILED", "bold green" if ok else "bold red")
    return ok


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    options, plan = Options(), Plan()
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description="Rechannel's demo.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file as well")
    parser.add_argument("--without-rechannel", action="store_true", help="run everything else")
    parser.add_argument("--no-quota", action="store_true", help="a service time per row instead of CPU quotas")
    parser.add_argument("--quota", type=float, default=options.quota, help="cores per node (default %(default)s)")
    parser.add_argument("--service-ms", type=float, default=options.service_ms, help="per row, without quotas")
    parser.add_argument("--files", type=int, default=options.files, help="files, and batches, at most")
    parser.add_argument("--rows", type=int, default=options.rows_per_file, help="flights in a file")
    parser.add_argument("--partitions", type=int, default=options.partitions, help="shuffle partitions of each query")
    parser.add_argument("--warm-up", type=int, default=plan.warm_up, help="batches that are not measured")
    parser.add_argument("--before", type=int, default=plan.before, help="batches measured before the rebalancing")
    parser.add_argument("--after", type=int, default=plan.after, help="batches measured after it")
    parser.add_argument("--seconds", type=float, default=plan.seconds, help="bound on the time spent feeding")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep logs, checkpoints and output in this directory")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; 0 if the audit passed, no query was restarted and no task attempt failed."""
    parsed = _arguments(arguments)
    options = Options(
        files=parsed.files,
        rows_per_file=parsed.rows,
        partitions=parsed.partitions,
        quota=parsed.quota,
        service_ms=parsed.service_ms,
        use_quota=not parsed.no_quota,
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
