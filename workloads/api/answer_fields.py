"""What a field of an answer holds: its type, its bounds, and the names that it may have."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema_field

from workloads.api.shapes import Strict, Text
from workloads.contract import AttemptStatus, WorkloadState
from workloads.errors import CODES


@extend_schema_field(
    {
        "type": "string",
        "format": "date-time",
        "pattern": r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z$",
    }
)
class Instant(Text):
    """An instant in UTC, to the microsecond."""


@extend_schema_field({"type": "integer", "minimum": 0})
class Integer(Strict):
    """A count, a number in a sequence, or a length of time in milliseconds."""


@extend_schema_field({"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1})
class PriorityNumber(Strict):
    """Higher goes first."""


@extend_schema_field({"type": "string", "pattern": "^[0-9a-f]{64}$"})
class Digest(Text):
    """SHA-256 over canonical JSON."""


@extend_schema_field({"type": "string", "minLength": 1, "maxLength": 64})
class Id(Text):
    """An id that the authority made: opaque."""


@extend_schema_field({"type": "string", "minLength": 1, "maxLength": 200})
class Name(Text):
    """An identifier as it was given."""


@extend_schema_field(
    {"type": "string", "enum": [state.value for state in WorkloadState]}, component_name="WorkloadStateName"
)
class StateName(Text):
    """Where a workload stands."""


@extend_schema_field(
    {"type": "string", "enum": ["", *(state.value for state in WorkloadState)]}, component_name="WorkloadFromStateName"
)
class FromStateName(Text):
    """The state before; empty at admission."""


@extend_schema_field(
    {"type": "string", "enum": [status.value for status in AttemptStatus]}, component_name="WorkloadAttemptStatus"
)
class StatusName(Text):
    """How an attempt stands or ended."""


@extend_schema_field({"type": "array", "items": {"type": "string"}, "uniqueItems": True})
class Strings(Strict):
    """A set of strings, sorted."""


@extend_schema_field({"type": "object", "additionalProperties": {"type": "string"}})
class Evidence(Strict):
    """What a step was decided on."""


@extend_schema_field({"type": "object", "additionalProperties": True})
class Details(Strict):
    """What a program may want to know of it."""


@extend_schema_field({"type": "string", "format": "uri"})
class Link(Text):
    """The address of another page, or null."""


@extend_schema_field(
    {"type": "string", "enum": ["READY", "DEAD_LETTER", "CANCELLED"]}, component_name="WorkloadOutcomeState"
)
class OutcomeStateName(Text):
    """Where a failure led."""


@extend_schema_field(
    {
        "type": "string",
        "enum": sorted(
            CODES
            | {
                "FORBIDDEN",
                "INTERNAL_ERROR",
                "METHOD_NOT_ALLOWED",
                "NOT_ACCEPTABLE",
                "NOT_FOUND",
                "THROTTLED",
                "UNAUTHENTICATED",
                "UNAVAILABLE",
                "UNSUPPORTED_MEDIA_TYPE",
            }
        ),
    },
    component_name="WorkloadErrorCode",
)
class CodeName(Text):
    """What callers tell errors apart by."""


@extend_schema_field(
    {"type": "integer", "enum": [200, 201, 400, 403, 404, 409, 413, 422]}, component_name="WorkloadOutcomeStatus"
)
class StatusNumber(Strict):
    """What the item would have been answered with, asked by itself."""
