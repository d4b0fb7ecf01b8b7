"""Deciding on all that match a filter, from the browser: selecting, asking, going on, and what is said of it."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.db import OperationalError
from django.test import Client
from django.urls import resolve
from django.utils import timezone

from tests.admin.conftest import LIST, admit, fail, page
from tests.admin.test_interventions import PAGES, RIGHTS, brought, said
from tests.authority.builders import S, spoil
from workloads import authority
from workloads.admin import bulk
from workloads.contract import Timeouts
from workloads.lifecycle.interventions import Verb
from workloads.models import BulkAction, BulkItem, Event, Workload

pytestmark = pytest.mark.django_db

ACTIONS = "/admin/workloads/bulkaction/"
JSON = {"Accept": "application/json"}


@pytest.fixture
def chief(client_with: Callable[..., Client]) -> Client:
    """Somebody who may do everything that operators do."""
    return client_with("view_workload", *RIGHTS.values(), username="carla")


@pytest.fixture(autouse=True)
def one_step_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "MOST_SECONDS", 0.0)


def narrow(monkeypatch: pytest.MonkeyPatch, *, width: int = 100_000, limit: int = 250) -> None:
    """Let each step select among, and decide on, few."""
    select, go_on = authority.select_bulk, authority.continue_bulk
    monkeypatch.setattr(bulk.authority, "select_bulk", lambda pk, rows: select(pk, rows, width=width))
    monkeypatch.setattr(bulk.authority, "continue_bulk", lambda pk, actor: go_on(pk, actor=actor, limit=limit))


def at(action: BulkAction, name: str = "change") -> str:
    return f"{ACTIONS}{action.pk}/{name}/"


def begin(client: Client, verb: str = "rearm", query: str = "state=parked") -> BulkAction:
    """Choose the menu's entry for all that match, and return the action that this begins."""
    # The page selects what it shows; the rest is in the filter.
    form = {"action": verb, "_selected_action": ["1"], "select_across": "1"}
    response = client.post(f"{LIST}?{query}", form)
    action = BulkAction.objects.latest("pk")
    assert response["Location"] == f"{at(action)}#going"
    return action


def go_on(client: Client, action: BulkAction) -> BulkAction:
    """Press the button once, as without the script."""
    assert client.post(at(action, "go-on"), follow=True).redirect_chain == [(at(action), 302)]
    return BulkAction.objects.get(pk=action.pk)


def asking(client: Client, verb: str = "rearm", query: str = "state=parked") -> BulkAction:
    action = begin(client, verb, query)
    while action.stage == "selecting":
        action = go_on(client, action)
    return action


def confirm(client: Client, action: BulkAction, **more: str) -> BulkAction:
    response = client.post(at(action, "confirm"), {"reason": "the disk is empty again", **more})
    assert response["Location"] == f"{at(action)}#going"
    return BulkAction.objects.get(pk=action.pk)


def done(client: Client, action: BulkAction) -> BulkAction:
    while action.stage == "running":
        action = go_on(client, action)
    return action


