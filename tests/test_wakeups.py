"""Wake-ups: the bell loses nobody, one process tells another, and neither keeps a connection that it does not need."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time

import pytest
from django.db import connection, transaction

from tests.authority.builders import request
from tests.races.processes import ROOT, database_url
from workloads import authority, wakeups
from workloads.authority.records import announce
from workloads.wakeups import Bell, Listener

PATIENCE_S = 20
committing = pytest.mark.django_db(transaction=True)


# The bell


def test_a_ring_before_the_wait_is_not_lost():
    bell = Bell()
    since = bell.count
    bell.ring()
    assert bell.wait(since, 0) is True
    assert asyncio.run(bell.wait_async(since, 0)) is True
    assert bell.wait(bell.count, 0) is False
    assert asyncio.run(bell.wait_async(bell.count, 0.01)) is False


def test_one_ring_wakes_every_thread_and_every_loop():
    bell = Bell()
    since = bell.count
    woken: list[bool] = []
    ready = threading.Barrier(25)

    def wait() -> None:
        ready.wait(PATIENCE_S)
        woken.append(bell.wait(since, PATIENCE_S))

    def wait_in_a_loop() -> None:
        async def all_of_them() -> list[bool]:
            waiting = [asyncio.ensure_future(bell.wait_async(since, PATIENCE_S)) for _ in range(100)]
            await asyncio.sleep(0)
            ready.wait(PATIENCE_S)
            return await asyncio.gather(*waiting)

        woken.extend(asyncio.run(all_of_them()))

    threads = [threading.Thread(target=wait) for _ in range(20)]
    threads += [threading.Thread(target=wait_in_a_loop) for _ in range(4)]
    for thread in threads:
        thread.start()
    ready.wait(PATIENCE_S)
    bell.ring()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert woken == [True] * 420
    assert not bell._waiting


def test_no_ring_is_lost_between_two_who_answer_each_other():
    # Each waits for the other's ring before it rings: one lost wake-up, and both stand still.
    there, back = Bell(), Bell()
    rounds = 2_000

    def answer() -> None:
        for heard in range(rounds):
            assert there.wait(heard, PATIENCE_S)
            back.ring()

    async def ask() -> None:
        for heard in range(rounds):
            there.ring()
            assert await back.wait_async(heard, PATIENCE_S)

    thread = threading.Thread(target=answer)
    thread.start()
    asyncio.run(ask())
    thread.join(PATIENCE_S)
    assert (there.count, back.count) == (rounds, rounds)


def test_a_loop_that_was_closed_keeps_nobody_from_hearing():
    bell = Bell()
    loop = asyncio.new_event_loop()
    abandoned = loop.create_task(bell.wait_async(0, PATIENCE_S))
    loop.run_until_complete(asyncio.sleep(0))
    loop._ready.clear()
    loop.close()
    heard = []
    bell._waiting.add(lambda: heard.append("after"))
    bell.ring()
    assert heard == ["after"]
    abandoned._log_destroy_pending = False


def test_who_stops_waiting_leaves_nothing_behind():
    bell = Bell()

    async def leave() -> None:
        waiting = asyncio.ensure_future(bell.wait_async(0, PATIENCE_S))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(leave())
    assert not bell._waiting


def test_when_it_is_over_nobody_waits():
    bell = Bell()
    bell.end()
    assert bell.wait(bell.count, PATIENCE_S) is True
    assert asyncio.run(bell.wait_async(bell.count, PATIENCE_S)) is True


# From one process to another


@pytest.fixture
def postgres():
    if connection.vendor != "postgresql":
        pytest.skip("only PostgreSQL tells other processes")
    yield
    wakeups.stop()


def backends() -> list[tuple[int, str]]:
    """Return the other sessions of this database: their process, and what they last said."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid, query FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        return cursor.fetchall()


def gone(pids: set[int]) -> bool:
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        if not pids & {pid for pid, _ in backends()}:
            return True
        time.sleep(0.02)  # the server says nothing of a session that has ended
    return False


def end_sessions(*said: str) -> set[int]:
    """End the sessions that last said one of these, and return which they were."""
    pids = {pid for pid, query in backends() if query.startswith(said)}
    assert pids
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pid) FROM unnest(%s) AS pid", [list(pids)])
    return pids


@pytest.fixture
def listening(postgres):
    """A listener of its own, with a bell of its own."""
    listener = Listener(connection.alias, Bell())
    listener.start()
    assert listener.is_listening.wait(PATIENCE_S)
    yield listener
    listener.stop()
    listener.join(PATIENCE_S)
    assert not listener.is_alive()


ADMIT = """
import django; django.setup()
from tests.authority.builders import request
from workloads import authority
authority.admit(request("elsewhere"))
"""


def elsewhere(program: str) -> None:
    subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "DATABASE_URL": database_url(), "DJANGO_SETTINGS_MODULE": "project.settings"},
        check=True,
        timeout=60,
    )


@committing
def test_a_process_that_ends_at_once_has_still_told_the_others(listening):
    since = listening._bell.count
    elsewhere(ADMIT)
    assert listening._bell.wait(since, PATIENCE_S)


