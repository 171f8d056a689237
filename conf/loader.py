"""Load settings from a TOML file and the environment; report all errors with their line.

Later sources win: the defaults in `rechannel.conf.settings`, the file, the environment.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import re
import stat
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import msgspec

from rechannel.conf import validation
from rechannel.conf.duration import parse_duration
from rechannel.conf.settings import (
    CONFIG_VARIABLE,
    ENVIRONMENT_PREFIX,
    POLICIES,
    Settings,
    SettingsError,
    section_class,
)

#: Searched in this order if no file is named.
SEARCH_PATH = (Path("rechannel.toml"), Path("/etc/rechannel/rechannel.toml"))
DEFAULT = "default"  # the origin of a setting that is not set
_ABSENT = "does not exist"
_SECTIONS = tuple(item.name for item in dataclasses.fields(Settings))
_MAX_LOCATED_LINES = 2000  # lines of a settings file; beyond: errors have no line numbers
_INTEGER_LIMIT = 2**63  # of TOML
_T = TypeVar("_T")


@dataclass(frozen=True)
class ConfigSource:
    """The configuration file, what named it, and why earlier files were skipped."""

    path: Path | None
    named_by: str = ""
    skipped: tuple[str, ...] = ()

    def describe(self, *, variables: bool = False) -> str:
        """Return a sentence on the configuration; ``variables``: the environment sets some."""
        if self.path is None:
            used = "variables of the environment and defaults" if variables else "defaults"
            return f"no configuration file: {', '.join(self.skipped)}; {used} used"
        named_by = f" ({self.named_by})" if self.named_by else ""
        skipped = [reason for reason in self.skipped[1:] if not reason.endswith(_ABSENT)]
        more = f"; {', '.join(skipped)}" if skipped else ""
        return f"configuration: {self.path}{named_by}{more}"


@dataclass(frozen=True)
class LoadResult:
    """Settings, origins and errors; a setting with an error has its default."""

    settings: Settings
    origins: Mapping[str, str]  # setting such as gate.min_gain -> file or variable that set it; without defaults
    errors: tuple[str, ...]
    source: ConfigSource = ConfigSource(None)

    @property
    def path(self) -> Path | None:
        """The file, None without one."""
        return self.source.path

    def describe(self) -> str:
        """Return a sentence on the configuration in use."""
        return self.source.describe(variables=bool(self.origins))

    def with_locations(self, errors: Iterable[str]) -> list[str]:
        """Prefix errors on settings with the origin of the value: file and line, or variable."""
        errors = list(errors)
        lines = line_numbers(self.path) if self.path is not None and errors else {}
        return [self._with_location(error, lines) for error in errors]

    def _with_location(self, error: str, lines: Mapping[tuple[str, ...], int]) -> str:
        names = [word.strip("[]") for word in error.partition(": ")[0].split()]  # it may name several settings
        for name in names:
            origin = self.origins.get(name, "")
            if origin.startswith(ENVIRONMENT_PREFIX):
                return f"{origin}: {error}"
            line = lines.get(tuple(name.split(".")))
            if line is not None:
                return f"{self.path}:{line}: {error}"
        section, dot, _ = (names or [""])[0].partition(".")
        return f"{self.path}: {error}" if self.path and dot and section in _SECTIONS else error


def load(path: str | os.PathLike[str] | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """Load the settings, or raise SettingsError with all errors.

    Without ``path`` the file is the one that ``RECHANNEL_CONFIG`` names, else ./rechannel.toml, else
    /etc/rechannel/rechannel.toml.
    """
    result = read_settings(path, environ)
    if result.errors:
        raise SettingsError(result.with_locations(result.errors))
    return result.settings


def read_settings(path: str | os.PathLike[str] | None = None, environ: Mapping[str, str] | None = None) -> LoadResult:
    """Load the settings like `load`, but return the errors, and the origin of each value."""
    environ = os.environ if environ is None else environ
    source = find_config_file(path, environ)
    values: dict[str, dict[str, Any]] = {}
    errors: list[str] = []
    if source.path is not None:
        _read_file(source.path, values, errors)
        _resolve_paths(values, source.path.absolute().parent)
    origins = _file_origins(values, str(source.path)) | _read_environment(environ, values, errors)
    sections: dict[str, Any] = {}
    for name in _SECTIONS:
        content = values.pop(name, {})
        if name == POLICIES:
            sections[name] = _parse_policies(content, errors)
        else:
            sections[name] = _parse_section(section_class(name), name, content, errors)
    errors += [f"[{name}]: no such section; {suggest_names(name, _SECTIONS)}" for name in values]
    result = LoadResult(Settings(**sections), origins, tuple(errors), source)
    # A setting with an error has its default, so what has to hold between it and others is not checked.
    wrong = {error.partition(":")[0] for error in errors}
    conflicts = [error for names, error in validation.errors(result.settings) if wrong.isdisjoint(names)]
    return dataclasses.replace(result, errors=(*errors, *conflicts))


def suggest_names(name: str, names: Collection[str]) -> str:
    """Return the known names for an error message, with the closest one first if one is close."""
    close = difflib.get_close_matches(name, names, 1)
    return f"{f'did you mean {close[0]}? ' if close else ''}known are {', '.join(names)}"


# -- the file --


def find_config_file(path: str | os.PathLike[str] | None, environ: Mapping[str, str]) -> ConfigSource:
    """Return the given file, that of the environment, or the first usable of `SEARCH_PATH`."""
    if path:
        return ConfigSource(Path(path))
    if environ.get(CONFIG_VARIABLE):
        return ConfigSource(Path(environ[CONFIG_VARIABLE]), CONFIG_VARIABLE)
    skipped = [f"{CONFIG_VARIABLE} is not set"]
    for place in SEARCH_PATH:
        problem = _problem_of(place)
        if not problem:
            return ConfigSource(place.absolute(), skipped=tuple(skipped))
        skipped.append(f"{place if place.is_absolute() else f'./{place}'} {problem}")
    return ConfigSource(None, skipped=tuple(skipped))


def _problem_of(path: Path) -> str:
    """Return the reason why a file of the search path is skipped, "" if it is usable."""
    try:
        status, link = path.stat(), path.lstat()
    except FileNotFoundError:
        return _ABSENT
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    if not stat.S_ISREG(status.st_mode):
        return "is not a regular file"
    if not os.access(path, os.R_OK):
        return "cannot be read (Permission denied)"
    # Anybody can put a file into a working directory such as /tmp.
    is_trusted = {status.st_uid, link.st_uid} <= {0, os.geteuid()} and not status.st_mode & stat.S_IWOTH
    if not path.is_absolute() and not is_trusted:
        return "is passed over, as it belongs to another user or can be written to by everybody"
    return ""


def line_numbers(path: Path) -> dict[tuple[str, ...], int]:
    """Return the first line, from 1, of each section, setting and parameter of a TOML file.

    The parser gives no positions. A setting begins after the longest prefix of the file that parses without it.
    """
    if not path.is_file():
        return {}  # a pipe can be read only once
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError):
        return {}
    numbers: dict[tuple[str, ...], int] = {}
    if len(lines) > _MAX_LOCATED_LINES:
        return numbers
    begin = 1
    for end in range(1, len(lines) + 1):
        if not lines[end - 1].strip() or (begin == end and lines[end - 1].lstrip().startswith("#")):
            begin = end + 1 if begin == end else begin
            continue
        try:
            document = tomllib.loads("\n".join(lines[:end]))
        except tomllib.TOMLDecodeError:
            continue
        for key in _keys(document):
            numbers.setdefault(key, begin)
        begin = end + 1
    return numbers


def _keys(document: Mapping[str, Any], depth: int = 3) -> Iterator[tuple[str, ...]]:
    for name, content in document.items():
        yield (name,)
        if isinstance(content, dict) and depth > 1:
            yield from ((name, *inner) for inner in _keys(content, depth - 1))


def _read_file(path: Path, values: dict[str, dict[str, Any]], errors: list[str]) -> None:
    """Add the sections of a TOML file to ``values``."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        errors.append(f"{path}: cannot be read ({error.strerror}); name an existing file")
        return
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        line = re.search(r"at line (\d+)", str(error))
        errors.append(f"{path}{f':{line[1]}' if line else ''}: not valid TOML ({error})")
        return
    for section, content in document.items():
        if isinstance(content, dict):
            values.setdefault(section, {}).update(content)
        else:
            errors.append(f"{section}: stands outside a section; put it under one, as in [redis]")


