"""Each invariant, asked of one record in plain values: a sound life breaks none, and each change of it those it should.

`tests/authority/test_verify.py` asks the same of what is stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.lifecycle.builders import BEAT_AT, EPOCH, EXPIRES_AT, LEASE_MS, MS, NOW, STARTED_AT, S, make_claim
from tests.lifecycle.inspected import (
    LIVES,
    A,
    Change,
    Life,
    attempt,
    checkpointed,
    claim,
    claimed,
    dead,
    failed,
    lane,
    life,
    lost,
    old,
    only,
    own,
    path,
    ready,
    released,
    released_out,
    result,
    retried,
    row,
    running,
    saved,
    succeeded,
    tried,
    tries,
    waits,
)
from workloads.contract import Effect, RetryPolicy, Timeouts
from workloads.lifecycle.invariants import Event, Outcome
from workloads.lifecycle.snapshot import Standing


@pytest.mark.parametrize("name", LIVES)
def test_a_sound_life_breaks_nothing(name: str) -> None:
    assert LIVES[name]().breaches() == []


BROKEN: list[tuple[Callable[[], Life], list[int | str], list[Change]]] = [
    # The chain of events.
    (ready, [2], [path(1, Event(3, "CREATED", "READY", {}))]),
    (ready, [2], [path(0, Event(0, "", "CREATED", {})), path(1, Event(3, "CREATED", "READY", {}))]),
    (ready, [1], [path(1, Event(2, "READY", "READY", {}))]),
    (ready, [1], [path(0, Event(1, "READY", "CREATED", {}))]),
    (checkpointed, [1], [path(3, S.CHECKPOINTED)]),
    (ready, [1], [only(0)]),
    (ready, [1], [row(event_count=3)]),
    (ready, [1, "finished_at"], [row(state=S.CANCELLED)]),
    (ready, ["evidence"], [path(0, (S.CREATED, {"a": 1}))]),
    (ready, ["evidence"], [path(0, (S.CREATED, []))]),
    (ready, ["evidence"], [path(0, (S.CREATED, {"a": "b", "c": 1})), path(1, (S.READY, None))]),
    (released, [1], [path(4, S.READY)]),
    (released, [1], [path(4, (S.READY, {"decision": "attempt_budget_exhausted"}))]),
    (released_out, [1], [path(4, (S.DEAD_LETTER, {"decision": "released"}))]),
    (ready, [1], [row(state=S.CREATED, next_attempt_at=None), own(queued_lane_id=None), only(1)]),
    # Attempts.
    (retried, [2, 7], [tried(1, number=1)]),
    (retried, [2, 3, 7], [tried(1, fencing_token=1)]),
    (retried, [2], [tried(0, number=2)]),
    (retried, [2], [tried(0, fencing_token=2)]),
    (retried, [2, 7], [tried(0, number=0), tried(1, number=0)]),
    (running, [2, 7], [tried(number=0)]),
    (running, [2, 3, 7], [tried(fencing_token=0)]),
    (running, [4], [tried(ended_at=BEAT_AT)]),
    (succeeded, [4], [tried(ended_at=None)]),
    (succeeded, [4], [tried(started_at=None)]),
    (running, [4, 3], [tried(started_at=None)]),
    (running, [4], [tried(started_at=None), row(claim=make_claim(started_at=None))]),
    (claimed, [4], [tried(started_at=STARTED_AT), row(claim=make_claim(S.CLAIMED, started_at=STARTED_AT))]),
    *((running, [4], [tried(**{name: "odd"})]) for name in ("failure_kind", "effect", "outcome_state")),
    (running, [4], [tried(outcome_decision="odd")]),
    (running, [4], [tried(outcome_next_attempt_at=NOW)]),
    (dead, [4], [tried(effect="maybe")]),
    (old, [4], [tried(effect="maybe")]),
    (dead, [4], [tried(failure_kind=None)]),
    (dead, [4], [tried(outcome_next_attempt_at=NOW)]),
    (dead, [4, 4], [tried(outcome_state=None)]),
    (dead, [4, 4], [tried(outcome_state="CANCELLED")]),
    (dead, [4, 4], [tried(outcome_decision=None)]),
    (dead, [4], [tried(outcome_decision="odd")]),
    (dead, [4], [tried(attempt_id="odd")]),
    (retried, [4], [tried(outcome_next_attempt_at=None)]),
    (retried, [4, 4], [tried(outcome_state="DEAD_LETTER")]),
    (retried, [4], [tried(effect="odd")]),
    # How many are open, and which.
    (lost, [4, 4], [tried(status="RUNNING", ended_at=None)]),
    (running, [4, 4], [tried(status="WORKER_LOST", ended_at=BEAT_AT)]),
    (running, [4, 3, 7, 7, 7], [tries()]),
    (running, [4, 3], [tried(status="CLAIMED", started_at=None)]),
    (checkpointed, [4, 3], [tried(status="CLAIMED", started_at=None)]),
    (claimed, [4, 3], [tried(status="RUNNING", started_at=STARTED_AT)]),
    (retried, [4, 4], [tries(attempt(A.RUNNING), attempt(A.RUNNING, 2))]),
    # The current claim.
    *((running, [3], [claim(**{name: "odd"})]) for name in ("claim_id", "worker_id", "attempt_id")),
    *((running, [3], [claim(**{name: NOW})]) for name in ("claimed_at", "started_at")),
    *(
        (running, [3], [claim(**{name: None})])
        for name in ("claim_id", "worker_id", "attempt_id", "claimed_at", "last_heartbeat", "expires_at")
    ),
    (ready, [3], [claim(started_at=NOW)]),
    (succeeded, [3], [claim(claim_id="odd")]),
    # Counts.
    (running, [3, 7], [row(fencing_token=2)]),
    (running, [3, 7], [tried(fencing_token=2)]),
    (running, [7], [row(attempt_count=2)]),
    (running, [7], [tried(number=2)]),
    (running, [1, 7], [path(2, S.READY)]),
    (succeeded, [5, 5], [tried(status="TIMED_OUT"), result(claim_id="odd")]),
    (succeeded, [5], [tried(status="TIMED_OUT")]),
    (lost, [5, 4], [tried(status="SUCCEEDED")]),
    (ready, ["counters"], [row(release_count=1)]),
    (released, ["counters"], [row(uncounted_releases=2)]),
    (dead, [4], [tries(attempt(A.TIMED_OUT))]),
    (lost, [4], [tries(attempt(A.TIMED_OUT))]),
    (ready, ["counters"], [row(retry_count=1)]),
    (ready, ["counters"], [row(operator_retries=1)]),
    # Checkpoints.
    (checkpointed, ["checkpoints"], [saved(1, 3)]),
    (checkpointed, ["checkpoints"], [saved(1)]),
    (checkpointed, ["checkpoints"], [saved(1, 2, 3)]),
    # The result.
    (succeeded, [5], [lambda told: setattr(told, "outcome", None)]),
    *((succeeded, [5], [result(**{name: "odd"})]) for name in ("attempt_id", "claim_id", "produced_by")),
    (succeeded, [5], [result(fencing_token=2)]),
    (running, [5], [lambda told: setattr(told, "outcome", succeeded().outcome)]),
    # What the row alone says.
    (ready, ["identity"], [own(requested_by="other")]),
    (ready, ["identity"], [own(idempotency_key="other")]),
    (ready, ["identity", 8], [row(tenant_id="other")]),
    (ready, ["identity", 8], [row(application_id="other")]),
    (ready, ["finished_at"], [row(finished_at=NOW)]),
    (succeeded, ["finished_at"], [row(finished_at=None)]),
    (dead, [4, 1], [only(5), row(state=S.FAILED)]),
    (running, [6], [row(retry_policy=RetryPolicy(max_attempts=0))]),
    (released, [6], [row(retry_policy=RetryPolicy(max_attempts=0), uncounted_releases=0)]),
    (ready, [8], [lambda told: setattr(told, "lane", None)]),
    (ready, [8], [lane(tenant_id="other")]),
    (ready, [8], [lane(application_id="other")]),
    (ready, [8], [row(definition_id="other")]),
    (ready, [8], [row(definition_revision="other")]),
    (ready, [8], [row(capability_snapshot=frozenset({"cpu"}))]),
    # What is derived.
    (running, [8], [own(due_at=None)]),
    (running, [8], [own(due_at=EXPIRES_AT + MS)]),
    (ready, [8], [own(due_at=NOW)]),
    (ready, [8], [row(next_attempt_at=None)]),
    (ready, [8], [own(queued_lane_id=None)]),
    (ready, [8], [own(waiting_lane_id=3)]),
    (ready, [8], [own(queued_lane_id=4)]),
    (ready, [8], [own(queued_lane_id=None, waiting_lane_id=4)]),
    (ready, [8], [row(next_attempt_at=NOW + MS)]),
    (ready, [8, 8], [row(dependency_standing=Standing.WAITING)]),
    (succeeded, [8], [own(queued_lane_id=3)]),
]


@pytest.mark.parametrize(("made", "expected", "changes"), BROKEN)
def test_a_change_breaks_what_it_should(
    made: Callable[[], Life], expected: list[int | str], changes: list[Change]
) -> None:
    told = made()
    for change in changes:
        change(told)
    assert told.breaches() == expected


@pytest.mark.parametrize(
    ("made", "expected", "changes"),
    [
        (ready, [], [waits("READY")]),
        (ready, [], [waits("SUCCEEDED", Standing.MET)]),
        (ready, [], [waits("DEAD_LETTER")]),
        (ready, [], [waits("CANCELLED", Standing.UNMEETABLE), own(due_at=EPOCH)]),
        (ready, [], [waits("DEAD_LETTER", Standing.UNMEETABLE, pruned=True), own(due_at=EPOCH)]),
        (ready, [], [waits(None, Standing.MISSING), own(due_at=NOW + 60_000 * MS)]),
        (ready, [8], [waits("SUCCEEDED")]),
        (ready, [8], [waits("READY", Standing.MET)]),
        # The worst of all counts.
        (ready, [], [waits("SUCCEEDED", Standing.MET), waits("READY")]),
        (ready, [8], [waits("READY"), waits("SUCCEEDED", Standing.MET), own(queued_lane_id=3)]),
        # What was there once, and was pruned since, or whose tombstone was taken.
        (ready, [8], [waits(None, Standing.MET)]),
        (running, [8], [waits(None, Standing.MET)]),
        (succeeded, [], [waits(None, Standing.MET)]),
        (dead, [], [waits(None, Standing.WAITING)]),
        (dead, [8], [waits("SUCCEEDED", Standing.WAITING, pruned=True)]),
        (succeeded, [], [waits("CANCELLED", Standing.MET, pruned=True)]),
        (running, [8], [waits("CANCELLED", Standing.MET, pruned=True)]),
        # What nobody had admitted yet is looked for by the pass, as long as the answer matters.
        (ready, [], [waits("READY", Standing.MISSING), own(due_at=NOW)]),
        (ready, [8, 8], [waits("READY", Standing.MISSING)]),
        (succeeded, [], [waits("READY", Standing.MISSING)]),
        (succeeded, [8], [waits("READY", Standing.MET)]),
    ],
)
def test_how_dependencies_stand(made: Callable[[], Life], expected: list[int | str], changes: list[Change]) -> None:
    told = made()
    for change in changes:
        change(told)
    assert told.breaches() == expected


def test_all_dependencies_are_judged_and_one_is_told() -> None:
    told = ready()
    for state in ("READY", "READY", "SUCCEEDED"):
        waits(state, Standing.MET)(told)
    assert told.breaches() == [8]


def test_of_each_kind_of_breach_the_first_is_told() -> None:
    told = ready()
    told.path = [Event(number, "", "", {}) for number in (4, 5, 6)]
    told.change(event_count=3)
    assert told.breaches() == [2, 1, 1]


def test_what_has_come_due_may_stand_beside_its_queue_and_what_has_not_may_not_stand_in_it() -> None:
    beside = {"queued_lane_id": None, "waiting_lane_id": 3}
    told = ready()
    told.record = beside
    assert told.breaches() == []
    told.change(next_attempt_at=NOW + MS)
    assert told.breaches() == []
    told.record = {}
    assert told.breaches() == [8]
    assert told.breaches(NOW + MS) == []


def test_the_clock_may_be_due_early_and_not_late() -> None:
    told = running()
    for due_at, expected in ((EPOCH, []), (EXPIRES_AT, []), (EXPIRES_AT + MS, [8]), (None, [8])):
        told.record = {"due_at": due_at}
        assert told.breaches() == expected


def test_a_claim_that_is_not_whole_is_told_alone() -> None:
    told = running()
    told.change(claim=None)
    told.record = {"due_at": EXPIRES_AT}
    assert told.breaches() == [3]


def test_the_budget_may_be_used_up_and_no_more() -> None:
    told = dead()
    told.change(retry_policy=RetryPolicy(max_attempts=1))
    assert told.breaches() == []
    told.change(retry_policy=RetryPolicy(max_attempts=0))
    assert told.breaches() == [6]
    told.change(retry_policy=RetryPolicy(max_attempts=0), release_count=1, uncounted_releases=1)
    assert told.breaches() == ["counters"]


def test_a_success_that_was_not_the_last_attempts_is_a_breach() -> None:
    told = succeeded()
    told.path[4:4] = [S.TIMED_OUT, (S.READY, {"decision": "retry"}), S.CLAIMED, S.RUNNING]
    told.attempts = [attempt(A.TIMED_OUT), attempt(A.SUCCEEDED, 2)]
    told.outcome = Outcome("attempt-2", "claim-2", 2, "worker-1")
    told.change(attempt_count=2, fencing_token=2, event_count=9, retry_count=1)
    assert told.breaches() == []
    told.attempts = [attempt(A.SUCCEEDED), attempt(A.SUCCEEDED, 2)]
    assert told.breaches() == [5]
    told.attempts = [attempt(A.SUCCEEDED), attempt(A.TIMED_OUT, 2)]
    assert told.breaches() == [5]


def test_two_failures_tell_two_outcomes() -> None:
    told = retried()
    told.path += [
        (S.FAILED, {"attempt_id": "attempt-2"}),
        (S.DEAD_LETTER, {"decision": "attempt_budget_exhausted"}),
    ]
    told.attempts[1] = failed(2, S.DEAD_LETTER, "attempt_budget_exhausted")
    told.snapshot = replace(dead().snapshot, attempt_count=2, fencing_token=2, event_count=10, retry_count=1)
    assert told.breaches() == []
    told.attempts[0] = failed(1, S.READY, "other")
    assert told.breaches() == [4]
    # A failure more among the events is told as such, and not as another outcome.
    told.attempts[0] = attempt(A.TIMED_OUT)
    assert told.breaches() == [4]


@pytest.mark.parametrize("effect", [None, *(str(effect.value) for effect in Effect)])
def test_a_failure_may_have_each_effect(effect: str | None) -> None:
    told = dead()
    tried(effect=effect)(told)
    assert told.breaches() == []


def test_records_of_version_1_are_not_held_to_what_was_decided_later() -> None:
    told = old()
    assert told.breaches() == []
    told.change(retry_count=5, operator_retries=5)
    told.attempts = [attempt(A.WORKER_LOST)]
    assert told.breaches() == []
    told = old()
    told.change(contract_version=2)
    assert told.breaches() == [4, 4, 1]
    told = life(S.CREATED, [S.CREATED], contract_version=1)
    assert told.breaches() == [1]


def test_a_failure_that_led_nowhere_is_told_once() -> None:
    told = old()
    told.change(contract_version=2)
    path(4, (S.FAILED, {"attempt_id": "attempt-1"}))(told)
    assert told.breaches() == [4, 1]


def test_every_retry_is_counted() -> None:
    told = lost()
    told.path += [*told.path[2:]]
    told.attempts.append(attempt(A.WORKER_LOST, 2))
    told.change(attempt_count=2, fencing_token=2, event_count=10, retry_count=2)
    assert told.breaches() == []


def test_a_deadline_bounds_when_the_clock_is_due() -> None:
    told = running()
    told.change(timeouts=Timeouts(execution_ms=LEASE_MS // 2))
    assert told.breaches() == [8]
    told.record = {"due_at": STARTED_AT + LEASE_MS // 2 * MS}
    assert told.breaches() == []
