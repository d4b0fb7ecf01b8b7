"""A record that a newer version, a hand or a disk has spoilt: its page names what is spoilt, and shows the rest."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone

from tests.admin.conftest import LIST, admit, page
from workloads import authority
from workloads.admin import page_record
from workloads.contract import AdmissionRequest, Dependency, WorkloadState
from workloads.models import Workload

pytestmark = pytest.mark.django_db

BROKEN = '{"a": "<script>'


@pytest.fixture
def reader(client_with: Any) -> Client:
    """Somebody who may look, act, and read payloads."""
    reading: Client = client_with("view_workload", "view_payload", "rearm_workload", "cancel_workload")
    return reading


@pytest.fixture
def workload() -> Workload:
    """Work with as much of a history as may be: two attempts, a checkpoint, a result, and a dependency."""
    first = admit("first")
    authority.cancel(first.workload_id, actor="a")
    begun = timezone.now() - dt.timedelta(minutes=5)
    request = AdmissionRequest(
        tenant_id="t",
        application_id="app",
        requested_by="u",
        definition_id="d",
        idempotency_key="k",
        input={"n": 1},
        dependencies=[Dependency(workload_id=first.workload_id, required_state=WorkloadState.CANCELLED)],
    )
    work = authority.admit(request, now=begun).workload
    for turn in range(2):
        now = begun + dt.timedelta(minutes=2 * turn)
        claim = authority.claim(work.workload_id, worker_id=f"w{turn}", capabilities=(), lease_ms=60_000, now=now)
        fence = claim.fence
        authority.start(fence, now=now)
        authority.checkpoint(fence, {"step": turn}, now=now)
        if turn:
            authority.complete(fence, result_id="r", output={"done": 1}, artifacts=["a"], now=now)
        else:
            authority.release(fence, now=now)
    return authority.get(work.workload_id)


def execute(sql: str, params: Sequence[Any] = ()) -> int:
    """Run a statement behind everybody's back: PostgreSQL's triggers, which keep history, are let sleep meanwhile."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SET session_replication_role = replica")
        cursor.execute(sql, list(params))
        count = int(cursor.rowcount)
        if connection.vendor == "postgresql":
            cursor.execute("SET session_replication_role = DEFAULT")
    return count


KEYS = {"workload": "admitted_id", "admitted": "id", "dependency": "dependent_id"}


def spoil(workload: Workload, table: str, column: str, value: Any, where: str = "") -> None:
    key = KEYS.get(table, "record")
    name = connection.ops.quote_name(column)
    more = f" AND {where}" if where else ""
    done = execute(f"UPDATE workloads_{table} SET {name} = %s WHERE {key} = %s{more}", [value, workload.pk])
    assert done >= 1


def shown(client: Client, workload: Workload) -> Any:
    response = client.get(page(workload))
    assert response.status_code == 200
    assert "<script>" not in response.content.decode().partition('id="content-main"')[2].partition("zones.js")[0]
    return response


def named(response: Any) -> set[tuple[str, str]]:
    """Return the rows and columns that the page names as spoilt."""
    return {(each.row, each.column) for each in response.context["trouble"]}


TEXTS = [
    ("admitted", "capability_snapshot", "admitted work"),
    ("admitted", "connection_scopes", "admitted work"),
    ("admitted", "retry_policy", "admitted work"),
    ("admitted", "timeouts", "admitted work"),
    ("event", "evidence", "event 3"),
]


@pytest.mark.parametrize("value", [BROKEN, "", "5", "[1]", "[" * 5_000, '{"max_attempts": "x"}'])
@pytest.mark.parametrize(("table", "column", "row"), TEXTS)
def test_json_that_is_none_or_other_is_named(
    reader: Client, workload: Workload, table: str, column: str, row: str, value: str
) -> None:
    spoil(workload, table, column, value, "sequence = 3" if table == "event" else "")
    if (column, value) == ("evidence", '{"max_attempts": "x"}'):
        # A newer version may say more: that is shown as it is.
        assert "max_attempts" in shown(reader, workload).content.decode()
        return
    response = shown(reader, workload)
    assert (row, column) in named(response)
    text = response.content.decode()
    for said in (
        "This record is spoilt",
        workload.workload_id,
        "SUCCEEDED",
        'id="attempt-2"',
        'id="event-9"',
        "&quot;step&quot;: 1",
    ):
        assert said in text, said


@pytest.mark.parametrize("value", ['{"overall_ms":99999999999999999999}', '{"queue_ms":0}', '{"claim_ms":1.5}'])
def test_durations_that_nobody_may_give_are_named(reader: Client, value: str) -> None:
    workload = admit("waits")
    spoil(workload, "admitted", "timeouts", value)
    assert ("admitted work", "timeouts") in named(shown(reader, workload))


