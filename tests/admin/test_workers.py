"""The page of workers: who was seen, how late each is, what it holds, takes and fails; and what it costs."""

from __future__ import annotations

import datetime as dt
import html
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from tests.admin.conftest import LIST, admit, fail
from workloads import authority
from workloads.admin import worker_rows, workers
from workloads.contract import AdmissionRequest, Fence
from workloads.models import Event, SeenWorker

pytestmark = pytest.mark.django_db

PAGE = "/admin/workloads/seenworker/"


@pytest.fixture
def watcher(client_with: Callable[..., Client]) -> Client:
    """Somebody who may look at workers and at work."""
    return client_with("view_seenworker", "view_workload", username="walter")


def note(worker_id: str = "w", *, ago_s: float = 0, **fields: Any) -> SeenWorker:
    """Let a worker be seen so long ago."""
    now = authority.read_clock() - dt.timedelta(seconds=ago_s)
    assert authority.note_worker(worker_id, now=now, **{"capabilities": ()} | fields)
    return SeenWorker.objects.filter(worker_id=worker_id).latest("pk")


def claim(key: str = "k", worker_id: str = "w", **changes: Any) -> Fence:
    """Let a worker claim new work, by the verb itself."""
    workload = admit(key, **changes)
    claimed = authority.claim(workload.workload_id, worker_id=worker_id, capabilities=(), lease_ms=600_000)
    return authority.start(claimed.fence).fence


def show(client: Client, query: str = "") -> str:
    response = client.get(PAGE + query)
    assert response.status_code == 200
    return response.content.decode()


def table(text: str, anchor: str = "seen") -> list[dict[str, str]]:
    """Return a table's rows: what each cell says under its heading, and its first link under `link`."""
    section = re.search(rf'<section class="module" id="{anchor}">.*?</section>', text, re.S)
    if section is None:
        return []
    found = []
    for row in re.findall(r"<tr>\s*<td.*?</tr>", section[0], re.S):
        cells = re.findall(r'<td data-label="([^"]*)">(.*?)</td>', row, re.S)
        cells += re.findall(r"<dt>(Definitions|Capabilities):</dt> <dd>(.*?)</dd>", row, re.S)
        said = {name: " ".join(html.unescape(re.sub(r"<[^>]*>", " ", cell)).split()) for name, cell in cells}
        link = re.search(r'href="([^"]*)"', row)
        found.append(said | {"link": html.unescape(link[1]) if link else ""})
    return found


def one(text: str, anchor: str = "seen") -> dict[str, str]:
    (row,) = table(text, anchor)
    return row


# Who may look


def test_who_may_view_workers_may_look_and_others_may_not(client_with: Callable[..., Client], viewer: Client) -> None:
    assert client_with("view_seenworker", username="wilma").get(PAGE).status_code == 200
    assert viewer.get(PAGE).status_code == 403
    assert Client().get(PAGE).status_code == 302


def test_nothing_can_be_done_to_a_worker(watcher: Client) -> None:
    row = note()
    assert watcher.post(PAGE, {"action": "delete_selected"}).status_code == 403
    for path in ("add/", f"{row.pk}/delete/"):
        assert watcher.get(PAGE + path).status_code == 403
    assert SeenWorker.objects.count() == 1


def test_a_workers_own_address_leads_to_its_line(watcher: Client, viewer: Client) -> None:
    note("other")
    row = note("w & co")
    for path in (f"{row.pk}/change/", f"{row.pk}/history/"):
        text = watcher.get(PAGE + path, follow=True).content.decode()
        assert [line["Worker"].startswith("w & co") for line in table(text)] == [True]
        assert viewer.get(PAGE + path).status_code == 403
    for path in ("999999/change/", "nothing/change/", "9" * 30 + "/change/"):
        assert watcher.get(PAGE + path).headers["Location"] == PAGE


# What a line says


def test_without_workers_it_says_how_one_is_started(watcher: Client) -> None:
    text = show(watcher)
    assert "manage.py workloads_worker" in text
    assert table(text) == []


