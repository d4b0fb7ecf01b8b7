"""Deciding on selected work from the admin: the reason, the version that was seen, and what is said of each."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest
from django.db import OperationalError
from django.test import Client
from django.urls import resolve
from django.utils import timezone

from tests.admin.conftest import LIST, REARM, admit, fail, page
from tests.authority.builders import EVERY, S, bring, spoil
from workloads import authority
from workloads.admin import interventions
from workloads.admin.deeds import DEEDS, actor_name, why_not
from workloads.contract import Timeouts
from workloads.lifecycle.interventions import Verb, leads_to
from workloads.models import Event, Workload

pytestmark = pytest.mark.django_db

PAGES = {verb: f"{LIST}{deed.path}" for verb, deed in DEEDS.items()}
RIGHTS = {
    Verb.REARM: "rearm_workload",
    Verb.CANCEL: "cancel_workload",
    Verb.FORCE_CANCEL: "cancel_workload",
    Verb.TIME_OUT: "timeout_workload",
}


def item(workload: Workload) -> str:
    return f"{workload.pk}:{workload.version}"


def said(response: Any) -> list[str]:
    return [str(message) for message in response.context["messages"]]


def brought(state: str, key: str = "k", **changes: Any) -> Workload:
    """Return a workload that rests in this state."""
    return authority.get(bring(state, key, **changes)[0])


@pytest.fixture
def chief(client_with: Callable[..., Client]) -> Client:
    """Somebody who may do everything that operators do."""
    return client_with("view_workload", *RIGHTS.values(), username="carla")


def test_one_is_rearmed_from_its_page(operator: Client) -> None:
    workload = fail(admit())
    (offer,) = operator.get(page(workload)).context["offers"]
    assert offer.label == "Re-arm…"
    asked = operator.get(offer.url)
    text = asked.content.decode()
    assert "3 → 4" in text
    assert "broken: it broke" in text
    assert f'value="{item(workload)}"' in text
    assert authority.get(workload.workload_id).version == workload.version
    response = operator.post(offer.url, {"item": item(workload), "reason": "the disk\r\nis empty again"}, follow=True)
    assert response.redirect_chain == [(page(workload), 302)]
    assert said(response) == ["1 workload was re-armed."]
    after = authority.get(workload.workload_id)
    assert (after.state, after.operator_retries) == ("READY", 1)
    last = after.events.last()
    assert last.actor == "olga"
    assert last.evidence == {"decision": "operator_rearm", "reason": "the disk\nis empty again"}


def test_many_are_rearmed_from_the_list_and_each_is_answered(operator: Client) -> None:
    good = fail(admit("good"))
    moved = fail(admit("moved"))
    late = admit("late", timeouts=Timeouts(overall_ms=1))
    assert authority.enforce_deadlines(now=timezone.now() + dt.timedelta(seconds=1)) == [late.workload_id]
    late = authority.get(late.workload_id)
    selected = [good.pk, moved.pk, late.pk]
    action = {"action": "rearm", "_selected_action": selected}
    asked = operator.post(f"{LIST}?state=parked", action)
    assert asked.status_code == 302
    response = operator.get(asked["Location"])
    assert [i.pk for i in response.context["chosen"]] == selected
    assert [i.overall_has_passed for i in response.context["chosen"]] == [False, False, True]
    assert "The overall deadline of 1 of these has passed" in response.context["late"]
    assert "Re-arm 3 workloads" in response.content.decode()
    authority.rearm(moved.workload_id, actor="somebody", reason="was quicker")
    items = [item(w) for w in (good, moved, late)] + ["999999:1"]
    response = operator.post(asked["Location"], {"item": items, "reason": "again"}, follow=True)
    assert response.redirect_chain == [(f"{LIST}?state=parked", 302)]
    assert said(response) == [
        "1 workload was re-armed.",
        f"{moved.workload_id}: It has moved on since you looked at it; look again. (WORKLOAD_CONFLICT)",
        f"{late.workload_id}: Its overall deadline has passed: it is re-armed only if that starts anew. "
        "(WORKLOAD_TIMED_OUT)",
        "#999999: It no longer exists.",
    ]
    assert authority.get(good.workload_id).state == "READY"
    assert authority.get(moved.workload_id).operator_retries == 1
    form = {"item": item(late), "reason": "again", "restart_overall": "on"}
    assert said(operator.post(REARM, form, follow=True)) == ["1 workload was re-armed."]


@pytest.mark.parametrize("state", EVERY)
@pytest.mark.parametrize("verb", list(Verb))
def test_every_action_in_every_state(chief: Client, verb: Verb, state: str) -> None:
    workload = brought(state)
    leads = leads_to(verb, state)
    changes = leads not in {None, state}
    offered = {offer.url: offer.label for offer in chief.get(page(workload)).context["offers"]}
    address = f"{PAGES[verb]}?pk={workload.pk}"
    assert (address in offered) == changes
    response = chief.get(address)
    shown = [i.pk for i in response.context["chosen"]], [i.pk for i in response.context["others"]]
    assert shown == (([workload.pk], []) if changes else ([], [workload.pk]))
    text = response.content.decode()
    if changes:
        assert f'data-state="{leads}"' in text
        assert DEEDS[verb].button % {"number": 1, "count": 1} in text
    else:
        assert why_not(verb, state).split("'")[0] in text
        assert item(workload) not in text
    response = chief.post(address, {"item": item(workload), "reason": "so"}, follow=True)
    after = authority.get(workload.workload_id)
    assert after.state == (leads or state)
    assert (after.version != workload.version) == changes
    told = Event.objects.filter(record=workload.pk, actor="carla", evidence__contains='"reason":"so"')
    assert bool(told.count()) == changes
    (words,) = said(response)
    if leads is None:
        assert words.endswith("(WORKLOAD_TRANSITION_DENIED)")
    elif leads == state:
        assert words == "1 workload was so already."
    again = chief.post(address, {"item": item(workload), "reason": "so"}, follow=True)
    if changes:
        assert "(WORKLOAD_CONFLICT)" in said(again)[0]
    assert authority.get(workload.workload_id).version == after.version


def test_what_a_held_workload_faces_is_said_plainly(chief: Client) -> None:
    running, ready = brought(S.RUNNING, "running"), brought(S.READY, "ready")

    def effects(verb: Verb, *workloads: Workload) -> str:
        response = chief.get(PAGES[verb], {"pk": [w.pk for w in workloads]})
        return " ".join(response.context["effects"])

    assert "is not stopped by this: its worker is asked to stop" in effects(Verb.CANCEL, running)
    assert "at once, and for good" not in effects(Verb.CANCEL, running)
    assert "an effect that is under way" in effects(Verb.FORCE_CANCEL, running)
    assert "an effect that is under way" in effects(Verb.TIME_OUT, running)
    assert "worker" not in effects(Verb.CANCEL, ready)
    both = effects(Verb.FORCE_CANCEL, running, ready)
    assert "at once, and for good" in both
    assert "may still happen" in both


def test_the_outcome_of_a_mixed_cancellation_is_told_by_what_it_led_to(chief: Client) -> None:
    items = [item(brought(state, state)) for state in (S.READY, S.DEAD_LETTER, S.RUNNING, S.CANCELLED, S.SUCCEEDED)]
    response = chief.post(PAGES[Verb.CANCEL], {"item": items, "reason": "not wanted"}, follow=True)
    assert said(response)[:3] == [
        "2 workloads were cancelled.",
        "The worker of 1 workload was asked to stop, and has to confirm.",
        "1 workload was so already.",
    ]
    assert said(response)[3].endswith("(WORKLOAD_TRANSITION_DENIED)")


def test_the_action_menu_goes_to_each_page(chief: Client, viewer: Client) -> None:
    workload = admit()
    for verb, address in PAGES.items():
        response = chief.post(LIST, {"action": str(verb), "_selected_action": [workload.pk]})
        assert response["Location"].startswith(f"{address}?pk={workload.pk}")


def test_what_is_not_parked_is_left_alone(operator: Client) -> None:
    parked, ready = fail(admit("parked")), admit("ready")
    response = operator.get(REARM, {"pk": [parked.pk, ready.pk]})
    assert [i.pk for i in response.context["others"]] == [ready.pk]
    assert item(ready) not in response.content.decode()
    assert "nothing to re-arm" in operator.get(REARM, {"pk": ready.pk}).content.decode()
    assert operator.get(page(ready)).context["offers"] == []


@pytest.mark.parametrize("verb", list(Verb))
@pytest.mark.parametrize(
    ("reason", "complaint"),
    [
        ("", "required"),
        ("  \n ", "required"),
        ("x" * 2001, "2,000"),
        ("Authorization: Bearer abcdefghijklmnopqrstuvwxyz0123456789", "secret"),
    ],
)
def test_a_reason_that_the_authority_would_refuse_is_asked_for_again(
    chief: Client, verb: Verb, reason: str, complaint: str
) -> None:
    workload = brought(S.DEAD_LETTER) if verb is Verb.REARM else admit()
    response = chief.post(PAGES[verb], {"item": item(workload), "reason": reason})
    assert response.status_code == 200
    errors = " ".join(response.context["form"].errors["reason"])
    assert complaint.replace(",", "") in errors.replace(",", "")
    assert authority.get(workload.workload_id).version == workload.version


def test_a_page_that_is_shown_again_keeps_the_version_that_was_seen(operator: Client) -> None:
    workload = fail(admit())
    authority.rearm(workload.workload_id, actor="a", reason="r")
    moved = fail(workload)
    response = operator.post(REARM, {"item": item(workload), "reason": ""})
    text = response.content.decode()
    assert item(workload) in text
    assert item(moved) not in text
    assert "has moved on" in text


@pytest.mark.parametrize("verb", list(Verb))
def test_the_right_of_its_own_is_needed_and_that_to_look(client_with: Callable[..., Client], verb: Verb) -> None:
    workload = brought(S.DEAD_LETTER) if verb is Verb.REARM else brought(S.RUNNING)
    form = {"item": item(workload), "reason": "because"}
    others = set(RIGHTS.values()) - {RIGHTS[verb]}
    refused = [
        client_with("view_workload", *others, "change_workload", username="looks"),
        client_with(RIGHTS[verb], username="blind"),
    ]
    for client in refused:
        assert client.get(PAGES[verb], {"pk": workload.pk}).status_code == 403
        assert client.post(PAGES[verb], form).status_code == 403
        client.post(LIST, {"action": str(verb), "_selected_action": [workload.pk]})
    assert all(PAGES[verb] not in offer.url for offer in refused[0].get(page(workload)).context["offers"])
    assert Client().post(PAGES[verb], form).status_code == 302
    assert authority.get(workload.workload_id).version == workload.version
    allowed = client_with("view_workload", RIGHTS[verb], username="allowed")
    assert allowed.post(PAGES[verb], form).status_code == 302
    assert authority.get(workload.workload_id).version == workload.version + 1


def test_a_post_without_its_csrf_token_is_refused(operator: Client) -> None:
    workload = fail(admit())
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = operator.cookies
    assert strict.post(REARM, {"item": item(workload), "reason": "because"}).status_code == 403


@pytest.mark.parametrize(
    "keys", [[], ["x"], ["0"], ["9" * 30], ["1:2:3"], ["1"], ["1:1", "1:2"], [f"{n}:1" for n in range(1, 300)]]
)
def test_an_odd_selection_is_answered_with_a_message(chief: Client, keys: list[str]) -> None:
    workload = admit()
    for address in PAGES.values():
        assert chief.get(address, {"pk": keys}, follow=True).status_code == 200
        response = chief.post(address, {"item": keys, "reason": "so"}, follow=True)
        assert response.status_code == 200
        assert said(response)
    assert authority.get(workload.workload_id).version == 1


def test_one_bad_item_spoils_the_form_and_nothing_is_done(chief: Client) -> None:
    workload = admit()
    items = [item(workload), f"{workload.pk}"]
    response = chief.post(PAGES[Verb.CANCEL], {"item": items, "reason": "so"}, follow=True)
    assert "nothing was done" in said(response)[0]
    assert authority.get(workload.workload_id).version == 1


def test_too_many_at_once_are_refused(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interventions, "MOST_AT_ONCE", 2)
    workloads = [fail(admit(str(n))) for n in range(3)]
    action = {"action": "rearm", "_selected_action": [w.pk for w in workloads]}
    response = operator.post(LIST, action, follow=True)
    assert said(response) == [
        "At most 2 workloads are decided on by one page: select fewer, or all that match.",
    ]


def test_more_refusals_than_fit_are_counted(chief: Client) -> None:
    items = [item(brought(S.SUCCEEDED, f"k{n}")) for n in range(23)]
    response = chief.post(PAGES[Verb.TIME_OUT], {"item": items, "reason": "so"}, follow=True)
    assert len(said(response)) == 21
    assert said(response)[-1] == "3 more were refused."


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OperationalError("gone"), "The database did not take it; try again."),
        (ValueError("what is this"), "Its record can't be read."),
    ],
)
def test_what_goes_wrong_with_one_is_a_message(
    operator: Client, monkeypatch: pytest.MonkeyPatch, error: Exception, words: str
) -> None:
    workload = fail(admit())

    def broken(*args: Any, **kwargs: Any) -> None:
        raise error

    monkeypatch.setattr(interventions.authority, "rearm", broken)
    response = operator.post(REARM, {"item": item(workload), "reason": "because"}, follow=True)
    assert said(response) == [f"{workload.workload_id}: {words}"]


@pytest.mark.django_db(transaction=True)
def test_a_spoilt_record_is_named_and_stops_no_other(chief: Client) -> None:
    spoilt, good = fail(admit("spoilt")), fail(admit("good"))
    spoil(spoilt.workload_id)
    response = chief.get(REARM, {"pk": [spoilt.pk, good.pk]})
    assert [i.pk for i in response.context["chosen"]] == [good.pk]
    assert [i.why_not for i in response.context["others"]] == ["Its record can't be read."]
    items = [item(spoilt), item(good)]
    response = chief.post(REARM, {"item": items, "reason": "so"}, follow=True)
    assert said(response)[0] == "1 workload was re-armed."
    assert "can't be read" in said(response)[1]


def test_a_state_that_nobody_knows_is_left_alone() -> None:
    assert "not known" in why_not(Verb.CANCEL, "BETTER")


def test_text_of_workers_is_no_markup(chief: Client) -> None:
    workload = fail(admit(definition_id="<script>a"), error="<script>alert(1)</script>")
    text = chief.get(REARM, {"pk": workload.pk}).content.decode()
    assert "<script>a" not in text
    assert "&lt;script&gt;alert(1)" in text


@pytest.mark.parametrize("name", ["authority.recovery", " padded", "x" * 201])
def test_a_name_that_can_be_no_actor_is_replaced_by_a_key(name: str) -> None:
    class User:
        pk = 7

        def get_username(self) -> str:
            return name

    assert actor_name(User()) == "user:7"


@pytest.mark.parametrize("address", PAGES.values())
def test_the_views_run_in_no_transaction_of_the_request(address: str) -> None:
    assert resolve(address).func._non_atomic_requests == {"default"}


def test_a_reason_of_many_lines_counts_as_the_browser_counts(operator: Client) -> None:
    workload = fail(admit())
    reason = "\r\n".join(["x"] * 1000)
    response = operator.post(REARM, {"item": item(workload), "reason": reason}, follow=True)
    assert said(response) == ["1 workload was re-armed."]


def test_now_is_not_the_web_servers(operator: Client) -> None:
    workload = fail(admit())
    operator.post(REARM, {"item": item(workload), "reason": "because"})
    after = authority.get(workload.workload_id)
    assert abs(after.updated_at - timezone.now()) < dt.timedelta(minutes=1)
    assert after.next_attempt_at == after.updated_at
