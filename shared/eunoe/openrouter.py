"""OpenRouter's public price list: fetched in the background and kept in a file, so that nobody waits for it."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx

from .listing import listed_price
from .pricing import Price, priced

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]  # Windows: several workers may fetch at once there

logger = logging.getLogger("eunoe")

OPENROUTER_MODELS = "https://openrouter.ai/api/v1/models"
_OPENROUTER = "OpenRouter"
_STEP_SECONDS = 10.0  # for connecting, and for each piece of the answer
_ANSWER_SECONDS = 60.0  # for all of it, however slowly it trickles
_ANSWER_BYTES = 32 * 2**20  # several hundred models with their descriptions are some megabytes
_FETCH_FROM, _FETCH_TO = 60.0, 1_800.0  # seconds between attempts while there is no answer
_OTHER_FETCHES = 5.0  # seconds after which to look for what another worker has fetched
_PRICE_FIELDS = ("input", "cached", "cache_write", "output")


class PriceList:
    """Knows OpenRouter's prices: those in the file at `path`, fetched anew when they are `ttl_hours` old.

    A list that is too old is used until there is a newer one. What fails costs the prices only and one line
    in the log; it is tried again after a minute, then ever less often, down to twice an hour. Threads may
    share a list, and several workers one file.
    """

    def __init__(
        self,
        path: Path,
        ttl_hours: float = 24.0,
        *,
        url: str = OPENROUTER_MODELS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._stock = _PriceStock(path, ttl_hours * 3_600, url, clock)

    def prices(self) -> Mapping[str, Price]:
        """Give at once what is known, by model id with and without its provider; see `find_price`.

        Starts a fetch in the background if that is too old.
        """
        known = self._stock.known or self._stock.look()
        if self._stock.is_due(known):
            self._stock.wait(
                _FETCH_FROM
            )  # until then no other thread is started, whatever becomes of this one
            arguments = (self._stock, weakref.ref(self))
            with contextlib.suppress(RuntimeError):  # no thread can be had at this moment
                threading.Thread(target=_fetch_into, args=arguments, name="eunoe-prices", daemon=True).start()
        return known.by_name


class _NoPrices(Exception):
    """What was read is no price list; says why, in words for an administrator."""


@dataclass(frozen=True, slots=True)
class _KnownPrices:
    """Prices by the models' names, and when they were fetched in seconds since 1970."""

    by_name: Mapping[str, Price] = field(default_factory=dict)
    fetched_at: float = -math.inf


# The last two: an answer nested too deeply, and a SOCKS proxy without the package it takes.
_FETCH_ERRORS = (
    httpx.HTTPError,
    httpx.InvalidURL,
    OSError,
    ValueError,
    _NoPrices,
    RecursionError,
    ImportError,
)


class _PriceStock:
    """What a list and the thread that fetches for it share."""

    def __init__(self, path: Path, ttl: float, url: str, clock: Callable[[], float]) -> None:
        self.path, self.url, self.clock = path, url, clock
        self.known: _KnownPrices | None = None
        self._ttl = ttl
        self._next_try, self._delay = -math.inf, _FETCH_FROM
        self._problem = ""

    def is_fresh(self, prices: _KnownPrices) -> bool:
        """Say whether there is no need to fetch; prices of tomorrow come of a clock that was put right."""
        return 0 <= self.clock() - prices.fetched_at < self._ttl

    def is_due(self, prices: _KnownPrices) -> bool:
        """Say whether to fetch now."""
        return not self.is_fresh(prices) and time.monotonic() >= self._next_try

    def look(self) -> _KnownPrices:
        """Read the file, in case that it is newer than what is known; gives what is known then."""
        known, found = self.known or _KnownPrices(), None
        try:
            found = _read_prices(self.path)
        except FileNotFoundError:
            pass
        except (OSError, _NoPrices) as error:
            self._tell(f"{self.path} can't be used ({_in_words(error)})")
        self.known = found if found and found.fetched_at > known.fetched_at else known
        return self.known

    def take(self, fetched: _KnownPrices) -> None:
        """Know what was fetched, and keep it in the file."""
        self.known, self._delay = fetched, _FETCH_FROM
        self.wait(0)
        try:
            _write_prices(self.path, fetched)
            self._problem = ""
        except OSError as error:
            self._tell(f"{self.path} can't be written ({_in_words(error)})")

    def wait(self, seconds: float) -> None:
        """Fetch no earlier than in some seconds."""
        self._next_try = time.monotonic() + seconds

    def failed(self, error: Exception) -> None:
        """Wait after a failure, longer each time."""
        self._tell(f"{self.url} gave none ({_in_words(error)})")
        self.wait(self._delay)
        self._delay = min(_FETCH_TO, self._delay * 2)

    def _tell(self, problem: str) -> None:
        if not self._problem:  # say it once, not with every attempt
            logger.warning("eunoe: prices of OpenRouter: %s; chats go on without new ones", problem)
        self._problem = problem


