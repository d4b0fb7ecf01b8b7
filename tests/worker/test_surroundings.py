"""Bodies that do not end, or lay hands on what surrounds them: the database, the thread, the process, the worker."""

from __future__ import annotations

import contextvars
import decimal
import gc
import locale
import logging
import os
import signal
import threading

import pytest
from django.contrib.auth.models import Group
from django.db import IntegrityError, OperationalError, connection, connections, transaction
from django.utils import timezone, translation

from tests.worker.tools import admit, attempts, drain, eventually, registry, run_beside_others, state, working
from workloads import authority
from workloads.contract import RetryPolicy, Timeouts
from workloads.worker import LeaseLost, heartbeats, loop

pytestmark = pytest.mark.django_db(transaction=True)

LONGEST_S = 30.0
ONCE = RetryPolicy(max_attempts=1)


@pytest.fixture
def often(monkeypatch):
    """Let heartbeats come a hundred times in a lease."""
    monkeypatch.setattr(heartbeats, "BEATS_A_LEASE", 100)


# What does not end.


def test_a_body_that_does_not_end_gives_its_room_to_other_work(caplog, often):
    stuck = admit(timeouts=Timeouts(execution_ms=300), retry_policy=ONCE)
    go = threading.Event()

    def run(attempt):
        if attempt.workload_id == stuck:
            assert go.wait(LONGEST_S)
        return "out"

    with caplog.at_level(logging.INFO, "workloads"), working(run, lease_ms=5_000, grace_ms=300) as worker:
        eventually(lambda: authority.run_pass() and state(stuck) == "DEAD_LETTER")
        other = admit()
        eventually(lambda: state(other) == "SUCCEEDED")
        assert len(worker._left_behind) == 1
        go.set()
        eventually(lambda: not worker._left_behind)
        again = admit()
        eventually(lambda: state(again) == "SUCCEEDED")
        slots = [t for t in threading.enumerate() if t.name.startswith("workloads-slot")]
        eventually(lambda: len([t for t in slots if t.is_alive()]) == 1)
    assert [row.status for row in attempts(stuck)] == ["TIMED_OUT"]
    assert dict(worker._endings) == {"succeeded": 2, "lost": 1}
    assert len([r for r in caplog.records if "left behind" in r.message]) == 1


def test_a_worker_that_too_many_bodies_fill_ends(monkeypatch):
    monkeypatch.setattr(loop, "MOST_LEFT_BEHIND", 1)
    monkeypatch.setattr(loop, "NOTICE_S", 0.1)
    go = threading.Event()
    ids = [admit(timeouts=Timeouts(execution_ms=200), retry_policy=ONCE) for _ in range(3)]
    summaries = []

    def run(attempt):
        assert go.wait(LONGEST_S)
        return "out"

    worker = loop.Worker(handlers=registry(run), poll_ms=30, grace_ms=100, lease_ms=600)
    thread = threading.Thread(target=lambda: summaries.append(worker.run()), daemon=True)
    thread.start()
    eventually(lambda: authority.run_pass() and not thread.is_alive())
    go.set()
    assert summaries[0].is_clogged
    assert summaries[0].abandoned == 2
    assert [len(attempts(i)) for i in ids] == [1, 1, 0]
    eventually(lambda: not [t for t in threading.enumerate() if t.name.startswith("workloads-slot")])


def test_a_thread_that_outlives_its_body_is_told_to_stop():
    ended, told = threading.Event(), []

    def linger(attempt):
        assert ended.wait(LONGEST_S)
        for call in (attempt.check, lambda: attempt.checkpoint(1)):
            with pytest.raises(LeaseLost) as caught:
                call()
            told.append(str(caught.value))
        connection.close()

    threads = []

    def run(attempt):
        threads.append(threading.Thread(target=linger, args=(attempt,)))
        threads[-1].start()

    row = run_beside_others(run)
    ended.set()
    threads[0].join(LONGEST_S)
    assert told == ["the attempt has ended"] * 2
    assert (row.status, row.record.checkpoints.count()) == ("SUCCEEDED", 0)


# What is done to the database.


def session_of(marks):
    """Return the number of the server's session, or what stands for it on SQLite."""
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            marks.append(connection.connection)
            return id(connection.connection)
        cursor.execute("SELECT pg_backend_pid()" if connection.vendor == "postgresql" else "SELECT CONNECTION_ID()")
        return cursor.fetchone()[0]


def execute(statement):
    with connection.cursor() as cursor:
        cursor.execute(statement)


def leave_begun():
    execute("BEGIN")
    Group.objects.create(name="uncommitted")


def leave_broken():
    try:
        with transaction.atomic():
            Group.objects.create(name="same")
            Group.objects.create(name="same")
    except IntegrityError:
        pass
    transaction.atomic().__enter__()
    Group.objects.create(name="uncommitted")


def close_beneath():
    connection.ensure_connection()
    connection.connection.close()


SESSIONS = {
    "postgresql": [
        "SET default_transaction_read_only = on",
        "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE",
        "SET TIME ZONE 'Asia/Tokyo'",
        "SET statement_timeout = 1",
        "SET search_path = nowhere",
        "SET synchronous_commit = off",
    ],
    "mysql": [
        "SET SESSION TRANSACTION READ ONLY",
        "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
        "SET time_zone = '+09:00'",
        "SET autocommit = 0",
        "SET sql_mode = ''",
    ],
    "sqlite": ["PRAGMA query_only = 1", "PRAGMA synchronous = OFF"],
}


