"""Names in the source that the handbook explains: exit codes, log events, what agents do not measure; alerts."""

from __future__ import annotations

import ast
import functools
import importlib
import re
from pathlib import Path

from .pages import ROOT

PARTS = ("conf", "wire", "policies", "monitors", "migration", "daemon")
_LEVELS = ("warning", "error", "exception", "critical")


@functools.cache
def _nodes() -> tuple[tuple[Path, ast.Call | ast.Subscript], ...]:
    """Return the calls and subscripts of the source, each with its file."""
    paths = [path for part in PARTS for path in sorted((ROOT / part).rglob("*.py"))]
    nodes = ((path, node) for path in paths for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    return tuple((path, node) for path, node in nodes if isinstance(node, ast.Call | ast.Subscript))


def _strings(path: Path, node: ast.expr) -> set[str]:
    """Return the strings that an expression can be: a literal, one of two, or a constant of its module."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return {node.value}
    if isinstance(node, ast.IfExp):
        return _strings(path, node.body) | _strings(path, node.orelse)
    if isinstance(node, ast.Name):
        module = importlib.import_module("rechannel." + ".".join(path.relative_to(ROOT).with_suffix("").parts))
        value = getattr(module, node.id)
        assert isinstance(value, str)
        return {str(value)}
    raise AssertionError(f"{path}:{node.lineno}: {ast.unparse(node)} cannot be read without running it")


def _name(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else ""


def events() -> set[str]:
    """Return the names of all events that are logged as warnings or errors."""
    names: set[str] = set()
    for path, node in _nodes():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _LEVELS:
            owner = ast.unparse(node.func.value).lower()
            if owner == "log" or owner.endswith("_log"):
                names |= _strings(path, node.args[0])
    return names


def skipped() -> set[str]:
    """Return the names of what agents count as not measured, without those of executors."""
    names: set[str] = set()
    for path, node in _nodes():
        if path.parent.parent.name != "monitors":
            continue
        keys: list[ast.expr | None] = []
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute):
            keys = [node.slice] if node.value.attr in ("skipped", "_dropped") else []
        elif isinstance(node, ast.Call) and _name(node) == "Counter" and node.args:
            keys = node.args[0].keys if isinstance(node.args[0], ast.Dict) else []
        for key in keys:
            if isinstance(key, ast.JoinedStr):
                last = key.values[-1]
                assert isinstance(last, ast.Constant)
                names.add(f"executor …{last.value}")
            elif isinstance(key, ast.Constant) or (isinstance(key, ast.Name) and key.id.isupper()):
                names |= _strings(path, key)
        if isinstance(node, ast.Call) and _name(node) == "IndexFileError":
            names |= _strings(path, node.args[0])
    return names


def alerts() -> set[str]:
    """Return the names of all alerts."""
    text = (ROOT / "conf" / "alerts" / "rechannel.rules.yml").read_text(encoding="utf-8")
    return set(re.findall(r"- alert: (\w+)", text))
