"""Requests of operators and viewers, each answered once by the leader.

Orders arrive on the stream of the operators. Viewers write to a stream of their own, from which only read-only
commands are answered: Redis' ACL controls who may write to which, so a viewer's password moves nothing. Orders are
audited, and so are orders that are refused because they arrived on the viewers' stream.

Three kinds of requests are not carried out:

* An expired one: it was meant for an earlier leader, or nobody waits for its answer. Redis' clock decides, because the
  clocks of the parts may differ.
* One that has a reply: the leader before answered it.
* An order that another leader claimed without leaving a reply: it is unknown how much of it was done. It is answered
  with `ExitCode.UNCLEAR`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import structlog

from rechannel.daemon import audit
from rechannel.daemon.audit import AuditError, AuditFile
from rechannel.daemon.control.leadership import LeaderContext
from rechannel.daemon.jobs.planning import Mutex
from rechannel.wire import keys
from rechannel.wire.bounded_dict import BoundedDict
from rechannel.wire.commands import COMMANDS, READ_ONLY_VERBS
from rechannel.wire.envelope import Envelope, body_of
from rechannel.wire.exit_codes import ExitCode
from rechannel.wire.keys import KeyNameError, KeyRule
from rechannel.wire.messages import Reply, Request
from rechannel.wire.redis.errors import StoreTooLargeError
from rechannel.wire.redis.streams import entry_number

_REMEMBERED = 1000  # requests
# Questions that wait for their plans, so that viewers cannot keep the leader busy, and others answered in one cycle.
_QUESTIONS_AT_ONCE = 5
_QUESTIONS_READ = 50  # read in one cycle; those beyond `_QUESTIONS_AT_ONCE` are answered "ask again"
_REFUSALS_AUDITED = 5  # of misplaced orders, per minute: more lines would let a viewer fill the disk


class RequestHandler:
    """Reads requests, claims and audits orders, and writes replies.

    Both public cycles take the controller's ``lock``. ``execute`` carries out the command of a request, and may raise
    StoreError. ``count_answer`` is called once for each answered request, with its verb and the code of the reply. The
    setting ``controller.audit_file`` is read once.
    """

    def __init__(
        self,
        context: LeaderContext,
        lock: Mutex,
        execute: Callable[[Request], Reply],
        count_answer: Callable[[str, int], None],
    ) -> None:
        self._context = context
        self._lock = lock
        self._store = context.store
        self._clock = context.clock.wall
        self._execute = execute
        self._count_answer = count_answer
        self.refused = 0  # orders on the viewers' stream since the start
        self._refusal_times: deque[float] = deque(maxlen=_REFUSALS_AUDITED)
        self._unaudited = 0  # refusals since the last line about one
        self._audit_file = AuditFile(context.settings.controller.audit_file)
        self._after = dict.fromkeys((keys.REQUESTS, keys.QUESTIONS), "0")
        # Requests that need a plan, which can take minutes and holds nothing else up: with stream and expiry.
        self._plan_requests: deque[tuple[Envelope, KeyRule, float]] = deque()
        self._audited: BoundedDict[str, None] = BoundedDict(_REMEMBERED)  # orders whose first line is in the audit file
        self._replies: BoundedDict[str, Envelope] = BoundedDict(_REMEMBERED)  # of this leader, by request id
        self._claiming: set[str] = set()  # ids of orders that this leader claimed, or tried to, and has not answered
        self._log = structlog.get_logger("rechannel.controller")

    def forget(self) -> None:
        """Begin at the start of the streams again, because another leader answers meanwhile."""
        self._after = dict.fromkeys(self._after, "0")
        self._plan_requests.clear()
        self._audited.clear()
        self._replies.clear()
        self._claiming.clear()

    def handle_requests(self) -> int:
        """Carry out waiting requests that need no plan and queue the others; returns the number."""
        with self._lock:
            if not self._context.can_act:
                return 0
            now = self._clock()
            for name in [name for name, reply in self._replies.items() if reply.expires <= now]:
                del self._replies[name]
            return self._read(keys.REQUESTS, keys.REQUESTS.bound) + self._read(keys.QUESTIONS, _QUESTIONS_READ)

    def answer_plans(self) -> int:
        """Answer the queued requests that need a plan; returns how many were answered."""
        with self._lock:
            if not self._context.can_act:
                return 0
            answered = 0
            while self._plan_requests:
                envelope, stream, until = self._plan_requests[0]
                answered += self._handle(envelope, until - self._clock(), stream)
                if self._plan_requests and self._plan_requests[0][0] is envelope:  # else the lead was lost meanwhile
                    self._plan_requests.popleft()
            return answered

    def _read(self, stream: KeyRule, count: int) -> int:
        after = self._after[stream]
        newest, waiting = self._store.read_requests(stream, "", after, count)
        answered = 0
        for queued in waiting:
            seconds_left = _lifetime(queued.envelope) - queued.age
            planned = [line[0].body for line in self._plan_requests if line[1] is stream]
            if queued.envelope.body in planned:
                continue  # it is read again after a StoreError
            needs_plan = _needs_plan(queued.envelope)
            before = len(planned) if needs_plan else answered
            if stream is keys.QUESTIONS and before >= _QUESTIONS_AT_ONCE:
                answered += self._handle(queued.envelope, seconds_left, stream, too_many=True)
            elif not needs_plan:
                answered += self._handle(queued.envelope, seconds_left, stream)
            elif seconds_left > 0:
                self._plan_requests.append((queued.envelope, stream, self._clock() + seconds_left))
        if newest == after and newest != "0":
            last = self._store.last_id(stream)
            newest = "0" if entry_number(last) < entry_number(newest) else newest  # Redis was emptied
        self._after[stream] = newest  # only now: after a StoreError the same entries are read again
        return answered

    def _handle(self, envelope: Envelope, seconds_left: float, stream: KeyRule, *, too_many: bool = False) -> bool:
        """Answer a request that has ``seconds_left``; returns whether a reply was written.

        ``too_many``: the answer is that too many came at once. The reply is made once and kept, so that a StoreError
        while it is written does not carry out the order twice.
        """
        request = envelope.body
        if not isinstance(request, Request) or seconds_left <= 0:
            return False
        try:
            if self._store.get(keys.REPLY, request.request) is not None:
                return False
        except KeyNameError:
            return False  # no reply can be read under such an id
        ttl = max(keys.REPLY.ttl, seconds_left)  # without a reply the next leader would take the request for unanswered
        message = self._replies.get(request.request)
        if message is None:
            if too_many:
                reply = _reply(request, ExitCode.NOT_READY, "too many questions came at once; ask again")
            else:
                reply = self._dispatch(request, envelope.sender, stream)
            # Anybody can send any verb: only existing ones become labels of the metrics.
            self._count_answer(request.verb if request.verb in COMMANDS else "unknown", reply.code)
            message = self._context.envelope(reply, ttl=ttl)
            self._replies[request.request] = message
        try:
            self._store.put(keys.REPLY, request.request, message, ttl)
        except StoreTooLargeError as error:
            message = self._context.envelope(_shortened(request, message, error), ttl=ttl)
            self._replies[request.request] = message
            self._store.put(keys.REPLY, request.request, message, ttl)
        return True

    def _dispatch(self, request: Request, sender: str, stream: KeyRule) -> Reply:
        """Reply to a question or an unknown command directly, to an order after claim and audit."""
        is_order = request.verb in COMMANDS and request.verb not in READ_ONLY_VERBS
        if is_order and stream is not keys.REQUESTS:
            return self._reject_misplaced(request, sender)
        reply = self._run_order(request, sender) if is_order else self._execute(request)
        self._log.info("request", verb=request.verb, user=request.user, code=reply.code, sentence=reply.sentence)
        return reply

    def _run_order(self, request: Request, sender: str) -> Reply:
        """Carry out an order between its two audit lines, unless another leader claimed it."""
        if self._context.settings.controller.require_reason and not request.reason.strip():
            sentence = f"{request.verb} needs a reason here (controller.require_reason): say why with --reason"
            reply = _refusal_reply(request, sentence)
            self._audit(audit.REFUSED, request, sender, reply)
            return reply
        try:
            if request.request not in self._audited:
                self._append_line(audit.ASKED, request, sender)
                self._audited[request.request] = None
        except AuditError as error:
            self._log.error("audit-failed", sentence=str(error))
            sentence = (
                f"{error}; no order is carried out without an audit record: repair the audit file and send it again"
            )
            return _refusal_reply(request, sentence)
        reply = self._execute(request) if self._claim(request) else _claimed_elsewhere(request)
        self._claiming.discard(request.request)
        self._audit(audit.ANSWERED, request, sender, reply)
        return reply

    def _claim(self, request: Request) -> bool:
        """Claim an order; False if another leader, or this one in an earlier lead, did so."""
        again = request.request in self._claiming
        self._claiming.add(request.request)  # before the call: its answer can get lost after Redis took the claim
        claim = self._store.claim(request.request, keys.CLAIM.ttl)  # longer than the request stays in its stream
        own = self._context.lead.lease()
        return claim == own or (again and claim.holder == own.holder)

    def _reject_misplaced(self, request: Request, sender: str) -> Reply:
        """Refuse an order on the viewers' stream; beyond a few per minute they are only counted."""
        self.refused += 1
        sentence = (
            f"{request.verb} is an order, but arrived on the stream of viewers: orders need a Redis user of the "
            "role operator (`rechannel acl add-role operator`)"
        )
        now = self._clock()
        if len(self._refusal_times) == _REFUSALS_AUDITED and 0 <= now - self._refusal_times[0] < 60:
            self._unaudited += 1
            return _refusal_reply(request, sentence)
        self._refusal_times.append(now)
        if self._unaudited:
            sentence += f"; {self._unaudited} more refusals like it were not recorded"
            self._unaudited = 0
        reply = _refusal_reply(request, sentence)
        self._log.warning("order-refused", verb=request.verb, user=request.user, refused=self.refused)
        self._audit(audit.REFUSED, request, sender, reply)
        return reply

    def _audit(self, event: str, request: Request, sender: str, reply: Reply) -> None:
        """Append the line about the end of a request; a failure is only logged."""
        try:
            self._append_line(event, request, sender, reply)
        except AuditError as error:
            self._log.error("audit-failed", sentence=str(error))

    def _append_line(self, event: str, request: Request, sender: str, reply: Reply | None = None) -> None:
        leader = self._context.lead.lease()
        self._audit_file.append(audit.line(event, request, sender=sender, at=self._clock(), leader=leader, reply=reply))


