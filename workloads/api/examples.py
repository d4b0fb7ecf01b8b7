"""Examples for the OpenAPI schema: one workload, from its admission to its end, and each error once."""

from __future__ import annotations

from typing import Any, Final

from drf_spectacular.utils import OpenApiExample

from workloads.contract import WorkloadState

_ID: Final = "workload_5fc6cd58fae55b0346ff4d79"
_AT: Final = "2026-01-31T12:00:00.000000Z"
_CLAIMED_AT: Final = "2026-01-31T12:00:01.250000Z"
_EXPIRES_AT: Final = "2026-01-31T12:01:01.250000Z"
_DONE_AT: Final = "2026-01-31T12:00:07.500000Z"
_RETRY_AT: Final = "2026-01-31T12:00:08.500000Z"
_ATTEMPT: Final = "6b0c8b5d8f2c4f6c9e1d2a3b4c5d6e7f"
_FENCE: Final = {"claim_id": "5b1f4c0e9d6a4e6fa1c2b3d4e5f60718", "worker_id": "press-1.7", "fencing_token": 1}

WORKLOAD_ID: Final = OpenApiExample("workload_id", value=_ID)
KEY: Final = OpenApiExample("key", value="invoice-2026-00017")

_ADMISSION: Final = {
    "tenant_id": "acme",
    "application_id": "invoices",
    "idempotency_key": "invoice-2026-00017",
    "definition_id": "invoices.render",
    "input": {"invoice": 17},
    "retry_policy": {"max_attempts": 5},
    "timeouts": {"execution_ms": 600_000},
}
_COMPLETION: Final = {**_FENCE, "result_id": "invoice-17-rendered", "output": {"pages": 4}}

_BODIES: Final[dict[str, dict[str, Any]]] = {
    "admit": _ADMISSION,
    "admitBatch": {"workloads": [_ADMISSION]},
    "claimNext": {
        "worker_id": "press-1.7",
        "capabilities": [],
        "lease_ms": 60_000,
        "definitions": ["invoices.render"],
        "start": True,
        "request_id": "press-1.7-000042",
        "wait_ms": 20_000,
    },
    "claim": {"worker_id": "press-1.7", "capabilities": [], "lease_ms": 60_000, "request_id": "press-1.7-000043"},
    "start": _FENCE,
    "heartbeat": {**_FENCE, "extend_ms": 60_000},
    "context": {**_FENCE, "secret_references": []},
    "checkpoint": {**_FENCE, "state": {"page": 3}, "key": "page-3"},
    "complete": _COMPLETION,
    "fail": {**_FENCE, "kind": "transient_connection", "error": "the printer did not answer", "effect": "none"},
    "release": {**_FENCE, "reason": "a deploy"},
    "confirmCancel": _FENCE,
    "heartbeats": {"items": [{"workload_id": _ID, **_FENCE, "extend_ms": 60_000}]},
    "completions": {"items": [{"workload_id": _ID, **_COMPLETION}]},
    "cancel": {"reason": "the invoice was withdrawn", "expected_version": 1},
    "rearm": {"reason": "the printer is back", "restart_overall": True},
    "timeOut": {"reason": "nobody waits for it any longer"},
}

