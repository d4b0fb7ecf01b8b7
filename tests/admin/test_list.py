"""The list of workloads: what it shows, what it does not read, and how many queries it makes."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from tests.admin.conftest import LIST, admit, fail, page
from workloads import authority
from workloads.admin import finding
from workloads.admin.criteria import NAMES
from workloads.admin.filters import GROUPS, LABELS, SAVED
from workloads.contract import Dependency

pytestmark = pytest.mark.django_db

PAYLOADS = ('"input"', "`input`", '"grant"', "`grant`", "connection_scopes", "evidence", "output")


def keys(response: Any) -> list[int]:
    return [row.pk for row in response.context["cl"].result_list]


def text_of(response: Any) -> str:
    """Return the page's text, its white space as one space."""
    return " ".join(response.content.decode().split())


def links(response: Any) -> dict[str, str]:
    """Return the addresses of the page's links by their text; the last of a text counts."""
    found = re.findall(r'<a [^>]*?href="([^"]*)"[^>]*>(.*?)</a>', response.content.decode(), re.DOTALL)
    return {re.sub(r"<[^>]*>", "", text).strip(): html.unescape(address) for address, text in found}


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
    sql = [query["sql"] for query in many if "workloads_workload" in query["sql"] or "_admitted" in query["sql"]]
    # The keys, what was admitted, and how it stands.
    assert len(sql) == 3
    for column in PAYLOADS:
        assert not any(column in text for text in sql), column
    assert "x" * 81 not in response.content.decode()


def test_counting_stops(viewer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "MOST_COUNTED", 5)
    monkeypatch.setattr(finding.find, "__defaults__", ("", 4))
    for number in range(5):
        admit(str(number))
    assert "5 workloads" in text_of(viewer.get(LIST))
    admit("one more")
    with CaptureQueriesContext(connection) as queries:
        response = viewer.get(LIST)
    assert "5+ workloads" in text_of(response)
    counts = [query["sql"] for query in queries if "COUNT(" in query["sql"]]
    assert len(counts) == 1
    assert "LIMIT 6" in counts[0]


def test_pages_follow_one_another_by_key_and_keep_the_filters(viewer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding.find, "__defaults__", ("", 2))
    made = [admit(str(number)).pk for number in range(5)][::-1]
    admit("other", tenant_id="other")
    first = viewer.get(LIST, {"tenant": "t", "state": "READY"})
    assert keys(first) == made[:2]
    assert "Newer" not in links(first)
    with CaptureQueriesContext(connection) as queries:
        second = viewer.get(LIST + links(first)["Older"])
    assert keys(second) == made[2:4]
    assert not any("OFFSET" in query["sql"] for query in queries if "LIMIT 3" in query["sql"])
    third = viewer.get(LIST + links(second)["Older"])
    assert keys(third) == made[4:]
    assert "Older" not in links(third)
    assert keys(viewer.get(LIST + links(third)["Newer"])) == made[2:4]
    assert keys(viewer.get(LIST + links(third)["Newest"])) == made[:2]
    # What comes in meanwhile moves no page.
    admit("later")
    assert keys(viewer.get(LIST + links(first)["Older"])) == made[2:4]


def test_it_says_how_far_it_looked_where_no_index_answers(viewer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "LOOKS", (1, 2))
    monkeypatch.setattr(finding, "LEAST_LOOK", 1)
    dead = fail(admit("0"), kind="rare")
    for number in range(3):
        admit(str(number + 1))
    first = viewer.get(LIST, {"failure_kind": "rare"})
    assert keys(first) == []
    assert "2 candidates were looked through for this page, and 0 of them match" in text_of(first)
    assert "That is as far as" in text_of(first)
    assert "None was found so far." in text_of(first)
    second = viewer.get(LIST + links(first)["Look further"])
    assert keys(second) == [dead.pk]
    assert "candidates" not in text_of(second)
    for number in range(3):
        fail(admit(f"dead {number}"))
    by_end = viewer.get(LIST, {"failure_kind": "rare", "finished_from": "1h"})
    assert "That is as far as" in text_of(by_end)
    assert keys(viewer.get(LIST + links(by_end)["Look further"])) == [dead.pk]


def test_an_empty_list_says_whether_there_is_work_at_all(viewer: Client) -> None:
    assert "No work has been admitted yet." in text_of(viewer.get(LIST))
    admit()
    assert "Nothing matches." in text_of(viewer.get(LIST, {"tenant": "nobody"}))
    everything = text_of(viewer.get(LIST))
    assert "Nothing matches." not in everything and "No work has been admitted" not in everything


