"""The pass: deadlines, lost leases, rows that fail, and limits. Section 8."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.db import connection

from tests.authority.builders import (
    CLAIMED_AT,
    EXPIRES_AT,
    HELD,
    S,
    admit,
    attempts,
    bring,
    claim,
    events,
    id_of,
    path,
    record,
    refused,
    request,
    running,
    spoil,
    state_of,
    take,
    text,
    unchanged,
    write_raw,
)
from tests.support import T0, at
from workloads import authority
from workloads.contract import Dependency, PassReport, RetryPolicy, Timeouts
from workloads.lifecycle import deadlines
from workloads.models import Workload

pytestmark = pytest.mark.django_db

MS = dt.timedelta(milliseconds=1)
US = dt.timedelta(microseconds=1)

# Each deadline, in each state in which it runs: the state, the timeout, and when it passes.
CASES = [
    (S.READY, "overall", at(900)),
    (S.READY, "queue", at(900)),
    (S.CLAIMED, "overall", at(1_900)),
    (S.CLAIMED, "claim", CLAIMED_AT + 900 * MS),
    (S.CLAIMED, "heartbeat", CLAIMED_AT + 900 * MS),
    (S.RUNNING, "overall", at(2_900)),
    (S.RUNNING, "execution", at(2_900)),
    (S.RUNNING, "heartbeat", CLAIMED_AT + 1_900 * MS),
    (S.CHECKPOINTED, "overall", at(3_900)),
    (S.CHECKPOINTED, "execution", at(3_900)),
    (S.CHECKPOINTED, "heartbeat", CLAIMED_AT + 2_900 * MS),
]
FROM = {"overall": T0, "queue": T0, "claim": CLAIMED_AT, "execution": at(2_000), "heartbeat": CLAIMED_AT}


@pytest.mark.parametrize(("state", "name", "instant"), CASES)
def test_each_deadline_passes_at_its_instant_never_early_and_once(state: str, name: str, instant: dt.datetime) -> None:
    workload_id, _ = bring(state, timeouts=Timeouts(**{f"{name}_ms": (instant - FROM[name]) // MS}))
    with unchanged(workload_id):
        assert authority.enforce_deadlines(now=instant - US) == []
    assert authority.enforce_deadlines(now=instant) == [workload_id]
    timed_out, then = events(workload_id)[-2:]
    assert (timed_out.from_state, timed_out.to_state, timed_out.actor) == (state, "TIMED_OUT", "authority.deadline")
    assert (timed_out.evidence["deadline"], timed_out.evidence["deadline_at"]) == (name, text(instant))
    assert then.evidence["decision"] == ("deadline_not_retryable" if name in ("overall", "queue") else "retry")
    assert authority.get(workload_id).last_failure == f"timeout: {name} deadline passed"
    with unchanged(workload_id):
        assert authority.enforce_deadlines(now=instant) == []


@pytest.mark.parametrize(
    ("state", "name"),
    [
        (S.READY, "claim_ms"),
        (S.READY, "execution_ms"),
        (S.READY, "heartbeat_ms"),
        (S.CLAIMED, "queue_ms"),
        (S.CLAIMED, "execution_ms"),
        (S.RUNNING, "queue_ms"),
        (S.RUNNING, "claim_ms"),
        *(
            (state, name)
            for state in (S.CANCELLATION_REQUESTED, S.DEAD_LETTER, S.TIMED_OUT, S.SUCCEEDED, S.CANCELLED)
            for name in ("overall_ms", "queue_ms", "claim_ms", "execution_ms", "heartbeat_ms")
        ),
    ],
)
def test_a_deadline_runs_in_its_own_states_alone(state: str, name: str) -> None:
    workload_id, _ = bring(state, timeouts=Timeouts(**{name: 4_500}))
    with unchanged(workload_id):
        assert authority.enforce_deadlines(now=at(600_000)) == []


def test_the_queue_deadline_runs_from_when_work_is_due() -> None:
    workload_id = admit(not_before=at(10_000), timeouts=Timeouts(queue_ms=1_000))
    assert authority.enforce_deadlines(now=at(10_999)) == []
    assert authority.enforce_deadlines(now=at(11_000)) == [workload_id]


def test_the_queue_deadline_runs_from_the_admission_of_work_that_was_due_before() -> None:
    workload_id = admit(not_before=at(-10_000), timeouts=Timeouts(queue_ms=1_000))
    assert authority.enforce_deadlines(now=at(999)) == []
    assert authority.enforce_deadlines(now=at(1_000)) == [workload_id]


@pytest.mark.parametrize("way", ["release", "retry", "rearm"])
def test_the_queue_deadline_runs_anew_from_each_way_back(way: str) -> None:
    workload_id = admit(timeouts=Timeouts(queue_ms=2_000), retry_policy=RetryPolicy(initial_delay_ms=5_000))
    fence = claim(workload_id).fence
    due = at(10_000)
    if way == "release":
        authority.release(fence, now=due)
    elif way == "retry":
        authority.fail(fence, kind="timeout", error="", now=at(5_000))
    else:
        authority.time_out(workload_id, actor="op", now=at(5_000))
        authority.rearm(workload_id, actor="op", reason="x", now=due)
    assert authority.get(workload_id).next_attempt_at == due
    assert authority.enforce_deadlines(now=at(11_999)) == []
    assert authority.enforce_deadlines(now=at(12_000)) == [workload_id]


def test_ready_works_time_out_leaves_its_last_attempt() -> None:
    workload_id = admit(timeouts=Timeouts(queue_ms=2_000))
    authority.release(claim(workload_id).fence, now=at(1_000))
    before = record(workload_id)["attempts"]
    assert authority.enforce_deadlines(now=at(3_000)) == [workload_id]
    assert record(workload_id)["attempts"] == before
    assert events(workload_id)[-2].evidence == {"deadline": "queue", "deadline_at": text(at(3_000))}


def test_no_timeouts_no_deadline() -> None:
    workload_id = admit()
    with unchanged(workload_id):
        assert authority.run_pass(now=at(10**12)) == PassReport(timed_out=[], recovered=[], unsatisfiable=[], failed={})


# Lost leases.


@pytest.mark.parametrize("state", HELD)
def test_work_is_taken_back_when_its_lease_is_over(state: str) -> None:
    workload_id, fence = bring(state)
    version = authority.get(workload_id).version
    with unchanged(workload_id):
        assert authority.recover_expired(now=EXPIRES_AT - US) == []
    assert authority.recover_expired(now=EXPIRES_AT) == [workload_id]
    recovering, then = events(workload_id)[-2:]
    assert (recovering.from_state, recovering.to_state, recovering.actor) == (state, "RECOVERING", "authority.recovery")
    assert recovering.evidence == {"claim_id": fence.claim_id, "worker_id": "w", "expires_at": text(EXPIRES_AT)}
    workload = authority.get(workload_id)
    (attempt,) = attempts(workload_id)
    error = f"worker_failure: lease over at {text(EXPIRES_AT)}"
    assert (attempt.status, attempt.ended_at, attempt.error) == ("WORKER_LOST", EXPIRES_AT, error)
    assert (workload.last_failure, workload.version) == (error, version + 1)
    assert (workload.claim_id, workload.worker_id, workload.expires_at) == (None, None, None)
    assert then.actor == "authority.recovery"
    if state == S.CANCELLATION_REQUESTED:
        assert (workload.state, workload.finished_at, then.evidence) == ("CANCELLED", EXPIRES_AT, {})
    else:
        due = EXPIRES_AT + dt.timedelta(seconds=1)
        assert (workload.state, workload.next_attempt_at, workload.retry_count) == ("READY", due, 1)
        assert then.evidence == {"decision": "retry", "next_attempt_at": text(due)}
    with unchanged(workload_id):
        assert authority.recover_expired(now=at(10**9)) == []


@pytest.mark.parametrize(
    ("policy", "decision"),
    [
        (RetryPolicy(retry_on={"timeout"}), "worker_failure_not_retryable"),
        (RetryPolicy(retry_on={"timeout"}, max_attempts=1), "worker_failure_not_retryable"),
        (RetryPolicy(max_attempts=1), "attempt_budget_exhausted"),
    ],
)
def test_what_is_not_retried_is_dead_lettered(policy: RetryPolicy, decision: str) -> None:
    workload_id, _ = bring(S.RUNNING, retry_policy=policy)
    authority.recover_expired(now=EXPIRES_AT)
    last = events(workload_id)[-1]
    assert (last.from_state, last.to_state, last.evidence) == ("RECOVERING", "DEAD_LETTER", {"decision": decision})
    assert authority.get(workload_id).next_attempt_at is None


def test_a_pass_that_finds_a_heartbeaten_lease_looks_again_when_it_will_be_over() -> None:
    workload_id, fence = bring(S.RUNNING)
    authority.heartbeat(fence, extend_ms=900_000, now=at(5_000))
    assert authority.get(workload_id).due_at == EXPIRES_AT
    before = record(workload_id)
    assert authority.run_pass(now=EXPIRES_AT).recovered == []
    after = record(workload_id)
    assert after["workload"]["due_at"] == at(905_000)
    assert {k: v for k, v in after["workload"].items() if k != "due_at"} == {
        k: v for k, v in before["workload"].items() if k != "due_at"
    }
    assert after["events"] == before["events"]
    assert authority.recover_expired(now=at(905_000)) == [workload_id]


@pytest.mark.parametrize("state", HELD)
def test_work_that_is_lost_is_found_without_any_row_of_its_worker(state: str) -> None:
    workload_id, _ = bring(state)
    assert [f.name for f in Workload._meta.get_fields() if f.is_relation and "worker" in f.name] == []
    assert authority.run_pass(now=EXPIRES_AT).recovered == [workload_id]


# A whole pass.


def one_of_each(suffix: str = "") -> tuple[str, str, str]:
    """Leave one workload past a deadline, one whose worker is lost, and one that can't be satisfied."""
    late = admit(f"late{suffix}", timeouts=Timeouts(queue_ms=10))
    lost = admit(f"lost{suffix}")
    claim(lost, lease_ms=10)
    gone = admit(f"gone{suffix}")
    hopeless = admit(f"hopeless{suffix}", dependencies=[Dependency(workload_id=gone)])
    authority.cancel(gone, actor="op", now=at(1))
    return late, lost, hopeless


