"""What keeps a controller at work while a policy plans, which may take minutes with tens of thousands of tasks.

Three parts. A `Mutex` is let go of while a plan or a model is made, so that the lease is renewed, requests are answered
and other applications' migrations go on. `Aside` gives work that may make plans a thread of its own, so that the job
that began it comes back. `PlanningClock` knows the plans under way: one at a time for each application.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any, TypeVar

LONGEST = 600.0  # seconds; a plan that takes longer counts as a hang

Result = TypeVar("Result")


class Mutex:
    """A reentrant lock that its holder can let go of for a while, however often it holds it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner = 0
        self._depth = 0

    def __enter__(self) -> None:
        if self._owner != threading.get_ident():
            self._take()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._give()

    @contextmanager
    def released(self) -> Iterator[None]:
        """Let others have the lock meanwhile. What it guards may be another afterwards."""
        depth, self._depth = self._depth, 0
        self._give()
        try:
            yield
        finally:
            self._take()
            self._depth = depth

    def _take(self) -> None:
        self._lock.acquire()
        self._owner = threading.get_ident()

    def _give(self) -> None:
        self._owner = 0
        self._lock.release()


class Aside:
    """Work that may take minutes, each kind once at a time.

    ``patience``: seconds for which `run` waits for the end; then the work goes on in its own thread. None: there are no
    threads, and `run` waits however long it takes.
    """

    def __init__(self, patience: float | None = None) -> None:
        self._patience = patience
        self._under_way: dict[str, Future[Any]] = {}

    def run(self, kind: str, work: Callable[[], Result]) -> Result | None:
        """Begin the work and return its result, None while it, or the one before, goes on.

        Raises what the work raises: where that took longer, at the next run.
        """
        before = self._under_way.get(kind)
        if before is not None:
            if not before.done():
                return None
            del self._under_way[kind]
            before.result()
        future: Future[Result] = Future()
        self._under_way[kind] = future
        if self._patience is None:
            _carry_out(work, future)
        else:
            threading.Thread(target=_carry_out, args=(work, future), name=kind, daemon=True).start()
            wait([future], self._patience)
        if not future.done():
            return None
        del self._under_way[kind]
        return future.result()


def _carry_out(work: Callable[[], Result], future: Future[Result]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:  # noqa: BLE001 raised where the result is asked for
        future.set_exception(error)


class PlanningClock:
    """The plans under way, by application; to be read from any thread. ``steady``: seconds that nobody sets."""

    def __init__(self, steady: Callable[[], float] = time.monotonic) -> None:
        self._steady = steady
        self._plans: dict[str, tuple[float, threading.Event]] = {}  # since when, and what is set at the end

    @contextmanager
    def of(self, application: str) -> Iterator[None]:
        """Make a plan for an application that has none under way."""
        ended = threading.Event()
        self._plans[application] = self._steady(), ended
        try:
            yield
        finally:
            del self._plans[application]
            ended.set()

    def end_of(self, application: str) -> threading.Event | None:
        """Return what is set when the plan for an application is made; None without one."""
        plan = self._plans.get(application)
        return plan[1] if plan is not None else None

    def overdue(self) -> str:
        """Say which plan takes longer than any may, "" if none does: a policy that never ends is a hang."""
        now = self._steady()
        for application, (since, _) in list(self._plans.items()):
            if now - since > LONGEST:
                return f"the plan for {application} has not ended for {now - since:.0f} s; {LONGEST:.0f} s are allowed"
        return ""
