"""The fence, carried by every worker call, and deadlines before it. Sections 5 and 8."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from tests.authority.builders import (
    CLAIMED,
    CLAIMED_AT,
    EXPIRES_AT,
    HELD,
    STARTED_AT,
    WORKER_CALLS,
    S,
    admit,
    attempts,
    bring,
    claim,
    events,
    path,
    refused,
    running,
    state_of,
    text,
    unchanged,
)
from tests.support import T0, at
from workloads import authority
from workloads.contract import CompletionReport, Fence, RetryPolicy, Timeouts
from workloads.errors import WorkloadError

pytestmark = pytest.mark.django_db

Call = Callable[[Fence, Any], Any]

US = dt.timedelta(microseconds=1)

# Where each call is let through, so that what refuses it can be nothing but the fence.
WHERE = {
    "start": S.CLAIMED,
    "confirm_cancel": S.CANCELLATION_REQUESTED,
}
CALLS = [pytest.param(call, WHERE.get(name, S.RUNNING), id=name) for name, call in WORKER_CALLS.items()]
MAY_BE_LATE = ("complete", "fail", "confirm_cancel")


@pytest.mark.parametrize(("call", "state"), CALLS)
def test_without_a_current_claim_no_fence_holds(call: Call, state: str) -> None:
    for key, rest in enumerate((S.READY, S.DEAD_LETTER, S.TIMED_OUT, S.CANCELLED, S.SUCCEEDED)):
        workload_id, fence = bring(rest, str(key))
        with unchanged(workload_id), refused("WORKLOAD_CLAIM_INVALID"):
            call(replace(fence, fencing_token=fence.fencing_token - 1), at(5_000))


@pytest.mark.parametrize(("call", "state"), CALLS)
def test_an_older_token_is_stale_whatever_else_is_wrong(call: Call, state: str) -> None:
    workload_id, fence = bring(state)
    with unchanged(workload_id):
        for old in (
            replace(fence, fencing_token=0),
            replace(fence, fencing_token=-(2**80)),
            replace(fence, fencing_token=0, claim_id="other", worker_id="other"),
        ):
            with refused("WORKLOAD_STALE_FENCE"):
                call(old, EXPIRES_AT)


@pytest.mark.parametrize(("call", "state"), CALLS)
def test_any_other_mismatch_is_no_claim(call: Call, state: str) -> None:
    workload_id, fence = bring(state)
    with unchanged(workload_id):
        for wrong in (
            replace(fence, fencing_token=2),
            replace(fence, fencing_token=2**80),
            replace(fence, claim_id=fence.claim_id.upper() + "x"),
            replace(fence, claim_id=""),
            replace(fence, worker_id="W"),
            replace(fence, worker_id="w "),
            replace(fence, worker_id=""),
        ):
            with refused("WORKLOAD_CLAIM_INVALID"):
                call(wrong, EXPIRES_AT)


@pytest.mark.parametrize(("call", "state"), CALLS)
@pytest.mark.parametrize("odd", ["a\0b", "\udc00", "é" * 500, "x" * 10_000])
def test_values_of_a_fence_are_compared_and_not_checked(call: Call, state: str, odd: str) -> None:
    workload_id, fence = bring(state)
    with unchanged(workload_id):
        with refused("WORKLOAD_CLAIM_INVALID"):
            call(replace(fence, claim_id=odd), at(5_000))
        with refused("WORKLOAD_CLAIM_INVALID"):
            call(replace(fence, worker_id=odd), at(5_000))
        with refused("WORKLOAD_NOT_FOUND"):
            call(replace(fence, workload_id=odd), at(5_000))


@pytest.mark.parametrize(("call", "state"), CALLS)
def test_a_lease_holds_until_just_before_its_end(call: Call, state: str) -> None:
    workload_id, fence = bring(state)
    with unchanged(workload_id), refused("WORKLOAD_LEASE_EXPIRED"):
        call(fence, EXPIRES_AT)
    call(fence, EXPIRES_AT - US)


@pytest.mark.parametrize(("call", "state"), CALLS)
def test_its_types_are_checked_first(call: Call, state: str, django_assert_num_queries: Any) -> None:
    fence = Fence(workload_id="x", claim_id="c", worker_id="w", fencing_token=1)
    wrong: list[tuple[str, Any]] = [
        ("fence", None),
        ("fence", {"workload_id": "x"}),
        ("fence.fencing_token", replace(fence, fencing_token="1")),  # type: ignore[arg-type]
        ("fence.fencing_token", replace(fence, fencing_token=True)),
        ("fence.fencing_token", replace(fence, fencing_token=1.0)),  # type: ignore[arg-type]
        ("fence.claim_id", replace(fence, claim_id=None)),  # type: ignore[arg-type]
        ("fence.worker_id", replace(fence, worker_id=b"w")),  # type: ignore[arg-type]
        ("fence.workload_id", replace(fence, workload_id=7)),  # type: ignore[arg-type]
    ]
    for field, bad in wrong:
        with django_assert_num_queries(0), refused("WORKLOAD_INVALID") as caught:
            call(bad, at(1))
        assert caught.value.details is not None
        assert caught.value.details["field"] == field


@pytest.mark.parametrize(("call", "state"), CALLS)
def test_a_naive_now_is_refused_and_nothing_touched(call: Call, state: str, django_assert_num_queries: Any) -> None:
    fence = Fence(workload_id="x", claim_id="c", worker_id="w", fencing_token=1)
    for bad in (T0.replace(tzinfo=None), "2041-05-06", 5):
        with django_assert_num_queries(0), refused("WORKLOAD_INVALID") as caught:
            call(fence, bad)
        assert caught.value.details is not None
        assert caught.value.details["field"] == "now"


@pytest.mark.parametrize(("call", "state"), CALLS)
def test_a_worker_that_was_taken_for_lost_is_refused_and_the_next_untouched(call: Call, state: str) -> None:
    workload_id, first = bring(state if state != S.CANCELLATION_REQUESTED else S.RUNNING)
    authority.recover_expired(now=EXPIRES_AT)
    second = claim(workload_id, now=at(700_000), worker_id="w")
    authority.start(second.fence, now=at(700_000))
    with unchanged(workload_id), refused("WORKLOAD_STALE_FENCE"):
        call(first, at(700_001))


@pytest.mark.parametrize(("call", "state"), CALLS)
def test_no_outcome_depends_on_when_a_pass_last_ran(call: Call, state: str) -> None:
    workload_id, fence = bring(state)
    with refused("WORKLOAD_LEASE_EXPIRED"):
        call(fence, EXPIRES_AT)
    assert authority.recover_expired(now=EXPIRES_AT) == [workload_id]
    with refused("WORKLOAD_CLAIM_INVALID"):
        call(fence, EXPIRES_AT)


# Reports that come late.


@pytest.mark.parametrize("name", WORKER_CALLS)
def test_a_site_may_accept_late_reports(name: str, limits: Any) -> None:
    limits(ACCEPT_LATE_REPORTS=True)
    workload_id, fence = bring(WHERE.get(name, S.RUNNING))
    if name not in MAY_BE_LATE:
        with unchanged(workload_id), refused("WORKLOAD_LEASE_EXPIRED"):
            WORKER_CALLS[name](fence, EXPIRES_AT)
        return
    WORKER_CALLS[name](fence, EXPIRES_AT)
    late = [e for e in events(workload_id) if "late" in e.evidence]
    expected = {"complete": "SUCCEEDED", "fail": "FAILED", "confirm_cancel": "CANCELLED"}[name]
    assert [(e.to_state, e.evidence["late"]) for e in late] == [(expected, "true")]


@pytest.mark.parametrize("name", MAY_BE_LATE)
def test_reports_in_time_are_not_called_late(name: str, limits: Any) -> None:
    limits(ACCEPT_LATE_REPORTS=True)
    workload_id, fence = bring(WHERE.get(name, S.RUNNING))
    WORKER_CALLS[name](fence, EXPIRES_AT - US)
    assert all("late" not in e.evidence for e in events(workload_id))


def test_late_reports_are_accepted_while_their_token_is_the_current_one_only(limits: Any) -> None:
    limits(ACCEPT_LATE_REPORTS=True)
    workload_id, fence = bring(S.RUNNING)
    with refused("WORKLOAD_CLAIM_INVALID"):
        authority.complete(replace(fence, worker_id="x"), result_id="r", output=1, now=EXPIRES_AT)
    authority.recover_expired(now=EXPIRES_AT)
    with unchanged(workload_id), refused("WORKLOAD_CLAIM_INVALID"):
        authority.complete(fence, result_id="r", output=1, now=EXPIRES_AT)


def test_deadlines_refuse_late_reports_that_would_be_accepted(limits: Any) -> None:
    limits(ACCEPT_LATE_REPORTS=True)
    fence = running(timeouts=Timeouts(execution_ms=1_000))
    with refused("WORKLOAD_TIMED_OUT"):
        authority.complete(fence, result_id="r", output=1, now=EXPIRES_AT)


# Deadlines come before the fence, are recorded, and refuse.

DEADLINES = [
    (S.CLAIMED, "overall", {"overall_ms": 5_000}, at(5_000)),
    (S.CLAIMED, "claim", {"claim_ms": 5_000}, at(6_000)),
    (S.CLAIMED, "heartbeat", {"heartbeat_ms": 5_000}, at(6_000)),
    (S.RUNNING, "overall", {"overall_ms": 5_000}, at(5_000)),
    (S.RUNNING, "execution", {"execution_ms": 5_000}, at(7_000)),
    (S.CHECKPOINTED, "execution", {"execution_ms": 5_000}, at(7_000)),
    (S.CHECKPOINTED, "heartbeat", {"heartbeat_ms": 5_000}, at(6_000)),
]
ENFORCING = [name for name in WORKER_CALLS if name != "confirm_cancel"]


@pytest.mark.parametrize("name", ENFORCING)
@pytest.mark.parametrize(("state", "deadline", "timeouts", "instant"), DEADLINES)
def test_a_call_after_a_deadline_records_it_and_is_refused(
    name: str, state: str, deadline: str, timeouts: dict[str, int], instant: dt.datetime
) -> None:
    workload_id, fence = bring(state, timeouts=Timeouts(**timeouts))
    with refused("WORKLOAD_TIMED_OUT", {"deadline": deadline, "deadline_at": text(instant)}):
        WORKER_CALLS[name](fence, instant)
    workload = authority.get(workload_id)
    timed_out, then = events(workload_id)[-2:]
    assert (timed_out.from_state, timed_out.to_state) == (state, "TIMED_OUT")
    assert (timed_out.actor, timed_out.at) == ("authority.deadline", instant)
    assert timed_out.evidence == {
        "deadline": deadline,
        "deadline_at": text(instant),
        "claim_id": fence.claim_id,
        "worker_id": "w",
    }
    (attempt,) = attempts(workload_id)
    error = f"timeout: {deadline} deadline passed"
    assert (attempt.status, attempt.ended_at, attempt.error) == ("TIMED_OUT", instant, error)
    assert workload.last_failure == error
    assert (workload.claim_id, workload.worker_id, workload.expires_at) == (None, None, None)
    assert workload.version == {S.CLAIMED: 3, S.RUNNING: 4, S.CHECKPOINTED: 5}[state]
    if deadline == "overall":
        assert (then.to_state, then.evidence) == ("DEAD_LETTER", {"decision": "deadline_not_retryable"})
    else:
        assert then.to_state == "READY"
        assert then.evidence == {"decision": "retry", "next_attempt_at": text(instant + dt.timedelta(seconds=1))}


@pytest.mark.parametrize("name", ENFORCING)
def test_just_before_a_deadline_nothing_has_passed(name: str) -> None:
    _, fence = bring(WHERE.get(name, S.RUNNING), timeouts=Timeouts(overall_ms=5_000, heartbeat_ms=4_000))
    WORKER_CALLS[name](fence, at(5_000) - US)


@pytest.mark.parametrize("name", ENFORCING)
def test_a_deadline_comes_before_a_wrong_fence(name: str) -> None:
    workload_id, fence = bring(S.RUNNING, timeouts=Timeouts(execution_ms=1_000))
    with refused("WORKLOAD_TIMED_OUT"):
        WORKER_CALLS[name](replace(fence, fencing_token=0), at(3_000))
    assert path(workload_id)[-2:] == ["TIMED_OUT", "READY"]


@pytest.mark.parametrize("name", WORKER_CALLS)
def test_in_cancellation_requested_no_deadline_runs(name: str) -> None:
    everything = Timeouts(overall_ms=5_000, queue_ms=5_000, claim_ms=5_000, execution_ms=5_000, heartbeat_ms=5_000)
    workload_id, fence = bring(S.CANCELLATION_REQUESTED, timeouts=everything)
    # Refused or not, as the state has it.
    with suppress(WorkloadError):
        WORKER_CALLS[name](fence, at(100_000))
    assert "TIMED_OUT" not in path(workload_id)


@pytest.mark.parametrize(
    ("timeouts", "named"),
    [
        ({"overall_ms": 9_000, "execution_ms": 1, "heartbeat_ms": 1}, "overall"),
        ({"execution_ms": 5_000, "heartbeat_ms": 2_000}, "execution"),
        ({"claim_ms": 500, "heartbeat_ms": 2_000}, "heartbeat"),
    ],
)
def test_of_several_deadlines_the_first_in_order_is_named(timeouts: dict[str, int], named: str) -> None:
    workload_id = admit(timeouts=Timeouts(**{k: v for k, v in timeouts.items() if k != "claim_ms"}))
    given = claim(workload_id)
    authority.start(given.fence, now=CLAIMED_AT)
    with refused("WORKLOAD_TIMED_OUT") as caught:
        authority.start(given.fence, now=at(10_000))
    assert caught.value.details is not None
    assert caught.value.details["deadline"] == named


def test_claim_comes_before_heartbeat() -> None:
    workload_id = admit(timeouts=Timeouts(claim_ms=2_000, heartbeat_ms=1_000))
    given = claim(workload_id)
    with refused("WORKLOAD_TIMED_OUT", {"deadline": "claim", "deadline_at": text(at(3_000))}):
        authority.start(given.fence, now=at(3_000))


@pytest.mark.parametrize(
    ("policy", "decision"),
    [
        (RetryPolicy(retry_on={"worker_failure"}), "timeout_not_retryable"),
        (RetryPolicy(max_attempts=1), "attempt_budget_exhausted"),
        (RetryPolicy(max_attempts=1, retry_on=()), "timeout_not_retryable"),
    ],
)
def test_what_is_not_retried_after_a_deadline_is_dead_lettered(policy: RetryPolicy, decision: str) -> None:
    fence = running(timeouts=Timeouts(execution_ms=1_000), retry_policy=policy)
    with refused("WORKLOAD_TIMED_OUT"):
        authority.heartbeat(fence, extend_ms=1, now=at(3_000))
    last = events(fence.workload_id)[-1]
    assert (last.to_state, last.evidence, last.actor) == ("DEAD_LETTER", {"decision": decision}, "authority.deadline")
    workload = authority.get(fence.workload_id)
    assert (workload.finished_at, workload.next_attempt_at) == (at(3_000), None)


def test_a_heartbeat_moves_the_heartbeat_deadline_alone() -> None:
    fence = running(timeouts=Timeouts(heartbeat_ms=5_000, execution_ms=20_000))
    for ms in range(5_000, 22_000, 4_000):
        authority.heartbeat(fence, extend_ms=1, now=at(ms))
    with refused("WORKLOAD_TIMED_OUT", {"deadline": "execution", "deadline_at": text(at(22_000))}):
        authority.heartbeat(fence, extend_ms=1, now=at(22_000))


def test_a_lease_that_is_heartbeaten_is_never_taken() -> None:
    fence = running(lease_ms=60_000)
    for ms in range(30_000, 400_000, 30_000):
        authority.heartbeat(fence, extend_ms=60_000, now=at(ms))
        assert authority.run_pass(now=at(ms)).recovered == []
    authority.complete(fence, result_id="r", output=1, now=at(400_000))


# A batch.


def test_items_of_a_batch_are_judged_in_order_and_none_depends_on_another() -> None:
    first, second = running("a"), running("b", timeouts=Timeouts(execution_ms=1_000))
    answers = authority.heartbeat_many(
        [
            (first, 700_000),
            (second, 5),
            (second, 5),
            (replace(first, fencing_token=0), 5),
            (first, 0),
            (replace(first, workload_id="nothing"), 5),
            None,  # type: ignore[list-item]
            (first, 5),
        ],
        now=at(3_000),
    )
    codes = [getattr(answer, "code", "fine") for answer in answers]
    assert codes == [
        "fine",
        "WORKLOAD_TIMED_OUT",
        "WORKLOAD_CLAIM_INVALID",
        "WORKLOAD_STALE_FENCE",
        "WORKLOAD_INVALID",
        "WORKLOAD_NOT_FOUND",
        "WORKLOAD_INVALID",
        "fine",
    ]
    assert answers[-1].expires_at == at(703_000)  # type: ignore[union-attr]
    assert authority.get(first.workload_id).version == 5
    assert state_of(second.workload_id) == "READY"


def test_completions_of_a_batch_are_judged_each_on_the_result_of_the_one_before() -> None:
    first, second = running("a"), running("b")
    answers = authority.complete_many(
        [
            CompletionReport(fence=first, result_id="r1", output=1),
            CompletionReport(fence=first, result_id="r1", output=1),
            CompletionReport(fence=first, result_id="r1", output=2),
            CompletionReport(fence=first, result_id="r2", output=1),
            CompletionReport(fence=second, result_id="r1", output=1),
            CompletionReport(fence=replace(second, worker_id="x"), result_id="r3", output=1),
            CompletionReport(fence=second, result_id="", output=1),
            None,  # type: ignore[list-item]
            CompletionReport(fence=second, result_id="r3", output=1),
        ],
        now=at(3_000),
    )
    assert [getattr(answer, "code", "fine") for answer in answers] == [
        "fine",
        "fine",
        "WORKLOAD_RESULT_CONFLICT",
        "WORKLOAD_CLAIM_INVALID",
        "WORKLOAD_RESULT_DUPLICATE",
        "WORKLOAD_CLAIM_INVALID",
        "WORKLOAD_INVALID",
        "WORKLOAD_INVALID",
        "fine",
    ]
    assert answers[0] == answers[1]
    assert authority.get(first.workload_id).version == 4


@pytest.mark.parametrize("call", [authority.heartbeat_many, authority.complete_many])
def test_a_batch_may_be_empty_and_must_be_a_list(call: Any) -> None:
    assert call([]) == []
    assert call(iter(())) == []
    for wrong in (None, 5, "x"):
        with refused("WORKLOAD_INVALID"):
            call(wrong)
    with refused("WORKLOAD_INVALID"):
        call([], now=T0.replace(tzinfo=None))


def test_the_states_that_the_calls_are_made_in_are_the_held_ones() -> None:
    assert set(CLAIMED) < set(HELD)
    assert STARTED_AT < EXPIRES_AT
