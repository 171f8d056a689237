"""Back-off and log of a failing job."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from rechannel.daemon.jobs.job import Job
from rechannel.wire.redis.errors import StoreRefusedError, StoreUnavailableError
from unit.daemon.fake_store import NOW, FakeClock
from unit.daemon.fakes import clocks


class Work:
    """Fails with an error, if there is one; counts its runs."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.runs = 0

    def __call__(self) -> None:
        self.runs += 1
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("error", [ZeroDivisionError("x"), StoreRefusedError("no rights")])
def test_a_failing_job_rests_longer_each_time(error: Exception) -> None:
    clock, work = FakeClock(), Work()
    work.error = error
    job = Job("job", 1.0, work, clocks(clock))
    started = []
    with capture_logs() as logs:
        for _ in range(200):
            runs = work.runs
            job.run()
            if work.runs > runs:
                started.append(clock() - NOW)
            clock.sleep(1)
    assert started == [0, 1, 3, 7, 15, 31, 63, 123, 183]
    assert len(logs) == len(started)
    assert job.status.failures_in_a_row == len(started)
    work.error = None
    clock.sleep(60)
    with capture_logs() as logs:
        job.run()
    assert [line["event"] for line in logs] == ["job-works-again"]
    assert job.status.failures_in_a_row == 0


def test_redis_away_is_logged_once_and_retried_each_time() -> None:
    clock, work = FakeClock(), Work()
    work.error = StoreUnavailableError("Redis at x cannot be reached")
    job = Job("observe", 1.0, work, clocks(clock))
    with capture_logs() as logs:
        for _ in range(10):
            job.run()
            clock.sleep(1)
        work.error = None
        job.run()
    assert work.runs == 11
    assert [line["event"] for line in logs] == ["redis-away", "job-works-again"]
