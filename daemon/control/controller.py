"""The controller: leads or stands by, decides, publishes what it wants, and follows it to the end.

Each public method is one cycle: it reads once, walks its guards and returns a sentence or a decision. Methods may raise
StoreError (nothing is decided on stale data; the next cycle tries again) and are safe to call from several threads.
What it writes goes through `LeaderElection.store`, so that nothing is written once another leads.

Plans and models are made without the lock, in threads of their own (`rechannel.daemon.jobs.planning`): meanwhile the
lease is renewed, requests are answered and migrations go on. A plan counts only if the lead was never lost and nothing
was ordered meanwhile that it does not know of.

One migration at a time per application. It decides by time, on request, when an application's executors changed and
stayed so for a while, as long as a drained node holds state, and when a migration made things worse.
"""

from __future__ import annotations

import dataclasses
import functools
import secrets
import time
from collections.abc import Callable, Collection, Iterable

import structlog

from rechannel.conf.settings import Settings
from rechannel.daemon.control.commands import drain_sentence, execute, undrain_sentence
from rechannel.daemon.control.decision_log import kept_decisions
from rechannel.daemon.control.deduplication import DecisionDeduplicator
from rechannel.daemon.control.guard import TIMEOUT
from rechannel.daemon.control.leadership import LeaderElection, LeaseResult, steady_clock
from rechannel.daemon.control.memory import Memory
from rechannel.daemon.control.migrations import MigrationTracker
from rechannel.daemon.control.outcomes import OutcomeTracker
from rechannel.daemon.control.plans import Asked, Plans
from rechannel.daemon.control.readiness import Readiness
from rechannel.daemon.control.requests import RequestHandler
from rechannel.daemon.control.rollback import RollbackManager
from rechannel.daemon.control.standing_orders import StandingOrderStore, left_on
from rechannel.daemon.control.triggers import TriggerEngine
from rechannel.daemon.decide import pipeline
from rechannel.daemon.decide.pipeline import DecisionRequest
from rechannel.daemon.decide.policy_settings import policy_for
from rechannel.daemon.jobs.planning import Aside, Mutex, PlanningClock
from rechannel.daemon.model.collector import Collector
from rechannel.daemon.model.snapshot import NotReady
from rechannel.daemon.view.controller_snapshot import ControllerSnapshot, look
from rechannel.daemon.view.counters import Counters
from rechannel.wire import keys
from rechannel.wire.envelope_factory import EnvelopeFactory
from rechannel.wire.messages import ControllerState, Decision, Drain, PendingPlan, Refusal
from rechannel.wire.redis.store import Store, StoreError
from rechannel.wire.signing import Signer

_COMPLAIN_EVERY = 60.0  # seconds between two tracebacks about one application


