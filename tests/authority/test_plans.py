"""The plans of the hot paths: they read about what they hand out, whatever else is stored."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection, transaction

from tests.support import T0, at
from workloads import authority
from workloads.contract import AdmissionRequest, CompletionReport, Dependency

MANY = 100_000

pytestmark = pytest.mark.django_db(transaction=True)  # MariaDB commits at ANALYZE TABLE.


def admit(key: str, **changes: Any) -> str:
    request = AdmissionRequest(
        tenant_id="t", application_id="app", requested_by="u", idempotency_key=key, definition_id="d", **changes
    )
    return authority.admit(request, now=T0).workload.workload_id


def multiply(workload_id: str, times: int) -> None:
    """Copy a workload's two rows `times` times, as they stand."""
    workload = authority.get(workload_id)
    with connection.cursor() as cursor:
        cursor.execute("SELECT max(id) FROM workloads_admitted")
        offset = cursor.fetchone()[0] + MANY
        numbers = {
            "postgresql": f"(SELECT generate_series(1, {times}) AS n) AS numbers",
            "mysql": f"(SELECT seq AS n FROM seq_1_to_{times}) AS numbers",
        }[connection.vendor]
        for table, key, changed in (
            ("workloads_admitted", "id", {"workload_id": f"CONCAT('copy_', {offset} + n)"}),
            ("workloads_workload", "admitted_id", {}),
        ):
            cursor.execute(f"SELECT * FROM {table} WHERE 1 = 0")
            columns = [column[0] for column in cursor.description]
            quote = connection.ops.quote_name
            values = [f"{offset} + n" if c == key else changed.get(c, quote(c)) for c in columns]
            cursor.execute(
                f"INSERT INTO {table} ({', '.join(map(quote, columns))}) SELECT {', '.join(values)} "
                f"FROM {table}, {numbers} WHERE {key} = %s",
                [workload.pk],
            )


@pytest.fixture
def crowd() -> str:
    """One workload of a rare capability among 100,000 each that its worker can't run, that are blocked, that wait."""
    if connection.vendor == "sqlite":
        pytest.skip("SQLite tells no plan that can be counted; its indexes are the same.")
    one = admit("one", capability_snapshot={"rare"})
    missing = Dependency(workload_id="workload_that_nobody_admitted")
    rare = {"capability_snapshot": {"rare"}}
    multiply(admit("common", capability_snapshot={"common"}, priority=5), MANY)
    multiply(admit("blocked", dependencies=(missing,), priority=5, **rare), MANY)
    multiply(admit("later", not_before=at(86_400_000), priority=5, **rare), MANY)
    with connection.cursor() as cursor:
        cursor.execute(
            "ANALYZE workloads_admitted, workloads_workload"
            if connection.vendor == "postgresql"
            else "ANALYZE TABLE workloads_admitted, workloads_workload"
        )
        cursor.fetchall() if cursor.description else None
    return one


