"""How the controller's jobs get on: when each ran last, how long, how late, and whether it still gets anywhere.

Each job has one writer, which replaces a frozen record as a whole; whoever reads takes no lock.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from rechannel.daemon.jobs.planning import PlanningClock
from rechannel.wire.redis.store import StoreError

_GRACE = 60.0  # seconds that a run may take, or that a failing job rests, before it counts as stuck
_INTERVALS = 3  # that may be missed on top
_FAILURES = 3  # in a row that are no accident any more


@dataclasses.dataclass(frozen=True)
class JobStatus:
    """The record of one job: ``observe``, ``requests``, ``follow``, ``decide``, ``view`` and others.

    ``every``: seconds from start to start by the settings. ``began``, ``ended``: start of the last run and end of the
    last one that ended, 0 before the first. ``duration``: seconds of the last run that ended. ``lag``: seconds by which
    the last run began late. ``runs``: runs that ended. ``failures``: consecutive failures up to now. ``problem``:
    sentence of the last failure, "" after a success. ``redis``: Redis caused that failure. Since the start: ``busy``
    seconds in all runs, ``failed`` runs by a defect, ``redis_failed`` runs by Redis. ``since``: time of the start.
    """

    job: str
    every: float
    began: float = 0.0
    ended: float = 0.0
    duration: float = 0.0
    lag: float = 0.0
    runs: int = 0
    failures: int = 0
    problem: str = ""
    redis: bool = False
    busy: float = 0.0
    failed: int = 0
    redis_failed: int = 0
    since: float = 0.0


class JobMonitor:
    """The jobs of one controller. ``clock``: seconds since the epoch; ``steady``: seconds that nobody sets.

    ``patience``: seconds that a job may rightly take while Redis is away; ``planning``: plans that may hang.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        steady: Callable[[], float],
        *,
        patience: float = 0.0,
        planning: PlanningClock | None = None,
    ) -> None:
        self._clock = clock
        self._steady = steady
        self._grace = max(_GRACE, patience)
        self._planning = planning or PlanningClock(steady)
        self._views: dict[str, JobStatus] = {}
        self._alive: dict[str, float] = {}  # job -> when it was begun with, or ended last, by the steady clock

    def watch(self, name: str, every: float, job: Callable[[], object]) -> Callable[[], object]:
        """Return the job with a record kept of its runs; it returns and raises what the job does."""
        self._views[name] = JobStatus(name, every, since=self._clock())
        self._breathe(name)
        last: list[float] = []

        def run() -> object:
            began = self._steady()
            late = max(0.0, began - last[0] - self._views[name].every) if last else 0.0
            last[:] = [began]
            self._views[name] = dataclasses.replace(self._views[name], began=self._clock(), lag=late)
            try:
                found = job()
            except Exception as error:
                self._end(name, began, error)
                raise
            self._end(name, began, None)
            return found

        return run

    def expect(self, name: str, every: float) -> None:
        """A job is run every so many seconds from now on."""
        self._views[name] = dataclasses.replace(self._views[name], every=every)

    def read(self) -> tuple[JobStatus, ...]:
        """Return the records of all jobs, in the order in which they were given."""
        return tuple(self._views.values())

    def stuck(self) -> str:
        """Say which job or plan gets nowhere, "" if all do. That Redis is away or slow is no fault of a job."""
        now = self._steady()
        for view in self.read():
            idle = now - self._alive[view.job]
            if idle > _INTERVALS * view.every + self._grace:
                return f"job {view.job} has not ended for {idle:.0f} s; it is to run every {view.every:g} s"
            if view.failures >= _FAILURES and not view.redis:
                return f"job {view.job} failed {view.failures} times in a row: {view.problem}"
        return self._planning.overdue()

    def heard(self, name: str, within: float) -> str:
        """Say why a job's last word from Redis is not to be relied on: it failed, or is over ``within`` seconds old."""
        view = self._views[name]
        if not view.ended:
            return f"job {name} has not ended yet"
        if view.problem:
            return view.problem
        idle = self._steady() - self._alive[name]
        return f"job {name} has not ended for {idle:.0f} s" if idle > within else ""

    def _end(self, name: str, began: float, error: Exception | None) -> None:
        view, now = self._views[name], self._steady()
        redis = isinstance(error, StoreError)
        problem = "" if error is None else str(error) if redis else f"{type(error).__name__} (see the log)"
        self._views[name] = dataclasses.replace(
            view,
            ended=self._clock(),
            duration=now - began,
            busy=view.busy + now - began,
            runs=view.runs + 1,
            failures=view.failures + 1 if error is not None else 0,
            failed=view.failed + (error is not None and not redis),
            redis_failed=view.redis_failed + redis,
            problem=problem,
            redis=redis,
        )
        self._breathe(name)

    def _breathe(self, name: str) -> None:
        self._alive[name] = self._steady()
