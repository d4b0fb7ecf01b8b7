"""Canonical JSON: section 1 of the contract, "JSON"; the id and the hashes of section 2."""

from __future__ import annotations

import collections
import datetime as dt
import decimal
import enum
import hashlib
import json
import sys
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, strategies as st

from workloads.contract import WorkloadState
from workloads.errors import WORKLOAD_INVALID, WorkloadError
from workloads.lifecycle.canonical import canonical, digest, iso, measure, parse, workload_id


def refusal(value: Any) -> WorkloadError:
    with pytest.raises(WorkloadError) as caught:
        canonical(value, field="input")
    assert caught.value.code == WORKLOAD_INVALID
    return caught.value


def path_of(value: Any) -> str:
    details = refusal(value).details
    assert details is not None
    assert set(details) == {"field", "path"}
    assert details["field"] == "input"
    path = details["path"]
    assert isinstance(path, str)
    return path


def nested(depth: int, container: str = "list") -> Any:
    value: Any = [] if container == "list" else {}
    for _ in range(depth - 1):
        value = [value] if container == "list" else {"k": value}
    return value


@pytest.fixture(params=[640, 4_300, 0])
def digit_limit(request: pytest.FixtureRequest) -> Iterator[int]:
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(request.param)
    yield request.param
    sys.set_int_max_str_digits(before)


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Loud(str):
    def __str__(self) -> str:
        return "LOUD"

    __repr__ = __str__


class Half(float):
    def __repr__(self) -> str:
        return "half"


class Odd(int):
    def __repr__(self) -> str:
        return "odd"


Point = collections.namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (False, "false"),
        (1, "1"),
        (0, "0"),
        (-7, "-7"),
        (1.0, "1"),
        (-1.0, "-1"),
        (0.0, "0"),
        (-0.0, "0"),
        (0.1, "0.1"),
        (-2.5, "-2.5"),
        (1e22, "10000000000000000000000"),
        (1e23, str(int(1e23))),
        (1e308, str(int(1e308))),
        (1e-7, "1e-07"),
        (5e-324, "5e-324"),
        (2**53 + 1, "9007199254740993"),
        (10**40, "1" + "0" * 40),
        ("", '""'),
        ("a/b", '"a/b"'),
        ('q"\\\n\t\x01', '"q\\"\\\\\\n\\t\\u0001"'),
        ("é", '"é"'),
        ("\u2028\x7f\U0001f600", '"\u2028\x7f\U0001f600"'),
        ([], "[]"),
        ({}, "{}"),
        ((), "[]"),
        ((1, (2,)), "[1,[2]]"),
        ([1, "a", None, True, 1.5], '[1,"a",null,true,1.5]'),
        ({"b": 1, "a": 2}, '{"a":2,"b":1}'),
        ({"a": {"d": 1, "c": [{"z": 0, "y": 0}]}}, '{"a":{"c":[{"y":0,"z":0}],"d":1}}'),
        ({"": 0}, '{"":0}'),
        (Colour.RED, '"red"'),
        (WorkloadState.READY, '"READY"'),
        (Level.HIGH, "3"),
        (Loud("soft"), '"soft"'),
        (Half(0.5), "0.5"),
        (Odd(5), "5"),
        ({Colour.RED: 1}, '{"red":1}'),
        ({Loud("b"): 1, "a": 2}, '{"a":2,"b":1}'),
        (Point(1, 2), "[1,2]"),
        (collections.OrderedDict(b=1, a=2), '{"a":2,"b":1}'),
        (collections.defaultdict(list, {"k": [1]}), '{"k":[1]}'),
    ],
)
def test_canonical_text(value: Any, text: str) -> None:
    assert canonical(value, field="input") == text


def test_keys_are_sorted_by_code_point_not_by_utf16() -> None:
    value = {"\U0001f600": 1, "\ufb33": 2, "z": 3, "Z": 4, "é": 5}
    assert canonical(value, field="input") == '{"Z":4,"z":3,"é":5,"\ufb33":2,"\U0001f600":1}'


def test_strings_are_not_normalised() -> None:
    composed, decomposed = "\u00e9", "e\u0301"
    assert canonical(composed, field="input") != canonical(decomposed, field="input")
    assert canonical({composed: 1, decomposed: 2}, field="input") == '{"e\u0301":2,"\u00e9":1}'


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        (1, 1.0, True),
        (0, -0.0, True),
        (1, True, False),
        (0, False, False),
        (1, "1", False),
        ((1, 2), [1, 2], True),
        ([1, 2], [2, 1], False),
        ({"a": None}, {}, False),
        (None, {}, False),
    ],
)
def test_which_values_are_the_same(left: Any, right: Any, same: bool) -> None:
    assert (canonical(left, field="input") == canonical(right, field="input")) is same


