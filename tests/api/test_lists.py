"""Lists: pages by key that lose and repeat nothing, filters that agree with a plain look, and what they cost."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from tests.api.tools import Caller, place
from tests.api.world import ALL, admit, claim, dead, done, running
from workloads import authority
from workloads.api import answers, filters, pages
from workloads.contract import AdmissionRequest, Dependency
from workloads.lifecycle.canonical import iso
from workloads.models import Event, Workload

pytestmark = pytest.mark.django_db

NOON = dt.datetime(2026, 6, 1, 12, tzinfo=dt.UTC)
KEYS = itertools.count()


@pytest.fixture
def caller() -> Caller:
    return Caller("alma", place(*ALL))


def crowd(count: int, now: Any = NOON, **fields: Any) -> list[str]:
    """Admit much work at one instant."""
    requests = [
        AdmissionRequest(
            tenant_id="acme",
            application_id="invoices",
            requested_by="rita",
            idempotency_key=f"of a crowd {next(KEYS)}",
            definition_id="d",
            **{"input": {"payload": "of rita's"}} | fields,
        )
        for _ in range(count)
    ]
    return [outcome.workload.workload_id for outcome in authority.admit_many(requests, now=now)]


def follow(caller: Caller, path: str, link: str = "next") -> list[list[str]]:
    """Read every page from a path on, and return the ids of each."""
    found = []
    while path:
        body = caller.get(path).body
        found.append([row["workload_id"] for row in body["results"]])
        path = body[link]
    return found


def test_pages_of_1200_rows_of_one_instant(caller: Caller) -> None:
    ids = crowd(1_200)
    for order in ("created_at", "-created_at", "next_attempt_at", "-priority"):
        expected = ids[::-1] if order.startswith("-") else ids
        forth = follow(caller, f"workloads/?ordering={order}&page_size=500")
        assert [len(page) for page in forth] == [500, 500, 200]
        assert [id_ for page in forth for id_ in page] == expected
    # And back, from the last page to the first.
    last = caller.get("workloads/?ordering=created_at&page_size=500")
    while last.body["next"]:
        last = caller.get(last.body["next"])
    back = follow(caller, last.body["previous"], "previous")
    assert [id_ for page in reversed(back) for id_ in page] == ids[:1_000]
    assert len(caller.get("workloads/").body["results"]) == 50


def look(order: str) -> list[str]:
    """Return the ids in an order as plain Python has it."""
    column, sign = order.removeprefix("-"), order.startswith("-")
    rows = [row for row in Workload.objects.all() if getattr(row, column) is not None]
    rows.sort(key=lambda row: (getattr(row, column), row.pk), reverse=sign)
    return [row.workload_id for row in rows]


def population() -> None:
    """Admit work of all kinds: ties and none in every column."""
    for number in range(6):
        crowd(
            2,
            NOON + dt.timedelta(minutes=number // 2),
            priority=number % 3 - 1,
            not_before=NOON if number % 2 else None,
        )
        done(f"done {number}", priority=number - 2)
    for number in range(3):
        dead(f"dead {number}")
        claim(admit(f"claimed {number}"))
    crowd(2, dependencies=[Dependency(workload_id="workload_that_is_not_there")])


@pytest.mark.parametrize("order", pages.ORDERS)
@pytest.mark.parametrize("size", [2, 50])
def test_every_ordering_goes_both_ways_whatever_the_page(caller: Caller, order: str, size: int) -> None:
    population()
    expected = look(order)
    assert len(expected) >= 6
    forth = follow(caller, f"workloads/?ordering={order}&page_size={size}")
    assert [id_ for page in forth for id_ in page] == expected
    assert all(len(page) == size for page in forth[:-1])
    # Each page's `previous` is the page before it.
    path, before = f"workloads/?ordering={order}&page_size={size}", None
    while path:
        body = caller.get(path).body
        if before is None:
            assert body["previous"] is None
        else:
            assert caller.get(body["previous"]).body["results"] == before
        path, before = body["next"], body["results"]


@pytest.mark.parametrize("order", ["-created_at", "finished_at", "next_attempt_at", "-priority"])
def test_the_pages_of_several_places_are_one_list(order: str) -> None:
    population()
    for number in range(4):
        done(f"there {number}", application_id="payroll", priority=number % 2)
        done(f"far {number}", tenant_id="globex", priority=number % 2)
        admit(f"near {number}", application_id="payroll")
        admit(f"rob's {number}", application_id="orders", requested_by="rob")
    hidden = {admit("hidden", tenant_id="globex", application_id="payroll"), admit("rita's", application_id="orders")}
    rob = Caller(
        "rob",
        place("viewer"),
        place("operator", application="payroll"),
        place("viewer", application="payroll", tenant="initech"),
        place("requester", application=""),
        place("viewer", tenant="globex"),
    )
    expected = [id_ for id_ in look(order) if id_ not in hidden]
    for size in (4, 500):
        forth = follow(rob, f"workloads/?ordering={order}&page_size={size}")
        assert [id_ for page in forth for id_ in page] == expected
    last = rob.get(f"workloads/?ordering={order}&page_size=4")
    while last.body["next"]:
        last = rob.get(last.body["next"])
    back = follow(rob, last.body["previous"], "previous")
    assert [id_ for page in reversed(back) for id_ in page] == expected[: 4 * len(back)]
    assert len(follow(rob, "workloads/?tenant_id=globex&page_size=500")[0]) == 4


def test_a_list_stays_whole_while_work_is_admitted(caller: Caller) -> None:
    ids = crowd(4)
    first = caller.get("workloads/?page_size=2").body
    crowd(3, NOON + dt.timedelta(hours=1), trigger="later")
    second = caller.get(first["next"]).body
    assert [row["workload_id"] for row in first["results"] + second["results"]] == ids[::-1]
    assert second["next"] is None
    newer = caller.get(caller.get(second["previous"]).body["previous"]).body
    assert len(newer["results"]) == 2 and newer["next"]


def test_links_keep_the_question(caller: Caller) -> None:
    crowd(3)
    query = {"state": "READY", "definition_id": "d", "created_after": "2026-01-01T00:00:00+02:00", "page_size": "1"}
    path = "workloads/?state=SUCCEEDED&" + "&".join(f"{k}={quote(v)}" for k, v in query.items())
    link = caller.get(path).body["next"]
    asked = parse_qsl(urlsplit(link).query)
    assert sorted((k, v) for k, v in asked if k != "cursor") == sorted([*query.items(), ("state", "SUCCEEDED")])
    assert link.startswith("http://testserver/api/v1/workloads/?")
    assert len(follow(caller, path)) == 3


FILTERS: dict[str, Callable[[Workload], bool]] = {
    "state=READY": lambda w: w.state == "READY",
    "state=READY&state=CLAIMED": lambda w: w.state in ("READY", "CLAIMED"),
    "tenant_id=acme": lambda w: True,
    "tenant_id=Acme": lambda w: False,
    "application_id=invoices": lambda w: True,
    "application_id=payroll": lambda w: False,
    "definition_id=d": lambda w: w.definition_id == "d",
    "definition_id=D": lambda w: False,
    "definition_revision=hidden-revision": lambda w: w.definition_revision == "hidden-revision",
    "environment=production": lambda w: w.environment == "production",
    "requested_by=rita": lambda w: True,
    "requested_by=Rita": lambda w: False,
    "idempotency_key=dead 1": lambda w: w.idempotency_key == "dead 1",
    "worker_id=w-1": lambda w: w.worker_id == "w-1",
    "priority_min=1": lambda w: w.priority >= 1,
    "priority_max=-1": lambda w: w.priority <= -1,
    "priority_min=0&priority_max=0": lambda w: w.priority == 0,
    f"created_after={iso(NOON + dt.timedelta(minutes=1))}": lambda w: w.created_at >= NOON + dt.timedelta(minutes=1),
    f"created_before={iso(NOON + dt.timedelta(minutes=1))}": lambda w: w.created_at < NOON + dt.timedelta(minutes=1),
    "created_after=2026-06-01T14:01:00+02:00": lambda w: w.created_at >= NOON + dt.timedelta(minutes=1),
    f"finished_after={iso(NOON)}": lambda w: w.finished_at is not None,
    f"finished_before={iso(NOON)}": lambda w: False,
    f"next_attempt_before={iso(NOON + dt.timedelta(seconds=1))}": lambda w: (
        w.next_attempt_at is not None and w.next_attempt_at <= NOON
    ),
    "failure_kind=hidden-kind": lambda w: w.state == "DEAD_LETTER",
    "failure_kind=Hidden-kind": lambda w: False,
    "failure_kind=hidden": lambda w: False,
    "blocked=true": lambda w: w.dependency_standing != "met",
    "blocked=false": lambda w: w.dependency_standing == "met",
    f"failure=hidden words&state=DEAD_LETTER&created_after={iso(NOON)}": lambda w: w.state == "DEAD_LETTER",
    f"failure=Hidden WORDS&state=DEAD_LETTER&created_after={iso(NOON)}": lambda w: w.state == "DEAD_LETTER",
    f"failure=%25&state=DEAD_LETTER&created_after={iso(NOON)}": lambda w: False,
    f"failure=other&state=DEAD_LETTER&finished_after={iso(NOON)}": lambda w: False,
    f"failure=words&state=DEAD_LETTER&failure_kind=hidden-kind&finished_after={iso(NOON)}": lambda w: (
        w.state == "DEAD_LETTER"
    ),
}


def test_every_filter_is_tried() -> None:
    tried = {name for query in FILTERS for name, _ in parse_qsl(query)}
    assert tried == set(filters.NAMES)


def test_filters_find_what_a_plain_look_finds(caller: Caller) -> None:
    population()
    rows = list(Workload.objects.all())
    counted = {}
    for query, holds in FILTERS.items():
        expected = sorted(row.workload_id for row in rows if holds(row))
        found = follow(caller, f"workloads/?page_size=500&{query.replace('+', '%2B')}")[0]
        assert sorted(found) == expected, query
        counts = caller.get(f"stats/?{query.replace('+', '%2B')}").body["counts"]
        assert sum(count["count"] for count in counts.values()) == len(expected), query
        counted[query] = len(expected)
    assert sum(0 < count < len(rows) for count in counted.values()) > 15


def test_a_failures_kind_is_compared_byte_for_byte(caller: Caller) -> None:
    for kind in ("Flaky", "flaky", "flakyé", "flakye\u0301", "flaky 🐘"):
        held = claim(admit(kind))
        authority.fail(held.fence, kind=kind, error="no")
        authority.cancel(held.workload_id, actor="op")
    for kind in ("Flaky", "flaky", "flakyé", "flakye\u0301", "flaky 🐘"):
        found = caller.get(f"workloads/?failure_kind={quote(kind)}").body["results"]
        assert [row["idempotency_key"] for row in found] == [kind]


def read_queries(caller: Caller, path: str) -> list[str]:
    with CaptureQueriesContext(connection) as captured:
        answer = caller.get(path)
    assert answer.status == 200, answer.text
    return [query["sql"] for query in captured]


def test_a_list_reads_no_payload_and_as_many_queries_whatever_its_size(caller: Caller) -> None:
    for number in range(3):
        done(f"done {number}", dependencies=[])
        crowd(1, NOON, trigger=f"t-{number}", dependencies=[Dependency(workload_id=f"w-{n}") for n in range(3)])
    columns = [connection.ops.quote_name(name) for name in ("input", "output", "artifacts", "evidence")]
    costs = set()
    for order in pages.ORDERS:
        for size in (1, 2, 6):
            queries = read_queries(caller, f"workloads/?ordering={order}&page_size={size}")
            assert not any(column in sql for sql in queries for column in columns)
            costs.add(len(queries))
    # Token, user, access; the page, and what it depends on.
    assert costs == {5}
    answer = caller.get("workloads/")
    assert all("input" not in row for row in answer.body["results"]) and "of rita's" not in answer.text


def test_a_history_is_paged_in_order_and_costs_the_same_whatever_its_length(caller: Caller) -> None:
    workload_id, held = running()
    for step in range(12):
        fence = authority.get(workload_id)
        assert caller.post(f"workloads/{workload_id}/checkpoints/", held | {"state": step}).status == 200
        assert fence.claim_id == held["claim_id"]
    for name, size in (("events", 17), ("checkpoints", 13), ("attempts", 1), ("result", 0)):
        path = f"workloads/{workload_id}/{name}/"
        pages_, costs = [], set()
        link: Any = f"{path}?page_size=5"
        while link:
            costs.add(len(read_queries(caller, link)))
            body = caller.get(link).body
            pages_ += body["results"]
            link = body["next"]
        assert len(pages_) == size and costs == {5}, name
        numbers = [row.get("sequence", row.get("number")) for row in pages_]
        assert numbers == sorted(numbers)
    rows = caller.get(f"workloads/{workload_id}/events/").body["results"]
    assert rows == [answers.event(row) for row in Event.objects.filter(record__workload_id=workload_id)]
    last = caller.get(f"workloads/{workload_id}/events/?page_size=10").body
    assert caller.get(caller.get(last["next"]).body["previous"]).body == last | {"previous": None}
