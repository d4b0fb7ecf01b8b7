"""The two guards and the one clock: the lock and what is read once it is held, and the version. Section 1."""

from __future__ import annotations

import ast
import datetime as dt
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.db import DatabaseError, OperationalError, connection, transaction
from django.utils import timezone

import workloads
from tests.authority.builders import (
    LEASE_MS,
    S,
    admit,
    claim,
    record,
    refused,
    request,
    running,
    state_of,
    unchanged,
)
from tests.authority.connections import lock, other_connection
from tests.support import at
from workloads import authority
from workloads.authority import clock, records, writes
from workloads.contract import Timeouts
from workloads.lifecycle import claims as rules
from workloads.models import Workload

ROOT = Path(workloads.__file__).parent


@pytest.mark.parametrize(
    "told",
    [
        "2041-05-06 07:08:09.123456",
        dt.datetime(2041, 5, 6, 7, 8, 9, 123456),
        dt.datetime(2041, 5, 6, 7, 8, 9, 123456, tzinfo=dt.UTC),
        dt.datetime(2041, 5, 6, 12, 38, 9, 123456, tzinfo=dt.timezone(dt.timedelta(hours=5, minutes=30))),
    ],
)
def test_what_a_database_says_is_an_instant_in_utc(told: Any) -> None:
    assert clock.from_db(told) == at(0)
    assert clock.from_db(told).tzinfo is dt.UTC


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("x", True),
        ("x" * 64, True),
        ("", False),
        ("x" * 65, False),
        ("a\0b", False),
        ("é", False),
        (None, False),
        (b"x", False),
    ],
)
def test_what_can_name_a_workload_at_all(value: Any, expected: bool) -> None:
    assert records.is_findable(value) is expected


def test_made_ids_are_128_random_bits() -> None:
    made = {records.make_id() for _ in range(100)}
    assert len(made) == 100
    assert {len(made_id) for made_id in made} == {32}


@pytest.mark.django_db
def test_the_clock_that_is_read_is_the_one_that_is_gone_by() -> None:
    before = authority.read_clock()
    workload_id = admit(now=None)
    assert before <= authority.get(workload_id).created_at <= authority.read_clock()


WAITING: dict[str, tuple[str, Callable[[str, Any], Any]]] = {
    "claim": (S.READY, lambda workload_id, fence: claim(workload_id, now=None)),
    "start": (S.CLAIMED, lambda workload_id, fence: authority.start(fence)),
    "heartbeat": (S.RUNNING, lambda workload_id, fence: authority.heartbeat(fence, extend_ms=LEASE_MS)),
    "complete": (S.RUNNING, lambda workload_id, fence: authority.complete(fence, result_id="r", output=1)),
    "fail": (S.RUNNING, lambda workload_id, fence: authority.fail(fence, kind="x", error="")),
    "cancel": (S.RUNNING, lambda workload_id, fence: authority.cancel(workload_id, actor="op")),
}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("name", WAITING)
def test_now_is_read_when_the_lock_is_held_not_before_the_wait(name: str) -> None:
    state, call = WAITING[name]
    workload_id = admit(now=None)
    fence = None
    if state != S.READY:
        fence = claim(workload_id, now=None).fence
        if state == S.RUNNING:
            authority.start(fence)
    with other_connection(lock(workload_id), seconds=1.0 if name == "complete" else 0.4) as other:
        call(workload_id, fence)
    workload = authority.get(workload_id)
    assert other["released_at"] <= workload.updated_at
    assert workload.updated_at - other["released_at"] < dt.timedelta(seconds=5)
    assert [e.at for e in workload.events.all()][-1] == workload.updated_at or name == "heartbeat"


@pytest.mark.django_db(transaction=True)
def test_nor_at_the_start_of_the_callers_transaction() -> None:
    workload_id = admit(now=None)
    with transaction.atomic():
        begun_at = clock.read(connection)
        time.sleep(0.05)
        given = claim(workload_id, now=None)
        assert given.claimed_at >= begun_at + dt.timedelta(milliseconds=49)


