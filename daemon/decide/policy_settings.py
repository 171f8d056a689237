"""Policy of a decision, its parameters, and the check of the policy sections.

A parameter has, the later wins: the policy's default; a value derived from the settings and from measured loads, if the
policy has a parameter of that name; the value under ``[policies.NAME]``; and for a drain, no moves but the forced ones.
"""

from __future__ import annotations

from types import NoneType
from typing import Any, get_args

from rechannel.conf.loader import suggest_names
from rechannel.conf.settings import Settings
from rechannel.migration.plan.cost import UNMEASURED, LoadRates
from rechannel.policies.model.arrays import ModelError
from rechannel.policies.registry import installed_policies, known_policies, make_parameters, parameter_types
from rechannel.wire.codes import Trigger

SAVED_PLAN = "saved plan"  # in place of the policy's name, in decisions on saved plans
DRAIN_POLICY = "adaptive"  # it looks at the batches beside what stays; others look at partitions alone
# Share of a stage's time that moving must save, in place of a policy's default: loads are measured, and less is noise.
_MIN_MEASURED_STEP = 0.03
_NONE = "none"  # TOML has no null


def policy_for(trigger: str, settings: Settings) -> str:
    """Return the name of the policy that the settings have for a trigger."""
    return DRAIN_POLICY if trigger == Trigger.DRAIN else settings.reschedule.policy


def parameters_for(
    policy: str, settings: Settings, rates: LoadRates = UNMEASURED, *, drain: bool = False
) -> dict[str, object]:
    """Return the parameters of a policy; ``rates``: what loading state costs."""
    hints, gate = _hints(policy), settings.gate
    derived: dict[str, object] = {
        "max_moves": settings.migration.max_moves,
        "min_step": _MIN_MEASURED_STEP,
        "limit": gate.max_utilization,
        "move_seconds": rates.overhead,
        "load_rate": rates.load_rate,
        "horizon": gate.horizon,
    }
    chosen = {name: value for name, value in derived.items() if name in hints}
    chosen |= {name: _read(hints.get(name), value) for name, value in settings.policies.get(policy, {}).items()}
    return chosen | ({"max_moves": 0} if drain and "max_moves" in hints else {})


def unknown_policy(name: str) -> str:
    """Return the sentence on an unknown policy: known names, error of a broken installed one."""
    broken = [error for error in installed_policies().errors if error.startswith(f"policy {name!r} ")]
    return "; ".join([f"no policy is called {name!r}", *broken, suggest_names(name, sorted(known_policies()))])


def policy_errors(settings: Settings) -> list[str]:
    """Return the errors in the policies' names and parameters."""
    name = settings.reschedule.policy
    errors = [] if name in known_policies() else [f"reschedule.policy: {unknown_policy(name)}"]
    for policy, parameters in settings.policies.items():
        if policy in known_policies():
            errors += _parameter_errors(policy, parameters, settings)
        else:
            errors.append(f"[policies.{policy}]: {unknown_policy(policy)}")
    return errors


def _parameter_errors(policy: str, parameters: Any, settings: Settings) -> list[str]:
    chosen, hints = known_policies()[policy], _hints(policy)
    errors = []
    for name, value in parameters.items():
        field = f"policies.{policy}.{name}"
        if name not in hints:
            errors.append(f"{field}: no such parameter; {suggest_names(name, hints)}")
            continue
        try:
            make_parameters(chosen, {name: _read(hints[name], value)})
        except ModelError as error:
            errors.append(f"{field}: {str(error).removeprefix(f'{name}: ')}")
    if not errors:
        try:
            make_parameters(chosen, parameters_for(policy, settings))
        except ModelError as error:  # each value is valid, but not their combination
            errors.append(f"[policies.{policy}]: {error}")
    return errors


def _hints(policy: str) -> dict[str, Any]:
    """Return the type of each parameter; empty if no policy has that name."""
    chosen = known_policies().get(policy)
    return parameter_types(chosen) if chosen else {}


def _read(hint: Any, value: object) -> object:
    return None if value == _NONE and NoneType in get_args(hint) else value
