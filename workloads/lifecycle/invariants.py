"""What always holds of a workload, asked of its record after the fact. Section 12.

An `Inspection` is told the record's parts in this order: `events`, `attempts`, `checkpoints`, `dependencies`, `result`,
then `row`. It walks each once and keeps tallies alone, so a long history costs no memory. Of each kind of breach the
first is told.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from workloads.contract import DEADLINE_CONTRACT_VERSION, AttemptStatus, Effect, WorkloadState
from workloads.lifecycle import canonical
from workloads.lifecycle.dependencies import standing_of, worst
from workloads.lifecycle.recovery import derive
from workloads.lifecycle.snapshot import Snapshot, Standing
from workloads.lifecycle.states import FINAL, HELD, OPEN_ATTEMPT, RELEASE_ONLY, RESTING, STARTED, is_legal

S = WorkloadState

RELEASES: Final = {S.READY: "released", S.DEAD_LETTER: "attempt_budget_exhausted"}
PASSED_THROUGH: Final = frozenset({S.CREATED, S.RECOVERING, S.FAILED})
OUTCOMES: Final = frozenset({S.READY, S.DEAD_LETTER})


class Breach(NamedTuple):
    """One invariant that does not hold: its number in section 12, or a name for what other sections promise."""

    invariant: int | str
    message: str


class Event(NamedTuple):
    """An event, as far as it is inspected."""

    sequence: int
    from_state: str
    to_state: str
    evidence: Mapping[str, str]


class Attempt(NamedTuple):
    """An attempt, as far as it is inspected."""

    number: int
    attempt_id: str
    claim_id: str
    worker_id: str
    fencing_token: int
    status: str
    claimed_at: dt.datetime
    started_at: dt.datetime | None
    ended_at: dt.datetime | None
    failure_kind: str | None
    effect: str | None
    outcome_state: str | None
    outcome_decision: str | None
    outcome_next_attempt_at: dt.datetime | None


class Target(NamedTuple):
    """A dependency, and the workload that it names: `state` is None if there is none, not even a tombstone."""

    depends_on: str
    required_state: str
    standing: str
    state: str | None
    is_pruned: bool


class Outcome(NamedTuple):
    """A result, as far as it is inspected."""

    attempt_id: str
    claim_id: str
    fencing_token: int
    produced_by: str


class Scope(NamedTuple):
    """What a lane gathers."""

    tenant_id: str
    application_id: str
    definition_id: str
    definition_revision: str
    capabilities: frozenset[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """A workload's row: the snapshot, and the columns that a snapshot leaves out or does not tell apart."""

    snapshot: Snapshot
    requested_by: str
    idempotency_key: str
    claim: Mapping[str, Any]
    due_at: dt.datetime | None
    queued_lane_id: int | None
    waiting_lane_id: int | None
    lane: Scope | None


