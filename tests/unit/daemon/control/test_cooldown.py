"""The cool-down after a migration."""

from __future__ import annotations

from rechannel.daemon.control.cooldown import CooldownTimer
from unit.daemon.fake_store import NOW


def test_a_cooldown_is_never_longer_than_planned_though_the_clock_was_set_back() -> None:
    cooldown = CooldownTimer(ended=NOW + 3600)
    assert cooldown.left(NOW, 300.0) == 300.0
    assert cooldown.left(NOW + 3600 + 150.0, 300.0) == 150.0
