"""The controller: leads or stands by, decides, publishes what it wants, and follows it to the end.

Each public method is one cycle: it reads once, walks its guards and returns a sentence or a decision. Methods may raise
StoreError (nothing is decided on stale data; the next cycle tries again) and are safe to call from several threads.

One migration at a time per application. A desired placement is renewed as long as one of its moves is not settled,
under the same decision id; a new leader finds it in Redis and goes on with it under its own epoch.

It decides by time, on request, when an application's executors changed and stayed so for a while, and as long as a
drained node holds state. A migration whose desired placement expired while nobody led is not taken up again: the links
let such moves go, and the next decision starts afresh.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterable

import msgspec
import structlog

from rechannel.conf.settings import Settings
from rechannel.daemon import deciding, requests
from rechannel.daemon.choosing import DRAIN, policy_for
from rechannel.daemon.collect import Collector
from rechannel.daemon.deciding import Ask
from rechannel.daemon.following import Migration, in_flight
from rechannel.daemon.lead import Lead, Turn
from rechannel.daemon.orders import Orders, left_on
from rechannel.daemon.snapshot import NotReady, Snapshot, build_snapshot, take_snapshot
from rechannel.wire import keys
from rechannel.wire.messages import (
    ControllerState,
    Decision,
    DesiredPlacement,
    Drain,
    LinkReport,
    MessageError,
    Refusal,
    body_of,
)
from rechannel.wire.signing import SignatureError, Signer
from rechannel.wire.store import Author, Store, StoreError

_COMPLAIN_EVERY = 60.0  # seconds between two tracebacks about one application
_RETRY_EVERY = 10.0  # seconds between two decisions on the same drain, or the same change of executors


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
    ) -> None:
        self.settings = settings
        self.lead = Lead(settings, store, clock, name)
        self.rejected = 0  # desired placements found in Redis that we did not sign
        self.next_decision = clock() + settings.reschedule.timeout
        self.migrations: dict[str, Migration] = {}
        self.ended: dict[str, float] = {}  # application -> end of its last migration
        self._store = store
        self._signer = signer
        self._clock = clock
        self._author = Author(settings.cluster.name, self.lead.name, clock)
        self._collector = Collector(store, settings, clock)
        self.orders = Orders(store, signer, self._author, clock)
        self._executors: dict[str, tuple[frozenset[str], float]] = {}  # application -> its executors, and since when
        # application -> the executors last decided for, at first those it had when it was ready for the first time
        self._decided_for: dict[str, frozenset[str]] = {}
        self._retry_at: dict[str, float] = {}
        self._drain_said: dict[str, str] = {}  # application -> the last sentence of a drain's decision
        self._lock = threading.RLock()
        self._log = structlog.get_logger("rechannel.controller")
        self._examined: set[str] = set()  # applications whose desired placement this leader has looked at
        self._complained: dict[str, float] = {}
        self._words: dict[str, str] = {}
        self._words_at = 0.0
        self._last_sentence = ""
        self._followed_at = clock()
        self._desk = requests.Desk(self, store, self._author, clock)

    def observe(self) -> str:
        """See to the lease and the links' reports, and publish what the controller is doing."""
        with self._lock:
            reports = self._collector.refresh()
            turn = self.lead.renew(max((report.accepted_epoch for report in reports.values()), default=0))
            if turn is Turn.WAITING:
                if self._examined or self.migrations:
                    self._log.warning("lead-lost", leader=self.lead.holder, epoch=self.lead.epoch)
                self._forget()
                return f"standing by: {self.lead.holder} leads in epoch {self.lead.epoch}"
            if turn is not Turn.KEPT:
                self._examined.clear()
                self._log.info(f"lead-{turn}", leader=self.lead.name, epoch=self.lead.epoch, paused=self.lead.paused)
            unseen = sorted(set(reports) - self._examined)
            if unseen or turn is not Turn.KEPT:
                paused = self.orders.adopt({name: reports[name] for name in unseen})
                if paused and not self.lead.paused:
                    self.lead.pause(True)
            self._each(unseen, lambda name: self._adopt(name, reports[name]))
            self.orders.publish(self.lead.paused, self.lead.epoch)
            if self._clock() >= self._words_at + self.settings.agent.window:
                self._words_at = self._clock()
                self._words = {}
            self._each(sorted(set(reports) - set(self._words)), self._say_readiness)
            self._publish_state()
            return f"leading in epoch {self.lead.epoch}{', paused' if self.lead.paused else ''}"

    def decide_all(self, trigger: str = "timeout") -> list[Decision]:
        """Decide on every application that reports; act only in mode ``apply``. Does nothing unless leading."""
        with self._lock:
            self.next_decision = self._clock() + self.settings.reschedule.timeout
            if not self.lead.holds():
                return []
            apply = self.settings.reschedule.mode == "apply" and not self.lead.paused
            decisions: list[Decision] = []
            self._each(
                self._collector.refresh(),
                lambda name: decisions.append(self.decide(trigger, application=name, apply=apply)),
            )
            return decisions

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
    ) -> Decision:
        """Decide on one application, publish the decision, and with ``apply`` begin the migration.

        ``force`` skips the gate and the cool-down, never a hard law, a pause or a running migration. ``policy`` is
        asked for this decision alone; else the one of the settings.
        """
        with self._lock:
            now = self._clock()
            stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now))
            policy = policy or policy_for(trigger, self.settings)
            ask = Ask(f"{stamp}-{secrets.token_hex(2)}", now, trigger, policy, user, reason, apply, force)
            why = NotReady("not-leading", "this controller does not lead", transient=True)
            if not self.lead.holds():
                return deciding.not_ready(ask, why)
            decision, runs = self._decided(ask, application)
            if not self.lead.holds():  # planning took long, or the process was held up meanwhile
                return deciding.not_ready(ask, why)
            self._publish(decision, application, runs)
            return decision

    def follow(self) -> str:
        """Renew what is wanted and not yet reached; notice what is over."""
        with self._lock:
            if not self.lead.holds():
                return "not leading"
            if self.migrations:
                self._collector.refresh()
            now = self._clock()
            # While Redis was away nobody could be heard: that silence is not the links'.
            silence = now - self._followed_at
            self._followed_at = now
            if silence > 3 * self.settings.controller.observe:
                for migration in self.migrations.values():
                    migration.last_sign = min(now, migration.last_sign + silence)
            self._each(sorted(self.migrations), self._follow)
            if not self.lead.paused:
                self._each(self._collector.reports, self._act_on_changes)
            running = [migration.sentence() for migration in self.migrations.values()]
            return "; ".join(running) or "no migration runs"

    def answer_requests(self) -> int:
        """Answer what operators ask; returns how many requests were answered."""
        with self._lock:
            return self._desk.answer() if self.lead.holds() else 0

    def pause(self, paused: bool) -> str:
        """Pause or resume everything; running migrations begin no further move while paused."""
        with self._lock:
            self.lead.pause(paused)
            self.orders.publish(paused, self.lead.epoch)
            self.follow()
            running = len(self.migrations)
            held = f"; {running} running migration{'s' if running != 1 else ''} {'held' if paused else 'go on'}"
            self._last_sentence = f"{'paused' if paused else 'resumed'}{held if running else ''}"
            self._log.info("paused" if paused else "resumed", migrations=running)
            self._publish_state()
            return self._last_sentence

    def drain(self, node: str, *, user: str, reason: str, remove: bool, patience: float) -> str:
        """Order that a node is to hold no state; ValueError where no application has an executor there."""
        with self._lock:
            self.orders.examine(node, reports := self._collector.refresh())
            before = dict(self.orders.drains)
            self.orders.drain(node, user=user, reason=reason, remove=remove, patience=patience)
            self._publish_orders(before)
            self._retry_at.clear()
            left = sum(left_on(report, [node])[node] for report in reports.values())
            there = sum(info.host == node for report in reports.values() for info in report.executors)
            self._last_sentence = (
                f"{node} is drained: {left} partitions leave its {there} executor{'s' if there != 1 else ''}"
                f"{', which are released then' if remove else ''}"
                f"{'; paused: `rechannel resume` first' if self.lead.paused else ''}"
            )
            self._log.info("drain", node=node, user=user, reason=reason, remove=remove, patience=patience)
            self._publish_state()
            return self._last_sentence

    def undrain(self, node: str, *, user: str, reason: str) -> str:
        """Let a node hold state again; ValueError if it was not drained."""
        with self._lock:
            before = dict(self.orders.drains)
            if not self.orders.undrain(node):
                known = ", ".join(sorted(self.orders.nodes)) or "none"
                raise ValueError(f"node {node} is not drained; drained are {known}")
            self._publish_orders(before)
            self._last_sentence = f"{node} may hold state again; the next decision gives it its share"
            self._log.info("undrain", node=node, user=user, reason=reason)
            self._publish_state()
            return self._last_sentence

    def stop(self, application: str, *, user: str, reason: str) -> str:
        """End the running migration of an application, or of all (""), at the next boundary; ValueError without one."""
        with self._lock:
            self.follow()
            running = {name: found for name, found in self.migrations.items() if application in ("", name)}
            if not running:
                raise ValueError(f"no migration of {application or 'any application'} is running")
            for name in running:
                self.migrations[name] = running[name].stopped(self._clock())
                self._renew(self.migrations[name])
            self._last_sentence = "; ".join(f"{found.sentence()}, and ends" for found in running.values())
            self._log.info("stop", applications=sorted(running), user=user, reason=reason)
            self._publish_state()
            return self._last_sentence

    def _publish_orders(self, before: dict[str, Drain]) -> None:
        try:
            self.orders.publish(self.lead.paused, self.lead.epoch)
        except StoreError:
            self.orders.drains = before  # the request is read again, and answered then
            raise

    @property
    def epoch(self) -> int:
        """The epoch this controller leads in, or last knew of."""
        return self.lead.epoch

    @property
    def applications(self) -> list[str]:
        """Ids of the applications with a fresh report."""
        return sorted(self._collector.reports)

    def close(self) -> None:
        """Give the lead up, so that a stand-by takes over at once."""
        with self._lock:
            self.lead.release()

    def _decided(self, ask: Ask, application: str) -> tuple[Decision, dict[str, str]]:
        """Return the decision and the query runs it was made for."""
        if ask.apply and self.lead.paused:
            detail = "Rechannel is paused: `rechannel resume` first"
            return deciding.refused(ask, Refusal(law="paused", reach="plan", detail=detail)), {}
        self._collector.refresh()
        facts = self._collector.gather(application)
        if facts is None:
            why = NotReady("no-report", f"no link reports for application {application}", transient=True)
            return deciding.not_ready(ask, why), {}
        busy = self._migration_runs(application, facts.report, ask.at)
        if busy:
            return deciding.not_ready(ask, NotReady("migration-running", busy, transient=True)), {}
        arguments = (application, facts.report, facts.batches, facts.windows, self.settings, ask.at, self.orders.nodes)
        snapshot: Snapshot | NotReady
        if ask.trigger == DRAIN:
            nothing = NotReady("no-state", "no active query has a known stateful stage (yet)", transient=True)
            snapshot = build_snapshot(*arguments, whole=True) or nothing
        else:
            snapshot = take_snapshot(*arguments)
        if isinstance(snapshot, NotReady):
            return deciding.not_ready(ask, snapshot), {}
        resting = self._resting(application, ask.at)
        decision = deciding.decide(
            ask,
            snapshot,
            self.settings,
            in_flight=in_flight(facts.report),
            resting=resting,
            notes=[f"the link says: {problem}" for problem in facts.report.problems],
        )
        moving = {move.query for move in decision.moves}
        return decision, {name: query.run for name, query in snapshot.queries.items() if name in moving}

    def _migration_runs(self, application: str, report: LinkReport, now: float) -> str:
        if application not in self._examined:
            self._adopt(application, report)
        migration = self.migrations.get(application)
        if migration is not None:
            migration.update(report, now)
            if not migration.over(now):
                return f"{migration.sentence()}; one at a time"
            self._finish(migration, now)
        flying = len(in_flight(report))
        return f"the link still works on {flying} moves of decision {report.decision or '?'}" if flying else ""

    def _resting(self, application: str, now: float) -> float:
        if application not in self.ended:
            return 0.0
        return max(0.0, self.ended[application] + self.settings.gate.cooldown - now)

    def _publish(self, decision: Decision, application: str, runs: dict[str, str]) -> None:
        self._last_sentence = f"{application}: {decision.sentence}"
        self._log.info(
            "decision",
            application=application,
            decision=decision.decision,
            outcome=decision.outcome,
            reason=decision.reason,
            sentence=decision.sentence,
        )
        if decision.trigger == DRAIN:
            repeated = self._drain_said.get(application) == decision.sentence and decision.outcome != "applied"
            self._drain_said[application] = decision.sentence
            if repeated:
                return  # a drain that cannot go on is tried again and again; it is told once
        envelope = self._author.envelope(
            decision, ttl=keys.DECISIONS.ttl, application=application, epoch=self.lead.epoch
        )
        self._store.append(keys.DECISIONS, "", envelope)
        if decision.outcome == "applied":
            desired = DesiredPlacement(decision=decision.decision, runs=runs, moves=decision.moves)
            patience = self.settings.controller.placement_ttl
            self.migrations[application] = Migration(application, desired, self._clock(), patience)
            self._words.pop(application, None)
            try:
                self._renew(self.migrations[application])
            except StoreError as error:  # the decision stands; `follow` says it again while its figures are fresh
                self._log.warning("desired-not-sent", application=application, sentence=str(error))

    def _act_on_changes(self, application: str) -> None:
        """Empty drained nodes, and give executors that joined their share, without waiting for the timeout."""
        report, now = self._collector.reports[application], self._clock()
        here = self._usable(report)
        if self._executors.get(application, (None, 0.0))[0] != here:
            self._executors[application] = (here, now)
        busy = application in self.migrations or in_flight(report) or now < self._retry_at.get(application, 0.0)
        if busy:
            return
        if any(left_on(report, self.orders.nodes).values()):
            self._retry_at[application] = now + _RETRY_EVERY
            if self.decide(DRAIN, application=application, apply=True).outcome == "applied":
                return
        decided_for = self._decided_for.get(application, here)
        stable = now - self._executors[application][1] >= self.settings.reschedule.settle
        if here != decided_for and stable and not self._resting(application, now):
            self._retry_at[application] = now + _RETRY_EVERY
            apply = self.settings.reschedule.mode == "apply"
            decision = self.decide("executors", application=application, apply=apply)
            if decision.outcome != "not-ready":
                self._decided_for[application] = here

    def _usable(self, report: LinkReport) -> frozenset[str]:
        usable = (info for info in report.executors if info.host not in self.orders.nodes)
        return frozenset(info.executor for info in usable) - frozenset(report.releasing)

    def _follow(self, application: str) -> None:
        migration = self.migrations[application]
        now = self._clock()
        migration.update(self._collector.reports.get(application), now)
        if migration.over(now):
            self._finish(migration, now)
        else:
            self._renew(migration)

    def _finish(self, migration: Migration, now: float) -> None:
        why = migration.over(now)
        self._last_sentence = migration.sentence(why)
        self._log.info("migration-over", application=migration.application, why=why, sentence=self._last_sentence)
        if why != "not-taken-up":
            self.ended[migration.application] = now
        del self.migrations[migration.application]
        self._words.pop(migration.application, None)

    def _renew(self, migration: Migration) -> None:
        """Put the desired placement where its link looks, unless what stands there still does."""
        now, ttl = self._clock(), self.settings.controller.placement_ttl
        migration.desired = msgspec.structs.replace(migration.desired, hold=self.lead.paused)
        found = self._store.get(keys.DESIRED, migration.application)
        ours = found is not None and self._signer.made(found)
        if found is not None and ours and found.epoch > self.lead.epoch:
            self._log.warning("epoch-behind", application=migration.application, found=found.epoch)
            self.lead.learn(found.epoch)
            return  # another leader's, or Redis went back in time; the next renewal of the lease tells
        if (
            found is not None
            and ours
            and found.body == migration.desired
            and found.epoch == self.lead.epoch
            and found.expires - now > ttl * 2 / 3
        ):
            return
        if not self.lead.holds():
            return
        envelope = self._author.envelope(
            migration.desired, ttl=ttl, application=migration.application, epoch=self.lead.epoch
        )
        self._store.put(keys.DESIRED, migration.application, self._signer.sign(envelope))
        migration.epoch = self.lead.epoch

    def _adopt(self, application: str, report: LinkReport) -> None:
        """Go on with the migration that a leader before us began, or learn when the last one was."""
        found = self._store.get(keys.DESIRED, application)
        self._examined.add(application)
        if found is None:
            return
        try:
            desired = body_of(found, DesiredPlacement)
            if found.application != application or not self._signer.made(found):
                raise SignatureError(f"desired placement of {application} was not signed by this cluster's key")
        except MessageError as error:
            self.rejected += 1
            self._log.warning("desired-rejected", application=application, sentence=str(error))
            return
        mine = self.migrations.get(application)
        if mine is not None:
            if desired.decision == mine.desired.decision or found.epoch <= mine.epoch:
                return
            del self.migrations[application]  # somebody led while we could not, and decided anew
        now = self._clock()
        migration = Migration(application, desired, found.time, self.settings.controller.placement_ttl)
        migration.update(report, now)
        if found.expires <= now or migration.over(now):
            self.ended[application] = max(self.ended.get(application, 0.0), found.time)
            return
        self.migrations[application] = migration
        self._log.info("migration-adopted", application=application, decision=desired.decision, epoch=self.lead.epoch)

    def _forget(self) -> None:
        self.migrations.clear()
        self._examined.clear()
        self._words.clear()
        self._words_at = 0.0
        self._executors.clear()
        self._decided_for.clear()
        self._retry_at.clear()
        self._desk.forget()

    def _say_readiness(self, application: str) -> None:
        migration = self.migrations.get(application)
        if migration is not None:
            self._words[application] = migration.sentence()
            return
        facts = self._collector.gather(application)
        if facts is None:
            return
        arguments = (application, facts.report, facts.batches, facts.windows, self.settings, self._clock())
        found = take_snapshot(*arguments, self.orders.nodes)
        if isinstance(found, NotReady):
            self._words[application] = f"not ready: {found.sentence}"
            return
        self._decided_for.setdefault(application, self._usable(facts.report))
        resting = self._resting(application, self._clock())
        rest = f", cool-down for {resting:.0f} s" if resting else ""
        placed = sum(stage.n for stage in found.workload.placeable)
        self._words[application] = f"ready: {placed} partitions on {found.cluster.size} executors{rest}"

    def _publish_state(self) -> None:
        state = ControllerState(
            leader=self.lead.name,
            since=self.lead.since,
            epoch=self.lead.epoch,
            paused=self.lead.paused,
            mode=self.settings.reschedule.mode,
            next_decision=self.next_decision,
            last_sentence=self._last_sentence,
            applications=dict(self._words),
        )
        # It expires with the lease: a state that is still valid means that somebody leads.
        ttl = self.settings.controller.lease
        self._store.put(keys.STATE, "", self._author.envelope(state, ttl=ttl, epoch=self.lead.epoch))

    def _each(self, applications: Iterable[str], act: Callable[[str], object]) -> None:
        """Act on every application; what fails for one is logged and never stops the others."""
        for application in list(applications):
            try:
                act(application)
            except StoreError:
                raise
            except Exception:  # noqa: BLE001 one application's odd figures must not leave the others without a leader
                if self._clock() >= self._complained.get(application, 0.0) + _COMPLAIN_EVERY:
                    self._complained[application] = self._clock()
                    self._log.exception("application-failed", application=application)
