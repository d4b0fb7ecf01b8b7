"""Workloads in any state, made through the verbs alone, and what tests ask of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection

from tests.support import T0, at
from workloads import authority
from workloads.contract import AdmissionRequest, Claim, Fence, WorkloadState
from workloads.errors import WorkloadError
from workloads.models import Result, Workload

S = WorkloadState

LEASE_MS = 600_000
CLAIMED_AT = at(1_000)
STARTED_AT = at(2_000)
SAVED_AT = at(3_000)
ENDED_AT = at(4_000)
EXPIRES_AT = at(601_000)

CLAIMED = (S.CLAIMED, S.RUNNING, S.CHECKPOINTED)
HELD = (*CLAIMED, S.CANCELLATION_REQUESTED)
PARKED = (S.DEAD_LETTER, S.TIMED_OUT)
FINAL = (S.SUCCEEDED, S.CANCELLED)
EVERY = (S.READY, *HELD, *PARKED, *FINAL)
"""Every state in which a workload may rest."""

ANY: Any = object()


def request(key: str = "k", **changes: Any) -> AdmissionRequest:
    """Make a request, as plain as may be."""
    values: dict[str, Any] = {
        "tenant_id": "t",
        "application_id": "app",
        "requested_by": "user",
        "idempotency_key": key,
        "definition_id": "d",
    }
    return AdmissionRequest(**(values | changes))


def id_of(key: str = "k", *, tenant_id: str = "t", application_id: str = "app", requested_by: str = "user") -> str:
    """Return the id of a scope, spelt out from the contract."""
    scope = json.dumps([tenant_id, application_id, requested_by, key], separators=(",", ":"), ensure_ascii=False)
    return "workload_" + hashlib.sha256(scope.encode()).hexdigest()[:24]


def admit(key: str = "k", *, now: Any = T0, **changes: Any) -> str:
    """Admit work that is not there yet, and return its id."""
    admission = authority.admit(request(key, **changes), now=now)
    assert admission.created
    assert isinstance(admission.workload.workload_id, str)
    return admission.workload.workload_id


def claim(workload_id: str, *, now: Any = CLAIMED_AT, lease_ms: int = LEASE_MS, **changes: Any) -> Claim:
    """Claim work as worker `w`."""
    values: dict[str, Any] = {"worker_id": "w", "capabilities": ()}
    return authority.claim(workload_id, lease_ms=lease_ms, now=now, **(values | changes))


def take(*, now: Any = CLAIMED_AT, lease_ms: int = LEASE_MS, limit: int = 100, **changes: Any) -> list[str]:
    """Claim whatever there is as worker `w`, and return the ids in the order in which they were given."""
    values: dict[str, Any] = {"worker_id": "w", "capabilities": ()}
    claims = authority.claim_next(lease_ms=lease_ms, limit=limit, now=now, **(values | changes))
    return [given.workload_id for given in claims]


def running(key: str = "k", *, lease_ms: int = LEASE_MS, **changes: Any) -> Fence:
    """Admit, claim and start work; return the fence."""
    given = claim(admit(key, **changes), lease_ms=lease_ms, capabilities=changes.get("capability_snapshot", ()))
    authority.start(given.fence, now=STARTED_AT)
    return given.fence


def bring(state: str, key: str = "k", **changes: Any) -> tuple[str, Fence]:
    """Bring new work to rest in `state`, and return its id and the last fence (one that nobody has, if none)."""
    workload_id = admit(key, **changes)
    if state == S.READY:
        return workload_id, Fence(workload_id=workload_id, claim_id="none", worker_id="w", fencing_token=0)
    fence = claim(workload_id, capabilities=changes.get("capability_snapshot", ())).fence
    if state == S.CLAIMED:
        return workload_id, fence
    authority.start(fence, now=STARTED_AT)
    match state:
        case S.RUNNING:
            pass
        case S.CHECKPOINTED:
            authority.checkpoint(fence, {"step": 1}, key="first", now=SAVED_AT)
        case S.CANCELLATION_REQUESTED:
            authority.cancel(workload_id, actor="op", now=SAVED_AT)
        case S.SUCCEEDED:
            authority.complete(fence, result_id=f"result of {key}", output={"done": True}, now=ENDED_AT)
        case S.CANCELLED:
            authority.cancel(workload_id, actor="op", force=True, now=ENDED_AT)
        case S.DEAD_LETTER:
            authority.fail(fence, kind="no_retry", error="broken", now=ENDED_AT)
        case S.TIMED_OUT:
            authority.time_out(workload_id, actor="op", now=ENDED_AT)
    assert state_of(workload_id) == state
    return workload_id, fence


WORKER_CALLS: dict[str, Callable[[Fence, Any], Any]] = {
    "start": lambda fence, now: authority.start(fence, now=now),
    "heartbeat": lambda fence, now: authority.heartbeat(fence, extend_ms=1_000, now=now),
    "context": lambda fence, now: authority.context(fence, now=now),
    "checkpoint": lambda fence, now: authority.checkpoint(fence, {"step": 2}, now=now),
    "release": lambda fence, now: authority.release(fence, now=now),
    "confirm_cancel": lambda fence, now: authority.confirm_cancel(fence, now=now),
    "complete": lambda fence, now: authority.complete(fence, result_id="r", output=1, now=now),
    "fail": lambda fence, now: authority.fail(fence, kind="timeout", error="slow", now=now),
}
"""Every call that carries a fence."""


def state_of(workload_id: str) -> str:
    """Return the state as stored."""
    return authority.get(workload_id).state


def path(workload_id: str) -> list[str]:
    """Return the states that the workload went through."""
    return [event.to_state for event in events(workload_id)]


def events(workload_id: str) -> list[Any]:
    """Return the events in their order."""
    return list(authority.get(workload_id).events.order_by("sequence"))


def attempts(workload_id: str) -> list[Any]:
    """Return the attempts in their order."""
    return list(authority.get(workload_id).attempts.order_by("number"))


def text(instant: Any) -> str:
    """Write an instant as evidence and details do."""
    return str(instant.strftime("%Y-%m-%dT%H:%M:%S.%fZ"))


def record(workload_id: str) -> dict[str, Any]:
    """Return everything that is stored of a workload."""
    workload = authority.get(workload_id)
    return {
        "workload": {c.attname: getattr(workload, c.attname) for c in Workload._meta.concrete_fields},
        "events": list(workload.events.values()),
        "attempts": list(workload.attempts.values()),
        "checkpoints": list(workload.checkpoints.values()),
        "dependencies": list(workload.dependencies.values()),
        "result": list(Result.objects.filter(record=workload.pk).values()),
    }


@contextmanager
def unchanged(*workload_ids: str) -> Iterator[None]:
    """Assert that nothing that is stored of these workloads changes in the block."""
    before = [record(workload_id) for workload_id in workload_ids]
    yield
    assert [record(workload_id) for workload_id in workload_ids] == before


@contextmanager
def refused(code: str, details: Any = ANY) -> Iterator[pytest.ExceptionInfo[WorkloadError]]:
    """Assert that the block is refused with this code, and with exactly these details if they are given."""
    with pytest.raises(WorkloadError) as caught:
        yield caught
    assert caught.value.code == code, caught.value
    if details is not ANY:
        assert caught.value.details == details


def write_raw(table: str, workload_id: str, **values: Any) -> None:
    """Overwrite columns of a workload's row behind the authority's back."""
    key = {"admitted": "id", "workload": "admitted_id"}[table]
    columns = ", ".join(f"{connection.ops.quote_name(name)} = %s" for name in values)
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE workloads_{table} SET {columns} WHERE {key} = %s",
            [*values.values(), authority.get(workload_id).pk],
        )
        assert cursor.rowcount == 1


def spoil(workload_id: str) -> None:
    """Make a workload's row one that nobody can read."""
    write_raw("admitted", workload_id, retry_policy="{")
