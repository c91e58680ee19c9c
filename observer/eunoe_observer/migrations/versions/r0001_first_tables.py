"""The first tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the log of events and the tables folded from it."""
    _events()
    _runs()
    _decisions()
    _calls()


def _events() -> None:
    op.create_table(
        "event",
        sa.Column(
            "seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("event_id", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_event"),
        sa.UniqueConstraint("event_id", name="uq_event_event_id"),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "ix_event_lost_at",
        "event",
        ["at"],
        unique=False,
        sqlite_where=sa.text("kind = 'sink.lost'"),
        postgresql_where=sa.text("kind = 'sink.lost'"),
    )
    op.create_index("ix_event_run_id_seq", "event", ["run_id", "seq"], unique=False)


def _runs() -> None:
    op.create_table(
        "run",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("first_seq", sa.BigInteger(), nullable=False),
        sa.Column("last_seq", sa.BigInteger(), nullable=False),
        sa.Column("events", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.Float(), nullable=False),
        sa.Column("last_at", sa.Float(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("chat_id", sa.Text(), nullable=True),
        sa.Column("message_id", sa.Text(), nullable=True),
        sa.Column("user_id", sa.Text(), nullable=True),
        sa.Column("title", sa.Text(), nullable=True),
        sa.Column("question", sa.Text(), nullable=True),
        sa.Column("algorithm", sa.Text(), nullable=True),
        sa.Column("weighting", sa.Text(), nullable=True),
        sa.Column("messages", sa.BigInteger(), nullable=True),
        sa.Column("max_tokens", sa.BigInteger(), nullable=True),
        sa.Column("context_window", sa.BigInteger(), nullable=True),
        sa.Column("reply_reserve", sa.BigInteger(), nullable=True),
        sa.Column("token_limit", sa.BigInteger(), nullable=True),
        sa.Column("limit_source", sa.Text(), nullable=True),
        sa.Column("counter", sa.Text(), nullable=True),
        sa.Column("calls", sa.BigInteger(), nullable=False),
        sa.Column("tokens_before", sa.BigInteger(), nullable=True),
        sa.Column("tokens_after", sa.BigInteger(), nullable=True),
        sa.Column("tokens_fixed", sa.BigInteger(), nullable=True),
        sa.Column("tokens_tools", sa.BigInteger(), nullable=True),
        sa.Column("fates", sa.JSON(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=True),
        sa.Column("billed_prompt_tokens", sa.BigInteger(), nullable=True),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=True),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=True),
        sa.Column("estimated_cost_usd", sa.Float(), nullable=True),
        sa.Column("cost_usd", sa.Float(), nullable=True),
        sa.Column("cost_source", sa.Text(), nullable=True),
        sa.Column("filter_ms", sa.Float(), nullable=True),
        sa.Column("over_limit", sa.Boolean(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("finished", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", name="pk_run"),
    )
    op.create_index("ix_run_first_seq", "run", ["first_seq"], unique=False)
    op.create_index("ix_run_last_seq", "run", ["last_seq"], unique=False)


def _decisions() -> None:
    op.create_table(
        "decision",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("position", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("call", sa.BigInteger(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("fate", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("weight", sa.Float(), nullable=False),
        sa.Column("parts", sa.JSON(), nullable=False),
        sa.Column("tokens_before", sa.BigInteger(), nullable=False),
        sa.Column("tokens_after", sa.BigInteger(), nullable=False),
        sa.Column("pinned", sa.Boolean(), nullable=False),
        sa.Column("preview", sa.Text(), nullable=True),
        sa.Column("content", sa.Text(), nullable=True),
        sa.Column("tool_calls", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["run.run_id"], name="fk_decision_run_id_run", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", "position", name="pk_decision"),
    )


def _calls() -> None:
    op.create_table(
        "call",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("call", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("planned_at", sa.Float(), nullable=True),
        sa.Column("algorithm", sa.Text(), nullable=True),
        sa.Column("weighting", sa.Text(), nullable=True),
        sa.Column("token_limit", sa.BigInteger(), nullable=True),
        sa.Column("limit_source", sa.Text(), nullable=True),
        sa.Column("context_window", sa.BigInteger(), nullable=True),
        sa.Column("reply_reserve", sa.BigInteger(), nullable=True),
        sa.Column("tokens_before", sa.BigInteger(), nullable=True),
        sa.Column("tokens_after", sa.BigInteger(), nullable=True),
        sa.Column("tokens_fixed", sa.BigInteger(), nullable=True),
        sa.Column("tokens_tools", sa.BigInteger(), nullable=True),
        sa.Column("counter", sa.Text(), nullable=True),
        sa.Column("over_limit", sa.Boolean(), nullable=True),
        sa.Column("estimated_cost_usd", sa.Float(), nullable=True),
        sa.Column("filter_ms", sa.Float(), nullable=True),
        sa.Column("flags", sa.JSON(), nullable=False),
        sa.Column("notices", sa.JSON(), nullable=False),
        sa.Column("reported_at", sa.Float(), nullable=True),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=True),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=True),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=True),
        sa.Column("cache_write_tokens", sa.BigInteger(), nullable=True),
        sa.Column("cost_usd", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["run.run_id"], name="fk_call_run_id_run", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "call", name="pk_call"),
    )
