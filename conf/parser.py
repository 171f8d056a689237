"""Reading of settings: out of a TOML file and the environment into typed values; every mistake is named."""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

ENVIRONMENT_PREFIX = "RECHANNEL_"
POLICIES = "policies"  # the section that holds a table for each policy
_WHOLE = 2**63  # whole numbers are below it, as TOML has it
_T = TypeVar("_T")


def read_file(path: Path, values: dict[str, dict[str, Any]], mistakes: list[str]) -> None:
    """Add what a TOML file says, section by section."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        mistakes.append(f"{path}: cannot be read ({error.strerror}); name an existing file")
        return
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        mistakes.append(f"{path}: not valid TOML ({error})")
        return
    for section, content in document.items():
        if isinstance(content, dict):
            values.setdefault(section, {}).update(content)
        else:
            mistakes.append(f"{section}: stands outside a section; put it under one, as in [redis]")


def read_environment(
    environ: Mapping[str, str], sections: Collection[str], values: dict[str, dict[str, Any]], mistakes: list[str]
) -> dict[str, str]:
    """Add what the environment says of these sections; returns field -> the variable that set it."""
    origins = {}
    for variable, text in environ.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or "__" not in variable:
            continue
        section, _, name = variable.removeprefix(ENVIRONMENT_PREFIX).lower().partition("__")
        if section not in sections:
            mistakes.append(f"{variable}: no such section {section!r}; {known_are(section, sections)}")
            continue
        values.setdefault(section, {})[name] = _Text(text)
        if section == POLICIES:
            policy, _, name = name.partition("__")
            name = f"{policy.replace('_', '-')}.{name}"
        origins[f"{section}.{name}"] = variable
    return origins


class _Text(str):
    """A value out of the environment: text that stands for a number where a number is wanted."""

    __slots__ = ()


def read_policies(given: Mapping[str, Any], mistakes: list[str]) -> dict[str, dict[str, Any]]:
    """Policy -> parameter -> value; of tables, and of what the environment says of <POLICY>__<PARAMETER>."""
    found: dict[str, dict[str, Any]] = {}
    for name, content in given.items():
        policy, parameters = name, content
        if isinstance(content, _Text):
            policy, _, parameter = name.partition("__")
            policy, parameters = policy.replace("_", "-"), {parameter: _literal(content)} if parameter else None
        if not isinstance(parameters, dict):
            mistakes.append(f"{POLICIES}.{name}: names no parameter; write it in a table, as in [{POLICIES}.adaptive]")
            continue
        kept = found.setdefault(policy, {})
        for parameter, value in parameters.items():
            if all(_is_plain(item) for item in (value if isinstance(value, list) else [value])):
                kept[parameter] = value
            else:
                mistakes.append(
                    f"{POLICIES}.{policy}.{parameter}: {value!r} is neither text, a finite number, true, false nor a "
                    "list of such"
                )
    return found


def _is_plain(value: object) -> bool:
    if isinstance(value, int):
        return abs(value) < _WHOLE
    return isinstance(value, str) or (isinstance(value, float) and math.isfinite(value))


def _literal(text: str) -> Any:
    """A value as a TOML file would have it, or the text itself where that is none."""
    try:
        document = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return str(text)
    return document["value"] if len(document) == 1 else str(text)


def build(kind: type[_T], section: str, given: Mapping[str, Any], mistakes: list[str]) -> _T:
    """Make a section of what was given for it; every value that cannot be is a mistake."""
    fields = {item.name: item for item in dataclasses.fields(kind)}  # type: ignore[arg-type]
    hints = get_type_hints(kind)
    accepted: dict[str, Any] = {}
    for name, value in given.items():
        where = f"{section}.{name}"
        if name not in fields:
            mistakes.append(f"{where}: no such field; {known_are(name, fields)}")
            continue
        try:
            accepted[name] = _check(hints[name], value, fields[name].metadata)
        except ValueError as error:
            mistakes += [f"{where}: {mistake}" for mistake in error.args]
    return kind(**accepted)


def known_are(name: str, known: Collection[str]) -> str:
    """Say which names there are, and first the one that was meant, where one is near."""
    near = difflib.get_close_matches(name, known, 1)
    return f"{f'did you mean {near[0]}? ' if near else ''}known are {', '.join(known)}"


def _check(kind: type[Any], value: Any, rule: Mapping[str, Any]) -> Any:
    if kind in (int, float):
        unit = f" (unit: {rule['unit']})" if rule["unit"] else ""
        no_number = f" is not a{' whole' if kind is int else ''} number{unit}"
        if isinstance(value, _Text):
            try:
                value = kind(str(value))
            except ValueError:
                raise ValueError(repr(str(value)) + no_number) from None
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if not number or (kind is int and value != int(value)):
            raise ValueError(repr(value) + no_number)
        unit = f" {rule['unit']}" if rule["unit"] else ""
        low, high = rule["low"], rule["high"]
        if not ((low is None or value >= low) and (high is None or value <= high)):
            bounds = f"at least {low}" if high is None else f"between {low} and {high}"
            raise ValueError(f"{value} is out of bounds; it must be {bounds}{unit}")
        return kind(value)
    if kind is bool:
        named = {"true": True, "false": False}
        value = named.get(value.lower(), value) if isinstance(value, _Text) else value
        if not isinstance(value, bool):
            raise ValueError(f"{value!r} is neither true nor false")
        return value
    if kind == tuple[str, ...]:
        items = [item.strip() for item in value.split(";") if item.strip()] if isinstance(value, _Text) else value
        if not isinstance(items, list):
            raise ValueError(f'{value!r} is not a list of texts; write it as in ["one", "two"]')
        return _each(items, rule)
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not text; put it in quotes")
    text = str(value)
    if rule["choices"] and text not in rule["choices"]:
        raise ValueError(f"{text!r} is not one of {', '.join(rule['choices'])}")
    if rule["pattern"] and not re.fullmatch(rule["pattern"], text):
        shown = f"…{text[text.rindex('@') :]}" if "@" in text else text  # what stands before it may be a password
        raise ValueError(f"{shown!r} does not fit; write {rule['unit'] or 'it as ' + rule['pattern']}")
    return text


def _each(items: list[Any], rule: Mapping[str, Any]) -> tuple[str, ...]:
    """Check the texts of a list; the error holds one mistake for each that is wrong."""
    texts, wrong = [], []
    for item in items:
        try:
            texts.append(_check(str, item, rule))
        except ValueError as error:
            wrong.append(str(error))
    if wrong:
        raise ValueError(*wrong)
    return tuple(texts)
