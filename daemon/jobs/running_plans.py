"""Plans under way, for the detection of hangs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

LONGEST = 600.0  # seconds; a plan that takes longer counts as a hang


@dataclass(frozen=True, eq=False)
class RunningPlan:
    """A plan under way. ``ended`` is set when it is made."""

    application: str
    since: float
    ended: threading.Event


class RunningPlans:
    """The plans under way; may be read from any thread. ``monotonic``: seconds."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._plans: set[RunningPlan] = set()

    @contextmanager
    def record(self, application: str) -> Iterator[RunningPlan]:
        """Record a plan while it is made."""
        plan = RunningPlan(application, self._monotonic(), threading.Event())
        self._plans.add(plan)
        try:
            yield plan
        finally:
            self._plans.remove(plan)
            plan.ended.set()

    def overdue(self) -> str:
        """Return the plan that takes longer than `LONGEST` as a sentence, "" for none."""
        now = self._monotonic()
        for plan in list(self._plans):
            age = now - plan.since
            if age > LONGEST:
                return f"the plan for {plan.application} has not ended for {age:.0f} s; {LONGEST:.0f} s are allowed"
        return ""
