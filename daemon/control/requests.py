"""The desk where requests are answered: each one once, by whoever leads.

Orders come on the stream of the operators. Viewers write to another one, from which nothing but questions is answered:
Redis' ACL says who may write to which, so no password of a viewer moves anything. Orders are audited, and so is what
was refused because it came where viewers ask.

A request that is expired was for a leader before us, or nobody waits for its answer any more: it is passed over. Redis'
clock says so: those of the parts may be apart. One that has a reply was answered by the leader before us. An order is
claimed before it is carried out: where a leader claimed it and left no reply, nobody knows how far it came: it is not
carried out again, and whoever asked is told so.
"""

from __future__ import annotations

import functools
from collections import OrderedDict, deque
from collections.abc import Callable, Collection
from typing import Any, Protocol

import msgspec
import structlog

from rechannel.conf.settings import Settings
from rechannel.daemon.control import audit, draining, replies
from rechannel.daemon.control.audit import AuditError, AuditFile
from rechannel.daemon.decide import pipeline
from rechannel.daemon.decide.policy_settings import unknown_policy
from rechannel.daemon.decide.requested_placement import (
    PlanFileError,
    RequestedPlacement,
    placement_of_saved_plan,
    read_plan,
)
from rechannel.daemon.model.collector import entry_number
from rechannel.daemon.model.snapshot import Snapshot
from rechannel.policies.registry import known_policies
from rechannel.wire import keys
from rechannel.wire.codes import Trigger
from rechannel.wire.envelope import Envelope, EnvelopeFactory
from rechannel.wire.exit_codes import NOBODY_REPORTS, ExitCode
from rechannel.wire.keys import KeyNameError, KeyRule
from rechannel.wire.messages import Decision, PendingPlan, Refusal, Reply, Request
from rechannel.wire.printable import count
from rechannel.wire.redis.errors import StoreError
from rechannel.wire.redis.store import Lease, Store

_PLANS = frozenset({"plan", "rebalance", "apply", "rollback"})  # verbs that may need a plan
_REMEMBERED = 1000
_LONGEST_DEADLINE = 3650 * 86_400.0  # seconds
_QUESTIONS_AT_ONCE = 5  # in one cycle: whoever may ask must not keep the leader from leading
_QUESTIONS_READ = 50  # in one cycle; those beyond the first are told to ask again
_REFUSALS_TOLD = 5  # orders of viewers in a minute that leave a line each: more would fill the disk of the audit file


class Leader(Protocol):
    """What the desk asks of the controller."""

    @property
    def settings(self) -> Settings:
        """Its settings."""

    @property
    def epoch(self) -> int:
        """The epoch it leads in."""

    @property
    def paused(self) -> bool:
        """Whether everything is paused."""

    @property
    def applications(self) -> list[str]:
        """Applications it knows."""

    def decide(
        self,
        trigger: str,
        *,
        application: str,
        user: str,
        reason: str,
        apply: bool,
        force: bool,
        policy: str,
        asked: Callable[[Snapshot], RequestedPlacement | Refusal] | None = None,
        leave: frozenset[str] = frozenset(),
    ) -> Decision:
        """Decide on one application and publish the decision.

        ``policy``: "" for that of the settings; ``asked``: a placement that is wanted instead of a policy's; ``leave``:
        nodes that are planned as if they were drained.
        """

    def pause(self, paused: bool) -> str:
        """Pause or resume everything; returns a sentence."""

    def stop(self, application: str, *, user: str, reason: str) -> str:
        """End running migrations at the next boundary; returns a sentence, raises ValueError."""

    def rollback(self, application: str, decision: str, *, user: str, reason: str) -> tuple[str, Decision | None]:
        """Move back what a decision moved ("": the last one); returns a sentence and the decision made, if any yet.

        Raises ValueError where there is nothing to undo.
        """

    def wait(self, plan: str, *, at: str, when: str, user: str, reason: str, force: bool) -> tuple[str, PendingPlan]:
        """Let a saved plan wait for its time; returns a sentence and what waits, raises ValueError."""

    def cancel(self, pending: str, *, user: str, reason: str) -> str:
        """Let a saved plan wait no longer; returns a sentence, raises ValueError."""

    def held_on(self, nodes: Collection[str]) -> list[str]:
        """Return the applications with state on these nodes; raises ValueError where they cannot be drained."""

    def drain(self, *nodes: str, user: str, reason: str, remove: bool, patience: float) -> str:
        """Order that nodes are to hold no state; returns a sentence, raises ValueError."""

    def undrain(self, *nodes: str, user: str, reason: str) -> str:
        """Let nodes hold state again; returns a sentence, raises ValueError."""


