"""Fields that take JSON of one type and no other, and what the OpenAPI schema says of them.

DRF's own fields turn `"5"` into 5 and `1` into "1"; on this wire each of those is a mistake that is named.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from functools import cache, cached_property
from typing import Any, Final, NamedTuple

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from workloads.errors import WORKLOAD_INVALID, WorkloadError, invalid

MAX_IDENTIFIER_CHARS: Final = 200
MAX_MEMBERS: Final = 100
MOST_ITEMS: Final = 1_000
MAX_INT32: Final = 2**31 - 1
MAX_DURATION_MS: Final = 3_155_760_000_000

_INNER: Final = r"[^\u0000-\u001f\u007f-\u009f]"
_EDGE: Final = r"[^\s\u0000-\u001f\u007f-\u009f]"
IDENTIFIER: Final = {
    "type": "string",
    "minLength": 1,
    "maxLength": MAX_IDENTIFIER_CHARS,
    "pattern": f"^{_EDGE}({_INNER}*{_EDGE})?$",
}
INSTANT: Final = {"type": "string", "format": "date-time", "pattern": "^2[0-8]"}
REASON: Final = {"type": "string", "maxLength": 2_000, "pattern": r"^[^\u0000]*$"}
IDENTIFIERS: Final = {"type": "array", "items": IDENTIFIER, "maxItems": MAX_MEMBERS}
MISSING: Final = object()


class Strict(serializers.Field[Any, Any, Any, Any]):
    """A field whose value must be of JSON's type `kind`. Bounds are the authority's to judge."""

    kind: type | tuple[type, ...] = object
    called = "a value"

    def __init__(self, **options: Any) -> None:
        # `null` for a field with a default is the default.
        super().__init__(**{"allow_null": options.get("required") is False} | options)

    def to_internal_value(self, data: Any) -> Any:
        if not isinstance(data, self.kind) or (isinstance(data, bool) and self.kind is not bool):
            raise invalid(self.path(), f"not {self.called}")
        return data

    def to_representation(self, value: Any) -> Any:
        return value

    def path(self) -> str:
        """Return the field's name, dotted inside an object."""
        inside = getattr(self.parent, "field_name", "")
        return f"{inside}.{self.field_name}" if inside else str(self.field_name)


@extend_schema_field({"type": "string"})
class Text(Strict):
    """A string, at most so many characters long as the authority says."""

    kind = str
    called = "a string"


@extend_schema_field(IDENTIFIER)
class Identifier(Text):
    """An identifier of section 1 of the contract."""


@extend_schema_field(REASON)
class Reason(Text):
    """What a person says of an act."""


@extend_schema_field({"type": "integer"})
class Integer(Strict):
    """An integer; a float is none, nor is a boolean."""

    kind = int
    called = "an integer"


@extend_schema_field({"type": "integer", "minimum": 1, "maximum": 86_400_000})
class LeaseMs(Integer):
    """The length of a lease in milliseconds."""


@extend_schema_field({"type": "integer", "minimum": 1, "maximum": MAX_DURATION_MS})
class DurationMs(Integer):
    """A duration in milliseconds."""


@extend_schema_field({"type": "integer", "minimum": 0, "maximum": 2**63 - 1})
class Version(Integer):
    """The version that the caller saw."""


@extend_schema_field({"type": "number"})
class Number(Strict):
    """A number."""

    kind = (int, float)
    called = "a number"


@extend_schema_field({"type": "boolean"})
class Boolean(Strict):
    """True or false."""

    kind = bool
    called = "a boolean"


@extend_schema_field(INSTANT)
class Instant(Text):
    """An instant, ISO 8601 with its offset from UTC."""

    def to_internal_value(self, data: Any) -> Any:
        text = super().to_internal_value(data)
        return instant(text, self.path())


