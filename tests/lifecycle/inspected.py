"""Sound lives of workloads as an inspection is told them, in plain values, and changes that may break something."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tests.lifecycle.builders import BEAT_AT, CLAIMED_AT, EPOCH, EXPIRES_AT, MS, NOW, STARTED_AT, S, make, make_claim
from workloads.contract import AttemptStatus, RetryPolicy
from workloads.lifecycle import canonical
from workloads.lifecycle.invariants import Attempt, Event, Inspection, Outcome, Record, Scope, Target
from workloads.lifecycle.snapshot import Snapshot, Standing

A = AttemptStatus
SCOPE = Scope("tenant", "application", "definition", "1", frozenset({"cpu", "net"}))
RETRIED_AT = EPOCH + 30_000 * MS


@dataclass
class Life:
    """All that is inspected of one workload."""

    snapshot: Snapshot
    path: list[Any]
    attempts: list[Attempt] = field(default_factory=list)
    checkpoints: list[int] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    outcome: Outcome | None = None
    record: dict[str, Any] = field(default_factory=dict)
    lane: Scope | None = SCOPE

    def breaches(self, now: Any = NOW) -> list[int | str]:
        """Inspect it."""
        snapshot = self.snapshot
        names = ("claim_id", "worker_id", "attempt_id", "claimed_at", "started_at", "last_heartbeat", "expires_at")
        values: dict[str, Any] = {
            "requested_by": "user",
            "idempotency_key": "key",
            "claim": {name: getattr(snapshot.claim, name, None) for name in names},
            "due_at": None if snapshot.claim is None else EXPIRES_AT,
            "queued_lane_id": 3 if snapshot.state is S.READY else None,
            "waiting_lane_id": None,
            "lane": self.lane,
        }
        inspection = Inspection(Record(snapshot=snapshot, **(values | self.record)), now)
        inspection.events(self.events())
        inspection.attempts(self.attempts)
        inspection.checkpoints(self.checkpoints)
        inspection.dependencies(self.targets)
        inspection.result(self.outcome)
        inspection.row()
        return [breach.invariant for breach in inspection.breaches]

    def events(self) -> list[Event]:
        """Return the events: each step of the path is a state, a state and its evidence, or a whole event."""
        events: list[Event] = []
        for step in self.path:
            if isinstance(step, Event):
                events.append(step)
                continue
            state, evidence = step if isinstance(step, tuple) else (step, {})
            events.append(Event(len(events) + 1, events[-1].to_state if events else "", str(state), evidence))
        return events

    def change(self, **values: Any) -> None:
        """Change the snapshot."""
        self.snapshot = replace(self.snapshot, **values)


def attempt(status: AttemptStatus, number: int = 1, **changes: Any) -> Attempt:
    """Make an attempt under the claim that the builders make."""
    values: dict[str, Any] = {
        "number": number,
        "attempt_id": f"attempt-{number}",
        "claim_id": f"claim-{number}",
        "worker_id": "worker-1",
        "fencing_token": number,
        "status": str(status),
        "claimed_at": CLAIMED_AT,
        "started_at": None if status is A.CLAIMED else STARTED_AT,
        "ended_at": None if status in (A.CLAIMED, A.RUNNING) else BEAT_AT,
        "failure_kind": None,
        "effect": None,
        "outcome_state": None,
        "outcome_decision": None,
        "outcome_next_attempt_at": None,
    }
    return Attempt(**(values | changes))


def failed(number: int, state: str, decision: str) -> Attempt:
    due = RETRIED_AT if state == S.READY else None
    return attempt(
        A.FAILED,
        number,
        failure_kind="odd",
        effect="none",
        outcome_state=str(state),
        outcome_decision=decision,
        outcome_next_attempt_at=due,
    )


RUN = [S.CREATED, S.READY, S.CLAIMED, S.RUNNING]
FAIL = (S.FAILED, {"attempt_id": "attempt-1"})


def life(state: Any, path: list[Any], *attempts: Attempt, **changes: Any) -> Life:
    """Make a sound life that has come to `state` along a path."""
    number = len(attempts)
    values: dict[str, Any] = {
        "workload_id": canonical.workload_id("tenant", "application", "user", "key"),
        "event_count": len(path),
        "attempt_count": number,
        "fencing_token": number,
    }
    if number > 1 and state in (S.CLAIMED, S.RUNNING):
        values["claim"] = make_claim(state, claim_id=f"claim-{number}", attempt_id=f"attempt-{number}")
    return Life(make(state, **(values | changes)), list(path), list(attempts))


def ready() -> Life:
    return life(S.READY, [S.CREATED, S.READY])


def claimed() -> Life:
    return life(S.CLAIMED, RUN[:3], attempt(A.CLAIMED))


def running() -> Life:
    return life(S.RUNNING, RUN, attempt(A.RUNNING))


def checkpointed() -> Life:
    found = life(S.CHECKPOINTED, [*RUN, S.CHECKPOINTED, S.CHECKPOINTED], attempt(A.RUNNING), checkpoint_count=2)
    found.checkpoints = [1, 2]
    return found


def cancelling() -> Life:
    return life(S.CANCELLATION_REQUESTED, [*RUN, S.CANCELLATION_REQUESTED], attempt(A.RUNNING))


def cancelled_unstarted() -> Life:
    found = life(S.CANCELLATION_REQUESTED, [*RUN[:3], S.CANCELLATION_REQUESTED], attempt(A.CLAIMED))
    found.change(claim=make_claim(S.CLAIMED))
    return found


def succeeded() -> Life:
    found = life(S.SUCCEEDED, [*RUN, S.SUCCEEDED], attempt(A.SUCCEEDED))
    found.outcome = Outcome("attempt-1", "claim-1", 1, "worker-1")
    return found


def released() -> Life:
    found = life(S.READY, [*RUN, (S.READY, {"decision": "released"})], attempt(A.RELEASED))
    found.change(release_count=1, uncounted_releases=1)
    return found


def released_out() -> Life:
    path = [*RUN, (S.DEAD_LETTER, {"decision": "attempt_budget_exhausted"})]
    found = life(S.DEAD_LETTER, path, attempt(A.RELEASED), retry_policy=RetryPolicy(max_attempts=1))
    found.change(release_count=1)
    return found


def retried() -> Life:
    again = (S.READY, {"decision": "retry"})
    path = [*RUN, FAIL, again, S.CLAIMED, S.RUNNING]
    found = life(S.RUNNING, path, failed(1, S.READY, "retry"), attempt(A.RUNNING, 2))
    found.change(retry_count=1)
    return found


def dead() -> Life:
    path = [*RUN, FAIL, (S.DEAD_LETTER, {"decision": "failure_not_retryable"})]
    return life(S.DEAD_LETTER, path, failed(1, S.DEAD_LETTER, "failure_not_retryable"))


def rearmed() -> Life:
    found = dead()
    found.path.append((S.READY, {"decision": "operator_rearm"}))
    found.snapshot = replace(ready().snapshot, attempt_count=1, fencing_token=1, event_count=7, operator_retries=1)
    return found


def lost() -> Life:
    path = [*RUN, S.RECOVERING, (S.READY, {"decision": "retry"})]
    return life(S.READY, path, attempt(A.WORKER_LOST), retry_count=1)


def old() -> Life:
    """A record of contract version 1, which rests in FAILED."""
    return life(S.FAILED, [*RUN, S.FAILED], attempt(A.FAILED), contract_version=1)


LIVES: dict[str, Callable[[], Life]] = {
    made.__name__: made
    for made in (
        ready,
        claimed,
        running,
        checkpointed,
        cancelling,
        cancelled_unstarted,
        succeeded,
        released,
        released_out,
        retried,
        dead,
        rearmed,
        lost,
        old,
    )
}


Change = Callable[[Life], Any]


def path(place: int, step: Any) -> Change:
    return lambda told: told.path.__setitem__(place, step)


def only(count: int) -> Change:
    return lambda told: (told.path.__delitem__(slice(count, None)), told.change(event_count=count))


def row(**values: Any) -> Change:
    return lambda told: told.change(**values)


def tried(place: int = 0, **values: Any) -> Change:
    return lambda told: told.attempts.__setitem__(place, told.attempts[place]._replace(**values))


def tries(*attempts: Attempt) -> Change:
    return lambda told: setattr(told, "attempts", list(attempts))


def own(**values: Any) -> Change:
    return lambda told: told.record.update(values)


def claim(**values: Any) -> Change:
    def change(told: Life) -> None:
        current = told.snapshot.claim
        names = make_claim().__dataclass_fields__
        told.record["claim"] = {name: getattr(current, name, None) for name in names} | values

    return change


def result(**values: Any) -> Change:
    return lambda told: setattr(told, "outcome", told.outcome._replace(**values) if told.outcome else None)


def saved(*sequences: int) -> Change:
    return lambda told: setattr(told, "checkpoints", list(sequences))


def lane(**values: Any) -> Change:
    return lambda told: setattr(told, "lane", SCOPE._replace(**values))


def waits(
    state: str | None, standing: Standing = Standing.WAITING, *, required: str = "SUCCEEDED", pruned: bool = False
) -> Change:
    """Let it depend on a workload in `state`, as it is noted to stand."""

    def change(told: Life) -> None:
        told.targets.append(Target("other", required, str(standing), state, pruned))
        queue = {} if standing is Standing.MET else {"queued_lane_id": None}
        told.record |= queue if told.snapshot.state is S.READY else {}
        told.change(dependency_standing=standing)

    return change
