"""The desk where operators' requests are answered: each one once, by whoever leads.

A request that is expired was for a leader before us, or nobody waits for its answer any more: it is passed over. One
that has a reply was answered by the leader before us.
"""

from __future__ import annotations

import functools
import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol

import msgspec
import structlog

from rechannel.daemon import deciding
from rechannel.daemon.choosing import unknown_policy
from rechannel.daemon.collect import entry_number
from rechannel.daemon.exits import Exit
from rechannel.daemon.snapshot import Snapshot
from rechannel.daemon.wishes import PlanFileError, Wish, from_plan, read_plan
from rechannel.policies.registry import POLICIES
from rechannel.wire import keys
from rechannel.wire.keys import KeyNameError
from rechannel.wire.messages import Decision, Envelope, Refusal, Reply, Request
from rechannel.wire.store import Author, Store, StoreError

_REMEMBERED = 1000


class Leader(Protocol):
    """What the desk asks of the controller."""

    @property
    def epoch(self) -> int:
        """The epoch it leads in."""

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
        asked: Callable[[Snapshot], Wish | Refusal] | None = None,
    ) -> Decision:
        """Decide on one application and publish the decision.

        ``policy``: "" for that of the settings; ``asked``: a placement that is wanted instead of a policy's.
        """

    def pause(self, paused: bool) -> str:
        """Pause or resume everything; returns a sentence."""

    def stop(self, application: str, *, user: str, reason: str) -> str:
        """End running migrations at the next boundary; returns a sentence, raises ValueError."""

    def rollback(self, application: str, decision: str, *, user: str, reason: str) -> tuple[str, Decision | None]:
        """Move back what a decision moved ("": the last one); returns a sentence and the decision made, if any yet.

        Raises ValueError where there is nothing to undo.
        """

    def drain(self, node: str, *, user: str, reason: str, remove: bool, patience: float) -> str:
        """Order that a node is to hold no state; returns a sentence, raises ValueError."""

    def undrain(self, node: str, *, user: str, reason: str) -> str:
        """Let a node hold state again; returns a sentence, raises ValueError."""