def test_a_line_says_where_a_worker_is_and_what_it_takes(watcher: Client) -> None:
    note(
        incarnation="host-1-ab",
        capabilities=["smtp", "gpu"],
        definitions=["a", "b@2"],
        has_claimed=True,
    )
    line = one(show(watcher))
    assert line["State"] == "present"
    assert line["Worker"] == "w in the site’s own code, for all tenants incarnation host-1-ab"
    assert re.fullmatch(r"\d s ago", line["Seen"])
    assert re.fullmatch(r"\d s ago", line["Asked for work"])
    assert re.fullmatch(r"\d s ago", line["Last claim"])
    assert (line["Last heartbeat"], line["Holds"], line["Failed"]) == ("–", "0", "–")
    assert (line["Definitions"], line["Capabilities"]) == ("a, b@2", "gpu, smtp")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"is_remote": True, "tenant_id": "t"}, "over HTTP, for all of the tenant t"),
        ({"tenant_id": "t", "application_id": "app"}, "for the application app of the tenant t"),
        ({"application_id": "app"}, "for the application app of all tenants"),
    ],
)
def test_it_says_for_whose_work_a_worker_asks(watcher: Client, fields: Any, said: str) -> None:
    note(**fields)
    assert said in one(show(watcher))["Worker"]


def test_whatever_there_is_and_nothing_are_two_answers(watcher: Client) -> None:
    note("any")
    assert (one(show(watcher))["Definitions"], one(show(watcher))["Capabilities"]) == ("all", "none")
    note("none", definitions=[])
    assert {line["Definitions"] for line in table(show(watcher))} == {"all", "none"}


def test_of_many_names_a_few_are_said_and_the_rest_opened(watcher: Client) -> None:
    note(capabilities=[f"c{n:02}" for n in range(60)])
    text = show(watcher)
    assert "<summary>c00, c01, c02 and 57 more</summary>" in text
    assert "<li>c59</li>" in text


@pytest.mark.parametrize(
    ("ago_s", "word", "colour"), [(50, "present", "good"), (70, "late", "warning"), (310, "gone", "quiet")]
)
def test_a_worker_is_late_after_a_minute_and_gone_after_five(
    watcher: Client, ago_s: int, word: str, colour: str
) -> None:
    note(ago_s=ago_s)
    text = show(watcher)
    assert one(text)["State"] == word
    assert f'workloads-{colour}">{word}' in re.search(r"<tbody>.*", text, re.S)[0]


def test_one_that_is_gone_and_holds_work_stands_out(watcher: Client) -> None:
    fence = claim()
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE workloads_workload SET claimed_at = %s, last_heartbeat = %s WHERE worker_id = 'w'",
            [_past(7_200), _past(3_600)],
        )
    note(ago_s=4_000)
    text = show(watcher)
    assert 'workloads-bad">gone with work<' in text
    line = one(text)
    assert (line["Last claim"], line["Last heartbeat"], line["Seen"]) == ("2 hours ago", "1 hour ago", "1 hour ago")
    assert fence.worker_id == "w"


def _past(seconds: int) -> Any:
    at = authority.read_clock() - dt.timedelta(seconds=seconds)
    return connection.ops.adapt_datetimefield_value(at)


def test_a_lease_that_is_kept_is_a_sign_of_life_too(watcher: Client) -> None:
    claim()
    note(ago_s=4_000)
    line = one(show(watcher))
    assert line["State"] == "present"
    assert re.fullmatch(r"\d s ago", line["Last heartbeat"])


