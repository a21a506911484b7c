"""Store of consumed messages in Redis, Valkey or another server of this protocol, shared by all members of a group.

    SET    ariane:seen:<name> 1 PX <ttl>                                a consumed message
    SETBIT ariane:seen:<name> <bit> 1, PEXPIRE ariane:seen:<name> <ttl> a row of Spark in its block

The commands of one call leave together, as a pipeline without a transaction, so that a cluster can distribute them by key.
The server may forget keys (a failover, a restart without persistence, eviction): their messages are delivered again.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Sequence
from typing import Any, Protocol

from ariane.client.duplicates.consumed_store import ConsumedKey
from ariane.errors import ClientClosed, ConfigError

PREFIX = "ariane:seen:"
TIMEOUT_S = 5.0  # of connecting and of a response; clients before redis 8 had none
RETRIES, BACKOFF_S, BACKOFF_MAX_S = 3, 0.02, 0.5
INSTALL = "pip install 'ariane[redis]'"


class RedisPipeline(Protocol):
    """Commands that are sent together; the part of `redis.asyncio.client.Pipeline` that the store uses."""

    def exists(self, name: str, /) -> Any: ...
    def getbit(self, name: str, offset: int, /) -> Any: ...
    def set(self, name: str, value: str, /, *, px: int | None = None) -> Any: ...
    def setbit(self, name: str, offset: int, value: int, /) -> Any: ...
    def pexpire(self, name: str, time: int, /) -> Any: ...
    def persist(self, name: str, /) -> Any: ...
    def execute(self) -> Awaitable[list[Any]]: ...


class RedisClient(Protocol):
    """The part of `redis.asyncio.Redis` and `redis.asyncio.RedisCluster` that the store uses."""

    def ping(self) -> Any: ...
    def pipeline(self, transaction: bool = ..., /) -> Any: ...
    def aclose(self) -> Awaitable[None]: ...


class RedisStore:
    """Remembers consumed messages in a Redis server.

    Args:
        client: An asyncio client (`redis.asyncio.Redis`, `RedisCluster`), which stays open and has its own settings; or a URL,
            which needs the extra `ariane[redis]`: `"redis://user:password@10.0.0.1:6379/0"`, or with TLS
            `"rediss://10.0.0.1:6379/0?ssl_ca_certs=ca.pem"`. With a URL, requests time out after 5 s (`?socket_timeout=…`), and are
            repeated if a connection is closed.
        prefix: Beginning of all keys.

    Raises:
        ConfigError: an argument cannot be used, or the package `redis` is not installed.

    Example:
        Idempotent(listener, store=RedisStore("redis://10.0.0.1:6379/0"))
    """

    def __init__(self, client: RedisClient | str, *, prefix: str = PREFIX) -> None:
        if not isinstance(prefix, str):
            raise ConfigError("prefix", prefix, f"expected a text, not {type(prefix).__name__}")
        if not isinstance(client, str) and not callable(getattr(client, "pipeline", None)):
            raise ConfigError("client", client, "expected a client of redis.asyncio, or a URL: redis://host:6379/0")
        self._prefix = prefix
        self._owns_client = isinstance(client, str)  # a client of the application is not closed
        self._client: RedisClient = _connect_lazily(client) if isinstance(client, str) else client
        self._users = 0  # calls of `open` without their `close`

    async def open(self) -> None:
        """Connect.

        Raises:
            ConfigError: the client is not an asyncio client.
            redis.RedisError: the server does not respond.
        """
        answer = self._client.ping()
        if not inspect.isawaitable(answer):
            raise ConfigError("client", type(self._client).__name__, "expected an asyncio client: redis.asyncio.Redis")
        await answer
        self._users += 1

    async def close(self) -> None:
        """Disconnect a client that was created from a URL, if no other user has the store open."""
        if self._users == 0:
            return
        self._users -= 1
        if self._users == 0 and self._owns_client:
            await self._client.aclose()

    async def seen(self, keys: Sequence[ConsumedKey]) -> set[ConsumedKey]:
        """Return those keys that were added and are not older than their `ttl`."""
        commands = self._pipeline()
        for name, bit in keys:
            if bit is None:
                commands.exists(self._prefix + name)
            else:
                commands.getbit(self._prefix + name, bit)
        answers = await commands.execute()
        return {key for key, answer in zip(keys, answers, strict=True) if answer == 1}

    async def add(self, keys: Sequence[ConsumedKey], ttl: float | None) -> None:
        """Record keys for `ttl` seconds, a block from the last time that a row was added to it."""
        ttl_ms = None if ttl is None else max(1, round(ttl * 1000))
        commands = self._pipeline()
        for name, bit in keys:
            if bit is None:
                commands.set(self._prefix + name, "1", px=ttl_ms)
            else:
                commands.setbit(self._prefix + name, bit, 1)
        for name in dict.fromkeys(key.name for key in keys if key.bit is not None):
            if ttl_ms is None:
                commands.persist(self._prefix + name)
            else:
                commands.pexpire(self._prefix + name, ttl_ms)
        await commands.execute()

    def _pipeline(self) -> RedisPipeline:
        if self._users == 0:
            raise ClientClosed("the Redis store is not open: use Idempotent within `async with`")
        commands: RedisPipeline = self._client.pipeline(False)
        return commands


def _connect_lazily(url: str) -> RedisClient:
    """Return a client of the optional package, which connects with its first command."""
    try:
        from redis import ConnectionError as RedisConnectionError
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import ExponentialBackoff
    except ImportError as error:
        raise ConfigError("store", "RedisStore", f"a URL needs the package redis: {INSTALL} ({error})") from None
    # A server closes idle connections when it restarts or by its setting `timeout`: without a second attempt each of them would
    # fail a call. The commands may be repeated. A timeout is not, because it has taken long already.
    retry = Retry(ExponentialBackoff(cap=BACKOFF_MAX_S, base=BACKOFF_S), RETRIES, (RedisConnectionError,))
    try:
        # Options in the URL win.
        client: RedisClient = Redis.from_url(
            url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S, retry=retry
        )
    except ValueError as error:
        # The URL may contain a password, so the message omits it.
        raise ConfigError("client", None, f"the URL of the Redis server is invalid: {error}") from None
    return client
