"""Table of policies, and the laws that every proposal is held to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, get_type_hints

import msgspec
import numpy as np

from rechannel.policies.adaptive.policy import ADAPTIVE
from rechannel.policies.analysis.placement_cost import state_bytes_held
from rechannel.policies.entry_points import InstalledPolicies, load_installed
from rechannel.policies.model.arrays import ModelError, ScaleOutError
from rechannel.policies.model.cluster import UNPLACED, Cluster
from rechannel.policies.model.placement import Move, Placement, PolicyAnswer
from rechannel.policies.model.workload import Workload
from rechannel.policies.policy import FunctionPolicy, Objective, Policy
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

_ROUNDING = 1e-9


class PolicyLawError(RuntimeError):
    """Failure of a policy, or a broken law: a defect of the policy, nothing to apply."""


@dataclass(frozen=True)
class Proposal:
    """Proposal of a policy: placement, moves from the current one, and the gain.

    The objectives are the policy's own. Where partitions of the current placement are on no executor,
    ``objective_before`` leaves them out.
    """

    policy: str
    placement: Placement
    moves: tuple[Move, ...]
    objective_before: Objective
    objective_after: Objective
    notes: tuple[str, ...]


POLICIES: dict[str, FunctionPolicy] = {
    policy.name: policy
    for policy in (
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
"""Every built-in policy by name."""


@cache
def installed_policies() -> InstalledPolicies:
    """Return the policies of installed distributions, loaded once in a process.

    With the entry points that provide none.
    """
    return load_installed(POLICIES)


def known_policies() -> dict[str, Policy]:
    """Every policy by name, the built-in ones first."""
    return {**POLICIES, **installed_policies().policies}


def parameter_types(policy: Policy) -> dict[str, Any]:
    """Type of each parameter of a policy."""
    hints = get_type_hints(policy.parameters)
    return {field.name: hints[field.name] for field in fields(policy.parameters)}


def make_parameters(policy: Policy, values: Mapping[str, object]) -> Any:
    """Construct the parameters of a policy; those left out have their default.

    Raises ``ModelError`` for unknown names, values of another type and, from the policy itself, impossible values.
    """
    types = parameter_types(policy)
    for name in values:
        if name not in types:
            raise ModelError(f"policy {policy.name!r} has no parameter {name!r}, it has: {', '.join(types)}")
    try:
        parameters, problem = policy.parameters(**values), None
    except ModelError:
        raise
    except (TypeError, ValueError) as error:  # a policy that leaves the types to us
        parameters, problem = None, error
    for name, value in values.items():
        try:
            msgspec.convert(value.item() if isinstance(value, np.generic) else value, types[name])
        except msgspec.ValidationError as error:
            raise ModelError(f"{name}: {error}, got {value!r}") from error
    if problem is not None:
        raise ModelError(str(problem)) from problem
    return parameters


def propose(
    name: str,
    cluster: Cluster,
    workload: Workload,
    current: Placement,
    parameters: Mapping[str, object] | None = None,
) -> Proposal:
    """Ask the policy of that name for a placement, and hold it to the laws.

    The laws: every partition is on an available executor, and where ``current`` keeps that law too, the proposal is
    better by the policy's own objective; else it is ``current`` itself, and a note says so. A note names executors
    whose memory does not hold their state.

    Raises ``ModelError`` for an unknown name or parameter and for arguments that do not fit together, ``ScaleOutError``
    where no placement exists, and :class:`PolicyLawError` for a defect of the policy.
    """
    policy = known_policies().get(name)
    if policy is None:
        raise ModelError(f"unknown policy {name!r}, valid names: {', '.join(sorted(known_policies()))}")
    settings = make_parameters(policy, parameters or {})
    current.validate(cluster, workload)
    with _own_defects(policy):
        answer = policy.place(cluster, workload, current, settings)
        _check_answer(policy, cluster, workload, answer)
        before = tuple(policy.objective(cluster, workload, current, settings))
        after = tuple(policy.objective(cluster, workload, answer.placement, settings))
        worse_before = is_worse(before, after)
    placement, notes = answer.placement, answer.notes
    complete = not any((array == UNPLACED).any() for array in current.on_available(cluster).values())
    if placement != current and complete and not worse_before:
        placement, after = current, before
        notes = (*notes, "not applied: no better than the current placement by its own objective")
    notes += _overfull(cluster, workload, placement)
    return Proposal(name, placement, placement.moves_from(current), before, after, notes)


def is_worse(after: Objective, before: Objective) -> bool:
    """Return whether ``after`` is larger in the first entry that differs beyond rounding."""
    for new, old in zip(after, before, strict=True):
        tolerance = _ROUNDING * max(abs(new), abs(old))
        if abs(new - old) > tolerance:
            return new > old
    return False


@contextmanager
def _own_defects(policy: Policy) -> Iterator[None]:
    """Turn every failure of a policy but its refusals into a :class:`PolicyLawError`."""
    try:
        yield
    except (ModelError, ScaleOutError, PolicyLawError):
        raise
    except Exception as error:  # a policy may be a user's, and must not stop the controller
        raise PolicyLawError(f"policy {policy.name!r} failed: {type(error).__name__}: {error}") from error


def _overfull(cluster: Cluster, workload: Workload, placement: Placement) -> tuple[str, ...]:
    held = state_bytes_held(cluster, workload, placement)
    full = [cluster.executors[index] for index in np.flatnonzero(held > cluster.memory_bytes * (1 + _ROUNDING))]
    return (f"state does not fit the memory of {', '.join(full)}",) if full else ()


def _check_answer(policy: Policy, cluster: Cluster, workload: Workload, answer: object) -> None:
    if not isinstance(answer, PolicyAnswer) or not all(isinstance(note, str) for note in answer.notes):
        raise PolicyLawError(f"policy {policy.name!r} answered with no PolicyAnswer: {answer!r}")
    placement = answer.placement
    try:
        placement.validate(cluster, workload)
    except ModelError as error:
        raise PolicyLawError(f"policy {policy.name!r} answered with an impossible placement: {error}") from error
    for key, array in placement.on_available(cluster).items():
        wrong = np.flatnonzero(array == UNPLACED)
        if wrong.size:
            raise PolicyLawError(f"policy {policy.name!r} put partition {wrong[0]} of {key!r} on no available executor")