NOT_JSON: list[Any] = [
    float("nan"),
    float("inf"),
    float("-inf"),
    "nul\0",
    "\0",
    "lone \ud800",
    "\udfff",
    "pair \ud83d\ude00",
    b"bytes",
    bytearray(b"x"),
    {1, 2},
    frozenset(),
    dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    dt.date(2026, 1, 1),
    decimal.Decimal(1),
    uuid.UUID(int=1),
    1j,
    object(),
    range(3),
    iter([1]),
    {}.keys(),
    collections.UserDict(),
    str,
    10**4300,
    -(10**4300),
]


@pytest.mark.parametrize("bad", NOT_JSON, ids=lambda value: type(value).__name__)
def test_what_not_every_database_keeps_is_refused_with_its_path(bad: Any) -> None:
    assert path_of(bad) == "$"
    assert path_of([bad]) == "$[0]"
    assert path_of((1, [2, bad])) == "$[1][1]"
    assert path_of({"a": {"b.c": [0, {"": bad}]}}) == "$.a.b.c[1]."


@pytest.mark.parametrize("key", [1, None, True, 1.5, b"k", ("a",), "nul\0", "lone \udc00"])
def test_a_bad_key_is_named_by_its_mapping(key: Any) -> None:
    assert path_of({key: 1}) == "$"
    assert path_of({"a": [{"good": 1, key: 1}]}) == "$.a[0]"


def test_the_first_fault_in_document_order_is_named() -> None:
    assert path_of({"b": [1, b""], "a": b""}) == "$.b[1]"
    assert path_of({"b": b"", 1: 1}) == "$.b"
    assert path_of({"a": 1, 1: b""}) == "$"


def test_the_field_is_named() -> None:
    with pytest.raises(WorkloadError) as caught:
        canonical(b"", field="artifacts")
    assert caught.value.details == {"field": "artifacts", "path": "$"}


@pytest.mark.parametrize("container", ["list", "dict"])
def test_64_containers_pass_and_65_do_not(container: str) -> None:
    assert parse(canonical(nested(64, container), field="input")) == nested(64, container)
    step = "[0]" if container == "list" else ".k"
    assert path_of(nested(65, container)) == "$" + step * 64


def test_a_value_in_64_containers_passes() -> None:
    value: Any = "leaf"
    for _ in range(64):
        value = (value,)
    assert canonical(value, field="input") == "[" * 64 + '"leaf"' + "]" * 64


def test_depth_counts_containers_in_one_another_not_side_by_side() -> None:
    assert canonical([[]] * 500, field="input") == "[" + ",".join(["[]"] * 500) + "]"


@pytest.mark.parametrize("depth", [10_000, 200_000])
def test_deep_values_are_refused_not_a_recursion_error(depth: int) -> None:
    assert path_of(nested(depth)) == "$" + "[0]" * 64


def test_cycles_are_refused() -> None:
    ring: list[Any] = []
    ring.append(ring)
    assert path_of(ring) == "$" + "[0]" * 64
    loop: dict[str, Any] = {}
    loop["x"] = [loop, loop]
    assert path_of(loop) == "$" + ".x[0]" * 32


@pytest.mark.parametrize("sign", [1, -1])
def test_integers_are_exact_to_4300_digits_whatever_python_allows(digit_limit: int, sign: int) -> None:
    largest = sign * (10**4300 - 1)
    text = canonical(largest, field="input")
    assert text == ("-" if sign < 0 else "") + "9" * 4300
    assert parse(text) == largest
    odd = sign * (7 * 10**4299 + 10**2000 + 1)
    digits = canonical([odd], field="input")
    assert digits == "[" + ("-" if sign < 0 else "") + "7" + "0" * 2298 + "1" + "0" * 1999 + "1]"
    assert parse(digits) == [odd]


@pytest.mark.parametrize("sign", [1, -1])
def test_longer_integers_are_refused_whatever_python_allows(digit_limit: int, sign: int) -> None:
    assert path_of({"n": sign * 10**4300}) == "$.n"
    assert path_of(sign * (1 << 4_000_000)) == "$"


def test_every_length_of_integer_is_written_and_read_alike(digit_limit: int) -> None:
    for digits in [1, 2, 599, 600, 601, 639, 640, 641, 1199, 1200, 1201, 1800, 4299, 4300]:
        for number in (10 ** (digits - 1), 10**digits - 1, -(10 ** (digits - 1))):
            text = canonical(number, field="input")
            assert len(text.removeprefix("-")) == digits
            assert parse(text) == number


