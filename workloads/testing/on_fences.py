"""The fence: whoever does not hold the current claim changes nothing, whatever it says."""

from __future__ import annotations

from typing import Any

import pytest

from workloads.testing.site import FENCED, LEASE_MS, Site, ms_between, pass_ms, unique
from workloads.testing.wire import outcome

VERBS = sorted(FENCED)


def unchanged(site: Site, claim: dict[str, Any], code: str, verb: str, **wrong: Any) -> None:
    """Make a call with a fence that is wrong in this, and see that it changes nothing."""
    before = site.record(claim["workload_id"])
    site.say(verb, claim, **FENCED[verb], **wrong).refused(code)
    assert site.record(claim["workload_id"]) == before


@pytest.mark.parametrize("verb", VERBS)
def test_a_wrong_fence_is_refused(site: Site, verb: str) -> None:
    claim = site.running()
    unchanged(site, claim, "WORKLOAD_CLAIM_INVALID", verb, claim_id=unique())
    unchanged(site, claim, "WORKLOAD_CLAIM_INVALID", verb, worker_id=f"{site.worker}-other")
    unchanged(site, claim, "WORKLOAD_CLAIM_INVALID", verb, fencing_token=claim["fencing_token"] + 1)
    # The token is looked at before the rest.
    unchanged(site, claim, "WORKLOAD_STALE_FENCE", verb, fencing_token=claim["fencing_token"] - 1)
    unchanged(site, claim, "WORKLOAD_STALE_FENCE", verb, fencing_token=-(10**30), claim_id="")
    unchanged(site, claim, "WORKLOAD_CLAIM_INVALID", verb, fencing_token=10**30)


@pytest.mark.parametrize("verb", VERBS)
def test_a_fence_without_a_claim_is_refused(site: Site, verb: str) -> None:
    claim = site.running()
    site.fail(claim).ok(200)
    unchanged(site, claim, "WORKLOAD_CLAIM_INVALID", verb)


@pytest.mark.parametrize("verb", VERBS)
def test_a_fence_that_another_claim_replaced_is_stale(site: Site, verb: str) -> None:
    # The first attempt reports, so that only what it repeats word for word is answered again.
    claim = site.running(retry_policy={"initial_delay_ms": 0, "max_delay_ms": 0})
    site.fail(claim, error="another one").ok(200)
    (current,) = site.claim_next(start=True)
    assert current["fencing_token"] == 2
    unchanged(site, claim, "WORKLOAD_STALE_FENCE", verb)
    site.complete(current).ok(200)


@pytest.mark.parametrize("verb", VERBS)
def test_a_lease_that_is_over_is_over(site: Site, verb: str) -> None:
    site.admit()
    (claim,) = site.claim_next(lease_ms=150, start=True)
    pass_ms(200)
    answer = site.say(verb, claim, **FENCED[verb])
    if answer.body.get("code") != "WORKLOAD_CLAIM_INVALID":
        answer.refused("WORKLOAD_LEASE_EXPIRED", expires_at=claim["expires_at"])
    else:
        # A pass has found it first.
        assert "RECOVERING" in site.states(claim["workload_id"])


@pytest.mark.parametrize("verb", VERBS)
def test_the_fields_of_a_fence_are_looked_at_first(site: Site, verb: str) -> None:
    claim = site.running()
    for field, wrong in (("claim_id", 1), ("worker_id", None), ("fencing_token", "1")):
        answer = site.say(verb, claim, **FENCED[verb], **{field: wrong})
        answer.refused("WORKLOAD_INVALID", field=field)
    body = {"claim_id": claim["claim_id"], "worker_id": claim["worker_id"], **FENCED[verb]}
    path = f"workloads/{claim['workload_id']}/{verb}/"
    site.line.post(path, body).refused("WORKLOAD_INVALID", field="fencing_token")
    whole = {**body, "fencing_token": 1, "token": 1}
    site.line.post(path, whole).refused("WORKLOAD_INVALID", fields=["token"])


@pytest.mark.parametrize("verb", VERBS)
def test_what_does_not_exist_is_not_found(site: Site, verb: str) -> None:
    claim = site.running()
    for id_ in ("workload_000000000000000000000000", "nothing", "w%20w", "é"):
        site.say(verb, {**claim, "workload_id": id_}, **FENCED[verb]).refused("WORKLOAD_NOT_FOUND")


