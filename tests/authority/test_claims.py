"""Claims: what is handed out, to whom, in which order, and lost responses. Section 5."""

from __future__ import annotations

from typing import Any

import pytest

from tests.authority.builders import (
    CLAIMED_AT,
    S,
    admit,
    attempts,
    bring,
    claim,
    events,
    id_of,
    path,
    refused,
    request,
    running,
    take,
    text,
    unchanged,
    write_raw,
)
from tests.support import T0, at
from workloads import authority
from workloads.contract import Claim, Dependency, Fence, RetryPolicy, Timeouts
from workloads.models import Workload

pytestmark = pytest.mark.django_db

BAD_FOR_BOTH: list[tuple[str, dict[str, Any]]] = [
    ("worker_id", {"worker_id": ""}),
    ("worker_id", {"worker_id": " w"}),
    ("worker_id", {"worker_id": None}),
    ("capabilities", {"capabilities": "letters"}),
    ("capabilities", {"capabilities": None}),
    ("capabilities", {"capabilities": [str(n) for n in range(101)]}),
    ("lease_ms", {"lease_ms": 0}),
    ("lease_ms", {"lease_ms": 86_400_001}),
    ("lease_ms", {"lease_ms": True}),
    ("lease_ms", {"lease_ms": 1.0}),
    ("request_id", {"request_id": ""}),
    ("request_id", {"request_id": 5}),
    ("now", {"now": T0.replace(tzinfo=None)}),
]


# The arguments.


@pytest.mark.parametrize(("field", "changes"), BAD_FOR_BOTH)
@pytest.mark.parametrize("verb", ["claim", "claim_next"])
def test_arguments_come_first_and_touch_nothing(
    verb: str, field: str, changes: dict[str, Any], django_assert_num_queries: Any
) -> None:
    values = {"worker_id": "w", "capabilities": [], "lease_ms": 1, "now": T0} | changes
    with django_assert_num_queries(0), refused("WORKLOAD_INVALID") as caught:
        if verb == "claim":
            authority.claim("nothing", **values)
        else:
            authority.claim_next(**values)
    assert caught.value.details is not None
    assert caught.value.details["field"] == field


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("limit", 0),
        ("limit", -1),
        ("limit", None),
        ("limit", 1.0),
        ("tenant_id", ""),
        ("application_id", "a "),
        ("definitions", "d"),
        ("definitions", 5),
        ("definitions", [None]),
        ("definitions", ["d@1@2"]),
        ("definitions", ["@1"]),
        ("definitions", ["d@"]),
        ("definitions", [str(n) for n in range(101)]),
        ("start", 1),
        ("start", None),
    ],
)
def test_claim_next_checks_its_own_arguments(field: str, bad: Any, django_assert_num_queries: Any) -> None:
    values: dict[str, Any] = {"worker_id": "w", "capabilities": [], "lease_ms": 1, "now": T0, field: bad}
    with django_assert_num_queries(0), refused("WORKLOAD_INVALID") as caught:
        authority.claim_next(**values)
    assert caught.value.details is not None
    assert caught.value.details["field"] == field


def test_the_longest_lease_is_the_sites(limits: Any) -> None:
    limits(MAX_LEASE_MS=10)
    workload_id = admit()
    with refused("WORKLOAD_INVALID"):
        claim(workload_id, lease_ms=11)
    with refused("WORKLOAD_INVALID"):
        take(lease_ms=11)
    assert claim(workload_id, lease_ms=10).lease_left_ms == 10


@pytest.mark.parametrize("unknown", ["", "nothing", "é", "x" * 300, "a\0b", "\udc00", None, 5, id_of("k").upper()])
def test_an_id_that_names_nothing_whatever_it_is_is_not_found(unknown: Any) -> None:
    admit()
    with refused("WORKLOAD_NOT_FOUND"):
        claim(unknown)


# What a claim does.


def test_a_site_without_work_has_none_to_give() -> None:
    assert authority.claim_next(worker_id="w", capabilities=[], lease_ms=5) == []
    assert authority.claim_next_with_context(worker_id="w", capabilities=[], lease_ms=5) == []


