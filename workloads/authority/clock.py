"""The database's clock: the one clock that the authority goes by. Section 1, "now"."""

from __future__ import annotations

import datetime as dt
from typing import Any, Final

from django.db import connections, router
from django.db.backends.base.base import BaseDatabaseWrapper

from workloads.models import Workload

_SQL: Final = {
    # now() stands still for a whole transaction.
    "postgresql": "clock_timestamp()",
    # NOW() is read before the wait for a lock, SYSDATE() when the row is answered. It is in the session's zone; the
    # offset is taken from two clocks of the same instant, so that no zone table and no summer time can mislead.
    "mysql": "TIMESTAMPADD(SECOND, TIMESTAMPDIFF(SECOND, NOW(), UTC_TIMESTAMP()), SYSDATE(6))",
    "sqlite": "strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now')",
}


def sql(vendor: str) -> str:
    """Return the expression that reads the clock in a statement with parameters."""
    return _SQL[vendor]


def from_db(value: Any) -> dt.datetime:
    """Return what the expression gave as an aware UTC datetime."""
    if isinstance(value, str):
        value = dt.datetime.fromisoformat(value)
    assert isinstance(value, dt.datetime)
    return value.replace(tzinfo=dt.UTC) if value.tzinfo is None else value.astimezone(dt.UTC)


def read(connection: BaseDatabaseWrapper) -> dt.datetime:
    """Return the clock's time now, by a statement of its own."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {sql(connection.vendor)}", [])
        (value,) = cursor.fetchone()
    return from_db(value)


def read_clock() -> dt.datetime:
    """Return the time by the clock that the authority goes by: that of the database on which it writes. Section 1."""
    return read(connections[router.db_for_write(Workload)])
