from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from rechannel.daemon import log


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers, root.level
    yield
    root.handlers, root.level = before
    structlog.reset_defaults()


def test_lines_are_json_where_no_terminal_is() -> None:
    target = io.StringIO()
    log.set_up(target)
    structlog.get_logger("x").info("decision", moves=3)
    logging.getLogger("some.library").warning("careful: %s", "now")
    first, second = (json.loads(line) for line in target.getvalue().splitlines())
    assert (first["event"], first["moves"], first["level"]) == ("decision", 3, "info")
    assert (second["event"], second["level"]) == ("careful: now", "warning")


def test_lines_are_for_people_on_a_terminal() -> None:
    target = Terminal()
    log.set_up(target)
    structlog.get_logger("x").info("decision", moves=3)
    assert "decision" in target.getvalue()
    with pytest.raises(json.JSONDecodeError):
        json.loads(target.getvalue())


def test_a_traceback_is_part_of_its_line() -> None:
    target = io.StringIO()
    log.set_up(target)
    try:
        raise ZeroDivisionError
    except ZeroDivisionError:
        structlog.get_logger("x").exception("job-failed")
    (line,) = target.getvalue().splitlines()
    assert json.loads(line)["exception"][0]["exc_type"] == "ZeroDivisionError"
