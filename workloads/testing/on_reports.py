"""Reports: completions, failures and checkpoints, each recorded once, whoever repeats or races."""

from __future__ import annotations

from typing import Any

import pytest

from workloads.testing.site import Site, at_once, fence, ms_between, unique
from workloads.testing.wire import outcome

SECRET = "https://user:hunter2hunter2@example.com/"


def test_a_completion_is_the_result(site: Site) -> None:
    claim = site.running()
    report = {"result_id": unique("r-"), "output": {"pages": 4}, "artifacts": [{"name": "a"}], "schema_version": 7}
    result = site.complete(claim, **report).ok(200)
    assert {name: result[name] for name in report} == report
    assert result["produced_by"] == site.worker and result["attempt_id"] == claim["attempt_id"]
    assert result["provenance"] == {"claim_id": claim["claim_id"], "fencing_token": 1}
    assert site.history(claim["workload_id"], "result") == [result]
    record = site.record(claim["workload_id"])
    assert (record["state"], record["claim_id"], record["finished_at"]) == ("SUCCEEDED", None, result["at"])
    (attempt,) = site.history(claim["workload_id"], "attempts")
    assert attempt["status"] == "SUCCEEDED" and attempt["ended_at"] == result["at"]


def test_a_completion_repeated_gets_the_stored_result(site: Site) -> None:
    claim = site.running()
    report = {"result_id": unique("r-"), "output": {"b": 1.0, "a": [1]}}
    first = site.complete(claim, **report).ok(200)
    version = site.record(claim["workload_id"])["version"]
    # Equal as canonical JSON is equal.
    assert site.complete(claim, **{**report, "output": {"a": [1], "b": 1}}).ok(200) == first
    for other in ({"output": 2}, {"artifacts": [1]}, {"schema_version": 2}, {"claim_id": unique()}):
        site.complete(claim, **{**report, **other}).refused("WORKLOAD_RESULT_CONFLICT")
    site.complete(claim, result_id=unique()).refused("WORKLOAD_CLAIM_INVALID")
    assert site.record(claim["workload_id"])["version"] == version


def test_a_result_id_is_one_workloads_in_the_tenant(site: Site) -> None:
    first, second = site.running(), site.running()
    result_id = unique("r-")
    site.complete(first, result_id=result_id).ok(200)
    site.complete(second, result_id=result_id).refused("WORKLOAD_RESULT_DUPLICATE")
    assert site.record(second["workload_id"])["state"] == "RUNNING"
    site.complete(second).ok(200)


def test_what_was_not_started_does_not_end_well(site: Site) -> None:
    site.admit()
    (claim,) = site.claim_next()
    denied = site.complete(claim).refused("WORKLOAD_TRANSITION_DENIED")
    assert denied == {"from": "CLAIMED", "to": "SUCCEEDED"}
    site.say("checkpoints", claim, state=1).refused("WORKLOAD_TRANSITION_DENIED")


def test_completions_at_once_are_one(site: Site) -> None:
    claim = site.running()
    report = {"result_id": unique("r-"), "output": 1}
    results = at_once(*[lambda: site.complete(claim, **report).ok(200)] * 6)
    assert all(result == results[0] for result in results)
    assert site.states(claim["workload_id"]).count("SUCCEEDED") == 1


@pytest.mark.parametrize("turn", range(4))
def test_completion_and_failure_at_once_are_one_outcome(site: Site, turn: int) -> None:
    claim = site.running()
    calls = [lambda: site.complete(claim), lambda: site.fail(claim)]
    answers = at_once(*(calls if turn % 2 else reversed(calls)))
    assert sorted(answer.status for answer in answers) == [200, 409]
    states = site.states(claim["workload_id"])
    assert ("SUCCEEDED" in states) != ("FAILED" in states)
    (attempt,) = site.history(claim["workload_id"], "attempts")
    assert attempt["status"] == ("SUCCEEDED" if "SUCCEEDED" in states else "FAILED")


