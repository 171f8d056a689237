"""The cluster of one run: executors as a case has them, its application, a controller that may be paused at first."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.live.service.cases import Case
from benchmarks.live.service.results import BatchLine, DecisionLine
from benchmarks.live.session import PlacedSession
from rechannel.daemon.assess.assessment import assess
from rechannel.daemon.control.decision_log import applied_decisions, read_decision_log
from rechannel.daemon.control.guard import BLOCKING
from rechannel.wire import keys
from rechannel.wire.codes import DecisionResult, Law
from rechannel.wire.measurements import BatchReport, TaskRow
from rechannel.wire.messages import Decision, MigrationOutcome
from testbed.driver import write_answer
from testbed.progress import batches
from testbed.session import LANDED_OR_ABANDONED
from testbed.spark_cluster import QUICK_CHECKPOINTS, SparkOptions, WorkerSpec
from testbed.stack import StackError, clean_environment, standalone

POLICIES = ("adaptive", "even")
VARIANTS = (*POLICIES, "none")
EVENT_LOGS = ("event-logs", "event-logs-before")  # Spark's, of the whole run and up to the decision
_MEMORY_MB = 640
_WORKER_MB = _MEMORY_MB + 100
_FIRST_HOST = 121  # 127.0.0.121 and so on, one for each executor
_LONGEST = 1200  # seconds that CPU noise lasts at most


class ServiceSession(PlacedSession):
    """A running case. ``variant``: the policy that decides; with any other name nobody moves anything."""

    def __init__(self, directory: Path, case: Case, variant: str) -> None:
        self.case, self.variant = case, variant
        self._event_logs, self._event_logs_before = (directory / name for name in EVENT_LOGS)
        self.hosts = [_host(number) for number in range(case.executors)]
        self._active = [query.name for query in case.queries]
        self._restarts = 0
        spark = SparkOptions(_MEMORY_MB, log_level="warn")
        cluster = standalone(self.hosts, case.cores, _WORKER_MB, spark)
        super().__init__(directory, _sections(case, variant), cluster)

    def start_case(self, *, paused: bool = True, joining: int = 0, queries: Sequence[str] = ()) -> None:
        """Start agents, a controller, noise and the application; wait until all is placed.

        ``paused``: the controller's first decision waits for an order; ``joining``: executors that may come later;
        ``queries``: names of those that start at once, all by default.
        """
        self._active = list(queries) or self._active
        for host in self.hosts:
            self.start_agent(host)
        self.use_controller({})
        if paused:
            self.order("pause")
        if self.case.noise:
            arguments = [str(self.case.noise), str(_LONGEST), str(self.case.seed)]
            command = [sys.executable, "-m", "benchmarks.live.service.burner", *arguments]
            self.group.start("burner", command, env=clean_environment())
        self._event_logs.mkdir()
        self._order_active()
        conf = {
            "spark.scheduler.mode": self.case.scheduler,
            "spark.locality.wait": "30s",  # longer than any batch, as `rechannel doctor` advises: Spark moves nothing
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": self._event_logs.as_uri(),
            "spark.eventLog.rolling.enabled": "false",
            "spark.eventLog.compress": "false",  # so that what is written so far can be read
            **QUICK_CHECKPOINTS,
        }
        slots = self.case.slots + joining * self.case.cores
        plan = {
            "case": msgspec.to_builtins(self.case),
            "slow_host": _host(self.case.slow.executor) if self.case.slow else "",
            "checkpoint": str(self.directory / "checkpoint"),
            "conf": self.spark_conf("rechannel-service", self.case.cores, slots, **conf),
        }
        self.run_application("benchmarks.live.service.app", plan)

    def join(self) -> None:
        """Have one more node come, with an agent and an executor like the others."""
        host = _host(len(self.hosts))
        self.hosts.append(host)
        self.cluster.add_worker(WorkerSpec(host, self.case.cores, _WORKER_MB))
        self.start_agent(host)

    def activate(self, queries: Sequence[str], *, restart: bool = False) -> None:
        """Have these queries run and no others; ``restart``: each that runs is stopped and started again."""
        self._active = list(queries)
        self._restarts += restart
        self._order_active()

    def _order_active(self) -> None:
        write_answer(self.directory / "active.json", {"queries": self._active, "restarts": self._restarts})

    def order(self, *arguments: str, answers: Collection[int] = (0,)) -> int:
        """Give an order; return its exit code, or raise StackError where it is none of ``answers``."""
        code, answer = self.ask(*arguments, "--reason", "benchmark")
        if code not in answers:
            raise StackError(f"{' '.join(arguments)}: {answer.get('error') or answer.get('sentence')} ({code})")
        return code

    # -- assessment --

    def copy_event_log(self) -> None:
        """Copy Spark's event log as far as it is written, to assess it after the run."""
        shutil.copytree(self._event_logs, self._event_logs_before, dirs_exist_ok=True)

    def assessed(self) -> dict[str, float]:
        """Return the share of a batch that `rechannel assess` would save, by query, from the copied log."""
        assessment = assess([self._event_logs_before])
        queries = [query for application in assessment.applications for query in application.queries]
        return {query.name: query.best.saved for query in queries if query.best is not None}

    # -- batches --

    def lines(self) -> list[BatchLine]:
        """Return every committed batch so far."""
        return [BatchLine(one.query, one.number, one.begin, one.seconds) for one in batches(self.poll())]

    def await_each(self, count: int, since: float) -> None:
        """Wait until each query has committed so many batches that began later."""
        names = [query.name for query in self.case.queries]

        def committed() -> bool:
            lines = self.lines()
            return all(sum(line.query == name and line.begin >= since for line in lines) >= count for name in names)

        self.wait(f"{count} batches of each query", committed, every=0.3)

    # -- placement --

    def homes(self) -> list[list[int]]:
        """Return the number of the executor of each partition, by active query in the case's order; [] if unknown."""
        numbers, queries = self.executor_numbers(), {query.name: query for query in self.queries()}
        if not queries.keys() >= set(self._active):
            return []
        try:
            return [[numbers[one] for one in queries[name].stages[0].placement] for name in self._active]
        except (KeyError, IndexError):
            return []

    def executor_numbers(self) -> dict[str, int]:
        """Return the number of each executor by its id; {} without a report."""
        report = self.report()
        every = report.executors if report is not None else ()
        return {one.executor: self.hosts.index(one.host) for one in every if one.host in self.hosts}

    def at_rest(self) -> bool:
        """Whether no move is under way."""
        report = self.report()
        return report is not None and all(move.state in LANDED_OR_ABANDONED for move in report.moves)

    # -- decisions --

    def conclusive(self, since: float) -> Decision | None:
        """Return the first decision after a time that says whether something moves; None while there is none."""
        for name, decision in read_decision_log(self.store):
            if name == self.application and decision.at >= since and not _is_provisional(decision):
                return decision
        return None

    def applied(self, since: float) -> list[Decision]:
        """Return the decisions after a time whose moves were begun, the first one first."""
        decisions = applied_decisions(read_decision_log(self.store), self.application)
        return [decision for decision in reversed(decisions) if decision.at >= since]

    def names(self) -> dict[str, str]:
        """Return the name of each query by its id."""
        report = self.report()
        return {query.query: query.name for query in report.queries} if report is not None else {}

    def decision_lines(self, names: Mapping[str, str]) -> list[DecisionLine]:
        """Return every published decision with what came of it; ``names``: of the queries."""
        outcomes = {
            envelope.body.decision: envelope.body.verdict
            for envelope in self.store.last(keys.OUTCOMES, "", keys.OUTCOMES.bound)
            if isinstance(envelope.body, MigrationOutcome)
        }
        mine = [decision for name, decision in read_decision_log(self.store) if name == self.application]
        return [_line(decision, names, outcomes.get(decision.decision, "")) for decision in mine]

    def batch_reports(self) -> list[BatchReport]:
        """Return the reports of all batches that Redis has."""
        reports: list[BatchReport] = []
        last = "0"
        while True:
            last, entries = self.store.read(keys.BATCHES, self.application, last)
            if not entries:
                return reports
            reports += [entry.body for entry in entries if isinstance(entry.body, BatchReport)]

    def tasks(self, names: Mapping[str, str]) -> dict[str, list[TaskRow]]:
        """Return the stateful tasks of all batches that Redis has, by the query's name."""
        tasks: dict[str, list[TaskRow]] = {}
        for body in self.batch_reports():
            if body.query in names:
                for stage in body.stages:
                    tasks.setdefault(names[body.query], []).extend(stage.tasks if stage.stateful_stage >= 0 else [])
        return tasks


