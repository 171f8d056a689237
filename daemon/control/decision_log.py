"""Decision log in Redis: the last decisions, and for longer the applied ones.

Anyone who may ask for a plan can fill the stream of all decisions. The move budget and the decisions that can be rolled
back must not be pushed out with it, so applied decisions have a stream of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from rechannel.daemon.control.guard import BLOCKING
from rechannel.daemon.control.leadership import LeaderContext
from rechannel.wire import keys
from rechannel.wire.codes import DecisionResult, Trigger
from rechannel.wire.exit_codes import CommandError, ExitCode
from rechannel.wire.keys import KeyRule
from rechannel.wire.messages import Decision
from rechannel.wire.redis.store import Store

LoggedDecision = tuple[str, Decision]  # application, decision
# Orders that are tried again: the same result is published once. Of other triggers that holds for "not ready" alone.
_PUBLISHED_ONCE = frozenset({Trigger.DRAIN, Trigger.ROLLBACK, Trigger.SCHEDULED})
_NAME_WITHIN = 300.0  # seconds after a rollback in which the next one has to name its decision
_RETRIED = _PUBLISHED_ONCE | {Trigger.CONTINUATION, Trigger.EXECUTORS, Trigger.OVERLOAD, Trigger.IMBALANCE}


def read_decision_log(store: Store) -> list[LoggedDecision]:
    """Return each decision with its application, oldest first."""
    last, applied = (_read(store, rule) for rule in (keys.DECISIONS, keys.APPLIED))
    recent = {decision.decision for _, decision in last}
    # In the order of the streams: the clock may have been set back in between.
    return [entry for entry in applied if entry[1].decision not in recent] + last


def applied_decisions(log: list[LoggedDecision], application: str) -> list[Decision]:
    """Return the decisions that moved something in an application, the last one first."""
    return [entry for name, entry in reversed(log) if name == application and entry.result == DecisionResult.APPLIED]


def find_rollback_target(applied: Sequence[Decision], decision: str = "") -> Decision | None:
    """Return the decision of this id, or the last applied one not rolled back ("").

    ``applied``: decisions that moved something in one application, the last one first.
    """
    rolled_back = {entry.rollback_of for entry in applied}
    for entry in applied:
        if entry.decision == decision or not (decision or entry.rollback_of or entry.decision in rolled_back):
            return entry
    return None


def choose_rollback_target(applied: Sequence[Decision], decision: str, application: str, now: float) -> Decision:
    """Return the decision that an operator's rollback means; CommandError if there is none.

    Also CommandError if one was rolled back a moment ago and none is named, so that nobody rolls back two by accident.

    Parameters
    ----------
    applied
        Decisions that moved something in the application, the last one first.
    decision
        Id of the decision to roll back, "" for the last one that was not rolled back.
    application
        Name of the application, for the refusal.
    now
        Seconds since the epoch.
    """
    target = find_rollback_target(applied, decision)
    last = applied[0] if applied and applied[0].rollback_of and not decision else None
    if last is not None and 0 <= now - last.at < _NAME_WITHIN:
        ago = f"{last.rollback_of} was rolled back {now - last.at:.0f} s ago, by {last.decision}"
        more = f"to roll back {target.decision} too, name it with --decision" if target else ""
        raise CommandError(ExitCode.NOTHING, f"{ago}; {more or 'nothing before it is left to roll back'}")
    if target is not None:
        return target
    if decision:  # a wrong request; without a name there is just nothing to roll back
        sentence = f"no decision {decision} moved anything in {application}; `rechannel history` lists them"
        raise CommandError(ExitCode.REFUSED, sentence)
    sentence = f"no decision of the last days moved anything in {application} that was not rolled back"
    raise CommandError(ExitCode.NOTHING, sentence)


def append_decision(context: LeaderContext, application: str, decision: Decision) -> None:
    """Append a decision to the log in Redis."""
    envelope = context.envelope(decision, ttl=keys.DECISIONS.ttl, application=application)
    context.store.append(keys.DECISIONS, "", envelope)
    if decision.result == DecisionResult.APPLIED:
        context.store.append(keys.APPLIED, "", envelope)


def log_decision(application: str, decision: Decision) -> None:
    """Write a decision to the controller's log file, published or not."""
    structlog.get_logger("rechannel.controller").info(
        "decision",
        application=application,
        decision=decision.decision,
        result=decision.result,
        reason=decision.reason,
        sentence=decision.sentence,
    )


class DecisionDeduplicator:
    """Suppress repeated decisions: a retry that ends the same way is published once.

    Without it one idle query fills the history within minutes.
    """

    def __init__(self) -> None:
        self._published: dict[str, str] = {}  # trigger -> fingerprint of its last decision

    def repeats(self, decision: Decision) -> bool:
        """Return whether a decision says only what was published already.

        The numbers of "not ready" may differ.
        """
        once = decision.trigger in _PUBLISHED_ONCE or decision.result == DecisionResult.NOT_READY
        if not once or decision.result == DecisionResult.APPLIED or decision.reason in BLOCKING:
            return False
        return self._published.get(decision.trigger) == _fingerprint(decision)

    def record(self, decision: Decision) -> None:
        """Record a published decision."""
        if decision.trigger in _RETRIED and decision.reason not in BLOCKING:
            self._published[decision.trigger] = _fingerprint(decision)


def _fingerprint(decision: Decision) -> str:
    text = decision.reason if decision.result == DecisionResult.NOT_READY else decision.sentence
    return f"{decision.scheduled_plan}: {text}"  # each scheduled plan has its own last word


def _read(store: Store, rule: KeyRule) -> list[LoggedDecision]:
    entries = store.last(rule, "", rule.bound)
    return [(envelope.application, envelope.body) for envelope in entries if isinstance(envelope.body, Decision)]