def instant(text: str, field: str) -> dt.datetime:
    """Return the instant that ISO 8601 text names; WORKLOAD_INVALID if it names none, or has no offset."""
    try:
        value = dt.datetime.fromisoformat(text) if "T" in text or "t" in text else None
    except ValueError:
        value = None
    if value is None:
        raise invalid(field, "not an instant in ISO 8601, as 2026-01-31T12:00:00Z")
    if value.utcoffset() is None:
        raise invalid(field, "has no offset from UTC")
    return value


@extend_schema_field({})
class AnyJSON(Strict):
    """Any JSON value; what can't be stored the authority refuses."""

    def to_internal_value(self, data: Any) -> Any:
        return data


@extend_schema_field(IDENTIFIERS)
class Identifiers(Strict):
    """A set of identifiers, as an array."""

    kind = list
    called = "an array"


class _Plan(NamedTuple):
    """What a body is read by: its fields, each with whether it is required and the types that it takes unjudged."""

    names: frozenset[str]
    fields: list[tuple[str, Any, bool, frozenset[type]]]


def _as_they_stand(field: Any) -> frozenset[type]:
    """Return the types of which every value is one that this field takes, and takes as it stands."""
    if getattr(type(field), "to_internal_value", None) is not Strict.to_internal_value:
        return frozenset()
    kinds = field.kind if isinstance(field.kind, tuple) else (field.kind,)
    return frozenset(kinds) & {str, int, float, bool, list}


class Body(serializers.Serializer[Any]):
    """An object with these fields and no others. `null` for a field with a default is the default."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **({"allow_null": options.get("required") is False} | options))

    def run_validation(self, data: Any = MISSING) -> dict[str, Any]:
        """Return the fields that are given, checked; WORKLOAD_INVALID names the first that is wrong."""
        inside = f"{self.field_name}." if self.field_name else ""
        if not isinstance(data, Mapping):
            raise invalid(self.field_name or "body", "not an object")
        plan = self._plan
        if not plan.names.issuperset(data):
            unknown = sorted(key for key in data if key not in plan.names)
            named = [shown(inside + key) for key in unknown]
            raise WorkloadError(WORKLOAD_INVALID, "The request has fields that are not known.", {"fields": named})
        found: dict[str, Any] = {}
        for name, field, is_required, as_they_stand in plan.fields:
            value = data.get(name, MISSING)
            if type(value) in as_they_stand:
                found[name] = value
            elif value is MISSING or (value is None and not is_required):
                if is_required:
                    raise invalid(inside + name, "is missing")
            elif isinstance(field, serializers.ListSerializer):
                found[name] = _items(value, inside + name)
            elif isinstance(field, Body):
                found[name] = field.run_validation(value)
            else:
                found[name] = field.to_internal_value(value)
        return found

    @cached_property
    def _plan(self) -> _Plan:
        return _Plan(
            names=frozenset(self.fields),
            fields=[(name, field, field.required, _as_they_stand(field)) for name, field in self.fields.items()],
        )

    @classmethod
    def read(cls, data: Any, inside: str | None = None) -> dict[str, Any]:
        """Return the fields of a request's body, or of an item in it; or of an object `inside` a field."""
        return _made(cls, inside).run_validation(data)


def many(item: type[Body]) -> Any:
    """Return the field of a batch: at most 1,000 items, each of which is read, and refused, by itself."""
    options: dict[str, Any] = {"many": True, "max_length": MOST_ITEMS}
    return item(**options)


@cache
def _made(body: type[Body], inside: str | None) -> Body:
    """Return the one instance of a body: it holds nothing of a request, and DRF copies every field to make one."""
    made = body()
    made.field_name = inside
    assert made.fields
    return made


def _items(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise invalid(name, "not an array")
    if len(value) > MOST_ITEMS:
        raise invalid(name, f"more than {MOST_ITEMS} items")
    return value


def shown(name: str) -> str:
    """Return a name that a caller gave, fit to be said back: short, and without what no encoding holds."""
    return name[:MAX_IDENTIFIER_CHARS].encode("utf-8", "replace").decode()
