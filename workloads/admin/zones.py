"""In which time zone a person reads the admin: their browser's, as a cookie tells it, or one that they chose."""

from __future__ import annotations

import datetime as dt
import zoneinfo
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, Final

from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.urls import URLPattern, reverse
from django.utils import timezone
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext as _

COOKIE: Final = "workloads_tz"
"""Holds the name of a zone, which the browser tells in `zones.js`, or `SITE`."""
SITE: Final = "site"
UTC: Final = "UTC"
OWN: Final = "own"
KEPT_S: Final = 365 * 24 * 3600


@lru_cache(maxsize=1)
def _known() -> frozenset[str]:
    """Return the names of all zones. What a browser sends opens no file before it is one of them."""
    return frozenset(zoneinfo.available_timezones())


def zone_of(request: HttpRequest) -> dt.tzinfo:
    """Return the zone that the request's cookie names; if it names none, the one that the site has in use."""
    name = request.COOKIES.get(COOKIE, SITE)
    return zoneinfo.ZoneInfo(name) if name in _known() else timezone.get_current_timezone()


def in_zone(view: Callable[..., Any]) -> Callable[..., Any]:
    """Return the view, whose page is made in the zone of whoever asks.

    A `ReadingAdmin`, or another `InZone`, has it around all of its addresses; a view elsewhere in the admin needs it by
    name. The zone holds until the page is made and no longer: the thread's next request knows nothing of it. Pages find
    what `admin/workloads/zone.html` shows as `zone` in their context.
    """

    @wraps(view)
    def shown(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        with timezone.override(zone_of(request)):
            response = view(request, *args, **kwargs)
            if getattr(response, "is_rendered", True) is False:
                # Later, the zone would be over.
                response.context_data = {"zone": told(request), **(response.context_data or {})}
                response.render()
            return response

    return shown


def told(request: HttpRequest) -> dict[str, Any]:
    """Return what a page says of the zone in use, and what may be chosen instead."""
    cookie = request.COOKIES.get(COOKIE, "")
    chosen = cookie if cookie in (SITE, UTC) else OWN if cookie in _known() else SITE
    choices = ((OWN, _("My browser's")), (UTC, _("UTC")), (SITE, _("The site's")))
    zone = timezone.get_current_timezone()
    return {
        "name": getattr(zone, "key", None) or timezone.get_current_timezone_name(),
        "offset": offset(timezone.localtime()),
        "path": reverse("admin:index"),
        # A page that answers a form is not loaded again: that would send it twice.
        "may_reload": request.method == "GET",
        "choices": [{"value": value, "label": label, "is_chosen": value == chosen} for value, label in choices],
        "back": request.get_full_path() if request.method == "GET" else request.path,
    }


def offset(local: dt.datetime) -> str:
    """Return how far a local time is from UTC, such as `+01:00`."""
    return local.isoformat(timespec="minutes")[len("2026-11-30T14:03") :]


def choose(request: HttpRequest) -> HttpResponse:
    """Remember the zone that a person chose, and go back to where they were."""
    if request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    admin = reverse("admin:index")
    back = request.POST.get("back", "")
    if not url_has_allowed_host_and_scheme(back, {request.get_host()}, require_https=request.is_secure()):
        back = admin
    response = HttpResponseRedirect(back)
    value = request.POST.get("zone")
    if value in (SITE, UTC):
        response.set_cookie(COOKIE, value, max_age=KEPT_S, path=admin, secure=request.is_secure(), samesite="Lax")
    elif value == OWN:
        # The browser says which it is on the next page.
        response.delete_cookie(COOKIE, path=admin, samesite="Lax")
    return response


class InZone:
    """A `ModelAdmin` whose every page is made in the zone of whoever asks."""

    @property
    def urls(self) -> list[URLPattern]:
        found: list[URLPattern] = self.get_urls()  # type: ignore[attr-defined]  # a ModelAdmin's
        for pattern in found:
            pattern.callback = in_zone(pattern.callback)
        return found
