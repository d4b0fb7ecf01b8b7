"""A workload's page: what it tells in each state, in bounded numbers of rows, and nothing unescaped."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from tests.admin.conftest import LIST, admit, fail, page
from tests.authority.builders import write_raw
from workloads import authority
from workloads.admin import page_record, page_relations, page_standing
from workloads.contract import AdmissionRequest, Dependency, RetryPolicy, Timeouts
from workloads.models import Tombstone, Workload

pytestmark = pytest.mark.django_db

NASTY = "<script>alert('x')</script>"


def claim(workload: Workload, worker_id: str = "w") -> Any:
    return authority.claim(
        workload.workload_id, worker_id=worker_id, capabilities=workload.capability_snapshot, lease_ms=60_000
    )


@pytest.fixture
def reader(client_with: Any) -> Client:
    """Somebody who may look, and read payloads."""
    reading: Client = client_with("view_workload", "view_payload", username="rita")
    return reading


def text_of(client: Client, workload: Workload) -> str:
    response = client.get(page(workload))
    assert response.status_code == 200
    return response.content.decode()


def test_it_tells_the_whole_story(viewer: Client, reader: Client) -> None:
    first = admit("1")
    workload = admit("2", input={"file": "a.txt"}, timeouts=Timeouts(overall_ms=60_000), priority=7)
    fence = claim(workload).fence
    authority.start(fence)
    authority.checkpoint(fence, {"offset": 12}, key="half")
    authority.fail(fence, kind="timeout", error="slow\nvery slow")
    fence = authority.claim(
        workload.workload_id,
        worker_id="w2",
        capabilities=set(),
        lease_ms=1,
        now=timezone.now() + dt.timedelta(seconds=9),
    ).fence
    text = text_of(reader, workload)
    for said in ("a.txt", "offset", "half", "slow", "FAILED", "timeout", "overall 60000 ms", fence.claim_id, "2 of 3"):
        assert said in text, said
    assert 'id="dependencies"' not in text
    assert "depends" in text_of(viewer, admit("3", dependencies=[Dependency(workload_id=first.workload_id)])).lower()


def test_it_says_where_the_work_stands_and_why_it_does_not_run(viewer: Client) -> None:
    ready = admit("ready")
    assert "It has waited for a worker" in text_of(viewer, ready)
    later = admit("later", not_before=timezone.now() + dt.timedelta(hours=2))
    text = text_of(viewer, later)
    assert "It is scheduled, and due" in text
    assert "not_due" in text
    blocked = text_of(viewer, admit("blocked", dependencies=[Dependency(workload_id=later.workload_id)]))
    assert "It waits for other work; once that is as required" in blocked
    assert f"/workload/{later.workload_id}/change/" in blocked
    assert "dependencies_unmet" in blocked
    held = admit("held")
    fence = claim(held, "worker-9").fence
    assert "has claimed it and not started yet" in text_of(viewer, held)
    authority.start(fence)
    text = text_of(viewer, held)
    assert "is running it" in text
    assert "worker-9" in text
    authority.cancel(held.workload_id, actor="a")
    assert "cancellation_unconfirmed" in text_of(viewer, held)
    authority.confirm_cancel(fence)
    assert "It was called off" in text_of(viewer, held)
    dead = fail(admit("dead"))
    text = text_of(viewer, dead)
    assert "It came to rest" in text
    assert "it failed in a way that its policy does not retry" in text
    assert "failure_kind_not_retryable" in text


def test_a_lease_that_is_over_is_told(viewer: Client) -> None:
    workload = admit()
    begun = timezone.now() + dt.timedelta(seconds=1)
    authority.claim(workload.workload_id, worker_id="w", capabilities=set(), lease_ms=1, now=begun)
    rows = Workload.objects.all()
    late = page_record.read_record(rows, workload.pk, begun + dt.timedelta(minutes=1), reads_payloads=False)
    assert late is not None
    said = page_standing.sentence(late)
    assert "its lease was over" in said
    assert "The next pass recovers it: it waits for another worker, with 2 attempts left." in said


def test_a_result_is_shown(viewer: Client, reader: Client) -> None:
    workload = admit()
    fence = claim(workload).fence
    authority.start(fence)
    authority.complete(fence, result_id="r-1", output={"sum": 12})
    text = text_of(reader, workload)
    assert "It is done" in text
    assert "r-1" in text
    assert "&quot;sum&quot;: 12" in text
    assert "Why it is not running" not in text


def test_every_text_is_escaped(client_with: Any) -> None:
    operator = client_with("view_workload", "rearm_workload", "view_payload", username="nora")
    other = admit(f"o{NASTY}", tenant_id=NASTY, application_id=NASTY)
    workload = admit(
        NASTY,
        tenant_id=NASTY,
        application_id=NASTY,
        requested_by=NASTY,
        definition_id=NASTY,
        definition_revision=NASTY,
        environment=NASTY,
        trigger=NASTY,
        session_id=NASTY,
        input={NASTY: NASTY, "long": NASTY * 300},
        capability_snapshot={NASTY},
        connection_scopes={NASTY},
        dependencies=[Dependency(workload_id=other.workload_id)],
    )
    fence = claim(other, NASTY).fence
    authority.start(fence)
    authority.complete(fence, result_id=NASTY, output={NASTY: NASTY}, artifacts=[NASTY])
    fence = claim(workload, NASTY).fence
    authority.start(fence)
    authority.checkpoint(fence, {NASTY: NASTY * 300}, key=NASTY)
    authority.checkpoint(fence, {NASTY: NASTY})
    authority.fail(fence, kind=NASTY, error=f"{NASTY}\n{NASTY}" * 20)
    for reason in (NASTY, NASTY * 20):
        authority.rearm(workload.workload_id, actor=NASTY, reason=reason)
        authority.time_out(workload.workload_id, actor=NASTY, reason=reason)
    addresses = [
        LIST,
        f"{LIST}?q={NASTY}",
        page(workload),
        page(other),
        f"{LIST}rearm/?pk={workload.pk}&pk={other.pk}",
    ]
    for address in addresses:
        response = operator.get(address)
        assert response.status_code == 200
        text = response.content.decode()
        assert "<script>alert" not in text, address
        assert "&lt;script&gt;alert" in text, address


def test_a_history_without_end_is_cut_and_says_so(reader: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_record, "MOST_EVENTS", 3)
    monkeypatch.setattr(page_record, "MOST_CHECKPOINTS", 2)
    monkeypatch.setattr(page_record, "MOST_ATTEMPTS", 1)
    monkeypatch.setattr(page_record, "MOST_STATE_CHARS", 50)
    workload = admit()
    for number in range(3):
        fence = claim(workload, f"worker-{number}").fence
        authority.start(fence)
        authority.checkpoint(fence, {"n": f"mark-{number}-a"})
        authority.checkpoint(fence, {"n": f"mark-{number}-b" + "x" * 100})
        authority.release(fence)
    response = reader.get(page(workload))
    text = response.content.decode()
    count = authority.get(workload.workload_id).event_count
    assert f"The first 3 and the last 3 of {count} are shown." in text
    shown = {table.anchor: [row[0] for row in table.rows] for table in response.context["tables"]}
    assert shown["events"] == [1, 2, 3, count - 2, count - 1, count]
    assert shown["attempts"] == [1, 3]
    assert shown["checkpoints"] == [1, 2, 5, 6]
    assert "mark-0-b" in text
    assert "x" * 60 not in text
    assert "/payload/checkpoints/6" in text
    assert not response.context["trouble"]


def test_the_number_of_queries_does_not_grow_with_the_history(reader: Client) -> None:
    workload = admit(input={"a": 1})

    def lives(number: int) -> None:
        for _ in range(number):
            fence = claim(workload).fence
            authority.start(fence)
            authority.checkpoint(fence, {"a": 1})
            authority.release(fence)

    lives(1)
    with CaptureQueriesContext(connection) as few:
        reader.get(page(workload))
    lives(8)
    with CaptureQueriesContext(connection) as many:
        reader.get(page(workload))
    assert len(many) == len(few) <= 26


def test_relations_are_links_with_states_in_bounded_numbers(viewer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_relations, "MOST_RELATED", 3)
    monkeypatch.setattr(page_relations, "MOST_COUNTED", 5)
    base, elsewhere = admit("base"), admit("elsewhere", application_id="other")
    nobody = "workload_" + "0" * 24
    wanted = [Dependency(workload_id=each) for each in (base.workload_id, elsewhere.workload_id, nobody)]
    first = admit("first", dependencies=wanted)
    response = viewer.get(page(first))
    (table,) = [table for table in response.context["tables"] if table.anchor == "dependencies"]
    told = {str(row[0]): [str(cell) for cell in row[1:]] for row in table.rows}
    ids = [each.workload_id for each in wanted]
    by_id = {each: next(cells for name, cells in told.items() if each in name) for each in ids}
    assert 'data-state="READY"' in by_id[base.workload_id][0] and by_id[base.workload_id][2] == "waited for"
    assert "of another application" in by_id[elsewhere.workload_id][0]
    assert by_id[nobody][0] == "There is none under this id."
    assert by_id[nobody][2] == "not admitted yet"
    assert f'href="{LIST}{nobody}/change/"' in response.content.decode()
    admit("outside", application_id="other", dependencies=[Dependency(workload_id=base.workload_id)])
    (table,) = [table for table in viewer.get(page(base)).context["tables"] if table.anchor == "dependents"]
    assert any("of another application: it does not count" in str(row[1]) for row in table.rows)
    assert table.note == ""
    for number in range(2):
        admit(f"n{number}", dependencies=[Dependency(workload_id=base.workload_id)])
    notes = [table.note for table in viewer.get(page(base)).context["tables"] if table.anchor == "dependents"]
    assert notes == ["3 of 4 are shown."]
    for number in range(4):
        admit(f"m{number}", dependencies=[Dependency(workload_id=base.workload_id)])
    notes = [table.note for table in viewer.get(page(base)).context["tables"] if table.anchor == "dependents"]
    assert notes == ["3 of more than 5 are shown."]


def test_what_was_pruned_is_told_as_such(viewer: Client) -> None:
    gone = "workload_" + "1" * 24
    now = timezone.now()
    Tombstone.objects.create(
        workload_id=gone, tenant_id="t", application_id="app", state="SUCCEEDED", finished_at=now, pruned_at=now
    )
    workload = admit("after", dependencies=[Dependency(workload_id=gone)])
    (table,) = [table for table in viewer.get(page(workload)).context["tables"] if table.anchor == "dependencies"]
    assert "pruned since" in table.rows[0][1] and 'data-state="SUCCEEDED"' in table.rows[0][1]


def test_the_words_of_people_stand_apart(viewer: Client) -> None:
    workload = fail(admit())
    authority.rearm(workload.workload_id, actor="olga", reason="mended\nby hand \u202eback \u001b[1m")
    text = text_of(viewer, workload)
    assert 'dir="auto">mended\nby hand [U+202E]back [U+001B][1m</blockquote>' in text
    assert "operator_rearm" in text


def test_a_long_error_in_another_direction_is_folded_and_whole(viewer: Client) -> None:
    error = "שגיאה\n" + "e" * 7_990
    text = text_of(viewer, fail(admit(), error=error))
    assert error in text
    assert '<div class="workloads-prose" dir="auto"><details><summary>שגיאה…</summary>' in text


def test_every_name_can_be_selected_and_leads_to_the_list_of_its_like(viewer: Client) -> None:
    workload = fail(admit(definition_id="d é", tenant_id="t&t"), kind="broken", worker_id="w 1")
    text = text_of(viewer, workload)
    for query in (
        "definition=d+%C3%A9",
        "definition=d+%C3%A9&amp;revision=1",
        "tenant=t%26t",
        "application=app",
        "worker=w+1",
        "failure_kind=broken",
    ):
        assert f'href="{LIST}?{query}"' in text, query
    assert f'<code class="workloads-code workloads-id">{workload.workload_id}</code>' in text


@pytest.mark.parametrize(
    ("grant", "said"),
    [
        ({}, "It verifies."),
        ({"expires_at": dt.timedelta(seconds=-1)}, "It does not hold at this time."),
    ],
)
def test_a_grant_is_told_without_its_signature(viewer: Client, grant: dict[str, Any], said: str) -> None:
    now = timezone.now()
    signed = authority.issue_grant(
        subject="u",
        tenant_id="t",
        application_id="app",
        capabilities=["gpu"],
        issued_at=now - dt.timedelta(minutes=5),
        expires_at=now + grant.get("expires_at", dt.timedelta(minutes=5)),
    )
    request = AdmissionRequest(
        tenant_id="t",
        application_id="app",
        requested_by="u",
        definition_id="d",
        idempotency_key="granted",
        capability_snapshot={"gpu"},
        grant=signed,
    )
    workload = authority.admit(request, now=now - dt.timedelta(minutes=1)).workload
    text = text_of(viewer, workload)
    assert said in text
    assert "It verifies." in text and "gpu" in text
    assert signed not in text and signed.rpartition(":")[2] not in text


def test_a_grant_that_does_not_verify_or_cover_is_told(viewer: Client, settings: Any) -> None:
    soon = timezone.now() + dt.timedelta(minutes=5)
    signed = authority.issue_grant(
        subject="u", tenant_id="t", application_id="app", capabilities=["gpu"], expires_at=soon
    )
    workload = admit(grant=signed, capability_snapshot={"gpu"})
    write_raw("admitted", workload.workload_id, capability_snapshot='["gpu","tpu"]')
    assert "No: it does not cover all the capabilities." in text_of(viewer, workload)
    write_raw("admitted", workload.workload_id, requested_by="x")
    assert "No: it names another requester, tenant or application." in text_of(viewer, workload)
    write_raw("admitted", workload.workload_id, grant=signed[:-2] + "xx")
    text = text_of(viewer, workload)
    assert "It does not verify" in text
    assert signed[:-2] not in text


def test_what_comes_next_is_told_in_every_state(viewer: Client) -> None:
    only_once = RetryPolicy(max_attempts=1)
    held = admit("held", retry_policy=only_once)
    fence = claim(held).fence
    assert "it is dead-lettered, as its attempts are used up." in text_of(viewer, held)
    authority.cancel(held.workload_id, actor="a")
    assert "has been asked to stop, and has not confirmed it." in text_of(viewer, held)
    assert "it is cancelled." in text_of(viewer, held)
    authority.confirm_cancel(fence)
    assert "after 1 attempt. Nothing more happens." in text_of(viewer, held)
    lossless = admit("lossless", retry_policy=RetryPolicy(retry_on={"timeout"}))
    authority.start(claim(lossless).fence)
    assert "it is dead-lettered, as its policy does not retry lost workers." in text_of(viewer, lossless)
    authority.time_out(lossless.workload_id, actor="olga", reason="stuck")
    assert "olga timed it out" in text_of(viewer, lossless)
    later = timezone.now() + dt.timedelta(hours=1)
    waits = admit("waits", not_before=later, dependencies=_on(lossless))
    assert "It waits for other work, and is not due before" in text_of(viewer, waits)
    never = admit("never", dependencies=_on(held))
    assert "the next pass gives it up." in text_of(viewer, never)
    authority.dead_letter_unsatisfiable()
    assert "work that it depends on ended in another state" in text_of(viewer, never)
    past = timezone.now() - dt.timedelta(hours=1)
    late = authority.admit(_request("late", timeouts=Timeouts(overall_ms=1_000)), now=past).workload
    text = text_of(viewer, late)
    assert "Its overall deadline passed" in text and "deadline_passed" in text and "pass_not_running" in text
    authority.enforce_deadlines()
    text = text_of(viewer, late)
    assert "as a deadline for all of its attempts passed." in text
    assert "starts its overall deadline anew, which has passed." in text


def _on(workload: Workload) -> list[Dependency]:
    return [Dependency(workload_id=workload.workload_id)]


def _request(key: str, **changes: Any) -> AdmissionRequest:
    names: dict[str, Any] = {"tenant_id": "t", "application_id": "app", "requested_by": "u", "definition_id": "d"}
    return AdmissionRequest(idempotency_key=key, **(names | changes))


def test_it_is_found_by_its_workload_id_and_by_its_key(viewer: Client) -> None:
    workload = admit()
    for name in (workload.workload_id, workload.pk):
        assert workload.workload_id in viewer.get(f"{LIST}{name}/change/").content.decode()
    assert viewer.get(f"{LIST}{workload.pk}/history/").status_code == 302
    assert viewer.get(f"{LIST}{workload.pk}/delete/").status_code == 403


@pytest.mark.parametrize("key", ["0", "-1", "x", "9" * 19, "9" * 40, "workload_nothing", "١", "workload_%00"])
def test_what_names_nothing_leads_back(viewer: Client, key: str) -> None:
    response = viewer.get(f"{LIST}{key}/change/")
    assert response.status_code == 302
