"""Claims, leases and the fence: who may hold a workload, and what the holder may do while it works. Section 5."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable

from workloads.contract import AttemptStatus, Fence, WorkloadState
from workloads.errors import (
    WORKLOAD_ATTEMPTS_EXHAUSTED,
    WORKLOAD_CAPABILITY_DENIED,
    WORKLOAD_CHECKPOINT_CONFLICT,
    WORKLOAD_CLAIM_INVALID,
    WORKLOAD_LEASE_EXPIRED,
    WORKLOAD_NOT_READY,
    WORKLOAD_SCOPE_DENIED,
    WORKLOAD_STALE_FENCE,
    WORKLOAD_TOO_LARGE,
    WorkloadError,
)
from workloads.lifecycle import deadlines
from workloads.lifecycle.canonical import iso
from workloads.lifecycle.decision import AttemptOpened, AttemptStarted, Decision, Draft
from workloads.lifecycle.retries import dead_letter
from workloads.lifecycle.snapshot import MILLISECOND, CurrentClaim, PastAttempt, Snapshot, Standing
from workloads.lifecycle.states import CLAIMED, STARTED, denied

S = WorkloadState


def not_ready(state: str, **reason: object) -> WorkloadError:
    """Return the refusal of a claim on work that can't be claimed now."""
    return WorkloadError(WORKLOAD_NOT_READY, "The workload can't be claimed now.", {"state": str(state), **reason})


def is_claimable(snapshot: Snapshot, now: dt.datetime) -> bool:
    """Tell whether `claim_next` may hand the workload out at `now`, its worker's capabilities aside."""
    return (
        snapshot.state is S.READY
        and snapshot.dependency_standing is Standing.MET
        and (snapshot.next_attempt_at is None or snapshot.next_attempt_at <= now)
        and deadlines.passed(snapshot, now) is None
        and not snapshot.budget_is_used
    )


def claim(
    snapshot: Snapshot,
    now: dt.datetime,
    *,
    worker_id: str,
    lease_ms: int,
    claim_id: str,
    attempt_id: str,
    start: bool = False,
) -> Decision:
    """Give the workload to a worker under a new lease and the next fencing token; with `start`, RUNNING at once.

    The caller has judged that it may be handed out (`is_claimable`, or `judge_claim`).
    """
    lease = CurrentClaim(
        claim_id=claim_id,
        worker_id=worker_id,
        attempt_id=attempt_id,
        claimed_at=now,
        started_at=now if start else None,
        last_heartbeat=now,
        expires_at=now + lease_ms * MILLISECOND,
    )
    draft = Draft(snapshot, now)
    token = snapshot.fencing_token + 1
    number = snapshot.attempt_count + 1
    draft.set(claim=lease, fencing_token=token, attempt_count=number, next_attempt_at=None)
    draft.move(
        S.CLAIMED,
        actor=worker_id,
        claim_id=claim_id,
        worker_id=worker_id,
        attempt_id=attempt_id,
        fencing_token=str(token),
        expires_at=iso(lease.expires_at),
    )
    if start:
        draft.move(S.RUNNING, actor=worker_id, attempt_id=attempt_id)
    draft.attempt = AttemptOpened(
        number=number,
        claim=lease,
        fencing_token=token,
        status=AttemptStatus.RUNNING if start else AttemptStatus.CLAIMED,
    )
    return draft.decide()


def judge_claim(
    snapshot: Snapshot, now: dt.datetime, *, capabilities: Collection[str], unmet: Iterable[str], draw: float
) -> Decision | None:
    """Judge a claim of this very workload: None when it may go ahead.

    In this order: deadlines (recorded, WORKLOAD_TIMED_OUT) · READY, unblocked and due (WORKLOAD_NOT_READY, with the
    `unmet` ids or `next_attempt_at` where that is the reason) · budget (used up: dead-lettered,
    WORKLOAD_ATTEMPTS_EXHAUSTED) · capabilities (WORKLOAD_CAPABILITY_DENIED).
    """
    late = deadlines.enforce(snapshot, now, draw=draw)
    if late is not None:
        return late
    if snapshot.state is not S.READY:
        raise not_ready(snapshot.state)
    if snapshot.dependency_standing is not Standing.MET:
        raise not_ready(snapshot.state, dependencies=sorted(unmet))
    if snapshot.next_attempt_at is not None and snapshot.next_attempt_at > now:
        raise not_ready(snapshot.state, next_attempt_at=iso(snapshot.next_attempt_at))
    if snapshot.budget_is_used:
        draft = Draft(snapshot, now)
        dead_letter(draft, "attempt_budget_exhausted", actor="authority.claim")
        return draft.decide(
            refusal=WorkloadError(
                WORKLOAD_ATTEMPTS_EXHAUSTED, "The workload has used up its attempts.", {"budget": snapshot.budget}
            )
        )
    missing = sorted(snapshot.capability_snapshot - set(capabilities))
    if missing:
        raise WorkloadError(
            WORKLOAD_CAPABILITY_DENIED, "The worker lacks capabilities that the work needs.", {"missing": missing}
        )
    return None