def test_text_that_is_not_json_stays_an_error() -> None:
    with pytest.raises(json.JSONDecodeError):
        parse("{")


def characters() -> st.SearchStrategy[str]:
    return st.characters(exclude_categories=["Cs"], exclude_characters="\0")


def json_values() -> st.SearchStrategy[Any]:
    scalars = (
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(characters())
    )
    return st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(characters()), inner, max_size=4),
        max_leaves=20,
    )


def integral(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [integral(item) for item in value]
    if isinstance(value, dict):
        return {key: integral(item) for key, item in value.items()}
    return value


@given(json_values())
def test_the_text_is_what_python_writes(value: Any) -> None:
    expected = json.dumps(integral(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    assert canonical(value, field="input") == expected


@given(json_values())
def test_what_is_read_back_is_the_canonical_form(value: Any) -> None:
    text = canonical(value, field="input")
    assert parse(text) == value
    assert canonical(parse(text), field="input") == text
    assert measure(text) == len(text.encode("utf-8"))
    assert digest(text) == hashlib.sha256(text.encode("utf-8")).hexdigest()


@given(json_values(), st.randoms())
def test_the_order_of_keys_does_not_matter(value: Any, random: Any) -> None:
    def shuffled(item: Any) -> Any:
        if isinstance(item, dict):
            pairs = [(key, shuffled(inner)) for key, inner in item.items()]
            random.shuffle(pairs)
            return dict(pairs)
        return [shuffled(inner) for inner in item] if isinstance(item, list) else item

    assert canonical(shuffled(value), field="input") == canonical(value, field="input")


def test_sizes_and_hashes_are_of_the_utf8() -> None:
    assert measure('"é\U0001f600"') == 8
    assert measure("[]") == 2
    assert digest("null") == "74234e98afe7498fb5daf1f36ac2d78acc339464f950703b8c019892f982b90b"
    assert digest('"é"') == hashlib.sha256(b'"\xc3\xa9"').hexdigest()


@pytest.mark.parametrize(
    ("instant", "text"),
    [
        (dt.datetime(2026, 3, 4, 5, 6, 7, 89, tzinfo=dt.UTC), "2026-03-04T05:06:07.000089Z"),
        (dt.datetime(2026, 3, 4, tzinfo=dt.UTC), "2026-03-04T00:00:00.000000Z"),
        (
            dt.datetime(2026, 1, 1, 0, 30, tzinfo=dt.timezone(dt.timedelta(hours=5, minutes=45))),
            "2025-12-31T18:45:00.000000Z",
        ),
    ],
)
def test_instants_are_iso_8601_in_utc_with_microseconds(instant: dt.datetime, text: str) -> None:
    assert iso(instant) == text
    assert dt.datetime.fromisoformat(text) == instant


def test_instants_are_in_utc_wherever_the_machine_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("TZ", "Asia/Kathmandu")
        time.tzset()
        texts = [
            iso(dt.datetime(2026, 3, 4, 5, 6, 7, 89, tzinfo=dt.UTC)),
            iso(dt.datetime(2026, 3, 4, 7, 6, 7, 89, tzinfo=dt.timezone(dt.timedelta(hours=2)))),
        ]
        shift = time.timezone
    time.tzset()
    assert texts == ["2026-03-04T05:06:07.000089Z"] * 2
    assert shift == -20_700


def test_a_naive_instant_has_no_text() -> None:
    with pytest.raises(ValueError, match="time zone"):
        iso(dt.datetime(2026, 1, 1))


def test_the_workload_id_is_derived_from_the_scope() -> None:
    compact = '["t é","a\\"b","r","k"]'.encode()
    assert workload_id("t é", 'a"b', "r", "k") == "workload_" + hashlib.sha256(compact).hexdigest()[:24]
    assert workload_id("t", "a", "r", "k") == "workload_" + hashlib.sha256(b'["t","a","r","k"]').hexdigest()[:24]


def test_scopes_that_differ_by_a_byte_have_different_ids() -> None:
    scopes = [("t", "a", "r", "k"), ("T", "a", "r", "k"), ("a", "t", "r", "k"), ('t","a', "r", "k", "x")]
    scopes += [("t", "a", "r", "\u00e9"), ("t", "a", "r", "e\u0301")]
    assert len({workload_id(*scope) for scope in scopes}) == len(scopes)