def test_start_may_be_repeated(site: Site) -> None:
    site.admit()
    (claim,) = site.claim_next()
    first = site.say("start", claim).ok(200)
    version = site.record(claim["workload_id"])["version"]
    again = site.say("start", claim).ok(200)
    assert {**again, "lease_left_ms": 0} == {**first, "lease_left_ms": 0}
    site.say("checkpoints", claim, state=1).ok(200)
    site.say("start", claim).ok(200)
    record = site.record(claim["workload_id"])
    assert (record["state"], record["version"]) == ("CHECKPOINTED", version + 1)


def test_a_heartbeat_extends_and_never_shortens(site: Site) -> None:
    claim = site.running()
    longer = site.say("heartbeat", claim, extend_ms=2 * LEASE_MS).ok(200)
    assert ms_between(longer["last_heartbeat"], longer["expires_at"]) == 2 * LEASE_MS
    shorter = site.say("heartbeat", claim, extend_ms=1).ok(200)
    assert shorter["expires_at"] == longer["expires_at"]
    assert ms_between(longer["last_heartbeat"], shorter["last_heartbeat"]) >= 0
    # It is no event, and a step of the version.
    record = site.record(claim["workload_id"])
    assert record["version"] == 4 and len(site.states(claim["workload_id"])) == 4
    site.say("heartbeat", claim, extend_ms=0).refused("WORKLOAD_INVALID", field="extend_ms")


def test_release_gives_the_work_back_and_may_be_repeated(site: Site) -> None:
    claim = site.running()
    first = site.say("release", claim, reason="a deploy").ok(200)
    assert (first["state"], first["claim_id"], first["release_count"]) == ("READY", None, 1)
    assert site.say("release", claim, reason="a deploy").ok(200) == first
    last = site.history(claim["workload_id"], "events")[-1]
    assert last["evidence"]["decision"] == "released" and last["evidence"]["reason"] == "a deploy"
    assert last["actor"] == site.worker
    (again,) = site.claim_next()
    assert again["attempt_number"] == 2


def test_the_context_is_all_that_is_needed(site: Site) -> None:
    claim = site.running(input=[1], connection_scopes=["vault:a", "vault:b"])
    context = site.say("context", claim, secret_references=["vault:b"]).ok(200)
    assert context["input"] == [1] and context["secret_references"] == ["vault:b"]
    answer = site.say("context", claim, secret_references=["vault:c", "vault:a"])
    answer.refused("WORKLOAD_SCOPE_DENIED", missing=["vault:c"])


def test_a_batch_of_heartbeats_judges_each_by_itself(site: Site) -> None:
    for _ in range(3):
        site.admit()
    claims = site.claim_next(limit=3, start=True)
    site.complete(claims[2]).ok(200)

    def item(claim: dict[str, Any], **fields: Any) -> dict[str, Any]:
        fence = {name: claim[name] for name in ("workload_id", "claim_id", "worker_id", "fencing_token")}
        return fence | {"extend_ms": LEASE_MS * 3} | fields

    items = [
        item(claims[0]),
        item(claims[0], fencing_token=0),
        item(claims[1], claim_id=unique()),
        item(claims[2]),
        item(claims[1], workload_id=unique()),
        item(claims[1], extend_ms="1"),
        item(claims[1], more=1),
        None,
        item(claims[1]),
    ]
    outcomes = site.line.post("heartbeats/", {"items": items}).ok(200)["outcomes"]
    assert [found["status"] for found in outcomes] == [200, 409, 409, 409, 404, 400, 400, 400, 200]
    outcome(outcomes[1], "WORKLOAD_STALE_FENCE")
    outcome(outcomes[2], "WORKLOAD_CLAIM_INVALID")
    outcome(outcomes[3], "WORKLOAD_CLAIM_INVALID")
    outcome(outcomes[4], "WORKLOAD_NOT_FOUND")
    outcome(outcomes[5], "WORKLOAD_INVALID", field="extend_ms")
    for found, claim in ((outcomes[0], claims[0]), (outcomes[8], claims[1])):
        assert set(found) == {"status", "claim"}
        assert site.record(claim["workload_id"])["expires_at"] == found["claim"]["expires_at"] > claim["expires_at"]
