"""The commands ``config check``, ``config show`` and ``config keys``."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import click

from rechannel.conf.settings import Settings, SettingsError, describe
from rechannel.daemon import choosing
from rechannel.daemon.exits import CommandError, Exit
from rechannel.wire.signing import KeyFileError, Signer, Verifier, make_keys


def check(settings: Settings, *, as_json: bool) -> None:
    """Check what the settings point at; `load` has checked the values themselves."""
    mistakes = choosing.mistakes(settings)
    if settings.redis.password_file and not Path(settings.redis.password_file).is_file():
        mistakes.append(f"redis.password_file: {settings.redis.password_file} is no file")
    for path, reader in (
        (settings.signing.private_key_file, Signer.from_file),
        (settings.signing.public_key_file, Verifier.from_file),
    ):
        try:
            if path:
                reader(path)
        except KeyFileError as error:
            mistakes.append(str(error))
    if mistakes:
        raise SettingsError(mistakes)
    if as_json:
        click.echo(json.dumps({"ok": True}))
    else:
        click.echo("the configuration can be used")
        if not settings.signing.private_key_file:
            click.echo("note: signing.private_key_file is not set, so no controller can start with it", err=True)


def show(settings: Settings, *, as_json: bool) -> None:
    """Show every setting."""
    values = dataclasses.asdict(settings)
    if as_json:
        click.echo(json.dumps({"settings": values}))
        return
    from rechannel.daemon import cli_tables

    rows = []
    for name, default, unit, bounds, reason in describe():
        section, _, field = name.partition(".")
        rows.append((name, repr(values[section][field]), default, unit, bounds, reason))
    rows += [
        (f"policies.{policy}.{name}", repr(value), "", "", "", f"A parameter of the policy {policy}.")
        for policy, given in settings.policies.items()
        for name, value in given.items()
    ]
    cli_tables.settings(rows)


def keys(directory: str, *, as_json: bool) -> None:
    """Make a signing key pair."""
    try:
        private, public = make_keys(Path(directory))
    except KeyFileError as error:
        raise CommandError(Exit.REFUSED, str(error)) from error
    except OSError as error:
        raise CommandError(Exit.REFUSED, f"{directory}: cannot be written ({error.strerror})") from error
    if as_json:
        click.echo(json.dumps({"private_key_file": str(private), "public_key_file": str(public)}))
        return
    click.echo(f"signing.private_key_file = {json.dumps(str(private))}   # controllers alone, mode 600")
    click.echo(f"signing.public_key_file = {json.dumps(str(public))}   # every driver")
