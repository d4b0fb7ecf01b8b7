"""JSON: what is stored comes back to the last digit, and what not every database keeps is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from workloads.lifecycle.canonical import canonical, digest
from workloads.testing.site import Site


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


KEPT = [
    None,
    True,
    [0, 1, True, False, None, ""],
    12345678901234567890123456789012345678901234567890,
    -(2**63) - 1,
    0.1,
    1e-300,
    1.7976931348623157e308,
    {"b": 1, "a": {"é": "e\u0301", "e\u0301": "é"}, "": " "},
    '\U0001f600 \ud7ff \uffff \u2028 \\ " / \x7f',
    nested(64),
    int("9" * 4_300),
]


@pytest.mark.parametrize("value", KEPT, ids=range(len(KEPT)))
def test_it_comes_back_exact(site: Site, value: Any) -> None:
    record = site.admit(input=value)
    text = canonical(value, field="input")
    assert canonical(record["input"], field="input") == text
    assert record["input_hash"] == digest(text)
    (claim,) = site.claim_next(start=True)
    assert canonical(claim["input"], field="input") == text
    result = site.complete(claim, output=value, artifacts=[value] if value != nested(64) else []).ok(200)
    assert canonical(result["output"], field="output") == text and result["output_hash"] == digest(text)


def test_a_whole_float_is_the_integer(site: Site) -> None:
    body = json.dumps(site.admission(input="PLACE"))
    for written, read in (("1.0", 1), ("-0.0", 0), ("1e2", 100), ("1E400", None)):
        answer = site.line.ask("POST", "workloads/", content=_fresh(site, body, written))
        if read is None:
            # More than any float holds: an infinity.
            answer.refused("WORKLOAD_INVALID", field="input")
        else:
            assert json.loads(answer.text, parse_float=str)["input"] == read


def _fresh(site: Site, body: str, written: str) -> bytes:
    key = json.loads(body)["idempotency_key"]
    return body.replace(key, site.admission()["idempotency_key"]).replace('"PLACE"', written).encode()


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": ["\0"]}, "$.a[0]"),
        ({"a": {"\0": 1}}, "$.a"),
        ({"a": "\ud800"}, "$.a"),
        (["\udfff\ud800"], "$[0]"),
    ],
)
def test_what_can_not_be_kept_is_refused(site: Site, value: Any, path: str) -> None:
    site.line.post("workloads/", site.admission(input=value)).refused("WORKLOAD_INVALID", field="input", path=path)


def test_too_deep_and_too_long_are_refused(site: Site) -> None:
    details = site.line.post("workloads/", site.admission(input=nested(65))).refused("WORKLOAD_INVALID", field="input")
    assert details["path"] == "$" + "[0]" * 64
    body = json.dumps(site.admission(input="PLACE")).replace('"PLACE"', "9" * 4_301).encode()
    site.line.ask("POST", "workloads/", content=body).refused("WORKLOAD_INVALID")


@pytest.mark.parametrize(
    "written",
    ["NaN", "Infinity", "-Infinity", '{"a":1,"a":2}', '[{"x":{"y":1,"y":1}}]', "[1,]", "01", "'a'", "[" * 100_000],
)
def test_what_is_not_json_is_refused(site: Site, written: str) -> None:
    body = json.dumps(site.admission(input="PLACE")).replace('"PLACE"', written).encode()
    site.line.ask("POST", "workloads/", content=body).refused("WORKLOAD_INVALID", field="body")
