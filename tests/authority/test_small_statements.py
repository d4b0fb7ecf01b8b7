"""However few rows go into a statement, a batch is recorded whole, in its order, and read whole."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.db import DataError, connection
from django.test.utils import CaptureQueriesContext

from tests.authority.builders import admit, claim, events, id_of, record, request, spoil, write_raw
from tests.support import T0, at
from workloads import authority
from workloads.authority import (
    admission,
    columns,
    dependencies,
    records,
    recovery,
    reports,
    statements,
    streams,
    writes,
)
from workloads.contract import Admission, Claim, CompletionReport, Dependency, Fence, ResultRecord, Timeouts
from workloads.errors import WorkloadError
from workloads.lifecycle import deadlines
from workloads.models import ApplicationLock, Tombstone, Workload

pytestmark = pytest.mark.django_db

KEYS = "abcde"


@pytest.fixture(autouse=True)
def two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every statement hold two rows, or lanes, at the most."""
    for module in (admission, dependencies, records, reports, statements, streams, writes):
        monkeypatch.setattr(module, "ROWS_A_STATEMENT", 2)
    monkeypatch.setattr(records, "LANES_A_STATEMENT", 2)
    monkeypatch.setattr(writes, "MOVED_A_STATEMENT", 2)
    monkeypatch.setattr(recovery, "BATCH", 2)
    monkeypatch.setattr(streams, "ROWS", 3)


def admit_all(**changes: Any) -> list[str]:
    answers = authority.admit_many([request(key, **changes) for key in KEYS], now=T0)
    assert all(isinstance(answer, Admission) and answer.created for answer in answers)
    return [id_of(key) for key in KEYS]


def start_all() -> list[Fence]:
    claims = authority.claim_next(worker_id="w", capabilities=[], lease_ms=9_000, limit=9, start=True, now=at(1))
    return [given.fence for given in claims]


def assert_sound() -> None:
    assert list(authority.verify(chunk=3, now=at(100_000))) == []


def test_admissions_are_stored_and_read_again() -> None:
    ids = admit_all()
    answers = authority.admit_many([request(key) for key in KEYS], now=at(1))
    assert [a.workload.workload_id for a in answers if isinstance(a, Admission) and not a.created] == ids
    assert_sound()


def test_a_batch_is_admitted_and_answered_again_in_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "MAX_TURNS", 1)
    admit_all()
    answers = authority.admit_many([request(key) for key in KEYS], now=at(1))
    assert [a.created for a in answers if isinstance(a, Admission)] == [False] * 5


def test_work_of_several_lanes() -> None:
    authority.admit_many([request(key, definition_id=key, priority=ord(key)) for key in KEYS], now=T0)
    assert [fence.workload_id for fence in start_all()] == [id_of(key) for key in reversed(KEYS)]
    assert_sound()


def test_work_that_comes_due_in_several_lanes() -> None:
    authority.admit_many([request(key, definition_id=key, not_before=at(1)) for key in KEYS], now=T0)
    assert {fence.workload_id for fence in start_all()} == {id_of(key) for key in KEYS}
    assert_sound()


def test_work_that_comes_due_in_one_lane_comes_due_whole_and_no_other_does() -> None:
    authority.admit_many([request(key, not_before=at(1), priority=n) for n, key in enumerate(KEYS)], now=T0)
    admit("later", not_before=at(2), priority=9)
    (first,) = authority.claim_next(worker_id="w", capabilities=[], lease_ms=9_000, now=at(1))
    assert first.workload_id == id_of(KEYS[-1])
    assert Workload.objects.filter(waiting_lane_id__isnull=False).count() == 1
    assert_sound()


def test_what_was_pruned_is_retired() -> None:
    for key in KEYS:
        Tombstone.objects.create(
            workload_id=id_of(key), tenant_id="t", application_id="app", state="SUCCEEDED", pruned_at=T0
        )
    answers = authority.admit_many([request(key) for key in KEYS], now=T0)
    assert [answer.code for answer in answers if isinstance(answer, WorkloadError)] == ["IDEMPOTENCY_KEY_RETIRED"] * 5
    child = admit("child", dependencies=[Dependency(workload_id=id_of(key)) for key in KEYS])
    assert authority.get(child).dependency_standing == "met"
    assert [row["standing"] for row in record(child)["dependencies"]] == ["met"] * 5
    assert_sound()


