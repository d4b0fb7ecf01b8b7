"""Admission: work is promised once for each key, however often and by however many it is asked for."""

from __future__ import annotations

from typing import Any

import pytest

from workloads.lifecycle.canonical import workload_id
from workloads.testing.site import Site, at_once, fence, unique
from workloads.testing.wire import outcome

DEFAULTS: dict[str, Any] = {
    "definition_revision": "1",
    "environment": "production",
    "input": None,
    "capability_snapshot": [],
    "connection_scopes": [],
    "priority": 0,
    "retry_policy": {
        "max_attempts": 3,
        "backoff": "EXPONENTIAL",
        "initial_delay_ms": 1_000,
        "max_delay_ms": 60_000,
        "jitter": 0.0,
        "retry_on": ["timeout", "transient_connection", "worker_failure"],
    },
    "timeouts": dict.fromkeys(("overall_ms", "queue_ms", "claim_ms", "execution_ms", "heartbeat_ms")),
    "dependencies": [],
    "not_before": None,
    "trigger": "",
    "session_id": None,
}


def test_what_is_left_out_has_its_default(site: Site) -> None:
    record = site.admit()
    assert {name: record[name] for name in DEFAULTS} == DEFAULTS
    assert record["state"] == "READY" and record["version"] == 1
    assert (record["attempt_count"], record["fencing_token"], record["claim_id"]) == (0, 0, None)
    assert record["next_attempt_at"] == record["created_at"] == record["overall_from"]


def test_null_is_the_default(site: Site) -> None:
    body = site.admission()
    first = site.line.post("workloads/", {**body, **dict.fromkeys(DEFAULTS)}).ok(201)
    again = site.line.post("workloads/", body).ok(200)
    assert first["workload_id"] == again["workload_id"]


def test_the_identity_is_the_scope_of_the_key(site: Site) -> None:
    body = site.admission()
    answer = site.line.post("workloads/", body)
    record = answer.ok(201)
    key = body["idempotency_key"]
    assert record["workload_id"] == workload_id(site.tenant, site.application, site.user, key)
    assert answer.headers["location"].endswith(f"/workloads/{record['workload_id']}/")
    assert record["requested_by"] == site.user


def test_a_repeat_is_answered_with_the_stored_work(site: Site) -> None:
    body = site.admission(input={"n": 1}, priority=3)
    first = site.line.post("workloads/", body).ok(201)
    answer = site.line.post("workloads/", body)
    assert answer.ok(200) == first and answer.headers["location"]
    # What is not compared may differ.
    assert site.line.post("workloads/", {**body, "trigger": "again", "session_id": "s"}).ok(200) == first


def test_a_repeat_is_answered_in_whatever_state_the_work_is(site: Site) -> None:
    body = site.admission()
    id_ = site.line.post("workloads/", body).ok(201)["workload_id"]
    (claim,) = site.claim_next(start=True)
    assert site.line.post("workloads/", body).ok(200)["state"] == "RUNNING"
    site.complete(claim).ok(200)
    assert site.line.post("workloads/", body).ok(200)["state"] == "SUCCEEDED"
    assert len(site.states(id_)) == 5


@pytest.mark.parametrize(
    ("changed", "fields"),
    [
        ({"input": {"n": 2}}, ["input"]),
        ({"priority": 1, "environment": "test"}, ["environment", "priority"]),
        ({"timeouts": {"overall_ms": 5}, "definition_revision": "2"}, ["definition_revision", "timeouts"]),
        ({"retry_policy": {"max_attempts": 4}, "connection_scopes": ["s"]}, ["connection_scopes", "retry_policy"]),
        ({"not_before": "2027-01-01T00:00:00Z"}, ["not_before"]),
    ],
)
def test_a_key_that_stands_for_other_work_is_refused(site: Site, changed: dict[str, Any], fields: list[str]) -> None:
    body = site.admission(input={"n": 1})
    first = site.line.post("workloads/", body).ok(201)
    site.line.post("workloads/", {**body, **changed}).refused("IDEMPOTENCY_KEY_REUSED", fields=fields)
    assert site.record(first["workload_id"]) == first