def _host(number: int) -> str:
    """Return the address of an executor's node."""
    return f"127.0.0.{_FIRST_HOST + number}"


def _sections(case: Case, variant: str) -> dict[str, dict[str, Any]]:
    mode = "apply" if variant in POLICIES else "observe"
    reschedule = {"mode": mode} | ({"policy": variant} if variant == "even" else {})
    return {
        "redis": {"timeout": 10.0},  # the machine is shared: nobody is to lose the lead for that
        "controller": {"lease": 45.0},
        "link": {} if case.spread else {"spread": False},
        "reschedule": reschedule,
    }


def _is_provisional(decision: Decision) -> bool:
    """Whether a decision is taken again soon: not ready, held back, or to be agreed on."""
    if decision.result == DecisionResult.APPLIED:
        return False
    return decision.result == DecisionResult.NOT_READY or decision.reason in {Law.AGREEMENTS, *BLOCKING}


def _line(decision: Decision, names: Mapping[str, str], verdict: str) -> DecisionLine:
    def named(seconds: Mapping[str, float]) -> dict[str, float]:
        return {names.get(query, query): value for query, value in seconds.items()}

    cost = decision.migration_cost
    return DecisionLine(
        decision=decision.decision,
        at=decision.at,
        trigger=decision.trigger,
        outcome=decision.result,
        reason=decision.reason,
        sentence=decision.sentence,
        moves=len(decision.moves) if decision.result == DecisionResult.APPLIED else 0,
        rollback_of=decision.rollback_of,
        batch_before=named(decision.batch_time_before),
        batch_after=named(decision.batch_time_after),
        peak=named(cost.peak) if cost else {},
        verdict=verdict,
    )
