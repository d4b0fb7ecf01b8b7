"""The frozen values that rules read: one workload as the locked row says, its claim, and its past attempts."""

from __future__ import annotations

import datetime as dt
import enum
from dataclasses import dataclass
from typing import Any, Final

from workloads.contract import AttemptStatus, Claim, Effect, Fence, RetryPolicy, Timeouts, WorkloadState

MILLISECOND: Final = dt.timedelta(milliseconds=1)
"""Durations are made by multiplying it, at a quarter of the cost of a `timedelta` of so many milliseconds."""


class Standing(enum.StrEnum):
    """How a dependency stands, and how all of a workload's stand together (the worst of them)."""

    MET = "met"
    WAITING = "waiting"
    MISSING = "missing"
    UNMEETABLE = "unmeetable"


@dataclass(frozen=True, kw_only=True, slots=True)
class CurrentClaim:
    """The claim that a held workload is under. `started_at` is None until the worker starts."""

    claim_id: str
    worker_id: str
    attempt_id: str
    claimed_at: dt.datetime
    started_at: dt.datetime | None
    last_heartbeat: dt.datetime
    expires_at: dt.datetime


# Without slots: a copy with changes is made of its mapping, at a fraction of the cost of dataclasses.replace().
@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """One workload, as its row stood when it was locked."""

    pk: int
    workload_id: str
    tenant_id: str
    application_id: str
    definition_id: str
    definition_revision: str
    lane_id: int
    contract_version: int
    capability_snapshot: frozenset[str]
    connection_scopes: frozenset[str]
    retry_policy: RetryPolicy
    timeouts: Timeouts
    created_at: dt.datetime

    version: int
    state: WorkloadState
    priority: int
    next_attempt_at: dt.datetime | None
    attempt_count: int
    retry_count: int
    release_count: int
    uncounted_releases: int
    operator_retries: int
    fencing_token: int
    last_failure: str | None
    updated_at: dt.datetime
    finished_at: dt.datetime | None
    overall_from: dt.datetime
    event_count: int
    checkpoint_count: int
    dependency_standing: Standing
    claim: CurrentClaim | None

    @classmethod
    def of(cls, values: dict[str, Any]) -> Snapshot:
        """Return the snapshot whose fields have these values, by name; the dictionary becomes its own.

        Fewer or more values than it has fields: TypeError.
        """
        if len(values) != len(cls.__dataclass_fields__):
            raise TypeError(f"a snapshot has {len(cls.__dataclass_fields__)} fields, not {len(values)}")
        made = object.__new__(cls)
        object.__setattr__(made, "__dict__", values)
        return made

    def but(self, **changes: Any) -> Snapshot:
        """Return the snapshot with these fields changed. A name that is none of its fields: TypeError."""
        values = self.__dict__ | changes
        if len(values) > len(self.__dict__):
            raise TypeError(f"not fields of a snapshot: {sorted(changes.keys() - self.__dict__.keys())}")
        return Snapshot.of(values)

    @property
    def budget(self) -> int:
        """The number of counted attempts that the workload may have."""
        return self.retry_policy.max_attempts + self.operator_retries

    @property
    def budget_is_used(self) -> bool:
        """Whether no further attempt may be made. Uncounted releases gave theirs back."""
        return self.attempt_count - self.uncounted_releases >= self.budget

    def as_claim(self, now: dt.datetime) -> Claim:
        """Return the current claim as its holder sees it at `now`. The workload must be held."""
        return Claim(**self.claim_values(now))

    def claim_values(self, now: dt.datetime) -> dict[str, Any]:
        """Return the fields of a Claim, for what is one and more."""
        claim = self.claim
        assert claim is not None
        return {
            "workload_id": self.workload_id,
            "attempt_id": claim.attempt_id,
            "attempt_number": self.attempt_count,
            "claim_id": claim.claim_id,
            "worker_id": claim.worker_id,
            "fencing_token": self.fencing_token,
            "claimed_at": claim.claimed_at,
            "last_heartbeat": claim.last_heartbeat,
            "expires_at": claim.expires_at,
            "lease_left_ms": max(0, (claim.expires_at - now) // MILLISECOND),
            "cancellation_requested": self.state is WorkloadState.CANCELLATION_REQUESTED,
            "definition_id": self.definition_id,
            "definition_revision": self.definition_revision,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class PastAttempt:
    """An attempt that a report may repeat the ending of."""

    attempt_id: str
    number: int
    claim_id: str
    worker_id: str
    fencing_token: int
    status: AttemptStatus
    ended_by: str
    error: str | None
    failure_kind: str | None
    effect: Effect | None
    outcome_state: WorkloadState | None
    outcome_decision: str | None
    outcome_next_attempt_at: dt.datetime | None

    def is_of(self, fence: Fence) -> bool:
        """Tell whether `fence` is the one that this attempt was claimed under."""
        return (
            self.claim_id == fence.claim_id
            and self.worker_id == fence.worker_id
            and self.fencing_token == fence.fencing_token
        )
