"""Verification: a healthy history has no fault, each invariant's breach is named, and nothing else is. Section 12."""

from __future__ import annotations

import json
import threading
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, connections
from django.test.utils import CaptureQueriesContext

from tests.authority.builders import S, admit, claim, id_of, refused, request
from tests.authority.lives import ALL_LIVED, LIVES, after, begin, live_all, lost, succeeded
from tests.support import at
from workloads import authority
from workloads.authority.verification import Fault, verify
from workloads.contract import Dependency
from workloads.models import Workload

pytestmark = pytest.mark.django_db

EARLIER = "'2041-05-06 07:08:09.123456'"
LATER = "'2041-05-06 09:08:09.123456'"
ITS_LANE = "(SELECT lane_id FROM workloads_admitted WHERE id = admitted_id)"


def faults(**options: Any) -> list[Fault]:
    """Verify everything as of the end of all lives."""
    return list(verify(**({"now": ALL_LIVED} | options)))


def run(*statements: str) -> None:
    """Write behind the authority's back, and behind the trigger that keeps events."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("ALTER TABLE workloads_event DISABLE TRIGGER ALL")
        for statement in statements:
            cursor.execute(statement)
            assert cursor.rowcount > 0, statement
        if connection.vendor == "postgresql":
            cursor.execute("ALTER TABLE workloads_event ENABLE TRIGGER ALL")


def admitted(changes: str) -> str:
    return f"UPDATE workloads_admitted SET {changes} WHERE id = :pk"


def row(changes: str) -> str:
    return f"UPDATE workloads_workload SET {changes} WHERE admitted_id = :pk"


def event(sequence: int, changes: str) -> str:
    return f"UPDATE workloads_event SET {changes} WHERE record = :pk AND sequence = {sequence}"


def attempt(changes: str, number: int = 1) -> str:
    return f"UPDATE workloads_attempt SET {changes} WHERE record = :pk AND number = {number}"


def checkpoint(changes: str) -> str:
    return f"UPDATE workloads_checkpoint SET {changes} WHERE record = :pk AND sequence = 2"


def result(changes: str) -> str:
    return f"UPDATE workloads_result SET {changes} WHERE record = :pk"


def dependency(changes: str, standing: str) -> str:
    return f"UPDATE workloads_dependency SET {changes} WHERE dependent_id = :pk AND standing = '{standing}'"


def test_all_lives_are_clean_in_pages_of_any_size() -> None:
    ids = live_all()
    assert len(ids) == len(LIVES)
    assert faults() == []
    assert faults(chunk=1) == []
    assert faults(chunk=4) == []


def test_all_lives_are_clean_once_the_pass_has_run() -> None:
    ids = live_all()
    report = authority.run_pass(now=ALL_LIVED)
    assert report.failed == {}
    assert ids["abandoned"] in report.recovered
    assert ids["unmeetable"] in report.unsatisfiable
    authority.claim_next(worker_id="w", capabilities={"a", "b"}, lease_ms=1_000, limit=100, now=ALL_LIVED)
    assert faults() == []


def test_nothing_is_clean() -> None:
    assert faults() == []


BREACHES: list[tuple[str, str, set[int | str], list[str]]] = [
    ("a link of the chain", "fresh", {1}, [event(2, "from_state = 'FAILED'")]),
    (
        "an illegal pair",
        "checkpointed",
        {1},
        [event(4, "to_state = 'CHECKPOINTED'"), event(5, "from_state = 'CHECKPOINTED'")],
    ),
    ("a way back that was no release", "released", {1}, [event(4, "evidence = '{}'")]),
    (
        "a release that says it is none",
        "released_out",
        {1},
        ["UPDATE workloads_event SET evidence = '{}' WHERE record = :pk AND to_state = 'DEAD_LETTER'"],
    ),
    ("the last event leads elsewhere", "fresh", {1}, [event(2, "to_state = 'CANCELLED'")]),
    ("the count of events", "fresh", {1}, [row("event_count = 9")]),
    ("no events", "fresh", {1}, ["DELETE FROM workloads_event WHERE record = :pk"]),
    ("a gap in the events", "succeeded", {2}, [event(5, "sequence = 50")]),
    ("a token twice", "exhausted", {2}, [attempt("fencing_token = 2")]),
    ("another claim than the last attempt's", "claimed", {3}, [row("claim_id = 'other'")]),
    ("another worker", "checkpointed", {3}, [row("worker_id = 'other'")]),
    ("another attempt", "cancelling", {3}, [row("attempt_id = 'other'")]),
    ("another claim's instant", "claimed", {3}, [attempt(f"claimed_at = {LATER}")]),
    ("another start", "checkpointed", {3}, [row(f"started_at = {LATER}")]),
    ("half a claim", "claimed", {3}, [row("worker_id = NULL")]),
    ("no claim where there should be one", "claimed", {3}, [row("claim_id = NULL")]),
    ("a claim where there should be none", "fresh", {3}, [row("claim_id = 'other'")]),
    ("what is left of a claim", "succeeded", {3}, [row(f"expires_at = {LATER}")]),
    ("an attempt that is open after the end", "lost", {4}, [attempt("status = 'RUNNING', ended_at = NULL")]),
    ("a held workload without an open attempt", "claimed", {4}, [attempt(f"status = 'TIMED_OUT', ended_at = {LATER}")]),
    (
        "a claimed attempt that has started",
        "claimed",
        {4},
        [attempt(f"status = 'RUNNING', started_at = {LATER}"), row(f"started_at = {LATER}")],
    ),
    ("a closed attempt without an end", "succeeded", {4}, [attempt("ended_at = NULL")]),
    ("an open attempt with an end", "claimed", {4}, [attempt(f"ended_at = {LATER}")]),
    ("half an outcome", "dead_lettered", {4}, [attempt("outcome_decision = NULL")]),
    ("another outcome", "dead_lettered", {4}, [attempt("outcome_decision = 'attempt_budget_exhausted'")]),
    ("a retry without an instant", "retried", {4}, [attempt("outcome_next_attempt_at = NULL")]),
    ("a success with a failure's kind", "succeeded", {4}, [attempt("failure_kind = 'odd'")]),
    ("an effect that there is not", "dead_lettered", {4}, [attempt("effect = 'maybe'")]),
    ("no result", "succeeded", {5}, ["DELETE FROM workloads_result WHERE record = :pk"]),
    ("another's result", "succeeded", {5}, [result("produced_by = 'other'")]),
    ("a result under another token", "rearmed", {5}, [result("fencing_token = 1")]),
    ("a result of another attempt", "persistent", {5}, [result("attempt_id = 'other'")]),
    ("a success by no attempt", "succeeded", {5}, [attempt("status = 'TIMED_OUT'")]),
    (
        "more attempts than the budget",
        "exhausted",
        {6},
        [admitted("retry_policy = REPLACE(retry_policy, '\"max_attempts\":2', '\"max_attempts\":1')")],
    ),
    ("a token that nobody was given", "fresh", {7}, [row("fencing_token = 9")]),
    ("a token behind the claims", "exhausted", {7}, [row("fencing_token = 1")]),
    ("a claim that nobody made", "fresh", {7}, [row("attempt_count = 1")]),
    (
        "a claim that left no attempt",
        "released",
        {7, "counters"},
        ["DELETE FROM workloads_attempt WHERE record = :pk AND number = 1"],
    ),
    ("no instant at which the clock is due", "claimed", {8}, [row("due_at = NULL")]),
    ("an instant that comes too late", "started", {8}, [row("due_at = '2041-05-07 07:08:09'")]),
    ("an instant where nothing is due", "succeeded", {8}, [row(f"due_at = {LATER}")]),
    ("in no queue", "fresh", {8}, [row("queued_lane_id = NULL")]),
    ("in the queue too early", "scheduled", {8}, [row(f"queued_lane_id = {ITS_LANE}, waiting_lane_id = NULL")]),
    ("in the queue and beside it", "fresh", {8}, [row(f"waiting_lane_id = {ITS_LANE}")]),
    ("in another queue", "fresh", {8}, [row("queued_lane_id = 987654321")]),
    ("in a queue when done", "succeeded", {8}, [row(f"queued_lane_id = {ITS_LANE}")]),
    ("in a queue when blocked", "blocked", {8}, [row(f"queued_lane_id = {ITS_LANE}")]),
    ("due at no instant", "fresh", {8}, [row("next_attempt_at = NULL")]),
    ("a lane of other work", "succeeded", {8}, [admitted("definition_id = 'other'")]),
    ("no lane", "succeeded", {8}, [admitted("lane_id = 987654321")]),
    ("a dependency that is not met", "blocked", {8}, [dependency("standing = 'met'", "waiting")]),
    ("a dependency that is not there", "blocked", {8}, [dependency("standing = 'waiting'", "missing")]),
    ("a dependency that is met", "unblocked", {8}, [dependency("standing = 'missing'", "met")]),
    (
        "dependencies that are not all met",
        "blocked",
        {8},
        [row(f"dependency_standing = 'met', queued_lane_id = {ITS_LANE}")],
    ),
    ("an unseen dependency that nobody looks at again", "unseen", {8}, [row("due_at = NULL")]),
    ("an unmeetable dependency that no pass will see", "unmeetable", {8}, [row("due_at = NULL")]),
    (
        "a lane's key that is not its own",
        "claimed",
        {8},
        [
            "UPDATE workloads_lane SET lane_key = '00000000000050008000000000000000' "
            "WHERE id = (SELECT lane_id FROM workloads_admitted WHERE id = :pk)"
        ],
    ),
    ("another identity", "fresh", {"identity"}, [admitted("requested_by = 'other'")]),
    ("another result's key", "succeeded", {"identity"}, [result("result_id = 'other'")]),
    ("another input", "fresh", {"hash"}, [admitted("input = '[]'")]),
    ("another input's hash", "fresh", {"hash"}, [admitted("input_hash = 'other'")]),
    ("an input in another form", "fresh", {"canonical"}, [admitted("input = '{\"a\": 1}'")]),
    ("another output", "succeeded", {"hash"}, [result("output = '[]'")]),
    ("never at rest", "succeeded", {"finished_at"}, [row("finished_at = NULL")]),
    ("at rest while it waits", "fresh", {"finished_at"}, [row(f"finished_at = {LATER}")]),
    ("a retry that nobody decided", "fresh", {"counters"}, [row("retry_count = 1")]),
    ("an operator's retry that nobody gave", "fresh", {"counters"}, [row("operator_retries = 1")]),
    ("a release that nobody made", "fresh", {"counters"}, [row("release_count = 1")]),
    (
        "more excused releases than releases",
        "released",
        {"counters"},
        [row("uncounted_releases = 3")],
    ),
    ("the count of checkpoints", "checkpointed", {"checkpoints"}, [row("checkpoint_count = 3")]),
    ("a gap in the checkpoints", "checkpointed", {"checkpoints"}, [checkpoint("sequence = 5")]),
    ("evidence that is no mapping", "fresh", {"evidence"}, [event(1, "evidence = '[]'")]),
    ("evidence that is no text", "fresh", {"evidence"}, [event(1, "evidence = '{\"a\":1}'")]),
    ("a policy that can't be read", "fresh", {"unreadable"}, [admitted("retry_policy = '{'")]),
    ("timeouts that make no sense", "fresh", {"unreadable"}, [admitted('timeouts = \'{"queue_ms":"soon"}\'')]),
    ("a set that can't be read", "fresh", {"unreadable"}, [admitted("capability_snapshot = '5'")]),
    ("a state that there is not", "fresh", {"unreadable"}, [row("state = 'LOST'")]),
    ("a standing that there is not", "fresh", {"unreadable"}, [row("dependency_standing = 'odd'")]),
    ("an attempt in no state", "claimed", {"unreadable"}, [attempt("status = 'ODD'")]),
    ("an input that can't be read", "fresh", {"unreadable"}, [admitted("input = '{'")]),
    ("an output that can't be read", "succeeded", {"unreadable"}, [result("output = 'NaN'")]),
    ("artifacts that can't be read", "succeeded", {"unreadable"}, [result("artifacts = ''")]),
    ("a checkpoint that can't be read", "checkpointed", {"unreadable"}, [checkpoint("state = '['")]),
    ("evidence that can't be read", "fresh", {"unreadable"}, [event(1, "evidence = '{'")]),
    ("no standing at all", "fresh", {"orphan"}, ["DELETE FROM workloads_workload WHERE admitted_id = :pk"]),
]


@pytest.mark.parametrize(
    ("name", "expected", "statements"), [b[1:] for b in BREACHES], ids=[b[0].replace(" ", "_") for b in BREACHES]
)
def test_a_breach_is_named_and_nothing_else(name: str, expected: set[int | str], statements: list[str]) -> None:
    LIVES["checkpointed"]("before")
    workload_id = LIVES[name]("it")
    LIVES["persistent"]("behind")
    assert faults() == []
    pk = str(authority.get(workload_id).pk)
    run(*(statement.replace(":pk", pk) for statement in statements))
    found = faults()
    assert {fault.invariant for fault in found} == expected, found
    assert {fault.workload_id for fault in found} == {workload_id}
    assert all(fault.message and "\n" not in fault.message for fault in found)
    assert faults(chunk=1) == found


def test_every_numbered_invariant_is_broken_above() -> None:
    assert set(range(1, 9)) <= {invariant for breach in BREACHES for invariant in breach[2]}


def test_two_open_attempts_are_a_breach() -> None:
    workload_id = lost("it")
    begin(workload_id, at(30_000))
    assert faults(now=at(40_000)) == []
    run(attempt("status = 'RUNNING', ended_at = NULL").replace(":pk", str(authority.get(workload_id).pk)))
    assert {fault.invariant for fault in faults(now=at(40_000))} == {4}


def test_a_result_at_the_wrong_workload_breaks_both() -> None:
    right, wrong = succeeded("right"), admit("wrong")
    run(f"UPDATE workloads_result SET record = {authority.get(wrong).pk}")
    found = {(fault.workload_id, fault.invariant) for fault in faults()}
    assert found == {(right, 5), (wrong, 5)}


def test_two_tenants_do_not_meet() -> None:
    succeeded("it")
    elsewhere = admit("other", tenant_id="u", dependencies=[Dependency(workload_id=id_of("it"))])
    assert faults() == []
    pk = authority.get(elsewhere).pk
    run(f"UPDATE workloads_dependency SET standing = 'met' WHERE dependent_id = {pk}")
    assert [fault.message for fault in faults()][:1] == [f"dependency {id_of('it')} is met, and should be missing"]


def test_a_pruned_dependency_counts_as_in_the_state_that_it_ended_in() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO workloads_tombstone (workload_id, tenant_id, application_id, state, pruned_at) "
            f"VALUES ('{id_of('gone')}', 't', 'app', 'SUCCEEDED', {EARLIER})"
        )
    met = after("met", ("gone", S.SUCCEEDED))
    after("unmeetable", ("gone", S.DEAD_LETTER))
    assert faults() == []
    run(f"UPDATE workloads_dependency SET standing = 'unmeetable' WHERE dependent_id = {authority.get(met).pk}")
    assert {(fault.workload_id, fault.invariant) for fault in faults()} == {(met, 8)}


def test_rows_of_no_workload_are_named() -> None:
    LIVES["checkpointed"]("saved")
    workload_id = succeeded("it")
    LIVES["blocked"]("waits")
    offset = Workload.objects.latest("pk").pk + 10
    pk = authority.get(workload_id).pk
    run(f"UPDATE workloads_event SET record = {offset + 1} WHERE record = {pk}")
    orphan = Fault(
        workload_id=f"record {offset + 1}", invariant="orphan", message="there are rows of no workload: event"
    )
    assert [fault for fault in faults() if fault.workload_id != workload_id] == [orphan]
    run(
        f"UPDATE workloads_event SET record = {pk} WHERE record = {offset + 1}",
        f"UPDATE workloads_attempt SET record = {offset + 2} WHERE record = {pk}",
        f"UPDATE workloads_result SET record = {offset + 3} WHERE record = {pk}",
        f"UPDATE workloads_checkpoint SET record = record + {offset + 4}",
        f"UPDATE workloads_dependency SET dependent_id = dependent_id + {offset + 200}",
    )
    kinds = {fault.message.split()[-1] for fault in faults(chunk=2) if fault.invariant == "orphan"}
    assert kinds == {"attempt", "result", "checkpoint", "dependency"}


def test_a_standing_that_nobody_admitted_is_named() -> None:
    pk = authority.get(succeeded("it")).pk
    admit("other")
    run(f"DELETE FROM workloads_admitted WHERE id = {pk}")
    for chunk in (1, 2, 500):
        assert [(f.workload_id, f.invariant) for f in faults(chunk=chunk)] == [(f"record {pk}", "orphan")]


def test_a_broken_row_hides_no_other() -> None:
    first, second, third = admit("a"), admit("b"), admit("c")
    for workload_id, change in ((first, "retry_policy = '{'"), (third, "input = '{'")):
        run(admitted(change).replace(":pk", str(authority.get(workload_id).pk)))
    run(row("fencing_token = 4").replace(":pk", str(authority.get(second).pk)))
    assert [(f.workload_id, f.invariant) for f in faults()] == [
        (first, "unreadable"),
        (second, 7),
        (third, "unreadable"),
    ]


def test_text_that_the_driver_refuses_is_a_fault_too() -> None:
    if connection.vendor != "sqlite":
        pytest.skip("The other databases store no such text.")
    ids = [admit(str(number)) for number in range(7)]
    pks = [authority.get(workload_id).pk for workload_id in ids]
    run(f"UPDATE workloads_admitted SET requested_by = CAST(x'ff' AS TEXT) WHERE id = {pks[3]}")
    run(f"UPDATE workloads_workload SET fencing_token = 9 WHERE admitted_id = {pks[5]}")
    assert [(f.workload_id, f.invariant) for f in faults()] == [(ids[3], "unreadable"), (ids[5], 7)]


def test_its_arguments_are_checked() -> None:
    for options in ({"chunk": 0}, {"chunk": True}, {"now": "today"}):
        with refused("WORKLOAD_INVALID"):
            verify(**options)  # type: ignore[arg-type]


def count_queries(call: Callable[[], Any]) -> int:
    with CaptureQueriesContext(connection) as captured:
        call()
    return len(captured)


def test_the_number_of_queries_grows_with_pages_and_not_with_rows() -> None:
    for number in range(2):
        live_all(f"{number} ")
    few = count_queries(lambda: faults(chunk=500))
    for number in range(2, 7):
        live_all(f"{number} ")
    assert faults() == []
    many = count_queries(lambda: faults(chunk=500))
    pages = Workload.objects.count() // 500 + 1
    # Each table is read 1,000 rows at a time, and a workload has about five events.
    assert many <= (few + 8) * pages
    assert few < 20


def test_memory_does_not_grow_with_what_is_stored() -> None:
    big = {"text": "x" * 100_000}

    def peak() -> int:
        faults(chunk=5)
        tracemalloc.start()
        faults(chunk=5)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    authority.admit_many([request(str(n), input=big | {"n": n}) for n in range(20)], now=at(0))
    before = peak()
    authority.admit_many([request(str(n), input=big | {"n": n}) for n in range(20, 100)], now=at(0))
    assert peak() < before * 1.5


@pytest.mark.django_db(transaction=True)
def test_no_false_alarm_while_others_write() -> None:
    stop = threading.Event()
    done: list[int] = []
    failed: list[BaseException] = []

    def live(name: str) -> None:
        turn = 0
        try:
            while not stop.is_set():
                key = f"{name} {turn}"
                child = request(f"{key} child", dependencies=[Dependency(workload_id=id_of(key))])
                first = [child, request(key)] if turn % 2 else [request(key), child]
                authority.admit_many(first)
                fence = claim(id_of(key), now=None).fence
                authority.start(fence)
                authority.checkpoint(fence, {"turn": turn})
                authority.heartbeat(fence, extend_ms=60_000)
                if turn % 3 == 0:
                    authority.fail(fence, kind="odd", error="e")
                    authority.rearm(id_of(key), actor="op", reason="again")
                    authority.start(claim(id_of(key), now=None).fence)
                else:
                    authority.complete(fence, result_id=key, output=turn)
                if turn % 5 == 0:
                    authority.run_pass()
                turn += 1
        except BaseException as error:
            failed.append(error)
        finally:
            done.append(turn)
            connections.close_all()

    writers = [threading.Thread(target=live, args=(f"writer {n}",)) for n in range(2)]
    for writer in writers:
        writer.start()
    found: list[Fault] = []
    rounds = 0
    until = time.monotonic() + 4
    try:
        while time.monotonic() < until and not failed:
            found += verify(chunk=7)
            rounds += 1
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    assert failed == []
    assert found == []
    assert list(verify()) == []
    assert rounds > 1 and sum(done) > 5


def test_the_command_says_that_all_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    admit("a", now=None)
    admit("b", now=None)
    call_command("workloads_verify")
    assert capsys.readouterr() == ("2 workload(s), no fault\n", "")
    call_command("workloads_verify", "--json", "--chunk", "1")
    assert json.loads(capsys.readouterr().out) == {"workloads": 2, "faulty": 0, "faults": 0}


def test_the_command_names_what_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    admit("a", now=None)
    workload_id = admit("b", now=None)
    run(row("fencing_token = 4, retry_count = 1").replace(":pk", str(authority.get(workload_id).pk)))
    with pytest.raises(SystemExit) as exit_:
        call_command("workloads_verify")
    assert exit_.value.code == 1
    told = capsys.readouterr()
    assert told.out.splitlines() == [
        f"{workload_id}  7  fencing_token is 4, the last attempt's 0, attempts are 0",
        f"{workload_id}  counters  retry_count is 1, its events tell of 0",
    ]
    assert told.err == "2 fault(s) in 1 of 2 workload(s)\n"
    with pytest.raises(SystemExit):
        call_command("workloads_verify", "--json")
    *lines, last = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["workload_id"], line["invariant"]) for line in lines] == [(workload_id, 7), (workload_id, "counters")]
    assert last == {"workloads": 2, "faulty": 1, "faults": 2}


@pytest.mark.parametrize("arguments", [["--chunk", "0"], ["--database", "nowhere"]])
def test_the_command_checks_its_arguments(arguments: list[str]) -> None:
    with pytest.raises(CommandError) as caught:
        call_command("workloads_verify", *arguments)
    assert caught.value.returncode == 2
