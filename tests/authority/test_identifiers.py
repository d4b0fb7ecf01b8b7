"""Identifiers are compared byte for byte, in every column and on every database. Section 1, "Bounds"."""

from __future__ import annotations

from typing import Any

import pytest
from django.apps import apps
from django.db import connection

from tests.authority.builders import (
    ENDED_AT,
    LEASE_MS,
    SAVED_AT,
    admit,
    attempts,
    bring,
    claim,
    events,
    id_of,
    refused,
    request,
    running,
    take,
)
from tests.support import T0, at
from workloads import authority
from workloads.contract import Dependency, RetryPolicy
from workloads.models import Attempt, Checkpoint, Event, Lane, Result, Workload

pytestmark = pytest.mark.django_db

ALIKE = [
    "e",
    "E",
    "é",
    "É",
    "e\u0301",
    "ｅ",
    "e\u200b",
    "e\u00ad",
    "ß",
    "ss",
    "SS",
    "ı",
    "i",
    "a b",
    "a  b",
    "æ",
    "ae",
    "0",
    "00",
]
"""Names that some collation or normal form takes for one another."""


@pytest.mark.parametrize("field", ["tenant_id", "application_id", "requested_by", "idempotency_key"])
def test_names_of_a_scope_that_look_alike_are_other_work(field: str) -> None:
    ids = {name: admit(**({"key": name} if field == "idempotency_key" else {field: name})) for name in ALIKE}
    assert len(set(ids.values())) == len(ALIKE)
    for name, workload_id in ids.items():
        assert Workload.objects.get(**{field: name}).workload_id == workload_id
        assert getattr(authority.get(workload_id), field) == name
        again = request(**({"key": name} if field == "idempotency_key" else {field: name}))
        assert authority.admit(again, now=T0).workload.workload_id == workload_id


def test_a_tenants_list_and_claims_hold_its_own_work_alone() -> None:
    ids = {name: admit(tenant_id=name, application_id=name) for name in ALIKE}
    assert Lane.objects.count() == len(ALIKE)
    for name, workload_id in ids.items():
        assert [w.workload_id for w in authority.list_for(name, name)] == [workload_id]
        assert take(tenant_id=name) == [workload_id]


@pytest.mark.parametrize("field", ["definition_id", "definition_revision", "environment", "trigger", "session_id"])
def test_other_names_that_look_alike(field: str) -> None:
    ids = {name: admit(name, **{field: name}) for name in ALIKE}
    for name, workload_id in ids.items():
        assert Workload.objects.get(**{field: name}).workload_id == workload_id
    if field not in ("trigger", "session_id"):
        with refused("IDEMPOTENCY_KEY_REUSED", {"fields": [field]}):
            authority.admit(request("e", **{field: "E"}), now=T0)
    if field == "definition_id":
        assert take(definitions=["É"]) == [ids["É"]]
    if field == "definition_revision":
        assert take(definitions=["d@É"]) == [ids["É"]]


def test_capabilities_and_scopes() -> None:
    ids = {name: admit(name, capability_snapshot={name}, connection_scopes={name}) for name in ALIKE}
    for name, workload_id in ids.items():
        with refused("WORKLOAD_CAPABILITY_DENIED", {"missing": [name]}):
            claim(workload_id, capabilities=set(ALIKE) - {name})
        assert Workload.objects.get(capability_snapshot=frozenset({name})).workload_id == workload_id
    assert take(capabilities={"É"}) == [ids["É"]]
    fence = claim(ids["é"], capabilities={"é"}).fence
    with refused("WORKLOAD_SCOPE_DENIED"):
        authority.context(fence, secret_references={"e\u0301"}, now=at(2_000))


def test_workers_and_requests() -> None:
    ids = [admit(f"k{n:02}") for n in range(2 * len(ALIKE))]
    given: list[str] = []
    for name in ALIKE:
        for names in ({"worker_id": name, "request_id": "q"}, {"worker_id": "w", "request_id": name}):
            (one,) = authority.claim_next(capabilities=[], lease_ms=LEASE_MS, now=at(1_000), **names)  # type: ignore[arg-type]
            given.append(one.workload_id)
    assert given == ids
    for name in ALIKE:
        assert Workload.objects.filter(worker_id=name).count() == 1
        assert Attempt.objects.filter(worker_id=name).count() == 1