def test_a_failure_is_tried_again_later(site: Site) -> None:
    policy = {"initial_delay_ms": 50, "max_delay_ms": 150, "max_attempts": 6}
    site.admit(retry_policy=policy)
    for expected in (50, 100, 150, 150):
        claim = _next(site)
        found = site.fail(claim).ok(200)
        assert (found["state"], found["decision"]) == ("READY", "retry")
        attempt = site.history(claim["workload_id"], "attempts")[-1]
        assert ms_between(attempt["ended_at"], found["next_attempt_at"]) == expected
        assert attempt["outcome_next_attempt_at"] == found["next_attempt_at"]
        assert (attempt["status"], attempt["error"]) == ("FAILED", "it broke")
    record = site.record(claim["workload_id"])
    assert record["last_failure"] == "transient_connection: it broke" and record["retry_count"] == 4
    # The worker may ask for longer, within a day or the policy's longest.
    claim = _next(site)
    asked = site.fail(claim, retry_after_ms=10**12).ok(200)
    ended = site.history(claim["workload_id"], "attempts")[-1]["ended_at"]
    assert ms_between(ended, asked["next_attempt_at"]) == 24 * 60 * 60 * 1_000


def _next(site: Site) -> dict[str, Any]:
    for _ in range(100):
        for claim in site.claim_next(start=True, wait_ms=2_000):
            return claim
    raise AssertionError("no claim came")


@pytest.mark.parametrize(
    ("policy", "report", "decision"),
    [
        ({}, {"kind": "bad_input"}, "failure_kind_not_retryable"),
        ({"max_attempts": 1}, {}, "attempt_budget_exhausted"),
        ({"retry_on": ["transient_connection"]}, {"effect": "unknown"}, "effect_unknown_not_retryable"),
        ({"retry_on": []}, {}, "failure_kind_not_retryable"),
    ],
)
def test_a_failure_may_be_the_last(site: Site, policy: Any, report: Any, decision: str) -> None:
    claim = site.running(retry_policy=policy)
    found = site.fail(claim, **report).ok(200)
    assert found == {"state": "DEAD_LETTER", "decision": decision, "next_attempt_at": None}
    record = site.record(claim["workload_id"])
    assert record["state"] == "DEAD_LETTER" and record["finished_at"]
    assert site.states(claim["workload_id"])[-2:] == ["FAILED", "DEAD_LETTER"]


def test_an_unknown_effect_is_judged_as_a_lost_worker(site: Site) -> None:
    claim = site.running(retry_policy={"retry_on": ["worker_failure"]})
    assert site.fail(claim, kind="whatever", effect="unknown").ok(200)["decision"] == "retry"


def test_a_failure_repeated_gets_the_first_answer(site: Site) -> None:
    claim = site.running(retry_policy={"initial_delay_ms": 0, "max_delay_ms": 0})
    first = site.fail(claim).ok(200)
    (current,) = site.claim_next(start=True)
    assert site.fail(claim).ok(200) == first
    assert site.fail(claim, effect="unknown").status == 409
    site.fail(claim, error="another").refused("WORKLOAD_STALE_FENCE")
    site.complete(current).ok(200)
    assert site.fail(claim).ok(200) == first


def test_an_attempt_that_never_started_had_no_effect(site: Site) -> None:
    site.admit()
    (claim,) = site.claim_next()
    site.fail(claim).ok(200)
    (attempt,) = site.history(claim["workload_id"], "attempts")
    assert attempt["effect"] == "none" and attempt["started_at"] is None


def test_error_text_is_mended(site: Site) -> None:
    claim = site.running()
    first = site.fail(claim, error="a\0b\ud800c").ok(200)
    (attempt,) = site.history(claim["workload_id"], "attempts")
    assert attempt["error"] == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}c"
    assert site.fail(claim, error="a\0b\ud800c").ok(200) == first


@pytest.mark.parametrize(
    ("verb", "fields"),
    [
        ("complete", {"result_id": "r", "output": {"a": SECRET}}),
        ("complete", {"result_id": "r", "output": 1, "artifacts": [SECRET]}),
        ("checkpoints", {"state": {"x": [SECRET]}}),
        ("fail", {"kind": "timeout", "error": f"could not reach {SECRET}"}),
        ("release", {"reason": SECRET}),
    ],
)
def test_secrets_are_refused_and_never_told(site: Site, verb: str, fields: dict[str, Any]) -> None:
    claim = site.running()
    before = site.record(claim["workload_id"])
    answer = site.say(verb, claim, **fields)
    answer.refused("WORKLOAD_SECRET_MATERIAL")
    assert "hunter2" not in answer.text and site.record(claim["workload_id"]) == before


