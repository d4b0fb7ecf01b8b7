"""Snapshots in any state, as sensible as the authority would have left them, and the fences and attempts that fit."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any

import pytest

from workloads.contract import AttemptStatus, Fence, RetryPolicy, Timeouts, WorkloadState
from workloads.errors import WorkloadError
from workloads.lifecycle.decision import AttemptClosed, AttemptOpened, AttemptStarted, Decision
from workloads.lifecycle.snapshot import CurrentClaim, PastAttempt, Snapshot, Standing
from workloads.lifecycle.states import is_legal

S = WorkloadState

# Written out, not taken from the code under test.
HELD = {S.CLAIMED, S.RUNNING, S.CHECKPOINTED, S.CANCELLATION_REQUESTED}
RESTING = {S.SUCCEEDED, S.CANCELLED, S.DEAD_LETTER, S.TIMED_OUT, S.FAILED}
NEVER_CLAIMED = {S.CREATED, S.READY}

EPOCH = dt.datetime(2026, 1, 5, 12, 0, tzinfo=dt.UTC)
"""When the built workloads were admitted."""

MS = dt.timedelta(milliseconds=1)
US = dt.timedelta(microseconds=1)
LEASE_MS = 600_000

CLAIMED_AT = EPOCH + 10_000 * MS
STARTED_AT = EPOCH + 11_000 * MS
BEAT_AT = EPOCH + 12_000 * MS
EXPIRES_AT = CLAIMED_AT + LEASE_MS * MS
NOW = EPOCH + 20_000 * MS
"""An instant at which the built workloads' leases run, and no deadline does."""


def text(instant: dt.datetime) -> str:
    """Write an instant as evidence and details do."""
    return instant.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def make_claim(state: WorkloadState = S.RUNNING, **changes: Any) -> CurrentClaim:
    """Make the current claim of a workload in `state`."""
    claim = CurrentClaim(
        claim_id="claim-1",
        worker_id="worker-1",
        attempt_id="attempt-1",
        claimed_at=CLAIMED_AT,
        started_at=None if state is S.CLAIMED else STARTED_AT,
        last_heartbeat=CLAIMED_AT if state is S.CLAIMED else BEAT_AT,
        expires_at=EXPIRES_AT,
    )
    return replace(claim, **changes)


def make(state: WorkloadState = S.READY, **changes: Any) -> Snapshot:
    """Make a workload in `state`, on its first attempt where it has one."""
    claims = 0 if state in NEVER_CLAIMED else 1
    snapshot = Snapshot(
        pk=7,
        workload_id="workload_7",
        tenant_id="tenant",
        application_id="application",
        definition_id="definition",
        definition_revision="1",
        lane_id=3,
        contract_version=2,
        capability_snapshot=frozenset({"cpu", "net"}),
        connection_scopes=frozenset({"scope-a"}),
        retry_policy=RetryPolicy(),
        timeouts=Timeouts(),
        created_at=EPOCH,
        version=0 if state is S.CREATED else 4,
        state=state,
        priority=0,
        next_attempt_at=EPOCH if state is S.READY else None,
        attempt_count=claims,
        retry_count=0,
        release_count=0,
        uncounted_releases=0,
        operator_retries=0,
        fencing_token=claims,
        last_failure=None,
        updated_at=EPOCH,
        finished_at=BEAT_AT if state in RESTING else None,
        overall_from=EPOCH,
        event_count=1 if state is S.CREATED else 5,
        checkpoint_count=1 if state is S.CHECKPOINTED else 0,
        dependency_standing=Standing.MET,
        claim=make_claim(state) if state in HELD else None,
    )
    return replace(snapshot, **changes)


def fence_of(snapshot: Snapshot, **changes: Any) -> Fence:
    """Make the fence of the current claim, or of the last one."""
    claim = snapshot.claim or make_claim()
    fence = Fence(
        workload_id=snapshot.workload_id,
        claim_id=claim.claim_id,
        worker_id=claim.worker_id,
        fencing_token=snapshot.fencing_token,
    )
    return replace(fence, **changes)