@pytest.mark.django_db(transaction=True)
def test_a_loser_whose_winner_rolls_back_creates_and_begins_when_it_could() -> None:
    with other_connection(lambda: authority.admit(request(priority=9)), commits=False) as other:
        answer = authority.admit(request())
    assert answer.created
    assert answer.workload.created_at >= other["released_at"]
    assert record(answer.workload.workload_id)["workload"] == {
        c.attname: getattr(answer.workload, c.attname) for c in Workload._meta.concrete_fields
    }


@pytest.mark.django_db(transaction=True)
def test_a_repeat_of_a_claim_waits_for_its_first() -> None:
    ids = [admit(f"k{n}") for n in range(3)]

    def ask() -> list[Any]:
        return authority.claim_next(
            worker_id="w", capabilities=[], lease_ms=LEASE_MS, limit=2, request_id="q", now=at(1_000)
        )

    with other_connection(ask) as other:
        assert ask() == other["answer"]
    assert [state_of(workload_id) for workload_id in ids] == ["CLAIMED", "CLAIMED", "READY"]


@pytest.mark.django_db(transaction=True)
def test_a_claim_that_waited_for_its_request_id_begins_when_it_could() -> None:
    admit("a", now=None)
    second = admit("b", now=None)

    def ask() -> list[Any]:
        return authority.claim_next(worker_id="w", capabilities=[], lease_ms=LEASE_MS, request_id="q")

    with other_connection(ask, commits=False) as other:
        given = claim(second, now=None, request_id="q")
    assert given.claimed_at >= other["released_at"]


@pytest.mark.django_db
@pytest.mark.parametrize("hours", [-1, 1])
def test_a_process_whose_clock_is_wrong_changes_nothing(hours: int, monkeypatch: pytest.MonkeyPatch) -> None:
    right, real = clock.read(connection), time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3_600 * hours)
    monkeypatch.setattr(time, "time_ns", lambda: int((real() + 3_600 * hours) * 10**9))
    monkeypatch.setattr(timezone, "now", lambda: right + dt.timedelta(hours=hours))
    workload_id = admit(now=None, timeouts=Timeouts(overall_ms=1_800_000))
    assert authority.run_pass() == authority.run_pass()
    assert state_of(workload_id) == "READY"
    fence = claim(workload_id, now=None).fence
    authority.start(fence)
    assert authority.heartbeat(fence, extend_ms=LEASE_MS).lease_left_ms > LEASE_MS - 30_000
    assert authority.run_pass().recovered == []
    assert authority.explain(workload_id)[0].code == "claimed"
    authority.complete(fence, result_id="r", output=1)
    workload = authority.get(workload_id)
    instants = [e.at for e in workload.events.order_by("sequence")]
    assert instants == sorted(instants)
    for instant in (*instants, workload.created_at, workload.finished_at, workload.result.at):
        assert right <= instant < right + dt.timedelta(minutes=1)


@pytest.mark.parametrize(
    "source", sorted(path for part in ("authority", "lifecycle", "models") for path in ROOT.glob(f"{part}/*.py"))
)
def test_nobody_reads_the_processs_clock(source: Path) -> None:
    clocks = {"now", "utcnow", "today", "time", "time_ns", "monotonic", "gmtime", "localtime", "localdate"}
    # There it says how soon to ask the database again; what is written, and whether, is judged by the database's clock.
    clocks -= {"monotonic"} if source.name == "registry.py" else set()
    owners = {"datetime", "date", "timezone", "time"}
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Attribute) and node.attr in clocks:
            owner = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
            assert owner not in owners, f"{source.name}:{node.lineno}"
        if isinstance(node, ast.ImportFrom) and node.module in {"time", "django.utils.timezone"}:
            assert not clocks & {name.name for name in node.names}, f"{source.name}:{node.lineno}"