def check_fence(snapshot: Snapshot, fence: Fence, now: dt.datetime, *, late_is_accepted: bool = False) -> bool:
    """Let the holder of the current claim through; return whether its lease is over (only if that is accepted).

    In this order: no current claim, WORKLOAD_CLAIM_INVALID · an older token, WORKLOAD_STALE_FENCE · any other
    mismatch, WORKLOAD_CLAIM_INVALID · lease over, WORKLOAD_LEASE_EXPIRED.
    """
    current = snapshot.claim
    if current is None:
        raise WorkloadError(WORKLOAD_CLAIM_INVALID, "The workload is under no claim now.")
    if fence.fencing_token < snapshot.fencing_token:
        raise WorkloadError(WORKLOAD_STALE_FENCE, "The workload has been claimed again since.")
    if (
        fence.fencing_token != snapshot.fencing_token
        or fence.claim_id != current.claim_id
        or fence.worker_id != current.worker_id
    ):
        raise WorkloadError(WORKLOAD_CLAIM_INVALID, "This is not the fence of the current claim.")
    late = current.expires_at <= now
    if late and not late_is_accepted:
        raise WorkloadError(WORKLOAD_LEASE_EXPIRED, "The lease is over.", {"expires_at": iso(current.expires_at)})
    return late


def start(snapshot: Snapshot, fence: Fence, now: dt.datetime, *, draw: float) -> Decision | None:
    """Let claimed work run. None: it was started by this claim already, and nothing changes."""
    late = deadlines.enforce(snapshot, now, draw=draw)
    if late is not None:
        return late
    check_fence(snapshot, fence, now)
    claim = snapshot.claim
    assert claim is not None
    if claim.started_at is not None:
        return None
    if snapshot.state is not S.CLAIMED:
        raise denied(snapshot.state, S.RUNNING)
    draft = Draft(snapshot, now)
    draft.move(S.RUNNING, actor=claim.worker_id, attempt_id=claim.attempt_id)
    draft.set(claim=_with(claim, started_at=now))
    draft.attempt = AttemptStarted(number=snapshot.attempt_count, started_at=now)
    return draft.decide()


def heartbeat(snapshot: Snapshot, fence: Fence, now: dt.datetime, *, extend_ms: int, draw: float) -> Decision:
    """Keep the lease: it ends `extend_ms` from now, or when it did, if that is later. No event."""
    late = deadlines.enforce(snapshot, now, draw=draw)
    if late is not None:
        return late
    check_fence(snapshot, fence, now)
    claim = snapshot.claim
    assert claim is not None
    expires_at = max(claim.expires_at, now + extend_ms * MILLISECOND)
    draft = Draft(snapshot, now)
    draft.set(claim=_with(claim, last_heartbeat=now, expires_at=expires_at))
    return draft.decide()


def context(
    snapshot: Snapshot,
    fence: Fence,
    now: dt.datetime,
    *,
    secret_references: Collection[str],
    connection_scopes: Collection[str],
    draw: float,
) -> Decision | None:
    """Let the holder read what it needs; None when it may.

    A reference outside the workload's scopes is WORKLOAD_SCOPE_DENIED.
    """
    late = deadlines.enforce(snapshot, now, draw=draw)
    if late is not None:
        return late
    check_fence(snapshot, fence, now)
    missing = sorted(set(secret_references) - set(connection_scopes))
    if missing:
        raise WorkloadError(
            WORKLOAD_SCOPE_DENIED, "A secret reference is not among the workload's scopes.", {"missing": missing}
        )
    return None


