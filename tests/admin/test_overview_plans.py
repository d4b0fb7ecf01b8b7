"""What the overview reads on PostgreSQL: about what it shows, however much is stored beside that."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.cache import cache
from django.db import connection

from tests.admin.conftest import admit, fail
from tests.authority.test_plans import Statements
from workloads import authority
from workloads.admin import figures, flow, survey
from workloads.contract import Dependency
from workloads.models import Workload

MANY = 4_000
FEW = 1_300
"""The most rows that one statement may read, tables and indexes taken together, with the bounds set as below."""
BOUNDS = {"MOST_COUNTED": 400, "MOST_GROUPED": 400, "MOST_LOOKED_AT": 300, "MOST_IN_A_LANE": 100}
MOST_STATEMENTS = 130

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.skipif(connection.vendor != "postgresql", reason="only PostgreSQL tells how many rows a plan has read"),
]


def multiply(pk: int) -> None:
    """Copy a workload's rows and its events, each copy a second older than the one before."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT max(id) FROM workloads_admitted")
        offset = cursor.fetchone()[0] + MANY
        for name, key in (("admitted", "id"), ("workload", "admitted_id"), ("event", "record")):
            cursor.execute(f"SELECT * FROM workloads_{name} WHERE 1 = 0")
            columns, values = [], []
            for column in (column[0] for column in cursor.description):
                if name == "event" and column == "id":
                    continue
                value = connection.ops.quote_name(column)
                columns.append(value)
                if column == key:
                    value = f"{offset} + n"
                elif column == "workload_id":
                    value = f"CONCAT('copy_', {offset} + n)"
                elif column in ("created_at", "finished_at", "next_attempt_at", "claimed_at", "updated_at", "at"):
                    value += " - n * interval '1 second'"
                values.append(value)
            cursor.execute(
                f"INSERT INTO workloads_{name} ({', '.join(columns)}) SELECT {', '.join(values)} "
                f"FROM workloads_{name}, generate_series(1, {MANY}) AS n WHERE {key} = %s",
                [pk],
            )


@pytest.fixture
def crowd(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fill the tables with much of everything, and set the bounds low, so that reading it all would show."""
    cache.clear()
    now = authority.read_clock()
    done = admit("done")
    claim = authority.claim(done.workload_id, worker_id="w", capabilities=(), lease_ms=60_000)
    authority.start(claim.fence)
    authority.complete(claim.fence, result_id="r", output=1)
    multiply(done.pk)
    multiply(fail(admit("dead")).pk)
    multiply(admit("due", definition_id="e").pk)
    multiply(admit("later", not_before=now + dt.timedelta(days=1)).pk)
    missing = [Dependency(workload_id="workload_x")]
    multiply(admit("blocked", dependencies=missing).pk)
    held = admit("held")
    authority.claim(held.workload_id, worker_id="w", capabilities=(), lease_ms=60_000)
    multiply(held.pk)
    with connection.cursor() as cursor:
        for table in ("admitted", "workload", "event", "dependency"):
            cursor.execute(f"ANALYZE workloads_{table}")
    for name, value in BOUNDS.items():
        monkeypatch.setattr(figures, name, value)
    monkeypatch.setattr(flow, "MOST_COUNTED", BOUNDS["MOST_COUNTED"])
    yield
    cache.clear()


def read(now: dt.datetime) -> tuple[survey.Survey, list[tuple[int, str]]]:
    seen = Statements()
    with connection.execute_wrapper(seen):
        found = survey.read(now)
    return found, seen.rows_read


@pytest.mark.usefixtures("crowd")
def test_no_statement_of_a_survey_reads_more_than_its_bound() -> None:
    assert Workload.objects.count() == 6 * (MANY + 1)
    now = authority.read_clock()
    found, statements = read(now)
    assert {state: counted.more for state, counted in found.states.items()} == dict.fromkeys(found.states, True)
    assert found.due.more and found.later.more and found.held.more and found.blocked.more and found.dead.total.more
    assert [(rows, sql) for rows, sql in statements if rows > FEW] == []
    assert len(statements) <= MOST_STATEMENTS
    # What is over has been counted: the next look counts the open spans alone.
    _found, again = read(now)
    assert len(again) < len(statements) - 10


@pytest.mark.usefixtures("crowd")
def test_a_survey_costs_the_same_beside_more(monkeypatch: pytest.MonkeyPatch) -> None:
    now = authority.read_clock()
    read(now)
    _found, before = read(now)
    for pk in list(Workload.objects.order_by("pk").values_list("pk", flat=True)[:: MANY + 1]):
        multiply(pk)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE workloads_admitted, workloads_workload, workloads_event")
    _found, after = read(now)
    assert sum(rows for rows, _ in after) <= 1.5 * sum(rows for rows, _ in before)
    assert len(after) <= len(before) + 4


@pytest.mark.usefixtures("crowd")
def test_no_payload_is_read() -> None:
    found: Any
    found, statements = read(authority.read_clock())
    assert found.states
    columns = [f'"{name}"' for name in ("input", "grant", "evidence", "output", "retry_policy")]
    assert [sql for _, sql in statements if any(column in sql for column in columns)] == []