@pytest.mark.parametrize(
    ("table", "column", "where"),
    [
        ("admitted", "input", ""),
        ("result", "output", ""),
        ("result", "artifacts", ""),
        ("checkpoint", "state", "sequence = 2"),
    ],
)
@pytest.mark.parametrize("value", [BROKEN, "", "[" * 5_000])
def test_a_payload_that_is_no_json_is_shown_as_it_is(
    reader: Client, workload: Workload, table: str, column: str, where: str, value: str
) -> None:
    spoil(workload, table, column, value, where)
    response = shown(reader, workload)
    text = response.content.decode()
    if len(value) < page_record.MOST_STATE_CHARS:
        assert "It is no JSON: " in text
        assert column in {name for _, name in named(response)}
        assert '<strong class="workloads-spoilt">spoilt</strong>' in text
    if value == BROKEN:
        assert "{&quot;a&quot;: &quot;&lt;script&gt;" in text
    assert "It is done" in text
    what = {"state": "checkpoints/2"}.get(column, column)
    whole = reader.get(f"{LIST}{workload.pk}/payload/{what}/")
    assert "It is spoilt, and no JSON" in whole.content.decode()


@pytest.mark.parametrize("state", ["HOVERING", "", "ready"])
def test_a_state_that_nobody_knows_is_told(reader: Client, workload: Workload, state: str) -> None:
    spoil(workload, "workload", "state", state)
    response = shown(reader, workload)
    assert ("workload", "state") in named(response)
    text = response.content.decode()
    assert "Its record is spoilt, so that what comes next" in text
    assert f'data-state="{state}"' in text or not state
    assert response.context["offers"] == []
    assert response.context["reasons"] is None


@pytest.mark.parametrize(
    ("table", "column", "where", "row"),
    [
        ("attempt", "status", "number = 1", "attempt 1"),
        ("event", "to_state", "sequence = 4", "event 4"),
        ("event", "from_state", "sequence = 4", "event 4"),
    ],
)
def test_a_word_of_the_history_that_nobody_knows_is_told(
    reader: Client, workload: Workload, table: str, column: str, where: str, row: str
) -> None:
    spoil(workload, table, column, "HOVERING", where)
    response = shown(reader, workload)
    assert named(response) == {(row, column)}
    assert "HOVERING" in response.content.decode()
    assert "It is done" in response.content.decode()


def test_a_dependency_that_is_spoilt_shows_as_such(reader: Client, workload: Workload) -> None:
    spoil(workload, "dependency", "required_state", "HOVERING")
    spoil(workload, "dependency", "standing", "floating")
    text = shown(reader, workload).content.decode().partition('id="dependencies"')[2]
    assert text.count('<strong class="workloads-spoilt">') == 2


@pytest.mark.parametrize(
    ("sql", "missing"),
    [
        ("DELETE FROM workloads_attempt WHERE record = %s AND number = 2", ("attempts", "number")),
        ("DELETE FROM workloads_attempt WHERE record = %s", ("attempts", "number")),
        ("DELETE FROM workloads_event WHERE record = %s AND sequence = 1", ("events", "sequence")),
        ("DELETE FROM workloads_event WHERE record = %s", ("events", "sequence")),
        ("DELETE FROM workloads_checkpoint WHERE record = %s AND sequence = 1", ("checkpoints", "sequence")),
        ("DELETE FROM workloads_result WHERE record = %s", ("result", "")),
        ("UPDATE workloads_workload SET event_count = 3 WHERE admitted_id = %s", ("events", "sequence")),
        ("UPDATE workloads_workload SET attempt_count = 1 WHERE admitted_id = %s", ("attempts", "number")),
        ("UPDATE workloads_workload SET finished_at = NULL WHERE admitted_id = %s", ("workload", "finished_at")),
    ],
)
def test_rows_that_are_missing_are_told(reader: Client, workload: Workload, sql: str, missing: tuple[str, str]) -> None:
    assert execute(sql, [workload.pk]) >= 1
    response = shown(reader, workload)
    assert missing in named(response)
    assert workload.workload_id in response.content.decode()


def test_work_whose_admitted_row_is_missing_still_has_a_page(reader: Client, workload: Workload) -> None:
    assert execute("DELETE FROM workloads_admitted WHERE id = %s", [workload.pk]) == 1
    response = shown(reader, workload)
    text = response.content.decode()
    assert "The row that says what was admitted is missing." in text
    assert 'data-state="SUCCEEDED"' in text and 'id="attempt-2"' in text
    assert response.context["offers"] == []


def test_work_whose_standing_is_missing_still_has_a_page(reader: Client, workload: Workload) -> None:
    assert execute("DELETE FROM workloads_workload WHERE admitted_id = %s", [workload.pk]) == 1
    text = shown(reader, workload).content.decode()
    assert "The row that says how it stands is missing." in text
    assert workload.workload_id in text
    assert 'id="attempt-2"' in text


def test_a_half_of_a_record_is_not_shown_to_those_who_see_some_work_only(workload: Workload) -> None:
    assert execute("DELETE FROM workloads_workload WHERE admitted_id = %s", [workload.pk]) == 1
    everything, some = Workload.objects.all(), Workload.objects.filter(tenant_id="t")
    now = timezone.now()
    assert page_record.read_record(everything, workload.pk, now, reads_payloads=True) is not None
    assert page_record.read_record(some, workload.pk, now, reads_payloads=True) is None


