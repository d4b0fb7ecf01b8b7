"""Endings that a worker reports: success and failure, each recorded once. Section 6."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from workloads.contract import AttemptStatus, Effect, FailureOutcome, Fence, WorkloadState
from workloads.errors import WORKLOAD_RESULT_CONFLICT, WORKLOAD_RESULT_DUPLICATE, WorkloadError
from workloads.lifecycle import deadlines
from workloads.lifecycle.claims import check_fence
from workloads.lifecycle.decision import Decision, Draft
from workloads.lifecycle.retries import dead_letter, retry
from workloads.lifecycle.snapshot import PastAttempt, Snapshot
from workloads.lifecycle.states import CLAIMED, STARTED, denied

S = WorkloadState
ACTOR = "authority.retry"


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What a completion says, its JSON as canonical text; two equal reports are the same report."""

    fence: Fence
    result_id: str
    output_hash: str
    artifacts_text: str
    schema_version: int


def replays_result(report: Report, recorded: Report | None) -> bool:
    """Tell whether `report` repeats the one that is recorded under its result id.

    `recorded` is None when the id is free in the tenant. Recorded for another workload: WORKLOAD_RESULT_DUPLICATE; for
    this one by another report: WORKLOAD_RESULT_CONFLICT.
    """
    if recorded is None:
        return False
    if recorded.fence.workload_id != report.fence.workload_id:
        raise duplicate()
    if recorded != report:
        raise WorkloadError(WORKLOAD_RESULT_CONFLICT, "Another report is recorded under this result id.")
    return True


def duplicate() -> WorkloadError:
    """Return the refusal of a result id that another workload has used."""
    return WorkloadError(WORKLOAD_RESULT_DUPLICATE, "This result id is taken by another workload.")


def complete(
    snapshot: Snapshot, fence: Fence, now: dt.datetime, *, result_id: str, late_is_accepted: bool, draw: float
) -> Decision:
    """End the work well: SUCCEEDED. Replays have been answered (`replays_result`).

    Deadlines first, then the fence, then the state.
    """
    passed = deadlines.enforce(snapshot, now, draw=draw)
    if passed is not None:
        return passed
    late = check_fence(snapshot, fence, now, late_is_accepted=late_is_accepted)
    if snapshot.state not in STARTED:
        raise denied(snapshot.state, S.SUCCEEDED)
    claim = snapshot.claim
    assert claim is not None
    draft = Draft(snapshot, now)
    draft.close_attempt(AttemptStatus.SUCCEEDED, by="worker")
    draft.move(
        S.SUCCEEDED,
        actor=claim.worker_id,
        attempt_id=claim.attempt_id,
        result_id=result_id,
        **({"late": "true"} if late else {}),
    )
    return draft.decide()


def replayed_failure(
    attempt: PastAttempt | None, fence: Fence, *, kind: str, error: str, effect: Effect | None
) -> FailureOutcome | None:
    """Return the outcome as first answered, when this attempt has made this very report; else None."""
    if (
        attempt is None
        or not attempt.is_of(fence)
        or attempt.failure_kind != kind
        or attempt.error != error
        or (effect is not None and effect != attempt.effect)
        or attempt.outcome_state is None
        or attempt.outcome_decision is None
    ):
        return None
    return FailureOutcome(
        state=attempt.outcome_state,
        decision=attempt.outcome_decision,
        next_attempt_at=attempt.outcome_next_attempt_at,
    )


def fail(
    snapshot: Snapshot,
    fence: Fence,
    now: dt.datetime,
    *,
    kind: str,
    error: str,
    effect: Effect | None,
    retry_after_ms: int | None,
    late_is_accepted: bool,
    draw: float,
) -> tuple[Decision, FailureOutcome | None]:
    """Record a failure and decide what follows it, in one commit. Replays have been answered (`replayed_failure`).

    An unknown effect is judged as a lost worker would be, whatever `kind` says; an attempt that never started has
    effect `none` unless it says otherwise.
    """
    passed = deadlines.enforce(snapshot, now, draw=draw)
    if passed is not None:
        return passed, None
    late = check_fence(snapshot, fence, now, late_is_accepted=late_is_accepted)
    if snapshot.state not in CLAIMED:
        raise denied(snapshot.state, S.FAILED)
    claim = snapshot.claim
    assert claim is not None
    if effect is None and claim.started_at is None:
        effect = Effect.NONE
    draft = Draft(snapshot, now)
    draft.set(last_failure=f"{kind}: {error}")
    evidence = {"attempt_id": claim.attempt_id, "failure_kind": kind}
    if effect is not None:
        evidence["effect"] = str(effect)
    if late:
        evidence["late"] = "true"
    draft.move(S.FAILED, actor=claim.worker_id, **evidence)
    retried = snapshot.retry_policy.retry_on
    if effect is Effect.UNKNOWN and "worker_failure" not in retried:
        decision = dead_letter(draft, "effect_unknown_not_retryable", actor=ACTOR)
    elif effect is not Effect.UNKNOWN and kind not in retried:
        decision = dead_letter(draft, "failure_kind_not_retryable", actor=ACTOR)
    elif snapshot.budget_is_used:
        decision = dead_letter(draft, "attempt_budget_exhausted", actor=ACTOR)
    else:
        decision = retry(draft, actor=ACTOR, draw=draw, retry_after_ms=retry_after_ms)
    outcome = FailureOutcome(state=draft.after.state, decision=decision, next_attempt_at=draft.after.next_attempt_at)
    draft.close_attempt(
        AttemptStatus.FAILED,
        by="worker",
        error=error,
        failure_kind=kind,
        effect=effect,
        outcome_state=outcome.state,
        outcome_decision=outcome.decision,
        outcome_next_attempt_at=outcome.next_attempt_at,
    )
    return draft.decide(), outcome
