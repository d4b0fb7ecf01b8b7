"""Rows go in as they were given, however odd their texts are, and what goes in together goes in whole or not at all."""

from __future__ import annotations

import datetime as dt
import itertools
import uuid
from typing import Any

import pytest
from django.db import DataError, connection, transaction as blocks
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, given, settings, strategies as st

from tests.authority.builders import admit, id_of, request
from tests.support import T0, at
from workloads import authority
from workloads.authority import statements as module
from workloads.authority.columns import among, kind_of
from workloads.authority.records import Superseded, Transaction
from workloads.authority.statements import Statements, can_run_ahead, execute_many, insert, insert_new
from workloads.contract import Admission, Timeouts
from workloads.models import Admitted, Event, Lane, SeenWorker, Tombstone, Workload

pytestmark = pytest.mark.django_db

numbers = itertools.count()

ODD = [
    "",
    " ",
    "NULL",
    "null",
    "{}",
    "{a,b}",
    ",",
    '"',
    '\\"',
    "\\",
    "\\\\N",
    "%s",
    "%%",
    "'",
    "''; --",
    "\n\t\r",
    "é🚲",
    "a" * 199,
]
TEXTS = st.one_of(
    st.sampled_from(ODD), st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=60)
)


def transaction(now: dt.datetime | None = T0) -> Transaction:
    return Transaction(connection, now)


def tombstone(number: int, **changes: Any) -> dict[str, Any]:
    row = {
        "workload_id": f"w{number}",
        "tenant_id": "t",
        "application_id": "a",
        "result_key": None,
        "state": "CANCELLED",
        "finished_at": None,
        "pruned_at": T0,
    }
    return row | changes


@pytest.mark.skipif(connection.vendor != "postgresql", reason="The others are given no arrays.")
@pytest.mark.parametrize(
    ("model", "name", "values", "kind"),
    [
        (Admitted, "created_at", [T0, None, at(1), at(-(10**12))], "timestamptz"),
        (Admitted, "ancestry_is_closed", [True, None, False], "boolean"),
        (Tombstone, "result_key", [uuid.UUID(int=0), None, uuid.UUID(int=2**128 - 1)], "uuid"),
        (Event, "sequence", [0, 1, None, -5, 2**31 - 1], "bigint"),
        (Event, "record_id", [2**62, None, 7], "bigint"),
        (Tombstone, "workload_id", [None, *ODD], "text"),
    ],
)
def test_values_of_each_kind_come_back_from_an_array(model: Any, name: str, values: list[Any], kind: str) -> None:
    made = kind_of(model, name)
    assert made.name == kind
    assert made.prepare(values) == values
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT unnest(%s::{made.name}[])", [made.array(values)])
        assert [value for (value,) in cursor] == values


def test_a_column_that_keeps_a_text_of_its_own_is_given_that() -> None:
    kind, column = kind_of(Admitted, "timeouts"), Admitted._meta.get_field("timeouts")
    given = [Timeouts(), None, Timeouts(queue_ms=5)]
    assert kind.prepare(given) == [column.get_prep_value(value) for value in given]
    assert kind.prepare(given[2:]) != given[2:]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    texts=st.lists(TEXTS, min_size=1, max_size=5),
    instants=st.lists(
        st.none() | st.datetimes(dt.datetime(1971, 1, 1), dt.datetime(9000, 1, 1)), min_size=5, max_size=5
    ),
)
def test_texts_and_instants_come_back_as_they_were_given(texts: list[str], instants: list[dt.datetime | None]) -> None:
    Tombstone.objects.all().delete()
    aware = [None if instant is None else instant.replace(tzinfo=dt.UTC) for instant in instants]
    rows = [
        tombstone(n, tenant_id=text, application_id=text[::-1], finished_at=aware[n]) for n, text in enumerate(texts)
    ]
    insert(transaction(), Tombstone, rows)
    stored = Tombstone.objects.order_by("id")
    assert [row.tenant_id for row in stored] == texts
    assert [row.application_id for row in stored] == [text[::-1] for text in texts]
    assert [row.finished_at for row in stored] == aware[: len(texts)]
    # The last of them gets the text of the first, and so on.
    execute_many(
        transaction(),
        Tombstone,
        ("tenant_id", "state"),
        ("workload_id", "id"),
        [[text, "SUCCEEDED", row.workload_id, row.id] for text, row in zip(reversed(texts), stored, strict=True)],
    )
    assert [row.tenant_id for row in Tombstone.objects.order_by("id")] == texts[::-1]
    assert {row.state for row in Tombstone.objects.all()} == {"SUCCEEDED"}


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    values=st.lists(st.dictionaries(TEXTS, TEXTS | st.integers(-(2**40), 2**40), max_size=3), min_size=1, max_size=4)
)
def test_json_comes_back_as_it_was_given(values: list[dict[str, Any]]) -> None:
    workload = authority.admit(request(f"k{next(numbers)}"), now=T0).workload
    rows = [
        {
            "record_id": workload.pk,
            "sequence": 10 + n,
            "from_state": "",
            "to_state": "READY",
            "at": at(n),
            "actor": "somebody",
            "evidence": value,
        }
        for n, value in enumerate(values)
    ]
    insert(transaction(), Event, rows)
    stored = Event.objects.filter(record=workload.pk, sequence__gte=10).order_by("sequence")
    assert [event.evidence for event in stored] == values


