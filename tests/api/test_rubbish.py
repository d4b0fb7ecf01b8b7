"""Bodies that are no JSON, not this JSON, or too much of it: each refused in the one form, and never a 500."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import pytest
from django.test import override_settings

from tests.api.routes import MISSING, OF_ONE, POSTS, Route, body_for, fields_of, some
from tests.api.tools import Caller, admission, claiming, in_form, place, refusal
from tests.api.world import ALL, running
from workloads import conf
from workloads.api import shapes, wire
from workloads.errors import WorkloadError
from workloads.models import Workload

pytestmark = pytest.mark.django_db


@pytest.fixture
def caller() -> Caller:
    return Caller("alma", place(*ALL))


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


RAW = {
    "a key twice": b'{"worker_id":"w-1","worker_id":"w-1"}',
    "a key twice, spelt in two ways": b'{"a":1,"\\u0061":1}',
    "a key twice, inside": b'{"input":{"x":[{"a":1,"a":2}]}}',
    "a key of a lone surrogate twice": b'{"\\ud800":1,"\\ud800":1}',
    "not a number": b'{"input":NaN}',
    "infinity": b'{"input":[Infinity]}',
    "minus infinity": b'{"x":{"y":-Infinity}}',
    "a byte order mark": b"\xef\xbb\xbf{}",
    "UTF-16": "{}".encode("utf-16"),
    "UTF-32": "{}".encode("utf-32-be"),
    "Latin-1": '{"reason":"é"}'.encode("latin-1"),
    "an overlong encoding": b'{"reason":"\xc0\x80"}',
    "a surrogate in UTF-8": b'{"reason":"\xed\xa0\x80"}',
    "a NUL": b'{"reason":"a\0b"}',
    "bare NULs": b"\0\0\0\0",
    "nesting of 10,000": b'{"input":' + nested(10_000) + b"}",
    "an array of 100,000": nested(100_000),
    "objects of 10,000": b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
    "4,301 digits": b'{"input":' + b"9" * 4_301 + b"}",
    "minus 4,301 digits": b'{"priority":-' + b"9" * 4_301 + b"}",
    "an array": b"[]",
    "a string": b'"reason"',
    "null": b"null",
    "a number": b"5",
    "white space": b" ",
    "cut off": b'{"reason":"no',
    "two of them": b"{}{}",
    "single quotes": b"{'reason':'no'}",
    "a comment": b'{"reason":"no"/* yes */}',
    "a comma too many": b'{"reason":"no",}',
    "a form": b"reason=no",
}


@pytest.mark.parametrize("raw", RAW.values(), ids=RAW)
def test_what_is_not_a_json_object_is_refused_by_every_path(caller: Caller, raw: bytes) -> None:
    for route in some(POSTS, raw):
        details = refusal(caller.ask("POST", route.url(), raw), 400, "WORKLOAD_INVALID")
        assert details["field"] == "body", route
    assert not Workload.objects.exists()


def test_the_key_that_stands_twice_is_named(caller: Caller) -> None:
    answer = caller.ask("POST", "workloads/", b'{"tenant_id":"a","input":{"b":1,"b":2}}')
    assert answer.details == {"field": "body", "key": "b"}
    answer = caller.ask("POST", "workloads/", b'{"' + b"k" * 100_000 + b'":1,"' + b"k" * 100_000 + b'":1}')
    assert refusal(answer, 400, "WORKLOAD_INVALID") and len(answer.text) < 500


def test_an_empty_body_has_no_fields(caller: Caller) -> None:
    for route in POSTS:
        answer = caller.ask("POST", route.url())
        required = [name for name, field in fields_of(route).items() if field.required]
        if required:
            assert refusal(answer, 400, "WORKLOAD_INVALID")["field"] == required[0]
        else:
            refusal(answer, 404, "WORKLOAD_NOT_FOUND")


UNKEPT = {
    "$": b"1e400",
    "$[0]": b"[-1e400]",
    "$.a": b'{"a":"x\\u0000"}',
    "$.a.b[1]": b'{"a":{"b":[1,"\\ud800"]}}',
    "$.c": b'{"c":{"k\\u0000":1}}',
    "$.d": b'{"d":{"\\udfff":1}}',
    "$" + "[0]" * 64: nested(65),
    "$" + ".a" * 64: b'{"a":' * 65 + b"1" + b"}" * 65,
}
STORED = [r for r in POSTS if fields_of(r).keys() & {"input", "state", "output", "artifacts"}]


@pytest.mark.parametrize("route", STORED, ids=str)
@pytest.mark.parametrize("path", UNKEPT, ids=range(len(UNKEPT)))
def test_json_that_not_every_database_keeps_is_refused_with_its_path(caller: Caller, route: Route, path: str) -> None:
    for field in fields_of(route).keys() & {"input", "state", "output", "artifacts"}:
        body = json.dumps(body_for(route) | {field: "HERE"}).encode().replace(b'"HERE"', UNKEPT[path])
        assert refusal(caller.ask("POST", route.url(), body), 400, "WORKLOAD_INVALID") == {"field": field, "path": path}


def test_what_is_kept_comes_back_exactly(caller: Caller) -> None:
    numbers = [10**4_299 + 7, -(10**4_299) - 7, 12345678901234567890123, 1.5, 0.1, -0.0, 1.0, 1e300]
    deep: Any = 1
    for _ in range(63):
        deep = [deep]
    text = {"é": "é", "e\u0301": "\u2028\x7f<script>", "🐘": "\ufeff", "": ""}
    for key, value in {"n": numbers, "d": {"deep": deep}, "t": text}.items():
        made = caller.post("workloads/", admission(key, input=value))
        assert made.status == 201, made.text[:300]
        read = caller.get(f"workloads/{made.body['workload_id']}/")
        assert read.body["input"] == made.body["input"] == value
        assert caller.post("workloads/", admission(key, input=value)).status == 200
        (claim,) = caller.post("claims/", claiming(definitions=None)).body["claims"]
        assert claim["input"] == value
        # An integral float is kept as an integer. (An instant may hold those characters.)
        assert not re.search(r"[\[,:]1\.0[,\]}]", read.text)


OF_KIND = {str: "text", int: "integer", (int, float): "number", bool: "boolean", list: "array"}
VALUES: list[Any] = [None, True, 5, 5.0, "x", [], [5], {}, {"a": 1}, 10**400, -1, "\0", "\ud800", "x" * 2_001, " x"]


def is_of(kind: Any, value: Any) -> bool:
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


@pytest.mark.parametrize("route", [r for r in POSTS if r.name not in ("batch", "heartbeats", "completions")], ids=str)
def test_every_field_takes_its_own_type_alone(caller: Caller, route: Route) -> None:
    good = body_for(route)
    for name, field in fields_of(route).items():
        kind = dict if isinstance(field, shapes.Body) else field.kind
        for value in VALUES:
            answer = caller.post(route.url(), good | {name: value})
            if value is None and name == "idempotency_key":
                # It has no default, but a header.
                assert refusal(answer, 400, "WORKLOAD_INVALID") == {"field": name}
            elif value is None and not field.required:
                # The default.
                assert answer.status in (200, 201, 404, 409), (name, answer.text)
            elif kind is object or is_of(kind, value):
                assert answer.status in (200, 201, 400, 403, 404, 409, 413, 422), (name, value)
                if answer.code_or_none == "WORKLOAD_INVALID" and answer.details.keys() & {"field"}:
                    assert answer.details["field"].split(".")[-1] == name, (name, value, answer.text)
            else:
                assert refusal(answer, 400, "WORKLOAD_INVALID") == {"field": name}, value
            if answer.status >= 400:
                in_form(answer)
        if field.required:
            without = {key: value for key, value in good.items() if key != name}
            assert refusal(caller.post(route.url(), without), 400, "WORKLOAD_INVALID") == {"field": name}


@pytest.mark.parametrize("policy", ["retry_policy", "timeouts"])
def test_fields_inside_a_policy_are_named_dotted(caller: Caller, policy: str) -> None:
    inner = fields_of(POSTS[0])[policy].fields
    for name, field in inner.items():
        for value in (True, 1.5, "x", [5], {}, -1, 10**400):
            answer = caller.post("workloads/", admission(**{policy: {name: value}}))
            if not is_of(field.kind, value) or answer.status != 201:
                assert refusal(answer, 400, "WORKLOAD_INVALID") == {"field": f"{policy}.{name}"}, value
        assert caller.post("workloads/", admission(f"k-{name}", **{policy: {name: None}})).status in (200, 201)
    answer = caller.post("workloads/", admission(**{policy: {"b": 1, "a": 1}}))
    assert refusal(answer, 400, "WORKLOAD_INVALID") == {"fields": [f"{policy}.a", f"{policy}.b"]}


def test_dependencies_are_named_as_a_field(caller: Caller) -> None:
    for item, details in {
        5: {"field": "dependencies"},
        "{}": {"field": "dependencies.workload_id"},
        '{"workload_id":5}': {"field": "dependencies.workload_id"},
        '{"workload_id":"a","required_state":5}': {"field": "dependencies.required_state"},
        '{"workload_id":"a","required_state":"READY"}': {"field": "dependencies"},
        '{"workload_id":"a\\u0000"}': {"field": "dependencies"},
        '{"workload_id":"a","state":"READY"}': {"fields": ["dependencies.state"]},
    }.items():
        body = admission(dependencies=[json.loads(str(item))])
        assert refusal(caller.post("workloads/", body), 400, "WORKLOAD_INVALID") == details


@pytest.mark.parametrize("route", POSTS, ids=str)
def test_unknown_fields_are_named_and_refused(caller: Caller, route: Route) -> None:
    body = body_for(route) | {"timeout": {}, "\ud800": 1, "x" * 1_000: "hunter2", "Tenant_id": 1}
    answer = caller.post(route.url(), body)
    fields = refusal(answer, 400, "WORKLOAD_INVALID")["fields"]
    assert fields == ["Tenant_id", "timeout", "x" * 200, "?"]
    assert "hunter2" not in answer.text
    if route.name in ("batch", "heartbeats", "completions"):
        (name, (item,)) = next(iter(body_for(route).items()))
        answer = caller.post(route.url(), {name: [item | {"timeout": 1}, 5, None, [], "x", item]})
        refused, *rest, last = answer.outcomes
        assert (refused["status"], refused["error"]["details"]) == (400, {"fields": ["timeout"]})
        assert all((o["status"], o["error"]["details"]) == (400, {"field": "body"}) for o in rest)
        assert last["status"] in (201, 404)


@pytest.mark.parametrize("route", [r for r in POSTS if r.name in ("batch", "heartbeats", "completions")], ids=str)
def test_a_batch_is_an_array_of_at_most_a_thousand(caller: Caller, route: Route) -> None:
    (name,) = body_for(route)
    for value in (None, {}, 5, "x", True):
        assert refusal(caller.post(route.url(), {name: value}), 400, "WORKLOAD_INVALID") == {"field": name}
    answer = caller.post(route.url(), {name: [{}] * 1_001})
    assert refusal(answer, 400, "WORKLOAD_INVALID") == {"field": name}
    assert len(caller.post(route.url(), {name: [{}] * 1_000}).outcomes) == 1_000
    assert caller.post(route.url(), {name: []}).body == {"outcomes": []}


class Counted(io.BytesIO):
    """A stream that counts what was read from it."""

    taken = 0

    def read(self, size: int | None = -1) -> bytes:
        part = super().read(size)
        self.taken += len(part)
        return part


@pytest.mark.parametrize("route", POSTS, ids=str)
@override_settings(WORKLOADS={"MAX_BODY_BYTES": 10_000})
def test_a_body_that_says_it_is_too_large_is_not_read(caller: Caller, route: Route) -> None:
    stream = Counted(b" " * 10_001)
    environ = {"wsgi.input": stream, "CONTENT_LENGTH": "10001", "CONTENT_TYPE": "application/json"}
    answer = caller.ask("POST", route.url(), None, environ=environ)
    assert refusal(answer, 413, "WORKLOAD_TOO_LARGE") == {"field": "body", "limit": 10_000, "size": 10_001}
    assert stream.taken == 0
    answer = caller.ask("POST", route.url(), json.dumps(body_for(route)).encode().ljust(10_000))
    assert answer.status in (200, 201, 404)


@override_settings(WORKLOADS={"MAX_BODY_BYTES": 100_000})
def test_a_body_that_turns_out_too_large_is_read_no_further() -> None:
    assert conf.limits().max_body_bytes == 100_000
    stream = Counted(b" " * 10_000_000)
    with pytest.raises(WorkloadError) as refused:
        wire.StrictJSONParser().parse(stream)
    assert refused.value.details == {"field": "body", "limit": 100_000, "size": 100_001}
    assert stream.taken == 100_001
    assert wire.read_body(Counted(b"x" * 100_000)) == b"x" * 100_000


@pytest.mark.parametrize("length", ["-1", "abc", "1e3", "9" * 5_000, "٣", "+5", "1 "])
def test_a_length_that_is_none_is_refused(caller: Caller, length: str) -> None:
    for route in some(POSTS, length):
        answer = caller.ask("POST", route.url(), b"{}", environ={"CONTENT_LENGTH": length})
        assert refusal(answer, 400, "WORKLOAD_INVALID") == {"field": "body"}


def test_a_body_of_unknown_length_is_not_dropped_in_silence(caller: Caller) -> None:
    environ = {"CONTENT_LENGTH": "", "HTTP_TRANSFER_ENCODING": "chunked", "wsgi.input": io.BytesIO(b"{}")}
    workload_id, _ = running()
    answer = caller.ask("POST", f"workloads/{workload_id}/cancel/", None, environ=environ)
    assert refusal(answer, 400, "WORKLOAD_INVALID") == {"field": "body"}
    assert Workload.objects.get(workload_id=workload_id).state == "CHECKPOINTED"


@pytest.mark.parametrize(
    "media_type",
    [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/xml",
        "rubbish",
        "application/json; charset=latin-1",
        "application/json;charset=utf-16",
        "application/jsonp",
        "",
        "\xff",
    ],
)
def test_another_media_type_is_415(caller: Caller, media_type: str) -> None:
    for route in some(POSTS, media_type):
        answer = caller.ask("POST", route.url(), b"{}", content_type=media_type)
        refusal(answer, 415, "UNSUPPORTED_MEDIA_TYPE")


@pytest.mark.parametrize(
    "media_type",
    [
        "application/json",
        "Application/JSON",
        "application/json; charset=utf-8",
        'application/json;charset="UTF-8"',
        "application/json ; version=1",
    ],
)
def test_json_in_utf_8_is_taken_however_it_is_spelt(caller: Caller, media_type: str) -> None:
    body = json.dumps(admission()).encode()
    assert caller.ask("POST", "workloads/", body, content_type=media_type).status == 201


@pytest.mark.parametrize(
    "rubbish",
    [
        "%00",
        "%ff",
        "%c0%80",
        "%ed%a0%80",
        "%0a",
        "%20",
        "..%5c",
        "%3Cscript%3E",
        "%F0%9F%90%98",
        "x" * 3_000,
        "'--",
        "%25",
        "WORKLOAD_" + "0" * 24,
        MISSING + "%20",
        MISSING + "%00",
    ],
)
def test_rubbish_for_a_workload_id_names_nothing(caller: Caller, rubbish: str) -> None:
    for route in some(OF_ONE, rubbish):
        refusal(caller.ask(route.method, route.url(rubbish), body_for(route)), 404, "WORKLOAD_NOT_FOUND")
