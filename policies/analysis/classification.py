"""Classification of streams by volume into high, mid and low.

Source: DSC-Heron (dynamic scheduling by stream classification), its first algorithm: a stream is compared with the
mean over all streams and with the mean absolute deviation from it (not the standard deviation).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rechannel.policies.model.arrays import FloatArray, float_array
from rechannel.policies.model.shuffles import Edges
from rechannel.policies.model.workload import Workload

_ROUNDING = 1e-9  # relative: closer than this to a cut is a tie, and so mid


class StreamClass(IntEnum):
    """Class of a stream by its volume."""

    LOW = 0
    MID = 1
    HIGH = 2


@dataclass(frozen=True, eq=False)
class Classification:
    """Class of each stream, with mean and mean absolute deviation in the unit of the volumes."""

    classes: NDArray[np.int8]
    mean: float
    deviation: float


def classify(volumes: FloatArray) -> Classification:
    """Classify n volumes, shape (n,), any unit.

    HIGH lies above the mean by more than the mean absolute deviation, LOW below it by more than that, all others
    are MID, and so are exact ties, which the paper's strict inequalities leave in no class. All equal: all MID.
    Raises ``ModelError`` for negative or non-finite volumes.
    """
    volumes = float_array("volumes", volumes)
    mean = float(volumes.mean()) if volumes.size else 0.0
    distance = np.abs(volumes - mean)
    deviation = float(distance.mean()) if volumes.size else 0.0
    far = distance > deviation + _ROUNDING * mean
    classes = np.full(volumes.shape, StreamClass.MID, dtype=np.int8)
    classes[far & (volumes > mean)] = StreamClass.HIGH
    classes[far & (volumes < mean)] = StreamClass.LOW
    return Classification(classes, mean, deviation)


class _Cuts(NamedTuple):
    """Number of streams, and the bytes per second below and above which they are LOW and HIGH."""

    streams: int
    low: float
    high: float


def _cuts(workload: Workload) -> _Cuts:
    """Return the cuts of `classify` between the streams of all shuffles."""
    count, mean, deviation = workload.streams
    if not count:
        return _Cuts(0, 0.0, float("inf"))
    far = deviation + _ROUNDING * mean
    return _Cuts(count, mean - far, mean + far)


def high_cut(workload: Workload) -> float:
    """Return the bytes per second above which a stream is HIGH among all shuffles.

    Infinity where no stream is HIGH.
    """
    return _cuts(workload).high


def count_classes(workload: Workload) -> dict[StreamClass, int]:
    """Return the number of streams of each class, HIGH first; empty if no stream is known."""
    cuts = _cuts(workload)
    if not cuts.streams:
        return {}
    levels = float(np.nextafter(cuts.high, np.inf)), max(cuts.low, float(np.finfo(np.float32).tiny))
    above, not_low = (sum(shuffle.count(level) for shuffle in workload.shuffles) for level in levels)
    return {
        StreamClass.HIGH: above,
        StreamClass.MID: not_low - above,
        StreamClass.LOW: cuts.streams - not_low,
    }


def high_edges(workload: Workload, least: float = 0.0) -> tuple[Edges, ...]:
    """Return the streams of class HIGH of each shuffle of ``workload.shuffles``.

    Only those of ``least`` bytes per second or more.
    """
    cut = max(high_cut(workload), math.nextafter(least, -math.inf))
    return tuple(shuffle.above(cut) for shuffle in workload.shuffles)