def test_a_claim_is_a_lease_an_attempt_and_an_event() -> None:
    workload_id = admit(definition_revision="7")
    given = claim(workload_id, lease_ms=1_500)
    workload = authority.get(workload_id)
    assert given == Claim(
        workload_id=workload_id,
        attempt_id=given.attempt_id,
        attempt_number=1,
        claim_id=given.claim_id,
        worker_id="w",
        fencing_token=1,
        claimed_at=CLAIMED_AT,
        last_heartbeat=CLAIMED_AT,
        expires_at=at(2_500),
        lease_left_ms=1_500,
        cancellation_requested=False,
        definition_id="d",
        definition_revision="7",
    )
    assert given.fence == Fence(workload_id=workload_id, claim_id=given.claim_id, worker_id="w", fencing_token=1)
    for made in (given.claim_id, given.attempt_id):
        assert 16 <= len(made) <= 64
    stored = (workload.state, workload.claim_id, workload.worker_id, workload.claimed_at, workload.last_heartbeat)
    assert stored == ("CLAIMED", given.claim_id, "w", CLAIMED_AT, CLAIMED_AT)
    assert (workload.expires_at, workload.version, workload.updated_at) == (at(2_500), 2, CLAIMED_AT)
    assert (workload.fencing_token, workload.attempt_count, workload.next_attempt_at) == (1, 1, None)
    last = events(workload_id)[-1]
    assert (last.from_state, last.to_state, last.at, last.actor) == ("READY", "CLAIMED", CLAIMED_AT, "w")
    assert last.evidence == {
        "claim_id": given.claim_id,
        "worker_id": "w",
        "attempt_id": given.attempt_id,
        "fencing_token": "1",
        "expires_at": text(at(2_500)),
    }
    (attempt,) = attempts(workload_id)
    assert (attempt.number, attempt.attempt_id, attempt.claim_id) == (1, given.attempt_id, given.claim_id)
    assert (attempt.worker_id, attempt.fencing_token, attempt.status) == ("w", 1, "CLAIMED")
    assert (attempt.claimed_at, attempt.started_at, attempt.ended_at) == (CLAIMED_AT, None, None)
    assert (attempt.error, attempt.failure_kind, attempt.effect) == (None, None, None)
    assert (attempt.outcome_state, attempt.outcome_decision, attempt.outcome_next_attempt_at) == (None, None, None)


@pytest.mark.parametrize("is_started", [True, False])
def test_claim_next_does_the_same_and_with_start_runs_it_at_once(is_started: bool) -> None:
    workload_id = admit()
    (given,) = authority.claim_next(worker_id="w", capabilities=[], lease_ms=5, start=is_started, now=CLAIMED_AT)
    workload = authority.get(workload_id)
    (attempt,) = attempts(workload_id)
    assert workload.version == 2
    assert (given.lease_left_ms, given.expires_at) == (5, at(1_005))
    if is_started:
        assert path(workload_id) == ["CREATED", "READY", "CLAIMED", "RUNNING"]
        assert (attempt.status, attempt.started_at) == ("RUNNING", CLAIMED_AT)
        assert events(workload_id)[-1].evidence == {"attempt_id": given.attempt_id}
        assert authority.start(given.fence, now=at(1_001)).claim_id == given.claim_id
        assert authority.get(workload_id).version == 2
    else:
        assert path(workload_id) == ["CREATED", "READY", "CLAIMED"]
        assert (attempt.status, attempt.started_at) == ("CLAIMED", None)


def test_tokens_and_attempts_rise_and_are_never_used_again() -> None:
    workload_id = admit(retry_policy=RetryPolicy(max_attempts=2, initial_delay_ms=0))
    tokens = []
    for turn in range(5):
        now = at(10_000 * (turn + 1))
        given = claim(workload_id, now=now)
        tokens.append((given.fencing_token, given.attempt_number))
        if turn == 0:
            authority.release(given.fence, now=now)
        elif turn == 2:
            authority.fail(given.fence, kind="fatal", error="", now=now)
            authority.rearm(workload_id, actor="op", reason="again", now=now)
        elif turn == 1:
            authority.fail(given.fence, kind="timeout", error="", now=now)
        else:
            authority.time_out(workload_id, actor="op", now=now)
            authority.rearm(workload_id, actor="op", reason="again", now=now)
    assert tokens == [(n, n) for n in range(1, 6)]
    assert len({a.claim_id for a in attempts(workload_id)}) == 5
    assert len({a.attempt_id for a in attempts(workload_id)}) == 5


