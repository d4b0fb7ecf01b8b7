"""Every verb on every state: where it leads, or how it is refused. The tables are written by hand from the contract."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.lifecycle.builders import (
    EPOCH,
    EXPIRES_AT,
    LEASE_MS,
    MS,
    NOW,
    check,
    fence_of,
    make,
    make_claim,
    past_attempt,
    policy,
    refused,
    steps,
    text,
)
from workloads.contract import AttemptStatus, Effect, Timeouts, WorkloadState
from workloads.errors import WorkloadError
from workloads.lifecycle import claims, deadlines, interventions, recovery, reports
from workloads.lifecycle.decision import AttemptClosed, AttemptOpened, AttemptStarted, Decision
from workloads.lifecycle.snapshot import Snapshot, Standing

S = WorkloadState
Verb = Callable[[Snapshot], Decision | None]
RETRIED = policy("timeout", "worker_failure", "broken", initial_delay_ms=0)


def claim(snapshot: Snapshot, start: bool = False) -> Decision | None:
    judged = claims.judge_claim(snapshot, NOW, capabilities={"cpu", "net", "disk"}, unmet=(), draw=0)
    if judged is not None:
        return judged
    return claims.claim(
        snapshot, NOW, worker_id="worker-2", lease_ms=LEASE_MS, claim_id="claim-2", attempt_id="attempt-2", start=start
    )


def start(snapshot: Snapshot) -> Decision | None:
    return claims.start(snapshot, fence_of(snapshot), NOW, draw=0)


def heartbeat(snapshot: Snapshot) -> Decision | None:
    return claims.heartbeat(snapshot, fence_of(snapshot), NOW, extend_ms=LEASE_MS, draw=0)


def context(snapshot: Snapshot) -> Decision | None:
    return claims.context(
        snapshot,
        fence_of(snapshot),
        NOW,
        secret_references={"scope-a"},
        connection_scopes=snapshot.connection_scopes,
        draw=0,
    )


def checkpoint(snapshot: Snapshot, known: str | None = None, limit: int = 1000) -> Decision | None:
    return claims.checkpoint(
        snapshot,
        fence_of(snapshot),
        NOW,
        checkpoint_id="checkpoint-2",
        known=known,
        state_text='{"at":1}',
        limit=limit,
        draw=0,
    )


def release(snapshot: Snapshot, reason: str = "deploy", max_releases: int = 20, attempt: Any = None) -> Decision | None:
    return claims.release(
        snapshot, fence_of(snapshot), NOW, attempt=attempt, reason=reason, max_releases=max_releases, draw=0
    )


def confirm_cancel(snapshot: Snapshot, attempt: Any = None) -> Decision | None:
    return claims.confirm_cancel(snapshot, fence_of(snapshot), NOW, attempt=attempt, late_is_accepted=False)


def complete(snapshot: Snapshot) -> Decision | None:
    return reports.complete(
        snapshot, fence_of(snapshot), NOW, result_id="result-1", late_is_accepted=False, draw=0
    )


def fail(snapshot: Snapshot) -> Decision | None:
    decision, _ = reports.fail(
        snapshot,
        fence_of(snapshot),
        NOW,
        kind="broken",
        error="it broke",
        effect=Effect.NONE,
        retry_after_ms=None,
        late_is_accepted=False,
        draw=0,
    )
    return decision


def cancel(snapshot: Snapshot, force: bool = False, reason: str = "why", version: int | None = None) -> Decision | None:
    return interventions.cancel(
        snapshot, NOW, actor="anna", reason=reason, expected_version=version, force=force
    )


def force_cancel(snapshot: Snapshot) -> Decision | None:
    return cancel(snapshot, force=True)


def rearm(snapshot: Snapshot, restart: bool = False, version: int | None = None) -> Decision | None:
    return interventions.rearm(
        snapshot, NOW, actor="anna", reason="why", expected_version=version, restart_overall=restart
    )


def time_out(snapshot: Snapshot, reason: str = "why", version: int | None = None) -> Decision | None:
    return interventions.time_out(snapshot, NOW, actor="anna", reason=reason, expected_version=version)


def enforce(snapshot: Snapshot) -> Decision | None:
    return deadlines.enforce(snapshot, NOW, draw=0)


def give_up(snapshot: Snapshot) -> Decision | None:
    return recovery.give_up_on_dependency(snapshot, NOW, dependency="workload_8")


def past(name: str) -> Verb:
    """Enforce deadlines on the workload once its deadline `name` has passed."""
    return lambda snapshot: enforce(replace(snapshot, timeouts=Timeouts(**{f"{name}_ms": 1})))


def recover(snapshot: Snapshot) -> Decision | None:
    return recovery.recover(over(snapshot), NOW, draw=0)


def over(snapshot: Snapshot) -> Snapshot:
    """Let the lease, if there is one, end this instant."""
    claim = snapshot.claim
    return snapshot if claim is None else replace(snapshot, claim=replace(claim, expires_at=NOW))


VERBS: dict[str, Verb] = {
    "claim": claim,
    "claim_start": lambda snapshot: claim(snapshot, start=True),
    "start": start,
    "heartbeat": heartbeat,
    "context": context,
    "checkpoint": checkpoint,
    "checkpoint_same": lambda snapshot: checkpoint(snapshot, known='{"at":1}'),
    "checkpoint_other": lambda snapshot: checkpoint(snapshot, known='{"at":2}'),
    "release": release,
    "confirm_cancel": confirm_cancel,
    "complete": complete,
    "fail": fail,
    "cancel": cancel,
    "cancel_force": force_cancel,
    "rearm": rearm,
    "time_out": time_out,
    "enforce": enforce,
    "past_overall": past("overall"),
    "past_queue": past("queue"),
    "past_claim": past("claim"),
    "past_execution": past("execution"),
    "past_heartbeat": past("heartbeat"),
    "recover": recover,
    "recover_early": lambda snapshot: recovery.recover(snapshot, NOW, draw=0),
    "give_up": lambda snapshot: give_up(replace(snapshot, dependency_standing=Standing.UNMEETABLE)),
    "give_up_early": give_up,
}

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


FENCED = "start heartbeat context checkpoint checkpoint_same checkpoint_other release confirm_cancel complete fail".split()


@pytest.mark.parametrize("verb", FENCED)
@pytest.mark.parametrize("state", "CLAIMED RUNNING CHECKPOINTED CANCELLATION_REQUESTED".split())
def test_a_lease_that_is_over_refuses(verb: str, state: str) -> None:
    assert refused("WORKLOAD_LEASE_EXPIRED", VERBS[verb], over(make(S(state)))) == {"expires_at": text(NOW)}


@pytest.mark.parametrize("verb", FENCED)
@pytest.mark.parametrize("state", "CLAIMED RUNNING CHECKPOINTED CANCELLATION_REQUESTED".split())
def test_a_stale_fence_refuses(verb: str, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = fence_of
    monkeypatch.setitem(globals(), "fence_of", lambda held: real(held, fencing_token=held.fencing_token - 1))
    refused("WORKLOAD_STALE_FENCE", VERBS[verb], over(make(S(state), fencing_token=2)))


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


# Leases, checkpoints, scopes.


@pytest.mark.parametrize(("extend_ms", "expires_at"), [(1, EXPIRES_AT), (LEASE_MS, NOW + LEASE_MS * MS)])
def test_a_heartbeat_never_shortens_the_lease(extend_ms: int, expires_at: Any) -> None:
    snapshot = make(S.RUNNING)
    decision = claims.heartbeat(snapshot, fence_of(snapshot), NOW, extend_ms=extend_ms, draw=0)
    claim = decision.after.claim
    assert claim is not None and snapshot.claim is not None
    assert claim == replace(snapshot.claim, last_heartbeat=NOW, expires_at=expires_at)


def test_the_claim_that_a_holder_sees() -> None:
    asked = make(S.CANCELLATION_REQUESTED).as_claim(NOW)
    assert asked.cancellation_requested and not make(S.RUNNING).as_claim(NOW).cancellation_requested
    assert asked.lease_left_ms == LEASE_MS - 10_000
    assert make(S.RUNNING).as_claim(EXPIRES_AT - MS / 2).lease_left_ms == 0
    assert make(S.RUNNING).as_claim(EXPIRES_AT + MS).lease_left_ms == 0
    assert asked.fence == fence_of(make(S.RUNNING))
    assert (asked.attempt_id, asked.attempt_number) == ("attempt-1", 1)


def test_checkpoints_are_counted_after_the_state_is_judged() -> None:
    full = make(S.RUNNING, checkpoint_count=3)
    details = refused("WORKLOAD_TOO_LARGE", checkpoint, full, limit=3)
    assert details is not None and (details["limit"], details["size"]) == (3, 4)
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


# Operators look at a version first, then the state, then the overall deadline.


@pytest.mark.parametrize("verb", [cancel, rearm, time_out])
@pytest.mark.parametrize("state", list(WorkloadState))
def test_another_version_is_a_conflict_in_any_state(verb: Any, state: WorkloadState) -> None:
    snapshot = make(state, version=4)
    assert refused("WORKLOAD_CONFLICT", verb, snapshot, version=3) == {"version": 4}
    assert refused("WORKLOAD_CONFLICT", verb, snapshot, version=5) == {"version": 4}
    try:
        verb(snapshot, version=4)
    except WorkloadError as refusal:
        assert refusal.code == "WORKLOAD_TRANSITION_DENIED"


@pytest.mark.parametrize("state", [S.DEAD_LETTER, S.TIMED_OUT])
def test_a_rearm_past_the_overall_deadline(state: WorkloadState) -> None:
    parked = make(state, timeouts=Timeouts(overall_ms=20_000), retry_count=2)
    details = refused("WORKLOAD_TIMED_OUT", rearm, parked)
    assert details == {"deadline": "overall", "deadline_at": text(NOW)}
    decision = rearm(parked, restart=True)
    assert decision is not None
    check(decision)
    assert (decision.after.overall_from, decision.after.next_attempt_at) == (NOW, NOW)
    assert (decision.after.retry_count, decision.after.operator_retries) == (2, 1)
    in_time = rearm(replace(parked, timeouts=Timeouts(overall_ms=20_001)))
    assert in_time is not None and in_time.after.overall_from == EPOCH
    always = rearm(replace(parked, timeouts=Timeouts()), restart=True)
    assert always is not None and always.after.overall_from == NOW


def test_a_rearm_of_unparked_work_is_denied_before_its_deadline_is_looked_at() -> None:
    refused("WORKLOAD_TRANSITION_DENIED", rearm, make(S.RUNNING, timeouts=Timeouts(overall_ms=1)))


def test_old_records_are_rearmed_whatever_their_overall_timeout_says() -> None:
    old = make(S.FAILED, contract_version=1, timeouts=Timeouts(overall_ms=1))
    decision = rearm(old)
    assert decision is not None and steps(decision) == ["READY"]


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
def test_what_follows_a_lost_worker(
    state: str, kinds: tuple[str, ...], attempts: int, decision: str, to: str
) -> None:
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
