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
from rechannel.conf.loader import LoadResult, read
from rechannel.conf.parser import ENVIRONMENT_PREFIX
from rechannel.conf.settings import CONFIG_VARIABLE, Settings, SettingsError
from rechannel.daemon.control.audit import AuditError, AuditFile
from rechannel.daemon.decide import policy_settings
from rechannel.daemon.doctor import security
from rechannel.wire.exit_codes import CommandError, ExitCode
from rechannel.wire.redis import tls
from rechannel.wire.redis.tls import ChannelError
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
# Beside those of settings. The last two pass from `rechannel submit` to what it starts.
_VARIABLES = (CONFIG_VARIABLE, "RECHANNEL_LOG", "RECHANNEL_DEBUG", "RECHANNEL_LENT", "RECHANNEL_STRICT")
_OF_TESTS = "RECHANNEL_TEST"


def check(config: str | None, *, as_json: bool) -> None:
    """Check the values and what they point at; every mistake is told at once."""
    loaded = read(config)
    mistakes, notes = examine(loaded)
    if mistakes:
        raise SettingsError(mistakes)
    if as_json:
        file = str(loaded.path) if loaded.path else None
        click.echo(json.dumps({"ok": True, "file": file, "used": loaded.sentence(), "notes": notes}))
        return
    click.echo("the configuration can be used")
    click.echo(loaded.sentence(), err=True)
    for note in notes:
        click.echo(f"note: {note}", err=True)


def examine(loaded: LoadResult) -> tuple[list[str], list[str]]:
    """Return every mistake in the values and in the files they name, and what is worth knowing."""
    settings = loaded.settings
    mistakes = [*loaded.mistakes, *policy_settings.mistakes(settings)]
    missing = _missing(settings)
    mistakes += missing
    if not missing:
        for read_files in (
            lambda: tls.options(settings.redis),
            lambda: tls.password_of(settings.redis.sentinel_password_file, "redis.sentinel_password_file"),
        ):
            try:
                read_files()
            except ChannelError as error:
                mistakes.append(str(error))
    try:
        AuditFile(settings.controller.audit_file).check()
    except AuditError as error:
        mistakes.append(str(error))
    key_mistakes, notes = look_at_keys(settings)
    mistakes += key_mistakes
    mistakes += _open_to_writers(loaded)
    notes += _open_passwords(settings)
    notes += _strange_variables(os.environ)
    notes += security.listen_notes(
        {"controller.listen": settings.controller.listen, "agent.metrics": settings.agent.metrics}
    )
    if not mistakes:  # only what can be used is worth a connection
        notes += security.redis_notes(settings)
    return list(dict.fromkeys(mistakes)), notes


def _strange_variables(environ: Mapping[str, str]) -> list[str]:
    """Name the variables that look like Rechannel's and are read by nobody."""
    known = [*_VARIABLES[:-2], *(ENVIRONMENT_PREFIX + name.replace(".", "__").upper() for name in render.fields())]
    words = {name.removeprefix(ENVIRONMENT_PREFIX): name for name in known}
    found = []
    for name in sorted(environ):
        read_by_us = name in _VARIABLES or "__" in name or name.startswith(_OF_TESTS)
        if name.startswith(ENVIRONMENT_PREFIX) and not read_by_us:
            near = difflib.get_close_matches(name.removeprefix(ENVIRONMENT_PREFIX), words, 1)
            found.append(f"{name}: no variable of Rechannel{f'; did you mean {words[near[0]]}?' if near else ''}")
    return found


def _missing(settings: Settings) -> list[str]:
    """Name the files of the connection that cannot be read."""
    found = []
    for item in dataclasses.fields(settings.redis):
        path = getattr(settings.redis, item.name) if item.name.endswith("_file") else ""
        try:
            if path and Path(path).exists() and not Path(path).is_file():  # a pipe would be waited for
                found.append(f"redis.{item.name}: {path} is not a regular file; name one")
            elif path:
                Path(path).open("rb").close()
        except OSError as error:
            found.append(f"redis.{item.name}: {path} cannot be read ({error.strerror})")
    return found


