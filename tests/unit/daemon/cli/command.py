"""Helpers to run commands in tests."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner, Result

from rechannel.daemon.cli.main import main


def run(*arguments: object, code: int = 0) -> Result:
    """Run ``rechannel`` and check its exit code."""
    done = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert done.exit_code == code, done.output
    return done


def write_config(directory: Path, text: str) -> Path:
    """Write a configuration file."""
    path = directory / "c.toml"
    path.write_text(text)
    return path
