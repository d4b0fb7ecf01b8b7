"""What stands around a body: methods, paths, queries, cursors, headers, tokens and sessions; well asked and ill."""

from __future__ import annotations

import base64
import datetime as dt
import json
from typing import Any

import pytest
from django.test import Client
from knox.models import AuthToken

from tests.api.routes import MISSING, OPEN, POSTS, ROUTES, Route, body_for, some, walk
from tests.api.tools import Caller, admission, in_form, place, refusal
from tests.api.world import ALL, admit, done, running
from workloads.api import filters, pages

pytestmark = pytest.mark.django_db

PATHS = sorted({(route.template, route.view) for route in ROUTES}, key=str)

LISTS = [r for r in ROUTES if r.key in ("GET workloads", "GET events", "GET attempts", "GET checkpoints", "GET result")]


@pytest.fixture
def caller() -> Caller:
    return Caller("alma", place(*ALL))


@pytest.mark.parametrize(("template", "view"), PATHS, ids=[t for t, _ in PATHS])
def test_a_path_names_the_methods_that_it_takes(caller: Caller, template: str, view: Any) -> None:
    mine = {route.method for route in walk() if route.template == template}
    allowed = mine | {"OPTIONS"} | ({"HEAD"} if "GET" in mine else set())
    for method in ("GET", "POST", "PUT", "PATCH", "DELETE", "TRACE", "HEAD", "BREW"):
        answer = caller.ask(method, template.format(MISSING), {} if method in ("PUT", "PATCH") else None)
        if method not in allowed and method != "HEAD":
            refusal(answer, 405, "METHOD_NOT_ALLOWED")
        if method not in allowed:
            assert answer.status == 405
        assert set(answer.headers["Allow"].split(", ")) == allowed
    said = caller.ask("OPTIONS", template.format(MISSING))
    assert (said.status, said.text) == (204, "") and set(said.headers["Allow"].split(", ")) == allowed


def test_head_answers_as_get_without_the_body(caller: Caller) -> None:
    workload_id = done()
    for path in ("workloads/", f"workloads/{workload_id}/", f"workloads/{workload_id}/events/"):
        head, get = caller.ask("HEAD", path), caller.get(path)
        assert (head.status, head.text) == (200, "")
        assert head.headers["Content-Type"] == get.headers["Content-Type"] == "application/json"


def test_an_unknown_path_is_404_in_json(caller: Caller) -> None:
    stems = [
        "",
        "nothing/",
        "workloads/x/nothing/",
        "workloads/x/events",
        "workloads",
        "workloads/a/b/",
        "stats",
        "workloads/a%2Fb/",
        "workloads//",
        "%ff/",
        "%00",
        "workloads/x/claim/y/",
        "claims//",
        "../admin",
        "a%0Ab",
    ]
    for stem in stems:
        for method in ("GET", "POST", "DELETE"):
            for asker in (caller, Caller(None)):
                refusal(asker.ask(method, stem), 404, "NOT_FOUND")
    for path in ("/api/", "/api/v2/workloads/", "/api/v1", "/api/nothing"):
        refusal(caller.get(path), 404, "NOT_FOUND")


ACCEPTED = [
    "*/*",
    "application/json",
    "application/*",
    "text/html, */*;q=0.1",
    "APPLICATION/JSON",
    "",
    "application/json;q=0.5",
    "application/json; indent=4",
]
REFUSED = [
    "text/html",
    "application/xml",
    "application/json;q=0",
    "*/*;q=0.000",
    "text/*",
    "rubbish",
    "application/jsonp",
]


def test_answers_are_json_or_not_acceptable(caller: Caller) -> None:
    for route in (r for r in ROUTES if r.key not in ("GET docs", "GET schema")):
        for accept in REFUSED[:2] if route not in some(ROUTES, "accept") else REFUSED:
            answer = caller.ask(route.method, route.url(), body_for(route), accept=accept)
            refusal(answer, 406, "NOT_ACCEPTABLE")
        for accept in ACCEPTED[:2] if route not in some(ROUTES, "accept") else ACCEPTED:
            answer = caller.ask(route.method, route.url(), body_for(route), accept=accept)
            assert answer.status != 406 and answer.headers["Content-Type"] == "application/json", accept


