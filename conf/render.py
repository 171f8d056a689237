"""Render settings as TOML, in force or as a template, and their reference in Markdown.

``python -m rechannel.conf.render docs/configuration.md`` writes the table into the documentation. No setting is a
secret.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rechannel.conf.loader import DEFAULT, LoadResult
from rechannel.conf.settings import ENVIRONMENT_PREFIX, POLICIES, Settings, fields, section_class

BEGIN = "<!-- written by `python -m rechannel.conf.render docs/configuration.md`; change conf/settings.py instead -->"
END = "<!-- end of the reference -->"
_HEAD = """\
# The settings in force. After each value: its origin, which is the default, the file, or a variable of the environment
# (which wins over the file). Above it: its reason, unit and bounds. A controller applies "live" settings on SIGHUP;
# all others take a restart.
"""
_TEMPLATE_HEAD = f"""\
# Every setting with its default, below its reason, unit and bounds. Remove the # of a line to change a setting.
# A controller applies "live" settings on SIGHUP; all others take a restart.
# Variables of the environment override this file: {ENVIRONMENT_PREFIX}<SECTION>__<FIELD>, as in RECHANNEL_REDIS__URL.
# `rechannel config check` reports every error, `rechannel config show` the settings in force.
# Relative paths start at the directory of this file; a time is a number of seconds, or text as in "5m" or "1h30m".
"""
_POLICIES = """\
A table for each policy, none by default; `rechannel policies` lists their parameters. "none" stands for no value.
Values that follow from other sections replace a policy's own defaults; a value in this table replaces both:
`max_moves` is `migration.max_moves`, `limit` `gate.max_utilization`, `horizon` `gate.horizon`; `move_seconds` and
`load_rate` are measured. Taken over on SIGHUP. In the environment: `RECHANNEL_POLICIES__FAIR_REDISTRIBUTION__WEIGHT`.
"""
_POLICIES_EXAMPLE = """\
[policies.adaptive]
mode = "light"
[policies.fair-redistribution]
weight = "inverse-distance"
"""


def to_document(result: LoadResult) -> dict[str, Any]:
    """Return the settings and the origin of each setting as plain values, for JSON."""
    settings = dataclasses.asdict(result.settings)
    parameters = [
        f"{POLICIES}.{policy}.{name}" for policy, values in result.settings.policies.items() for name in values
    ]
    origins = {name: result.origins.get(name, DEFAULT) for name in [*fields(), *parameters]}
    return {"file": str(result.path) if result.path else None, "settings": settings, "origins": origins}


def to_toml(result: LoadResult) -> str:
    """Return the text of a TOML file with these settings."""

    def line(section: str, name: str) -> str:
        return _line(name, literal(getattr(getattr(result.settings, section), name)), result, f"{section}.{name}")

    return _toml(_HEAD, line, _policies(result))


def to_template() -> str:
    """Return the text of a TOML file with every setting commented out, at its default."""

    def line(section: str, name: str) -> str:
        return f"#{name} = {literal(fields()[f'{section}.{name}'].default)}"

    policies = [f"# {text}" for text in f"{_POLICIES}{_POLICIES_EXAMPLE}".splitlines()]
    return _toml(_TEMPLATE_HEAD, line, ["", f"[{POLICIES}]", *policies])


def _toml(head: str, line: Callable[[str, str], str], policies: list[str]) -> str:
    """Return a TOML file; ``line`` gives that of a setting by its section and name."""
    lines = [head.rstrip()]
    for section in dataclasses.fields(Settings):
        if section.name == POLICIES:
            lines += policies
            continue
        kind = section_class(section.name)
        lines += ["", f"[{section.name}]  # {_summary(kind)}"]
        for item in dataclasses.fields(kind):
            lines += [f"# {item.metadata['reason']}{_rule(item)}", line(section.name, item.name), ""]
        lines.pop()
    return "\n".join(lines) + "\n"


def literal(value: Any) -> str:
    """Return a value in the syntax of TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return "".join(_escaped(character) for character in json.dumps(value, ensure_ascii=False))
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(literal(item) for item in value)}]"
    return repr(value)


def _escaped(character: str) -> str:
    """Escape an unprintable character; TOML has no surrogate pairs, unlike JSON."""
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def bounds(rule: Any) -> str:
    """Return choices or bounds of a setting, "" if it has neither."""
    if rule["choices"]:
        return " | ".join(rule["choices"])
    low, high = rule["bounds"]
    return "" if low is None and high is None else f"{'' if low is None else low} … {'' if high is None else high}"


def _rule(item: dataclasses.Field[Any]) -> str:
    """Return unit, bounds and liveness of a setting, in parentheses."""
    rule = item.metadata
    parts = [part for part in (rule["unit"], bounds(rule), "live" if rule["live"] else "") if part]
    return f" ({'; '.join(parts)})" if parts else ""


def _line(name: str, value: str, result: LoadResult, field: str) -> str:
    return f"{name} = {value}  # {result.origins.get(field, DEFAULT)}".replace("\n", " ")


def _policies(result: LoadResult) -> list[str]:
    lines = []
    for policy, parameters in result.settings.policies.items():
        table = policy if policy.replace("-", "").replace("_", "").isalnum() and policy.isascii() else literal(policy)
        lines += ["", f"[{POLICIES}.{table}]  # `rechannel policies` lists its parameters; live"]
        for name, value in parameters.items():
            key = name if name.replace("_", "").isalnum() and name.isascii() else literal(name)
            lines.append(_line(key, literal(value), result, f"{POLICIES}.{policy}.{name}"))
    return lines


def _summary(kind: type[Any]) -> str:
    return (kind.__doc__ or "").strip().partition("\n")[0]


def to_markdown() -> str:
    """Return a table of each section: default, unit and bounds, liveness and reason."""
    lines = []
    for section in dataclasses.fields(Settings):
        lines += ["", f"### [{section.name}]", ""]
        if section.name == POLICIES:
            lines += [_POLICIES, "```toml", _POLICIES_EXAMPLE.rstrip(), "```"]
            continue
        kind = section_class(section.name)
        lines += [_summary(kind), ""]
        lines += ["| setting | default | unit and bounds | SIGHUP | reason |", "| --- | --- | --- | --- | --- |"]
        for item in dataclasses.fields(kind):
            rule = item.metadata
            limits = "; ".join(_cell(part) for part in (rule["unit"], bounds(rule)) if part)
            live = "taken over" if rule["live"] else "next attach" if section.name == "link" else "restart"
            cells = (f"`{item.name}`", f"`{literal(item.default)}`", limits, live, _cell(rule["reason"]))
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines[1:]) + "\n"


def update_document(text: str) -> str:
    """Return a document with its reference replaced; ValueError without a place for it."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the document has no lines {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n\n{to_markdown()}\n{END}{after}"


def main(arguments: Sequence[str]) -> int:
    """Write the reference into documents, or print it if none is named."""
    if not arguments:
        sys.stdout.write(to_markdown())
    for name in arguments:
        path = Path(name)
        path.write_text(update_document(path.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
