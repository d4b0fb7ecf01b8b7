"""One application's work, in every voice's reach, and the callers who may and may not reach it."""

from __future__ import annotations

from typing import Any

from tests.api.tools import APPLICATION, TENANT, Caller, fence, place
from workloads import authority
from workloads.api import answers
from workloads.contract import AdmissionRequest, Claim

ALL = ("requester", "worker", "operator", "viewer")
HIDDEN = {
    "idempotency_key": "hidden-key",
    "definition_id": "hidden.definition",
    "definition_revision": "hidden-revision",
    "environment": "hidden-environment",
}
INPUT = {"amount": "of rita's"}

CALLERS: dict[str, Any] = {
    "nobody": lambda: Caller(None),
    "without access": lambda: Caller("nick"),
    "another tenant's": lambda: Caller("gus", place(*ALL, tenant="globex", reads_payloads=True)),
    "the whole of another tenant's": lambda: Caller("gwen", place(*ALL, tenant="globex", application="")),
    "another application's": lambda: Caller("pia", place(*ALL, application="payroll", reads_payloads=True)),
    "a name alike": lambda: Caller("una", place(*ALL, tenant="Acme"), place(*ALL, application="Invoices")),
    "another requester": lambda: Caller("rob", place("requester")),
    "requester": lambda: Caller("rita", place("requester")),
    "worker": lambda: Caller("wanda", place("worker", worker_prefix="w-", capabilities={"a"})),
    "another worker": lambda: Caller("xena", place("worker", worker_prefix="x-")),
    "operator": lambda: Caller("otto", place("operator")),
    "viewer": lambda: Caller("vera", place("viewer")),
}
STRANGERS = (
    "without access",
    "another tenant's",
    "the whole of another tenant's",
    "another application's",
    "a name alike",
    "another requester",
)
"""Those who see nothing of rita's work."""


def admit(key: str = "hidden-key", **fields: Any) -> str:
    """Admit work as the site's own code does, asked for by rita."""
    values = {"tenant_id": TENANT, "application_id": APPLICATION, "requested_by": "rita"} | HIDDEN | fields
    admission = authority.admit(AdmissionRequest(**values | {"idempotency_key": key}))
    assert admission.created
    return str(admission.workload.workload_id)


def claim(workload_id: str, worker_id: str = "w-1", **fields: Any) -> Claim:
    """Claim it as wanda's worker."""
    return authority.claim(workload_id, **{"worker_id": worker_id, "capabilities": (), "lease_ms": 600_000} | fields)


def running(key: str = "hidden-key", **fields: Any) -> tuple[str, dict[str, Any]]:
    """Admit, claim and start work that has saved a checkpoint; return its id and the fence, as a body has it."""
    held = claim(admit(key, input=INPUT, **fields))
    authority.start(held.fence)
    authority.checkpoint(held.fence, {"saved": "of rita's"}, key="begun")
    return held.workload_id, fence(answers.claim(held))


def done(key: str = "done", **fields: Any) -> str:
    """Admit work, and bring it to its result."""
    held = claim(admit(key, input=INPUT, **fields))
    authority.start(held.fence)
    authority.checkpoint(held.fence, {"saved": "of rita's"})
    authority.complete(held.fence, result_id=f"result of {key}", output={"output": 1}, artifacts=["of rita's"])
    return held.workload_id


def dead(key: str = "dead", **fields: Any) -> str:
    """Admit work, and let it fail for good."""
    held = claim(admit(key, **fields))
    authority.fail(held.fence, kind="hidden-kind", error="hidden words", effect="none")
    return held.workload_id
