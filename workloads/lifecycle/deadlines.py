"""Deadlines: when each runs, which has passed, and what passing does. Section 8.

Computed from committed columns alone, so that any node decides the same, after any restart.
"""

from __future__ import annotations

import datetime as dt

from workloads.contract import DEADLINE_CONTRACT_VERSION, AttemptStatus, Timeouts, WorkloadState
from workloads.errors import WORKLOAD_TIMED_OUT, WorkloadError
from workloads.lifecycle.canonical import iso
from workloads.lifecycle.decision import Decision, Draft
from workloads.lifecycle.retries import dead_letter, retry
from workloads.lifecycle.snapshot import MILLISECOND, Snapshot
from workloads.lifecycle.states import CLAIMED, STARTED

ACTOR = "authority.deadline"
NOT_RETRYABLE = frozenset({"overall", "queue"})


def _after(instant: dt.datetime, duration_ms: int) -> dt.datetime:
    return instant + duration_ms * MILLISECOND


def overall_deadline(snapshot: Snapshot) -> dt.datetime | None:
    """Return when the overall deadline passes, whatever the state; None where the workload has none."""
    overall_ms = snapshot.timeouts.overall_ms
    if overall_ms is None or snapshot.contract_version < DEADLINE_CONTRACT_VERSION:
        return None
    return _after(snapshot.overall_from, overall_ms)


def has_none(timeouts: Timeouts) -> bool:
    """Tell whether no deadline is set at all."""
    return (
        timeouts.overall_ms is None
        and timeouts.queue_ms is None
        and timeouts.claim_ms is None
        and timeouts.execution_ms is None
        and timeouts.heartbeat_ms is None
    )


def running_deadlines(snapshot: Snapshot) -> list[tuple[str, dt.datetime]]:
    """Return the deadlines that run in the workload's state, with their instants, in the order of precedence."""
    state, timeouts, claim = snapshot.state, snapshot.timeouts, snapshot.claim
    running: list[tuple[str, dt.datetime]] = []
    # Most work has no deadline at all, and every rule asks.
    if has_none(timeouts) or snapshot.contract_version < DEADLINE_CONTRACT_VERSION:
        return running
    ready = state is WorkloadState.READY
    claimed = state in CLAIMED
    if not ready and not claimed:
        return running
    if timeouts.overall_ms is not None:
        running.append(("overall", _after(snapshot.overall_from, timeouts.overall_ms)))
    if ready and timeouts.queue_ms is not None:
        since = snapshot.next_attempt_at or snapshot.created_at
        if not snapshot.attempt_count and not snapshot.operator_retries:
            # Every way back to READY sets next_attempt_at to that instant or a later one; at admission alone
            # may it lie before, and then the admission counts.
            since = max(snapshot.created_at, since)
        running.append(("queue", _after(since, timeouts.queue_ms)))
    if claim is None:
        return running
    if state is WorkloadState.CLAIMED and timeouts.claim_ms is not None:
        running.append(("claim", _after(claim.claimed_at, timeouts.claim_ms)))
    if state in STARTED and timeouts.execution_ms is not None:
        running.append(("execution", _after(claim.started_at or claim.claimed_at, timeouts.execution_ms)))
    if timeouts.heartbeat_ms is not None:
        running.append(("heartbeat", _after(claim.last_heartbeat, timeouts.heartbeat_ms)))
    return running


def passed(snapshot: Snapshot, now: dt.datetime) -> tuple[str, dt.datetime] | None:
    """Return the first deadline that has passed at `now` (`now >= deadline`), with its instant."""
    for name, at in running_deadlines(snapshot):
        if now >= at:
            return name, at
    return None


def refusal(name: str, at: dt.datetime) -> WorkloadError:
    """Return what a call is told that came after a deadline."""
    return WorkloadError(WORKLOAD_TIMED_OUT, f"The {name} deadline passed.", {"deadline": name, "deadline_at": iso(at)})


def enforce(snapshot: Snapshot, now: dt.datetime, *, draw: float) -> Decision | None:
    """Decide the time-out of a workload whose deadline has passed; None when none has.

    The decision carries the refusal that a call gets which came too late.
    """
    found = passed(snapshot, now)
    if found is None:
        return None
    name, at = found
    draft = Draft(snapshot, now)
    evidence = {"deadline": name, "deadline_at": iso(at)}
    error = f"timeout: {name} deadline passed"
    if snapshot.claim is not None:
        evidence |= {"claim_id": snapshot.claim.claim_id, "worker_id": snapshot.claim.worker_id}
        draft.close_attempt(AttemptStatus.TIMED_OUT, by="clock", error=error)
    draft.set(last_failure=error)
    draft.move(WorkloadState.TIMED_OUT, actor=ACTOR, **evidence)
    if name in NOT_RETRYABLE:
        dead_letter(draft, "deadline_not_retryable", actor=ACTOR)
    elif "timeout" not in snapshot.retry_policy.retry_on:
        dead_letter(draft, "timeout_not_retryable", actor=ACTOR)
    elif snapshot.budget_is_used:
        dead_letter(draft, "attempt_budget_exhausted", actor=ACTOR)
    else:
        retry(draft, actor=ACTOR, draw=draw)
    return draft.decide(refusal=refusal(name, at))