def change_session():
    for statement in SESSIONS[connection.vendor]:
        execute(statement)


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize(
    "body",
    [leave_begun, leave_broken, close_beneath, connections.close_all, change_session, lambda: connection.close()],
)
def test_whatever_is_done_to_the_database_the_report_is_apart(body, fails, monkeypatch):
    sessions, marks = [], []
    for verb in ("context", "complete", "fail"):
        real = getattr(authority, verb)
        monkeypatch.setattr(
            authority, verb, lambda *a, real=real, **k: (sessions.append(session_of(marks)), real(*a, **k))[1]
        )

    def run(attempt):
        body()
        if fails:
            raise ValueError("after all that")

    row = run_beside_others(run)
    assert row.status == ("FAILED" if fails else "SUCCEEDED")
    assert abs((row.ended_at - timezone.now()).total_seconds()) < 60
    assert not Group.objects.exists()
    # The worker's own calls are made on one connection, which no body has.
    assert len(sessions) == 6
    assert len(set(sessions)) == 1


def test_bodies_keep_a_connection_of_their_own():
    marks, seen = [], []
    for _ in range(3):
        admit()
    drain(lambda attempt: seen.append(session_of(marks)))
    assert len(set(seen)) == 1


# What is done to the thread and to the process.


def test_what_a_body_activates_ends_with_it():
    seen = []
    mine = contextvars.ContextVar("mine", default="nothing")

    def run(attempt):
        seen.append(
            (timezone.get_current_timezone_name(), translation.get_language(), mine.get(), decimal.getcontext().prec)
        )
        timezone.activate("Asia/Tokyo")
        translation.activate("de")
        mine.set("something")
        decimal.getcontext().prec = 3

    for _ in range(3):
        admit()
    drain(run)
    assert len(seen) == 3
    assert len(set(seen)) == 1


def test_a_changed_folder_and_locale_do_not_stop_the_worker(tmp_path):
    folder, was = os.getcwd(), locale.setlocale(locale.LC_ALL)

    def run(attempt):
        os.chdir(tmp_path)
        locale.setlocale(locale.LC_ALL, "C")
        connections.close_all()

    try:
        assert run_beside_others(run).status == "SUCCEEDED"
    finally:
        os.chdir(folder)
        locale.setlocale(locale.LC_ALL, was)


def child_returns(attempt):
    return "from the child"


def child_raises(attempt):
    raise ValueError("in the child")


def child_exits(attempt):
    raise SystemExit(7)


def child_leaves(attempt):
    os._exit(8)


def child_asks(attempt):
    """Make every call that an attempt has, and use the database."""
    for call in (attempt.check, lambda: attempt.checkpoint("from the child")):
        try:
            call()
        except LeaseLost:
            continue
        os._exit(9)
    if attempt.lease_left_ms:
        os._exit(10)
    # A database in memory is in the parent's memory alone.
    if connection.vendor != "sqlite":
        Group.objects.count()
        connections.close_all()
    # What the child has no use for is given up: no connection may say goodbye.
    gc.collect()
    return "from the child"


@pytest.mark.parametrize(
    ("child", "code"),
    [(child_returns, 0), (child_raises, 1), (child_exits, 7), (child_leaves, 8), (child_asks, 0)],
)
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_process_reports_nothing_and_touches_no_connection(child, code, caplog, often):
    marks, codes = [], []

    def run(attempt):
        session = session_of(marks)
        pid = os.fork()
        if pid == 0:
            # Should it hang, it ends.
            signal.alarm(20)
            return child(attempt)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        attempt.checkpoint("from the parent")
        assert session_of(marks) == session
        return "from the parent"

    with caplog.at_level(logging.INFO, "workloads"):
        row = run_beside_others(run, lease_ms=30_000)
    assert codes == [code]
    assert row.status == "SUCCEEDED"
    assert row.record.result.output == "from the parent"
    assert [c.state for c in row.record.checkpoints.all()] == ["from the parent"]
    assert [r.message for r in caplog.records if r.levelno >= logging.WARNING] == []


def test_a_database_that_is_away_at_every_turn_is_told_once(monkeypatch, caplog, often):
    """Every verb at once, from all threads."""
    monkeypatch.setattr("workloads.worker.news.LONGEST_PAUSE_S", 0.05)
    is_away = threading.Event()
    counts = dict.fromkeys(("claim_next", "heartbeat_many", "checkpoint", "complete"), 0)
    for verb in counts:

        def ask(*args, verb=verb, real=getattr(authority, verb), **kwargs):  # noqa: B008
            if is_away.is_set():
                counts[verb] += 1
                raise OperationalError("connection refused")
            return real(*args, **kwargs)

        monkeypatch.setattr(authority, verb, ask)
    saving, completing = admit(input="saving"), admit(input="completing")

    def run(attempt):
        eventually(is_away.is_set)
        if attempt.input == "saving":
            attempt.checkpoint(1)
        return "out"

    with caplog.at_level(logging.INFO, "workloads"), working(run, concurrency=3, lease_ms=30_000):
        eventually(lambda: [state(saving), state(completing)] == ["RUNNING"] * 2)
        is_away.set()
        eventually(lambda: min(counts.values()) >= 30 or (counts["heartbeat_many"] >= 6 and sum(counts.values()) > 150))
        is_away.clear()
        eventually(lambda: [state(saving), state(completing)] == ["SUCCEEDED"] * 2)
        # It is told once every thread has been answered that was not.
        eventually(lambda: any("answers again" in r.message for r in caplog.records))
    told = [r.message for r in caplog.records if "database" in r.message]
    assert ["does not answer" in told[0], "answers again" in told[1], len(told)] == [True, True, 2]
