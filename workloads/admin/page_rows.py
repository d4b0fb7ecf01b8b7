"""Reading rows as they are stored, each cell decoded alone, so that a spoilt one is named and spoils no other.

The ORM stops at the first value that it can't decode and does not say which. Here every column is asked for undecoded,
and then decoded as its field would.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from django.db import connections, models
from django.db.models import F, QuerySet
from django.db.models.expressions import Combinable
from django.db.models.functions import Left
from django.utils.translation import gettext as _

from workloads.contract import AttemptStatus, RetryPolicy, Timeouts, WorkloadState
from workloads.fields import TIMEOUT_NAMES, JSONTextField, RetryPolicyField, StringSetField, TimeoutsField
from workloads.lifecycle import arguments
from workloads.lifecycle.snapshot import Standing

PREFIX: Final = "stored_"
# What is given lies in the years 2000 to 2899, and what is derived from it a hundred years later at most. At the ends
# of the calendar an instant has no name in another zone.
YEARS: Final = (1970, 3100)

# What a column may hold, where not every text will do.
WORDS: Final[Mapping[str, frozenset[str]]] = {
    "state": frozenset(WorkloadState),
    "to_state": frozenset(WorkloadState),
    "from_state": frozenset(WorkloadState) | {""},
    "required_state": frozenset(WorkloadState),
    "status": frozenset(AttemptStatus),
    "standing": frozenset(Standing),
    "dependency_standing": frozenset(Standing),
}


class Stored(models.Func):
    """A column's value as the driver gives it; no field decodes it."""

    template = "%(expressions)s"
    arity = 1

    def __init__(self, expression: Combinable) -> None:
        super().__init__(expression, output_field=models.TextField())

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        # SQLite keeps any bytes as text, and its driver fails on the whole row if they are none.
        return self.as_sql(compiler, connection, template="CAST(%(expressions)s AS BLOB)", **context)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """Why a cell is none of its column's values, and what stands there instead, as far as it is text."""

    said: str
    stored: str = ""


@dataclass(slots=True)
class Row:
    """One row's values by column, None where a value can't be read, and the faults by column.

    `heads` are the columns of which so many characters were asked for, which are not decoded.
    """

    values: dict[str, Any] = field(default_factory=dict)
    faults: dict[str, Fault] = field(default_factory=dict)
    heads: Mapping[str, int] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def text(self, name: str) -> str:
        """The value as text; nothing where there is none."""
        value = self.values.get(name)
        return "" if value is None else str(value)

    def instant(self, name: str) -> dt.datetime | None:
        """The value if it is an instant."""
        value = self.values.get(name)
        return value if isinstance(value, dt.datetime) else None

    def number(self, name: str) -> int | None:
        """The value if it is a whole number."""
        value = self.values.get(name)
        return value if isinstance(value, int) else None


class _Spoilt(Exception):
    """A stored value that is none of its column's."""


def read(rows: QuerySet[Any], names: Sequence[str], heads: Mapping[str, int] | None = None) -> list[Row]:
    """Return the rows in these columns. Of the text columns in `heads`, as many characters, which nothing decodes."""
    heads = heads or {}
    listed = [*names, *heads]
    asked = {PREFIX + name: Stored(Left(F(name), heads[name]) if name in heads else F(name)) for name in listed}
    found = rows.annotate(**asked).values_list(*asked)
    connection = connections[rows.db]
    by_name = {name: column for column in rows.model._meta.concrete_fields for name in (column.attname, column.name)}
    fields = [by_name[name] for name in listed]
    return [_decode_row(listed, fields, values, heads, connection) for values in found]


def _decode_row(
    names: Sequence[str],
    fields: Sequence[models.Field[Any, Any]],
    values: Sequence[Any],
    heads: Mapping[str, int],
    connection: Any,
) -> Row:
    row = Row(heads=heads)
    for name, column, value in zip(names, fields, values, strict=True):
        text = value if isinstance(value, str) else ""
        try:
            if isinstance(value, bytes | memoryview):
                text = bytes(value).decode(errors="replace")
                value = bytes(value).decode()
            row.values[name] = _decode(column, value, name in heads, connection)
            known = None if name in heads else WORDS.get(name)
            if known is not None and row.values[name] not in known:
                row.faults[name] = Fault(said=_("This word is not known to this version."), stored=text)
        except _Spoilt as spoilt:
            row.values[name] = None
            row.faults[name] = Fault(said=str(spoilt), stored=text)
        except Exception as error:
            # Whatever the reason is, the cell can't be read, and the others can.
            row.values[name] = None
            row.faults[name] = Fault(said=f"{type(error).__name__}: {error}", stored=text)
    return row


def _decode(column: models.Field[Any, Any], value: Any, is_head: bool, connection: Any) -> Any:
    if value is None:
        if column.null:
            return None
        raise _Spoilt(_("It is empty, and must not be."))
    if is_head:
        return str(value)
    if isinstance(column, models.DateTimeField):
        return _instant(column, value, connection)
    if isinstance(column, models.IntegerField | models.ForeignKey):
        return int(value)
    if isinstance(column, JSONTextField):
        if isinstance(column, StringSetField) and not isinstance(json.loads(value), list):
            raise _Spoilt(_("It is not what this column holds."))
        decoded = column.from_db_value(value, None, connection)
        _check(column, decoded)
        return decoded
    return str(value)


def _instant(column: models.DateTimeField[Any, Any], value: Any, connection: Any) -> dt.datetime:
    for convert in connection.ops.get_db_converters(column.get_col(column.model._meta.db_table)):
        value = convert(value, None, connection)
    if not isinstance(value, dt.datetime) or value.tzinfo is None:
        raise _Spoilt(_("It is no instant."))
    if not YEARS[0] <= value.year <= YEARS[1]:
        raise _Spoilt(_("It is no instant of this time."))
    return value


def _check(column: JSONTextField, value: Any) -> None:
    """Refuse what is JSON, and still none of the column's values."""
    if isinstance(column, StringSetField):
        is_right = all(isinstance(member, str) for member in value)
    elif isinstance(column, RetryPolicyField):
        is_right = _is_policy(value)
    elif isinstance(column, TimeoutsField):
        is_right = _are_timeouts(value)
    else:
        is_right = isinstance(value, dict)
    if not is_right:
        raise _Spoilt(_("It is not what this column holds."))


def _is_policy(policy: RetryPolicy) -> bool:
    numbers = (policy.max_attempts, policy.initial_delay_ms, policy.max_delay_ms)
    return all(type(number) is int for number in numbers) and all(isinstance(kind, str) for kind in policy.retry_on)


def _are_timeouts(timeouts: Timeouts) -> bool:
    given = [getattr(timeouts, name) for name in TIMEOUT_NAMES]
    return all(ms is None or (type(ms) is int and 0 < ms <= arguments.MAX_DURATION_MS) for ms in given)
