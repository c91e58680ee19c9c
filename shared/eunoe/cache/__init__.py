"""Where results of helping models are kept: in memory, in a file of this server, or in Redis for several servers."""

from .keys import cache_key
from .memory import InMemoryCache
from .redis import RedisCache
from .sqlite import SqliteCache

__all__ = ["InMemoryCache", "RedisCache", "SqliteCache", "cache_key"]
