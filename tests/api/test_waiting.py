"""Long polls: who waits, for how long, what ends it, and that a claim is never handed to nobody for good."""

from __future__ import annotations

import asyncio
import datetime as dt
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from django.core.handlers.asgi import ASGIHandler
from django.db import OperationalError, connections

from tests.api.live import PATIENCE_S, Call, application, on_database, until
from tests.api.server import server
from tests.api.tools import Caller, claiming, place
from tests.authority.builders import request
from workloads import authority, wakeups
from workloads.api import asgi, claims, waiting
from workloads.models import Access, Workload

pytestmark = pytest.mark.django_db(transaction=True)
PATH = "/api/v1/claims/"


@pytest.fixture
def worker():
    return Caller("wanda", place("worker"))


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Let nobody look for themselves before a test is over, so that it is a word that wakes them."""
    monkeypatch.setattr(waiting, "LOOK_AGAIN_S", 60.0)
    monkeypatch.setattr(waiting, "LOOK_ONESELF_S", 60.0)
    yield
    wakeups.stop()
    wakeups._renew()


def admit(key: str = "k", **fields: Any) -> str:
    return authority.admit(request(key, tenant_id="acme", application_id="invoices", **fields)).workload.workload_id


def wait_for(**fields: Any) -> dict[str, Any]:
    return claiming(**{"wait_ms": 20_000, **fields})


def waiters() -> int:
    return sum(round_.members for rounds in waiting._rounds.values() for round_ in rounds.values())


@pytest.fixture
def asked(monkeypatch):
    """Every putting of the question to the authority, and what is to come of it: nothing, or an error."""
    real, calls, errors = authority.claim_next_with_context, [], []

    def ask(**fields: Any) -> Any:
        calls.append(fields["worker_id"])
        if errors and len(calls) > 1:
            raise errors[0]
        return real(**fields)

    monkeypatch.setattr(authority, "claim_next_with_context", ask)
    ask.calls, ask.errors = calls, errors
    return ask


# Under ASGI


def test_a_word_of_work_ends_the_wait(worker):
    async def run() -> None:
        async with application() as app:
            call = Call(app, PATH, wait_for(), worker.headers)
            await until(lambda: waiters() == 1)
            workload_id = await on_database(admit)
            answer = await call.answer()
            assert answer.status == 200 and "retry-after" not in answer.headers
            assert [claim["workload_id"] for claim in answer.body["claims"]] == [workload_id]
            assert waiters() == 0

    asyncio.run(run())


def test_an_empty_answer_comes_after_wait_ms_and_at_once_without(worker):
    async def run() -> None:
        async with application() as app:
            for wait_ms in (0, 300):
                started = time.monotonic()
                answer = await Call(app, PATH, wait_for(wait_ms=wait_ms), worker.headers).answer()
                assert (answer.status, answer.body) == (200, {"claims": []})
                assert "retry-after" not in answer.headers
                assert time.monotonic() - started >= wait_ms / 1000

    asyncio.run(run())


def test_a_wait_is_cut(worker, monkeypatch):
    assert claims.LONGEST_WAIT_MS == 30_000
    monkeypatch.setattr(claims, "LONGEST_WAIT_MS", 100)

    async def run() -> None:
        async with application() as app:
            answer = await Call(app, PATH, wait_for(wait_ms=10**12), worker.headers).answer()
            assert answer.body == {"claims": []}

    asyncio.run(run())


def test_work_that_comes_due_is_found_without_a_word(worker, monkeypatch):
    monkeypatch.setattr(waiting, "LOOK_AGAIN_S", 0.1)
    admit(not_before=authority.read_clock() + dt.timedelta(milliseconds=700))

    async def run() -> None:
        async with application() as app:
            assert (await Call(app, PATH, wait_for(), worker.headers).answer()).body["claims"]

    asyncio.run(run())


def test_a_wait_holds_no_thread(worker):
    async def run() -> None:
        async with application() as app:
            calls = [Call(app, PATH, wait_for(worker_id=f"w-{number}"), worker.headers) for number in range(60)]
            await until(lambda: waiters() == 60)
            lanes = [thread for thread in threading.enumerate() if thread.name.startswith("workloads-lane")]
            assert len(lanes) <= 4
            assert threading.active_count() <= len(lanes) + 5
            for call in calls:
                call.leave()
                await call.end()

    asyncio.run(run())


def test_one_of_many_who_wait_for_the_same_asks_for_all(worker, asked):
    async def run() -> None:
        async with application() as app:
            calls = [Call(app, PATH, wait_for(worker_id=f"w-{number}"), worker.headers) for number in range(40)]
            await until(lambda: waiters() == 40)
            # The one who leads may look once more, at what was said before it began to listen.
            await asyncio.sleep(0.2)
            before = len(asked.calls)
            for number in range(3):
                await on_database(lambda n=number: admit(f"k-{n}"))
            await until(lambda: sum(call.is_over for call in calls) == 3)
            # One look for each that is given something, and one or two at each word that find nothing.
            assert len(asked.calls) - before <= 9
            given = [call for call in calls if call.is_over]
            assert sorted(len(call.body["claims"]) for call in given) == [1, 1, 1]
            assert waiters() == 37
            for call in calls:
                call.leave()
                await call.end()

    asyncio.run(run())


def test_those_who_wait_for_something_else_are_asked_for_separately(worker):
    async def run() -> None:
        async with application() as app:
            calls = [
                Call(app, PATH, wait_for(worker_id=name, definitions=[name]), worker.headers) for name in ("a", "b")
            ]
            await until(lambda: waiters() == 2)
            await on_database(lambda: admit(definition_id="b"))
            assert (await calls[1].answer()).body["claims"][0]["definition_id"] == "b"
            assert not calls[0].is_over
            calls[0].leave()
            await calls[0].end()

    asyncio.run(run())


def test_who_leaves_while_waiting_takes_no_work_along_and_the_next_one_hears(worker):
    async def run() -> None:
        async with application() as app:
            first, second = (Call(app, PATH, wait_for(worker_id=f"w-{n}"), worker.headers) for n in (1, 2))
            await until(lambda: waiters() == 2)
            first.leave()
            await first.end()
            assert first.said == [] and waiters() == 1
            await on_database(admit)
            assert (await second.answer()).body["claims"][0]["worker_id"] == "w-2"

    asyncio.run(run())


@pytest.mark.parametrize("request_id", ["r-1", None])
@pytest.mark.parametrize("way", ["leave", "cancel"])
def test_a_claim_that_nobody_was_told_of_is_got_by_a_repeat_or_comes_back(worker, monkeypatch, request_id, way):
    real, is_claimed, may_go_on = authority.claim_next_with_context, threading.Event(), threading.Event()

    def claim_and_stand_still(**fields: Any) -> Any:
        found = real(**fields)
        if found:
            is_claimed.set()
            assert may_go_on.wait(PATIENCE_S)
        return found

    monkeypatch.setattr(authority, "claim_next_with_context", claim_and_stand_still)

    async def run() -> None:
        async with application() as app:
            call = Call(app, PATH, wait_for(request_id=request_id), worker.headers)
            await until(lambda: waiters() == 1)
            await on_database(admit)
            await until(is_claimed.is_set)
            getattr(call, way)()
            await asyncio.sleep(0)
            may_go_on.set()
            if way == "leave":
                await call.end()
            else:
                with pytest.raises(asyncio.CancelledError):
                    await call.end()
            assert call.said == [] and waiters() == 0
            answer = await Call(app, PATH, claiming(request_id=request_id), worker.headers).answer()
            assert len(answer.body["claims"]) == (1 if request_id else 0)

    asyncio.run(run())
    assert Workload.objects.get().state == "CLAIMED" and Workload.objects.get().fencing_token == 1
    later = authority.read_clock() + dt.timedelta(minutes=2)
    assert len(authority.run_pass(now=later).recovered) == 1


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [(OperationalError("away"), 503, "UNAVAILABLE"), (RuntimeError("secret words"), 500, "INTERNAL_ERROR")],
)
def test_an_error_while_waiting_is_an_error_like_any_other(worker, asked, error, status, code):
    asked.errors.append(error)

    async def run() -> None:
        async with application() as app:
            call = Call(app, PATH, wait_for(), worker.headers)
            await until(lambda: waiters() == 1)
            wakeups.bell().ring()
            answer = await call.answer()
            assert (answer.status, answer.body["code"]) == (status, code)
            assert ("retry-after" in answer.headers) == (status == 503)
            assert answer.headers["content-type"] == "application/json"
            assert "secret" not in str(answer.body)
            assert waiters() == 0

    asyncio.run(run())


def test_access_that_ends_while_waiting_ends_the_wait(worker):
    async def run() -> None:
        async with application() as app:
            call = Call(app, PATH, wait_for(), worker.headers)
            await until(lambda: waiters() == 1)
            await on_database(Access.objects.all().delete)
            workload_id = await on_database(admit)
            answer = await call.answer()
            assert (answer.status, answer.body["code"]) == (403, "FORBIDDEN")
            state = await on_database(lambda: Workload.objects.get(workload_id=workload_id).state)
            assert state == "READY"

    asyncio.run(run())


@pytest.mark.parametrize(
    "ending",
    [
        lambda user: user.auth_token_set.all().delete(),
        lambda user: type(user).objects.filter(pk=user.pk).update(is_active=False),
        lambda user: user.delete(),
    ],
    ids=["token revoked", "user deactivated", "user deleted"],
)
def test_one_who_is_nobody_any_longer_gets_nothing(worker, ending):
    async def run() -> None:
        async with application() as app:
            call = Call(app, PATH, wait_for(), worker.headers)
            await until(lambda: waiters() == 1)
            await on_database(lambda: ending(worker.user))
            workload_id = await on_database(admit)
            answer = await call.answer()
            assert (answer.status, answer.body["code"]) == (401, "UNAUTHENTICATED")
            state = await on_database(lambda: Workload.objects.get(workload_id=workload_id).state)
            assert state == "READY"

    asyncio.run(run())


def test_one_who_waits_behind_others_still_looks_at_its_own_access(worker, monkeypatch):
    monkeypatch.setattr(waiting, "LOOK_ONESELF_S", 0.2)
    other = Caller("wilma", place("worker"))

    async def run() -> None:
        async with application() as app:
            first = Call(app, PATH, wait_for(), worker.headers)
            await until(lambda: waiters() == 1)
            second = Call(app, PATH, wait_for(worker_id="w-2"), other.headers)
            await until(lambda: waiters() == 2)
            await on_database(Access.objects.filter(user=other.user).delete)
            assert (await second.answer()).status == 403
            assert not first.is_over
            first.leave()
            await first.end()

    asyncio.run(run())


def test_names_outside_ones_access_are_answered_at_once_and_not_asked_for_again_at_once(worker):
    async def run() -> None:
        async with application() as app:
            answer = await Call(app, PATH, wait_for(tenant_id="elsewhere"), worker.headers).answer()
            assert answer.body == {"claims": []} and answer.headers["retry-after"] == "1"

    asyncio.run(run())


def test_when_the_server_is_told_to_stop_every_wait_ends(worker, monkeypatch):
    stopped = []
    before = signal.signal(signal.SIGTERM, lambda *args: stopped.append("the server"))
    interrupt = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(waiting, "_is_ending_with_server", False)

    async def run() -> None:
        async with application() as app:
            calls = [Call(app, PATH, wait_for(worker_id=f"w-{n}"), worker.headers) for n in range(20)]
            await until(lambda: waiters() == 20)
            signal.raise_signal(signal.SIGTERM)
            for call in calls:
                answer = await call.answer()
                assert answer.body == {"claims": []} and answer.headers["retry-after"] == "1"
            late = await Call(app, PATH, wait_for(), worker.headers).answer()
            assert late.body == {"claims": []} and late.headers["retry-after"] == "1"

    try:
        asyncio.run(run())
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGINT, interrupt)
    assert stopped == ["the server"]


@pytest.mark.parametrize("kind", ["wsgi", "asgi"])
def test_a_real_server_that_is_told_to_stop_does_not_wait_for_those_who_wait(worker, kind):
    answers: list[Any] = []
    options = {"headers": worker.headers, "trust_env": False, "timeout": 60}
    with server(kind, WEB_PROCESSES="1", WEB_THREADS="2", WEB_GRACE_S="30") as running:
        url = f"{running.api}claims/"

        def begin() -> threading.Thread:
            thread = threading.Thread(target=lambda: answers.append(httpx.post(url, json=wait_for(), **options)))
            thread.start()
            return thread

        call = begin()
        deadline = time.monotonic() + PATIENCE_S
        if kind == "wsgi":
            # The one thread that may wait is taken.
            probe = claiming(worker_id="w-2", wait_ms=1)
            while "Retry-After" not in httpx.post(url, json=probe, **options).headers:
                assert time.monotonic() < deadline
                if not call.is_alive():
                    # The probe had that thread, and it was this call that was told to come back.
                    answers.clear()
                    call = begin()
        else:
            httpx.get(f"{running.api}health/", **options)
        started = time.monotonic()
        running.child.terminate()
        running.child.wait(PATIENCE_S)
        took = time.monotonic() - started
        call.join(PATIENCE_S)
    assert answers[0].json() == {"claims": []} and answers[0].headers["Retry-After"] == "1"
    # The wait had nearly twenty seconds to go.
    assert took < 18


def test_without_the_wrapper_nobody_waits_and_all_are_told_when_to_come_back(worker):
    async def run() -> None:
        answer = await Call(ASGIHandler(), PATH, wait_for(), worker.headers).answer()
        assert answer.body == {"claims": []} and answer.headers["retry-after"] == "1"

    asyncio.run(run())


# Where each request has a thread


@pytest.fixture
def threaded(worker):
    worker.client.defaults["wsgi.multithread"] = True
    return worker


@contextmanager
def a_thread_that_waits(caller: Caller) -> Iterator[list[Any]]:
    """Have a call that waits; at the end of the block it is to have been answered."""
    answers: list[Any] = []

    def call() -> None:
        try:
            answers.append(caller.post("claims/", wait_for()))
        finally:
            connections.close_all()

    thread = threading.Thread(target=call)
    thread.start()
    deadline = time.monotonic() + PATIENCE_S
    while waiting._waiting != 1 and time.monotonic() < deadline:
        time.sleep(0.005)  # the call says nothing before its answer
    assert waiting._waiting == 1
    yield answers
    thread.join(PATIENCE_S)
    assert not thread.is_alive() and waiting._waiting == 0


def test_a_thread_waits_and_is_woken(threaded):
    with a_thread_that_waits(threaded) as answers:
        workload_id = admit()
    assert [claim["workload_id"] for claim in answers[0].body["claims"]] == [workload_id]


def test_an_error_ends_a_threads_wait(threaded, asked):
    asked.errors.append(OperationalError("away"))
    with a_thread_that_waits(threaded) as answers:
        wakeups.bell().ring()
    assert answers[0].status == 503 and answers[0].headers["Retry-After"] == "1"


def test_one_thread_too_many_is_told_to_come_back_at_once(threaded, settings):
    settings.WORKLOADS = {**settings.WORKLOADS, "MAX_WAITING_REQUESTS": 1}
    with a_thread_that_waits(threaded) as answers:
        started = time.monotonic()
        answer = threaded.post("claims/", wait_for(worker_id="w-2"))
        assert time.monotonic() - started < 5
        assert answer.body == {"claims": []} and int(answer.headers["Retry-After"]) >= 1
        assert "Retry-After" not in threaded.post("claims/", wait_for(worker_id="w-2", wait_ms=0)).headers
        admit()
    assert len(answers[0].body["claims"]) == 1


def test_a_server_with_one_thread_lets_nobody_wait(worker):
    worker.client.defaults["wsgi.multithread"] = False
    answer = worker.post("claims/", wait_for())
    assert answer.body == {"claims": []} and answer.headers["Retry-After"] == "1"


def test_a_thread_stops_waiting_when_the_server_stops(threaded):
    with a_thread_that_waits(threaded) as answers:
        wakeups.bell().end()
    assert answers[0].body == {"claims": []} and answers[0].headers["Retry-After"] == "1"


def test_the_more_are_turned_away_the_later_each_is_to_come_back():
    crowd = waiting.Crowd()
    assert {crowd.turn_away("w-1") for _ in range(100)} == {1}
    assert [crowd.turn_away(f"w-{number}") for number in range(200)][-1] == 8
    assert [crowd.turn_away(f"w-{number}") for number in range(20_000)][-1] == waiting.LATEST_S
    crowd._since -= 3 * waiting.COUNTED_S
    assert crowd.turn_away("w-1") == 1


def test_the_lanes_leave_room_beside_those_who_ask():
    async def run() -> None:
        lanes = asgi.Lanes(4)
        may_go_on, begun = threading.Event(), []

        def ask() -> None:
            begun.append(1)
            assert may_go_on.wait(PATIENCE_S)

        asking = [asyncio.ensure_future(lanes.ask(ask)) for _ in range(10)]
        await until(lambda: len(begun) == 2)
        async with lanes.lane(), lanes.lane():
            may_go_on.set()
        await asyncio.gather(*asking)
        assert len(begun) == 10
        await lanes.close()

    asyncio.run(run())
