"""Times in the admin: in the zone that the browser tells or a person chose, with the offset, and in no one else's."""

from __future__ import annotations

import datetime as dt
import re
import threading

import pytest
from django.contrib.auth import get_user_model
from django.http import HttpResponse
from django.test import Client, RequestFactory, override_settings
from django.utils import timezone

from tests.admin.conftest import LIST, admit, page
from workloads.admin import zones
from workloads.admin.display import instant, relative
from workloads.models import Workload

WINTER = dt.datetime(2026, 1, 30, 13, 3, 7, 123456, tzinfo=dt.UTC)
SUMMER = dt.datetime(2026, 7, 30, 13, 3, 7, 123456, tzinfo=dt.UTC)
CHOOSE = "/admin/workloads/access/zone/"

RUBBISH = [
    "",
    "Mars/Olympus",
    "europe/berlin",
    "../../etc/passwd",
    "/etc/localtime",
    "Europe",
    "zone.tab",
    "<script>",
    "x" * 5000,
    "Europe/Berlin\x00",
    "'; drop table",
]


def request_with(cookie: str | None):
    request = RequestFactory().get("/admin/workloads/workload/")
    if cookie is not None:
        request.COOKIES[zones.COOKIE] = cookie
    return request


def text_in(client: Client, workload: Workload) -> str:
    response = client.get(page(workload))
    assert response.status_code == 200
    return response.content.decode()


def shown(workload: Workload, zone: str) -> str:
    """Return how the workload's admission looks in a zone."""
    with timezone.override(zone):
        return str(instant(workload.created_at))


def test_an_instant_has_its_offset_and_keeps_utc_exactly() -> None:
    with timezone.override("Europe/Berlin"):
        winter, summer = str(instant(WINTER)), str(instant(SUMMER))
    assert winter == (
        '<time datetime="2026-01-30T13:03:07.123456Z" title="2026-01-30 14:03:07.123456 +01:00">'
        "2026-01-30 14:03:07.123 +01:00</time>"
    )
    assert ">2026-07-30 15:03:07.123 +02:00<" in summer
    with timezone.override("America/St_Johns"):
        assert ">2026-01-30 09:33:07.123 -03:30<" in str(instant(WINTER))
    assert ">2026-01-30 13:03:07.123 +00:00<" in str(instant(WINTER))


def test_an_instant_in_the_hour_that_comes_twice_is_told_from_the_other() -> None:
    first = dt.datetime(2026, 10, 25, 0, 30, tzinfo=dt.UTC)
    with timezone.override("Europe/Berlin"):
        assert "02:30:00.000 +02:00" in str(instant(first))
        assert "02:30:00.000 +01:00" in str(instant(first + dt.timedelta(hours=1)))


def test_an_age_shows_its_instant_with_the_offset_on_hovering() -> None:
    with timezone.override("Asia/Kolkata"):
        text = str(relative(WINTER, WINTER + dt.timedelta(hours=3)))
    assert 'title="2026-01-30 18:33:07.123456 +05:30"' in text
    assert 'datetime="2026-01-30T13:03:07.123456Z"' in text
    assert re.search(r">3.hours ago</time>", text)


@pytest.mark.parametrize("year", [1, 9999])
def test_an_instant_whose_year_would_be_none_elsewhere_is_told_in_utc(year: int) -> None:
    edge = dt.datetime(year, 1 if year == 1 else 12, 1 if year == 1 else 31, 12, tzinfo=dt.UTC)
    for zone in ("Pacific/Kiritimati", "Pacific/Pago_Pago"):
        with timezone.override(zone):
            assert "<time" in instant(edge)
            assert "<time" in relative(edge, WINTER)


@pytest.mark.parametrize("name", ["Europe/Berlin", "America/Argentina/Buenos_Aires", "UTC", "Etc/GMT+5"])
def test_a_zone_that_is_one_is_used(name: str) -> None:
    assert str(zones.zone_of(request_with(name))) == name


@pytest.mark.parametrize("cookie", [None, zones.SITE, *RUBBISH])
def test_any_other_cookie_is_the_sites_zone(cookie: str | None) -> None:
    with override_settings(TIME_ZONE="Asia/Tokyo"):
        assert str(zones.zone_of(request_with(cookie))) == "Asia/Tokyo"


def test_a_zone_that_the_site_has_in_use_for_the_request_is_the_sites() -> None:
    with timezone.override("Asia/Tokyo"):
        assert str(zones.zone_of(request_with(zones.SITE))) == "Asia/Tokyo"


