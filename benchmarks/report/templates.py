"""Jinja environment of the generated Markdown pages: filters for numbers, table layout and line wrapping."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import jinja2

from benchmarks.report.numbers import amount, rate, seconds

BEGIN, END = "<!-- {name} -->", "<!-- end of {name} -->"

_VERBATIM = ("|", "#", "!", "    ")  # first characters of lines that are never joined or wrapped
_WIDTH = 120


def fill(text: str) -> str:
    """Join a paragraph into one line."""
    return " ".join(text.split())


def table(head: str | Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table; ``head`` may be one string with " | " between the titles."""
    titles = head.split(" | ") if isinstance(head, str) else head
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def columns(rows: Iterable[Mapping[str, object]], formats: Mapping[str, str]) -> str:
    """Return a Markdown table of rows; ``formats`` has the format of a cell, with a row's names, by title."""
    return table(list(formats), ([form.format_map(row) for form in formats.values()] for row in rows))


def between_marks(page: str, name: str, text: str) -> str:
    """Return the page with ``text`` between the marks of ``name``; ValueError without them."""
    begin, end = BEGIN.format(name=name), END.format(name=name)
    before, mark, rest = page.partition(begin)
    _, end_mark, after = rest.partition(end)
    if not mark or not end_mark:
        raise ValueError(f"the page has no {begin} with {end} after it")
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"


def render(template: str, context: Mapping[str, object], *, join: bool = False, wrap: bool = True) -> str:
    """Render a page or a section of a page; the same context gives the same text.

    Parameters
    ----------
    template
        Name of a file in ``templates/`` without its suffix.
    context
        Variables of the template.
    join
        Make one line of every paragraph and list item first, so that they are wrapped as wholes.
    wrap
        Break lines of text at 120 characters.
    """
    text = re.sub(r"\n{3,}", "\n\n", _ENVIRONMENT.get_template(f"{template}.md.j2").render(context)).strip("\n")
    lines = _join(text.splitlines()) if join else text.splitlines()
    return "\n".join(_wrap(line) if wrap and not line.startswith(_VERBATIM) else line for line in lines) + "\n"


def _join(lines: Sequence[str]) -> list[str]:
    joined: list[str] = []
    for line in lines:
        continues = joined and joined[-1] and line and not line.startswith(("* ", *_VERBATIM))
        if continues and not joined[-1].startswith(_VERBATIM):
            joined[-1] += " " + line.strip()
        else:
            joined.append(line)
    return joined


def _wrap(line: str) -> str:
    indent = "  " if line.startswith(("* ", "  ")) else ""
    return textwrap.fill(line, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


_ENVIRONMENT = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
    autoescape=jinja2.select_autoescape(("html",)),  # the pages are Markdown
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.filters |= {"fill": fill, "amount": amount, "rate": rate, "seconds": seconds}
_ENVIRONMENT.globals |= {"table": table}