def test_all_that_match_are_rearmed_without_the_script(chief: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    narrow(monkeypatch, width=3, limit=2)
    parked = [fail(admit(f"k{n}")) for n in range(5)]
    ready = admit("ready")
    action = begin(chief)
    text = chief.get(at(action)).content.decode()
    assert "Nothing is decided yet" in text
    assert 'value="0"' in text
    action = go_on(chief, action)
    assert (action.stage, action.selected_count) == ("selecting", 3)
    action = go_on(chief, action)
    assert (action.stage, action.selected_count) == ("asking", 5)
    response = chief.get(at(action))
    text = response.content.decode()
    assert "5 workloads are selected. Nothing is decided yet." in text
    assert 'value="Re-arm 5 workloads"' in text
    assert "3 → 4" in text
    assert [i.pk for i in response.context["sample"]] == [w.pk for w in parked]
    assert re.search(r"The state is [^.]*DEAD_LETTER", text)
    action = confirm(chief, action)
    assert action.stage == "running"
    action = go_on(chief, action)
    assert (action.done_count, action.left_count) == (2, 3)
    text = chief.get(at(action)).content.decode()
    assert re.search(r'<progress[^>]* value="2" max="5"', text)
    action = done(chief, action)
    assert (action.stage, action.done_count, action.refused_count) == ("done", 5, 0)
    assert "All that was selected has been decided on." in chief.get(at(action)).content.decode()
    for each in parked:
        told = Event.objects.filter(record=each.pk, actor="carla")
        assert [e.evidence["reason"] for e in told] == ["the disk is empty again"]
    assert authority.get(ready.workload_id).version == 1


def test_the_script_is_answered_in_numbers(chief: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    narrow(monkeypatch, limit=2)
    for n in range(3):
        fail(admit(f"k{n}"))
    action = begin(chief)
    answer = chief.post(at(action, "go-on"), headers=JSON).json()
    assert (answer["stage"], answer["trouble"], answer["selected"]) == ("asking", "", "3")
    confirm(chief, action)
    answer = chief.post(at(action, "go-on"), headers=JSON).json()
    numbers = {name: answer[name] for name in ("stage", "value", "most", "done", "refused", "left")}
    assert numbers == {"stage": "running", "value": 2, "most": 3, "done": "2", "refused": "0", "left": "1"}
    assert re.fullmatch(r"[\d,]+ a second, about \d+ seconds? left", answer["pace"])
    answer = chief.post(at(action, "go-on"), headers=JSON).json()
    assert (answer["stage"], answer["left"], answer["pace"]) == ("done", "0", "")
    # Once more harms nothing.
    assert chief.post(at(action, "go-on"), headers=JSON).json()["stage"] == "done"


def test_a_request_takes_as_many_steps_as_it_has_time_for(chief: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "MOST_SECONDS", 60.0)
    narrow(monkeypatch, width=1, limit=1)
    for n in range(4):
        fail(admit(f"k{n}"))
    action = begin(chief)
    assert go_on(chief, action).stage == "asking"
    assert go_on(chief, confirm(chief, action)).stage == "done"


@pytest.mark.parametrize(
    ("rate", "left", "words"),
    [
        (0.0, 10, ""),
        (10.0, 0, ""),
        (1.0, 1, "1 a second, about 1 second left"),
        (1040.4, 52_020, "1,040 a second, about 50 seconds left"),
        (1000.0, 100_000, "1,000 a second, about 2 minutes left"),
    ],
)
def test_how_long_it_will_take_is_said(rate: float, left: int, words: str) -> None:
    assert bulk._pace(rate, left) == words


def test_the_page_says_what_it_will_do_by_state(chief: Client) -> None:
    for state in (S.READY, S.RUNNING, S.SUCCEEDED, S.DEAD_LETTER):
        brought(state, state)
    action = asking(chief, "cancel", "")
    response = chief.get(at(action))
    text = response.content.decode()
    assert 'value="Cancel 3 workloads"' in text
    assert "None: all workloads." in text
    assert "It has ended for good." in text
    assert 'data-state="CANCELLATION_REQUESTED"' in text
    assert "is not stopped by this" in " ".join(response.context["effects"])
    assert {row["count"] for row in response.context["states"]} == {"1"}
    action = done(chief, confirm(chief, action))
    assert (action.done_count, action.refused_count) == (3, 1)


def test_what_it_does_not_apply_to_is_not_asked_for(chief: Client) -> None:
    admit()
    action = asking(chief, "rearm", "state=READY")
    text = chief.get(at(action)).content.decode()
    assert "nothing to re-arm" in text
    assert 'name="reason"' not in text
    nothing = asking(chief, "rearm", "state=DEAD_LETTER")
    assert "0 workloads are selected" in chief.get(at(nothing)).content.decode()


def test_the_overall_deadline_may_start_anew(chief: Client) -> None:
    late = admit("late", timeouts=Timeouts(overall_ms=1))
    authority.enforce_deadlines(now=timezone.now() + dt.timedelta(seconds=1))
    action = asking(chief)
    assert "Of the first 1, the overall deadline of 1 has passed" in chief.get(at(action)).context["late"]
    action = done(chief, confirm(chief, action))
    assert action.refusals == {"WORKLOAD_TIMED_OUT": 1}
    action = done(chief, confirm(chief, asking(chief), restart_overall="on"))
    assert (action.done_count, action.restart_overall) == (1, True)
    assert "It starts anew." in chief.get(at(action)).content.decode()
    assert authority.get(late.workload_id).state == "READY"


def test_what_moved_or_is_gone_or_spoilt_is_reported_page_by_page(
    chief: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "REFUSED_A_PAGE", 2)
    works = [fail(admit(f"k{n}")) for n in range(5)]
    action = asking(chief)
    for each in works[:3]:
        authority.cancel(each.workload_id, actor="somebody")
    spoil(works[3].workload_id)
    action = done(chief, confirm(chief, action))
    assert action.refusals == {"WORKLOAD_CONFLICT": 3, "UNREADABLE": 1}
    response = chief.get(at(action))
    text = response.content.decode()
    assert "<strong>3</strong> It had moved on since it was selected. (WORKLOAD_CONFLICT)" in text
    assert [row["name"] for row in response.context["refusals"]] == [w.workload_id for w in works[:2]]
    response = chief.get(at(action), {"after": response.context["next_after"]})
    assert [row["pk"] for row in response.context["refusals"]] == [w.pk for w in works[2:4]]
    assert "record can&#x27;t be read" in response.content.decode()
    assert response.context["next_after"] is None
    for odd in ("x", "-1", "9" * 30, "²"):
        assert chief.get(at(action), {"after": odd}).status_code == 200
    BulkItem.objects.all().delete()
    BulkAction.objects.update(items_are_kept=False)
    assert "no longer kept" in chief.get(at(action)).content.decode()


def test_a_spoilt_row_breaks_no_page(chief: Client) -> None:
    spoilt = fail(admit("spoilt"))
    spoil(spoilt.workload_id)
    action = asking(chief)
    response = chief.get(at(action))
    assert [i.why_not for i in response.context["sample"]] == ["Its record can't be read."]
    assert done(chief, confirm(chief, action)).refusals == {"UNREADABLE": 1}


def test_anyone_with_the_right_may_go_on_and_stands_in_the_events(
    chief: Client, client_with: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow(monkeypatch, limit=1)
    first, second = (fail(admit(f"k{n}")) for n in range(2))
    action = go_on(chief, confirm(chief, asking(chief)))
    other = client_with("view_workload", "rearm_workload", username="otto")
    assert "Go on" in other.get(at(action)).content.decode()
    assert done(other, action).stage == "done"
    actors = [authority.get(w.workload_id).events.last().actor for w in (first, second)]
    assert actors == ["carla", "otto"]
    text = other.get(at(action)).content.decode()
    assert "Confirmed by" in text
    assert "carla" in text


def test_it_may_be_stopped_and_the_rest_is_left_alone(chief: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    narrow(monkeypatch, limit=1)
    first, second = (fail(admit(f"k{n}")) for n in range(2))
    action = go_on(chief, confirm(chief, asking(chief)))
    assert chief.post(at(action, "stop"))["Location"] == at(action)
    text = chief.get(at(action)).content.decode()
    assert "It was stopped" in text
    assert "Stopped by" in text
    go_on(chief, action)
    chief.post(at(action, "confirm"), {"reason": "again"})
    assert authority.get(second.workload_id).version == second.version
    assert authority.get(first.workload_id).state == "READY"


@pytest.mark.parametrize("reason", ["", " ", "x" * 2001, "password is AKIA" + "Q" * 16])
def test_a_reason_that_the_authority_would_refuse_is_asked_for_again(chief: Client, reason: str) -> None:
    workload = fail(admit())
    action = asking(chief)
    response = chief.post(at(action, "confirm"), {"reason": reason})
    assert response.status_code == 200
    assert response.context["form"].errors["reason"]
    assert BulkAction.objects.get(pk=action.pk).stage == "asking"
    assert authority.get(workload.workload_id).version == workload.version


def test_confirming_before_all_is_selected_is_a_message(chief: Client) -> None:
    admit()
    action = begin(chief, "cancel", "")
    response = chief.post(at(action, "confirm"), {"reason": "so"}, follow=True)
    assert "(WORKLOAD_TRANSITION_DENIED)" in said(response)[0]
    answer = chief.post(at(action, "confirm"), {"reason": ""})
    assert answer["Location"].startswith(at(action))


@pytest.mark.parametrize("verb", list(Verb))
def test_the_right_of_its_own_is_needed_to_take_a_step(
    chief: Client, viewer: Client, client_with: Callable[..., Client], verb: Verb
) -> None:
    workload = brought(S.DEAD_LETTER) if verb is Verb.REARM else admit()
    action = asking(chief, str(verb), "")
    others = set(RIGHTS.values()) - {RIGHTS[verb]}
    refused = [
        viewer,
        client_with("view_workload", *others, username="others"),
        client_with(RIGHTS[verb], username="blind"),
    ]
    for client in refused:
        client.post(LIST, {"action": str(verb), "_selected_action": ["1"], "select_across": "1"})
        for step in ("go-on", "confirm", "stop"):
            assert client.post(at(action, step), {"reason": "so"}).status_code == 403
    assert BulkAction.objects.count() == 1
    text = viewer.get(at(action)).content.decode()
    assert "you need the right" in text
    assert "<form" not in text.split('id="content-main"')[1].split("What was asked for")[0]
    assert refused[-1].get(at(action)).status_code == 403
    assert refused[-1].get(ACTIONS).status_code == 403
    assert Client().post(at(action, "go-on")).status_code == 302
    assert authority.get(workload.workload_id).version == workload.version


def test_a_viewer_of_one_under_way_is_told_what_it_takes(chief: Client, viewer: Client) -> None:
    fail(admit())
    selecting = begin(chief)
    running = confirm(chief, asking(chief))
    for action in (selecting, running):
        text = viewer.get(at(action)).content.decode()
        assert "you need the right" in text
        assert "data-going" not in text


def test_a_step_without_its_csrf_token_is_refused(chief: Client) -> None:
    fail(admit())
    action = asking(chief)
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = chief.cookies
    for step in ("go-on", "confirm", "stop"):
        assert strict.post(at(action, step), {"reason": "so"}).status_code == 403
        assert chief.get(at(action, step)).status_code == 405
    assert chief.post(at(action)).status_code == 403
    assert BulkAction.objects.get().stage == "asking"


@pytest.mark.parametrize("key", ["7", "0", "x", "9" * 30])
def test_an_address_that_names_nothing_is_answered(chief: Client, key: str) -> None:
    assert chief.get(f"{ACTIONS}{key}/change/", follow=True).redirect_chain[0][0] == "/admin/"
    assert chief.post(f"{ACTIONS}{key}/go-on/").status_code in {302, 403, 404}
    assert chief.get(f"{ACTIONS}{key}/history/").status_code == 302


def test_a_filter_that_can_not_be_read_selects_nothing(chief: Client) -> None:
    admit()
    form = {"action": "cancel", "_selected_action": ["1"], "select_across": "1"}
    response = chief.post(f"{LIST}?state=BETTER", form, follow=True)
    assert any("nothing was selected" in words for words in said(response))
    assert not BulkAction.objects.exists()


def test_a_filter_that_a_newer_version_wrote_selects_nothing_and_says_so(chief: Client) -> None:
    admit()
    action = authority.begin_bulk("cancel", actor="carla", criteria="colour=red")
    action = go_on(chief, action)
    assert (action.stage, action.selected_count) == ("asking", 0)
    assert "There is no such filter." in chief.get(at(action)).content.decode()


def test_a_time_that_has_passed_is_meant_as_of_the_beginning(chief: Client) -> None:
    admit()
    action = begin(chief, "cancel", "admitted_from=1h")
    assert re.fullmatch(r"admitted_from=\d{4}-\d\d-\d\dT.*", action.criteria)
    assert go_on(chief, action).selected_count == 1


@pytest.mark.parametrize(
    ("error", "status"),
    [(OperationalError("gone"), 503), (bulk.WorkloadError("WORKLOAD_CONFLICT", "It moved."), 409)],
)
def test_trouble_is_said_and_nothing_is_lost(
    chief: Client, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    fail(admit())
    action = confirm(chief, asking(chief))

    def broken(*args: Any, **kwargs: Any) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(bulk.authority, "continue_bulk", broken)
        response = chief.post(at(action, "go-on"), headers=JSON)
        assert (response.status_code, response.json()["stage"]) == (status, "running")
        assert response.json()["trouble"]
        assert said(chief.post(at(action, "go-on"), follow=True)) == [response.json()["trouble"]]
    assert done(chief, action).done_count == 1


def test_the_list_of_actions_says_what_became_of_each(chief: Client, viewer: Client) -> None:
    fail(admit())
    action = done(chief, confirm(chief, asking(chief)))
    for client in (chief, viewer):
        text = client.get(ACTIONS).content.decode()
        assert f"re-arm {action.pk}" in text
        assert "1 of 1" in text
        assert "the disk is empty again" in text
        assert "carla" in text
        assert 'name="action"' not in text
    assert chief.get(f"{ACTIONS}add/").status_code == 403
    assert chief.post(at(action, "delete"), {"post": "yes"}).status_code == 403
    assert BulkAction.objects.count() == 1


def test_text_of_people_and_workers_is_no_markup(chief: Client) -> None:
    fail(admit(definition_id="<script>a"), error="<script>b")
    action = asking(chief)
    text = chief.get(at(action)).content.decode()
    assert "<script>a" not in text
    assert "<script>b" not in text
    action = done(chief, confirm(chief, action, reason="<script>c"))
    text = chief.get(at(action)).content.decode()
    assert "<script>c" not in text
    assert "&lt;script&gt;c" in text


@pytest.mark.parametrize("step", ["go-on", "confirm", "stop"])
def test_the_steps_run_in_no_transaction_of_the_request(step: str) -> None:
    assert resolve(f"{ACTIONS}1/{step}/").func._non_atomic_requests == {"default"}


def test_the_pages_read_few_rows_and_no_payload(chief: Client, django_assert_max_num_queries: Any) -> None:
    for n in range(30):
        fail(admit(f"k{n}", input={"text": "x" * 100}))
    action = asking(chief)
    for _ in range(2):
        with django_assert_max_num_queries(8) as caught:
            chief.get(at(action))
        assert not any('"input"' in q["sql"] or '"grant"' in q["sql"] for q in caught.captured_queries)
    assert len(chief.get(at(action)).context["sample"]) == bulk.SAMPLE


def test_a_workload_of_an_action_has_its_page(chief: Client) -> None:
    workload = fail(admit())
    assert page(workload) in chief.get(at(asking(chief))).content.decode()
    assert PAGES[Verb.REARM] in " ".join(o.url for o in chief.get(page(workload)).context["offers"])
    assert Workload.objects.count() == 1
