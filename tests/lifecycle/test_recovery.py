"""What the clock has to say, and the columns that tell when: `due_at`, the queue, the wait. Sections 4 and 8."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tests.lifecycle.builders import EPOCH, EXPIRES_AT, HELD, MS, NOW, US, check, make, make_claim, policy, steps, text
from tests.lifecycle.verbs import recover
from workloads.contract import Timeouts, WorkloadState
from workloads.errors import WorkloadError
from workloads.lifecycle import claims, deadlines, recovery
from workloads.lifecycle.recovery import derive
from workloads.lifecycle.snapshot import Snapshot, Standing

S = WorkloadState
NAMES = "overall queue claim execution heartbeat".split()


def instants(low_ms: int = -5_000, high_ms: int = 60_000) -> st.SearchStrategy[dt.datetime]:
    return st.integers(low_ms * 1000, high_ms * 1000).map(lambda us: EPOCH + us * US)


@st.composite
def snapshots(draw: Any) -> Snapshot:
    """Any workload, as far as the clock looks at it."""
    # The clock has nothing to say in any other state: those in which it has come up more often.
    state = draw(st.sampled_from([*WorkloadState, *[S.READY] * 8, *sorted(HELD), *sorted(HELD)]))
    claim = None
    if state in HELD:
        claimed_at = draw(instants(0, 20_000))
        started = state in {S.RUNNING, S.CHECKPOINTED} or (state is S.CANCELLATION_REQUESTED and draw(st.booleans()))
        claim = make_claim(
            state,
            claimed_at=claimed_at,
            started_at=claimed_at + draw(st.integers(0, 5_000)) * MS if started else None,
            last_heartbeat=claimed_at + draw(st.integers(0, 20_000)) * MS,
            expires_at=claimed_at + draw(st.integers(1, 40_000)) * MS,
        )
    attempts = draw(st.integers(1 if claim else 0, 4))
    return make(
        state,
        claim=claim,
        contract_version=draw(st.sampled_from([1, 2, 2, 2])),
        timeouts=Timeouts(**{f"{name}_ms": draw(st.none() | st.integers(1, 40_000)) for name in NAMES}),
        retry_policy=policy(*draw(st.sets(st.sampled_from(["timeout", "worker_failure"])))),
        next_attempt_at=draw(st.none() | instants()) if state is S.READY else None,
        overall_from=draw(instants(0, 20_000)),
        attempt_count=attempts,
        fencing_token=attempts,
        uncounted_releases=draw(st.integers(0, max(0, attempts - 1))),
        dependency_standing=draw(st.sampled_from(Standing)),
    )


def clock_speaks(snapshot: Snapshot, now: dt.datetime) -> bool:
    """Tell whether any part of a pass would decide something about the workload at `now`."""
    return (
        deadlines.enforce(snapshot, now, draw=0) is not None
        or recovery.recover(snapshot, now, draw=0) is not None
        or recovery.give_up_on_dependency(snapshot, now, dependency="workload_8") is not None
    )


@given(snapshot=snapshots(), derived_at=instants(0, 20_000), now=instants())
def test_due_at_is_a_lower_bound(snapshot: Snapshot, derived_at: dt.datetime, now: dt.datetime) -> None:
    # An unmeetable dependency is a thing of now, not of an instant: work was admitted before anybody looks.
    now = max(now, snapshot.created_at)
    due_at = derive(snapshot, derived_at).due_at
    if clock_speaks(snapshot, now):
        assert due_at is not None and due_at <= now
    for early in [now] if due_at is None else [due_at - US, due_at - 1000 * MS]:
        if (due_at is None or early < due_at) and early >= snapshot.created_at:
            assert not clock_speaks(snapshot, early)


@given(snapshot=snapshots(), now=instants(0, 20_000))
def test_due_at_is_no_earlier_than_it_need_be(snapshot: Snapshot, now: dt.datetime) -> None:
    due_at = derive(snapshot, now).due_at
    if due_at is None:
        assert not clock_speaks(snapshot, EPOCH.replace(year=2899))
    elif snapshot.state is S.READY and snapshot.dependency_standing is Standing.MISSING:
        assert clock_speaks(snapshot, due_at) or due_at == now + dt.timedelta(minutes=1)
    else:
        assert clock_speaks(snapshot, due_at)


@given(snapshot=snapshots(), later_ms=st.integers(0, 40_000), extend_ms=st.integers(1, 40_000))
def test_due_at_stays_a_lower_bound_when_a_heartbeat_leaves_it_alone(
    snapshot: Snapshot, later_ms: int, extend_ms: int
) -> None:
    claim = snapshot.claim
    if claim is None:
        return
    beat = claim.last_heartbeat + later_ms * MS
    after = replace(
        snapshot,
        claim=replace(claim, last_heartbeat=beat, expires_at=max(claim.expires_at, beat + extend_ms * MS)),
    )
    before_it, after_it = derive(snapshot, beat).due_at, derive(after, beat).due_at
    assert before_it is not None and after_it is not None and before_it <= after_it


@given(snapshot=snapshots(), now=instants())
def test_the_queue_and_the_wait_agree_with_the_rule(snapshot: Snapshot, now: dt.datetime) -> None:
    derived = derive(snapshot, now)
    assert not (derived.queued and derived.waiting)
    unhindered = deadlines.passed(snapshot, now) is None and not snapshot.budget_is_used
    assert claims.is_claimable(snapshot, now) == (derived.queued and unhindered)
    due = snapshot.next_attempt_at
    if derived.waiting:
        assert due is not None and due > now
        assert not claims.is_claimable(snapshot, due - US)
        in_time = deadlines.passed(snapshot, due) is None and not snapshot.budget_is_used
        assert claims.is_claimable(snapshot, due) == in_time
        assert derive(snapshot, due).queued
    if not derived.queued and not derived.waiting:
        assert not claims.is_claimable(snapshot, EPOCH.replace(year=2899))


@given(snapshot=snapshots(), now=instants())
def test_the_queue_agrees_with_how_a_claim_is_judged(snapshot: Snapshot, now: dt.datetime) -> None:
    try:
        decision = claims.judge_claim(snapshot, now, capabilities={"cpu", "net"}, unmet=(), draw=0)
    except WorkloadError:
        assert not claims.is_claimable(snapshot, now)
    else:
        assert claims.is_claimable(snapshot, now) == (decision is None)


@given(snapshot=snapshots(), now=instants(), jitter=st.floats(0, 1))
def test_whatever_the_clock_decides_is_sound_and_decided_once(
    snapshot: Snapshot, now: dt.datetime, jitter: float
) -> None:
    late = deadlines.enforce(snapshot, now, draw=jitter)
    lost = recovery.recover(snapshot, now, draw=jitter)
    for decision in (late, lost):
        if decision is not None:
            check(decision)
            assert deadlines.enforce(decision.after, now, draw=jitter) is None or decision is lost
            assert recovery.recover(decision.after, now, draw=jitter) is None


@pytest.mark.parametrize("state", list(WorkloadState))
def test_without_timeouts_only_a_lease_is_due(state: WorkloadState) -> None:
    derived = derive(make(state), NOW)
    assert derived.due_at == (EXPIRES_AT if state in HELD else None)
    assert derived.queued is (state is S.READY)
    assert derived.waiting is False


@pytest.mark.parametrize(
    ("due", "queued", "waiting"),
    [(None, True, False), (NOW - US, True, False), (NOW, True, False), (NOW + US, False, True)],
)
def test_ready_work_is_queued_from_the_instant_at_which_it_is_due(
    due: dt.datetime | None, queued: bool, waiting: bool
) -> None:
    derived = derive(make(next_attempt_at=due), NOW)
    assert (derived.queued, derived.waiting) == (queued, waiting)
    for standing in (Standing.WAITING, Standing.MISSING, Standing.UNMEETABLE):
        blocked = derive(make(next_attempt_at=due, dependency_standing=standing), NOW)
        assert (blocked.queued, blocked.waiting) == (False, False)


@pytest.mark.parametrize("state", list(WorkloadState))
@pytest.mark.parametrize("standing", list(Standing))
def test_only_ready_work_is_given_up_for_a_dependency(state: WorkloadState, standing: Standing) -> None:
    decision = recovery.give_up_on_dependency(make(state, dependency_standing=standing), NOW, dependency="workload_8")
    if state is S.READY and standing is Standing.UNMEETABLE:
        assert decision is not None
        check(decision)
        assert steps(decision) == ["DEAD_LETTER"]
        assert decision.attempt is None
        assert decision.after.last_failure is None
    else:
        assert decision is None


def test_work_that_waits_in_vain_is_due_at_any_instant() -> None:
    derived = derive(make(dependency_standing=Standing.UNMEETABLE), NOW)
    assert derived.due_at is not None and derived.due_at <= EPOCH


def test_work_that_waits_for_what_nobody_admitted_is_looked_at_again() -> None:
    derived = derive(make(dependency_standing=Standing.MISSING), NOW)
    assert derived.due_at == NOW + dt.timedelta(minutes=1)
    sooner = derive(make(dependency_standing=Standing.MISSING, timeouts=Timeouts(queue_ms=1)), NOW)
    assert sooner.due_at == EPOCH + MS


@pytest.mark.parametrize(
    ("waited_s", "next_s"), [(-5, 60), (0, 60), (119, 60), (120, 60), (121, 60.5), (86_400, 43_200)]
)
def test_it_is_looked_at_ever_more_seldom(waited_s: int, next_s: float) -> None:
    now = EPOCH + dt.timedelta(seconds=waited_s)
    derived = derive(make(dependency_standing=Standing.MISSING), now)
    assert derived.due_at == now + dt.timedelta(seconds=next_s)


# What follows a lost worker.


@pytest.mark.parametrize("state", ["CLAIMED", "RUNNING", "CHECKPOINTED"])
@pytest.mark.parametrize(
    ("kinds", "attempts", "decision", "to"),
    [
        ((), 3, "worker_failure_not_retryable", "DEAD_LETTER"),
        (("timeout",), 1, "worker_failure_not_retryable", "DEAD_LETTER"),
        (("worker_failure",), 1, "attempt_budget_exhausted", "DEAD_LETTER"),
        (("worker_failure",), 2, "retry", "READY"),
    ],
)
def test_what_follows_a_lost_worker(state: str, kinds: tuple[str, ...], attempts: int, decision: str, to: str) -> None:
    found = recover(make(S(state), retry_policy=policy(*kinds, max_attempts=attempts)))
    assert found is not None
    check(found)
    assert steps(found) == ["RECOVERING", to]
    evidence = dict(found.events[1].evidence)
    assert evidence.pop("decision") == decision
    assert evidence == ({"next_attempt_at": text(NOW + 1000 * MS)} if to == "READY" else {})


def test_a_requested_cancellation_is_kept_when_the_worker_is_lost() -> None:
    found = recover(make(S.CANCELLATION_REQUESTED, retry_policy=policy()))
    assert found is not None
    assert steps(found) == ["RECOVERING", "CANCELLED"]


def test_a_lease_is_over_at_its_end_and_not_before() -> None:
    snapshot = make(S.RUNNING)
    for early in (EXPIRES_AT - MS / 1000, EXPIRES_AT - MS):
        assert recovery.recover(snapshot, early, draw=0) is None
        assert not recovery.lease_is_over(snapshot, early)
    assert recovery.recover(snapshot, EXPIRES_AT, draw=0) is not None
    assert recovery.lease_is_over(snapshot, EXPIRES_AT)
