"""Watchdog: reports to the service manager that the controller's jobs make progress.

A heartbeat is sent once ``observe``, ``requests`` and ``follow`` have all returned since the last one. A job that fails
returns too: an absent Redis, a refusal or a defect is waited out by the job's back-off, and is no reason to restart. A
job that does not return (a lock that is never released, a scheduler that died) is one, whatever the other jobs do; so
is a plan that never ends. A plan of some minutes keeps no job from returning (`rechannel.daemon.jobs.planning`).
"""

from __future__ import annotations

import structlog

from rechannel.conf import lease_timing
from rechannel.conf.settings import Settings
from rechannel.daemon.jobs.clock import Clock
from rechannel.daemon.jobs.health import JobMonitor
from rechannel.daemon.jobs.job import Job
from rechannel.wire.systemd import Notifier

_STARTS = 90.0  # seconds; the start time that a service manager gives to any service
_TURNS = 4  # jobs that wait for Redis in turn, at one lock: the three below and ``decide``; ``view`` is a fifth
_SUSPENDED = 10.0  # seconds between two calls of `send_heartbeat`, which come at least every five
_SUPERVISED = ("observe", "requests", "follow")
_SHOWN = ("observe", "follow", "decide")


def patience(settings: Settings) -> float:
    """Return twice the seconds that all jobs may take in turn while Redis is away."""
    call = lease_timing.longest_call(settings.redis)
    turns = _TURNS + 1 if settings.controller.listen else _TURNS
    return 2 * turns * call + 3 * lease_timing.OBSERVE


class Watchdog:
    """Reports of a controller, by its jobs, to the service manager."""

    def __init__(self, notifier: Notifier, settings: Settings, monitor: JobMonitor, clock: Clock) -> None:
        self.patience = patience(settings)
        self.notifier = notifier
        self._monitor = monitor
        self._monotonic = clock.monotonic
        self._returns: dict[str, int] = {}  # job -> its returns at the last heartbeat
        self._hung = False
        self._called_at = self._monotonic()
        self._log = structlog.get_logger("rechannel.controller")

    def begin(self) -> None:
        """Tell the service manager which intervals this controller needs."""
        self.notifier.extend_timeout(max(_STARTS, self.patience))
        self.notifier.request_watchdog(self.patience)
        self.notifier.status("connects to Redis")

    def send_heartbeat(self) -> None:
        """Send what is due: readiness, status, and a heartbeat if all supervised jobs returned."""
        self._forgive_suspend()
        status, hung = self._status(), self._hung_jobs()
        if status and not hung:
            self.notifier.ready(status)
        if hung:
            self.notifier.status(f"hangs: {hung}")
        if bool(hung) != self._hung:
            self._hung = bool(hung)
            if hung:
                self._log.error("jobs-hang", sentence=hung, restart_after=self.notifier.watchdog or None)
            else:
                self._log.info("jobs-go-on")
        returns = {job.name: job.returns for job in self._supervised()}
        pending = [name for name, number in returns.items() if number == self._returns.get(name, 0)]
        if not pending and not hung and self.notifier.beat():
            self._returns = returns

    def end(self) -> None:
        """Report that the controller ends, which an absent Redis may delay."""
        self.notifier.stopping("ends and gives the lead up")
        self.notifier.extend_timeout(max(_STARTS, self.patience))

    def _supervised(self) -> list[Job]:
        return [self._monitor.jobs[name] for name in _SUPERVISED if name in self._monitor.jobs]

    def _status(self) -> str:
        """Return what the controller is doing; "" until it has spoken with Redis, or waits for it."""
        for job in self._supervised():
            if job.failure_status:
                return job.failure_status
        sentences = {name: job.sentence for name, job in self._monitor.jobs.items() if job.sentence}
        observed = sentences.get("observe", "")
        if not observed.startswith("leading"):
            return observed
        return "; ".join(sentences[name] for name in _SHOWN if name in sentences)

    def _forgive_suspend(self) -> None:
        """Do not count a time in which the whole process stood still as a hang of its jobs."""
        now = self._monotonic()
        if (stood := now - self._called_at) > _SUSPENDED:
            for job in self._supervised():
                job.returned_at += stood
        self._called_at = now

    def _hung_jobs(self) -> str:
        """Return which jobs have not returned for so long that they hang, or which plan.

        "" for none.
        """
        now, limit = self._monotonic(), max(self.notifier.watchdog / 2, self.patience * 3 / 4)
        late = [(job.name, now - job.returned_at) for job in self._supervised()]
        hung = [f"{name} for {age:.0f} s" for name, age in late if age > limit]
        return f"not returned: {', '.join(hung)}" if hung else self._monitor.running_plans.overdue()
