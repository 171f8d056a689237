"""Gate: the predicted gain of a plan over a horizon against its predicted cost.

Gain is batch time saved: for each query, its critical path before minus after, times its batches in the horizon. A
query that gets slower counts against it. Cost is batch time spent: what loading the moved state is expected to add to
the batches of the steps (:mod:`rechannel.migration.plan.cost`). A plan passes if at least one query gains
``gate.min_gain`` of its critical path, and the whole gains more than it costs. The share is asked of the query that
gains most, not of every query: one that hardly changes must not keep another one slow.

Not priced are the cost of the moves to other applications, and what a placement saves in network traffic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rechannel.conf.settings import GateSettings


@dataclass(frozen=True)
class QueryGain:
    """Critical path of a query before and after a plan, in seconds per batch.

    ``name`` and ``batch_seconds`` (of a whole batch now, 0 if unknown) are for people: a path is often a small part of
    its batch.
    """

    query: str
    before: float
    after: float
    batches_per_second: float
    name: str = ""
    batch_seconds: float = 0.0

    @property
    def share(self) -> float:
        """Saved share of the critical path."""
        return (self.before - self.after) / self.before


@dataclass(frozen=True)
class GateResult:
    """Verdict of the gate: ``gain`` and ``cost`` in seconds over the horizon.

    ``measured`` and ``limit``, in ``unit``, are the two sides of the condition that decided.
    """

    passes: bool
    gain: float
    cost: float
    sentence: str
    measured: float
    limit: float
    unit: str


def evaluate_gate(queries: Sequence[QueryGain], cost: float, settings: GateSettings) -> GateResult:
    """Evaluate a plan that adds ``cost`` seconds to the batches."""
    gain = sum((item.before - item.after) * item.batches_per_second for item in queries) * settings.horizon
    best = max((item for item in queries if item.before > 0), key=lambda item: (item.share, item.query), default=None)
    share = best.share if best is not None else 0.0
    balance = f"gain {gain:.1f} s over {settings.horizon:g} s against a cost of {cost:.1f} s"
    if best is None or share < settings.min_gain or share <= 0:
        change = (
            f"a critical path would shorten by {share:.1%} at most"
            if share > 0
            else "no query's critical path would shorten"
        )
        sentence = f"{change}, gate.min_gain asks for {settings.min_gain:.1%}: {balance}"
        return GateResult(False, gain, cost, sentence, share, settings.min_gain, "share")
    change = f"critical path of {best.name or best.query} {best.before:.2f} → {best.after:.2f} s ({-share:+.0%})"
    saved = best.before - best.after
    if best.batch_seconds > saved:  # a path that shrinks by more than a batch lasts is no prediction of it
        change += f", its batch {best.batch_seconds:.2f} → {best.batch_seconds - saved:.2f} s"
    passes = gain > cost
    sentence = f"{change}, {balance}" if passes else f"moving does not pay: {change}, but {balance}"
    return GateResult(passes, gain, cost, sentence, gain, cost, "s")
