"""Health of the controller's jobs: whether each one, and every plan, still makes progress."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rechannel.daemon.jobs.clock import Clock
from rechannel.daemon.jobs.job import Job, JobStatus
from rechannel.daemon.jobs.running_plans import RunningPlans

_GRACE = 60.0  # seconds that a run may take, or that a failing job rests, before it counts as stuck
_INTERVALS = 3  # missed intervals on top of that
_FAILURES = 3  # in a row that are no accident any more


class JobMonitor:
    """The jobs of one controller, and their health.

    ``patience``: seconds that a job may take while Redis is away. ``running_plans``: plans that may hang.
    """

    def __init__(self, clock: Clock, *, patience: float = 0.0) -> None:
        self.jobs: dict[str, Job] = {}
        self.running_plans = RunningPlans(clock.monotonic)
        self._clock = clock
        self._grace = max(_GRACE, patience)

    def add(self, name: str, every: float, work: Callable[[], object], **options: Any) -> Job:
        """Return a new job, to be run every so many seconds; ``options`` are those of `Job`."""
        job = self.jobs[name] = Job(name, every, work, self._clock, **options)
        return job

    def read(self) -> tuple[JobStatus, ...]:
        """Return the records of all jobs, in the order of their creation."""
        return tuple(job.status for job in self.jobs.values())

    def stuck(self) -> str:
        """Return which job or plan makes no progress, "" for none.

        An absent or slow Redis is no fault of a job.
        """
        now = self._clock.monotonic()
        for job in self.jobs.values():
            status, idle = job.status, now - job.alive_at
            if idle > _INTERVALS * status.every + self._grace:
                return f"job {job.name} has not ended for {idle:.0f} s; it is to run every {status.every:g} s"
            if status.is_defect and status.failures_in_a_row >= _FAILURES:
                return f"job {job.name} failed {status.failures_in_a_row} times in a row: {status.problem}"
        return self.running_plans.overdue()

    def staleness(self, name: str, within: float) -> str:
        """Return why a job's last result is invalid: a failure, or an age over ``within``."""
        job = self.jobs[name]
        if not job.status.ended:
            return f"job {name} has not ended yet"
        if job.status.problem:
            return job.status.problem
        idle = self._clock.monotonic() - job.alive_at
        return f"job {name} has not ended for {idle:.0f} s" if idle > within else ""
