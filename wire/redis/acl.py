"""Create Redis users on every server (they are not replicated), and detect open servers."""

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

_TIMEOUT = 1.0  # seconds to find out whether Redis is open


@dataclass(frozen=True)
class AclResult:
    """Result for one server; ``lasting``: the user survives a restart."""

    server: str
    lasting: bool = False
    problem: str = ""


def create_user(client: Any, user: str, rules: Sequence[str]) -> bool:
    """Create or replace a user on one server; False if it does not survive a restart."""
    client.execute_command("ACL", "SETUSER", user, *rules)
    with suppress(redis.ResponseError):  # unknown to Redis 7.0
        client.execute_command("ACL", "SETUSER", user, *keys.EXTRA)
    try:
        client.execute_command("ACL", "SAVE")
    except redis.ResponseError:  # this server has no ACL file
        return False
    return True


def create_user_on_replicas(connection: Connection, user: str, rules: Sequence[str]) -> list[AclResult]:
    """Create a user on every replica that the sentinels know; without sentinels do nothing.

    The result has a problem for each replica that cannot be reached, and one if the sentinels do not list them.
    """
    try:
        replicas = connection.replicas()
    except redis.ResponseError as error:
        problem = f"the sentinels do not name them ({error}); redis.sentinel_username needs +sentinel|slaves"
        return [AclResult("replicas", problem=problem)]
    except (redis.RedisError, OSError) as error:
        return [AclResult("replicas", problem=f"the sentinels do not name them ({error})")]
    results = []
    for server, client in replicas:
        try:
            results.append(AclResult(server, create_user(client, user, rules)))
        except (redis.RedisError, OSError) as error:
            results.append(AclResult(server, problem=str(error)))
        finally:
            client.close()
    return results


def allows_anonymous(settings: RedisSettings) -> bool:
    """Whether Redis accepts clients without user and password; False if that is unknown."""
    timeout = min(settings.timeout, _TIMEOUT)
    anonymous = replace(settings, username="", password_file="", timeout=timeout)  # nosec B106  no password on purpose
    try:
        connection = Connection(anonymous)
    except (CredentialFileError, redis.RedisError, ValueError, OSError):
        return False
    try:
        return bool(connection.client.ping())
    except (CredentialFileError, redis.RedisError, ValueError, OSError):
        return False
    finally:
        connection.close()