class Desk:
    """Reads the request stream and writes replies."""

    def __init__(self, leader: Leader, store: Store, author: Author, clock: Callable[[], float]) -> None:
        self._leader = leader
        self._store = store
        self._author = author
        self._clock = clock
        self._after = "0"
        self._given: OrderedDict[str, Envelope] = OrderedDict()  # by request id: replies of this leader
        self._log = structlog.get_logger("rechannel.controller")
        self._verbs: dict[str, Callable[[Request], Reply]] = {
            "plan": self._plan,
            "rebalance": self._rebalance,
            "apply": self._apply,
            "rollback": self._rollback,
            "pause": lambda request: self._pause(request, True),
            "resume": lambda request: self._pause(request, False),
            "stop": self._stop,
            "drain": self._drain,
            "undrain": self._undrain,
        }

    def forget(self) -> None:
        """Start at the stream's begin again: another leader answers meanwhile."""
        self._after = "0"
        self._given.clear()

    def answer(self) -> int:
        """Answer all requests that wait; returns how many."""
        newest, envelopes = self._store.read(keys.REQUESTS, "", self._after)
        answered = sum(self._answer(envelope) for envelope in envelopes)
        if newest == self._after and newest != "0":
            last = self._store.last_id(keys.REQUESTS)
            newest = "0" if entry_number(last) < entry_number(newest) else newest  # Redis was emptied
        self._after = newest  # only now: had Redis gone away meanwhile, the rest would be read again
        return answered

    def _answer(self, envelope: Envelope) -> bool:
        request = envelope.body
        if not isinstance(request, Request) or envelope.expires <= self._clock():
            return False
        try:
            if self._store.get(keys.REPLY, request.request) is not None:
                return False
        except KeyNameError:
            return False  # nobody can read a reply under such an id
        given = self._given.get(request.request)
        if given is None:
            reply = self._reply(request)
            self._log.info("request", verb=request.verb, user=request.user, code=reply.code, sentence=reply.sentence)
            given = self._author.envelope(reply, ttl=keys.REPLY.ttl, epoch=self._leader.epoch)
            self._given[request.request] = given
            while len(self._given) > _REMEMBERED:
                self._given.popitem(last=False)
        self._store.put(keys.REPLY, request.request, given)
        return True

    def _reply(self, request: Request) -> Reply:
        verb = self._verbs.get(request.verb)
        if verb is None:
            return _no(request, f"unknown verb {request.verb!r}; known are {', '.join(sorted(self._verbs))}")
        try:
            return verb(request)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 whoever asked is told, instead of left to wait
            self._log.exception("request-failed", verb=request.verb)
            return _no(request, f"the controller failed on {request.verb} ({type(error).__name__}); see its log")

    def _plan(self, request: Request) -> Reply:
        return self._decide(request, apply=False)

    def _rebalance(self, request: Request) -> Reply:
        return self._decide(request, apply=True)

    def _apply(self, request: Request) -> Reply:
        try:
            plan = read_plan(request.arguments.get("plan", ""), self._author.cluster)
        except PlanFileError as error:
            return _no(request, f"the saved plan: {error}")
        asked = functools.partial(from_plan, plan)
        return self._decide(request, apply=True, application=plan.application, asked=asked)

    def _rollback(self, request: Request) -> Reply:
        application = self._application(request, request.arguments.get("application", ""))
        if isinstance(application, Reply):
            return application
        wanted = request.arguments.get("decision", "")
        try:
            sentence, made = self._leader.rollback(application, wanted, user=request.user, reason=request.reason)
        except ValueError as error:
            return Reply(request=request.request, code=int(Exit.NOTHING), sentence=str(error))
        code = deciding.exit_of(made) if made is not None else Exit.DONE
        return Reply(request=request.request, code=int(code), sentence=sentence)

    def _application(self, request: Request, application: str) -> str | Reply:
        """Which application is meant, or the reply that says why that is not known."""
        known = self._leader.applications
        listed = ", ".join(known) or "none"
        if application and application not in known:
            return _no(request, f"unknown application {application}; known are {listed}")
        if not known:
            sentence = "no application reports: does a driver run rechannel.attach(spark)?"
            return Reply(request=request.request, code=int(Exit.NOT_READY), sentence=sentence)
        if not application and len(known) > 1:
            return _no(request, f"there are several applications, name one with --application: {listed}")
        return application or known[0]

    def _decide(
        self,
        request: Request,
        *,
        apply: bool,
        application: str = "",
        asked: Callable[[Snapshot], Wish | Refusal] | None = None,
    ) -> Reply:
        found = self._application(request, application or request.arguments.get("application", ""))
        if isinstance(found, Reply):
            return found
        policy = request.arguments.get("policy", "")
        if policy and policy not in POLICIES:
            return _no(request, unknown_policy(policy))
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
        code = int(deciding.exit_of(decision))
        return Reply(request=request.request, code=code, sentence=decision.sentence, data=data)

    def _pause(self, request: Request, paused: bool) -> Reply:
        sentence = self._leader.pause(paused)
        return Reply(request=request.request, code=int(Exit.DONE), sentence=sentence, data={"paused": paused})

    def _stop(self, request: Request) -> Reply:
        application = request.arguments.get("application", "")
        try:
            sentence = self._leader.stop(application, user=request.user, reason=request.reason)
        except ValueError as error:
            return Reply(request=request.request, code=int(Exit.NOTHING), sentence=str(error))
        return Reply(request=request.request, code=int(Exit.DONE), sentence=sentence)

    def _drain(self, request: Request) -> Reply:
        given = request.arguments
        try:
            patience = float(given.get("deadline") or 0.0)
            if not 0 <= patience < math.inf:
                raise ValueError(f"deadline: {patience:g} is no number of seconds")
            sentence = self._leader.drain(
                given.get("node", ""),
                user=request.user,
                reason=request.reason,
                remove=given.get("remove") == "yes",
                patience=patience,
            )
        except ValueError as error:
            return _no(request, str(error))
        return Reply(request=request.request, code=int(Exit.DONE), sentence=sentence, data={"node": given["node"]})

    def _undrain(self, request: Request) -> Reply:
        node = request.arguments.get("node", "")
        try:
            sentence = self._leader.undrain(node, user=request.user, reason=request.reason)
        except ValueError as error:
            return _no(request, str(error))
        return Reply(request=request.request, code=int(Exit.DONE), sentence=sentence, data={"node": node})


def _no(request: Request, sentence: str) -> Reply:
    return Reply(request=request.request, code=int(Exit.REFUSED), sentence=sentence)
