"""How a claim is judged, and what its holder may do: leases, checkpoints, scopes, releases, cancellation. Section 5."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.lifecycle.builders import (
    BEAT_AT,
    CLAIMED_AT,
    EXPIRES_AT,
    LEASE_MS,
    MS,
    NOW,
    check,
    fence_of,
    make,
    past_attempt,
    policy,
    refused,
    text,
)
from tests.lifecycle.verbs import cancel, checkpoint, claim, confirm_cancel, enforce, heartbeat, over, release
from workloads.contract import AttemptStatus, Claim, Timeouts, WorkloadState
from workloads.lifecycle import claims
from workloads.lifecycle.decision import AttemptClosed, Decision
from workloads.lifecycle.snapshot import Snapshot, Standing

S = WorkloadState


# The order in which a claim is judged, and what it says.


def judge(snapshot: Snapshot, capabilities: set[str], unmet: tuple[str, ...] = ()) -> Decision | None:
    return claims.judge_claim(snapshot, NOW, capabilities=capabilities, unmet=unmet, draw=0)


def test_a_claim_is_judged_in_order() -> None:
    worst = make(
        dependency_standing=Standing.WAITING,
        next_attempt_at=NOW + MS,
        attempt_count=3,
        fencing_token=3,
        timeouts=Timeouts(overall_ms=1),
    )
    decision = judge(worst, set())
    assert decision is not None and decision.refusal is not None
    assert decision.refusal.code == "WORKLOAD_TIMED_OUT"
    blocked = replace(worst, timeouts=Timeouts())
    assert refused("WORKLOAD_NOT_READY", judge, blocked, set(), ("workload_b", "workload_a")) == {
        "state": "READY",
        "dependencies": ["workload_a", "workload_b"],
    }
    early = replace(blocked, dependency_standing=Standing.MET)
    assert refused("WORKLOAD_NOT_READY", judge, early, set()) == {"state": "READY", "next_attempt_at": text(NOW + MS)}
    due = replace(early, next_attempt_at=NOW)
    decision = judge(due, set())
    assert decision is not None and decision.refusal is not None
    assert decision.refusal.code == "WORKLOAD_ATTEMPTS_EXHAUSTED"
    assert decision.refusal.details == {"budget": 3}
    check(decision)
    (event,) = decision.events
    assert (event.to_state, event.actor) == ("DEAD_LETTER", "authority.claim")
    assert event.evidence == {"decision": "attempt_budget_exhausted"}
    assert decision.after.last_failure is None
    able = replace(due, attempt_count=2, fencing_token=2)
    assert refused("WORKLOAD_CAPABILITY_DENIED", judge, able, {"cpu", "disk"}) == {"missing": ["net"]}
    assert judge(able, {"cpu", "net"}) is None


@pytest.mark.parametrize("standing", [Standing.WAITING, Standing.MISSING, Standing.UNMEETABLE])
def test_no_standing_but_met_is_claimable(standing: Standing) -> None:
    blocked = make(dependency_standing=standing)
    refused("WORKLOAD_NOT_READY", judge, blocked, {"cpu", "net"}, ("workload_8",))
    assert not claims.is_claimable(blocked, NOW)
    assert claims.is_claimable(replace(blocked, dependency_standing=Standing.MET), NOW)


@pytest.mark.parametrize(
    ("attempts", "uncounted", "rearmed", "used"),
    [(0, 0, 0, False), (2, 0, 0, False), (3, 0, 0, True), (3, 1, 0, False), (3, 0, 1, False), (9, 5, 1, True)],
)
def test_the_budget(attempts: int, uncounted: int, rearmed: int, used: bool) -> None:
    snapshot = make(attempt_count=attempts, uncounted_releases=uncounted, operator_retries=rearmed)
    assert snapshot.budget_is_used is used
    assert claims.is_claimable(snapshot, NOW) is not used


def test_tokens_rise_whatever_happened_between() -> None:
    decision = claim(make(attempt_count=2, fencing_token=2, release_count=1, uncounted_releases=1))
    assert decision is not None
    assert (decision.after.fencing_token, decision.after.attempt_count) == (3, 3)
    assert decision.after.next_attempt_at is None


def test_a_claim_is_not_started_unless_it_is_asked_for() -> None:
    ids = {"worker_id": "worker-2", "claim_id": "claim-2", "attempt_id": "attempt-2"}
    decision = claims.claim(make(), NOW, lease_ms=LEASE_MS, **ids)
    check(decision)
    assert decision.after.state is S.CLAIMED
    assert decision.after.claim is not None and decision.after.claim.started_at is None


# Leases, checkpoints, scopes.


@pytest.mark.parametrize(("extend_ms", "expires_at"), [(1, EXPIRES_AT), (LEASE_MS, NOW + LEASE_MS * MS)])
def test_a_heartbeat_never_shortens_the_lease(extend_ms: int, expires_at: Any) -> None:
    snapshot = make(S.RUNNING)
    decision = claims.heartbeat(snapshot, fence_of(snapshot), NOW, extend_ms=extend_ms, draw=0)
    claim = decision.after.claim
    assert claim is not None and snapshot.claim is not None
    assert claim == replace(snapshot.claim, last_heartbeat=NOW, expires_at=expires_at)
    check(decision)


def test_the_claim_that_a_holder_sees() -> None:
    asked = make(S.CANCELLATION_REQUESTED).as_claim(NOW)
    assert asked.cancellation_requested and not make(S.RUNNING).as_claim(NOW).cancellation_requested
    assert asked.lease_left_ms == LEASE_MS - 10_000
    assert make(S.RUNNING).as_claim(EXPIRES_AT - MS / 2).lease_left_ms == 0
    assert make(S.RUNNING).as_claim(EXPIRES_AT + MS).lease_left_ms == 0
    assert asked.fence == fence_of(make(S.RUNNING))
    assert asked == Claim(
        workload_id="workload_7",
        attempt_id="attempt-1",
        attempt_number=1,
        claim_id="claim-1",
        worker_id="worker-1",
        fencing_token=1,
        claimed_at=CLAIMED_AT,
        last_heartbeat=BEAT_AT,
        expires_at=EXPIRES_AT,
        lease_left_ms=LEASE_MS - 10_000,
        cancellation_requested=True,
        definition_id="definition",
        definition_revision="1",
    )


def test_checkpoints_are_counted_after_the_state_is_judged() -> None:
    full = make(S.RUNNING, checkpoint_count=3)
    details = refused("WORKLOAD_TOO_LARGE", checkpoint, full, limit=3)
    assert details == {"field": "checkpoints", "limit": 3, "size": 4}
    assert checkpoint(full, limit=4) is not None
    refused("WORKLOAD_TRANSITION_DENIED", checkpoint, make(S.CLAIMED, checkpoint_count=3), limit=3)
    assert checkpoint(full, known='{"at":1}', limit=3) is None


def test_a_reference_outside_the_scopes() -> None:
    snapshot = make(S.RUNNING)
    details = refused(
        "WORKLOAD_SCOPE_DENIED",
        claims.context,
        snapshot,
        fence_of(snapshot),
        NOW,
        secret_references={"scope-a", "scope-c", "scope-b"},
        connection_scopes=snapshot.connection_scopes,
        draw=0,
    )
    assert details == {"missing": ["scope-b", "scope-c"]}


# Releases.


def test_a_release_is_due_at_once_and_not_counted() -> None:
    decision = release(make(S.RUNNING, retry_policy=policy(max_attempts=1)))
    assert decision is not None
    after = decision.after
    assert (after.state, after.next_attempt_at) == (S.READY, NOW)
    assert (after.attempt_count, after.uncounted_releases, after.budget_is_used) == (1, 1, False)


@pytest.mark.parametrize("reason", ["", "deploy"])
def test_a_counted_release_that_uses_up_the_budget_is_dead_lettered_by_the_worker(reason: str) -> None:
    last = make(S.RUNNING, retry_policy=policy(max_attempts=1), release_count=20, uncounted_releases=20)
    last = replace(last, attempt_count=21, fencing_token=21)
    decision = release(last, reason=reason)
    assert decision is not None
    check(decision)
    (event,) = decision.events
    kept = {"reason": reason} if reason else {}
    assert (event.to_state, event.actor) == ("DEAD_LETTER", "worker-1")
    assert event.evidence == {"decision": "attempt_budget_exhausted", **kept}
    assert (decision.after.release_count, decision.after.uncounted_releases) == (21, 20)
    assert isinstance(decision.attempt, AttemptClosed) and decision.attempt.status is AttemptStatus.RELEASED


def test_a_counted_release_with_budget_left_is_ready() -> None:
    decision = release(make(S.RUNNING), max_releases=0)
    assert decision is not None
    assert (decision.after.state, decision.after.release_count, decision.after.uncounted_releases) == (S.READY, 1, 0)
    assert decision.events[0].evidence == {"decision": "released", "reason": "deploy"}


@pytest.mark.parametrize("state", [S.READY, S.RUNNING, S.SUCCEEDED, S.CANCELLED])
def test_a_repeated_release_answers_before_deadlines_and_fence(state: WorkloadState) -> None:
    later = replace(make(state, timeouts=Timeouts(overall_ms=1)), fencing_token=1)
    assert release(later, attempt=past_attempt(AttemptStatus.RELEASED)) is None


@pytest.mark.parametrize(
    "attempt",
    [
        past_attempt(AttemptStatus.RELEASED, claim_id="claim-0"),
        past_attempt(AttemptStatus.RELEASED, worker_id="worker-0"),
        past_attempt(AttemptStatus.RELEASED, fencing_token=2),
        past_attempt(AttemptStatus.FAILED),
        past_attempt(AttemptStatus.WORKER_LOST, ended_by="clock"),
    ],
)
def test_another_ending_is_not_a_repeated_release(attempt: Any) -> None:
    refused("WORKLOAD_CLAIM_INVALID", release, make(S.READY, fencing_token=1), attempt=attempt)


# Cancellation.


def test_a_repeated_confirmation_is_answered_only_to_the_worker_that_confirmed() -> None:
    ended = make(S.CANCELLED)
    assert confirm_cancel(ended, past_attempt(AttemptStatus.CANCELLED)) is None
    forced = past_attempt(AttemptStatus.CANCELLED, ended_by="operator")
    refused("WORKLOAD_CLAIM_INVALID", confirm_cancel, ended, forced)
    lost = past_attempt(AttemptStatus.WORKER_LOST, ended_by="clock")
    refused("WORKLOAD_CLAIM_INVALID", confirm_cancel, ended, lost)
    other = past_attempt(AttemptStatus.CANCELLED, claim_id="claim-0")
    refused("WORKLOAD_CLAIM_INVALID", confirm_cancel, ended, other)


def test_a_late_confirmation_is_marked_where_the_site_accepts_it() -> None:
    snapshot = over(make(S.CANCELLATION_REQUESTED))
    decision = claims.confirm_cancel(snapshot, fence_of(snapshot), NOW, attempt=None, late_is_accepted=True)
    assert decision is not None
    assert decision.events[0].evidence == {"late": "true"}


def test_no_deadline_ends_cancellation_requested() -> None:
    asked = make(
        S.CANCELLATION_REQUESTED,
        timeouts=Timeouts(overall_ms=1, queue_ms=1, claim_ms=1, execution_ms=1, heartbeat_ms=1),
    )
    assert enforce(asked) is None
    assert heartbeat(asked) is not None


@pytest.mark.parametrize("state", ["READY", "RUNNING", "DEAD_LETTER"])
def test_a_reason_that_is_empty_is_left_out(state: str) -> None:
    for force in (False, True):
        decision = cancel(make(S(state)), force=force, reason="")
        assert decision is not None
        assert all("reason" not in event.evidence for event in decision.events)
