"""What models that helped took, summaries in a prompt, and what each of several strategies says of a message."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

ADDED = (
    ("run", "tokens_inserted", sa.BigInteger()),
    ("run", "helpers", sa.JSON()),
    ("decision", "scores", sa.JSON()),
    ("call", "tokens_inserted", sa.BigInteger()),
    ("call", "tokens_cached", sa.BigInteger()),
)


def upgrade() -> None:
    """Add the columns; runs that are there already have nothing in them."""
    for table, name, kind in ADDED:
        op.add_column(table, sa.Column(name, kind, nullable=True))


def downgrade() -> None:
    """Take them away again."""
    for table, name, _ in reversed(ADDED):
        with op.batch_alter_table(table) as batch:
            batch.drop_column(name)
