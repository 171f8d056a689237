"""An example of a configuration: a file, and variables of the environment."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def example(tmp_path: Path) -> Path:
    path = tmp_path / "rechannel.toml"
    path.write_text(
        '[gate]\nmin_gain = 0.2\ncooldown = 5\n[reschedule]\nexcluded = ["Mon-Fri 09:00-18:00"]\n'
        '[cluster]\nname = "a-b"\n[policies.adaptive]\nmode = "light"\n[policies.even]\nmax_moves = 3\n'
    )
    return path
