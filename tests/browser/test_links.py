"""Where the pages lead: every link of every page is followed once, and none ends in an error."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urldefrag, urlsplit

from tests.browser.pages import PLACES
from tests.browser.site import Site

MOST_OF_A_KIND: Final = 6

HREFS: Final = (
    "() => [...document.querySelectorAll('a[href], link[href], img[src], script[src]')].map(e => e.href || e.src)"
)


def kind_of(address: str) -> str:
    """Return what addresses of one kind have in common: the path but for numbers and ids, and what is asked by."""
    parts = urlsplit(address)
    path = re.sub(r"[^/]*\d[^/]*", "…", parts.path)
    return f"{path}?{'&'.join(sorted(pair.partition('=')[0] for pair in parts.query.split('&')))}"


def test_every_link_leads_somewhere(site: Site, people: Callable[..., Any]) -> None:
    somebody = people("superuser")
    found, anchors = {}, []
    for place in PLACES:
        somebody.open(place.path(site))
        here = urldefrag(somebody.page.url).url
        for address in somebody.page.evaluate(HREFS):
            bare, anchor = urldefrag(address)
            if anchor and bare == here and somebody.page.locator(f"[id='{anchor}']").count() == 0:
                anchors.append(f"{place}: nothing on it is called #{anchor}")
            if urlsplit(bare).scheme in {"http", "https"}:
                found.setdefault(bare, str(place))
    away = [f"{place}: {address}" for address, place in found.items() if not address.startswith(f"{site.url}/")]
    of_kind: dict[str, int] = {}
    broken = []
    for address, place in found.items():
        kind = kind_of(address)
        of_kind[kind] = of_kind.get(kind, 0) + 1
        if of_kind[kind] <= MOST_OF_A_KIND and address.startswith(site.url) and "/logout/" not in address:
            answer = somebody.context.request.get(address)
            if answer.status != 200:
                broken.append(f"{place}: {address} answers {answer.status}")
    assert (anchors, broken, away) == ([], [], [])
