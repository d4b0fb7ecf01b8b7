"""Failures: what is recorded of an attempt that failed, and what follows in the same commit. Section 6."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any

import pytest

from tests.authority.builders import (
    CLAIMED,
    ENDED_AT,
    EXPIRES_AT,
    S,
    admit,
    attempts,
    bring,
    claim,
    events,
    id_of,
    path,
    refused,
    running,
    state_of,
    text,
    unchanged,
    write_raw,
)
from tests.support import at
from workloads import authority
from workloads.contract import (
    Backoff,
    Effect,
    FailureOutcome,
    Fence,
    ResultRecord,
    RetryPolicy,
    Timeouts,
)

pytestmark = pytest.mark.django_db

KEY = "AKIA" + "Q" * 16


def complete(fence: Fence, result_id: str = "r", output: Any = 1, *, now: Any = ENDED_AT, **more: Any) -> ResultRecord:
    return authority.complete(fence, result_id=result_id, output=output, now=now, **more)


def fail(
    fence: Fence, kind: str = "timeout", error: str = "slow", *, now: Any = ENDED_AT, **more: Any
) -> FailureOutcome:
    return authority.fail(fence, kind=kind, error=error, now=now, **more)


@pytest.mark.parametrize("state", CLAIMED)
def test_a_failure_that_is_retried(state: str) -> None:
    workload_id, fence = bring(state)
    before = authority.get(workload_id)
    outcome = fail(fence, effect="unknown" if state == S.CHECKPOINTED else None)
    due = ENDED_AT + dt.timedelta(seconds=1)
    assert outcome == FailureOutcome(state=S.READY, decision="retry", next_attempt_at=due)
    workload = authority.get(workload_id)
    assert (workload.state, workload.next_attempt_at, workload.version) == ("READY", due, before.version + 1)
    assert (workload.retry_count, workload.last_failure, workload.finished_at) == (1, "timeout: slow", None)
    assert (workload.claim_id, workload.worker_id, workload.expires_at) == (None, None, None)
    failed, then = events(workload_id)[-2:]
    (attempt,) = attempts(workload_id)
    assert (failed.from_state, failed.to_state, failed.actor) == (state, "FAILED", "w")
    judged = {S.CLAIMED: "none", S.RUNNING: None, S.CHECKPOINTED: "unknown"}[S(state)]
    said = {"attempt_id": attempt.attempt_id, "failure_kind": "timeout"}
    assert failed.evidence == said | ({"effect": judged} if judged else {})
    assert (then.to_state, then.actor) == ("READY", "authority.retry")
    assert then.evidence == {"decision": "retry", "next_attempt_at": text(due)}
    assert (attempt.status, attempt.ended_at, attempt.error) == ("FAILED", ENDED_AT, "slow")
    assert (attempt.failure_kind, attempt.effect) == ("timeout", judged)
    assert (attempt.outcome_state, attempt.outcome_decision) == ("READY", "retry")
    assert attempt.outcome_next_attempt_at == due


@pytest.mark.parametrize("state", [S.CANCELLATION_REQUESTED])
def test_work_whose_cancellation_was_requested_does_not_fail(state: str) -> None:
    workload_id, fence = bring(state)
    with unchanged(workload_id), refused("WORKLOAD_TRANSITION_DENIED", {"from": state, "to": "FAILED"}):
        fail(fence)


LOST_IS_RETRIED = {"worker_failure"}
DECISIONS = [
    # kind, effect, retry_on, attempts, decision
    ("k", None, {"k"}, 2, "retry"),
    ("k", "none", {"k"}, 2, "retry"),
    ("k", "unknown", {"k"}, 2, "effect_unknown_not_retryable"),
    ("k", "unknown", {"worker_failure"}, 2, "retry"),
    ("k", "unknown", {"worker_failure"}, 1, "attempt_budget_exhausted"),
    ("k", "unknown", set(), 1, "effect_unknown_not_retryable"),
    ("k", None, {"worker_failure"}, 2, "failure_kind_not_retryable"),
    ("k", "none", {"worker_failure", "K"}, 2, "failure_kind_not_retryable"),
    ("k", None, set(), 1, "failure_kind_not_retryable"),
    ("k", None, {"k"}, 1, "attempt_budget_exhausted"),
    ("worker_failure", None, {"worker_failure"}, 2, "retry"),
]


@pytest.mark.parametrize(("kind", "effect", "retry_on", "max_attempts", "decision"), DECISIONS)
def test_what_follows_a_failure(kind: str, effect: Any, retry_on: set[str], max_attempts: int, decision: str) -> None:
    fence = running(retry_policy=RetryPolicy(max_attempts=max_attempts, retry_on=retry_on))
    outcome = fail(fence, kind, effect=effect)
    assert outcome.decision == decision
    last = events(fence.workload_id)[-1]
    assert last.evidence["decision"] == decision
    workload = authority.get(fence.workload_id)
    if decision == "retry":
        assert (outcome.state, workload.state) == ("READY", "READY")
    else:
        assert (outcome.state, outcome.next_attempt_at) == ("DEAD_LETTER", None)
        assert (workload.state, workload.finished_at, workload.next_attempt_at) == ("DEAD_LETTER", ENDED_AT, None)
        assert (last.actor, last.evidence) == ("authority.retry", {"decision": decision})
        assert workload.retry_count == 0


def test_an_attempt_that_never_started_has_no_effect_unless_it_says_otherwise() -> None:
    policy = RetryPolicy(retry_on={"k"})
    first = claim(admit("a", retry_policy=policy)).fence
    assert fail(first, "k").decision == "retry"
    assert attempts(first.workload_id)[0].effect == "none"
    second = claim(admit("b", retry_policy=policy)).fence
    assert fail(second, "k", effect=Effect.UNKNOWN).decision == "effect_unknown_not_retryable"


def test_the_same_report_again_is_answered_as_first_whatever_has_happened_since() -> None:
    fence = running(timeouts=Timeouts(queue_ms=60_000))
    first = fail(fence)
    with unchanged(fence.workload_id):
        assert fail(fence, now=at(10**9)) == first
        assert fail(fence, now=at(10**9), retry_after_ms=5) == first
    second = claim(fence.workload_id, now=at(6_000)).fence
    with unchanged(fence.workload_id):
        assert fail(fence, now=EXPIRES_AT) == first
    authority.start(second, now=at(6_000))
    complete(second, now=at(7_000))
    assert fail(fence, now=at(10**10)) == first
    assert state_of(fence.workload_id) == "SUCCEEDED"


def test_the_outcome_of_a_dead_letter_is_answered_again_after_a_re_arm() -> None:
    fence = running()
    first = fail(fence, "fatal")
    assert first == FailureOutcome(state=S.DEAD_LETTER, decision="failure_kind_not_retryable", next_attempt_at=None)
    authority.rearm(fence.workload_id, actor="op", reason="again", now=at(9_000))
    assert fail(fence, "fatal", now=at(9_000)) == first


@pytest.mark.parametrize("effect", [None, "none", "unknown"])
def test_a_repeat_may_leave_the_effect_out_or_say_it_as_it_was_judged(effect: Any) -> None:
    fence = running(retry_policy=RetryPolicy(retry_on={"timeout", "worker_failure"}))
    first = fail(fence, effect="none")
    with unchanged(fence.workload_id):
        if effect == "unknown":
            with refused("WORKLOAD_CLAIM_INVALID"):
                fail(fence, effect=effect)
        else:
            assert fail(fence, effect=effect) == first


@pytest.mark.parametrize(
    ("changes", "other"),
    [
        ({"kind": "Timeout"}, {}),
        ({"error": "slow "}, {}),
        ({"error": ""}, {}),
        ({}, {"worker_id": "x"}),
        ({}, {"claim_id": "x"}),
        ({}, {"fencing_token": 7}),
    ],
)
def test_any_other_report_is_the_fences_to_answer(changes: dict[str, Any], other: dict[str, Any]) -> None:
    fence = running()
    fail(fence)
    with unchanged(fence.workload_id), refused("WORKLOAD_CLAIM_INVALID"):
        fail(replace(fence, **other), **changes)
    claim(fence.workload_id, now=at(9_000))
    if "fencing_token" not in other:
        with unchanged(fence.workload_id), refused("WORKLOAD_STALE_FENCE"):
            fail(replace(fence, **other), now=at(9_001), **changes)


def test_an_attempt_that_ended_otherwise_has_made_no_report() -> None:
    for state in (S.SUCCEEDED, S.TIMED_OUT, S.CANCELLED):
        workload_id, fence = bring(state, state)
        with unchanged(workload_id), refused("WORKLOAD_CLAIM_INVALID"):
            fail(fence)


# Error texts.


@pytest.mark.parametrize(
    ("error", "stored"),
    [("", ""), ("a\0b", "a�b"), ("a\udc00b\ud800", "a�b�"), ("<script>é🎈\n\t", "<script>é🎈\n\t")],
)
def test_an_error_text_is_mended_never_lost(error: str, stored: str) -> None:
    fence = running()
    first = fail(fence, error=error)
    (attempt,) = attempts(fence.workload_id)
    assert attempt.error == stored
    assert authority.get(fence.workload_id).last_failure == f"timeout: {stored}"
    assert fail(fence, error=error) == first
    assert fail(fence, error=stored) == first


def test_an_error_text_is_cut_to_the_sites_maximum_mark_included(limits: Any) -> None:
    limits(MAX_ERROR_CHARS=100)
    fence = running()
    first = fail(fence, error="é" * 101)
    (attempt,) = attempts(fence.workload_id)
    assert len(attempt.error) == 100
    assert attempt.error.startswith("é" * 80)
    assert attempt.error != "é" * 100
    assert fail(fence, error="é" * 101) == first
    assert fail(fence, error=attempt.error) == first
    other = running("other")
    fail(other, error="é" * 100)
    assert attempts(other.workload_id)[0].error == "é" * 100


def test_the_default_maximum_is_8000_characters() -> None:
    fence = running()
    fail(fence, error="🎈" * 8_001)
    assert len(attempts(fence.workload_id)[0].error) == 8_000


def test_a_secret_in_an_error_is_refused_and_looked_for_before_the_cut(limits: Any) -> None:
    limits(MAX_ERROR_CHARS=100)
    fence = running()
    with unchanged(fence.workload_id), refused("WORKLOAD_SECRET_MATERIAL") as caught:
        fail(fence, error="x" * 500 + " " + KEY)
    assert KEY not in str(caught.value)
    assert fail(fence).decision == "retry"


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        *(("kind", {"kind": bad}) for bad in ("", " k", "k" * 201, None, "a\nb")),
        *(("error", {"error": bad}) for bad in (None, 5, b"x")),
        *(("effect", {"effect": bad}) for bad in ("maybe", "NONE", 0, True)),
        *(("retry_after_ms", {"retry_after_ms": bad}) for bad in (-1, 1.5, "1", True)),
        ("now", {"now": at(1).replace(tzinfo=None)}),
    ],
)
def test_the_arguments_of_a_failure_come_first(
    field: str, changes: dict[str, Any], django_assert_num_queries: Any
) -> None:
    fence = running()
    with django_assert_num_queries(0), refused("WORKLOAD_INVALID") as caught:
        fail(fence, **changes)
    assert caught.value.details is not None
    assert caught.value.details["field"] == field


# Backoff.


@pytest.mark.parametrize(
    ("policy", "delays"),
    [
        (RetryPolicy(max_attempts=9), [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]),
        (RetryPolicy(max_attempts=4, backoff=Backoff.FIXED, initial_delay_ms=700), [700, 700, 700]),
        (RetryPolicy(max_attempts=4, backoff=Backoff.FIXED, max_delay_ms=300), [300, 300, 300]),
        (RetryPolicy(max_attempts=3, initial_delay_ms=0), [0, 0]),
    ],
)
def test_the_delay_before_a_retry(policy: RetryPolicy, delays: list[int]) -> None:
    workload_id = admit(retry_policy=policy)
    now = at(0)
    for count, delay in enumerate(delays, start=1):
        outcome = fail(claim(workload_id, now=now).fence, now=now)
        assert outcome.next_attempt_at == now + dt.timedelta(milliseconds=delay)
        assert authority.get(workload_id).retry_count == count
        now = outcome.next_attempt_at
    assert fail(claim(workload_id, now=now).fence, now=now).decision == "attempt_budget_exhausted"


@pytest.mark.parametrize(
    ("asked", "delay"),
    [
        (0, 1_000),
        (999, 1_000),
        (5_000, 5_000),
        (86_400_000, 86_400_000),
        (86_400_001, 86_400_000),
        (10**4_000, 86_400_000),
    ],
)
def test_a_worker_may_ask_for_a_longer_delay_up_to_a_day(asked: int, delay: int) -> None:
    outcome = fail(running(), retry_after_ms=asked)
    assert outcome.next_attempt_at == ENDED_AT + dt.timedelta(milliseconds=delay)


def test_or_up_to_the_policys_own_longest() -> None:
    fence = running(retry_policy=RetryPolicy(max_delay_ms=200_000_000))
    assert fail(fence, retry_after_ms=10**12).next_attempt_at == ENDED_AT + dt.timedelta(milliseconds=200_000_000)


def test_jitter_shortens_a_delay_at_random_by_up_to_its_share() -> None:
    delays = set()
    for n in range(20):
        fence = running(f"k{n}", retry_policy=RetryPolicy(initial_delay_ms=10_000, jitter=0.5))
        due = fail(fence).next_attempt_at
        assert due is not None
        delays.add((due - ENDED_AT) // dt.timedelta(milliseconds=1))
    assert all(5_000 <= delay <= 10_000 for delay in delays)
    assert len(delays) > 10


def test_no_overflow_at_any_retry_count() -> None:
    longest = 3_155_760_000_000
    fence = running(retry_policy=RetryPolicy(max_attempts=2**31 - 1, initial_delay_ms=longest, max_delay_ms=longest))
    write_raw("workload", fence.workload_id, retry_count=2**31 - 3)
    assert fail(fence).next_attempt_at == ENDED_AT + dt.timedelta(milliseconds=longest)


def test_a_handler_that_kills_its_process_each_time_ends_in_the_dead_letter() -> None:
    workload_id = admit()
    now = at(0)
    for _ in range(3):
        claim(workload_id, now=now, lease_ms=1_000)
        now += dt.timedelta(seconds=1)
        assert authority.recover_expired(now=now) == [workload_id]
        now += dt.timedelta(minutes=1)
    assert state_of(workload_id) == "DEAD_LETTER"
    assert events(workload_id)[-1].evidence == {"decision": "attempt_budget_exhausted"}
    assert path(workload_id).count("CLAIMED") == 3
    assert workload_id == id_of()