# What a claim judges, and in which order.


@pytest.mark.parametrize(
    "state",
    [
        s
        for s in S
        if s
        in (
            "CLAIMED",
            "RUNNING",
            "CHECKPOINTED",
            "CANCELLATION_REQUESTED",
            "SUCCEEDED",
            "CANCELLED",
            "DEAD_LETTER",
            "TIMED_OUT",
        )
    ],
)
def test_work_that_is_not_ready_is_refused_with_its_state(state: str) -> None:
    workload_id, _ = bring(state)
    with unchanged(workload_id):
        with refused("WORKLOAD_NOT_READY", {"state": state}):
            claim(workload_id, now=at(5_000))
        assert take(now=at(5_000)) == []


def test_work_that_is_not_due_is_refused_with_the_instant() -> None:
    workload_id = admit(not_before=at(2_000))
    with refused("WORKLOAD_NOT_READY", {"state": "READY", "next_attempt_at": text(at(2_000))}):
        claim(workload_id, now=at(1_999))
    assert take(now=at(1_999)) == []
    assert claim(workload_id, now=at(2_000)).attempt_number == 1


def test_a_deadline_comes_before_everything() -> None:
    workload_id = admit(
        timeouts=Timeouts(overall_ms=100),
        not_before=at(50_000),
        dependencies=[Dependency(workload_id="x")],
        capability_snapshot={"a"},
    )
    with refused("WORKLOAD_TIMED_OUT", {"deadline": "overall", "deadline_at": text(at(100))}):
        claim(workload_id, now=at(100))
    assert path(workload_id)[-2:] == ["TIMED_OUT", "DEAD_LETTER"]


def test_dependencies_come_before_the_instant_and_both_before_capabilities() -> None:
    workload_id = admit(not_before=at(50_000), dependencies=[Dependency(workload_id="x")], capability_snapshot={"a"})
    with refused("WORKLOAD_NOT_READY", {"state": "READY", "dependencies": ["x"]}):
        claim(workload_id)
    other = admit("other", not_before=at(50_000), capability_snapshot={"a"})
    with refused("WORKLOAD_NOT_READY", {"state": "READY", "next_attempt_at": text(at(50_000))}):
        claim(other)


def use_up(**changes: Any) -> str:
    """Leave READY work whose budget is used up: its uncounted releases were taken back, as by an older record."""
    workload_id = admit(retry_policy=RetryPolicy(max_attempts=1), **changes)
    given = claim(workload_id, capabilities=changes.get("capability_snapshot", ()))
    authority.release(given.fence, now=CLAIMED_AT)
    write_raw("workload", workload_id, uncounted_releases=0)
    return workload_id


def test_work_that_has_used_up_its_budget_is_dead_lettered_before_capabilities_are_judged() -> None:
    workload_id = use_up(capability_snapshot={"a"})
    with refused("WORKLOAD_ATTEMPTS_EXHAUSTED"):
        claim(workload_id, now=at(2_000))
    last = events(workload_id)[-1]
    assert (last.from_state, last.to_state, last.actor) == ("READY", "DEAD_LETTER", "authority.claim")
    assert last.evidence == {"decision": "attempt_budget_exhausted"}
    workload = authority.get(workload_id)
    assert (workload.finished_at, workload.next_attempt_at) == (at(2_000), None)


def test_claim_next_passes_over_work_that_has_used_up_its_budget() -> None:
    used = use_up(priority=9)
    other = admit("other")
    with unchanged(used):
        assert take(now=at(2_000), limit=1) == [other]
        assert take(now=at(2_000)) == []


