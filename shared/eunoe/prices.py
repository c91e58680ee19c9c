"""Where a model's price comes from: the administrator's file, the host's model list, OpenRouter's list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from .assembly import PRICES_FILE, data_file
from .openrouter import PriceList
from .pricing import Price, find_price, read_aliases, read_price_file
from .settings import Settings


class PriceSources:
    """Finds prices as the settings say; `folder` is where OpenRouter's are kept if `store_path` names no place."""

    def __init__(self, settings: Settings, folder: Path | None = None) -> None:
        """Take the settings.

        Raises:
            BadSetting: OpenRouter's prices are wanted and there is no place to keep them.
        """
        self._aliases, self._path = settings.model_aliases, settings.pricing_config_path.strip()
        self._fetched: PriceList | None = None
        if settings.openrouter_pricing:
            place = data_file(settings, folder, PRICES_FILE)
            self._fetched = PriceList(place, settings.pricing_cache_ttl_hours)

    def price_of(self, names: Sequence[str], listed: Price | None = None) -> Price | None:
        """Find the price of a model by its names, the likeliest first; `listed` is what the host says.

        Reads a file at most, and only if it has changed; nothing is waited for.

        Raises:
            BadSetting: the file or the aliases can't be read.
        """
        aliases = read_aliases(self._aliases)
        if self._path and (price := _first_found(read_price_file(self._path), names, aliases)):
            return price
        if listed is not None or self._fetched is None:
            return listed
        return _first_found(self._fetched.prices(), names, aliases)


def _first_found(
    prices: Mapping[str, Price], names: Sequence[str], aliases: Mapping[str, str]
) -> Price | None:
    return next(filter(None, (find_price(prices, name, aliases) for name in names)), None)
