"""Every verb on every state: where it leads, or how it is refused. The tables are written by hand from the contract."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest

from tests.lifecycle import verbs
from tests.lifecycle.builders import (
    EPOCH,
    LEASE_MS,
    MS,
    NOW,
    check,
    fence_of,
    make,
    make_claim,
    refused,
    steps,
    text,
)
from tests.lifecycle.verbs import RETRIED, VERBS, over, start
from workloads.contract import AttemptStatus, Timeouts, WorkloadState
from workloads.lifecycle import deadlines
from workloads.lifecycle.decision import AttemptClosed, AttemptOpened, AttemptStarted

S = WorkloadState

# A cell is where the verb leads (A>B: two events), or: `.` nothing changes, `+` a change without an event,
# NR WORKLOAD_NOT_READY, CI WORKLOAD_CLAIM_INVALID, TD WORKLOAD_TRANSITION_DENIED, CC WORKLOAD_CHECKPOINT_CONFLICT.
SHORT = {
    "CR": S.CANCELLATION_REQUESTED,
    "CLAIM": S.CLAIMED,
    "RUN": S.RUNNING,
    "CHECK": S.CHECKPOINTED,
    "OK": S.SUCCEEDED,
    "FAIL": S.FAILED,
    "OUT": S.TIMED_OUT,
    "LOST": S.RECOVERING,
    "DEAD": S.DEAD_LETTER,
    "OFF": S.CANCELLED,
    "READY": S.READY,
    "NEW": S.CREATED,
}
CODES = {
    "NR": "WORKLOAD_NOT_READY",
    "CI": "WORKLOAD_CLAIM_INVALID",
    "TD": "WORKLOAD_TRANSITION_DENIED",
    "CC": "WORKLOAD_CHECKPOINT_CONFLICT",
}
MATRIX = """
                 NEW   READY     CLAIM      RUN        CHECK      CR       LOST OK FAIL  OUT   DEAD  OFF