def test_no_more_is_claimed_than_was_asked_for_when_some_was_passed_over() -> None:
    used = use_up(priority=9)
    ids = [admit(f"k{n}") for n in range(5)]
    assert take(now=at(2_000), limit=2) == ids[:2]
    # So with several lanes.
    more = [admit(f"other {n}", definition_id="other", priority=5) for n in range(2)]
    assert take(now=at(2_000), limit=3) == [*more, ids[2]]
    assert authority.get(used).state == "READY"


def test_a_revision_is_one_of_its_definition() -> None:
    admit("other", definition_id="other", definition_revision="2")
    mine = admit("mine", definition_revision="2")
    assert take(definitions=["d@2"]) == [mine]


def test_what_is_met_is_not_among_what_is_waited_for() -> None:
    met, _ = bring("SUCCEEDED", "met")
    child = admit("child", dependencies=[Dependency(workload_id=met), Dependency(workload_id="x")])
    with refused("WORKLOAD_NOT_READY", {"state": "READY", "dependencies": ["x"]}):
        claim(child)


def test_lacking_capabilities_are_named_and_nothing_changes() -> None:
    workload_id = admit(capability_snapshot={"b", "a", "c"})
    with unchanged(workload_id):
        with refused("WORKLOAD_CAPABILITY_DENIED", {"missing": ["a", "c"]}):
            claim(workload_id, capabilities={"b", "x"})
        assert take(capabilities={"b", "x"}) == []
    assert claim(workload_id, capabilities=["c", "b", "a", "z", "a"]).attempt_number == 1


@pytest.mark.parametrize(
    ("needed", "able", "fits"),
    [
        (set(), set(), True),
        (set(), {"a"}, True),
        ({"a"}, set(), False),
        ({"a"}, {"A"}, False),
        ({"a", "b"}, {"a"}, False),
        ({"a", "b"}, {"b", "c", "a"}, True),
        ({"é"}, {"e\u0301"}, False),
    ],
)
def test_claim_next_hands_out_what_a_worker_is_able_to_run(needed: set[str], able: set[str], fits: bool) -> None:
    workload_id = admit(capability_snapshot=needed)
    assert take(capabilities=able) == ([workload_id] if fits else [])


def test_claim_next_passes_over_what_is_past_a_deadline() -> None:
    late = admit("late", timeouts=Timeouts(queue_ms=10), priority=9)
    later = admit("later", timeouts=Timeouts(overall_ms=10), priority=9)
    due = admit("due")
    with unchanged(late, later):
        assert take(now=at(10), limit=1) == [due]
    assert sorted(take(now=at(9))) == sorted([late, later])


# Order.


def test_highest_priority_first_then_longest_due_then_oldest() -> None:
    later = admit("later", not_before=at(500))
    low = admit("low", priority=-1, not_before=at(-9_000))
    first = admit("first")
    second = admit("second")
    longest = admit("longest", not_before=at(-1))
    high = admit("high", priority=2**31 - 1, not_before=at(900))
    other = admit("other", definition_id="e", capability_snapshot={"c"}, priority=1)
    assert take(capabilities={"c"}) == [high, other, longest, first, second, later, low]


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_the_order_holds_over_many_lanes_whatever_is_asked_for_at_once(limit: int) -> None:
    keys = [f"k{n:02}" for n in range(24)]
    for n, key in enumerate(keys):
        admit(
            key,
            definition_id=f"d{n % 3}",
            capability_snapshot={f"c{n % 2}"},
            priority=n % 2,
            not_before=at(-(n % 5)),
            application_id=f"app{n % 2}",
        )
    expected = sorted(range(24), key=lambda n: (-(n % 2), -(n % 5), n))
    taken: list[str] = []
    while given := take(capabilities={"c0", "c1"}, limit=limit):
        assert len(given) <= limit
        taken += given
    assert taken == [id_of(keys[n], application_id=f"app{n % 2}") for n in expected]


@pytest.mark.parametrize("limit", [1, 2])
def test_the_order_holds_within_one_lane(limit: int) -> None:
    due = [0, -3, -1, -3, -2]
    ids = [admit(f"k{n}", not_before=at(ms)) for n, ms in enumerate(due)]
    taken: list[str] = []
    while given := take(limit=limit):
        taken += given
    assert taken == [ids[n] for n in (1, 3, 4, 2, 0)]


