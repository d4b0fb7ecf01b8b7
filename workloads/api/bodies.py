"""The bodies of requests, field by field, and the contract's values that they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drf_spectacular.utils import extend_schema_field

from workloads.api.shapes import (
    IDENTIFIER,
    IDENTIFIERS,
    MAX_DURATION_MS,
    MAX_INT32,
    MAX_MEMBERS,
    REASON,
    AnyJSON,
    Body,
    Boolean,
    DurationMs,
    Identifier,
    Identifiers,
    Instant,
    Integer,
    LeaseMs,
    Number,
    Reason,
    Strict,
    Text,
    Version,
    many,
)
from workloads.contract import (
    AdmissionRequest,
    CompletionReport,
    Dependency,
    Fence,
    RetryPolicy,
    Timeouts,
    WorkloadState,
)
from workloads.errors import invalid

_INNER = r"[^@\u0000-\u001f\u007f-\u009f]"
_EDGE = r"[^@\s\u0000-\u001f\u007f-\u009f]"
_NAME = f"{_EDGE}({_INNER}{{0,198}}{_EDGE})?"
_NAMED = f"^{_NAME}(@{_NAME})?$"


@extend_schema_field({**IDENTIFIER, "pattern": f"^{_NAME}$"})
class DefinitionName(Text):
    """A definition's id or revision: an identifier without @."""


@extend_schema_field({"type": "string", "maxLength": IDENTIFIER["maxLength"], "pattern": f"^$|{IDENTIFIER['pattern']}"})
class Trigger(Text):
    """What set the work off: an identifier, or empty."""


@extend_schema_field({**REASON, "pattern": r"^[^\u0000]*[^\s\u0000-\u001f\u0085][^\u0000]*$"})
class GivenReason(Reason):
    """What a person says of an act, and may not leave out."""


@extend_schema_field({"type": "string", "enum": ["FIXED", "EXPONENTIAL"]}, component_name="WorkloadBackoff")
class BackoffName(Text):
    """How the delay before a retry grows."""


@extend_schema_field({"type": "integer", "minimum": 1, "maximum": MAX_INT32})
class Count(Integer):
    """A count of at least 1."""


@extend_schema_field({"type": "integer", "minimum": -(2**31), "maximum": MAX_INT32})
class Priority(Integer):
    """Higher goes first."""


@extend_schema_field({"type": "integer", "minimum": 0, "maximum": MAX_DURATION_MS})
class DelayMs(Integer):
    """A delay in milliseconds."""


@extend_schema_field({"type": "number", "minimum": 0, "maximum": 1})
class Share(Number):
    """A share, 0 to 1."""


@extend_schema_field({"type": "integer", "minimum": 1})
class Limit(Integer):
    """How many are wanted; more than there are is all."""


@extend_schema_field({"type": "integer", "minimum": 0})
class NotNegative(Integer):
    """An integer that is not negative."""


@extend_schema_field({"type": "string", "enum": ["none", "unknown"]}, component_name="WorkloadEffect")
class EffectName(Text):
    """What a failed attempt may have done to the world."""


@extend_schema_field({**IDENTIFIERS, "items": {**IDENTIFIER, "maxLength": 401, "pattern": _NAMED}})
class Definitions(Strict):
    """What is asked for: `id` or `id@revision`; null is any, an empty list none."""

    kind = list
    called = "an array"


class RetryPolicyBody(Body):
    """When a failed attempt is followed by another."""

    max_attempts = Count(required=False)
    backoff = BackoffName(required=False)
    initial_delay_ms = DelayMs(required=False)
    max_delay_ms = DelayMs(required=False)
    jitter = Share(required=False)
    retry_on = Identifiers(required=False)


class TimeoutsBody(Body):
    """Deadlines in milliseconds; left out or null is none."""

    overall_ms = DurationMs(required=False)
    queue_ms = DurationMs(required=False)
    claim_ms = DurationMs(required=False)
    execution_ms = DurationMs(required=False)
    heartbeat_ms = DurationMs(required=False)


@extend_schema_field(
    {
        "type": "array",
        "maxItems": MAX_MEMBERS,
        "items": {
            "type": "object",
            "required": ["workload_id"],
            "additionalProperties": False,
            "properties": {
                "workload_id": IDENTIFIER,
                "required_state": {"enum": ["SUCCEEDED", "CANCELLED", "DEAD_LETTER", None], "default": "SUCCEEDED"},
            },
        },
    }
)
class Dependencies(Strict):
    """The workloads that must be in a state first."""

    kind = list
    called = "an array"

    def to_internal_value(self, data: Any) -> Any:
        return [_dependency(item) for item in super().to_internal_value(data)]


class DependencyBody(Body):
    """Another workload of the same tenant and application, and the state that it must be in first."""

    workload_id = Identifier()
    required_state = Text(required=False)


def _dependency(item: Any) -> Dependency:
    given = DependencyBody.read(item, "dependencies")
    return Dependency(
        workload_id=given["workload_id"], required_state=given.get("required_state", WorkloadState.SUCCEEDED)
    )