def test_the_zone_ends_with_the_view_whatever_becomes_of_it() -> None:
    seen = []

    @zones.in_zone
    def view(request, fails):
        seen.append(timezone.get_current_timezone_name())
        if fails:
            raise RuntimeError
        return HttpResponse()

    view(request_with("Europe/Berlin"), False)
    assert timezone.get_current_timezone_name() == "UTC"
    with pytest.raises(RuntimeError):
        view(request_with("Europe/Berlin"), True)
    assert timezone.get_current_timezone_name() == "UTC"
    thread = threading.Thread(target=view, args=(request_with("Asia/Tokyo"), False))
    thread.start()
    thread.join()
    view(request_with(None), False)
    assert seen == ["Europe/Berlin", "Europe/Berlin", "Asia/Tokyo", "UTC"]


@pytest.mark.django_db
def test_a_page_is_in_the_zone_of_who_asks_and_the_next_in_the_next_ones(viewer: Client) -> None:
    workload = admit()
    other = Client()
    other.force_login(get_user_model().objects.get(username="viola"))
    viewer.cookies[zones.COOKIE] = "Asia/Kolkata"
    for _ in range(2):
        text = text_in(viewer, workload)
        assert shown(workload, "Asia/Kolkata") in text
        assert "Times are shown in the zone Asia/Kolkata, now UTC+05:30." in text
        text = text_in(other, workload)
        assert shown(workload, "UTC") in text
        assert "Times are shown in the zone UTC, now UTC+00:00." in text


@pytest.mark.django_db
@pytest.mark.parametrize("cookie", RUBBISH)
def test_a_rubbish_cookie_breaks_no_page(viewer: Client, cookie: str) -> None:
    workload = admit()
    viewer.cookies[zones.COOKIE] = cookie
    assert shown(workload, "UTC") in text_in(viewer, workload)


@pytest.mark.django_db
@pytest.mark.parametrize(
    "path", [LIST, "/admin/workloads/access/", "/admin/workloads/access/add/", "/admin/workloads/access/tokens/"]
)
def test_every_page_says_its_zone_and_brings_the_file_that_tells_it(admin_client: Client, path: str) -> None:
    admin_client.cookies[zones.COOKIE] = "Europe/Berlin"
    text = admin_client.get(path).content.decode()
    assert "Times are shown in the zone Europe/Berlin" in text
    assert text.count("workloads/zones.js") == 1
    assert 'data-path="/admin/"' in text and "data-may-reload" in text


@pytest.mark.django_db
def test_a_page_that_answers_a_form_is_not_loaded_again(admin_client: Client) -> None:
    answer = admin_client.post("/admin/workloads/access/add/", {})
    assert answer.status_code == 200
    assert "data-may-reload" not in answer.content.decode()


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("chosen", "cookie", "selected"), [("UTC", "UTC", "UTC"), ("site", "site", "site"), ("own", "", "site")]
)
def test_a_choice_is_remembered_and_leads_back(viewer: Client, chosen: str, cookie: str, selected: str) -> None:
    viewer.cookies[zones.COOKIE] = "Europe/Berlin"
    back = f"{LIST}?state=READY"
    assert '<option value="own" selected>' in viewer.get(LIST).content.decode()
    answer = viewer.post(CHOOSE, {"zone": chosen, "back": back})
    assert (answer.status_code, answer["Location"]) == (302, back)
    kept = answer.cookies[zones.COOKIE]
    assert (kept.value, kept["path"], kept["samesite"]) == (cookie, "/admin/", "Lax")
    assert (int(kept["max-age"]) > 0) == bool(cookie)
    assert f'<option value="{selected}" selected>' in viewer.get(LIST).content.decode()


@pytest.mark.django_db
@pytest.mark.parametrize("back", ["", "https://elsewhere.example/", "//elsewhere.example", "javascript:alert(1)"])
def test_a_choice_leads_nowhere_else(viewer: Client, back: str) -> None:
    answer = viewer.post(CHOOSE, {"zone": "UTC", "back": back})
    assert (answer.status_code, answer["Location"]) == (302, "/admin/")


@pytest.mark.django_db
def test_a_choice_is_a_form_of_a_person_of_the_staff(viewer: Client) -> None:
    assert viewer.get(CHOOSE).status_code == 405
    answer = viewer.post(CHOOSE, {"zone": "<script>", "back": LIST})
    assert answer.status_code == 302 and zones.COOKIE not in answer.cookies
    assert Client().post(CHOOSE, {"zone": "UTC"})["Location"].startswith("/admin/login/")
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(get_user_model().objects.get(username="viola"))
    assert strict.post(CHOOSE, {"zone": "UTC"}).status_code == 403
