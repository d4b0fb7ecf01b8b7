"""That workers over HTTP are seen: by their claims, granted or not, and by their heartbeats; each in its tenant."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from tests.api.tools import Caller, admission, claiming, fence, place
from tests.authority.connections import without_registry
from workloads.authority import registry
from workloads.models import SeenWorker

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    registry.memory.clear()
    yield
    registry.memory.clear()


@pytest.fixture
def worker() -> Caller:
    return Caller("wanda", place("worker", "requester", capabilities={"a", "b"}))


def admit(caller: Caller, key: str = "k", **fields: Any) -> str:
    answer = caller.post("workloads/", admission(key, **fields))
    assert answer.status == 201, answer.text
    return str(answer.body["workload_id"])


def claim(caller: Caller, **fields: Any) -> list[dict[str, Any]]:
    answer = caller.post("claims/", claiming(**fields))
    assert answer.status == 200, answer.text
    return answer.body["claims"]  # type: ignore[no-any-return]


def item(held: dict[str, Any]) -> dict[str, Any]:
    return fence(held) | {"workload_id": held["workload_id"], "extend_ms": 60_000}


def long_ago() -> None:
    """As if all that was seen so far had been seen and written an hour ago."""
    then = registry.clock.read(connection) - registry.dt.timedelta(hours=1)
    SeenWorker.objects.update(seen_at=then, asked_at=then)
    registry.memory.clear()


def test_who_finds_no_work_is_seen_with_what_it_offers(worker: Caller) -> None:
    assert claim(worker, capabilities=["b", "a"], definitions=["invoices.render", "x@2"]) == []
    row = SeenWorker.objects.get()
    assert (row.worker_id, row.tenant_id, row.application_id) == ("w-1", "acme", "invoices")
    assert (row.capabilities, row.definitions) == (frozenset("ab"), frozenset({"invoices.render", "x@2"}))
    assert row.is_remote and row.incarnation == ""
    assert row.asked_at == row.seen_at and row.claimed_at is None


def test_who_waits_for_work_is_seen_before_its_wait_is_over(worker: Caller) -> None:
    answer = worker.post("claims/", claiming(wait_ms=20_000))
    assert answer.headers["Retry-After"]
    assert SeenWorker.objects.get().asked_at is not None


def test_who_is_given_work_has_claimed(worker: Caller) -> None:
    admit(worker)
    assert len(claim(worker)) == 1
    row = SeenWorker.objects.get()
    assert row.claimed_at == row.asked_at


def test_who_works_for_a_whole_tenant_is_seen_there() -> None:
    claim(Caller("wanda", place("worker", application="")))
    assert SeenWorker.objects.filter(tenant_id="acme", application_id=None).count() == 1


def test_one_name_in_two_tenants_is_two_workers(worker: Caller) -> None:
    claim(worker)
    claim(Caller("gus", place("worker", tenant="globex")))
    assert set(SeenWorker.objects.values_list("tenant_id", "worker_id")) == {("acme", "w-1"), ("globex", "w-1")}


@pytest.mark.parametrize(
    ("fields", "status"),
    [({"tenant_id": "globex"}, 200), ({"capabilities": ["c"]}, 403), ({"worker_id": ""}, 400)],
)
def test_who_may_not_claim_is_not_seen(worker: Caller, fields: Any, status: int) -> None:
    assert worker.post("claims/", claiming(**fields)).status == status
    assert not SeenWorker.objects.exists()


def test_who_claims_what_it_names_offers_nothing_more(worker: Caller) -> None:
    first, second = admit(worker, "1"), admit(worker, "2")
    body = {"worker_id": "w-1", "capabilities": [], "lease_ms": 60_000}
    assert worker.post(f"workloads/{first}/claim/", body).status == 200
    assert not SeenWorker.objects.exists()
    claim(worker, limit=0 + 1, definitions=["x"])
    long_ago()
    assert worker.post(f"workloads/{second}/claim/", body).status == 200
    row = SeenWorker.objects.get()
    assert row.claimed_at == row.seen_at and row.definitions == frozenset("x")


@pytest.mark.parametrize("is_batch", [False, True])
def test_a_heartbeat_is_a_sign_of_life_of_its_worker_alone(worker: Caller, is_batch: bool) -> None:
    admit(worker)
    (held,) = claim(worker)
    claim(worker, worker_id="w-2")
    claim(Caller("gus", place("worker", tenant="globex")))
    long_ago()
    path = "heartbeats/" if is_batch else f"workloads/{held['workload_id']}/heartbeat/"
    body: Any = {"items": [item(held)]} if is_batch else fence(held) | {"extend_ms": 60_000}
    assert worker.post(path, body).status == 200
    (row,) = SeenWorker.objects.exclude(heartbeat_at=None)
    assert (row.worker_id, row.tenant_id) == ("w-1", "acme")
    assert row.seen_at == row.heartbeat_at and row.asked_at is not None and row.asked_at < row.seen_at


def test_a_heartbeat_that_is_refused_and_any_other_call_are_none(worker: Caller) -> None:
    admit(worker)
    (held,) = claim(worker)
    workload_id = held["workload_id"]
    long_ago()
    stale = fence(held) | {"fencing_token": 0, "extend_ms": 60_000}
    assert worker.post(f"workloads/{workload_id}/heartbeat/", stale).status >= 400
    assert worker.post("heartbeats/", {"items": [stale | {"workload_id": workload_id}]}).status == 200
    assert worker.post(f"workloads/{workload_id}/start/", fence(held)).status == 200
    assert worker.post("completions/", {"items": [item(held)]}).status == 200
    assert not SeenWorker.objects.exclude(heartbeat_at=None).exists()


def test_a_batch_for_many_workers_notes_a_few_of_them(worker: Caller) -> None:
    items = []
    for number in range(8):
        admit(worker, str(number))
        items += [item(held) for held in claim(worker, worker_id=f"w-{number}")]
    long_ago()
    assert worker.post("heartbeats/", {"items": items}).status == 200
    assert SeenWorker.objects.exclude(heartbeat_at=None).count() == 3


def test_what_was_noted_of_late_costs_no_query(worker: Caller) -> None:
    admit(worker)
    (held,) = claim(worker)
    calls = {
        "claims/": claiming(),
        "heartbeats/": {"items": [item(held)]},
        f"workloads/{held['workload_id']}/heartbeat/": fence(held) | {"extend_ms": 60_000},
    }
    for path, body in calls.items():
        worker.post(path, body)
        with CaptureQueriesContext(connection) as captured:
            assert worker.post(path, body).status == 200
        assert not [query for query in captured if "seenworker" in query["sql"]], path


def test_where_it_cant_be_noted_every_call_is_answered(worker: Caller, caplog: pytest.LogCaptureFixture) -> None:
    registry.news.__init__()
    caplog.set_level(logging.WARNING, "workloads")
    admit(worker)
    with without_registry():
        (held,) = claim(worker)
        assert worker.post("heartbeats/", {"items": [item(held)]}).status == 200
        assert worker.post(f"workloads/{held['workload_id']}/start/", fence(held)).status == 200
        registry.memory.clear()
        assert claim(worker) == []
    assert [record.name for record in caplog.records] == ["workloads.authority"]
    registry.memory.clear()
    claim(worker)
    assert SeenWorker.objects.count() == 1
