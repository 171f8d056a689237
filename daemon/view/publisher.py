"""The controller's job ``view``: reads what is new, makes a `ControllerView` of it, and counts what happened.

Rows are those of ``rechannel status``. The controller's lock is held for reading alone; figures are computed after it.
"""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec
import structlog

from rechannel import __version__
from rechannel.conf.settings import Settings
from rechannel.daemon.cli import status as cli_status
from rechannel.daemon.jobs.clock import DutyCycle
from rechannel.daemon.jobs.health import JobMonitor
from rechannel.daemon.model.collector import ApplicationMessages, read_on
from rechannel.daemon.view.controller_snapshot import ControllerSnapshot
from rechannel.daemon.view.counters import CounterKind, Counters
from rechannel.daemon.view.model import (
    VIEW_EVERY,
    ApplicationView,
    ControllerView,
    DecisionView,
    DrainView,
    ExecutorView,
    HotStream,
    NodeView,
    PartitionView,
    QueryView,
    Role,
    ViewSlot,
)
from rechannel.migration.moves import UNSETTLED
from rechannel.wire import keys
from rechannel.wire.keys import KeyRule
from rechannel.wire.messages import Decision, Envelope, MigrationOutcome, MoveTransition
from rechannel.wire.redis.store import Store, StoreError

_SHARE = 0.1  # of a core that making views may take: with many partitions they are made less often
_LONGEST_REST = 20.0  # seconds from one view to the next; what is read off them must not stand still for longer
_DECISIONS = 50  # shown
_OUTCOMES = 100  # kept, to be put beside their decisions
_LINES = 1000  # of a journal, read when it is first looked at
_GONE = 1000  # applications that do not report, of which it is known how far their journals were counted
_COMPLAIN_EVERY = 60.0  # seconds between two tracebacks about one application
_EXECUTORS, _PARTITIONS = tuple[ExecutorView, ...], tuple[PartitionView, ...]
_STREAMS, _QUERIES = tuple[HotStream, ...], tuple[QueryView, ...]


class Leader(Protocol):
    """What is asked of the controller."""

    def seen(self) -> ControllerSnapshot:
        """Return what it knows at this moment; may raise StoreError."""


class _Known:
    """Messages that were read already, in the place of a store and a collector, for the rows of ``rechannel status``.

    A key is asked for once, however often the rows are made.
    """

    def __init__(self, store: Store, facts: Sequence[ApplicationMessages]) -> None:
        self.facts = facts
        self._store = store
        self._read: dict[KeyRule, Envelope | None] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def status(self, facts: Sequence[ApplicationMessages], settings: Settings, now: float) -> dict[str, Any]:
        """Return the document that ``rechannel status --partitions --json`` shows, of these applications."""
        self.facts = facts
        itself: Any = self
        return cli_status.collect(itself, settings, now, details=True, collector=itself)

    def get(self, rule: KeyRule, name: str = "") -> Envelope | None:
        """Return the message of a key, as a store does."""
        if name:
            return self._store.get(rule, name)
        if rule not in self._read:
            self._read[rule] = self._store.get(rule)
        return self._read[rule]

    def refresh(self) -> list[str]:
        """Return the applications that report, as a collector does."""
        return [item.application for item in self.facts]

    def gather(self, application: str) -> ApplicationMessages:
        """Return the messages about one, as a collector does."""
        return next(item for item in self.facts if item.application == application)


