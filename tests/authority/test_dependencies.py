"""Dependencies: how they stand, what they block, and what can't be met. Section 4, "Dependencies"."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from django.db import connection

from tests.authority.builders import (
    EVERY,
    S,
    admit,
    bring,
    claim,
    events,
    id_of,
    path,
    record,
    refused,
    request,
    state_of,
    take,
    text,
    write_raw,
)
from tests.support import T0, at
from workloads import authority
from workloads.contract import Dependency, Timeouts
from workloads.models import Admitted, ApplicationLock, Dependency as DependencyRow, Tombstone, Workload

pytestmark = pytest.mark.django_db

DONE_AT = at(5_000)
LATER = at(90_000)


def on(key: str, required: Any = S.SUCCEEDED, **scope: Any) -> Dependency:
    """Depend on the work of a key."""
    return Dependency(workload_id=id_of(key, **scope), required_state=required)


def admit_child(key: str, **changes: Any) -> str:
    """Admit work of a definition of its own, so that it can be asked for alone."""
    return admit(key, definition_id="child", **changes)


def standing(workload_id: str) -> list[str]:
    """Return how each dependency stands, in the order of the ids."""
    return [d.standing for d in authority.get(workload_id).dependencies.order_by("depends_on")]


def blocked(workload_id: str, *unmet: str, now: Any = LATER) -> None:
    """Assert that a child is READY, due, and blocked by exactly these ids, for both claims."""
    assert take(now=now, definitions=["child"]) == []
    with refused("WORKLOAD_NOT_READY", {"state": "READY", "dependencies": sorted(unmet)}):
        claim(workload_id, now=now)


def claimable(workload_id: str, *, now: Any = LATER) -> None:
    assert claim(workload_id, now=now).workload_id == workload_id


def complete(workload_id: str, *, now: Any = DONE_AT) -> None:
    given = claim(workload_id)
    authority.start(given.fence, now=at(2_000))
    authority.complete(given.fence, result_id=f"result of {workload_id}", output=None, now=now)


@pytest.mark.parametrize("required", [S.SUCCEEDED, S.CANCELLED, S.DEAD_LETTER])
@pytest.mark.parametrize("state", EVERY)
def test_how_a_dependency_stands_at_admission(state: str, required: str) -> None:
    parent, _ = bring(state, "parent")
    child = admit_child("child", dependencies=[on("parent", required)], now=at(5_000))
    if state == required:
        assert standing(child) == ["met"]
        claimable(child)
    elif state in (S.SUCCEEDED, S.CANCELLED):
        assert standing(child) == ["unmeetable"]
        blocked(child, parent)
        assert authority.dead_letter_unsatisfiable(now=at(91_000)) == [child]
    else:
        assert standing(child) == ["waiting"]
        blocked(child, parent)
        assert authority.dead_letter_unsatisfiable(now=at(91_000)) == []


def test_work_waits_until_its_dependency_is_in_its_state() -> None:
    parent = admit("parent")
    child = admit_child("child", dependencies=[on("parent")])
    blocked(child, parent)
    given = claim(parent)
    blocked(child, parent)
    authority.start(given.fence, now=at(2_000))
    blocked(child, parent)
    authority.complete(given.fence, result_id="r", output=None, now=at(3_000))
    assert standing(child) == ["met"]
    assert take(now=at(3_000)) == [child]


def test_keeping_a_standing_is_no_event_and_no_step_of_the_version() -> None:
    parent = admit("parent")
    child = admit_child("child", dependencies=[on("parent")])
    before = record(child)
    complete(parent)
    after = record(child)
    assert standing(child) == ["met"]
    assert before["events"] == after["events"]
    derived = {"dependency_standing", "due_at", "queued_lane_id", "waiting_lane_id"}
    assert {k: v for k, v in before["workload"].items() if k not in derived} == {
        k: v for k, v in after["workload"].items() if k not in derived
    }


def test_an_id_that_nobody_has_admitted_yet_is_waited_for() -> None:
    child = admit_child("child", dependencies=[on("parent")])
    blocked(child, id_of("parent"))
    assert authority.run_pass(now=at(1_000_000)).unsatisfiable == []
    parent = admit("parent", now=at(1_000_001))
    blocked(child, parent, now=at(1_000_002))
    authority.cancel(parent, actor="op", now=at(1_000_003))
    assert standing(child) == ["unmeetable"]


def test_a_parent_that_was_admitted_later_unblocks_its_child() -> None:
    child = admit_child("child", dependencies=[on("parent")])
    complete(admit("parent"))
    assert standing(child) == ["met"]
    assert take(now=at(6_000)) == [child]


def test_all_dependencies_must_be_met() -> None:
    first, second = admit("first"), admit("second")
    child = admit_child("child", dependencies=[on("first"), on("second", S.CANCELLED), on("nobody")])
    complete(first)
    with refused("WORKLOAD_NOT_READY", {"state": "READY", "dependencies": sorted([second, id_of("nobody")])}):
        claim(child)
    authority.cancel(second, actor="op", now=at(2))
    with refused("WORKLOAD_NOT_READY", {"state": "READY", "dependencies": [id_of("nobody")]}):
        claim(child)


@pytest.mark.parametrize("end", ["DEAD_LETTER", "TIMED_OUT"])
def test_parked_work_is_waited_for_since_it_may_be_re_armed(end: str) -> None:
    parent, _ = bring(end, "parent")
    child = admit_child("child", dependencies=[on("parent")])
    assert standing(child) == ["waiting"]
    assert authority.dead_letter_unsatisfiable(now=at(90_000)) == []
    authority.rearm(parent, actor="op", reason="again", now=at(100_000))
    given = claim(parent, now=at(100_000))
    authority.start(given.fence, now=at(100_000))
    authority.complete(given.fence, result_id="r", output=1, now=at(100_001))
    claimable(child, now=at(100_002))


def test_a_re_armed_dependency_blocks_again() -> None:
    parent, _ = bring(S.DEAD_LETTER, "parent")
    child = admit_child("child", dependencies=[on("parent", S.DEAD_LETTER)], now=at(5_000))
    assert standing(child) == ["met"]
    authority.rearm(parent, actor="op", reason="again", now=at(6_000))
    assert standing(child) == ["waiting"]
    authority.claim(parent, worker_id="w", capabilities=(), lease_ms=1, now=at(6_000))
    blocked(child, parent)


def test_claimed_work_goes_on_when_its_dependency_is_re_armed() -> None:
    parent, _ = bring(S.DEAD_LETTER, "parent")
    child = admit_child("child", dependencies=[on("parent", S.DEAD_LETTER)], now=at(5_000))
    fence = claim(child, now=at(5_001)).fence
    authority.rearm(parent, actor="op", reason="again", now=at(6_000))
    authority.start(fence, now=at(6_001))
    authority.complete(fence, result_id="r", output=1, now=at(6_002))
    assert state_of(child) == "SUCCEEDED"
    assert authority.get(child).queued_lane_id is None


def test_what_can_never_be_met_is_dead_lettered_by_the_pass() -> None:
    parent = admit("parent")
    child = admit_child("child", dependencies=[on("parent")])
    grandchild = admit("grandchild", dependencies=[on("child", S.DEAD_LETTER)])
    authority.cancel(parent, actor="op", now=at(1_000))
    assert state_of(child) == "READY"
    with refused("WORKLOAD_NOT_READY"):
        claim(child)
    assert authority.dead_letter_unsatisfiable(now=at(2_000)) == [child]
    assert authority.dead_letter_unsatisfiable(now=at(2_000)) == []
    workload = authority.get(child)
    assert (workload.state, workload.finished_at, workload.next_attempt_at) == ("DEAD_LETTER", at(2_000), None)
    last = events(child)[-1]
    assert (last.from_state, last.to_state, last.actor) == ("READY", "DEAD_LETTER", "authority.recovery")
    assert last.evidence == {"decision": "dependency_unsatisfiable", "dependency": parent}
    assert take(now=at(2_000)) == [grandchild]


def test_what_is_re_armed_though_unsatisfiable_is_parked_again() -> None:
    parent = admit("parent")
    child = admit_child("child", dependencies=[on("parent")])
    authority.cancel(parent, actor="op", now=at(1_000))
    authority.dead_letter_unsatisfiable(now=at(2_000))
    authority.rearm(child, actor="op", reason="try", now=at(3_000))
    blocked(child, parent, now=at(3_000))
    assert authority.dead_letter_unsatisfiable(now=at(4_000)) == [child]
    assert path(child)[-3:] == ["DEAD_LETTER", "READY", "DEAD_LETTER"]


def test_work_that_is_not_due_yet_is_dead_lettered_too() -> None:
    parent = admit("parent")
    child = admit_child("child", dependencies=[on("parent")], not_before=at(86_400_000))
    authority.cancel(parent, actor="op", now=at(1_000))
    assert authority.dead_letter_unsatisfiable(now=at(1_000)) == [child]


@pytest.mark.parametrize("scope", [{"tenant_id": "other"}, {"application_id": "other"}])
@pytest.mark.parametrize("parent_is", ["done before", "there before", "admitted after"])
def test_an_id_of_another_tenant_or_application_is_one_that_does_not_exist(
    scope: dict[str, str], parent_is: str
) -> None:
    parent = id_of("parent", **scope)
    if parent_is != "admitted after":
        admit("parent", **scope)
    if parent_is == "done before":
        complete(parent)
    child = admit_child("child", dependencies=[on("parent", **scope)])
    assert standing(child) == ["missing"]
    if parent_is == "admitted after":
        admit("parent", **scope)
    if parent_is != "done before":
        complete(parent)
    blocked(child, parent)
    authority.run_pass(now=at(1_000_000))
    blocked(child, parent, now=at(1_000_001))
    assert state_of(child) == "READY"


@pytest.mark.parametrize(
    ("state", "required", "expected"),
    [
        ("SUCCEEDED", S.SUCCEEDED, "met"),
        ("CANCELLED", S.CANCELLED, "met"),
        ("DEAD_LETTER", S.DEAD_LETTER, "met"),
        ("CANCELLED", S.SUCCEEDED, "unmeetable"),
        ("DEAD_LETTER", S.SUCCEEDED, "unmeetable"),
        ("TIMED_OUT", S.SUCCEEDED, "unmeetable"),
    ],
)
def test_pruned_work_counts_as_in_the_state_that_it_ended_in(state: str, required: str, expected: str) -> None:
    Tombstone.objects.create(
        workload_id=id_of("parent"), tenant_id="t", application_id="app", state=state, finished_at=T0, pruned_at=T0
    )
    child = admit_child("child", dependencies=[on("parent", required)])
    assert standing(child) == [expected]


@pytest.mark.parametrize(("tenant_id", "application_id"), [("other", "app"), ("t", "other")])
def test_a_tombstone_of_another_tenant_or_application_does_not_count(tenant_id: str, application_id: str) -> None:
    Tombstone.objects.create(
        workload_id=id_of("parent"),
        tenant_id=tenant_id,
        application_id=application_id,
        state="SUCCEEDED",
        pruned_at=T0,
    )
    assert standing(admit_child("child", dependencies=[on("parent")])) == ["missing"]


# Admissions that raced: one read before the other was committed, so that nobody told the dependent.


def forget_parent(child: str) -> None:
    """Leave a dependent as one is left whose dependency was committed, and moved, while it looked."""
    with connection.cursor() as cursor:
        cursor.execute("UPDATE workloads_dependency SET standing = 'missing'")
    write_raw("workload", child, dependency_standing="missing", queued_lane_id=None)
    write_raw("workload", child, due_at=connection.ops.adapt_datetimefield_value(at(60_000)))


def test_a_pass_looks_again_at_what_nobody_had_admitted() -> None:
    complete(admit("parent"))
    child = admit_child("child", dependencies=[on("parent")])
    forget_parent(child)
    before = record(child)
    blocked(child, id_of("parent"), now=at(50_000))
    authority.run_pass(now=at(59_999))
    blocked(child, id_of("parent"), now=at(59_999))
    assert authority.dead_letter_unsatisfiable(now=at(60_000)) == []
    assert standing(child) == ["met"]
    assert authority.get(child).version == before["workload"]["version"]
    assert take(now=at(60_000)) == [child]


def test_a_pass_that_looks_again_dead_letters_what_it_finds_unmeetable() -> None:
    authority.cancel(admit("parent"), actor="op", now=at(1))
    child = admit_child("child", dependencies=[on("parent")])
    forget_parent(child)
    assert authority.run_pass(now=at(60_000)).unsatisfiable == [child]


def test_a_pass_that_finds_nothing_looks_again_a_minute_later_only() -> None:
    child = admit_child("child", dependencies=[on("nobody")])
    first = authority.get(child).due_at
    assert first == at(60_000)
    authority.run_pass(now=at(60_000))
    assert authority.get(child).due_at == at(120_000)
    assert standing(child) == ["missing"]


# Cycles.


def cycle_of(caught: Any) -> list[str]:
    details = caught.value.details
    assert details["field"] == "dependencies"
    assert isinstance(details["cycle"], list)
    return details["cycle"]


def test_work_may_not_depend_on_itself() -> None:
    with refused("WORKLOAD_INVALID") as caught:
        authority.admit(request("a", dependencies=[on("a")]), now=T0)
    assert set(cycle_of(caught)) == {id_of("a")}


@pytest.mark.parametrize("length", [2, 3, 7])
def test_an_admission_that_closes_a_cycle_is_refused(length: int) -> None:
    keys = [f"k{n}" for n in range(length)]
    for key, follower in itertools.pairwise(keys):
        admit(key, dependencies=[on(follower)])
    with refused("WORKLOAD_INVALID") as caught:
        authority.admit(request(keys[-1], dependencies=[on("harmless"), on(keys[0])]), now=T0)
    assert cycle_of(caught)[:length] == [id_of(keys[-1]), *(id_of(key) for key in keys[:-1])]
    assert not Admitted.objects.filter(workload_id=id_of(keys[-1])).exists()
    assert authority.admit(request(keys[-1], dependencies=[on("harmless")]), now=T0).created


def test_within_a_batch_the_item_that_closes_a_cycle_is_refused_alone() -> None:
    answers = authority.admit_many(
        [
            request("a", dependencies=[on("b")]),
            request("b", dependencies=[on("c")]),
            request("c", dependencies=[on("a")]),
            request("d", dependencies=[on("a")]),
        ],
        now=T0,
    )
    assert [getattr(answer, "code", "created") for answer in answers] == [
        "created",
        "created",
        "WORKLOAD_INVALID",
        "created",
    ]
    assert set(answers[2].details["cycle"]) == {id_of(k) for k in "abc"}  # type: ignore[union-attr, index]


def test_a_diamond_is_no_cycle() -> None:
    admit("top", dependencies=[on("left"), on("right")])
    admit("left", dependencies=[on("bottom")])
    admit("right", dependencies=[on("bottom")])
    assert admit("bottom") == id_of("bottom")


def test_in_a_batch_a_parent_may_come_before_its_child_or_after() -> None:
    answers = authority.admit_many(
        [request("p"), request("c1", dependencies=[on("p")]), request("c2", dependencies=[on("q")]), request("q")],
        now=T0,
    )
    assert all(answer.created for answer in answers)  # type: ignore[union-attr]
    assert standing(id_of("c1")) == ["waiting"]
    for key in "pq":
        complete(id_of(key))
    assert take(now=at(6_000)) == [id_of("c1"), id_of("c2")]


def test_only_an_admission_that_reaches_an_unknown_id_takes_the_applications_lock() -> None:
    admit("p")
    admit("c", dependencies=[on("p")])
    assert not ApplicationLock.objects.exists()
    admit("d", dependencies=[on("nobody")])
    admit("e", dependencies=[on("nobody")], application_id="other")
    assert ApplicationLock.objects.count() == 2


# The relation.


def test_dependencies_are_rows_with_the_text_id_and_the_required_state() -> None:
    child = authority.get(admit_child("child", dependencies=[on("b", S.CANCELLED), on("a")]))
    rows = {d.depends_on: d.required_state for d in child.dependencies.all()}
    assert rows == {id_of("a"): "SUCCEEDED", id_of("b"): "CANCELLED"}
    assert Workload.objects.filter(dependencies__depends_on=id_of("a")).get() == child
    assert DependencyRow.objects.filter(required_state="CANCELLED").count() == 1


def test_ids_are_compared_byte_for_byte() -> None:
    child = admit_child("child", dependencies=[Dependency(workload_id=id_of("p").upper()), Dependency(workload_id="É")])
    complete(admit("p"))
    blocked(child, "É", id_of("p").upper())


def test_the_deadline_of_blocked_work_runs() -> None:
    child = admit_child("child", dependencies=[on("nobody")], timeouts=Timeouts(queue_ms=10))
    assert authority.enforce_deadlines(now=at(10)) == [child]
    last = events(child)[-1]
    assert last.evidence["decision"] == "deadline_not_retryable"
    assert events(child)[-2].evidence["deadline_at"] == text(at(10))