def test_a_text_that_is_too_long_is_refused_and_not_cut() -> None:
    if connection.vendor == "sqlite":
        pytest.skip("SQLite bounds no text.")
    with pytest.raises(DataError), blocks.atomic():
        insert(transaction(), Tombstone, [tombstone(1, tenant_id="x" * 201), tombstone(2)])
    assert not Tombstone.objects.exists()


def test_rows_that_are_new_are_told_from_those_that_were_there() -> None:
    if connection.vendor == "mysql":
        pytest.skip("MariaDB does not tell them.")
    insert(transaction(), Tombstone, [tombstone(2)])
    rows = [tombstone(n, state="DEAD_LETTER") for n in (1, 2, 3)]
    answered = insert_new(transaction(), Tombstone, rows, unless="workload_id", answer=["workload_id"])
    assert [row[0] for row in answered] == ["w1", "w3"]
    assert Tombstone.objects.get(workload_id="w2").state == "CANCELLED"


@pytest.mark.parametrize("count", [1, 2, 3])
def test_every_row_is_changed_as_it_was_given(count: int) -> None:
    insert(transaction(), Tombstone, [tombstone(n) for n in range(count)])
    columns = ("tenant_id", "application_id", "finished_at")
    given_rows = [(f"of {min(n, 1)}", "alike", at(n) if n != 1 else None) for n in range(count)]
    rows = [[*row, f"w{n}"] for n, row in enumerate(given_rows)]
    execute_many(transaction(), Tombstone, columns, ("workload_id",), rows)
    assert list(Tombstone.objects.order_by("workload_id").values_list(*columns)) == given_rows


@pytest.mark.parametrize("count", [1, 3])
def test_a_change_of_what_is_not_there_is_superseded(count: int) -> None:
    insert(transaction(), Tombstone, [tombstone(n) for n in range(count)])
    rows = [["SUCCEEDED", f"w{n}", "t" if n else "other"] for n in range(count)]
    with pytest.raises(Superseded):
        execute_many(transaction(), Tombstone, ("state",), ("workload_id", "tenant_id"), rows)


@pytest.mark.skipif(connection.vendor == "mysql", reason="MariaDB does not tell new rows from the others.")
@pytest.mark.parametrize("taken", [None, 0, 4])
def test_what_had_to_be_new_and_is_not_is_superseded(monkeypatch: pytest.MonkeyPatch, taken: int | None) -> None:
    monkeypatch.setattr(module, "ROWS_A_STATEMENT", 2)
    if taken is not None:
        insert(transaction(), Tombstone, [tombstone(taken, state="DEAD_LETTER")])
    statements = Statements(transaction())
    statements.insert(Tombstone, [tombstone(n) for n in range(5)], unless="workload_id")
    if taken is None:
        statements.run()
    else:
        with pytest.raises(Superseded), blocks.atomic():
            statements.run()
    assert Tombstone.objects.filter(state="CANCELLED").count() == (5 if taken is None else 0)


@pytest.mark.skipif(connection.vendor != "postgresql", reason="The others are given each row.")
@pytest.mark.parametrize("count", [1, 2, 3])
def test_rows_that_are_alike_in_everything_are_as_many_as_were_given(count: int) -> None:
    with connection.cursor() as cursor:
        # In the place of the table, for this transaction: one in which nothing need be unique.
        cursor.execute("CREATE TEMPORARY TABLE workloads_tombstone (LIKE workloads_tombstone) ON COMMIT DROP")
        cursor.execute("ALTER TABLE pg_temp.workloads_tombstone ALTER id DROP NOT NULL")
    insert(transaction(), Tombstone, [tombstone(1)] * count)
    assert list(Tombstone.objects.values_list("workload_id", "pruned_at")) == [("w1", T0)] * count


def test_a_row_that_is_longer_than_a_statement_may_be_goes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BYTES_A_STATEMENT", 1)
    with CaptureQueriesContext(connection) as captured:
        insert(transaction(), Tombstone, [tombstone(n) for n in range(3)])
    assert len(captured) == Tombstone.objects.count() == 3


