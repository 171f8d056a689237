"""Concurrency of planning, which may take minutes beside the other work.

`Mutex` is released while a plan or a model is made, so that the lease is renewed, requests are answered and other
applications' migrations go on. `BackgroundRunner` runs work that may plan in a thread of its own, so that its job
returns.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any, TypeVar

from rechannel.daemon.jobs.health import JobMonitor
from rechannel.daemon.jobs.running_plans import RunningPlans

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


class BackgroundRunner:
    """Runner of work that may take minutes, that of each job once at a time.

    ``patience``: seconds that `run` waits; then the work goes on in its own thread. None: `run` waits for the end, and
    there are no threads. ``monitor``: records work that goes on when its `run` returns, and its end, which is reported
    in the thread of that work. ``running_plans``: records the plans that the work makes.
    """

    def __init__(self, patience: float | None = None, monitor: JobMonitor | None = None) -> None:
        self.running_plans = monitor.running_plans if monitor is not None else RunningPlans()
        self._patience = patience
        self._monitor = monitor
        self._under_way: dict[str, Future[Any]] = {}

    def run(self, job: str, work: Callable[[], Result]) -> Result | None:
        """Begin the work and return its result; None while it, or the one before, goes on."""
        before = self._under_way.get(job)
        if before is not None and not before.done():
            return None
        future: Future[Result] = Future()
        if self._patience is None:
            _carry_out(work, future)
        else:
            threading.Thread(target=_carry_out, args=(work, future), name=job, daemon=True).start()
            self._under_way[job] = future  # only now: what could not start would never end
            wait([future], self._patience)
        if not future.done():
            if self._monitor is not None:
                self._monitor.jobs[job].note_under_way()
                future.add_done_callback(self._monitor.jobs[job].report_late)
            return None
        return future.result()


def _carry_out(work: Callable[[], Result], future: Future[Result]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:  # noqa: BLE001 raised by `run`
        future.set_exception(error)
