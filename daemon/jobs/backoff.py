"""Keeps a failing job from killing its loop, and from failing at full speed.

Redis being away is expected: it is said once, and again when it is back. Anything else is logged with its traceback,
and the job rests for a time that doubles with every failure in a row.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from rechannel.wire.redis.errors import StoreDeposedError, StoreError, StoreUnavailableError

_FIRST = 1.0
_LONGEST = 60.0


class RetryBackoff:
    """Wraps one job. ``clock`` in seconds."""

    def __init__(self, name: str, job: Callable[[], object], clock: Callable[[], float]) -> None:
        self.name = name
        self.failures = 0
        self._job = job
        self._clock = clock
        self._rest_until = 0.0
        self._away = False
        self._log = structlog.get_logger("rechannel.controller")

    def __call__(self) -> None:
        """Run the job unless it rests; never raises."""
        if self._clock() < self._rest_until:
            return
        try:
            self._job()
        except StoreUnavailableError as error:
            if not self._away:
                self._log.warning("redis-away", job=self.name, sentence=str(error))
            self._away = True
        except StoreDeposedError as error:
            self._log.warning("lead-over", job=self.name, sentence=str(error))  # the next renewal tells who leads now
        except StoreError as error:
            self._rest()
            self._log.error("redis-refuses", job=self.name, sentence=str(error), rest=self._resting())
        except Exception:  # noqa: BLE001 a defect in one cycle must not end the daemon; the brake bounds the noise
            self._rest()
            self._log.exception("job-failed", job=self.name, rest=self._resting())
        else:
            if self._away or self.failures:
                self._log.info("job-works-again", job=self.name)
            self._away, self.failures = False, 0

    def _rest(self) -> None:
        self.failures += 1
        self._rest_until = self._clock() + min(_LONGEST, _FIRST * 2 ** (self.failures - 1))

    def _resting(self) -> float:
        return self._rest_until - self._clock()