def test_nothing_is_added_to_what_another_writer_has_changed() -> None:
    workload = authority.get(admit())
    events = Event.objects.count()
    statements = Statements(transaction())
    statements.update(Workload, ("version",), ("admitted_id", "version"), [[9, workload.pk, workload.version + 1]])
    # The other writer's event has this number.
    taken = Event.objects.filter(record=workload.pk).values().get(sequence=1)
    taken.pop("id")
    statements.insert(Event, [taken])
    # Where the others insert, the caller's block undoes it.
    with pytest.raises(Superseded), blocks.atomic():
        statements.run()
    assert Event.objects.count() == events


def test_what_is_written_together_is_there_together() -> None:
    workload, other = authority.get(admit("a")), authority.get(admit("b"))
    statements = Statements(transaction())
    statements.update(
        Workload,
        ("version", "last_failure"),
        ("admitted_id", "version"),
        [[7, "x", w.pk, w.version] for w in (workload, other)],
    )
    statements.update(Tombstone, ("state",), ("id",), [])
    statements.insert(Tombstone, [tombstone(n) for n in range(3)])
    statements.run()
    assert {w.version for w in Workload.objects.all()} == {7}
    assert Tombstone.objects.count() == 3
    statements.run()
    assert Tombstone.objects.count() == 3


def write_all(*, changes: int, question: bool) -> tuple[int, list[tuple[Any, ...]]]:
    """Write changes of that many tables, with a question or without; return how many statements that took, and what
    was answered.
    """
    statements = Statements(transaction())
    insert(transaction(), Tombstone, [tombstone(n) for n in range(2)])
    of_tombstones = [[f"of {n}", f"w{n}"] for n in range(2)]
    of_workloads = [[5 + n, workload.pk] for n, workload in enumerate(Workload.objects.order_by("pk"))]
    if changes >= 1:
        statements.update(Tombstone, ("tenant_id",), ("workload_id",), of_tombstones)
    if changes == 2:
        statements.update(Workload, ("version",), ("admitted_id",), of_workloads)
    if question:
        statements.ask("SELECT workload_id FROM workloads_admitted ORDER BY id", [])
    with CaptureQueriesContext(connection) as captured:
        answer = statements.run()
    return len(captured), answer


@pytest.mark.parametrize(("changes", "question"), [(1, False), (2, False), (1, True), (2, True), (0, True)])
def test_postgresql_is_asked_once_for_what_is_written_together(changes: int, question: bool) -> None:
    admit("a")
    admit("b", definition_id="other")
    count, answer = write_all(changes=changes, question=question)
    assert count == (1 if connection.vendor == "postgresql" else changes + question)
    assert [found for (found,) in answer] == ([id_of("a"), id_of("b")] if question else [])


@pytest.mark.skipif(connection.vendor != "postgresql", reason="Elsewhere statements are never put together.")
@pytest.mark.parametrize(("bytes_more", "expected"), [(0, 1), (-1, 2)])
def test_what_is_written_together_is_no_longer_than_a_bound(
    monkeypatch: pytest.MonkeyPatch, bytes_more: int, expected: int
) -> None:
    statements = Statements(transaction())
    for number in (1, 2):
        statements.insert(Tombstone, [tombstone(number)])
    texts = sum(len(value) for value in [*tombstone(1).values(), *tombstone(2).values()] if isinstance(value, str))
    monkeypatch.setattr(module, "BYTES_TOGETHER", texts + bytes_more)
    with CaptureQueriesContext(connection) as captured:
        statements.run()
    assert len(captured) == expected
    assert Tombstone.objects.count() == 2


@pytest.mark.skipif(connection.vendor != "postgresql", reason="Elsewhere nothing is sent ahead.")
@pytest.mark.parametrize("lacks", ["the library", "the driver"])
def test_a_driver_that_can_send_nothing_ahead_waits_for_each_answer(
    monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    driver: Any = connection.Database
    assert can_run_ahead(connection)
    if lacks == "the driver":
        monkeypatch.delattr(driver, "Pipeline")
    else:
        monkeypatch.setattr(driver.Pipeline, "is_supported", lambda: False)
    assert not can_run_ahead(connection)
    answers = authority.admit_many([request(f"k{n}") for n in range(3)], now=T0)
    assert all(isinstance(answer, Admission) and answer.created for answer in answers)


def test_every_column_that_is_written_has_a_kind() -> None:
    for model in (Workload, Event, Tombstone, Lane, SeenWorker):
        for column in model._meta.concrete_fields:
            assert kind_of(model, column.attname).name in {"bigint", "boolean", "text", "timestamptz", "uuid"}


def test_rows_are_found_among_values() -> None:
    insert(transaction(), Tombstone, [tombstone(n, tenant_id=text) for n, text in enumerate(ODD)])
    for wanted in (ODD[:1], ODD[3:9], ["none of them"]):
        where, params = among(connection, Tombstone, "tenant_id", wanted, "t")
        rows = transaction().execute(f"SELECT t.tenant_id FROM workloads_tombstone t WHERE {where}", params)
        assert {text for (text,) in rows} == set(wanted) & set(ODD)
