"""The table of policies, and the one way to ask one for a proposal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np

from rechannel.policies.adaptive.adaptive import ADAPTIVE
from rechannel.policies.model.arrays import ModelError
from rechannel.policies.model.cluster import UNPLACED, Cluster
from rechannel.policies.model.placement import Move, Placement
from rechannel.policies.model.workload import Workload
from rechannel.policies.policy import Objective, PolicyEntry
from rechannel.policies.published.aniello import ANIELLO_ONLINE
from rechannel.policies.published.bottleneck import BOTTLENECK
from rechannel.policies.published.data_locality import DATA_LOCALITY
from rechannel.policies.published.even import EVEN
from rechannel.policies.published.fair_redistribution import FAIR_REDISTRIBUTION
from rechannel.policies.published.first_fit import FIRST_FIT
from rechannel.policies.published.locality_fairness import LOCALITY_FAIRNESS
from rechannel.policies.published.r_storm import R_STORM
from rechannel.policies.published.round_robin import ROUND_ROBIN
from rechannel.policies.published.stream_classification import STREAM_CLASSIFICATION
from rechannel.policies.published.t_storm import T_STORM

__all__ = [
    "POLICIES",
    "ParameterError",
    "PolicyEntry",
    "PolicyLawError",
    "Proposal",
    "UnknownPolicyError",
    "is_worse",
    "propose",
]

_ROUNDING = 1e-9


class UnknownPolicyError(ModelError):
    """No policy has that name; the message lists those there are."""


class ParameterError(ModelError):
    """The policy has no such parameter; the message names it."""


class PolicyLawError(RuntimeError):
    """A policy broke a law that every proposal must keep: a defect of the policy, nothing to apply."""


@dataclass(frozen=True)
class Proposal:
    """What a policy proposes: the placement, how it differs from the current one, and what it gains by its objective.

    Where partitions of the current placement are on no executor, ``objective_before`` leaves them out.
    """

    policy: str
    placement: Placement
    moves: tuple[Move, ...]
    objective_before: Objective
    objective_after: Objective
    notes: tuple[str, ...]


POLICIES: dict[str, PolicyEntry] = {
    entry.name: entry
    for entry in (
        ADAPTIVE,
        EVEN,
        LOCALITY_FAIRNESS,
        ROUND_ROBIN,
        FIRST_FIT,
        DATA_LOCALITY,
        STREAM_CLASSIFICATION,
        BOTTLENECK,
        FAIR_REDISTRIBUTION,
        R_STORM,
        T_STORM,
        ANIELLO_ONLINE,
    )
}
"""Every policy by name."""


def propose(
    name: str,
    cluster: Cluster,
    workload: Workload,
    current: Placement,
    parameters: Mapping[str, object] | None = None,
) -> Proposal:
    """Ask the policy of that name where the partitions should be.

    The laws are kept here, so no policy can break them: every partition is on an available executor, and where
    ``current`` was so too, the proposal is better by the policy's own objective: else it is ``current`` itself, and a
    note says so. Executors whose memory does not hold what they are given are named in a note.

    Raises :class:`UnknownPolicyError`, :class:`ParameterError`, ``ModelError`` for arguments that do not fit
    together, ``ScaleOutError`` where no placement exists, and :class:`PolicyLawError` for a defect of the policy.
    """
    entry = POLICIES.get(name)
    if entry is None:
        raise UnknownPolicyError(f"unknown policy {name!r}, valid names: {', '.join(sorted(POLICIES))}")
    settings = _settings(entry, parameters or {})
    current.validate(cluster, workload)
    outcome = entry.function(cluster, workload, current, settings)
    _check(entry, cluster, workload, outcome.placement)
    before = entry.measure(cluster, workload, current, settings)
    after = entry.measure(cluster, workload, outcome.placement, settings)
    placement, notes = outcome.placement, outcome.notes
    if placement != current and _is_placed(cluster, current) and not is_worse(before, after):
        placement, after = current, before
        notes = (*notes, "not applied: no better than the current placement by its own objective")
    notes += _overfull(cluster, workload, placement)
    return Proposal(name, placement, placement.moves_from(current), before, after, notes)


def is_worse(after: Objective, before: Objective) -> bool:
    """Whether ``after`` is larger in the first entry that differs by more than rounding."""
    for new, old in zip(after, before, strict=True):
        tolerance = _ROUNDING * max(abs(new), abs(old))
        if abs(new - old) > tolerance:
            return new > old
    return False


def _settings(entry: PolicyEntry, given: Mapping[str, object]) -> object:
    known = [field.name for field in fields(entry.parameters)]
    for key in given:
        if key not in known:
            raise ParameterError(f"policy {entry.name!r} has no parameter {key!r}, it has: {', '.join(known)}")
    return entry.parameters(**given)


def _overfull(cluster: Cluster, workload: Workload, placement: Placement) -> tuple[str, ...]:
    held = np.zeros(cluster.size)
    for stage in workload.placeable:
        held += np.bincount(placement[stage.key], weights=stage.state_bytes, minlength=cluster.size)
    full = [cluster.executors[index] for index in np.flatnonzero(held > cluster.memory_bytes * (1 + _ROUNDING))]
    return (f"state does not fit the memory of {', '.join(full)}",) if full else ()


def _is_placed(cluster: Cluster, placement: Placement) -> bool:
    return all(
        bool((array != UNPLACED).all() and cluster.available[array].all()) for array in placement.assignments.values()
    )


def _check(entry: PolicyEntry, cluster: Cluster, workload: Workload, placement: Placement) -> None:
    try:
        placement.validate(cluster, workload)
    except ModelError as error:
        raise PolicyLawError(f"policy {entry.name!r} answered with an impossible placement: {error}") from error
    for key, array in placement.assignments.items():
        wrong = np.flatnonzero((array == UNPLACED) | ~cluster.available[array])
        if wrong.size:
            raise PolicyLawError(f"policy {entry.name!r} put partition {wrong[0]} of {key!r} on no available executor")
