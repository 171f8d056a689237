"""The times that keep two controllers from leading at once, and the inequality they must meet.

A leader counts its lease from the moment *before* it asked for it, by a clock that is never set, and stops acting
`reserve` seconds before the lease ends in Redis. So what it began while it held the lead has ended, or was given up,
when another can lead. For that to leave it time to renew:

    controller.lease x (1 - drift)  >=  controller.observe + 2 x call

``call`` is the longest that one call to Redis takes, in `redis.timeout`s: one to connect and one to be answered, and
with sentinels one more to ask all of them. One ``call`` is for a renewal that Redis answers at the last moment, the
other is the reserve. docs/high-availability.md explains it for operators.
"""

from __future__ import annotations

import math

DRIFT = 0.01  # share by which the clocks of two machines may differ in rate; time servers allow a twentieth of it
_CALL, _CALL_WITH_SENTINELS = 2, 3  # in timeouts
_LATE = 3  # renewals in a lease, at least: one that comes late loses nothing


def longest_call(timeout: float, *, sentinels: bool) -> float:
    """Return the seconds after which a call to Redis is over, one way or the other."""
    return timeout * (_CALL_WITH_SENTINELS if sentinels else _CALL)


def acting_time(lease: float, call: float) -> float:
    """Return the seconds after a renewal was asked for in which a leader may begin to act; 0 or less is never."""
    return lease * (1 - DRIFT) - call


def least_lease(observe: float, call: float) -> float:
    """Return the shortest lease in seconds that meets the inequality."""
    return max((observe + 2 * call) / (1 - DRIFT), observe * _LATE)


def mistakes(lease: float, observe: float, timeout: float, *, sentinels: bool) -> list[str]:
    """Return what is wrong with these settings together, and the cure."""
    call = longest_call(timeout, sentinels=sentinels)
    least = least_lease(observe, call)
    if lease >= least or math.isclose(lease, least):
        return []
    fitting = (lease * (1 - DRIFT) - observe) / 2 / (call / timeout)
    cure = f"raise controller.lease to {math.ceil(least * 10) / 10:g}"
    if observe * _LATE <= lease and fitting >= 0.01:
        cure += f", or lower redis.timeout to {int(fitting * 100) / 100:g}"
    sentence = (
        f"controller.lease: {lease:g} s is too short for controller.observe = {observe:g} s and redis.timeout = "
        f"{timeout:g} s: a leader must renew it, and stop acting before another can lead, though a call to Redis takes "
        f"up to {call:g} s; {cure}"
    )
    return [sentence]
