from __future__ import annotations

import io
import json
import logging
import os
from pathlib import Path

import pytest
import structlog

from rechannel.conf.settings import SettingsError
from rechannel.daemon import log

pytestmark = pytest.mark.usefixtures("_log_restored")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


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


@pytest.mark.parametrize(
    ("target", "environ", "colored"),
    [
        (Terminal(), {}, True),
        (Terminal(), {"NO_COLOR": "1"}, False),
        (io.StringIO(), {"RECHANNEL_LOG": "terminal"}, False),
    ],
)
def test_only_terminals_get_colors(target: io.StringIO, environ: dict[str, str], colored: bool) -> None:
    log.set_up(target, environ=environ)
    structlog.get_logger("x").info("decision", moves=3)
    assert ("\x1b[" in target.getvalue()) == colored


def test_a_traceback_is_part_of_its_line() -> None:
    target = io.StringIO()
    log.set_up(target)
    try:
        raise ZeroDivisionError
    except ZeroDivisionError:
        structlog.get_logger("x").exception("job-failed")
    (line,) = target.getvalue().splitlines()
    assert json.loads(line)["exception"][0]["exc_type"] == "ZeroDivisionError"


def _journal(path: Path, **requested: str) -> list[str]:
    """What a daemon writes that stands under a service manager, one element a line."""
    with path.open("w") as target:
        status = os.fstat(target.fileno())
        log.set_up(target, environ={"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}", **requested})
        logger = structlog.get_logger("x")
        logger.info("decision", moves=3, sentence='gains 10 %, "much"', nodes=["a", "b"])
        logging.getLogger("some.library").warning("careful:\nnow")
        try:
            raise ZeroDivisionError("by\nzero")
        except ZeroDivisionError:
            logger.exception("job-failed", job="observe\x1b[2J")
    return path.read_text().splitlines()


def test_lines_in_the_journal_have_their_priority_and_are_one_each(tmp_path: Path) -> None:
    first, second, third = _journal(tmp_path / "journal")
    assert first == '<6>decision moves=3 sentence="gains 10 %, \\"much\\"" nodes="[\\"a\\", \\"b\\"]"'
    assert second.startswith("<4>careful:\\nnow")
    assert third.startswith('<3>job-failed job="observe\\x1b[2J" exception="ZeroDivisionError: by\\nzero at ')
    assert "test_log.py" in third
    assert " in _journal" in third


def test_the_journal_can_be_given_json_too(tmp_path: Path) -> None:
    lines = _journal(tmp_path / "journal", RECHANNEL_LOG="json")
    assert [line[:3] for line in lines] == ["<6>", "<4>", "<3>"]
    assert json.loads(lines[0][3:])["moves"] == 3


def test_a_line_is_never_longer_than_the_journal_takes() -> None:
    target = io.StringIO()
    log.set_up(target, environ={"RECHANNEL_LOG": "journal"})
    structlog.get_logger("x").info("decision", sentence="é" * 100_000)
    (line,) = target.getvalue().splitlines()
    assert line.startswith("<6>decision sentence=éé")
    assert len(line.encode()) <= 40_000


def test_a_stream_that_is_not_the_journal_is_not_taken_for_it() -> None:
    target = io.StringIO()
    log.set_up(target, environ={"JOURNAL_STREAM": "1:2"})
    structlog.get_logger("x").info("decision")
    assert json.loads(target.getvalue())["event"] == "decision"


def test_a_form_that_there_is_not_is_refused() -> None:
    with pytest.raises(SettingsError, match="terminal, journal or json"):
        log.set_up(io.StringIO(), environ={"RECHANNEL_LOG": "xml"})