# The second guard: the version.


@pytest.mark.django_db(transaction=True)
def test_a_writer_that_skipped_the_lock_is_refused_by_the_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    fence = running()
    (unlocked,) = records.transact(lambda tx: records.read_workloads(tx, "a.workload_id = %s", [fence.workload_id]))
    decision = rules.release(unlocked, fence, at(5_000), attempt=None, reason="", max_releases=9, draw=0.0)
    assert decision is not None
    authority.checkpoint(fence, 1, now=at(4_000))
    turns = []

    def skip_the_lock(tx: records.Transaction) -> None:
        turns.append(tx)
        writes.write(tx, [decision])

    with unchanged(fence.workload_id), refused("WORKLOAD_CONFLICT"):
        records.transact(skip_the_lock)
    assert len(turns) == records.MAX_TRIES
    with unchanged(fence.workload_id), refused("WORKLOAD_CONFLICT"), transaction.atomic():
        records.transact(skip_the_lock)
    assert len(turns) == records.MAX_TRIES + 1


@pytest.mark.django_db(transaction=True)
def test_of_many_writes_one_that_is_stale_undoes_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    fences = [running(f"k{n}") for n in range(3)]
    ids = [fence.workload_id for fence in fences]
    unlocked = {
        snapshot.workload_id: snapshot
        for snapshot in records.transact(lambda tx: records.read_workloads(tx, "1 = 1", []))
    }
    stale = [rules.heartbeat(unlocked[fence.workload_id], fence, at(5_000), extend_ms=5, draw=0.0) for fence in fences]
    authority.heartbeat(fences[1], extend_ms=5, now=at(4_000))
    with unchanged(*ids), refused("WORKLOAD_CONFLICT"):
        records.transact(lambda tx: writes.write(tx, stale))


def breakdown(kind: str) -> DatabaseError:
    """Make the error with which each database ends a transaction for the sake of another one."""
    if kind == "mysql":
        return OperationalError(1213, "Deadlock found when trying to get lock; try restarting transaction")
    if kind == "sqlite":
        return OperationalError("database is locked")
    error, cause = OperationalError("deadlock detected"), Exception()
    cause.sqlstate = kind  # type: ignore[attr-defined]
    error.__cause__ = cause
    return error


BREAKDOWNS = ["mysql", "sqlite", "40001", "40P01"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("kind", BREAKDOWNS)
def test_an_owner_of_its_transaction_repeats_it_a_bounded_number_of_times(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    turns: list[int] = []

    def work(tx: records.Transaction) -> str:
        turns.append(1)
        if len(turns) < 3:
            raise breakdown(kind)
        return "done"

    assert records.transact(work) == "done"
    assert len(turns) == 3

    def never(tx: records.Transaction) -> None:
        turns.append(1)
        raise breakdown(kind)

    turns.clear()
    with pytest.raises(OperationalError):
        records.transact(never)
    assert 1 < len(turns) <= 20


@pytest.mark.django_db
@pytest.mark.parametrize("kind", BREAKDOWNS)
def test_inside_a_callers_transaction_it_is_raised_unchanged(kind: str) -> None:
    turns: list[int] = []
    error = breakdown(kind)

    def work(tx: records.Transaction) -> None:
        turns.append(1)
        raise error

    with pytest.raises(OperationalError) as caught, transaction.atomic():
        records.transact(work)
    assert caught.value is error
    assert len(turns) == 1


@pytest.mark.django_db(transaction=True)
def test_other_errors_of_the_database_are_not_repeated() -> None:
    turns: list[int] = []

    def work(tx: records.Transaction) -> None:
        turns.append(1)
        tx.execute("SELECT nothing FROM nowhere")

    with pytest.raises(DatabaseError):
        records.transact(work)
    assert len(turns) == 1
