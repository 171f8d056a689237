"""Scheduler of the controller's jobs on APScheduler."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import UTC, datetime

import structlog
from apscheduler.schedulers.background import BackgroundScheduler

from rechannel.daemon.jobs.clock import Clock, ClockJumpDetector, due_after_jump
from rechannel.daemon.jobs.job import Job

_LONGEST_GRACE = 60.0  # seconds by which a run may begin late


class JobRunner:
    """Jobs on APScheduler, each in one instance at a time."""

    def __init__(self, jobs: Iterable[Job], clock: Clock) -> None:
        self._jobs = {job.name: job for job in jobs}
        self._clock = clock
        self._jumps = ClockJumpDetector(clock)
        self._scheduler = BackgroundScheduler(timezone=UTC)
        self._log = structlog.get_logger("rechannel.controller")
        logging.getLogger("apscheduler").setLevel(logging.CRITICAL)  # it warns every second while Redis is slow
        for job in self._jobs.values():
            every = job.status.every
            self._scheduler.add_job(
                job.run,
                "interval",
                seconds=every,
                id=job.name,
                max_instances=1,
                coalesce=True,
                misfire_grace_time=max(1, int(min(every, _LONGEST_GRACE))),
            )

    def start(self) -> None:
        """Run the jobs from now on."""
        self._scheduler.start()

    def stop(self) -> None:
        """Wait for running jobs, and run them no more."""
        self._scheduler.shutdown(wait=True)

    def reschedule(self, name: str, every: float) -> None:
        """Run a job every so many seconds from now on."""
        self._jobs[name].set_interval(every)
        self._scheduler.reschedule_job(name, trigger="interval", seconds=every)

    def follow_clock(self) -> None:
        """Move all due times if the clock was set; APScheduler would wait for the old ones."""
        if not (jump := self._jumps.pop_jump()):
            return
        self._log.warning("clock-was-set", seconds=round(jump, 1))
        for name, job in self._jobs.items():
            entry = self._scheduler.get_job(name)
            if entry is not None and entry.next_run_time is not None:
                due = due_after_jump(entry.next_run_time.timestamp(), jump, self._clock.wall(), job.status.every)
                self._scheduler.modify_job(name, next_run_time=datetime.fromtimestamp(due, UTC))
