"""The plans of lists on PostgreSQL: what a page reads, beside 20,000 rows that it does not hold."""

from __future__ import annotations

import datetime as dt

import pytest
from django.db import connection

from tests.api.tools import Caller, place
from tests.api.world import admit, claim, done
from tests.authority.test_plans import reads
from workloads import authority
from workloads.models import Workload

MANY = 5_000
# An eighth of what is stored: where two indexes serve about as well, the dead rows that lie about may decide.
FEW = 2_500
"""The most rows that the statements of a cheap page of 50 may read, the two tables and the indexes taken together."""

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.skipif(connection.vendor != "postgresql", reason="only PostgreSQL tells how many rows a plan has read"),
]


def multiply(workload_id: str) -> None:
    """Copy a workload's two rows, each copy a second younger than the one before."""
    pk = authority.get(workload_id).pk
    with connection.cursor() as cursor:
        cursor.execute("SELECT max(id) FROM workloads_admitted")
        offset = cursor.fetchone()[0] + MANY
        for table, key in (("workloads_admitted", "id"), ("workloads_workload", "admitted_id")):
            cursor.execute(f"SELECT * FROM {table} WHERE 1 = 0")
            values = []
            for column in (column[0] for column in cursor.description):
                name = connection.ops.quote_name(column)
                if column == key:
                    name = f"{offset} + n"
                elif column == "workload_id":
                    name = f"CONCAT('copy_', {offset} + n)"
                elif column in ("created_at", "finished_at", "next_attempt_at"):
                    name += " - n * interval '1 second'"
                elif column == "priority":
                    name = "n %% 10"
                values.append(name)
            cursor.execute(
                f"INSERT INTO {table} SELECT {', '.join(values)} FROM {table}, generate_series(1, {MANY}) AS n "
                f"WHERE {key} = %s",
                [pk],
            )


@pytest.fixture
def crowd() -> None:
    """Fill the tables: what waits, what is done, what is another application's and another tenant's."""
    for key, fields in {"here": {}, "there": {"application_id": "payroll"}, "far": {"tenant_id": "globex"}}.items():
        multiply(admit(key, **fields))
    multiply(done("done"))
    for number in range(5):
        claim(admit(f"held {number}"))
    with connection.cursor() as cursor:
        # All rows are looked at, so that the plans are the same each time.
        cursor.execute("SET LOCAL default_statistics_target = 1000")
        cursor.execute("ANALYZE workloads_admitted, workloads_workload, workloads_dependency")


def cost(caller: Caller, path: str) -> int:
    answer, read = reads(lambda: caller.get(path))
    assert answer.status == 200, answer.text
    return read


def ago(seconds: int) -> str:
    return (dt.datetime.now(dt.UTC) - dt.timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


CALLERS = {
    "one application's operator": lambda: Caller("olga", place("operator")),
    "a whole tenant's": lambda: Caller("wes", place("operator", application="")),
    "of several places": lambda: Caller(
        "sam", place("operator"), place("viewer", application="payroll"), place("viewer", tenant="globex")
    ),
    "a requester": lambda: Caller("rita", place("requester")),
}
# The indexes by state and by end are the whole table's: where an application has few such rows, a page reads others'.
OF_THE_WHOLE = (
    "ordering=priority",
    "ordering=-priority",
    "ordering=finished_at",
    "ordering=-finished_at",
    "state=",
    "finished_after",
)
CHEAP = [
    "",
    "tenant_id=acme&application_id=invoices",
    "ordering=created_at",
    "ordering=finished_at",
    "ordering=-finished_at",
    "ordering=priority",
    "ordering=-priority",
    "ordering=next_attempt_at",
    "ordering=-next_attempt_at",
    "next_attempt_before=2001-01-01T00:00:00Z",
    "idempotency_key=nothing",
    "requested_by=nobody",
    "state=READY",
    "state=SUCCEEDED",
    "state=CLAIMED",
    "state=DEAD_LETTER",
    "state=READY&state=CLAIMED",
    "worker_id=w-1",
    "definition_id=hidden.definition",
    "created_after={}",
    "created_before={}",
    "finished_after={}&ordering=-finished_at",
    "failure=words&state=DEAD_LETTER&created_after={}",
    "tenant_id=acme&application_id=invoices&requested_by=rita&idempotency_key=nothing",
]


@pytest.mark.usefixtures("crowd")
def test_a_page_reads_about_what_it_holds_whoever_asks() -> None:
    dear = {}
    for name, made in CALLERS.items():
        caller = made()
        for query in CHEAP:
            if name == "of several places" and query.startswith(OF_THE_WHOLE):
                continue
            read = cost(caller, f"workloads/?{query.format(ago(600))}")
            if read > FEW:
                dear[f"{name}: {query}"] = read
    assert dear == {}


@pytest.mark.usefixtures("crowd")
def test_a_page_at_any_depth_costs_what_the_first_does() -> None:
    for name in ("one application's operator", "of several places"):
        caller = CALLERS[name]()
        for order in ("-created_at", "created_at", "finished_at") if "several" not in name else ("-created_at",):
            first = cost(caller, f"workloads/?ordering={order}")
            path, read = f"workloads/?ordering={order}&page_size=500", []
            for _ in range(9):
                path = caller.get(path).body["next"]
                read.append(cost(caller, path.replace("page_size=500", "page_size=50")))
            assert max(read) <= first + 60, (name, order, first, read)


@pytest.mark.usefixtures("crowd")
def test_a_history_reads_itself_alone() -> None:
    caller = CALLERS["one application's operator"]()
    workload_id = Workload.objects.get(idempotency_key="done", application_id="invoices", workload_id__startswith="w")
    for name in ("", "events/", "attempts/", "checkpoints/", "result/", "why/"):
        assert cost(caller, f"workloads/{workload_id}/{name}") < 50
