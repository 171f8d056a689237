"""Choice of the map outputs that a node sends, in a cluster with very many."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from rechannel.wire.measurements import MapOutput


def choose_outputs(outputs: Sequence[MapOutput], window_sizes: int) -> list[MapOutput]:
    """Return the outputs of a window to send.

    These are all, or a part with ``window_sizes`` sizes on average. Readers take an output that was not sent for the
    mean of those that were, so each one has the same chance, whatever its size and its place among the tasks.
    """
    share = window_sizes / max(1, sum(output.partitions for output in outputs))
    return [output for output in outputs if share >= 1 or crc32(b"%d" % output.map_task) < share * 2**32]
