"""Pages in German say nothing in English, and count and decline as German does; the HTTP interface stays as it is."""

from __future__ import annotations

import datetime as dt
import html
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final
from urllib.parse import urlencode

import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from django.utils import translation

from tests.admin import strings
from tests.admin.conftest import LIST, admit, fail, page
from tests.admin.test_locales import PLACEHOLDER, TAG, entries, forms
from tests.authority.builders import EVERY, bring, spoil, write_raw
from workloads import authority
from workloads.admin.deeds import DEEDS
from workloads.admin.display import relative
from workloads.admin.page_timeline import lasting
from workloads.api import schema
from workloads.contract import Dependency
from workloads.models import Access, BulkAction, Workload

GERMAN: Final = {"accept-language": "de"}


@pytest.fixture(autouse=True)
def _in_english_before_and_after() -> Iterator[None]:
    # LocaleMiddleware leaves the language of the last request in force.
    with translation.override("en"):
        yield


# What stands on pages in no language: the contract's voices, the name of a payload, and a text of Django's own.
UNTRANSLATED: Final = {"operator": "change/", "input": "payload/input/", "Search": "workloads/access/"}


@cache
def hidden_english() -> tuple[set[str], set[str]]:
    """Return the pieces of two words and more that only English has, and the single texts that only English is."""
    germans = " ".join(german for entry in entries() for _english, german in forms(entry))
    pieces, singles = set(), set()
    for entry in entries():
        for english, german in forms(entry):
            if english == german:
                continue
            if not PLACEHOLDER.search(english) and english not in germans:
                singles.add(english)
            parts = re.split(rf"{PLACEHOLDER.pattern}|{TAG.pattern}", english)
            pieces |= {part.strip() for part in parts if strings.TWO_WORDS.search(part) and part.strip() not in germans}
    return pieces, singles


def english_in(markup: str) -> list[str]:
    """Return what a page says in English, of all that there is in German."""
    pieces, singles = hidden_english()
    whole = " ".join(html.unescape(markup).split())
    return sorted({piece for piece in pieces if piece in whole} | (singles & set(strings.texts_of(markup))))


def populate() -> list[Workload]:
    """Have workloads in each state and some that are spoilt, and what stands around them; return them."""
    found = [authority.get(bring(state, f"in {state}")[0]) for state in EVERY]
    found.append(fail(admit("failed"), error="it\nbroke"))
    found.append(admit("waits", dependencies=[Dependency(workload_id=found[0].workload_id)]))
    found.append(admit("gives up", dependencies=[Dependency(workload_id=fail(admit("dead")).workload_id)]))
    found.append(admit("later", not_before=authority.read_clock() + dt.timedelta(days=3, minutes=1)))
    granted = authority.issue_grant(
        subject="u",
        tenant_id="t",
        application_id="app",
        capabilities={"c"},
        issued_at=authority.read_clock(),
        expires_at=authority.read_clock() + dt.timedelta(days=1),
    )
    found.append(admit("granted", grant=granted, capability_snapshot={"c"}))
    for key, changes in (("spoilt", {}), ("odd", {"state": "LIMBO"}), ("empty", {"state": "RUNNING"})):
        found.append(admit(key))
        if changes:
            write_raw("workload", found[-1].workload_id, **changes)
        else:
            spoil(found[-1].workload_id)
    now = authority.read_clock()
    for name, seconds in (("here", 1), ("late", 100), ("gone", 1_000)):
        authority.note_worker(name, capabilities={"c"}, incarnation="i", now=now - dt.timedelta(seconds=seconds))
    user = get_user_model().objects.create_user("wanda")
    Access.objects.create(user=user, tenant_id="acme", is_worker=True, is_viewer=True, worker_prefix="wanda")
    return found


QUERIES: Final = (
    "state=DEAD_LETTER&failure_kind=broken&failure=it&finished_from=24h",
    "state=no&due=no&definition=%00&q=a&q=b&admitted_from=no&other=1&tenant=" + "x" * 300,
    "failure=it",
    "q=none",
    "blocked=yes&due_from=1h&due_to=1m",
    "due=now&definition=d&revision=1&tenant=t&application=app",
    "due=later&admitted_from=2026-01-31&admitted_to=2d",
    "state=held&worker=w&started_from=2026-01-31T15:30&started_to=10m",
    "state=parked&finished_to=10s",
)


