"""What a batch of admissions costs and stores, and at which instant work is admitted that was long in going in."""

from __future__ import annotations

import datetime as dt
import hashlib
import uuid
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from tests.authority.builders import admit, events, id_of, record, refused, request
from tests.support import T0, at
from workloads import authority
from workloads.authority import clock
from workloads.authority.dependencies import key_of
from workloads.contract import Admission, Dependency, WorkloadState
from workloads.errors import WorkloadError
from workloads.models import Admitted, ApplicationLock, Tombstone

pytestmark = pytest.mark.django_db

OUTSIDE = Dependency(workload_id=id_of("outside"))


def statements(requests: list[Any]) -> int:
    """Admit a batch, and return how many statements that took."""
    with CaptureQueriesContext(connection) as captured:
        answers = authority.admit_many(requests, now=T0)
    assert all(isinstance(answer, Admission) for answer in answers)
    return len(captured)


def test_unrelated_work_goes_in_with_the_statements_of_two() -> None:
    authority.admit(request("outside"), now=T0)
    two, many = ([request(f"{size} {n}", dependencies=[OUTSIDE]) for n in range(size)] for size in (2, 12))
    # Each looks at what it depends on, alone, by one statement; all else is done for all together.
    assert statements(many) - statements(two) == 10


def test_a_batch_that_is_there_already_is_read_with_the_statements_of_two() -> None:
    requests = [request(str(n), dependencies=[OUTSIDE]) for n in range(12)]
    statements(requests)
    assert statements(requests) == statements(requests[:2])


def test_all_that_an_item_of_a_batch_brings_along_is_stored() -> None:
    answers = authority.admit_many([request(key, dependencies=[OUTSIDE]) for key in "abc"], now=T0)
    assert [len(events(id_of(key))) for key in "abc"] == [2, 2, 2]
    assert [len(record(id_of(key))["dependencies"]) for key in "abc"] == [1, 1, 1]
    assert [answer.workload.pk for answer in answers if isinstance(answer, Admission)] == [
        authority.get(id_of(key)).pk for key in "abc"
    ]
    assert list(authority.verify(now=T0)) == []


def test_items_that_depend_on_each_other_see_each_other_as_they_stand() -> None:
    child = request("child", dependencies=[Dependency(workload_id=id_of("parent"))])
    authority.admit_many([request("parent"), child], now=T0)
    late = request("late child", dependencies=[Dependency(workload_id=id_of("late parent"))])
    authority.admit_many([late, request("late parent")], now=T0)
    standings = [record(id_of(key))["dependencies"][0]["standing"] for key in ("child", "late child")]
    # What nobody had admitted is looked for again by the pass.
    assert standings == ["waiting", "missing"]
    assert list(authority.verify(now=T0)) == []


def test_whether_a_cycle_can_ever_reach_new_work_is_noted() -> None:
    Tombstone.objects.create(
        workload_id=id_of("gone"), tenant_id="t", application_id="app", state="SUCCEEDED", pruned_at=T0
    )
    admit("free")
    for key, others in (("child", ["free", "gone"]), ("open", ["nobody"]), ("grandchild", ["child", "open"])):
        authority.admit(dependent(key, *others), now=T0)
    closed = dict(Admitted.objects.values_list("idempotency_key", "ancestry_is_closed"))
    assert closed == {"free": True, "child": True, "open": False, "grandchild": False}


def test_keys_are_digests_that_stay_the_same_for_ever() -> None:
    for names, text in ((("a", "é", 'b"'), '["a","é","b\\""]'), (("a",), '["a"]'), ((), "[]")):
        digest = hashlib.sha256(text.encode()).digest()
        assert key_of(*names) == uuid.UUID(bytes=digest[:16], version=5)


def dependent(key: str, *others: str) -> Any:
    return request(key, dependencies=[Dependency(workload_id=id_of(other)) for other in others])


def test_a_cycle_that_leaves_the_batch_and_comes_back_to_it_is_found() -> None:
    authority.admit(dependent("between", "first"), now=T0)
    first, second = authority.admit_many([dependent("first", "second"), dependent("second", "between")], now=T0)
    assert isinstance(first, Admission)
    assert isinstance(second, WorkloadError)
    assert second.details is not None
    assert set(second.details["cycle"]) == {id_of(key) for key in ("first", "second", "between")}


