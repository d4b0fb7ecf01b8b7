"""How pages of the list are found: each way finds what is selected, once, page by page, there and back."""

from __future__ import annotations

import datetime as dt
from itertools import pairwise

import pytest
from django.db import connection
from django.http import QueryDict
from django.utils import timezone

from tests.admin.conftest import admit, fail
from workloads import authority
from workloads.admin import finding
from workloads.admin.criteria import Criteria
from workloads.admin.finding import Page, find
from workloads.admin.orders import Start
from workloads.contract import Dependency
from workloads.models import Workload

pytestmark = pytest.mark.django_db

SIZE = 4


def read(query: str) -> Criteria:
    return Criteria.read(QueryDict(query), now=timezone.now())


@pytest.fixture
def crowd(db: None) -> None:
    """Some 60 workloads in several places and states, none in the order of its keys alone."""
    now = timezone.now()
    first = admit("first")
    for number in range(56):
        place = {
            "tenant_id": f"t{number % 3}",
            "application_id": f"a{number % 2}",
            "definition_id": f"d{number % 5}",
            "definition_revision": str(number % 2),
        }
        kind = number % 7
        if kind == 0:
            place["not_before"] = now + dt.timedelta(hours=number % 11 + 1)
        if kind == 1:
            place["dependencies"] = [Dependency(workload_id=first.workload_id)]
        workload = admit(f"k{number}", **place)
        if kind in (2, 3):
            fail(workload, kind=f"kind{number % 2}", error=f"words {number % 4}")
        elif kind == 4:
            claim = authority.claim(workload.workload_id, worker_id=f"w{number % 3}", capabilities=(), lease_ms=60_000)
            authority.start(claim.fence)
            if number % 3 == 0:
                authority.complete(claim.fence, result_id=f"r{number}", output={})
        elif kind == 5:
            authority.cancel(workload.workload_id, actor="a")
    # Keys and instants part where records are brought from elsewhere.
    with connection.cursor() as cursor:
        cursor.execute("SELECT id FROM workloads_admitted ORDER BY id")
        for (key,) in cursor.fetchall():
            at = now - dt.timedelta(minutes=key * 37 % 61)
            cursor.execute("UPDATE workloads_admitted SET created_at = %s WHERE id = %s", [value(at), key])
            cursor.execute(
                "UPDATE workloads_workload SET finished_at = %s WHERE admitted_id = %s AND finished_at IS NOT NULL",
                [value(now - dt.timedelta(minutes=key * 23 % 59 // 2)), key],
            )
            if key % 5 == 0:
                cursor.execute(
                    "UPDATE workloads_workload SET next_attempt_at = %s WHERE admitted_id = %s AND state = 'READY'",
                    [value(now - dt.timedelta(minutes=key * 29 % 53)), key],
                )


def value(at: dt.datetime) -> object:
    return connection.ops.adapt_datetimefield_value(at)


def walk(criteria: Criteria) -> list[Page]:
    """Return all pages from the first on."""
    pages, at = [], ""
    while True:
        page = find(criteria, at, SIZE)
        pages.append(page)
        assert len(pages) < 100
        if page.on is None:
            return pages
        at = page.on.text


QUERIES = [
    "",
    "state=READY",
    "state=parked",
    "state=held",
    "state=SUCCEEDED",
    "state=SUCCEEDED&state=CANCELLED&tenant=t1",
    "state=SUCCEEDED&finished_from=20m",
    "state=DEAD_LETTER&finished_from=20m",
    "state=DEAD_LETTER&definition=d2",
    "state=READY&finished_from=20m",
    "state=CLAIMED&blocked=yes",
    "tenant=t1",
    "tenant=nobody",
    "tenant=t1&application=a0",
    "application=a1",
    "definition=d3",
    "definition=d3&revision=1",
    "revision=0",
    "admitted_from=40m",
    "admitted_from=40m&admitted_to=10m",
    "admitted_to=10m&application=a1&state=READY",
    "finished_from=25m",
    "finished_to=5m&tenant=t2",
    "worker=w1",
    "worker=w1&state=RUNNING&tenant=t1",
    "started_to=0s",
    "blocked=yes",
    "blocked=yes&tenant=t1",
    "due=now",
    "due=later",
    "due=now&definition=d0",
    "due_to=5m",
    "failure_kind=kind0",
    "failure_kind=kind1&state=parked",
    "failure_kind=kind0&admitted_from=1d",
    "failure=words+2&state=DEAD_LETTER&finished_from=1d",
    "q=k11",
    "q=k11&state=DEAD_LETTER",
    "q=nothing",
]


@pytest.mark.usefixtures("crowd")
@pytest.mark.parametrize("looks", [(2, 6), (1_000, 10_000)])
def test_page_by_page_all_that_is_selected_is_found_once(
    monkeypatch: pytest.MonkeyPatch, looks: tuple[int, int]
) -> None:
    monkeypatch.setattr(finding, "LOOKS", looks)
    monkeypatch.setattr(finding, "LEAST_LOOK", 2)
    monkeypatch.setattr(finding, "MOST_TOGETHER", looks[0])
    for query in QUERIES:
        criteria = read(query)
        assert not criteria.problems, query
        pages = walk(criteria)
        keys = [key for page in pages for key in page.keys]
        assert sorted(keys) == sorted(criteria.rows().values_list("pk", flat=True)), query
        assert len(keys) == len(set(keys)), query
        assert all(len(page.keys) == SIZE for page in pages[:-1] if page.is_settled), query
        assert {page.order.name for page in pages} == {pages[0].order.name}, query
        if pages[0].order.column:
            rows = dict(Workload.objects.values_list("pk", pages[0].order.column))
            found = [rows[key] for key in keys]
            assert found == sorted(found, reverse=pages[0].order.is_descending), query
        else:
            assert keys == sorted(keys, reverse=True), query


@pytest.mark.usefixtures("crowd")
@pytest.mark.parametrize("looks", [(2, 6), (1_000, 10_000)])
def test_the_way_back_passes_the_same_rows(monkeypatch: pytest.MonkeyPatch, looks: tuple[int, int]) -> None:
    monkeypatch.setattr(finding, "LOOKS", looks)
    monkeypatch.setattr(finding, "LEAST_LOOK", 2)
    monkeypatch.setattr(finding, "MOST_TOGETHER", looks[0])
    for query in QUERIES:
        criteria = read(query)
        pages = walk(criteria)
        there = [key for page in pages for key in page.keys]
        page, back = pages[-1], list(pages[-1].keys)
        for _ in range(100):
            if page.back is None:
                break
            page = find(criteria, page.back.text, SIZE)
            # The first page is full again: it may hold some of what came after it.
            back = [*page.keys, *(key for key in back if key not in page.keys)]
        assert page.back is None, query
        if looks[0] > len(there):
            assert back == there, query
        else:
            # Looking at little, the first page may end sooner, and goes on from there.
            assert page.keys == pages[0].keys or page.on is not None, query


@pytest.mark.usefixtures("crowd")
def test_it_says_how_far_it_looked_and_goes_on_from_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "LOOKS", (5, 20))
    monkeypatch.setattr(finding, "LEAST_LOOK", 1)
    criteria = read("failure_kind=nothing")
    pages = walk(criteria)
    assert [page.keys for page in pages] == [()] * 3
    assert [page.looked for page in pages] == [20, 20, 0]
    assert [page.is_settled for page in pages] == [False, False, True]
    assert [page.total for page in pages] == [None, None, None]
    places = [page.stopped_at[0] for page in pages if page.stopped_at]
    assert all(newer > older for newer, older in pairwise(places))


@pytest.mark.usefixtures("crowd")
def test_it_looks_little_where_that_fills_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "LOOKS", (30, 10_000))
    monkeypatch.setattr(finding, "LEAST_LOOK", 1)
    page = find(read("tenant=t1&revision=1"), size=3)
    assert len(page.keys) == 3
    assert page.is_settled


@pytest.mark.usefixtures("crowd")
@pytest.mark.parametrize(
    "query", ["", "state=READY", "state=parked", "tenant=t1", "application=a1", "finished_from=1d"]
)
def test_what_an_index_answers_is_counted_up_to_a_limit(monkeypatch: pytest.MonkeyPatch, query: str) -> None:
    criteria = read(query)
    count = criteria.rows().count()
    assert find(criteria, size=SIZE).total == count
    assert find(criteria, size=100).total == count
    monkeypatch.setattr(finding, "MOST_COUNTED", 5)
    assert find(criteria, size=SIZE).total == 6


@pytest.mark.usefixtures("crowd")
def test_more_places_than_a_page_has_rows_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "PAGE_SIZE", 2)
    assert find(read("admitted_from=1d"), size=2).total is None


