"""How a view becomes an operation of the OpenAPI schema, whatever the site has set for its own views."""

from __future__ import annotations

from typing import Any, Final

from django.conf import settings
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.plumbing import ResolvedComponent
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, OpenApiResponse
from rest_framework import serializers

from workloads import errors as codes_of_the_contract
from workloads.api import answer_shapes, errors, examples, links
from workloads.api.operations import OPERATION, Operation
from workloads.api.shapes import MOST_ITEMS, Body

PREFIX: Final = "Workload"
"""What every component's name begins with, so that none meets one of the site's own."""

_ALWAYS: Final = (
    codes_of_the_contract.WORKLOAD_INVALID,
    errors.UNAUTHENTICATED,
    errors.NOT_ACCEPTABLE,
)
_UNLESS_OPEN: Final = (errors.THROTTLED, errors.UNAVAILABLE)
# A session's call without its CSRF token is forbidden.
_WITH_BODY: Final = (codes_of_the_contract.WORKLOAD_TOO_LARGE, errors.UNSUPPORTED_MEDIA_TYPE, errors.FORBIDDEN)

_RETRY_AFTER: Final = ("Retry-After", {"type": "integer", "minimum": 1}, "After how many seconds to call again.")
_CHALLENGE: Final = ("WWW-Authenticate", {"type": "string"}, "How to say who one is.")
_LOCATION: Final = ("Location", {"type": "string", "format": "uri-reference"}, "Where the workload is read.")
# A header that visible ASCII can't hold is sent as UTF-8.
_KEY: Final = {"type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[!-~]([ -~]*[!-~])?$"}

_TAGS: Final = {
    "requester": "Admitting work.",
    "worker": "Claiming work, and every call under a claim's fence.",
    "operator": "Calling off, re-arming and timing out.",
    "reading": "Lists, records, histories and figures.",
    "health": "Whether all is well.",
}
TAGS: Final = [{"name": name, "description": said} for name, said in _TAGS.items()]


