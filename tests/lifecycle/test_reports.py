"""Endings that a worker reports: replays, effects, what follows, late reports. Section 6."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any

import pytest

from tests.lifecycle.builders import (
    EXPIRES_AT,
    MS,
    NOW,
    check,
    fence_of,
    make,
    past_attempt,
    policy,
    refused,
    steps,
    text,
)
from workloads.contract import AttemptStatus, Effect, FailureOutcome, Timeouts, WorkloadState
from workloads.lifecycle import reports
from workloads.lifecycle.decision import AttemptClosed, Decision
from workloads.lifecycle.reports import Report, replayed_failure, replays_result
from workloads.lifecycle.snapshot import Snapshot

S = WorkloadState
CLAIMED = [S.CLAIMED, S.RUNNING, S.CHECKPOINTED]
NONE, UNKNOWN = Effect.NONE, Effect.UNKNOWN

REPORT = Report(
    fence=fence_of(make(S.RUNNING)),
    result_id="result-1",
    output_hash="0" * 64,
    artifacts_text="[]",
    schema_version=1,
)


def fail(
    snapshot: Snapshot,
    *,
    kind: str = "broken",
    error: str = "it broke",
    effect: Effect | None = None,
    retry_after_ms: int | None = None,
    late: bool = False,
    now: dt.datetime = NOW,
) -> tuple[Decision, FailureOutcome | None]:
    return reports.fail(
        snapshot,
        fence_of(snapshot),
        now,
        kind=kind,
        error=error,
        effect=effect,
        retry_after_ms=retry_after_ms,
        late_is_accepted=late,
        draw=0,
    )


def complete(snapshot: Snapshot, *, late: bool = False, now: dt.datetime = NOW) -> Decision:
    return reports.complete(snapshot, fence_of(snapshot), now, result_id="result-1", late_is_accepted=late, draw=0)


# Completion.


def test_a_free_result_id_is_no_replay() -> None:
    assert replays_result(REPORT, None) is False


def test_the_very_same_report_is_a_replay() -> None:
    assert replays_result(REPORT, replace(REPORT)) is True


def test_an_id_of_another_workload_is_a_duplicate_even_with_the_same_content() -> None:
    other = replace(REPORT, fence=replace(REPORT.fence, workload_id="workload_8"))
    assert refused("WORKLOAD_RESULT_DUPLICATE", replays_result, REPORT, other) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"fence": replace(REPORT.fence, worker_id="worker-2")},
        {"fence": replace(REPORT.fence, claim_id="claim-2")},
        {"fence": replace(REPORT.fence, fencing_token=2)},
        {"output_hash": "1" * 64},
        {"artifacts_text": '["a"]'},
        {"schema_version": 2},
    ],
)
def test_any_difference_is_a_conflict(changes: dict[str, Any]) -> None:
    assert refused("WORKLOAD_RESULT_CONFLICT", replays_result, REPORT, replace(REPORT, **changes)) is None


@pytest.mark.parametrize("state", [S.RUNNING, S.CHECKPOINTED])
def test_a_completion_ends_the_work(state: WorkloadState) -> None:
    decision = complete(make(state))
    check(decision)
    assert steps(decision) == ["SUCCEEDED"]
    assert decision.after.finished_at == NOW
    assert isinstance(decision.attempt, AttemptClosed)
    assert decision.attempt.status is AttemptStatus.SUCCEEDED


def test_a_completion_past_a_deadline_never_lands_even_where_late_ones_do() -> None:
    snapshot = make(S.RUNNING, timeouts=Timeouts(execution_ms=1))
    for late in (False, True):
        decision = complete(snapshot, late=late, now=EXPIRES_AT)
        assert decision.refusal is not None and decision.refusal.code == "WORKLOAD_TIMED_OUT"
        assert decision.after.state is S.READY


# Failure: the table of section 6, row by row, with the rows that it overrules.

ALL = ("timeout", "worker_failure", "broken")
DEAD, READY = "DEAD_LETTER", "READY"
DECISIONS = [
    # retry_on, effect, kind, attempts left: decision, state
    (ALL, None, "broken", True, "retry", READY),
    (ALL, None, "broken", False, "attempt_budget_exhausted", DEAD),
    (ALL, None, "other", True, "failure_kind_not_retryable", DEAD),
    (ALL, None, "other", False, "failure_kind_not_retryable", DEAD),
    (ALL, NONE, "broken", True, "retry", READY),
    (ALL, NONE, "broken", False, "attempt_budget_exhausted", DEAD),
    (ALL, NONE, "other", True, "failure_kind_not_retryable", DEAD),
    (ALL, UNKNOWN, "broken", True, "retry", READY),
    (ALL, UNKNOWN, "other", True, "retry", READY),
    (ALL, UNKNOWN, "other", False, "attempt_budget_exhausted", DEAD),
    (("broken",), UNKNOWN, "broken", True, "effect_unknown_not_retryable", DEAD),
    (("broken",), UNKNOWN, "broken", False, "effect_unknown_not_retryable", DEAD),
    (("broken",), UNKNOWN, "other", True, "effect_unknown_not_retryable", DEAD),
    (("broken",), NONE, "broken", True, "retry", READY),
    (("broken",), None, "broken", True, "retry", READY),
    (("broken",), None, "worker_failure", True, "failure_kind_not_retryable", DEAD),
    ((), UNKNOWN, "broken", True, "effect_unknown_not_retryable", DEAD),
    ((), None, "broken", True, "failure_kind_not_retryable", DEAD),
    (("worker_failure",), UNKNOWN, "worker_failure", True, "retry", READY),
    (("worker_failure",), NONE, "worker_failure", True, "retry", READY),
]


@pytest.mark.parametrize("state", CLAIMED)
@pytest.mark.parametrize(("kinds", "effect", "kind", "has_left", "decision", "to"), DECISIONS)
def test_what_follows_a_failure(
    state: WorkloadState,
    kinds: tuple[str, ...],
    effect: Effect | None,
    kind: str,
    has_left: bool,
    decision: str,
    to: str,
) -> None:
    snapshot = make(state, retry_policy=policy(*kinds, max_attempts=2 if has_left else 1))
    found, outcome = fail(snapshot, kind=kind, effect=effect)
    check(found)
    assert found.refusal is None
    assert steps(found) == ["FAILED", to]
    first, last = found.events
    assert (first.actor, last.actor) == ("worker-1", "authority.retry")
    assert last.evidence["decision"] == decision
    judged = NONE if effect is None and state is S.CLAIMED else effect
    said = {} if judged is None else {"effect": str(judged)}
    assert first.evidence == {"attempt_id": "attempt-1", "failure_kind": kind, **said}
    due = NOW + 1000 * MS if to == READY else None
    assert outcome == FailureOutcome(state=S(to), decision=decision, next_attempt_at=due)
    assert found.after.next_attempt_at == due
    change = found.attempt
    assert isinstance(change, AttemptClosed)
    assert change == AttemptClosed(
        number=1,
        status=AttemptStatus.FAILED,
        ended_at=NOW,
        ended_by="worker",
        error="it broke",
        failure_kind=kind,
        effect=judged,
        outcome_state=S(to),
        outcome_decision=decision,
        outcome_next_attempt_at=due,
    )
    assert found.after.last_failure == f"{kind}: it broke"


def test_a_wish_for_a_later_attempt_is_heard() -> None:
    found, outcome = fail(make(S.RUNNING, retry_policy=policy("broken")), retry_after_ms=90_000)
    assert outcome is not None and outcome.next_attempt_at == NOW + 90_000 * MS
    assert found.events[-1].evidence["next_attempt_at"] == text(NOW + 90_000 * MS)


def test_a_wish_does_not_make_a_failure_retryable() -> None:
    _, outcome = fail(make(S.RUNNING, retry_policy=policy()), retry_after_ms=90_000)
    assert outcome is not None
    assert (outcome.decision, outcome.next_attempt_at) == ("failure_kind_not_retryable", None)


def test_an_attempt_that_never_started_may_say_that_its_effect_is_unknown() -> None:
    _, outcome = fail(make(S.CLAIMED, retry_policy=policy("broken")), effect=UNKNOWN)
    assert outcome is not None and outcome.decision == "effect_unknown_not_retryable"


def test_an_empty_error_is_kept() -> None:
    found, _ = fail(make(S.RUNNING), error="")
    assert found.after.last_failure == "broken: "


def test_operator_retries_and_uncounted_releases_widen_the_budget() -> None:
    once = policy("broken", max_attempts=1)
    for changes in ({"operator_retries": 1}, {"attempt_count": 2, "fencing_token": 2, "operator_retries": 2}):
        assert steps(fail(make(S.RUNNING, retry_policy=once, **changes))[0])[-1] == READY
    released = make(S.RUNNING, retry_policy=once, attempt_count=2, fencing_token=2, uncounted_releases=1)
    assert steps(fail(released)[0])[-1] == DEAD


def test_a_failure_past_a_deadline_is_a_time_out() -> None:
    decision, outcome = fail(make(S.RUNNING, timeouts=Timeouts(heartbeat_ms=1)))
    assert outcome is None
    assert decision.refusal is not None and decision.refusal.code == "WORKLOAD_TIMED_OUT"
    assert decision.after.last_failure == "timeout: heartbeat deadline passed"


# A repeated failure report.

REPORTED = past_attempt(
    AttemptStatus.FAILED,
    error="it broke",
    failure_kind="broken",
    effect=NONE,
    outcome_state=S.READY,
    outcome_decision="retry",
    outcome_next_attempt_at=NOW + MS,
)
FIRST_ANSWER = FailureOutcome(state=S.READY, decision="retry", next_attempt_at=NOW + MS)
FENCE = fence_of(make(S.RUNNING))


def replayed(attempt: Any = REPORTED, fence: Any = FENCE, **changes: Any) -> FailureOutcome | None:
    said = {"kind": "broken", "error": "it broke", "effect": None, **changes}
    return replayed_failure(attempt, fence, **said)


def test_the_same_report_is_answered_as_first() -> None:
    assert replayed() == FIRST_ANSWER
    assert replayed(effect=NONE) == FIRST_ANSWER
    parked = replace(REPORTED, outcome_state=S.DEAD_LETTER, outcome_decision="x", outcome_next_attempt_at=None)
    assert replayed(parked) == FailureOutcome(state=S.DEAD_LETTER, decision="x", next_attempt_at=None)


@pytest.mark.parametrize(
    "changes",
    [
        {"attempt": None},
        {"kind": "other"},
        {"error": "it broke "},
        {"error": ""},
        {"effect": UNKNOWN},
        {"attempt": replace(REPORTED, effect=None), "effect": NONE},
        {"attempt": replace(REPORTED, outcome_state=None)},
        {"attempt": replace(REPORTED, outcome_decision=None)},
        {"fence": replace(FENCE, claim_id="claim-2")},
        {"fence": replace(FENCE, worker_id="worker-2")},
        {"fence": replace(FENCE, fencing_token=2)},
    ],
)
def test_another_report_is_the_fences_to_answer(changes: dict[str, Any]) -> None:
    assert replayed(**changes) is None


@pytest.mark.parametrize("status", [s for s in AttemptStatus if s is not AttemptStatus.FAILED])
def test_an_attempt_that_did_not_report_a_failure_repeats_none(status: AttemptStatus) -> None:
    silent = past_attempt(status, error="it broke")
    assert replayed(silent) is None


@pytest.mark.parametrize("state", CLAIMED)
@pytest.mark.parametrize("effect", [None, NONE, UNKNOWN])
def test_what_was_recorded_is_what_is_replayed(state: WorkloadState, effect: Effect | None) -> None:
    snapshot = make(state, retry_policy=policy(*ALL))
    decision, outcome = fail(snapshot, effect=effect)
    closed = decision.attempt
    assert isinstance(closed, AttemptClosed)
    stored = past_attempt(
        closed.status,
        error=closed.error,
        failure_kind=closed.failure_kind,
        effect=closed.effect,
        outcome_state=closed.outcome_state,
        outcome_decision=closed.outcome_decision,
        outcome_next_attempt_at=closed.outcome_next_attempt_at,
    )
    assert replayed(stored, effect=effect) == outcome
    assert replayed(stored) == outcome
    if effect is not None or state is S.CLAIMED:
        other = UNKNOWN if closed.effect is NONE else NONE
        assert replayed(stored, effect=other) is None


# Late reports.


@pytest.mark.parametrize("state", [S.RUNNING, S.CHECKPOINTED])
def test_a_late_completion_is_marked_where_the_site_accepts_it(state: WorkloadState) -> None:
    refused("WORKLOAD_LEASE_EXPIRED", complete, make(state), now=EXPIRES_AT)
    decision = complete(make(state), late=True, now=EXPIRES_AT)
    check(decision)
    assert decision.events[0].evidence == {"attempt_id": "attempt-1", "result_id": "result-1", "late": "true"}
    assert "late" not in complete(make(state), late=True).events[0].evidence


@pytest.mark.parametrize("state", CLAIMED)
def test_a_late_failure_is_marked_on_its_own_event_alone(state: WorkloadState) -> None:
    refused("WORKLOAD_LEASE_EXPIRED", fail, make(state), now=EXPIRES_AT)
    decision, _ = fail(make(state), late=True, now=EXPIRES_AT)
    check(decision)
    assert decision.events[0].evidence["late"] == "true"
    assert "late" not in decision.events[1].evidence
    assert all("late" not in event.evidence for event in fail(make(state), late=True)[0].events)


def test_a_late_report_in_a_state_that_takes_none_is_denied() -> None:
    asked = make(S.CANCELLATION_REQUESTED)
    refused("WORKLOAD_TRANSITION_DENIED", complete, asked, late=True, now=EXPIRES_AT)
    refused("WORKLOAD_TRANSITION_DENIED", fail, asked, late=True, now=EXPIRES_AT)
    refused("WORKLOAD_TRANSITION_DENIED", complete, make(S.CLAIMED), late=True, now=EXPIRES_AT)
