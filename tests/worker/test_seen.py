"""That a worker of this site is seen: idle, busy, and anew; and that its work goes on when that can't be noted."""

from __future__ import annotations

import datetime as dt
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.authority.connections import without_registry
from tests.worker.tools import admit, drain, eventually, registry, state, working
from workloads import authority
from workloads.authority import registry as seen
from workloads.models import SeenWorker
from workloads.worker import Worker, heartbeats

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    seen.memory.clear()
    yield
    seen.memory.clear()


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a sign be written every tenth of a second."""
    monkeypatch.setattr(seen, "EVERY", dt.timedelta(milliseconds=100))


def row(**fields: Any) -> SeenWorker:
    return SeenWorker.objects.get(**fields)


def test_a_worker_is_seen_with_what_it_offers() -> None:
    admit()
    handlers = registry(lambda attempt: None, capabilities={"gpu"})
    drain(handlers, worker_id="w", capabilities={"gpu", "smtp"}, tenant_id="t", application_id="worker")
    found = row()
    assert (found.worker_id, found.tenant_id, found.application_id) == ("w", "t", "worker")
    assert (found.capabilities, found.definitions) == (frozenset({"gpu", "smtp"}), frozenset(handlers.selectors()))
    assert not found.is_remote and found.incarnation
    assert found.asked_at == found.claimed_at == found.first_seen_at


def test_it_is_written_once_however_much_it_does() -> None:
    ids = [admit() for _ in range(20)]
    drain(lambda attempt: None, concurrency=3)
    assert {state(workload_id) for workload_id in ids} == {"SUCCEEDED"}
    assert row().first_seen_at == row().seen_at


@pytest.mark.usefixtures("often")
def test_one_that_finds_no_work_is_seen_all_the_same() -> None:
    with working(lambda attempt: None):
        first = eventually(lambda: SeenWorker.objects.first())
        found = eventually(lambda: SeenWorker.objects.filter(asked_at__gt=first.asked_at).first())
    assert found.pk == first.pk
    assert found.claimed_at is None and found.heartbeat_at is None
    assert not [blocker for blocker in authority.explain(admit()) if blocker.code == "no_capable_worker_seen"]


@pytest.mark.usefixtures("often")
def test_one_that_is_busy_for_long_is_seen_by_its_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeats, "BEATS_A_LEASE", 200)
    done = threading.Event()
    workload_id = admit()
    with working(lambda attempt: done.wait(30) and None, lease_ms=20_000):
        first = eventually(lambda: SeenWorker.objects.exclude(heartbeat_at=None).first())
        later = eventually(lambda: SeenWorker.objects.filter(heartbeat_at__gt=first.heartbeat_at).first())
        assert later.asked_at == first.asked_at < first.heartbeat_at
        assert later.seen_at == later.heartbeat_at
        # What has cleared the registry away hides no worker for long.
        SeenWorker.objects.all().delete()
        again = eventually(lambda: SeenWorker.objects.first())
        assert again.definitions == frozenset({"test"})
        done.set()
        eventually(lambda: state(workload_id) == "SUCCEEDED")


@pytest.mark.usefixtures("often")
def test_a_worker_that_is_begun_anew_under_its_name_has_another_incarnation() -> None:
    drain(lambda attempt: None, worker_id="w")
    first = row()
    drain(lambda attempt: None, worker_id="w")
    eventually(lambda: Worker(worker_id="w", drain=True).run() and row().incarnation != first.incarnation)
    assert row().first_seen_at == first.first_seen_at


@pytest.mark.usefixtures("often")
def test_where_it_cant_be_noted_work_is_claimed_kept_and_done(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "workloads")
    seen.news.__init__()
    monkeypatch.setattr(heartbeats, "BEATS_A_LEASE", 100)
    workload_id = admit()

    def run(attempt: Any) -> None:
        start = authority.get(workload_id).last_heartbeat
        eventually(lambda: authority.get(workload_id).last_heartbeat > start)

    with without_registry():
        drain(run, lease_ms=5_000)
    assert state(workload_id) == "SUCCEEDED"
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.name for record in warnings] == ["workloads.authority"]
    assert "can't be written down" in warnings[0].message
    drain(lambda attempt: None)
    assert SeenWorker.objects.count() == 1
