"""Which policy decides, with which parameters, and what is wrong with what the configuration says of policies.

A parameter is, later wins: the policy's own default; what follows from the gate and the migration settings, where the
policy has a parameter of that name; what stands under ``[policies.NAME]``; and for a drain, that nothing moves which
does not have to leave.
"""

from __future__ import annotations

from types import NoneType
from typing import Any, get_args

from rechannel.conf.loader import suggest_names
from rechannel.conf.settings import Settings
from rechannel.policies.model.arrays import ModelError
from rechannel.policies.registry import known_policies, make_parameters, parameter_types

DRAIN = "drain"  # the trigger of decisions that empty drained nodes
ROLLBACK = "rollback"  # the trigger of decisions to move back
SAVED_PLAN = "saved plan"  # stands where the policy does, of a decision that none made
_NONE = "none"  # TOML has no word for no value


def policy_for(trigger: str, settings: Settings) -> str:
    """Return the name of the policy that decides where nobody asks for another one."""
    return settings.reschedule.drain_policy if trigger == DRAIN else settings.reschedule.policy


def parameters_for(policy: str, settings: Settings, *, drain: bool = False) -> dict[str, object]:
    """Return what a policy is to be asked with."""
    hints, gate = _hints(policy), settings.gate
    derived: dict[str, object] = {
        "max_moves": settings.migration.max_moves,
        "min_step": gate.min_step,
        "limit": gate.max_utilization,
        "move_seconds": gate.move_cost,
        "load_rate": gate.load_rate,
        "horizon": gate.horizon,
    }
    chosen = {name: value for name, value in derived.items() if name in hints}
    chosen |= {name: _read(hints.get(name), value) for name, value in settings.policies.get(policy, {}).items()}
    return chosen | ({"max_moves": 0} if drain and "max_moves" in hints else {})


def unknown_policy(name: str) -> str:
    """Say that no policy has that name, and which there are."""
    return f"no policy is called {name!r}; {suggest_names(name, sorted(POLICIES))}"


def mistakes(settings: Settings) -> list[str]:
    """Return what is wrong with the policies' names and parameters: each with its field and the cure."""
    found = [
        f"reschedule.{field}: {unknown_policy(name)}"
        for field in ("policy", "drain_policy")
        if (name := getattr(settings.reschedule, field)) not in known_policies()
    ]
    for policy, given in settings.policies.items():
        if policy in known_policies():
            found += _wrong(policy, given, settings)
        else:
            found.append(f"[policies.{policy}]: {unknown_policy(policy)}")
    return found


def _wrong(policy: str, given: Any, settings: Settings) -> list[str]:
    chosen, hints = known_policies()[policy], _hints(policy)
    found = []
    for name, value in given.items():
        where = f"policies.{policy}.{name}"
        if name not in hints:
            found.append(f"{where}: no such parameter; {suggest_names(name, hints)}")
            continue
        try:
            make_parameters(chosen, {name: _read(hints[name], value)})
        except ModelError as error:
            found.append(f"{where}: {str(error).removeprefix(f'{name}: ')}")
    if not found:
        try:
            make_parameters(chosen, parameters_for(policy, settings))
        except ModelError as error:  # each is well, but not all together
            found.append(f"[policies.{policy}]: {error}")
    return found


def _hints(policy: str) -> dict[str, Any]:
    """Parameter -> its type; nothing where no policy has that name."""
    chosen = known_policies().get(policy)
    return parameter_types(chosen) if chosen else {}


def _read(hint: Any, value: object) -> object:
    return None if value == _NONE and NoneType in get_args(hint) else value
