"""The command ``acl``: users in Redis that may do what their part needs, and nothing else (`wire.keys` says what)."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from pathlib import Path

import click

from rechannel.conf.settings import Settings
from rechannel.daemon.exits import CommandError, Exit
from rechannel.wire.keys import Role, commands, patterns
from rechannel.wire.store import Store

SHORTEST_PASSWORD = 16
_WHERE = {
    Role.LINK: "where the drivers run",
    Role.CONTROLLER: "on every machine with a controller",
    Role.VIEWER: "for those who look",
    Role.OPERATOR: "for those who give orders",
}


def user_of(cluster: str, role: Role, name: str = "") -> str:
    """Return the name of the Redis user of a role; ``name`` tells several of one role apart."""
    return "-".join(part for part in ("rechannel", cluster, role, name) if part)


def rules_of(cluster: str, role: Role, name: str, password: str) -> list[str]:
    """Return the ACL rules of a user. Raises KeyNameError for an impossible name."""
    digest = hashlib.sha256(password.encode()).hexdigest()
    return ["reset", "on", f"#{digest}", *patterns(role, cluster, name), *commands(role)]


def add(settings: Settings, part: str, name: str, password_file: str, *, only_print: bool, as_json: bool) -> None:
    """Make the user of a role, with the password of the file or a new one that is written there."""
    role = Role(part)
    if role is Role.AGENT and not name:
        raise CommandError(Exit.USAGE, "an agent's user is one node's: name the node")
    cluster = settings.cluster.name
    path = Path(password_file or f"{name or role}.password")
    user = user_of(cluster, role, name)
    rules_of(cluster, role, name, "")  # a name that cannot be: before a file is written
    password, new = _password(path)
    rules = rules_of(cluster, role, name, password)
    line = " ".join(["user", user, *rules])
    lasting = None
    if not only_print:
        lasting = Store(settings.redis, cluster).set_user(user, rules)
    if as_json:
        click.echo(json.dumps({"user": user, "password_file": str(path), "acl": line, "lasting": lasting}))
        return
    if only_print:
        click.echo(line)
        return
    where = f"on {name}" if role is Role.AGENT else _WHERE[role]
    click.echo(f"Redis has the user {user}; its password is {'written to' if new else 'that of'} {path}")
    click.echo(f'{where}, bring that file there and set redis.username = "{user}" and redis.password_file')
    if not lasting:
        click.echo("this Redis keeps no ACL file and forgets the user when it restarts; put into its configuration:")
        click.echo(line)


def _password(path: Path) -> tuple[str, bool]:
    """Read the password, or write a new one that only its owner can read; says whether it is new."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return _known_password(path), False
    except OSError as error:
        raise CommandError(Exit.REFUSED, f"--password-file: {path} cannot be written ({error.strerror})") from error
    password = secrets.token_urlsafe(32)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(password + "\n")
    return password, True


def _known_password(path: Path) -> str:
    try:
        password = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(Exit.REFUSED, f"--password-file: {path} cannot be read") from error
    if len(password) < SHORTEST_PASSWORD or password.split() != [password]:
        raise CommandError(
            Exit.REFUSED,
            f"--password-file: {path} must hold one word of {SHORTEST_PASSWORD} characters or more; "
            "remove it to have a new one made",
        )
    return password