@pytest.mark.parametrize("route", [r for r in ROUTES if r.key not in OPEN - {"GET health"}], ids=str)
def test_an_unknown_query_parameter_is_refused_and_one_given_twice(caller: Caller, route: Route) -> None:
    body = body_for(route)
    answer = caller.ask(route.method, route.url() + "?format=json&page=1&%ff=1&" + "x" * 500 + "=1", body)
    fields = refusal(answer, 400, "WORKLOAD_INVALID")["fields"]
    assert fields == ["format", "page", "x" * 200, "\ufffd"]
    if route.method == "POST":
        # What a list knows, its POST does not.
        answer = caller.ask("POST", route.url() + "?state=READY", body)
        assert refusal(answer, 400, "WORKLOAD_INVALID") == {"fields": ["state"]}
    for name in sorted(route.view.parameters - route.view.repeatable) if route.method == "GET" else ():
        answer = caller.get(route.url() + f"?{name}=1&{name}=1")
        assert refusal(answer, 400, "WORKLOAD_INVALID") == {"field": name}
    many = "&".join(f"a{n}=1" for n in range(1_500))
    refusal(caller.ask(route.method, route.url() + "?" + many, body), 400, "WORKLOAD_INVALID")


BAD = {name: ["", "%00", "%20x", "x" * 201, "a%0Ab"] for name in filters._EXACT} | {
    "state": ["", "ready", "DONE", "READY,CLAIMED", "%00"],
    "priority_min": ["", "x", "1.5", "2147483648", "-2147483649", "9" * 5_000, "%D9%A3", "1e3", "--1", "-", "+1"],
    "created_after": [
        "",
        "yesterday",
        "2026-01-01",
        "2026-01-01T00:00:00",
        "2026-13-01T00:00:00Z",
        "0001-01-01T00:00:00Z",
        "9999-12-31T23:59:59-23:59",
        "0001-01-01T00:00:00%2B23:59",
        "1999-12-31T23:59:59Z",
        "1",
        "%00",
    ],
    "failure_kind": ["", "%00", "x" * 201],
    "blocked": ["", "1", "True", "yes"],
    "failure": ["", "x", "%00", "x" * 201],
}
for twin in ("priority_max", "created_before", "finished_after", "finished_before", "next_attempt_before"):
    BAD[twin] = BAD["priority_min"] if twin == "priority_max" else BAD["created_after"]


@pytest.mark.parametrize("path", ["workloads/", "stats/"])
@pytest.mark.parametrize("name", sorted(filters.NAMES))
def test_a_filter_that_cannot_be_read_is_named(caller: Caller, path: str, name: str) -> None:
    for value in BAD[name]:
        details = refusal(caller.get(f"{path}?{name}={value}"), 400, "WORKLOAD_INVALID")
        assert details == {"field": name}, value


def test_free_text_needs_another_filter_and_a_range_of_time(caller: Caller) -> None:
    words, range_ = "failure=words", "created_after=2026-01-01T00:00:00Z"
    for query in (words, f"{words}&{range_}", f"{words}&state=READY", f"{words}&{range_}&environment=production"):
        assert refusal(caller.get(f"workloads/?{query}"), 400, "WORKLOAD_INVALID") == {"field": "failure"}
    for query in (f"{words}&{range_}&state=READY", f"{words}%25_%5C'&{range_}&tenant_id=acme"):
        assert caller.get(f"workloads/?{query}").body["results"] == []


def cursor(*values: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(values).encode()).decode().rstrip("=")


CURSORS = [
    "",
    "rubbish",
    "%00",
    "%ff",
    "é",
    "=",
    "x" * 401,
    cursor(),
    cursor("-created_at"),
    cursor("created_at", 0, 1, 1),
    cursor("-created_at", 0, "2026-01-01T00:00:00Z"),
    cursor("-created_at", 2, "2026-01-01T00:00:00Z", 1),
    cursor("-created_at", 0, "2026-01-01T00:00:00", 1),
    cursor("-created_at", 0, "2026-01-01T00:00:00Z", 2**63),
    cursor("-created_at", 0, "2026-01-01T00:00:00Z", "1"),
    cursor("-created_at", 0, None, 1),
    cursor("sequence", 0, {}),
    cursor("-created_at", 0, "0001-01-01T00:00:00+23:59", 1),
    cursor("-created_at", 0, "9999-12-31T23:59:59-23:59", 1),
    cursor("sequence", 0, True),
    cursor("sequence", 0, 1.5),
    cursor("sequence", 0, float("nan")),
    cursor("key", 0, [[]]),
    cursor("sequence", [], 1),
    base64.urlsafe_b64encode(b"[" * 290).decode(),
    base64.urlsafe_b64encode(b"\xff").decode(),
    base64.urlsafe_b64encode(b'"abc"').decode(),
    base64.urlsafe_b64encode(b'{"a":1,"b":2,"c":3}').decode(),
]


