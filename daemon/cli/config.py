"""The commands ``config check``, ``config show``, ``config init`` and ``config keys``."""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

import click

from rechannel.conf import render
from rechannel.conf.loader import LoadResult, read_settings
from rechannel.conf.settings import CONFIG_VARIABLE, ENVIRONMENT_PREFIX, Settings, SettingsError, fields
from rechannel.daemon.cli.submit import LENT, SOLO, STRICT
from rechannel.daemon.doctor import security
from rechannel.wire import distribution
from rechannel.wire.exit_codes import CommandError, ExitCode
from rechannel.wire.redis import tls
from rechannel.wire.redis.tls import CredentialFileError

# Beside those of the settings. The last three are passed by `rechannel submit` to the process that it starts.
_VARIABLES = (CONFIG_VARIABLE, "RECHANNEL_LOG", "RECHANNEL_DEBUG", LENT, STRICT, SOLO)
_TEST_PREFIX = "RECHANNEL_TEST"


def check(config: str | None, *, as_json: bool) -> None:
    """Check the values and the files they name; prints every mistake at once."""
    loaded = read_settings(config)
    mistakes, notes = examine(loaded)
    if mistakes:
        raise SettingsError(mistakes)
    if unchecked := unchecked_settings():
        notes.append(f"not checked (needs the distribution {distribution.WHOLE}): {', '.join(unchecked)}")
    if as_json:
        file = str(loaded.path) if loaded.path else None
        click.echo(json.dumps({"ok": True, "file": file, "used": loaded.describe(), "notes": notes}))
        return
    click.echo("the configuration can be used")
    click.echo(loaded.describe(), err=True)
    for note in notes:
        click.echo(f"note: {note}", err=True)


def examine(loaded: LoadResult, *, of_node: bool = False) -> tuple[list[str], list[str]]:
    """Return the mistakes in the values and the files they name, and notes.

    ``of_node``: only of what an agent reads, and without a call to Redis.
    """
    settings = loaded.settings
    mistakes, notes = ([], []) if of_node else _examine_controller(settings)
    mistakes = [*loaded.errors, *mistakes]
    unreadable = _unreadable_files(settings)
    mistakes += unreadable
    if not unreadable:
        for read_files in (
            lambda: tls.connection_options(settings.redis),
            lambda: tls.read_password(settings.redis.sentinel_password_file, "redis.sentinel_password_file"),
        ):
            try:
                read_files()
            except CredentialFileError as error:
                mistakes.append(str(error))
    mistakes += _world_writable(loaded)
    notes += _world_readable_passwords(settings)
    notes += _unknown_variables(os.environ)
    notes += security.listen_notes(
        {"controller.listen": settings.controller.listen, "agent.metrics": settings.agent.metrics}
    )
    if not mistakes and not of_node:  # do not connect with a configuration that cannot be used
        notes += security.redis_notes(settings)
    return list(dict.fromkeys(mistakes)), notes


def _examine_controller(settings: Settings) -> tuple[list[str], list[str]]:
    """Return mistakes and notes about policies, keys and audit file, as far as installed."""
    mistakes: list[str] = []
    notes: list[str] = []
    if distribution.has_signatures():
        from rechannel.daemon.doctor.key_files import check_keys

        mistakes, notes = check_keys(settings)
    if distribution.is_complete():
        from rechannel.daemon.audit import AuditError, AuditFile
        from rechannel.daemon.decide import policy_settings
        from rechannel.policies.registry import installed_policies

        mistakes = policy_settings.policy_errors(settings) + mistakes
        notes += installed_policies().errors
        try:
            AuditFile(settings.controller.audit_file).check()
        except AuditError as error:
            mistakes.append(str(error))
    return mistakes, notes


def unchecked_settings() -> list[str]:
    """Return the settings and sections that what is installed cannot check."""
    of_controllers = [] if distribution.is_complete() else ["policies", "controller.audit_file"]
    return of_controllers if distribution.has_signatures() else [*of_controllers, "signing"]


