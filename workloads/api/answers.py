"""What the authority returns, as JSON: names as in the contract, instants as ISO 8601 UTC, sets as sorted arrays."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import fields
from functools import cache
from operator import attrgetter
from typing import Any, Final

from workloads.api.rows import read_dependencies
from workloads.contract import Blocker, CheckpointRecord, Claim, FailureOutcome, ResultRecord
from workloads.fields import TIMEOUT_NAMES, policy_to_json
from workloads.lifecycle.canonical import iso
from workloads.models import Attempt, Checkpoint, Event, Result, Workload

RECORD: Final = (
    "workload_id",
    "tenant_id",
    "application_id",
    "requested_by",
    "idempotency_key",
    "contract_version",
    "version",
    "definition_id",
    "definition_revision",
    "environment",
    "input",
    "input_hash",
    "trigger",
    "session_id",
    "capability_snapshot",
    "connection_scopes",
    "grant",
    "priority",
    "retry_policy",
    "timeouts",
    "dependencies",
    "not_before",
    "state",
    "next_attempt_at",
    "attempt_count",
    "retry_count",
    "release_count",
    "uncounted_releases",
    "operator_retries",
    "fencing_token",
    "last_failure",
    "created_at",
    "updated_at",
    "finished_at",
    "overall_from",
    "claim_id",
    "worker_id",
    "claimed_at",
    "last_heartbeat",
    "expires_at",
)
EVENT: Final = ("sequence", "from_state", "to_state", "at", "actor", "evidence")
ATTEMPT: Final = (
    "number",
    "attempt_id",
    "claim_id",
    "worker_id",
    "fencing_token",
    "status",
    "claimed_at",
    "started_at",
    "ended_at",
    "error",
    "failure_kind",
    "effect",
    "outcome_state",
    "outcome_decision",
    "outcome_next_attempt_at",
)


_AS_THEY_STAND: Final = frozenset({str, int, float, bool, type(None), dict, list})


def plain(value: Any) -> Any:
    """Return a value of the contract as JSON has it."""
    if type(value) in _AS_THEY_STAND:
        return value
    if isinstance(value, dt.datetime):
        return iso(value)
    if isinstance(value, (frozenset, set)):
        return sorted(value)
    return value


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


@cache
def _values(kind: Any) -> Callable[[Any], tuple[Any, ...]]:
    return attrgetter(*_names(kind))


def _all(value: Any, kind: Any) -> dict[str, Any]:
    """Return all the fields that `kind`, a class of the contract, has; of a row that has them too, if it is one."""
    return dict(zip(_names(kind), map(plain, _values(kind)(value)), strict=True))


def workload(row: Workload, *, with_payload: bool = True) -> dict[str, Any]:
    """Return a workload's record. Without its payload the input is left out, and was not read."""
    read_dependencies([row])
    said: dict[str, Any] = {}
    for name in RECORD:
        if name == "input" and not with_payload:
            continue
        if name == "retry_policy":
            said[name] = policy_to_json(row.retry_policy)
        elif name == "timeouts":
            said[name] = {timeout: getattr(row.timeouts, timeout) for timeout in TIMEOUT_NAMES}
        elif name == "dependencies":
            said[name] = [
                {"workload_id": edge.depends_on, "required_state": edge.required_state}
                for edge in sorted(row.dependencies.all(), key=lambda edge: edge.depends_on)
            ]
        else:
            said[name] = plain(getattr(row, name))
    return said


def claim(value: Claim) -> dict[str, Any]:
    """Return a claim, or an execution context, which is a claim with all that its holder needs to run."""
    said = _all(value, type(value))
    if "checkpoints" in said:
        said["checkpoints"] = [checkpoint(record) for record in said["checkpoints"]]
    return said


def checkpoint(record: CheckpointRecord | Checkpoint, with_payload: bool = True) -> dict[str, Any]:
    """Return a checkpoint; without its payload its state is left out."""
    if with_payload:
        return _all(record, CheckpointRecord)
    return _row(record, (name for name in _names(CheckpointRecord) if name != "state"))


def result(record: ResultRecord | Result, with_payload: bool = True) -> dict[str, Any]:
    """Return a result; without its payload its output and artifacts are left out."""
    if with_payload:
        return _all(record, ResultRecord)
    return _row(record, (name for name in _names(ResultRecord) if name not in ("output", "artifacts")))


def event(row: Event) -> dict[str, Any]:
    """Return one step of a workload."""
    return _row(row, EVENT)


def attempt(row: Attempt) -> dict[str, Any]:
    """Return one attempt."""
    return _row(row, ATTEMPT)


def _row(row: Any, names: Iterable[str]) -> dict[str, Any]:
    return {name: plain(getattr(row, name)) for name in names}


def outcome(value: FailureOutcome) -> dict[str, Any]:
    """Return what the authority decided after a failure."""
    return {
        "state": str(value.state),
        "decision": value.decision,
        "next_attempt_at": plain(value.next_attempt_at),
    }


def blockers(found: Collection[Blocker]) -> dict[str, Any]:
    """Return why a workload is not running."""
    return {
        "blockers": [
            {"code": blocker.code, "message": blocker.message, "details": _details(blocker.details)}
            for blocker in found
        ]
    }


def _details(details: Mapping[str, Any]) -> dict[str, Any]:
    return {name: plain(value) for name, value in details.items()}
