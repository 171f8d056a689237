"""Choice of the map outputs that a node sends, in a cluster with very many."""

from __future__ import annotations

from collections.abc import Sequence

from rechannel.wire.measurements import MapOutput

_SPREAD = 0x9E3779B1  # 2**32 over the golden ratio: neighboring tasks come far apart (Fibonacci hashing)


class OutputShare:
    """Share of one node in the map outputs that its cluster sends in a window.

    Readers take an output that was not sent for the mean of those that were, so the choice must not depend on the
    order of the tasks, nor on their sizes. An output may exceed the share: what it took too much is saved in the next
    windows.
    """

    def __init__(self, window_sizes: int) -> None:
        self.window_sizes = window_sizes  # sizes of map outputs in a window, on average
        self._owed = 0

    def choose(self, outputs: Sequence[MapOutput]) -> list[MapOutput]:
        """Return the outputs of a window to send."""
        room = self.window_sizes - self._owed
        chosen = []
        for output in sorted(outputs, key=lambda output: output.map_task * _SPREAD % 2**32):
            if room <= 0:
                break
            chosen.append(output)
            room -= output.partitions
        self._owed = max(0, -room)
        return chosen