def past_attempt(status: AttemptStatus, **changes: Any) -> PastAttempt:
    """Make the built workloads' first attempt, ended by its worker as `status`."""
    attempt = PastAttempt(
        attempt_id="attempt-1",
        number=1,
        claim_id="claim-1",
        worker_id="worker-1",
        fencing_token=1,
        status=status,
        ended_by="worker",
        error=None,
        failure_kind=None,
        effect=None,
        outcome_state=None,
        outcome_decision=None,
        outcome_next_attempt_at=None,
    )
    return replace(attempt, **changes)


def policy(*kinds: str, **changes: Any) -> RetryPolicy:
    """Make a policy that retries exactly `kinds`."""
    return RetryPolicy(retry_on=frozenset(kinds), **changes)


def refused(code: str, call: Any, *args: Any, **options: Any) -> dict[str, Any] | None:
    """Call, expect to be refused with `code`, and return the details."""
    with pytest.raises(WorkloadError) as caught:
        call(*args, **options)
    assert caught.value.code == code
    return caught.value.details


def steps(decision: Decision) -> list[str]:
    """Return the states that the decision's events lead to."""
    return [event.to_state for event in decision.events]


# What no decision may change: the workload as it was admitted, and what others derive.
KEPT = (
    "pk workload_id tenant_id application_id definition_id definition_revision lane_id contract_version "
    "capability_snapshot connection_scopes retry_policy timeouts created_at priority dependency_standing"
).split()


def check(decision: Decision) -> None:
    """Assert what holds of every decision, whichever rule made it (sections 2, 3 and 12)."""
    before, after = decision.before, decision.after
    for name in KEPT:
        assert getattr(before, name) == getattr(after, name), name
    assert after.version == before.version + 1
    assert decision.now.tzinfo is not None
    assert after.updated_at == decision.now
    assert after.event_count == before.event_count + len(decision.events)
    state = str(before.state)
    for step, event in enumerate(decision.events, before.event_count + 1):
        assert event.sequence == step
        assert event.at == decision.now
        assert event.from_state == state
        assert is_legal(event.from_state, event.to_state)
        assert all(type(k) is str and type(v) is str for k, v in event.evidence.items())
        assert event.actor
        assert "decision" not in event.evidence or event is decision.events[-1]
        state = event.to_state
    assert after.state == state
    assert (after.claim is not None) == (after.state in HELD)
    if decision.events:
        assert after.finished_at == (decision.now if after.state in RESTING else None)
    else:
        assert after.finished_at == before.finished_at
    last = decision.events[-1] if decision.events else None
    if last is not None and last.to_state == S.READY:
        due = after.next_attempt_at
        # At admission alone may it lie before: `not_before` is kept as given.
        assert due is not None and (due >= decision.now or last.from_state == S.CREATED)
        assert last.evidence.get("next_attempt_at") == (text(due) if due > decision.now else None)
    if after.state is not S.READY:
        assert after.next_attempt_at is None
    _check_attempt(decision)


def _check_attempt(decision: Decision) -> None:
    before, after, change = decision.before, decision.after, decision.attempt
    if isinstance(change, AttemptOpened):
        assert before.claim is None
        assert change.claim == after.claim
        assert change.number == after.attempt_count == before.attempt_count + 1
        assert change.fencing_token == after.fencing_token == before.fencing_token + 1
        return
    assert after.attempt_count == before.attempt_count
    assert after.fencing_token == before.fencing_token
    if isinstance(change, AttemptClosed):
        assert before.claim is not None and after.claim is None
        assert change.number == before.attempt_count
        assert change.ended_at == decision.now
        return
    assert (before.claim is None) == (after.claim is None)
    if isinstance(change, AttemptStarted):
        assert change.number == before.attempt_count
        assert after.claim is not None and after.claim.started_at == change.started_at == decision.now