class Publisher:
    """Makes views and puts them on a board.

    ``clock``: seconds since the epoch; ``steady``: that nobody sets; ``busy``: for which the asking thread had a core.
    """

    def __init__(
        self,
        leader: Leader,
        store: Store,
        settings: Settings,
        board: ViewSlot,
        loops: JobMonitor,
        counts: Counters,
        clock: Callable[[], float],
        steady: Callable[[], float],
        busy: Callable[[], float] = time.thread_time,
    ) -> None:
        self._leader = leader
        self._store = store
        self.settings = settings
        self._board = board
        self._loops = loops
        self._counts = counts
        self._clock = clock
        self._steady = steady
        self._busy = busy
        self._began = clock()
        self._not_before = 0.0
        self._after: dict[tuple[KeyRule, str], str] = {}
        self._decisions: deque[tuple[str, Decision]] = deque(maxlen=_DECISIONS)
        self._outcomes: deque[MigrationOutcome] = deque(maxlen=_OUTCOMES)
        self._complained: dict[str, float] = {}
        self._log = structlog.get_logger("rechannel.controller")
        board.put(
            ControllerView(clock(), settings.cluster.name, "", mode=settings.reschedule.mode, version=__version__)
        )

    def publish(self) -> str:
        """Make a view and put it on the board; raises StoreError, after a view that says so."""
        began = self._steady()
        if began < self._not_before:
            return "rests"
        try:
            with DutyCycle(_SHARE, _LONGEST_REST, self._busy) as work:
                trip = self._round_trip()
                view = self._view(self._leader.seen(), trip)
        except StoreError as error:
            self._board.put(self._without_redis(str(error)))
            raise
        self._not_before = began + work.rest
        self._loops.expect("view", max(VIEW_EVERY, work.rest))
        self._board.put(dataclasses.replace(view, loops=self._loops.read()))
        return f"{len(view.applications)} applications shown"

    def _round_trip(self) -> float:
        asked = self._steady()
        self._store.paused()
        return self._steady() - asked

    def _without_redis(self, problem: str) -> ControllerView:
        last, now = self._board.take(), self._clock()
        view = dataclasses.replace(
            last, at=now, redis_up=False, redis_problem=problem, redis_round_trip=None, loops=self._loops.read()
        )
        if now - last.read_at > keys.REPORT.ttl:  # so old, no report counts any more
            view = dataclasses.replace(view, applications=(), nodes=(), migrations=(), role=Role.STARTING)
        return view

    def _view(self, seen: ControllerSnapshot, trip: float) -> ControllerView:
        now = self._clock()
        self._complained = {name: at for name, at in self._complained.items() if now - at < _COMPLAIN_EVERY}
        self._read_on(seen)
        status = self._status(seen.facts, now)
        leader = status["controller"] or {}
        facts = {item.application: item for item in seen.facts}
        made = [_application_view(facts[row["application"]], row) for row in status["applications"]]
        outcomes = {outcome.decision: outcome for outcome in self._outcomes}
        return ControllerView(
            at=now,
            cluster=self.settings.cluster.name,
            name=seen.name,
            role=seen.role,
            leader=leader.get("leader", seen.holder),
            since=leader.get("since", 0.0),
            epoch=leader.get("epoch", seen.epoch),
            mode=leader.get("mode", self.settings.reschedule.mode),
            paused=leader.get("paused", seen.paused),
            next_decision=leader.get("next_decision", 0.0),
            last_sentence=leader.get("last_sentence", ""),
            redis_up=True,
            redis_round_trip=trip,
            read_at=now,
            applications=tuple(made),
            nodes=_nodes(seen.facts, made, now),
            migrations=seen.migrations,
            drains=msgspec.convert(status["drains"], tuple[DrainView, ...]),
            waiting=tuple(f"{row['pending']}: {row['sentence']}" for row in status["waiting"]),
            decisions=tuple(
                DecisionView(application, decision, outcomes.get(decision.decision))
                for application, decision in reversed(self._decisions)
            ),
            rejected_messages=seen.rejected + self._store.rejected,
            version=__version__,
        )

    def _status(self, facts: Sequence[ApplicationMessages], now: float) -> dict[str, Any]:
        known = _Known(self._store, facts)
        try:
            return known.status(facts, self.settings, now)
        except StoreError:
            raise
        except Exception:  # noqa: BLE001 one application's odd figures must not hide the others
            return known.status([item for item in facts if self._shown(item, known, now)], self.settings, now)

    def _shown(self, facts: ApplicationMessages, known: _Known, now: float) -> bool:
        try:
            known.status([facts], self.settings, now)
        except StoreError:
            raise
        except Exception:  # noqa: BLE001 as above
            if facts.application not in self._complained:
                self._complained[facts.application] = now
                self._log.exception("application-not-shown", application=facts.application)
            return False
        return True

    def _read_on(self, seen: ControllerSnapshot) -> None:
        """Read decisions, outcomes and journals on; what happened under this leader is counted."""
        mine = seen.role is Role.LEADING
        for envelope in self._new(keys.DECISIONS, "", _DECISIONS):
            if isinstance(envelope.body, Decision):
                body = envelope.body
                self._decisions.append((envelope.application, body))
                if envelope.sender == seen.name:
                    self._counts.add(CounterKind.DECISIONS, body.outcome, body.reason, body.trigger)
        for envelope in self._new(keys.OUTCOMES, "", _OUTCOMES):
            if isinstance(envelope.body, MigrationOutcome):
                self._outcomes.append(envelope.body)
                if envelope.sender == seen.name:
                    self._counts.add(CounterKind.MIGRATIONS, envelope.body.verdict)
        applications = {facts.application for facts in seen.facts}
        for name in applications:
            for envelope in self._new(keys.JOURNAL, name, _LINES):
                line = envelope.body
                if not isinstance(line, MoveTransition) or envelope.time < self._began or not mine:
                    continue
                if line.after not in UNSETTLED:
                    self._counts.add(CounterKind.MOVES, line.after, line.reason)
        # An application that is silent for a while comes back with the same journal: what was counted is remembered.
        gone = [key for key in self._after if key[0] is keys.JOURNAL and key[1] not in applications]
        for key in gone[:-_GONE]:
            del self._after[key]

    def _new(self, rule: KeyRule, name: str, first: int) -> list[Envelope]:
        self._after[rule, name], found = read_on(
            self._store, rule, name, self._after.get((rule, name), ""), first=first
        )
        return found