def _open_to_writers(loaded: LoadResult) -> list[str]:
    """Name the files that everybody may write to: who does decides what is trusted."""
    link, public = loaded.settings.link.directory, loaded.settings.signing.public_key_file
    found = []
    named = [(str(path), Path(path)) for path in (loaded.path,) if path is not None]
    named += [(f"{field}: {path}", Path(path)) for field, path in (("signing.public_key_file", public),) if path]
    for words, path in named:
        if _mode(path) & 0o002:
            found.append(f"{words}{'' if ': ' in words else ':'} can be written to by everybody; `chmod o-w {path}`")
    if link and Path(link).exists() and not Path(link).is_dir():
        found.append(f"link.directory: {link} is no directory; name one that is Spark's user's, or none")
    elif link and _mode(Path(link)) & 0o1002 == 0o002:
        found.append(f"link.directory: everybody can replace what is in {link}; `chmod o-w {link}`")
    return found


def _mode(path: Path) -> int:
    """Return the mode bits; 0 for what is not there, or not to be seen."""
    try:
        return path.stat().st_mode
    except OSError:
        return 0


def look_at_keys(settings: Settings) -> tuple[list[str], list[str]]:
    """What is wrong with the signing keys, and what is worth knowing of them."""
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
        notes.append("signing.public_key_file is not set: a link with this configuration obeys nobody")
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


def _open_passwords(settings: Settings) -> list[str]:
    found = []
    for item in dataclasses.fields(settings.redis):
        path = getattr(settings.redis, item.name) if item.name.endswith("password_file") else ""
        if path and _mode(Path(path)) & 0o007:
            found.append(f"redis.{item.name}: {path} can be read by everybody; `chmod o= {path}`")
    return found


def show(config: str | None, *, as_json: bool) -> None:
    """Show every setting with where it comes from; of secrets they name the file, never what it holds."""
    loaded = read(config)
    if loaded.mistakes:
        raise SettingsError(loaded.mistakes)
    click.echo(json.dumps(render.document(loaded)) if as_json else render.toml(loaded).rstrip())


def init(file: str, *, as_json: bool) -> None:
    """Write the commented configuration, which changes nothing until a line of it is."""
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
    click.echo(f"{path} holds every setting at its default; take the # off a line to change it")
    click.echo(f"then: export {CONFIG_VARIABLE}={path.resolve()}; rechannel config check")


def change_keys(
    directory: str, *, rotate: bool = False, retire: bool = False, force: bool = False, as_json: bool
) -> None:
    """Make a signing key pair, or change the one there is without a gap."""
    if rotate and retire:
        raise CommandError(
            ExitCode.USAGE, "--rotate begins a change of keys and --retire ends it; drivers come between"
        )
    if force and not retire:
        raise CommandError(ExitCode.USAGE, "--force goes with --retire")
    place = Path(directory)
    try:
        document, lines = _retire(place, force) if retire else _rotate(place) if rotate else _make(place)
    except KeyFileError as error:
        raise CommandError(ExitCode.REFUSED, str(error)) from error
    except OSError as error:
        raise CommandError(ExitCode.REFUSED, f"{directory}: cannot be written ({error.strerror})") from error
    click.echo(json.dumps(document) if as_json else "\n".join(lines))


_Said = tuple[dict[str, object], list[str]]


def _make(directory: Path) -> _Said:
    private, public = make_keys(directory)
    return {"private_key_file": str(private), "public_key_file": str(public)}, [
        f"signing.private_key_file = {json.dumps(str(private))}   # controllers alone, mode 600",
        f"signing.public_key_file = {json.dumps(str(public))}   # every driver and controller",
    ]


