"""The plans of the list on PostgreSQL: what a page reads, beside 20,000 rows that it does not hold.

`docs/admin-at-scale.md` has the same on five million, as `bench/admin_pages.py` measures it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
from django.db import connection
from django.test import Client

from tests.admin.conftest import LIST, admit, fail
from tests.admin.test_list import keys
from tests.api.test_list_plans import MANY, multiply
from workloads import authority
from workloads.admin import finding
from workloads.admin.filters import SAVED
from workloads.contract import Dependency
from workloads.models import Workload

FEW = 450
"""What a page reads besides its keys and the two halves of its rows: lanes, the session, the user's rights."""

pytestmark = [
    pytest.mark.django_db(transaction=True),  # VACUUM runs in no transaction.
    pytest.mark.skipif(connection.vendor != "postgresql", reason="only PostgreSQL tells how many rows a plan has read"),
]


@pytest.fixture
def crowd(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fill the tables: what waits, what is dead, what is done, what is blocked; a little of other kinds among it."""
    monkeypatch.setattr(finding, "MOST_COUNTED", 1_000)
    monkeypatch.setattr(finding, "LOOKS", (500, 1_000))
    ready = admit("ready")
    multiply(ready.workload_id)
    multiply(admit("elsewhere", tenant_id="other", application_id="mail", definition_id="mail.send").workload_id)
    done = admit("done", application_id="mail")
    claim = authority.claim(done.workload_id, worker_id="w", capabilities=(), lease_ms=60_000)
    authority.start(claim.fence)
    authority.complete(claim.fence, result_id="r", output={})
    multiply(done.workload_id)
    multiply(fail(admit("dead")).workload_id)
    blocked = [admit(f"blocked {n}", dependencies=[Dependency(workload_id=ready.workload_id)]) for n in range(3)]
    for number in range(5):
        held = admit(f"held {number}")
        authority.start(authority.claim(held.workload_id, worker_id="few", capabilities=(), lease_ms=60_000).fence)
    admit("rare", tenant_id="rare", definition_id="rare.one")
    assert len(blocked) == 3
    with connection.cursor() as cursor:
        # As a table is that an autovacuum has been at: else each row is fetched to see whether it is there.
        cursor.execute("VACUUM (ANALYZE) workloads_admitted, workloads_workload, workloads_lane")
        # 20,000 rows are sooner read as a whole than looked up one by one; five million are not.
        cursor.execute("SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_seqscan = off")
    yield
    with connection.cursor() as cursor:
        cursor.execute("RESET enable_hashjoin; RESET enable_mergejoin; RESET enable_seqscan")


class Scans:
    """How many rows the SELECT statements of a block look at: those counted, and all others."""

    def __init__(self) -> None:
        self.counted = 0
        self.others = 0

    def __call__(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.startswith(("SELECT", "(SELECT")):
            with context["connection"].connection.cursor() as cursor:
                cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", params)
                (plan,) = cursor.fetchone()
            plan = plan if isinstance(plan, list) else json.loads(plan)
            read = sum(rows_read(plan[0]["Plan"]))
            if "COUNT(" in sql:
                self.counted += read
            else:
                self.others += read
        return execute(sql, params, many, context)


def rows_read(node: dict[str, Any]) -> Iterator[int]:
    """Yield how many rows each scan of a table or an index has looked at."""
    if "Scan" in node["Node Type"] and node["Node Type"] != "Subquery Scan":
        removed = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
        yield int((node["Actual Rows"] + removed) * node["Actual Loops"])
    for child in node.get("Plans", ()):
        yield from rows_read(child)


def cost(client: Client, query: str) -> tuple[int, int, int]:
    """Return how many rows a page reads, its count left out; how many it counts; and how many it shows."""
    seen = Scans()
    with connection.execute_wrapper(seen):
        response = client.get(f"{LIST}?{query}")
    assert response.status_code == 200
    return seen.others, seen.counted, len(keys(response))


ANSWERED = [
    "",
    "state=READY",
    "state=SUCCEEDED",
    "state=DEAD_LETTER",
    "state=parked",
    "state=held",
    "state=CANCELLATION_REQUESTED",
    "tenant=t",
    "tenant=rare",
    "application=mail",
    "tenant=other&application=mail",
    "definition=mail.send",
    "definition=rare.one",
    "definition=nothing",
    "admitted_from=1h",
    "admitted_to=1h&tenant=t",
    "finished_from=24h",
    "finished_to=24h",
    "worker=few",
    "worker=nobody",
    "blocked=yes",
    "due=later",
    "started_to=1h",
    "q=rare",
    "q=nothing",
    "q=workload_0",
    f"q={'0' * 32}",
]
LOOKED_THROUGH = [
    "state=DEAD_LETTER&finished_from=24h",
    "state=DEAD_LETTER&tenant=rare",
    "state=DEAD_LETTER&definition=mail.send",
    "state=DEAD_LETTER&failure_kind=nothing",
    "state=READY&tenant=other",
    "state=SUCCEEDED&tenant=rare",
    "tenant=t&failure_kind=nothing",
    "failure_kind=nothing",
    "failure_kind=broken",
    "revision=nothing",
    "definition=mail.send&revision=9",
    "due=now",
    "due_to=10m",
    "due=now&tenant=rare",
    "blocked=yes&tenant=other",
    "finished_from=24h&application=mail",
    "finished_from=24h&failure=nothing&tenant=t",
    "state=READY&due=later&definition=rare.one",
]


@pytest.mark.usefixtures("crowd")
def test_a_page_reads_about_what_it_shows_where_an_index_answers(viewer: Client) -> None:
    dear = {}
    for query in ANSWERED:
        read, counted, shown = cost(viewer, query)
        # Of several parts, each is read for a page: of the parked states, and of the tenants of an application.
        if read > 5 * shown + FEW or counted > finding.MOST_COUNTED + 1:
            dear[query] = (read, counted, shown)
    assert dear == {}


@pytest.mark.usefixtures("crowd")
def test_a_page_looks_through_so_many_candidates_at_most_where_none_answers(viewer: Client) -> None:
    dear = {}
    for query in [*LOOKED_THROUGH, *(query for _title, query in SAVED)]:
        read, counted, shown = cost(viewer, query)
        # Two ways at most, twice each, and each candidate in both its halves.
        if read > 2 * 2 * sum(finding.LOOKS) + 3 * shown + FEW or counted > finding.MOST_COUNTED + 1:
            dear[query] = (read, counted, shown)
    assert dear == {}


@pytest.mark.usefixtures("crowd")
def test_a_page_at_any_depth_costs_what_the_first_does(viewer: Client) -> None:
    for query in ("", "state=READY", "state=parked", "tenant=t", "application=mail", "finished_from=24h", "due=later"):
        first, _counted, _shown = cost(viewer, query)
        address = query
        for _ in range(4):
            response = viewer.get(f"{LIST}?{address}")
            on = response.context["cl"].page.on
            if on is None:
                break
            # Far ahead at once: the places are keys and instants.
            address = f"{query}&{urlencode({'at': on.text})}"
        read, _counted, _shown = cost(viewer, address)
        assert read <= first + 150, (query, first, read)


@pytest.mark.usefixtures("crowd")
def test_the_oldest_page_costs_what_the_first_does(viewer: Client) -> None:
    first, _counted, _shown = cost(viewer, "")
    read, _counted, shown = cost(viewer, "at=key-back-0")
    assert shown == 100
    assert read <= first + 150
    assert Workload.objects.count() > 4 * MANY
