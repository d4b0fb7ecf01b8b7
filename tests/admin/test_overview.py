"""The overview in the admin: what it answers, to whom, and that nothing spoilt breaks it."""

from __future__ import annotations

import datetime as dt
import itertools
import re
import uuid
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from django.contrib import admin
from django.core.cache import cache
from django.test import Client, override_settings
from django.urls import path, reverse

from project import urls
from tests.admin.conftest import admit, fail, page
from tests.authority.builders import spoil, write_raw
from workloads import authority
from workloads.admin import figures, overview, survey
from workloads.contract import AdmissionRequest, Dependency, Timeouts
from workloads.models import SeenWorker, Workload

INDEX = "/admin/workloads/"
FRAGMENT = "/admin/workloads/workload/overview/"

second = admin.AdminSite(name="second")
second.register(Workload, admin.site._registry[Workload].__class__)
urlpatterns = [*urls.urlpatterns, path("second/", second.urls)]

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def empty_cache() -> Iterator[None]:
    cache.clear()
    yield
    cache.clear()


def seen(worker_id: str = "w") -> None:
    now = authority.read_clock()
    SeenWorker.objects.create(
        worker_key=uuid.uuid4(), worker_id=worker_id, capabilities=[], first_seen_at=now, seen_at=now
    )


def shown(client: Client, address: str = INDEX) -> str:
    cache.clear()
    response = client.get(address)
    assert response.status_code == 200
    return response.content.decode()


