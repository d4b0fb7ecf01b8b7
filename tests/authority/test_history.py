"""History is appended to, and never changed. Sections 2 and 12."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction

from tests.authority.builders import EVERY, S, bring, events, path, record, unchanged
from tests.support import at
from workloads import authority
from workloads.contract import Dependency as On
from workloads.lifecycle.states import is_legal
from workloads.models import Attempt, Checkpoint, Dependency, Event, Result, Workload

pytestmark = pytest.mark.django_db

HISTORY = [Event, Attempt, Checkpoint, Result, Dependency]


def full() -> str:
    """Leave a workload with a row of each kind."""
    parent, _ = bring(S.SUCCEEDED, "parent")
    workload_id, fence = bring(S.CHECKPOINTED, dependencies=[On(workload_id=parent)])
    authority.complete(fence, result_id="r", output=1, now=at(5_000))
    return workload_id


@pytest.mark.parametrize("model", HISTORY)
def test_a_models_rows_can_not_be_saved_changed_or_deleted(model: Any) -> None:
    workload_id = full()
    row = model.objects.first()
    with unchanged(workload_id):
        for change in (
            lambda: row.save(),
            lambda: row.delete(),
            lambda: model.objects.all().update(pk=row.pk),
            lambda: model.objects.all().delete(),
            lambda: model.objects.filter(pk=row.pk).delete(),
            lambda: model.objects.create(),
            lambda: model.objects.bulk_update([row], [model._meta.fields[-1].name]),
        ):
            with pytest.raises(TypeError), transaction.atomic():
                change()


def test_nor_through_a_workload() -> None:
    workload_id = full()
    workload = authority.get(workload_id)
    with unchanged(workload_id):
        for change in (
            lambda: workload.events.all().delete(),
            lambda: workload.events.update(actor="x"),
            lambda: workload.attempts.update(error="x"),
            lambda: workload.events.create(),
            lambda: workload.save(),
            lambda: workload.delete(),
            lambda: Workload.objects.filter(workload_id=workload_id).update(priority=1),
            lambda: Workload.objects.all().delete(),
            lambda: Workload.objects.create(),
            lambda: Workload.objects.bulk_update([workload], ["state"]),
        ):
            with pytest.raises(TypeError), transaction.atomic():
                change()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE workloads_event SET actor = 'x'",
        "UPDATE workloads_event SET evidence = '{}' WHERE sequence = 1",
        "DELETE FROM workloads_event",
        "DELETE FROM workloads_event WHERE sequence = 2",
    ],
)
def test_postgresql_refuses_to_change_events_or_to_delete_them(statement: str) -> None:
    if connection.vendor != "postgresql":
        pytest.skip("The trigger is PostgreSQL's.")
    workload_id = full()
    with unchanged(workload_id), pytest.raises(DatabaseError), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(statement)


def test_postgresql_lets_the_events_of_a_workload_go_that_is_gone() -> None:
    if connection.vendor != "postgresql":
        pytest.skip("The trigger is PostgreSQL's.")
    workload_id = full()
    pk, count = authority.get(workload_id).pk, len(events(workload_id))
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM workloads_workload WHERE admitted_id = %s", [pk])
        cursor.execute("DELETE FROM workloads_event WHERE record = %s", [pk])
        assert cursor.rowcount == count


@pytest.mark.parametrize("state", EVERY)
def test_events_run_without_a_gap_along_legal_pairs(state: str) -> None:
    workload_id, _ = bring(state)
    rows = events(workload_id)
    assert [event.sequence for event in rows] == list(range(1, len(rows) + 1))
    assert rows[0].from_state == ""
    for before, after in itertools.pairwise(rows):
        assert after.from_state == before.to_state
        assert before.at <= after.at
    assert all(is_legal(event.from_state, event.to_state) for event in rows)
    assert rows[-1].to_state == state


@pytest.mark.parametrize("state", EVERY)
def test_evidence_maps_strings_to_strings(state: str) -> None:
    workload_id, _ = bring(state)
    for event in events(workload_id):
        assert isinstance(event.evidence, dict)
        assert all(isinstance(k, str) and isinstance(v, str) for k, v in event.evidence.items())


@pytest.mark.parametrize("state", EVERY)
def test_there_is_a_current_claim_exactly_in_the_held_states(state: str) -> None:
    workload_id, fence = bring(state)
    workload = authority.get(workload_id)
    claim = (workload.claim_id, workload.worker_id, workload.claimed_at, workload.last_heartbeat, workload.expires_at)
    held = state in ("CLAIMED", "RUNNING", "CHECKPOINTED", "CANCELLATION_REQUESTED")
    assert all(value is not None for value in claim) if held else claim == (None,) * 5
    open_ = [a for a in workload.attempts.all() if a.ended_at is None]
    assert [a.claim_id for a in open_] == ([fence.claim_id] if held else [])
    assert workload.fencing_token == workload.attempt_count == workload.attempts.count()
    resting = state in ("SUCCEEDED", "CANCELLED", "DEAD_LETTER", "TIMED_OUT")
    assert (workload.finished_at is not None) is resting
    assert hasattr(workload, "result") is (state == "SUCCEEDED")


def test_a_version_grows_by_one_with_each_operation() -> None:
    workload_id, fence = bring(S.CLAIMED)
    versions = [authority.get(workload_id).version]
    for call in (
        lambda: authority.start(fence, now=at(2_000)),
        lambda: authority.heartbeat(fence, extend_ms=5, now=at(2_100)),
        lambda: authority.checkpoint(fence, 1, now=at(2_200)),
        lambda: authority.fail(fence, kind="fatal", error="", now=at(2_300)),
        lambda: authority.rearm(workload_id, actor="op", reason="x", now=at(2_400)),
        lambda: authority.time_out(workload_id, actor="op", now=at(2_500)),
        lambda: authority.cancel(workload_id, actor="op", now=at(2_600)),
    ):
        call()
        workload = authority.get(workload_id)
        versions.append(workload.version)
        assert workload.updated_at == at(2_000 + 100 * (len(versions) - 2))
    assert versions == list(range(2, 10))


def test_a_closed_attempt_is_left_as_it_ended() -> None:
    workload_id, fence = bring(S.RUNNING)
    authority.fail(fence, kind="timeout", error="first", now=at(3_000))
    first = record(workload_id)["attempts"][0]
    authority.time_out(workload_id, actor="op", now=at(3_100))
    authority.rearm(workload_id, actor="op", reason="x", now=at(3_200))
    authority.claim(workload_id, worker_id="v", capabilities=[], lease_ms=10, now=at(3_300))
    authority.recover_expired(now=at(3_400))
    authority.cancel(workload_id, actor="op", now=at(3_500))
    assert record(workload_id)["attempts"][0] == first
    assert path(workload_id)[-1] == "CANCELLED"
