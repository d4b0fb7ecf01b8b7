"""One new workload at once, or step by step: what is stored and answered is the same."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import ProgrammingError, connection, connections, transaction
from django.forms.models import model_to_dict
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, given, settings, strategies as st

from tests.authority.builders import id_of, refused, request
from tests.faults.disturbance import At
from tests.support import T0, at
from workloads import authority, signals
from workloads.authority import at_once, clock
from workloads.contract import Backoff, Dependency, RetryPolicy, Timeouts
from workloads.models import Admitted, Event, Tombstone, Workload

pytestmark = pytest.mark.django_db(transaction=True)

postgresql = pytest.mark.skipif(connection.vendor != "postgresql", reason="Elsewhere it goes step by step.")

MILLISECONDS = st.none() | st.integers(1, 10**9)
REQUESTS = st.fixed_dictionaries(
    {},
    optional={
        "environment": st.sampled_from(["", "prod"]).filter(bool),
        "input": st.recursive(
            st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.text("a\"\\{},é%'", max_size=9),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
            max_leaves=6,
        ),
        "trigger": st.sampled_from(["", "timer"]),
        "session_id": st.none() | st.just("s"),
        "capability_snapshot": st.frozensets(st.sampled_from(["gpu", "net"])),
        "connection_scopes": st.frozensets(st.sampled_from(["db", "mail"])),
        "priority": st.integers(-(2**31), 2**31 - 1),
        "not_before": st.none() | st.integers(-(10**6), 10**6).map(at),
        "timeouts": st.builds(Timeouts, overall_ms=MILLISECONDS, queue_ms=MILLISECONDS, execution_ms=MILLISECONDS),
        "retry_policy": st.builds(
            RetryPolicy, max_attempts=st.integers(1, 9), backoff=st.sampled_from(Backoff), jitter=st.floats(0, 1)
        ),
    },
)


def elsewhere(call: Callable[[], Any]) -> None:
    """Run a call on another connection, to its end."""

    def run() -> None:
        try:
            call()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as threads:
        threads.submit(run).result()


def stored(workload_id: str) -> dict[str, Any]:
    """Return all that is stored of a workload but what only one can have."""
    workload = Workload.objects.get(workload_id=workload_id)
    events = list(Event.objects.filter(record=workload.pk).order_by("sequence").values())
    for event in events:
        del event["id"], event["record_id"]
    own = {"id", "admitted_ptr", "admitted_id", "workload_id", "idempotency_key"}
    return {name: value for name, value in vars(workload).items() if name not in own | {"_state"}} | {"events": events}


def of_instance(workload: Workload) -> dict[str, Any]:
    own = {"id", "admitted_id", "workload_id", "idempotency_key", "_state"}
    return {name: value for name, value in vars(workload).items() if name not in own}


keys = (f"{n}" for n in itertools.count())


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(asked=REQUESTS)
def test_it_is_what_a_batch_would_store(asked: dict[str, Any]) -> None:
    one, other = next(keys), next(keys)
    alone = authority.admit(request(one, **asked), now=T0)
    (beside,) = authority.admit_many([request(other, **asked)], now=T0)
    assert not isinstance(beside, Exception)
    assert alone.created and beside.created
    assert stored(id_of(one)) == stored(id_of(other))
    fresh = Workload.objects.get(workload_id=id_of(one))
    assert of_instance(alone.workload) == of_instance(beside.workload)
    assert model_to_dict(alone.workload) == model_to_dict(fresh)
    assert alone.workload == fresh and alone.workload._state.db == fresh._state.db and not alone.workload._state.adding
    assert list(authority.verify(now=at(1))) == []


@pytest.fixture
def seen_lane() -> None:
    """Let the lane of plain work be there."""
    authority.admit(request("first"))


@postgresql
@pytest.mark.usefixtures("seen_lane")
@pytest.mark.parametrize("now", [None, T0, T0.replace(year=2020)])
def test_it_takes_two_round_trips(now: dt.datetime | None) -> None:
    with CaptureQueriesContext(connection) as captured:
        assert authority.admit(request("second"), now=now).created
    assert [query["sql"].split()[0] for query in captured] == ["SELECT", "WITH"]


@pytest.mark.usefixtures("seen_lane")
def test_who_commits_himself_can_undo_it() -> None:
    connection.set_autocommit(False)
    try:
        assert authority.admit(request("second")).created
        connection.rollback()
    finally:
        connection.set_autocommit(True)
    assert not Admitted.objects.filter(workload_id=id_of("second")).exists()


@pytest.mark.usefixtures("seen_lane")
def test_its_instant_is_the_clocks() -> None:
    before = clock.read(connection)
    workload = authority.admit(request("second")).workload
    assert before <= workload.created_at <= clock.read(connection)
    assert {e.at for e in workload.events.all()} == {workload.created_at, workload.updated_at, workload.overall_from}


@pytest.mark.usefixtures("seen_lane")
@pytest.mark.parametrize("not_before", [None, at(10**12)])
def test_that_work_is_queued_is_said_once(not_before: dt.datetime | None) -> None:
    said: list[Any] = []

    def note(**given: Any) -> None:
        said.append(connection.in_atomic_block)

    signals.work_queued.connect(note)
    try:
        authority.admit(request("second", not_before=not_before))
    finally:
        signals.work_queued.disconnect(note)
    assert said == ([False] if not_before is None else [])


@pytest.mark.usefixtures("seen_lane")
def test_a_repeat_is_answered_with_what_is_there() -> None:
    first = authority.admit(request("second"))
    again = authority.admit(request("second"))
    assert (first.created, again.created) == (True, False)
    assert again.workload == first.workload
    with refused("IDEMPOTENCY_KEY_REUSED", {"fields": ["priority"]}):
        authority.admit(request("second", priority=3))


@pytest.mark.usefixtures("seen_lane")
def test_what_was_pruned_is_not_admitted_again() -> None:
    Tombstone.objects.create(
        workload_id=id_of("gone"), tenant_id="t", application_id="app", state="SUCCEEDED", pruned_at=T0
    )
    with refused("IDEMPOTENCY_KEY_RETIRED"):
        authority.admit(request("gone"))
    assert not Workload.objects.filter(workload_id=id_of("gone")).exists()


@pytest.mark.usefixtures("seen_lane")
def test_a_callers_transaction_takes_it_back() -> None:
    with transaction.atomic():
        assert authority.admit(request("second")).created
        transaction.set_rollback(True)
    assert not Admitted.objects.filter(workload_id=id_of("second")).exists()


@pytest.mark.usefixtures("seen_lane")
def test_work_that_depends_on_other_work_waits_for_it() -> None:
    needed = Dependency(workload_id=id_of("first"))
    assert authority.admit(request("second", dependencies=[needed])).workload.dependency_standing == "waiting"


@postgresql
@pytest.mark.usefixtures("seen_lane")
def test_one_that_comes_in_between_wins() -> None:
    """Another admission of the same key is committed after the look, and before the statement that stores."""
    between = At(1, lambda: elsewhere(lambda: authority.admit(request("second", input={"n": 1}))))
    with connection.execute_wrapper(between):
        admitted = authority.admit(request("second", input={"n": 1}))
    assert between.has_acted
    assert not admitted.created
    assert Event.objects.filter(record=admitted.workload.pk).count() == 2
    assert list(authority.verify()) == []


@postgresql
@pytest.mark.usefixtures("seen_lane")
def test_one_that_waited_is_admitted_when_it_got_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Past the time that an insert may take nothing of it is kept, and its instant is taken anew."""
    monkeypatch.setattr(at_once, "WAITED", dt.timedelta(hours=-1))
    began = clock.read(connection)
    with CaptureQueriesContext(connection) as captured:
        admitted = authority.admit(request("second"))
    assert admitted.created
    assert len(captured) > 2
    assert admitted.workload.created_at >= began
    assert Event.objects.filter(record=admitted.workload.pk).count() == 2
    assert list(authority.verify()) == []


@postgresql
@pytest.mark.usefixtures("seen_lane")
def test_another_error_of_the_statement_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        return execute(sql.replace("INSERT INTO workloads_event", "INSERT INTO nowhere"), params, many, context)

    with connection.execute_wrapper(spoil), pytest.raises(ProgrammingError):
        authority.admit(request("second"))
    assert not Admitted.objects.filter(workload_id=id_of("second")).exists()
