"""One transaction, two guards, one clock: what holds whoever else writes. Section 1, "Transactions" and `now`."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import DatabaseError, connection, transaction
from django.test.utils import CaptureQueriesContext

import workloads
from tests.authority.builders import (
    S,
    admit,
    bring,
    claim,
    id_of,
    path,
    record,
    refused,
    request,
    running,
    state_of,
    unchanged,
)
from tests.authority.connections import Undone, lock, other_connection
from tests.support import T0, at
from workloads import authority
from workloads.authority import records, reports
from workloads.authority.records import is_repeatable
from workloads.contract import CompletionReport, Dependency, ResultRecord, Timeouts
from workloads.lifecycle import deadlines
from workloads.models import Admitted, ApplicationLock, ClaimRequest, Event, Result, Workload

ROOT = Path(workloads.__file__).parent


@contextmanager
def rolled_back() -> Iterator[None]:
    """Run a block in a transaction that is rolled back."""
    try:
        with transaction.atomic():
            yield
            raise Undone
    except Undone:
        pass


# Every operation joins the caller's transaction.


@pytest.mark.django_db(transaction=True)
def test_admission_commits_and_rolls_back_with_the_caller() -> None:
    with rolled_back():
        Group.objects.create(name="order 1")
        assert authority.admit(request(), now=T0).created
    assert not Group.objects.exists()
    assert not Admitted.objects.exists()
    assert not Event.objects.exists()
    with transaction.atomic():
        Group.objects.create(name="order 1")
        assert authority.admit(request(), now=T0).created
    assert Group.objects.exists()
    assert authority.get(id_of()).events.count() == 2


@pytest.mark.django_db(transaction=True)
def test_completion_commits_and_rolls_back_with_its_effects() -> None:
    fence = running()
    with unchanged(fence.workload_id), rolled_back():
        Group.objects.create(name="effect")
        authority.complete(fence, result_id="r", output=1, now=at(3_000))
    assert not Group.objects.exists()
    assert not Result.objects.exists()
    with transaction.atomic():
        Group.objects.create(name="effect")
        authority.complete(fence, result_id="r", output=1, now=at(3_000))
    assert Group.objects.exists()
    assert authority.get(fence.workload_id).result.result_id == "r"


OPERATIONS: dict[str, tuple[str, Callable[[str, Any], Any]]] = {
    "claim": (S.READY, lambda workload_id, fence: claim(workload_id, now=at(5_000))),
    "claim by a request": (S.READY, lambda workload_id, fence: claim(workload_id, request_id="q", now=at(5_000))),
    "claim_next": (
        S.READY,
        lambda workload_id, fence: authority.claim_next(worker_id="w", capabilities=[], lease_ms=5, now=at(5_000)),
    ),
    "start": (S.CLAIMED, lambda workload_id, fence: authority.start(fence, now=at(5_000))),
    "heartbeat": (S.RUNNING, lambda workload_id, fence: authority.heartbeat(fence, extend_ms=5, now=at(5_000))),
    "checkpoint": (S.RUNNING, lambda workload_id, fence: authority.checkpoint(fence, 1, now=at(5_000))),
    "release": (S.RUNNING, lambda workload_id, fence: authority.release(fence, now=at(5_000))),
    "fail": (S.RUNNING, lambda workload_id, fence: authority.fail(fence, kind="x", error="", now=at(5_000))),
    "complete": (
        S.RUNNING,
        lambda workload_id, fence: authority.complete(fence, result_id="r", output=1, now=at(5_000)),
    ),
    "confirm_cancel": (
        S.CANCELLATION_REQUESTED,
        lambda workload_id, fence: authority.confirm_cancel(fence, now=at(5_000)),
    ),
    "cancel": (S.READY, lambda workload_id, fence: authority.cancel(workload_id, actor="op", now=at(5_000))),
    "rearm": (
        S.DEAD_LETTER,
        lambda workload_id, fence: authority.rearm(workload_id, actor="op", reason="x", now=at(5_000)),
    ),
    "time_out": (S.READY, lambda workload_id, fence: authority.time_out(workload_id, actor="op", now=at(5_000))),
    "recover_expired": (S.RUNNING, lambda workload_id, fence: authority.recover_expired(now=at(10**7))),
    "run_pass": (S.RUNNING, lambda workload_id, fence: authority.run_pass(now=at(10**7))),
}


@pytest.mark.django_db
@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_rolls_back_with_the_caller(name: str) -> None:
    state, call = OPERATIONS[name]
    workload_id, fence = bring(state)
    with unchanged(workload_id), rolled_back():
        call(workload_id, fence)
        assert authority.get(workload_id).version > 1
    assert not ClaimRequest.objects.exists()
    call(workload_id, fence)
    assert record(workload_id) is not None


@pytest.mark.django_db(transaction=True)
def test_every_operation_is_one_transaction() -> None:
    for name, (state, call) in OPERATIONS.items():
        if name in ("recover_expired", "run_pass"):
            continue
        workload_id, fence = bring(state, name, definition_id=name)
        with CaptureQueriesContext(connection) as captured:
            call(workload_id, fence)
        assert [q["sql"] for q in captured.captured_queries].count("COMMIT") == 1, name
        if state_of(workload_id) != S.SUCCEEDED:
            authority.cancel(workload_id, actor="op", force=True, now=at(6_000))
    with CaptureQueriesContext(connection) as captured:
        authority.admit_many([request(f"k{n}") for n in range(3)], now=T0)
    assert [q["sql"] for q in captured.captured_queries].count("COMMIT") == 1


# Trap (a): an operation that refuses a call and records something.


@pytest.mark.django_db(transaction=True)
def test_a_time_out_is_recorded_and_the_call_refused_by_itself() -> None:
    fence = running(timeouts=Timeouts(execution_ms=1_000))
    with refused("WORKLOAD_TIMED_OUT"):
        authority.complete(fence, result_id="r", output=1, now=at(3_000))
    assert path(fence.workload_id)[-2:] == ["TIMED_OUT", "READY"]


@pytest.mark.django_db(transaction=True)
def test_a_time_out_stays_recorded_in_a_callers_transaction_that_catches_the_error_and_goes_on() -> None:
    fence = running(timeouts=Timeouts(execution_ms=1_000))
    with transaction.atomic():
        with refused("WORKLOAD_TIMED_OUT"):
            authority.complete(fence, result_id="r", output=1, now=at(3_000))
        Group.objects.create(name="went on")
    assert Group.objects.exists()
    assert path(fence.workload_id)[-2:] == ["TIMED_OUT", "READY"]


@pytest.mark.django_db(transaction=True)
def test_rolled_back_with_the_caller_it_is_decided_again_later() -> None:
    fence = running(timeouts=Timeouts(execution_ms=1_000))
    with unchanged(fence.workload_id), refused("WORKLOAD_TIMED_OUT"), transaction.atomic():
        authority.complete(fence, result_id="r", output=1, now=at(3_000))
    assert authority.enforce_deadlines(now=at(4_000)) == [fence.workload_id]


@pytest.mark.django_db(transaction=True)
def test_a_budget_found_used_up_is_recorded_so_too() -> None:
    workload_id = admit()
    authority.release(claim(workload_id).fence, now=at(1_000))
    with connection.cursor() as cursor:
        cursor.execute("UPDATE workloads_workload SET attempt_count = 9")
    with transaction.atomic():
        with refused("WORKLOAD_ATTEMPTS_EXHAUSTED"):
            claim(workload_id, request_id="q", now=at(2_000))
        Group.objects.create(name="went on")
    assert state_of(workload_id) == "DEAD_LETTER"
    assert not ClaimRequest.objects.exists()


# Trap (b): a duplicate admission.


@pytest.mark.django_db(transaction=True)
def test_a_duplicate_admission_never_breaks_the_callers_transaction() -> None:
    admit()
    with transaction.atomic():
        assert not authority.admit(request(), now=at(1)).created
        with refused("IDEMPOTENCY_KEY_REUSED"):
            authority.admit(request(priority=1), now=at(1))
        assert authority.admit(request("other"), now=at(1)).created
        Group.objects.create(name="went on")
    assert Group.objects.exists()
    assert Workload.objects.count() == 2


@pytest.mark.django_db(transaction=True)
def test_nor_does_one_that_waited_for_its_winner() -> None:
    with other_connection(lambda: authority.admit(request(), now=T0)), transaction.atomic():
        answer = authority.admit(request(), now=at(1))
        assert not answer.created
        assert answer.workload.created_at == T0
        Group.objects.create(name="after")
    assert Group.objects.filter(name="after").exists()
    assert Workload.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_result_id_that_is_taken_meanwhile_is_a_duplicate_and_breaks_nothing() -> None:
    first, second = running("a"), running("b")
    with (
        other_connection(lambda: authority.complete(first, result_id="r", output=1, now=at(3_000))),
        transaction.atomic(),
    ):
        with refused("WORKLOAD_RESULT_DUPLICATE"):
            authority.complete(second, result_id="r", output=1, now=at(3_000))
        assert authority.complete(second, result_id="r2", output=1, now=at(3_000)).result_id == "r2"
    assert authority.get(second.workload_id).result.result_id == "r2"


# What others have locked, and batches of a pass.


@pytest.mark.django_db(transaction=True)
def test_a_pass_leaves_a_locked_row_to_the_next_one() -> None:
    if connection.vendor == "sqlite":
        pytest.skip("SQLite has one writer, and no row locks to skip.")
    held, free = admit("a", timeouts=Timeouts(queue_ms=1)), admit("b", timeouts=Timeouts(queue_ms=1))
    with other_connection(lock(held)) as other:
        assert authority.enforce_deadlines(now=at(5_000)) == [free]
        assert "released_at" not in other
    assert authority.enforce_deadlines(now=at(5_000)) == [held]


@pytest.mark.django_db(transaction=True)
def test_claim_next_passes_over_what_another_caller_holds_and_does_not_wait() -> None:
    if connection.vendor == "sqlite":
        pytest.skip("SQLite has one writer.")
    ids = [admit(f"k{n}") for n in range(6)]

    def ask() -> list[str]:
        claims = authority.claim_next(worker_id="w", capabilities=[], lease_ms=5, limit=3, now=at(1_000))
        return [given.workload_id for given in claims]

    with other_connection(ask) as other:
        assert ask() == ids[3:]
        assert ask() == []
        assert "released_at" not in other
    assert other["answer"] == ids[:3]


@pytest.mark.django_db(transaction=True)
def test_a_verb_waits_for_who_holds_the_row_and_then_decides() -> None:
    if connection.vendor == "sqlite":
        pytest.skip("SQLite has one writer, and no row locks to wait for.")
    first, fence = admit("a"), running("b")
    with other_connection(lock(first), seconds=0.2) as other:
        assert authority.cancel(first, actor="op", now=at(1)).state == S.CANCELLED
        assert "released_at" in other
    with other_connection(lock(fence.workload_id), seconds=0.2) as other:
        (told,) = authority.complete_many([CompletionReport(fence=fence, result_id="r", output=1)], now=at(3_000))
        assert "released_at" in other
    assert isinstance(told, ResultRecord)


@pytest.mark.django_db(transaction=True)
def test_what_is_depended_on_stays_as_it_was_found_until_the_admission_is_committed() -> None:
    if connection.vendor == "sqlite":
        pytest.skip("SQLite has one writer, and no row locks to take.")
    ids = [admit("first"), admit("second")]
    free = Workload.objects.select_for_update(skip_locked=True).filter(workload_id__in=ids)

    def free_elsewhere() -> list[str]:
        with other_connection(lambda: sorted(free.values_list("workload_id", flat=True)), seconds=0) as other:
            return list(other["answer"])

    with transaction.atomic():
        admit("child", dependencies=[Dependency(workload_id=ids[0])], now=T0)
        assert free_elsewhere() == [ids[1]]
        # Others may depend on it meanwhile.
        with other_connection(lambda: admit("another", dependencies=[Dependency(workload_id=ids[0])]), seconds=0):
            pass
    assert free_elsewhere() == sorted(ids)


@pytest.mark.django_db(transaction=True)
def test_what_has_come_due_and_another_holds_is_left_to_them() -> None:
    if connection.vendor == "sqlite":
        pytest.skip("SQLite has one writer, and no row locks to skip.")
    held, free = admit("a", not_before=at(500)), admit("b", not_before=at(600))
    with other_connection(lock(held)) as other:
        given = authority.claim_next(worker_id="w", capabilities=[], lease_ms=5, limit=3, now=at(1_000))
        assert [claimed.workload_id for claimed in given] == [free]
        assert "released_at" not in other
    given = authority.claim_next(worker_id="w", capabilities=[], lease_ms=5, limit=3, now=at(1_000))
    assert [claimed.workload_id for claimed in given] == [held]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("is_joined", [False, True])
def test_a_result_id_that_another_takes_after_the_look_for_it_is_a_duplicate(
    monkeypatch: pytest.MonkeyPatch, is_joined: bool
) -> None:
    if connection.vendor == "sqlite":
        pytest.skip("SQLite has one writer, and nobody comes in between.")
    theirs, ours = running("a"), running("b")
    look = reports._stored

    def complete_theirs() -> None:
        authority.complete(theirs, result_id="r", output=1, now=at(3_000))

    def look_and_be_late(*given: Any) -> Any:
        found = look(*given)
        monkeypatch.setattr(reports, "_stored", look)
        with other_connection(complete_theirs, seconds=0):
            pass
        return found

    monkeypatch.setattr(reports, "_stored", look_and_be_late)
    with transaction.atomic() if is_joined else nullcontext(), refused("WORKLOAD_RESULT_DUPLICATE"):
        authority.complete(ours, result_id="r", output=2, now=at(3_000))
    assert (state_of(theirs.workload_id), state_of(ours.workload_id)) == (S.SUCCEEDED, S.RUNNING)


@pytest.mark.django_db(transaction=True)
def test_explain_waits_for_nobody() -> None:
    if connection.vendor == "sqlite":
        pytest.skip("SQLite has one writer, and no row locks to wait for.")
    workload_id = admit()
    with other_connection(lock(workload_id)) as other:
        assert authority.explain(workload_id, now=at(1)) == []
        assert "released_at" not in other


@pytest.mark.django_db
@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/Los_Angeles"])
def test_instants_are_read_in_utc_though_a_pooler_has_lost_the_zone_of_the_session(zone: str) -> None:
    if connection.vendor != "postgresql":
        pytest.skip("The other databases know no zone of an instant.")
    workload_id = admit(not_before=at(1_500))
    with connection.cursor() as cursor:
        cursor.execute(f"SET LOCAL TIME ZONE '{zone}'")
    (snapshot,) = records.read_workloads(records.Transaction(connection, None), "a.workload_id = %s", [workload_id])
    assert (snapshot.created_at, snapshot.next_attempt_at) == (T0, at(1_500))
    assert snapshot.created_at.tzinfo is dt.UTC
    assert snapshot.finished_at is None


@pytest.mark.django_db
def test_the_clock_is_read_together_with_a_lock_alone() -> None:
    workload_id = admit()
    tx = records.Transaction(connection, None)
    (snapshot,) = records.read_workloads(tx, "a.workload_id = %s", [workload_id])
    assert tx.clock is None
    assert records.lock_workloads(tx, pks=[snapshot.pk]) == [snapshot]
    assert tx.clock is not None


@pytest.mark.django_db(transaction=True)
def test_a_pass_commits_in_small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    authority.admit_many([request(f"k{n}", timeouts=Timeouts(queue_ms=1)) for n in range(150)], now=T0)
    enforce, turns = deadlines.enforce, []

    def ends(snapshot: Any, now: Any, **more: Any) -> Any:
        turns.append(1)
        if len(turns) > 120:
            raise KeyboardInterrupt
        return enforce(snapshot, now, **more)

    monkeypatch.setattr(deadlines, "enforce", ends)
    with pytest.raises(KeyboardInterrupt):
        authority.enforce_deadlines(now=at(5_000))
    decided = Workload.objects.filter(state="DEAD_LETTER").count()
    assert 0 < decided < 150
    monkeypatch.setattr(deadlines, "enforce", enforce)
    assert len(authority.enforce_deadlines(now=at(5_000))) == 150 - decided


@pytest.mark.django_db(transaction=True)
def test_admissions_into_one_application_take_turns_when_they_reach_an_unknown_id() -> None:
    def admit_first() -> Any:
        return authority.admit(request("a", dependencies=[Dependency(workload_id=id_of("b"))]), now=T0)

    with other_connection(admit_first), refused("WORKLOAD_INVALID") as caught:
        authority.admit(request("b", dependencies=[Dependency(workload_id=id_of("a"))]), now=T0)
    assert caught.value.details is not None
    assert set(caught.value.details["cycle"]) == {id_of("a"), id_of("b")}
    assert ApplicationLock.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_no_connection_is_closed() -> None:
    with transaction.atomic():
        inner = connection.connection
        fence = running()
        authority.complete_many([CompletionReport(fence=fence, result_id="r", output=1)], now=at(3_000))
        authority.run_pass(now=at(5_000))
        assert connection.connection is inner
        assert connection.in_atomic_block
    assert state_of(fence.workload_id) == "SUCCEEDED"


class DriverError(Exception):
    """What a PostgreSQL driver raises: Django's error has it as its cause."""

    def __init__(self, sqlstate: str) -> None:
        super().__init__()
        self.sqlstate = sqlstate


@pytest.mark.parametrize(
    ("args", "sqlstate", "expected"),
    [
        (("deadlock detected",), "40P01", True),
        (("could not serialize access",), "40001", True),
        (("duplicate key",), "23505", False),
        ((1213, "Deadlock found"), None, True),
        ((1205, "Lock wait timeout exceeded"), None, True),
        ((1020, "Record has changed since last read"), None, True),
        ((1062, "Duplicate entry"), None, False),
        (("database is locked",), None, True),
        (("database table is locked: t",), None, True),
        (("database disk image is malformed",), None, False),
        (("the door is locked",), None, False),
        ((), None, False),
        ((b"database is locked",), None, False),
    ],
)
def test_which_errors_end_a_transaction_for_the_sake_of_another(
    args: tuple[Any, ...], sqlstate: str | None, expected: bool
) -> None:
    error = DatabaseError(*args)
    error.__cause__ = DriverError(sqlstate) if sqlstate else None
    assert is_repeatable(error) is expected
