"""What is answered when something is broken or too much, and what stays recorded all the same."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.core.cache import cache
from django.db import OperationalError, ProgrammingError, connection, connections
from django.test import override_settings
from rest_framework.settings import api_settings

from tests.api.routes import MISSING, OPEN, ROUTES, Route, body_for
from tests.api.test_errors import overdue
from tests.api.tools import Answer, Caller, admission, claiming, place, refusal
from tests.api.world import ALL, admit, running
from tests.faults.servers import free_port
from workloads import authority
from workloads.models import Workload

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def caller() -> Caller:
    return Caller("alma", place(*ALL))


@contextmanager
def database_away(folder: Any) -> Iterator[None]:
    """Point the connection at a port where nothing listens, or at a folder that is not there."""
    connection.close()
    kept = dict(connection.settings_dict)
    if connection.vendor == "sqlite":
        connection.settings_dict["NAME"] = str(folder / "nothing" / "db.sqlite3")
    else:
        connection.settings_dict["PORT"] = str(free_port())
    try:
        yield
    finally:
        connection.close()
        connection.settings_dict.update(kept)


def test_a_database_that_is_away_is_503_for_every_call(caller: Caller, tmp_path: Any) -> None:
    with database_away(tmp_path):
        for route in (r for r in ROUTES if r.key not in OPEN):
            # The token can't be looked up.
            answer = caller.ask(route.method, route.url(), body_for(route))
            assert refusal(answer, 503, "UNAVAILABLE") is None
            assert int(answer.headers["Retry-After"]) >= 1
        answer = caller.get("health/")
        assert (answer.status, answer.body) == (503, {"ok": False}) and "Retry-After" in answer.headers
        assert caller.get("schema/").status == 200
    assert caller.post("workloads/", admission()).status == 201


def test_so_it_is_for_a_session(caller: Caller, tmp_path: Any) -> None:
    browser = Caller(None)
    browser.client.force_login(caller.user)
    with database_away(tmp_path):
        refusal(browser.get("workloads/"), 503, "UNAVAILABLE")
        refusal(browser.post("workloads/", admission()), 503, "UNAVAILABLE")
    assert browser.post("workloads/", admission()).status == 201


@pytest.mark.parametrize(
    "broken_at", ["knox_authtoken", "workloads_access", "workloads_admitted", "INSERT", "workloads_event"]
)
def test_a_connection_that_breaks_under_a_call_is_503_and_the_call_may_be_repeated(
    caller: Caller, broken_at: str
) -> None:
    if connection.vendor == "sqlite":
        pytest.skip("SQLite has no connection that another could end.")
    ended = []

    def end(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if broken_at in sql and not ended:
            ended.append(sql)
            _end_from_elsewhere()
        return execute(sql, params, many, context)

    with connection.execute_wrapper(end):
        answer = caller.post("workloads/", admission())
    assert ended
    refusal(answer, 503, "UNAVAILABLE")
    connection.close()
    assert Workload.objects.count() == 0
    assert caller.post("workloads/", admission()).status == 201


def _end_from_elsewhere() -> None:
    other = connections.create_connection("default")
    if connection.vendor == "postgresql":
        mine = connection.connection.info.backend_pid
        sql = "SELECT pg_terminate_backend(%s, 5000)"
    else:
        mine, sql = connection.connection.thread_id(), "KILL CONNECTION %s"
    try:
        with other.cursor() as cursor:
            cursor.execute(sql, [mine])
    finally:
        other.close()


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("hunter2 in SELECT"),
        ProgrammingError("relation hunter2"),
        KeyError("hunter2"),
        AttributeError("hunter2"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_nobody_expected_is_500_told_to_the_log_alone(
    caller: Caller, error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    workload_id = admit()

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise error

    monkeypatch.setattr(authority, "get", broken)
    with caplog.at_level(logging.ERROR, "workloads.api"):
        answer = caller.get(f"workloads/{workload_id}/")
    assert refusal(answer, 500, "INTERNAL_ERROR") is None
    assert "hunter2" not in answer.text and "Retry-After" not in answer.headers
    (record,) = [r for r in caplog.records if r.name == "workloads.api"]
    assert record.exc_info is not None and record.exc_info[1] is error


def test_an_error_of_the_database_is_told_to_nobody(caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **kwargs: Any) -> Any:
        raise OperationalError("could not connect to hunter2: SELECT")

    monkeypatch.setattr(authority, "get", broken)
    answer = caller.get(f"workloads/{MISSING}/")
    refusal(answer, 503, "UNAVAILABLE")
    assert "hunter2" not in answer.text


@pytest.fixture
def atomic_requests() -> Iterator[None]:
    kept = connection.settings_dict["ATOMIC_REQUESTS"]
    connection.settings_dict["ATOMIC_REQUESTS"] = True
    yield
    connection.settings_dict["ATOMIC_REQUESTS"] = kept


@pytest.mark.usefixtures("atomic_requests")
def test_under_atomic_requests_a_refused_late_call_leaves_its_time_out(caller: Caller) -> None:
    workload_id, held = overdue()
    seen: list[bool] = []

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if "workloads_access" in sql:
            seen.append(connection.in_atomic_block)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(note):
        answer = caller.post(f"workloads/{workload_id}/heartbeat/", held | {"extend_ms": 1})
    assert refusal(answer, 409, "WORKLOAD_TIMED_OUT")["deadline"] == "overall"
    assert seen == [False]
    connection.close()
    assert authority.get(workload_id).state == "DEAD_LETTER"


@pytest.mark.parametrize("route", ROUTES, ids=str)
def test_no_path_runs_under_atomic_requests_on_any_database(route: Route) -> None:
    view = route.view.as_view()
    assert view._non_atomic_requests >= set(connections)
    assert view.csrf_exempt


def test_a_batch_that_is_refused_in_part_is_committed_in_part(caller: Caller) -> None:
    workload_id, held = overdue()
    other, fence = running("another key")
    items = [{"workload_id": id_, **f, "extend_ms": 1_000} for id_, f in ((workload_id, held), (other, fence))]
    answer = caller.post("heartbeats/", {"items": items})
    assert [outcome["status"] for outcome in answer.outcomes] == [409, 200]
    assert authority.get(workload_id).state == "DEAD_LETTER"


def rates(**given: str) -> Any:
    framework = dict(api_settings.user_settings) | {
        "DEFAULT_THROTTLE_RATES": {f"workloads.{role}": rate for role, rate in given.items()}
    }
    return override_settings(REST_FRAMEWORK=framework)


@pytest.fixture
def empty_cache() -> Iterator[None]:
    cache.clear()
    yield
    cache.clear()


CALLS = {
    "requester": ("POST", "workloads/", admission()),
    "worker": ("POST", "claims/", claiming()),
    "operator": ("POST", f"workloads/{MISSING}/cancel/", {}),
    "viewer": ("GET", "workloads/", None),
}


@pytest.mark.usefixtures("empty_cache")
def test_each_role_has_a_rate_of_its_own(caller: Caller) -> None:
    other = Caller("otto", place(*ALL))

    def ask(role: str, who: Caller = caller) -> Answer:
        return who.ask(*CALLS[role])

    for role in CALLS:
        # Without a rate nobody is counted.
        assert all(ask(role).status in (200, 201, 404) for _ in range(5))
    for role in CALLS:
        cache.clear()
        with rates(**{role: "2/minute"}):
            assert [ask(role).status == 429 for _ in range(3)] == [False, False, True]
            answer = ask(role)
            assert refusal(answer, 429, "THROTTLED") is None
            assert 1 <= int(answer.headers["Retry-After"]) <= 60
            assert ask(role, other).status != 429
            assert all(ask(another).status != 429 for another in CALLS if another != role)


@pytest.mark.usefixtures("empty_cache")
def test_reading_checkpoints_is_no_workers_call_and_health_is_not_counted(caller: Caller) -> None:
    workload_id, held = running()
    path = f"workloads/{workload_id}/checkpoints/"
    with rates(worker="1/minute", requester="1/minute"):
        assert [caller.get(path).status for _ in range(3)] == [200] * 3
        assert caller.post(path, held | {"state": 1}).status == 200
        assert caller.post(path, held | {"state": 2}).status == 429
        assert [caller.get("workloads/").status for _ in range(3)] == [200] * 3
    with rates(viewer="1/minute"):
        assert all(caller.get("health/").status != 429 for _ in range(3))
    assert len(authority.get(workload_id).checkpoints.all()) == 2
