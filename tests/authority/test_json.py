"""What is stored as JSON: kept to the digit as canonical text, or refused by its path. Section 1, "JSON"."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from tests.authority.builders import ENDED_AT, SAVED_AT, admit, claim, refused, request, running
from tests.support import T0, at
from workloads import authority
from workloads.contract import CompletionReport, Fence, WorkloadState

pytestmark = pytest.mark.django_db


def nested(depth: int, innermost: Any = 1) -> Any:
    """Put a value into lists and mappings in one another."""
    value = innermost
    for level in range(depth):
        value = [value] if level % 2 else {"k": value}
    return value


# The value, and its canonical text.
KEPT: list[tuple[Any, str]] = [
    (None, "null"),
    (True, "true"),
    (False, "false"),
    (0, "0"),
    (-0.0, "0"),
    (1.0, "1"),
    (-5.0, "-5"),
    (0.1, "0.1"),
    (1e-7, "1e-07"),
    (5e-324, "5e-324"),
    (1.5, "1.5"),
    (1e16, "10000000000000000"),
    (1e22, "10000000000000000000000"),
    (2.0**1023, str(2**1023)),
    (2**53 + 1, "9007199254740993"),
    (2**64, "18446744073709551616"),
    (-(10**4_299), "-1" + "0" * 4_299),
    (10**4_300 - 1, "9" * 4_300),
    ("", '""'),
    ("é", '"é"'),
    ("e\u0301", '"e\u0301"'),
    ("🎈 日本 \u2028\uffff", '"🎈 日本 \u2028\uffff"'),
    ('"\\/\b\f\n\r\t', '"\\"\\\\/\\b\\f\\n\\r\\t"'),
    ("\x01\x1f\x7f\x80", '"\\u0001\\u001f\x7f\x80"'),
    ("%s %(a)s %% {} \\u0000 ' \" -- ; $1 ?", '"%s %(a)s %% {} \\\\u0000 \' \\" -- ; $1 ?"'),
    ("<script>alert(1)</script>", '"<script>alert(1)</script>"'),
    ("trailing space ", '"trailing space "'),
    ([], "[]"),
    ({}, "{}"),
    ((1, (2, [3])), "[1,[2,[3]]]"),
    ({"b": 1, "a": 2, "": 3, "B": 4, "é": 5, "\uffff": 6, "🎈": 7}, '{"":3,"B":4,"a":2,"b":1,"é":5,"\uffff":6,"🎈":7}'),
    ({"a": None, "b": [True, 1, 1.0, "1"]}, '{"a":null,"b":[true,1,1,"1"]}'),
    (nested(64), '[{"k":' * 32 + "1" + "}]" * 32),
]


def exact(value: Any) -> str:
    """Write a value so that nothing is equal that is not the same: 1 and 1.0 and True, and the order of keys."""
    return repr(value)


def plain(value: Any) -> Any:
    """Return what is read back: tuples as lists, whole floats as integers, keys in their order."""
    if isinstance(value, dict):
        return {key: plain(value[key]) for key in sorted(value)}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def stored_text(table: str, column: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {connection.ops.quote_name(column)} FROM workloads_{table}")
        ((text,),) = cursor.fetchall()
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize(("value", "text"), KEPT, ids=range(len(KEPT)))
def test_it_is_kept_as_canonical_text_and_read_back_to_the_digit(value: Any, text: str) -> None:
    expected = exact(plain(value))
    given = authority.admit(request(input=value), now=T0).workload
    assert exact(given.input) == expected
    assert stored_text("admitted", "input") == text
    assert given.input_hash == hashlib.sha256(text.encode()).hexdigest()
    assert exact(authority.get(given.workload_id).input) == expected
    assert not authority.admit(request(input=plain(value)), now=T0).created

    fence = claim(given.workload_id).fence
    authority.start(fence, now=at(2_000))
    saved = authority.checkpoint(fence, value, key="k", now=SAVED_AT)
    assert exact(saved.state) == expected
    assert stored_text("checkpoint", "state") == text
    assert authority.checkpoint(fence, plain(value), key="k", now=SAVED_AT) == saved
    context = authority.context(fence, now=SAVED_AT)
    assert exact(context.input) == expected
    assert exact(context.checkpoints[0].state) == expected

    done = authority.complete(fence, result_id="r", output=value, artifacts=value, now=ENDED_AT)
    assert (exact(done.output), exact(done.artifacts)) == (expected, expected)
    assert done.output_hash == hashlib.sha256(text.encode()).hexdigest()
    assert (stored_text("result", "output"), stored_text("result", "artifacts")) == (text, text)
    result = authority.get(given.workload_id).result
    assert (exact(result.output), exact(result.artifacts)) == (expected, expected)
    again = authority.complete(fence, result_id="r", output=plain(value), artifacts=plain(value), now=ENDED_AT)
    assert again == done


class NotJson:
    """A value of no kind that JSON has."""


def endless() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


REFUSED: list[tuple[Any, str]] = [
    (float("nan"), "$"),
    ([1, float("inf")], "$[1]"),
    ({"a": [{"b": float("-inf")}]}, "$.a[0].b"),
    ({"a": "x\0y"}, "$.a"),
    ({"a": ["\ud800"]}, "$.a[0]"),
    ({"a": {"b\0": 1}}, "$.a"),
    ([{"\udfff": 1}], "$[0]"),
    ({"a": {1: 2}}, "$.a"),
    ({None: 2}, "$"),
    ({"a": b"bytes"}, "$.a"),
    ([{1}], "$[0]"),
    ([T0], "$[0]"),
    ({"key with .dots[0]": NotJson()}, "$.key with .dots[0]"),
    ([10**4_300], "$[0]"),
    ({"a": -(10**4_300)}, "$.a"),
]


KEYS = itertools.count()


def fresh() -> Fence:
    """Leave other work running than the last time."""
    return running(f"k{next(KEYS)}")


STORES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "input": ("input", lambda value: authority.admit(request("other", input=value), now=T0)),
    "checkpoint": ("state", lambda value: authority.checkpoint(fresh(), value, now=SAVED_AT)),
    "output": ("output", lambda value: authority.complete(fresh(), result_id="r", output=value, now=ENDED_AT)),
    "artifacts": (
        "artifacts",
        lambda value: authority.complete(fresh(), result_id="r", output=1, artifacts=value, now=ENDED_AT),
    ),
}


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize(("value", "path"), REFUSED, ids=range(len(REFUSED)))
def test_what_not_every_database_keeps_is_refused_by_its_path(store: str, value: Any, path: str) -> None:
    field, call = STORES[store]
    with refused("WORKLOAD_INVALID", {"field": field, "path": path}):
        call(value)


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("value", [nested(65), nested(10_000), endless(), nested(65, innermost=[])])
def test_65_containers_in_one_another_are_refused(store: str, value: Any) -> None:
    field, call = STORES[store]
    with refused("WORKLOAD_INVALID") as caught:
        call(value)
    assert caught.value.details is not None
    assert caught.value.details["field"] == field
    assert caught.value.details["path"].startswith("$")


@pytest.mark.parametrize("store", STORES)
def test_64_containers_pass(store: str) -> None:
    STORES[store][1](nested(64, innermost="x"))
    with refused("WORKLOAD_INVALID"):
        STORES[store][1](nested(64, innermost={}))


@pytest.mark.parametrize(
    ("store", "limit"), [("input", 262_144), ("checkpoint", 65_536), ("output", 262_144), ("artifacts", 262_144)]
)
def test_sizes_are_of_the_canonical_bytes(store: str, limit: int) -> None:
    _, call = STORES[store]
    call([1.0, "é" * ((limit - 6) // 2)])
    with refused("WORKLOAD_TOO_LARGE") as caught:
        call([1.0, "é" * ((limit - 6) // 2) + "xx"])
    assert caught.value.details is not None
    assert (caught.value.details["limit"], caught.value.details["size"]) == (limit, limit + 2)


def test_after_a_refused_result_the_claim_stays_good() -> None:
    fence = running()
    for bad in ("\0", float("nan"), "x" * 262_143):
        (answer,) = authority.complete_many([CompletionReport(fence=fence, result_id="r", output=bad)], now=ENDED_AT)
        assert answer.code in {"WORKLOAD_INVALID", "WORKLOAD_TOO_LARGE"}  # type: ignore[union-attr]
    assert authority.complete(fence, result_id="r", output=1, now=ENDED_AT).output == 1


def test_members_of_enums_and_other_subclasses_are_what_they_hold() -> None:
    assert authority.get(admit(input=[WorkloadState.READY, {WorkloadState.FAILED: 1}])).input == [
        "READY",
        {"FAILED": 1},
    ]
