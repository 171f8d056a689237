"""What a migration costs the queries' batches, before it is begun; learned from what earlier ones cost.

A step is taken by one batch, in which every target loads the state it takes over before it can run the partition's
task. Targets load side by side, so a step adds what its busiest target loads, and an overhead (opening
stores, scheduling):

    added[step] = overhead + bytes[step] / load rate

This is the three-stage pipeline of the migration literature (transfer, processing, packing; see
:mod:`rechannel.migration.plan.pipeline`) as Spark lets it be: loading is part of the batch, so transfer and processing
are one stage; the snapshot of a later step before it, and the closing of the old copies after it, go on beside the
batches. One step after the other, each waiting for its snapshot and its closing, takes :attr:`Price.one_by_one`.

Overhead and load rate are those of the settings until steps were measured; from then on both are fitted to the last
steps by least squares, the settings counting as two steps more. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rechannel.migration.plan.pipeline import finish_times, sequential
from rechannel.policies.model import FloatArray, IntArray

__all__ = ["Outcome", "Price", "Rates", "learned", "price", "step_bytes"]

_PRIOR_STEPS = 1.0  # what the settings count for against measured steps
_LAST = 50  # steps that are looked at
_FASTEST = 1e12  # bytes per second: what is fitted above that is no limit


@dataclass(frozen=True)
class Rates:
    """Seconds that a step adds whatever it moves, bytes per second that a target loads, and how many steps say so."""

    overhead: float
    load_rate: float
    steps: int = 0


@dataclass(frozen=True)
class Outcome:
    """One step that was taken: bytes its busiest target loaded, seconds by which its batch was longer than usual."""

    bytes: float
    added: float


@dataclass(frozen=True, eq=False)
class Price:
    """Seconds. ``added`` (S,): what each step adds to its batch.

    ``pause``: the longest of them; ``total``: from the first step's batch to the last old copy's closing, the batches
    themselves included; ``one_by_one``: the same where no step begins before the one before it is closed.
    """

    added: FloatArray
    pause: float
    total: float
    one_by_one: float

    @property
    def seconds(self) -> float:
        """Batch time that the migration adds in all."""
        return float(self.added.sum())


def step_bytes(sizes: FloatArray, steps: IntArray, targets: IntArray) -> FloatArray:
    """Bytes that the busiest target of each step loads, (S,), given each of M moves' size, step and target."""
    if not len(steps):
        return np.zeros(0)
    by_target = np.zeros((int(steps.max()) + 1, int(targets.max()) + 1))
    np.add.at(by_target, (steps, targets), sizes)
    return np.asarray(by_target.max(axis=1))


def price(loaded: FloatArray, rates: Rates, *, batch: float, snapshot: float = 0.0, closing: float = 0.0) -> Price:
    """Price of steps that load so much each, shape (S,), in bytes.

    ``batch``: seconds of a usual batch; ``snapshot`` and ``closing``: seconds from wanting a partition's snapshot to
    having it, and from a step's commit to its old copies' closing.
    """
    loaded = np.asarray(loaded, dtype=np.float64)
    added = rates.overhead + loaded / rates.load_rate
    if not len(added):
        return Price(added, 0.0, 0.0, 0.0)
    # Batches follow each other, so the steps arrive one batch apart; closing goes on beside them.
    total = finish_times(batch + added, 0.0, closing).makespan + snapshot
    return Price(added, float(added.max()), total, sequential(batch + added, snapshot, closing))


def learned(outcomes: Sequence[Outcome], given: Rates) -> Rates:
    """Overhead and load rate that fit the last steps best, neither below zero.

    ``given``: those of the settings, which count as one step without state and one as large as the middle one.
    """
    last = outcomes[-_LAST:]
    if not last:
        return given
    loaded = np.array([outcome.bytes for outcome in last])
    added = np.maximum(np.array([outcome.added for outcome in last]), 0.0)
    middle = float(np.median(loaded))
    prior = np.array([0.0, middle])
    x = np.concatenate([loaded, prior])
    y = np.concatenate([added, given.overhead + prior / given.load_rate])
    weight = np.concatenate([np.ones(len(last)), np.full(2, _PRIOR_STEPS)])
    mean_x, mean_y = float(np.average(x, weights=weight)), float(np.average(y, weights=weight))
    spread = float(weight @ (x - mean_x) ** 2)
    slope = float(weight @ ((x - mean_x) * (y - mean_y))) / spread if spread > 0 else 1 / given.load_rate
    slope = max(slope, 1 / _FASTEST)
    overhead = mean_y - slope * mean_x
    if overhead < 0:
        overhead, slope = 0.0, max(float(weight @ (x * y)) / max(float(weight @ (x * x)), 1e-300), 1 / _FASTEST)
    return Rates(overhead, 1 / slope, len(last))
