"""JSON on the wire: read strictly and up to a limit, written exactly."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, Any, Final

from rest_framework.exceptions import NotAcceptable, UnsupportedMediaType
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.parsers import BaseParser
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request

from workloads import conf
from workloads.errors import WORKLOAD_TOO_LARGE, WorkloadError, invalid
from workloads.lifecycle.arguments import mend_error

MEDIA_TYPE: Final = "application/json"
READ_BYTES: Final = 65_536
_ACCEPTED: Final = ("*/*", "application/*", MEDIA_TYPE)
_LONGEST_LENGTH: Final = 20
_LONGEST_NAME: Final = 200


class StrictJSONParser(BaseParser):
    """Reads a JSON object whose keys are unique; NaN and infinities are not JSON, and UTF-8 is the one encoding."""

    media_type = MEDIA_TYPE

    def parse(
        self, stream: IO[bytes], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        return parse_object(read_body(stream))


def check_body(request: Request) -> None:
    """Refuse, before any of it is read, a body that is not JSON in UTF-8, that is too large, or of unknown length.

    Without a length the framework would take it for none at all, and what its fields ask would be dropped in silence.
    """
    said = request._request.META
    declared = said.get("CONTENT_LENGTH") or ""
    if not declared:
        if said.get("HTTP_TRANSFER_ENCODING") or request._request.read(1):
            raise invalid("body", "needs a Content-Length")
        return
    if not (declared.isascii() and declared.isdecimal() and len(declared) <= _LONGEST_LENGTH):
        raise invalid("body", "has a Content-Length that is no length")
    if int(declared) == 0:
        return
    content_type = said.get("CONTENT_TYPE", "")
    if content_type == MEDIA_TYPE and int(declared) <= conf.limits().max_body_bytes:
        return
    if JSONAlone().select_parser(request, (StrictJSONParser,)) is None:
        raise UnsupportedMediaType(content_type)
    for parameter in content_type.split(";")[1:]:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset" and value.strip().strip('"').lower() not in {"utf-8", "utf8"}:
            raise UnsupportedMediaType(content_type)
    if int(declared) > conf.limits().max_body_bytes:
        raise too_large(int(declared))


def too_large(size: int) -> WorkloadError:
    """Return the refusal of a body of which so many bytes are known."""
    limit = conf.limits().max_body_bytes
    return WorkloadError(WORKLOAD_TOO_LARGE, "The body is too large.", {"field": "body", "limit": limit, "size": size})


def read_body(stream: IO[bytes]) -> bytes:
    """Read a stream to its end. As soon as it is over the site's MAX_BODY_BYTES, it is refused and read no further."""
    limit = conf.limits().max_body_bytes
    parts, size = [], 0
    while part := stream.read(min(READ_BYTES, limit + 1 - size)):
        parts.append(part)
        size += len(part)
        if size > limit:
            raise too_large(size)
    return b"".join(parts)


def parse_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object that a body holds; WORKLOAD_INVALID names what is wrong with it. Empty is no fields."""
    if not body:
        return {}
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        raise invalid("body", "is not UTF-8") from None
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except RecursionError:
        raise invalid("body", "is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise invalid("body", f"is not JSON: {error.msg} at character {error.pos}") from None
    except ValueError:
        # The interpreter's limit on digits.
        raise invalid("body", "holds an integer of too many digits") from None
    if not isinstance(value, dict):
        raise invalid("body", "is not a JSON object")
    return value


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = next(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
        raise invalid("body", "holds a key twice", key=mend_error(twice, _LONGEST_NAME))
    return found


def _no_constant(name: str) -> Any:
    raise invalid("body", f"holds {name}, which is not JSON")


_written: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


class ExactJSONRenderer(BaseRenderer):
    """Writes JSON with integers to the last digit, and without anything that is not JSON."""

    media_type = MEDIA_TYPE
    format = "json"
    charset = None

    def render(
        self, data: Any, accepted_media_type: str | None = None, renderer_context: Mapping[str, Any] | None = None
    ) -> bytes:
        if data is None:
            return b""
        return _written(data).encode()


class JSONAlone(BaseContentNegotiation):
    """Answers in JSON, whatever query parameters say, and refuses those who accept no JSON."""

    def select_parser(self, request: Request, parsers: Iterable[Any]) -> Any:
        media_type = (request.content_type or "").partition(";")[0].strip().lower()
        return next((parser for parser in parsers if parser.media_type == media_type), None)

    def select_renderer(
        self, request: Request, renderers: Iterable[Any], format_suffix: str | None = None
    ) -> tuple[Any, str]:
        accepted = request._request.META.get("HTTP_ACCEPT", "*/*") or "*/*"
        if accepted not in _ACCEPTED and not any(_accepts(part) for part in accepted.split(",")):
            raise NotAcceptable
        return next(iter(renderers)), MEDIA_TYPE


def _accepts(part: str) -> bool:
    media_type, *parameters = (piece.strip().lower() for piece in part.split(";"))
    return media_type in _ACCEPTED and not any(
        p.replace(" ", "") in {"q=0", "q=0.0", "q=0.00", "q=0.000"} for p in parameters
    )
