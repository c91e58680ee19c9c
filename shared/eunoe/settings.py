"""Every setting, declared once: valves in Open WebUI, environment variables elsewhere, and the docs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from .budget import read_model_budgets
from .errors import BadSetting
from .pricing import read_aliases

ENVIRONMENT_PREFIX = "EUNOE_"
_MASKED: dict[str, Any] = {"input": {"type": "password"}}


class Settings(BaseModel):
    """All settings with their defaults."""

    model_config = ConfigDict(extra="ignore")

    max_tokens: int = Field(
        16_000,
        ge=0,
        title="Largest prompt, in tokens",
        description="No model call gets more than this: instructions, tools, memory, documents and messages "
        "together. `0` sets no bound of its own; the model's window still bounds. Open WebUI's built-in "
        "tools alone take about 5,200 tokens.",
    )
    model_budgets: str = Field(
        "{}",
        title="Largest prompt of single models",
        description='A JSON map of model ids to their own limit, such as `{"gpt-5*": 32000, "llama3.1:8b": 6000}`. '
        "`*` stands for anything; of several that fit the longest counts. Models without an entry have the limit "
        "above.",
    )
    context_window: int = Field(
        0,
        ge=0,
        title="The model's context window, in tokens",
        description="`0` takes the window from Open WebUI's model list, where the provider tells it. Set it "
        "for local models whose list does not say.",
    )
    reply_reserve: int = Field(
        2_048,
        ge=0,
        title="Room for the reply, in tokens",
        description="This much of the window stays free for the answer, at most a quarter of it. A chat that "
        "sets its own maximum for the reply gets that instead. It matters only where the window is known.",
    )
    max_cost_usd: float = Field(
        0.0,
        ge=0,
        title="Largest cost of a prompt, in USD",
        description="No model call's prompt costs more than this, with what is in the provider's cache at its "
        "cached price. It holds where the price is known; where it is not, the status line says so. `0` sets no "
        "bound.",
    )
    algorithm: Literal["recency_biased", "greedy_by_weight", "dependency_aware", "prefix_cache_optimized"] = (
        Field(
            "recency_biased",
            title="How messages are chosen",
            description="When a chat is over the limit: `recency_biased` prefers what fits the question and is "
            "recent, `greedy_by_weight` looks at the question alone, `dependency_aware` is the first with all that "
            "a chosen message belongs to, `prefix_cache_optimized` sends what it sent last time and adds what is "
            "new, which providers bill at the cached price, and chooses afresh only when that no longer fits.",
        )
    )
    recency_factor: float = Field(
        1.5,
        ge=0,
        le=100,
        title="How much newer messages count",
        description="The newest message's weight is multiplied by 1 + this number, the oldest's by 1.",
    )
    weighting: Literal["smart", "keyword", "static", "embedding", "hybrid"] = Field(
        "smart",
        title="How messages are weighed",
        description="`smart` compares words with the question, looks at what stands beside a match, who spoke "
        "and when, lends a question's weight to its answer and lowers tool messages; `keyword` only compares "
        "words; `static` weighs all alike; `embedding` compares meanings with an embedding model; `hybrid` is "
        "`smart` and `embedding` together, the best of them.",
    )
    tool_penalty: float = Field(
        0.5,
        ge=0,
        le=1,
        title="Weight of tool messages",
        description="Tool calls and their results have their weight multiplied by this. `1` treats them like "
        "any other message.",
    )
    pair_coherence: float = Field(
        0.8,
        ge=0,
        le=1,
        title="Weight an answer takes over from its question",
        description="An answer weighs at least this share of what its question weighs.",
    )
    embedding_api_base: str = Field(
        "",
        title="Address of the embedding model",
        description="An OpenAI-compatible address such as `http://localhost:11434/v1`, for the weighings "
        "`embedding` and `hybrid`. Empty: Open WebUI's own embedding model, which needs no setting here.",
    )
    embedding_api_key: str = Field(
        "",
        title="Key of the embedding model",
        description="Sent to the address above only.",
        json_schema_extra=_MASKED,
    )
    embedding_model: str = Field(
        "",
        title="Name of the embedding model",
        description="As its address knows it, such as `nomic-embed-text`. Not needed for Open WebUI's own.",
    )
    llm_analysis: bool = Field(
        False,
        title="Let a model label messages",
        description="Before a chat over the limit is cut, the summary model (the task model if none is named) says "
        "of each message how much the question needs it. This adds a model call to every such turn, and its "
        "time; labels are kept.",
    )
    llm_analysis_weight: float = Field(
        0.6,
        ge=0,
        le=1,
        title="How much the labels count",
        description="The labels' share of a message's relevance; the rest is the weighing chosen above.",
    )
    use_entry_logic: bool = Field(
        False,
        title="Show the labeling model topics first",
        description="For very long chats: the model sees a list of topics and opens those it wants to label "
        "message by message. It needs a model that can call tools.",
    )
    summary_model: str = Field(
        "",
        title="Model for summaries and labels",
        description="Empty makes no summaries. With an empty address below it is a model of this Open WebUI by "
        "its id, or `auto` for the task model, called on behalf of the person who chats. Otherwise its name at "
        "that address. Summaries are written after the answer and stand in for what no longer fits.",
    )
    summary_api_base: str = Field(
        "",
        title="Address of the summary model",
        description="An OpenAI-compatible address such as `https://api.openai.com/v1`. Empty: models are called "
        "through Open WebUI itself, without a key.",
    )
    summary_api_key: str = Field(
        "",
        title="Key of the summary model",
        description="Sent to the address above only.",
        json_schema_extra=_MASKED,
    )
    summary_extra_body: str = Field(
        "{}",
        title="More fields for the summary model",
        description='A JSON object that is added to each of its requests, such as `{"reasoning_effort": "low"}`.',
    )
    summary_window: int = Field(
        8_192,
        ge=1_024,
        title="The summary model's context window, in tokens",
        description="What it is asked is cut to fit; longer history is summarized piece by piece.",
    )
    summary_level: Literal["conversation", "segment", "turn"] = Field(
        "conversation",
        title="What one summary covers",
        description="`conversation` keeps one summary of all that was dropped and carries it on, `segment` makes "
        "one for every few turns, `turn` one for each turn.",
    )
    summary_target_ratio: float = Field(
        0.3,
        gt=0,
        le=0.9,
        title="How long summaries are",
        description="As a share of what they replace; a summary of the conversation never takes more than a "
        "fifth of the room.",
    )
    nosum_by_default: bool = Field(
        False,
        title="Make no summaries",
        description="What does not fit is left out, never summarized. People can write `!nosum` for one turn.",
    )
    retry_attempts: int = Field(
        3,
        ge=1,
        le=10,
        title="Tries for a helping model",
        description="How often a call for a summary, labels or embeddings is tried before the turn goes on "
        "without.",
    )
    cache_backend: Literal["memory", "sqlite", "redis"] = Field(
        "memory",
        title="Where results of helping models are kept",
        description="`memory` until Open WebUI restarts, `sqlite` in a file on this server, `redis` for several "
        "servers. Nothing of one person's chats is found from another's.",
    )
    redis_url: str = Field(
        "redis://redis:6379/0",
        title="Redis address",
        description="For `redis` above. A Redis that is down costs one line in the log and nothing else.",
    )
    compress_over_tokens: int = Field(
        4_000,
        ge=0,
        title="Longest result of a tool, in tokens",
        description="A longer one of an earlier step is sent as its beginning, its end and its error lines, with a "
        "note of what is left out; JSON stays JSON. `0` sends results as they are while they fit.",
    )
    cache_hints: Literal["auto", "off", "openai", "anthropic"] = Field(
        "auto",
        title="Hints for the provider's cache",
        description="Some providers cache a prompt only if the request says so. `auto` adds what a provider is known "
        "to take, `openai` a `prompt_cache_key` to every request, `anthropic` a `cache_control` mark; a "
        "provider that does not know these may refuse the request. `off` adds nothing.",
    )
    show_status: bool = Field(
        True,
        title="Show a line above each answer",
        description="How many messages and tokens were sent, how much came from the provider's cache, and "
        "what went wrong. People can switch it off for themselves.",
    )
    observer_url: str = Field(
        "",
        title="Observer address",
        description="Where runs are sent to be looked at, such as `http://localhost:7456`. Empty: nothing is "
        "sent anywhere.",
    )
    observer_token: str = Field(
        "",
        title="Observer token",
        description="The token the observer was started with. Empty if it was started without one.",
        json_schema_extra=_MASKED,
    )
    observer_public_url: str = Field(
        "",
        title="Observer address for browsers",
        description="Where administrators' browsers reach the observer. Set it to have each answer's status "
        "line link to its run; only administrators see the link. Empty: no link.",
    )
    observer_content: Literal["preview", "full", "none"] = Field(
        "preview",
        title="How much text the observer gets",
        description="`preview` sends the first 200 characters of each message, `full` the whole text, `none` "
        "no text at all.",
    )
    observer_log_level: Literal["DEBUG", "INFO", "WARNING"] = Field(
        "DEBUG",
        title="What the observer gets",
        description="`DEBUG`: every run with each message's fate. `INFO`: every run, numbers only. "
        "`WARNING`: only failures.",
    )
    pricing_config_path: str = Field(
        "",
        title="Price file",
        description="Path of a JSON file on the server with prices in USD for a million tokens: a list of "
        "`model_id`, `input_price_per_1m`, `cached_price_per_1m`, `cache_write_price_per_1m`, "
        "`output_price_per_1m`. Used where the provider reports no cost. Empty: prices come from the model list "
        "where it names them, else there is no price.",
    )
    openrouter_pricing: bool = Field(
        False,
        title="Fetch prices from OpenRouter",
        description="Fetches OpenRouter's public price list in the background, never while somebody waits, and "
        "keeps it on disk. Used for models that the price file and the model list have no price for.",
    )
    pricing_cache_ttl_hours: float = Field(
        24.0,
        ge=0.1,
        le=8_760,
        title="How long OpenRouter's prices are kept, in hours",
        description="After that the list is fetched again; until that succeeds the old one is used.",
    )
    model_aliases: str = Field(
        "{}",
        title="Other names of models",
        description="A JSON map of model ids to the names they have in the price file, such as "
        '`{"my.gpt-mini": "gpt-4.1-mini"}`. A provider before the name and a date behind it need no alias.',
    )
    store_path: str = Field(
        "",
        title="Where Eunoe keeps its own data",
        description="A file path on the server; empty is a folder of its own in Open WebUI's data folder. The cache "
        "`sqlite` and OpenRouter's prices lie there.",
    )
    priority: int = Field(
        100,
        title="Order among filters",
        description="Filters run from the lowest number to the highest. Keep this one last, so that it "
        "counts what the others add.",
    )

    @field_validator("model_budgets", "model_aliases", "summary_extra_body")
    @classmethod
    def _readable(cls, text: str, info: ValidationInfo) -> str:
        """Refuse what can't be read when it is saved, and not in the middle of a chat."""
        try:
            _READERS[str(info.field_name)](text)
        except BadSetting as error:
            raise ValueError(f"{error.problem}. {error.fix}") from None
        return text


def read_extra_body(text: str) -> dict[str, Any]:
    """Read the JSON object that is added to requests to the summary model.

    Raises:
        BadSetting: it is no object.
    """
    try:
        body = json.loads(text or "{}")
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise BadSetting("summary_extra_body", "it is no JSON object", 'Write it like {"temperature": 0}.')
    return body


_READERS: Mapping[str, Callable[[str], Any]] = {
    "model_budgets": read_model_budgets,
    "model_aliases": read_aliases,
    "summary_extra_body": read_extra_body,
}


def environment_name(field: str) -> str:
    """Name the environment variable of a setting."""
    return ENVIRONMENT_PREFIX + field.upper()


def settings_from(environment: Mapping[str, str]) -> Settings:
    """Read settings from environment variables; what is not there or empty has its default.

    Raises:
        BadSetting: a value can't be used; names the variable.
    """
    names = {environment_name(field): field for field in Settings.model_fields}
    given = {names[name]: value for name, value in environment.items() if name in names and value != ""}
    try:
        return Settings.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        field = str(first["loc"][0])
        raise BadSetting(
            environment_name(field),
            first["msg"].rstrip("."),
            f"The default is {Settings.model_fields[field].default}.",
        ) from None
