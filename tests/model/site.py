"""What all verbs of the model share: the records, the fence, the deadlines, and what is refused."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable
from typing import Any

from tests.model.records import (
    DEAD_LETTER,
    FINAL,
    IN_WORK,
    READY,
    REQUESTED,
    TIMED_OUT,
    Opaque,
    Record,
    iso,
    ms,
)
from workloads.contract import Fence


class ModelRefusal(Exception):
    """What the contract refuses. `details` is None where the contract names none."""

    def __init__(self, code: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(code, details)
        self.code, self.details = code, details


class Cycle(list):
    """The workloads that reach the new one, as edges. Equal to the ids along any cycle through `start`."""

    def __init__(self, start: str, edges: dict[str, set[str]]) -> None:
        super().__init__([start])
        self.start, self.edges = start, edges

    def __eq__(self, other: object) -> bool:
        ring = list(other)
        if len(ring) > 1 and ring[0] == ring[-1]:
            ring.pop()
        steps = zip(ring, [*ring[1:], ring[0]], strict=True)
        return self.start in ring and all(after in self.edges.get(before, ()) for before, after in steps)

    __hash__ = None


def invalid(field: str) -> ModelRefusal:
    return ModelRefusal("WORKLOAD_INVALID", {"field": field})


def denied(record: Record, to_state: str) -> ModelRefusal:
    return ModelRefusal("WORKLOAD_TRANSITION_DENIED", {"from": record.state, "to": to_state})


def timed_out(deadline: str, at: dt.datetime) -> ModelRefusal:
    return ModelRefusal("WORKLOAD_TIMED_OUT", {"deadline": deadline, "deadline_at": iso(at)})


def given(**evidence: str) -> dict[str, str]:
    """Return the evidence that says something."""
    return {key: value for key, value in evidence.items() if value}


class Site:
    """All workloads of a site, by id, in the order of their admission."""

    def __init__(self, *, max_releases: int, accept_late: bool, max_checkpoints: int, max_lease_ms: int) -> None:
        self.max_releases, self.accept_late = max_releases, accept_late
        self.max_checkpoints, self.max_lease_ms = max_checkpoints, max_lease_ms
        self.records: dict[str, Record] = {}
        self.requests: dict[tuple[str, str], tuple[str, str | None, list[tuple[str, Opaque]]]] = {}
        self.made = 0

    # What the verbs share.

    def _opaque(self, kind: str) -> Opaque:
        self.made += 1
        return Opaque(f"{kind}-{self.made}")

    def _found(self, workload_id: str) -> Record:
        if workload_id not in self.records:
            raise ModelRefusal("WORKLOAD_NOT_FOUND")
        return self.records[workload_id]

    def _dependency(self, record: Record, workload_id: str) -> Record | None:
        """Return the workload depended on, if it exists for this tenant and application."""
        other = self.records.get(workload_id)
        same = other and (other.tenant_id, other.application_id) == (record.tenant_id, record.application_id)
        return other if same else None

    def unmet(self, record: Record) -> list[str]:
        states = {name: self._dependency(record, name) for name, _ in record.dependencies}
        return [name for name, needed in record.dependencies if not states[name] or states[name].state != needed]

    def unmeetable(self, record: Record) -> list[str]:
        return [
            name
            for name, needed in record.dependencies
            if (other := self._dependency(record, name)) and other.state in FINAL and other.state != needed
        ]

    def missing(self, record: Record) -> list[str]:
        return [name for name, _ in record.dependencies if not self._dependency(record, name)]

    def _judge(self, record: Record, fence: Fence, now: dt.datetime, *, late: bool = False) -> dict[str, str]:
        """Refuse what the fence refuses. With `late`, a lease that is over is excused where the site says so."""
        if record.claim_id is None:
            raise ModelRefusal("WORKLOAD_CLAIM_INVALID")
        if fence.fencing_token < record.fencing_token:
            raise ModelRefusal("WORKLOAD_STALE_FENCE")
        if not record.attempt.is_of(fence):
            raise ModelRefusal("WORKLOAD_CLAIM_INVALID")
        if record.expires_at > now:
            return {}
        if late and self.accept_late:
            return {"late": "true"}
        raise ModelRefusal("WORKLOAD_LEASE_EXPIRED")

    def _enforce(self, record: Record, now: dt.datetime) -> None:
        """Time out what is past a deadline, and refuse the call that found it so."""
        if passed := record.passed(now):
            self._pass_deadline(record, now)
            raise timed_out(*passed)

    def _pass_deadline(self, record: Record, now: dt.datetime) -> None:
        deadline, at = record.passed(now)
        error = f"timeout: {deadline} deadline passed"
        evidence = {"deadline": deadline, "deadline_at": iso(at)}
        if record.state in IN_WORK:
            evidence |= {"claim_id": record.claim_id, "worker_id": record.worker_id}
            record.end_attempt("TIMED_OUT", now, error)
        record.last_failure = error
        record.move(TIMED_OUT, now, "authority.deadline", **evidence)
        if deadline in {"overall", "queue"}:
            decision = "deadline_not_retryable"
        elif "timeout" not in record.retry_policy.retry_on:
            decision = "timeout_not_retryable"
        else:
            decision = "attempt_budget_exhausted" if record.budget_used() else "retry"
        self._settle(record, now, "authority.deadline", decision)
        record.step(now)

    def _settle(self, record: Record, now: dt.datetime, actor: str, decision: str, after: int | None = None) -> None:
        """Write the event of a decision: READY after a delay for `retry`, else DEAD_LETTER."""
        if decision == "retry":
            record.back_off(now, after)
        record.move(READY if decision == "retry" else DEAD_LETTER, now, actor, decision=decision)

    def _claim_of(self, record: Record, now: dt.datetime) -> dict[str, Any]:
        """Return the current claim as its holder sees it."""
        return {
            "workload_id": record.workload_id,
            "attempt_id": record.attempt.attempt_id,
            "attempt_number": record.attempt.number,
            "claim_id": record.claim_id,
            "worker_id": record.worker_id,
            "fencing_token": record.fencing_token,
            "claimed_at": record.claimed_at,
            "last_heartbeat": record.last_heartbeat,
            "expires_at": record.expires_at,
            "lease_left_ms": (record.expires_at - now) // ms(1),
            "cancellation_requested": record.state == REQUESTED,
            "definition_id": record.definition_id,
            "definition_revision": record.definition_revision,
        }

    def _each(self, verb: Callable[..., Any], calls: Iterable[dict[str, Any]]) -> list[Any]:
        answers: list[Any] = []
        for call in calls:
            try:
                answers.append(verb(**call))
            except ModelRefusal as refusal:
                answers.append(refusal)
        return answers