def test_a_pass_does_deadlines_then_recovery_then_dependencies() -> None:
    late, lost, hopeless = one_of_each()
    both = admit("both", timeouts=Timeouts(execution_ms=5))
    authority.start(claim(both, lease_ms=10).fence, now=CLAIMED_AT)
    report = authority.run_pass(now=at(5_000))
    assert (set(report.timed_out), report.recovered, report.unsatisfiable) == ({late, both}, [lost], [hopeless])
    assert report.failed == {}
    assert authority.run_pass(now=at(5_000)) == PassReport(timed_out=[], recovered=[], unsatisfiable=[], failed={})


def test_each_function_alone_does_its_own() -> None:
    late, lost, hopeless = one_of_each()
    assert authority.enforce_deadlines(now=at(5_000)) == [late]
    assert state_of(lost) == "CLAIMED"
    assert authority.recover_expired(now=at(5_000)) == [lost]
    assert state_of(hopeless) == "READY"
    assert authority.dead_letter_unsatisfiable(now=at(5_000)) == [hopeless]


@pytest.mark.parametrize("limit", [1, 2])
def test_a_limit_is_for_each(limit: int) -> None:
    for n in range(3):
        one_of_each(str(n))
    seen: list[str] = []
    while True:
        report = authority.run_pass(now=at(5_000), limit=limit)
        found = (report.timed_out, report.recovered, report.unsatisfiable)
        if not any(found):
            break
        assert all(len(ids) <= limit for ids in found)
        assert len(seen) > 0 or all(len(ids) == limit for ids in found)
        seen += [workload_id for ids in found for workload_id in ids]
    assert len(seen) == len(set(seen)) == 9


