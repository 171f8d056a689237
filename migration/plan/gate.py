"""Whether moving pays: the predicted gain over a horizon against the predicted cost. Never move for noise.

Gain is batch time saved: for each query, its critical path before minus after, times its batches in the horizon (a
query that gets slower counts against it). Cost is batch time spent: what the loading of the moved state is expected to
add to the batches of the steps (:mod:`rechannel.migration.plan.cost`). A plan passes where some query gains at least
``gate.min_gain`` of its critical path, and the whole gains more than it costs. The share is asked of the query that
gains most, not of every query: one that hardly changes must not keep another one slow.

Not priced: what the moves cost other applications, and what a placement saves in network traffic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rechannel.conf.settings import GateSettings


@dataclass(frozen=True)
class GateResult:
    """What the gate says. ``gain`` and ``cost`` in seconds over the horizon, ``share`` that of ``query``, the best.

    ``measured`` and ``limit`` in ``unit``: what there is of what was asked for.
    """

    passes: bool
    code: str  # ok | too-small | too-dear
    gain: float
    cost: float
    query: str
    share: float
    sentence: str

    @property
    def measured(self) -> float:
        """What a plan has of what the gate asks for."""
        return self.share if self.code == "too-small" else self.gain

    def limit(self, settings: GateSettings) -> float:
        """Return what the gate asks for: the least share, or more gain than what moving costs."""
        return settings.min_gain if self.code == "too-small" else self.cost

    @property
    def unit(self) -> str:
        """Return what the two are counted in."""
        return "share" if self.code == "too-small" else "s"


def judge(
    before: Mapping[str, float],
    after: Mapping[str, float],
    batches_per_second: Mapping[str, float],
    *,
    cost: float,
    settings: GateSettings,
    names: Mapping[str, str] | None = None,
    batch_seconds: Mapping[str, float] | None = None,
) -> GateResult:
    """Judge a plan that adds ``cost`` seconds to the batches.

    ``before`` and ``after`` are critical paths in seconds per batch by query; ``names`` and ``batch_seconds``, what a
    batch lasts now, for people: a path is often a small part of its batch.
    """
    gain = sum((before[query] - after[query]) * batches_per_second[query] for query in before) * settings.horizon
    shares = {query: (before[query] - after[query]) / before[query] for query in before if before[query] > 0}
    query = max(shares, key=lambda name: (shares[name], name), default="")
    share = shares.get(query, 0.0)
    balance = f"gain {gain:.1f} s over {settings.horizon:g} s against a cost of {cost:.1f} s"
    if share < settings.min_gain or share <= 0:
        change = (
            f"a critical path would shorten by {share:.1%} at most"
            if share > 0
            else "no query's critical path would shorten"
        )
        sentence = f"{change}, gate.min_gain asks for {settings.min_gain:.1%}: {balance}"
        return GateResult(False, "too-small", gain, cost, query, share, sentence)
    change = (
        f"critical path of {(names or {}).get(query, query)} {before[query]:.2f} → {after[query]:.2f} s ({-share:+.0%})"
    )
    lasts, saved = (batch_seconds or {}).get(query, 0.0), before[query] - after[query]
    if lasts > saved:  # a path that shrinks by more than a batch lasts is no prediction of it
        change += f", its batch {lasts:.2f} → {lasts - saved:.2f} s"
    if gain <= cost:
        return GateResult(False, "too-dear", gain, cost, query, share, f"moving does not pay: {change}, but {balance}")
    return GateResult(True, "ok", gain, cost, query, share, f"{change}, {balance}")
