"""Claims: who gets which work, once; and the same again for those who lost the answer."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest

from workloads.testing.site import LEASE_MS, Site, at_once, instant, ms_between, unique


def ids(claims: list[dict[str, Any]]) -> list[str]:
    return [claim["workload_id"] for claim in claims]


def test_a_claim_holds_all_that_is_needed_to_begin(site: Site) -> None:
    record = site.admit(input={"n": 1}, connection_scopes=["b", "a"])
    (claim,) = site.claim_next(start=True)
    assert claim["workload_id"] == record["workload_id"]
    for name in ("tenant_id", "application_id", "environment", "definition_id", "definition_revision", "input"):
        assert claim[name] == record[name], name
    assert claim["connection_scopes"] == ["a", "b"] and claim["checkpoints"] == []
    assert (claim["attempt_number"], claim["fencing_token"], claim["worker_id"]) == (1, 1, site.worker)
    assert claim["cancellation_requested"] is False
    assert ms_between(claim["claimed_at"], claim["expires_at"]) == LEASE_MS
    assert 0 < claim["lease_left_ms"] <= LEASE_MS
    now = site.record(claim["workload_id"])
    # Claimed and started in one operation: two events, one step.
    assert now["state"] == "RUNNING" and now["version"] == record["version"] + 1
    assert {name: now[name] for name in ("claim_id", "worker_id", "fencing_token", "expires_at")} == {
        name: claim[name] for name in ("claim_id", "worker_id", "fencing_token", "expires_at")
    }
    assert site.states(claim["workload_id"]) == ["CREATED", "READY", "CLAIMED", "RUNNING"]


def test_without_start_work_is_claimed_alone(site: Site) -> None:
    site.admit()
    (claim,) = site.claim_next()
    assert site.record(claim["workload_id"])["state"] == "CLAIMED"
    assert site.claim_next() == []


def test_the_order_is_priority_then_age(site: Site) -> None:
    admitted = [site.admit(priority=priority)["workload_id"] for priority in (0, 5, 0, -1, 5)]
    order = [admitted[number] for number in (1, 4, 0, 2, 3)]
    assert ids(site.claim_next(limit=2)) == order[:2]
    assert ids(site.claim_next(limit=100)) == order[2:]


def test_definitions_choose(site: Site) -> None:
    old, new = site.admit(), site.admit(definition_revision="2")
    other = site.admit(definition_id=f"{site.definition}.other")
    assert site.claim_next(definitions=[]) == []
    assert ids(site.claim_next(definitions=[f"{site.definition}@2"], limit=9)) == [new["workload_id"]]
    assert ids(site.claim_next(limit=9)) == [old["workload_id"]]
    assert ids(site.claim_next(definitions=[f"{site.definition}.other"])) == [other["workload_id"]]
    body = site.claiming(definitions=["a@b@c"])
    site.line.post("claims/", body).refused("WORKLOAD_INVALID", field="definitions")


def test_capabilities_cover(site: Site, capabilities: list[str]) -> None:
    one, both = capabilities[:1], sorted(capabilities)
    id_ = site.admit(capability_snapshot=both)["workload_id"]
    assert site.claim_next(capabilities=one) == []
    body = {"worker_id": site.worker, "capabilities": one, "lease_ms": LEASE_MS}
    missing = [name for name in both if name not in one]
    site.line.post(f"workloads/{id_}/claim/", body).refused("WORKLOAD_CAPABILITY_DENIED", missing=missing)
    assert ids(site.claim_next(capabilities=both)) == [id_]


def test_nobody_presents_what_it_may_not(site: Site) -> None:
    id_ = site.admit()["workload_id"]
    more = {"worker_id": site.worker, "capabilities": [unique()], "lease_ms": LEASE_MS}
    site.line.post(f"workloads/{id_}/claim/", more).refused("FORBIDDEN", field="capabilities")
    site.line.post("claims/", site.claiming(capabilities=[unique()])).refused("FORBIDDEN", field="capabilities")
    site.line.post("workloads/", site.admission(capability_snapshot=[unique()])).refused("WORKLOAD_GRANT_INVALID")
    if site.prefix:
        site.line.post("claims/", site.claiming(worker_id="?")).refused("FORBIDDEN", field="worker_id")


def test_work_is_claimed_by_its_id(site: Site) -> None:
    id_ = site.admit()["workload_id"]
    claim = site.claim(id_)
    assert claim["workload_id"] == id_ and "input" in claim
    body = {"worker_id": site.worker, "capabilities": [], "lease_ms": LEASE_MS}
    site.line.post(f"workloads/{id_}/claim/", body).refused("WORKLOAD_NOT_READY", state="CLAIMED")
    later = site.admit(not_before="2899-01-01T00:00:00Z")
    answer = site.line.post(f"workloads/{later['workload_id']}/claim/", body)
    answer.refused("WORKLOAD_NOT_READY", state="READY", next_attempt_at="2899-01-01T00:00:00.000000Z")
    assert site.claim_next() == []


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"lease_ms": 0}, "lease_ms"),
        ({"lease_ms": 10**15}, "lease_ms"),
        ({"lease_ms": "1"}, "lease_ms"),
        ({"limit": 0}, "limit"),
        ({"wait_ms": -1}, "wait_ms"),
        ({"start": 1}, "start"),
        ({"capabilities": None}, "capabilities"),
        ({"worker_id": ""}, "worker_id"),
        ({"request_id": " x"}, "request_id"),
    ],
)
def test_arguments_are_judged_first(site: Site, fields: dict[str, Any], named: str) -> None:
    site.line.post("claims/", site.claiming(**fields)).refused("WORKLOAD_INVALID", field=named)


def test_a_lost_answer_is_given_again(site: Site) -> None:
    for _ in range(5):
        site.admit()
    asked = {"limit": 2, "request_id": unique(), "start": True}
    first = site.claim_next(**asked)
    again = site.claim_next(**asked)
    assert [(c["claim_id"], c["fencing_token"], c["expires_at"]) for c in again] == [
        (c["claim_id"], c["fencing_token"], c["expires_at"]) for c in first
    ]
    # Another limit, start or lease is answered as the first.
    assert ids(site.claim_next(**{**asked, "limit": 5, "start": False, "lease_ms": 5})) == ids(first)
    site.complete(first[0]).ok(200)
    assert ids(site.claim_next(**asked)) == ids(first[1:])
    assert len(site.claim_next(limit=9)) == 3


def test_a_request_that_was_given_nothing_may_be_repeated(site: Site) -> None:
    asked = {"request_id": unique()}
    assert site.claim_next(**asked) == []
    id_ = site.admit()["workload_id"]
    assert ids(site.claim_next(**asked)) == ids(site.claim_next(**asked)) == [id_]


def test_a_request_id_stands_for_one_request(site: Site) -> None:
    first, second = site.admit()["workload_id"], site.admit()["workload_id"]
    request_id = unique()
    claim = site.claim(first, request_id=request_id)
    assert site.claim(first, request_id=request_id)["claim_id"] == claim["claim_id"]
    body = {"worker_id": site.worker, "capabilities": [], "lease_ms": LEASE_MS, "request_id": request_id}
    site.line.post(f"workloads/{second}/claim/", body).refused("WORKLOAD_INVALID", field="request_id")
    site.line.post("claims/", site.claiming(request_id=request_id)).refused("WORKLOAD_INVALID", field="request_id")
    # It is the worker's own.
    assert len(site.claim_next(request_id=request_id, worker_id=unique(site.prefix or "w-"))) == 1
    site.say("release", claim).ok(200)
    site.line.post(f"workloads/{first}/claim/", body).refused("WORKLOAD_NOT_READY")


def test_repeats_at_once_get_the_same(site: Site) -> None:
    for _ in range(6):
        site.admit()
    asked = {"request_id": unique(), "limit": 3}
    got = at_once(*[lambda: site.claim_next(**asked)] * 6)
    assert {tuple(sorted(ids(claims))) for claims in got} == {tuple(sorted(ids(got[0])))}
    assert len(got[0]) == 3 and len(site.claim_next(limit=9)) == 3


def test_no_two_callers_get_the_same_work(site: Site) -> None:
    admitted = {site.admit()["workload_id"] for _ in range(24)}
    workers = [unique(site.prefix or "w-") for _ in range(8)]
    got = at_once(*[lambda worker=worker: site.claim_next(worker_id=worker, limit=3) for worker in workers])
    claimed = list(itertools.chain(*map(ids, got)))
    assert len(claimed) == len(set(claimed)) and set(claimed) <= admitted
    # Nobody waited for another's rows: what was passed over is still there.
    claimed += ids(site.claim_next(limit=100))
    assert sorted(claimed) == sorted(admitted)


def test_fencing_tokens_rise_by_one(site: Site) -> None:
    site.admit()
    for number in (1, 2, 3):
        (claim,) = site.claim_next()
        assert (claim["fencing_token"], claim["attempt_number"]) == (number, number)
        site.say("release", claim).ok(200)
    attempts = site.history(claim["workload_id"], "attempts")
    assert [a["fencing_token"] for a in attempts] == [1, 2, 3]
    assert {a["status"] for a in attempts} == {"RELEASED"}
    record = site.record(claim["workload_id"])
    assert (record["attempt_count"], record["release_count"], record["fencing_token"]) == (3, 3, 3)


def test_waiting_ends_with_work_or_with_nothing(site: Site) -> None:
    started = time.monotonic()
    assert site.claim_next(wait_ms=300) == []
    assert time.monotonic() - started < 30

    def wait() -> list[dict[str, Any]]:
        # A server whose threads are taken says at once that it has nothing, and when to come back.
        until = time.monotonic() + 30
        while time.monotonic() < until:
            if claims := site.claim_next(wait_ms=10_000):
                return claims
        return []

    claims, record = at_once(wait, site.admit)
    assert ids(claims) == [record["workload_id"]]
    assert instant(claims[0]["claimed_at"]) >= instant(record["created_at"])
