"""What the pages' scripts add: the overview that keeps itself fresh, and times in the reader's zone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tests.browser.site import Site

OVERVIEW: Final = "/admin/workloads/"
# Longer than the overview leaves between two refreshments.
LATER_MS: Final = 120_000

SEEN: Final = """is => {
    Object.defineProperty(document, "visibilityState", {configurable: true, get: () => is});
    document.dispatchEvent(new Event("visibilitychange"));
}"""


def asks(somebody: Any) -> list[str]:
    """Return what the page asks for from now on, as it comes in."""
    found: list[str] = []
    somebody.page.on("request", lambda request: found.append(request.url) if request.resource_type == "fetch" else None)
    return found


def refreshed(somebody: Any) -> None:
    """Let time go by, and wait until the page has asked anew and shown what it got."""
    with somebody.page.expect_response(lambda answer: answer.request.resource_type == "fetch") as answered:
        somebody.page.clock.run_for(LATER_MS)
    answered.value.finished()


def test_the_overview_refreshes_itself_while_it_is_seen(browser: Any, site: Site) -> None:
    from tests.browser.visits import visitor

    with visitor(browser, site, "viewer") as somebody:
        page = somebody.page
        page.clock.install()
        somebody.open(OVERVIEW)
        table = page.locator("#workloads-table-hour, #workloads-flow details").first
        table.locator("summary").click()
        link = page.locator("#workloads-states a").first
        link.focus()
        wanted = link.get_attribute("href")
        refreshed(somebody)
        # What the reader has opened stays open, and the focus where it was.
        assert table.get_attribute("open") is not None
        assert page.evaluate("document.activeElement.getAttribute('href')") == wanted
        assert somebody.look() == []

        asked = asks(somebody)
        page.evaluate(SEEN, "hidden")
        page.clock.run_for(LATER_MS)
        assert asked == []
        with page.expect_response(lambda answer: answer.request.resource_type == "fetch"):
            page.evaluate(SEEN, "visible")

        page.get_by_role("button", name="Stop refreshing").click()
        asked.clear()
        page.clock.run_for(LATER_MS)
        assert asked == []
        assert somebody.glance() == []


def test_times_are_in_the_readers_zone(browser: Any, site: Site, people: Callable[..., Any]) -> None:
    from tests.browser.visits import visitor

    with visitor(browser, site, "viewer", timezone_id="Asia/Kolkata") as somebody:
        somebody.open(site.page("recovered"))
        # The first page of all learns the zone, and shows itself anew.
        somebody.page.get_by_text("+05:30").first.wait_for()
        somebody.open(site.page("dead"))
        assert "+05:30" in somebody.reads()
        assert somebody.look() == []
    without = people("viewer", scripts=False)
    without.open(site.page("recovered"))
    without.page.get_by_label("Show them in").select_option("UTC")
    with without.page.expect_navigation():
        without.page.locator(".workloads-zone [type=submit]").click()
    assert without.page.url.endswith(site.page("recovered"))
    assert without.page.locator("#workloads-zone").input_value() == "UTC"
    assert "in the zone UTC" in without.reads()