def test_result_ids_and_checkpoint_keys() -> None:
    fence = running()
    sequences = [authority.checkpoint(fence, 1, key=name, now=SAVED_AT).sequence for name in ALIKE]
    assert sequences == list(range(1, len(ALIKE) + 1))
    assert Checkpoint.objects.get(key="É").sequence == sequences[ALIKE.index("É")]
    for name in ALIKE:
        authority.complete(running(name), result_id=name, output=1, now=ENDED_AT)
    assert Result.objects.get(result_id="é").record.idempotency_key == "é"


def test_actors_and_kinds() -> None:
    for name in ALIKE:
        authority.cancel(admit(name), actor=name, now=at(1))
    assert Event.objects.get(actor="É").record.workload_id == id_of("É")
    for name in ALIKE:
        fence = running(f"kind {name}", retry_policy=RetryPolicy(retry_on={"é"}))
        decision = authority.fail(fence, kind=name, error="", now=ENDED_AT).decision
        assert decision == ("retry" if name == "é" else "failure_kind_not_retryable")
        assert attempts(fence.workload_id)[0].failure_kind == name
    assert Attempt.objects.filter(failure_kind="e").count() == 1


def test_ids_of_workloads() -> None:
    workload_id, _ = bring("SUCCEEDED", "parent")
    assert Workload.objects.filter(workload_id=workload_id.upper()).count() == 0
    child = admit("child", dependencies=[Dependency(workload_id=workload_id.upper())])
    with refused("WORKLOAD_NOT_READY"):
        claim(child)
    assert events(child)[-1].to_state == "READY"


ENDS = [
    " e",
    "e ",
    "\u00a0e",
    "e\u2003",
    "\u3000e",
    "e\t",
    "\ne",
    "\u2028e",
    "",
    " ",
    "e\x7f",
    "e\x85f",
    "a\0b",
    "\ud83c",
]


@pytest.mark.parametrize("bad", ENDS)
def test_white_space_at_an_end_and_control_characters_are_refused_everywhere(bad: str) -> None:
    fence = running(connection_scopes={"s"})
    calls: dict[str, Any] = {
        "tenant_id": lambda: authority.admit(request(tenant_id=bad), now=T0),
        "capability_snapshot": lambda: authority.admit(request(capability_snapshot={bad}), now=T0),
        "connection_scopes": lambda: authority.admit(request(connection_scopes={bad}), now=T0),
        "retry_policy.retry_on": lambda: authority.admit(request(retry_policy=RetryPolicy(retry_on={bad})), now=T0),
        "dependencies": lambda: authority.admit(request(dependencies=[Dependency(workload_id=bad)]), now=T0),
        "worker_id": lambda: take(worker_id=bad),
        "capabilities": lambda: take(capabilities=[bad]),
        "definitions": lambda: take(definitions=[bad]),
        "request_id": lambda: take(request_id=bad),
        "secret_references": lambda: authority.context(fence, secret_references=[bad], now=at(3_000)),
        "key": lambda: authority.checkpoint(fence, 1, key=bad, now=at(3_000)),
        "result_id": lambda: authority.complete(fence, result_id=bad, output=1, now=at(3_000)),
        "kind": lambda: authority.fail(fence, kind=bad, error="", now=at(3_000)),
        "actor": lambda: authority.cancel(fence.workload_id, actor=bad, now=at(3_000)),
        "subject": lambda: authority.issue_grant(
            subject=bad, tenant_id="t", application_id="a", capabilities=[], expires_at=at(1)
        ),
    }
    for field, call in calls.items():
        with refused("WORKLOAD_INVALID") as caught:
            call()
        assert caught.value.details is not None
        assert caught.value.details["field"] == field


def test_on_mariadb_every_text_column_compares_bytes() -> None:
    if connection.vendor != "mysql":
        pytest.skip("A question about MariaDB's collations.")
    tables = [model._meta.db_table for model in apps.get_app_config("workloads").get_models()]
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT table_name, column_name, collation_name FROM information_schema.columns "
            "WHERE table_schema = DATABASE() AND table_name IN %s AND collation_name IS NOT NULL",
            [tuple(tables)],
        )
        columns = cursor.fetchall()
    assert len(columns) > 40
    assert {collation for _, _, collation in columns} == {"utf8mb4_nopad_bin"}
