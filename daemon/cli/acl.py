"""The command ``acl``: makes Redis users with the rights of one role."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import secrets
from pathlib import Path

import click

from rechannel.conf.settings import Settings
from rechannel.daemon.doctor import security
from rechannel.wire.exit_codes import CommandError, ExitCode
from rechannel.wire.keys import Role, commands, patterns
from rechannel.wire.redis.acl import AclResult
from rechannel.wire.redis.store import Store

SHORTEST_PASSWORD = 16
_AUDIENCE = {
    Role.AGENT: "where the agents of pods run",
    Role.LINK: "where the drivers run",
    Role.CONTROLLER: "on every machine with a controller",
    Role.VIEWER: "for people who read the status",
    Role.OPERATOR: "for people who give orders",
}


def _user_of(cluster: str, role: Role, name: str) -> str:
    """Return the name of the Redis user of a role, and of one of several with ``name``."""
    return "-".join(part for part in ("rechannel", cluster, role, name) if part)


def _rules_of(cluster: str, role: Role, name: str, password: str) -> list[str]:
    """Return the ACL rules of a user. Raises KeyNameError for an impossible name."""
    digest = hashlib.sha256(password.encode()).hexdigest()
    return ["reset", "on", f"#{digest}", *patterns(role, cluster, name), *commands(role)]


def add_user(settings: Settings, part: str, name: str, password_file: str, *, only_print: bool, as_json: bool) -> None:
    """Make the Redis user of a role.

    ``password_file``: written with a new password if there is none; "" for a file named like the user.
    """
    role = Role(part)
    cluster = settings.cluster.name
    user = _user_of(cluster, role, name)
    path = Path(password_file or f"{user}.password")
    _rules_of(cluster, role, name, "")  # raises for an impossible name, before a file is written
    password, is_new = _password(path, named=bool(password_file))
    rules = _rules_of(cluster, role, name, password)
    line = " ".join(["user", user, *rules])
    results = None if only_print else _set_user(settings, user, rules)
    if as_json:
        click.echo(json.dumps({"user": user, "password_file": str(path), "acl": line, **_document(results)}))
    if results is None:
        if not as_json:
            click.echo(line)
        if not is_new:
            click.echo(f"note: the password is that of {path}, which existed before", err=True)
        return
    if not as_json:
        where = f"on {name}" if role is Role.AGENT and name else _AUDIENCE[role]
        password_state = "written to" if is_new else "that of the existing file"
        click.echo(f"Redis has the user {user}; its password is {password_state} {path}")
        click.echo(f'{where}, copy that file there and set redis.username = "{user}" and redis.password_file')
        _print_servers(results, line)
    for sentence in security.redis_notes(settings):
        click.echo(f"note: {sentence}", err=True)


def _set_user(settings: Settings, user: str, rules: list[str]) -> list[AclResult]:
    store = Store(settings.redis, settings.cluster.name)
    try:
        return store.set_user(user, rules)
    finally:
        store.close()


def _document(results: list[AclResult] | None) -> dict[str, object]:
    if results is None:
        return {"lasting": None, "servers": []}
    return {"lasting": all(one.lasting for one in results), "servers": [dataclasses.asdict(one) for one in results]}


def _print_servers(results: list[AclResult], line: str) -> None:
    """Print which servers have the user, and what is left to do on the others."""
    succeeded = [one for one in results if not one.problem]
    if len(succeeded) > 1:
        click.echo(f"it is on the master, and on the replicas {', '.join(one.server for one in succeeded[1:])}")
    volatile = [one.server for one in succeeded if not one.lasting]
    if volatile:
        click.echo(
            f"{', '.join(volatile)}: this Redis keeps no ACL file and forgets the user when it restarts; put into its "
            "configuration the line below"
        )
    for one in results:
        if one.problem:
            click.echo(
                f"NOT on {one.server} ({one.problem}): Redis does not replicate users, so this part would be locked "
                "out after a fail-over to it; run this again, or put into its configuration the line below (`--print` "
                "shows it at any time)"
            )
    if volatile or len(succeeded) < len(results):
        click.echo(line)


def _password(path: Path, *, named: bool) -> tuple[str, bool]:
    """Return the password in the file, or write a new one; and whether it is new.

    A file of another user is refused unless it was ``named``: its owner would know the password.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        if not named and path.lstat().st_uid != os.geteuid():
            raise CommandError(
                ExitCode.REFUSED,
                f"{path} exists and belongs to another user, who may know the password; name it with "
                "--password-file if it is meant, or go to another directory",
            ) from None
        return _read_password(path), False
    except OSError as error:
        raise CommandError(ExitCode.REFUSED, f"--password-file: {path} cannot be written ({error.strerror})") from error
    password = secrets.token_urlsafe(32)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(password + "\n")
    return password, True


def _read_password(path: Path) -> str:
    try:
        password = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(ExitCode.REFUSED, f"--password-file: {path} cannot be read") from error
    if len(password) < SHORTEST_PASSWORD or password.split() != [password]:
        raise CommandError(
            ExitCode.REFUSED,
            f"--password-file: {path} must hold one word of {SHORTEST_PASSWORD} characters or more; "
            "remove it to have a new one made",
        )
    return password
