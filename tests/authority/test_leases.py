"""What the holder of a claim does until it reports. Section 5, the table of calls."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.authority.builders import (
    CLAIMED,
    EXPIRES_AT,
    HELD,
    STARTED_AT,
    S,
    admit,
    attempts,
    bring,
    claim,
    events,
    record,
    refused,
    running,
    state_of,
    take,
    unchanged,
)
from tests.support import T0, at
from workloads import authority
from workloads.contract import Claim, RetryPolicy, Timeouts
from workloads.errors import WorkloadError

pytestmark = pytest.mark.django_db

KEY = "AKIA" + "Q" * 16


# start


def test_start_lets_claimed_work_run() -> None:
    workload_id, fence = bring(S.CLAIMED)
    given = authority.start(fence, now=STARTED_AT)
    assert (given.claim_id, given.lease_left_ms, given.expires_at) == (fence.claim_id, 599_000, EXPIRES_AT)
    workload = authority.get(workload_id)
    assert (workload.state, workload.version, workload.updated_at) == ("RUNNING", 3, STARTED_AT)
    last = events(workload_id)[-1]
    assert (last.from_state, last.to_state, last.actor, last.at) == ("CLAIMED", "RUNNING", "w", STARTED_AT)
    assert last.evidence == {"attempt_id": given.attempt_id}
    (attempt,) = attempts(workload_id)
    assert (attempt.status, attempt.started_at) == ("RUNNING", STARTED_AT)


@pytest.mark.parametrize("state", [S.RUNNING, S.CHECKPOINTED, S.CANCELLATION_REQUESTED])
def test_start_repeated_answers_with_the_current_claim_and_changes_nothing(state: str) -> None:
    workload_id, fence = bring(state)
    with unchanged(workload_id):
        given = authority.start(fence, now=at(5_000))
    assert given.fence == fence
    assert given.cancellation_requested is (state == S.CANCELLATION_REQUESTED)
    assert given.lease_left_ms == 596_000


def test_work_whose_cancellation_was_requested_before_it_started_does_not_start() -> None:
    workload_id, fence = bring(S.CLAIMED)
    authority.cancel(workload_id, actor="op", now=at(1_500))
    denied = {"from": "CANCELLATION_REQUESTED", "to": "RUNNING"}
    with unchanged(workload_id), refused("WORKLOAD_TRANSITION_DENIED", denied):
        authority.start(fence, now=STARTED_AT)


# heartbeat


@pytest.mark.parametrize("state", HELD)
def test_a_heartbeat_keeps_the_lease_without_an_event(state: str) -> None:
    workload_id, fence = bring(state)
    before = record(workload_id)
    given = authority.heartbeat(fence, extend_ms=900_000, now=at(5_000))
    after = record(workload_id)
    assert given.last_heartbeat == at(5_000)
    assert given.expires_at == at(905_000)
    assert given.lease_left_ms == 900_000
    assert given.cancellation_requested is (state == S.CANCELLATION_REQUESTED)
    changed = {k for k, v in after["workload"].items() if v != before["workload"][k]}
    assert changed == {"version", "updated_at", "last_heartbeat", "expires_at"}
    assert after["workload"]["version"] == before["workload"]["version"] + 1
    assert after["workload"]["updated_at"] == at(5_000)
    assert after["events"] == before["events"]
    assert after["attempts"] == before["attempts"]


def test_a_heartbeat_never_shortens_a_lease() -> None:
    _, fence = bring(S.RUNNING)
    given = authority.heartbeat(fence, extend_ms=1, now=at(5_000))
    assert (given.expires_at, given.lease_left_ms) == (EXPIRES_AT, 596_000)


def test_a_heartbeat_moves_no_derived_column() -> None:
    workload_id, fence = bring(S.RUNNING, timeouts=Timeouts(heartbeat_ms=60_000))
    due_at = authority.get(workload_id).due_at
    authority.heartbeat(fence, extend_ms=86_400_000, now=at(5_000))
    assert authority.get(workload_id).due_at == due_at


@pytest.mark.parametrize("extend_ms", [0, -1, 86_400_001, None, "5", True, 1.5])
def test_a_heartbeat_extends_by_1_to_the_sites_longest_lease(extend_ms: Any, django_assert_num_queries: Any) -> None:
    _, fence = bring(S.RUNNING)
    with refused("WORKLOAD_INVALID") as caught:
        authority.heartbeat(fence, extend_ms=extend_ms, now=at(5_000))
    assert caught.value.details is not None
    assert caught.value.details["field"] == "extend_ms"


def test_a_batch_of_heartbeats_keeps_many_leases() -> None:
    fences = [running(f"k{n}") for n in range(5)]
    answers = authority.heartbeat_many([(fence, 900_000 + n) for n, fence in enumerate(fences)], now=at(5_000))
    assert [c.expires_at for c in answers] == [at(905_000 + n) for n in range(5)]  # type: ignore[union-attr]
    assert [authority.get(f.workload_id).expires_at for f in fences] == [at(905_000 + n) for n in range(5)]


@pytest.mark.parametrize("wrong", [None, 5, "items"])
def test_what_is_no_list_of_heartbeats_is_refused(wrong: Any) -> None:
    with refused("WORKLOAD_INVALID", {"field": "items"}):
        authority.heartbeat_many(wrong, now=at(5_000))


@pytest.mark.parametrize("wrong", [None, 5, "it", (1,), (1, 2, 3)])
def test_what_is_no_pair_refuses_its_item_alone(wrong: Any) -> None:
    refusal, kept = authority.heartbeat_many([wrong, [running(), 5]], now=at(5_000))  # type: ignore[list-item]
    assert isinstance(refusal, WorkloadError)
    assert (refusal.code, refusal.details) == ("WORKLOAD_INVALID", {"field": "items"})
    assert isinstance(kept, Claim)


def test_a_heartbeat_that_is_refused_refuses_its_item_alone() -> None:
    kept, stale = running("kept"), replace(running("other"), claim_id="none")
    nobody = replace(kept, workload_id="none")
    answers = authority.heartbeat_many([(nobody, 5), (stale, 5), (kept, 900_000)], now=at(5_000))
    codes = [answer.code for answer in answers if isinstance(answer, WorkloadError)]
    assert codes == ["WORKLOAD_NOT_FOUND", "WORKLOAD_CLAIM_INVALID"]
    assert isinstance(answers[2], Claim) and answers[2].expires_at == at(905_000)


def test_a_batch_takes_two_heartbeats_of_one_claim_in_their_order() -> None:
    fence = running()
    first, second = authority.heartbeat_many([(fence, 900_000), (fence, 5)], now=at(5_000))
    assert isinstance(first, Claim) and first.expires_at == at(905_000)
    assert second == first
    assert authority.get(fence.workload_id).expires_at == at(905_000)


# context


@pytest.mark.parametrize("state", HELD)
def test_context_is_all_that_the_holder_needs(state: str) -> None:
    workload_id, fence = bring(
        state,
        input={"b": 1.0, "a": [True]},
        environment="staging",
        capability_snapshot={"c"},
        connection_scopes={"s1", "s2"},
    )
    with unchanged(workload_id):
        given = authority.context(fence, secret_references=["s2"], now=at(5_000))
    assert given.fence == fence
    assert (given.tenant_id, given.application_id, given.environment) == ("t", "app", "staging")
    assert given.input == {"a": [True], "b": 1}
    assert given.capability_snapshot == frozenset({"c"})
    assert given.connection_scopes == frozenset({"s1", "s2"})
    assert given.secret_references == frozenset({"s2"})
    assert (given.attempt_number, given.definition_id, given.definition_revision) == (1, "d", "1")
    assert (given.expires_at, given.lease_left_ms) == (EXPIRES_AT, 596_000)
    assert given.cancellation_requested is (state == S.CANCELLATION_REQUESTED)
    assert [c.state for c in given.checkpoints] == ([{"step": 1}] if state == S.CHECKPOINTED else [])


def test_checkpoints_of_all_attempts_come_in_order() -> None:
    first = running(lease_ms=10_000)
    saved = [authority.checkpoint(first, {"step": n}, now=at(3_000 + n)) for n in (1, 2)]
    authority.recover_expired(now=at(11_000))
    second = claim(first.workload_id, now=at(20_000)).fence
    authority.start(second, now=at(20_000))
    saved.append(authority.checkpoint(second, {"step": 3}, key="k", now=at(20_001)))
    given = authority.context(second, now=at(20_002))
    assert list(given.checkpoints) == saved
    assert [c.sequence for c in given.checkpoints] == [1, 2, 3]
    assert given.attempt_number == 2


def test_a_reference_that_is_no_scope_is_denied() -> None:
    workload_id, fence = bring(S.RUNNING, connection_scopes={"s"})
    with unchanged(workload_id), refused("WORKLOAD_SCOPE_DENIED"):
        authority.context(fence, secret_references=["s", "S"], now=at(5_000))


@pytest.mark.parametrize("bad", ["s", None, [" "], [1], [str(n) for n in range(101)]])
def test_references_are_a_set_of_identifiers(bad: Any) -> None:
    _, fence = bring(S.RUNNING)
    with refused("WORKLOAD_INVALID") as caught:
        authority.context(fence, secret_references=bad, now=at(5_000))
    assert caught.value.details is not None
    assert caught.value.details["field"] == "secret_references"


def test_the_fence_comes_before_the_scope() -> None:
    _, fence = bring(S.RUNNING)
    with refused("WORKLOAD_LEASE_EXPIRED"):
        authority.context(fence, secret_references=["x"], now=EXPIRES_AT)


# release


@pytest.mark.parametrize("state", CLAIMED)
def test_release_gives_the_work_back_and_it_is_due_at_once(state: str) -> None:
    workload_id, fence = bring(state)
    version = authority.get(workload_id).version
    given = authority.release(fence, reason="a deploy", now=at(5_000))
    assert given == authority.get(workload_id)
    assert (given.state, given.next_attempt_at, given.version) == ("READY", at(5_000), version + 1)
    assert (given.release_count, given.uncounted_releases, given.attempt_count, given.retry_count) == (1, 1, 1, 0)
    assert (given.claim_id, given.worker_id, given.claimed_at) == (None, None, None)
    assert (given.last_heartbeat, given.expires_at, given.last_failure) == (None, None, None)
    last = events(workload_id)[-1]
    assert (last.from_state, last.to_state, last.actor) == (state, "READY", "w")
    assert last.evidence == {"decision": "released", "reason": "a deploy"}
    (attempt,) = attempts(workload_id)
    assert (attempt.status, attempt.ended_at, attempt.error) == ("RELEASED", at(5_000), None)
    assert take(now=at(5_000)) == [workload_id]


def test_a_release_need_not_say_why() -> None:
    workload_id, fence = bring(S.RUNNING)
    authority.release(fence, now=at(5_000))
    assert events(workload_id)[-1].evidence == {"decision": "released"}


def test_an_open_attempt_was_ended_by_nobody() -> None:
    workload_id, fence = bring(S.CLAIMED)
    assert attempts(workload_id)[0].ended_by == ""
    authority.release(fence, now=at(5_000))
    assert attempts(workload_id)[0].ended_by == "worker"


def test_work_whose_cancellation_was_requested_is_not_given_back() -> None:
    workload_id, fence = bring(S.CANCELLATION_REQUESTED)
    with (
        unchanged(workload_id),
        refused("WORKLOAD_TRANSITION_DENIED", {"from": "CANCELLATION_REQUESTED", "to": "READY"}),
    ):
        authority.release(fence, now=at(5_000))


def test_releases_do_not_use_up_the_budget_until_there_were_too_many(limits: Any) -> None:
    limits(MAX_RELEASES=2)
    workload_id = admit(retry_policy=RetryPolicy(max_attempts=2))
    for turn in range(3):
        now = at(10_000 * (turn + 1))
        released = authority.release(claim(workload_id, now=now).fence, reason=f"no. {turn}", now=now)
        assert released.state == "READY"
        assert (released.release_count, released.uncounted_releases) == (turn + 1, min(turn + 1, 2))
    parked = authority.release(claim(workload_id, now=at(50_000)).fence, reason="the last", now=at(50_000))
    assert (parked.state, parked.finished_at, parked.next_attempt_at) == ("DEAD_LETTER", at(50_000), None)
    assert (parked.release_count, parked.uncounted_releases, parked.attempt_count) == (4, 2, 4)
    last = events(workload_id)[-1]
    assert (last.from_state, last.to_state, last.actor) == ("CLAIMED", "DEAD_LETTER", "w")
    assert last.evidence == {"decision": "attempt_budget_exhausted", "reason": "the last"}
    assert [a.status for a in attempts(workload_id)] == ["RELEASED"] * 4


def test_three_shutdowns_are_no_failure() -> None:
    workload_id = admit(retry_policy=RetryPolicy(max_attempts=3))
    for turn in range(20):
        authority.release(claim(workload_id, now=at(10_000 * turn)).fence, now=at(10_000 * turn))
    given = claim(workload_id, now=at(300_000))
    assert (given.attempt_number, given.fencing_token) == (21, 21)
    assert authority.fail(given.fence, kind="timeout", error="", now=at(300_000)).decision == "retry"


def test_release_repeated_answers_with_the_workload_as_it_then_stands() -> None:
    workload_id, fence = bring(S.RUNNING, timeouts=Timeouts(queue_ms=60_000))
    authority.release(fence, reason="first", now=at(5_000))
    with unchanged(workload_id):
        assert authority.release(fence, reason="again", now=at(90_000)).state == "READY"
    second = claim(workload_id, now=at(6_000), worker_id="v")
    with unchanged(workload_id):
        again = authority.release(fence, now=at(7_000))
    assert (again.state, again.worker_id) == ("CLAIMED", "v")
    authority.start(second.fence, now=at(7_000))
    authority.complete(second.fence, result_id="r", output=1, now=at(8_000))
    assert authority.release(fence, now=at(10**9)).state == "SUCCEEDED"


def test_only_the_fence_of_the_released_attempt_is_answered_so() -> None:
    workload_id, fence = bring(S.RUNNING)
    authority.release(fence, now=at(5_000))
    with unchanged(workload_id), refused("WORKLOAD_CLAIM_INVALID"):
        authority.release(replace(fence, worker_id="x"), now=at(6_000))
    ended, other = bring(S.DEAD_LETTER, "other")
    with unchanged(ended), refused("WORKLOAD_CLAIM_INVALID"):
        authority.release(other, now=at(6_000))


@pytest.mark.parametrize("reason", ["x" * 2_001, "a\0b", "\udc00", None, 5])
def test_a_reason_is_bounded(reason: Any, django_assert_num_queries: Any) -> None:
    _, fence = bring(S.RUNNING)
    with django_assert_num_queries(0), refused("WORKLOAD_INVALID") as caught:
        authority.release(fence, reason=reason, now=at(5_000))
    assert caught.value.details is not None
    assert caught.value.details["field"] == "reason"


def test_a_reason_holds_no_secret_and_may_be_long() -> None:
    workload_id, fence = bring(S.RUNNING)
    with unchanged(workload_id), refused("WORKLOAD_SECRET_MATERIAL"):
        authority.release(fence, reason=f"with {KEY}", now=at(5_000))
    authority.release(fence, reason="🎈" * 2_000, now=at(5_000))
    assert events(workload_id)[-1].evidence["reason"] == "🎈" * 2_000


# confirm_cancel


def test_a_worker_confirms_a_cancellation() -> None:
    workload_id, fence = bring(S.CANCELLATION_REQUESTED)
    given = authority.confirm_cancel(fence, now=at(5_000))
    assert given == authority.get(workload_id)
    assert (given.state, given.finished_at, given.claim_id) == ("CANCELLED", at(5_000), None)
    last = events(workload_id)[-1]
    assert (last.from_state, last.to_state, last.actor) == ("CANCELLATION_REQUESTED", "CANCELLED", "w")
    assert last.evidence == {}
    (attempt,) = attempts(workload_id)
    assert (attempt.status, attempt.ended_at) == ("CANCELLED", at(5_000))
    with unchanged(workload_id):
        assert authority.confirm_cancel(fence, now=at(10**9)).state == "CANCELLED"


@pytest.mark.parametrize("state", CLAIMED)
def test_what_nobody_asked_to_cancel_is_not_cancelled(state: str) -> None:
    workload_id, fence = bring(state)
    with unchanged(workload_id), refused("WORKLOAD_TRANSITION_DENIED", {"from": state, "to": "CANCELLED"}):
        authority.confirm_cancel(fence, now=at(5_000))


def test_a_cancellation_that_an_operator_forced_was_not_this_fences_to_end() -> None:
    workload_id, fence = bring(S.CANCELLED)
    with unchanged(workload_id), refused("WORKLOAD_CLAIM_INVALID"):
        authority.confirm_cancel(fence, now=at(5_000))
    assert state_of(workload_id) == "CANCELLED"
    assert at(1) > T0