ODD_PLACES = [
    "x",
    "key-on",
    "key-on-x",
    "key-on-1-2",
    "admitted-on-5",
    "nothing-on-5",
    "admitted-back-1-5",
    "finished-on-99999999999999999-1",
    f"key-on-{'9' * 19}",
    "key-on-\u0661",
]


@pytest.mark.usefixtures("crowd")
def test_a_place_that_no_list_has_given_is_the_beginning() -> None:
    criteria = read("state=READY")
    first = find(criteria, "", SIZE).keys
    assert {at: find(criteria, at, SIZE).keys for at in ODD_PLACES} == dict.fromkeys(ODD_PLACES, first)


@pytest.mark.usefixtures("crowd")
def test_a_place_beyond_the_end_is_an_empty_page_with_a_way_back() -> None:
    page = find(read(""), "key-on-1", SIZE)
    assert page.keys == ()
    assert page.back is not None
    assert find(read(""), page.back.text, SIZE).keys != ()


def test_a_place_is_written_as_it_is_read() -> None:
    at = dt.datetime(2041, 5, 6, 7, 8, 9, 123456, tzinfo=dt.UTC)
    for start in (
        Start(order="key", is_backwards=False, place=(7,)),
        Start(order="due", is_backwards=True, place=(at, 9)),
    ):
        assert Start.read(start.text) == start


def test_a_selection_with_a_problem_has_no_page() -> None:
    admit()
    assert find(read("state=nonsense")).keys == ()