@pytest.mark.parametrize(
    "column", ["claim_id", "worker_id", "attempt_id", "claimed_at", "last_heartbeat", "expires_at"]
)
def test_held_work_without_its_whole_claim_is_told(reader: Client, column: str) -> None:
    workload = admit("held")
    authority.start(authority.claim(workload.workload_id, worker_id="w", capabilities=(), lease_ms=60_000).fence)
    spoil(workload, "workload", column, None)
    response = shown(reader, workload)
    assert ("workload", column) in named(response)
    assert "A worker should hold it, and none does" in response.content.decode()


def test_clocks_that_ran_backwards_show_as_such(reader: Client, workload: Workload) -> None:
    before = connection.ops.adapt_datetimefield_value(dt.datetime(2001, 1, 1, tzinfo=dt.UTC))
    spoil(workload, "attempt", "ended_at", before, "number = 1")
    spoil(workload, "event", "at", before, "sequence = 4")
    text = shown(reader, workload).content.decode()
    assert "it ends before it begins" in text
    assert '<span class="workloads-since">−' in text


@pytest.mark.parametrize("year", [1, 9999])
def test_instants_at_the_ends_of_the_calendar_break_nothing(reader: Client, workload: Workload, year: int) -> None:
    far = dt.datetime(year, 1, 1, tzinfo=dt.UTC) if year == 1 else dt.datetime(year, 12, 31, 23, 59, tzinfo=dt.UTC)
    stored = connection.ops.adapt_datetimefield_value(far)
    for table, column in (("workload", "finished_at"), ("attempt", "claimed_at"), ("event", "at"), ("result", "at")):
        spoil(workload, table, column, stored)
    for zone in ("America/New_York", "Asia/Tokyo"):
        reader.cookies["workloads_tz"] = zone
        assert ("attempt 1", "claimed_at") in named(shown(reader, workload))


LOOSE = pytest.mark.skipif("connection.vendor != 'sqlite'", reason="SQLite alone keeps such values in such columns")


@LOOSE
@pytest.mark.parametrize(
    ("table", "column", "row"),
    [
        ("workload", "version", "workload"),
        ("workload", "event_count", "workload"),
        ("workload", "attempt_count", "workload"),
        ("workload", "uncounted_releases", "workload"),
        ("workload", "checkpoint_count", "workload"),
        ("workload", "updated_at", "workload"),
        ("workload", "finished_at", "workload"),
        ("workload", "overall_from", "workload"),
        ("admitted", "created_at", "admitted work"),
        ("admitted", "contract_version", "admitted work"),
        ("result", "at", "result"),
        ("result", "schema_version", "result"),
    ],
)
@pytest.mark.parametrize("value", ["<script>", b"\xff\xfe", 1.5])
def test_numbers_and_instants_that_are_none_are_named(
    reader: Client, workload: Workload, table: str, column: str, row: str, value: Any
) -> None:
    if isinstance(value, float) and not column.endswith(("_at", "at", "_from")):
        value = "1.5"
    execute("PRAGMA ignore_check_constraints = ON")
    spoil(workload, table, column, value)
    execute("PRAGMA ignore_check_constraints = OFF")
    response = shown(reader, workload)
    assert (row, column) in named(response)
    assert 'id="attempt-1"' in response.content.decode()


@LOOSE
@pytest.mark.parametrize(("table", "column"), [("attempt", "claimed_at"), ("checkpoint", "at"), ("event", "at")])
def test_a_spoilt_instant_of_the_history_is_left_out_of_the_picture(
    reader: Client, workload: Workload, table: str, column: str
) -> None:
    spoil(workload, table, column, "yesterday")
    response = shown(reader, workload)
    assert any(name == column for _, name in named(response))
    assert "workloads-timeline" in response.content.decode()


@LOOSE
@pytest.mark.parametrize(("table", "column"), [("attempt", "error"), ("admitted", "trigger"), ("admitted", "input")])
def test_bytes_that_are_no_text_are_named(reader: Client, workload: Workload, table: str, column: str) -> None:
    execute(
        f"UPDATE workloads_{table} SET {connection.ops.quote_name(column)} = CAST(x'41ff42' AS TEXT) "
        f"WHERE {KEYS.get(table, 'record')} = %s",
        [workload.pk],
    )
    response = shown(reader, workload)
    assert any(name == column for _, name in named(response))
    assert "A\ufffdB" in response.content.decode()


def test_what_is_written_while_it_is_read_is_no_fault(workload: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    moving = admit("moving")
    real, steps = page_record._read_history, iter([True, False])

    def read_history(record: Any, using: str) -> None:
        if next(steps, False):
            authority.claim(moving.workload_id, worker_id="w", capabilities=(), lease_ms=60_000)
        real(record, using)

    monkeypatch.setattr(page_record, "_read_history", read_history)
    record = page_record.read_record(Workload.objects.all(), moving.pk, timezone.now(), reads_payloads=False)
    assert record is not None
    assert record.trouble == []
    assert record.workload.state == "CLAIMED"


def test_a_sound_record_has_no_trouble(reader: Client, workload: Workload) -> None:
    response = shown(reader, workload)
    assert response.context["trouble"] == []
    assert "spoilt" not in response.content.decode()
