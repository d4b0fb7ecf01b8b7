"""A workload's row as the snapshot that rules read."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

from django.db import connections, models
from django.db.backends.base.base import BaseDatabaseWrapper

from workloads.authority.columns import field_of
from workloads.contract import WorkloadState
from workloads.lifecycle.snapshot import CurrentClaim, Snapshot, Standing
from workloads.models import Admitted, Workload

COLD: Final = (
    "workload_id",
    "tenant_id",
    "application_id",
    "definition_id",
    "definition_revision",
    "lane_id",
    "contract_version",
    "capability_snapshot",
    "connection_scopes",
    "retry_policy",
    "timeouts",
    "created_at",
)
STANDING: Final = (
    "version",
    "state",
    "priority",
    "next_attempt_at",
    "attempt_count",
    "retry_count",
    "release_count",
    "uncounted_releases",
    "operator_retries",
    "fencing_token",
    "last_failure",
    "updated_at",
    "finished_at",
    "overall_from",
    "event_count",
    "checkpoint_count",
    "dependency_standing",
)
CLAIM: Final = ("claim_id", "worker_id", "attempt_id", "claimed_at", "started_at", "last_heartbeat", "expires_at")


Convert = Callable[[Any, Any, Any], Any]
"""What the ORM's converters are: of a value, the column's expression, and the connection."""


def listed(using: str) -> str:
    """Return the select list of a snapshot, over the tables `w` (how it stands) and `a` (what was admitted)."""
    return _columns(using)[0]


@cache
def _columns(using: str) -> tuple[str, tuple[str, ...], tuple[tuple[str, tuple[Convert, ...], Any], ...]]:
    """Return the select list of a snapshot, the names of its columns, and what turns values into Python's."""
    connection = connections[using]
    quote = connection.ops.quote_name
    listed, names, readers = [f"w.{quote('admitted_id')}"], ["pk"], []
    for model, table, of_table in ((Admitted, "a", COLD), (Workload, "w", STANDING + CLAIM)):
        for name in of_table:
            column = field_of(model, name)
            expression = column.get_col(table)
            source = f"{table}.{quote(str(column.column))}"
            converters = connection.ops.get_db_converters(expression) + expression.get_db_converters(connection)
            if connection.vendor == "postgresql" and isinstance(column, models.DateTimeField):
                # The driver takes ten times as long to read an instant as Python does.
                source, converters = f"{source}::text", [_instant]
            listed.append(source)
            names.append(name)
            if converters:
                readers.append((name, tuple(converters), expression))
    return ", ".join(listed), tuple(names), tuple(readers)


def _instant(value: str | None, expression: Any, connection: Any) -> dt.datetime | None:
    if value is None:
        return None
    instant = dt.datetime.fromisoformat(value)
    # The session's zone is UTC, unless a pooler has lost that.
    return instant if instant.tzinfo is dt.UTC else instant.astimezone(dt.UTC)


def read(connection: BaseDatabaseWrapper, row: Sequence[Any]) -> Snapshot:
    """Return the snapshot that a row of the select list stands for; a value that is none of its column's raises."""
    _, names, readers = _columns(connection.alias)
    values: dict[str, Any] = dict(zip(names, row, strict=True))
    for name, converters, expression in readers:
        value = values[name]
        for convert in converters:
            value = convert(value, expression, connection)
        values[name] = value
    held = {name: values.pop(name) for name in CLAIM}
    values["state"] = WorkloadState(values["state"])
    values["dependency_standing"] = Standing(values["dependency_standing"])
    values["claim"] = CurrentClaim(**held) if held["claim_id"] is not None else None
    return Snapshot.of(values)
