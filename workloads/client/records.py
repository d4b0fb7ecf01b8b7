"""What stands in an answer, as the contract's values: JSON in, dataclasses out."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, TypeVar

from workloads.contract import (
    AttemptStatus,
    Backoff,
    Blocker,
    CheckpointRecord,
    Claim,
    Dependency,
    Effect,
    ExecutionContext,
    FailureOutcome,
    ResultRecord,
    RetryPolicy,
    Timeouts,
    WorkloadState,
)
from workloads.errors import WorkloadError

T = TypeVar("T")

_INSTANTS = frozenset(
    "at claimed_at created_at ended_at expires_at finished_at last_heartbeat next_attempt_at not_before "
    "outcome_next_attempt_at overall_from started_at updated_at".split()
)
_SETS = frozenset({"capability_snapshot", "connection_scopes", "secret_references"})


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkloadRecord:
    """A workload as it stood when the authority answered: every field of section 2 of the contract but its history.

    `has_input` is False where the input was left out: in lists, and for callers who may not read payloads.
    """

    workload_id: str
    tenant_id: str
    application_id: str
    requested_by: str
    idempotency_key: str
    contract_version: int
    version: int
    definition_id: str
    definition_revision: str
    environment: str
    input: Any
    has_input: bool
    input_hash: str
    trigger: str
    session_id: str | None
    capability_snapshot: frozenset[str]
    connection_scopes: frozenset[str]
    grant: str | None
    priority: int
    retry_policy: RetryPolicy
    timeouts: Timeouts
    dependencies: tuple[Dependency, ...]
    not_before: dt.datetime | None
    state: WorkloadState
    next_attempt_at: dt.datetime | None
    attempt_count: int
    retry_count: int
    release_count: int
    uncounted_releases: int
    operator_retries: int
    fencing_token: int
    last_failure: str | None
    created_at: dt.datetime
    updated_at: dt.datetime
    finished_at: dt.datetime | None
    overall_from: dt.datetime
    claim_id: str | None
    worker_id: str | None
    claimed_at: dt.datetime | None
    last_heartbeat: dt.datetime | None
    expires_at: dt.datetime | None


@dataclass(frozen=True, kw_only=True, slots=True)
class EventRecord:
    """One step of a workload."""

    sequence: int
    from_state: str
    to_state: WorkloadState
    at: dt.datetime
    actor: str
    evidence: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptRecord:
    """One attempt at a workload."""

    number: int
    attempt_id: str
    claim_id: str
    worker_id: str
    fencing_token: int
    status: AttemptStatus
    claimed_at: dt.datetime
    started_at: dt.datetime | None
    ended_at: dt.datetime | None
    error: str | None
    failure_kind: str | None
    effect: Effect | None
    outcome_state: WorkloadState | None
    outcome_decision: str | None
    outcome_next_attempt_at: dt.datetime | None


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def _instant(value: Any) -> dt.datetime | None:
    return None if value is None else dt.datetime.fromisoformat(value)


def _build(kind: type[T], said: Mapping[str, Any], **made: Any) -> T:
    """Return a dataclass from the fields that an answer has of it; a newer server may have more."""
    values: dict[str, Any] = {}
    any_kind: Any = kind
    for name in _names(any_kind):
        if name in made:
            values[name] = made[name]
        elif name in _INSTANTS:
            values[name] = _instant(said[name])
        elif name in _SETS:
            values[name] = frozenset(said[name])
        else:
            values[name] = said[name]
    return kind(**values)


def workload(said: Mapping[str, Any]) -> WorkloadRecord:
    """Read a workload's record."""
    policy = dict(said["retry_policy"])
    policy |= {"backoff": Backoff(policy["backoff"]), "retry_on": frozenset(policy["retry_on"])}
    return _build(
        WorkloadRecord,
        said,
        input=said.get("input"),
        has_input="input" in said,
        state=WorkloadState(said["state"]),
        retry_policy=_build(RetryPolicy, policy),
        timeouts=_build(Timeouts, said["timeouts"]),
        dependencies=tuple(
            Dependency(workload_id=edge["workload_id"], required_state=WorkloadState(edge["required_state"]))
            for edge in said["dependencies"]
        ),
    )


def claim(said: Mapping[str, Any]) -> Claim:
    """Read a claim."""
    return _build(Claim, said)


def execution_context(said: Mapping[str, Any]) -> ExecutionContext:
    """Read a claim with its context."""
    return _build(ExecutionContext, said, checkpoints=tuple(checkpoint(record) for record in said["checkpoints"]))


def checkpoint(said: Mapping[str, Any]) -> CheckpointRecord:
    """Read a checkpoint. Its state is None where it was left out."""
    return _build(CheckpointRecord, said, state=said.get("state"))


def result(said: Mapping[str, Any]) -> ResultRecord:
    """Read a result. Its output and artifacts are None where they were left out."""
    return _build(ResultRecord, said, output=said.get("output"), artifacts=said.get("artifacts"))


def outcome(said: Mapping[str, Any]) -> FailureOutcome:
    """Read what the authority decided after a failure."""
    return _build(FailureOutcome, said, state=WorkloadState(said["state"]))


def event(said: Mapping[str, Any]) -> EventRecord:
    """Read one step of a workload."""
    return _build(EventRecord, said, to_state=WorkloadState(said["to_state"]))


def attempt(said: Mapping[str, Any]) -> AttemptRecord:
    """Read one attempt."""
    effect, state = said["effect"], said["outcome_state"]
    return _build(
        AttemptRecord,
        said,
        status=AttemptStatus(said["status"]),
        effect=None if effect is None else Effect(effect),
        outcome_state=None if state is None else WorkloadState(state),
    )


def blockers(said: Mapping[str, Any]) -> list[Blocker]:
    """Read why a workload is not running."""
    return [_build(Blocker, blocker) for blocker in said["blockers"]]


def error(said: Mapping[str, Any]) -> WorkloadError:
    """Read a refusal."""
    return WorkloadError(str(said["code"]), str(said.get("message", "")), said.get("details"))


def claims(said: Mapping[str, Any]) -> list[tuple[ExecutionContext, int | None]]:
    """Read claims, each with the work's heartbeat deadline."""
    return [(execution_context(claim), claim.get("heartbeat_ms")) for claim in said["claims"]]


def outcomes(said: Mapping[str, Any], count: int, read: Callable[[Mapping[str, Any]], T]) -> list[T | WorkloadError]:
    """Read the outcomes of a batch of so many items."""
    found = said["outcomes"]
    if len(found) != count:
        raise ValueError(f"{len(found)} outcomes of {count} items")
    return [error(outcome["error"]) if "error" in outcome else read(outcome) for outcome in found]


def page(said: Mapping[str, Any], read: Callable[[Mapping[str, Any]], T]) -> tuple[list[T], str | None]:
    """Read a page of a list, and where the next one is."""
    further = said["next"]
    if further is not None and not isinstance(further, str):
        raise TypeError("next is no address")
    return [read(row) for row in said["results"]], further
