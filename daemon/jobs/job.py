"""Job of the controller: its work, its back-off, and the record of its runs.

A failing job is run again. Redis being away is expected and logged once, and again when it is back. After a refusal by
Redis or a defect the job rests for a time that doubles with every such failure in a row.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import structlog

from rechannel.daemon.jobs.clock import Clock
from rechannel.wire.redis.errors import StoreDeposedError, StoreError, StoreUnavailableError

_FIRST_REST = 1.0  # seconds
_LONGEST_REST = 60.0  # seconds


class FailureKind(StrEnum):
    """Cause of a failed run."""

    REDIS_AWAY = "redis-away"
    LEAD_OVER = "lead-over"
    REDIS_REFUSES = "redis-refuses"
    DEFECT = "job-failed"

    @property
    def is_defect(self) -> bool:
        """Whether this program failed, and not Redis or the lead."""
        return self is FailureKind.DEFECT


def classify(error: BaseException) -> FailureKind:
    """Return the cause of a job's error."""
    match error:
        case StoreUnavailableError():
            return FailureKind.REDIS_AWAY
        case StoreDeposedError():
            return FailureKind.LEAD_OVER
        case StoreError():
            return FailureKind.REDIS_REFUSES
        case _:
            return FailureKind.DEFECT


@dataclass(frozen=True)
class JobStatus:
    """Record of one job, such as ``observe``, ``follow`` or ``decide``.

    ``every``: seconds from start to start by the settings. ``began``: start of the last run; ``ended``: end of the last
    run that has ended; 0 before the first. ``duration``: seconds of the last run that has ended. ``lag``: seconds by
    which the last run began late. ``runs``: runs that have ended. ``problem``: sentence of the last failure, "" after a
    success; ``is_defect``: whether a defect caused it. Since the start: ``busy`` seconds in all runs, runs that failed
    by ``defects``, and all others (``redis_failures``). ``since``: time of the start.
    """

    job: str
    every: float
    began: float = 0.0
    ended: float = 0.0
    duration: float = 0.0
    lag: float = 0.0
    runs: int = 0
    failures_in_a_row: int = 0
    problem: str = ""
    is_defect: bool = False
    busy: float = 0.0
    defects: int = 0
    redis_failures: int = 0
    since: float = 0.0


class Job:
    """One job: its work, its back-off, and the record of its runs.

    A run that leaves work to the background (`rechannel.daemon.jobs.planning`) has ended, but succeeds or fails with
    the end of that work. ``status`` is frozen and replaced as a whole, so readers take no lock.

    ``every``: interval in seconds. ``describe``: returns a sentence about the result of the work, "" for none.
    ``sentence``: the last one. ``failure_status``: the last failure for the service manager, "" after a success.
    ``returns``, ``returned_at``: how often `run` came back, resting or not, and when it did last. ``alive_at``: when
    the job was made, or its last run ended.
    """

    def __init__(
        self,
        name: str,
        every: float,
        work: Callable[[], object],
        clock: Clock,
        describe: Callable[[Any], str] = lambda result: result if isinstance(result, str) else "",
    ) -> None:
        self.status = JobStatus(name, every, since=clock.wall())
        self.sentence = ""
        self.failure_status = ""
        self.returns = 0
        self.returned_at = self.alive_at = clock.monotonic()
        self._work = work
        self._describe = describe
        self._lock = threading.RLock()  # of the record: late work ends in another thread
        self._under_way = False  # whether work goes on in the background
        self._ended_late = False  # whether such work has ended since the last run began
        self._clock = clock
        self._rests_in_a_row = 0
        self._rests_until = 0.0
        self._away = False
        self._began: float | None = None
        self._log = structlog.get_logger("rechannel.controller")

    @property
    def name(self) -> str:
        """Name of the job."""
        return self.status.job

    def set_interval(self, every: float) -> None:
        """Note that the job is run every so many seconds from now on."""
        with self._lock:
            self.status = dataclasses.replace(self.status, every=every)

    def run(self) -> None:
        """Run the job unless it rests; never raises."""
        if self._clock.monotonic() >= self._rests_until:
            self._run()
        self.returns += 1
        self.returned_at = self._clock.monotonic()

    def _run(self) -> None:
        began, before = self._clock.monotonic(), self._began
        late = 0.0 if before is None else max(0.0, began - before - self.status.every)
        self._began = began
        with self._lock:
            self._ended_late = False
            self.status = dataclasses.replace(self.status, began=self._clock.wall(), lag=late)
        try:
            result = self._work()
        except Exception as error:  # noqa: BLE001 a defect in one cycle must not end the daemon
            with self._lock:
                self._end(began)
                self._fail(error)
            return
        with self._lock:
            self._end(began)
            if self._under_way or self._ended_late:
                self.sentence = self._describe(result) or self.sentence
            else:
                self._succeed(result)

    def note_under_way(self) -> None:
        """Note that the work of the present run goes on after it has returned."""
        with self._lock:
            self._under_way = True

    def report_late(self, outcome: Future[Any]) -> None:
        """Record the end of work that went on after its run had returned."""
        with self._lock:
            self._under_way, self._ended_late = False, True
            if (error := outcome.exception()) is None:
                self._succeed(outcome.result())
            else:
                self._fail(error)

    def _succeed(self, result: object) -> None:
        if self._away or self._rests_in_a_row:
            self._log.info("job-works-again", job=self.name)
        self._away, self._rests_in_a_row, self.failure_status = False, 0, ""
        self.sentence = self._describe(result) or self.sentence
        self.status = dataclasses.replace(self.status, failures_in_a_row=0, problem="", is_defect=False)

    def _fail(self, error: BaseException) -> None:
        kind, status = classify(error), self.status
        problem = f"{type(error).__name__} (see the log)" if kind.is_defect else str(error)
        match kind:
            case FailureKind.REDIS_AWAY:
                self.failure_status = f"waits for Redis: {error}"
                if not self._away:
                    self._log.warning("redis-away", job=self.name, sentence=str(error))
                self._away = True
            case FailureKind.LEAD_OVER:  # the next renewal shows who leads now
                self.failure_status = f"Redis refuses: {error}"
                self._log.warning("lead-over", job=self.name, sentence=str(error))
            case FailureKind.REDIS_REFUSES:
                self.failure_status = f"Redis refuses: {error}"
                rest = self._begin_rest()
                self._log.error("redis-refuses", job=self.name, sentence=str(error), rest=rest)
            case FailureKind.DEFECT:
                self.failure_status = f"{self.name} failed ({type(error).__name__}), see the log; it is tried again"
                rest = self._begin_rest()
                self._log.error("job-failed", job=self.name, rest=rest, exc_info=error)
        self.status = dataclasses.replace(
            status,
            failures_in_a_row=status.failures_in_a_row + 1,
            problem=problem,
            is_defect=kind.is_defect,
            defects=status.defects + kind.is_defect,
            redis_failures=status.redis_failures + (not kind.is_defect),
        )

    def _begin_rest(self) -> float:
        """Begin a rest, twice as long as the one before; returns its seconds."""
        rest: float = min(_LONGEST_REST, _FIRST_REST * 2**self._rests_in_a_row)
        self._rests_in_a_row += 1
        self._rests_until = self._clock.monotonic() + rest
        return rest

    def _end(self, began: float) -> None:
        self.alive_at = self._clock.monotonic()
        duration = self.alive_at - began
        self.status = dataclasses.replace(
            self.status,
            ended=self._clock.wall(),
            duration=duration,
            busy=self.status.busy + duration,
            runs=self.status.runs + 1,
        )
