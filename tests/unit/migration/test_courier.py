"""The courier's thread in the user's driver: what it says when something unforeseen happens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from rechannel.conf.settings import RedisSettings
from rechannel.migration.link import courier
from rechannel.migration.link.courier import Courier
from rechannel.wire.store import Author

LINK = Path(courier.__file__).parent


@pytest.fixture(autouse=True)
def _as_in_a_driver() -> Iterator[None]:
    """Nobody has set up logging: structlog does as it does by default."""
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()


def test_a_failed_round_is_told_without_the_values_of_variables(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Courier(RedisSettings(), Author("default", "link"), "app-1", None)

    def fails() -> None:
        password = "".join(("MARKED", "password"))
        made._stop.set()
        raise ZeroDivisionError(str(len(password)))

    monkeypatch.setattr(courier, "_PERIOD", 0.0)
    monkeypatch.setattr(made, "_round", fails)
    made._run()
    said = "".join(capsys.readouterr())
    assert "a round with redis failed" in said
    assert "in fails" in said, "the traceback"
    assert "MARKEDpassword" not in said


def test_nothing_in_a_driver_leaves_the_showing_of_exceptions_to_the_drivers_logging() -> None:
    for module in LINK.glob("*.py"):
        text = module.read_text()
        assert "exc_info" not in text, module
        assert ".exception(" not in text, module
