"""Columns, and how many values of one are given to a database: on PostgreSQL in one piece, as an array.

The texts of arrays are written here because the driver would ask of every value what it is.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper


@cache
def field_of(model: type[models.Model], attname: str) -> models.Field[Any, Any]:
    return next(c for c in model._meta.concrete_fields if c.attname == attname)


def prepared(connection: BaseDatabaseWrapper, model: type[models.Model], name: str, value: Any) -> Any:
    """Return a column's value as the driver takes it."""
    return field_of(model, name).get_db_prep_save(value, connection)


def among(
    connection: BaseDatabaseWrapper, model: type[models.Model], name: str, values: Sequence[Any], table: str
) -> tuple[str, list[Any]]:
    """Return the condition that a column of `table` (its name in the statement) has one of the values, and its
    parameters.
    """
    column = f"{table}.{connection.ops.quote_name(str(field_of(model, name).column))}"
    if connection.vendor == "postgresql":
        kind = kind_of(model, name)
        return f"{column} = ANY (%s::{kind.name}[])", [kind.array(kind.prepare(values))]
    marks = ", ".join(["%s"] * len(values))
    return f"{column} IN ({marks})", [prepared(connection, model, name, value) for value in values]


def stood(model: type[models.Model], name: str, value: Any, params: list[Any]) -> str:
    """Return what stands for a value in a statement for PostgreSQL; what the driver has to write is added to `params`.

    Nulls and zeros stand there themselves: the driver remembers what it made of a statement of up to 50 parameters.
    """
    if value is None:
        return "NULL"
    if value == 0 and type(value) is int:
        return "0"
    as_text = kind_of(model, name).as_text
    params.append(value if as_text is None else as_text(value))
    return "%s"


@dataclass(frozen=True, slots=True)
class Kind:
    """How values of a column stand in an array: the type of its items, and what writes one that is not NULL.

    `as_text`, where a column keeps text, makes its text of a value.
    """

    name: str
    write: Callable[[Any], str]
    as_text: Callable[[Any], Any] | None = None

    def prepare(self, values: Sequence[Any]) -> list[Any]:
        """Return the values as the column keeps them."""
        return list(values) if self.as_text is None else list(map(self.as_text, values))

    def array(self, values: Iterable[Any]) -> str:
        """Return prepared values as the text of an array."""
        write = self.write
        return "{" + ",".join(["NULL" if value is None else write(value) for value in values]) + "}"


@cache
def kind_of(model: type[models.Model], name: str) -> Kind:
    """Return how the values of a model's column stand in an array."""
    field = field_of(model, name)
    while isinstance(field, models.ForeignKey):
        field = field.target_field
    if isinstance(field, models.DateTimeField):
        return Kind("timestamptz", dt.datetime.isoformat)
    if isinstance(field, models.BooleanField):
        return Kind("boolean", lambda value: "t" if value else "f")
    if isinstance(field, models.UUIDField):
        return Kind("uuid", uuid.UUID.__str__)
    if isinstance(field, models.IntegerField):
        return Kind("bigint", int.__repr__)
    # An array of varchar(n) would cut to n what the column refuses.
    is_plain = type(field).get_prep_value in (models.CharField.get_prep_value, models.TextField.get_prep_value)
    return Kind("text", _quoted, None if is_plain else field.get_prep_value)


def _quoted(text: str) -> str:
    if "\\" in text or '"' in text:
        text = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
