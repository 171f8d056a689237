"""Users of Redis: made on every server there is, for Redis does not replicate them; and whether it wants one at all."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import redis

from rechannel.conf.settings import RedisSettings
from rechannel.wire import keys
from rechannel.wire.redis.connection import Connection
from rechannel.wire.redis.tls import CredentialFileError

_PATIENCE = 1.0  # seconds


@dataclass(frozen=True)
class AclResult:
    """What became of a user on one server. ``lasting``: it outlives a restart. ``problem``: why it is not there."""

    server: str
    lasting: bool = False
    problem: str = ""


def create_user(client: Any, user: str, rules: Sequence[str]) -> bool:
    """Make or replace a user on one server (ACL SETUSER); False if that forgets it when it restarts."""
    client.execute_command("ACL", "SETUSER", user, *rules)
    with suppress(redis.ResponseError):  # Redis 7.0 does not know it
        client.execute_command("ACL", "SETUSER", user, *keys.EXTRA)
    try:
        client.execute_command("ACL", "SAVE")
    except redis.ResponseError:  # this Redis keeps its users in no file
        return False
    return True


def create_user_on_replicas(connection: Connection, user: str, rules: Sequence[str]) -> list[AclResult]:
    """Make the user on every replica that the sentinels know; one that is away has a problem, and so have all of them
    where no sentinel names them. Without sentinels there is nothing to do.
    """
    try:
        replicas = connection.replicas()
    except redis.ResponseError as error:
        why = f"the sentinels do not name them ({error}); redis.sentinel_username needs +sentinel|slaves"
        return [AclResult("replicas", problem=why)]
    except (redis.RedisError, OSError) as error:
        return [AclResult("replicas", problem=f"the sentinels do not name them ({error})")]
    made = []
    for server, client in replicas:
        try:
            made.append(AclResult(server, create_user(client, user, rules)))
        except (redis.RedisError, OSError) as error:
            made.append(AclResult(server, problem=str(error)))
        finally:
            client.close()
    return made


def allows_anonymous(settings: RedisSettings) -> bool:
    """Whether Redis lets somebody in who names neither user nor password; False where that cannot be found out."""
    patience = min(settings.timeout, _PATIENCE)
    stranger = replace(settings, username="", password_file="", timeout=patience)  # nosec B106 it is to have none
    try:
        connection = Connection(stranger)
    except (CredentialFileError, redis.RedisError, ValueError, OSError):
        return False
    try:
        return bool(connection.client.ping())
    except (CredentialFileError, redis.RedisError, ValueError, OSError):
        return False
    finally:
        connection.close()