def _resolve_paths(values: Mapping[str, dict[str, Any]], directory: Path) -> None:
    """Make relative paths in a file relative to the directory of that file."""
    for section in values.keys() & (set(_SECTIONS) - {POLICIES}):
        for item in dataclasses.fields(section_class(section)):
            value = values[section].get(item.name)
            if item.metadata["path"] and isinstance(value, str) and value:
                values[section][item.name] = str(directory / value)


def _file_origins(values: Mapping[str, Mapping[str, Any]], origin: str) -> dict[str, str]:
    """Map each setting and each parameter of a policy that the file sets to the file."""
    origins = {f"{section}.{name}": origin for section, content in values.items() for name in content}
    for policy, content in values.get(POLICIES, {}).items():
        parameters = content if isinstance(content, dict) else ()
        origins |= {f"{POLICIES}.{policy}.{name}": origin for name in parameters}
    return origins


# -- the environment --


class _Text(str):
    """A value of the environment: text even for a number, a truth value or a list."""

    __slots__ = ()


def _read_environment(
    environ: Mapping[str, str], values: dict[str, dict[str, Any]], errors: list[str]
) -> dict[str, str]:
    """Add variables of the environment to ``values``; return the variable of each setting."""
    origins = {}
    for variable, text in environ.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or "__" not in variable:
            continue
        section, _, name = variable.removeprefix(ENVIRONMENT_PREFIX).lower().partition("__")
        if section not in _SECTIONS:
            errors.append(f"{variable}: no such section {section!r}; {suggest_names(section, _SECTIONS)}")
            continue
        values.setdefault(section, {})[name] = _Text(text)
        if section == POLICIES:
            policy, _, name = name.partition("__")
            name = f"{policy.replace('_', '-')}.{name}"
        origins[f"{section}.{name}"] = variable
    return origins


