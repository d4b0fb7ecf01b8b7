"""What every test gets: the Hypothesis profiles, and a test database without leftovers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from django.db import connections
from hypothesis import HealthCheck, settings

settings.register_profile("quick", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("long", parent=settings.get_profile("quick"), max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


FEW_BYTES = 1024 * 1024


@pytest.fixture(scope="session")
def django_db_modify_db_settings(django_db_modify_db_settings):
    """Remove what a killed run left beside an SQLite test file: a new file would take up the old one's log."""
    for connection in connections.all():
        if connection.vendor == "sqlite" and (name := connection.settings_dict["TEST"]["NAME"]):
            for ending in ("-wal", "-shm", "-journal"):
                Path(f"{name}{ending}").unlink(missing_ok=True)


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup):
    """Empty PostgreSQL's tables quickly, and give up the connections of wake-ups before the database is removed."""
    from workloads import wakeups

    with pytest.MonkeyPatch.context() as patch:
        for connection in connections.all():
            if connection.vendor == "postgresql":
                patch.setattr(connection.ops, "sql_flush", _quick_flush(connection))
        yield
    wakeups.stop()


def _quick_flush(connection):
    """Return what empties tables: TRUNCATE makes and syncs new files for each table and index, a quarter of a second
    for every test that commits, so small tables are deleted from; large ones are cut, and with them what is dead in
    them. Who is no superuser can't keep the triggers from asking, and cuts always.
    """
    cut = connection.ops.sql_flush

    def sql_flush(style, tables, **more):
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT max(pg_table_size(t::regclass)), current_setting('is_superuser') FROM unnest(%s::text[]) t",
                [[connection.ops.quote_name(table) for table in tables]],
            )
            largest, is_superuser = cursor.fetchone()
        if is_superuser != "on" or (largest or 0) > FEW_BYTES:
            return cut(style, tables, **more)
        deletes = [f"DELETE FROM {connection.ops.quote_name(table)}" for table in tables]
        return ["SET LOCAL session_replication_role = replica", *deletes]

    return sql_flush
