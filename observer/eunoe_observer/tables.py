"""The tables: events are the truth, every other row is folded from them and can be rebuilt."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    text,
)

LARGEST = 2**63 - 1  # what the widest whole number of a database holds

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)
# SQLite numbers rows by itself only in a column that is INTEGER by name; other databases need the wide type.
SEQUENCE = BigInteger().with_variant(Integer, "sqlite")

event = Table(
    "event",
    metadata,
    Column("seq", SEQUENCE, primary_key=True, autoincrement=True),
    Column("event_id", Text, nullable=False, unique=True),
    Column("run_id", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("at", Float, nullable=False),  # seconds since 1970; as text it would not sort across time zones
    Column("body", JSON, nullable=False),  # the event as it came, unknown fields included
    Index("ix_event_run_id_seq", "run_id", "seq"),
    Index(
        "ix_event_lost_at",
        "at",
        sqlite_where=text("kind = 'sink.lost'"),
        postgresql_where=text("kind = 'sink.lost'"),
    ),
    sqlite_autoincrement=True,  # a cursor must never meet a number twice, even after rows were deleted
)

run = Table(
    "run",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("first_seq", BigInteger, nullable=False, index=True),  # the list's order; it never changes
    Column("last_seq", BigInteger, nullable=False, index=True),  # what a browser's cursor is compared with
    Column("events", Integer, nullable=False),
    Column("started_at", Float, nullable=False),
    Column("last_at", Float, nullable=False),
    Column("host", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("chat_id", Text),
    Column("message_id", Text),
    Column("user_id", Text),
    Column("title", Text),
    Column("question", Text),
    Column("algorithm", Text),
    Column("weighting", Text),
    Column("messages", BigInteger),
    Column("max_tokens", BigInteger),
    Column("context_window", BigInteger),
    Column("reply_reserve", BigInteger),
    Column("token_limit", BigInteger),
    Column("limit_source", Text),
    Column("counter", Text),
    Column("calls", BigInteger, nullable=False),
    Column("tokens_before", BigInteger),
    Column("tokens_after", BigInteger),
    Column("tokens_fixed", BigInteger),
    Column("tokens_tools", BigInteger),
    Column("tokens_inserted", BigInteger),  # null: a filter that did not tell
    Column("fates", JSON, nullable=False),
    Column(
        "helpers", JSON
    ),  # what models that helped took, by purpose; null: folded before they were told apart
    Column("prompt_tokens", BigInteger),
    Column("billed_prompt_tokens", BigInteger),
    Column("completion_tokens", BigInteger),
    Column("cached_tokens", BigInteger),
    Column("estimated_cost_usd", Float),
    Column("cost_usd", Float),
    Column("cost_source", Text),
    Column("filter_ms", Float),
    Column("over_limit", Boolean, nullable=False),
    Column("failures", Integer, nullable=False),
    Column("finished", Boolean, nullable=False),
)

decision = Table(
    "decision",
    metadata,
    Column("run_id", Text, ForeignKey("run.run_id", ondelete="CASCADE"), primary_key=True),
    Column("position", BigInteger, primary_key=True, autoincrement=False),
    Column("key", Text, nullable=False),
    Column("call", BigInteger, nullable=False),  # the newest model call that decided about it
    Column("role", Text, nullable=False),
    Column("fate", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("why", Text, nullable=False),
    Column("weight", Float, nullable=False),
    Column("parts", JSON, nullable=False),
    Column("scores", JSON),
    Column("tokens_before", BigInteger, nullable=False),
    Column("tokens_after", BigInteger, nullable=False),
    Column("pinned", Boolean, nullable=False),
    Column("preview", Text),
    Column("content", Text),
    Column("tool_calls", JSON, nullable=False),
)

call = Table(
    "call",
    metadata,
    Column("run_id", Text, ForeignKey("run.run_id", ondelete="CASCADE"), primary_key=True),
    Column("call", BigInteger, primary_key=True, autoincrement=False),
    Column("planned_at", Float),  # null: usage came for a call whose plan did not
    Column("algorithm", Text),
    Column("weighting", Text),
    Column("token_limit", BigInteger),
    Column("limit_source", Text),
    Column("context_window", BigInteger),
    Column("reply_reserve", BigInteger),
    Column("tokens_before", BigInteger),
    Column("tokens_after", BigInteger),
    Column("tokens_fixed", BigInteger),
    Column("tokens_tools", BigInteger),
    Column("tokens_inserted", BigInteger),
    Column("tokens_cached", BigInteger),  # an estimate made before the call; `cached_tokens` is the report
    Column("counter", Text),
    Column("over_limit", Boolean),
    Column("estimated_cost_usd", Float),
    Column("filter_ms", Float),
    Column("flags", JSON, nullable=False),
    Column("notices", JSON, nullable=False),
    Column("reported_at", Float),  # null: the provider has not reported
    Column("prompt_tokens", BigInteger),
    Column("completion_tokens", BigInteger),
    Column("cached_tokens", BigInteger),
    Column("cache_write_tokens", BigInteger),
    Column("cost_usd", Float),
)
