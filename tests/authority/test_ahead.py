"""A batch whose parts are made while the ones before are stored: what is stored and answered is as step by step."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest
from django.db import ProgrammingError, connection, transaction
from django.test.utils import CaptureQueriesContext

from tests.authority.builders import id_of, request
from tests.authority.test_at_once import elsewhere, stored
from tests.faults.disturbance import At
from tests.support import T0, at
from workloads import authority
from workloads.authority import admission, clock
from workloads.contract import Admission, AdmissionRequest, Dependency, Timeouts
from workloads.errors import WorkloadError
from workloads.models import Admitted, Event, Tombstone, Workload

pytestmark = pytest.mark.django_db(transaction=True)
postgresql = pytest.mark.skipif(connection.vendor != "postgresql", reason="Elsewhere it goes step by step.")

KEYS = "abcdefg"


@pytest.fixture(autouse=True)
def two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let two be made at a time."""
    monkeypatch.setattr(admission, "AHEAD", 2)


@pytest.fixture(autouse=True)
def seen_lane() -> None:
    authority.admit(request("first"))


def odd(prefix: str) -> list[AdmissionRequest]:
    """Make requests of many kinds: new, known, known by another, pruned, refused, dependent, and twice the same."""
    needed = Dependency(workload_id=id_of("first"))
    unknown = Dependency(workload_id="nowhere")
    return [
        request(f"{prefix} plain", input={"n": [1, None, "é\"'\\{}"]}),
        request("first"),
        request("first", priority=3),
        request(f"{prefix} later", not_before=at(10**9), priority=-5),
        request("gone"),
        request(f"{prefix} wrong", definition_id=""),
        request(f"{prefix} dependent", dependencies=[needed, unknown]),
        request(f"{prefix} timed", timeouts=Timeouts(overall_ms=5_000, queue_ms=1), capability_snapshot={"gpu"}),
        request(f"{prefix} plain", input={"n": [1, None, "é\"'\\{}"]}),
        request(f"{prefix} last", grant=None, session_id="s", trigger="timer"),
    ]


def told(outcomes: list[Admission | WorkloadError]) -> list[Any]:
    return [(o.code, o.details) if isinstance(o, WorkloadError) else o.created for o in outcomes]


def test_a_batch_is_what_it_is_in_a_callers_transaction() -> None:
    Tombstone.objects.create(
        workload_id=id_of("gone"), tenant_id="t", application_id="app", state="SUCCEEDED", pruned_at=T0
    )
    alone = authority.admit_many(odd("alone"), now=T0)
    with transaction.atomic():
        inside = authority.admit_many(odd("inside"), now=T0)
    assert told(alone) == told(inside)
    assert [o.created for o in alone if isinstance(o, Admission)] == [True, False, True, True, True, False, True]
    for name in ("plain", "later", "dependent", "timed", "last"):
        assert stored(id_of(f"alone {name}")) == stored(id_of(f"inside {name}"))
    for outcome in alone:
        if isinstance(outcome, Admission):
            fresh = Workload.objects.get(pk=outcome.workload.pk)
            assert {
                k: v for k, v in vars(outcome.workload).items() if k not in ("_state", "_prefetched_objects_cache")
            } == {k: v for k, v in vars(fresh).items() if k not in ("_state", "admitted_ptr")}
    assert list(authority.verify(now=at(1))) == []


def test_what_was_asked_for_first_goes_first() -> None:
    answers = authority.admit_many([request(key) for key in KEYS])
    keys = [answer.workload.pk for answer in answers if isinstance(answer, Admission)]
    assert keys == sorted(keys) and len(set(keys)) == len(KEYS)
    claims = authority.claim_next(worker_id="w", capabilities=(), lease_ms=1_000, limit=9)
    assert [claim.workload_id for claim in claims] == [id_of("first"), *map(id_of, KEYS)]


@postgresql
def test_each_part_is_one_statement() -> None:
    with CaptureQueriesContext(connection) as captured:
        authority.admit_many([request(key) for key in KEYS])
    sent = [query["sql"] for query in captured if query["sql"].startswith("WITH")]
    assert [statement.count("workloads_event") for statement in sent] == [1, 1, 1, 1]


def _in_between(act: Callable[[], Any]) -> Any:
    """Act just before the first part is sent."""
    place = 0

    def watch(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        nonlocal place
        if sql.startswith("WITH") and not place:
            place += 1
            elsewhere(act)
        return execute(sql, params, many, context)

    return connection.execute_wrapper(watch)


@postgresql
def test_one_that_comes_in_between_is_answered_and_the_others_are_admitted() -> None:
    with _in_between(lambda: authority.admit(request("c"))):
        answers = authority.admit_many([request(key) for key in KEYS])
    assert [a.created for a in answers if isinstance(a, Admission)] == [key != "c" for key in KEYS]
    assert Event.objects.count() == 2 * (len(KEYS) + 1)
    assert list(authority.verify()) == []


@postgresql
def test_one_that_waited_is_admitted_when_it_got_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "WAITED", dt.timedelta(hours=-1))
    began = clock.read(connection)
    answers = authority.admit_many([request(key) for key in KEYS])
    assert all(a.created and a.workload.created_at > began for a in answers if isinstance(a, Admission))
    assert Admitted.objects.count() == len(KEYS) + 1
    assert Event.objects.count() == 2 * (len(KEYS) + 1)
    assert list(authority.verify()) == []


@postgresql
@pytest.mark.parametrize("spoilt", [1, 2, 4])
def test_an_error_in_one_part_leaves_nothing_of_any(spoilt: int) -> None:
    parts = 0

    def spoil(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        nonlocal parts
        parts += sql.startswith("WITH")
        if sql.startswith("WITH") and parts == spoilt:
            sql = sql.replace("INSERT INTO workloads_event", "INSERT INTO nowhere")
        return execute(sql, params, many, context)

    with connection.execute_wrapper(spoil), pytest.raises(ProgrammingError):
        authority.admit_many([request(key) for key in KEYS])
    assert Admitted.objects.count() == 1
    assert all(isinstance(a, Admission) and a.created for a in authority.admit_many([request(key) for key in KEYS]))


@postgresql
def test_a_connection_that_is_cut_leaves_nothing() -> None:
    cut = At(4, lambda: connection.connection.pgconn.finish(), before=True)
    with connection.execute_wrapper(cut), pytest.raises(Exception, match="clos"):
        authority.admit_many([request(key) for key in KEYS])
    connection.close()
    assert cut.has_acted
    assert Admitted.objects.count() == 1