def _fetch_into(stock: _PriceStock, owner: weakref.ref[PriceList]) -> None:
    """Fetch once, unless another worker does or has; ends early when nobody has the list any more."""
    with _alone(stock.path) as is_alone:
        if not is_alone:
            stock.wait(_OTHER_FETCHES)
        elif stock.is_fresh(stock.look()):
            stock.wait(0)
        else:
            begin = stock.clock()
            try:
                prices = _fetched_prices(stock.url, owner)
            except _FETCH_ERRORS as error:
                stock.failed(error)
            else:
                stock.take(_KnownPrices(prices, begin))


def _fetched_prices(url: str, owner: weakref.ref[PriceList]) -> dict[str, Price]:
    deadline, body = time.monotonic() + _ANSWER_SECONDS, bytearray()
    client = httpx.Client(timeout=_STEP_SECONDS, follow_redirects=True)
    with client, client.stream("GET", url) as answer:
        if not answer.is_success:
            raise _NoPrices(f"it answered {answer.status_code}")
        for piece in answer.iter_bytes():
            body += piece
            if len(body) > _ANSWER_BYTES:
                raise _NoPrices("its answer is too large")
            if time.monotonic() > deadline or owner() is None:
                raise _NoPrices("its answer takes too long")
    return _prices_in(json.loads(body))


def _prices_in(answer: Any) -> dict[str, Price]:
    """Read the prices of a list of models, by each name that a model goes by."""
    entries = answer.get("data") if isinstance(answer, Mapping) else None
    if not isinstance(entries, list):
        raise _NoPrices("its answer is no list of models")
    prices: dict[str, Price] = {}
    for entry in entries:
        price = listed_price(entry) if isinstance(entry, Mapping) else None
        if price is not None and isinstance(entry.get("id"), str):
            prices[entry["id"].lower()] = replace(price, source=_OPENROUTER)
    if not prices:
        raise _NoPrices("its answer names no prices")
    return _bare_names(prices) | prices


def _bare_names(prices: Mapping[str, Price]) -> dict[str, Price]:
    """Give prices by the names without the provider, where that leaves no doubt about the price."""
    found: dict[str, set[Price]] = {}
    for name, price in prices.items():
        found.setdefault(name.rpartition("/")[2], set()).add(price)
    return {name: next(iter(named)) for name, named in found.items() if len(named) == 1}


def _read_prices(path: Path) -> _KnownPrices:
    if path.stat().st_size > _ANSWER_BYTES:
        raise _NoPrices("it is too large")
    try:
        kept = json.loads(path.read_bytes())
        rows = {name: priced(row, _PRICE_FIELDS, 1, _OPENROUTER) for name, row in kept["prices"].items()}
        return _KnownPrices(
            {name: price for name, price in rows.items() if price is not None}, float(kept["fetched_at"])
        )
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        raise _NoPrices("it is no list of prices") from None


def _write_prices(path: Path, known: _KnownPrices) -> None:
    """Put the prices into place as a whole: who reads meanwhile has the old ones."""
    rows = {name: asdict(price) for name, price in known.by_name.items()}
    text = json.dumps({"fetched_at": known.fetched_at, "prices": rows})
    unfinished = path.with_name(path.name + ".new")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[bool]:
    """Hold a lock beside a file; says whether no other worker has it. Where nothing can be locked none has."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(path.with_name(path.name + ".lock"), os.O_CREAT | os.O_RDWR, 0o600)
    except OSError:
        yield True
        return
    try:
        yield _is_locked_by_us(lock)
    finally:
        with contextlib.suppress(OSError):
            if fcntl is not None:
                fcntl.flock(lock, fcntl.LOCK_UN)  # a process forked meanwhile would hold it on
        os.close(lock)


def _is_locked_by_us(lock: int) -> bool:
    try:
        if fcntl is not None:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:  # another has it, or the file system has no locks
        return not isinstance(error, BlockingIOError)
    return True


def _in_words(error: Exception) -> str:
    """Say what failed; the library's own words may hold more than an administrator wants in the log."""
    if isinstance(error, _NoPrices):
        return str(error)
    return getattr(error, "strerror", None) or type(error).__name__