def test_work_that_comes_due_takes_its_place_in_the_order() -> None:
    later = admit("later", priority=5, not_before=at(2_000))
    now = admit("now")
    again = admit("again", not_before=at(2_000))
    assert take(now=at(1_999), limit=1) == [now]
    assert take(now=at(1_999)) == []
    assert take(now=at(2_000)) == [later, again]


def test_a_retry_is_due_after_its_delay() -> None:
    fence = running(retry_policy=RetryPolicy(initial_delay_ms=5_000))
    outcome = authority.fail(fence, kind="timeout", error="", now=at(4_000))
    assert outcome.next_attempt_at == at(9_000)
    assert take(now=at(8_999)) == []
    assert take(now=at(9_000)) == [fence.workload_id]


@pytest.mark.parametrize(("limit", "given"), [(1, 1), (4, 4), (100, 5), (10**30, 5)])
def test_at_most_limit_are_handed_out(limit: int, given: int) -> None:
    for n in range(5):
        admit(f"k{n}", definition_id=f"d{n % 2}")
    assert len(take(limit=limit)) == given
    assert Workload.objects.filter(state="CLAIMED").count() == given


def test_without_a_limit_one_is_handed_out() -> None:
    admit("a")
    admit("b")
    assert len(authority.claim_next(worker_id="w", capabilities=[], lease_ms=1, now=at(1))) == 1


def test_a_large_claim_takes_all_in_order() -> None:
    authority.admit_many([request(f"k{n:04}", definition_id=f"d{n % 7}") for n in range(520)], now=T0)
    oldest_first = Workload.objects.order_by("created_at", "pk").values_list("workload_id", flat=True)
    assert take(limit=1_000) == list(oldest_first)
    assert take() == []


# Whose work.


@pytest.mark.parametrize(
    ("scope", "expected"),
    [
        ({}, {"t app", "t other", "u app", "T app"}),
        ({"tenant_id": "t"}, {"t app", "t other"}),
        ({"application_id": "app"}, {"t app", "u app", "T app"}),
        ({"tenant_id": "t", "application_id": "app"}, {"t app"}),
        ({"tenant_id": "T"}, {"T app"}),
        ({"tenant_id": "nobody"}, set()),
    ],
)
def test_claims_may_be_kept_to_a_tenant_and_an_application(scope: dict[str, str], expected: set[str]) -> None:
    for name in ("t app", "t other", "u app", "T app"):
        tenant_id, application_id = name.split()
        admit(name, tenant_id=tenant_id, application_id=application_id)
    taken = take(**scope)
    assert {authority.get(workload_id).idempotency_key for workload_id in taken} == expected


@pytest.mark.parametrize(
    ("definitions", "expected"),
    [
        (None, {"a@1", "a@2", "b@1", "A@1"}),
        ([], set()),
        ((), set()),
        (["a"], {"a@1", "a@2"}),
        (["a@2"], {"a@2"}),
        (["a@2", "b"], {"a@2", "b@1"}),
        ({"a", "a@2"}, {"a@1", "a@2"}),
        (["a@3", "c"], set()),
        (["A"], {"A@1"}),
    ],
)
def test_definitions_say_which_work_and_which_revisions(definitions: Any, expected: set[str]) -> None:
    for name in ("a@1", "a@2", "b@1", "A@1"):
        definition_id, revision = name.split("@")
        admit(name, definition_id=definition_id, definition_revision=revision)
    taken = take(definitions=definitions)
    assert {authority.get(workload_id).idempotency_key for workload_id in taken} == expected


def test_the_order_holds_over_more_lanes_than_a_statement_looks_at() -> None:
    answers = authority.admit_many(
        [request(f"k{n}", definition_id=f"d{n}", priority=n % 10, not_before=at(-n)) for n in range(230)], now=T0
    )
    assert all(answer.created for answer in answers)  # type: ignore[union-attr]
    expected = sorted(range(230), key=lambda n: (-(n % 10), -n))
    assert take(limit=50) == [id_of(f"k{n}") for n in expected[:50]]
    assert take(limit=1_000) == [id_of(f"k{n}") for n in expected[50:]]
