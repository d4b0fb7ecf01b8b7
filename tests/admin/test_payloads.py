"""Payloads: who may read them, what of them is read, and that they are shown exact to the digit."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from tests.admin.conftest import LIST, admit, page
from workloads import authority
from workloads.admin import page_json
from workloads.lifecycle.canonical import canonical
from workloads.models import Workload

pytestmark = pytest.mark.django_db

SECRET = "only-for-those-who-may"
COLUMNS = ("input", "output", "artifacts", "state")


@pytest.fixture
def reader(client_with: Any) -> Client:
    """Somebody who may look, and read payloads."""
    reading: Client = client_with("view_workload", "view_payload", username="rita")
    return reading


def finished(payload: Any = SECRET, **changes: Any) -> Workload:
    """Return work whose every payload holds this."""
    workload = admit("payload", input={"given": payload}, **changes)
    fence = authority.claim(workload.workload_id, worker_id="w", capabilities=(), lease_ms=60_000).fence
    authority.start(fence)
    authority.checkpoint(fence, {"saved": payload if len(str(payload)) < 60_000 else ""})
    authority.complete(fence, result_id="r", output={"made": payload}, artifacts=[payload])
    return authority.get(workload.workload_id)


def read_columns(queries: Any) -> list[str]:
    """Return the payload columns that statements read, each as often as it was."""
    quote = connection.ops.quote_name
    found = []
    for query in queries:
        for table, column in (
            ("workloads_admitted", "input"),
            ("workloads_result", "output"),
            ("workloads_result", "artifacts"),
            ("workloads_checkpoint", "state"),
        ):
            found += [column] * query["sql"].count(f"{quote(table)}.{quote(column)}")
    return found


def test_who_may_not_read_payloads_is_told_so_and_they_are_not_even_read(viewer: Client) -> None:
    workload = finished()
    with CaptureQueriesContext(connection) as queries:
        text = viewer.get(page(workload)).content.decode()
    assert SECRET not in text
    assert workload.input_hash not in text
    assert text.count('class="workloads-withheld"') == 3
    assert text.count("needs a right of its own, view_payload.") == 4
    assert read_columns(queries) == []


def test_who_may_read_them_sees_them_and_each_is_read_once(reader: Client) -> None:
    workload = finished()
    with CaptureQueriesContext(connection) as queries:
        text = reader.get(page(workload)).content.decode()
    assert text.count(SECRET) == 4
    assert "workloads-withheld" not in text
    assert sorted(read_columns(queries)) == sorted(COLUMNS)


@pytest.mark.parametrize("what", ["input", "output", "artifacts", "checkpoints/1"])
def test_the_whole_of_each_has_a_page_for_those_who_may(
    viewer: Client, reader: Client, client_with: Any, what: str
) -> None:
    workload = finished()
    address = f"{LIST}{workload.pk}/payload/{what}/"
    assert viewer.get(address).status_code == 403
    assert client_with("view_payload", username="blind").get(address).status_code == 403
    assert reader.post(address).status_code == 403
    text = reader.get(address).content.decode()
    assert SECRET in text and page(workload) in text
    raw = reader.get(f"{address}?raw")
    assert raw["Content-Type"] == "text/plain; charset=utf-8"
    assert raw["X-Content-Type-Options"] == "nosniff"
    assert SECRET in json.dumps(json.loads(raw.content))


@pytest.mark.parametrize(
    "what",
    ["", "grant/", "input/1/", "output/x/", "checkpoints/", "checkpoints/2/", "checkpoints/x/", "checkpoints/١/"],
)
def test_what_is_no_payload_is_not_found(reader: Client, what: str) -> None:
    workload = finished()
    # Without a name, the address is one of the admin's own, which leads back.
    assert reader.get(f"{LIST}{workload.pk}/payload/{what}").status_code == (404 if what else 302)
    assert reader.get(f"{LIST}{workload.pk + 1}/payload/input/").status_code == 404
    assert reader.get(f"{LIST}{10**30}/payload/input/").status_code == 404


def test_work_without_a_result_has_no_output_to_read(reader: Client) -> None:
    workload = admit()
    assert reader.get(f"{LIST}{workload.pk}/payload/output/").status_code == 404
    assert "null" in reader.get(page(workload)).content.decode()


DIGITS = {
    "big": 2**53 + 1,
    "huge": int("9" * 4_300),
    "float": 0.1 + 0.2,
    "small": 5e-324,
    "negative": -(2**64),
    "integral": 1.0,
}


def test_digits_are_those_that_are_stored(reader: Client) -> None:
    workload = finished(DIGITS)
    for address in (page(workload), f"{LIST}{workload.pk}/payload/output/", f"{LIST}{workload.pk}/payload/output/?raw"):
        text = reader.get(address).content.decode()
        for digits in ("9007199254740993", "0.30000000000000004", "5e-324", "-18446744073709551616", "9" * 4_300):
            assert digits in text, digits
        assert "1.0" not in text.partition("integral")[2][:20]


def test_a_large_input_is_cut_on_the_page_and_whole_on_its_own(reader: Client) -> None:
    value = {"text": "x" * 200_000, "z": "the end"}
    workload = admit("large", input=value)
    response = reader.get(page(workload))
    text = response.content.decode()
    assert len(response.content) < 60_000
    assert "x" * 3_000 in text and "x" * 5_000 not in text
    address = f"{LIST}{workload.pk}/payload/input/"
    assert f'<a href="{address}">Show the whole</a>' in text
    assert "the end" in reader.get(address).content.decode()
    assert reader.get(f"{address}?raw").content.decode() == canonical(value, field="input")


def test_a_middling_input_is_whole_but_folded(reader: Client) -> None:
    workload = admit("middle", input={"rows": list(range(500)), "z": "the end"})
    text = reader.get(page(workload)).content.decode().partition('id="input"')[2]
    assert text.index("<details") < text.index("the end") < text.index("</details>")


def test_references_to_secrets_and_what_is_no_string_are_shown_as_recorded(reader: Client) -> None:
    workload = admit("keys", input={"password": "vault:a/b", "api_key": None, "token_secret": 5, "cookie": True})
    text = reader.get(page(workload)).content.decode()
    for said in (
        "&quot;password&quot;: &quot;vault:a/b&quot;",
        "&quot;api_key&quot;: null",
        "&quot;token_secret&quot;: 5",
    ):
        assert said in text, said


def test_markup_and_what_turns_text_around_stand_as_text(reader: Client) -> None:
    workload = finished("<script>alert(1)</script>\u202eevil\u0007\x7f")
    for address in (page(workload), f"{LIST}{workload.pk}/payload/output/"):
        text = reader.get(address).content.decode()
        assert "<script>alert" not in text
        assert "&lt;script&gt;alert(1)&lt;/script&gt;\\u202eevil\\u0007\\u007f" in text
    assert "\u202e" in reader.get(f"{LIST}{workload.pk}/payload/output/?raw").content.decode()


def test_a_thousand_checkpoints_are_told_in_few_rows(reader: Client) -> None:
    workload = admit("many")
    fence = authority.claim(workload.workload_id, worker_id="w", capabilities=(), lease_ms=60_000).fence
    authority.start(fence)
    for number in range(1_000):
        authority.checkpoint(fence, {"n": number, "text": "y" * (5_000 if number == 999 else 5)}, key=f"key {number}")
    with CaptureQueriesContext(connection) as queries:
        response = reader.get(page(workload))
    text = response.content.decode()
    assert len(queries) <= 26
    assert read_columns(queries).count("state") == 1
    assert "The first 20 and the last 20 of 1000 are shown." in text
    assert "key 19<" in text and "key 20<" not in text and "key 999<" in text
    assert "y" * 1_900 in text and "y" * 2_100 not in text
    assert len(response.content) < 400_000
    assert response.context["trouble"] == []


VALUES = [
    None,
    True,
    0,
    -1.5,
    "",
    'a"b\\',
    [],
    {},
    [[]],
    [{}],
    {"a": {}},
    {"a": [1, 2, {"b": None}]},
    ["{", "]", ",", ":"],
    "é\n\t",
]


@pytest.mark.parametrize("value", VALUES)
def test_indenting_changes_nothing_but_white_space(value: Any) -> None:
    assert page_json.indent(canonical(value, field="")) == json.dumps(
        value, indent=2, sort_keys=True, ensure_ascii=False
    )


@pytest.mark.parametrize("cut", range(1, 40))
def test_the_beginning_of_json_is_indented_too(cut: int) -> None:
    text = '{"a":[1,2,{"b":"c\\"d"}],"e":{},"f":"ghi"}'[:cut]
    assert "".join(page_json.indent(text).split()) == text
