"""What calls by token are spared, and what that must not change: who may, as of now, and what an answer looks like."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import connection, connections
from django.test.utils import CaptureQueriesContext
from django.utils import translation
from knox.models import AuthToken

from tests.api.tools import Caller, admission, claiming, place, refusal
from tests.api.world import ALL, admit
from workloads.api.compiled import Compiled
from workloads.api.liveness import trust_those_in_use
from workloads.models import Access, Admitted

pytestmark = pytest.mark.django_db


@pytest.fixture
def caller() -> Caller:
    return Caller("alma", place(*ALL))


def test_a_call_reads_its_token_user_and_access_at_once(caller: Caller) -> None:
    with CaptureQueriesContext(connection) as captured:
        assert caller.post("claims/", claiming()).status == 200
    asked = [q["sql"] for q in captured if "knox_authtoken" in q["sql"] or "workloads_access" in q["sql"]]
    assert len(asked) == 1 and "auth_user" in asked[0]


def test_what_an_administrator_takes_back_is_gone_with_the_next_call(caller: Caller) -> None:
    assert caller.post("claims/", claiming()).status == 200
    Access.objects.update(is_worker=False)
    refusal(caller.post("claims/", claiming()), 403, "FORBIDDEN")
    Access.objects.all().delete()
    refusal(caller.post("workloads/", admission()), 403, "FORBIDDEN")
    get_user_model().objects.update(is_active=False)
    refusal(caller.post("claims/", claiming()), 401, "UNAUTHENTICATED")
    get_user_model().objects.update(is_active=True)
    AuthToken.objects.all().delete()
    refusal(caller.post("claims/", claiming()), 401, "UNAUTHENTICATED")


def test_a_token_that_is_over_is_refused_and_cleared_away(caller: Caller) -> None:
    AuthToken.objects.update(expiry=dt.datetime.now(dt.UTC) - dt.timedelta(seconds=1))
    refusal(caller.post("claims/", claiming()), 401, "UNAUTHENTICATED")
    assert not AuthToken.objects.exists()


def test_the_users_other_tokens_that_are_over_are_cleared_away_by_a_call_that_reads(caller: Caller) -> None:
    AuthToken.objects.create(caller.user, expiry=dt.timedelta(seconds=-1))
    assert caller.post("claims/", claiming()).status == 200
    assert AuthToken.objects.count() == 2
    assert caller.get("workloads/").status == 200
    assert AuthToken.objects.count() == 1


def test_a_user_of_many_places_has_them_all() -> None:
    caller = Caller("alma", *(place("requester", application=f"a-{number}") for number in range(5)))
    for number in range(5):
        body = admission(f"k-{number}", application_id=f"a-{number}")
        assert caller.post("workloads/", body).status == 201


def test_an_answer_says_the_same_in_its_headers_by_token_and_by_session(caller: Caller) -> None:
    browser = Caller(None)
    browser.client.force_login(caller.user)
    by_token = caller.post("claims/", claiming())
    by_session = browser.post("claims/", claiming())
    assert by_token.status == by_session.status == 200
    own = {name: value for name, value in by_token.headers.items() if name != "Vary"}
    assert own == {name: value for name, value in by_session.headers.items() if name != "Vary"}
    # What is read by a session differs by its cookie besides.
    assert by_token.headers["Vary"] == "Accept-Language" and "Accept-Language" in by_session.headers["Vary"]


def test_a_call_by_token_does_not_speak_the_language_of_the_page_before_it(caller: Caller) -> None:
    # What a page leaves behind in its thread is put right at the end.
    with translation.override("en"):
        assert caller.client.get("/", headers={"accept-language": "de"}).headers["Content-Language"] == "de"
        assert translation.get_language() == "de"
        assert caller.post("claims/", claiming()).headers["Content-Language"] == "en"
        assert translation.get_language() == "en"


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 5, 8, 9])
def test_a_query_that_is_built_once_finds_what_the_orm_finds(size: int) -> None:
    ids = [admit(f"k-{number}", capability_snapshot={"a"}) for number in range(10)]
    columns = ("workload_id", "created_at", "capability_snapshot", "input", "ancestry_is_closed")
    query = Compiled(Admitted, by="workload_id", columns=columns)
    for wanted in (ids[:size], ids[:size][::-1], ["workload_of_none"][:size], ids[10 - size :]):
        with CaptureQueriesContext(connection) as captured:
            found = query.read(wanted)
        assert len(captured) == bool(wanted)
        assert sorted(found) == sorted(Admitted.objects.filter(workload_id__in=wanted).values_list(*columns))


@pytest.mark.django_db(transaction=True)
def test_a_connection_is_taken_for_alive_while_it_is_in_use_and_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    if connection.vendor != "postgresql":
        pytest.skip("Elsewhere each request asks.")

    mine: Any = connections["default"]

    def is_trusted() -> bool:
        # As a request does where it begins.
        mine.health_check_done = False
        trust_those_in_use()
        return bool(mine.health_check_done)

    mine.ensure_connection()
    monkeypatch.setattr(mine, "health_check_enabled", True)
    monkeypatch.setitem(vars(mine), "workloads_served", (None, 0.0))
    assert [is_trusted(), is_trusted()] == [False, True]
    session, when = vars(mine)["workloads_served"]
    vars(mine)["workloads_served"] = (session, when - 60)
    assert [is_trusted(), is_trusted()] == [False, True]
    other: Any = connections.create_connection("default")
    try:
        with other.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s, 5000)", [session.info.backend_pid])
    finally:
        other.close()
    assert not is_trusted()
    # Django's own question finds out, and another connection is opened.
    assert Admitted.objects.count() == 0