@pytest.mark.parametrize("route", LISTS, ids=str)
def test_a_page_that_cannot_be_read_is_refused(caller: Caller, route: Route) -> None:
    workload_id = done()
    for given in CURSORS:
        answer = caller.get(route.url(workload_id) + f"?cursor={given}")
        assert refusal(answer, 400, "WORKLOAD_INVALID") == {"field": "cursor"}, given
    for size in ("", "0", "501", "-1", "x", "1.0", "+5", "0x1", "%D9%A3", "9" * 5_000, "%00", "00001"):
        answer = caller.get(route.url(workload_id) + f"?page_size={size}")
        assert refusal(answer, 400, "WORKLOAD_INVALID") == {"field": "page_size"}, size
    assert caller.get(route.url(workload_id) + "?page_size=500").status == 200


@pytest.mark.parametrize("number", [-(2**63), -1, 0, 2**31, 2**62, 2**63 - 1])
def test_a_cursor_from_beyond_the_end_is_a_page_of_none_or_all(caller: Caller, number: int) -> None:
    workload_id = done()
    for name, order in {"events": "sequence", "attempts": "number", "checkpoints": "sequence", "result": "key"}.items():
        for is_backwards in (0, 1):
            link = f"workloads/{workload_id}/{name}/?cursor={cursor(order, is_backwards, number)}"
            assert bool(caller.get(link).body["results"]) is ((number < 1) != bool(is_backwards))
    for order in pages.ORDERS:
        for first in ("2000-01-01T00:00:00Z", "2899-12-31T23:59:59.999999+00:00"):
            at = cursor(order, 0, number if order.endswith("priority") else first, number)
            assert caller.get(f"workloads/?ordering={order}&cursor={at}").status == 200


def test_an_ordering_that_is_none_is_refused(caller: Caller) -> None:
    for value in ("", "state", "--created_at", "-pk", "created_at,priority", "created_at%00", "CREATED_AT"):
        answer = caller.get(f"workloads/?ordering={value}")
        assert refusal(answer, 400, "WORKLOAD_INVALID") == {"field": "ordering"}
    link = cursor("priority", 0, 1, 1)
    assert refusal(caller.get(f"workloads/?cursor={link}"), 400, "WORKLOAD_INVALID") == {"field": "cursor"}
    assert len(pages.ORDERS) == 8


@pytest.mark.parametrize(
    "header",
    [
        "Bearer",
        "Bearer ",
        "Bearer x",
        "Bearer x y",
        "Bearer \xff\xfe",
        "Bearer \0",
        "Bearer a\0b",
        "\xff",
        "",
        " ",
        "Basic YTpi",
        "Token x",
        "Bearer " + "x" * 20_000,
        "Bearer 🐘",
        "\0",
    ],
)
def test_a_credential_that_is_none_is_401(header: str) -> None:
    nobody = Caller(None)
    for route in (r for r in some(ROUTES, header) if r.key not in OPEN):
        answer = nobody.ask(route.method, route.url(), body_for(route), authorization=header)
        assert refusal(answer, 401, "UNAUTHENTICATED") is None
        assert answer.headers["WWW-Authenticate"] == "Bearer"
    # Health is open to all, those with a bad token too.
    answer = nobody.get("health/", authorization=header)
    assert answer.status in (200, 503) and list(answer.body) == ["ok"]


