"""What racers do. Each function runs in a process of its own, and answers in JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import transaction

from tests.races.processes import say, wait
from workloads import authority
from workloads.contract import AdmissionRequest, CompletionReport, Dependency, Fence
from workloads.errors import WorkloadError


def request(key: str, **changes: Any) -> AdmissionRequest:
    """Return an admission of the races' application."""
    if "dependencies" in changes:
        changes["dependencies"] = [Dependency(workload_id=d) for d in changes["dependencies"]]
    return AdmissionRequest(
        **{
            "tenant_id": "t",
            "application_id": "race",
            "requested_by": "u",
            "idempotency_key": key,
            "definition_id": "d",
            **changes,
        }
    )


def outcome(call: Callable[[], Any]) -> Any:
    """Return what a call said: its answer's words, or the refusal's code and details."""
    try:
        return call()
    except WorkloadError as refusal:
        return [refusal.code, refusal.details]


def admit(key: str, changes: dict[str, Any]) -> Any:
    return outcome(lambda: authority.admit(request(key, **changes)).created)


def admit_then_roll_back(key: str) -> Any:
    """Admit, say so, wait, and take it back."""
    with transaction.atomic():
        created = authority.admit(request(key)).created
        say(created)
        wait()
        transaction.set_rollback(True)
    return "rolled back"


def admit_and_hold(key: str, changes: dict[str, Any]) -> Any:
    """Admit in a transaction that stays open until it is told to commit."""
    with transaction.atomic():
        created = outcome(lambda: authority.admit(request(key, **changes)).created)
        say(created)
        wait()
    return "committed"


def drain(worker_id: str, batch: int) -> list[str]:
    """Claim until nothing is left."""
    got: list[str] = []
    while claims := authority.claim_next(
        worker_id=worker_id, capabilities=(), lease_ms=600_000, limit=batch, start=True
    ):
        got += [claim.workload_id for claim in claims]
    return got


def complete(fence: dict[str, Any], result_id: str) -> Any:
    return outcome(lambda: authority.complete(Fence(**fence), result_id=result_id, output=1).result_id)


def fail(fence: dict[str, Any]) -> Any:
    return outcome(lambda: authority.fail(Fence(**fence), kind="timeout", error="late").decision)


def cancel(workload_id: str) -> Any:
    return outcome(lambda: authority.cancel(workload_id, actor="op", force=True).state)


def rearm(workload_id: str) -> Any:
    return outcome(lambda: authority.rearm(workload_id, actor="op", reason="race").state)


def claim(workload_id: str, worker_id: str, request_id: str | None = None) -> Any:
    return outcome(
        lambda: (
            authority.claim(
                workload_id, worker_id=worker_id, capabilities=(), lease_ms=600_000, request_id=request_id
            ).claim_id
        )
    )


def claim_next(worker_id: str, request_id: str, limit: int) -> Any:
    return [
        c.claim_id
        for c in authority.claim_next(
            worker_id=worker_id, capabilities=(), lease_ms=600_000, limit=limit, request_id=request_id
        )
    ]


def recover() -> Any:
    return authority.recover_expired()


def run_pass() -> Any:
    report = authority.run_pass()
    return [report.timed_out, report.recovered, report.unsatisfiable, report.failed]


def complete_many(fences: list[dict[str, Any]], prefix: str) -> Any:
    reports = [
        CompletionReport(fence=Fence(**fence), result_id=f"{prefix}{fence['workload_id']}", output=1)
        for fence in fences
    ]
    answers = authority.complete_many(reports)
    return [a.code if isinstance(a, WorkloadError) else "ok" for a in answers]


def admit_many(keys: list[str], changes: dict[str, Any]) -> Any:
    answers = authority.admit_many([request(key, **changes) for key in keys])
    return [a.code if isinstance(a, WorkloadError) else a.created for a in answers]


def note_worker(worker_id: str) -> bool:
    return authority.note_worker(worker_id, capabilities=(), has_claimed=True)
