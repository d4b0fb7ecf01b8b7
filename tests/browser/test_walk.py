"""Each page, as each person, light and dark, wide and narrow: it is there, whole, quiet, and legible for everybody."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlsplit

import pytest

from tests.browser.pages import PLACES, Place
from tests.browser.site import ROLES, Site
from tests.browser.visits import SCHEMES, WIDTHS

FULL = "superuser"


def walk(somebody: Any, place: Place, *, widths: Any = WIDTHS, schemes: Any = SCHEMES) -> list[str]:
    """Return what is wrong with a page in these shapes: loaded anew for each width, and looked at in each scheme."""
    found = []
    for width in widths:
        somebody.shape("light", width)
        answer = somebody.open(place.path(somebody.site))
        if answer.status != 200:
            return [f"{place.path(somebody.site)} answers {answer.status}"]
        if place.shows not in somebody.reads():
            found.append(f"{width}: it does not show {place.shows!r}: {somebody.reads()[:500]}")
        for scheme in schemes:
            somebody.shape(scheme, width)
            # What is there is the same in every scheme.
            faults = somebody.look(colours_alone=scheme != schemes[0])
            found += [f"{width}, {scheme}: {fault}" for fault in faults]
    return found


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_a_page_is_whole_in_every_shape(place: Place, people: Callable[..., Any]) -> None:
    # Whoever may do everything sees the most of each page.
    found = walk(people(FULL), place)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("role", [role for role in ROLES if role != FULL])
def test_others_see_their_pages_and_no_more(role: str, site: Site, people: Callable[..., Any]) -> None:
    somebody = people(role)
    found = []
    for place in PLACES:
        if role in place.roles:
            answer = somebody.open(place.path(site))
            found += [f"{place}: {fault}" for fault in somebody.glance()]
            if answer.status != 200 or place.shows not in somebody.reads():
                found.append(f"{place}: {answer.status}, without {place.shows!r}")
        elif (status := somebody.context.request.get(site.url + place.path(site)).status) != 403:
            found.append(f"{place}: {status} instead of 403")
    somebody.noted.clear()
    assert not found, "\n".join(found)


def test_a_stranger_is_asked_who_they_are(site: Site, people: Callable[..., Any]) -> None:
    stranger = people("")
    for place in PLACES:
        path = place.path(site)
        stranger.open(path)
        assert path.startswith("/admin/") == ("/admin/login/" in stranger.page.url), place
    stranger.open("/admin/login/")
    assert stranger.look_in_every_shape() == []


def test_every_page_is_read_without_javascript(site: Site, people: Callable[..., Any]) -> None:
    somebody = people(FULL, scripts=False)
    found = []
    for place in PLACES:
        answer = somebody.open(place.path(site))
        if answer.status != 200 or place.shows not in somebody.reads():
            found.append(f"{place}: {answer.status}, without {place.shows!r}")
    assert found + somebody.noted == []


def test_payloads_are_read_by_those_alone_who_may(site: Site, people: Callable[..., Any]) -> None:
    secret = "12345678901234567890"
    for role, may in (("viewer", False), ("operator", True)):
        somebody = people(role)
        somebody.open(site.page("granted"))
        assert (secret in somebody.page.content()) is may


# By the names of their addresses: why they are no pages to walk.
EXCUSED: Final = {
    "add": "nothing is added, changed or deleted here",
    "delete": "nothing is added, changed or deleted here",
    "history": "leads to the page itself",
    "workloads_zone": "answers a choice of the time zone, and leads back",
    "workloads_overview": "leads to the app's index",
    "workloads_tokens_revoke": "asks before a token is revoked: tests/admin/test_tokens.py",
    "workloads_bulkaction_confirm": "a step of test_many.py",
    "workloads_bulkaction_go_on": "a step of test_many.py",
    "workloads_bulkaction_stop": "a step of test_many.py",
    "workloads_bulkaction_change": "walked in test_many.py",
    "workloads_workload_rearm": "walked in test_actions.py",
    "workloads_workload_cancel": "walked in test_actions.py",
    "workloads_workload_force_cancel": "walked in test_actions.py",
    "workloads_workload_time_out": "walked in test_actions.py",
}


def test_every_address_of_the_admin_is_walked(site: Site) -> None:
    from django.contrib import admin
    from django.urls import resolve

    walked = {resolve(urlsplit(place.path(site)).path).url_name for place in PLACES if place.path(site) != "/"}
    names = {
        pattern.name
        for model, shown in admin.site._registry.items()
        if model._meta.app_label == "workloads"
        for pattern in shown.get_urls()
        if pattern.name
    }
    missed = {name for name in names - walked if name not in EXCUSED and name.rpartition("_")[2] not in EXCUSED}
    assert missed == set()


@pytest.mark.long
@pytest.mark.parametrize("role", [role for role in ROLES if role != FULL])
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_a_page_is_whole_in_every_shape_for_everybody(place: Place, role: str, people: Callable[..., Any]) -> None:
    if role in place.roles:
        found = walk(people(role), place)
        assert not found, "\n".join(found)
