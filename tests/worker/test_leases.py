"""Leases, heartbeats, cancellation and stopping, by a worker in this process."""

from __future__ import annotations

import logging
import threading
import time

import pytest
from django.db import OperationalError, connection, transaction

from tests.worker.tools import admit, attempts, drain, eventually, get, registry, state, working
from workloads import authority
from workloads.contract import Timeouts
from workloads.models import Workload
from workloads.worker import Cancelled, LeaseLost, Stopped, heartbeats, lease as leases, loop
from workloads.worker.heartbeats import beat_every_ms

pytestmark = pytest.mark.django_db(transaction=True)

LONGEST_S = 30.0


@pytest.fixture
def often(monkeypatch):
    """Let heartbeats come a hundred times in a lease: news is quick, and no lease at risk on a slow machine."""
    monkeypatch.setattr(heartbeats, "BEATS_A_LEASE", 100)


def beating(attempt):
    """Run until told to stop."""
    until = time.monotonic() + LONGEST_S
    while time.monotonic() < until:
        attempt.check()
        time.sleep(0.01)
    return "not stopped"


def test_heartbeats_keep_a_handler_that_outlives_its_lease():
    workload_id = admit()

    def run(attempt):
        until = time.monotonic() + 2.5
        while time.monotonic() < until:
            attempt.check()
            time.sleep(0.01)
        return "out"

    drain(run, lease_ms=1_000)
    assert [(row.status) for row in attempts(workload_id)] == ["SUCCEEDED"]


def test_heartbeats_come_also_when_a_handler_keeps_the_processor_busy():
    workload_id = admit()

    def run(attempt):
        until = time.monotonic() + 2.5
        count = 0
        while time.monotonic() < until:
            count += 1
        return "out"

    drain(run, lease_ms=1_200)
    assert [(row.status) for row in attempts(workload_id)] == ["SUCCEEDED"]


def test_a_heartbeat_deadline_shorter_than_the_lease_is_kept():
    workload_id = admit(timeouts=Timeouts(heartbeat_ms=1_200))

    def run(attempt):
        time.sleep(2.5)
        return "out"

    drain(run, lease_ms=60_000)
    assert state(workload_id) == "SUCCEEDED"
    assert beat_every_ms(60_000, 1_200) == 400
    assert beat_every_ms(60_000, None) == 20_000
    assert beat_every_ms(3, None) == 1


def test_a_body_stops_by_the_workers_own_clock_when_nobody_can_be_asked(monkeypatch, caplog):
    def away(*args, **kwargs):
        raise OperationalError("no route to host")

    monkeypatch.setattr(authority, "heartbeat_many", away)
    workload_id = admit()
    seen = []

    def run(attempt):
        begun = time.monotonic()
        try:
            beating(attempt)
        except LeaseLost:
            seen.append((time.monotonic() - begun, attempt.lease_left_ms))
            monkeypatch.setattr(authority, "checkpoint", lambda *a, **k: pytest.fail("it was asked"))
            with pytest.raises(LeaseLost):
                attempt.checkpoint({"too": "late"})
            raise

    with caplog.at_level(logging.INFO, "workloads"):
        summary = drain(run, lease_ms=1_000)
    assert dict(summary.endings) == {"lost": 1}
    ((seconds, left),) = seen
    assert seconds < 3
    assert left == 0
    assert len([r for r in caplog.records if "does not answer" in r.message]) == 1
    assert state(workload_id) == "RUNNING"
    eventually(lambda: authority.recover_expired() == [workload_id])


def test_a_checkpoint_is_given_up_when_the_lease_ends_first(monkeypatch):
    def away(*args, **kwargs):
        raise OperationalError("no route to host")

    monkeypatch.setattr(authority, "heartbeat_many", away)
    monkeypatch.setattr(authority, "checkpoint", away)
    admit()
    seen = []

    def run(attempt):
        with pytest.raises(LeaseLost) as caught:
            attempt.checkpoint(1)
        seen.append(caught.value)
        raise caught.value

    assert dict(drain(run, lease_ms=600).endings) == {"lost": 1}
    assert len(seen) == 1


def test_a_lease_that_is_over_is_never_renewed():
    workload_id = admit()
    (claim,) = authority.claim_next(worker_id="w", capabilities=(), lease_ms=200, start=True)
    held = leases.Lease(claim, asked_at=leases.monotonic() - 1, beat_every_ms=60)
    renewed = authority.heartbeat(claim.fence, extend_ms=60_000)
    held.renew(renewed, asked_at=leases.monotonic())
    assert held.lost == "the lease is over"
    assert held.left_ms == 0
    with pytest.raises(LeaseLost):
        held.check()
    assert claim.workload_id == workload_id


def test_work_that_the_authority_took_back_is_stopped_and_not_reported(often):
    workload_id = admit()
    started = threading.Event()
    ended = []

    def run(attempt):
        started.set()
        try:
            return beating(attempt)
        except Stopped as stopped:
            ended.append(type(stopped))
            raise

    with working(run, lease_ms=20_000) as worker:
        assert started.wait(LONGEST_S)
        authority.cancel(workload_id, actor="op", force=True)
        eventually(lambda: ended)
        eventually(lambda: worker._endings)
    assert ended == [LeaseLost]
    assert [row.status for row in attempts(workload_id)] == ["CANCELLED"]
    assert state(workload_id) == "CANCELLED"


def until_cancelled(attempt):
    eventually(lambda: attempt.cancelled, LONGEST_S)


