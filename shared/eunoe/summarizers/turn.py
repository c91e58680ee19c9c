"""One summary for each turn."""

from __future__ import annotations

from collections.abc import Sequence

from ..conversation import Message
from ..ports import CacheBackend, Summarizer
from .book import BY_MODEL, KeptSummary
from .units import UnitBook


class TurnSummarizer(UnitBook):
    """Keeps a summary for each turn, several of them made in one call of the model.

    It is a summarizer too: `summarize` gives what the backend says of messages, and remembers it for a
    day. `scope` is whose chats `summarize` is used for; books are told it with each call.
    """

    def __init__(
        self,
        backend: Summarizer,
        cache: CacheBackend,
        *,
        target_ratio: float = 0.3,
        max_calls: int = 6,
        short_tokens: int = 60,
        scope: str = "",
    ) -> None:
        super().__init__(
            backend,
            cache,
            kind="summary-turn",
            size=1,
            target_ratio=target_ratio,
            max_calls=max_calls,
            short_tokens=short_tokens,
        )
        self._backend, self._scope = backend, scope

    def name(self) -> str:
        """Name the summarizer behind it."""
        return self._backend.name()

    async def summarize(
        self,
        messages: Sequence[Message],
        *,
        target_ratio: float = 0.3,
        context_messages: Sequence[Message] | None = None,
    ) -> str:
        """Give a summary of about `target_ratio` of the messages' length; a failure is not remembered.

        Raises:
            ModelFailed: the model gave no answer.
            AnswerRefused: its answer is no summary.
        """
        before = " ".join(message.digest for message in context_messages or ())
        content = " ".join(message.digest for message in messages)
        key = self._shelf.key(self._scope, "alone", f"{target_ratio:g}", before, content)
        if (kept := await self._shelf.get(key)) is not None:
            return kept.text
        text = await self._backend.summarize(
            messages, target_ratio=target_ratio, context_messages=context_messages
        )
        await self._shelf.put(key, KeptSummary(text, BY_MODEL, 0))
        return text
