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
MADE_BY_DJANGO = {"auth_permission", "django_content_type"}


@pytest.fixture(scope="session")
def django_db_modify_db_settings(django_db_modify_db_settings):
    """Remove what a killed run left beside an SQLite test file: a new file would take up the old one's log."""
    for connection in connections.all():
        if connection.vendor == "sqlite" and (name := connection.settings_dict["TEST"]["NAME"]):
            for ending in ("-wal", "-shm", "-journal"):
                Path(f"{name}{ending}").unlink(missing_ok=True)


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup):
    """Empty tables quickly after each test that commits, and give up the connections of wake-ups at the end."""
    from workloads import wakeups

    with pytest.MonkeyPatch.context() as patch:
        for connection in connections.all():
            patch.setattr(connection.ops, "sql_flush", _quick_flush(connection))
        yield
    wakeups.stop()


def _quick_flush(connection):
    """Return what says how tables are emptied.

    The content types and permissions stay: Django would make them anew after each flush. And PostgreSQL's TRUNCATE
    makes and syncs new files for every table and index, so what is small is deleted from there; what is large is cut,
    with all that is dead in it. Who is no superuser can't keep the triggers from asking, and cuts always.
    """
    in_full = connection.ops.sql_flush

    def sql_flush(style, tables, **more):
        emptied = [table for table in tables if table not in MADE_BY_DJANGO]
        if connection.vendor != "postgresql" or not emptied:
            return in_full(style, emptied, **more)
        names = [connection.ops.quote_name(table) for table in emptied]
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT max(pg_table_size(t::regclass)), current_setting('is_superuser') FROM unnest(%s::text[]) t",
                [names],
            )
            largest, is_superuser = cursor.fetchone()
        if is_superuser != "on" or largest > FEW_BYTES:
            return in_full(style, emptied, **more)
        return [
            "SET LOCAL session_replication_role = replica",
            # As TRUNCATE does, it waits for who has not committed yet, such as the session of a worker that was killed.
            f"LOCK TABLE {', '.join(names)} IN ACCESS EXCLUSIVE MODE",
            *[f"DELETE FROM {name}" for name in names],
        ]

    return sql_flush
