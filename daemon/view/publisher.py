"""The controller's job ``view``: makes a new `ControllerView` and counts new events.

The controller's lock is held only while its snapshot is copied; figures are computed afterwards.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeVar

import structlog

from rechannel.conf.settings import Settings
from rechannel.daemon.control.controller import ControllerSnapshot
from rechannel.daemon.control.leadership import LeaderElection, Role
from rechannel.daemon.jobs.clock import COMPLAIN_EVERY, Clock, DutyCycle, RateLimit
from rechannel.daemon.jobs.health import JobMonitor
from rechannel.daemon.model.application_messages import ApplicationMessages
from rechannel.daemon.view.metrics import DECISIONS, MIGRATIONS, MOVES, Counters
from rechannel.daemon.view.status import (
    ApplicationStatus,
    ClusterStatus,
    ControllerView,
    DecisionView,
    LeaderStatus,
    NodeView,
)
from rechannel.daemon.view.status_builder import ClusterMessages, application_status, build_status, read_messages
from rechannel.migration.moves import AWAITING_BATCH
from rechannel.wire import keys
from rechannel.wire.bounded_dict import BoundedDict
from rechannel.wire.envelope import Envelope
from rechannel.wire.keys import KeyRule
from rechannel.wire.messages import Decision, MigrationOutcome, MoveTransition
from rechannel.wire.redis.errors import StoreError
from rechannel.wire.redis.store import Store
from rechannel.wire.redis.streams import read_new_entries
from rechannel.wire.version import __version__

ValueT = TypeVar("ValueT")
VIEW_EVERY = 2.0  # seconds from one view to the next, unless making one takes long
_SHARE = 0.1  # of a core for making views: with many partitions they are made less often
_LONGEST_REST = 20.0  # seconds from one view to the next, at most
_DECISIONS = 50  # shown
_OUTCOMES = 100  # kept for their decisions
_LINES = 1000  # of a journal, at the first read
_SILENT_JOURNALS = 1000  # journals of silent applications whose position is kept
_SILENT_APPLICATIONS = 50  # whose last decision and outcome are kept: a driver or Redis may come back


class EventReader:
    """Reads decisions, outcomes and journals, and counts those of this controller.

    Events before ``start`` are shown but not counted. A decision that was stored again, as the answer was lost, is the
    same one; so is what is read again of a stream that Redis lost the end of.
    """

    def __init__(self, store: Store, counters: Counters, start: float) -> None:
        self._store = store
        self._counters = counters
        self._start = start
        self._after: dict[tuple[KeyRule, str], str] = {}
        self._decisions = BoundedDict[tuple[str, str], Decision](_DECISIONS)  # by application and decision
        self._outcomes = BoundedDict[str, MigrationOutcome](_OUTCOMES)  # by decision
        self.last_decisions: dict[str, Decision] = {}  # by application, the newest last
        self.last_outcomes: dict[str, MigrationOutcome] = {}  # as above

    def read(self, snapshot: ControllerSnapshot) -> None:
        """Read new entries of all streams; may raise StoreError."""
        for envelope in self._new(keys.DECISIONS, "", _DECISIONS):
            body = envelope.body
            if isinstance(body, Decision) and (envelope.application, body.decision) not in self._decisions:
                self._decisions[envelope.application, body.decision] = body
                self.last_decisions.pop(envelope.application, None)
                self.last_decisions[envelope.application] = body
                if envelope.sender == snapshot.name:
                    self._counters.add(DECISIONS, body.result, body.reason, body.trigger)
        for envelope in self._new(keys.OUTCOMES, "", _OUTCOMES):
            measured = envelope.body
            if isinstance(measured, MigrationOutcome):
                is_new = measured.decision not in self._outcomes
                self._outcomes[measured.decision] = measured
                self.last_outcomes.pop(envelope.application, None)
                self.last_outcomes[envelope.application] = measured
                if is_new and envelope.sender == snapshot.name:
                    self._counters.add(MIGRATIONS, measured.verdict)
        applications = {item.application for item in snapshot.applications}
        for name in applications:
            self._read_journal(name, leading=snapshot.role is Role.LEADING)
        self._forget_silent(applications)

    def decisions(self) -> tuple[DecisionView, ...]:
        """Return the last decisions with their outcomes, newest first."""
        return tuple(
            DecisionView(application, decision, self._outcomes.get(decision.decision))
            for (application, _), decision in reversed(self._decisions.items())
        )

    def _forget_silent(self, reporting: Collection[str]) -> None:
        """Bound what is kept of silent applications: some return, with the same journal."""
        journals = [key for key in self._after if key[0] is keys.JOURNAL and key[1] not in reporting]
        for key in journals[:-_SILENT_JOURNALS]:
            del self._after[key]
        for table in (self.last_decisions, self.last_outcomes):
            silent = [name for name in table if name not in reporting]
            for name in silent[:-_SILENT_APPLICATIONS]:
                del table[name]

    def _read_journal(self, application: str, *, leading: bool) -> None:
        for envelope in self._new(keys.JOURNAL, application, _LINES):
            line = envelope.body
            if not leading or not isinstance(line, MoveTransition) or envelope.time < self._start:
                continue
            if line.after not in AWAITING_BATCH:
                self._counters.add(MOVES, line.after, line.reason)

    def _new(self, rule: KeyRule, name: str, first: int) -> list[Envelope]:
        after = self._after.get((rule, name), "")
        self._after[rule, name], envelopes = read_new_entries(self._store, rule, name, after, first=first)
        return envelopes


class Publisher:
    """Makes views of a controller, and counts new events.

    ``snapshot`` returns a copy of the controller's state, and may raise StoreError. `settings` may be replaced at any
    time. ``monitor``: the controller's jobs, ``view`` among them.
    """

    def __init__(
        self,
        snapshot: Callable[[], ControllerSnapshot],
        store: Store,
        settings: Settings,
        monitor: JobMonitor,
        counters: Counters,
        clock: Clock,
    ) -> None:
        self._snapshot = snapshot
        self._store = store
        self.settings = settings
        self._monitor = monitor
        self._clock = clock
        self._events = EventReader(store, counters, clock.wall())
        self._not_before = 0.0
        self._complaints: dict[str, RateLimit] = {}  # application -> limit of tracebacks about it
        self._log = structlog.get_logger("rechannel.controller")
        self._view = ControllerView(
            at=clock.wall(),
            controller=LeaderStatus(mode=settings.reschedule.mode),
            cluster=settings.cluster.name,
            version=__version__,
        )

    def latest(self) -> ControllerView:
        """Return the newest view; never waits, from any thread."""
        return self._view

    def publish(self) -> str:
        """Make a view. On a StoreError the view says so, and the error is raised again."""
        began = self._clock.monotonic()
        if began < self._not_before:
            return "rests"
        try:
            with DutyCycle(_SHARE, _LONGEST_REST, self._clock.cpu) as work:
                round_trip = self._round_trip()
                view = self._make(self._snapshot(), round_trip)
        except StoreError as error:
            self._view = self._without_redis(str(error))
            raise
        self._not_before = began + work.rest
        self._monitor.jobs["view"].set_interval(max(VIEW_EVERY, work.rest))
        self._view = dataclasses.replace(view, jobs=self._monitor.read())
        return f"{len(view.applications)} applications shown"

    def _round_trip(self) -> float:
        began = self._clock.monotonic()
        self._store.is_paused()
        return self._clock.monotonic() - began

    def _without_redis(self, problem: str) -> ControllerView:
        now = self._clock.wall()
        view = dataclasses.replace(
            self._view, at=now, redis_up=False, redis_problem=problem, redis_round_trip=None, jobs=self._monitor.read()
        )
        if now - view.read_at > keys.REPORT.ttl:  # every report has expired
            view = dataclasses.replace(view, applications=(), nodes=(), migrations=(), role=Role.STARTING)
        return view

    def _make(self, snapshot: ControllerSnapshot, round_trip: float) -> ControllerView:
        now = self._clock.wall()
        self._events.read(snapshot)
        names = [item.application for item in snapshot.applications]
        self._complaints = {name: self._complaints.get(name) or RateLimit(COMPLAIN_EVERY) for name in names}
        status = self._status(read_messages(self._store, snapshot.applications, now), now)
        leader = status.controller or LeaderStatus(
            leader=snapshot.holder,
            epoch=snapshot.epoch,
            paused=snapshot.paused,
            mode=self.settings.reschedule.mode,
        )
        return ControllerView(
            at=now,
            controller=leader,
            applications=status.applications,
            drains=status.drains,
            scheduled_plans=status.scheduled_plans,
            rejected_messages=snapshot.rejected + self._store.rejected,
            cluster=self.settings.cluster.name,
            name=snapshot.name,
            role=snapshot.role,
            redis_up=True,
            redis_round_trip=round_trip,
            read_at=now,
            nodes=_nodes(snapshot.applications, status.applications, now),
            migrations=snapshot.migrations,
            decisions=self._events.decisions(),
            last_decisions=_of_these(names, self._events.last_decisions),
            last_outcomes=_of_these(names, self._events.last_outcomes),
            version=__version__,
        )

    def _status(self, messages: ClusterMessages, now: float) -> ClusterStatus:
        try:
            return build_status(messages, self.settings, now, partitions=True)
        except Exception:  # noqa: BLE001 impossible figures of one application must not hide the others
            shown = tuple(item for item in messages.applications if self._can_be_shown(item, messages, now))
            return build_status(dataclasses.replace(messages, applications=shown), self.settings, now, partitions=True)

    def _can_be_shown(self, item: ApplicationMessages, messages: ClusterMessages, now: float) -> bool:
        try:
            application_status(item, messages, self.settings, now, partitions=True)
        except Exception:  # noqa: BLE001 as above
            if self._complaints[item.application].allows(now):
                self._log.exception("application-not-shown", application=item.application)
            return False
        return True


class CurrentView:
    """The newest view with the current role.

    A lease may end while the next view is being made.
    """

    def __init__(self, latest: Callable[[], ControllerView], lead: LeaderElection) -> None:
        self._latest = latest
        self._lead = lead
        self._deposed: tuple[ControllerView, ControllerView] | None = None  # a view, and its replacement

    def get(self) -> ControllerView:
        """Return the view without waiting.

        It is the same object until something changes, so that callers may cache.
        """
        view, role = self._latest(), self._lead.role
        if view.role is not Role.LEADING or role is Role.LEADING:
            return view
        deposed = self._deposed  # another thread may replace it meanwhile
        if deposed is None or deposed[0] is not view or deposed[1].role is not role:
            holder = self._lead.holder if role is Role.STANDING_BY else ""
            controller = dataclasses.replace(view.leader, leader=holder)
            deposed = self._deposed = view, dataclasses.replace(view, role=role, controller=controller)
        return deposed[1]


def _of_these(names: Iterable[str], table: Mapping[str, ValueT]) -> dict[str, ValueT]:
    return {name: table[name] for name in names if name in table}


def _nodes(
    messages: Iterable[ApplicationMessages], applications: Sequence[ApplicationStatus], now: float
) -> tuple[NodeView, ...]:
    ends: defaultdict[str, list[float]] = defaultdict(list)
    for item in messages:
        for info in item.report.executors:
            ends[info.node_name] += [window.end for window in item.windows_of(info)]
    newest = {node: max(values, default=None) for node, values in ends.items()}
    stale = {executor.node for status in applications for executor in status.executors if not executor.fresh}
    return tuple(
        NodeView(node, None if end is None else max(0.0, now - end), node not in stale)
        for node, end in sorted(newest.items())
    )