def test_the_key_may_come_as_a_header(site: Site) -> None:
    body, key = site.admission(), unique("ключ-")
    del body["idempotency_key"]
    first = site.line.post("workloads/", body, idempotency_key=key).ok(201)
    assert first["idempotency_key"] == key
    both = {**body, "idempotency_key": key}
    assert site.line.post("workloads/", both, idempotency_key=key).ok(200) == first
    assert site.line.post("workloads/", both).ok(200) == first
    for answer in (
        site.line.post("workloads/", both, idempotency_key=unique()),
        site.line.post("workloads/", body),
    ):
        answer.refused("WORKLOAD_INVALID", field="idempotency_key")


def test_admission_is_the_first_two_events(site: Site) -> None:
    record = site.admit()
    first, second = site.history(record["workload_id"], "events")
    assert (first["from_state"], first["to_state"]) == ("", "CREATED")
    assert (second["from_state"], second["to_state"]) == ("CREATED", "READY")
    assert first["actor"] == site.user and first["at"] == record["created_at"]


def test_of_equal_admissions_at_once_one_is_created(site: Site) -> None:
    body = site.admission()
    answers = at_once(*[lambda: site.line.post("workloads/", body)] * 8)
    assert sorted(answer.status for answer in answers) == [200] * 7 + [201]
    assert len({answer.body["workload_id"] for answer in answers}) == 1


def test_of_conflicting_admissions_at_once_one_is_created(site: Site) -> None:
    body = site.admission()
    bodies = [{**body, "input": number} for number in range(8)]
    answers = at_once(*[lambda body=body: site.line.post("workloads/", body) for body in bodies])
    (created,) = [answer for answer in answers if answer.status == 201]
    for answer in answers:
        if answer is not created:
            answer.refused("IDEMPOTENCY_KEY_REUSED", fields=["input"])
    assert site.record(created.body["workload_id"])["input"] == created.body["input"]


def test_nobody_admits_in_anothers_name(site: Site) -> None:
    assert site.admit(requested_by=site.user)["requested_by"] == site.user
    site.line.post("workloads/", site.admission(requested_by=unique())).refused("FORBIDDEN")


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"definition_id": "a@b"}, "definition_id"),
        ({"definition_id": " a"}, "definition_id"),
        ({"definition_id": "x" * 201}, "definition_id"),
        ({"environment": ""}, "environment"),
        ({"environment": "a\u0007b"}, "environment"),
        ({"priority": 2**31}, "priority"),
        ({"priority": "1"}, "priority"),
        ({"priority": 1.0}, "priority"),
        ({"priority": True}, "priority"),
        ({"retry_policy": {"max_attempts": 0}}, "retry_policy.max_attempts"),
        ({"retry_policy": {"jitter": 1.5}}, "retry_policy.jitter"),
        ({"retry_policy": {"backoff": "LINEAR"}}, "retry_policy.backoff"),
        ({"retry_policy": {"initial_delay_ms": -1}}, "retry_policy.initial_delay_ms"),
        ({"timeouts": {"queue_ms": 0}}, "timeouts.queue_ms"),
        ({"timeouts": {"overall_ms": 3_155_760_000_001}}, "timeouts.overall_ms"),
        ({"not_before": "2026-01-01T00:00:00"}, "not_before"),
        ({"not_before": "1999-12-31T00:00:00Z"}, "not_before"),
        ({"not_before": "soon"}, "not_before"),
        ({"capability_snapshot": "a"}, "capability_snapshot"),
        ({"connection_scopes": [f"s{n}" for n in range(101)]}, "connection_scopes"),
        ({"dependencies": [{"workload_id": "w", "required_state": "READY"}]}, "dependencies"),
        ({"input": {"a": "\0"}}, "input"),
    ],
)
def test_what_is_out_of_bounds_is_named(site: Site, fields: dict[str, Any], named: str) -> None:
    site.line.post("workloads/", site.admission(**fields)).refused("WORKLOAD_INVALID", field=named)


