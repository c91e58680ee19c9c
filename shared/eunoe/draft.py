"""A plan in the making: what has been given a place, and how much room is left."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .compress import LEAST_TOKENS, lean, shortened, shortened_call
from .conversation import Message, RawMessage, digest_of
from .insertion import Insertion
from .plan import Fate, Reason
from .tokens import TokenCounter, message_tokens

NO_LIMIT = 1 << 60
LEAST_RESULT = 40  # tokens a tool result needs to say anything


@dataclass(frozen=True, slots=True)
class Place:
    """A place given to a message: what is sent of it, at how many tokens."""

    sent: RawMessage
    tokens: int
    fate: Fate
    reason: Reason


class Draft:
    """Gives messages places while there is room. Not shared, and gone when the plan is made."""

    def __init__(self, limit: int | None, overhead: int, counter: TokenCounter) -> None:
        self.room = NO_LIMIT if limit is None else limit - overhead
        self.places: dict[str, Place] = {}
        self.refused: dict[str, Reason] = {}
        self.insertion: Insertion | None = None
        self.summarized: frozenset[str] = frozenset()
        self._counter = counter

    def has(self, message: Message) -> bool:
        """Say whether a message has a place."""
        return message.id in self.places

    def keeps(self, message: Message) -> bool:
        """Say whether a message has a place and is sent as it is."""
        return self.has(message) and self.places[message.id].fate is Fate.KEPT

    def force(self, message: Message, reason: Reason) -> None:
        """Give a message its place whatever it costs."""
        if not self.has(message):
            self._put(message, self._whole(message, reason))

    def claim(self, messages: Iterable[Message], reason: Reason, within: int | None = None) -> bool:
        """Give all of them their places, whole, or none; `within` is a bound besides the room."""
        return self._claim([(m, self._whole(m, reason)) for m in messages if not self.has(m)], within)

    def claim_lean(self, messages: Iterable[Message], reason: Reason, within: int | None = None) -> bool:
        """Give all of them places without old thinking and raw data, or none."""
        return self._claim([(m, self._lean(m, reason)) for m in messages if not self.has(m)], within)

    def claim_shortened(self, messages: Iterable[Message], reason: Reason, within: int) -> bool:
        """Give all of them places, each shortened to a fair share of `within` and the room, or none.

        A tool call stays whole while it leaves its results some room: providers check its thinking.
        """
        missing = [message for message in messages if not self.has(message)]
        total = min(within, self.room)
        calls = {m.id: m.token_count for m in missing if m.calls_tools}
        least = LEAST_RESULT * (len(missing) - len(calls))
        whole = calls if sum(calls.values()) + least <= total else {}
        rest = {m.id: m.token_count for m in missing if m.id not in whole}
        shares = whole | fair_shares(rest, total - sum(whole.values()))
        places: list[tuple[Message, Place]] = []
        for message in missing:
            place = self._shortened(message, reason, shares[message.id])
            if place is None:
                return False
            places.append((message, place))
        return self._claim(places, within)

    def claim_pair(self, whole: Message, partner: Message | None, reason: Reason, partner_share: int) -> bool:
        """Give a message its place, whole, and its partner one too, shortened to `partner_share` if need be."""
        if partner is None or self.has(partner):
            return self.claim([whole], reason)
        places = [] if self.has(whole) else [(whole, self._whole(whole, reason))]
        left = self.room - sum(place.tokens for _, place in places)
        reason = Reason.PAIR
        if partner.token_count <= min(partner_share, left):
            return self._claim([*places, (partner, self._whole(partner, reason))], None)
        place = self._shortened(partner, reason, min(partner_share, left))
        return place is not None and self._claim([*places, (partner, place)], None)

    def summarize(self, insertion: Insertion, ids: frozenset[str]) -> None:
        """Add a summary, and say of which messages."""
        self.insertion, self.summarized = insertion, ids
        self.room -= sum(insertion.tokens)

    def refuse(self, messages: Iterable[Message], reason: Reason) -> None:
        """Say why messages get no place; the first reason holds."""
        names = {message.id for message in messages} - self.places.keys() - self.refused.keys()
        self.refused |= dict.fromkeys(names, reason)

    def _claim(self, places: list[tuple[Message, Place]], within: int | None) -> bool:
        cost = sum(place.tokens for _, place in places)
        if cost > self.room or (within is not None and cost > within):
            return False
        for message, place in places:
            self._put(message, place)
        return True

    def _put(self, message: Message, place: Place) -> None:
        self.places[message.id] = place
        self.room -= place.tokens

    def _whole(self, message: Message, reason: Reason) -> Place:
        return Place(message.raw, message.token_count, Fate.KEPT, reason)

    def _lean(self, message: Message, reason: Reason) -> Place:
        raw = lean(message.raw)
        if raw is message.raw:
            return self._whole(message, reason)
        return Place(
            raw, message_tokens(self._counter, digest_of(raw), raw), Fate.COMPRESSED, Reason.OLD_THINKING
        )

    def _shortened(self, message: Message, reason: Reason, tokens: int) -> Place | None:
        if message.token_count <= tokens:
            return self._whole(message, reason)
        if tokens < LEAST_TOKENS:
            return None
        shorten = shortened_call if message.calls_tools else shortened
        raw = shorten(message.raw, tokens, self._counter)
        if raw is None:
            return None
        return Place(raw, self._counter.count_message(raw), Fate.COMPRESSED, reason)


def fair_shares(wants: Mapping[str, int], total: int) -> dict[str, int]:
    """Share `total` out: who wants less than an equal share gets it whole, the others split the rest."""
    shares: dict[str, int] = {}
    left, waiting = total, sorted(wants, key=lambda name: wants[name])
    while waiting:
        name = waiting.pop(0)
        shares[name] = min(wants[name], max(0, left) // (len(waiting) + 1))
        left -= shares[name]
    return shares
