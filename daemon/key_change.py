"""New signing keys, and their replacement without a time in which no signature is trusted.

Each step returns a JSON document and the lines for people, and raises KeyFileError where it is not possible.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from rechannel.wire.signing import (
    KeyFileError,
    Signer,
    fingerprint,
    make_keys,
    pem_of,
    public_keys,
    write_private_key,
)

_KEY, _NEXT, _PUBLIC = "signing.key", "signing.next.key", "signing.pub"

_Result = tuple[dict[str, object], list[str]]  # JSON document, and lines for people


def make(directory: Path) -> _Result:
    """Write a new pair."""
    private, public = make_keys(directory)
    return {"private_key_file": str(private), "public_key_file": str(public)}, [
        f"signing.private_key_file = {json.dumps(str(private))}   # controllers alone, mode 600",
        f"signing.public_key_file = {json.dumps(str(public))}   # every driver and controller",
    ]


def rotate(directory: Path) -> _Result:
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


def retire(directory: Path, force: bool) -> _Result:
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
