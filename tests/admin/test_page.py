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
from workloads import authority
from workloads.admin import page as pages
from workloads.contract import Dependency, Timeouts
from workloads.models import Workload

pytestmark = pytest.mark.django_db

NASTY = "<script>alert('x')</script>"


def claim(workload: Workload, worker_id: str = "w") -> Any:
    return authority.claim(
        workload.workload_id, worker_id=worker_id, capabilities=workload.capability_snapshot, lease_ms=60_000
    )


def text_of(client: Client, workload: Workload) -> str:
    response = client.get(page(workload))
    assert response.status_code == 200
    return response.content.decode()


def test_it_tells_the_whole_story(viewer: Client) -> None:
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
    text = text_of(viewer, workload)
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
    assert "It waits for other work" in blocked
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
    assert "failure_kind_not_retryable" in text


def test_a_lease_that_is_over_is_told(viewer: Client) -> None:
    workload = admit()
    authority.claim(
        workload.workload_id,
        worker_id="w",
        capabilities=set(),
        lease_ms=1,
        now=timezone.now() + dt.timedelta(seconds=1),
    )
    text = text_of(viewer, workload)
    assert "is running it" not in text
    late = timezone.now() + dt.timedelta(minutes=1)
    assert "a pass will recover it" in pages.sentence(authority.get(workload.workload_id), late)


def test_a_result_is_shown(viewer: Client) -> None:
    workload = admit()
    fence = claim(workload).fence
    authority.start(fence)
    authority.complete(fence, result_id="r-1", output={"sum": 12})
    text = text_of(viewer, workload)
    assert "It is done" in text
    assert "r-1" in text
    assert "&quot;sum&quot;: 12" in text
    assert "Why it is not running" not in text


def test_every_text_is_escaped(operator: Client) -> None:
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


def test_a_history_without_end_is_cut_and_says_so(viewer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MOST_EVENTS", 3)
    monkeypatch.setattr(pages, "MOST_CHECKPOINTS", 2)
    monkeypatch.setattr(pages, "MOST_ATTEMPTS", 1)
    monkeypatch.setattr(pages, "MOST_STATE_CHARS", 50)
    workload = admit()
    for number in range(3):
        fence = claim(workload, f"worker-{number}").fence
        authority.start(fence)
        authority.checkpoint(fence, {"n": f"mark-{number}-a"})
        authority.checkpoint(fence, {"n": f"mark-{number}-b" + "x" * 100})
        authority.release(fence)
    response = viewer.get(page(workload))
    text = response.content.decode()
    count = authority.get(workload.workload_id).event_count
    assert f"The first 3 and the last 3 of {count} are shown." in text
    shown = {table.anchor: [row[0] for row in table.rows] for table in response.context["tables"]}
    assert shown["events"] == [1, 2, 3, count - 2, count - 1, count]
    assert shown["attempts"] == [1, 3]
    assert shown["checkpoints"] == [1, 2, 5, 6]
    assert "mark-0-b" in text
    assert "x" * 60 not in text


def test_the_number_of_queries_does_not_grow_with_the_history(viewer: Client) -> None:
    workload = admit()

    def lives(number: int) -> None:
        for _ in range(number):
            fence = claim(workload).fence
            authority.start(fence)
            authority.checkpoint(fence, {"a": 1})
            authority.release(fence)

    lives(1)
    with CaptureQueriesContext(connection) as few:
        viewer.get(page(workload))
    lives(8)
    with CaptureQueriesContext(connection) as many:
        viewer.get(page(workload))
    assert len(many) == len(few) <= 24
    assert not any('"grant"' in query["sql"] or "`grant`" in query["sql"] for query in many)


def test_it_is_found_by_its_workload_id(viewer: Client) -> None:
    workload = admit()
    assert workload.workload_id in viewer.get(f"{LIST}{workload.workload_id}/change/").content.decode()
    assert viewer.get(f"{LIST}{workload.pk}/history/").status_code == 302


@pytest.mark.parametrize("key", ["0", "-1", "x", "9" * 19, "9" * 40, "workload_nothing", "١", "workload_%00"])
def test_what_names_nothing_leads_back(viewer: Client, key: str) -> None:
    response = viewer.get(f"{LIST}{key}/change/")
    assert response.status_code == 302