class AdmissionBody(Body):
    """Work to be admitted. What is left out, or null, has its default."""

    tenant_id = Identifier()
    application_id = Identifier()
    requested_by = Identifier(required=False, help_text="The caller's own user name, if given.")
    idempotency_key = Identifier(required=False, help_text="Or the header Idempotency-Key; equal, if both.")
    definition_id = DefinitionName(help_text="Without an @.")
    definition_revision = DefinitionName(required=False, default="1")
    environment = Identifier(required=False, default="production")
    input = AnyJSON(required=False)
    capability_snapshot = Identifiers(required=False)
    connection_scopes = Identifiers(required=False)
    priority = Priority(required=False, default=0)
    retry_policy = RetryPolicyBody(required=False)
    timeouts = TimeoutsBody(required=False)
    dependencies = Dependencies(required=False)
    not_before = Instant(required=False)
    trigger = Trigger(required=False, default="")
    session_id = Identifier(required=False)


def admission_request(given: Mapping[str, Any], *, name: str, key: str | None) -> AdmissionRequest:
    """Return the request that a checked body is, asked by the user of that name."""
    fields = dict(given)
    fields["requested_by"] = name
    if key is not None:
        fields["idempotency_key"] = key
    if "idempotency_key" not in fields:
        raise invalid("idempotency_key", "is missing: give it here or as the header Idempotency-Key")
    if "retry_policy" in fields:
        fields["retry_policy"] = RetryPolicy(**fields["retry_policy"])
    if "timeouts" in fields:
        fields["timeouts"] = Timeouts(**fields["timeouts"])
    return AdmissionRequest(**fields)


class AdmissionsBody(Body):
    """A batch of admissions, each judged by itself."""

    workloads = many(AdmissionBody)


class FenceBody(Body):
    """What a worker proves itself with."""

    claim_id = Text()
    worker_id = Text()
    fencing_token = Integer()


def fence_of(workload_id: str, given: Mapping[str, Any]) -> Fence:
    """Return the fence that a body holds, and take it out of the fields."""
    return Fence(
        workload_id=workload_id,
        claim_id=given["claim_id"],
        worker_id=given["worker_id"],
        fencing_token=given["fencing_token"],
    )


def but_fence(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the operation's own fields."""
    return {name: value for name, value in given.items() if name not in _FENCE}


_FENCE = frozenset({"workload_id", "claim_id", "worker_id", "fencing_token"})


class HeartbeatBody(FenceBody):
    """Keep the lease for so many milliseconds from now."""

    extend_ms = LeaseMs()


class ContextBody(FenceBody):
    """Read all that is needed to run the work."""

    secret_references = Identifiers(required=False)


class CheckpointBody(FenceBody):
    """Save progress. With a key, the call may be repeated."""

    state = AnyJSON()
    key = Identifier(required=False)


class CompleteBody(FenceBody):
    """End the work well."""

    result_id = Identifier()
    output = AnyJSON()
    artifacts = AnyJSON(required=False)
    schema_version = Count(required=False, default=1)


class FailBody(FenceBody):
    """Report a failure."""

    kind = Identifier()
    error = Text()
    effect = EffectName(required=False)
    retry_after_ms = NotNegative(required=False)


class ReleaseBody(FenceBody):
    """Give the work back."""

    reason = Reason(required=False, default="")


class ClaimBody(Body):
    """Claim this very workload."""

    worker_id = Identifier()
    capabilities = Identifiers()
    lease_ms = LeaseMs()
    request_id = Identifier(required=False)


class ClaimsBody(ClaimBody):
    """Claim the next work that this worker can run."""

    limit = Limit(required=False, default=1)
    definitions = Definitions(required=False)
    tenant_id = Identifier(required=False)
    application_id = Identifier(required=False)
    start = Boolean(required=False, default=False)
    wait_ms = NotNegative(required=False, default=0)


class HeartbeatItem(HeartbeatBody):
    """One heartbeat of a batch."""

    workload_id = Text()


class HeartbeatsBody(Body):
    """A batch of heartbeats, each judged by itself."""

    items = many(HeartbeatItem)


class CompletionItem(CompleteBody):
    """One completion of a batch."""

    workload_id = Text()


class CompletionsBody(Body):
    """A batch of completions, each judged by itself."""

    items = many(CompletionItem)


def completion_report(given: Mapping[str, Any], workload_id: str) -> CompletionReport:
    """Return the report that a checked body is."""
    return CompletionReport(fence=fence_of(workload_id, given), **but_fence(given))


class InterventionBody(Body):
    """What an operator says of its act."""

    reason = Reason(required=False, default="")
    expected_version = Version(required=False)


class CancelBody(InterventionBody):
    """Call the work off."""

    force = Boolean(required=False, default=False)


class RearmBody(InterventionBody):
    """Give parked work one more attempt."""

    reason = GivenReason()
    restart_overall = Boolean(required=False, default=False)
