"""An idle worker hears of work at once, where anybody can tell it; everywhere else it looks for itself."""

from __future__ import annotations

import threading

import pytest
from django.db import connection

from tests.authority.builders import request
from tests.test_wakeups import ADMIT, backends, elsewhere, end_sessions, gone
from tests.worker.tools import PATIENCE_S, admit, drain, eventually, registry, state, working
from workloads import authority, wakeups
from workloads.models import Workload
from workloads.worker import Worker, loop
from workloads.worker.registry import Registry

pytestmark = pytest.mark.django_db(transaction=True)

NEVER_MS = 600_000
SOON_S = 20


@pytest.fixture(autouse=True)
def fresh():
    wakeups.stop()
    yield
    wakeups.stop()


@pytest.fixture
def postgres():
    if connection.vendor != "postgresql":
        pytest.skip("only PostgreSQL tells other processes")


def everything(function):
    """Return handlers for the tests' work, and for that of another process."""
    handlers = registry(function)
    handlers.add(function, request("k").definition_id)
    return handlers


def asks(monkeypatch):
    """Return what each claim gets from now on."""
    real = authority.claim_next
    got = []

    def ask(**asked):
        claims = real(**asked)
        got.append(len(claims))
        return claims

    monkeypatch.setattr(authority, "claim_next", ask)
    return got


def is_listening():
    listener = wakeups._here.listeners.get(connection.alias)
    return listener is not None and listener.is_listening.is_set()


def listens():
    listener = wakeups._here.listeners.get(connection.alias)
    return listener is not None and listener.is_alive()


def test_an_idle_worker_hears_of_work_of_its_own_process(monkeypatch):
    got = asks(monkeypatch)
    with working(lambda attempt: "out", poll_ms=NEVER_MS):
        eventually(lambda: got)
        for _ in range(3):
            workload_id = admit()
            eventually(lambda workload_id=workload_id: state(workload_id) == "SUCCEEDED", SOON_S)


def test_an_idle_worker_hears_of_work_of_other_processes(postgres):
    with working(everything(lambda attempt: "out"), poll_ms=NEVER_MS) as worker:
        eventually(is_listening)
        elsewhere(ADMIT)
        eventually(lambda: worker._endings["succeeded"] == 1, SOON_S)


def test_it_hears_again_after_its_session_was_ended(postgres, caplog):
    with working(everything(lambda attempt: "out"), poll_ms=NEVER_MS) as worker:
        eventually(is_listening)
        ended = end_sessions("LISTEN", "SELECT 1")
        assert gone(ended)
        eventually(lambda: any(query.startswith("LISTEN") for _, query in backends()))
        elsewhere(ADMIT)
        eventually(lambda: worker._endings["succeeded"] == 1, SOON_S)
    assert [r.message for r in caplog.records if r.name == "workloads"] == []


def test_what_was_admitted_while_it_did_not_hear_is_found_when_it_does_again(postgres, monkeypatch):
    got = asks(monkeypatch)
    monkeypatch.setattr(wakeups, "CHANNEL", "workloads_elsewhere")
    with working(lambda attempt: "out", poll_ms=NEVER_MS):
        eventually(is_listening)
        eventually(lambda: got)
        # Said to nobody, as by a process that is gone before it could.
        monkeypatch.setattr(wakeups._here.bell, "ring", lambda: None)
        workload_id = admit()
        assert state(workload_id) == "READY"
        monkeypatch.undo()
        end_sessions("LISTEN", "SELECT 1")
        eventually(lambda: state(workload_id) == "SUCCEEDED", SOON_S)


def test_with_notifications_off_it_opens_no_session_and_looks_for_itself(postgres, settings):
    settings.WORKLOADS = {**settings.WORKLOADS, "NOTIFICATIONS": False}
    with working(everything(lambda attempt: "out"), poll_ms=50) as worker:
        elsewhere(ADMIT)
        eventually(lambda: worker._endings["succeeded"] == 1)
        assert not listens()


def test_one_that_drains_does_not_listen():
    admit()
    drain(lambda attempt: "out")
    assert not listens()
    assert not wakeups.bell()._told


def test_one_that_has_ended_hears_no_more():
    with working(lambda attempt: "out"):
        eventually(lambda: wakeups.bell()._told)
    assert not wakeups.bell()._told
    assert not listens()


def test_the_last_one_to_end_gives_the_session_up(postgres):
    with working(lambda attempt: "out"):
        with working(lambda attempt: "out"):
            eventually(is_listening)
            eventually(lambda: len(wakeups.bell()._told) == 2)
        assert is_listening()
    assert not listens()


def test_one_that_can_run_nothing_of_it_does_not_look_at_every_word(monkeypatch):
    got = asks(monkeypatch)
    monkeypatch.setattr(loop, "LOOK_S", 0.5)
    over = threading.Event()

    def ring():
        while not over.wait(0.001):
            wakeups.bell().ring()

    ringing = threading.Thread(target=ring)
    with working(Registry(), poll_ms=NEVER_MS):
        eventually(lambda: got)
        before = len(got)
        ringing.start()
        assert not over.wait(2)
        looks = len(got) - before
        over.set()
        ringing.join(PATIENCE_S)
    assert 1 <= looks <= 6


def test_a_word_that_comes_while_it_looks_is_not_lost(monkeypatch):
    real = authority.claim_next
    late = []

    def claim(**asked):
        claims = real(**asked)
        if not late:
            # Admitted after the look, and before it waits.
            late.append(admit())
        return claims

    monkeypatch.setattr(authority, "claim_next", claim)
    with working(lambda attempt: "out", poll_ms=NEVER_MS):
        eventually(lambda: late and state(late[0]) == "SUCCEEDED", SOON_S)


def test_it_is_stopped_at_once_while_it_waits():
    worker = Worker(handlers=registry(lambda attempt: "out"), poll_ms=NEVER_MS)
    thread = threading.Thread(target=worker.run)
    thread.start()
    eventually(lambda: wakeups.bell()._told)
    worker.stop()
    thread.join(SOON_S)
    assert not thread.is_alive()
    assert not Workload.objects.exists()