def _application_view(facts: ApplicationMessages, row: dict[str, Any]) -> ApplicationView:
    readiness = row["readiness"]
    executors = msgspec.convert(row["executors"], _EXECUTORS)
    lags = {
        query.query: [lag for stage in query.stages for lag in stage.snapshot_lag] for query in facts.report.queries
    }
    queries = [
        {**query, "snapshot_lag": max((lag for lag in lags[query["query"]] if lag >= 0), default=None)}
        for query in row["queries"]
    ]
    return ApplicationView(
        application=row["application"],
        name=row["name"],
        spark_version=row["spark_version"],
        ready=readiness["ready"],
        code=readiness["code"],
        sentence=readiness["controller"] or readiness["sentence"],
        coverage=sum(executor.fresh for executor in executors) / len(executors) if executors else 0.0,
        shuffles_seen=row["shuffles_seen"],
        executors=executors,
        queries=msgspec.convert(queries, _QUERIES),
        partitions=msgspec.convert(row["partitions"], _PARTITIONS),
        hot_streams=msgspec.convert(row["hot_streams"], _STREAMS),
        streams=row["streams"],
        moves=tuple(view for view in facts.report.moves if view.state in UNSETTLED),
        settled_moves=row["settled_moves"],
        counters=row["counters"],
        problems=tuple(row["problems"]),
        last_heard=row["last_heard"],
        silent=row["silent"],
    )


def _nodes(facts: tuple[ApplicationMessages, ...], made: Sequence[ApplicationView], now: float) -> tuple[NodeView, ...]:
    newest: dict[str, float | None] = {}
    for item in facts:
        for info in item.report.executors:
            ends = [window.end for window in item.windows.get(info.host, ())]
            newest[info.host] = max(ends, default=None)
    stale = {row.node for view in made for row in view.executors if not row.fresh}
    return tuple(
        NodeView(node, None if end is None else max(0.0, now - end), node not in stale)
        for node, end in sorted(newest.items())
    )