claim            NR    CLAIM     NR         NR         NR         NR       NR   NR NR    NR    NR    NR
claim_start      NR    CLAIM>RUN NR         NR         NR         NR       NR   NR NR    NR    NR    NR
start            CI    CI        RUN        .          .          .        CI   CI CI    CI    CI    CI
heartbeat        CI    CI        +          +          +          +        CI   CI CI    CI    CI    CI
context          CI    CI        .          .          .          .        CI   CI CI    CI    CI    CI
checkpoint       CI    CI        TD         CHECK      CHECK      TD       CI   CI CI    CI    CI    CI
checkpoint_same  CI    CI        .          .          .          .        CI   CI CI    CI    CI    CI
checkpoint_other CI    CI        CC         CC         CC         CC       CI   CI CI    CI    CI    CI
release          CI    CI        READY      READY      READY      TD       CI   CI CI    CI    CI    CI
confirm_cancel   CI    CI        TD         TD         TD         OFF      CI   CI CI    CI    CI    CI
complete         CI    CI        TD         OK         OK         TD       CI   CI CI    CI    CI    CI
fail             CI    CI        FAIL>READY FAIL>READY FAIL>READY TD       CI   CI CI    CI    CI    CI
cancel           OFF   OFF       CR         CR         CR         .        OFF  TD OFF   OFF   OFF   .
cancel_force     OFF   OFF       CR>OFF     CR>OFF     CR>OFF     OFF      OFF  TD OFF   OFF   OFF   .
rearm            TD    TD        TD         TD         TD         TD       TD   TD READY READY READY TD
time_out         TD    OUT       OUT        OUT        OUT        TD       TD   TD TD    TD    TD    TD
enforce          .     .         .          .          .          .        .    .  .     .     .     .
past_overall     .     OUT>DEAD  OUT>DEAD   OUT>DEAD   OUT>DEAD   .        .    .  .     .     .     .
past_queue       .     OUT>DEAD  .          .          .          .        .    .  .     .     .     .
past_claim       .     .         OUT>READY  .          .          .        .    .  .     .     .     .
past_execution   .     .         .          OUT>READY  OUT>READY  .        .    .  .     .     .     .
past_heartbeat   .     .         OUT>READY  OUT>READY  OUT>READY  .        .    .  .     .     .     .
recover          .     .         LOST>READY LOST>READY LOST>READY LOST>OFF .    .  .     .     .     .
recover_early    .     .         .          .          .          .        .    .  .     .     .     .
give_up          .     DEAD      .          .          .          .        .    .  .     .     .     .
give_up_early    .     .         .          .          .          .        .    .  .     .     .     .
"""

DENIED_TO = {
    "start": S.RUNNING,
    "checkpoint": S.CHECKPOINTED,
    "release": S.READY,
    "confirm_cancel": S.CANCELLED,
    "complete": S.SUCCEEDED,
    "fail": S.FAILED,
    "cancel": S.CANCELLED,
    "cancel_force": S.CANCELLED,
    "rearm": S.READY,
    "time_out": S.TIMED_OUT,
}


def cells() -> list[tuple[str, WorkloadState, str]]:
    header, *rows = (line.split() for line in MATRIX.strip().splitlines())
    found = []
    for verb, *row in rows:
        found += [(verb, SHORT[short], cell) for short, cell in zip(header, row, strict=True)]
    return found


def test_the_matrix_is_whole() -> None:
    assert len(cells()) == len(VERBS) * len(WorkloadState)
    assert {(verb, state) for verb, state, _ in cells()} == {(v, s) for v in VERBS for s in WorkloadState}


@pytest.mark.parametrize(("verb", "state", "cell"), cells())
def test_verb_on_state(verb: str, state: WorkloadState, cell: str) -> None:
    snapshot = make(state, retry_policy=RETRIED)
    before = copy.deepcopy(snapshot)
    if cell in CODES:
        details = refused(CODES[cell], VERBS[verb], snapshot)
        if cell == "NR":
            assert details == {"state": str(state)}
        elif cell == "TD":
            assert details == {"from": str(state), "to": str(DENIED_TO[verb])}
        else:
            assert details is None
    else:
        decision = VERBS[verb](snapshot)
        if cell == ".":
            assert decision is None
        else:
            assert decision is not None
            check(decision)
            path = [] if cell == "+" else [str(SHORT[short]) for short in cell.split(">")]
            assert steps(decision) == path
            assert decision.after.state == (path[-1] if path else state)
            assert (decision.refusal is not None) == ("OUT>" in cell)
    assert snapshot == before


def test_a_start_after_a_cancellation_request_is_denied_unless_started() -> None:
    asked = make(S.CANCELLATION_REQUESTED, claim=make_claim(S.CLAIMED))
    assert refused("WORKLOAD_TRANSITION_DENIED", start, asked) == {"from": "CANCELLATION_REQUESTED", "to": "RUNNING"}


# Evidence and actors: (verb, state) → each event's actor and exact evidence. Section 2.

CLAIM_EVIDENCE = {
    "claim_id": "claim-2",
    "worker_id": "worker-2",
    "attempt_id": "attempt-2",
    "fencing_token": "1",
    "expires_at": text(NOW + LEASE_MS * MS),
}
HELD_BY = {"claim_id": "claim-1", "worker_id": "worker-1"}
LOST_BY = {**HELD_BY, "expires_at": text(NOW)}
WHY = {"reason": "why"}
FORCED = {"reason": "why", "forced": "true"}
TRIED = {"attempt_id": "attempt-1"}
W1, W2, ANNA = "worker-1", "worker-2", "anna"
CLOCK, LOST, RETRY = "authority.deadline", "authority.recovery", "authority.retry"


def late(name: str, since_ms: int, **more: str) -> dict[str, str]:
    return {"deadline": name, "deadline_at": text(EPOCH + (since_ms + 1) * MS), **more}


AGAIN = {"decision": "retry"}
GONE = {"decision": "deadline_not_retryable"}
EVIDENCE: dict[tuple[str, str], list[tuple[str, dict[str, str]]]] = {
    ("claim", "READY"): [(W2, CLAIM_EVIDENCE)],
    ("claim_start", "READY"): [(W2, CLAIM_EVIDENCE), (W2, {"attempt_id": "attempt-2"})],
    ("start", "CLAIMED"): [(W1, TRIED)],
    ("checkpoint", "RUNNING"): [(W1, {**TRIED, "checkpoint_id": "checkpoint-2"})],
    ("checkpoint", "CHECKPOINTED"): [(W1, {**TRIED, "checkpoint_id": "checkpoint-2"})],
    ("release", "CLAIMED"): [(W1, {"reason": "deploy", "decision": "released"})],
    ("release", "RUNNING"): [(W1, {"reason": "deploy", "decision": "released"})],
    ("release", "CHECKPOINTED"): [(W1, {"reason": "deploy", "decision": "released"})],
    ("confirm_cancel", "CANCELLATION_REQUESTED"): [(W1, {})],
    ("complete", "RUNNING"): [(W1, {**TRIED, "result_id": "result-1"})],
    ("complete", "CHECKPOINTED"): [(W1, {**TRIED, "result_id": "result-1"})],
    ("fail", "CLAIMED"): [(W1, {**TRIED, "failure_kind": "broken", "effect": "none"}), (RETRY, AGAIN)],
    ("fail", "RUNNING"): [(W1, {**TRIED, "failure_kind": "broken", "effect": "none"}), (RETRY, AGAIN)],
    ("fail", "CHECKPOINTED"): [(W1, {**TRIED, "failure_kind": "broken", "effect": "none"}), (RETRY, AGAIN)],
    ("cancel", "CREATED"): [(ANNA, WHY)],
    ("cancel", "READY"): [(ANNA, WHY)],
    ("cancel", "CLAIMED"): [(ANNA, WHY)],
    ("cancel", "RUNNING"): [(ANNA, WHY)],
    ("cancel", "CHECKPOINTED"): [(ANNA, WHY)],
    ("cancel", "RECOVERING"): [(ANNA, WHY)],
    ("cancel", "FAILED"): [(ANNA, WHY)],
    ("cancel", "TIMED_OUT"): [(ANNA, WHY)],
    ("cancel", "DEAD_LETTER"): [(ANNA, WHY)],
    ("cancel_force", "CREATED"): [(ANNA, WHY)],
    ("cancel_force", "READY"): [(ANNA, WHY)],
    ("cancel_force", "CLAIMED"): [(ANNA, FORCED), (ANNA, FORCED)],
    ("cancel_force", "RUNNING"): [(ANNA, FORCED), (ANNA, FORCED)],
    ("cancel_force", "CHECKPOINTED"): [(ANNA, FORCED), (ANNA, FORCED)],
    ("cancel_force", "CANCELLATION_REQUESTED"): [(ANNA, FORCED)],
    ("cancel_force", "RECOVERING"): [(ANNA, WHY)],
    ("cancel_force", "FAILED"): [(ANNA, WHY)],
    ("cancel_force", "TIMED_OUT"): [(ANNA, WHY)],
    ("cancel_force", "DEAD_LETTER"): [(ANNA, WHY)],
    ("rearm", "FAILED"): [(ANNA, {**WHY, "decision": "operator_rearm"})],
    ("rearm", "TIMED_OUT"): [(ANNA, {**WHY, "decision": "operator_rearm"})],
    ("rearm", "DEAD_LETTER"): [(ANNA, {**WHY, "decision": "operator_rearm"})],
    ("time_out", "READY"): [(ANNA, WHY)],
    ("time_out", "CLAIMED"): [(ANNA, WHY)],
    ("time_out", "RUNNING"): [(ANNA, WHY)],
    ("time_out", "CHECKPOINTED"): [(ANNA, WHY)],
    ("past_overall", "READY"): [(CLOCK, late("overall", 0)), (CLOCK, GONE)],
    ("past_overall", "CLAIMED"): [(CLOCK, late("overall", 0, **HELD_BY)), (CLOCK, GONE)],
    ("past_overall", "RUNNING"): [(CLOCK, late("overall", 0, **HELD_BY)), (CLOCK, GONE)],
    ("past_overall", "CHECKPOINTED"): [(CLOCK, late("overall", 0, **HELD_BY)), (CLOCK, GONE)],
    ("past_queue", "READY"): [(CLOCK, late("queue", 0)), (CLOCK, GONE)],
    ("past_claim", "CLAIMED"): [(CLOCK, late("claim", 10_000, **HELD_BY)), (CLOCK, AGAIN)],
    ("past_execution", "RUNNING"): [(CLOCK, late("execution", 11_000, **HELD_BY)), (CLOCK, AGAIN)],
    ("past_execution", "CHECKPOINTED"): [(CLOCK, late("execution", 11_000, **HELD_BY)), (CLOCK, AGAIN)],
    ("past_heartbeat", "CLAIMED"): [(CLOCK, late("heartbeat", 10_000, **HELD_BY)), (CLOCK, AGAIN)],
    ("past_heartbeat", "RUNNING"): [(CLOCK, late("heartbeat", 12_000, **HELD_BY)), (CLOCK, AGAIN)],
    ("past_heartbeat", "CHECKPOINTED"): [(CLOCK, late("heartbeat", 12_000, **HELD_BY)), (CLOCK, AGAIN)],
    ("recover", "CLAIMED"): [(LOST, LOST_BY), (LOST, AGAIN)],
    ("recover", "RUNNING"): [(LOST, LOST_BY), (LOST, AGAIN)],
    ("recover", "CHECKPOINTED"): [(LOST, LOST_BY), (LOST, AGAIN)],
    ("recover", "CANCELLATION_REQUESTED"): [(LOST, LOST_BY), (LOST, {})],
    ("give_up", "READY"): [(LOST, {"decision": "dependency_unsatisfiable", "dependency": "workload_8"})],
}


def test_evidence_is_written_out_for_every_cell_that_has_events() -> None:
    silent = {*CODES, ".", "+"}
    assert set(EVIDENCE) == {(verb, str(state)) for verb, state, cell in cells() if cell not in silent}


@pytest.mark.parametrize(("verb", "state"), EVIDENCE)
def test_evidence_and_actors(verb: str, state: str) -> None:
    decision = VERBS[verb](make(S(state), retry_policy=RETRIED))
    assert decision is not None
    assert [(event.actor, dict(event.evidence)) for event in decision.events] == EVIDENCE[verb, state]


# What becomes of the attempt.

CLOSED = {
    "release": (AttemptStatus.RELEASED, "worker", None),
    "confirm_cancel": (AttemptStatus.CANCELLED, "worker", None),
    "complete": (AttemptStatus.SUCCEEDED, "worker", None),
    "fail": (AttemptStatus.FAILED, "worker", "it broke"),
    "cancel_force": (AttemptStatus.CANCELLED, "operator", None),
    "time_out": (AttemptStatus.TIMED_OUT, "operator", "timeout: by anna"),
    "past_overall": (AttemptStatus.TIMED_OUT, "clock", "timeout: overall deadline passed"),
    "past_claim": (AttemptStatus.TIMED_OUT, "clock", "timeout: claim deadline passed"),
    "past_execution": (AttemptStatus.TIMED_OUT, "clock", "timeout: execution deadline passed"),
    "past_heartbeat": (AttemptStatus.TIMED_OUT, "clock", "timeout: heartbeat deadline passed"),
    "recover": (AttemptStatus.WORKER_LOST, "clock", f"worker_failure: lease over at {text(NOW)}"),
}
LAST_FAILURE = {
    "fail": "broken: it broke",
    "past_queue": "timeout: queue deadline passed",
    **{verb: error for verb, (_, _, error) in CLOSED.items() if error is not None and verb != "fail"},
}


@pytest.mark.parametrize(("verb", "state"), EVIDENCE)
def test_attempts_and_last_failure(verb: str, state: str) -> None:
    snapshot = make(S(state), retry_policy=RETRIED, last_failure="older: failure")
    decision = VERBS[verb](snapshot)
    assert decision is not None
    change = decision.attempt
    if snapshot.claim is not None and verb in CLOSED:
        assert isinstance(change, AttemptClosed)
        assert (change.status, change.ended_by, change.error) == CLOSED[verb]
        if verb != "fail":
            assert (change.failure_kind, change.effect, change.outcome_state) == (None, None, None)
            assert (change.outcome_decision, change.outcome_next_attempt_at) == (None, None)
    elif verb in {"claim", "claim_start"}:
        assert isinstance(change, AttemptOpened)
        assert change.status == ("CLAIMED" if verb == "claim" else "RUNNING")
        assert change.claim.claimed_at == change.claim.last_heartbeat == NOW
        assert change.claim.started_at == (None if verb == "claim" else NOW)
        assert change.claim.expires_at == NOW + LEASE_MS * MS
    elif verb == "start":
        assert isinstance(change, AttemptStarted)
    else:
        assert change is None
    assert decision.after.last_failure == LAST_FAILURE.get(verb, "older: failure")


COUNTERS = "attempt_count retry_count release_count uncounted_releases operator_retries checkpoint_count".split()
COUNTED = {
    "claim": {"attempt_count"},
    "claim_start": {"attempt_count"},
    "checkpoint": {"checkpoint_count"},
    "release": {"release_count", "uncounted_releases"},
    "fail": {"retry_count"},
    "rearm": {"operator_retries"},
    "past_claim": {"retry_count"},
    "past_execution": {"retry_count"},
    "past_heartbeat": {"retry_count"},
}


@pytest.mark.parametrize(("verb", "state"), EVIDENCE)
def test_counters(verb: str, state: str) -> None:
    snapshot = make(S(state), retry_policy=RETRIED)
    decision = VERBS[verb](snapshot)
    assert decision is not None
    grown = COUNTED.get(verb, set())
    if verb == "recover" and state != "CANCELLATION_REQUESTED":
        grown = {"retry_count"}
    for name in COUNTERS:
        assert getattr(decision.after, name) - getattr(snapshot, name) == (1 if name in grown else 0), name
    assert decision.after.overall_from == snapshot.overall_from


# Deadlines come first; then the fence; so a late caller is told of the deadline, and that is recorded.

ENFORCING = "claim start heartbeat context checkpoint checkpoint_same checkpoint_other complete fail release".split()
OBEYING = {
    "READY": "overall queue",
    "CLAIMED": "overall claim heartbeat",
    "RUNNING": "overall execution heartbeat",
    "CHECKPOINTED": "overall execution heartbeat",
}


@pytest.mark.parametrize("verb", ENFORCING)
@pytest.mark.parametrize(("state", "name"), [(s, n) for s, names in OBEYING.items() for n in names.split()])
def test_a_passed_deadline_is_recorded_and_refuses(verb: str, state: str, name: str) -> None:
    snapshot = make(S(state), retry_policy=RETRIED, timeouts=Timeouts(**{f"{name}_ms": 1}))
    # Neither the lease nor the fence is looked at before.
    for tried in (snapshot, over(snapshot), replace(over(snapshot), fencing_token=snapshot.fencing_token + 1)):
        decision = VERBS[verb](tried)
        assert decision is not None
        check(decision)
        at = dict(deadlines.running_deadlines(tried))[name]
        assert decision.refusal is not None
        assert decision.refusal.code == "WORKLOAD_TIMED_OUT"
        assert decision.refusal.details == {"deadline": name, "deadline_at": text(at)}
        assert steps(decision) == ["TIMED_OUT", "DEAD_LETTER" if name in {"overall", "queue"} else "READY"]
        assert decision.after.claim is None


FENCED = (
    "start heartbeat context checkpoint checkpoint_same checkpoint_other release confirm_cancel complete fail"
).split()


@pytest.mark.parametrize("verb", FENCED)
@pytest.mark.parametrize("state", "CLAIMED RUNNING CHECKPOINTED CANCELLATION_REQUESTED".split())
def test_a_lease_that_is_over_refuses(verb: str, state: str) -> None:
    assert refused("WORKLOAD_LEASE_EXPIRED", VERBS[verb], over(make(S(state)))) == {"expires_at": text(NOW)}


@pytest.mark.parametrize("verb", FENCED)
@pytest.mark.parametrize("state", "CLAIMED RUNNING CHECKPOINTED CANCELLATION_REQUESTED".split())
def test_a_stale_fence_refuses(verb: str, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = fence_of
    monkeypatch.setattr(verbs, "fence_of", lambda held: real(held, fencing_token=held.fencing_token - 1))
    refused("WORKLOAD_STALE_FENCE", VERBS[verb], over(make(S(state), fencing_token=2)))
