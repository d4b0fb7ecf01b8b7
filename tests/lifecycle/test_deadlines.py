"""Deadlines to the microsecond: from when each runs, in which states, which is named, what follows. Section 8."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tests.lifecycle.builders import (
    BEAT_AT,
    CLAIMED_AT,
    EPOCH,
    MS,
    NOW,
    STARTED_AT,
    US,
    check,
    fence_of,
    make,
    make_claim,
    policy,
    steps,
    text,
)
from workloads.contract import RetryPolicy, Timeouts, WorkloadState
from workloads.lifecycle import claims, deadlines, recovery, reports
from workloads.lifecycle.decision import Decision
from workloads.lifecycle.snapshot import Snapshot

S = WorkloadState
NAMES = "overall queue claim execution heartbeat".split()
REARMED_AT = EPOCH + 5_000 * MS

# (deadline, state) → from when it runs. All else does not run at all.
BASES: dict[tuple[str, str], dt.datetime] = {
    ("overall", "READY"): EPOCH,
    ("overall", "CLAIMED"): EPOCH,
    ("overall", "RUNNING"): EPOCH,
    ("overall", "CHECKPOINTED"): EPOCH,
    ("queue", "READY"): EPOCH,
    ("claim", "CLAIMED"): CLAIMED_AT,
    ("execution", "RUNNING"): STARTED_AT,
    ("execution", "CHECKPOINTED"): STARTED_AT,
    ("heartbeat", "CLAIMED"): CLAIMED_AT,
    ("heartbeat", "RUNNING"): BEAT_AT,
    ("heartbeat", "CHECKPOINTED"): BEAT_AT,
}


def only(name: str, duration_ms: int) -> Timeouts:
    return Timeouts(**{f"{name}_ms": duration_ms})


def enforce(snapshot: Snapshot, now: dt.datetime = NOW) -> Any:
    return deadlines.enforce(snapshot, now, draw=0)


def named(snapshot: Snapshot, now: dt.datetime) -> str | None:
    found = deadlines.passed(snapshot, now)
    return None if found is None else found[0]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("state", list(WorkloadState))
@pytest.mark.parametrize("duration_ms", [1, 999, 3_600_000, 3_155_760_000_000])
def test_passed_at_the_deadline_and_never_early(name: str, state: WorkloadState, duration_ms: int) -> None:
    snapshot = make(state, timeouts=only(name, duration_ms))
    base = BASES.get((name, str(state)))
    if base is None:
        assert list(deadlines.running_deadlines(snapshot)) == []
        assert enforce(snapshot, EPOCH.replace(year=2899)) is None
        return
    at = base + dt.timedelta(milliseconds=duration_ms)
    assert list(deadlines.running_deadlines(snapshot)) == [(name, at)]
    for early in (base, at - 1000 * MS, at - MS, at - US):
        if early < at:
            assert named(snapshot, early) is None
            assert enforce(snapshot, early) is None
    for late in (at, at + US, at + MS, at + 1000 * MS):
        assert deadlines.passed(snapshot, late) == (name, at)
        decision = enforce(snapshot, late)
        assert decision is not None
        check(decision)
        assert decision.events[0].evidence["deadline"] == name
        assert decision.events[0].evidence["deadline_at"] == text(at)
        assert decision.refusal.details == {"deadline": name, "deadline_at": text(at)}


@pytest.mark.parametrize("state", list(WorkloadState))
def test_no_timeout_given_is_no_deadline(state: WorkloadState) -> None:
    snapshot = make(state, timeouts=Timeouts())
    assert enforce(snapshot, EPOCH.replace(year=2899)) is None
    assert deadlines.overall_deadline(snapshot) is None


@pytest.mark.parametrize("state", list(WorkloadState))
def test_a_timeout_of_nothing_would_pass_at_once(state: WorkloadState) -> None:
    # Admission refuses it; a rule that took 0 for None would hide a record that holds it.
    snapshot = make(state, timeouts=Timeouts(**{f"{name}_ms": 0 for name in NAMES}))
    assert named(snapshot, EPOCH) == ("overall" if (("overall", str(state)) in BASES) else None)


@pytest.mark.parametrize("state", list(WorkloadState))
@pytest.mark.parametrize("version", [1, 2, 3])
def test_only_records_of_contract_version_2_and_later_have_deadlines(state: WorkloadState, version: int) -> None:
    timeouts = Timeouts(**{f"{name}_ms": 1 for name in NAMES})
    snapshot = make(state, contract_version=version, timeouts=timeouts)
    runs = version >= 2 and ("overall", str(state)) in BASES
    assert (enforce(snapshot, EPOCH.replace(year=2899)) is not None) is runs
    assert (deadlines.overall_deadline(snapshot) is not None) is (version >= 2)


# Several at once: the first in the order of section 8 is named, whichever passed first.


@pytest.mark.parametrize(
    ("state", "order"),
    [
        ("READY", "overall queue"),
        ("CLAIMED", "overall claim heartbeat"),
        ("RUNNING", "overall execution heartbeat"),
        ("CHECKPOINTED", "overall execution heartbeat"),
    ],
)
def test_precedence(state: str, order: str) -> None:
    running = order.split()
    timeouts = Timeouts(**{f"{name}_ms": 100 - 10 * NAMES.index(name) for name in NAMES})
    snapshot = make(S(state), timeouts=timeouts)
    assert [name for name, _ in deadlines.running_deadlines(snapshot)] == running
    while running:
        assert named(snapshot, NOW) == running[0]
        timeouts = replace(timeouts, **{f"{running.pop(0)}_ms": None})
        snapshot = replace(snapshot, timeouts=timeouts)
    assert named(snapshot, NOW) is None


def test_one_that_has_not_passed_is_not_named_for_coming_first() -> None:
    snapshot = make(S.RUNNING, timeouts=Timeouts(overall_ms=10**9, execution_ms=10**9, heartbeat_ms=1))
    assert named(snapshot, NOW) == "heartbeat"


# From when each runs.


def test_overall_runs_from_overall_from() -> None:
    restarted = make(overall_from=REARMED_AT, timeouts=only("overall", 1000))
    at = REARMED_AT + 1000 * MS
    assert (named(restarted, at - US), named(restarted, at)) == (None, "overall")
    assert deadlines.overall_deadline(restarted) == at
    assert deadlines.overall_deadline(make(S.DEAD_LETTER, timeouts=only("overall", 1000))) == EPOCH + 1000 * MS


@pytest.mark.parametrize(
    ("due", "since"),
    [
        (None, EPOCH),
        (EPOCH, EPOCH),
        (EPOCH - 3_600_000 * MS, EPOCH),
        (EPOCH + US, EPOCH + US),
        (EPOCH + 3_600_000 * MS, EPOCH + 3_600_000 * MS),
    ],
)
def test_queue_runs_from_admission_or_the_due_instant_if_later(due: dt.datetime | None, since: dt.datetime) -> None:
    snapshot = make(next_attempt_at=due, timeouts=only("queue", 1000))
    at = since + 1000 * MS
    assert (named(snapshot, at - US), named(snapshot, at)) == (None, "queue")


@pytest.mark.parametrize("was", [{"attempt_count": 1, "fencing_token": 1}, {"operator_retries": 1}], ids=str)
def test_queue_runs_from_the_return_also_where_the_clock_was_behind_the_admission(was: dict[str, int]) -> None:
    # A retry, a release or a re-arm, at an instant that the clock had passed before.
    returned = EPOCH - 40 * MS
    snapshot = make(next_attempt_at=returned, timeouts=only("queue", 60), **was)
    assert (named(snapshot, EPOCH + 20 * MS - US), named(snapshot, EPOCH + 20 * MS)) == (None, "queue")


def test_queue_runs_anew_after_each_return_to_ready() -> None:
    timeouts = only("queue", 5_000)
    again = policy("worker_failure", initial_delay_ms=700)
    for state in (S.CLAIMED, S.RUNNING):
        held = make(state, timeouts=timeouts, retry_policy=again)
        lost = recovery.recover(held, NOW + 3_600_000 * MS, draw=0)
        assert lost is not None
        at = NOW + (3_600_000 + 700 + 5_000) * MS
        assert (named(lost.after, at - US), named(lost.after, at)) == (None, "queue")


def test_queue_and_overall_run_while_work_waits_for_its_hour() -> None:
    later = make(next_attempt_at=NOW + 3_600_000 * MS, timeouts=Timeouts(overall_ms=1000, queue_ms=1000))
    assert named(later, EPOCH + 1000 * MS) == "overall"
    assert named(replace(later, timeouts=only("queue", 1000)), NOW) is None


def test_execution_runs_from_the_start_of_this_attempt_and_not_from_its_claim_or_checkpoint() -> None:
    for state in (S.RUNNING, S.CHECKPOINTED):
        claim = make_claim(state, started_at=NOW, last_heartbeat=NOW + 50 * MS)
        snapshot = make(state, claim=claim, timeouts=only("execution", 100))
        assert (named(snapshot, NOW + 100 * MS - US), named(snapshot, NOW + 100 * MS)) == (None, "execution")


def test_heartbeat_runs_from_the_last_one() -> None:
    for state in (S.CLAIMED, S.RUNNING, S.CHECKPOINTED):
        claim = make_claim(state, last_heartbeat=NOW)
        snapshot = make(state, claim=claim, timeouts=only("heartbeat", 100))
        assert (named(snapshot, NOW + 100 * MS - US), named(snapshot, NOW + 100 * MS)) == (None, "heartbeat")


def test_zones_do_not_move_a_deadline() -> None:
    snapshot = make(S.RUNNING, timeouts=only("execution", 1000))
    there = (STARTED_AT + 1000 * MS).astimezone(dt.timezone(dt.timedelta(hours=-9, minutes=-30)))
    assert named(snapshot, there - US) is None
    decision = enforce(snapshot, there)
    assert decision.events[0].evidence["deadline_at"] == text(STARTED_AT + 1000 * MS)


# What passing does.


@pytest.mark.parametrize(("name", "state"), BASES)
@pytest.mark.parametrize(
    ("kinds", "attempts", "expected"),
    [
        ((), 1, "timeout_not_retryable"),
        (("worker_failure", "transient_connection"), 3, "timeout_not_retryable"),
        (("timeout",), 1, "attempt_budget_exhausted"),
        (("timeout",), 2, "retry"),
    ],
)
def test_what_follows(name: str, state: str, kinds: tuple[str, ...], attempts: int, expected: str) -> None:
    snapshot = make(S(state), timeouts=only(name, 1), retry_policy=policy(*kinds, max_attempts=attempts))
    decision = enforce(snapshot)
    check(decision)
    if name in {"overall", "queue"}:
        expected = "deadline_not_retryable"
    assert steps(decision) == ["TIMED_OUT", "READY" if expected == "retry" else "DEAD_LETTER"]
    first, last = decision.events
    held = snapshot.claim is not None
    assert set(first.evidence) == {"deadline", "deadline_at"} | ({"claim_id", "worker_id"} if held else set())
    assert last.evidence["decision"] == expected
    assert set(last.evidence) == {"decision"} | ({"next_attempt_at"} if expected == "retry" else set())
    assert {event.actor for event in decision.events} == {"authority.deadline"}
    assert decision.after.retry_count == (1 if expected == "retry" else 0)
    assert decision.after.last_failure == f"timeout: {name} deadline passed"


def test_a_waiting_workloads_last_attempt_is_not_rewritten() -> None:
    waiting = make(attempt_count=2, fencing_token=2, timeouts=only("queue", 1))
    assert enforce(waiting).attempt is None


def test_the_decision_of_another_node_is_the_same() -> None:
    snapshot = make(S.RUNNING, timeouts=only("execution", 1), retry_policy=RetryPolicy())
    here, there = enforce(snapshot), enforce(replace(snapshot))
    assert (here.after, here.events, here.attempt) == (there.after, there.events, there.attempt)


# Each call that looks for deadlines first, with a number drawn for the delay.
CALLS: dict[str, Callable[[Snapshot, float], Decision | None]] = {
    "claim": lambda s, draw: claims.judge_claim(s, NOW, capabilities=(), unmet=(), draw=draw),
    "start": lambda s, draw: claims.start(s, fence_of(s), NOW, draw=draw),
    "heartbeat": lambda s, draw: claims.heartbeat(s, fence_of(s), NOW, extend_ms=1, draw=draw),
    "context": lambda s, draw: claims.context(
        s, fence_of(s), NOW, secret_references=(), connection_scopes=(), draw=draw
    ),
    "checkpoint": lambda s, draw: claims.checkpoint(
        s, fence_of(s), NOW, checkpoint_id="c", known=None, state_text="1", limit=9, draw=draw
    ),
    "release": lambda s, draw: claims.release(s, fence_of(s), NOW, attempt=None, reason="", max_releases=9, draw=draw),
    "complete": lambda s, draw: reports.complete(s, fence_of(s), NOW, result_id="r", late_is_accepted=False, draw=draw),
    "fail": lambda s, draw: reports.fail(
        s,
        fence_of(s),
        NOW,
        kind="broken",
        error="",
        effect=None,
        retry_after_ms=None,
        late_is_accepted=False,
        draw=draw,
    )[0],
    "enforce": lambda s, draw: deadlines.enforce(s, NOW, draw=draw),
}


@pytest.mark.parametrize("call", CALLS)
def test_whichever_call_finds_it_passed_the_delay_is_the_one_drawn(call: str) -> None:
    again = policy("timeout", jitter=1.0, initial_delay_ms=1000)
    late = make(S.CLAIMED, timeouts=only("claim", 1), retry_policy=again)
    for draw, delay_ms in ((0.0, 1000), (0.25, 750)):
        decision = CALLS[call](late, draw)
        assert decision is not None
        check(decision)
        assert decision.after.next_attempt_at == NOW + delay_ms * MS


timeouts_given = st.builds(Timeouts, **{f"{name}_ms": st.none() | st.integers(1, 40_000) for name in NAMES})


@given(
    state=st.sampled_from(list(WorkloadState)),
    timeouts=timeouts_given,
    due_ms=st.none() | st.integers(-20_000, 40_000),
    now_us=st.integers(-1_000_000, 60_000_000),
)
def test_the_named_deadline_is_the_first_that_has_passed(
    state: WorkloadState, timeouts: Timeouts, due_ms: int | None, now_us: int
) -> None:
    due = None if due_ms is None or state is not S.READY else EPOCH + due_ms * MS
    snapshot = make(state, timeouts=timeouts, next_attempt_at=due)
    now = EPOCH + now_us * US
    expected = None
    for name in NAMES:
        base, duration = BASES.get((name, str(state))), getattr(timeouts, f"{name}_ms")
        if base is None or duration is None:
            continue
        if name == "queue" and due is not None:
            base = max(base, due)
        if now >= base + duration * MS:
            expected = name
            break
    assert named(snapshot, now) == expected
    assert (enforce(snapshot, now) is None) == (expected is None)
