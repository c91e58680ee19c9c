"""The database: its schema, its lock, and that nothing acknowledged is lost."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from eunoe_observer import tables
from eunoe_observer.database import open_database, upgrade

from .conftest import event, outlet, start, whole_run

pytestmark = pytest.mark.anyio


async def test_migrations_make_exactly_the_tables_the_code_uses(tmp_path: Path):
    async with open_database(tmp_path / "new" / "odd ?#% name.sqlite3") as database:
        assert database.path.exists()
        async with database.writer.connect() as connection:

            def differences(sync_connection):
                context = MigrationContext.configure(sync_connection, opts={"compare_type": True})
                return compare_metadata(context, tables.metadata)

            assert await connection.run_sync(differences) == []


async def test_connections_are_set_up_for_one_writer_and_many_readers(tmp_path: Path):
    async with open_database(tmp_path / "observer.sqlite3") as database:
        async with database.writer.connect() as connection:
            settings = {
                name: await connection.scalar(text(f"pragma {name}"))
                for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
            }
        assert settings == {"journal_mode": "wal", "synchronous": 1, "foreign_keys": 1, "busy_timeout": 5000}
        async with database.reader.connect() as connection:
            with pytest.raises(OperationalError, match="readonly"):
                await connection.execute(text("delete from event"))


async def test_only_its_owner_may_read_the_file(tmp_path: Path):
    async with open_database(tmp_path / "observer.sqlite3") as database:
        assert database.path.stat().st_mode & 0o077 == 0


def test_what_was_acknowledged_survives_kill_9(serve, tmp_path: Path):
    server = serve()
    acknowledged: list[list[dict]] = []

    def send(name: str) -> None:
        for number in range(1000):
            events = [event(start(), f"{name}-{number}"), event(outlet(), f"{name}-{number}")]
            try:
                if server.send(events).status_code == 202:
                    acknowledged.append(events)
            except OSError:
                return
            except Exception as error:
                if "httpx" in type(error).__module__ or "httpcore" in type(error).__module__:
                    return
                raise

    senders = [threading.Thread(target=send, args=(f"sender-{number}",)) for number in range(3)]
    for sender in senders:
        sender.start()
    while len(acknowledged) < 60:
        threading.Event().wait(0.01)
    server.kill()
    for sender in senders:
        sender.join(10)
    again = serve()
    sent = [each for events in acknowledged for each in events]
    for first in range(0, len(sent), 500):
        batch = sent[first : first + 500]
        assert again.send(batch).json() == {"accepted": 0, "duplicates": len(batch)}
    with sqlite3.connect(tmp_path / "observer.sqlite3") as database:
        finished = {run for (run,) in database.execute("select run_id from run where finished")}
    database.close()
    assert {events[0]["run_id"] for events in acknowledged} <= finished


def test_a_restart_keeps_everything(serve):
    server = serve()
    assert server.send(whole_run()).status_code == 202
    assert server.stop() < 3
    assert server.process.returncode == 0
    again = serve()
    assert again.send(whole_run("run-2")).status_code == 202
    import httpx  # noqa: PLC0415

    runs = httpx.get(f"{again.address}/runs.json").json()["runs"]
    assert [each["run_id"] for each in runs] == ["run-2", "run-1"]


async def test_a_database_of_an_earlier_version_keeps_its_runs(tmp_path: Path):
    """The first version knew neither helpers nor summaries; its runs are shown as they were."""
    path = tmp_path / "observer.sqlite3"
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        upgrade(connection, path, "0001")
        connection.execute(
            text(
                "insert into run (run_id, first_seq, last_seq, events, started_at, last_at, host, model, calls, fates,"
                " over_limit, failures, finished) values ('old', 1, 1, 1, 1.0, 1.0, '', '', 0, '{}', 0, 0, 1)"
            )
        )
    engine.dispose()
    async with open_database(path) as database, database.reader.connect() as connection:
        (run,) = (await connection.execute(text("select run_id, helpers, tokens_inserted from run"))).all()
        assert tuple(run) == ("old", None, None)
