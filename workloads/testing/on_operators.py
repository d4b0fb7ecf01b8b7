"""Operators: cancelling, re-arming, timing out, and why work is not running."""

from __future__ import annotations

from typing import Any

import pytest

from workloads.testing.site import Site, at_once, unique


def blockers(site: Site, workload_id: str) -> dict[str, Any]:
    found = site.line.get(f"workloads/{workload_id}/why/").ok(200)["blockers"]
    return {blocker["code"]: blocker["details"] for blocker in found}


def parked(site: Site) -> str:
    claim = site.running(retry_policy={"max_attempts": 1})
    site.fail(claim).ok(200)
    return str(claim["workload_id"])


def test_waiting_work_is_cancelled_at_once(site: Site) -> None:
    id_ = site.admit()["workload_id"]
    record = site.act("cancel", id_, reason="withdrawn").ok(200)
    assert record["state"] == "CANCELLED" and record["finished_at"]
    last = site.history(id_, "events")[-1]
    assert (last["actor"], last["evidence"]["reason"]) == (site.user, "withdrawn")
    assert site.act("cancel", id_).ok(200) == record
    assert site.claim_next() == []


def test_claimed_work_is_cancelled_by_its_worker(site: Site) -> None:
    claim = site.running()
    record = site.act("cancel", claim["workload_id"]).ok(200)
    assert record["state"] == "CANCELLATION_REQUESTED" and record["claim_id"] == claim["claim_id"]
    assert site.say("heartbeat", claim, extend_ms=60_000).ok(200)["cancellation_requested"] is True
    site.complete(claim).refused("WORKLOAD_TRANSITION_DENIED")
    assert set(blockers(site, claim["workload_id"])) >= {"cancellation_unconfirmed"}
    ended = site.say("confirm-cancel", claim).ok(200)
    assert ended["state"] == "CANCELLED" and site.say("confirm-cancel", claim).ok(200) == ended
    (attempt,) = site.history(claim["workload_id"], "attempts")
    assert attempt["status"] == "CANCELLED"


def test_by_force_the_worker_is_fenced_out_at_once(site: Site) -> None:
    claim = site.running()
    assert site.act("cancel", claim["workload_id"], force=True).ok(200)["state"] == "CANCELLED"
    states = site.states(claim["workload_id"])
    assert states[-2:] == ["CANCELLATION_REQUESTED", "CANCELLED"]
    site.complete(claim).refused("WORKLOAD_CLAIM_INVALID")


def test_what_was_not_asked_for_is_not_confirmed(site: Site) -> None:
    claim = site.running()
    site.say("confirm-cancel", claim).refused("WORKLOAD_TRANSITION_DENIED")


def test_what_succeeded_is_final(site: Site) -> None:
    claim = site.running()
    site.complete(claim).ok(200)
    denied = {"from": "SUCCEEDED", "to": "CANCELLED"}
    assert site.act("cancel", claim["workload_id"]).refused("WORKLOAD_TRANSITION_DENIED") == denied
    site.act("rearm", claim["workload_id"], reason="again").refused("WORKLOAD_TRANSITION_DENIED")
    site.act("time-out", claim["workload_id"]).refused("WORKLOAD_TRANSITION_DENIED")
    assert blockers(site, claim["workload_id"]) == {}


@pytest.mark.parametrize("verb", ["cancel", "rearm", "time-out"])
def test_an_operator_who_saw_another_version_is_refused(site: Site, verb: str) -> None:
    id_ = parked(site)
    record = site.record(id_)
    answer = site.act(verb, id_, reason="r", expected_version=record["version"] - 1)
    answer.refused("WORKLOAD_CONFLICT", version=record["version"])
    assert site.record(id_) == record
    if verb != "time-out":
        site.act(verb, id_, reason="r", expected_version=record["version"]).ok(200)


def test_parked_work_is_armed_again(site: Site) -> None:
    id_ = parked(site)
    assert set(blockers(site, id_)) == {"parked"}
    record = site.act("rearm", id_, reason="the printer is back").ok(200)
    assert (record["state"], record["operator_retries"], record["finished_at"]) == ("READY", 1, None)
    last = site.history(id_, "events")[-1]
    assert last["evidence"]["decision"] == "operator_rearm" and last["actor"] == site.user
    (claim,) = site.claim_next(start=True)
    site.complete(claim).ok(200)


def test_a_reason_is_needed_to_arm_again(site: Site) -> None:
    id_ = parked(site)
    for fields in ({}, {"reason": " "}, {"reason": None}, {"reason": "x" * 2_001}, {"reason": "\0"}):
        site.act("rearm", id_, **fields).refused("WORKLOAD_INVALID", field="reason")


def test_work_is_timed_out_by_hand(site: Site) -> None:
    claim = site.running()
    record = site.act("time-out", claim["workload_id"], reason="nobody waits").ok(200)
    assert record["state"] == "TIMED_OUT" and record["last_failure"] == f"timeout: by {site.user}"
    (attempt,) = site.history(claim["workload_id"], "attempts")
    assert (attempt["status"], attempt["error"]) == ("TIMED_OUT", f"timeout: by {site.user}")
    site.complete(claim).refused("WORKLOAD_CLAIM_INVALID")
    assert site.act("rearm", claim["workload_id"], reason="after all").ok(200)["state"] == "READY"


def test_an_overall_deadline_that_passed_is_begun_anew(site: Site) -> None:
    id_ = site.admit(timeouts={"overall_ms": 1})["workload_id"]
    body = {"worker_id": site.worker, "capabilities": [], "lease_ms": 60_000}
    while site.record(id_)["state"] == "READY":
        site.line.post(f"workloads/{id_}/claim/", body)
    site.act("rearm", id_, reason="again").refused("WORKLOAD_TIMED_OUT", deadline="overall")
    record = site.act("rearm", id_, reason="again", restart_overall=True).ok(200)
    assert record["state"] == "READY" and record["overall_from"] == record["updated_at"]


def test_why_work_does_not_run(site: Site) -> None:
    first = site.admit()["workload_id"]
    later = "2899-01-01T00:00:00.000000Z"
    then = site.admit(dependencies=[{"workload_id": first}], not_before=later)["workload_id"]
    found = blockers(site, then)
    assert found["dependencies_unmet"]["dependencies"] == [first]
    assert found["not_due"]["next_attempt_at"] == later
    (claim,) = site.claim_next()
    assert blockers(site, first)["claimed"]["worker_id"] == claim["worker_id"] == site.worker
    assert blockers(site, first)["claimed"]["expires_at"] == claim["expires_at"]


def test_operators_at_once_are_one_step_each(site: Site) -> None:
    id_ = parked(site)
    version = site.record(id_)["version"]
    calls = [lambda: site.act("rearm", id_, reason="r", expected_version=version)] * 5
    answers = at_once(*calls)
    assert sorted(answer.status for answer in answers) == [200, 409, 409, 409, 409]
    assert site.record(id_)["operator_retries"] == 1


@pytest.mark.parametrize("verb", ["cancel", "rearm", "time-out"])
def test_what_does_not_exist_is_not_found(site: Site, verb: str) -> None:
    site.act(verb, unique("workload_"), reason="r").refused("WORKLOAD_NOT_FOUND")
    # Arguments are judged first.
    site.act(verb, unique(), reason=1).refused("WORKLOAD_INVALID", field="reason")
    site.act(verb, unique(), reason="r", expected_version="1").refused("WORKLOAD_INVALID", field="expected_version")
    site.act(verb, unique(), reason="r", actor="me").refused("WORKLOAD_INVALID", fields=["actor"])
