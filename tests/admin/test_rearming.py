"""Re-arming from the admin: the reason, the version that was seen, and what is said of each workload."""

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
from workloads import authority
from workloads.admin import rearming
from workloads.contract import Timeouts
from workloads.models import Workload

pytestmark = pytest.mark.django_db


def item(workload: Workload) -> str:
    return f"{workload.pk}:{workload.version}"


def said(response: Any) -> list[str]:
    return [str(message) for message in response.context["messages"]]


def test_one_is_rearmed_from_its_page(operator: Client) -> None:
    workload = fail(admit())
    address = operator.get(page(workload)).context["rearm_url"]
    asked = operator.get(address)
    text = asked.content.decode()
    assert "3 → 4" in text
    assert "broken: it broke" in text
    assert f'value="{item(workload)}"' in text
    assert authority.get(workload.workload_id).version == workload.version
    response = operator.post(address, {"item": item(workload), "reason": "the disk\r\nis empty again"}, follow=True)
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
    done = admit("done")
    selected = [good.pk, moved.pk, late.pk, done.pk]
    action = {"action": "rearm", "_selected_action": selected}
    asked = operator.post(f"{LIST}?state=parked", action)
    assert asked.status_code == 302
    response = operator.get(asked["Location"])
    assert [i.workload.pk for i in response.context["parked"]] == [good.pk, moved.pk, late.pk]
    assert [i.workload.pk for i in response.context["others"]] == []
    authority.rearm(moved.workload_id, actor="somebody", reason="was quicker")
    items = [item(w) for w in (good, moved, late)] + ["999999:1"]
    response = operator.post(asked["Location"], {"item": items, "reason": "again"}, follow=True)
    assert response.redirect_chain == [(f"{LIST}?state=parked", 302)]
    assert said(response) == [
        "1 workload was re-armed.",
        f"{moved.workload_id}: It has moved on since you looked at it; look again. (WORKLOAD_CONFLICT)",
        f"{late.workload_id}: The overall deadline passed. (WORKLOAD_TIMED_OUT)",
        "#999999: It no longer exists.",
    ]
    assert authority.get(good.workload_id).state == "READY"
    assert authority.get(moved.workload_id).operator_retries == 1
    form = {"item": item(late), "reason": "again", "restart_overall": "on"}
    assert said(operator.post(REARM, form, follow=True)) == ["1 workload was re-armed."]


def test_what_is_not_parked_is_left_alone(operator: Client) -> None:
    parked, ready = fail(admit("parked")), admit("ready")
    response = operator.get(REARM, {"pk": [parked.pk, ready.pk]})
    assert [i.workload.pk for i in response.context["others"]] == [ready.pk]
    assert item(ready) not in response.content.decode()
    assert "nothing to re-arm" in operator.get(REARM, {"pk": ready.pk}).content.decode()
    response = operator.post(REARM, {"item": item(ready), "reason": "so"}, follow=True)
    assert "(WORKLOAD_TRANSITION_DENIED)" in said(response)[0]
    assert operator.get(page(ready)).context["rearm_url"] is None


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
    operator: Client, reason: str, complaint: str
) -> None:
    workload = fail(admit())
    response = operator.post(REARM, {"item": item(workload), "reason": reason})
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


def test_the_right_to_rearm_is_needed(viewer: Client, client_with: Callable[..., Client]) -> None:
    workload = fail(admit())
    form = {"item": item(workload), "reason": "because"}
    only_rearm = client_with("rearm_workload", username="blind")
    changer = client_with("view_workload", "change_workload", username="changer")
    for client in (viewer, only_rearm, changer):
        assert client.get(REARM, {"pk": workload.pk}).status_code == 403
        assert client.post(REARM, form).status_code == 403
    assert viewer.get(page(workload)).context["rearm_url"] is None
    viewer.post(LIST, {"action": "rearm", "_selected_action": [workload.pk]})
    assert Client().post(REARM, form).status_code == 302
    assert authority.get(workload.workload_id).version == workload.version


def test_a_post_without_its_csrf_token_is_refused(operator: Client) -> None:
    workload = fail(admit())
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = operator.cookies
    assert strict.post(REARM, {"item": item(workload), "reason": "because"}).status_code == 403


@pytest.mark.parametrize("keys", [[], ["x"], ["0"], ["9" * 30], ["1:2:3"], [str(n) for n in range(1, 300)]])
def test_an_odd_selection_is_answered_with_a_message(operator: Client, keys: list[str]) -> None:
    for response in (operator.get(REARM, {"pk": keys}, follow=True), operator.post(REARM, {"item": keys}, follow=True)):
        assert response.status_code == 200


def test_too_many_at_once_are_refused(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rearming, "MOST_AT_ONCE", 2)
    workloads = [fail(admit(str(n))) for n in range(3)]
    action = {"action": "rearm", "_selected_action": [w.pk for w in workloads], "select_across": "1", "index": "0"}
    response = operator.post(LIST, action, follow=True)
    assert said(response) == ["At most 2 workloads are re-armed at once: select fewer."]


def test_a_database_that_does_not_answer_is_a_message(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = fail(admit())

    def broken(*args: Any, **kwargs: Any) -> None:
        raise OperationalError("gone")

    monkeypatch.setattr(rearming.authority, "rearm", broken)
    response = operator.post(REARM, {"item": item(workload), "reason": "because"}, follow=True)
    assert said(response) == [f"{workload.workload_id}: The database did not take it; try again."]


@pytest.mark.parametrize("name", ["authority.recovery", " padded", "x" * 201])
def test_a_name_that_can_be_no_actor_is_replaced_by_a_key(name: str) -> None:
    class User:
        pk = 7

        def get_username(self) -> str:
            return name

    assert rearming.actor_name(User()) == "user:7"  # type: ignore[arg-type]


def test_the_view_runs_in_no_transaction_of_the_request() -> None:
    assert resolve(REARM).func._non_atomic_requests == {"default"}  # type: ignore[attr-defined]


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