class OperationSchema(AutoSchema):
    """Reads the operation off the view's method."""

    @property
    def _said(self) -> Operation:
        found: Operation = getattr(getattr(self.view, self.method.lower()), OPERATION)
        return found

    def get_operation(self, *args: Any, **kwargs: Any) -> dict[str, Any] | None:
        described: dict[str, Any] | None = super().get_operation(*args, **kwargs)
        if described is not None:
            for status, found in links.of_operation(self._said.id, operation_id).items():
                described["responses"][status]["links"] = found
            for status, answer in described["responses"].items():
                if int(status) >= 400 and status not in map(str, self._said.answers):
                    self._share(answer["content"]["application/json"]["examples"])
        return described

    def _share(self, shown: dict[str, dict[str, Any]]) -> None:
        """Let examples that many operations have stand in one place."""
        for name, example in shown.items():
            shared = ResolvedComponent(
                name=component_name(name.removeprefix(PREFIX)),
                type=ResolvedComponent.EXAMPLE,
                schema=example,
                object=name,
            )
            self.registry.register_on_missing(shared)
            shown[name] = shared.ref

    def get_operation_id(self) -> str:
        return operation_id(self._said.id)

    def get_summary(self) -> str:
        return self.get_description().partition(". ")[0].rstrip(".")

    def get_description(self, path: str = "", method: str = "") -> str:
        lines = (self.view.__class__.__doc__ or "").strip().split("POST: ")
        named = {"GET": lines[0].removeprefix("GET: "), "POST": lines[-1]}
        said = " ".join(named[self.method].split())
        return said[:1].upper() + said[1:]

    def get_tags(self) -> list[str]:
        if self._said.is_open:
            return ["health"]
        return ["reading"] if self.method == "GET" else [str(getattr(self.view, "role", ""))]

    def get_auth(self) -> list[dict[str, list[Any]]]:
        schemes = {
            "workloadsToken": {"type": "http", "scheme": "bearer", "description": "A token of the site's."},
            "workloadsSession": {
                "type": "apiKey",
                "in": "cookie",
                "name": settings.SESSION_COOKIE_NAME,
                "description": "A session of the site's; a POST then needs its CSRF token too.",
            },
        }
        for name, scheme in schemes.items():
            self.registry.register_on_missing(
                ResolvedComponent(name=name, type=ResolvedComponent.SECURITY_SCHEMA, schema=scheme, object=name)
            )
        named: list[dict[str, list[Any]]] = [{name: []} for name in schemes]
        return [{}, *named] if self._said.is_open else named

    def get_request_serializer(self) -> Any:
        return self._said.body

    def get_override_parameters(self) -> list[Any]:
        said = self._said
        found = list(said.parameters)
        if "{workload_id}" in self.path:
            found.append(
                OpenApiParameter(
                    "workload_id",
                    {"type": "string", "minLength": 1},
                    OpenApiParameter.PATH,
                    description="The id that admission answered.",
                    examples=[examples.WORKLOAD_ID],
                )
            )
        found.extend(_header(*_RETRY_AFTER, statuses=["429", "503"]))
        if not said.is_open:
            found.extend(_header(*_CHALLENGE, statuses=["401"]))
        if said.id == "claimNext":
            found.extend(_header(*_RETRY_AFTER, statuses=["200"], is_always_there=False))
        if said.id == "admit":
            found.extend(_header(*_LOCATION, statuses=["200", "201"]))
            found.append(
                OpenApiParameter(
                    "Idempotency-Key",
                    _KEY,
                    OpenApiParameter.HEADER,
                    description="Instead of idempotency_key in the body, or equal to it. UTF-8.",
                    examples=[examples.KEY],
                )
            )
        return found

    def get_response_serializers(self) -> Any:
        said = self._said
        found: dict[int, Any] = {
            status: OpenApiResponse(
                shape,
                description=(shape.__doc__ or "").strip(),
                examples=examples.answers(said.id, status),
            )
            for status, shape in said.answers.items()
        }
        listed = [*_ALWAYS, *(() if said.is_open else _UNLESS_OPEN), *said.codes, *(_WITH_BODY if said.body else ())]
        by_status: dict[int, list[str]] = {}
        for code in dict.fromkeys(listed):
            by_status.setdefault(errors.STATUSES[code], []).append(code)
        for status, codes in sorted(by_status.items()):
            found[status] = OpenApiResponse(
                answer_shapes.Error, description=", ".join(codes), examples=[examples.error(code) for code in codes]
            )
        return found

    def get_examples(self) -> list[OpenApiExample]:
        return examples.bodies(self._said.id)

    def get_serializer_name(self, serializer: serializers.Serializer[Any], direction: Any) -> str:
        return component_name(type(serializer).__name__)

    def _map_basic_serializer(self, serializer: Any, direction: Any) -> Any:
        schema = super()._map_basic_serializer(serializer, direction)
        # A misspelt field is refused, and no answer has one that is not written here.
        schema["additionalProperties"] = False
        schema.update(getattr(serializer, "says_besides", {}))
        for name, field in serializer.fields.items():
            found = schema["properties"][name]
            if isinstance(serializer, Body) and isinstance(field, serializers.ListSerializer):
                # What is wrong in one item of a batch is told in that item's outcome.
                found["items"] = {"anyOf": [found["items"], {"description": "Anything else is refused by itself."}]}
                found["maxItems"] = MOST_ITEMS
            elif field.allow_null:
                schema["properties"][name] = _nullable(found)
        return schema


def operation_id(name: str) -> str:
    """Return the id of an operation, one that no other operation of the site has."""
    return f"workloads{name[0].upper()}{name[1:]}"


def component_name(name: str) -> str:
    """Return what a shape is called among the site's components."""
    return name if name.startswith(PREFIX) else PREFIX + name


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    """Let null be a value of the schema: of an enumeration too, and of any value it is one already."""
    said = {name: value for name, value in schema.items() if name not in ("nullable", "oneOf")}
    if not said.keys() - {"description", "default"} and "$ref" not in str(schema.get("oneOf")):
        return said
    if "enum" in schema and None not in schema["enum"]:
        schema["enum"] = [*schema["enum"], None]
    return schema


def _header(
    name: str, type_: dict[str, Any], said: str, *, statuses: list[str], is_always_there: bool = True
) -> list[OpenApiParameter]:
    made = OpenApiParameter(
        name, type_, OpenApiParameter.HEADER, description=said, required=is_always_there, response=statuses
    )
    return [made]