def checkpoint(
    snapshot: Snapshot,
    fence: Fence,
    now: dt.datetime,
    *,
    checkpoint_id: str,
    known: str | None,
    state_text: str,
    limit: int,
    draw: float,
) -> Decision | None:
    """Record progress: CHECKPOINTED. None: this attempt has saved this very state under this key already.

    `known` is the canonical text that the attempt saved under the given key, None if there is none; it is judged before
    the state. Another text is WORKLOAD_CHECKPOINT_CONFLICT; past `limit` checkpoints, WORKLOAD_TOO_LARGE.
    """
    late = deadlines.enforce(snapshot, now, draw=draw)
    if late is not None:
        return late
    check_fence(snapshot, fence, now)
    if known is not None:
        if known == state_text:
            return None
        raise WorkloadError(WORKLOAD_CHECKPOINT_CONFLICT, "This attempt has saved another state under this key.")
    if snapshot.state not in STARTED:
        raise denied(snapshot.state, S.CHECKPOINTED)
    if snapshot.checkpoint_count >= limit:
        raise WorkloadError(
            WORKLOAD_TOO_LARGE,
            "The workload has as many checkpoints as it may have.",
            {"field": "checkpoints", "limit": limit, "size": snapshot.checkpoint_count + 1},
        )
    claim = snapshot.claim
    assert claim is not None
    draft = Draft(snapshot, now)
    draft.set(checkpoint_count=snapshot.checkpoint_count + 1)
    draft.move(S.CHECKPOINTED, actor=claim.worker_id, attempt_id=claim.attempt_id, checkpoint_id=checkpoint_id)
    return draft.decide()


def release(
    snapshot: Snapshot,
    fence: Fence,
    now: dt.datetime,
    *,
    attempt: PastAttempt | None,
    reason: str,
    max_releases: int,
    draw: float,
) -> Decision | None:
    """Give the work back: READY and due at once. None: the attempt of this fence was released before.

    The first `max_releases` of a workload are not counted against its budget. Past that they are, and if that uses it
    up, the work is dead-lettered in the same commit.
    """
    if attempt is not None and attempt.is_of(fence) and attempt.status is AttemptStatus.RELEASED:
        return None
    late = deadlines.enforce(snapshot, now, draw=draw)
    if late is not None:
        return late
    check_fence(snapshot, fence, now)
    if snapshot.state not in CLAIMED:
        raise denied(snapshot.state, S.READY)
    draft = Draft(snapshot, now)
    uncounted = snapshot.uncounted_releases < max_releases
    draft.set(
        release_count=snapshot.release_count + 1,
        uncounted_releases=snapshot.uncounted_releases + (1 if uncounted else 0),
    )
    draft.close_attempt(AttemptStatus.RELEASED, by="worker")
    said = {"reason": reason} if reason else {}
    if draft.after.budget_is_used:
        dead_letter(draft, "attempt_budget_exhausted", actor=fence.worker_id, **said)
    else:
        draft.set(next_attempt_at=now)
        draft.move(S.READY, actor=fence.worker_id, decision="released", **said)
    return draft.decide()


def confirm_cancel(
    snapshot: Snapshot, fence: Fence, now: dt.datetime, *, attempt: PastAttempt | None, late_is_accepted: bool
) -> Decision | None:
    """End work whose cancellation was requested: CANCELLED. None: the worker of this fence confirmed it before."""
    if (
        attempt is not None
        and attempt.is_of(fence)
        and attempt.status is AttemptStatus.CANCELLED
        and attempt.ended_by == "worker"
    ):
        return None
    late = check_fence(snapshot, fence, now, late_is_accepted=late_is_accepted)
    if snapshot.state is not S.CANCELLATION_REQUESTED:
        raise denied(snapshot.state, S.CANCELLED)
    draft = Draft(snapshot, now)
    draft.close_attempt(AttemptStatus.CANCELLED, by="worker")
    draft.move(S.CANCELLED, actor=fence.worker_id, **({"late": "true"} if late else {}))
    return draft.decide()


def _with(
    claim: CurrentClaim,
    *,
    started_at: dt.datetime | None = None,
    last_heartbeat: dt.datetime | None = None,
    expires_at: dt.datetime | None = None,
) -> CurrentClaim:
    return CurrentClaim(
        claim_id=claim.claim_id,
        worker_id=claim.worker_id,
        attempt_id=claim.attempt_id,
        claimed_at=claim.claimed_at,
        started_at=started_at or claim.started_at,
        last_heartbeat=last_heartbeat or claim.last_heartbeat,
        expires_at=expires_at or claim.expires_at,
    )
