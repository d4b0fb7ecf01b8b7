"""Checkpoints: progress that is saved, once for each key of an attempt. Sections 5 and 9."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.authority.builders import (
    EXPIRES_AT,
    SAVED_AT,
    S,
    attempts,
    bring,
    claim,
    events,
    path,
    refused,
    running,
    unchanged,
)
from tests.support import at
from workloads import authority
from workloads.contract import CheckpointRecord, Timeouts

pytestmark = pytest.mark.django_db

KEY = "AKIA" + "Q" * 16


@pytest.mark.parametrize("state", [S.RUNNING, S.CHECKPOINTED])
def test_a_checkpoint_is_stored_and_an_event(state: str) -> None:
    workload_id, fence = bring(state)
    before = authority.get(workload_id)
    given = authority.checkpoint(fence, {"b": 1, "a": 2.0}, key="half", now=at(5_000))
    (attempt,) = attempts(workload_id)
    count = 2 if state == S.CHECKPOINTED else 1
    assert given == CheckpointRecord(
        sequence=count,
        checkpoint_id=given.checkpoint_id,
        attempt_id=attempt.attempt_id,
        key="half",
        state={"a": 2, "b": 1},
        at=at(5_000),
    )
    stored = authority.get(workload_id).checkpoints.get(sequence=count)
    assert {name: getattr(stored, name) for name in ("checkpoint_id", "attempt_id", "key", "state", "at")} == {
        name: getattr(given, name) for name in ("checkpoint_id", "attempt_id", "key", "state", "at")
    }
    last = events(workload_id)[-1]
    assert (last.from_state, last.to_state, last.actor) == (state, "CHECKPOINTED", "w")
    assert last.evidence == {"attempt_id": attempt.attempt_id, "checkpoint_id": given.checkpoint_id}
    assert authority.get(workload_id).version == before.version + 1
    assert attempt.status == "RUNNING"


@pytest.mark.parametrize("state", [S.CLAIMED, S.CANCELLATION_REQUESTED])
def test_only_running_work_may_save(state: str) -> None:
    workload_id, fence = bring(state)
    with unchanged(workload_id), refused("WORKLOAD_TRANSITION_DENIED", {"from": state, "to": "CHECKPOINTED"}):
        authority.checkpoint(fence, 1, now=at(5_000))


def test_a_key_that_was_used_replays_the_same_state_and_refuses_another() -> None:
    workload_id, fence = bring(S.RUNNING)
    first = authority.checkpoint(fence, {"n": 1, "m": (1, 2)}, key="k", now=SAVED_AT)
    with unchanged(workload_id):
        assert authority.checkpoint(fence, {"m": [1.0, 2], "n": 1}, key="k", now=at(9_000)) == first
        for other in ({"n": 2}, None, {"n": True, "m": [1, 2]}):
            with refused("WORKLOAD_CHECKPOINT_CONFLICT"):
                authority.checkpoint(fence, other, key="k", now=at(9_000))
    assert authority.checkpoint(fence, {"n": 2}, key="K", now=at(9_000)).sequence == 2


def test_a_key_is_judged_before_the_state() -> None:
    workload_id, fence = bring(S.CHECKPOINTED)
    authority.cancel(workload_id, actor="op", now=at(4_000))
    with unchanged(workload_id):
        assert authority.checkpoint(fence, {"step": 1}, key="first", now=at(5_000)).sequence == 1
        with refused("WORKLOAD_CHECKPOINT_CONFLICT"):
            authority.checkpoint(fence, {"step": 2}, key="first", now=at(5_000))
        with refused("WORKLOAD_TRANSITION_DENIED"):
            authority.checkpoint(fence, {"step": 2}, key="second", now=at(5_000))


def test_without_a_key_each_call_saves_anew() -> None:
    workload_id, fence = bring(S.RUNNING)
    assert [authority.checkpoint(fence, 1, now=at(5_000)).sequence for _ in range(3)] == [1, 2, 3]
    assert authority.get(workload_id).checkpoints.count() == 3


def test_a_key_belongs_to_its_attempt() -> None:
    first = running(lease_ms=10_000)
    authority.checkpoint(first, 1, key="k", now=SAVED_AT)
    authority.recover_expired(now=at(11_000))
    second = claim(first.workload_id, now=at(20_000)).fence
    authority.start(second, now=at(20_000))
    assert authority.checkpoint(second, 2, key="k", now=at(20_001)).sequence == 2


def test_deadlines_and_the_fence_come_before_a_keys_replay() -> None:
    _, fence = bring(S.CHECKPOINTED)
    with refused("WORKLOAD_LEASE_EXPIRED"):
        authority.checkpoint(fence, {"step": 1}, key="first", now=EXPIRES_AT)
    late, fence = bring(S.CHECKPOINTED, "late", timeouts=Timeouts(execution_ms=5_000))
    with refused("WORKLOAD_TIMED_OUT"):
        authority.checkpoint(fence, {"step": 1}, key="first", now=at(7_000))
    assert path(late)[-2:] == ["TIMED_OUT", "READY"]


def test_checkpoints_are_limited_in_number_and_replays_are_not(limits: Any) -> None:
    limits(MAX_CHECKPOINTS=2)
    workload_id, fence = bring(S.RUNNING)
    authority.checkpoint(fence, 1, key="one", now=at(5_000))
    authority.checkpoint(fence, 2, now=at(5_000))
    with unchanged(workload_id):
        with refused("WORKLOAD_TOO_LARGE") as caught:
            authority.checkpoint(fence, 3, now=at(5_000))
        assert authority.checkpoint(fence, 1, key="one", now=at(5_000)).sequence == 1
    assert caught.value.details is not None
    assert (caught.value.details["limit"], caught.value.details["size"]) == (2, 3)


def test_checkpoints_are_limited_for_a_workload_over_its_attempts(limits: Any) -> None:
    limits(MAX_CHECKPOINTS=1)
    first = running(lease_ms=10_000)
    authority.checkpoint(first, 1, now=SAVED_AT)
    authority.recover_expired(now=at(11_000))
    second = claim(first.workload_id, now=at(20_000)).fence
    authority.start(second, now=at(20_000))
    with refused("WORKLOAD_TOO_LARGE"):
        authority.checkpoint(second, 2, now=at(20_001))


def test_a_checkpoint_is_limited_in_size(limits: Any) -> None:
    workload_id, fence = bring(S.RUNNING)
    authority.checkpoint(fence, "x" * 65_534, now=at(5_000))
    with unchanged(workload_id), refused("WORKLOAD_TOO_LARGE") as caught:
        authority.checkpoint(fence, "x" * 65_535, now=at(5_000))
    assert caught.value.details == {"field": "state", "limit": 65_536, "size": 65_537}
    limits(MAX_CHECKPOINT_BYTES=3)
    with refused("WORKLOAD_TOO_LARGE"):
        authority.checkpoint(fence, "ab", now=at(5_000))


@pytest.mark.parametrize(
    ("state", "path"),
    [({"a": {1}}, "$.a"), ([float("nan")], "$[0]"), ({"x": "\0"}, "$.x"), ({1: 1}, "$"), (b"x", "$")],
)
def test_a_checkpoint_is_json(state: Any, path: str, django_assert_num_queries: Any) -> None:
    _, fence = bring(S.RUNNING)
    with django_assert_num_queries(0), refused("WORKLOAD_INVALID", {"field": "state", "path": path}):
        authority.checkpoint(fence, state, now=at(5_000))


@pytest.mark.parametrize("key", ["", " k", "k\n", 5, "x" * 201])
def test_a_key_is_an_identifier(key: Any, django_assert_num_queries: Any) -> None:
    _, fence = bring(S.RUNNING)
    with django_assert_num_queries(0), refused("WORKLOAD_INVALID") as caught:
        authority.checkpoint(fence, 1, key=key, now=at(5_000))
    assert caught.value.details is not None
    assert caught.value.details["field"] == "key"


def test_a_checkpoint_holds_no_secrets_save_what_a_scope_excuses() -> None:
    workload_id, fence = bring(S.RUNNING, connection_scopes={"billing"})
    with unchanged(workload_id):
        with refused("WORKLOAD_SECRET_MATERIAL") as caught:
            authority.checkpoint(fence, {"a": [KEY]}, now=at(5_000))
        assert caught.value.details is not None
        assert caught.value.details["path"] == "$.a[0]"
        with refused("WORKLOAD_SECRET_MATERIAL") as caught:
            authority.checkpoint(fence, {"password": "hunter2"}, now=at(5_000))
        assert caught.value.details is not None
        assert caught.value.details["path"] == "$.password"
    authority.checkpoint(fence, {"password": "billing"}, now=at(5_000))


def test_secrets_under_a_key_come_after_existence_and_before_the_fence() -> None:
    _, fence = bring(S.RUNNING)
    with refused("WORKLOAD_NOT_FOUND"):
        authority.checkpoint(replace(fence, workload_id="nothing"), {"password": "x"}, now=at(5_000))
    with refused("WORKLOAD_SECRET_MATERIAL"):
        authority.checkpoint(replace(fence, fencing_token=0), {"password": "x"}, now=EXPIRES_AT)
    with refused("WORKLOAD_SECRET_MATERIAL"):
        authority.checkpoint(replace(fence, workload_id="nothing"), KEY, now=at(5_000))
