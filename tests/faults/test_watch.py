"""A statement that is not answered in time: its connection is cut, the server told, and the thread goes on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext

import pytest
from django.db import Error, connection, transaction

from tests.faults.disturbance import Watcher
from tests.races.calls import request
from workloads import authority
from workloads.models import Workload
from workloads.worker.calls import Link, until_answered
from workloads.worker.port import Unanswered
from workloads.worker.watch import answered_within

pytestmark = pytest.mark.django_db(transaction=True)

SOON_S = 0.3
LONG_S = 4
SLEEP = {"postgresql": "SELECT pg_sleep(%s)", "mysql": "SELECT SLEEP(%s)"}


@pytest.fixture(autouse=True)
def _on_a_server() -> Iterator[None]:
    if connection.vendor == "sqlite":
        pytest.skip("SQLite has no server that might not answer.")
    yield
    connection.close()


def sleep(seconds: float) -> None:
    with connection.cursor() as cursor:
        cursor.execute(SLEEP[connection.vendor], [seconds])
        cursor.fetchall()


@pytest.mark.parametrize("in_transaction", [False, True])
def test_a_statement_that_is_not_answered_in_time_fails(in_transaction: bool) -> None:
    begun = time.monotonic()
    within = transaction.atomic() if in_transaction else nullcontext()
    with pytest.raises(Error), answered_within(SOON_S), within:
        sleep(LONG_S)
    assert SOON_S <= time.monotonic() - begun < LONG_S / 2
    assert not Workload.objects.exists()


def test_each_statement_has_the_time_anew() -> None:
    with answered_within(2 * SOON_S):
        inner = None
        for _ in range(4):
            sleep(SOON_S)
            inner = inner or connection.connection
    assert connection.connection is inner


def test_what_comes_after_is_not_watched() -> None:
    with answered_within(SOON_S):
        sleep(0)
    sleep(2 * SOON_S)


def test_a_call_that_nobody_answers_is_given_up_once_nobody_needs_it() -> None:
    needed_until = time.monotonic() + 2 * SOON_S
    calls = []

    def call() -> None:
        calls.append(time.monotonic())
        sleep(LONG_S)

    with pytest.raises(Unanswered):
        until_answered(
            call,
            link=Link(),
            wait=lambda _: None,
            give_up=lambda: time.monotonic() >= needed_until,
            left_s=lambda: max(0.0, needed_until - time.monotonic()),
        )
    assert calls
    assert time.monotonic() < needed_until + LONG_S / 2


def test_the_server_waits_no_longer_for_a_lock_in_our_name() -> None:
    if connection.vendor != "postgresql":
        pytest.skip("MariaDB can't be told on the same connection, and bounds the wait by itself.")
    authority.admit(request("k"))
    holder = Watcher()
    waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    try:
        holder.ask("BEGIN")
        holder.ask(f"SELECT 1 FROM {Workload._meta.db_table} FOR UPDATE")
        with pytest.raises(Error), answered_within(SOON_S), transaction.atomic():
            list(Workload.objects.select_for_update())
        until = time.monotonic() + 10
        while holder.ask(waits):
            assert time.monotonic() < until
    finally:
        holder.close()
