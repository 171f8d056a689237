from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from rechannel.daemon.jobs.backoff import RetryBackoff
from rechannel.wire.redis.errors import StoreRefusedError, StoreUnavailableError
from unit.daemon.fakes import NOW, FakeClock


class Job:
    """Fails as told; counts its runs."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.runs = 0

    def __call__(self) -> None:
        self.runs += 1
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("error", [ZeroDivisionError("x"), StoreRefusedError("no rights")])
def test_a_failing_job_rests_longer_and_longer_and_never_raises(error: Exception) -> None:
    clock, job = FakeClock(), Job()
    job.error = error
    brake = RetryBackoff("job", job, clock)
    started = []
    with capture_logs() as logs:
        for _ in range(200):
            runs = job.runs
            brake()
            if job.runs > runs:
                started.append(clock() - NOW)
            clock.sleep(1)
    assert started == [0, 1, 3, 7, 15, 31, 63, 123, 183]
    assert len(logs) == len(started)
    job.error = None
    clock.sleep(60)
    with capture_logs() as logs:
        brake()
    assert [line["event"] for line in logs] == ["job-works-again"]
    assert brake.failures == 0


def test_redis_being_away_is_said_once_and_tried_at_every_turn() -> None:
    clock, job = FakeClock(), Job()
    job.error = StoreUnavailableError("Redis at x cannot be reached")
    brake = RetryBackoff("observe", job, clock)
    with capture_logs() as logs:
        for _ in range(10):
            brake()
            clock.sleep(1)
        job.error = None
        brake()
    assert job.runs == 11
    assert [line["event"] for line in logs] == ["redis-away", "job-works-again"]
