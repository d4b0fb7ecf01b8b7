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


@pytest.fixture(scope="session")
def django_db_modify_db_settings(django_db_modify_db_settings):
    """Remove what a killed run left beside an SQLite test file: a new file would take up the old one's log."""
    for connection in connections.all():
        if connection.vendor == "sqlite" and (name := connection.settings_dict["TEST"]["NAME"]):
            for ending in ("-wal", "-shm", "-journal"):
                Path(f"{name}{ending}").unlink(missing_ok=True)


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup):
    """Give up the connections of wake-ups before the test database is removed."""
    from workloads import wakeups

    yield
    wakeups.stop()
