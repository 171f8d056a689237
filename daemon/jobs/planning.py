"""Concurrency of planning, which may take minutes beside the other work.

`Mutex` is released while a plan or a model is made, so that the lease is renewed, requests are answered and other
applications' migrations go on. `BackgroundRunner` runs work that may plan in a thread of its own, so that its job
returns. `RunningPlans` has the plans under way, for the detection of hangs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

LONGEST = 600.0  # seconds; a plan that takes longer counts as a hang

Result = TypeVar("Result")


class Mutex:
    """Reentrant lock that its holder can release for a while, however often it holds it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner = 0
        self._depth = 0

    def __enter__(self) -> None:
        if self._owner != threading.get_ident():
            self._acquire()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._release()

    @contextmanager
    def released(self) -> Iterator[None]:
        """Release the lock for a while; what it guards may have changed afterwards."""
        if self._owner != threading.get_ident():
            raise RuntimeError("only the thread that holds the lock can release it")
        depth, self._depth = self._depth, 0
        self._release()
        try:
            yield
        finally:
            self._acquire()
            self._depth = depth

    def _acquire(self) -> None:
        self._lock.acquire()
        self._owner = threading.get_ident()

    def _release(self) -> None:
        self._owner = 0
        self._lock.release()


class LateWork(Protocol):
    """Record of work that goes on after its run has returned, by job."""

    def note_under_way(self, job: str) -> None:
        """Note that it goes on."""

    def report_late(self, job: str, outcome: Future[Any]) -> None:
        """Record its end."""


class BackgroundRunner:
    """Runner of work that may take minutes, that of each job once at a time.

    ``patience``: seconds that `run` waits; then the work goes on in its own thread. None: `run` waits for the end, and
    there are no threads. ``running_plans``: records the plans that the work makes. ``late_work``: is told of work that
    goes on when its `run` returns, and of its end, in the thread of that work.
    """

    def __init__(
        self,
        patience: float | None = None,
        running_plans: RunningPlans | None = None,
        late_work: LateWork | None = None,
    ) -> None:
        self.running_plans = running_plans or RunningPlans()
        self._patience = patience
        self._late_work = late_work
        self._under_way: dict[str, Future[Any]] = {}

    def run(self, job: str, work: Callable[[], Result]) -> Result | None:
        """Begin the work and return its result; None while it, or the one before, goes on."""
        before = self._under_way.get(job)
        if before is not None and not before.done():
            return None
        future: Future[Result] = Future()
        self._under_way[job] = future
        if self._patience is None:
            _carry_out(work, future)
        else:
            threading.Thread(target=_carry_out, args=(work, future), name=job, daemon=True).start()
            wait([future], self._patience)
        if not future.done():
            if self._late_work is not None:
                self._late_work.note_under_way(job)
                future.add_done_callback(partial(self._late_work.report_late, job))
            return None
        return future.result()


def _carry_out(work: Callable[[], Result], future: Future[Result]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:  # noqa: BLE001 raised by `run`
        future.set_exception(error)


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
        """Return which plan takes longer than any may, "" for none."""
        now = self._monotonic()
        for plan in list(self._plans):
            age = now - plan.since
            if age > LONGEST:
                return f"the plan for {plan.application} has not ended for {age:.0f} s; {LONGEST:.0f} s are allowed"
        return ""