def _needs_plan(envelope: Envelope) -> bool:
    body = envelope.body
    return isinstance(body, Request) and body.verb in COMMANDS and COMMANDS[body.verb].plans


def _lifetime(envelope: Envelope) -> float:
    """Return the seconds for which a request is answered, at most as long as claims last."""
    return min(envelope.expires - envelope.time, keys.REQUESTS.ttl)


def _reply(request: Request, code: ExitCode, sentence: str) -> Reply:
    return Reply(request=request.request, code=int(code), sentence=sentence)


def _shortened(request: Request, message: Envelope, error: StoreTooLargeError) -> Reply:
    """Return a reply without its data; that of an order has the code of what was done."""
    reply = body_of(message, Reply)
    code = ExitCode.REFUSED if request.verb in READ_ONLY_VERBS else ExitCode(reply.code)
    return _reply(request, code, f"{reply.sentence}; the details are too large for a reply ({error})")


def _refusal_reply(request: Request, sentence: str) -> Reply:
    return _reply(request, ExitCode.REFUSED, sentence)


def _claimed_elsewhere(request: Request) -> Reply:
    """Return the reply to an order that another controller may have carried out."""
    sentence = (
        f"{request.verb} was accepted by a controller that lost the lead before it answered, and is not repeated; "
        "`rechannel history` and `rechannel status` show whether it was carried out"
    )
    return _reply(request, ExitCode.UNCLEAR, sentence)