def test_heartbeats_and_completions_and_their_repeats() -> None:
    ids = admit_all()
    fences = start_all()
    beats = authority.heartbeat_many([(fence, 20_000) for fence in fences], now=at(2))
    assert [beat.workload_id for beat in beats if isinstance(beat, Claim)] == ids
    reports = [CompletionReport(fence=fence, result_id=f"r {fence.workload_id}", output=1) for fence in fences]
    first = authority.complete_many(reports, now=at(3))
    assert [told.result_id for told in first if isinstance(told, ResultRecord)] == [f"r {i}" for i in ids]
    assert authority.complete_many(reports, now=at(4)) == first
    assert_sound()


def test_result_ids_that_pruned_work_has_taken() -> None:
    admit_all()
    for key in KEYS:
        Tombstone.objects.create(
            workload_id=f"gone {key}",
            tenant_id="t",
            application_id="app",
            state="SUCCEEDED",
            pruned_at=T0,
            result_key=dependencies.key_of("t", key),
        )
    reports = [
        CompletionReport(fence=fence, result_id=key, output=1) for key, fence in zip(KEYS, start_all(), strict=True)
    ]
    answers = authority.complete_many(reports, now=at(3))
    assert [answer.code for answer in answers if isinstance(answer, WorkloadError)] == ["WORKLOAD_RESULT_DUPLICATE"] * 5


def test_the_last_of_many_result_ids_was_reported_before() -> None:
    admit_all()
    fences = start_all()
    known = authority.complete(fences[0], result_id="known", output=1, now=at(2))
    others = [CompletionReport(fence=fence, result_id=f"r{n}", output=1) for n, fence in enumerate(fences[1:], start=1)]
    answers = authority.complete_many(
        [*others, CompletionReport(fence=fences[0], result_id="known", output=1)], now=at(3)
    )
    assert [told.result_id for told in answers if isinstance(told, ResultRecord)] == ["r1", "r2", "r3", "r4", "known"]
    assert answers[-1] == known


@pytest.mark.parametrize("count", [1, 2, 3])
def test_what_depends_on_as_many_as_a_statement_holds_follows_them(count: int) -> None:
    parents = admit_all()
    children = [admit(f"child {key}", priority=-1, dependencies=[Dependency(workload_id=id_of(key))]) for key in KEYS]
    reports = [
        CompletionReport(fence=fence, result_id=fence.workload_id, output=1)
        for fence in start_all()
        if fence.workload_id in parents[:count]
    ]
    authority.complete_many(reports, now=at(3))
    standings = [authority.get(child).dependency_standing for child in children]
    assert standings == ["met"] * count + ["waiting"] * (5 - count)
    assert_sound()


def test_dependents_follow_and_a_long_chain_is_searched() -> None:
    parents = admit_all()
    waits = [Dependency(workload_id=parent) for parent in parents]
    children = [admit(f"child {key}", dependencies=waits) for key in KEYS]
    reports = [
        CompletionReport(fence=fence, result_id=fence.workload_id, output=1)
        for fence in start_all()
        if fence.workload_id in parents
    ]
    assert len(reports) == 5
    authority.complete_many(reports, now=at(3))
    assert [authority.get(child).dependency_standing for child in children] == ["met"] * 5
    assert_sound()


def test_a_cycle_is_found_through_many() -> None:
    for key in KEYS:
        admit(key, dependencies=[Dependency(workload_id=id_of("last"))])
    answer = authority.admit_many(
        [request("last", dependencies=[Dependency(workload_id=id_of(key)) for key in KEYS])], now=T0
    )[0]
    assert isinstance(answer, WorkloadError)
    assert answer.details == {"field": "dependencies", "cycle": [id_of("last"), answer.details["cycle"][1]]}


def test_no_lock_is_taken_where_all_that_is_reached_exists() -> None:
    for key in KEYS:
        admit(key, dependencies=[Dependency(workload_id=id_of("last"))])
    admit("last")
    ApplicationLock.objects.all().delete()
    admit("child", dependencies=[Dependency(workload_id=id_of(key)) for key in KEYS])
    assert not ApplicationLock.objects.exists()


def test_a_pass_looks_again_at_what_is_due_alone() -> None:
    first, second = (
        admit(key, dependencies=[Dependency(workload_id=f"no {key}")], now=at(n)) for n, key in enumerate("ab")
    )
    authority.run_pass(now=at(59_999))
    report = authority.run_pass(now=at(60_000))
    assert report.failed == {}
    assert authority.get(first).due_at == at(120_000)
    assert authority.get(second).due_at == at(60_001)


