"""Errors: one form for each, whoever found the mistake; and nothing that a body holds brings the server down."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from workloads.testing.site import Site, unique
from workloads.testing.wire import Line


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"nothing",
        b'{"a":1}{"b":2}',
        b"\xff\xfe{}",
        b'\xef\xbb\xbf{"a":1}',
        b'{"tenant_id":"\xc3\x28"}',
        b"[]",
        b"null",
        b'"text"',
        b"1",
        b'{"a":1,"a":1}',
        b'{"a":NaN}',
        b'{"a":-Infinity}',
        b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        b'{"a":' + b"9" * 100_000 + b"}",
        b"\0",
    ],
    ids=lambda content: repr(content[:12]),
)
def test_a_body_that_is_no_object_is_refused(site: Site, content: bytes) -> None:
    for path in ("workloads/", "claims/", "heartbeats/", f"workloads/{unique()}/cancel/"):
        site.line.ask("POST", path, content=content).refused("WORKLOAD_INVALID", field="body")


def test_an_empty_body_is_no_fields(site: Site) -> None:
    site.line.ask("POST", "claims/", content=b"").refused("WORKLOAD_INVALID", field="worker_id")
    id_ = site.admit()["workload_id"]
    assert site.line.ask("POST", f"workloads/{id_}/cancel/", content=b"").ok(200)["state"] == "CANCELLED"


@pytest.mark.parametrize(
    "media_type",
    ["text/plain", "application/xml", "application/x-www-form-urlencoded", "application/json; charset=latin-1", "x"],
)
def test_another_media_type_is_refused(site: Site, media_type: str) -> None:
    body = json.dumps(site.claiming()).encode()
    site.line.ask("POST", "claims/", content=body, content_type=media_type).refused("UNSUPPORTED_MEDIA_TYPE")


def test_json_is_taken_however_it_is_called(site: Site) -> None:
    body = json.dumps(site.claiming()).encode()
    for media_type in ("application/json", "application/json; charset=utf-8", "Application/JSON;charset=UTF-8"):
        site.line.ask("POST", "claims/", content=body, content_type=media_type).ok(200)


def test_who_accepts_no_json_is_refused(site: Site) -> None:
    for accepted in ("text/html", "application/xml, text/*", "application/json;q=0"):
        site.line.ask("GET", "workloads/", accept=accepted).refused("NOT_ACCEPTABLE")
    for accepted in ("*/*", "application/json", "text/html, application/json;q=0.1", "application/*"):
        site.line.ask("GET", "workloads/", accept=accepted).ok(200)


def test_a_path_that_is_none_is_not_found(site: Site, nobody: Line) -> None:
    for path in ("nothing/", "workloads/x/nothing/", "claims/x/", "workloads/x/events/1/"):
        for method in ("GET", "POST"):
            site.line.ask(method, path).refused("NOT_FOUND")
    nobody.get("nothing/").refused("NOT_FOUND")


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("workloads/", {"GET", "POST"}),
        ("claims/", {"POST"}),
        ("stats/", {"GET"}),
        ("workloads/x/", {"GET"}),
        ("workloads/x/start/", {"POST"}),
        ("workloads/x/checkpoints/", {"GET", "POST"}),
    ],
)
def test_a_method_that_is_none_is_refused(site: Site, path: str, allowed: set[str]) -> None:
    for method in {"GET", "POST", "PUT", "PATCH", "DELETE"} - allowed:
        answer = site.line.ask(method, path)
        answer.refused("METHOD_NOT_ALLOWED")
        named = {part.strip() for part in answer.headers["allow"].split(",")}
        assert allowed <= named and method not in named


def test_a_body_over_the_limit_is_refused(site: Site, max_body_bytes: int) -> None:
    over = json.dumps(site.admission(input="x" * max_body_bytes)).encode()
    answer = site.line.ask_alone("POST", "workloads/", over)
    answer.refused("WORKLOAD_TOO_LARGE", field="body", limit=max_body_bytes)


def test_a_body_that_says_no_length_is_read_to_the_limit_or_not_at_all(site: Site, max_body_bytes: int) -> None:
    sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        # Twice as much: a server that reads on for ever would be found out.
        while sent < 2 * max_body_bytes:
            sent += 65_536
            yield b" " * 65_536

    try:
        answer = site.line.ask_alone("POST", "workloads/", endless())
    except httpx.TransportError:
        # Refused, and the line cut before all was sent.
        assert sent < 2 * max_body_bytes
    else:
        if answer.status == 413:
            answer.refused("WORKLOAD_TOO_LARGE", field="body", limit=max_body_bytes)
        else:
            answer.refused("WORKLOAD_INVALID", field="body")
    site.line.get("workloads/", page_size=1).ok(200)


def test_a_short_body_without_a_length_is_read_or_refused(site: Site) -> None:
    body = json.dumps(site.admission()).encode()
    pieces = iter([body[:10], body[10:]])
    answer = site.line.ask_alone("POST", "workloads/", pieces)
    # Never taken for an empty one.
    if answer.status != 201:
        answer.refused("WORKLOAD_INVALID", field="body")


@pytest.mark.parametrize(
    "value", [None, True, 1, -1, 1.5, 10**400, "", "x" * 100_000, [], [[]], {}, {"a": {}}, "\0", "\ud800"]
)
def test_no_value_anywhere_is_more_than_a_refusal(site: Site, value: Any) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "workloads/": site.admission(capability_snapshot=[], timeouts={}, retry_policy={}, dependencies=[], trigger=""),
        "claims/": site.claiming(request_id=unique(), limit=1, start=False, wait_ms=0),
    }
    for path, body in bodies.items():
        for field in body:
            answer = site.line.post(path, {**body, field: value})
            assert answer.status in (200, 201, 400, 403, 413, 422), (path, field, answer.text[:500])
            if answer.status >= 400:
                answer.refused(answer.body["code"])
