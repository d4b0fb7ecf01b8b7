"""Whoever carries on an action on many may be killed at any point, or have company: each workload is decided once."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httpx
import pytest
from django.contrib.auth import get_user_model
from django.db import connection
from django.test import Client

from tests.api.server import Server, server
from tests.races.calls import request
from tests.races.processes import race, racers, say, wait
from workloads import authority
from workloads.authority import bulk
from workloads.errors import WorkloadError
from workloads.models import BulkAction, BulkItem, Event, Workload

pytestmark = pytest.mark.django_db(transaction=True)

HERE = "tests.faults.test_bulk"
REASON = "the disk is empty again"
LIMIT = 7
POINTS = ("lock_workloads", "write", "execute_many", "_step", "transact")


# What the processes do.


def drive(action_id: int, actor: str, limit: int) -> int:
    """Go on until all is done; return how often this process had a turn."""
    for turn in range(1, 10_000):
        if authority.continue_bulk(action_id, actor=actor, limit=limit).stage == "done":
            return turn
    raise AssertionError("it does not end")


def drive_until(action_id: int, point: str, nth: int) -> None:
    """Go on; tell when the nth batch has come to a point, and wait there to be killed."""
    whole, times = getattr(bulk, point), 0

    def pausing(*args: Any, **kwargs: Any) -> Any:
        nonlocal times
        answer = whole(*args, **kwargs)
        times += 1
        if times == nth:
            say("there")
            wait()
        return answer

    setattr(bulk, point, pausing)
    drive(action_id, "killed", LIMIT)


# What they are given, and what they leave.


def parked(count: int) -> None:
    """Park so many workloads."""
    for start in range(0, count, 500):
        authority.admit_many([request(f"k{n}") for n in range(start, min(count, start + 500))])
    action = begun("time_out", "nobody")
    while action.stage == "running":
        action = authority.continue_bulk(action.pk, actor="nobody", limit=500)
    assert action.done_count == count


def begun(verb: str, actor: str) -> BulkAction:
    """Return an action on all workloads that is confirmed and has not begun."""
    action = authority.begin_bulk(verb, actor=actor)
    while action.stage == "selecting":
        action = authority.select_bulk(action.pk, Workload.objects.all())
    return authority.confirm_bulk(action.pk, actor=actor, reason=REASON)


def assert_each_once(action_id: int, count: int) -> Counter[str]:
    """Assert that each workload was re-armed once and that all is well; return how many by whom."""
    action = BulkAction.objects.get(pk=action_id)
    assert (action.stage, action.done_count, action.refused_count) == ("done", count, 0)
    assert not BulkItem.objects.filter(action_id=action_id).exists()
    told = Event.objects.filter(to_state="READY", from_state="TIMED_OUT")
    by_record = Counter(told.values_list("record_id", flat=True))
    assert len(by_record) == count
    assert set(by_record.values()) == {1}
    assert set(Workload.objects.values_list("state", "version", "operator_retries")) == {("READY", 3, 1)}
    assert list(authority.verify()) == []
    return Counter(told.values_list("actor", flat=True))


@pytest.mark.parametrize("point", POINTS)
def test_a_process_killed_within_a_batch_loses_and_doubles_nothing(point: str) -> None:
    count = 4 * LIMIT + 3
    parked(count)
    action = begun("rearm", "olga")
    with racers([(f"{HERE}.drive_until", action.pk, point, 2)]) as (racer,):
        racer.say()
        assert racer.hear() == "there"
        racer.child.send_signal(signal.SIGKILL)
        racer.child.wait()
    left = BulkAction.objects.get(pk=action.pk)
    # What was not committed is undone with its items; what was is kept with them.
    kept = 2 * LIMIT if point == "transact" else LIMIT
    assert (left.stage, left.done_count, left.left_count) == ("running", kept, count - kept)
    assert BulkItem.objects.filter(action_id=action.pk).count() == count - kept
    assert Event.objects.filter(actor="killed").count() == kept
    drive(action.pk, "olga", 250)
    assert assert_each_once(action.pk, count) == {"killed": kept, "olga": count - kept}


def test_two_who_drive_the_same_action_take_turns() -> None:
    count = 200
    parked(count)
    action = begun("rearm", "olga")
    turns = race([(f"{HERE}.drive", action.pk, actor, 5) for actor in ("olga", "otto")])
    assert assert_each_once(action.pk, count).total() == count
    # Each batch was decided by one of them; who came last found the action done.
    assert count // 5 + 1 <= sum(turns) <= count // 5 + 2


def test_work_that_others_move_meanwhile_is_decided_by_whoever_comes_first() -> None:
    count = 60
    parked(count)
    action = begun("rearm", "olga")
    names = list(Workload.objects.order_by("pk").values_list("workload_id", flat=True))
    race([(f"{HERE}.drive", action.pk, "olga", 3), (f"{HERE}.rearm_each", names)])
    action.refresh_from_db()
    assert (action.stage, action.done_count + action.refused_count) == ("done", count)
    told = Event.objects.filter(to_state="READY", from_state="TIMED_OUT")
    assert set(Counter(told.values_list("record_id", flat=True)).values()) == {1}
    assert Counter(told.values_list("actor", flat=True))["olga"] == action.done_count
    assert action.refusals.keys() <= {"WORKLOAD_CONFLICT"}
    assert list(authority.verify()) == []


def rearm_each(names: list[str]) -> None:
    """Re-arm one after the other, from the end, those that are still parked."""
    for name in reversed(names):
        with suppress(WorkloadError):
            authority.rearm(name, actor="somebody", reason="one by one")


# By way of a web server.


class Browser:
    """Somebody who drives an action in the admin, as the script on its page does."""

    def __init__(self, running: Server, action_id: int, cookie: str) -> None:
        self.http = httpx.Client(base_url=running.url, cookies={"sessionid": cookie}, timeout=60, trust_env=False)
        page = self.http.get(f"/admin/workloads/bulkaction/{action_id}/change/")
        found = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page.text)
        assert found, page.text[:500]
        self.form = {"csrfmiddlewaretoken": found[1]}
        self.address = f"/admin/workloads/bulkaction/{action_id}/go-on/"
        self.longest = 0.0

    def go_on(self) -> dict[str, Any]:
        began = time.monotonic()
        response = self.http.post(self.address, data=self.form, headers={"Accept": "application/json"})
        self.longest = max(self.longest, time.monotonic() - began)
        assert response.status_code == 200, response.text[:500]
        answer: dict[str, Any] = response.json()
        return answer


@contextmanager
def driven(running: Server, action_id: int, cookie: str) -> Iterator[threading.Thread]:
    """Let a browser go on in the background until the action is done or the server is gone."""

    def drive_on() -> None:
        browser = Browser(running, action_id, cookie)
        with suppress(httpx.HTTPError):
            while browser.go_on()["stage"] == "running":
                pass

    thread = threading.Thread(target=drive_on)
    thread.start()
    try:
        yield thread
    finally:
        thread.join(60)


@pytest.mark.parametrize(
    "count",
    [
        1_500,
        pytest.param(
            100_000,
            marks=[
                pytest.mark.long,
                pytest.mark.skipif(connection.vendor != "postgresql", reason="a figure of PostgreSQL's"),
            ],
        ),
    ],
)
def test_a_server_killed_half_way_leaves_the_rest_to_be_gone_on_with(count: int) -> None:
    parked(count)
    client = Client()
    client.force_login(get_user_model().objects.create_superuser("olga"))
    cookie = client.cookies["sessionid"].value
    action = begun("rearm", "olga")
    with server() as first, driven(first, action.pk, cookie):
        until = time.monotonic() + 600
        while BulkAction.objects.get(pk=action.pk).done_count < count // 3:
            assert time.monotonic() < until, first.last_words()
            time.sleep(0.02)
        os.killpg(first.child.pid, signal.SIGKILL)
        first.child.wait()
    left = BulkAction.objects.get(pk=action.pk)
    assert left.stage == "running"
    assert 0 < left.left_count < count
    assert Event.objects.filter(actor="olga").count() == left.done_count
    with server() as second:
        browser = Browser(second, action.pk, cookie)
        answer = browser.go_on()
        while answer["stage"] == "running":
            answer = browser.go_on()
        assert browser.longest < 10
    assert assert_each_once(action.pk, count) == {"olga": count}
