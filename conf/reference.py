"""Write the reference of all settings from the schema: ``python -m rechannel.conf.reference docs/configuration.md``."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from rechannel.conf.parser import ENVIRONMENT_PREFIX, POLICIES
from rechannel.conf.render import bounds, literal
from rechannel.conf.settings import Settings, section_class

BEGIN = (
    "<!-- written by `python -m rechannel.conf.reference docs/configuration.md`; change conf/settings.py instead -->"
)
END = "<!-- end of the reference -->"


def markdown() -> str:
    """Return a table of each section: field, default, unit and bounds, whether it is live, and its reason."""
    lines = []
    for section in dataclasses.fields(Settings):
        lines += ["", f"### [{section.name}]", ""]
        if section.name == POLICIES:
            lines += [
                "A table for each policy, as in `[policies.adaptive]`; `rechannel policies` lists their parameters. In",
                f"the environment: `{ENVIRONMENT_PREFIX}POLICIES__ADAPTIVE__MODE`. Taken over on SIGHUP.",
            ]
            continue
        kind = section_class(section.name)
        lines += [(kind.__doc__ or "").strip().partition("\n")[0], ""]
        lines += ["| setting | default | unit and bounds | SIGHUP | reason |", "| --- | --- | --- | --- | --- |"]
        for item in dataclasses.fields(kind):
            rule = item.metadata
            limits = "; ".join(_cell(part) for part in (rule["unit"], bounds(rule)) if part)
            live = "taken over" if rule["live"] else _otherwise(section.name)
            cells = (f"`{item.name}`", f"`{literal(item.default)}`", limits, live, _cell(rule["reason"]))
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines[1:]) + "\n"


def document(text: str) -> str:
    """Return a document with the reference in it written anew; ValueError where it has no place for it."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the document has no lines {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n\n{markdown()}\n{END}{after}"


def main(arguments: Sequence[str]) -> int:
    """Write the reference into the documents named; without any, print it."""
    if not arguments:
        sys.stdout.write(markdown())
    for name in arguments:
        path = Path(name)
        path.write_text(document(path.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


def _otherwise(section: str) -> str:
    return "next attach" if section == "link" else "restart"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