_LISTED: Final[dict[str, Any]] = {
    "workload_id": _ID,
    "tenant_id": "acme",
    "application_id": "invoices",
    "requested_by": "rita",
    "idempotency_key": "invoice-2026-00017",
    "contract_version": 2,
    "version": 1,
    "definition_id": "invoices.render",
    "definition_revision": "1",
    "environment": "production",
    "input_hash": "ac4cfce0ca5d5cb15e3bcdd6ffb5e6a5cb3f8f3b4d0e4e9ce86c3b4dbf7f2e01",
    "trigger": "",
    "session_id": None,
    "capability_snapshot": [],
    "connection_scopes": [],
    "grant": None,
    "priority": 0,
    "retry_policy": {
        "max_attempts": 5,
        "backoff": "EXPONENTIAL",
        "initial_delay_ms": 1_000,
        "max_delay_ms": 60_000,
        "jitter": 0.0,
        "retry_on": ["timeout", "transient_connection", "worker_failure"],
    },
    "timeouts": {
        "overall_ms": None,
        "queue_ms": None,
        "claim_ms": None,
        "execution_ms": 600_000,
        "heartbeat_ms": None,
    },
    "dependencies": [],
    "not_before": None,
    "state": "READY",
    "next_attempt_at": _AT,
    "attempt_count": 0,
    "retry_count": 0,
    "release_count": 0,
    "uncounted_releases": 0,
    "operator_retries": 0,
    "fencing_token": 0,
    "last_failure": None,
    "created_at": _AT,
    "updated_at": _AT,
    "finished_at": None,
    "overall_from": _AT,
    "claim_id": None,
    "worker_id": None,
    "claimed_at": None,
    "last_heartbeat": None,
    "expires_at": None,
}
_RECORD: Final = {**_LISTED, "input": {"invoice": 17}}
_CLAIMED: Final = {**_RECORD, "version": 3, "attempt_count": 1, "fencing_token": 1}
_CLAIM: Final[dict[str, Any]] = {
    "workload_id": _ID,
    "attempt_id": _ATTEMPT,
    "attempt_number": 1,
    **_FENCE,
    "claimed_at": _CLAIMED_AT,
    "last_heartbeat": _CLAIMED_AT,
    "expires_at": _EXPIRES_AT,
    "lease_left_ms": 60_000,
    "cancellation_requested": False,
    "definition_id": "invoices.render",
    "definition_revision": "1",
}
_CONTEXT: Final = {
    **_CLAIM,
    "tenant_id": "acme",
    "application_id": "invoices",
    "environment": "production",
    "input": {"invoice": 17},
    "checkpoints": [],
    "capability_snapshot": [],
    "connection_scopes": [],
    "secret_references": [],
}
_CLAIMED_NOW: Final = {**_CONTEXT, "heartbeat_ms": None}
_CHECKPOINT: Final = {
    "sequence": 1,
    "checkpoint_id": "0d9c8b7a6f5e4d3c2b1a09f8e7d6c5b4",
    "attempt_id": _ATTEMPT,
    "key": "page-3",
    "state": {"page": 3},
    "at": "2026-01-31T12:00:05.000000Z",
}
_RESULT: Final = {
    "result_id": "invoice-17-rendered",
    "attempt_id": _ATTEMPT,
    "produced_by": "press-1.7",
    "output": {"pages": 4},
    "output_hash": "5d1a0c5e9ad8f1a7a3ff1fc2a8e5b6d7c4e3f2a1b0c9d8e7f6a5b4c3d2e1f0a9",
    "artifacts": [],
    "schema_version": 1,
    "provenance": {"claim_id": _FENCE["claim_id"], "fencing_token": 1},
    "at": _DONE_AT,
}
_EVENTS: Final = [
    {"sequence": 1, "from_state": "", "to_state": "CREATED", "at": _AT, "actor": "rita", "evidence": {}},
    {"sequence": 2, "from_state": "CREATED", "to_state": "READY", "at": _AT, "actor": "rita", "evidence": {}},
]
_ENDED: Final = {
    "number": 1,
    "attempt_id": _ATTEMPT,
    **_FENCE,
    "status": "FAILED",
    "claimed_at": _CLAIMED_AT,
    "started_at": _CLAIMED_AT,
    "ended_at": _DONE_AT,
    "error": "the printer did not answer",
    "failure_kind": "transient_connection",
    "effect": "none",
    "outcome_state": "READY",
    "outcome_decision": "retry",
    "outcome_next_attempt_at": _RETRY_AT,
}
_NONE: Final = {"count": 0, "more": False}
_RATES: Final = {"claims": {"count": 12, "more": False}, "completions": {"count": 11, "more": False}, "failures": _NONE}


def _page(*rows: dict[str, Any]) -> dict[str, Any]:
    return {"next": None, "previous": None, "results": list(rows)}


_MESSAGES: Final[dict[str, tuple[str, dict[str, Any] | None]]] = {
    "WORKLOAD_INVALID": ("lease_ms: not from 1 to 86400000", {"field": "lease_ms"}),
    "WORKLOAD_TOO_LARGE": (
        "The body is too large.",
        {"field": "body", "limit": 8_388_608, "size": 9_000_000},
    ),
    "WORKLOAD_SECRET_MATERIAL": (
        "input: secret material at $.db_password (secret_key)",
        {"path": "$.db_password", "rule": "secret_key"},
    ),
    "WORKLOAD_GRANT_INVALID": (
        "The grant is not valid for this request. It does not cover the capabilities asked for.",
        {"reason": "capabilities"},
    ),
    "WORKLOAD_NOT_FOUND": ("There is no such workload.", None),
    "WORKLOAD_CONFLICT": ("The workload has moved on since it was looked at.", {"version": 3}),
    "WORKLOAD_NOT_READY": ("The workload can't be claimed now.", {"state": "READY", "next_attempt_at": _RETRY_AT}),
    "WORKLOAD_ATTEMPTS_EXHAUSTED": ("The workload has used up its attempts.", {"budget": 5}),
    "WORKLOAD_CAPABILITY_DENIED": ("The worker lacks capabilities that the work needs.", {"missing": ["duplex"]}),
    "WORKLOAD_SCOPE_DENIED": (
        "A secret reference is not among the workload's scopes.",
        {"missing": ["vault:printer"]},
    ),
    "WORKLOAD_CLAIM_INVALID": ("The workload is under no claim now.", None),
    "WORKLOAD_STALE_FENCE": ("The workload has been claimed again since.", None),
    "WORKLOAD_LEASE_EXPIRED": ("The lease is over.", {"expires_at": _EXPIRES_AT}),
    "WORKLOAD_TRANSITION_DENIED": (
        "A workload in SUCCEEDED can't go to CANCELLED by this call.",
        {"from": "SUCCEEDED", "to": "CANCELLED"},
    ),
    "WORKLOAD_TIMED_OUT": ("The execution deadline passed.", {"deadline": "execution", "deadline_at": _DONE_AT}),
    "WORKLOAD_RESULT_CONFLICT": ("Another report is recorded under this result id.", None),
    "WORKLOAD_RESULT_DUPLICATE": ("This result id is taken by another workload.", None),
    "WORKLOAD_CHECKPOINT_CONFLICT": ("This attempt has saved another state under this key.", None),
    "IDEMPOTENCY_KEY_REUSED": ("The idempotency key was used for other work.", {"fields": ["input"]}),
    "IDEMPOTENCY_KEY_RETIRED": (
        "The work of this idempotency key is done, and has been pruned.",
        {"state": "SUCCEEDED", "finished_at": _DONE_AT},
    ),
    "UNAUTHENTICATED": ("Who are you? A valid token or session is needed.", None),
    "FORBIDDEN": ("This needs the role worker.", None),
    "NOT_ACCEPTABLE": ("The answer is application/json.", None),
    "UNSUPPORTED_MEDIA_TYPE": ("The body must be application/json, in UTF-8.", None),
    "THROTTLED": ("Too many requests.", None),
    "UNAVAILABLE": ("The database does not answer; the same call may be repeated.", None),
}


