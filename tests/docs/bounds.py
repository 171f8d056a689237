"""The table of bounds in docs/limits.md, from the code: ``python -m tests.docs.bounds`` writes it.

A bound is a constant of the product whose name begins with ``MAX_``. The comment on its line, or those above it, says
what it counts and, behind ``beyond:``, what happens to the rest.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module

from .code_names import PARTS
from .pages import DOCS, ROOT

PAGE = DOCS / "limits.md"
_NAME = re.compile(r"_?MAX_[A-Z_]+")
_TABLE = re.compile(r"(<!-- bounds, from the code -->\n).*?(<!-- end of bounds -->)", re.DOTALL)


@dataclass(frozen=True)
class Bound:
    """A constant: its module below the package, its line, its value, what it counts, and what is beyond it."""

    module: str
    line: int
    name: str
    value: float
    counts: str
    beyond: str


def bounds() -> Iterator[Bound]:
    """Yield the bounds of the product, by module; `counts` and `beyond` are "" where a comment lacks them."""
    for path in (path for part in sorted(PARTS) for path in sorted((ROOT / part).rglob("*.py"))):
        module = path.relative_to(ROOT)
        source = path.read_text(encoding="utf-8")
        lines = source.splitlines()
        for node in ast.parse(source).body:
            target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
            if isinstance(target, ast.Name) and _NAME.fullmatch(target.id) and node.value is not None:
                value = getattr(import_module(f"rechannel.{'.'.join(module.with_suffix('').parts)}"), target.id)
                counts, _, beyond = _comment(lines, node.lineno).rstrip(".").partition("; beyond: ")
                counts = counts[:1].lower() + counts[1:]
                yield Bound(module.as_posix(), node.lineno, target.id, value, counts, beyond)


def _comment(lines: list[str], number: int) -> str:
    """Return the comment on a line, or the lines of comment above it."""
    _, mark, own = lines[number - 1].partition("  # ")
    above: list[str] = []
    while not mark and lines[number - 2 - len(above)].startswith("# "):
        above.insert(0, lines[number - 2 - len(above)][2:])
    return own or " ".join(above)


def table() -> str:
    """Return the table in Markdown."""
    rows = [f"| {it.value:,} | {it.counts} | {it.beyond} | `{it.module}` |" for it in bounds()]
    return "\n".join(["| bound | of | beyond it | in |", "| ---: | --- | --- | --- |", *rows, ""])


def with_table(page: str) -> str:
    """Return a page with the table between its markers replaced."""
    return _TABLE.sub(lambda match: f"{match[1]}\n{table()}\n{match[2]}", page)


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
