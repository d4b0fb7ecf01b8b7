"""The clock: deadlines and leases, by the server's own time. Deadlines here are short, and waited for."""

from __future__ import annotations

from typing import Any

import pytest

from workloads.testing.site import LEASE_MS, Site, ms_between, pass_ms, unique, wait_until

SHORT_MS = 200
LATE_MS = 260


def expired(site: Site, name: str) -> dict[str, Any]:
    """Return the claim of work whose deadline of this name has passed."""
    site.admit(timeouts={f"{name}_ms": SHORT_MS})
    (claim,) = site.claim_next(start=name != "claim")
    pass_ms(LATE_MS)
    return claim


@pytest.mark.parametrize("name", ["overall", "claim", "execution", "heartbeat"])
def test_what_comes_after_a_deadline_is_refused_and_the_time_out_stays(site: Site, name: str) -> None:
    claim = expired(site, name)
    call = site.say("start", claim) if name == "claim" else site.complete(claim)
    if call.body["code"] == "WORKLOAD_TIMED_OUT":
        details = call.refused("WORKLOAD_TIMED_OUT", deadline=name)
        assert ms_between(claim["claimed_at"], details["deadline_at"]) <= SHORT_MS + 1_000
    else:
        # A pass has found it first.
        call.refused("WORKLOAD_CLAIM_INVALID")
    states = site.states(claim["workload_id"])
    assert "SUCCEEDED" not in states
    assert states[-2:] == ["TIMED_OUT", "DEAD_LETTER" if name == "overall" else "READY"]
    (attempt,) = site.history(claim["workload_id"], "attempts")
    assert (attempt["status"], attempt["error"]) == ("TIMED_OUT", f"timeout: {name} deadline passed")
    event = site.history(claim["workload_id"], "events")[-2]
    assert event["actor"] == "authority.deadline" and event["evidence"]["deadline"] == name
    assert site.record(claim["workload_id"])["claim_id"] is None
    # It stays refused, by the fence now.
    site.complete(claim).refused("WORKLOAD_CLAIM_INVALID")


def test_the_queue_deadline_passes_over_the_work(site: Site) -> None:
    id_ = site.admit(timeouts={"queue_ms": SHORT_MS})["workload_id"]
    pass_ms(LATE_MS)
    assert site.claim_next() == []
    body = {"worker_id": site.worker, "capabilities": [], "lease_ms": LEASE_MS}
    answer = site.line.post(f"workloads/{id_}/claim/", body)
    if answer.body["code"] == "WORKLOAD_TIMED_OUT":
        answer.refused("WORKLOAD_TIMED_OUT", deadline="queue")
    else:
        answer.refused("WORKLOAD_NOT_READY", state="DEAD_LETTER")
    assert site.states(id_) == ["CREATED", "READY", "TIMED_OUT", "DEAD_LETTER"]


def test_a_heartbeat_puts_off_its_own_deadline_alone(site: Site) -> None:
    site.admit(timeouts={"heartbeat_ms": 2_000, "execution_ms": 60_000})
    (claim,) = site.claim_next(start=True)
    for _ in range(3):
        site.say("heartbeat", claim, extend_ms=LEASE_MS).ok(200)
        pass_ms(100)
    site.complete(claim).ok(200)


def test_a_time_out_that_is_not_retried_is_the_last(site: Site) -> None:
    site.admit(timeouts={"execution_ms": SHORT_MS}, retry_policy={"retry_on": ["worker_failure"]})
    (claim,) = site.claim_next(start=True)
    pass_ms(LATE_MS)
    site.say("heartbeat", claim, extend_ms=LEASE_MS)
    events = site.history(claim["workload_id"], "events")
    assert events[-1]["to_state"] == "DEAD_LETTER"
    assert events[-1]["evidence"]["decision"] == "timeout_not_retryable"


def test_work_is_not_handed_out_before_its_time(site: Site) -> None:
    probe = site.admit()
    early = site.admit(not_before="2899-12-31T00:00:00Z")
    assert [claim["workload_id"] for claim in site.claim_next(limit=9)] == [probe["workload_id"]]
    assert early["next_attempt_at"] == "2899-12-31T00:00:00.000000Z"
    past = site.admit(not_before="2001-01-01T00:00:00+01:00")
    assert past["not_before"] == "2000-12-31T23:00:00.000000Z"
    assert [claim["workload_id"] for claim in site.claim_next(limit=9)] == [past["workload_id"]]


def test_a_delayed_retry_comes_when_it_is_due(site: Site) -> None:
    claim = site.running(retry_policy={"initial_delay_ms": 400, "max_delay_ms": 400})
    due = site.fail(claim).ok(200)["next_attempt_at"]
    again: list[dict[str, Any]] = []

    def is_there() -> bool:
        again.extend(site.claim_next(wait_ms=1_000))
        return bool(again)

    wait_until(is_there, 30, "the retry")
    assert ms_between(due, again[0]["claimed_at"]) >= 0


def test_a_lost_worker_is_found_by_the_pass(site: Site, patience_s: float) -> None:
    site.admit(retry_policy={"initial_delay_ms": 0, "max_delay_ms": 0})
    (claim,) = site.claim_next(lease_ms=1, start=True, worker_id=unique(site.prefix or "w-"))
    wait_until(lambda: site.record(claim["workload_id"])["state"] == "READY", patience_s, "the pass")
    assert site.states(claim["workload_id"])[-2:] == ["RECOVERING", "READY"]
    (attempt,) = site.history(claim["workload_id"], "attempts")
    assert (attempt["status"], attempt["error"]) == (
        "WORKER_LOST",
        f"worker_failure: lease over at {claim['expires_at']}",
    )
    (again,) = site.claim_next(start=True)
    assert again["fencing_token"] == 2
    site.complete(claim).refused("WORKLOAD_STALE_FENCE")
    site.complete(again).ok(200)


def test_a_deadline_is_found_by_the_pass(site: Site, patience_s: float) -> None:
    id_ = site.admit(timeouts={"queue_ms": 1})["workload_id"]
    wait_until(lambda: site.record(id_)["state"] == "DEAD_LETTER", patience_s, "the pass")
    last = site.history(id_, "events")[-1]
    assert last["evidence"]["decision"] == "deadline_not_retryable"


def test_work_whose_dependency_can_not_be_met_is_found_by_the_pass(site: Site, patience_s: float) -> None:
    first = site.admit()["workload_id"]
    then = site.admit(dependencies=[{"workload_id": first}])["workload_id"]
    site.act("cancel", first).ok(200)
    wait_until(lambda: site.record(then)["state"] == "DEAD_LETTER", patience_s, "the pass")
    last = site.history(then, "events")[-1]
    assert last["evidence"]["decision"] == "dependency_unsatisfiable" and last["evidence"]["dependency"] == first
