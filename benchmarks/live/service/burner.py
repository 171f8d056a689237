"""``python -m benchmarks.live.service.burner CORES SECONDS SEED``: CPU noise in bursts, for a bounded time."""

from __future__ import annotations

import random
import sys
import time

LONGEST = 1.5  # seconds of a burst


def burn(cores: float, seconds: float, seed: int) -> None:
    """Use so many cores (at most one) on average, in bursts of uneven lengths."""
    chance, end = random.Random(seed), time.monotonic() + seconds  # noqa: S311  not for secrets
    while time.monotonic() < end:
        burst = chance.uniform(0.1, LONGEST)
        until = time.monotonic() + burst
        while time.monotonic() < until:
            pass
        time.sleep(burst * (1 - cores) / cores)


if __name__ == "__main__":
    burn(float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
