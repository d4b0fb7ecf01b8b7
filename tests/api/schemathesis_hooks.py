"""What schemathesis must know that no schema says: rules between two places, and how long to wait."""

from __future__ import annotations

import datetime as dt
import hashlib
from typing import Any

import schemathesis
from hypothesis import strategies as st

LONGEST_WAIT_MS = 20
MOST_CLAIMS = 2
FENCE = ("claim_id", "worker_id", "fencing_token")

_fences: dict[str, dict[str, Any]] = {}
PLACE = {"tenant_id": "acme", "application_id": "invoices"}

# The years that the contract knows.
schemathesis.openapi.format(
    "date-time",
    st.datetimes(dt.datetime(2000, 1, 2), dt.datetime(2899, 12, 30), timezones=st.just(dt.UTC)).map(
        lambda at: at.isoformat().replace("+00:00", "Z")
    ),
)


@schemathesis.hook
def before_call(ctx: Any, case: Any, kwargs: Any) -> None:
    """Make a well-formed request one that keeps the rules between its parts, and most often one that meets work."""
    body = case.body if isinstance(case.body, dict) else {}
    if isinstance(body.get("wait_ms"), (int, float)) and body["wait_ms"] > LONGEST_WAIT_MS:
        body["wait_ms"] = LONGEST_WAIT_MS
    if isinstance(body.get("limit"), (int, float)) and body["limit"] > MOST_CLAIMS:
        # One call would take all the work there is.
        body["limit"] = MOST_CLAIMS
    if case.meta is None or not case.meta.generation.mode.is_positive:
        return
    if isinstance(case.body, dict):
        case.body = body = _whole(body)
    name = case.operation.definition.raw.get("operationId")
    if _is_able(repr(body)):
        for admission in _admissions(name, body):
            admission.update(PLACE, capability_snapshot=[], dependencies=[], not_before=None, requested_by=None)
            admission["idempotency_key"] = _digest(repr(admission))
        if name == "workloadsClaimNext":
            body.update(PLACE, capabilities=[], definitions=None, start=True)
        if name in ("workloadsClaimNext", "workloadsClaim"):
            body.update(capabilities=[], lease_ms=60_000, request_id=None)
        # It mixes what a link gives with values of its own: a fence is whole, or none.
        body.update(_fences.get(str((case.path_parameters or {}).get("workload_id")), {}) if "claim_id" in body else {})
        if name == "workloadsComplete":
            body["result_id"] = _digest(str(body.get("claim_id")))
    if name == "workloadsAdmit":
        _give_one_key(case, body)
    if isinstance(body.get("request_id"), str):
        # A request id stands for one request, of one kind and for one workload.
        body["request_id"] = _digest("\n".join([case.operation.label, str(case.path_parameters), body["request_id"]]))
    query = case.query or {}
    if name == "workloadsList" and _is_able(repr(query)):
        query.clear()
    # A cursor is made by the server alone.
    query.pop("cursor", None)
    if "failure" in query:
        query.setdefault("state", ["FAILED"])
        query.setdefault("created_after", "2026-01-31T12:00:00Z")


@schemathesis.hook
def after_call(ctx: Any, case: Any, response: Any) -> None:
    """Remember the fences that the server gave."""
    name = case.operation.definition.raw.get("operationId")
    if response.status_code == 200 and name in ("workloadsClaimNext", "workloadsClaim"):
        said = response.json()
        for claim in said.get("claims", [said]):
            _fences[claim["workload_id"]] = {field: claim[field] for field in FENCE}


@schemathesis.hook
def filter_failure(ctx: Any, failure: Any, case: Any, response: Any) -> bool:
    """Leave out what the web server answers for itself: a request line over its limit never reaches the site."""
    return response.status_code != 414


def _is_able(asked: str) -> bool:
    """Say of three requests in four, always the same, that they are to meet work."""
    return _digest(asked)[0] not in "0123"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def _whole(value: Any) -> Any:
    """Return JSON in which whole numbers are written as such: a schema takes 2.0 for an integer, the wire does not."""
    if isinstance(value, dict):
        return {name: _whole(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_whole(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _admissions(name: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    if name == "workloadsAdmit":
        return [body]
    if name == "workloadsAdmitBatch":
        return [item for item in body.get("workloads") or [] if isinstance(item, dict) and "definition_id" in item]
    return []


def _give_one_key(case: Any, body: dict[str, Any]) -> None:
    headers = case.headers if case.headers is not None else {}
    if body.get("idempotency_key") is not None:
        headers.pop("Idempotency-Key", None)
    elif "Idempotency-Key" not in headers:
        body["idempotency_key"] = "given"
