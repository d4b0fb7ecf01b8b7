"""The one exception of the product, and its codes. Plain Python: importing it imports no Django."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

WORKLOAD_INVALID: Final = "WORKLOAD_INVALID"
WORKLOAD_TOO_LARGE: Final = "WORKLOAD_TOO_LARGE"
WORKLOAD_SECRET_MATERIAL: Final = "WORKLOAD_SECRET_MATERIAL"
WORKLOAD_GRANT_INVALID: Final = "WORKLOAD_GRANT_INVALID"
WORKLOAD_NOT_FOUND: Final = "WORKLOAD_NOT_FOUND"
WORKLOAD_CONFLICT: Final = "WORKLOAD_CONFLICT"
WORKLOAD_NOT_READY: Final = "WORKLOAD_NOT_READY"
WORKLOAD_ATTEMPTS_EXHAUSTED: Final = "WORKLOAD_ATTEMPTS_EXHAUSTED"
WORKLOAD_CAPABILITY_DENIED: Final = "WORKLOAD_CAPABILITY_DENIED"
WORKLOAD_SCOPE_DENIED: Final = "WORKLOAD_SCOPE_DENIED"
WORKLOAD_CLAIM_INVALID: Final = "WORKLOAD_CLAIM_INVALID"
WORKLOAD_STALE_FENCE: Final = "WORKLOAD_STALE_FENCE"
WORKLOAD_LEASE_EXPIRED: Final = "WORKLOAD_LEASE_EXPIRED"
WORKLOAD_TRANSITION_DENIED: Final = "WORKLOAD_TRANSITION_DENIED"
WORKLOAD_TIMED_OUT: Final = "WORKLOAD_TIMED_OUT"
WORKLOAD_RESULT_CONFLICT: Final = "WORKLOAD_RESULT_CONFLICT"
WORKLOAD_RESULT_DUPLICATE: Final = "WORKLOAD_RESULT_DUPLICATE"
WORKLOAD_CHECKPOINT_CONFLICT: Final = "WORKLOAD_CHECKPOINT_CONFLICT"
IDEMPOTENCY_KEY_REUSED: Final = "IDEMPOTENCY_KEY_REUSED"
IDEMPOTENCY_KEY_RETIRED: Final = "IDEMPOTENCY_KEY_RETIRED"

CODES: Final = frozenset(
    value for name, value in list(globals().items()) if name.isupper() and isinstance(value, str) and name == value
)


class WorkloadError(Exception):
    """A refusal by the authority.

    Callers tell refusals apart by `code` alone (section 10 of the contract); `message` is for people and may change.
    `details` is a dict of JSON values, or None. Instants in it are ISO 8601 UTC text.
    """

    def __init__(self, code: str, message: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(code, message, details)
        self.code = code
        self.message = message
        self.details: dict[str, Any] | None = None if details is None else dict(details)

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


def invalid(field: str, message: str, **details: Any) -> WorkloadError:
    """Return a WORKLOAD_INVALID that names `field` (dotted inside a policy)."""
    return WorkloadError(WORKLOAD_INVALID, f"{field}: {message}", {"field": field, **details})
