"""The OpenAPI schema of the interface, and the page on which people try it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Final

from django.conf import settings
from django.http import HttpResponse
from django.shortcuts import render
from django.templatetags.static import static
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.settings import patched_settings
from rest_framework.request import Request
from rest_framework.response import Response

from workloads import conf
from workloads.api.base import Endpoint
from workloads.api.openapi import TAGS
from workloads.api.wire import MEDIA_TYPE, JSONAlone

VERSION: Final = "1.0.0"
MOUNTED_AT: Final = "/api/v1"
SIDECAR: Final = "drf_spectacular_sidecar/swagger-ui-dist"
# Without a validator's address the page asks one of its own makers', on the open net, what it thinks of the schema.
PAGE: Final[dict[str, Any]] = {
    "validatorUrl": None,
    "deepLinking": True,
    "docExpansion": "list",
    "defaultModelsExpandDepth": 0,
    "persistAuthorization": False,
}
LEASES: Final = ("lease_ms", "extend_ms")
SETTINGS: Final[dict[str, Any]] = {
    "TITLE": "workloads",
    "DESCRIPTION": "A durable authority for background work: admit it, claim it under a fence, report it, mend it.",
    "VERSION": VERSION,
    # The first that tells null apart from what is left out, and takes any value for any JSON.
    "OAS_VERSION": "3.1.0",
    "ENUM_GENERATE_CHOICE_DESCRIPTION": False,
    "COMPONENT_SPLIT_REQUEST": False,
    "POSTPROCESSING_HOOKS": [],
    "PREPROCESSING_HOOKS": [],
    "SCHEMA_PATH_PREFIX": "",
    "APPEND_COMPONENTS": {},
    "EXTENSIONS_INFO": {},
    "TAGS": TAGS,
    "SERVERS": [],
}


def generate(mounted_at: str = MOUNTED_AT) -> dict[str, Any]:
    """Return the schema of the interface as a site has it mounted, whatever else the site serves."""
    from workloads.api import urls

    with patched_settings(SETTINGS):
        schema: dict[str, Any] = SchemaGenerator(patterns=urls.paths).get_schema(request=None, public=True)
    schema["servers"] = [{"url": mounted_at}]
    for lease in _leases(schema):
        lease["maximum"] = conf.limits().max_lease_ms
    return schema


@lru_cache(maxsize=16)
def _generated(mounted_at: str, max_lease_ms: int) -> dict[str, Any]:
    """Return what `generate` returned, once for each place: making it takes a good part of a second."""
    # The library's settings are one for the process.
    with _one_at_a_time:
        return generate(mounted_at)


_one_at_a_time = threading.Lock()


def _leases(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what the schema says of each lease: a site sets how long one may be."""
    for component in schema["components"]["schemas"].values():
        yield from (said for name, said in component.get("properties", {}).items() if name in LEASES)


class SchemaFile(Endpoint):
    """GET: this description. Open to all: it tells nothing of anybody's work."""

    permission_classes = ()
    authentication_classes = ()
    throttle_classes = ()
    schema = None

    def get(self, request: Request) -> Response:
        return Response(_generated(request.path.removesuffix("/schema/"), conf.limits().max_lease_ms))


class AnythingAccepted(JSONAlone):
    """Lets those in who accept no JSON: what they get is a page. Errors are JSON here too."""

    def select_renderer(
        self, request: Request, renderers: Iterable[Any], format_suffix: str | None = None
    ) -> tuple[Any, str]:
        return next(iter(renderers)), MEDIA_TYPE


class BrowsableDocs(Endpoint):
    """GET: this description as a page, from files of this site alone."""

    permission_classes = ()
    authentication_classes = ()
    throttle_classes = ()
    content_negotiation_class = AnythingAccepted
    schema = None

    def get(self, request: Request) -> HttpResponse:
        shown = {
            "title": SETTINGS["TITLE"],
            "schema_url": "../schema/",
            "swagger_ui_css": static(f"{SIDECAR}/swagger-ui.css"),
            "swagger_ui_bundle": static(f"{SIDECAR}/swagger-ui-bundle.js"),
            "swagger_ui_standalone": static(f"{SIDECAR}/swagger-ui-standalone-preset.js"),
            "favicon_href": static(f"{SIDECAR}/favicon-32x32.png"),
            "template_name_js": "drf_spectacular/swagger_ui.js",
            "settings": json.dumps(PAGE),
            "schema_auth_names": "[]",
            "csrf_header_name": settings.CSRF_HEADER_NAME.removeprefix("HTTP_").replace("_", "-"),
        }
        return render(request._request, "drf_spectacular/swagger_ui.html", shown)