class RequestHandler:
    """Reads requests and questions, and writes replies. ``refused``: orders on the stream of questions, since start."""

    def __init__(
        self,
        leader: Leader,
        store: Store,
        author: EnvelopeFactory,
        clock: Callable[[], float],
        answered: Callable[[str, int], None] | None = None,
    ) -> None:
        self._leader = leader
        self._store = store
        self._author = author
        self._clock = clock
        self._answered = answered  # told each request's verb and code, once
        self.refused = 0
        self._questions = 0  # of this cycle
        self._told: deque[float] = deque(maxlen=_REFUSALS_TOLD)  # when the last refusals were written down
        self._untold = 0
        self._audit = AuditFile(leader.settings.controller.audit_file)
        self._after = dict.fromkeys((keys.REQUESTS, keys.QUESTIONS), "0")
        # What needs a plan, which may take minutes, holds nothing else up: with its stream, and until when it waits.
        self._plans: deque[tuple[Envelope, KeyRule, float]] = deque()
        self._asked: OrderedDict[str, None] = OrderedDict()  # orders whose first line is in the audit file
        self._given: OrderedDict[str, Envelope] = OrderedDict()  # by request id: replies of this leader
        self._begun: set[str] = set()  # ids of orders that this leader claims or claimed, and has no reply to yet
        self._log = structlog.get_logger("rechannel.controller")
        self._verbs: dict[str, Callable[[Request], Reply]] = {
            "apply": self._apply,
            "cancel": self._cancel,
            "drain": self._drain,
            "pause": lambda request: self._pause(request, True),
            "plan": self._plan,
            "rebalance": self._rebalance,
            "resume": lambda request: self._pause(request, False),
            "rollback": self._rollback,
            "stop": self._stop,
            "undrain": self._undrain,
        }

    def forget(self) -> None:
        """Start at the stream's begin again: another leader answers meanwhile."""
        self._after = dict.fromkeys(self._after, "0")
        self._plans.clear()
        self._asked.clear()
        self._given.clear()
        self._begun.clear()

    def answer(self) -> int:
        """Answer all requests that wait and need no plan, and line the others up; returns how many were answered."""
        now = self._clock()
        for name in [name for name, given in self._given.items() if given.expires <= now]:
            del self._given[name]  # by now nobody asks for it again
        return self._read(keys.REQUESTS, keys.REQUESTS.bound) + self._read(keys.QUESTIONS, _QUESTIONS_READ)

    def answer_plans(self) -> int:
        """Answer the requests that need a plan, of many questions the first ones; returns how many."""
        self._questions = answered = 0
        while self._plans:
            envelope, stream, until = self._plans[0]
            answered += self._answer(envelope, until - self._clock(), stream)
            if self._plans and self._plans[0][0] is envelope:  # else the lead was lost meanwhile
                self._plans.popleft()
        return answered

    def _read(self, stream: KeyRule, count: int) -> int:
        after = self._after[stream]
        newest, waiting = self._store.read_requests(stream, "", after, count)
        answered = 0
        for found in waiting:
            left, body = _life(found.envelope) - found.age, found.envelope.body
            if isinstance(body, Request) and body.verb in _PLANS:
                self._line_up(found.envelope, stream, left)
            else:
                answered += self._answer(found.envelope, left, stream)
        if newest == after and newest != "0":
            last = self._store.last_id(stream)
            newest = "0" if entry_number(last) < entry_number(newest) else newest  # Redis was emptied
        self._after[stream] = newest  # only now: had Redis gone away meanwhile, the rest would be read again
        return answered

    def _line_up(self, envelope: Envelope, stream: KeyRule, left: float) -> None:
        questions = sum(line[1] is keys.QUESTIONS for line in self._plans)
        if left > 0 and (stream is keys.REQUESTS or questions < _QUESTIONS_READ):
            self._plans.append((envelope, stream, self._clock() + left))

    def _answer(self, envelope: Envelope, left: float, stream: KeyRule) -> bool:
        """Answer a request whose sender waits for so many seconds more."""
        request = envelope.body
        if not isinstance(request, Request) or left <= 0:
            return False
        try:
            if self._store.get(keys.REPLY, request.request) is not None:
                return False
        except KeyNameError:
            return False  # nobody can read a reply under such an id
        given = self._given.get(request.request)
        if given is None:
            reply = self._decided(request, envelope, stream)
            # Anybody may ask for anything: what is counted by its name is what there is.
            if self._answered is not None:
                self._answered(request.verb if request.verb in self._verbs else "unknown", reply.code)
            # As long as it may be asked for: without it the next leader would take the request for unanswered.
            given = self._author.envelope(reply, ttl=max(keys.REPLY.ttl, left), epoch=self._leader.epoch)
            self._given[request.request] = given
            _bound(self._given)
        self._store.put(keys.REPLY, request.request, given, max(keys.REPLY.ttl, left))
        return True

    def _decided(self, request: Request, envelope: Envelope, stream: KeyRule) -> Reply:
        if stream is keys.QUESTIONS:
            self._questions += 1
            if self._questions > _QUESTIONS_AT_ONCE:
                sentence = "too many questions came at once; ask again"
                return Reply(request=request.request, code=int(ExitCode.NOT_READY), sentence=sentence)
        is_order = request.verb in self._verbs and request.verb not in keys.READ_ONLY_VERBS
        reply = self._ordered(request, envelope, stream) if is_order else self._reply(request)
        if stream is keys.REQUESTS or not is_order:
            self._log.info("request", verb=request.verb, user=request.user, code=reply.code, sentence=reply.sentence)
        return reply

    def _ordered(self, request: Request, envelope: Envelope, stream: KeyRule) -> Reply:
        """Carry an order out, if it may be, and leave a trace of it."""
        if stream is not keys.REQUESTS:
            return self._misplaced(request, envelope)
        if self._leader.settings.controller.require_reason and not request.reason.strip():
            reply = replies.refused(
                request, f"{request.verb} needs a reason here (controller.require_reason): say why with --reason"
            )
            self._note(audit.REFUSED, request, envelope, reply)
            return reply
        try:
            if request.request not in self._asked:
                self._record(audit.ASKED, request, envelope)
                self._asked[request.request] = None
                _bound(self._asked)
        except AuditError as error:
            self._log.error("audit-failed", sentence=str(error))
            return replies.refused(request, f"{error}; nothing is ordered without a trace: mend that, and ask again")
        reply = self._reply(request) if self._claimed(request) else replies.taken_up(request)
        self._begun.discard(request.request)
        self._note(audit.ANSWERED, request, envelope, reply)
        return reply

    def _claimed(self, request: Request) -> bool:
        """Claim an order; False where another leader did so before, or we did before we lost the lead."""
        again = request.request in self._begun
        self._begun.add(request.request)  # before: should Redis' answer be lost, the claim may be ours
        found = self._store.claim(request.request, keys.CLAIM.ttl)  # longer than the request stands in its stream
        mine = Lease(self._author.sender, self._leader.epoch)
        return found == mine or (again and found.holder == mine.holder)

    def _misplaced(self, request: Request, envelope: Envelope) -> Reply:
        """Refuse an order that came where viewers ask. Told of so many times a minute; the others are counted."""
        self.refused += 1
        sentence = (
            f"{request.verb} is an order, and came where viewers ask: orders take a Redis user of the role "
            "operator (`rechannel acl add-role operator`)"
        )
        now = self._clock()
        if len(self._told) == _REFUSALS_TOLD and 0 <= now - self._told[0] < 60:
            self._untold += 1
            return replies.refused(request, sentence)
        self._told.append(now)
        if self._untold:
            sentence += f"; {self._untold} more like it were not written down"
            self._untold = 0
        reply = replies.refused(request, sentence)
        self._log.warning("order-refused", verb=request.verb, user=request.user, refused=self.refused)
        self._note(audit.REFUSED, request, envelope, reply)
        return reply

    def _note(self, event: str, request: Request, envelope: Envelope, reply: Reply) -> None:
        """Write down how a request ended; that cannot be changed by a file that takes no line."""
        try:
            self._record(event, request, envelope, reply)
        except AuditError as error:
            self._log.error("audit-failed", sentence=str(error))

    def _record(self, event: str, request: Request, envelope: Envelope, reply: Reply | None = None) -> None:
        entry = audit.line(
            event,
            request,
            sender=envelope.sender,
            at=self._clock(),
            leader=self._author.sender,
            epoch=self._leader.epoch,
            reply=reply,
        )
        self._audit.append(entry)

    def _reply(self, request: Request) -> Reply:
        verb = self._verbs.get(request.verb)
        if verb is None:
            return replies.refused(request, f"unknown verb {request.verb!r}; known are {', '.join(self._verbs)}")
        try:
            return verb(request)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 whoever asked is told, instead of left to wait
            self._log.exception("request-failed", verb=request.verb)
            return replies.refused(request, f"{request.verb} failed ({type(error).__name__}); see the controller's log")

    def _plan(self, request: Request) -> Reply:
        if "drain" in request.arguments:
            return self._plan_drain(request, draining.separated(request.arguments["drain"]))
        return self._decide(request, apply=False)

    def _plan_drain(self, request: Request, nodes: list[str]) -> Reply:
        """Say what a drain of these nodes would move, of every application."""
        try:
            applications = self._leader.held_on(nodes)
        except ValueError as error:
            return replies.refused(request, str(error))
        plans = []
        for application in applications:
            decision = self._leader.decide(
                Trigger.DRAIN,
                application=application,
                user=request.user,
                reason=request.reason,
                apply=False,
                force=False,
                policy="",
                leave=frozenset(nodes),
            )
            plans.append({"application": application, "decision": msgspec.to_builtins(decision)})
        held = ", ".join(nodes)
        sentence = f"{held}: state of {count(len(plans), 'application')} would leave" if plans else f"{held}: no state"
        data: dict[str, Any] = {"nodes": nodes, "plans": plans}
        return Reply(request=request.request, code=int(ExitCode.DONE), sentence=sentence, data=data)

    def _rebalance(self, request: Request) -> Reply:
        return self._decide(request, apply=True)

    def _apply(self, request: Request) -> Reply:
        try:
            plan = read_plan(request.arguments.get("plan", ""), self._author.cluster)
        except PlanFileError as error:
            return replies.refused(request, f"the saved plan: {error}")
        if request.arguments.get("at") or request.arguments.get("when"):
            found = self._application(request, plan.application)
            return found if isinstance(found, Reply) else self._wait(request)
        asked = functools.partial(placement_of_saved_plan, plan)
        return self._decide(request, apply=True, application=plan.application, asked=asked)

    def _wait(self, request: Request) -> Reply:
        given = request.arguments
        try:
            sentence, waiting = self._leader.wait(
                given.get("plan", ""),
                at=given.get("at", ""),
                when=given.get("when", ""),
                user=request.user,
                reason=request.reason,
                force=given.get("force") == "yes",
            )
        except ValueError as error:
            return replies.refused(request, str(error))
        data = {name: value for name, value in msgspec.to_builtins(waiting).items() if name != "plan"}
        return Reply(request=request.request, code=int(ExitCode.DONE), sentence=sentence, data=data)

    def _rollback(self, request: Request) -> Reply:
        application = self._application(request, request.arguments.get("application", ""))
        if isinstance(application, Reply):
            return application
        wanted = request.arguments.get("decision", "")
        try:
            sentence, made = self._leader.rollback(application, wanted, user=request.user, reason=request.reason)
        except ValueError as error:
            if wanted:
                return replies.refused(request, f"{error}; `rechannel history` lists them")
            return Reply(request=request.request, code=int(ExitCode.NOTHING), sentence=str(error))
        if made is None:
            return Reply(request=request.request, code=int(ExitCode.DONE), sentence=sentence)
        undoes = f" (undoes {made.rollback_of})" if made.rollback_of else ""
        sentence = f"decision {made.decision}{undoes}: {made.sentence}"
        data = {"application": application, "decision": msgspec.to_builtins(made)}
        return Reply(request=request.request, code=int(pipeline.exit_of(made)), sentence=sentence, data=data)

    def _application(self, request: Request, application: str) -> str | Reply:
        """Which application is meant, or the reply that says why that is not known."""
        known = self._leader.applications
        if application and application not in known:
            return replies.unknown(request, application, known)
        if not known:
            return Reply(request=request.request, code=int(ExitCode.NOT_READY), sentence=NOBODY_REPORTS)
        if not application and len(known) > 1:
            return replies.refused(
                request, f"there are several applications, name one with --application: {', '.join(known)}"
            )
        return application or known[0]

    def _decide(
        self,
        request: Request,
        *,
        apply: bool,
        application: str = "",
        asked: Callable[[Snapshot], RequestedPlacement | Refusal] | None = None,
    ) -> Reply:
        found = self._application(request, application or request.arguments.get("application", ""))
        if isinstance(found, Reply):
            return found
        policy = request.arguments.get("policy", "")
        if policy and policy not in known_policies():
            return replies.refused(request, unknown_policy(policy))
        decision = self._leader.decide(
            "operator",
            application=found,
            user=request.user,
            reason=request.reason,
            apply=apply,
            force=request.arguments.get("force") == "yes",
            policy=policy,
            asked=asked,
        )
        data: dict[str, Any] = {"application": found, "decision": msgspec.to_builtins(decision)}
        code = int(pipeline.exit_of(decision))
        return Reply(request=request.request, code=code, sentence=decision.sentence, data=data)

    def _pause(self, request: Request, paused: bool) -> Reply:
        sentence = self._leader.pause(paused)
        return Reply(request=request.request, code=int(ExitCode.DONE), sentence=sentence, data={"paused": paused})

    def _stop(self, request: Request) -> Reply:
        application = request.arguments.get("application", "")
        try:
            sentence = self._leader.stop(application, user=request.user, reason=request.reason)
        except ValueError as error:  # one that reports no more may still have a migration to be stopped
            if application and application not in (known := self._leader.applications):
                return replies.unknown(request, application, known)
            return Reply(request=request.request, code=int(ExitCode.NOTHING), sentence=str(error))
        return Reply(request=request.request, code=int(ExitCode.DONE), sentence=sentence)

    def _drain(self, request: Request) -> Reply:
        given = request.arguments
        try:
            patience = float(given.get("deadline") or 0.0)
            if not 0 <= patience <= _LONGEST_DEADLINE:  # beyond it no message can say when
                raise ValueError(f"deadline: {patience:g} is no number of seconds")
            nodes = draining.separated(given.get("node", ""))
            sentence = self._leader.drain(
                *nodes,
                user=request.user,
                reason=request.reason,
                remove=given.get("remove") == "yes",
                patience=patience,
            )
        except ValueError as error:
            return replies.refused(request, str(error))
        return Reply(
            request=request.request,
            code=int(ExitCode.DONE),
            sentence=sentence,
            data={"node": given["node"], "nodes": nodes},
        )

    def _undrain(self, request: Request) -> Reply:
        nodes = draining.separated(request.arguments.get("node", ""))
        reply = self._end(request, self._leader.undrain, nodes, {"node": ",".join(nodes), "nodes": nodes})
        if reply.code == ExitCode.DONE:  # whether what the sentence promises needs an order
            acts = self._leader.settings.reschedule.mode == "apply" and not self._leader.paused
            reply = msgspec.structs.replace(reply, data={**reply.data, "moves_by_itself": acts})
        return reply

    def _cancel(self, request: Request) -> Reply:
        pending = request.arguments.get("pending", "")
        return self._end(request, self._leader.cancel, [pending], {"pending": pending})

    def _end(self, request: Request, order: Callable[..., str], names: list[str], data: dict[str, Any]) -> Reply:
        try:
            sentence = order(*names, user=request.user, reason=request.reason)
        except ValueError as error:
            return replies.refused(request, str(error))
        return Reply(request=request.request, code=int(ExitCode.DONE), sentence=sentence, data=data)


def _bound(remembered: OrderedDict[str, Any]) -> None:
    while len(remembered) > _REMEMBERED:
        remembered.popitem(last=False)


def _life(envelope: Envelope) -> float:
    """Seconds for which a request is to be answered: as it says, and within the time for which claims are kept."""
    return min(envelope.expires - envelope.time, keys.REQUESTS.ttl)
