"""Re-arming very many from the browser: all that match a filter, with a server that is killed half-way."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from tests.browser.pages import BULK, LIST
from tests.browser.site import Site, free_port, mortal_server, populate

SHORT_S: Final = 120
LONG_S: Final = 3_600
REASON: Final = "The dates were added: ticket 4720."


def until(site: Site, is_so: Callable[[dict[str, int]], bool], seconds: float) -> dict[str, int]:
    """Return how far the action has come, once that is so."""
    names = ("done_count", "refused_count", "selected_count", "id")
    sql = f"SELECT {', '.join(names)} FROM workloads_bulkaction ORDER BY id DESC LIMIT 1"
    end = time.monotonic() + seconds
    while True:
        found = site.ask(sql)
        action = dict(zip(names, found[0], strict=True)) if found else dict.fromkeys(names, 0)
        if is_so(action):
            return action
        assert time.monotonic() < end, action
        time.sleep(0.01)  # nothing tells what another process has committed


def select_all(somebody: Any, action: str) -> None:
    """Choose all that match the list's filter, and go on to what is to be done to them."""
    page = somebody.page
    page.check("#action-toggle")
    page.locator(".question a").click()
    page.select_option("select[name=action]", action)
    page.locator("button[name=index]").click()


def one_step(site: Site, browser: Any, key: int) -> None:
    """Go on with the action for one step, as another operator does whose browser has no JavaScript."""
    from tests.browser.visits import visitor

    with visitor(browser, site, "superuser", scripts=False) as other:
        other.open(f"{BULK}{key}/change/")
        before = until(site, lambda action: True, SHORT_S)["done_count"]
        with other.page.expect_navigation():
            other.page.get_by_role("button", name="Go on").click()
        assert until(site, lambda action: True, SHORT_S)["done_count"] > before


@pytest.mark.parametrize(
    ("count", "seconds"),
    [(1_500, SHORT_S), pytest.param(100_000, LONG_S, marks=pytest.mark.long)],
)
def test_a_killed_server_leaves_the_rest_to_be_done(browser: Any, tmp_path: Path, count: int, seconds: float) -> None:
    from tests.browser.visits import log_in, visitor

    database, port = tmp_path / "site.sqlite3", free_port()
    ids = populate(database, f"many:{count}")
    site = Site(url=f"http://127.0.0.1:{port}", database=database, ids=ids)
    with visitor(browser, site) as somebody:
        page = somebody.page
        with mortal_server(database, port) as kill:
            log_in(somebody, "operator")
            somebody.open(f"{LIST}?tenant=many&state=DEAD_LETTER")
            select_all(somebody, "rearm")
            # It selects by itself, and then asks.
            reason = page.get_by_label("Reason")
            reason.wait_for(timeout=seconds * 1_000)
            assert f"{count:,}" in somebody.reads()
            assert somebody.look_in_every_shape() == []
            reason.fill(REASON)
            page.locator("#content [type=submit]").first.click(no_wait_after=True)
            half = until(site, lambda action: action["done_count"] > (0 if count < 10_000 else count / 2), seconds)
            kill()
            page.get_by_role("alert").filter(has_text=re.compile("did not answer")).wait_for()
        half = until(site, lambda action: True, SHORT_S)
        assert 0 < half["done_count"] < count
        with mortal_server(database, port):
            one_step(site, browser, half["id"])
            somebody.noted.clear()
            page.get_by_role("button", name="Go on").click()
            page.get_by_text("All that was selected has been decided on.").wait_for(timeout=seconds * 1_000)
            assert somebody.look_in_every_shape() == []
            somebody.open(BULK)
            assert f"{count:,}" in somebody.reads()
    ended = until(site, lambda action: True, SHORT_S)
    assert (ended["done_count"], ended["refused_count"], ended["selected_count"]) == (count, 0, count)
    # Each has its event, once, with the person and the reason.
    told = """
        SELECT COUNT(*), COUNT(DISTINCT e.record), MIN(e.actor), MAX(e.actor) FROM workloads_event e
        JOIN workloads_workload w ON w.admitted_id = e.record
        WHERE w.state = 'READY' AND json_extract(e.evidence, '$.decision') = 'operator_rearm'
        AND json_extract(e.evidence, '$.reason') = ?"""
    assert site.ask(told, REASON) == [(count, count, "operator", "superuser")]
    assert site.ask("SELECT COUNT(*) FROM workloads_workload WHERE state <> 'READY'") == [(0,)]


def test_a_viewer_can_look_at_many_and_drive_nothing(site: Site, people: Callable[..., Any]) -> None:
    operator = people("operator")
    operator.open(LIST)
    select_all(operator, "rearm")
    operator.page.get_by_label("Reason").wait_for()
    address = operator.page.url.removeprefix(site.url).partition("#")[0]
    viewer = people("viewer")
    viewer.open(address)
    assert viewer.page.locator("#content form, #content button").count() == 0
    token = next(cookie["value"] for cookie in viewer.context.cookies() if cookie["name"] == "csrftoken")
    for step in ("confirm", "go-on", "stop"):
        answer = viewer.context.request.post(
            site.url + address.replace("change", step),
            form={"csrfmiddlewaretoken": token, "reason": "Mine."},
            headers={"Referer": site.url + address},
        )
        assert answer.status == 403
    assert site.ask("SELECT stage FROM workloads_bulkaction ORDER BY id DESC LIMIT 1") == [("asking",)]


def test_all_that_match_are_chosen_without_javascript(site: Site, people: Callable[..., Any]) -> None:
    operator = people("operator", scripts=False)
    operator.open(f"{LIST}?tenant=acme")
    operator.page.locator("input[name=_selected_action]").first.check()
    operator.page.get_by_label("all that match").check()
    operator.page.select_option("select[name=action]", "time_out")
    with operator.page.expect_navigation():
        operator.page.locator("button[name=index]").click()
    while operator.page.get_by_label("Reason").count() == 0:
        with operator.page.expect_navigation():
            operator.page.get_by_role("button", name="Go on").click()
    assert site.ask("SELECT verb, stage FROM workloads_bulkaction ORDER BY id DESC LIMIT 1") == [("time_out", "asking")]
    with operator.page.expect_navigation():
        operator.page.get_by_role("button", name="Leave all alone").click()
    assert site.ask("SELECT stage FROM workloads_bulkaction ORDER BY id DESC LIMIT 1") == [("stopped",)]
