"""Every path of the interface, read from its urls so that none can be forgotten, and for each a body that it takes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import URLPattern, URLResolver

from tests.api.tools import admission, claiming
from workloads.api import urls

MISSING = "workload_" + "0" * 24


@dataclass(frozen=True)
class Route:
    """One method of one path."""

    name: str
    method: str
    template: str
    view: Any

    def __str__(self) -> str:
        return f"{self.method} {self.template}"

    @property
    def key(self) -> str:
        """What tables of this folder call it."""
        return f"{self.method} {self.name}"

    @property
    def is_of_one(self) -> bool:
        """Tell whether the path names a workload."""
        return "{}" in self.template

    def url(self, workload_id: str = MISSING) -> str:
        """Return the path for this workload."""
        return self.template.format(workload_id)


def walk(patterns: Any = urls.paths, prefix: str = "") -> Iterator[Route]:
    """Yield every method of every path."""
    for pattern in patterns:
        template = prefix + re.sub(r"<[^>]*>", "{}", str(pattern.pattern))
        if isinstance(pattern, URLResolver):
            yield from walk(pattern.url_patterns, template)
        elif isinstance(pattern, URLPattern):
            view = pattern.callback.cls
            for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
                if hasattr(view, method.lower()):
                    yield Route(name=str(pattern.name), method=method, template=template, view=view)


ROUTES = list(walk())
OF_ONE = [route for route in ROUTES if route.is_of_one]
POSTS = [route for route in ROUTES if route.method == "POST"]
OPEN = {"GET health", "GET schema", "GET docs"}


def some(routes: list[Route], case: object) -> list[Route]:
    """Return a quarter of the routes, another for another case: all cases together try every route many times."""
    return routes[crc32(repr(case).encode()) % 4 :: 4]


FENCE = {"claim_id": "c-1", "worker_id": "w-1", "fencing_token": 1}
_OWN: dict[str, dict[str, Any]] = {
    "POST claim": claiming(),
    "POST start": {},
    "POST heartbeat": {"extend_ms": 60_000},
    "POST context": {},
    "POST checkpoints": {"state": {"step": 1}, "key": "first"},
    "POST complete": {"result_id": "r-1", "output": {"ok": True}},
    "POST fail": {"kind": "flaky", "error": "no"},
    "POST release": {"reason": "a deploy"},
    "POST confirm-cancel": {},
    "POST cancel": {"reason": "not wanted"},
    "POST rearm": {"reason": "mended"},
    "POST time-out": {"reason": "too long"},
}
FENCED = frozenset(_OWN) - {"POST claim", "POST cancel", "POST rearm", "POST time-out"}


def body_for(route: Route, workload_id: str = MISSING, fence: dict[str, Any] | None = None) -> dict[str, Any] | None:
    """Return a body that this route takes, of all of its required fields; None where it takes none."""
    if route.method != "POST":
        return None
    fence = fence or FENCE
    if route.key in _OWN:
        return _OWN[route.key] | (fence if route.key in FENCED else {})
    return {
        "POST workloads": admission("another key"),
        "POST batch": {"workloads": [admission("another key")]},
        "POST claims": claiming(tenant_id="acme", application_id="invoices"),
        "POST heartbeats": {"items": [{"workload_id": workload_id, **fence, "extend_ms": 60_000}]},
        "POST completions": {"items": [{"workload_id": workload_id, **fence, "result_id": "r-1", "output": 1}]},
    }[route.key]


def fields_of(route: Route) -> dict[str, Any]:
    """Return the fields of a route's body, by name."""
    body = route.view.post.workloads_operation.body
    return dict(body().fields)


@contextmanager
def shapes_of_queries() -> Iterator[list[str]]:
    """Yield a list that will hold the SQL of the block, its values left out."""
    shapes: list[str] = []
    with CaptureQueriesContext(connection) as captured:
        yield shapes
    shapes += [re.sub(r"'[^']*'|s\d+_x\d+|\b[0-9a-f]{32}\b|\b\d[\d.]*\b", "?", q["sql"]) for q in captured]
