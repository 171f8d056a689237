"""The command ``acl``: users in Redis that may do what their part needs, and nothing else."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from pathlib import Path

import click

from rechannel.conf.settings import Settings
from rechannel.daemon.exits import CommandError, Exit
from rechannel.wire.keys import EVIDENCE, WINDOWS, Keys
from rechannel.wire.store import Store

SHORTEST_PASSWORD = 16
# What appending to a stream takes, and what a client says when it connects; reading is not among it.
_COMMANDS = (
    *("-@all", "+xadd", "+expire"),
    *("+info", "+ping", "+hello", "+auth", "+select", "+client|setinfo", "+client|setname"),
)


def agent_user(cluster: str, node: str) -> str:
    """Return the name of the Redis user of a node's agent."""
    return f"rechannel-{cluster}-agent-{node}"


def agent_rules(cluster: str, node: str, password: str) -> list[str]:
    """Return the ACL rules of a node's agent: write its own two streams. Raises KeyNameError for an impossible name."""
    keys = Keys(cluster)
    patterns = [f"%W~{keys(rule, node)}" for rule in (WINDOWS, EVIDENCE)]
    digest = hashlib.sha256(password.encode()).hexdigest()
    return ["reset", "on", f"#{digest}", *patterns, *_COMMANDS]


def add_node(settings: Settings, node: str, password_file: str, *, only_print: bool, as_json: bool) -> None:
    """Make the user, with the password of the file or a new one that is written there."""
    path = Path(password_file or f"{node}.password")
    user = agent_user(settings.cluster.name, node)
    agent_rules(settings.cluster.name, node, "")  # a name that cannot be: before a file is written
    password, new = _password(path)
    rules = agent_rules(settings.cluster.name, node, password)
    line = " ".join(["user", user, *rules])
    lasting = None
    if not only_print:
        lasting = Store(settings.redis, settings.cluster.name).set_user(user, rules)
    if as_json:
        click.echo(json.dumps({"user": user, "password_file": str(path), "acl": line, "lasting": lasting}))
        return
    if only_print:
        click.echo(line)
        return
    click.echo(f"Redis has the user {user}; its password is {'written to' if new else 'that of'} {path}")
    click.echo(f'on {node}, bring that file there and set redis.username = "{user}" and redis.password_file')
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
