"""Lost responses: a claim call that named itself gets the very same claims again. Section 5."""

from __future__ import annotations

from typing import Any

import pytest

from tests.authority.builders import (
    CLAIMED_AT,
    EXPIRES_AT,
    admit,
    claim,
    refused,
    state_of,
    unchanged,
)
from tests.support import at
from workloads import authority
from workloads.contract import Claim, Timeouts
from workloads.models import ClaimRequest

pytestmark = pytest.mark.django_db


def ask(request_id: str = "r", **changes: Any) -> list[Claim]:
    values: dict[str, Any] = {"worker_id": "w", "capabilities": [], "lease_ms": 60_000, "limit": 2, "now": CLAIMED_AT}
    return authority.claim_next(request_id=request_id, **(values | changes))


def test_the_same_request_gets_the_very_claims_again_and_no_new_ones() -> None:
    ids = [admit(f"k{n}", priority=-n) for n in range(3)]
    first = ask()
    assert [c.workload_id for c in first] == ids[:2]
    with unchanged(*ids):
        assert ask() == first
        assert [c.claim_id for c in ask(now=at(2_000))] == [c.claim_id for c in first]
    assert [c.workload_id for c in ask("another")] == ids[2:]


def test_another_limit_start_lease_or_capabilities_is_answered_as_the_first() -> None:
    workload_id = admit(definition_id="d")
    admit("more")
    first = ask(limit=1)
    with unchanged(workload_id):
        assert ask(limit=9, start=True, lease_ms=5, capabilities={"x"}) == first
    assert state_of(workload_id) == "CLAIMED"


def test_a_repeat_shows_the_claim_as_it_stands() -> None:
    admit()
    (first,) = ask(limit=1)
    authority.heartbeat(first.fence, extend_ms=86_400_000, now=at(2_000))
    (again,) = ask(now=at(3_000))
    assert (again.claim_id, again.last_heartbeat) == (first.claim_id, at(2_000))
    assert (again.expires_at, again.lease_left_ms) == (at(86_402_000), 86_399_000)
    authority.cancel(first.workload_id, actor="op", now=at(4_000))
    assert [c.cancellation_requested for c in ask(now=at(5_000))] == [True]


def test_claims_that_are_no_longer_current_are_left_out() -> None:
    ids = [admit(f"k{n}") for n in range(4)]
    first = ask(limit=4)
    assert [c.workload_id for c in first] == ids
    authority.release(first[0].fence, now=at(2_000))
    authority.release(first[1].fence, now=at(2_000))
    assert claim(ids[1], now=at(3_000)).fencing_token == 2
    authority.heartbeat(first[2].fence, extend_ms=600_000, now=at(2_000))
    assert [c.workload_id for c in ask(now=at(60_999))] == ids[2:]
    assert [c.workload_id for c in ask(now=at(61_000))] == [ids[2]]
    assert authority.get(ids[0]).state == "READY"


def test_when_all_have_ended_a_repeat_gets_nothing_and_no_new_work() -> None:
    admit("a")
    (first,) = ask(limit=1)
    authority.release(first.fence, now=at(2_000))
    admit("b")
    assert ask(now=at(3_000)) == []
    assert ask(now=at(3_000)) == []


def test_a_request_that_was_given_nothing_may_be_repeated_as_a_new_one() -> None:
    assert ask() == []
    workload_id = admit()
    assert [c.workload_id for c in ask()] == [workload_id]
    assert ClaimRequest.objects.count() == 1


def test_a_request_id_belongs_to_its_worker() -> None:
    first, second = admit("a"), admit("b")
    assert [c.workload_id for c in ask(limit=1)] == [first]
    assert [c.workload_id for c in ask(limit=1, worker_id="W")] == [second]


def test_the_verb_and_the_workload_are_part_of_the_request() -> None:
    first, second = admit("a"), admit("b")
    claim(first, request_id="one")
    ask("many", limit=1)
    for call in (
        lambda: claim(second, request_id="one"),
        lambda: claim(second, request_id="many"),
        lambda: ask("one"),
    ):
        with unchanged(first, second), refused("WORKLOAD_INVALID") as caught:
            call()
        assert caught.value.details is not None
        assert caught.value.details["field"] == "request_id"


