"""Run by Alembic: brings the connection it is handed to the wanted revision."""

from alembic import context

from eunoe_observer.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    # SQLite can't alter most things in place; Alembic then copies the table.
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
