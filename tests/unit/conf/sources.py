"""Sources of settings: a file's text and variables of the environment, without their prefix."""

from __future__ import annotations

import tempfile
from pathlib import Path

from rechannel.conf.loader import load
from rechannel.conf.settings import Settings, SettingsError

ENVIRON = {"RECHANNEL_GATE__COOLDOWN": "7", "RECHANNEL_POLICIES__FAIR_REDISTRIBUTION__WEIGHT": "x", "HOME": "/"}


def load_text(text: str = "", **variables: str) -> Settings:
    """Load settings from a file with this text and from the environment."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "rechannel.toml"
        path.write_text(text)
        return load(path, {f"RECHANNEL_{name}": value for name, value in variables.items()})


def errors_of(text: str = "", **variables: str) -> tuple[str, ...]:
    """Return the errors of such settings, none of which may show a password."""
    try:
        load_text(text, **variables)
    except SettingsError as error:
        assert "hunter2" not in str(error)
        return error.errors
    return ()
