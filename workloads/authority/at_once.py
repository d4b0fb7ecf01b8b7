"""One new workload on PostgreSQL, in two round trips: a look, and one statement that stores all of it or nothing.

What the look can't settle (the id is known, its lane is new, it depends on other work) is left to `admission`, which
asks step by step and decides the same.
"""

from __future__ import annotations

import datetime as dt
from functools import lru_cache
from typing import Any, Final

from django.db import DataError, connections, models

from workloads.authority import clock
from workloads.authority.columns import stood
from workloads.authority.dependencies import Ancestry
from workloads.authority.new_work import Prepared, admitted_row, created_snapshot, lane_row, made_instance
from workloads.authority.records import Transaction, alias, announce
from workloads.authority.statements import column_name
from workloads.authority.writes import event_row, standing_values
from workloads.contract import Admission
from workloads.lifecycle.admission import admit as begin
from workloads.models import Admitted, Event, Lane, Tombstone, Workload

WAITED: Final = dt.timedelta(milliseconds=100)
"""An insert that took longer may have waited for another admission of the same key: its instant is taken anew."""

_ALONE: Final = Ancestry(standings={}, is_closed=True)
_KEY: Final = 0
"""Stands for the key that the database is about to give."""
_KEYS: Final = frozenset({"admitted_id", "record_id"})


def admit_at_once(item: Prepared, *, now: dt.datetime | None) -> Admission | None:
    """Admit work that depends on nothing and needs no grant; None if more must be asked, and then nothing is stored.

    Within a transaction of the caller it is None: his statements may have locks and a savepoint to go with them.
    """
    connection = connections[alias()]
    if connection.vendor != "postgresql" or item.request.dependencies or item.request.grant is not None:
        return None
    if not connection.get_autocommit():
        return None
    tx = Transaction(connection, now)
    lane = lane_row(item)
    ((read_at, lane_id, is_known),) = tx.execute(
        f"SELECT {clock.sql(connection.vendor)}::text, "
        f"(SELECT id FROM {Lane._meta.db_table} WHERE lane_key = %s), "
        f"EXISTS (SELECT 1 FROM {Admitted._meta.db_table} WHERE workload_id = %s) "
        f"OR EXISTS (SELECT 1 FROM {Tombstone._meta.db_table} WHERE workload_id = %s)",
        [lane["lane_key"], item.workload_id, item.workload_id],
    )
    if is_known or lane_id is None:
        return None
    at = clock.from_db(read_at) if now is None else now
    cold = admitted_row(item, lane_id, _ALONE, at)
    decision = begin(
        created_snapshot(_KEY, item, cold, _ALONE),
        requested_by=item.request.requested_by,
        not_before=item.request.not_before,
    )
    standing = standing_values(decision.after, at)
    events = [event_row(_KEY, event) for event in decision.events]
    pk = _store(tx, cold, standing, events, latest=at + WAITED if now is None else None)
    if pk is None:
        return None
    if standing["queued_lane_id"] is not None:
        announce(connection)
    return Admission(workload=made_instance(tx, pk, item, cold, standing), created=True)


def _store(
    tx: Transaction,
    cold: dict[str, Any],
    standing: dict[str, Any],
    events: list[dict[str, Any]],
    *,
    latest: dt.datetime | None,
) -> int | None:
    """Store the rows and return their key; None if the id was taken meanwhile, or if that took beyond `latest`."""
    rows: list[tuple[type[models.Model], dict[str, Any]]] = [
        (Admitted, cold),
        (Workload, {"admitted_id": _KEY} | standing),
    ]
    rows += [(Event, event) for event in events]
    texts: list[tuple[type[models.Model], tuple[tuple[str, str], ...]]] = []
    params: list[Any] = []
    for model, values in rows:
        marks = []
        for name, value in values.items():
            marks.append((name, "a.id" if name in _KEYS else stood(model, name, value, params)))
        texts.append((model, tuple(marks)))
    if latest is not None:
        params.append(latest)
    try:
        found = tx.execute(_statement(tx.alias, tuple(texts), latest is not None), params)
    except DataError as error:
        if getattr(error.__cause__, "sqlstate", None) != "22012":
            raise
        return None
    return found[0][0] if found else None


@lru_cache(maxsize=256)
def _statement(
    using: str, rows: tuple[tuple[type[models.Model], tuple[tuple[str, str], ...]], ...], is_bound: bool
) -> str:
    """Return the statement for rows of which each value is a parameter or stands in it; each form is made once."""
    named = []
    for number, (model, marks) in enumerate(rows):
        listed = ", ".join([column_name(connections[using], model, name) for name, _ in marks])
        values = ", ".join([mark for _, mark in marks])
        source = " FROM a" if number else " ON CONFLICT (workload_id) DO NOTHING RETURNING id"
        name = f"r{number}" if number else "a"
        named.append(f"{name} AS (INSERT INTO {model._meta.db_table} ({listed}) SELECT {values}{source})")
    # Past its time, an error undoes the statement.
    answer = "id / (clock_timestamp() <= %s)::int" if is_bound else "id"
    return f"WITH {', '.join(named)} SELECT {answer} FROM a"
