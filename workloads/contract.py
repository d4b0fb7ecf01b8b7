"""The vocabulary of the product: states, requests, policies, fences, claims, records, reports.

Plain Python: importing it imports no Django. Section 1 of the contract lists these names; durations are integer
milliseconds in names that end `_ms`, instants are aware UTC datetimes.
"""

from __future__ import annotations

import datetime as dt
import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

CONTRACT_VERSION: Final = 2
DEADLINE_CONTRACT_VERSION: Final = 2


class WorkloadState(enum.StrEnum):
    """Where a workload stands. `workloads.lifecycle.states` holds which may follow which."""

    CREATED = "CREATED"
    READY = "READY"
    CLAIMED = "CLAIMED"
    RUNNING = "RUNNING"
    CHECKPOINTED = "CHECKPOINTED"
    RECOVERING = "RECOVERING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    TIMED_OUT = "TIMED_OUT"
    DEAD_LETTER = "DEAD_LETTER"
    CANCELLATION_REQUESTED = "CANCELLATION_REQUESTED"
    CANCELLED = "CANCELLED"


class AttemptStatus(enum.StrEnum):
    """How one attempt stands or ended."""

    CLAIMED = "CLAIMED"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    TIMED_OUT = "TIMED_OUT"
    WORKER_LOST = "WORKER_LOST"
    CANCELLED = "CANCELLED"
    RELEASED = "RELEASED"


class Backoff(enum.StrEnum):
    """How the delay before a retry grows."""

    FIXED = "FIXED"
    EXPONENTIAL = "EXPONENTIAL"


class Effect(enum.StrEnum):
    """What a failed attempt may have done to the world."""

    NONE = "none"
    UNKNOWN = "unknown"


DEFAULT_RETRY_ON: Final = frozenset({"timeout", "transient_connection", "worker_failure"})


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPolicy:
    """When a failed attempt is followed by another, and how long after.

    `max_attempts` counts claims (at least 1). Delays are in milliseconds, not negative; `jitter` (0 to 1) shortens a
    delay by a random part of up to that share. `retry_on` names the failure kinds that are retried.
    """

    max_attempts: int = 3
    backoff: Backoff = Backoff.EXPONENTIAL
    initial_delay_ms: int = 1_000
    max_delay_ms: int = 60_000
    jitter: float = 0.0
    retry_on: Iterable[str] = DEFAULT_RETRY_ON


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeouts:
    """Deadlines in milliseconds (at least 1), or None for no such deadline. Section 8 says from when each runs."""

    overall_ms: int | None = None
    queue_ms: int | None = None
    claim_ms: int | None = None
    execution_ms: int | None = None
    heartbeat_ms: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Dependency:
    """Another workload of the same tenant and application that must be in `required_state` first."""

    workload_id: str
    required_state: WorkloadState = WorkloadState.SUCCEEDED


@dataclass(frozen=True, kw_only=True, slots=True)
class AdmissionRequest:
    """Work that a site asks the authority to promise. Section 4 holds the defaults and the bounds."""

    tenant_id: str
    application_id: str
    requested_by: str
    idempotency_key: str
    definition_id: str
    definition_revision: str = "1"
    environment: str = "production"
    input: Any = None
    capability_snapshot: Iterable[str] = frozenset()
    connection_scopes: Iterable[str] = frozenset()
    priority: int = 0
    retry_policy: RetryPolicy = field(default_factory=RetryPolicy)
    timeouts: Timeouts = field(default_factory=Timeouts)
    dependencies: Iterable[Dependency] = ()
    not_before: dt.datetime | None = None
    trigger: str = ""
    session_id: str | None = None
    grant: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Admission:
    """The answer to an admission: the stored workload (a model instance), and whether this call created it."""

    workload: Any
    created: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Fence:
    """What a worker proves itself with in every call. `fencing_token` rises by one with each claim of a workload."""

    workload_id: str
    claim_id: str
    worker_id: str
    fencing_token: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A lease on one workload. `lease_left_ms` is what is left by the authority's clock as it answered."""

    workload_id: str
    attempt_id: str
    attempt_number: int
    claim_id: str
    worker_id: str
    fencing_token: int
    claimed_at: dt.datetime
    last_heartbeat: dt.datetime
    expires_at: dt.datetime
    lease_left_ms: int
    cancellation_requested: bool
    definition_id: str
    definition_revision: str

    @property
    def fence(self) -> Fence:
        """The fence that this claim's holder sends with every call."""
        return Fence(
            workload_id=self.workload_id,
            claim_id=self.claim_id,
            worker_id=self.worker_id,
            fencing_token=self.fencing_token,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointRecord:
    """One checkpoint: `sequence` runs 1, 2, 3… over all attempts of a workload; `state` is JSON."""

    sequence: int
    checkpoint_id: str
    attempt_id: str
    key: str | None
    state: Any
    at: dt.datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class ResultRecord:
    """The one result of a workload. `provenance` holds `claim_id` and `fencing_token`."""

    result_id: str
    attempt_id: str
    produced_by: str
    output: Any
    output_hash: str
    artifacts: Any
    schema_version: int
    provenance: Mapping[str, Any]
    at: dt.datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class ExecutionContext(Claim):
    """A claim, with all that its holder needs to run the work."""

    tenant_id: str
    application_id: str
    environment: str
    input: Any
    checkpoints: Sequence[CheckpointRecord]
    capability_snapshot: frozenset[str]
    connection_scopes: frozenset[str]
    secret_references: frozenset[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class CompletionReport:
    """One item of `complete_many`."""

    fence: Fence
    result_id: str
    output: Any
    artifacts: Any = ()
    schema_version: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureOutcome:
    """What the authority decided after a failure: the state it led to, by which decision, and when it is due again."""

    state: WorkloadState
    decision: str
    next_attempt_at: dt.datetime | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Blocker:
    """One reason why a workload is not running now. Section 7 lists the codes."""

    code: str
    message: str
    details: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class PassReport:
    """What one pass did: ids of workloads by decision, and the rows whose decision failed, with the reason."""

    timed_out: list[str]
    recovered: list[str]
    unsatisfiable: list[str]
    failed: dict[str, str]
