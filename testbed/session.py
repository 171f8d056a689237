"""A stack with one streaming application: its progress, its link's reports, and moves ordered by hand."""

from __future__ import annotations

import contextlib
import io
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import msgspec

from rechannel.daemon.cli import main as cli
from rechannel.wire import keys
from rechannel.wire.codes import MoveState
from rechannel.wire.messages import LinkReport, MoveTransition, QueryState
from rechannel.wire.redis.store import Store
from testbed.progress import JsonLines
from testbed.stack import ClusterFactory, Place, Sections, Stack, StackError, saved_plan

LANDED_OR_ABANDONED = frozenset({MoveState.DRAINED, MoveState.KILLED, MoveState.ABANDONED})


class Session(Stack):
    """A stack whose application writes ``progress.jsonl`` into the directory; decisions are asked for, never timed."""

    def __init__(self, directory: Path, sections: Sections, cluster: ClusterFactory | None = None) -> None:
        super().__init__(directory, sections, cluster)
        self.application = ""  # id, once its link reports
        self.batches: list[dict[str, Any]] = []  # lines of progress in the order of their commits
        self._progress = JsonLines(directory / "progress.jsonl")
        self._last_entry = "0"  # id of the journal's last entry that was read
        self._journal: list[MoveTransition] = []
        self._controller: dict[str, str] | None = None
        self.store: Store

    def start(self) -> Self:
        """Start the stack, and keep a connection to Redis open for measurements."""
        super().start()
        self.store = self._open.enter_context(self.open_store())
        return self

    # -- the application --

    def run_application(self, module: str, plan: Mapping[str, Any]) -> None:
        """Start a module with a plan as its ``plan.json`` and wait until its link reports placed queries."""
        self.start_module(module, self.directory, plan, "application")
        self.wait("the application's link reports", self._reports)

    def _reports(self) -> bool:
        applications = self.store.applications(time.time() - 60)
        self.application = applications[0] if applications else ""
        return bool(applications) and self.query() is not None

    def query(self) -> QueryState | None:
        """Return the query that is moved, once all its partitions are placed."""
        raise NotImplementedError

    def report(self) -> LinkReport | None:
        """Return the link's last report."""
        envelope = self.store.get(keys.REPORT, self.application) if self.application else None
        return envelope.body if envelope is not None and isinstance(envelope.body, LinkReport) else None

    def require_report(self) -> LinkReport:
        """Return the link's last report; StackError if there is none."""
        report = self.report()
        if report is None:
            raise StackError("the link reports nothing")
        return report

    def poll(self) -> list[dict[str, Any]]:
        """Read the progress events that have come; return all so far."""
        self.batches += self._progress.read()
        return self.batches

    def wait_batches(self, count: int) -> None:
        """Wait until so many more batches are committed."""
        until = len(self.poll()) + count
        self.wait(f"{count} batches", lambda: len(self.poll()) >= until)

    # -- Rechannel --

    def use_controller(self, environment: Mapping[str, str]) -> None:
        """Have a controller with these variables lead; one that has them already stays."""
        if dict(environment) == self._controller:
            return
        self.group.stop("controller")
        since = time.time()
        self.start_controller(**environment)
        self._controller = dict(environment)
        self.await_leader(since)

    def await_ready(self, patience: float = 180.0) -> None:
        """Wait until a decision is possible; StackError with what is missing when it does not become so."""
        problem = [""]

        def ready() -> bool:
            code, answer = self.ask("status")
            if code or not answer.get("applications"):
                problem[0] = str(answer.get("error", "no application"))
            else:
                readiness = answer["applications"][0]["readiness"]
                problem[0] = "" if readiness["ready"] else str(readiness["sentence"])
            return not problem[0]

        try:
            self.wait("a decision is possible", ready, patience, every=1.0)
        except StackError as error:
            raise StackError(f"a decision is possible: {problem[0]}\n{error}") from error

    def ask(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        """Run a command of ours in this process: starting Python would take CPU from what is measured."""
        output, errors, code = io.StringIO(), io.StringIO(), 0
        inherited = dict(os.environ)
        os.environ.update(self.environment)
        try:
            with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
                cli.main(args=[*arguments, "--json"], prog_name="rechannel", standalone_mode=True)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        finally:
            os.environ.clear()
            os.environ.update(inherited)
        try:
            answer: dict[str, Any] = json.loads(output.getvalue())
        except json.JSONDecodeError:
            answer = {"error": (errors.getvalue() or output.getvalue()).strip()[-500:]}
        return code, answer

    def order_moves(self, targets: Mapping[Place, str], reason: str) -> dict[str, Any]:
        """Order that partitions go to executors; return the decision, or raise StackError with the refusal."""
        plan = saved_plan(self.settings.cluster.name, self.application, self.require_report(), targets)
        path = self.directory / "moves.json"
        path.write_text(json.dumps(plan))
        code, answer = self.ask("apply", str(path), "--force", "--reason", reason)
        if code:
            raise StackError(f"the moves were refused ({code}): {answer.get('error') or answer.get('sentence')}")
        decision: dict[str, Any] = answer["decision"]
        return decision

    def transitions(self) -> list[MoveTransition]:
        """Return every line of the journal, those of the link's own moves too."""
        while True:
            self._last_entry, entries = self.store.read(keys.JOURNAL, self.application, self._last_entry)
            if not entries:
                return self._journal
            self._journal += [entry.body for entry in entries if isinstance(entry.body, MoveTransition)]

    def journal(self, decision: str) -> list[dict[str, Any]]:
        """Return the journal's lines of a decision."""
        return [msgspec.to_builtins(line) for line in self.transitions() if line.decision == decision]

    def moves_in(self, decision: Mapping[str, Any], states: frozenset[MoveState]) -> dict[str, str]:
        """Return the moves of a decision that have reached one of the states, with the last of them."""
        return {line["move"]: line["after"] for line in self.journal(decision["decision"]) if line["after"] in states}