def test_fields_that_are_not_known_are_named(site: Site) -> None:
    answer = site.line.post("workloads/", site.admission(timeout={"overall_ms": 5}, prio=1))
    answer.refused("WORKLOAD_INVALID", fields=["prio", "timeout"])
    inside = site.line.post("workloads/", site.admission(timeouts={"overal_ms": 5}))
    inside.refused("WORKLOAD_INVALID", fields=["timeouts.overal_ms"])
    # A grant is the server's to issue.
    site.line.post("workloads/", site.admission(grant="x")).refused("WORKLOAD_INVALID", fields=["grant"])


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"a": [{"db_password": "hunter2hunter2"}]}, "$.a[0].db_password"),
        ({"log": "https://user:hunter2hunter2@example.com/"}, "$.log"),
    ],
)
def test_secrets_are_refused_and_never_told(site: Site, given: Any, path: str) -> None:
    answer = site.line.post("workloads/", site.admission(input=given))
    details = answer.refused("WORKLOAD_SECRET_MATERIAL", path=path)
    assert details["rule"] and "hunter2" not in answer.text


def test_a_reference_to_a_secret_is_none(site: Site) -> None:
    given = {"password": "vault:printer", "api_key": "${KEY}", "token_secret": "scope-1", "tokens_used": "12"}
    assert site.admit(input=given, connection_scopes=["scope-1"])["input"] == given


def test_a_batch_judges_each_item_by_itself(site: Site) -> None:
    stored = site.admission()
    site.line.post("workloads/", stored).ok(201)
    fresh = site.admission()
    items = [
        site.admission(),
        stored,
        {**stored, "priority": 9},
        fresh,
        fresh,
        {**fresh, "input": 1},
        site.admission(priority="high"),
        {"tenant_id": site.tenant, "nothing": True},
        "no object",
        site.admission(input={"password": "hunter2hunter2"}),
        site.admission(requested_by="somebody else"),
        site.admission(tenant_id=unique()),
    ]
    outcomes = site.line.post("workloads/batch/", {"workloads": items}).ok(200)["outcomes"]
    assert [found["status"] for found in outcomes] == [201, 200, 422, 201, 200, 422, 400, 400, 400, 422, 403, 403]
    outcome(outcomes[2], "IDEMPOTENCY_KEY_REUSED", fields=["priority"])
    outcome(outcomes[5], "IDEMPOTENCY_KEY_REUSED", fields=["input"])
    outcome(outcomes[6], "WORKLOAD_INVALID", field="priority")
    outcome(outcomes[7], "WORKLOAD_INVALID", fields=["nothing"])
    outcome(outcomes[9], "WORKLOAD_SECRET_MATERIAL", path="$.password")
    assert set(outcomes[0]) == {"status", "workload"}
    for found in (outcomes[0], outcomes[3]):
        assert site.record(found["workload"]["workload_id"]) == found["workload"]


def test_a_batch_has_its_bounds(site: Site) -> None:
    assert site.line.post("workloads/batch/", {"workloads": []}).ok(200) == {"outcomes": []}
    over: dict[str, Any] = {"workloads": [{}] * 1_001}
    site.line.post("workloads/batch/", over).refused("WORKLOAD_INVALID", field="workloads")
    site.line.post("workloads/batch/", {}).refused("WORKLOAD_INVALID", field="workloads")


def test_work_waits_for_what_it_depends_on(site: Site) -> None:
    first = site.admit()
    then = site.admit(dependencies=[{"workload_id": first["workload_id"]}])
    body = {"worker_id": site.worker, "capabilities": [], "lease_ms": 60_000}
    answer = site.line.post(f"workloads/{then['workload_id']}/claim/", body)
    answer.refused("WORKLOAD_NOT_READY", state="READY", dependencies=[first["workload_id"]])
    (claim,) = site.claim_next(limit=10, start=True)
    assert claim["workload_id"] == first["workload_id"]
    site.complete(claim).ok(200)
    (claim,) = site.claim_next(limit=10)
    assert claim["workload_id"] == then["workload_id"] and fence(claim)


def test_what_depends_on_itself_is_refused(site: Site) -> None:
    body = site.admission()
    own = workload_id(site.tenant, site.application, site.user, body["idempotency_key"])
    body["dependencies"] = [{"workload_id": own}]
    site.line.post("workloads/", body).refused("WORKLOAD_INVALID", field="dependencies", cycle=[own])
