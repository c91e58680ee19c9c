"""A cache in Redis, for several servers."""

from __future__ import annotations

import asyncio
import functools
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from ..errors import BadSetting
from .entry import bounded_life, bytes_text, text_bytes
from .outage import Outage

_REDIS_SECONDS = 1.0  # for a whole command, connecting included: a turn waits for it
_REDIS_AT_ONCE = 10  # connections from one event loop
_REDIS_LIFE = 30 * 86_400  # of a text without one: most servers never forget by themselves, and fill up

Reply = TypeVar("Reply")


@dataclass(frozen=True, slots=True)
class _Link:
    """A client for one event loop."""

    client: Any
    holder: AsyncGenerator[Any, None]
    gate: asyncio.Semaphore
    at_end: weakref.finalize[Any, Any]  # closes the client when the cache is gone


class RedisCache:
    """Keeps texts in Redis; `prefix` goes before each key, to tell installations apart that share a server.

    `connect` makes a client of `redis.asyncio`; it is called once for each event loop. When Redis fails,
    the log gets one line and nothing is tried for `pause` seconds.

    Raises:
        BadSetting: the package `redis` is missing.
    """

    def __init__(self, connect: Callable[[], Any], *, prefix: str = "", pause: float = 30.0) -> None:
        self._errors = (_redis_error(), OSError, ValueError)  # the last: a host name that can't be one
        self._connect, self._prefix = connect, prefix
        self._outage = Outage("Redis cache", pause)
        self._links: dict[asyncio.AbstractEventLoop, _Link] = {}

    @classmethod
    def from_url(cls, url: str, *, prefix: str = "", pause: float = 30.0) -> RedisCache:
        """Make a cache for an address such as `redis://:password@host:6379/0`; nothing is connected yet.

        Raises:
            BadSetting: the package `redis` is missing, or it is no address of a Redis.
        """
        _redis_error()
        try:
            _client_for(url).connection_pool.make_connection()  # which refuses what a client alone takes
        except (ValueError, TypeError, AttributeError):
            fix = "Write it like redis://redis:6379/0."
            raise BadSetting("redis_url", "it is no address of a Redis", fix) from None
        return cls(functools.partial(_client_for, url), prefix=prefix, pause=pause)

    async def get(self, key: str) -> str | None:
        """Give the text of `key`, None if there is none, it has expired or Redis is out of reach."""
        return bytes_text(await self._ask(lambda client: client.get(self._name(key))))

    async def set(self, key: str, value: str, ttl: int | None = None) -> None:
        """Keep a text, for `ttl` seconds or a month."""
        seconds = _REDIS_LIFE if ttl is None else bounded_life(ttl)
        if seconds:
            data = text_bytes(value)
            await self._ask(lambda client: client.set(self._name(key), data, ex=seconds), writing=True)
        else:
            await self.delete(key)

    async def delete(self, key: str) -> None:
        """Forget a text."""
        await self._ask(lambda client: client.delete(self._name(key)), writing=True)

    async def exists(self, key: str) -> bool:
        """Say whether there is a text."""
        return bool(await self._ask(lambda client: client.exists(self._name(key))))

    async def close(self) -> None:
        """Close the running event loop's connections; the next use opens new ones."""
        if link := self._links.pop(asyncio.get_running_loop(), None):
            link.at_end.detach()
            await link.holder.aclose()

    def _name(self, key: str) -> bytes:
        return text_bytes(self._prefix + key)

    async def _ask(
        self, command: Callable[[Any], Awaitable[Reply]], *, writing: bool = False
    ) -> Reply | None:
        """Give the reply to a command, None if Redis fails or has failed a while ago."""
        try:
            link = await self._link()
            async with link.gate:
                if self._outage.lasts():  # perhaps since this one waits for its turn
                    return None
                async with asyncio.timeout(_REDIS_SECONDS):
                    reply = await command(link.client)
        except self._errors as error:
            self._outage.failed(type(error).__name__, writing=writing)  # its text may name the address
            return None
        self._outage.worked(writing=writing)
        return reply

    async def _link(self) -> _Link:
        """Give the running loop's client: connections belong to the loop that opened them."""
        loop = asyncio.get_running_loop()
        link = self._links.get(loop)
        if link is None:
            for other in [each for each in list(self._links) if each.is_closed()]:
                if gone := self._links.pop(other, None):
                    gone.at_end.detach()
            client = self._connect()
            holder = _hold_open(client)
            # Holds the client, too: one that is collected together with its cache would warn of open sockets.
            at_end = weakref.finalize(self, _close_soon, loop, client)
            at_end.atexit = False
            link = _Link(await anext(holder), holder, asyncio.Semaphore(_REDIS_AT_ONCE), at_end)
            self._links[loop] = link
        return link


def _close_soon(loop: asyncio.AbstractEventLoop, client: Any) -> None:
    """Close a client in its own loop, where alone that is possible; a loop that has ended has done it."""
    if not loop.is_closed():
        asyncio.run_coroutine_threadsafe(client.aclose(), loop)


async def _hold_open(client: Any) -> AsyncGenerator[Any, None]:
    """Hold a client until its loop ends or its cache is gone.

    Loops close the generators that were begun in them, at their end or when nobody has them any more, so
    that connections are closed where alone that is possible: in their own loop.
    """
    try:
        yield client
    finally:
        await client.aclose()


def _client_for(url: str) -> Any:
    """Make a client; it connects when it is first used."""
    from redis.asyncio import Redis  # noqa: PLC0415  50 ms that only Redis' users spend
    from redis.asyncio.retry import Retry  # noqa: PLC0415
    from redis.backoff import NoBackoff  # noqa: PLC0415

    return Redis.from_url(
        url,
        socket_connect_timeout=_REDIS_SECONDS,
        socket_timeout=_REDIS_SECONDS,
        retry=Retry(NoBackoff(), 1),  # at once and once: a connection may have been closed while it was idle
    )


def _redis_error() -> type[Exception]:
    """Give the root of Redis' errors, or say that the package is missing."""
    try:
        from redis.exceptions import RedisError  # noqa: PLC0415
    except ImportError:
        fix = "Install it (`pip install redis`), or choose memory or sqlite."
        raise BadSetting("cache_backend", "redis needs the package redis, which is missing", fix) from None
    return RedisError
