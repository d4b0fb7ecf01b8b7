"""What each operation takes and answers, as its view says it for the OpenAPI schema: `openapi` reads it there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from drf_spectacular.utils import OpenApiExample, OpenApiParameter
from rest_framework import serializers

from workloads.api import pages
from workloads.api.shapes import IDENTIFIER, INSTANT
from workloads.contract import WorkloadState

View = TypeVar("View", bound=Callable[..., Any])
OPERATION: Final = "workloads_operation"


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """One operation, as the schema has it."""

    id: str
    body: type[serializers.Serializer[Any]] | None
    answers: Mapping[int, type[serializers.Serializer[Any]]]
    codes: Sequence[str]
    parameters: Sequence[OpenApiParameter]
    is_open: bool


def operation(
    name: str,
    body: type[serializers.Serializer[Any]] | None,
    answers: Mapping[int, type[serializers.Serializer[Any]]],
    *,
    codes: Sequence[str] = (),
    parameters: Sequence[OpenApiParameter] = (),
    is_open: bool = False,
) -> Callable[[View], View]:
    """Say what a view's method takes and answers. `codes` are those that it has besides the ones that all have."""

    def describe(view: View) -> View:
        described = Operation(id=name, body=body, answers=answers, codes=codes, parameters=parameters, is_open=is_open)
        setattr(view, OPERATION, described)
        return view

    return describe


def page_parameters() -> list[OpenApiParameter]:
    """Return the parameters of a page."""
    return [
        OpenApiParameter(
            "cursor",
            {"type": "string", "minLength": 1, "maxLength": pages.LONGEST_CURSOR},
            description="Where the page begins: it stands in the `next` and `previous` of another page. Opaque.",
        ),
        OpenApiParameter(
            "page_size",
            {"type": "integer", "minimum": 1, "maximum": pages.MOST_ROWS, "default": pages.PAGE_SIZE},
            description="How many rows a page holds at most.",
        ),
    ]


_IDENTIFIERS: Final[Mapping[str, tuple[str, str]]] = {
    "tenant_id": ("Of this tenant.", "acme"),
    "application_id": ("Of this application.", "invoices"),
    "definition_id": ("Of this definition.", "invoices.render"),
    "definition_revision": ("Of this revision.", "1"),
    "environment": ("Of this environment.", "production"),
    "requested_by": ("Admitted by this user.", "rita"),
    "idempotency_key": ("Admitted under this key.", "invoice-2026-00017"),
    "worker_id": ("Claimed by this worker now.", "press-1.7"),
    "failure_kind": ("Whose last failure was of this kind.", "transient_connection"),
}
_RANGES: Final[Mapping[str, str]] = {
    "created_after": "Admitted then or later.",
    "created_before": "Admitted before then.",
    "finished_after": "Come to rest then or later.",
    "finished_before": "Come to rest before then.",
    "next_attempt_before": "Due before then.",
}


def list_parameters(*, with_pages: bool = True) -> list[OpenApiParameter]:
    """Return the parameters of a list of workloads."""
    states = {"type": "string", "enum": [state.value for state in WorkloadState]}
    priority = {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1}
    filters = [
        OpenApiParameter("state", {"type": "array", "items": states}, description="In one of these states."),
        *(
            OpenApiParameter(name, dict(IDENTIFIER), description=said, examples=_one(name, value))
            for name, (said, value) in _IDENTIFIERS.items()
        ),
        OpenApiParameter("priority_min", priority, description="Of this priority or a higher one."),
        OpenApiParameter("priority_max", priority, description="Of this priority or a lower one."),
        *(
            OpenApiParameter(name, dict(INSTANT), description=said, examples=_one(name, "2026-01-31T12:00:00Z"))
            for name, said in _RANGES.items()
        ),
        OpenApiParameter(
            "blocked",
            {"type": "string", "enum": ["true", "false"]},
            description="`true`: READY, and waiting for other workloads; `false`: all else.",
        ),
        OpenApiParameter(
            "failure",
            {"type": "string", "minLength": 1, "maxLength": 200, "pattern": r"^[^\u0000]*$"},
            description=(
                "Whose last failure holds these words, upper and lower case alike. Only together with a filter by "
                "state or identifier (the environment and the revision do not count) and one by admission or rest."
            ),
            examples=_one("words", "did not answer"),
        ),
    ]
    if not with_pages:
        return filters
    ordering = {"type": "string", "enum": list(pages.ORDERS), "default": pages.NEWEST_FIRST}
    said = "By what, `-` for falling. What has no such instant is not in a list ordered by it."
    return [*filters, OpenApiParameter("ordering", ordering, description=said), *page_parameters()]


def _one(name: str, value: str) -> list[OpenApiExample]:
    return [OpenApiExample(name, value=value, parameter_only=(name, "query"))]
