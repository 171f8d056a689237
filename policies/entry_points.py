"""Policies of installed distributions, found by the group ``rechannel.policies``."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, get_type_hints

from rechannel.policies.policy import Policy

GROUP = "rechannel.policies"
"""Entry point group in which a distribution names its policies."""

_NAME = re.compile(r"[a-z][a-z0-9-]*")  # as `reschedule.policy` accepts it
_METHODS = ("place", "objective")
_ARGUMENTS = ("cluster", "workload", "placement", "parameters")


@dataclass(frozen=True)
class InstalledPolicies:
    """Policies of users by name, and one sentence for each entry point that provides none."""

    policies: Mapping[str, Policy]
    errors: tuple[str, ...]


def load_installed(reserved: Collection[str]) -> InstalledPolicies:
    """Load every entry point of the group.

    ``reserved`` are the names of the built-in policies. An entry point may name an instance, or a class that is
    constructed without arguments. One that cannot be used is an error that names its distribution, and leaves all
    other policies as they are.
    """
    policies: dict[str, Policy] = {}
    errors: list[str] = []
    for entry in sorted(entry_points(group=GROUP), key=lambda one: (one.name, one.value)):
        defects: list[str] = []
        policy: Any = None
        if entry.name in reserved:
            defects = ["a built-in policy has that name"]
        elif entry.name in policies:
            defects = ["another distribution provides a policy of that name"]
        else:
            try:
                policy = entry.load()
                policy = policy() if isinstance(policy, type) else policy
                defects = list(_defects(policy, entry.name))
            except (Exception, SystemExit) as error:  # noqa: BLE001 - foreign code, which may fail in any way
                defects = [f"{type(error).__name__}: {error}"]
        if defects:
            errors.append(f"{_origin(entry)} cannot be used: {'; '.join(defects)}; correct or uninstall it")
        else:
            policies[entry.name] = policy
    return InstalledPolicies(policies, tuple(errors))


def _origin(entry: EntryPoint) -> str:
    distribution = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an unknown distribution"
    return f"policy {entry.name!r} of {distribution} (entry point {entry.value!r})"


def _defects(policy: Any, name: str) -> Iterator[str]:
    """Compare a loaded object with the protocol; yields what it lacks."""
    for attribute in ("name", "summary", "source"):
        if not isinstance(getattr(policy, attribute, None), str):
            yield f"{attribute}: expected a text"
    if getattr(policy, "name", name) != name:
        yield f"name: expected {name!r} as in the entry point, got {policy.name!r}"
    if not _NAME.fullmatch(name):
        yield "name: expected lower case letters, digits and dashes"
    parameters = getattr(policy, "parameters", None)
    if isinstance(parameters, type) and dataclasses.is_dataclass(parameters):
        get_type_hints(parameters)
        parameters()  # every parameter needs a default
    else:
        yield "parameters: expected a dataclass"
    for method in _METHODS:
        function = getattr(policy, method, None)
        if not callable(function):
            yield f"{method}: expected a method"
            continue
        try:
            inspect.signature(function).bind(*_ARGUMENTS)
        except TypeError:
            yield f"{method}: expected the arguments {', '.join(_ARGUMENTS)}"