# -- values --


def _parse_policies(tables: Mapping[str, Any], errors: list[str]) -> dict[str, dict[str, Any]]:
    """Return policy -> parameter -> value, from tables and variables <POLICY>__<PARAMETER>."""
    policies: dict[str, dict[str, Any]] = {}
    for name, content in tables.items():
        policy, parameters = name, content
        if isinstance(content, _Text):
            policy, _, parameter = name.partition("__")
            policy, parameters = policy.replace("_", "-"), {parameter: _toml_value(content)} if parameter else None
        if not isinstance(parameters, dict):
            errors.append(f"{POLICIES}.{name}: names no parameter; write it in a table, as in [{POLICIES}.adaptive]")
            continue
        accepted = policies.setdefault(policy, {})
        for parameter, value in parameters.items():
            if all(_is_plain(item) for item in (value if isinstance(value, list) else [value])):
                accepted[parameter] = value
            else:
                errors.append(
                    f"{POLICIES}.{policy}.{parameter}: {value!r} is neither text, a finite number, true, false nor a "
                    "list of such"
                )
    return policies


def _is_plain(value: object) -> bool:
    if isinstance(value, int):
        return abs(value) < _INTEGER_LIMIT
    return isinstance(value, str) or (isinstance(value, float) and math.isfinite(value))


def _toml_value(text: str) -> Any:
    """Return the value that TOML reads from a text, or the text itself."""
    try:
        document = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return str(text)
    return document["value"] if len(document) == 1 else str(text)


def _parse_section(kind: type[_T], section: str, content: Mapping[str, Any], errors: list[str]) -> _T:
    """Return a section; settings with an error keep their default."""
    fields = {item.name: item for item in dataclasses.fields(kind)}  # type: ignore[arg-type]
    hints = get_type_hints(kind)
    accepted: dict[str, Any] = {}
    for name, value in content.items():
        field = f"{section}.{name}"
        if name not in fields:
            errors.append(f"{field}: no such field; {suggest_names(name, fields)}")
            continue
        try:
            accepted[name] = _parse_value(hints[name], value, fields[name].metadata)
        except ValueError as error:
            errors += [f"{field}: {sentence}" for sentence in error.args]
    return kind(**accepted)


def _parse_value(kind: type[Any], value: Any, rule: Mapping[str, Any]) -> Any:
    """Convert a value to the type of its setting; ValueError has a sentence for each error."""
    if kind in (int, float):
        return _parse_number(kind, value, rule)
    if kind is bool:
        return _parse_truth(value)
    if kind == tuple[str, ...]:
        return _parse_texts(value, rule)
    return _parse_text(value, rule)


def _parse_number(kind: type[Any], value: Any, rule: Mapping[str, Any]) -> Any:
    unit = rule["unit"]
    number = parse_duration(value) if unit == "seconds" and isinstance(value, str) else value
    try:
        if isinstance(number, _Text):
            number = kind(str(number))
        elif kind is int and isinstance(number, float) and number.is_integer():
            number = int(number)
        msgspec.convert(number, kind)
        if not math.isfinite(number):
            raise ValueError
    except (ValueError, OverflowError, msgspec.ValidationError):
        whole = " whole" if kind is int else ""
        raise ValueError(f"{number!r} is not a{whole} number{f' (unit: {unit})' if unit else ''}") from None
    low, high = rule["bounds"]
    try:
        return msgspec.convert(number, Annotated[kind, msgspec.Meta(ge=low, le=high)])
    except msgspec.ValidationError:
        bounds = f"at least {low}" if high is None else f"between {low} and {high}"
        sentence = f"{number} is out of bounds; it must be {bounds}{f' {unit}' if unit else ''}"
        raise ValueError(sentence) from None


def _parse_truth(value: Any) -> bool:
    if isinstance(value, _Text):
        value = {"true": True, "false": False}.get(value.lower(), value)
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")
    return value


def _parse_texts(value: Any, rule: Mapping[str, Any]) -> tuple[str, ...]:
    items = [item.strip() for item in value.split(";") if item.strip()] if isinstance(value, _Text) else value
    if not isinstance(items, list):
        raise ValueError(f'{value!r} is not a list of texts; write it as in ["one", "two"]')
    texts, errors = [], []
    for item in items:
        try:
            texts.append(_parse_text(item, rule))
        except ValueError as error:
            errors.append(str(error))
    if errors:
        raise ValueError(*errors)
    return tuple(texts)


def _parse_text(value: Any, rule: Mapping[str, Any]) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not text; put it in quotes")
    text = str(value)
    if rule["choices"] and text not in rule["choices"]:
        raise ValueError(f"{text!r} is not one of {', '.join(rule['choices'])}")
    if rule["pattern"] and not re.fullmatch(rule["pattern"], text):
        shown = f"…{text[text.rindex('@') :]}" if "@" in text else text  # a password may precede the @
        raise ValueError(f"{shown!r} does not fit; write {rule['unit'] or 'it as ' + rule['pattern']}")
    return text
