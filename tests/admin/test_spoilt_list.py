"""The list beside rows that a newer version, a hand or a disk has spoilt: each shows as such, and its neighbours."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test import Client

from tests.admin.conftest import LIST, admit, fail
from tests.admin.test_list import keys, text_of
from workloads.admin.filters import SAVED
from workloads.models import Workload

pytestmark = pytest.mark.django_db

ADMITTED, STANDING = ("workloads_admitted", "id"), ("workloads_workload", "admitted_id")


def spoil(workload: Workload, where: tuple[str, str], **columns: Any) -> None:
    """Write into a row by hand."""
    table, key = where
    names = ", ".join(f"{connection.ops.quote_name(name)} = %s" for name in columns)
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE {table} SET {names} WHERE {key} = %s", [*columns.values(), workload.pk])
        assert cursor.rowcount == 1


def lose(workload: Workload, where: tuple[str, str]) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"DELETE FROM {where[0]} WHERE {where[1]} = %s", [workload.pk])


def row_of(response: Any, pk: int) -> str:
    """Return the text of a workload's row."""
    return next(part for part in text_of(response).split("<tr>") if f"/{pk}/change/" in part)


SPOILT = [
    (STANDING, {"state": "ARCHIVED"}, ['data-state="ARCHIVED"', "none that this version knows"]),
    (STANDING, {"state": ""}, ['data-state="unknown"', "none that this version knows"]),
    (STANDING, {"state": "<script>"}, ['data-state="&lt;script&gt;"']),
    (STANDING, {"dependency_standing": "odd"}, ["waits for other work"]),
    (STANDING, {"next_attempt_at": None}, ["When it may be claimed is missing or can’t be read."]),
    (ADMITTED, {"retry_policy": "{not json"}, ["Its retry policy can’t be read.", "0 of ?"]),
    (ADMITTED, {"retry_policy": ""}, ["Its retry policy can’t be read."]),
    (ADMITTED, {"retry_policy": "[]"}, ["Its retry policy can’t be read."]),
    (ADMITTED, {"retry_policy": "null"}, ["Its retry policy can’t be read."]),
    (ADMITTED, {"retry_policy": "{}"}, ["Its retry policy can’t be read."]),
    (ADMITTED, {"retry_policy": '{"max_attempts":"many"}'}, ["Its retry policy can’t be read."]),
    (ADMITTED, {"retry_policy": '{"max_attempts":true}'}, ["Its retry policy can’t be read."]),
    (ADMITTED, {"retry_policy": "[" * 100_000}, ["Its retry policy can’t be read."]),
    (ADMITTED, {"input": "{", "capability_snapshot": "{", "timeouts": "{", "grant": "{"}, ["0 of 3"]),
    (ADMITTED, {"definition_id": "<script>alert(1)</script>"}, ["&lt;script&gt;alert(1)&lt;/script&gt;"]),
]
ONLY_SQLITE = [
    (STANDING, {"attempt_count": "many"}, ["The number of its attempts can’t be read.", "? of 3"]),
    (STANDING, {"operator_retries": "many"}, ["Its retry policy can’t be read."]),
    (STANDING, {"next_attempt_at": "garbage"}, ["When it may be claimed is missing or can’t be read."]),
    (STANDING, {"next_attempt_at": "2026-99-99 00:00:00"}, ["How it stands is missing or can’t be read."]),
    (ADMITTED, {"created_at": "garbage"}, ["When it was admitted can’t be read."]),
    (ADMITTED, {"created_at": "2026-99-99 00:00:00"}, ["What was admitted is missing or can’t be read."]),
]


@pytest.mark.parametrize("number", range(len(SPOILT) + len(ONLY_SQLITE)))
def test_a_spoilt_row_shows_as_such_beside_its_neighbours(viewer: Client, number: int) -> None:
    if number >= len(SPOILT) and connection.vendor != "sqlite":
        pytest.skip("This database keeps such a value out of such a column.")
    where, columns, expected = (SPOILT + ONLY_SQLITE)[number]
    before, spoilt, after = admit("before"), admit("spoilt"), admit("after")
    spoil(spoilt, where, **columns)
    response = viewer.get(LIST)
    assert response.status_code == 200
    assert keys(response) == [after.pk, spoilt.pk, before.pk]
    row = row_of(response, spoilt.pk)
    for text in expected:
        assert text in row
    assert "can’t be read" not in row_of(response, before.pk)
    assert "<script>alert" not in response.content.decode()


def test_work_that_has_lost_what_was_admitted_is_listed(viewer: Client) -> None:
    whole, lost = admit("whole"), admit("lost")
    lose(lost, ADMITTED)
    for query in ("", "?state=READY"):
        response = viewer.get(LIST + query)
        assert keys(response) == [lost.pk, whole.pk]
        row = row_of(response, lost.pk)
        assert "What was admitted is missing or can’t be read." in row
        assert f"#{lost.pk}" in row
        assert 'data-state="READY"' in row


def test_work_that_has_lost_how_it_stands_is_found_by_its_name(viewer: Client) -> None:
    admit("whole")
    lost = admit("lost", tenant_id="elsewhere")
    lose(lost, STANDING)
    for query in ("?tenant=elsewhere", "?q=lost", f"?q={lost.workload_id}"):
        response = viewer.get(LIST + query)
        assert keys(response) == [lost.pk]
        row = row_of(response, lost.pk)
        assert "How it stands is missing or can’t be read." in row
        assert 'data-state="unknown"' in row
        assert "elsewhere" in row


def test_no_filter_stumbles_over_spoilt_rows(viewer: Client) -> None:
    for number, (where, columns, _expected) in enumerate(
        SPOILT + (ONLY_SQLITE if connection.vendor == "sqlite" else [])
    ):
        spoil(fail(admit(str(number))), where, **columns)
    if connection.vendor == "sqlite":
        spoil(fail(admit("end")), STANDING, finished_at="garbage")
        spoil(admit("due"), STANDING, next_attempt_at="0")
    queries = [query for _title, query in SAVED]
    queries += [f"{name}_{end}=1h" for name in ("admitted", "finished", "due", "started") for end in ("from", "to")]
    queries += [
        "tenant=t",
        "application=app",
        "definition=d",
        "failure_kind=broken",
        "state=parked",
        "due=now",
        "due=later",
    ]
    for query in queries:
        assert viewer.get(f"{LIST}?{query}").status_code == 200, query
