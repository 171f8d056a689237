"""Gate: the predicted gain of a plan over a horizon against its predicted cost.

Gain is batch time saved: for each query, its predicted batch before minus after, times its batches in the horizon. Cost
is batch time spent: what loading the moved state is expected to add to the batches of the steps
(:mod:`rechannel.migration.plan.cost`). Both durations come from the replay (:mod:`rechannel.policies.prediction`), with
a standard error from the noise of the tasks that were seen. A plan passes if

* a query's batch shortens by ``gate.min_gain``, and at 95 % confidence by half of that,
* no query's batch becomes longer by more than ``gate.max_loss``, at 95 % confidence,
* no query's 95th percentile certainly (at 95 %) becomes longer by more than ``gate.max_loss``: few batches lie beyond
  it, and what is within the noise of the replay is no reason,
* at 95 % confidence the gain of all queries together exceeds the cost.

The share is asked of one query, not of every query: one that hardly changes must not keep another one slow. Of several
that gain as much, it is the one whose gain is most certain. Not counted are the cost of the moves to other
applications, and what a placement saves in network traffic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rechannel.conf.settings import GateSettings
from rechannel.policies.prediction.gain import CONFIDENCE, PredictedChange
from rechannel.wire.messages import GainCorrection

CERTAIN_SHARE = 0.5  # of gate.min_gain, at 95 % confidence
JUDGED_DRAWS = 1_000  # seed of the draws that plans are judged on, which are not those that they were chosen on


@dataclass(frozen=True)
class QueryGain:
    """Batch of a query before a plan, and its predicted change."""

    query: str
    before: float  # seconds
    change: PredictedChange
    batches_per_second: float
    name: str = ""  # for people
    correction: GainCorrection | None = None  # part of the change

    @property
    def after(self) -> float:
        """Predicted seconds of a batch after the plan."""
        return self.before * self.change.ratio

    @property
    def share(self) -> float:
        """Saved share of the batch."""
        return 1.0 - self.change.ratio

    def describe(self, subject: str = "batch") -> str:
        """Describe the change with its uncertainty."""
        doubt = f" ± {CONFIDENCE * self.change.error:.0%}" if self.change.error > 0 else ""
        times = f"{self.before:.2f} → {self.after:.2f} s"
        return f"{subject} of {self.name or self.query} {times} ({-self.share:+.0%}{doubt})"

    @property
    def p95(self) -> QueryGain | None:
        """The same of the 95th percentile of its batches, if that is predicted."""
        change = self.change
        if change.p95 is None:
            return None
        before = self.before * change.p95.before / change.before if change.before > 0 else 0.0
        return replace(self, before=before, change=change.p95, correction=None)


@dataclass(frozen=True)
class GateResult:
    """Verdict of the gate."""

    passes: bool
    gain: float  # seconds over the horizon
    cost: float  # seconds over the horizon
    sentence: str
    measured: float  # of the condition that decided
    limit: float
    unit: str  # of both


def evaluate_gate(queries: Sequence[QueryGain], cost: float, settings: GateSettings) -> GateResult:
    """Evaluate a plan that adds ``cost`` seconds to the batches."""
    weights = [item.before * item.batches_per_second * settings.horizon for item in queries]
    gain = sum(weight * item.share for weight, item in zip(weights, queries, strict=True))
    # Queries that share executors are wrong together, so their errors do not cancel.
    error = sum(weight * item.change.error for weight, item in zip(weights, queries, strict=True))
    least = gain - CONFIDENCE * error
    balance = f"gain {gain:.1f} s over {settings.horizon:g} s against a cost of {cost:.1f} s"
    share = max((item.share for item in queries if item.before > 0), default=0.0)
    shorter = [item for item in queries if item.before > 0 and item.share >= settings.min_gain and item.share > 0]
    if not shorter:
        change = f"a batch would shorten by {share:.1%} at most" if share > 0 else "no query's batch would shorten"
        sentence = f"{change}, gate.min_gain asks for {settings.min_gain:.1%}: {balance}"
        return GateResult(False, gain, cost, sentence, share, settings.min_gain, "share")
    best = max(shorter, key=lambda item: (item.change.least_gain, item.query))
    certain = CERTAIN_SHARE * settings.min_gain
    if best.change.least_gain < certain:
        change = f"{best.describe()}, at least {certain:.1%} must be certain"
        sentence = f"the gain is not certain enough: {change}: {balance}"
        return GateResult(False, gain, cost, sentence, best.change.least_gain, certain, "share")
    worst = max(queries, key=lambda item: (item.change.largest_loss, item.query))
    if worst.change.largest_loss > settings.max_loss:
        sentence = f"another query could lose more than gate.max_loss {settings.max_loss:.0%}: {worst.describe()}"
        return GateResult(False, gain, cost, sentence, worst.change.largest_loss, settings.max_loss, "share")
    slowest = max(queries, key=lambda item: (item.change.tail_loss, item.query))
    if (tail := slowest.p95) is not None and slowest.change.tail_loss > settings.max_loss:
        change = tail.describe("95th percentile of the batches")
        sentence = f"the slowest batches would lose more than gate.max_loss {settings.max_loss:.0%}: {change}"
        return GateResult(False, gain, cost, sentence, slowest.change.tail_loss, settings.max_loss, "share")
    passes = least > cost
    sentence = f"{best.describe()}, {balance}"
    return GateResult(passes, gain, cost, sentence if passes else f"moving does not pay: {sentence}", least, cost, "s")
