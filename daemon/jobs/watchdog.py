"""How the controller's jobs show the service manager that they get on.

A heartbeat is sent once `observe`, `requests` and `follow` have all come back since the last one. A job that fails
comes back too: Redis being away, a refusal or a defect is waited out by the job's `RetryBackoff`, and is no reason to
restart.
A job that does not come back (a lock that is never let go, a scheduler that died) is one, whatever the other jobs do;
so is a plan that never ends. A plan that takes minutes keeps no job from coming back
(`rechannel.daemon.jobs.planning`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import structlog

from rechannel.conf import lease_timing
from rechannel.conf.redis_url import SENTINEL_SCHEME
from rechannel.conf.settings import Settings
from rechannel.daemon.jobs.backoff import RetryBackoff
from rechannel.daemon.jobs.planning import PlanningClock
from rechannel.wire.messages import Decision
from rechannel.wire.redis.errors import StoreError, StoreUnavailableError
from rechannel.wire.systemd import Notifier

_STARTS = 90.0  # seconds; as long as a service manager gives any service
_TURNS = 4  # jobs that wait for Redis in turn, at one lock: the three below and the decision; `view` is a fifth
_STOOD = 10.0  # seconds between two calls of `beat`, which come every five at least
_JOBS = ("observe", "requests", "follow")


def patience(settings: Settings) -> float:
    """Return the seconds in which the jobs come back though Redis is away, and twice that."""
    call = lease_timing.longest_call(settings.redis.timeout, sentinels=settings.redis.url.startswith(SENTINEL_SCHEME))
    turns = _TURNS + 1 if settings.controller.listen else _TURNS
    return 2 * turns * call + 3 * settings.controller.observe


class Watchdog:
    """The controller's word to the service manager: `watched` wraps its jobs, `beat` is called every little while."""

    def __init__(
        self,
        notifier: Notifier,
        settings: Settings,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        planning: PlanningClock | None = None,
    ) -> None:
        self.patience = patience(settings)
        self.notifier = notifier
        self._monotonic = monotonic
        self._planning = planning or PlanningClock(monotonic)
        self._lock = threading.Lock()
        self._back = dict.fromkeys(_JOBS, self._monotonic())  # job -> when it came back last
        self._missing = set(_JOBS)  # since the last heartbeat
        self._trouble: dict[str, str] = {}  # job -> why it failed when it ran last
        self._said: dict[str, str] = {}
        self._hung = False
        self._asked = self._monotonic()  # when `beat` was called last
        self._log = structlog.get_logger("rechannel.controller")

    def begin(self) -> None:
        """Tell the service manager what patience this controller needs."""
        self.notifier.extend_timeout(max(_STARTS, self.patience))
        self.notifier.request_watchdog(self.patience)
        self.notifier.status("asks Redis")

    def watched(self, title: str, job: Callable[[], object]) -> Callable[[], None]:
        """Wrap one job, in its `RetryBackoff`; what it returns or raises becomes the status."""
        brake = RetryBackoff(title, lambda: self._heard(title, job), self._monotonic)

        def run() -> None:
            brake()
            with self._lock:
                self._missing.discard(title)
                if title in self._back:
                    self._back[title] = self._monotonic()

        return run

    def beat(self) -> None:
        """Send what is due: that the controller works, its status, a heartbeat if all jobs came back."""
        with self._lock:
            self._excuse()
            status, hung = self._sentence(), self._overdue()
            complete = not self._missing and not hung
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
        if complete and self.notifier.beat():
            with self._lock:
                self._missing = set(_JOBS)

    def end(self) -> None:
        """Say that the controller ends; a standing Redis may make that take a while."""
        self.notifier.stopping("ends and gives the lead up")
        self.notifier.extend_timeout(max(_STARTS, self.patience))

    def _heard(self, title: str, job: Callable[[], object]) -> None:
        try:
            found = job()
        except StoreUnavailableError as error:
            self._say(title, trouble=f"waits for Redis: {error}")
            raise
        except StoreError as error:
            self._say(title, trouble=f"Redis refuses: {error}")
            raise
        except Exception as error:
            self._say(title, trouble=f"{title} failed ({type(error).__name__}), see the log; it is tried again")
            raise
        sentence = found if isinstance(found, str) else ""
        if isinstance(found, Sequence) and found and isinstance(found[-1], Decision):
            sentence = f"last decision: {found[-1].sentence}"
        self._say(title, sentence)

    def _say(self, title: str, sentence: str = "", *, trouble: str = "") -> None:
        with self._lock:
            self._trouble.pop(title, None)
            if trouble and title in _JOBS:  # the decision comes too seldom for its trouble to be news
                self._trouble[title] = trouble
            if sentence:
                self._said[title] = sentence

    def _sentence(self) -> str:
        """Return what the controller is doing; empty until it has spoken with Redis, or waits for it."""
        if self._trouble:
            return next(iter(self._trouble.values()))
        observed = self._said.get("observe", "")
        if not observed.startswith("leading"):
            return observed
        return "; ".join(self._said[title] for title in ("observe", "follow", "decide") if title in self._said)

    def _excuse(self) -> None:
        """Hold nothing against the jobs for a time in which the whole process stood still."""
        now = self._monotonic()
        if (stood := now - self._asked) > _STOOD:
            self._back = {title: back + stood for title, back in self._back.items()}
        self._asked = now

    def _overdue(self) -> str:
        """Return which jobs have not come back for so long that they hang, or which plan; empty if none."""
        now, limit = self._monotonic(), max(self.notifier.watchdog / 2, self.patience * 3 / 4)
        late = [f"{title} for {now - back:.0f} s" for title, back in self._back.items() if now - back > limit]
        return f"not back: {', '.join(late)}" if late else self._planning.overdue()