def test_what_is_in_force_is_said_and_can_be_taken_away(viewer: Client) -> None:
    admit()
    response = viewer.get(LIST, {"tenant": "<b>", "state": "READY"})
    text = text_of(response)
    assert "The tenant is “&lt;b&gt;”." in text and "<b>" not in text
    assert "The state is READY." in text
    addresses = re.findall(r'<a href="([^"]*)" aria-label="Take away: ([^"]*)"', response.content.decode())
    assert [(html.unescape(address), html.unescape(said)) for address, said in addresses] == [
        ("?tenant=%3Cb%3E", "The state is READY."),
        ("?state=READY", "The tenant is “<b>”."),
    ]
    assert links(response)["Clear all filters"] == "?"
    assert "Clear all filters" not in links(viewer.get(LIST))


def test_what_cannot_be_read_is_said_and_lists_nothing(viewer: Client) -> None:
    admit()
    response = viewer.get(LIST, {"state": "nonsense", "finished_from": "soon", "input__contains": "a"})
    text = text_of(response)
    assert keys(response) == []
    assert "State: There is no state “nonsense”." in text
    assert "Finished from: It is neither a date" in text
    assert "input__contains: There is no such filter." in text
    assert "Nothing is listed while a filter can’t be read" in text
    assert 'id="filter-finished_from" name="finished_from" value="soon" autocomplete="off" aria-invalid="true"' in text


def test_the_saved_lists_are_marked_where_they_are_shown(viewer: Client) -> None:
    dead = fail(admit("dead"))
    blocked = admit("blocked", dependencies=[Dependency(workload_id=dead.workload_id)])
    expected = {"Dead letters of the last 24 hours": [dead.pk], "Waiting for other work": [blocked.pk]}
    saved = {title: links(viewer.get(LIST))[title] for title, _query in SAVED}
    for title, address in saved.items():
        response = viewer.get(LIST + address)
        assert response.context["cl"].criteria.problems == {}
        assert keys(response) == expected.get(title, []), title
        assert f'aria-current="true">{title}</a>' in text_of(response)
        assert response.content.decode().count('aria-current="true"') in (1, 2)


def test_the_address_of_the_list_is_shown_to_be_kept(viewer: Client) -> None:
    response = viewer.get(LIST, {"state": "READY", "at": "key-on-1", "due_to": "10m", "tenant": ""})
    assert f'value="http://testserver{LIST}?state=READY&amp;due_to=10m"' in text_of(response)


def test_the_form_suggests_names_and_keeps_what_it_has_no_field_for(viewer: Client) -> None:
    fail(admit("1", tenant_id="acme", application_id="mail", definition_id="mail.send"), kind="disk")
    text = text_of(viewer.get(LIST, {"state": "parked", "tenant": "acme"}))
    for name in ("acme", "mail", "mail.send", "disk"):
        assert f'<option value="{name}"></option>' in text
    form = text[text.index('class="workloads-filter-form"') :].partition("</form>")[0]
    assert '<input type="hidden" name="state" value="parked">' in form
    assert 'name="tenant" value="acme"' in form
    assert form.count('name="tenant"') == 1
    search = text[text.index('id="changelist-search"') : text.index('id="searchbar_helptext"')]
    assert '<input type="hidden" name="tenant" value="acme">' in search


def test_every_filter_has_a_label_and_every_field_is_a_filter() -> None:
    assert set(LABELS) == set(NAMES)
    assert {name for _title, names in GROUPS for name in names} <= set(NAMES)


def test_all_that_match_can_be_selected_where_there_is_more_than_the_page(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finding.find, "__defaults__", ("", 2))
    for number in range(2):
        fail(admit(str(number)))
    assert "Select all that match" not in text_of(operator.get(LIST))
    fail(admit("2"))
    first = operator.get(LIST)
    assert "Select all that match" in text_of(first)
    assert "Select all that match" in text_of(operator.get(LIST + links(first)["Older"]))
    assert 'aria-label="Select this object for an action - workload_' in text_of(first)


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


@pytest.mark.parametrize(
    "query",
    [
        {"q": "\0"},
        {"p": "9999"},
        {"p": "x"},
        {"state": "nonsense"},
        {"o": "1"},
        {"at": "\0"},
        {"at": "key-on-0"},
        {"all": ""},
        {"e": "1"},
        {"_popup": "1"},
    ],
)
def test_odd_addresses_are_no_error_of_the_server(viewer: Client, query: dict[str, str]) -> None:
    admit()
    assert viewer.get(LIST, query, follow=True).status_code == 200


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
