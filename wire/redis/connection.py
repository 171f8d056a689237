"""Connections to Redis: to one server, or to whichever server the sentinels call the master at that moment.

Every call is tried once. Whoever calls knows whether it may be tried again: a write whose answer was lost may have been
made, and a leader must know within `rechannel.conf.lease_timing.longest_call` whether it still leads.
"""

from __future__ import annotations

from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel

from rechannel.conf.redis_url import SentinelAddress, sentinel_address
from rechannel.conf.settings import RedisSettings
from rechannel.wire.redis import tls


class Connection:
    """A client of the server to write to. Connects on first use."""

    def __init__(self, settings: RedisSettings) -> None:
        address = sentinel_address(settings.url)
        self._sentinel: Any = None
        self._service = ""
        times: dict[str, Any] = {
            "socket_timeout": settings.timeout,
            "socket_connect_timeout": settings.timeout,
            "retry": Retry(NoBackoff(), 0),
        }
        self._given: dict[str, Any] = {**tls.connection_options(settings), **times}
        if address is None:
            self.client: Any = redis.Redis.from_url(settings.url, **self._given)
            return
        self._service = address.service
        make: Any = Sentinel  # it has no types
        self._sentinel = make(address.sentinels, sentinel_kwargs=_options(settings, address))
        # On a fail-over the client's next call finds its server gone, or read-only, and asks the sentinels anew.
        self.client = self._sentinel.master_for(address.service, db=address.database, **self._given)

    def replicas(self) -> list[tuple[str, Any]]:
        """Return host:port and a client of every replica that the sentinels know, of those that are away too.

        None without sentinels. Raises redis.RedisError where no sentinel answers, or the first that does says no.
        """
        refused: redis.RedisError | None = None
        for sentinel in self._sentinel.sentinels if self._sentinel is not None else ():
            try:
                found = sentinel.sentinel_slaves(self._service)
            except (redis.ConnectionError, redis.TimeoutError) as error:
                refused = error
                continue
            places = sorted((str(replica["ip"]), int(replica["port"])) for replica in found)
            return [(f"{host}:{port}", redis.Redis(host=host, port=port, **self._given)) for host, port in places]
        if refused is not None:
            raise refused
        return []

    def close(self) -> None:
        """Drop all connections."""
        self.client.close()
        for sentinel in self._sentinel.sentinels if self._sentinel is not None else ():
            sentinel.close()


def _options(settings: RedisSettings, address: SentinelAddress) -> dict[str, Any]:
    # All of them may have to be asked, to connect and to answer each, before the one that knows.
    share = settings.timeout / (2 * len(address.sentinels))
    return {
        "username": settings.sentinel_username or None,
        "password": tls.read_password(settings.sentinel_password_file, "redis.sentinel_password_file"),
        **tls.tls_options(settings),
        "socket_timeout": share,
        "socket_connect_timeout": share,
        "retry": Retry(NoBackoff(), 0),
    }
