"""A workload's record as the contract's sections 2, 3 and 8 describe it: plain values, no database, nothing shared."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from workloads.contract import AdmissionRequest, Dependency, Fence, RetryPolicy, Timeouts

READY, CLAIMED, RUNNING, CHECKPOINTED = "READY", "CLAIMED", "RUNNING", "CHECKPOINTED"
SUCCEEDED, FAILED, TIMED_OUT, DEAD_LETTER = "SUCCEEDED", "FAILED", "TIMED_OUT", "DEAD_LETTER"
REQUESTED, CANCELLED, RECOVERING = "CANCELLATION_REQUESTED", "CANCELLED", "RECOVERING"
FINAL = {SUCCEEDED, CANCELLED}
PARKED = {DEAD_LETTER, TIMED_OUT, FAILED}
IN_WORK = {CLAIMED, RUNNING, CHECKPOINTED}
HELD = IN_WORK | {REQUESTED}
DAY_MS = 86_400_000


class Opaque(str):
    """An id that the authority makes: compared by where it stands, not by its letters."""

    __slots__ = ()


class OneOf(frozenset):
    """Equal to any one of its members: the contract leaves open which."""

    def __eq__(self, other: object) -> bool:
        return other in self

    __hash__ = frozenset.__hash__


class Unordered(list):
    """Equal to the same members in any order: the contract names none."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, list | tuple) and sorted(self) == sorted(other)

    __hash__ = None


def ms(count: int) -> dt.timedelta:
    return dt.timedelta(milliseconds=count)


