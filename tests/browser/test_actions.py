"""What operators do, as they do it: by mouse, by keyboard alone, and without JavaScript; and what others can't do."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pytest

from tests.browser.hostile import MARKUP
from tests.browser.pages import LIST
from tests.browser.site import Site

Give = Callable[..., Any]
Spare = Callable[[str], str]

MOST_TABS: Final = 200


@dataclass(frozen=True)
class Action:
    """One thing to do to a workload: how it is called, what it is done to, and what it leads to."""

    name: str
    kind: str
    leads_to: str
    decision: str

    def __str__(self) -> str:
        return f"{self.name} {self.kind}"


ACTIONS: Final = [
    Action("Re-arm", "dead", "READY", "operator_rearm"),
    Action("Cancel", "waiting", "CANCELLED", "operator_cancel"),
    Action("Cancel", "held", "CANCELLATION_REQUESTED", "operator_cancel"),
    Action("Cancel by force", "held", "CANCELLED", "operator_cancel"),
    Action("Time out", "held", "TIMED_OUT", "operator_timeout"),
]


def link(somebody: Any, name: str) -> Any:
    """Return the link of a page that leads to an action."""
    return somebody.page.locator("#content a", has_text=re.compile(rf"^\s*{name}…?\s*$"))


def submit(somebody: Any) -> Any:
    """Return the button that carries an action out."""
    return somebody.page.locator("#content form[method=post] [type=submit]").first


def confirm(somebody: Any, reason: str) -> None:
    """Give the reason, and carry the action out."""
    somebody.page.get_by_label("Reason").fill(reason)
    with somebody.page.expect_navigation():
        submit(somebody).click()


@pytest.mark.parametrize("scripts", [True, False], ids=["with JavaScript", "without JavaScript"])
@pytest.mark.parametrize("action", ACTIONS, ids=str)
def test_an_operator_acts_on_one(action: Action, scripts: bool, site: Site, people: Give, spare: Spare) -> None:
    somebody, story = people("operator", scripts=scripts), spare(action.kind)
    somebody.open(site.page(story))
    with somebody.page.expect_navigation():
        link(somebody, action.name).click()
    assert site.ids[story] in somebody.reads()
    reason = f"Asked for by ticket 12: {MARKUP}"
    confirm(somebody, reason)
    assert site.state(story) == action.leads_to
    actor, evidence = site.last_event(story)
    assert (actor, evidence["reason"]) == ("operator", reason)
    somebody.open(site.page(story))
    assert reason in somebody.page.inner_text("#content")
    if scripts:
        assert somebody.look() == []


def test_many_are_acted_on_from_the_list(site: Site, people: Give, spare: Spare) -> None:
    somebody, stories = people("operator"), [spare("dead") for _ in range(3)]
    somebody.open(f"{LIST}?definition=spare.dead&state=DEAD_LETTER")
    for story in stories:
        somebody.page.check(f"input[name=_selected_action][value='{site.key(story)}']")
    somebody.page.select_option("select[name=action]", "rearm")
    with somebody.page.expect_navigation():
        somebody.page.locator("button[name=index]").click()
    assert somebody.look() == []
    confirm(somebody, "The dates were added.")
    assert somebody.look() == []
    assert [site.state(story) for story in stories] == ["READY"] * 3


@pytest.mark.parametrize("action", ACTIONS, ids=str)
def test_an_action_is_asked_for_in_every_shape(action: Action, site: Site, people: Give, spare: Spare) -> None:
    somebody, story = people("operator"), spare(action.kind)
    somebody.open(site.page(story))
    with somebody.page.expect_navigation():
        link(somebody, action.name).click()
    found = somebody.look_in_every_shape()
    # Sent without a reason: the page says so at the field, and nothing was done.
    somebody.page.get_by_label("Reason").evaluate("field => { field.form.noValidate = true; }")
    with somebody.page.expect_navigation():
        submit(somebody).click()
    assert "required" in somebody.reads()
    found += somebody.look()
    assert not found, "\n".join(found)
    assert "reason" not in site.last_event(story)[1]


def tab_to(somebody: Any, target: Any) -> None:
    """Press Tab until the target has the focus."""
    wanted = target.element_handle()
    for _press in range(MOST_TABS):
        somebody.page.keyboard.press("Tab")
        if somebody.page.evaluate("wanted => document.activeElement === wanted", wanted):
            # Where one is must be seen.
            assert somebody.page.evaluate(
                """() => { const is = getComputedStyle(document.activeElement), rest = is.outlineStyle !== "none" ||
                is.boxShadow !== "none" || document.activeElement.matches(":focus-visible"); return rest; }"""
            )
            return
    raise AssertionError(f"{MOST_TABS} presses of Tab do not lead to {target}")


@pytest.mark.parametrize("action", ACTIONS, ids=str)
def test_a_keyboard_alone_is_enough(action: Action, site: Site, people: Give, spare: Spare) -> None:
    somebody, story = people("operator"), spare(action.kind)
    somebody.open(site.page(story))
    tab_to(somebody, link(somebody, action.name))
    with somebody.page.expect_navigation():
        somebody.page.keyboard.press("Enter")
    tab_to(somebody, somebody.page.get_by_label("Reason"))
    somebody.page.keyboard.type("By keyboard.")
    tab_to(somebody, submit(somebody))
    with somebody.page.expect_navigation():
        somebody.page.keyboard.press("Enter")
    assert site.state(story) == action.leads_to


def test_what_moved_meanwhile_is_reported_and_left_alone(site: Site, people: Give, spare: Spare) -> None:
    slow, story = people("operator"), spare("dead")
    slow.open(site.page(story))
    with slow.page.expect_navigation():
        link(slow, "Re-arm").click()
    quick = people("superuser")
    quick.open(site.page(story))
    with quick.page.expect_navigation():
        link(quick, "Cancel").click()
    confirm(quick, "First.")
    confirm(slow, "Second.")
    assert "moved" in slow.reads()
    assert site.state(story) == "CANCELLED"
    assert site.last_event(story)[1]["reason"] == "First."


@pytest.mark.parametrize("action", ACTIONS, ids=str)
def test_a_viewer_is_offered_nothing_and_refused(action: Action, site: Site, people: Give, spare: Spare) -> None:
    story = spare(action.kind)
    operator = people("operator")
    operator.open(site.page(story))
    address = link(operator, action.name).get_attribute("href")
    viewer = people("viewer")
    viewer.open(site.page(story))
    assert link(viewer, action.name).count() == 0
    assert viewer.page.locator("#content form[method=post]").count() == 0
    answer = viewer.context.request.get(
        f"{site.url}{address}" if address.startswith("/") else f"{viewer.page.url}{address}"
    )
    assert answer.status == 403
    viewer.open(LIST)
    assert viewer.page.locator("select[name=action]").count() == 0
    viewer.noted.clear()