def test_a_pass_that_looks_again_finds_what_was_pruned_and_what_is_parked() -> None:
    children = {key: admit(f"{key} child", dependencies=[Dependency(workload_id=id_of(key))]) for key in KEYS[:3]}
    for key, state in (("a", "SUCCEEDED"), ("b", "DEAD_LETTER")):
        Tombstone.objects.create(workload_id=id_of(key), tenant_id="t", application_id="app", state=state, pruned_at=T0)
    authority.fail(claim(admit("c", priority=9), now=at(1)).fence, kind="odd", error="", now=at(2))
    write_raw("workload", children["c"], dependency_standing="missing")
    write_raw("workload", children["c"], due_at=connection.ops.adapt_datetimefield_value(at(60_000)))
    with connection.cursor() as cursor:
        cursor.execute("UPDATE workloads_dependency SET standing = 'missing' WHERE depends_on = %s", [id_of("c")])
    assert authority.dead_letter_unsatisfiable(now=at(70_000)) == [children["b"]]
    standings = {key: str(authority.get(child).dependency_standing) for key, child in children.items()}
    assert standings == {"a": "met", "b": "unmeetable", "c": "waiting"}
    assert_sound()


def test_a_pass_decides_all_and_looks_again_at_all() -> None:
    late = admit_all(timeouts=Timeouts(queue_ms=10))
    missing = [Dependency(workload_id=id_of(f"later {key}")) for key in KEYS]
    children = [admit(f"child {key}", dependencies=missing) for key in KEYS]
    held = [claim(admit(f"lost {key}", priority=1), now=at(1), lease_ms=5).workload_id for key in KEYS]
    for key in KEYS:
        claimed = claim(admit(f"later {key}", priority=2), now=at(1)).fence
        authority.start(claimed, now=at(1))
        authority.complete(claimed, result_id=key, output=1, now=at(2))
    report = authority.run_pass(now=at(70_000))
    assert sorted(report.timed_out) == sorted(late)
    assert sorted(report.recovered) == sorted(held)
    assert [authority.get(child).dependency_standing for child in children] == ["met"] * 5
    assert Workload.objects.filter(queued_lane_id__isnull=False).count() >= 5
    assert_sound()


def test_rows_are_locked_once_each_in_the_order_of_their_keys_and_the_clock_is_read() -> None:
    ids = admit_all()
    pks = [authority.get(workload_id).pk for workload_id in ids]
    wanted: dict[str, Any] = {"workload_ids": sorted(ids)}
    for asked in (wanted, {"pks": pks}, {"workload_ids": ids[:1]}, {"pks": pks[:2]}):
        tx = records.Transaction(connection, None)
        locked = records.lock_workloads(tx, **asked)
        assert [snapshot.pk for snapshot in locked] == pks[: len(next(iter(asked.values())))]
        assert tx.clock is not None
    tx = records.Transaction(connection, None)
    lane = locked[0].lane_id
    found, spoilt = records.lock_queued(tx, lane, 3, pks[:1], at(1))
    assert ([snapshot.pk for snapshot in found], spoilt) == (pks[1:4], [])
    assert tx.clock is not None


def test_what_can_never_be_met_is_named_and_no_other() -> None:
    met, *gone = (admit(key) for key in "abc")
    authority.complete(
        authority.start(claim(met, now=at(1)).fence, now=at(1)).fence, result_id="r", output=1, now=at(1)
    )
    for workload_id in gone:
        authority.cancel(workload_id, actor="op", now=at(1))
    children = {
        lost: admit(f"of {lost}", dependencies=[Dependency(workload_id=met), Dependency(workload_id=lost)])
        for lost in gone
    }
    authority.run_pass(now=at(2))
    assert {lost: events(child)[-1].evidence["dependency"] for lost, child in children.items()} == {
        lost: lost for lost in gone
    }


@pytest.mark.parametrize(("most", "expected"), [(2, ["event", "event", "follow: event"]), (3, ["event"] * 3)])
def test_orphans_are_told_up_to_a_number(monkeypatch: pytest.MonkeyPatch, most: int, expected: list[str]) -> None:
    if connection.vendor == "postgresql":
        pytest.skip("PostgreSQL lets nobody change an event.")
    monkeypatch.setattr(streams, "MOST_ORPHANS", most)
    for key in "abc":
        pk = authority.get(admit(key)).pk
        with connection.cursor() as cursor:
            cursor.execute("UPDATE workloads_event SET record = record + 1000 WHERE record = %s", [pk])
    told = [fault.message for fault in authority.verify(now=at(1)) if fault.invariant == "orphan"]
    assert len(told) == len(expected)
    assert all(message.endswith(end) for message, end in zip(told, expected, strict=True))