def walk(client: Client) -> Iterator[tuple[str, Any]]:
    """Yield each page of the admin and of the site around it, with its answer."""

    def get(address: str) -> tuple[str, Any]:
        return address, client.get(address)

    yield get("/admin/workloads/")
    workloads = populate()
    for address in ("/", "/nothing/", "/admin/", "/admin/workloads/", LIST, "/admin/workloads/seenworker/"):
        yield get(address)
    for query in (
        "state=DEAD_LETTER&failure_kind=broken",
        "state=no",
        "admitted_from=24h",
        "text=it",
        "q=none",
        "due=now",
    ):
        yield get(f"{LIST}?{query}")
    for workload in workloads:
        yield get(page(workload))
    for what in ("input", "output"):
        yield get(f"{LIST}{workloads[0].pk}/payload/{what}/")
    for verb, deed in DEEDS.items():
        selected = [str(workload.pk) for workload in workloads[: len(EVERY)]]
        yield get(f"{LIST}{deed.path}?{urlencode({'pk': selected}, doseq=True)}")
        yield f"{verb} without a reason", client.post(f"{LIST}{deed.path}", {"item": [f"{selected[0]}:1"]})
        yield f"{verb} of some", client.post(LIST, {"action": verb, "_selected_action": selected}, follow=True)
        everything = {"action": verb, "_selected_action": selected[:1], "select_across": "1"}
        yield f"{verb} of all", client.post(f"{LIST}?state=DEAD_LETTER", everything, follow=True)
        at = f"/admin/workloads/bulkaction/{BulkAction.objects.latest('pk').pk}"
        for _step in range(20):
            if BulkAction.objects.latest("pk").stage != "selecting":
                break
            client.post(f"{at}/go-on/")
        yield get(f"{at}/change/")
        yield f"{verb} of all without a reason", client.post(f"{at}/confirm/", {"reason": ""}, follow=True)
        yield f"{verb} of all, stopped", client.post(f"{at}/stop/", follow=True)
    yield get("/admin/workloads/bulkaction/")
    access = "/admin/workloads/access/"
    row = Access.objects.get().pk
    for address in (access, f"{access}add/", f"{access}{row}/change/", f"{access}tokens/", f"{access}tokens/issue/"):
        yield get(address)
    for name in ("nobody", "wanda"):
        once = re.findall(r'name="once" value="([^"]+)"', client.get(f"{access}tokens/issue/").content.decode())
        given = {"user": name, "days": 30, "once": once[0]}
        yield f"a token for {name}", client.post(f"{access}tokens/issue/", given)
    revoke = re.findall(r'href="([^"]+/revoke/)"', client.get(f"{access}tokens/").content.decode())
    yield get(revoke[0])
    yield "a token, revoked", client.post(revoke[0], follow=True)


@pytest.mark.django_db
def test_no_page_in_german_says_anything_in_english(admin_user: Any) -> None:
    client = Client(headers=GERMAN)
    client.force_login(admin_user)
    said, odd = {}, []
    for name, response in walk(client):
        text = response.content.decode()
        if english := [word for word in english_in(text) if not name.endswith(UNTRANSLATED.get(word, " "))]:
            said[name] = english
        whole = html.unescape(text)
        # What was not filled in, or stands in no language.
        if '<html lang="de"' not in text or re.search(r"%\(\w+\)", whole) or response.status_code not in (200, 404):
            odd.append((name, response.status_code))
    assert (said, odd) == ({}, [])


@pytest.mark.django_db
def test_the_search_for_english_finds_it(admin_client: Client) -> None:
    fail(admit())
    found = english_in(admin_client.get(LIST).content.decode())
    assert {"State", "Admitted", "Those admitted last come first.", "Search workloads"} <= set(found)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("asked", "heading"),
    [
        ("de-AT,en;q=0.5", "Hintergrundaufträge, auf die Verlass ist"),
        ("en-GB,de;q=0.5", "Background work that is kept to the letter"),
        ("fr", "Background work that is kept to the letter"),
    ],
)
def test_the_browser_chooses_the_language(asked: str, heading: str) -> None:
    response = Client(headers={"accept-language": asked}).get("/")
    assert heading in response.content.decode()
    assert "Accept-Language" in response.headers["Vary"]


@pytest.mark.django_db
def test_one_is_said_otherwise_than_many(viewer: Client) -> None:
    admit("first")
    assert "1 Auftrag<" in viewer.get(LIST, headers=GERMAN).content.decode()
    admit("second")
    assert "2 Aufträge<" in viewer.get(LIST, headers=GERMAN).content.decode()


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (-30, "vor 30 s"),
        (-86_400, "vor 1 Tag"),
        (-3 * 86_400 - 7_200, "vor 3 Tagen, 2 Stunden"),
        (70 * 86_400, "in 2 Monaten, 1 Woche"),
    ],
)
def test_times_stand_in_the_case_that_their_words_ask_for(seconds: int, said: str) -> None:
    now = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)
    with translation.override("de"):
        text = relative(now + dt.timedelta(seconds=seconds), now)
    assert html.unescape(re.sub(r"<[^>]*>", "", text)).replace("\xa0", " ") == said


def test_a_decimal_stands_as_the_language_writes_it() -> None:
    span = dt.timedelta(milliseconds=12_345)
    assert lasting(span) == "12.3 s"
    with translation.override("de"):
        assert lasting(span) == "12,3 s"


# The interface


@pytest.mark.django_db
def test_the_http_interface_says_the_same_in_each_language(admin_client: Client) -> None:
    calls: list[Callable[[dict[str, str]], Any]] = [
        lambda headers: Client().get("/api/v1/workloads/", headers=headers),
        lambda headers: admin_client.get("/api/v1/workloads/", headers=headers),
        lambda headers: admin_client.get("/api/v1/workloads/?unknown=1", headers=headers),
        lambda headers: admin_client.delete("/api/v1/workloads/", headers=headers),
        lambda headers: admin_client.post("/api/v1/claims/", "{", "application/json", headers=headers),
        lambda headers: admin_client.post("/api/v1/claims/", "x", "text/plain", headers=headers),
        lambda headers: admin_client.get("/api/v1/nothing/", headers=headers),
        lambda headers: admin_client.get("/api/v1/schema/", headers=headers),
    ]
    for call in calls:
        plain, german = call({}), call(GERMAN)
        assert (german.status_code, german.content) == (plain.status_code, plain.content)
        assert german.headers["Content-Language"] == "en"
    english = schema.generate()
    with translation.override("de"):
        assert schema.generate() == english
