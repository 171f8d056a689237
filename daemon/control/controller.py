"""Controller of one cluster: leads or stands by, and runs its applications.

Each public method is a cycle of one of its jobs. Any of them may raise StoreError (nothing is decided on stale data;
the next cycle tries again), and they may be called from several threads.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import structlog

from rechannel.conf.settings import Settings
from rechannel.daemon.control.application import ControllerServices
from rechannel.daemon.control.cluster_state import ClusterState
from rechannel.daemon.control.commands import execute
from rechannel.daemon.control.guard import ClusterLimits
from rechannel.daemon.control.leadership import LeaderContext, LeaderElection, LeaseResult, Role
from rechannel.daemon.control.migrations import MigrationStatus
from rechannel.daemon.control.outcomes import OutcomeHistory
from rechannel.daemon.control.requests import RequestHandler
from rechannel.daemon.control.scheduled_plans import ScheduledPlanStore
from rechannel.daemon.control.standing_orders import StandingOrderStore
from rechannel.daemon.jobs.clock import Clock
from rechannel.daemon.jobs.planning import BackgroundRunner, Mutex
from rechannel.daemon.model.application_messages import ApplicationMessages
from rechannel.daemon.model.collector import Collector
from rechannel.wire.envelope import EnvelopeFactory
from rechannel.wire.messages import Decision, LinkReport
from rechannel.wire.redis.store import Store
from rechannel.wire.signing import Signer


@dataclasses.dataclass(frozen=True)
class Collaborators:
    """Parts of the process that a controller works with.

    ``name``: first part of its name as holder of the lease. ``background`` runs work that may take minutes.
    ``count_answer`` is called once for each answered request, with its verb and the code of the reply.
    """

    store: Store
    signer: Signer
    clock: Clock
    name: str
    background: BackgroundRunner = dataclasses.field(default_factory=BackgroundRunner)
    count_answer: Callable[[str, int], None] = lambda _verb, _code: None


@dataclasses.dataclass(frozen=True)
class ControllerSnapshot:
    """Copy of what a controller knows at one moment, for display.

    ``holder``: of the lease. ``rejected``: number of messages that were unreadable or impossible.
    """

    applications: tuple[ApplicationMessages, ...]
    migrations: tuple[MigrationStatus, ...]
    role: Role
    name: str
    holder: str
    epoch: int
    paused: bool
    rejected: int


class Controller:
    """One controller of one cluster."""

    def __init__(self, settings: Settings, parts: Collaborators) -> None:
        clock = parts.clock
        self.lead = LeaderElection(settings, parts.store, clock, parts.name)
        self._background = parts.background
        self._clock = clock
        self._lock = Mutex()
        envelopes = EnvelopeFactory(settings.cluster.name, self.lead.name, clock.wall)
        self._context = context = LeaderContext(settings, self.lead, parts.signer, envelopes, clock)
        self._services = ControllerServices(
            context=context,
            collector=Collector(context.store, settings, clock.wall),
            standing_orders=StandingOrderStore(context),
            plans=ScheduledPlanStore(context),
            limits=ClusterLimits(settings),
            history=OutcomeHistory(context),
            running_plans=self._background.running_plans,
            lock=self._lock,
        )
        self._cluster = ClusterState(self._services)
        carry_out = functools.partial(execute, self._cluster)
        self._requests = RequestHandler(context, self._lock, carry_out, parts.count_answer)
        self._log = structlog.get_logger("rechannel.controller")

    # -- cycles --

    def run_leader_cycle(self) -> str:
        """Renew the lease, read the links' reports, and publish what the controller is doing."""
        sentence = self._renew()
        if self._context.can_act:
            self._background.run("observe", self._cluster.refresh_models)
            with self._lock:
                if self._context.can_act:
                    self._cluster.publish_state()
                    self._cluster.publish_agent_limits()
        return sentence

    def decide_all(self) -> list[Decision]:
        """Decide on every application that reports; acts in mode ``apply`` only."""
        self.schedule_decision()
        return self._background.run("decide", self._cluster.decide_all) or []

    def schedule_decision(self) -> None:
        """Note that the next periodic decision is due a whole period from now."""
        with self._lock:
            self._cluster.next_decision = self._clock.wall() + self.settings.reschedule.timeout

    def follow(self) -> str:
        """Renew running migrations, notice what is over, and decide on the triggers that are due."""
        with self._lock:
            if not self._cluster.follow_migrations():
                return "not leading"
        self._background.run("follow", self._cluster.run_cycles)
        with self._lock:
            sentences = [migration.sentence() for migration in self._cluster.running_migrations()]
            return "; ".join(sentences) or "no migration runs"

    def answer_requests(self) -> int:
        """Answer operators' requests; returns how many were answered."""
        answered = self._requests.handle_requests()
        return answered + (self._background.run("requests", self._requests.answer_plans) or 0)

    def _renew(self) -> str:
        """Renew the lease; a new leader takes over what it finds in Redis and the reports."""
        with self._lock:
            reports = self._services.collector.refresh()
            self._cluster.mark_reporting(reports)
            result = self.lead.renew(max((self._least_epoch(report) for report in reports.values()), default=0))
            if result is LeaseResult.WAITING:
                self._cluster.stand_by()
                self._requests.forget()
                return f"standing by: {self.lead.holder} leads in epoch {self.lead.epoch}"
            if result is not LeaseResult.RENEWED:
                self._context.restored = False
                self._log.info(f"lead-{result}", leader=self.lead.name, epoch=self.lead.epoch, paused=self.lead.paused)
            self._cluster.restore(reports)
            self._services.standing_orders.publish()
            return f"leading in epoch {self.lead.epoch}{', paused' if self.lead.paused else ''}"

    def _least_epoch(self, report: LinkReport) -> int:
        """Return the least epoch in which a link takes orders of this leader.

        A leader of an emptied Redis may have begun with the epoch of a leader before it: links take orders of one
        epoch in the order of their sequence numbers, which do not order the orders of two leaders.
        """
        lead, epoch = self.lead, report.accepted_epoch
        others = {*report.accepted_leaders} - {lead.name}
        return epoch + 1 if others and lead.role is Role.LEADING and epoch == lead.epoch else epoch

    # -- state --

    def reload(self, settings: Settings) -> None:
        """Continue with other settings; only live fields differ (`rechannel.conf.reload`)."""
        with self._lock:
            self._context.settings = self._services.limits.settings = settings
            self._services.collector.reload(settings)

    @property
    def settings(self) -> Settings:
        """Current settings."""
        return self._context.settings

    def snapshot(self) -> ControllerSnapshot:
        """Read new messages, and return a copy of what this controller knows."""
        with self._lock:
            collector = self._services.collector
            messages = [collector.gather(name) for name in collector.refresh()]
            return ControllerSnapshot(
                applications=tuple(item for item in messages if item is not None),
                migrations=tuple(migration.status() for migration in self._cluster.running_migrations()),
                role=self.lead.role,
                name=self.lead.name,
                holder=self.lead.holder,
                epoch=self.lead.epoch,
                paused=self.lead.paused,
                rejected=self._context.store.rejected + collector.incomplete,
            )

    def close(self) -> None:
        """Give the lead up, so that a stand-by takes over at once."""
        with self._lock:
            self.lead.release()
