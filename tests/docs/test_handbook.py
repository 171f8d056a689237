"""docs/handbook.md says what every message means, and names none that does not exist."""

from __future__ import annotations

import re

import pytest

from rechannel.daemon.cli import reference
from rechannel.wire.codes import Code
from rechannel.wire.exit_codes import ExitCode

from . import code_names
from .pages import DOCS

TEXT = (DOCS / "handbook.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    result = re.search(rf"^(#+) {title}\n(.*?)(?=^#{{1,3}} |\Z)", TEXT, re.M | re.S)
    assert result, title
    return result[2]


def rows(*titles: str, column: str = "") -> list[list[str]]:
    """Return the cells of the tables in these sections; with ``column`` those of the table that begins with it."""
    result = []
    for title in titles:
        expected = not column
        for line in section(title).splitlines():
            cells = [cell.strip() for cell in line.strip("|").split(" | ")]
            if line.startswith("| ") and not line.startswith(("| `", "| ---")):
                expected = not column or cells[0] == column
            elif line.startswith("| `") and expected:
                result.append([cell.strip() for cell in re.split(r" \| ", line.strip("| "))])
    return result


def names(table: list[list[str]]) -> list[str]:
    return [name for row in table for name in re.findall(r"`([^`]*)`", row[0])]


@pytest.mark.parametrize(
    ("table", "names_value"),
    [
        (rows("Controllers") + rows("Agents", column="event") + rows("Links"), code_names.events()),
        (rows("Agents", column="not measured"), code_names.skipped()),
    ],
    ids=["events", "not measured"],
)
def test_every_name_has_a_row_and_every_row_a_name(table: list[list[str]], names_value: set[str]):
    result = names(table)
    assert len(result) == len(set(result))
    assert set(result) == names_value
    assert len(names_value) > 3
    for row in table:
        assert len(row) == 3 and all(len(cell) > 3 or cell.startswith("`") for cell in row), row


def test_the_tables_of_codes_are_generated():
    assert reference.with_code_tables(TEXT) == TEXT, "run: python -m rechannel.daemon.cli.reference docs/handbook.md"
    tables = re.findall(r"<!-- codes: (\w+),", TEXT)
    kinds = ["NotReadyReason", "Law", "PlanResult", "MoveState", "MoveReason", "OutcomeVerdict", "SlowCause"]
    assert tables == ["ExitCode", *kinds]


@pytest.mark.parametrize("kind", [ExitCode, *Code.__subclasses__()])
def test_every_code_has_a_meaning_of_whole_sentences(kind: type[Code | ExitCode]):
    for code in kind:
        for text in (code.meaning, code.cure):
            assert not text or ((text[0].isupper() or text[0] == "`") and text.endswith(".")), code
        assert code.meaning, code
        assert bool(code.cure) == any(other.cure for other in kind), code


def test_every_alert_has_a_section_and_every_section_an_alert():
    titles = set(re.findall(r"^### (Rechannel[A-Z]\w+)$", TEXT, re.M))
    assert titles == code_names.alerts()
    for title in titles:
        assert len(section(title).split()) > 8, title


def test_the_collector_sees_what_is_there():
    assert {"redis-away", "jobs-hang", "no executor of this node"} <= code_names.events()
