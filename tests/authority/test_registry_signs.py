"""The registry of workers, sign by sign: whose row one goes to, when the next is due, and what a failure says."""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models import F

from tests.authority.connections import without_registry
from tests.support import T0
from workloads import authority
from workloads.authority import registry
from workloads.authority.dependencies import key_of
from workloads.authority.registry import Memory, News
from workloads.models import SeenWorker

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "news", News())
    registry.memory.clear()
    yield
    registry.memory.clear()


def offer(worker_id: str = "w", **fields: Any) -> bool:
    """Note a worker that asks for work, by the database's clock."""
    return authority.note_worker(worker_id, capabilities=(), **fields)


def test_a_worker_of_which_no_more_is_said_is_here_and_has_no_incarnation() -> None:
    offer()
    assert SeenWorker.objects.values_list("is_remote", "incarnation").get() == (False, "")


@pytest.mark.parametrize(
    ("place", "named"),
    [({}, ("", "")), ({"tenant_id": "t"}, ("t", "")), ({"tenant_id": "t", "application_id": "app"}, ("t", "app"))],
)
def test_a_row_is_found_by_its_tenant_its_application_and_its_worker(place: Any, named: tuple[str, str]) -> None:
    offer(**place)
    assert SeenWorker.objects.get().worker_key == key_of(*named, "w")


def test_one_worker_is_not_taken_for_another() -> None:
    assert offer() and offer("v") and offer(tenant_id="t") and offer(tenant_id="t", application_id="app")
    assert not offer() and not offer("v") and not offer(tenant_id="t")


def test_a_heartbeat_is_not_taken_for_a_call_for_work() -> None:
    assert not authority.note_worker("w", is_heartbeat=True)
    assert offer()


def test_a_sign_of_whom_no_row_knows_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    assert not authority.note_worker("w", is_heartbeat=True)
    assert not authority.note_worker("w", is_heartbeat=True, now=T0)
    assert not SeenWorker.objects.exists()
    assert caplog.records == []


@pytest.mark.parametrize(("age_s", "least_s", "most_s"), [(7, 0, 3), (0, 5, 10), (-60, 9, 10)])
def test_it_is_tried_again_when_what_another_server_wrote_is_ten_seconds_old(
    age_s: int, least_s: int, most_s: int, caplog: pytest.LogCaptureFixture
) -> None:
    offer()
    SeenWorker.objects.update(seen_at=F("seen_at") - dt.timedelta(seconds=age_s))
    registry.memory.clear()
    before = time.monotonic()
    assert not offer()
    (signs,) = registry.memory._workers.values()
    assert signs.due_at - time.monotonic() <= most_s
    assert signs.due_at - before >= least_s
    assert caplog.records == []


def test_whom_no_row_knows_is_looked_for_again_after_ten_seconds() -> None:
    before = time.monotonic()
    authority.note_worker("w", is_heartbeat=True)
    (signs,) = registry.memory._workers.values()
    assert signs.due_at - before >= 9


def test_what_is_new_is_remembered_where_the_memory_is_full() -> None:
    memory = Memory(lambda: 1_000.0, most=2)
    for name in "abc":
        assert memory.add(name, ["asked_at"]) is not None
    assert len(memory) == 2
    assert memory.add("b", ["asked_at"]) is None
    assert memory.add("c", ["asked_at"]) is None


@pytest.mark.django_db(transaction=True)
def test_a_failure_is_told_with_its_cause(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with without_registry():
        assert not offer()
    (record,) = caplog.records
    assert "workloads_seenworker" in record.getMessage()
    assert "\n" not in record.getMessage()


@pytest.mark.django_db(transaction=True)
def test_a_callers_transaction_waits_for_locks_as_long_as_before() -> None:
    if connection.vendor != "postgresql":
        pytest.skip("Elsewhere the bound is that of a statement, or there is none.")
    with transaction.atomic(), connection.cursor() as cursor:
        assert offer() and offer("v")
        cursor.execute("SHOW lock_timeout")
        assert cursor.fetchone() == ("0",)