@pytest.mark.parametrize("verb", ["enforce_deadlines", "recover_expired", "dead_letter_unsatisfiable", "run_pass"])
@pytest.mark.parametrize(
    ("field", "bad"),
    [("limit", 0), ("limit", -1), ("limit", True), ("limit", 1.5), ("now", dt.datetime(2041, 1, 1))],
)
def test_arguments_come_first(verb: str, field: str, bad: Any, django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(0), refused("WORKLOAD_INVALID") as caught:
        getattr(authority, verb)(**{field: bad})
    assert caught.value.details is not None
    assert caught.value.details["field"] == field


def test_deadlines_leave_alone_what_has_none(django_assert_num_queries: Any) -> None:
    """A lease that is over is for recovery: the deadlines' run does not so much as lock it."""
    running("lease alone")
    with django_assert_num_queries(1):
        assert authority.enforce_deadlines(now=at(10**8)) == []
    late = admit("late", timeouts=Timeouts(overall_ms=1))
    assert authority.enforce_deadlines(now=at(10**8)) == [late]
    assert authority.recover_expired(now=at(10**8)) == [id_of("lease alone")]


def test_a_limit_may_be_as_large_as_one_likes() -> None:
    late, _, _ = one_of_each()
    assert authority.enforce_deadlines(now=at(5_000), limit=10**40) == [late]


def test_more_than_a_batch_is_decided_each_once() -> None:
    authority.admit_many([request(f"k{n}", timeouts=Timeouts(queue_ms=10)) for n in range(250)], now=T0)
    decided = authority.enforce_deadlines(now=at(10))
    assert len(decided) == len(set(decided)) == 250
    assert Workload.objects.filter(state="DEAD_LETTER").count() == 250
    assert authority.enforce_deadlines(now=at(10)) == []


def test_without_now_it_is_the_databases_clock() -> None:
    past = dt.datetime.now(dt.UTC) - dt.timedelta(minutes=1)
    late = admit("late", now=past, timeouts=Timeouts(queue_ms=1))
    admit("early", now=past, timeouts=Timeouts(queue_ms=86_400_000))
    assert authority.run_pass().timed_out == [late]


# Records of contract version 1 keep the contract that they were admitted under.


def test_older_records_have_no_deadlines() -> None:
    everything = Timeouts(overall_ms=10, queue_ms=10, claim_ms=10, execution_ms=10, heartbeat_ms=10)
    ready = admit("ready", timeouts=everything)
    held, fence = bring(S.READY, "held", timeouts=everything)
    for workload_id in (ready, held):
        write_raw("admitted", workload_id, contract_version=1)
    assert authority.enforce_deadlines(now=at(5_000)) == []
    assert [state_of(ready), state_of(held)] == ["READY", "READY"]
    given = claim(held, now=at(6_000))
    authority.start(given.fence, now=at(7_000))
    authority.heartbeat(given.fence, extend_ms=5, now=at(8_000))
    authority.checkpoint(given.fence, 1, now=at(9_000))
    assert authority.enforce_deadlines(now=at(10_000)) == []
    authority.complete(given.fence, result_id="r", output=1, now=at(10_000))
    assert fence.fencing_token == 0


def test_exempt_rows_hide_nothing_behind_them_and_are_not_looked_at_again() -> None:
    old = [request(f"old{n}", timeouts=Timeouts(queue_ms=1)) for n in range(120)]
    exempt = [answer.workload.workload_id for answer in authority.admit_many(old, now=T0)]  # type: ignore[union-attr]
    with connection.cursor() as cursor:
        cursor.execute("UPDATE workloads_admitted SET contract_version = 1")
    due = admit("due", timeouts=Timeouts(queue_ms=2))
    assert authority.enforce_deadlines(now=at(10), limit=5) == [due]
    assert set(Workload.objects.filter(workload_id__in=exempt).values_list("due_at", flat=True)) == {None}
    assert len(take(now=at(10), limit=200)) == 120


def test_the_lease_of_an_older_record_ends() -> None:
    workload_id, _ = bring(S.RUNNING, timeouts=Timeouts(execution_ms=1_000_000_000))
    write_raw("admitted", workload_id, contract_version=1)
    assert authority.recover_expired(now=EXPIRES_AT) == [workload_id]


# Rows whose decision fails.


def test_in_each_phase_a_row_that_fails_is_named_and_stops_no_other() -> None:
    bad = one_of_each("bad")
    good = one_of_each("good")
    before = [record_raw(workload_id) for workload_id in bad]
    for workload_id in bad:
        spoil(workload_id)
    report = authority.run_pass(now=at(5_000))
    late, lost, hopeless = good
    assert (report.timed_out, report.recovered, report.unsatisfiable) == ([late], [lost], [hopeless])
    assert set(report.failed) == set(bad)
    assert all(isinstance(message, str) and message for message in report.failed.values())
    assert [record_raw(workload_id) for workload_id in bad] == before


def record_raw(workload_id: str) -> Any:
    return (
        Workload.objects.filter(workload_id=workload_id)
        .values_list("state", "version", "updated_at", "event_count", "claim_id")
        .get()
    )


@pytest.mark.parametrize("limit", [1, 2])
def test_a_row_that_fails_does_not_use_up_the_limit(limit: int) -> None:
    for n in range(3):
        spoil(admit(f"bad{n}", timeouts=Timeouts(queue_ms=1)))
    good = [admit(f"good{n}", timeouts=Timeouts(queue_ms=5 + n)) for n in range(2)]
    report = authority.run_pass(now=at(5_000), limit=limit)
    assert report.timed_out == good[:limit]
    assert len(report.failed) == 3


def test_a_function_alone_decides_the_others_and_then_names_the_row() -> None:
    spoiled = admit("bad", timeouts=Timeouts(queue_ms=1))
    spoil(spoiled)
    good = admit("good", timeouts=Timeouts(queue_ms=1))
    with pytest.raises(RuntimeError, match=spoiled):
        authority.enforce_deadlines(now=at(5_000))
    assert path(good)[-1] == "DEAD_LETTER"


def test_a_rule_that_raises_is_named_too(monkeypatch: pytest.MonkeyPatch) -> None:
    late, other = admit("late", timeouts=Timeouts(queue_ms=1)), admit("other", timeouts=Timeouts(queue_ms=1))
    enforce = deadlines.enforce

    def broken(snapshot: Any, now: Any, **more: Any) -> Any:
        if snapshot.workload_id == late:
            raise ZeroDivisionError("in a rule")
        return enforce(snapshot, now, **more)

    monkeypatch.setattr(deadlines, "enforce", broken)
    report = authority.run_pass(now=at(5_000))
    assert report.timed_out == [other]
    assert list(report.failed) == [late]
    assert "in a rule" in report.failed[late]
    assert state_of(late) == "READY"


def test_rows_that_fail_hide_nothing_behind_them() -> None:
    authority.admit_many([request(f"bad{n}", timeouts=Timeouts(queue_ms=1)) for n in range(105)], now=T0)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE workloads_admitted SET retry_policy = '{'")
    good = admit("good", timeouts=Timeouts(queue_ms=1))
    report = authority.run_pass(now=at(5_000))
    assert report.timed_out == [good]
    assert len(report.failed) == 105
