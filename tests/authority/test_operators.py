"""What operators do, and the reads that everybody needs. Section 7."""

from __future__ import annotations

from typing import Any

import pytest

from tests.authority.builders import (
    CLAIMED,
    EVERY,
    EXPIRES_AT,
    FINAL,
    HELD,
    PARKED,
    S,
    admit,
    attempts,
    bring,
    claim,
    events,
    id_of,
    path,
    record,
    refused,
    running,
    take,
    text,
    unchanged,
    write_raw,
)
from tests.support import T0, at
from workloads import authority
from workloads.contract import RetryPolicy, Timeouts
from workloads.models import Workload

pytestmark = pytest.mark.django_db

NOW = at(5_000)
KEY = "AKIA" + "Q" * 16

CALLS: dict[str, Any] = {
    "cancel": lambda workload_id, **more: authority.cancel(workload_id, **({"actor": "op", "now": NOW} | more)),
    "force": lambda workload_id, **more: authority.cancel(
        workload_id, **({"actor": "op", "force": True, "now": NOW} | more)
    ),
    "rearm": lambda workload_id, **more: authority.rearm(
        workload_id, **({"actor": "op", "reason": "because", "now": NOW} | more)
    ),
    "time_out": lambda workload_id, **more: authority.time_out(workload_id, **({"actor": "op", "now": NOW} | more)),
}
ALLOWED = {
    "cancel": {*CLAIMED, S.READY, *PARKED},
    "force": {*HELD, S.READY, *PARKED},
    "rearm": set(PARKED),
    "time_out": {S.READY, *CLAIMED},
}
NO_CHANGE = {
    "cancel": {S.CANCELLED, S.CANCELLATION_REQUESTED},
    "force": {S.CANCELLED},
    "rearm": set(),
    "time_out": set(),
}


@pytest.mark.parametrize("state", EVERY)
@pytest.mark.parametrize("name", CALLS)
def test_each_verb_in_each_state(name: str, state: str) -> None:
    workload_id, _ = bring(state)
    version = authority.get(workload_id).version
    if state in ALLOWED[name]:
        given = CALLS[name](workload_id)
        assert given == authority.get(workload_id)
        assert record(workload_id)["workload"] == {
            c.attname: getattr(given, c.attname) for c in Workload._meta.concrete_fields
        }
        assert (given.version, given.updated_at) == (version + 1, NOW)
        assert events(workload_id)[-1].actor == "op"
    elif state in NO_CHANGE[name]:
        with unchanged(workload_id):
            assert CALLS[name](workload_id).state == state
    else:
        with unchanged(workload_id), refused("WORKLOAD_TRANSITION_DENIED") as caught:
            CALLS[name](workload_id)
        to = {"cancel": "CANCELLED", "force": "CANCELLED", "rearm": "READY", "time_out": "TIMED_OUT"}[name]
        assert caught.value.details == {"from": state, "to": to}


