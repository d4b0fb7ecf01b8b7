"""Sequences that once broke the authority: kept small, each with what is right. Sections 1, 4, 5, 6 and 8."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction
from django.test.utils import CaptureQueriesContext

from tests.authority.builders import admit, claim, id_of, refused, request, running, state_of, take
from tests.authority.connections import lock, other_connection
from tests.support import T0, at
from workloads import authority
from workloads.authority import claims, records, recovery
from workloads.authority.records import Transaction, lock_workloads, transact
from workloads.contract import CompletionReport, Dependency, Fence, RetryPolicy, Timeouts
from workloads.errors import WORKLOAD_NOT_FOUND, WORKLOAD_TIMED_OUT, WorkloadError
from workloads.models import ClaimRequest, Lane, Workload

pytestmark = pytest.mark.django_db


def depends_on_a_dead_letter(**changes: Any) -> tuple[str, str]:
    """Admit a workload, dead-letter it, and admit another that wants it so; return both ids."""
    first = admit("first", retry_policy=RetryPolicy(max_attempts=1))
    authority.fail(claim(first, now=at(100)).fence, kind="broken", error="", now=at(200))
    wanted = Dependency(workload_id=first, required_state="DEAD_LETTER")  # type: ignore[arg-type]
    return first, admit("second", dependencies=[wanted], **changes)


def standing_of(workload_id: str) -> str:
    """Return how the dependencies of a workload stand together."""
    return str(authority.get(workload_id).dependency_standing)


def test_a_sweep_keeps_what_follows_from_its_own_decisions() -> None:
    first, second = depends_on_a_dead_letter()
    fence = claim(second, now=at(300), lease_ms=1_000).fence
    authority.rearm(first, actor="op", reason="again", now=at(400))
    claim(first, now=at(500), lease_ms=1_000)
    # Its due_at is early now: the sweep that decides the first workload brings that up to date.
    authority.heartbeat(fence, extend_ms=600_000, now=at(600))
    assert standing_of(second) == "waiting"
    assert authority.recover_expired(now=at(5_000)) == [first]
    assert (state_of(first), standing_of(second)) == ("DEAD_LETTER", "met")
    authority.release(fence, now=at(6_000))
    assert take(now=at(7_000)) == [second]


def test_a_batch_judges_an_item_on_what_the_items_before_it_have_changed() -> None:
    first, second = depends_on_a_dead_letter(timeouts=Timeouts(execution_ms=1_000))
    late = authority.start(claim(second, now=at(300)).fence, now=at(300)).fence
    authority.rearm(first, actor="op", reason="again", now=at(400))
    fence = authority.start(claim(first, now=at(500)).fence, now=at(500)).fence
    report = CompletionReport(fence=fence, result_id="r", output=1)
    outcomes = authority.complete_many(
        [report, report, CompletionReport(fence=late, result_id="s", output=1)], now=at(5_000)
    )
    assert outcomes[0] == outcomes[1]
    assert isinstance(outcomes[2], WorkloadError)
    assert outcomes[2].code == WORKLOAD_TIMED_OUT
    assert (state_of(second), standing_of(second)) == ("READY", "unmeetable")
    assert authority.dead_letter_unsatisfiable(now=at(60_000)) == [second]


def test_a_batch_of_one_report_many_times_has_one_answer() -> None:
    report = CompletionReport(fence=running(), result_id="r", output={"a": 1})
    outcomes = authority.complete_many([report] * 5, now=at(5_000))
    assert outcomes == [outcomes[0]] * 5
    assert authority.get(id_of()).version == 4


def test_rows_are_locked_in_the_order_of_their_keys_however_many_statements_that_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(records, "ROWS_A_STATEMENT", 2)
    ids = [admit(str(number)) for number in range(9)]
    assert ids != sorted(ids)

    def work(tx: Transaction) -> list[str]:
        return [snapshot.workload_id for snapshot in lock_workloads(tx, workload_ids=sorted(ids))]

    assert transact(work, now=T0) == ids


def test_looking_again_at_what_was_missing_takes_few_queries() -> None:
    wanted = [Dependency(workload_id=f"nobody {number}") for number in range(50)]
    here = admit("late", tenant_id="other")
    for number in range(4):
        admit(str(number), dependencies=[*wanted, Dependency(workload_id=id_of("late")), Dependency(workload_id=here)])
    admit("late")
    with CaptureQueriesContext(connection) as queries:
        assert authority.dead_letter_unsatisfiable(now=at(120_000)) == []
    assert len(queries) < 40
    rows = authority.get(id_of("0")).dependencies.all()
    assert {row.depends_on: row.standing for row in rows if row.standing != "missing"} == {id_of("late"): "waiting"}


def test_a_night_of_work_that_comes_due_at_once_takes_few_queries() -> None:
    authority.admit_many([request(str(number), not_before=at(1_000)) for number in range(60)], now=T0)
    with CaptureQueriesContext(connection) as queries:
        assert len(take(now=at(1_000), limit=1)) == 1
    # A statement for each row would be told as "60 times: UPDATE …".
    assert [query["sql"] for query in queries if "times: UPDATE" in query["sql"]] == []
    assert Workload.objects.filter(waiting_lane_id__isnull=False).count() == 0
    assert len(take(now=at(1_000))) == 59


@pytest.mark.parametrize(
    "value",
    [10**5_000, None, b"x", "\0", "\ud800", "é" * 99],
    ids=["number", "none", "bytes", "nul", "surrogate", "long"],
)
def test_whatever_names_nothing_is_not_found(value: Any) -> None:
    with refused(WORKLOAD_NOT_FOUND):
        authority.get(value)


def test_a_pass_takes_an_instant_in_any_zone() -> None:
    zone = dt.timezone(dt.timedelta(hours=23, minutes=59))
    assert authority.run_pass(now=T0.astimezone(zone)).failed == {}


def test_a_claim_request_that_is_pruned_as_it_is_repeated_is_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    admit()
    first = authority.claim_next(worker_id="w", capabilities=(), lease_ms=1_000, request_id="r", now=T0)
    name = "insert" if connection.vendor == "mysql" else "insert_new"
    insert = getattr(claims, name)

    def pruned(*args: Any, **options: Any) -> Any:
        answer = insert(*args, **options)
        monkeypatch.setattr(claims, name, insert)
        ClaimRequest.objects.all().delete()
        return answer

    monkeypatch.setattr(claims, name, pruned)
    second = authority.claim_next(worker_id="w", capabilities=(), lease_ms=1_000, request_id="r", now=T0)
    assert (len(first), second) == (1, [])


def test_a_pass_in_a_transaction_that_the_database_has_ended_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    admit(timeouts=Timeouts(queue_ms=1))

    def ended(self: recovery.Sweep, pks: Iterable[int]) -> list[str]:
        # What Django does when a savepoint is gone with the transaction: MariaDB's deadlocks end so.
        connection.needs_rollback = True
        raise DatabaseError(1213, "Deadlock found")

    monkeypatch.setattr(recovery.Sweep, "_commit", ended)
    with pytest.raises(DatabaseError, match="Deadlock found"), transaction.atomic():
        authority.enforce_deadlines(now=at(5_000))


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has one writer: nothing is ever locked.")
def test_a_locked_head_does_not_let_lower_priorities_overtake_other_lanes() -> None:
    high, _, middle = admit("high", priority=9), admit("low"), admit("middle", priority=5, definition_id="e")
    assert Lane.objects.count() == 2
    with other_connection(lock(high)):
        assert take(limit=1) == [middle]
    assert take(limit=2) == [high, id_of("low")]


def test_a_fence_of_any_text_is_compared_and_never_asked_of_the_database() -> None:
    fence = running()
    for claim_id in ("\0", "\ud800", "x" * 100_000):
        strange = Fence(workload_id=fence.workload_id, claim_id=claim_id, worker_id="\0", fencing_token=10**400)
        with pytest.raises(WorkloadError) as caught:
            authority.release(strange, now=at(3_000))
        assert caught.value.code == "WORKLOAD_CLAIM_INVALID"


def test_the_lowest_priority_of_all_is_claimed_from_among_several_lanes() -> None:
    lowest = [admit(f"low {n}", definition_id=f"d{n}", priority=-(2**31)) for n in range(2)]
    highest = admit("high", definition_id="d3", priority=2**31 - 1)
    assert take(now=at(1_000), limit=5) == [highest, *lowest]


def test_work_of_one_batch_is_claimed_in_the_order_of_the_requests() -> None:
    keys = [f"key {n}" for n in range(30)]
    authority.admit_many([request(key) for key in keys], now=at(0))
    assert take(now=at(1_000), limit=30) == [id_of(key) for key in keys]


SPOILT = [
    ("workloads_admitted", "retry_policy", '{"backoff":'),
    ("workloads_admitted", "timeouts", "[1]"),
    ("workloads_admitted", "capability_snapshot", "null,"),
    ("workloads_workload", "dependency_standing", "odd"),
    ("workloads_workload", "state", "ODD"),
]


@pytest.mark.parametrize("limit", [1, 2, 5])
@pytest.mark.parametrize(("table", "column", "text"), SPOILT)
def test_a_row_that_cannot_be_read_holds_up_no_other(
    table: str, column: str, text: str, limit: int, caplog: Any
) -> None:
    bad = admit("bad", priority=9)
    admit("other-lane", definition_id="other", priority=5)
    good = [admit(f"good-{n}") for n in range(2)]
    pk = authority.get(bad).pk
    with connection.cursor() as cursor:
        key = "id" if table.endswith("admitted") else "admitted_id"
        cursor.execute(f"UPDATE {table} SET {column} = %s WHERE {key} = %s", [text, pk])
    got: list[str] = []
    for _ in range(4):
        got += take(limit=limit)
    assert sorted(got) == sorted([id_of("other-lane"), *good])
    told = [record for record in caplog.records if str(pk) in record.getMessage()]
    assert len(told) <= 1