class Inspection:
    """One workload under inspection at `now`: the breaches found so far, and what one part says about the next."""

    def __init__(self, record: Record, now: dt.datetime) -> None:
        self.record = record
        self.snapshot = record.snapshot
        self.now = now
        self.breaches: list[Breach] = []
        self._told: set[str] = set()
        self._entered: Counter[str] = Counter()
        self._decided: Counter[str] = Counter()
        self._failures: list[tuple[str | None, str, str | None]] = []
        self._last: Attempt | None = None
        # Records of contract version 1 were written under other rules about decisions and outcomes.
        self._is_old = self.snapshot.contract_version < DEADLINE_CONTRACT_VERSION

    def _say(self, invariant: int | str, kind: str, message: str) -> None:
        if kind not in self._told:
            self._told.add(kind)
            self.breaches.append(Breach(invariant, message))

    def events(self, rows: Iterable[Event]) -> None:
        """Follow the chain of events (1) and its sequence (2)."""
        count, state = 0, ""
        for event in rows:
            count += 1
            name = f"event {event.sequence}"
            if event.sequence != count:
                self._say(2, "sequence", f"{name} stands where event {count} should")
            if event.from_state != state:
                self._say(1, "chain", f"{name} starts from {event.from_state or 'nothing'}, not {state or 'nothing'}")
            elif not is_legal(event.from_state, event.to_state):
                self._say(1, "pair", f"{name} goes from {event.from_state or 'nothing'} to {event.to_state}")
            self._read(event, name)
            state = event.to_state
        if not count:
            self._say(1, "events", "it has no events")
            return
        if state != self.snapshot.state:
            self._say(1, "state", f"it is {self.snapshot.state}, but its last event led to {state}")
        if count != self.snapshot.event_count:
            self._say(1, "event_count", f"event_count is {self.snapshot.event_count}, its events are {count}")

    def _read(self, event: Event, name: str) -> None:
        evidence = event.evidence
        if not isinstance(evidence, dict) or not all(isinstance(value, str) for value in evidence.values()):
            self._say("evidence", "evidence", f"the evidence of {name} does not map strings to strings")
            evidence = {}
        decision = evidence.get("decision")
        pair = (event.from_state, event.to_state)
        if pair in RELEASE_ONLY and decision != RELEASES[S(event.to_state)]:
            self._say(
                1, "release", f"{name} goes from {pair[0]} to {pair[1]} with decision {decision}, not by a release"
            )
        self._entered[event.to_state] += 1
        if decision is not None:
            self._decided[decision] += 1
        if event.from_state == S.FAILED and self._failures:
            self._failures[-1] = (self._failures[-1][0], event.to_state, decision)
        if event.to_state == S.FAILED:
            self._failures.append((evidence.get("attempt_id"), "", None))

    def attempts(self, rows: Iterable[Attempt]) -> None:
        """Follow the attempts: rising (2), at most one open (4), the last one's claim current (3), all counted (7)."""
        statuses: Counter[str] = Counter()
        opened = number = token = 0
        reported: list[tuple[str | None, str, str | None]] = []
        for attempt in rows:
            name = f"attempt {attempt.number}"
            if attempt.number <= number:
                self._say(2, "number", f"{name} comes after attempt {number}")
            if attempt.fencing_token <= token:
                self._say(2, "token", f"the fencing token of {name} is {attempt.fencing_token}, after {token}")
            number, token = attempt.number, attempt.fencing_token
            status = AttemptStatus(attempt.status)
            statuses[status] += 1
            opened += status in OPEN_ATTEMPT
            self._ending(attempt, status, name)
            if status is AttemptStatus.FAILED:
                reported.append((attempt.attempt_id, attempt.outcome_state or "", attempt.outcome_decision))
            self._last = attempt
        self._openness(opened)
        self._current_claim()
        self._count(statuses.total(), number, token)
        if not self._is_old and reported != self._failures and statuses[AttemptStatus.FAILED] == len(self._failures):
            self._say(4, "outcome", "the outcome of a failed attempt is not the one that its events tell")
        self._compare(statuses)

    def _ending(self, attempt: Attempt, status: AttemptStatus, name: str) -> None:
        if (attempt.ended_at is None) is not (status in OPEN_ATTEMPT):
            self._say(4, "ended_at", f"{name} is {status}, and its ended_at is {_told(attempt.ended_at)}")
        started = attempt.started_at is not None
        if (status is AttemptStatus.CLAIMED and started) or (
            status in {AttemptStatus.RUNNING, AttemptStatus.SUCCEEDED} and not started
        ):
            self._say(4, "started_at", f"{name} is {status}, and its started_at is {_told(attempt.started_at)}")
        outcome = (attempt.failure_kind, attempt.outcome_state, attempt.outcome_decision)
        if status is not AttemptStatus.FAILED:
            if any(v is not None for v in (*outcome, attempt.effect, attempt.outcome_next_attempt_at)):
                self._say(4, "no failure", f"{name} is {status}, and has the outcome of a failure")
            return
        if attempt.effect is not None and attempt.effect not in {effect.value for effect in Effect}:
            self._say(4, "effect", f"{name} has effect {attempt.effect}")
        if self._is_old:
            return
        if None in outcome or attempt.outcome_state not in OUTCOMES:
            self._say(4, "failure", f"{name} is FAILED, and its outcome is not whole")
        elif (attempt.outcome_next_attempt_at is None) is (attempt.outcome_state == S.READY):
            self._say(
                4,
                "failure",
                f"{name} led to {attempt.outcome_state}, next attempt {_told(attempt.outcome_next_attempt_at)}",
            )

    def _openness(self, opened: int) -> None:
        state, last = self.snapshot.state, self._last
        if opened > 1:
            self._say(4, "open", f"{opened} attempts are open")
        elif opened and state not in HELD:
            self._say(4, "open", f"it is {state}, and an attempt is open")
        elif state in HELD and (last is None or last.status not in OPEN_ATTEMPT):
            self._say(4, "open", f"it is {state}, and its last attempt is not open")
        elif last is not None and (
            (state is S.CLAIMED and last.status != AttemptStatus.CLAIMED)
            or (state in STARTED and last.status != AttemptStatus.RUNNING)
        ):
            self._say(4, "open", f"it is {state}, and its open attempt is {last.status}")

    def _current_claim(self) -> None:
        claim, last, state = self.record.claim, self._last, self.snapshot.state
        filled = sorted(name for name, value in claim.items() if value is not None)
        if state not in HELD:
            if filled:
                self._say(3, "claim", f"it is {state}, and has a current claim ({', '.join(filled)})")
            return
        empty = sorted(name for name, value in claim.items() if value is None and name != "started_at")
        if empty:
            self._say(3, "claim", f"it is {state}, and its current claim lacks {', '.join(empty)}")
            return
        if last is None:
            self._say(3, "claim", f"it is {state}, and was never claimed")
            return
        names = ("claim_id", "worker_id", "attempt_id", "claimed_at", "started_at")
        other = [name for name in names if claim[name] != getattr(last, name)]
        if self.snapshot.fencing_token != last.fencing_token:
            other.append("fencing_token")
        if other:
            self._say(3, "claim", f"the current claim is not the last attempt's: {', '.join(other)}")

    def _count(self, made: int, number: int, token: int) -> None:
        snapshot = self.snapshot
        claims = self._entered[S.CLAIMED]
        if snapshot.fencing_token != made or token != made:
            self._say(
                7, "made", f"fencing_token is {snapshot.fencing_token}, the last attempt's {token}, attempts are {made}"
            )
        if snapshot.attempt_count != made or number != made:
            self._say(
                7, "count", f"attempt_count is {snapshot.attempt_count}, the last is {number}, attempts are {made}"
            )
        if claims != made:
            self._say(7, "claims", f"its events tell of {claims} claims, its attempts are {made}")

    def _compare(self, statuses: Counter[str]) -> None:
        """Compare the tallies of attempts with those of events and with the row's counters."""
        snapshot = self.snapshot
        succeeded = statuses[AttemptStatus.SUCCEEDED]
        if snapshot.state is S.SUCCEEDED:
            if succeeded != 1 or self._last is None or self._last.status != AttemptStatus.SUCCEEDED:
                self._say(5, "attempt", "it is SUCCEEDED, and its last attempt alone is not")
        elif succeeded:
            self._say(5, "attempt", f"it is {snapshot.state}, and an attempt is SUCCEEDED")
        if snapshot.release_count != statuses[AttemptStatus.RELEASED]:
            released = statuses[AttemptStatus.RELEASED]
            self._say(
                "counters", "releases", f"release_count is {snapshot.release_count}, released attempts {released}"
            )
        if snapshot.uncounted_releases > snapshot.release_count:
            self._say(
                "counters", "uncounted", f"uncounted_releases is {snapshot.uncounted_releases}, more than releases"
            )
        if self._is_old:
            return
        if statuses[AttemptStatus.FAILED] != self._entered[S.FAILED]:
            self._say(4, "failed", "its events tell of other failures than its attempts")
        if statuses[AttemptStatus.WORKER_LOST] != self._entered[S.RECOVERING]:
            self._say(4, "lost", "its events tell of other lost workers than its attempts")
        for name, decision in (("retry_count", "retry"), ("operator_retries", "operator_rearm")):
            counted, decided = getattr(snapshot, name), self._decided[decision]
            if counted != decided:
                self._say("counters", name, f"{name} is {counted}, its events tell of {decided}")

    def checkpoints(self, sequences: Iterable[int]) -> None:
        """Follow the checkpoints: their sequence runs 1, 2, 3… up to the row's count."""
        count = 0
        for sequence in sequences:
            count += 1
            if sequence != count:
                self._say("checkpoints", "saved", f"checkpoint {sequence} stands where checkpoint {count} should")
        if count != self.snapshot.checkpoint_count:
            counted = self.snapshot.checkpoint_count
            self._say("checkpoints", "saves", f"checkpoint_count is {counted}, its checkpoints are {count}")

    def dependencies(self, rows: Iterable[Target]) -> None:
        """Judge how each dependency stands, and all together (8)."""
        standings: set[str] = set()
        for row in rows:
            standings.add(row.standing)
            actual = standing_of(row.state, row.required_state, pruned=row.is_pruned)
            if row.standing != actual and not self._may_lag(row):
                self._say(8, "standing", f"dependency {row.depends_on} is {row.standing}, and should be {actual}")
        together = self.snapshot.dependency_standing
        if together != worst(standings):
            self._say(8, "together", f"dependency_standing is {together}, its dependencies are {worst(standings)}")

    def _may_lag(self, row: Target) -> bool:
        state = self.snapshot.state
        if row.state is None:
            # Its tombstone may have been taken since; finished work does not follow that.
            return state in RESTING
        if row.is_pruned:
            return state in FINAL
        # The pass looks again at what was not there, as long as the answer matters.
        return row.standing == Standing.MISSING and (state is not S.READY or self.record.due_at is not None)

    def result(self, row: Outcome | None) -> None:
        """Judge that there is a result exactly in SUCCEEDED, by the last attempt (5)."""
        state, last = self.snapshot.state, self._last
        if row is None:
            if state is S.SUCCEEDED:
                self._say(5, "result", "it is SUCCEEDED, and has no result")
            return
        if state is not S.SUCCEEDED:
            self._say(5, "result", f"it is {state}, and has a result")
        elif last is not None:
            pairs = {
                "attempt_id": (row.attempt_id, last.attempt_id),
                "claim_id": (row.claim_id, last.claim_id),
                "fencing_token": (row.fencing_token, last.fencing_token),
                "produced_by": (row.produced_by, last.worker_id),
            }
            other = [name for name, (told, known) in pairs.items() if told != known]
            if other:
                self._say(5, "result", f"the result is not by the attempt that succeeded: {', '.join(other)}")

    def row(self) -> None:
        """Judge what the row alone says: identity, rest, budget (6), and the derived columns (8)."""
        snapshot, state = self.snapshot, self.snapshot.state
        identity = canonical.workload_id(
            snapshot.tenant_id, snapshot.application_id, self.record.requested_by, self.record.idempotency_key
        )
        if snapshot.workload_id != identity:
            self._say("identity", "identity", f"its scope's id is {identity}")
        if state in PASSED_THROUGH and not (self._is_old and state is S.FAILED):
            self._say(1, "rest", f"it rests in {state}, which is passed through")
        if (snapshot.finished_at is None) is (state in RESTING):
            self._say("finished_at", "finished", f"it is {state}, and finished_at is {_told(snapshot.finished_at)}")
        counted = snapshot.attempt_count - snapshot.uncounted_releases
        if counted > snapshot.budget:
            self._say(6, "budget", f"{counted} attempts count, of {snapshot.budget}")
        self._lane()
        # Without a claim where one is due, the rules have nothing to derive from: that breach is told.
        if "claim" not in self._told:
            self._derived()

    def _lane(self) -> None:
        snapshot, lane = self.snapshot, self.record.lane
        if lane is None:
            self._say(8, "lane", "its lane does not exist")
            return
        own = Scope(
            snapshot.tenant_id,
            snapshot.application_id,
            snapshot.definition_id,
            snapshot.definition_revision,
            snapshot.capability_snapshot,
        )
        other = [name for name in Scope._fields if getattr(own, name) != getattr(lane, name)]
        if other:
            self._say(8, "lane", f"it stands in a lane of another scope: {', '.join(other)}")

    def _derived(self) -> None:
        record, snapshot = self.record, self.snapshot
        right = derive(snapshot, self.now)
        if (record.due_at is None) is not (right.due_at is None) or (
            record.due_at is not None and right.due_at is not None and record.due_at > right.due_at
        ):
            self._say(8, "due_at", f"due_at is {_told(record.due_at)}, the clock is due {_told(right.due_at)}")
        if snapshot.state is S.READY and snapshot.next_attempt_at is None:
            self._say(8, "next_attempt_at", "it is READY, and has no next_attempt_at: no queue hands it out")
        lane = snapshot.lane_id
        queued, waiting = (lane, None), (None, lane)
        # What has come due stands beside the queue until a claim moves it in.
        allowed = [queued, waiting] if right.queued else [waiting] if right.waiting else [(None, None)]
        stands = (record.queued_lane_id, record.waiting_lane_id)
        if stands not in allowed:
            self._say(
                8, "queue", f"it stands in queue {stands[0]} and beside queue {stands[1]}, and should in {allowed[0]}"
            )


def _told(instant: dt.datetime | None) -> str:
    return "not set" if instant is None else canonical.iso(instant)