@committing
def test_a_burst_of_commits_is_few_words(postgres, record_property):
    with wakeups._open(connection.alias) as session:
        session.execute(f"LISTEN {wakeups.CHANNEL}")
        started = time.monotonic()
        authority.admit(request("first"))
        for _ in range(1_000):
            # A commit as a verb makes it, and nothing else, so that they come as fast as may be.
            with transaction.atomic():
                connection.cursor().execute("SELECT 1")
                announce(connection)
        took = time.monotonic() - started
        wakeups._here.senders[connection.alias].flush()
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_notify(%s, 'the end')", [wakeups.CHANNEL])
        heard = []
        for word in session.notifies(timeout=PATIENCE_S):
            if word.payload:
                break
            heard.append(word.pid)
    record_property("1,001 commits", f"{took:.2f} s, {len(heard)} NOTIFYs")
    assert 1 <= len(heard) <= took / wakeups.GAP_S + 2
    assert len(set(heard)) == 1


@committing
def test_a_listener_whose_session_is_ended_listens_again(listening):
    for _ in range(2):
        since = listening._bell.count
        ended = end_sessions("LISTEN", "SELECT 1")
        # It rings when it listens again, since nobody knows what was said meanwhile.
        assert listening._bell.wait(since, PATIENCE_S)
        assert gone(ended)
        since = listening._bell.count
        wakeups.announce(using=connection.alias)
        assert listening._bell.wait(since, PATIENCE_S)


@committing
def test_a_sender_whose_session_is_ended_speaks_again(listening):
    for _ in range(3):
        since = listening._bell.count
        wakeups.announce(using=connection.alias)
        assert listening._bell.wait(since, PATIENCE_S)
        wakeups._here.senders[connection.alias].flush()
        assert gone(end_sessions("NOTIFY"))


@committing
def test_those_that_nobody_needs_give_their_connections_up(postgres, monkeypatch):
    monkeypatch.setattr(wakeups, "SENDER_IDLE_S", 0.1)
    monkeypatch.setattr(wakeups, "LISTENER_IDLE_S", 0.1)
    monkeypatch.setattr(wakeups, "STEP_S", 0.05)
    before = {pid for pid, _ in backends()}
    for _ in range(2):
        bell = wakeups.listen()
        assert wakeups._here.listeners[connection.alias].is_listening.wait(PATIENCE_S)
        since = bell.count
        authority.admit(request(f"k-{since}"))
        assert bell.wait(since, PATIENCE_S)
        for thread in (wakeups._here.senders[connection.alias], wakeups._here.listeners[connection.alias]):
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        assert gone({pid for pid, _ in backends()} - before)


@committing
def test_a_stop_gives_up_every_connection_and_the_next_word_opens_them_again(postgres):
    before = {pid for pid, _ in backends()}
    wakeups.listen()
    assert wakeups._here.listeners[connection.alias].is_listening.wait(PATIENCE_S)
    authority.admit(request("a"))
    wakeups.stop()
    assert gone({pid for pid, _ in backends()} - before)
    bell = wakeups.listen()
    assert wakeups._here.listeners[connection.alias].is_listening.wait(PATIENCE_S)
    since = bell.count
    elsewhere(ADMIT)
    assert bell.wait(since, PATIENCE_S)


FORK = """
import os, sys, threading
import django; django.setup()
from django.db import connections
from tests.authority.builders import request
from workloads import authority, wakeups

def listens(name):
    bell = wakeups.listen()
    assert wakeups._here.listeners["default"].is_listening.wait(20), name
    return bell

bell = listens("parent")
authority.admit(request("parent"))
wakeups._here.senders["default"].flush()
connections.close_all()
reads, writes = os.pipe()
child = os.fork()
if child == 0:
    try:
        assert wakeups.bell() is not bell
        assert not wakeups._here.listeners and not wakeups._here.senders
        mine = listens("child")
        os.write(writes, b".")
        since = mine.count
        authority.admit(request("child"))
        assert mine.wait(since, 20)
        wakeups.stop()
        os._exit(0)
    except BaseException as error:
        print(repr(error), file=sys.stderr)
        os._exit(1)
assert os.read(reads, 1) == b"."
since = bell.count
assert bell.wait(since - 1, 20)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
# The parent's session has outlived the child.
since = bell.count
wakeups.announce(using="default")
assert bell.wait(since, 20)
assert wakeups._here.listeners["default"].is_listening.is_set()
with connections["default"].cursor() as cursor:
    cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'")
    assert cursor.fetchone() == (1,)
"""


@committing
def test_a_forked_child_has_its_own(postgres):
    elsewhere(FORK)


@committing
def test_with_notifications_off_no_session_listens_or_speaks(postgres, settings):
    wakeups.stop()
    # What earlier tests opened may take a moment to end on the server.
    assert gone({pid for pid, query in backends() if query.startswith(("LISTEN", "NOTIFY"))})
    settings.WORKLOADS = {**settings.WORKLOADS, "NOTIFICATIONS": False}
    with wakeups._open(connection.alias) as session:
        session.execute(f"LISTEN {wakeups.CHANNEL}")
        count = wakeups.listen().count
        authority.admit(request("a"))
        assert wakeups.bell().count == count + 1
        # Whatever had been said before this word would come before it.
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_notify(%s, 'mine')", [wakeups.CHANNEL])
        assert [word.payload for word in session.notifies(timeout=PATIENCE_S, stop_after=1)] == ["mine"]
        others = [query for pid, query in backends() if pid != session.info.backend_pid]
        assert [query for query in others if query.startswith(("LISTEN", "NOTIFY"))] == []
    mine = ("workloads-notify", "workloads-listen")
    assert not any(thread.name in mine and thread.is_alive() for thread in threading.enumerate())


def test_other_databases_have_nobody_to_tell(db):
    if connection.vendor == "postgresql":
        pytest.skip("this one has")
    assert not wakeups.are_on(connection.alias)