def iso(at: dt.datetime) -> str:
    return at.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def plain(value: Any) -> Any:
    """Return JSON as it is read back: integral floats are ints, tuples are lists."""
    if isinstance(value, dict):
        return {key: plain(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [plain(member) for member in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def digest(value: Any) -> str:
    text = json.dumps(plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def identity(request: AdmissionRequest) -> str:
    scope = [request.tenant_id, request.application_id, request.requested_by, request.idempotency_key]
    text = json.dumps(scope, separators=(",", ":"), ensure_ascii=False)
    return "workload_" + hashlib.sha256(text.encode()).hexdigest()[:24]


@dataclass
class Event:
    sequence: int
    from_state: str
    to_state: str
    at: dt.datetime
    actor: str
    evidence: dict[str, Any]


@dataclass
class Attempt:
    number: int
    attempt_id: Opaque
    claim_id: Opaque
    worker_id: str
    fencing_token: int
    claimed_at: dt.datetime
    status: str = "CLAIMED"
    started_at: dt.datetime | None = None
    ended_at: dt.datetime | None = None
    error: str | None = None
    failure_kind: str | None = None
    effect: str | None = None
    outcome_state: str | None = None
    outcome_decision: str | None = None
    outcome_next_attempt_at: dt.datetime | None = None
    # Not part of the record: whether its worker ended it by confirming a cancellation.
    confirmed: bool = False

    def is_of(self, fence: Fence) -> bool:
        return (self.claim_id, self.worker_id, self.fencing_token) == (
            fence.claim_id,
            fence.worker_id,
            fence.fencing_token,
        )


@dataclass
class Checkpoint:
    sequence: int
    checkpoint_id: Opaque
    attempt_id: Opaque
    key: str | None
    state: Any
    at: dt.datetime


@dataclass
class Result:
    result_id: str
    attempt_id: Opaque
    produced_by: str
    output: Any
    output_hash: str
    artifacts: Any
    schema_version: int
    provenance: dict[str, Any]
    at: dt.datetime


@dataclass
class Record:
    workload_id: str
    tenant_id: str
    application_id: str
    requested_by: str
    idempotency_key: str
    definition_id: str
    definition_revision: str
    environment: str
    input: Any
    input_hash: str
    trigger: str
    session_id: str | None
    capability_snapshot: frozenset[str]
    connection_scopes: frozenset[str]
    grant: str | None
    priority: int
    retry_policy: RetryPolicy
    timeouts: Timeouts
    dependencies: frozenset[tuple[str, str]]
    not_before: dt.datetime | None
    next_attempt_at: dt.datetime | None
    created_at: dt.datetime
    updated_at: dt.datetime
    overall_from: dt.datetime
    state: str = READY
    contract_version: int = 2
    version: int = 1
    attempt_count: int = 0
    retry_count: int = 0
    release_count: int = 0
    uncounted_releases: int = 0
    operator_retries: int = 0
    fencing_token: int = 0
    last_failure: str | None = None
    finished_at: dt.datetime | None = None
    claim_id: Opaque | None = None
    worker_id: str | None = None
    claimed_at: dt.datetime | None = None
    last_heartbeat: dt.datetime | None = None
    expires_at: dt.datetime | None = None
    events: list[Event] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    checkpoints: list[Checkpoint] = field(default_factory=list)
    result: Result | None = None

    @property
    def attempt(self) -> Attempt:
        """The current claim's attempt: always the last one."""
        return self.attempts[-1]

    def budget_used(self) -> bool:
        counted = self.attempt_count - self.uncounted_releases
        return counted >= self.retry_policy.max_attempts + self.operator_retries

    def move(self, to_state: str, now: dt.datetime, actor: str, **evidence: Any) -> None:
        """Write one event. An event to READY says when the work is due, where that is later; no other work is due."""
        if to_state == READY and self.next_attempt_at > now:
            evidence["next_attempt_at"] = iso(self.next_attempt_at)
        elif to_state not in {"CREATED", READY}:
            self.next_attempt_at = None
        from_state = self.events[-1].to_state if self.events else ""
        self.events.append(Event(len(self.events) + 1, from_state, to_state, now, actor, evidence))
        self.state = to_state

    def step(self, now: dt.datetime) -> None:
        """Close one operation's change: one step of `version`, and the instants that follow from where it rests."""
        self.version += 1
        self.updated_at = now
        self.finished_at = now if self.state in FINAL | PARKED else None

    def end_attempt(self, status: str, now: dt.datetime, error: str | None = None) -> Attempt:
        """Close the current attempt and drop the claim."""
        attempt = self.attempt
        attempt.status, attempt.ended_at, attempt.error = status, now, error
        self.claim_id = self.worker_id = self.claimed_at = self.last_heartbeat = self.expires_at = None
        return attempt

    def back_off(self, now: dt.datetime, retry_after_ms: int | None = None) -> None:
        """Set when the next attempt is due, after one more retry (section 6)."""
        policy = self.retry_policy
        self.retry_count += 1
        delay = policy.initial_delay_ms
        if policy.backoff == "EXPONENTIAL":
            delay *= 2 ** (self.retry_count - 1)
        delay = min(delay, policy.max_delay_ms)
        if retry_after_ms is not None:
            delay = max(delay, min(retry_after_ms, max(policy.max_delay_ms, DAY_MS)))
        self.next_attempt_at = now + ms(delay)

    def deadlines(self) -> list[tuple[str, dt.datetime]]:
        """Return the deadlines that run now, in the order in which they are named (section 8)."""
        if self.contract_version < 2:
            return []
        given, running = self.timeouts, []
        if given.overall_ms is not None and self.state in IN_WORK | {READY}:
            running.append(("overall", self.overall_from + ms(given.overall_ms)))
        if given.queue_ms is not None and self.state == READY:
            running.append(("queue", max(self.events[-1].at, self.next_attempt_at) + ms(given.queue_ms)))
        if given.claim_ms is not None and self.state == CLAIMED:
            running.append(("claim", self.claimed_at + ms(given.claim_ms)))
        if given.execution_ms is not None and self.state in {RUNNING, CHECKPOINTED}:
            running.append(("execution", self.attempt.started_at + ms(given.execution_ms)))
        if given.heartbeat_ms is not None and self.state in IN_WORK:
            running.append(("heartbeat", self.last_heartbeat + ms(given.heartbeat_ms)))
        return running

    def passed(self, now: dt.datetime) -> tuple[str, dt.datetime] | None:
        return next(((name, at) for name, at in self.deadlines() if now >= at), None)


def admitted(request: AdmissionRequest, dependencies: Iterable[Dependency], now: dt.datetime) -> Record:
    """Return the record of an accepted admission."""
    policy = request.retry_policy
    record = Record(
        workload_id=identity(request),
        tenant_id=request.tenant_id,
        application_id=request.application_id,
        requested_by=request.requested_by,
        idempotency_key=request.idempotency_key,
        definition_id=request.definition_id,
        definition_revision=request.definition_revision,
        environment=request.environment,
        input=plain(request.input),
        input_hash=digest(request.input),
        trigger=request.trigger,
        session_id=request.session_id,
        capability_snapshot=frozenset(request.capability_snapshot),
        connection_scopes=frozenset(request.connection_scopes),
        grant=request.grant,
        priority=request.priority,
        retry_policy=RetryPolicy(
            max_attempts=policy.max_attempts,
            backoff=policy.backoff,
            initial_delay_ms=policy.initial_delay_ms,
            max_delay_ms=policy.max_delay_ms,
            jitter=policy.jitter,
            retry_on=frozenset(policy.retry_on),
        ),
        timeouts=request.timeouts,
        dependencies=frozenset((given.workload_id, str(given.required_state)) for given in dependencies),
        not_before=request.not_before,
        next_attempt_at=request.not_before or now,
        created_at=now,
        updated_at=now,
        overall_from=now,
    )
    evidence = {"not_before": iso(request.not_before)} if request.not_before else {}
    record.move("CREATED", now, request.requested_by, **evidence)
    record.move(READY, now, request.requested_by, **evidence)
    return record
