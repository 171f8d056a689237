"""Parameters of the policy ``adaptive``."""

from __future__ import annotations

from dataclasses import dataclass

from rechannel.policies.analysis.placement_cost import SATURATED
from rechannel.policies.model.arrays import ModelError
from rechannel.policies.policy import check_choice, check_count, check_number

MODES = ("full", "light")


@dataclass(frozen=True)
class AdaptiveParameters:
    """Settings of ``adaptive``.

    ``mode``: full, or light. ``limit``: utilization above which partitions leave an executor, and up to which it takes
    some. ``min_step``: least share of a stage's time, and of the total, that a move must save. ``max_moves``: most
    moves, None for no bound; partitions that have to leave an unavailable executor do not count. ``move_seconds``,
    ``load_rate`` and ``horizon``: a move costs ``move_seconds`` and its state's bytes at ``load_rate`` (bytes per
    second); its gain over ``horizon`` seconds has to exceed that.
    """

    mode: str = "full"
    limit: float = SATURATED
    min_step: float = 0.005
    max_moves: int | None = None
    move_seconds: float = 0.0
    load_rate: float = float("inf")
    horizon: float = 600.0

    def __post_init__(self) -> None:
        check_choice("mode", self.mode, MODES)
        check_number("limit", self.limit, 0, 10, above=True)
        check_number("min_step", self.min_step, 0, 1)
        if self.min_step == 1:
            raise ModelError(f"min_step: expected a number from 0 to below 1, got {self.min_step!r}")
        check_number("move_seconds", self.move_seconds, 0)
        check_number("load_rate", self.load_rate, 0, above=True)
        check_number("horizon", self.horizon, 0, above=True)
        check_count("max_moves", self.max_moves, 0)

    def move_cost(self, moves: float, moved_bytes: float, executors: int) -> float:
        """Stage time in seconds per second that so many moves cost over the horizon.

        In one step each of the executors may take one partition, so moves share the time of a step.
        """
        return (moves * self.move_seconds / executors + moved_bytes / self.load_rate) / self.horizon