# The order of what they check.


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("actor", ""),
        ("actor", " op"),
        ("actor", None),
        ("actor", "x" * 201),
        ("reason", None),
        ("reason", "x" * 2_001),
        ("reason", "a\0b"),
        ("reason", "a\ud800"),
        ("expected_version", "1"),
        ("expected_version", True),
        ("expected_version", 1.0),
        ("expected_version", 2**63),
        ("expected_version", -(2**63) - 1),
        ("now", T0.replace(tzinfo=None)),
    ],
)
def test_arguments_come_first(name: str, field: str, bad: Any, django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(0), refused("WORKLOAD_INVALID") as caught:
        CALLS[name]("nothing", **{field: bad})
    assert caught.value.details is not None
    assert caught.value.details["field"] == field


@pytest.mark.parametrize(("name", "field"), [("cancel", "force"), ("rearm", "restart_overall")])
@pytest.mark.parametrize("bad", [None, 1, "yes"])
def test_switches_are_booleans(name: str, field: str, bad: Any) -> None:
    with refused("WORKLOAD_INVALID") as caught:
        CALLS[name]("nothing", **{field: bad})
    assert caught.value.details is not None
    assert caught.value.details["field"] == field


@pytest.mark.parametrize("reason", ["", " ", "\n\t \u00a0"])
def test_to_re_arm_takes_a_reason(reason: str, django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(0), refused("WORKLOAD_INVALID") as caught:
        authority.rearm("nothing", actor="op", reason=reason, now=NOW)
    assert caught.value.details is not None
    assert caught.value.details["field"] == "reason"


@pytest.mark.parametrize("name", CALLS)
def test_a_reason_holds_no_secret(name: str, django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(0), refused("WORKLOAD_SECRET_MATERIAL") as caught:
        CALLS[name]("nothing", reason=f"it was {KEY}")
    assert KEY not in f"{caught.value} {caught.value.details}"


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("unknown", ["", "nothing", None, 7, "a\0", "\udc00", "é" * 400])
def test_then_existence(name: str, unknown: Any) -> None:
    with refused("WORKLOAD_NOT_FOUND"):
        CALLS[name](unknown, expected_version=7)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("state", EVERY)
def test_then_the_version_before_the_state(name: str, state: str) -> None:
    workload_id, _ = bring(state)
    version = authority.get(workload_id).version
    with unchanged(workload_id):
        for other in (version - 1, version + 1, -1, -(2**63), 2**63 - 1):
            with refused("WORKLOAD_CONFLICT", {"version": version}):
                CALLS[name](workload_id, expected_version=other)


@pytest.mark.parametrize("name", CALLS)
def test_the_committed_version_lets_them_through(name: str) -> None:
    workload_id, _ = bring(S.DEAD_LETTER if name == "rearm" else S.READY)
    version = authority.get(workload_id).version
    assert CALLS[name](workload_id, expected_version=version).version == version + 1


def test_then_the_state_and_last_the_overall_deadline() -> None:
    workload_id, _ = bring(S.DEAD_LETTER, timeouts=Timeouts(overall_ms=4_500))
    with refused("WORKLOAD_CONFLICT"):
        authority.rearm(workload_id, actor="op", reason="x", expected_version=99, now=NOW)
    details = {"deadline": "overall", "deadline_at": text(at(4_500))}
    with unchanged(workload_id), refused("WORKLOAD_TIMED_OUT", details):
        authority.rearm(workload_id, actor="op", reason="x", now=NOW)
    running_one = running("other", timeouts=Timeouts(overall_ms=4_500))
    with refused("WORKLOAD_TRANSITION_DENIED"):
        authority.rearm(running_one.workload_id, actor="op", reason="x", now=NOW)


def test_their_verbs_enforce_no_deadline() -> None:
    late = Timeouts(overall_ms=4_000, queue_ms=4_000)
    assert authority.cancel(admit("a", timeouts=late), actor="op", now=NOW).state == "CANCELLED"
    assert authority.time_out(admit("b", timeouts=late), actor="op", now=NOW).state == "TIMED_OUT"


# cancel


@pytest.mark.parametrize("state", [S.READY, *PARKED])
def test_what_nobody_holds_is_cancelled_at_once(state: str) -> None:
    workload_id, _ = bring(state)
    given = authority.cancel(workload_id, actor="op", reason="not wanted", now=NOW)
    assert (given.state, given.finished_at, given.next_attempt_at) == ("CANCELLED", NOW, None)
    last = events(workload_id)[-1]
    assert (last.from_state, last.to_state, last.actor, last.at) == (state, "CANCELLED", "op", NOW)
    assert last.evidence == {"reason": "not wanted"}
    assert take(now=at(9_000)) == []


@pytest.mark.parametrize("state", CLAIMED)
def test_what_a_worker_holds_is_asked_to_stop(state: str) -> None:
    workload_id, fence = bring(state)
    given = authority.cancel(workload_id, actor="op", reason="not wanted", now=NOW)
    assert (given.state, given.finished_at, given.claim_id) == ("CANCELLATION_REQUESTED", None, fence.claim_id)
    last = events(workload_id)[-1]
    assert (last.from_state, last.to_state, last.actor) == (state, "CANCELLATION_REQUESTED", "op")
    assert last.evidence == {"reason": "not wanted"}
    assert attempts(workload_id)[-1].ended_at is None
    assert authority.heartbeat(fence, extend_ms=1, now=NOW).cancellation_requested
    with unchanged(workload_id):
        assert (
            authority.cancel(workload_id, actor="op", reason="again", now=at(6_000)).state == "CANCELLATION_REQUESTED"
        )


@pytest.mark.parametrize("state", HELD)
def test_with_force_held_work_ends_in_one_commit(state: str) -> None:
    workload_id, fence = bring(state)
    version, seen = authority.get(workload_id).version, len(events(workload_id))
    given = authority.cancel(workload_id, actor="op", reason="now", force=True, now=NOW)
    assert (given.state, given.finished_at, given.version) == ("CANCELLED", NOW, version + 1)
    assert (given.claim_id, given.worker_id, given.expires_at) == (None, None, None)
    new = events(workload_id)[seen:]
    expected = ["CANCELLED"] if state == S.CANCELLATION_REQUESTED else ["CANCELLATION_REQUESTED", "CANCELLED"]
    assert [e.to_state for e in new] == expected
    assert all(e.actor == "op" and e.evidence["forced"] == "true" and e.evidence["reason"] == "now" for e in new)
    last = attempts(workload_id)[-1]
    assert (last.status, last.ended_at) == ("CANCELLED", NOW)
    with refused("WORKLOAD_CLAIM_INVALID"):
        authority.heartbeat(fence, extend_ms=1, now=NOW)


@pytest.mark.parametrize("state", [S.READY, *PARKED])
def test_force_says_nothing_where_it_does_nothing(state: str) -> None:
    workload_id, _ = bring(state)
    authority.cancel(workload_id, actor="op", force=True, now=NOW)
    assert events(workload_id)[-1].evidence == {}


def test_a_worker_that_is_lost_before_it_confirms_ends_the_work() -> None:
    workload_id, _ = bring(S.CANCELLATION_REQUESTED)
    assert authority.recover_expired(now=EXPIRES_AT) == [workload_id]
    assert path(workload_id)[-3:] == ["CANCELLATION_REQUESTED", "RECOVERING", "CANCELLED"]


# rearm


@pytest.mark.parametrize("state", PARKED)
def test_re_arming_gives_one_more_attempt_due_now(state: str) -> None:
    workload_id, _ = bring(state, retry_policy=RetryPolicy(max_attempts=1))
    given = authority.rearm(workload_id, actor="op", reason="mended", now=NOW)
    assert (given.state, given.next_attempt_at, given.finished_at) == ("READY", NOW, None)
    assert (given.operator_retries, given.retry_count, given.attempt_count) == (1, 0, 1)
    last = events(workload_id)[-1]
    assert (last.from_state, last.to_state, last.actor) == (state, "READY", "op")
    assert last.evidence == {"decision": "operator_rearm", "reason": "mended"}
    again = claim(workload_id, now=NOW)
    assert (again.attempt_number, again.fencing_token) == (2, 2)
    assert authority.fail(again.fence, kind="timeout", error="", now=NOW).decision == "attempt_budget_exhausted"


def test_the_retry_count_is_left() -> None:
    workload_id = admit(retry_policy=RetryPolicy(max_attempts=2))
    authority.fail(claim(workload_id).fence, kind="timeout", error="", now=at(1_000))
    authority.fail(claim(workload_id, now=at(2_000)).fence, kind="timeout", error="", now=at(2_000))
    assert authority.rearm(workload_id, actor="op", reason="x", now=NOW).retry_count == 1
    again = claim(workload_id, now=NOW)
    authority.heartbeat(again.fence, extend_ms=1, now=NOW)
    assert authority.rearm(_lose(again), actor="op", reason="x", now=at(900_000)).operator_retries == 2


def _lose(given: Any) -> str:
    authority.recover_expired(now=given.expires_at)
    return str(given.workload_id)


def test_work_that_timed_out_before_it_was_due_is_due_now() -> None:
    workload_id = admit(not_before=at(90_000))
    authority.time_out(workload_id, actor="op", now=at(1))
    authority.rearm(workload_id, actor="op", reason="x", now=NOW)
    assert take(now=NOW) == [workload_id]


@pytest.mark.parametrize(("now", "passes"), [(at(5_999), True), (at(6_000), False)])
def test_the_overall_deadline_decides_to_the_millisecond(now: Any, passes: bool) -> None:
    workload_id, _ = bring(S.DEAD_LETTER, timeouts=Timeouts(overall_ms=6_000))
    if passes:
        given = authority.rearm(workload_id, actor="op", reason="x", now=now)
        assert given.overall_from == T0
    else:
        with refused("WORKLOAD_TIMED_OUT"):
            authority.rearm(workload_id, actor="op", reason="x", now=now)


@pytest.mark.parametrize("now", [NOW, at(7_000)])
def test_restarting_sets_the_overall_deadline_running_anew_always(now: Any) -> None:
    workload_id, _ = bring(S.DEAD_LETTER, timeouts=Timeouts(overall_ms=6_000))
    given = authority.rearm(workload_id, actor="op", reason="x", restart_overall=True, now=now)
    assert given.overall_from == now
    assert authority.enforce_deadlines(now=at(12_999 if now == at(7_000) else 10_999)) == []
    assert authority.enforce_deadlines(now=at(13_000)) == [workload_id]


def test_older_records_keep_the_contract_without_deadlines() -> None:
    workload_id, _ = bring(S.DEAD_LETTER, timeouts=Timeouts(overall_ms=4_500))
    write_raw("admitted", workload_id, contract_version=1)
    assert authority.rearm(workload_id, actor="op", reason="x", now=NOW).state == "READY"


def test_an_older_record_that_rests_in_failed_is_parked() -> None:
    workload_id, _ = bring(S.DEAD_LETTER)
    write_raw("admitted", workload_id, contract_version=1)
    write_raw("workload", workload_id, state="FAILED")
    with refused("WORKLOAD_NOT_READY", {"state": "FAILED"}):
        claim(workload_id, now=NOW)
    assert [b.code for b in authority.explain(workload_id, now=NOW)] == ["parked"]
    assert authority.rearm(workload_id, actor="op", reason="x", now=NOW).state == "READY"
    write_raw("workload", workload_id, state="FAILED")
    assert authority.cancel(workload_id, actor="op", now=NOW).state == "CANCELLED"


# time_out


def test_waiting_work_is_timed_out_and_rests_there() -> None:
    workload_id = admit()
    authority.release(claim(workload_id).fence, now=at(2_000))
    before = attempts(workload_id)[0].status
    given = authority.time_out(workload_id, actor="op", reason="too long", now=NOW)
    assert (given.state, given.finished_at, given.next_attempt_at) == ("TIMED_OUT", NOW, None)
    assert given.last_failure == "timeout: by op"
    last = events(workload_id)[-1]
    assert (last.from_state, last.to_state, last.actor, last.evidence) == (
        "READY",
        "TIMED_OUT",
        "op",
        {"reason": "too long"},
    )
    assert [a.status for a in attempts(workload_id)] == [before] == ["RELEASED"]
    assert authority.run_pass(now=at(10**9)).timed_out == []
    assert take(now=at(10**9)) == []


@pytest.mark.parametrize("state", CLAIMED)
def test_claimed_work_is_timed_out_with_its_attempt(state: str) -> None:
    workload_id, fence = bring(state)
    given = authority.time_out(workload_id, actor="op", now=NOW)
    assert (given.state, given.claim_id, given.finished_at) == ("TIMED_OUT", None, NOW)
    assert given.last_failure == "timeout: by op"
    last = events(workload_id)[-1]
    assert (last.from_state, last.to_state, last.evidence) == (state, "TIMED_OUT", {})
    (attempt,) = attempts(workload_id)
    assert (attempt.status, attempt.ended_at, attempt.error) == ("TIMED_OUT", NOW, "timeout: by op")
    with refused("WORKLOAD_CLAIM_INVALID"):
        authority.heartbeat(fence, extend_ms=1, now=NOW)


# Reads.


@pytest.mark.parametrize("unknown", ["", "nothing", "é", "x" * 300, "a\0b", "\udc00", None, 5, [], id_of("k").upper()])
def test_get_finds_by_the_id_and_nothing_else(unknown: Any) -> None:
    workload_id = admit()
    assert authority.get(workload_id).idempotency_key == "k"
    with refused("WORKLOAD_NOT_FOUND"):
        authority.get(unknown)


def test_list_for_gives_an_applications_work_newest_first() -> None:
    first, second = admit("a"), admit("b")
    older = admit("c", now=at(-1))
    newer = admit("d", now=at(1))
    admit("e", tenant_id="T")
    admit("f", application_id="App")
    listed = authority.list_for("t", "app")
    assert [w.workload_id for w in listed] == [newer, second, first, older]
    assert listed.filter(state="READY").count() == 4
    assert list(authority.list_for("nobody", "app")) == []


@pytest.mark.parametrize(
    ("tenant_id", "application_id", "field"),
    [("", "app", "tenant_id"), ("t", None, "application_id"), (" t", "app", "tenant_id")],
)
def test_list_for_takes_identifiers(tenant_id: Any, application_id: Any, field: str) -> None:
    with refused("WORKLOAD_INVALID", {"field": field}):
        authority.list_for(tenant_id, application_id)


@pytest.mark.parametrize("state", FINAL)
def test_final_work_is_never_re_armed(state: str) -> None:
    workload_id, _ = bring(state)
    with refused("WORKLOAD_TRANSITION_DENIED", {"from": state, "to": "READY"}):
        authority.rearm(workload_id, actor="op", reason="x", restart_overall=True, now=NOW)
