"""Why a workload is not running now. Section 7, `explain`."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from tests.authority.builders import (
    CLAIMED,
    EXPIRES_AT,
    FINAL,
    S,
    admit,
    bring,
    claim,
    refused,
    request,
    text,
    unchanged,
    write_raw,
)
from tests.support import T0, at
from workloads import authority
from workloads.contract import Blocker, Dependency, RetryPolicy, Timeouts
from workloads.models import PassRun

pytestmark = pytest.mark.django_db

NOW = at(5_000)


def why(workload_id: str, *, now: Any = NOW) -> dict[str, dict[str, Any]]:
    """Return the reasons, each code with its details, in their order; assert that asking changes nothing."""
    with unchanged(workload_id):
        blockers = authority.explain(workload_id, now=now)
    for blocker in blockers:
        assert isinstance(blocker, Blocker)
        assert blocker.message
    reasons = {blocker.code: dict(blocker.details) for blocker in blockers}
    assert len(reasons) == len(blockers)
    return reasons


@pytest.mark.parametrize("state", FINAL)
def test_final_work_has_no_reason(state: str) -> None:
    workload_id, _ = bring(state, timeouts=Timeouts(overall_ms=4_500))
    assert why(workload_id) == {}


def test_claimable_work_that_nothing_holds_back_has_none() -> None:
    assert why(admit(), now=T0) == {}


def test_work_that_is_not_due() -> None:
    workload_id = admit(not_before=at(5_001))
    assert why(workload_id) == {"not_due": {"next_attempt_at": text(at(5_001))}}
    assert why(workload_id, now=at(5_001)) == {}


def test_unmet_dependencies() -> None:
    parent, _ = bring(S.SUCCEEDED, "parent")
    cancelled = admit("cancelled")
    authority.cancel(cancelled, actor="op", now=at(1))
    child = admit(
        dependencies=[Dependency(workload_id=parent), Dependency(workload_id=cancelled), Dependency(workload_id="a")]
    )
    PassRun.objects.create(id=1, ran_at=NOW)
    assert why(child) == {"dependencies_unmet": {"dependencies": sorted(["a", cancelled])}}


def test_a_used_up_budget() -> None:
    workload_id = admit(retry_policy=RetryPolicy(max_attempts=1))
    authority.release(claim(workload_id).fence, now=at(1_000))
    write_raw("workload", workload_id, uncounted_releases=0)
    assert why(workload_id) == {"attempt_budget_used": {"count": 1}}


@pytest.mark.parametrize(
    ("state", "details"),
    [
        (S.DEAD_LETTER, {"since": text(at(4_000)), "decision": "failure_kind_not_retryable"}),
        (S.TIMED_OUT, {"since": text(at(4_000))}),
    ],
)
def test_parked_work(state: str, details: dict[str, str]) -> None:
    workload_id, _ = bring(state, timeouts=Timeouts(overall_ms=4_500))
    assert why(workload_id) == {"parked": details}


@pytest.mark.parametrize("state", CLAIMED)
def test_claimed_work(state: str) -> None:
    workload_id, _ = bring(state)
    assert why(workload_id) == {"claimed": {"worker_id": "w", "expires_at": text(EXPIRES_AT)}}


def test_a_cancellation_that_nobody_confirmed() -> None:
    workload_id, _ = bring(S.CANCELLATION_REQUESTED, timeouts=Timeouts(overall_ms=4_500))
    reasons = why(workload_id)
    assert reasons == {"cancellation_unconfirmed": {"worker_id": "w", "expires_at": text(EXPIRES_AT)}}


def test_a_deadline_that_passed_comes_first_and_a_pass_that_does_not_run_last() -> None:
    workload_id = admit(
        timeouts=Timeouts(overall_ms=5_000),
        not_before=at(90_000),
        dependencies=[Dependency(workload_id="x")],
        priority=-1,
    )
    admit("first")
    write_raw("workload", workload_id, attempt_count=3)
    reasons = why(workload_id)
    assert list(reasons) == [
        "deadline_passed",
        "dependencies_unmet",
        "not_due",
        "attempt_budget_used",
        "behind_others",
        "pass_not_running",
    ]
    assert reasons["deadline_passed"] == {"deadline": "overall", "deadline_at": text(at(5_000))}
    assert next(iter(why(workload_id, now=at(4_999)))) == "dependencies_unmet"


def test_a_deadline_of_claimed_work() -> None:
    workload_id, _ = bring(S.RUNNING, timeouts=Timeouts(execution_ms=3_000))
    PassRun.objects.create(id=1, ran_at=NOW)
    reasons = why(workload_id)
    assert list(reasons) == ["deadline_passed", "claimed"]
    assert reasons["deadline_passed"] == {"deadline": "execution", "deadline_at": text(at(5_000))}


def test_what_was_given_back_is_not_counted_among_the_attempts() -> None:
    workload_id = admit(retry_policy=RetryPolicy(max_attempts=1))
    authority.release(claim(workload_id).fence, now=at(1_000))
    write_raw("workload", workload_id, attempt_count=3)
    assert why(workload_id) == {"attempt_budget_used": {"count": 2}}


def test_parked_work_that_says_not_since_when_is_so_since_its_last_change() -> None:
    workload_id, _ = bring(S.TIMED_OUT)
    write_raw("workload", workload_id, finished_at=None)
    assert why(workload_id) == {"parked": {"since": text(at(4_000))}}


# behind_others


def test_what_goes_first_is_counted() -> None:
    admit("priority", priority=1)
    admit("longer_due", not_before=at(-1))
    admit("older")
    workload_id = admit("mine")
    admit("younger")
    admit("lower", priority=-1, not_before=at(-9))
    assert why(workload_id) == {"behind_others": {"count": 3, "more": False}}


def test_what_is_older_and_goes_later_is_not_counted() -> None:
    admit("lower", priority=-1)
    admit("due later", not_before=at(1))
    assert why(admit("mine")) == {}


def test_only_claimable_work_of_the_same_application_within_the_capabilities_counts() -> None:
    admit("fits", capability_snapshot={"a"}, priority=1)
    admit("fits too", priority=1, definition_id="other")
    admit("other tenant", tenant_id="u", priority=1)
    admit("other application", application_id="other", priority=1)
    admit("needs more", capability_snapshot={"a", "b", "c"}, priority=1)
    admit("later", not_before=at(9_000), priority=1)
    admit("blocked", dependencies=[Dependency(workload_id="x")], priority=1)
    admit("late", timeouts=Timeouts(queue_ms=10), priority=1)
    authority.cancel(admit("done", priority=1), actor="op", now=at(1))
    claim(admit("claimed", priority=9))
    workload_id = admit("mine", capability_snapshot={"a", "b"})
    assert why(workload_id)["behind_others"] == {"count": 2, "more": False}


def test_work_that_came_due_meanwhile_counts() -> None:
    admit("came due", not_before=at(4_000), priority=1)
    workload_id = admit("mine")
    assert why(workload_id)["behind_others"]["count"] == 1
    assert why(workload_id, now=at(3_999)) == {}


@pytest.mark.parametrize(("others", "expected"), [(1_000, (1_000, False)), (1_001, (1_000, True))])
def test_it_counts_up_to_a_thousand(others: int, expected: tuple[int, bool]) -> None:
    authority.admit_many([request(f"k{n}", priority=1) for n in range(others)], now=T0)
    details = why(admit("mine"))["behind_others"]
    assert (details["count"], details["more"]) == expected


@pytest.mark.parametrize("ahead", [0, 1, 7, 8, 9, 40])
def test_several_queues_are_counted_each_as_far_as_it_goes_first(ahead: int) -> None:
    authority.admit_many(
        [request(f"{name}{n}", priority=1, definition_id=name) for name in ("d", "e") for n in range(ahead)]
        + [request(f"after{name}{n}", priority=-1, definition_id=name) for name in ("d", "e") for n in range(10)],
        now=T0,
    )
    found = why(admit("mine"))
    assert found.get("behind_others", {}).get("count", 0) == 2 * ahead


def test_of_those_that_go_later_one_is_read() -> None:
    workload_id = admit("mine", priority=1)
    authority.admit_many([request(f"k{n}") for n in range(50)], now=T0)
    with CaptureQueriesContext(connection) as asked:
        assert why(workload_id) == {}
    heads = [query["sql"] for query in asked if "lane_" in query["sql"] and "LIMIT" in query["sql"]]
    assert [sql for sql in heads if "priority DESC" in sql and "LIMIT 1)" not in sql] == []
    assert any("LIMIT 1)" in sql for sql in heads)


@pytest.mark.parametrize(("looked_at", "count"), [(3, 3), (10, 5)])
def test_of_what_waits_beside_the_queues_a_bounded_number_is_looked_at(
    monkeypatch: pytest.MonkeyPatch, looked_at: int, count: int
) -> None:
    # By its name, since the package's attribute of that name is the verb.
    monkeypatch.setattr(importlib.import_module("workloads.authority.explain"), "MOST_LOOKED_AT", looked_at)
    for n in range(5):
        admit(f"k{n}", not_before=at(1_000), priority=1)
    assert why(admit("mine"), now=at(2_000))["behind_others"]["count"] == count


# pass_not_running


def needing_a_pass() -> list[str]:
    late = admit("late", timeouts=Timeouts(queue_ms=1))
    lost = admit("lost")
    claim(lost, lease_ms=10)
    gone = admit("gone")
    authority.cancel(gone, actor="op", now=at(1))
    hopeless = admit("hopeless", dependencies=[Dependency(workload_id=gone)])
    return [late, lost, hopeless]


def test_work_that_waits_for_a_pass_says_that_none_has_run() -> None:
    for workload_id in needing_a_pass():
        assert list(why(workload_id))[-1] == "pass_not_running"


def test_or_that_the_last_ran_too_long_ago() -> None:
    ids = needing_a_pass()
    PassRun.objects.create(id=1, ran_at=at(1_000))
    for workload_id in ids:
        assert "pass_not_running" not in why(workload_id, now=at(60_000))
        assert why(workload_id, now=at(86_400_000))["pass_not_running"]["since"] == text(at(1_000))


def test_a_pass_is_late_after_five_minutes() -> None:
    workload_id = needing_a_pass()[0]
    PassRun.objects.create(id=1, ran_at=at(1_000))
    assert "pass_not_running" not in why(workload_id, now=at(300_999))
    assert "pass_not_running" in why(workload_id, now=at(301_000))


def test_a_lease_that_is_over_waits_for_a_pass() -> None:
    workload_id = admit()
    claim(workload_id, lease_ms=10)
    assert list(why(workload_id, now=at(1_009))) == ["claimed"]
    assert list(why(workload_id, now=at(1_010))) == ["claimed", "pass_not_running"]


def test_a_pass_notes_that_it_ran() -> None:
    authority.run_pass(now=at(1_000))
    assert PassRun.objects.get().ran_at == at(1_000)
    authority.run_pass(now=at(2_000))
    assert PassRun.objects.get().ran_at == at(2_000)


# The call.


@pytest.mark.parametrize("unknown", ["", "nothing", None, 5, "a\0", "\udc00", "é" * 300])
def test_an_id_that_names_nothing_is_not_found(unknown: Any) -> None:
    with refused("WORKLOAD_NOT_FOUND"):
        authority.explain(unknown, now=NOW)


def test_a_naive_now_is_refused(django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(0), refused("WORKLOAD_INVALID"):
        authority.explain("nothing", now=T0.replace(tzinfo=None))


def test_without_now_it_is_the_databases_clock() -> None:
    workload_id = admit(not_before=at(0))
    assert [b.code for b in authority.explain(workload_id)] == ["not_due"]
