"""Verification reads pages and parts of a stated size, and, around a spoilt row, all other rows. Section 12."""

from __future__ import annotations

import re

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from tests.authority.builders import ENDED_AT, SAVED_AT, admit, claim, refused, running
from tests.authority.connections import other_connection
from tests.support import at
from workloads import authority
from workloads.authority import streams
from workloads.authority.verification import MAX_CHUNK, Fault, verify

pytestmark = pytest.mark.django_db

CHUNKS = (1, 2, 3, 4, 5, 8, 500)
LATER = at(100_000)
TEXTS = (("admitted", "input"), ("checkpoint", "state"), ("result", "output"), ("result", "artifacts"))
FORTY_BYTES = "x" * 38


def write(sql: str, *params: object) -> None:
    """Write behind the authority's back."""
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        assert cursor.rowcount > 0


def admitted(workload_id: str, changes: str) -> None:
    """Change what was admitted."""
    write(f"UPDATE workloads_admitted SET {changes} WHERE workload_id = %s", workload_id)


def told(chunk: int) -> list[tuple[str, int | str]]:
    """Verify in pages of `chunk` workloads; return what is found where."""
    return [(fault.workload_id, fault.invariant) for fault in verify(chunk=chunk, now=LATER)]


def in_statements(found: CaptureQueriesContext, table: str, column: str) -> list[int]:
    """Return how many texts of a column each statement asked for."""
    of_column = re.compile(rf"SELECT t\.\W\w+\W, t\.\W{column}\W FROM workloads_{table} t WHERE \S+ IN \((.*)\)")
    matches = [of_column.match(query["sql"]) for query in found.captured_queries]
    return [match[1].count(",") + 1 for match in matches if match]


def test_each_text_that_cannot_be_read_is_a_fault_of_its_workload() -> None:
    ids = [admit(str(n)) for n in range(5)]
    for place in (1, 2, 4):
        admitted(ids[place], "input = '{'")
    for chunk in CHUNKS:
        assert told(chunk) == [(ids[place], "unreadable") for place in (1, 2, 4)]


@pytest.mark.parametrize("spoilt", [{0}, {1}, {2}, {6}, {1, 2, 3}, set(range(7))])
def test_text_that_the_driver_refuses_is_found_in_pages_of_any_size(spoilt: set[int]) -> None:
    if connection.vendor != "sqlite":
        pytest.skip("The other databases store no such text.")
    ids = [admit(str(n)) for n in range(7)]
    for place in spoilt:
        admitted(ids[place], "requested_by = CAST(x'ff' AS TEXT)")
    for chunk in CHUNKS:
        assert told(chunk) == [(ids[place], "unreadable") for place in sorted(spoilt)]
    assert all("requested_by" in fault.message for fault in verify(now=LATER))


def test_text_of_no_workload_that_the_driver_refuses_is_told_at_the_end() -> None:
    if connection.vendor != "sqlite":
        pytest.skip("The other databases store no such text.")
    pk = authority.get(admit()).pk
    write("UPDATE workloads_event SET record = %s, to_state = CAST(x'ff' AS TEXT) WHERE record = %s", pk + 7, pk)
    for chunk in CHUNKS:
        assert told(chunk)[-1] == (f"record {pk}", "unreadable")


def test_the_lowest_key_of_all_is_read() -> None:
    workload_id = admit()
    write("DELETE FROM workloads_workload WHERE admitted_id = %s", authority.get(workload_id).pk)
    admitted(workload_id, "id = 1")
    assert (workload_id, "orphan") in told(500)


def test_what_stands_nowhere_hides_no_other() -> None:
    first, second = admit("a"), admit("b")
    write("DELETE FROM workloads_workload WHERE admitted_id = %s", authority.get(first).pk)
    admitted(second, "input = '{'")
    for chunk in CHUNKS:
        assert told(chunk) == [(first, "orphan"), (second, "unreadable")]


def test_what_nobody_admitted_is_told_once() -> None:
    for key in "ab":
        admit(key)
    pk = authority.get(admit("c")).pk
    write("DELETE FROM workloads_admitted WHERE id = %s", pk)
    for chunk in CHUNKS:
        assert told(chunk) == [(f"record {pk}", "orphan")]


def test_how_far_it_has_come_is_told_after_each_page() -> None:
    for n in range(5):
        admit(str(n))
    for chunk, expected in ((1, [1, 2, 3, 4, 5, 5]), (2, [2, 4, 5]), (5, [5, 5]), (6, [5])):
        counts: list[int] = []
        assert list(verify(chunk=chunk, now=LATER, progress=counts.append)) == []
        assert counts == expected


@pytest.mark.parametrize("chunk", [0, -1, MAX_CHUNK + 1, "5", None, True])
def test_a_page_holds_1_to_5000_workloads(chunk: object) -> None:
    with refused("WORKLOAD_INVALID") as caught:
        verify(chunk=chunk)  # type: ignore[arg-type]
    assert caught.value.details is not None and caught.value.details["field"] == "chunk"
    assert list(verify(chunk=MAX_CHUNK)) == []


@pytest.mark.parametrize(
    ("rows", "most_bytes", "expected"),
    [(500, 80, [2, 2, 2]), (500, 81, [3, 3]), (500, 1_000, [6]), (4, 1_000, [4, 2])],
)
def test_texts_are_read_some_rows_and_some_bytes_at_a_time(
    monkeypatch: pytest.MonkeyPatch, rows: int, most_bytes: int, expected: list[int]
) -> None:
    for n in range(6):
        fence = running(str(n), input=FORTY_BYTES)
        authority.checkpoint(fence, FORTY_BYTES, now=SAVED_AT)
        authority.complete(fence, result_id=str(n), output=FORTY_BYTES, artifacts=[FORTY_BYTES[2:]], now=ENDED_AT)
    monkeypatch.setattr(streams, "ROWS_A_STATEMENT", rows)
    monkeypatch.setattr(streams, "TEXT_BYTES", most_bytes)
    with CaptureQueriesContext(connection) as captured:
        assert told(500) == []
    assert {text: in_statements(captured, *text) for text in TEXTS} == dict.fromkeys(TEXTS, expected)


def test_a_fault_says_of_which_text_it_is() -> None:
    workload_id = admit()
    admitted(workload_id, "input = '{\"a\": 1}'")
    message = "input is not in its canonical form"
    assert list(verify(now=LATER)) == [Fault(workload_id=workload_id, invariant="canonical", message=message)]


@pytest.mark.django_db(transaction=True)
def test_it_leaves_no_transaction_behind() -> None:
    workload_id = admit(now=None)
    assert list(verify(chunk=1)) == []
    with other_connection(lambda: claim(workload_id, now=None)) as other:
        pass
    assert other["answer"].workload_id == workload_id
    assert list(verify(chunk=1)) == []
