"""Any sequence of calls on one workload: the invariants of section 12 hold after each step."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.lifecycle.builders import EPOCH, HELD, MS, check, make, policy
from workloads.contract import AttemptStatus, Effect, Fence, Timeouts, WorkloadState
from workloads.errors import CODES, WorkloadError
from workloads.lifecycle import claims, deadlines, interventions, recovery, reports
from workloads.lifecycle.admission import admit
from workloads.lifecycle.decision import AttemptClosed, AttemptOpened, AttemptStarted, Decision, NewEvent
from workloads.lifecycle.snapshot import PastAttempt, Snapshot, Standing
from workloads.lifecycle.states import is_legal

S = WorkloadState
OPEN = {AttemptStatus.CLAIMED, AttemptStatus.RUNNING}
MAX_RELEASES = 2


@dataclass
class Row:
    """One attempt as it would be stored."""

    past: PastAttempt
    closed: bool = False


def timeout(longest: int) -> st.SearchStrategy[int | None]:
    """Return a deadline now and then: work that dies of old age at once shows little."""
    return st.sampled_from([None, None, None, longest, longest // 4])


class OneWorkload(RuleBasedStateMachine):
    """One workload, its history as the authority would store it, and a clock that only the rules below move."""

    snapshot: Snapshot
    now: dt.datetime

    def __init__(self) -> None:
        super().__init__()
        self.events: list[NewEvent] = []
        self.attempts: list[Row] = []
        self.fences: list[Fence] = []
        self.result_by: str | None = None
        self.claims_made = 0
        self.failures: list[tuple[Fence, str, str, Any]] = []

    @initialize(
        attempts=st.integers(1, 3),
        kinds=st.sampled_from(
            [{"timeout", "worker_failure", "broken"}, {"worker_failure"}, {"timeout", "broken"}, set()]
        ),
        overall=timeout(400_000),
        queue=timeout(40_000),
        claim=timeout(40_000),
        execution=timeout(40_000),
        heartbeat=timeout(40_000),
        wait_ms=st.none() | st.integers(-1_000, 5_000),
    )
    def admitted(self, attempts: int, kinds: set[str], wait_ms: int | None, **timeouts: int | None) -> None:
        self.now = EPOCH
        created = make(
            S.CREATED,
            event_count=0,
            retry_policy=policy(*kinds, max_attempts=attempts, initial_delay_ms=500, jitter=0.5),
            timeouts=Timeouts(**{f"{name}_ms": value for name, value in timeouts.items()}),
        )
        decision = admit(created, requested_by="anna", not_before=None if wait_ms is None else EPOCH + wait_ms * MS)
        self.snapshot = decision.after
        self.events += decision.events

    def ask(self, call: Any, *args: Any, **options: Any) -> Any:
        """Call a rule, and record what it decided; a refusal must be one of the contract's."""
        before = replace(self.snapshot)
        refusal = None
        try:
            answer = call(self.snapshot, *args, **options)
        except WorkloadError as error:
            refusal = error
        if refusal is not None:
            assert refusal.code in CODES
            assert self.snapshot == before
            return refusal
        decision = answer[0] if isinstance(answer, tuple) else answer
        if decision is not None:
            self.record(decision)
        return answer

    def record(self, decision: Decision) -> None:
        check(decision)
        assert decision.before is self.snapshot
        self.snapshot = decision.after
        self.events += decision.events
        change = decision.attempt
        if isinstance(change, AttemptOpened):
            self.claims_made += 1
            claim = change.claim
            self.fences.append(
                Fence(
                    workload_id=self.snapshot.workload_id,
                    claim_id=claim.claim_id,
                    worker_id=claim.worker_id,
                    fencing_token=change.fencing_token,
                )
            )
            past = PastAttempt(
                attempt_id=claim.attempt_id,
                number=change.number,
                claim_id=claim.claim_id,
                worker_id=claim.worker_id,
                fencing_token=change.fencing_token,
                status=change.status,
                ended_by="",
                error=None,
                failure_kind=None,
                effect=None,
                outcome_state=None,
                outcome_decision=None,
                outcome_next_attempt_at=None,
            )
            self.attempts.append(Row(past))
        elif isinstance(change, AttemptStarted):
            row = self.attempts[change.number - 1]
            assert not row.closed and row.past.status is AttemptStatus.CLAIMED
            row.past = replace(row.past, status=AttemptStatus.RUNNING)
        elif isinstance(change, AttemptClosed):
            row = self.attempts[change.number - 1]
            assert not row.closed and change.status not in OPEN
            row.closed = True
            row.past = replace(
                row.past,
                status=change.status,
                ended_by=change.ended_by,
                error=change.error,
                failure_kind=change.failure_kind,
                effect=change.effect,
                outcome_state=change.outcome_state,
                outcome_decision=change.outcome_decision,
                outcome_next_attempt_at=change.outcome_next_attempt_at,
            )
            if change.status is AttemptStatus.SUCCEEDED:
                assert self.result_by is None
                self.result_by = row.past.attempt_id

    def fence(self, back: int) -> Fence:
        """Return the fence of the last claim, or of one `back` before it."""
        if not self.fences:
            return Fence(workload_id="workload_7", claim_id="none", worker_id="nobody", fencing_token=0)
        return self.fences[-1 - min(back, len(self.fences) - 1)]

    def attempt_of(self, fence: Fence) -> PastAttempt | None:
        return next((row.past for row in self.attempts if row.past.claim_id == fence.claim_id), None)

    backs = st.sampled_from([0, 0, 0, 0, 1])
    draws = st.floats(0, 1)

    # The clock.

    @rule(ms=st.sampled_from([0, 1, 400, 1_000, 5_000]) | st.integers(0, 15_000))
    def time_passes(self, ms: int) -> None:
        self.now += ms * MS

    @precondition(lambda self: self.snapshot.claim is not None)
    @rule()
    def time_passes_to_what_is_due(self) -> None:
        due_at = recovery.derive(self.snapshot, self.now).due_at
        if due_at is not None:
            self.now = max(self.now, due_at)

    @rule(part=st.sampled_from(["deadlines", "leases", "dependencies"]), draw=draws)
    def a_pass_looks(self, part: str, draw: float) -> None:
        if part == "deadlines":
            self.ask(deadlines.enforce, self.now, draw=draw)
        elif part == "leases":
            self.ask(recovery.recover, self.now, draw=draw)
        else:
            self.ask(recovery.give_up_on_dependency, self.now, dependency="workload_8")

    @precondition(lambda self: self.snapshot.state is S.READY)
    @rule(standing=st.sampled_from([Standing.MET, Standing.MET, Standing.WAITING, Standing.UNMEETABLE]))
    def dependencies_move(self, standing: Standing) -> None:
        self.snapshot = replace(self.snapshot, dependency_standing=standing)

    # The worker.

    @rule(lease_ms=st.integers(1, 60_000), start=st.booleans(), draw=draws)
    def claim(self, lease_ms: int, start: bool, draw: float) -> None:
        self.try_to_claim(lease_ms, start, draw)

    @precondition(lambda self: self.snapshot.state is S.READY)
    @rule(lease_ms=st.integers(20_000, 60_000), start=st.booleans(), draw=draws)
    def claim_once_it_is_due(self, lease_ms: int, start: bool, draw: float) -> None:
        self.now = max(self.now, self.snapshot.next_attempt_at or self.now)
        self.snapshot = replace(self.snapshot, dependency_standing=Standing.MET)
        self.try_to_claim(lease_ms, start, draw)

    def try_to_claim(self, lease_ms: int, start: bool, draw: float) -> None:
        claimable = claims.is_claimable(self.snapshot, self.now)
        judged = self.ask(claims.judge_claim, self.now, capabilities={"cpu", "net"}, unmet=["workload_8"], draw=draw)
        assert claimable == (judged is None)
        if judged is None:
            number = self.claims_made + 1
            decision = claims.claim(
                self.snapshot,
                self.now,
                worker_id=f"worker-{number % 2}",
                lease_ms=lease_ms,
                claim_id=f"claim-{number}",
                attempt_id=f"attempt-{number}",
                start=start,
            )
            self.record(decision)

    @precondition(lambda self: bool(self.fences))
    @rule(back=backs, draw=draws)
    def start(self, back: int, draw: float) -> None:
        self.ask(claims.start, self.fence(back), self.now, draw=draw)

    @precondition(lambda self: bool(self.fences))
    @rule(back=backs, extend_ms=st.integers(1, 60_000), draw=draws)
    def heartbeat(self, back: int, extend_ms: int, draw: float) -> None:
        self.ask(claims.heartbeat, self.fence(back), self.now, extend_ms=extend_ms, draw=draw)

    @precondition(lambda self: bool(self.fences))
    @rule(back=backs, known=st.sampled_from([None, None, "1", "2"]), draw=draws)
    def checkpoint(self, back: int, known: str | None, draw: float) -> None:
        self.ask(
            claims.checkpoint,
            self.fence(back),
            self.now,
            checkpoint_id="checkpoint",
            known=known,
            state_text="1",
            limit=5,
            draw=draw,
        )

    @precondition(lambda self: bool(self.fences))
    @rule(back=backs, draw=draws)
    def release(self, back: int, draw: float) -> None:
        fence = self.fence(back)
        self.ask(
            claims.release,
            fence,
            self.now,
            attempt=self.attempt_of(fence),
            reason="",
            max_releases=MAX_RELEASES,
            draw=draw,
        )

    @precondition(lambda self: bool(self.fences))
    @rule(back=backs, late=st.booleans())
    def confirm_cancel(self, back: int, late: bool) -> None:
        fence = self.fence(back)
        self.ask(claims.confirm_cancel, fence, self.now, attempt=self.attempt_of(fence), late_is_accepted=late)

    @precondition(lambda self: bool(self.fences))
    @rule(back=backs, late=st.booleans(), draw=draws)
    def complete(self, back: int, late: bool, draw: float) -> None:
        self.ask(reports.complete, self.fence(back), self.now, result_id="result", late_is_accepted=late, draw=draw)

    @precondition(lambda self: bool(self.fences))
    @rule(
        back=backs,
        kind=st.sampled_from(["broken", "other"]),
        effect=st.sampled_from([None, Effect.NONE, Effect.UNKNOWN]),
        wish=st.none() | st.integers(0, 5_000),
        late=st.booleans(),
        draw=draws,
    )
    def fail(self, back: int, kind: str, effect: Effect | None, wish: int | None, late: bool, draw: float) -> None:
        fence = self.fence(back)
        if reports.replayed_failure(self.attempt_of(fence), fence, kind=kind, error="", effect=effect) is not None:
            return
        answer = self.ask(
            reports.fail,
            fence,
            self.now,
            kind=kind,
            error="",
            effect=effect,
            retry_after_ms=wish,
            late_is_accepted=late,
            draw=draw,
        )
        if isinstance(answer, tuple) and answer[1] is not None:
            self.failures.append((fence, kind, "", answer[1]))

    # The operator.

    @rule(verb=st.sampled_from(["cancel", "force", "rearm", "restart", "time_out", "", "", ""]))
    def an_operator_steps_in(self, verb: str) -> None:
        said = {"actor": "anna", "reason": "why", "expected_version": self.snapshot.version}
        if verb in {"cancel", "force"}:
            self.ask(interventions.cancel, self.now, force=verb == "force", **said)
        elif verb in {"rearm", "restart"}:
            self.ask(interventions.rearm, self.now, restart_overall=verb == "restart", **said)
        elif verb:
            self.ask(interventions.time_out, self.now, **said)

    @precondition(lambda self: self.snapshot.state in {S.DEAD_LETTER, S.TIMED_OUT})
    @rule()
    def parked_work_is_rearmed(self) -> None:
        self.ask(interventions.rearm, self.now, actor="anna", reason="why", expected_version=None, restart_overall=True)

    # Section 12, by its numbers.

    @invariant()
    def history_leads_to_the_state(self) -> None:
        """1: events chain, each pair legal, the last one is the state; 2: no gap."""
        state = ""
        for sequence, event in enumerate(self.events, 1):
            assert event.sequence == sequence
            assert event.from_state == state
            assert is_legal(event.from_state, event.to_state)
            state = event.to_state
        assert state == self.snapshot.state
        assert self.snapshot.event_count == len(self.events)

    @invariant()
    def numbers_and_tokens_rise(self) -> None:
        """2 and 7: strictly, and the token counts the claims."""
        assert [row.past.number for row in self.attempts] == list(range(1, len(self.attempts) + 1))
        assert [row.past.fencing_token for row in self.attempts] == list(range(1, len(self.attempts) + 1))
        assert self.snapshot.fencing_token == self.snapshot.attempt_count == self.claims_made == len(self.attempts)

    @invariant()
    def held_exactly_under_a_claim(self) -> None:
        """3 and 4: the claim is the last attempt's, and that one alone is open."""
        claim = self.snapshot.claim
        assert (claim is not None) == (self.snapshot.state in HELD)
        still_open = [row for row in self.attempts if not row.closed]
        assert len(still_open) == (1 if claim is not None else 0)
        if claim is not None:
            past = self.attempts[-1].past
            assert still_open == [self.attempts[-1]]
            assert (past.claim_id, past.attempt_id, past.worker_id) == (
                claim.claim_id,
                claim.attempt_id,
                claim.worker_id,
            )
            assert (past.status is AttemptStatus.RUNNING) == (claim.started_at is not None)
            if self.snapshot.state is not S.CANCELLATION_REQUESTED:
                assert (claim.started_at is None) == (self.snapshot.state is S.CLAIMED)

    @invariant()
    def a_result_exactly_in_succeeded(self) -> None:
        """5: by the attempt that succeeded."""
        succeeded = [row.past.attempt_id for row in self.attempts if row.past.status is AttemptStatus.SUCCEEDED]
        assert succeeded == ([] if self.result_by is None else [self.result_by])
        assert (self.result_by is not None) == (self.snapshot.state is S.SUCCEEDED)

    @invariant()
    def the_budget_holds(self) -> None:
        """6, and what releases gave back."""
        snapshot = self.snapshot
        assert snapshot.attempt_count - snapshot.uncounted_releases <= snapshot.budget
        assert snapshot.uncounted_releases == min(snapshot.release_count, MAX_RELEASES)
        released = [row for row in self.attempts if row.past.status is AttemptStatus.RELEASED]
        assert len(released) == snapshot.release_count

    @invariant()
    def the_clock_is_told_in_time(self) -> None:
        """8, as far as one workload goes: what is due is never due later than the clock has something to say."""
        due_at = recovery.derive(self.snapshot, self.now).due_at
        speaks = deadlines.passed(self.snapshot, self.now) is not None or recovery.lease_is_over(
            self.snapshot, self.now
        )
        if speaks:
            assert due_at is not None and due_at <= self.now

    @invariant()
    def reports_are_answered_as_first(self) -> None:
        """Section 6: a failure report repeated gets its first answer, whatever has happened since."""
        for fence, kind, error, outcome in self.failures:
            past = self.attempt_of(fence)
            assert reports.replayed_failure(past, fence, kind=kind, error=error, effect=None) == outcome


OneWorkload.TestCase.settings = settings(
    derandomize=True, max_examples=200, stateful_step_count=50, deadline=None, database=None
)
TestOneWorkload = OneWorkload.TestCase
