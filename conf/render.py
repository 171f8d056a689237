"""Settings as text: those in force as a TOML file, with bounds and origins. None of them is a secret."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from rechannel.conf.loader import DEFAULT, LoadResult
from rechannel.conf.parser import POLICIES
from rechannel.conf.settings import Settings, section_class

_HEAD = """\
# What is in force. Each value is followed by where it comes from: the default, the file, or a variable of the
# environment, which wins over the file. Above it: its reason, unit and bounds. "live" settings are taken over by
# controller and agent on SIGHUP, all others take a restart.
"""


def document(loaded: LoadResult) -> dict[str, Any]:
    """Return the settings, and for each field its origin, as plain values."""
    settings = dataclasses.asdict(loaded.settings)
    origins = {name: loaded.origins.get(name, DEFAULT) for name in fields()}
    parameters = [f"{POLICIES}.{policy}.{name}" for policy, given in loaded.settings.policies.items() for name in given]
    origins |= {name: loaded.origins.get(name, DEFAULT) for name in parameters}
    return {"file": str(loaded.path) if loaded.path else None, "settings": settings, "origins": origins}


def toml(loaded: LoadResult) -> str:
    """Return the settings as a TOML file that gives the same ones again."""
    lines = [_HEAD.rstrip()]
    for section in dataclasses.fields(Settings):
        if section.name == POLICIES:
            lines += _policies(loaded)
            continue
        kind = section_class(section.name)
        lines += ["", f"[{section.name}]  # {_said(kind)}"]
        for item in dataclasses.fields(kind):
            name = f"{section.name}.{item.name}"
            value = literal(getattr(getattr(loaded.settings, section.name), item.name))
            lines += [f"# {item.metadata['reason']}{_rule(item)}", _line(item.name, value, loaded, name)]
    return "\n".join(lines) + "\n"


def literal(value: Any) -> str:
    """Return a value as TOML has it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return "".join(_escaped(character) for character in json.dumps(value, ensure_ascii=False))
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(literal(item) for item in value)}]"
    return repr(value)


def _escaped(character: str) -> str:
    """Escape what cannot be shown. Beyond 16 bits TOML has a form of its own, where JSON has pairs of surrogates."""
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def fields() -> dict[str, dataclasses.Field[Any]]:
    """Return every setting but policies', by its name as in ``gate.min_gain``."""
    return {
        f"{section.name}.{item.name}": item
        for section in dataclasses.fields(Settings)
        if section.name != POLICIES
        for item in dataclasses.fields(section_class(section.name))
    }


def bounds(rule: Any) -> str:
    """Return the values a field may have, in short; "" where that is left to its type and form."""
    if rule["choices"]:
        return " | ".join(rule["choices"])
    low, high = rule["low"], rule["high"]
    return "" if low is None and high is None else f"{'' if low is None else low} … {'' if high is None else high}"


def _rule(item: dataclasses.Field[Any]) -> str:
    """Return unit, bounds and whether it is live, in brackets."""
    rule = item.metadata
    parts = [part for part in (rule["unit"], bounds(rule), "live" if rule["live"] else "") if part]
    return f" ({'; '.join(parts)})" if parts else ""


def _line(name: str, value: str, loaded: LoadResult, field: str) -> str:
    return f"{name} = {value}  # {loaded.origins.get(field, DEFAULT)}".replace("\n", " ")


def _policies(loaded: LoadResult) -> list[str]:
    lines = []
    for policy, given in loaded.settings.policies.items():
        table = policy if policy.replace("-", "").replace("_", "").isalnum() and policy.isascii() else literal(policy)
        lines += ["", f"[{POLICIES}.{table}]  # `rechannel policies` lists its parameters; live"]
        for name, value in given.items():
            key = name if name.replace("_", "").isalnum() and name.isascii() else literal(name)
            lines.append(_line(key, literal(value), loaded, f"{POLICIES}.{policy}.{name}"))
    return lines


def _said(kind: type[Any]) -> str:
    return (kind.__doc__ or "").strip().partition("\n")[0]
