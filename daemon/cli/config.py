"""The commands ``config check``, ``config show``, ``config init`` and ``config keys``."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import json
import os
import tempfile
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

import click
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from rechannel.conf import render
from rechannel.conf.loader import LoadResult, read_settings
from rechannel.conf.settings import CONFIG_VARIABLE, ENVIRONMENT_PREFIX, Settings, SettingsError, fields
from rechannel.daemon.control.audit import AuditError, AuditFile
from rechannel.daemon.decide import policy_settings
from rechannel.daemon.doctor import security
from rechannel.policies.registry import installed_policies
from rechannel.wire.exit_codes import CommandError, ExitCode
from rechannel.wire.redis import tls
from rechannel.wire.redis.tls import CredentialFileError
from rechannel.wire.signing import (
    KeyFileError,
    Signer,
    Verifier,
    fingerprint,
    make_keys,
    pem_of,
    public_keys,
    write_private_key,
)

_KEY, _NEXT, _PUBLIC = "signing.key", "signing.next.key", "signing.pub"
# Beside those of the settings. The last two are passed by `rechannel submit` to the process that it starts.
_VARIABLES = (CONFIG_VARIABLE, "RECHANNEL_LOG", "RECHANNEL_DEBUG", "RECHANNEL_LENT", "RECHANNEL_STRICT")
_TEST_PREFIX = "RECHANNEL_TEST"


def check(config: str | None, *, as_json: bool) -> None:
    """Check the values and the files they name; prints every mistake at once."""
    loaded = read_settings(config)
    mistakes, notes = examine(loaded)
    if mistakes:
        raise SettingsError(mistakes)
    if as_json:
        file = str(loaded.path) if loaded.path else None
        click.echo(json.dumps({"ok": True, "file": file, "used": loaded.describe(), "notes": notes}))
        return
    click.echo("the configuration can be used")
    click.echo(loaded.describe(), err=True)
    for note in notes:
        click.echo(f"note: {note}", err=True)


def examine(loaded: LoadResult) -> tuple[list[str], list[str]]:
    """Return the mistakes in the values and the files they name, and notes."""
    settings = loaded.settings
    mistakes = [*loaded.errors, *policy_settings.policy_errors(settings)]
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
    try:
        AuditFile(settings.controller.audit_file).check()
    except AuditError as error:
        mistakes.append(str(error))
    key_mistakes, notes = check_keys(settings)
    mistakes += key_mistakes
    mistakes += _world_writable(loaded)
    notes += _world_readable_passwords(settings)
    notes += _unknown_variables(os.environ)
    notes += installed_policies().errors
    notes += security.listen_notes(
        {"controller.listen": settings.controller.listen, "agent.metrics": settings.agent.metrics}
    )
    if not mistakes:  # do not connect with a configuration that cannot be used
        notes += security.redis_notes(settings)
    return list(dict.fromkeys(mistakes)), notes


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


def check_keys(settings: Settings) -> tuple[list[str], list[str]]:
    """Return the mistakes in the signing keys, and notes about them."""
    private, public = settings.signing.private_key_file, settings.signing.public_key_file
    mistakes, notes = [], []
    signer = verifier = None
    try:
        signer = Signer.from_file(private) if private else None
    except KeyFileError as error:
        mistakes.append(str(error))
    try:
        verifier = Verifier.from_file(public) if public else None
    except KeyFileError as error:
        mistakes.append(str(error))
    if not private:
        notes.append("signing.private_key_file is not set, so no controller can start with it")
    notes += security.key_notes(settings)
    if not public:
        notes.append("signing.public_key_file is not set: a link with this configuration accepts no placement")
    if verifier is not None:
        trusted = [fingerprint(key) for key in verifier.keys]
        if signer is not None and fingerprint(signer.public) not in trusted:
            mistakes.append(
                f"signing.public_key_file: {public} does not hold the public half of {private}: links would refuse all "
                "that this controller signs"
            )
        if len(trusted) > 1:
            notes.append(
                f"signing.public_key_file: {len(trusted)} keys are trusted ({', '.join(trusted)}); once no controller "
                "signs with the old one, drop it: `rechannel config keys --retire DIRECTORY`"
            )
    return mistakes, notes


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


def init(file: str, *, as_json: bool) -> None:
    """Write the commented configuration, in which every line is commented out."""
    path = Path(file)
    text = (resources.files("rechannel.conf") / "rechannel.toml").read_text(encoding="utf-8")
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
    click.echo(f"{path} has every setting with its default; remove the # of a line to change it")
    click.echo(f"then: export {CONFIG_VARIABLE}={path.resolve()}; rechannel config check")


def change_keys(
    directory: str, *, rotate: bool = False, retire: bool = False, force: bool = False, as_json: bool
) -> None:
    """Make a signing key pair, or replace one without a time in which no signature is trusted.

    Parameters
    ----------
    directory
        Directory of the pair.
    rotate, retire
        Begin a change of keys, or end it. Without both, a new pair is made.
    force
        With ``retire``: keep the key in use even if it is the older one.
    as_json
        Print one JSON document.
    """
    if rotate and retire:
        raise CommandError(
            ExitCode.USAGE, "--rotate begins a change of keys and --retire ends it; update the drivers in between"
        )
    if force and not retire:
        raise CommandError(ExitCode.USAGE, "--force needs --retire")
    path = Path(directory)
    try:
        document, lines = _retire(path, force) if retire else _rotate(path) if rotate else _make(path)
    except KeyFileError as error:
        raise CommandError(ExitCode.REFUSED, str(error)) from error
    except OSError as error:
        raise CommandError(ExitCode.REFUSED, f"{directory}: cannot be written ({error.strerror})") from error
    click.echo(json.dumps(document) if as_json else "\n".join(lines))


_Result = tuple[dict[str, object], list[str]]  # JSON document, and lines for people


def _make(directory: Path) -> _Result:
    private, public = make_keys(directory)
    return {"private_key_file": str(private), "public_key_file": str(public)}, [
        f"signing.private_key_file = {json.dumps(str(private))}   # controllers alone, mode 600",
        f"signing.public_key_file = {json.dumps(str(public))}   # every driver and controller",
    ]


def _rotate(directory: Path) -> _Result:
    """Make the next key and trust it too; a second call continues an interrupted one."""
    private, following, public = directory / _KEY, directory / _NEXT, directory / _PUBLIC
    trusted, current = _pair(directory)
    if not following.exists():
        if len(trusted) > 1:
            raise KeyFileError(f"{public} trusts {len(trusted)} keys already: end that change first, with --retire")
        write_private_key(following)
    _copy_ownership(following, private)  # the user that signs has to read the next key in place of this one
    successor = Signer.from_file(following).public
    if fingerprint(successor) not in {fingerprint(key) for key in trusted}:
        _replace(public, b"".join(pem_of(key) for key in (*trusted, successor)))
    document: dict[str, object] = {
        "next_private_key_file": str(following),
        "public_key_file": str(public),
        "keys": [fingerprint(current), fingerprint(successor)],
    }
    return document, [
        f"{public} trusts the key in use ({fingerprint(current)}) and the next one ({fingerprint(successor)})",
        f"1. copy {public} to every driver and controller, in place of the old one; links read it automatically",
        f"2. copy {following} to every other machine with a controller, over its signing.key (same owner and mode)",
        f"3. here `mv {following} {private}`, which has its owner already; then restart the controllers one by one",
        f"4. here `rechannel config keys --retire {directory}`, and copy {public} everywhere again",
    ]


def _retire(directory: Path, force: bool) -> _Result:
    """Trust the key in use alone; it must be the newest unless ``force``."""
    following, public = directory / _NEXT, directory / _PUBLIC
    if following.exists():
        raise KeyFileError(
            f"{following} is not in use yet: `mv` it to {directory / _KEY} first, and restart controllers"
        )
    trusted, current = _pair(directory)
    dropped = [fingerprint(key) for key in trusted if fingerprint(key) != fingerprint(current)]
    newest = fingerprint(trusted[-1])  # --rotate appends the next one
    if newest in dropped and not force:
        raise KeyFileError(
            f"{directory / _KEY} is the older key: {fingerprint(current)} would be kept, and {', '.join(dropped)} "
            "dropped, the newest among them. Bring the new private key here first, or run this where --rotate was run; "
            "--force goes back to the older one"
        )
    if dropped:
        _replace(public, pem_of(current))
    document: dict[str, object] = {"public_key_file": str(public), "keys": [fingerprint(current)], "dropped": dropped}
    trust = f"{public} trusts {fingerprint(current)} alone"
    if not dropped:
        return document, [f"{trust}; there was nothing to drop"]
    return document, [
        f"{trust}, which it kept; dropped: {', '.join(dropped)}",
        "copy it to every driver and controller, in place of the old one; links read it automatically",
    ]


def _pair(directory: Path) -> tuple[tuple[Ed25519PublicKey, ...], Ed25519PublicKey]:
    """Return the trusted keys and the one in use; KeyFileError if that is not trusted."""
    private, public = directory / _KEY, directory / _PUBLIC
    current = Signer.from_file(private).public
    trusted = public_keys(public)
    if fingerprint(current) not in {fingerprint(key) for key in trusted}:
        raise KeyFileError(f"{public} does not hold the public half of {private}: they are of different pairs")
    return trusted, current


def _replace(path: Path, data: bytes) -> None:
    """Replace a file atomically, with owner, group and mode of the old one."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            _set_ownership(file.fileno(), path.stat())
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _copy_ownership(path: Path, like: Path) -> None:
    """Copy owner, group and mode of another file."""
    # O_NOFOLLOW: a symbolic link in another user's directory could name any file, and root would give it away.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        _set_ownership(descriptor, like.stat())
    finally:
        os.close(descriptor)


def _set_ownership(descriptor: int, like: os.stat_result) -> None:
    with contextlib.suppress(PermissionError):  # only root can change the owner; another user owns the file already
        os.fchown(descriptor, like.st_uid, like.st_gid)
    os.fchmod(descriptor, like.st_mode & 0o777)