class Statements:
    """The SELECT statements of a block, explained as they run."""

    def __init__(self) -> None:
        self.rows_read: list[tuple[int, str]] = []

    def __call__(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.startswith(("SELECT", "WITH", "(SELECT")) and connection.vendor == "postgresql":
            # To explain a statement is to run it: what it writes is undone.
            writes = "RETURNING 1" in sql
            with context["connection"].connection.cursor() as cursor:
                if writes:
                    cursor.execute("SAVEPOINT explained")
                cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", params)
                (plan,) = cursor.fetchone()
                if writes:
                    cursor.execute("ROLLBACK TO SAVEPOINT explained")
            plan = plan if isinstance(plan, list) else json.loads(plan)
            self.rows_read.append((sum(rows_read(plan[0]["Plan"])), sql))
        return execute(sql, params, many, context)


def rows_read(node: dict[str, Any]) -> Iterator[int]:
    if "Scan" in node["Node Type"]:
        removed = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
        yield int((node["Actual Rows"] + removed) * node["Actual Loops"])
    for child in node.get("Plans", ()):
        yield from rows_read(child)


def reads(call: Callable[[], Any]) -> tuple[Any, int]:
    """Run a call; return its answer, and the most rows that one of its statements read (MariaDB: all of them)."""
    if connection.vendor == "mysql":
        return _handler_reads(call)
    seen = Statements()
    with connection.execute_wrapper(seen):
        answer = call()
    assert seen.rows_read
    return answer, max(read for read, _ in seen.rows_read)


def test_the_hot_paths_read_about_what_they_hand_out(crowd: str) -> None:
    rare = {"worker_id": "w", "capabilities": {"rare"}, "lease_ms": 1_000}
    claims, read = reads(lambda: authority.claim_next(limit=5, now=at(1), **rare))
    assert [claim.workload_id for claim in claims] == [crowd]
    assert read < 200
    recovered, read = reads(lambda: authority.recover_expired(now=at(2_000)))
    assert recovered == [crowd]
    assert read < 200
    newest, read = reads(lambda: list(authority.list_for("t", "app")[:50]))
    assert len(newest) == 50
    assert read < 500
    history, read = reads(lambda: list(authority.get(crowd).events.all()))
    assert len(history) == 5
    assert read < 50


@pytest.mark.skipif(connection.vendor != "postgresql", reason="MariaDB is told the index.")
@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("has_statistics", [False, True])
def test_a_queue_is_read_from_its_head_whatever_the_statistics_say(has_statistics: bool, lanes: int) -> None:
    """There are none of a new table, and after a burst those are of an empty queue."""
    with connection.cursor() as cursor:
        cursor.execute("SHOW enable_sort")
        before = cursor.fetchone()
        # Tables that are emptied by DELETE keep the statistics of the test before.
        cursor.execute("TRUNCATE workloads_admitted, workloads_workload CASCADE")
        if has_statistics:
            done = [admit(f"done {n}", priority=9) for n in range(3)]
            claims = authority.claim_next(worker_id="w", capabilities=(), lease_ms=1_000, limit=9, start=True, now=T0)
            assert len(claims) == len(done)
            cursor.execute("ANALYZE workloads_admitted, workloads_workload")
    for n in range(lanes):
        multiply(admit(f"queued {n}", definition_revision=f"r{n}"), 3_000)
    claims, read = reads(
        lambda: authority.claim_next(worker_id="w", capabilities=(), lease_ms=1_000, limit=5, now=at(1))
    )
    assert len(claims) == 5
    assert read < 200
    with connection.cursor() as cursor:
        cursor.execute("SHOW enable_sort")
        assert cursor.fetchone() == before


@pytest.mark.skipif(connection.vendor != "sqlite", reason="The others are asked how many rows they read.")
def test_no_statement_of_a_life_scans_a_table_of_sqlites() -> None:
    scanned: set[str] = set()
    verbs: set[str] = set()

    def explain(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        verb = sql.split()[0].strip("(")
        if verb in {"SELECT", "WITH", "INSERT", "UPDATE", "DELETE"}:
            verbs.add(verb)
            given = (params[0] if many else params) or ()
            plan = connection.connection.execute(f"EXPLAIN QUERY PLAN {sql.replace('%s', '?')}", [None] * len(given))
            scanned.update(f"{detail}: {sql}" for *_, detail in plan if detail.startswith("SCAN"))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(explain):
        live()
    assert verbs >= {"SELECT", "INSERT", "UPDATE"}
    # A lane for each kind of work there is; and rows that stand in the statement.
    of_lanes = {line for line in scanned if line.startswith("SCAN l: SELECT l.id")}
    of_none = {line for line in scanned if "CONSTANT ROW" in line.partition(":")[0]}
    assert of_lanes
    assert scanned == of_lanes | of_none


def live() -> None:
    """Let workloads go through all that repeats: admission, claims, reports of all kinds, passes, lists."""
    missing = Dependency(workload_id="workload_that_nobody_admitted")
    first = admit("first")
    admit("last", dependencies=[Dependency(workload_id=first)])
    requests = [
        AdmissionRequest(
            tenant_id="t", application_id="app", requested_by="u", idempotency_key=f"{n}", definition_id="d", **changes
        )
        for n, changes in enumerate([{}, {}, {}, {}, {"dependencies": [missing]}, {"not_before": at(5)}])
    ]
    assert [outcome.created for outcome in authority.admit_many(requests, now=T0)] == [True] * 6
    claims = authority.claim_next(
        worker_id="w", capabilities=(), lease_ms=1_000, limit=5, start=True, request_id="r", now=at(1)
    )
    one, two, three, four, _ = [claim.fence for claim in claims]
    authority.heartbeat_many([(fence, 2_000) for fence in (one, two)], now=at(2))
    authority.checkpoint(one, {"at": 1}, now=at(3))
    authority.complete(one, result_id="r1", output=None, now=at(4))
    authority.complete_many([CompletionReport(fence=two, result_id="r2", output=None)], now=at(4))
    authority.fail(three, kind="worker_failure", error="out of disk", now=at(4))
    authority.release(four, now=at(4))
    authority.cancel(claims[4].workload_id, actor="u", reason="not needed", now=at(5))
    authority.run_pass(now=at(100_000))
    assert len(list(authority.list_for("t", "app")[:50])) == 8
    assert len(list(authority.get(first).events.all())) > 4


@pytest.mark.skipif(connection.vendor != "postgresql", reason="The others are not told how to read a queue.")
def test_a_callers_transaction_sorts_as_it_did_before_it_claimed() -> None:
    admit("one")
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SHOW enable_sort")
        before = cursor.fetchone()
        assert authority.claim_next(worker_id="w", capabilities=(), lease_ms=1_000, now=at(1))
        cursor.execute("SHOW enable_sort")
        assert cursor.fetchone() == before == ("on",)


def _handler_reads(call: Any) -> tuple[Any, int]:
    """Run a call and count the rows that MariaDB's storage engine was asked for meanwhile."""

    def count() -> int:
        with connection.cursor() as cursor:
            cursor.execute("SHOW SESSION STATUS LIKE 'Handler_read%%'", [])
            return sum(int(value) for _, value in cursor.fetchall())

    before = count()
    answer = call()
    return answer, count() - before
