"""Each code of the interface, reached over HTTP, with its status and its details."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from tests.api.routes import MISSING
from tests.api.tools import Answer, Caller, admission, claiming, place, refusal
from tests.api.world import ALL, admit, claim, done, running
from workloads.api import errors
from workloads.contract import Dependency, RetryPolicy, Timeouts

pytestmark = pytest.mark.django_db

CASES: dict[str, Callable[[Caller], Answer]] = {}


def case(function: Callable[[Caller], Answer]) -> Callable[[Caller], Answer]:
    """Count a function among those that reach a code, which is its name."""
    CASES[function.__name__.upper()] = function
    return function


@pytest.fixture
def caller() -> Caller:
    return Caller("alma", place(*ALL))


def at(workload_id: str, verb: str) -> str:
    return f"workloads/{workload_id}/{verb}/"


@case
def workload_invalid(caller: Caller) -> Answer:
    return caller.post("workloads/", admission(priority="high"))


@case
def unauthenticated(caller: Caller) -> Answer:
    return Caller(None).get("workloads/")


@case
def forbidden(caller: Caller) -> Answer:
    return Caller("vera", place("viewer")).post("workloads/", admission())


@case
def workload_grant_invalid(caller: Caller) -> Answer:
    return caller.post("workloads/", admission(capability_snapshot=["a"]))


@case
def workload_capability_denied(caller: Caller) -> Answer:
    return caller.post(at(admit(capability_snapshot=["a"]), "claim"), claiming())


@case
def workload_scope_denied(caller: Caller) -> Answer:
    workload_id, held = running(connection_scopes=["crm"])
    return caller.post(at(workload_id, "context"), held | {"secret_references": ["erp"]})


@case
def workload_not_found(caller: Caller) -> Answer:
    return caller.get(f"workloads/{MISSING}/")


@case
def not_found(caller: Caller) -> Answer:
    return caller.get("nothing/")


@case
def method_not_allowed(caller: Caller) -> Answer:
    return caller.ask("DELETE", f"workloads/{MISSING}/")


@case
def not_acceptable(caller: Caller) -> Answer:
    return caller.get("workloads/", accept="text/html")


@case
def unsupported_media_type(caller: Caller) -> Answer:
    return caller.ask("POST", "workloads/", b"a=1", content_type="application/x-www-form-urlencoded")


@case
def workload_conflict(caller: Caller) -> Answer:
    return caller.post(at(admit(), "cancel"), {"expected_version": 7})


@case
def workload_not_ready(caller: Caller) -> Answer:
    return caller.post(at(admit(dependencies=[Dependency(workload_id=MISSING)]), "claim"), claiming())


@case
def workload_attempts_exhausted(caller: Caller) -> Answer:
    # Such work is dead-lettered at its last report, so that none is READY: what a claim finds is a site's own doing.
    workload_id = admit(retry_policy=RetryPolicy(max_attempts=1))
    with connection.cursor() as cursor:
        cursor.execute("UPDATE workloads_workload SET attempt_count = 1")
    return caller.post(at(workload_id, "claim"), claiming())


@case
def workload_claim_invalid(caller: Caller) -> Answer:
    return caller.post(at(admit(), "start"), {"claim_id": "c", "worker_id": "w-1", "fencing_token": 1})


@case
def workload_stale_fence(caller: Caller) -> Answer:
    workload_id, held = running()
    return caller.post(at(workload_id, "release"), held | {"fencing_token": 0})


@case
def workload_lease_expired(caller: Caller) -> Answer:
    workload_id, held = running()
    with connection.cursor() as cursor:
        cursor.execute("UPDATE workloads_workload SET expires_at = claimed_at")
    return caller.post(at(workload_id, "heartbeat"), held | {"extend_ms": 1})


@case
def workload_transition_denied(caller: Caller) -> Answer:
    held = claim(admit())
    body = {"claim_id": held.claim_id, "worker_id": "w-1", "fencing_token": 1, "result_id": "r", "output": 1}
    return caller.post(at(held.workload_id, "complete"), body)


def overdue() -> tuple[str, dict[str, Any]]:
    """Return running work, with its fence, of which nobody has seen yet that its deadline passed."""
    workload_id, held = running(timeouts=Timeouts(overall_ms=3_600_000), retry_policy=RetryPolicy(retry_on=set()))
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE workloads_workload SET overall_from = %s",
            [connection.ops.adapt_datetimefield_value(dt.datetime(2020, 1, 1, tzinfo=dt.UTC))],
        )
    return workload_id, held


@case
def workload_timed_out(caller: Caller) -> Answer:
    workload_id, held = overdue()
    return caller.post(at(workload_id, "heartbeat"), held | {"extend_ms": 1})


@case
def workload_result_conflict(caller: Caller) -> Answer:
    workload_id = done("done")
    body = {"claim_id": "c", "worker_id": "w-1", "fencing_token": 1, "result_id": "result of done", "output": 2}
    return caller.post(at(workload_id, "complete"), body)


@case
def workload_result_duplicate(caller: Caller) -> Answer:
    done("done")
    workload_id, held = running()
    return caller.post(at(workload_id, "complete"), held | {"result_id": "result of done", "output": 1})


@case
def workload_checkpoint_conflict(caller: Caller) -> Answer:
    workload_id, held = running()
    return caller.post(at(workload_id, "checkpoints"), held | {"key": "begun", "state": "another"})


@case
def workload_too_large(caller: Caller) -> Answer:
    return caller.post("workloads/", admission(input="x" * 262_143))


@case
def idempotency_key_reused(caller: Caller) -> Answer:
    caller.post("workloads/", admission())
    return caller.post("workloads/", admission(priority=1, input=5))


@case
def idempotency_key_retired(caller: Caller) -> Answer:
    workload_id = caller.post("workloads/", admission()).body["workload_id"]
    # As pruning leaves it.
    with connection.cursor() as cursor:
        for table, column in (("workloads_workload", "admitted_id"), ("workloads_admitted", "id")):
            cursor.execute(
                f"DELETE FROM {table} WHERE {column} = (SELECT max(id) FROM (SELECT id FROM workloads_admitted) t)"
            )
        cursor.execute(
            "INSERT INTO workloads_tombstone (workload_id, tenant_id, application_id, state, pruned_at) "
            "VALUES (%s, 'acme', 'invoices', 'CANCELLED', '2026-01-01 00:00:00')",
            [workload_id],
        )
    return caller.post("workloads/", admission())


@case
def workload_secret_material(caller: Caller) -> Answer:
    return caller.post("workloads/", admission(input={"a": [{"db_password": "hunter2"}]}))


OTHERWISE = {"THROTTLED", "UNAVAILABLE", "INTERNAL_ERROR"}


def test_every_code_is_reached() -> None:
    assert CASES.keys() | OTHERWISE == errors.STATUSES.keys()


@pytest.mark.parametrize("code", CASES)
def test_each_code_has_its_status(caller: Caller, code: str) -> None:
    refusal(CASES[code](caller), errors.STATUSES[code], code)


def test_the_statuses_are_those_of_the_interface() -> None:
    table = {
        400: "WORKLOAD_INVALID",
        401: "UNAUTHENTICATED",
        403: "FORBIDDEN WORKLOAD_GRANT_INVALID WORKLOAD_CAPABILITY_DENIED WORKLOAD_SCOPE_DENIED",
        404: "WORKLOAD_NOT_FOUND NOT_FOUND",
        405: "METHOD_NOT_ALLOWED",
        406: "NOT_ACCEPTABLE",
        409: "WORKLOAD_CONFLICT WORKLOAD_NOT_READY WORKLOAD_ATTEMPTS_EXHAUSTED WORKLOAD_CLAIM_INVALID "
        "WORKLOAD_STALE_FENCE WORKLOAD_LEASE_EXPIRED WORKLOAD_TRANSITION_DENIED WORKLOAD_TIMED_OUT "
        "WORKLOAD_RESULT_CONFLICT WORKLOAD_RESULT_DUPLICATE WORKLOAD_CHECKPOINT_CONFLICT",
        413: "WORKLOAD_TOO_LARGE",
        415: "UNSUPPORTED_MEDIA_TYPE",
        422: "IDEMPOTENCY_KEY_REUSED IDEMPOTENCY_KEY_RETIRED WORKLOAD_SECRET_MATERIAL",
        429: "THROTTLED",
        500: "INTERNAL_ERROR",
        503: "UNAVAILABLE",
    }
    assert {code: status for status, codes in table.items() for code in codes.split()} == errors.STATUSES


def test_details_are_those_of_the_contract(caller: Caller) -> None:
    assert CASES["IDEMPOTENCY_KEY_REUSED"](caller).details == {"fields": ["input", "priority"]}
    assert CASES["WORKLOAD_SECRET_MATERIAL"](caller).details["path"] == "$.a[0].db_password"
    assert CASES["WORKLOAD_TOO_LARGE"](caller).details == {"field": "input", "limit": 262_144, "size": 262_145}
