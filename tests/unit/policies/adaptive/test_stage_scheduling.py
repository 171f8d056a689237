"""Division of one stage over executors that have no room."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rechannel.policies.adaptive.stage_problem import Problem
from rechannel.policies.adaptive.stage_scheduling import relocate


def crowded(room: list[float]) -> Problem:
    """Two partitions on each of three executors, which have room for so many seconds."""
    everywhere = np.ones(3)
    return Problem(
        busy=np.array([2.0, 1.0, 2.0, 1.0, 2.0, 1.0]),
        state_bytes=np.ones(6),
        home=np.array([0, 0, 1, 1, 2, 2]),
        speed=everywhere,
        slots=np.ones(3, dtype=np.int64),
        available=everywhere > 0,
        room_busy=np.array(room),
        room_bytes=everywhere * np.inf,
        use=everywhere * 0,
        fetched_bytes=np.zeros(6),
        bandwidth=everywhere * np.inf,
        local_bytes=None,
    )


def test_nothing_leaves_where_all_executors_are_over_their_room() -> None:
    assert relocate(crowded([2.5, 2.5, 2.5]), np.inf).moves == 0


def test_what_an_executor_has_no_room_for_goes_where_there_is_room() -> None:
    option = relocate(crowded([2.5, 3.0, 4.0]), np.inf)
    assert option.assignment.tolist() == [0, 2, 1, 1, 2, 2]


def test_an_unavailable_executor_is_no_room_for_the_others() -> None:
    problem = replace(crowded([2.5, 2.5, 99.0]), available=np.array([True, True, False]))
    assert relocate(problem, np.inf).assignment[:4].tolist() == [0, 0, 1, 1]