class Words(HTMLParser):
    """Collects what a page says, and what its attributes are."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def words(text: str) -> str:
    return re.sub(r"\s+", " ", " ".join(Words(text).words))


def links(text: str) -> list[str]:
    return [attrs.get("href") or "" for tag, attrs in Words(text).tags if tag == "a"]


# Who sees it


def test_the_index_of_the_app_shows_the_overview_above_the_apps_models(viewer: Client) -> None:
    admit()
    text = shown(viewer)
    assert text.index('id="workloads-overview"') < text.index('class="app-workloads module')
    assert f'data-url="{FRAGMENT}"' in text and "workloads/overview.js" in text


def test_without_the_right_to_look_there_are_no_figures(client_with: Callable[..., Client]) -> None:
    admit()
    client = client_with("view_access")
    text = shown(client)
    assert 'id="workloads-overview"' not in text and 'class="app-workloads module' in text
    assert client.get(FRAGMENT).status_code == 403
    assert "Overview of workloads" not in text


def test_who_is_not_logged_in_is_asked_to(client: Client) -> None:
    response = client.get(FRAGMENT)
    assert response.status_code == 302 and "/login/" in response["Location"]


def test_the_fragment_is_the_overview_alone_and_is_only_read(viewer: Client) -> None:
    admit()
    text = shown(viewer, FRAGMENT)
    assert text.lstrip().startswith('<div id="workloads-overview"') and "<html" not in text
    assert viewer.post(FRAGMENT).status_code == 405
    assert "no-store" in viewer.get(FRAGMENT)["Cache-Control"]


def test_every_page_of_the_admin_leads_to_it(viewer: Client) -> None:
    text = viewer.get("/admin/").content.decode()
    assert f'<a href="{INDEX}">Overview of workloads</a>' in text


def test_another_admin_site_has_its_own_addresses(client_with: Callable[..., Client]) -> None:
    fail(admit())
    client = client_with("view_workload", "view_seenworker")
    with override_settings(ROOT_URLCONF=__name__):
        text = shown(client, "/second/workloads/")
        # It has no page of workers, and no choice of zones.
        assert "All workers" not in text and "workloads-zone" not in text
        assert reverse("admin:workloads_overview", current_app="second").startswith("/second/")
        assert 'data-url="/second/workloads/workload/overview/"' in text
        own = [link for link in links(text) if "/workloads/workload/" in link]
        assert own and all(link.startswith("/second/") for link in own)


# What it answers


def test_an_empty_site_is_told_what_to_do_first(viewer: Client) -> None:
    said = words(shown(viewer))
    assert "There is no work yet." in said and "workloads_admit" in said and "workloads_pass --interval" in said
    assert "Something is wrong" not in said and "What is stuck" not in said


def test_all_is_well(viewer: Client) -> None:
    admit(not_before=authority.read_clock() + dt.timedelta(hours=1))
    authority.run_pass()
    said = words(shown(viewer))
    assert "All is well A pass runs, and nothing is due." in said
    assert "What is stuck, and why Nothing." in said and "Dead letters, by what failed None." in said
    seen()
    assert "All is well A pass runs, and 1 worker has been seen in the last minutes." in words(shown(viewer))


def test_attention_says_what_for_and_where_to_look(viewer: Client) -> None:
    for key in "ab":
        fail(admit(key, definition_id="send & see"), kind="smtp")
    authority.run_pass()
    text = shown(viewer)
    assert "Attention 1 thing asks for somebody. Attention 2 workloads became dead letters in the last hour." in words(
        text
    )
    listed = viewer.get("/admin/workloads/workload/?state=DEAD_LETTER&finished_from=1h")
    assert "/admin/workloads/workload/?state=DEAD_LETTER&finished_from=1h" in links(text)
    assert listed.status_code == 200


def test_what_is_wrong_comes_first(viewer: Client) -> None:
    fail(admit("dead"))
    admit("due")
    said = words(shown(viewer))
    assert "Something is wrong 3 things ask for somebody." in said
    assert said.index("No pass has ever run") < said.index("no worker has been seen") < said.index("dead letter in")


def test_dead_letters_in_groups_lead_to_the_list_of_them(viewer: Client) -> None:
    for key in "abc":
        fail(admit(key, definition_id="send"), kind="smtp: 4xx")
    fail(admit("d", definition_id="other"), kind="broken")
    text = shown(viewer)
    said = words(text)
    assert "send smtp 3 dead letters of send 3" in said and "other broken 1 dead letters of other 1" in said
    address = "/admin/workloads/workload/?state=DEAD_LETTER&definition=send&failure_kind=smtp"
    assert address in links(text)


def test_many_groups_are_cut_and_said_to_be(viewer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "MOST_GROUPS", 1)
    monkeypatch.setattr(overview, "MOST_PARTS", 1)
    monkeypatch.setattr(figures, "MOST_GROUPED", 3)
    for key in "abc":
        fail(admit(key, definition_id=key, application_id=key))
    said = words(shown(viewer))
    assert "2 more groups are not shown." in said and said.count("2 more are not shown.") == 2
    assert "are grouped here" not in said
    monkeypatch.setattr(figures, "MOST_GROUPED", 2)
    assert "Only the newest 2 are grouped here." in words(shown(viewer))


def test_dead_letters_that_never_failed_are_grouped_too(viewer: Client) -> None:
    parent = admit("parent")
    authority.cancel(parent.workload_id, actor="op")
    admit("child", dependencies=[Dependency(workload_id=parent.workload_id)])
    authority.run_pass()
    text = shown(viewer)
    assert "d no attempt has failed 1 dead letters of d" in words(text)
    assert "/admin/workloads/workload/?state=DEAD_LETTER&definition=d" in links(text)


def test_counts_by_definition_and_application_lead_to_their_lists(viewer: Client) -> None:
    admit("a", tenant_id="acme & sons", application_id="x=y")
    text = shown(viewer)
    place = "/admin/workloads/workload/?tenant=acme+%26+sons&application=x%3Dy"
    assert {place, f"{place}&due=now", "/admin/workloads/workload/?definition=d&due=now"} <= set(links(text))
    assert f"{place}&state=held" not in links(text)


def test_every_link_of_the_overview_leads_somewhere(viewer: Client) -> None:
    parent = fail(admit("dead"))
    admit("child", dependencies=[Dependency(workload_id=parent.workload_id)])
    admit("later", not_before=authority.read_clock() + dt.timedelta(hours=1))
    authority.claim(admit("held").workload_id, worker_id="w", capabilities=(), lease_ms=60_000)
    authority.cancel(admit("cancelled").workload_id, actor="op")
    admit("due")
    text = shown(viewer, FRAGMENT)
    ids = {attrs.get("id") for _tag, attrs in Words(text).tags}
    found = set(links(text))
    assert len(found) > 10
    for link in sorted(found):
        if link.startswith("#"):
            assert link[1:] in ids
            continue
        response = viewer.get(link)
        assert response.status_code == 200, link
        assert not getattr(response.context.get("criteria"), "problems", None), link


def test_what_is_stuck_says_why(viewer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "GRACE", dt.timedelta())
    first = admit("first", capability_snapshot={"gpu"}, definition_id="render")
    admit("second", capability_snapshot={"gpu"}, definition_id="render")
    seen()
    text = shown(viewer)
    said = words(text)
    assert "Due the longest all 2" in said and "render@1" in said
    assert "behind_others" in said or "no_capable_worker_seen" in said
    assert page(first) in links(text)
    monkeypatch.setattr(survey, "MOST_EXPLAINED_AMONG", 0)
    assert "Too much waits in the same application to tell here" in words(shown(viewer))


def test_each_kind_of_what_is_stuck_is_listed(viewer: Client) -> None:
    long_ago = authority.read_clock() - dt.timedelta(hours=1)

    def old(key: str, **changes: Any) -> str:
        fields = {"tenant_id": "t", "application_id": "app", "requested_by": "u", "definition_id": key, **changes}
        admission = authority.admit(AdmissionRequest(idempotency_key=key, **fields), now=long_ago)
        return admission.workload.workload_id

    def take(key: str, lease_ms: int) -> str:
        taken = authority.claim(old(key), worker_id=f"w-{key}", capabilities=(), lease_ms=lease_ms, now=long_ago)
        return taken.workload_id

    take("lost", 60_000)
    authority.cancel(take("asked", 36_000_000), actor="op", now=long_ago)
    old("late", timeouts=Timeouts(queue_ms=1_000))
    old("orphan", dependencies=[Dependency(workload_id="workload_x")])
    parent = fail(admit("parent"))
    old("child", dependencies=[Dependency(workload_id=parent.workload_id)])
    given_up = admit("given up")
    authority.cancel(given_up.workload_id, actor="op")
    old("hopeless", dependencies=[Dependency(workload_id=given_up.workload_id)])
    said = words(shown(viewer)).partition("What is stuck, and why")[2].partition("Dead letters, by what failed")[0]
    for title, key in (
        ("Leases that are over 1 in all", "CLAIMED lost@1"),
        ("Deadlines that have passed 1 in all", "READY late@1"),
        ("Cancellations that no worker has confirmed all 1", "asked@1"),
        ("Waiting for dead letters all 1", "READY child@1"),
        ("Waiting for what nobody has admitted all 1", "READY orphan@1"),
        ("Waiting for what can't come about any more all 1", "READY hopeless@1"),
    ):
        assert key in said.partition(title)[2][:80], (title, said)
    assert "t / app · w-lost" in said


def test_the_oldest_waits_and_the_longest_is_held(viewer: Client) -> None:
    due = admit("due")
    held = admit("held")
    authority.claim(held.workload_id, worker_id="w", capabilities=(), lease_ms=60_000)
    text = shown(viewer)
    assert re.search(r"Claimable now 1 The longest wait is \d+ s \.", words(text))
    assert re.search(r"Held by workers 1 The longest is held for \d+ s \.", words(text))
    assert {page(due), page(held)} <= set(links(text))


def test_signs_of_life_as_ages(viewer: Client, client_with: Callable[..., Client]) -> None:
    admit()
    assert "The last pass never" in words(shown(viewer))
    authority.run_pass()
    seen("worker <1>")
    text = shown(viewer)
    assert re.search(r"The last pass \d+ s ago", words(text))
    assert "worker &lt;1&gt;" in text and "worker <1>" not in text
    assert "All workers" not in words(text)
    both = client_with("view_workload", "view_seenworker", username="wanda")
    assert "All workers" in words(shown(both))


def test_charts_have_words_for_those_who_do_not_see_them(viewer: Client) -> None:
    for key in "abc":
        fail(admit(key))
    tags = Words(shown(viewer)).tags
    drawings = [attrs for tag, attrs in tags if tag == "svg" and attrs.get("class") == "workloads-chart"]
    ids = [attrs["id"] for _tag, attrs in tags if "id" in attrs]
    assert len(drawings) == 9 and len(ids) == len(set(ids))
    for attrs in drawings:
        assert attrs["role"] == "img"
        assert set((attrs["aria-labelledby"] or "").split()) <= set(ids)
    text = shown(viewer)
    assert "Dead letters, Last hour" in text and "3 in all; the most, 3, in the span from" in text
    assert len(re.findall(r"<details id=", text)) == 3


def test_nothing_stands_inline_and_nothing_comes_from_elsewhere(viewer: Client) -> None:
    fail(admit())
    for tag, attrs in Words(shown(viewer, FRAGMENT)).tags:
        assert tag not in {"script", "style"} and "style" not in attrs
        assert not any(name.startswith("on") for name in attrs)
        assert not any((attrs.get(name) or "").startswith(("http", "//")) for name in ("href", "src"))


def test_headings_follow_each_other(viewer: Client) -> None:
    fail(admit())
    tags = [tag for tag, _ in Words(shown(viewer)).tags if re.fullmatch("h[1-6]", tag)]
    assert tags[0] == "h1"
    assert all(int(after[1]) - int(before[1]) <= 1 for before, after in itertools.pairwise(tags))


def test_ages_of_figures_are_shown_and_the_zone_is_the_readers(viewer: Client) -> None:
    admit()
    viewer.cookies["workloads_tz"] = "Asia/Kolkata"
    for address in (INDEX, FRAGMENT):
        text = shown(viewer, address)
        assert re.search(r"As of \d\d:\d\d:\d\d \+05:30\.", text)
        assert re.search(r"Read \d+ s ago\.", text) and re.search(r'data-age="\d+"', text)
    kept = viewer.get(INDEX).content.decode()
    assert "Asia/Kolkata" in kept


@override_settings(CACHES={"default": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"}})
def test_without_a_cache_it_is_read_anew(viewer: Client) -> None:
    assert "There is no work yet." in words(viewer.get(FRAGMENT).content.decode())
    admit()
    assert "Claimable now 1" in words(viewer.get(FRAGMENT).content.decode())


# What is spoilt, and what means harm

HARM = '<script>alert("x")</script>'


def test_text_that_means_harm_is_text(viewer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "GRACE", dt.timedelta())
    fail(admit("a", definition_id=HARM, tenant_id=HARM, application_id=HARM), kind=HARM, error=HARM, worker_id=HARM)
    admit("b", definition_id=HARM, tenant_id=HARM, application_id=HARM)
    authority.claim(admit("c", definition_id=HARM).workload_id, worker_id=HARM, capabilities=(), lease_ms=60_000)
    write_raw("workload", admit("d").workload_id, state="<b>MELTED")
    seen(HARM)
    text = shown(viewer, FRAGMENT)
    assert "<script" not in text and "<b>" not in text
    assert "&lt;script&gt;" in text and "&lt;b&gt;MELTED" in text


def test_characters_that_turn_text_around_stand_as_their_numbers(viewer: Client) -> None:
    turned = "evil\u202etxt"
    names = {"definition_id": turned, "tenant_id": turned, "application_id": turned}
    fail(admit("a", **names), kind=turned, worker_id=turned)
    authority.claim(admit("b", **names).workload_id, worker_id=turned, capabilities=(), lease_ms=60_000)
    write_raw("workload", admit("c").workload_id, state=turned)
    seen(turned)
    text = shown(viewer, FRAGMENT)
    assert "\u202e" not in text and text.count("evil[U+202E]txt") > 5


def test_states_stand_in_the_order_of_a_life(viewer: Client) -> None:
    fail(admit("a"))
    admit("b")
    write_raw("workload", admit("c").workload_id, state="ODD")
    said = words(shown(viewer)).partition("By state")[2]
    assert said.index("ODD") < said.index("READY") < said.index("DEAD_")


def test_spoilt_rows_are_counted_and_break_nothing(viewer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "GRACE", dt.timedelta())
    write_raw("workload", admit("a").workload_id, state="MELTED")
    spoil(admit("b").workload_id)
    write_raw("admitted", admit("c").workload_id, capability_snapshot="{", input="{", timeouts="[")
    write_raw("workload", fail(admit("e")).workload_id, last_failure=None, finished_at=None)
    write_raw("workload", admit("f").workload_id, state="RUNNING")
    write_raw("workload", admit("g").workload_id, worker_id="w", expires_at=None)
    said = words(shown(viewer))
    assert "1 workload is in the state “MELTED”, which this version does not know." in said
    assert "Its record can't be read; its page tells more." in said


def test_a_state_that_nobody_knows_is_no_link(viewer: Client) -> None:
    write_raw("workload", admit("a").workload_id, state="MELTED")
    assert "/admin/workloads/workload/?state=MELTED" not in links(shown(viewer))


def test_the_script_says_what_the_page_gives_it_to_say() -> None:
    script = (Path(overview.__file__).parents[1] / "static/workloads/overview.js").read_text(encoding="utf-8")
    template = (Path(overview.__file__).parents[1] / "templates/admin/workloads/overview.html").read_text(
        encoding="utf-8"
    )
    assert not re.search(r"textContent = [\"'`]", script)
    used = set(re.findall(r"said\.(said[A-Za-z]+)", script))
    given = {
        "".join(word if index == 0 else word.title() for index, word in enumerate(name.split("-")))
        for name in re.findall(r"data-(said-[a-z-]+)=", template)
    }
    assert used == given and len(used) == 6


def test_the_longest_wait_is_said_to_be_a_bound_where_it_is_one(
    viewer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    admit()
    monkeypatch.setattr(figures, "MOST_LOOKED_AT", 0)
    assert "The longest wait is at least" in words(shown(viewer))
