"""Connections to Redis: to one server, or to the current master of a group with sentinels.

Calls are not retried here. A write whose answer was lost may have happened, so callers decide about a retry; and a
leader must know within `rechannel.conf.lease_timing.longest_call` whether it still leads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis
import redis.exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel

from rechannel.conf.redis_url import SentinelAddress, sentinel_address
from rechannel.conf.settings import RedisSettings
from rechannel.wire.redis import tls


class Connection:
    """Client of the server that accepts writes. Connects on first use."""

    def __init__(self, settings: RedisSettings) -> None:
        address = sentinel_address(settings.url)
        self._sentinels: list[Any] = []
        self._service = ""
        times: dict[str, Any] = {
            "socket_timeout": settings.timeout,
            "socket_connect_timeout": settings.timeout,
            "retry": Retry(NoBackoff(), 0),
        }
        self._arguments: dict[str, Any] = {**tls.connection_options(settings), **times}
        if address is None:
            self.client: Any = redis.Redis.from_url(settings.url, **self._arguments)
            return
        self._service = address.service
        sentinel_class: Any = Sentinel  # without type hints
        sentinel = sentinel_class(address.sentinels, sentinel_kwargs=_options(settings, address))
        self._sentinels = sentinel.sentinels
        # After a fail-over the next call finds the server gone or read-only, and asks the sentinels again.
        self.client = sentinel.master_for(address.service, db=address.database, **self._arguments)

    @contextmanager
    def reconnecting(self) -> Iterator[None]:
        """Let the next call connect anew after an answer that this server is no master.

        A name, a service or a proxy may lead to the new master by now; an open connection does not.
        """
        try:
            yield
        except (redis.exceptions.ReadOnlyError, redis.exceptions.MasterDownError):
            self.client.connection_pool.disconnect(inuse_connections=False)
            raise

    def replicas(self) -> list[tuple[str, Any]]:
        """Return host:port and a client of every known replica; none without sentinels.

        Raises redis.RedisError if no sentinel answers, or if the first one that answers refuses.
        """
        failure: redis.RedisError | None = None
        for sentinel in self._sentinels:
            try:
                replicas = sentinel.sentinel_slaves(self._service)
            except (redis.ConnectionError, redis.TimeoutError) as error:
                failure = error
                continue
            addresses = sorted((str(replica["ip"]), int(replica["port"])) for replica in replicas)
            return [
                (f"{host}:{port}", redis.Redis(host=host, port=port, **self._arguments)) for host, port in addresses
            ]
        if failure is not None:
            raise failure
        return []

    def close(self) -> None:
        """Drop all connections."""
        self.client.close()
        for sentinel in self._sentinels:
            sentinel.close()


def _options(settings: RedisSettings, address: SentinelAddress) -> dict[str, Any]:
    # In the worst case every sentinel is connected to and asked before one answers.
    share = settings.timeout / (2 * len(address.sentinels))
    return {
        "username": settings.sentinel_username or None,
        "password": tls.read_password(settings.sentinel_password_file, "redis.sentinel_password_file"),
        **tls.tls_options(settings),
        "socket_timeout": share,
        "socket_connect_timeout": share,
        "retry": Retry(NoBackoff(), 0),
    }
