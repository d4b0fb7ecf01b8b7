"""The list of workloads: what it shows, what it does not read, and how many queries it makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from tests.admin.conftest import LIST, admit, fail, page
from workloads import authority
from workloads.admin import listing
from workloads.contract import Dependency

pytestmark = pytest.mark.django_db

PAYLOADS = ('"input"', "`input`", '"grant"', "`grant`", "connection_scopes", "evidence", "output")


def keys(response: Any) -> list[int]:
    return [workload.pk for workload in response.context["cl"].result_list]


def test_it_shows_where_each_workload_stands_newest_first(viewer: Client) -> None:
    waiting = admit("1")
    dead = fail(admit("2"), error="disk full")
    blocked = admit("3", dependencies=[Dependency(workload_id=dead.workload_id)])
    response = viewer.get(LIST)
    text = response.content.decode()
    assert keys(response) == [blocked.pk, dead.pk, waiting.pk]
    assert 'data-state="DEAD_LETTER"' in text
    assert "broken: disk full" in text
    assert "waits for other work" in text
    assert "1 of 3" in text
    assert dead.workload_id in text


def test_it_reads_no_payloads_and_makes_as_many_queries_for_many_as_for_one(viewer: Client) -> None:
    fail(admit("0", input={"a": "payload"}), error="x" * 5000)
    with CaptureQueriesContext(
        connection,
    ) as one:
        viewer.get(LIST)
    for number in range(1, 40):
        fail(admit(str(number), input={"a": "payload"}), error="x" * 5000)
    with CaptureQueriesContext(connection) as many:
        response = viewer.get(LIST)
    assert len(many) == len(one) <= 8
    sql = [query["sql"] for query in many if "workloads_workload" in query["sql"]]
    assert len(sql) == 2
    for column in PAYLOADS:
        assert not any(column in text for text in sql), column
    assert "x" * 81 not in response.content.decode()


def test_counting_stops(viewer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "MOST_LISTED", 5)
    for number in range(5):
        admit(str(number))
    assert "Only the newest" not in viewer.get(LIST).content.decode()
    admit("one more")
    with CaptureQueriesContext(connection) as queries:
        response = viewer.get(LIST)
    assert response.context["cl"].result_count == 5
    assert "Only the newest 5 that match are listed" in response.content.decode()
    counts = [query["sql"] for query in queries if "COUNT(" in query["sql"]]
    assert len(counts) == 1
    assert "LIMIT 6" in counts[0]


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [("parked", {"dead", "timed out"}), ("held", {"claimed"}), ("READY", {"ready"}), ("TIMED_OUT", {"timed out"})],
)
def test_it_is_narrowed_by_state(viewer: Client, chosen: str, expected: set[str]) -> None:
    made = {name: admit(name) for name in ("ready", "claimed", "dead", "timed out")}
    authority.claim(made["claimed"].workload_id, worker_id="w", capabilities=set(), lease_ms=1000)
    fail(made["dead"])
    authority.time_out(made["timed out"].workload_id, actor="a")
    assert set(keys(viewer.get(LIST, {"state": chosen}))) == {made[name].pk for name in expected}


def test_a_search_is_for_a_whole_id_or_key(viewer: Client) -> None:
    one, other = admit("invoice 42"), admit("invoice 43")
    assert keys(viewer.get(LIST, {"q": one.workload_id})) == [one.pk]
    assert keys(viewer.get(LIST, {"q": "invoice 43"})) == [other.pk]
    assert keys(viewer.get(LIST, {"q": "invoice"})) == []
    assert keys(viewer.get(LIST, {"q": one.workload_id[:20]})) == []


@pytest.mark.parametrize("query", [{"q": "\0"}, {"p": "9999"}, {"p": "x"}, {"state": "nonsense"}, {"o": "1"}])
def test_odd_addresses_are_no_error_of_the_server(viewer: Client, query: dict[str, str]) -> None:
    admit()
    assert viewer.get(LIST, query, follow=True).status_code == 200


def test_an_address_can_ask_for_no_other_search(viewer: Client) -> None:
    admit()
    assert viewer.get(LIST, {"input__contains": "a"}).status_code == 400


def test_nothing_is_added_changed_or_deleted(client_with: Callable[..., Client]) -> None:
    everything = client_with(
        "view_workload", "add_workload", "change_workload", "delete_workload", "rearm_workload", username="all"
    )
    workload = admit()
    assert everything.get(f"{LIST}add/").status_code == 403
    assert everything.post(page(workload), {"state": "SUCCEEDED"}).status_code == 403
    assert everything.post(f"{LIST}{workload.pk}/delete/", {"post": "yes"}).status_code == 403
    everything.post(LIST, {"action": "delete_selected", "_selected_action": [workload.pk], "post": "yes"})
    assert authority.get(workload.workload_id).version == workload.version


def test_who_may_not_look_is_refused(client_with: Callable[..., Client]) -> None:
    workload = admit()
    nobody = client_with(username="nobody")
    assert nobody.get(LIST).status_code == 403
    assert nobody.get(page(workload)).status_code == 403
    assert Client().get(LIST).status_code == 302


def test_who_may_look_is_not_offered_to_rearm(viewer: Client, operator: Client) -> None:
    fail(admit())
    assert "Re-arm selected" not in viewer.get(LIST).content.decode()
    assert "Re-arm selected" in operator.get(LIST).content.decode()