def test_so_is_one_that_leaves_it_twice() -> None:
    authority.admit_many([dependent("one", "first"), dependent("other", "second")], now=T0)
    first, second = authority.admit_many([dependent("first", "other"), dependent("second", "one")], now=T0)
    assert isinstance(first, Admission)
    assert isinstance(second, WorkloadError)
    assert second.details is not None
    assert set(second.details["cycle"]) == {id_of(key) for key in ("first", "second", "one", "other")}


@pytest.mark.parametrize("name", ["tenant_id", "application_id"])
def test_what_is_stored_elsewhere_closes_no_cycle(name: str) -> None:
    elsewhere = {name: "other"}
    authority.admit(request("one", dependencies=[Dependency(workload_id=id_of("first"))], **elsewhere), now=T0)
    one = [Dependency(workload_id=id_of("one", **elsewhere))]
    assert authority.admit(request("first", dependencies=one), now=T0).created


def test_each_application_has_a_lock_of_its_own() -> None:
    for place in ({}, {"tenant_id": "other"}, {"application_id": "other"}, {}):
        missing = [Dependency(workload_id="nobody")]
        authority.admit(request(f"k{ApplicationLock.objects.count()}", dependencies=missing, **place), now=T0)
    assert ApplicationLock.objects.count() == 3


@pytest.mark.parametrize("name", ["tenant_id", "application_id"])
def test_a_cycle_by_way_of_another_application_is_none(name: str) -> None:
    elsewhere = {name: "other"}
    second = id_of("second", **elsewhere)
    first = request("first", dependencies=[Dependency(workload_id=second)])
    authority.admit(request("one", dependencies=[Dependency(workload_id=id_of("first"))], **elsewhere), now=T0)
    one = [Dependency(workload_id=id_of("one", **elsewhere))]
    answers = authority.admit_many([first, request("second", dependencies=one, **elsewhere)], now=T0)
    assert all(isinstance(answer, Admission) for answer in answers)


def test_the_answer_is_a_stored_instance_of_its_database() -> None:
    workload = authority.admit(request(), now=T0).workload
    assert workload._state.adding is False
    assert workload._state.db == "default"


def test_a_key_whose_work_came_to_rest_nobody_knows_when_is_retired_all_the_same() -> None:
    Tombstone.objects.create(
        workload_id=id_of(), tenant_id="t", application_id="app", state=WorkloadState.CANCELLED, pruned_at=T0
    )
    with refused("IDEMPOTENCY_KEY_RETIRED", {"state": "CANCELLED", "finished_at": None}):
        authority.admit(request(), now=at(1))


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What the database's clock says, in milliseconds after T0, each time that it is read."""
    said: list[int] = []

    def read(_: Any) -> dt.datetime:
        return at(said.pop(0))

    monkeypatch.setattr(clock, "read", read)
    # What a statement about rows reads beside them.
    monkeypatch.setattr(clock, "from_db", read)
    return said


def instants(key: str) -> set[dt.datetime]:
    """Return every instant that a new workload bears."""
    workload = authority.get(id_of(key))
    named = (workload.created_at, workload.updated_at, workload.overall_from, workload.next_attempt_at)
    return {*named, *(event.at for event in events(id_of(key)))}


@pytest.mark.parametrize(("waited_ms", "admitted_ms"), [(0, 0), (100, 0), (101, 101), (5_000, 5_000)])
def test_an_admission_that_waited_is_admitted_when_it_got_in(
    ticks: list[int], waited_ms: int, admitted_ms: int
) -> None:
    ticks += [0, waited_ms]
    answers = authority.admit_many([request("a"), request("b")])
    assert instants("a") == instants("b") == {at(admitted_ms)}
    assert [a.workload.created_at for a in answers if isinstance(a, Admission)] == [at(admitted_ms)] * 2
    assert ticks == []


def test_what_goes_in_afterwards_is_measured_from_the_same_instant(ticks: list[int]) -> None:
    ticks += [0, 50, 90, 130]
    authority.admit_many([request("a"), request("b", dependencies=[Dependency(workload_id=id_of("a"))])])
    assert instants("a") == instants("b") == {at(0)}


def test_an_instant_that_was_given_is_kept(ticks: list[int]) -> None:
    admit("a", now=at(7))
    assert instants("a") == {at(7)}
