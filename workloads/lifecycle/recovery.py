"""Lost leases, unmeetable dependencies, and when the clock has something to say. Section 8 and section 4."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Final

from workloads.contract import AttemptStatus, WorkloadState
from workloads.lifecycle.canonical import iso
from workloads.lifecycle.deadlines import running_deadlines
from workloads.lifecycle.decision import Decision, Draft
from workloads.lifecycle.retries import dead_letter, retry
from workloads.lifecycle.snapshot import Snapshot, Standing

ACTOR = "authority.recovery"
SOONEST_LOOK: Final = dt.timedelta(minutes=1)


def lease_is_over(snapshot: Snapshot, now: dt.datetime) -> bool:
    """Tell whether the workload is held under a lease that is over at `now`."""
    return snapshot.claim is not None and snapshot.claim.expires_at <= now


def recover(snapshot: Snapshot, now: dt.datetime, *, draw: float) -> Decision | None:
    """Take work back from a worker whose lease is over; None when it is not."""
    claim = snapshot.claim
    if claim is None or claim.expires_at > now:
        return None
    draft = Draft(snapshot, now)
    expires_at = iso(claim.expires_at)
    error = f"worker_failure: lease over at {expires_at}"
    draft.close_attempt(AttemptStatus.WORKER_LOST, by="clock", error=error)
    draft.set(last_failure=error)
    draft.move(
        WorkloadState.RECOVERING,
        actor=ACTOR,
        claim_id=claim.claim_id,
        worker_id=claim.worker_id,
        expires_at=expires_at,
    )
    if snapshot.state is WorkloadState.CANCELLATION_REQUESTED:
        draft.move(WorkloadState.CANCELLED, actor=ACTOR)
    elif "worker_failure" not in snapshot.retry_policy.retry_on:
        dead_letter(draft, "worker_failure_not_retryable", actor=ACTOR)
    elif snapshot.budget_is_used:
        dead_letter(draft, "attempt_budget_exhausted", actor=ACTOR)
    else:
        retry(draft, actor=ACTOR, draw=draw)
    return draft.decide()


def give_up_on_dependency(snapshot: Snapshot, now: dt.datetime, *, dependency: str) -> Decision | None:
    """Park READY work that waits for `dependency`, which can't come into the required state any more."""
    if snapshot.state is not WorkloadState.READY or snapshot.dependency_standing is not Standing.UNMEETABLE:
        return None
    draft = Draft(snapshot, now)
    dead_letter(draft, "dependency_unsatisfiable", actor=ACTOR, dependency=dependency)
    return draft.decide()


@dataclass(frozen=True, kw_only=True, slots=True)
class Derived:
    """What columns carry so that queries need not repeat the rules.

    `due_at` is a lower bound on the instant at which the clock has something to say about the workload, None if it
    never has. A workload stands in the queue (`queued`) or beside it until it is due (`waiting`), or in neither.
    """

    due_at: dt.datetime | None
    queued: bool
    waiting: bool


def derive(snapshot: Snapshot, now: dt.datetime) -> Derived:
    """Return the derived columns of a workload, as they are right at `now`.

    Work with a dependency that nobody has admitted yet is looked at again: the admission may have been under way,
    unseen, when it was asked for. That is after a minute at first and then ever more seldom, whenever it has waited
    half as long again; so it is never found later than that, and what waits for long costs next to nothing.
    """
    instants = [at for _, at in running_deadlines(snapshot)]
    queued = waiting = False
    if snapshot.claim is not None:
        instants.append(snapshot.claim.expires_at)
    elif snapshot.state is WorkloadState.READY:
        if snapshot.dependency_standing is Standing.UNMEETABLE:
            instants.append(snapshot.created_at)
        elif snapshot.dependency_standing is Standing.MISSING:
            instants.append(now + max(SOONEST_LOOK, (now - snapshot.created_at) / 2))
        if snapshot.dependency_standing is Standing.MET:
            queued = snapshot.next_attempt_at is None or snapshot.next_attempt_at <= now
            waiting = not queued
    return Derived(due_at=min(instants, default=None), queued=queued, waiting=waiting)