def _rotate(directory: Path) -> _Said:
    """Make the next key and add its public half to the bundle. Said again, it goes on with what was begun."""
    private, following, public = directory / _KEY, directory / _NEXT, directory / _PUBLIC
    trusted, current = _pair(directory)
    if not following.exists():
        if len(trusted) > 1:
            raise KeyFileError(f"{public} trusts {len(trusted)} keys already: end that change first, with --retire")
        write_private_key(following)
    _give(following, private)  # whoever signs with the one in use has to read the next one in its place
    coming = Signer.from_file(following).public
    if fingerprint(coming) not in {fingerprint(key) for key in trusted}:
        _replace(public, b"".join(pem_of(key) for key in (*trusted, coming)))
    document: dict[str, object] = {
        "next_private_key_file": str(following),
        "public_key_file": str(public),
        "keys": [fingerprint(current), fingerprint(coming)],
    }
    return document, [
        f"{public} trusts the key in use ({fingerprint(current)}) and the next one ({fingerprint(coming)})",
        f"1. bring {public} to every driver and controller, in place of the old one; links read it again by themselves",
        f"2. copy {following} to every other machine with a controller, over its signing.key (same owner and mode)",
        f"3. here `mv {following} {private}`, which has its owner already; then restart the controllers one by one",
        f"4. here `rechannel config keys --retire {directory}`, and bring {public} everywhere once more",
    ]


def _retire(directory: Path, force: bool) -> _Said:
    """Leave nothing in the bundle but the key in use, which must be the newest unless ``force``."""
    following, public = directory / _NEXT, directory / _PUBLIC
    if following.exists():
        raise KeyFileError(
            f"{following} is not in use yet: `mv` it to {directory / _KEY} first, and restart controllers"
        )
    trusted, current = _pair(directory)
    dropped = [fingerprint(key) for key in trusted if fingerprint(key) != fingerprint(current)]
    newest = fingerprint(trusted[-1])  # --rotate puts the next one behind the others
    if newest in dropped and not force:
        raise KeyFileError(
            f"{directory / _KEY} is the older key: {fingerprint(current)} would be kept, and {', '.join(dropped)} "
            "dropped, the newest among them. Bring the new private key here first, or run this where --rotate was run; "
            "--force goes back to the older one"
        )
    if dropped:
        _replace(public, pem_of(current))
    document: dict[str, object] = {"public_key_file": str(public), "keys": [fingerprint(current)], "dropped": dropped}
    said = f"{public} trusts {fingerprint(current)} alone"
    if not dropped:
        return document, [f"{said}; there was nothing to drop"]
    return document, [
        f"{said}, which it kept; dropped: {', '.join(dropped)}",
        "bring it to every driver and controller, in place of the old one; links read it again by themselves",
    ]


def _pair(directory: Path) -> tuple[tuple[Ed25519PublicKey, ...], Ed25519PublicKey]:
    """The keys trusted, and the public half of the private key in use, which must be one of them."""
    private, public = directory / _KEY, directory / _PUBLIC
    current = Signer.from_file(private).public
    trusted = public_keys(public)
    if fingerprint(current) not in {fingerprint(key) for key in trusted}:
        raise KeyFileError(f"{public} does not hold the public half of {private}: they are of different pairs")
    return trusted, current


def _replace(path: Path, data: bytes) -> None:
    """Write a file anew, at once: whoever reads it meanwhile sees the old one or the new one."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            _own(file.fileno(), path.stat())
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _give(path: Path, like: Path) -> None:
    """Give a file the owner, group and mode of another one."""
    # A link in a directory of another user's could name any file; root gives none of those away.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        _own(descriptor, like.stat())
    finally:
        os.close(descriptor)


def _own(descriptor: int, like: os.stat_result) -> None:
    with contextlib.suppress(PermissionError):  # only root gives away; for anybody else it is their own file already
        os.fchown(descriptor, like.st_uid, like.st_gid)
    os.fchmod(descriptor, like.st_mode & 0o777)