def test_a_limit_is_kept_from_page_to_page() -> None:
    ids = admit_all(timeouts=Timeouts(queue_ms=10))
    assert len(authority.enforce_deadlines(now=at(20), limit=3)) == 3
    assert len(authority.enforce_deadlines(now=at(20), limit=3)) == 2
    assert {authority.get(workload_id).state for workload_id in ids} == {"DEAD_LETTER"}


@pytest.mark.parametrize(
    "due_ms", [[50, 40, 30, 20, 10], [10, 20, 30, 40, 50], [10, 10, 10, 10, 10], [30, 10, 10, 10, 20]]
)
def test_what_stays_due_hides_nothing_behind_it(due_ms: list[int]) -> None:
    stay = [admit(key, timeouts=Timeouts(queue_ms=ms)) for key, ms in zip(KEYS, due_ms, strict=True)]
    for workload_id in stay:
        spoil(workload_id)
    good = [admit(f"good {ms}", timeouts=Timeouts(queue_ms=ms)) for ms in (5, 10, 25, 60)]
    report = authority.run_pass(now=at(100))
    assert sorted(report.timed_out) == sorted(good)
    assert set(report.failed) == set(stay)


def test_a_row_at_which_the_database_stumbles_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = admit_all(timeouts=Timeouts(queue_ms=10))
    enforce = deadlines.enforce

    def stumble(snapshot: Any, *more: Any, **options: Any) -> Any:
        if snapshot.workload_id == ids[2]:
            raise DataError("out of range")
        return enforce(snapshot, *more, **options)

    monkeypatch.setattr(deadlines, "enforce", stumble)
    report = authority.run_pass(now=at(20))
    assert sorted(report.timed_out) == sorted([*ids[:2], *ids[3:]])
    assert report.failed == {ids[2]: "DataError: out of range"}


@pytest.mark.parametrize(
    ("rows", "bytes_more", "expected"),
    [(9, 0, [3, 3, 1]), (9, 1, [3, 3, 1]), (9, -1, [2, 2, 2, 1]), (2, 0, [2, 2, 2, 1]), (3, -1, [2, 2, 2, 1])],
)
def test_a_statement_is_cut_at_its_rows_and_at_its_bytes(
    monkeypatch: pytest.MonkeyPatch, rows: int, bytes_more: int, expected: list[int]
) -> None:
    made = [
        {"workload_id": f"w{n}", "tenant_id": "t", "application_id": "a", "state": "CANCELLED", "pruned_at": T0}
        for n in range(7)
    ]
    values = [columns.prepared(connection, Tombstone, name, value) for name, value in made[0].items()]
    a_row = sum(4 * len(value) for value in values if isinstance(value, str))
    monkeypatch.setattr(statements, "ROWS_A_STATEMENT", rows)
    monkeypatch.setattr(statements, "BYTES_A_STATEMENT", 3 * a_row + bytes_more)
    with CaptureQueriesContext(connection) as captured:
        statements.insert(records.Transaction(connection, T0), Tombstone, made)
    assert [len(re.findall(r"\bw\d\b", query["sql"])) for query in captured.captured_queries] == expected
    assert Tombstone.objects.count() == 7


def test_a_heartbeat_leaves_the_indexed_columns_alone() -> None:
    fence = claim(admit(), now=at(1)).fence
    with CaptureQueriesContext(connection) as captured:
        authority.heartbeat(fence, extend_ms=900_000, now=at(2))
    (update,) = [query["sql"] for query in captured.captured_queries if query["sql"].startswith("UPDATE")]
    assert "SET" in update
    assert not {name for name in ("due_at", "queued_lane_id", "waiting_lane_id") if name in update}


def test_no_statement_names_more() -> None:
    ids = admit_all()
    with CaptureQueriesContext(connection) as captured:
        authority.admit_many([request(key) for key in KEYS], now=at(1))
    for query in captured.captured_queries:
        assert sum(workload_id in query["sql"] for workload_id in ids) <= 2