def raise_cancelled(attempt):
    until_cancelled(attempt)
    attempt.check()


def return_all_the_same(attempt):
    until_cancelled(attempt)
    return "out"


def raise_something_else(attempt):
    until_cancelled(attempt)
    raise ValueError("on the way out")


def checkpoint_again(attempt):
    time.sleep(0.5)
    with pytest.raises(Cancelled):
        attempt.checkpoint(1)
    assert attempt.cancelled
    attempt.check()


@pytest.mark.parametrize("body", [raise_cancelled, return_all_the_same, raise_something_else, checkpoint_again])
def test_a_cancellation_is_confirmed_however_the_handler_ends(body, often):
    workload_id = admit()
    started = threading.Event()

    def run(attempt):
        started.set()
        return body(attempt)

    with working(run, lease_ms=20_000) as worker:
        assert started.wait(LONGEST_S)
        assert authority.cancel(workload_id, actor="op").state == "CANCELLATION_REQUESTED"
        eventually(lambda: state(workload_id) == "CANCELLED")
    assert [row.status for row in attempts(workload_id)] == ["CANCELLED"]
    assert dict(worker._endings) == {"cancelled": 1}


def test_a_stopping_worker_claims_no_more_and_waits_for_what_runs():
    first, second = admit(), admit()
    started, go = threading.Event(), threading.Event()

    def run(attempt):
        started.set()
        assert go.wait(LONGEST_S)
        return "out"

    with working(run, grace_ms=20_000) as worker:
        assert started.wait(LONGEST_S)
        worker.stop()
        go.set()
        eventually(lambda: state(first) == "SUCCEEDED")
    assert state(second) == "READY"


def test_after_the_grace_period_bodies_are_told_and_their_work_is_released():
    workload_id = admit()
    started = threading.Event()
    stopped = []

    def run(attempt):
        started.set()
        try:
            return beating(attempt)
        except LeaseLost as error:
            stopped.append(str(error))
            raise

    with working(run, grace_ms=100):
        assert started.wait(LONGEST_S)
    assert stopped == ["the worker is being stopped"]
    workload = get(workload_id)
    assert (workload.state, workload.release_count, workload.uncounted_releases) == ("READY", 1, 1)
    assert [row.status for row in attempts(workload_id)] == ["RELEASED"]


def test_a_deaf_body_is_released_over_its_head_and_its_report_is_refused(monkeypatch):
    monkeypatch.setattr(loop, "NOTICE_S", 0.2)
    workload_id = admit()
    started, go = threading.Event(), threading.Event()

    def run(attempt):
        started.set()
        assert go.wait(LONGEST_S)
        return "late"

    worker = loop.Worker(handlers=registry(run), grace_ms=50, poll_ms=50)
    summaries = []
    thread = threading.Thread(target=lambda: summaries.append(worker.run()), daemon=True)
    thread.start()
    assert started.wait(LONGEST_S)
    worker.stop()
    thread.join(LONGEST_S)
    assert summaries[0].abandoned == 1
    assert dict(summaries[0].endings) == {"released": 1}
    assert state(workload_id) == "READY"
    (claim,) = authority.claim_next(worker_id="other", capabilities=(), lease_ms=60_000, start=True)
    go.set()
    eventually(lambda: worker._count() == 0)
    authority.complete(claim.fence, result_id="r", output="mine")
    assert get(workload_id).result.output == "mine"


def test_the_claims_lease_counts_from_before_the_question(monkeypatch):
    real = authority.claim_next

    def slow(**kwargs):
        claims = real(**kwargs)
        if claims:
            time.sleep(0.5)
        return claims

    monkeypatch.setattr(authority, "claim_next", slow)
    admit()
    left = []
    drain(lambda attempt: left.append(attempt.lease_left_ms), lease_ms=10_000)
    assert left[0] <= 9_500


@pytest.mark.skipif("connection.vendor != 'postgresql'", reason="another server ends connections in another way")
def test_connections_that_the_server_ends_are_opened_again(caplog):
    workload_id = admit()
    started, go = threading.Event(), threading.Event()

    def run(attempt):
        started.set()
        assert go.wait(LONGEST_S)
        attempt.checkpoint({"after": True})
        return "out"

    with caplog.at_level(logging.INFO, "workloads"), working(run, lease_ms=3_000):
        assert started.wait(LONGEST_S)
        for _ in range(3):
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
            time.sleep(0.4)
        go.set()
        eventually(lambda: state(workload_id) == "SUCCEEDED")
        later = admit()
        eventually(lambda: state(later) == "SUCCEEDED")
    assert [row.status for row in attempts(workload_id)] == ["SUCCEEDED"]
    assert len([r for r in caplog.records if r.levelno >= logging.WARNING]) <= 2


def test_a_row_that_somebody_holds_costs_no_other_work_its_lease():
    if not connection.features.has_select_for_update_skip_locked:
        pytest.skip("one writer: nothing can hold a row")
    held, other = admit(), admit()
    running = set()

    def run(attempt):
        running.add(attempt.workload_id)
        return beating(attempt)

    with working(run, lease_ms=1_800, concurrency=2, grace_ms=100) as worker:
        eventually(lambda: len(running) == 2)
        with transaction.atomic():
            list(Workload.objects.select_for_update().filter(workload_id=held))
            eventually(lambda: worker._endings["lost"] == 1, 20)
            # Longer than a lease.
            time.sleep(2)
            assert worker._count() == 1
    assert [row.status for row in attempts(other)] == ["RELEASED"]
