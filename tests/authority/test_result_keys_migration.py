"""Results that were stored when every key was a digest alone are found by the keys of now; and there is a way back."""

from __future__ import annotations

import importlib
import uuid
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connection
from django.db.migrations.loader import MigrationLoader

from tests.authority.builders import ENDED_AT, running
from tests.support import at
from workloads import authority
from workloads.authority.dependencies import key_of, result_key_of
from workloads.models import Result

pytestmark = pytest.mark.django_db

migration: Any = importlib.import_module("workloads.migrations.0006_result_keys")
IDS = ["0123456789ab7" + "f" * 19, "r", "fedcba987654" + "7" + "0" * 19, "0123456789ab4" + "f" * 19, "é"]


def keys() -> dict[str, uuid.UUID]:
    return dict(Result.objects.values_list("result_id", "result_key"))


def run(way: str) -> None:
    (operation,) = migration.Migration.operations
    # Of the editor of schemas, which SQLite opens in no transaction, the connection alone is asked for.
    editor = SimpleNamespace(connection=connection)
    getattr(operation, way)(MigrationLoader(connection).project_state([("workloads", "0006_result_keys")]).apps, editor)


def test_results_are_found_by_their_keys_after_the_migration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migration, "PART", 2)
    fences = [running(f"k{n}") for n in range(len(IDS))]
    first = [
        authority.complete(fence, result_id=result_id, output=1, now=ENDED_AT)
        for fence, result_id in zip(fences, IDS, strict=True)
    ]
    made = keys()
    assert made == {result_id: result_key_of("t", result_id) for result_id in IDS}
    run("reverse_code")
    assert keys() == {result_id: key_of("t", result_id) for result_id in IDS}
    assert keys() != made
    for _ in range(2):
        run("code")
        assert keys() == made
    again = [
        authority.complete(fence, result_id=result_id, output=1, now=at(900_000))
        for fence, result_id in zip(fences, IDS, strict=True)
    ]
    assert again == first
    assert list(authority.verify(now=at(900_000))) == []


def test_a_key_that_is_taken_and_a_result_of_no_workload_stop_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """As two versions that ran together would leave it, and a hand."""
    for n, result_id in enumerate((*IDS[:3], "gone")):
        authority.complete(running(f"k{n}"), result_id=result_id, output=1, now=ENDED_AT)
    run("reverse_code")
    old = keys()
    # Another workload's result has the id of the first, under the key that the code of now looks for.
    with connection.cursor() as cursor:
        cursor.execute("UPDATE workloads_result SET result_id = %s WHERE result_id = 'gone'", [IDS[0]])
    twins = Result.objects.filter(result_id=IDS[0]).order_by("pk")
    set_key(twins[1].pk, result_key_of("t", IDS[0]))
    caplog.clear()
    run("code")
    assert [row.result_key for row in twins] == [old[IDS[0]], result_key_of("t", IDS[0])]
    assert [record.getMessage() for record in caplog.records if IDS[0] in record.getMessage()] != []
    assert keys()[IDS[2]] == result_key_of("t", IDS[2])
    orphan = Result.objects.get(result_id=IDS[2]).pk
    with connection.cursor() as cursor:
        cursor.execute("UPDATE workloads_result SET record = 999999999 WHERE record = %s", [orphan])
    run("reverse_code")
    assert keys()[IDS[2]] == result_key_of("t", IDS[2])
    assert keys()["r"] == key_of("t", "r")


def set_key(pk: int, key: uuid.UUID) -> None:
    with connection.cursor() as cursor:
        value = Result._meta.get_field("result_key").get_db_prep_value(key, connection)
        cursor.execute("UPDATE workloads_result SET result_key = %s WHERE record = %s", [value, pk])