def test_it_counts_how_many_are_how_late(watcher: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, ago_s in enumerate((0, 1, 70, 400, 500, 600)):
        note(str(number), ago_s=ago_s)
    text = " ".join(re.sub(r"<[^>]*>", " ", show(watcher)).split())
    assert "present seen within a minute: 2 late not seen for a minute: 1 gone not seen for five minutes: 3" in text
    monkeypatch.setattr(workers, "MOST_COUNTED", 2)
    text = show(watcher)
    assert "not seen for five minutes: more than 2" in text
    assert "seen within a minute: 2<" in text


# What it holds


def test_it_links_to_the_work_that_a_worker_holds(watcher: Client, client_with: Callable[..., Client]) -> None:
    claim("1"), claim("2"), claim("3", worker_id="v")
    note("w & co", tenant_id="t", application_id="app")
    note(tenant_id="t", application_id="app")
    holding = next(line for line in table(show(watcher)) if line["Holds"] == "2")
    address = urlsplit(holding["link"])
    assert address.path == LIST
    assert parse_qs(address.query) == {"worker": ["w"], "tenant": ["t"], "application": ["app"]}
    assert {line["Holds"] for line in table(show(client_with("view_seenworker", username="wilma")))} == {"0", "2"}
    assert f"{LIST}?" not in show(client_with("view_seenworker", username="willy"))


def test_the_list_behind_the_link_holds_that_work(watcher: Client) -> None:
    held = claim("1")
    other = claim("2", worker_id="v")
    note()
    text = watcher.get(one(show(watcher))["link"]).content.decode()
    assert held.workload_id in text and other.workload_id not in text


def test_two_tenants_workers_of_one_name_hold_each_its_own(watcher: Client) -> None:
    note(tenant_id="t", ago_s=1)
    note(tenant_id="u", application_id="app")
    claim("1"), claim("2"), claim("3", tenant_id="u"), claim("4", tenant_id="u", application_id="other")
    authority.fail(claim("5"), kind="broken", error="x")
    assert [(line["Holds"], line["Failed"]) for line in table(show(watcher))] == [
        ("1", "0 of 1 (0 %)"),
        ("2", "1 of 3 (33 %)"),
    ]


def test_counting_what_is_held_stops(watcher: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    claim("1"), claim("2")
    note()
    monkeypatch.setattr(worker_rows, "MOST_CLAIMS", 1)
    assert one(show(watcher))["Holds"] == "at least 1"


def test_who_holds_work_and_was_not_seen_is_shown_too(watcher: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    note("seen")
    claim("1", worker_id="seen"), claim("2", worker_id="direct"), claim("3", worker_id="direct")
    row = one(show(watcher), "unseen")
    assert (row["Worker"], row["Holds"]) == ("direct", "2")
    assert re.fullmatch(r"\d s ago", row["Last heartbeat"])
    assert parse_qs(urlsplit(row["link"]).query) == {"worker": ["direct"]}
    assert table(show(watcher, "?q=seen"), "unseen") == []
    assert "There may be more" not in show(watcher)
    claim("4", worker_id="another")
    monkeypatch.setattr(worker_rows, "MOST_UNSEEN", 1)
    text = show(watcher)
    assert one(text, "unseen")["Worker"] == "another"
    assert "There may be more" in text


# How its attempts end


def test_failures_are_a_share_of_the_attempts_begun_within_the_hour(watcher: Client) -> None:
    note()
    fail(admit("1"))
    authority.complete(claim("2"), result_id="r", output=1)
    authority.time_out(claim("3").workload_id, actor="op")
    lost = authority.claim(admit("4").workload_id, worker_id="w", capabilities=(), lease_ms=1)
    authority.recover_expired(now=lost.expires_at)
    authority.release(claim("5"))
    claim("6")
    fail(admit("7"), worker_id="v")
    assert one(show(watcher))["Failed"] == "3 of 6 (50 %)"


def test_what_befalls_work_that_waits_is_no_workers_failure(watcher: Client) -> None:
    note()
    authority.time_out(authority.release(claim("1")).workload_id, actor="op")
    assert one(show(watcher))["Failed"] == "0 of 1 (0 %)"


def test_attempts_of_another_hour_do_not_count(watcher: Client) -> None:
    note()
    before = authority.read_clock() - dt.timedelta(minutes=61)
    request = AdmissionRequest(
        tenant_id="t", application_id="app", requested_by="u", definition_id="d", idempotency_key="k"
    )
    workload_id = authority.admit(request, now=before).workload.workload_id
    held = authority.claim(workload_id, worker_id="w", capabilities=(), lease_ms=10**7, now=before)
    authority.fail(held.fence, kind="broken", error="x")
    assert Event.objects.filter(to_state="FAILED").count() == 1
    assert one(show(watcher))["Failed"] == "–"


def test_of_too_many_events_the_newest_are_read_and_it_says_since_when(
    watcher: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    note()
    assert "within the last hour" in show(watcher)
    for key in "123":
        fail(admit(key))
    monkeypatch.setattr(worker_rows, "MOST_EVENTS", 4)
    text = show(watcher)
    assert one(text)["Failed"] == "2 of 2 (100 %)"
    assert "among the newest 5000 claims and failures: since" in re.sub(",|\u202f", "", text)


# Order, search, cost


def test_the_last_seen_come_first_and_pages_follow_one_another(
    watcher: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "ROWS_A_PAGE", 2)
    claim(worker_id="direct")
    for number in range(5):
        note(f"w{number}", ago_s=100 - number)
    SeenWorker.objects.filter(worker_id__in=["w2", "w3"]).update(seen_at=SeenWorker.objects.get(worker_id="w2").seen_at)
    seen, query = [], ""
    for _ in range(3):
        text = show(watcher, query)
        seen += [line["Worker"].split()[0] for line in table(text)]
        following = re.search(r'class="workloads-more"><a href="([^"]*)"', text)
        assert bool(table(text, "unseen")) == (query == "")
        query = html.unescape(following[1]) if following else "the end"
    assert seen == ["w4", "w3", "w2", "w1", "w0"]
    assert query == "the end"


@pytest.mark.parametrize(
    "mark",
    ["", "nothing", "~5", "2041-05-06~5", "2041-05-06T00:00:00~5", "2041-13-06T00:00:00Z~5", "a~b", "~" + "9" * 5000],
)
def test_an_address_that_marks_no_row_shows_the_first_page(watcher: Client, mark: str) -> None:
    note()
    assert one(show(watcher, f"?after={mark}"))["Worker"].startswith("w ")


def test_behind_the_last_there_are_no_more(watcher: Client) -> None:
    row = note()
    assert "There are no more." in show(watcher, f"?after={worker_rows.mark_of(row)}")


def test_a_worker_is_found_by_how_its_id_begins(watcher: Client) -> None:
    note("web-1"), note("web-2"), note("other")
    assert len(table(show(watcher, "?q=web"))) == 2
    assert len(table(show(watcher, "?q=%20web-2%00"))) == 1
    assert "No worker whose id begins like this" in show(watcher, "?q=b-1")


def test_it_costs_as_many_queries_for_many_as_for_one_and_reads_no_payloads(watcher: Client) -> None:
    note("w0"), claim("0", worker_id="w0"), claim("d0", worker_id="d0")
    with CaptureQueriesContext(connection) as few:
        show(watcher)
    for number in range(1, 40):
        note(f"w{number}", tenant_id="t"), claim(str(number), worker_id=f"w{number}")
        claim(f"d{number}", worker_id=f"d{number}")
    with CaptureQueriesContext(connection) as many:
        assert len(table(show(watcher))) == 40
    assert len(many) == len(few) <= 14
    for query in many:
        assert not any(column in query["sql"] for column in ("evidence", '"input"', "`input`", "last_failure"))


# Spoilt and hostile


@pytest.mark.parametrize("spoilt", ["[{", "5", "null"])
def test_a_row_that_cant_be_read_shows_as_such_and_breaks_no_other(watcher: Client, spoilt: str) -> None:
    note("fine", ago_s=1)
    note("bad")
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE workloads_seenworker SET capabilities = %s, definitions = %s WHERE worker_id = 'bad'", [spoilt] * 2
        )
    bad, fine = table(show(watcher))
    assert bad["Capabilities"] == bad["Definitions"] == f"unreadable {spoilt}"
    assert fine["Capabilities"] == "none"


def test_what_a_worker_sends_is_shown_and_never_run(watcher: Client) -> None:
    nasty = "<script>alert(1)</script>"
    note(
        nasty,
        capabilities=[nasty, *(f"{nasty}{n}" for n in range(9))],
        definitions=[nasty],
        tenant_id=nasty,
        incarnation=nasty,
    )
    claim(worker_id=f"{nasty}2")
    text = show(watcher)
    assert "<script>alert" not in text
    assert nasty in one(text)["Worker"] and nasty in one(text, "unseen")["Worker"]
