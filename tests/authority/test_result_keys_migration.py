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


def run(way: Any) -> None:
    # Of the editor of schemas, which SQLite opens in no transaction, the connection alone is asked for.
    editor = SimpleNamespace(connection=connection)
    way(MigrationLoader(connection).project_state([("workloads", "0006_result_keys")]).apps, editor)


def test_results_are_found_by_their_keys_after_the_migration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migration, "PART", 2)
    fences = [running(f"k{n}") for n in range(len(IDS))]
    first = [
        authority.complete(fence, result_id=result_id, output=1, now=ENDED_AT)
        for fence, result_id in zip(fences, IDS, strict=True)
    ]
    made = keys()
    assert made == {result_id: result_key_of("t", result_id) for result_id in IDS}
    run(migration.be_digests)
    assert keys() == {result_id: key_of("t", result_id) for result_id in IDS}
    assert keys() != made
    for _ in range(2):
        run(migration.begin_with_the_instant)
        assert keys() == made
    again = [
        authority.complete(fence, result_id=result_id, output=1, now=at(900_000))
        for fence, result_id in zip(fences, IDS, strict=True)
    ]
    assert again == first
    assert list(authority.verify(now=at(900_000))) == []
