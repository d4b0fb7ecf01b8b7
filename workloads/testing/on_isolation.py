"""Isolation: whoever has no access to work can't tell it from work that does not exist."""

from __future__ import annotations

from typing import Any

import pytest

from workloads.testing.site import FENCED, LEASE_MS, Site, unique
from workloads.testing.wire import Answer, Line

READS = ["", "events/", "attempts/", "checkpoints/", "result/", "why/"]
ACTS = ["cancel/", "rearm/", "time-out/"]


@pytest.fixture
def claim(site: Site) -> dict[str, Any]:
    """Work that is claimed, with all kinds of history."""
    claim = site.running(input={"n": "told to nobody"})
    site.say("checkpoints", claim, state=1).ok(200)
    return claim


def alike(there: Answer, nowhere: Answer, code: str = "WORKLOAD_NOT_FOUND") -> None:
    """See that two answers are one and the same refusal, to the letter."""
    assert there.refused(code) == nowhere.refused(code)
    assert there.text == nowhere.text
    volatile = {"date", "content-length", "set-cookie", "x-request-id"}
    names = [sorted(set(answer.headers) - volatile) for answer in (there, nowhere)]
    assert names[0] == names[1]


@pytest.mark.parametrize("path", READS)
def test_a_stranger_reads_nothing(stranger: Line, claim: dict[str, Any], path: str) -> None:
    alike(
        stranger.get(f"workloads/{claim['workload_id']}/{path}"),
        stranger.get(f"workloads/{unique('workload_')}/{path}"),
    )


@pytest.mark.parametrize("path", ACTS)
def test_a_stranger_stops_nothing(stranger: Line, site: Site, claim: dict[str, Any], path: str) -> None:
    before = site.record(claim["workload_id"])
    for fields in ({"reason": "r"}, {"reason": "r", "expected_version": 1}):
        alike(
            stranger.post(f"workloads/{claim['workload_id']}/{path}", fields),
            stranger.post(f"workloads/{unique('workload_')}/{path}", fields),
        )
    assert site.record(claim["workload_id"]) == before


@pytest.mark.parametrize("verb", sorted(FENCED))
def test_a_stranger_uses_no_fence_even_when_it_knows_it(
    stranger: Line, site: Site, claim: dict[str, Any], verb: str
) -> None:
    before = site.record(claim["workload_id"])
    body = {name: claim[name] for name in ("claim_id", "worker_id", "fencing_token")} | FENCED[verb]
    alike(
        stranger.post(f"workloads/{claim['workload_id']}/{verb}/", body),
        stranger.post(f"workloads/{unique('workload_')}/{verb}/", body),
    )
    assert site.record(claim["workload_id"]) == before


def test_a_stranger_claims_nothing(stranger: Line, site: Site) -> None:
    id_ = site.admit()["workload_id"]
    body = {"worker_id": site.worker, "capabilities": [], "lease_ms": LEASE_MS}
    alike(
        stranger.post(f"workloads/{id_}/claim/", body), stranger.post(f"workloads/{unique('workload_')}/claim/", body)
    )
    # What is named and is not its own is empty, before capabilities are looked at.
    assert stranger.post("claims/", site.claiming(capabilities=["any"])).ok(200) == {"claims": []}
    assert stranger.post("claims/", site.claiming(wait_ms=20_000)).ok(200) == {"claims": []}
    for field in ("lease_ms", "limit", "wait_ms"):
        stranger.post("claims/", site.claiming(**{field: -1})).refused("WORKLOAD_INVALID", field=field)
    assert site.record(id_)["state"] == "READY"


def test_a_strangers_lists_and_figures_are_empty(stranger: Line, site: Site, claim: dict[str, Any]) -> None:
    for parameters in (
        {"tenant_id": site.tenant},
        {"tenant_id": site.tenant, "application_id": site.application},
        {"tenant_id": site.tenant, "worker_id": claim["worker_id"], "ordering": "priority"},
        {"tenant_id": site.tenant, "definition_id": site.definition, "state": "CHECKPOINTED"},
    ):
        assert stranger.get("workloads/", **parameters).ok(200) == {"next": None, "previous": None, "results": []}
    stats = stranger.get("stats/", tenant_id=site.tenant).ok(200)
    assert {found["count"] for found in stats["counts"].values()} == {0}
    assert stats["oldest_claimable_ms"] is None


def test_a_strangers_batches_find_nothing(stranger: Line, site: Site, claim: dict[str, Any]) -> None:
    fence = {name: claim[name] for name in ("claim_id", "worker_id", "fencing_token")}
    for path, fields in (
        ("heartbeats/", {"extend_ms": LEASE_MS}),
        ("completions/", {"result_id": unique(), "output": 1}),
    ):
        items = [{"workload_id": id_, **fence, **fields} for id_ in (claim["workload_id"], unique("workload_"))]
        there, nowhere = stranger.post(path, {"items": items}).ok(200)["outcomes"]
        assert there == nowhere and there["status"] == 404
    assert site.record(claim["workload_id"])["state"] == "CHECKPOINTED"


def test_a_stranger_admits_nothing(stranger: Line, site: Site) -> None:
    body = site.admission()
    stranger.post("workloads/", body).refused("FORBIDDEN")
    (found,) = stranger.post("workloads/batch/", {"workloads": [body]}).ok(200)["outcomes"]
    assert found["status"] == 403
    # Nor does it learn which keys are taken.
    site.line.post("workloads/", body).ok(201)
    alike(
        stranger.post("workloads/", body),
        stranger.post("workloads/", {**body, "idempotency_key": unique(), "tenant_id": unique()}),
        "FORBIDDEN",
    )


def paths(claim: dict[str, Any]) -> list[tuple[str, str]]:
    one = f"workloads/{claim['workload_id']}/"
    reads = ["workloads/", "stats/", *(one + path for path in READS)]
    posts = ["workloads/", "workloads/batch/", "claims/", "heartbeats/", "completions/", f"{one}claim/"]
    posts += [one + path for path in ACTS] + [f"{one}{verb}/" for verb in FENCED]
    return [("GET", path) for path in reads] + [("POST", path) for path in posts]


def test_without_a_token_nothing_is_open_but_health(
    nobody: Line, site: Site, claim: dict[str, Any], pytestconfig: pytest.Config
) -> None:
    before = site.record(claim["workload_id"])
    url = str(nobody.client.base_url)
    wrong = Line(url, unique())
    try:
        for method, path in paths(claim):
            for caller in (nobody, wrong):
                answer = caller.ask(method, path, {} if method == "POST" else None)
                answer.refused("UNAUTHENTICATED")
                assert answer.headers["www-authenticate"]
    finally:
        wrong.end()
    assert site.record(claim["workload_id"]) == before
