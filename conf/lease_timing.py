"""Timing of the lease: the inequality that keeps two controllers from leading at once.

A leader measures its lease on a monotonic clock, from the moment *before* it requested it, and stops acting a reserve
before the lease ends in Redis. All calls that it began as leader have therefore ended, or timed out, before another
controller can lead. To leave time for a renewal:

    controller.lease x (1 - drift)  >=  OBSERVE + 2 x call

``call`` is the longest duration of one call to Redis: one `redis.timeout` to connect, one for the answer, and with
sentinels one more to ask them. One ``call`` covers a renewal that Redis answers at the last moment, the other is the
reserve. docs/high-availability.md explains the inequality for operators.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rechannel.conf.redis_url import SENTINEL_SCHEME

if TYPE_CHECKING:
    from rechannel.conf.settings import RedisSettings

OBSERVE = 1.0  # seconds between two cycles of a controller that read reports and requests and renew the lease
DRIFT = 0.01  # largest difference in rate of two machines' clocks, as a share; NTP allows a twentieth of it
_CALL, _CALL_WITH_SENTINELS = 2, 3  # in timeouts


def longest_call(redis: RedisSettings) -> float:
    """Return the seconds after which a call to Redis has been answered or has failed."""
    return redis.timeout * (_CALL_WITH_SENTINELS if redis.url.startswith(SENTINEL_SCHEME) else _CALL)


def acting_time(lease: float, call: float) -> float:
    """Return the seconds after a renewal's request in which a leader may act."""
    return lease * (1 - DRIFT) - call


def least_lease(call: float) -> float:
    """Return the shortest lease in seconds that meets the inequality."""
    return (OBSERVE + 2 * call) / (1 - DRIFT)


def errors(lease: float, redis: RedisSettings) -> list[str]:
    """Return a sentence with the cure if these seconds do not meet the inequality."""
    call = longest_call(redis)
    least = least_lease(call)
    if lease >= least or math.isclose(lease, least):
        return []
    longest_timeout = (lease * (1 - DRIFT) - OBSERVE) / 2 / (call / redis.timeout)
    cure = f"raise controller.lease to {math.ceil(least * 10) / 10:g}"
    if longest_timeout >= 0.01:
        cure += f", or lower redis.timeout to {int(longest_timeout * 100) / 100:g}"
    sentence = (
        f"controller.lease: {lease:g} s is too short for redis.timeout = {redis.timeout:g} s: a leader must renew it, "
        f"and stop acting before another can lead, though a call to Redis takes up to {call:g} s; {cure}"
    )
    return [sentence]
