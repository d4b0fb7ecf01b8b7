"""Why work is not running, in the reader's words: a sentence for each code, and the authority's own for others."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.test import Client
from django.utils.html import strip_tags

from tests.admin.conftest import admit, page
from tests.authority.builders import write_raw
from tests.support import T0, at
from workloads import authority
from workloads.admin import page_blockers, page_grant
from workloads.contract import Blocker, RetryPolicy
from workloads.lifecycle.canonical import iso

NOW = at(60_000)
NASTY = "<script>"


def said(code: str, **details: Any) -> str:
    """Return the text of the reason, all markup gone, and what its sentence leaves to be told."""
    reason = page_blockers.reason(Blocker(code=code, message="The authority's own words.", details=details), NOW)
    assert "<script>" not in f"{reason.sentence}{reason.more}"
    return strip_tags(f"{reason.sentence}|{reason.more}")


@pytest.mark.parametrize(
    ("code", "details", "words"),
    [
        ("not_due", {"next_attempt_at": iso(at(90_000))}, "It is not due yet: its next attempt may begin in 30 s"),
        ("dependencies_unmet", {"dependencies": ["a"]}, "It waits for 1 other workload, which is not"),
        ("dependencies_unmet", {"dependencies": ["a", "b"]}, "It waits for 2 other workloads, which are not"),
        ("no_capable_worker_seen", {"missing": ["gpu", NASTY]}, "Nobody has: &lt;script&gt;, gpu.|"),
        ("no_capable_worker_seen", {}, "No worker seen of late asks for such work and has all that it needs.|"),
        ("no_capable_worker_seen", {"since": iso(T0)}, "The last that could run it was seen 1\xa0minute ago.|"),
        ("paused", {}, "Work of this kind is paused: none is handed out.|"),
        ("limited", {}, "As much work of this kind as is allowed at once is running.|"),
        ("limited", {"count": 5}, "is running.|count5"),
        ("behind_others", {"count": 1, "more": False}, "1 other workload goes first: more urgent, or longer due.|"),
        ("behind_others", {"count": 7, "more": False}, "7 other workloads go first"),
        ("behind_others", {"count": 1000, "more": True}, "More than 1000 other workloads go first"),
        ("attempt_budget_used", {"count": 1}, "Its 1 attempt is used up; a claim will dead-letter it.|"),
        ("attempt_budget_used", {"count": 3}, "Its 3 attempts are used up; a claim will dead-letter it.|"),
        ("parked", {"since": iso(T0)}, "until an operator re-arms or cancels it.|"),
        ("parked", {"since": iso(T0), "decision": NASTY}, "It was decided by the rule &lt;script&gt;.|"),
        (
            "claimed",
            {"worker_id": NASTY, "expires_at": iso(at(70_000))},
            "&lt;script&gt; holds it; its lease ends in 10 s.|",
        ),
        ("claimed", {"worker_id": "w", "expires_at": iso(at(50_000))}, "w held it; its lease ended 10 s ago.|"),
        (
            "cancellation_unconfirmed",
            {"worker_id": "w", "expires_at": iso(at(70_000))},
            "w was asked to stop and has not confirmed it; its lease ends in 10 s.|",
        ),
        (
            "cancellation_unconfirmed",
            {"worker_id": "w", "expires_at": iso(NOW)},
            "w was asked to stop and has not confirmed it; its lease ended",
        ),
        (
            "deadline_passed",
            {"deadline": "queue", "deadline_at": iso(at(50_000))},
            "Its queue deadline passed 10 s ago; the next pass or call times it out.|",
        ),
        ("pass_not_running", {"since": None}, "none has ever run: start manage.py workloads_pass.|"),
        ("pass_not_running", {"since": iso(at(50_000))}, "the last ran 10 s ago: start manage.py workloads_pass.|"),
        ("of_tomorrow", {"why": NASTY, "nothing": None}, "The authority&#x27;s own words.|why&lt;script&gt;"),
        ("not_due", {}, "The authority&#x27;s own words.|"),
        ("not_due", {"next_attempt_at": "soon"}, "The authority&#x27;s own words.|next_attempt_atsoon"),
        ("deadline_passed", {"deadline": "new", "deadline_at": iso(NOW)}, "The authority&#x27;s own words.|"),
        ("claimed", {"worker_id": "w", "expires_at": "0001-01-01T00:00:00Z"}, "w held it; its lease ended"),
    ],
)
def test_each_code_has_a_sentence(code: str, details: dict[str, Any], words: str) -> None:
    text = said(code, **details)
    assert words.replace("&#x27;", "'") in text or words in text


def test_every_code_of_the_contract_is_known() -> None:
    codes = (
        "not_due dependencies_unmet no_capable_worker_seen paused limited behind_others attempt_budget_used parked "
        "claimed cancellation_unconfirmed deadline_passed pass_not_running"
    )
    assert set(page_blockers._SENTENCES) == set(codes.split())


def test_what_it_waits_for_is_linked_in_a_bounded_number() -> None:
    ids = [f"workload_{number:024x}" for number in range(60)]
    reason = page_blockers.reason(Blocker(code="dependencies_unmet", message="", details={"dependencies": ids}), NOW)
    assert reason.more.count("<a href=") == page_blockers.MOST_LINKS
    assert f"/workload/{ids[0]}/change/" in reason.more
    assert "10 more" in reason.more
    assert page_blockers.link("no id of ours") == '<code class="workloads-code">no id of ours</code>'


@pytest.mark.django_db
def test_what_was_pruned_meanwhile_has_no_reasons_and_no_grant() -> None:
    assert page_blockers.reasons("workload_gone", NOW) == []
    assert page_grant.grant("workload_gone") == []


@pytest.mark.django_db
def test_used_up_attempts_are_told(viewer: Client) -> None:
    workload = admit(retry_policy=RetryPolicy(max_attempts=1))
    write_raw("workload", workload.workload_id, attempt_count=1)
    text = viewer.get(page(workload)).content.decode()
    assert "Its attempts are used up: the next claim dead-letters it." in text
    assert "Its 1 attempt is used up; a claim will dead-letter it." in text


@pytest.mark.django_db
@pytest.mark.parametrize("state", ["CREATED", "RECOVERING"])
def test_a_state_that_work_only_passes_through_is_told_as_spoilt(viewer: Client, state: str) -> None:
    workload = admit()
    write_raw("workload", workload.workload_id, state=state)
    assert "It stands in a state that work only passes through" in viewer.get(page(workload)).content.decode()


@pytest.mark.django_db
def test_work_at_rest_for_no_reason_that_is_known_says_since_when(viewer: Client) -> None:
    workload = admit()
    write_raw("workload", workload.workload_id, state="DEAD_LETTER")
    assert "It came to rest " in viewer.get(page(workload)).content.decode()
    assert authority.get(workload.workload_id).created_at < dt.datetime.now(dt.UTC)