def _unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Describe environment variables with the prefix of Rechannel that it does not read."""
    variables = [*_VARIABLES[:-2], *(ENVIRONMENT_PREFIX + name.replace(".", "__").upper() for name in fields())]
    by_suffix = {name.removeprefix(ENVIRONMENT_PREFIX): name for name in variables}
    notes = []
    for name in sorted(environ):
        is_read = name in _VARIABLES or "__" in name or name.startswith(_TEST_PREFIX)
        if name.startswith(ENVIRONMENT_PREFIX) and not is_read:
            near = difflib.get_close_matches(name.removeprefix(ENVIRONMENT_PREFIX), by_suffix, 1)
            notes.append(f"{name}: no variable of Rechannel{f'; did you mean {by_suffix[near[0]]}?' if near else ''}")
    return notes


def _unreadable_files(settings: Settings) -> list[str]:
    """Describe the files of the connection to Redis that cannot be read."""
    mistakes = []
    for item in dataclasses.fields(settings.redis):
        path = getattr(settings.redis, item.name) if item.name.endswith("_file") else ""
        try:
            if path and Path(path).exists() and not Path(path).is_file():  # opening a pipe would block
                mistakes.append(f"redis.{item.name}: {path} is not a regular file; name one")
            elif path:
                Path(path).open("rb").close()
        except OSError as error:
            mistakes.append(f"redis.{item.name}: {path} cannot be read ({error.strerror})")
    return mistakes


def _world_writable(loaded: LoadResult) -> list[str]:
    """Describe the files that decide what is trusted and that every user can write to."""
    link, public = loaded.settings.link.directory, loaded.settings.signing.public_key_file
    mistakes = []
    if loaded.path is not None and _mode(loaded.path) & 0o002:
        mistakes.append(f"{loaded.path}: can be written to by everybody; `chmod o-w {loaded.path}`")
    if public and _mode(Path(public)) & 0o002:
        mistakes.append(f"signing.public_key_file: {public} can be written to by everybody; `chmod o-w {public}`")
    if link and Path(link).exists() and not Path(link).is_dir():
        mistakes.append(f"link.directory: {link} is not a directory; name a directory of Spark's user, or none")
    elif link and _mode(Path(link)) & 0o1002 == 0o002:  # without the sticky bit
        mistakes.append(f"link.directory: everybody can replace what is in {link}; `chmod o-w {link}`")
    return mistakes


def _mode(path: Path) -> int:
    """Return the mode bits; 0 for a file that does not exist or cannot be inspected."""
    try:
        return path.stat().st_mode
    except OSError:
        return 0


def _world_readable_passwords(settings: Settings) -> list[str]:
    """Describe the password files that every user can read."""
    notes = []
    for item in dataclasses.fields(settings.redis):
        path = getattr(settings.redis, item.name) if item.name.endswith("password_file") else ""
        if path and _mode(Path(path)) & 0o007:
            notes.append(f"redis.{item.name}: {path} can be read by everybody; `chmod o= {path}`")
    return notes


def show(config: str | None, *, as_json: bool) -> None:
    """Print every setting with its source; of a secret only the name of its file."""
    loaded = read_settings(config)
    if loaded.errors:
        raise SettingsError(loaded.errors)
    click.echo(json.dumps(render.to_document(loaded)) if as_json else render.to_toml(loaded).rstrip())


def init(file: str, *, all_settings: bool, as_json: bool) -> None:
    """Write a commented configuration: the settings that matter most, or all."""
    path = Path(file)
    short = resources.files("rechannel.conf") / "rechannel.toml"
    text = render.to_template() if all_settings else short.read_text(encoding="utf-8")
    try:
        with path.open("x", encoding="utf-8") as out:
            out.write(text)
    except FileExistsError:
        raise CommandError(ExitCode.REFUSED, f"{path} exists; name another file, or move it away first") from None
    except OSError as error:
        raise CommandError(ExitCode.REFUSED, f"{path} cannot be written ({error.strerror})") from error
    if as_json:
        click.echo(json.dumps({"file": str(path)}))
        return
    which = "every setting" if all_settings else "the settings that most clusters need, each"
    click.echo(f"{path} has {which} with its default; remove the # of a line to change it")
    click.echo(f"then: export {CONFIG_VARIABLE}={path.resolve()}; rechannel config check")


def change_keys(directory: str, *, rotate: bool, retire: bool, force: bool, as_json: bool) -> None:
    """Make a signing key pair, or replace one without a time in which no signature is trusted.

    ``rotate`` begins the replacement, ``retire`` ends it; with ``force`` even if the key in use is the older one.
    """
    if rotate and retire:
        raise CommandError(
            ExitCode.USAGE, "--rotate begins a change of keys and --retire ends it; update the drivers in between"
        )
    if force and not retire:
        raise CommandError(ExitCode.USAGE, "--force needs --retire")
    import rechannel.daemon.key_change as key_change
    from rechannel.wire.signing import KeyFileError

    path = Path(directory)
    try:
        document, lines = (
            key_change.retire(path, force) if retire else key_change.rotate(path) if rotate else key_change.make(path)
        )
    except KeyFileError as error:
        raise CommandError(ExitCode.REFUSED, str(error)) from error
    except OSError as error:
        raise CommandError(ExitCode.REFUSED, f"{directory}: cannot be written ({error.strerror})") from error
    click.echo(json.dumps(document) if as_json else "\n".join(lines))
