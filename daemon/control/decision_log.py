"""Decision log in Redis: the last decisions, and for longer the applied ones.

Anyone who may ask for a plan can fill the stream of all decisions. The move budget and the decisions that can be rolled
back must not be pushed out with it, so applied decisions have a stream of their own.
"""

from __future__ import annotations

import structlog

from rechannel.daemon.control.guard import BLOCKING
from rechannel.daemon.control.leadership import LeaderContext
from rechannel.wire import keys
from rechannel.wire.codes import DecisionResult, Law, Trigger
from rechannel.wire.keys import KeyRule
from rechannel.wire.messages import Decision
from rechannel.wire.redis.store import Store

LoggedDecision = tuple[str, Decision]  # application, decision
# Orders that are tried again: the same result is published once. Of other triggers that holds for "not ready" alone.
_PUBLISHED_ONCE = frozenset({Trigger.DRAIN, Trigger.SCHEDULED})
_RETRIED = _PUBLISHED_ONCE | {
    Trigger.ROLLBACK,
    Trigger.CONTINUATION,
    Trigger.EXECUTORS,
    Trigger.OVERLOAD,
    Trigger.IMBALANCE,
}


def read_decision_log(store: Store) -> list[LoggedDecision]:
    """Return each decision with its application, oldest first."""
    # In the order of the streams: the clock may have been set back in between. A decision is stored again where the
    # answer was lost.
    last, applied = ({it[1].decision: it for it in _read(store, rule)} for rule in (keys.DECISIONS, keys.APPLIED))
    return [entry for name, entry in applied.items() if name not in last] + [*last.values()]


def applied_decisions(log: list[LoggedDecision], application: str) -> list[Decision]:
    """Return the decisions that moved something in an application, the last one first."""
    return [entry for name, entry in reversed(log) if name == application and entry.result == DecisionResult.APPLIED]


def is_rollback_canceled(log: list[LoggedDecision], application: str, target: Decision) -> bool:
    """Return whether the rollback of an application's decision was canceled after it."""
    for name, decision in reversed(log):
        if decision.decision == target.decision:
            return False
        if name == application and decision.trigger == Trigger.ROLLBACK and decision.reason == Law.CANCELED:
            return True
    return False


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

    Without it one idle query fills the history within minutes. What a reply names is always published.
    """

    def __init__(self) -> None:
        self._published: dict[str, str] = {}  # trigger -> fingerprint of its last decision

    def repeats(self, decision: Decision) -> bool:
        """Return whether a decision says only what was published already.

        The numbers of "not ready" may differ.
        """
        once = decision.trigger in _PUBLISHED_ONCE or decision.result == DecisionResult.NOT_READY
        if not once or decision.result == DecisionResult.APPLIED or not _is_retry(decision):
            return False
        return self._published.get(decision.trigger) == _fingerprint(decision)

    def record(self, decision: Decision) -> None:
        """Record a published decision."""
        if decision.trigger in _RETRIED and _is_retry(decision):
            self._published[decision.trigger] = _fingerprint(decision)


def _is_retry(decision: Decision) -> bool:
    """Return whether a decision may be a retry.

    A guard's refusal is none, nor is the dry run of a drain, which has a user.
    """
    return decision.reason not in BLOCKING and not (decision.trigger == Trigger.DRAIN and decision.user)


def _fingerprint(decision: Decision) -> str:
    text = decision.reason if decision.result == DecisionResult.NOT_READY else decision.sentence
    return f"{decision.scheduled_plan}: {text}"  # each scheduled plan has its own last word


def _read(store: Store, rule: KeyRule) -> list[LoggedDecision]:
    entries = store.last(rule, "", rule.bound)
    return [(envelope.application, envelope.body) for envelope in entries if isinstance(envelope.body, Decision)]