class Controller:
    """One controller of one cluster."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        signer: Signer,
        clock: Callable[[], float] = time.time,
        *,
        name: str = "controller",
        steady: Callable[[], float] = steady_clock,
        planning: PlanningClock | None = None,
        aside: Aside | None = None,
        busy: Callable[[], float] = time.thread_time,
    ) -> None:
        self.settings = settings
        self.lead = LeaderElection(settings, store, clock, name, steady=steady)
        store = self.lead.store  # a leader writes nothing that its lease does not cover
        self.next_decision = clock() + settings.reschedule.timeout
        self._store = store
        self._signer = signer
        self._clock = clock
        self._steady = steady  # for waits: the clock may be set while they last
        self._author = EnvelopeFactory(settings.cluster.name, self.lead.name, clock)
        self._collector = Collector(store, settings, clock)
        self._memory = memory = Memory(steady)
        self.orders = StandingOrderStore(store, signer, self._author, clock)
        self.migrations = MigrationTracker(settings, store, signer, self._author, self.lead, clock, memory)
        self._aftermath = OutcomeTracker(settings, store, self._author, clock, steady, memory)
        self.occasions = TriggerEngine(self, store, signer, self._author, clock, steady, memory)
        self.undoing = RollbackManager(
            self, self._collector, self._aftermath, self.occasions.guard, clock, steady, memory
        )
        self._plans = Plans(self, self._collector, self._aftermath, clock)
        self._telling = DecisionDeduplicator(memory)
        self._lock = Mutex()
        self._aside = aside or Aside()
        self._log = structlog.get_logger("rechannel.controller")
        self._complained: dict[str, float] = memory.table()
        self._readiness = Readiness(
            self, self._collector, self.occasions, clock, steady, busy, released=self._lock.released, memory=memory
        )
        self._last_sentence = ""
        self._followed_at = steady()
        self._adopted = False  # whether what was ordered before this lead is known: until then nothing is done
        self.counts = Counters()
        self.planning = planning or PlanningClock()
        self._requests = RequestHandler(
            settings, self.lead, self._author, clock, functools.partial(execute, self), self.counts.answered
        )

    def observe(self) -> str:
        """See to the lease and the links' reports, and publish what the controller is doing."""
        found = self._renew()
        if self._acts():
            self._aside.run("look", self._look)
            with self._lock:
                if self._acts():
                    self._publish_state()
        return found

    def _renew(self) -> str:
        with self._lock:
            reports = self._collector.refresh()
            self._memory.hear(reports)
            turn = self.lead.renew(max((report.accepted_epoch for report in reports.values()), default=0))
            if turn is LeaseResult.WAITING:
                if not self.migrations.idle:
                    self._log.warning("lead-lost", leader=self.lead.holder, epoch=self.lead.epoch)
                self._forget()
                return f"standing by: {self.lead.holder} leads in epoch {self.lead.epoch}"
            if turn is not LeaseResult.KEPT:
                self._adopted = False
                self._log.info(f"lead-{turn}", leader=self.lead.name, epoch=self.lead.epoch, paused=self.lead.paused)
            unseen = self.migrations.unexamined(set(reports), anew=not self._adopted)
            kept = kept_decisions(self._store) if unseen or not self._adopted else []
            if not self._adopted:
                self._memory.hear(name for name, _ in kept)  # they may report again
                self.occasions.adopt(kept)
            if unseen or not self._adopted:
                paused = self.orders.adopt({name: reports[name] for name in unseen})
                if paused and not self.lead.paused:
                    self.lead.pause(True)
            for name, decision in kept:
                if decision.outcome == "applied":
                    self.migrations.learn(name, decision)
            self._each(unseen, lambda name: self.migrations.adopt(name, reports[name]))
            self._each(unseen, lambda name: self.undoing.adopt(name, kept))
            self._adopted = True
            self.orders.publish(self.lead.paused, self.lead.epoch)
            return f"leading in epoch {self.lead.epoch}{', paused' if self.lead.paused else ''}"

    def _look(self) -> None:
        with self._lock:
            self._readiness.look(self._collector.reports, self._each)

    def decide_all(self) -> list[Decision]:
        """Decide on every application that reports; act only in mode ``apply``. Does nothing unless leading."""
        with self._lock:
            self.next_decision = self._clock() + self.settings.reschedule.timeout
        return self._aside.run("decide", self._decide_all) or []

    def _decide_all(self) -> list[Decision]:
        with self._lock:
            if not self._acts():
                return []
            made: list[Decision | None] = []
            self._each(self._collector.refresh(), lambda name: made.append(self.occasions.by_itself(TIMEOUT, name)))
            return [decision for decision in made if decision is not None]

    def decide(
        self,
        trigger: str,
        *,
        application: str,
        user: str = "",
        reason: str = "",
        apply: bool = False,
        force: bool = False,
        policy: str = "",
        asked: Asked | None = None,
        pending: str = "",
        leave: frozenset[str] = frozenset(),
    ) -> Decision:
        """Decide on one application, publish the decision, and with ``apply`` begin the migration.

        ``force`` skips the gate and the cool-down, never a hard law, a pause or a running migration. ``policy`` is
        asked for this decision alone; else the one of the settings. ``asked`` says what is wanted instead of a policy,
        ``pending`` which plan had waited for this, ``leave`` which nodes are to be planned as drained.
        """
        with self._lock:
            while (end := self.planning.end_of(application)) is not None:
                with self._lock.released():
                    end.wait()
            ask = self._ask(trigger, policy, user, reason, apply=apply, force=force, pending=pending)
            ask = dataclasses.replace(ask, leave=leave)
            why = NotReady("not-leading", "this controller does not lead", transient=True)
            if not self._acts():
                return pipeline.not_ready(ask, why)
            decision = self._plans.prepare(ask, application, asked)
            if not isinstance(decision, Decision):
                make, epoch, basis = decision, self.lead.epoch, self._plans.basis(application)
                with self.planning.of(application), self._lock.released():
                    decision = make()
                if not self.lead.still_holds():  # the process was held up meanwhile
                    self._adopted = False  # the lead may be held again already, with orders of others meanwhile
                    return pipeline.not_ready(ask, why)
                if not self._acts() or self.lead.epoch != epoch:
                    return pipeline.not_ready(ask, why)
                decision = self._plans.overtaken(ask, application, basis, decision) or decision
            self._publish(decision, application)
            return decision

    def refuse(
        self,
        trigger: str,
        application: str,
        refusal: Refusal,
        *,
        user: str = "",
        reason: str = "",
        pending: str = "",
    ) -> Decision:
        """Keep a decision not to act that needed no plan, and return it."""
        with self._lock:
            decision = pipeline.refused(self._ask(trigger, "", user, reason, pending=pending), refusal)
            self._publish(decision, application)
            return decision

    def _ask(
        self,
        trigger: str,
        policy: str,
        user: str,
        reason: str,
        *,
        apply: bool = False,
        force: bool = False,
        pending: str = "",
    ) -> DecisionRequest:
        now = self._clock()
        name = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}-{secrets.token_hex(2)}"
        policy = policy or policy_for(trigger, self.settings)
        return DecisionRequest(name, now, trigger, policy, user, reason, apply, force, pending)

    def follow(self) -> str:
        """Renew what is wanted and not yet reached, notice what is over, and decide on what asks for it."""
        if not self._keep_up():
            return "not leading"
        self._aside.run("act", self._act)
        with self._lock:
            running = [migration.sentence() for migration in self.migrations.running.values()]
            return "; ".join(running) or "no migration runs"

    def _keep_up(self) -> bool:
        """Renew what is wanted, notice what is over; False where this controller may not act."""
        with self._lock:
            if not self._acts():
                return False
            if self.migrations.running or self.undoing.waiting:
                self._collector.refresh()
            now = self._steady()
            # While Redis was away nobody could be heard: that silence is not the links'.
            silence = now - self._followed_at
            self._followed_at = now
            if silence > 3 * self.settings.controller.observe:
                self.migrations.excuse(silence)
            self._each(sorted(self.migrations.running), self._follow)
            self.occasions.expire()
            return True

    def _act(self) -> None:
        with self._lock:
            if not self._acts() or self.lead.paused:
                return
            self._each([name for name in self._collector.reports if self._aftermath.awaits(name)], self.undoing.look)
            self._each(sorted(self.undoing.waiting), self._attempt)
            self._each(self._collector.reports, self._act_on)

    def _attempt(self, application: str) -> None:
        if self._acts() and not self.planning.end_of(application) and application in self.undoing.waiting:
            self.undoing.attempt(application)

    def _act_on(self, application: str) -> None:
        report = self._collector.reports.get(application)  # of this moment: plans for others may have taken minutes
        if self._acts() and report is not None and not self.planning.end_of(application):
            self.occasions.act(application, report)

    def answer_requests(self) -> int:
        """Answer what operators ask; returns how many requests were answered."""
        with self._lock:
            answered = self._requests.answer() if self._acts() else 0
        return answered + (self._aside.run("plans", self._answer_plans) or 0)

    def _answer_plans(self) -> int:
        with self._lock:
            return self._requests.answer_plans() if self._acts() else 0

    def pause(self, paused: bool) -> str:
        """Pause or resume everything; running migrations begin no further move while paused."""
        with self._lock:
            self.lead.pause(paused)
            self.orders.publish(paused, self.lead.epoch)
            self._keep_up()
            running = len(self.migrations.running)
            held = f"; {running} running migration{'s' if running != 1 else ''} {'held' if paused else 'go on'}"
            self._last_sentence = f"{'paused' if paused else 'resumed'}{held if running else ''}"
            self._log.info("paused" if paused else "resumed", migrations=running)
            self._publish_state()
            return self._last_sentence

    def held_on(self, nodes: Collection[str]) -> list[str]:
        """Return the applications with state on these nodes; ValueError where they cannot be drained."""
        with self._lock:
            self.orders.examine(nodes, reports := self._collector.refresh())
            return sorted(name for name, report in reports.items() if any(left_on(report, nodes).values()))

    def drain(self, *nodes: str, user: str, reason: str, remove: bool, patience: float) -> str:
        """Order that nodes are to hold no state; ValueError where that cannot be."""
        with self._lock:
            self.orders.examine(nodes, reports := self._collector.refresh())
            before = dict(self.orders.drains)
            for node in nodes:
                self.orders.drain(node, user=user, reason=reason, remove=remove, patience=patience)
            self._publish_orders(before)
            self.occasions.order_changed()
            left = sum(sum(left_on(report, nodes).values()) for report in reports.values())
            there = sum(info.host in nodes for report in reports.values() for info in report.executors)
            said = drain_sentence(nodes, left, there, remove=remove, paused=self.lead.paused)
            self._last_sentence = f"{said}{self.occasions.guard.warning(self._clock(), left)}"
            self._log.info("drain", nodes=nodes, user=user, reason=reason, remove=remove, patience=patience)
            self._publish_state()
            return self._last_sentence

    def undrain(self, *nodes: str, user: str, reason: str) -> str:
        """Let nodes hold state again; ValueError if one was not drained."""
        with self._lock:
            before = dict(self.orders.drains)
            if others := [node for node in nodes or ("",) if node not in before]:
                known = ", ".join(sorted(before)) or "none"
                raise ValueError(f"node {', '.join(others)} is not drained; drained are {known}")
            for node in nodes:
                self.orders.undrain(node)
            self._publish_orders(before)
            for name, report in self._collector.refresh().items():
                if any(info.host in nodes for info in report.executors):
                    self.occasions.undrained(name)
            ended = undrain_sentence(
                nodes,
                mode=self.settings.reschedule.mode,
                paused=self.lead.paused,
                running=bool(self.migrations.running),
                wait=self.occasions.settling,
            )
            self._last_sentence = f"{ended}{self.occasions.guard.warning(self._clock())}"
            self._log.info("undrain", nodes=nodes, user=user, reason=reason)
            self._publish_state()
            return self._last_sentence

    def stop(self, application: str, *, user: str, reason: str) -> str:
        """End the running migration of an application, or of all (""), at the next boundary; ValueError without one."""
        with self._lock:
            self._keep_up()
            running = sorted(name for name in self.migrations.running if application in ("", name))
            if not running:
                raise ValueError(f"no migration of {application or 'any application'} is running")
            self._last_sentence = "; ".join(self.migrations.stop(name) for name in running)
            if self.orders.nodes:
                self._last_sentence += f"; drained still: {', '.join(sorted(self.orders.nodes))}, `undrain` ends that"
            for name in running:
                self.undoing.waiting.pop(name, None)
            self._log.info("stop", applications=running, user=user, reason=reason)
            self._publish_state()
            return self._last_sentence

    def rollback(self, application: str, decision: str, *, user: str, reason: str) -> tuple[str, Decision | None]:
        """Move back what a decision moved ("": the last one that was not undone); ValueError where there is none.

        A running migration is ended first, at the next boundary: then there is no decision to return yet.
        """
        with self._lock:
            self._keep_up()
            said, made = self.undoing.order(application, decision, user=user, reason=reason)
            self._last_sentence = said or self._last_sentence
            self._publish_state()
            return self._last_sentence, made

    def wait(self, plan: str, *, at: str, when: str, user: str, reason: str, force: bool) -> tuple[str, PendingPlan]:
        """Let a saved plan wait for its time; ValueError where it cannot."""
        with self._lock:
            self._last_sentence, waiting = self.occasions.wait(
                plan, at=at, when=when, user=user, reason=reason, force=force
            )
            self._publish_state()
            return self._last_sentence, waiting

    def cancel(self, pending: str, *, user: str, reason: str) -> str:
        """Let a saved plan wait no longer; ValueError where none of this id waits."""
        with self._lock:
            self._last_sentence = self.occasions.cancel(pending, user=user, reason=reason)
            self._publish_state()
            return self._last_sentence

    def _publish_orders(self, before: dict[str, Drain]) -> None:
        try:
            self.orders.publish(self.lead.paused, self.lead.epoch)
        except StoreError:
            self.orders.drains = before  # the request is read again, and answered then
            raise

    def take(self, settings: Settings) -> None:
        """Go on with other settings, of which only live fields differ (`rechannel.conf.reload`)."""
        with self._lock:
            self.settings = settings
            for part in (self._collector, self.migrations, self._aftermath, self.occasions):
                part.take(settings)
            self._requests.reload(settings)

    @property
    def epoch(self) -> int:
        """The epoch this controller leads in, or last knew of."""
        return self.lead.epoch

    @property
    def paused(self) -> bool:
        """Whether everything is paused."""
        return self.lead.paused

    @property
    def applications(self) -> list[str]:
        """Ids of the applications with a fresh report."""
        return sorted(self._collector.reports)

    def seen(self) -> ControllerSnapshot:
        """Return what this controller knows at this moment, for those who show it; reads what is new from Redis."""
        with self._lock:
            return look(self._collector, self.lead, self.migrations, self._store.rejected + self._collector.incomplete)

    def close(self) -> None:
        """Give the lead up, so that a stand-by takes over at once."""
        with self._lock:
            self.lead.release()

    def _publish(self, decision: Decision, application: str) -> None:
        self._last_sentence = f"{application}: {decision.sentence}"
        self._log.info(
            "decision",
            application=application,
            decision=decision.decision,
            outcome=decision.outcome,
            reason=decision.reason,
            sentence=decision.sentence,
        )
        if self._telling.repeated(application, decision):
            return
        envelope = self._author.envelope(
            decision, ttl=keys.DECISIONS.ttl, application=application, epoch=self.lead.epoch
        )
        self._store.append(keys.DECISIONS, "", envelope)
        if decision.outcome == "applied":
            self._store.append(keys.APPLIED, "", envelope)
        self._telling.told(application, decision)  # only now: what was not kept was not told
        self.occasions.guard.take(application, decision)
        if decision.outcome == "applied":
            self._readiness.again(application)
            if not decision.undoes:
                self.undoing.waiting.pop(application, None)  # what is ordered since then stands
            self.migrations.begin(application, decision)
            self._aftermath.begun(application, decision)

    def _follow(self, application: str) -> None:
        if ended := self.migrations.follow(application, self._collector.reports.get(application)):
            self._last_sentence = ended
            self._readiness.again(application)

    def _acts(self) -> bool:
        return self._adopted and self.lead.holds()

    def _forget(self) -> None:
        self._adopted = False
        self.undoing.waiting.clear()
        for part in (self.migrations, self._aftermath, self._readiness, self._telling, self.occasions, self._requests):
            part.forget()

    def _publish_state(self) -> None:
        words = self._readiness.words
        state = ControllerState(
            leader=self.lead.name,
            since=self.lead.since,
            epoch=self.lead.epoch,
            paused=self.lead.paused,
            mode=self.settings.reschedule.mode,
            next_decision=self.next_decision,
            last_sentence=self._last_sentence,
            applications={name: words[name] for name in self._collector.reports if name in words},
        )
        # It expires with the lease: a state that is still valid means that somebody leads.
        lease = self.settings.controller.lease
        self._store.put(keys.STATE, "", self._author.envelope(state, ttl=lease, epoch=self.lead.epoch))

    def _each(self, applications: Iterable[str], act: Callable[[str], object]) -> None:
        """Act on every application; what fails for one is logged and never stops the others."""
        for application in list(applications):
            try:
                act(application)
            except StoreError:
                raise
            except Exception:  # noqa: BLE001 one application's odd figures must not leave the others without a leader
                if self._steady() >= self._complained.get(application, -_COMPLAIN_EVERY) + _COMPLAIN_EVERY:
                    self._complained[application] = self._steady()
                    self._log.exception("application-failed", application=application)