@pytest.mark.parametrize("ending", ["expired", "revoked", "inactive", "deleted", "another case", "cut"])
def test_a_token_that_holds_no_more_is_401(caller: Caller, ending: str) -> None:
    assert caller.get("workloads/").status == 200
    if ending == "expired":
        AuthToken.objects.update(expiry=dt.datetime.now(dt.UTC))
    elif ending == "revoked":
        AuthToken.objects.all().delete()
    elif ending == "inactive":
        caller.user.is_active = False
        caller.user.save()
    elif ending == "deleted":
        caller.user.delete()
    elif ending == "another case":
        caller.headers["authorization"] = "Bearer " + caller.headers["authorization"][7:].swapcase()
    else:
        caller.headers["authorization"] = caller.headers["authorization"][:-1]
    for path in ("workloads/", "stats/", f"workloads/{MISSING}/"):
        refusal(caller.get(path), 401, "UNAUTHENTICATED")
    refusal(caller.post("workloads/", admission()), 401, "UNAUTHENTICATED")


def test_a_session_needs_its_csrf_token_to_write(caller: Caller) -> None:
    workload_id, _ = running()
    browser = Caller(None)
    browser.client = Client(enforce_csrf_checks=True)
    browser.client.force_login(caller.user)
    assert browser.get(f"workloads/{workload_id}/").status == 200
    for route in POSTS:
        assert refusal(browser.post(route.url(workload_id), body_for(route)), 403, "FORBIDDEN") is None
    browser.client.cookies["csrftoken"] = secret = "a" * 32
    answer = browser.post(f"workloads/{workload_id}/cancel/", {}, **{"x-csrftoken": secret})
    assert answer.status == 200, answer.text
    # A form with its token in it is no JSON, and does nothing.
    for media_type in ("application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        form = f"csrfmiddlewaretoken={secret}&force=true".encode()
        answer = browser.ask("POST", f"workloads/{workload_id}/cancel/", form, content_type=media_type)
        assert answer.status in (403, 415)
        in_form(answer)
    caller.user.is_active = False
    caller.user.save()
    refusal(browser.get("workloads/"), 401, "UNAUTHENTICATED")


@pytest.mark.parametrize("key", ["k-1", "schlüssel", "🐘"])
def test_the_key_may_stand_in_a_header(caller: Caller, key: str) -> None:
    body = admission()
    del body["idempotency_key"]
    for header in {key.encode().decode("latin-1")}:
        made = caller.post("workloads/", body, **{"idempotency-key": header})
        assert made.status == 201 and made.body["idempotency_key"] == key
        again = caller.post("workloads/", body | {"idempotency_key": key}, **{"idempotency-key": header})
        assert again.status == 200
        assert caller.post("workloads/", body | {"idempotency_key": key}).status == 200


def test_a_key_in_a_header_that_is_none_is_refused(caller: Caller) -> None:
    for header in ("", "\xff", "\0", " x", "x" * 201, "\xed\xa0\x80", "another", "中"):
        answer = caller.post("workloads/", admission(), **{"idempotency-key": header})
        assert refusal(answer, 400, "WORKLOAD_INVALID") == {"field": "idempotency_key"}, header
    body = admission(idempotency_key=None)
    assert refusal(caller.post("workloads/", body), 400, "WORKLOAD_INVALID") == {"field": "idempotency_key"}


def test_no_refusal_says_a_secret_back(caller: Caller, caplog: pytest.LogCaptureFixture) -> None:
    secret = "hunter2-9f8e7d6c"
    private = {"password": secret}
    workload_id = admit()
    asked = 0
    for route in POSTS:
        good = body_for(route, workload_id)
        items = next(iter(good.values())) if route.name in ("batch", "heartbeats", "completions") else None
        (item,) = items or [good]
        for name in [*item, "unknown", "reason", "error", "trigger", "session_id", "retry_policy", "timeouts"]:
            for value in ([private], f"Bearer {secret}{secret}"):
                bad = item | {name: value}
                body = {next(iter(good)): [bad]} if items else bad
                answer = caller.post(route.url(workload_id), body)
                asked += answer.status >= 400
                if answer.status >= 400:
                    assert secret not in answer.text, (route, name, answer.text)
    for query in (f"state={secret}", f"created_after={secret}", f"cursor={secret}", f"ordering={secret}"):
        answer = caller.get(f"workloads/?{query}")
        assert answer.status == 400 and secret not in answer.text
    answer = Caller(None).get("workloads/", authorization=f"Bearer {secret}")
    assert secret not in answer.text and asked > 80
    assert secret not in caplog.text