def _refused(code: str) -> dict[str, Any]:
    message, details = _MESSAGES[code]
    return {"code": code, "message": message, "details": details}


_NOT_FOUND: Final = {"status": 404, "error": _refused("WORKLOAD_NOT_FOUND")}

_ANSWERS: Final[dict[tuple[str, int], Any]] = {
    ("admit", 201): _RECORD,
    ("admit", 200): _RECORD,
    ("admitBatch", 200): {
        "outcomes": [
            {"status": 201, "workload": _RECORD},
            {"status": 422, "error": _refused("WORKLOAD_SECRET_MATERIAL")},
        ]
    },
    ("list", 200): _page(_LISTED),
    ("read", 200): _RECORD,
    ("events", 200): _page(*_EVENTS),
    ("attempts", 200): _page(_ENDED),
    ("checkpoints", 200): _page(_CHECKPOINT),
    ("result", 200): _page(_RESULT),
    ("why", 200): {
        "blockers": [{"code": "not_due", "message": "It is not due yet.", "details": {"next_attempt_at": _RETRY_AT}}]
    },
    ("claimNext", 200): {"claims": [_CLAIMED_NOW]},
    ("claim", 200): _CLAIMED_NOW,
    ("start", 200): _CLAIM,
    ("heartbeat", 200): _CLAIM,
    ("context", 200): _CONTEXT,
    ("checkpoint", 200): _CHECKPOINT,
    ("complete", 200): _RESULT,
    ("fail", 200): {"state": "READY", "decision": "retry", "next_attempt_at": _RETRY_AT},
    ("release", 200): {**_CLAIMED, "version": 4, "release_count": 1, "uncounted_releases": 1},
    ("confirmCancel", 200): {**_CLAIMED, "version": 5, "state": "CANCELLED", "finished_at": _DONE_AT},
    ("heartbeats", 200): {"outcomes": [{"status": 200, "claim": _CLAIM}, _NOT_FOUND]},
    ("completions", 200): {"outcomes": [{"status": 200, "result": _RESULT}, _NOT_FOUND]},
    ("cancel", 200): {**_RECORD, "version": 2, "state": "CANCELLED", "finished_at": _DONE_AT},
    ("rearm", 200): {**_CLAIMED, "version": 6, "operator_retries": 1},
    ("timeOut", 200): {**_RECORD, "version": 2, "state": "TIMED_OUT", "last_failure": "timeout: by otto"},
    ("stats", 200): {
        "at": _AT,
        "counts": {**{state.value: _NONE for state in WorkloadState}, "SUCCEEDED": {"count": 10_000, "more": True}},
        "oldest_claimable_ms": None,
        "last": {"minute": _RATES, "hour": _RATES},
    },
    ("health", 200): {"ok": True},
    ("health", 503): {
        "ok": False,
        "details": {
            "database": {"ok": True},
            "migrations": {"ok": True, "missing": 0},
            "pass": {"ok": False, "age_ms": 420_000},
        },
    },
}


def bodies(name: str) -> list[OpenApiExample]:
    """Return the examples of an operation's body."""
    if name not in _BODIES:
        return []
    return [OpenApiExample("a body", value=_BODIES[name], request_only=True)]


def answers(name: str, status: int) -> list[OpenApiExample]:
    """Return the examples of an operation's answer."""
    return [OpenApiExample("an answer", value=_ANSWERS[name, status])]


def error(code: str) -> OpenApiExample:
    """Return an example of an error with this code."""
    return OpenApiExample(code.lower(), summary=code, value=_refused(code))
