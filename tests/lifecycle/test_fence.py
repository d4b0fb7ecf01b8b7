"""The fence: section 5. Every mismatch, in the order in which it is judged."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given, strategies as st

from tests.lifecycle.builders import EXPIRES_AT, MS, NOW, US, fence_of, make, refused
from workloads.contract import Fence, WorkloadState
from workloads.lifecycle.claims import check_fence

S = WorkloadState
HELD = [S.CLAIMED, S.RUNNING, S.CHECKPOINTED, S.CANCELLATION_REQUESTED]
FREE = [state for state in WorkloadState if state not in HELD]

ids = st.sampled_from(["claim-1", "claim-2", "CLAIM-1", "claim-1 ", "", "ﬀ"])
workers = st.sampled_from(["worker-1", "worker-2", "Worker-1", "worker-1 ", ""])
tokens = st.integers(-2, 8) | st.sampled_from([2**31, 2**63, -(2**70), 10**30])
instants = st.integers(-5, 5).map(lambda steps: EXPIRES_AT + steps * US) | st.just(NOW)


@given(
    state=st.sampled_from(list(WorkloadState)),
    current=st.integers(1, 5),
    token=tokens,
    claim_id=ids,
    worker_id=workers,
    now=instants,
    late_is_accepted=st.booleans(),
)
def test_the_order_of_judgement(
    state: WorkloadState,
    current: int,
    token: int,
    claim_id: str,
    worker_id: str,
    now: dt.datetime,
    late_is_accepted: bool,
) -> None:
    snapshot = make(state, fencing_token=current)
    fence = Fence(workload_id="workload_7", claim_id=claim_id, worker_id=worker_id, fencing_token=token)
    if state in FREE:
        expected = "WORKLOAD_CLAIM_INVALID"
    elif token < current:
        expected = "WORKLOAD_STALE_FENCE"
    elif (token, claim_id, worker_id) != (current, "claim-1", "worker-1"):
        expected = "WORKLOAD_CLAIM_INVALID"
    elif now >= EXPIRES_AT and not late_is_accepted:
        expected = "WORKLOAD_LEASE_EXPIRED"
    else:
        assert check_fence(snapshot, fence, now, late_is_accepted=late_is_accepted) is (now >= EXPIRES_AT)
        return
    refused(expected, check_fence, snapshot, fence, now, late_is_accepted=late_is_accepted)


@pytest.mark.parametrize("state", HELD)
def test_the_lease_is_over_at_its_end_to_the_microsecond(state: WorkloadState) -> None:
    snapshot = make(state)
    fence = fence_of(snapshot)
    for before in (NOW, EXPIRES_AT - MS, EXPIRES_AT - US):
        assert check_fence(snapshot, fence, before) is False
    for after in (EXPIRES_AT, EXPIRES_AT + US, EXPIRES_AT + MS):
        refused("WORKLOAD_LEASE_EXPIRED", check_fence, snapshot, fence, after)
        assert check_fence(snapshot, fence, after, late_is_accepted=True) is True


@pytest.mark.parametrize("state", HELD)
def test_a_late_report_needs_the_current_token(state: WorkloadState) -> None:
    snapshot = make(state, fencing_token=3)
    for changes, code in (
        ({"fencing_token": 2}, "WORKLOAD_STALE_FENCE"),
        ({"fencing_token": 4}, "WORKLOAD_CLAIM_INVALID"),
        ({"claim_id": "claim-2"}, "WORKLOAD_CLAIM_INVALID"),
        ({"worker_id": "worker-2"}, "WORKLOAD_CLAIM_INVALID"),
    ):
        refused(code, check_fence, snapshot, fence_of(snapshot, **changes), EXPIRES_AT, late_is_accepted=True)


@pytest.mark.parametrize("state", FREE)
def test_with_no_claim_even_an_older_token_is_a_claim_that_is_invalid(state: WorkloadState) -> None:
    snapshot = make(state, fencing_token=5)
    for token in (0, 4, 5, 6):
        refused("WORKLOAD_CLAIM_INVALID", check_fence, snapshot, fence_of(snapshot, fencing_token=token), NOW)


def test_identifiers_are_compared_as_they_are() -> None:
    snapshot = make(S.RUNNING)
    for claim_id in ("Claim-1", "claim-1 ", " claim-1", "claim\u20101"):
        refused("WORKLOAD_CLAIM_INVALID", check_fence, snapshot, fence_of(snapshot, claim_id=claim_id), NOW)