def test_checkpoints_outlive_their_attempt(site: Site) -> None:
    claim = site.running()
    first = site.say("checkpoints", claim, state={"page": 1}, key="p1").ok(200)
    assert site.record(claim["workload_id"])["state"] == "CHECKPOINTED"
    second = site.say("checkpoints", claim, state={"page": 2}).ok(200)
    assert (first["sequence"], second["sequence"], second["key"]) == (1, 2, None)
    site.say("release", claim).ok(200)
    (claim,) = site.claim_next(start=True)
    assert claim["checkpoints"] == [first, second]
    third = site.say("checkpoints", claim, state={"page": 3}, key="p1").ok(200)
    assert third["sequence"] == 3 and third["attempt_id"] == claim["attempt_id"] != first["attempt_id"]
    assert site.history(claim["workload_id"], "checkpoints") == [first, second, third]


def test_a_checkpoint_under_a_key_may_be_repeated(site: Site) -> None:
    claim = site.running()
    first = site.say("checkpoints", claim, state=[1.0, {"a": 1}], key="k").ok(200)
    assert site.say("checkpoints", claim, state=[1, {"a": 1}], key="k").ok(200) == first
    site.say("checkpoints", claim, state=2, key="k").refused("WORKLOAD_CHECKPOINT_CONFLICT")
    assert len(site.history(claim["workload_id"], "checkpoints")) == 1


def test_a_batch_of_completions_judges_each_by_itself(site: Site) -> None:
    for _ in range(4):
        site.admit()
    claims = site.claim_next(limit=4, start=True)

    def item(claim: dict[str, Any], **fields: Any) -> dict[str, Any]:
        said = {"workload_id": claim["workload_id"], **fence(claim), "result_id": f"r-{claim['claim_id']}", "output": 1}
        return said | fields

    items = [
        item(claims[0]),
        item(claims[0]),
        item(claims[0], output=2),
        item(claims[1], result_id=f"r-{claims[0]['claim_id']}"),
        item(claims[1], fencing_token=0),
        item(claims[1], output={"a": SECRET}),
        item(claims[1], workload_id=unique()),
        item(claims[2], schema_version=0),
        item(claims[1]),
        [],
        item(claims[3]),
    ]
    outcomes = site.line.post("completions/", {"items": items}).ok(200)["outcomes"]
    assert [found["status"] for found in outcomes] == [200, 200, 409, 409, 409, 422, 404, 400, 200, 400, 200]
    assert outcomes[0] == outcomes[1]
    outcome(outcomes[2], "WORKLOAD_RESULT_CONFLICT")
    outcome(outcomes[3], "WORKLOAD_RESULT_DUPLICATE")
    outcome(outcomes[4], "WORKLOAD_STALE_FENCE")
    outcome(outcomes[5], "WORKLOAD_SECRET_MATERIAL")
    outcome(outcomes[6], "WORKLOAD_NOT_FOUND")
    outcome(outcomes[7], "WORKLOAD_INVALID", field="schema_version")
    states = [site.record(claim["workload_id"])["state"] for claim in claims]
    assert states == ["SUCCEEDED", "SUCCEEDED", "RUNNING", "SUCCEEDED"]
    again = site.line.post("completions/", {"items": items}).ok(200)["outcomes"]
    assert [again[number] for number in (0, 8, 10)] == [outcomes[number] for number in (0, 8, 10)]


@pytest.mark.parametrize(
    ("verb", "fields", "named"),
    [
        ("complete", {"result_id": "", "output": 1}, "result_id"),
        ("complete", {"result_id": "r"}, "output"),
        ("complete", {"result_id": "r", "output": "\0"}, "output"),
        ("fail", {"kind": "", "error": "e"}, "kind"),
        ("fail", {"kind": "k", "error": None}, "error"),
        ("fail", {"kind": "k", "error": "e", "effect": "some"}, "effect"),
        ("fail", {"kind": "k", "error": "e", "retry_after_ms": -1}, "retry_after_ms"),
        ("checkpoints", {"state": 1, "key": " "}, "key"),
        ("release", {"reason": "x" * 2_001}, "reason"),
    ],
)
def test_arguments_are_judged_first(site: Site, verb: str, fields: dict[str, Any], named: str) -> None:
    claim = site.running()
    # Even under a fence that holds nothing.
    site.say(verb, claim, **fields, fencing_token=0).refused("WORKLOAD_INVALID", field=named)