def test_another_use_of_a_request_id_comes_after_existence_and_before_the_state() -> None:
    first, second = admit("a"), admit("b", timeouts=Timeouts(queue_ms=1))
    claim(first, request_id="one")
    with refused("WORKLOAD_NOT_FOUND"):
        claim("nothing", request_id="one")
    with unchanged(second), refused("WORKLOAD_INVALID"):
        claim(second, request_id="one")


def test_claim_repeats_its_claim_while_that_is_current() -> None:
    workload_id = admit()
    first = claim(workload_id, request_id="one")
    with unchanged(workload_id):
        assert claim(workload_id, request_id="one", lease_ms=5, capabilities={"z"}) == first
        again = claim(workload_id, request_id="one", now=EXPIRES_AT.replace(microsecond=0))
        assert again.claim_id == first.claim_id
        with refused("WORKLOAD_NOT_READY"):
            claim(workload_id, request_id="two")


def test_claim_is_not_ready_once_its_claim_has_ended() -> None:
    workload_id = admit()
    first = claim(workload_id, request_id="one", lease_ms=1_000)
    with refused("WORKLOAD_NOT_READY", {"state": "CLAIMED"}):
        claim(workload_id, request_id="one", now=at(2_000))
    authority.recover_expired(now=at(2_000))
    with refused("WORKLOAD_NOT_READY", {"state": "READY"}):
        claim(workload_id, request_id="one", now=at(90_000))
    other = claim(workload_id, request_id="two", now=at(90_000))
    with unchanged(workload_id), refused("WORKLOAD_NOT_READY"):
        claim(workload_id, request_id="one", now=at(90_000))
    assert other.claim_id != first.claim_id


def test_a_refused_claim_may_be_repeated_as_a_new_one() -> None:
    workload_id = admit(not_before=at(2_000))
    with refused("WORKLOAD_NOT_READY"):
        claim(workload_id, request_id="one")
    assert claim(workload_id, request_id="one", now=at(2_000)).attempt_number == 1


def test_a_repeat_enforces_deadlines_first() -> None:
    workload_id = admit(timeouts=Timeouts(claim_ms=100))
    claim(workload_id, request_id="one")
    with refused("WORKLOAD_TIMED_OUT"):
        claim(workload_id, request_id="one", now=at(1_100))
    assert state_of(workload_id) == "READY"


def test_a_request_is_remembered_when_its_work_is_done() -> None:
    workload_id = admit()
    given = claim(workload_id, request_id="one")
    authority.start(given.fence, now=at(2_000))
    authority.complete(given.fence, result_id="r", output=1, now=at(3_000))
    with refused("WORKLOAD_NOT_READY", {"state": "SUCCEEDED"}):
        claim(workload_id, request_id="one", now=at(10**10))


def test_the_lease_that_is_left_is_by_the_authoritys_clock_and_never_negative() -> None:
    admit()
    (given,) = ask(limit=1, now=at(1_000), lease_ms=1_000)
    assert authority.heartbeat(given.fence, extend_ms=1, now=at(1_300)).lease_left_ms == 700
    assert given.lease_left_ms == 1_000


def test_a_request_without_now_goes_by_the_databases_clock() -> None:
    before = authority.read_clock()
    workload_id = admit("a", now=None)
    admit("b", now=None)
    given = claim(workload_id, request_id="one", now=None)
    (other,) = ask("many", limit=1, now=None)
    assert before <= given.claimed_at <= other.claimed_at <= authority.read_clock()
    assert claim(workload_id, request_id="one", now=None).claim_id == given.claim_id


def test_a_request_is_stored_as_what_it_is() -> None:
    workload_id = admit("a")
    admit("b")
    claim(workload_id, request_id="one")
    ask("many", limit=1)
    stored = ClaimRequest.objects.order_by("id").values_list("worker_id", "request_id", "verb", "workload_id")
    assert list(stored) == [("w", "one", "claim", workload_id), ("w", "many", "claim_next", "")]


def test_a_claim_that_found_a_deadline_passed_may_be_repeated_as_a_new_one() -> None:
    workload_id = admit(timeouts=Timeouts(queue_ms=1))
    with refused("WORKLOAD_TIMED_OUT"):
        claim(workload_id, request_id="one")
    assert not ClaimRequest.objects.exists()
    authority.rearm(workload_id, actor="op", reason="again", now=CLAIMED_AT)
    assert claim(workload_id, request_id="one").attempt_number == 1
