"""Figures: how much stands where, what has happened of late, and the state of the site's health."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.db import connection

from tests.api.routes import shapes_of_queries
from tests.api.tools import Caller, place, refusal
from tests.api.world import CALLERS, admit, claim, dead, done, running
from workloads import authority
from workloads.api import figures
from workloads.contract import Dependency, WorkloadState

pytestmark = pytest.mark.django_db


@pytest.fixture
def operator() -> Caller:
    return CALLERS["operator"]()


def shift(table: str, column: str, **ago: int) -> None:
    """Move a column's instants into the past."""
    at = authority.read_clock() - dt.timedelta(**ago)
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE {table} SET {column} = %s", [connection.ops.adapt_datetimefield_value(at)])


def test_counts_by_state(operator: Caller) -> None:
    running()
    done()
    dead()
    admit("waits", dependencies=[Dependency(workload_id="workload_x")])
    for number in range(3):
        admit(f"ready {number}", definition_revision=str(number % 2))
    said = operator.get("stats/").body
    counts = {state: count["count"] for state, count in said["counts"].items() if count["count"]}
    assert counts == {"READY": 4, "CHECKPOINTED": 1, "SUCCEEDED": 1, "DEAD_LETTER": 1}
    assert said["counts"].keys() == set(WorkloadState)
    assert said["last"]["minute"] == said["last"]["hour"]
    assert {name: found["count"] for name, found in said["last"]["minute"].items()} == {
        "claims": 3,
        "completions": 1,
        "failures": 1,
    }
    said = operator.get("stats/?definition_revision=1&state=READY&state=CLAIMED").body
    assert sum(count["count"] for count in said["counts"].values()) == 1
    assert said["last"]["hour"]["claims"]["count"] == 0


def test_counts_are_capped_and_say_so(operator: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    assert figures.MOST_COUNTED == 10_000
    monkeypatch.setattr(figures, "MOST_COUNTED", 3)
    for number in range(3):
        claim(admit(f"k-{number}"))
    said = operator.get("stats/").body
    assert said["counts"]["CLAIMED"] == said["last"]["hour"]["claims"] == {"count": 3, "more": False}
    claim(admit("one more"))
    said = operator.get("stats/").body
    assert said["counts"]["CLAIMED"] == said["last"]["hour"]["claims"] == {"count": 3, "more": True}


def test_what_happened_of_late_is_forgotten_in_time(operator: Caller) -> None:
    done()
    dead()

    def late() -> list[list[int]]:
        said = operator.get("stats/").body["last"]
        return [[said[span][name]["count"] for name in ("claims", "completions", "failures")] for span in said]

    assert late() == [[2, 1, 1], [2, 1, 1]]
    for ago, expected in (({"minutes": 2}, [[0, 0, 0], [2, 1, 1]]), ({"hours": 2}, [[0, 0, 0], [0, 0, 0]])):
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                # Events are never changed, but for this.
                cursor.execute("ALTER TABLE workloads_event DISABLE TRIGGER workloads_event_is_kept")
        shift("workloads_event", "at", **ago)
        shift("workloads_workload", "finished_at", **ago)
        assert late() == expected


def test_the_age_of_the_oldest_that_could_be_claimed(operator: Caller) -> None:
    assert operator.get("stats/").body["oldest_claimable_ms"] is None
    admit("waits", dependencies=[Dependency(workload_id="workload_x")])
    claim(admit("held"))
    admit("later", not_before=authority.read_clock() + dt.timedelta(hours=1))
    assert operator.get("stats/").body["oldest_claimable_ms"] is None
    admit("ready")
    assert 0 <= operator.get("stats/").body["oldest_claimable_ms"] < 60_000
    shift("workloads_workload", "next_attempt_at", minutes=5)
    assert 300_000 <= operator.get("stats/").body["oldest_claimable_ms"] < 360_000
    assert operator.get("stats/?definition_id=none").body["oldest_claimable_ms"] is None


def test_figures_of_several_places(operator: Caller) -> None:
    for application in ("invoices", "payroll", "orders"):
        done(application, application_id=application)
    sam = Caller(
        "sam", place("operator"), place("viewer", application="payroll"), place("worker", application="orders")
    )
    assert sam.get("stats/").body["counts"]["SUCCEEDED"]["count"] == 2
    assert sam.get("stats/?application_id=payroll").body["last"]["hour"]["claims"]["count"] == 1
    refusal(sam.get("stats/?application_id=orders"), 403, "FORBIDDEN")
    assert sam.get("stats/?application_id=elsewhere").body["counts"]["SUCCEEDED"]["count"] == 0
    refusal(sam.get("workloads/?application_id=orders"), 403, "FORBIDDEN")
    assert sam.get("workloads/?application_id=elsewhere").body["results"] == []


def test_health_tells_its_details_to_those_with_access_alone() -> None:
    asked: dict[str, Any] = {name: made() for name, made in CALLERS.items()}
    for status in (503, 200):
        for name, caller in asked.items():
            answer = caller.get("health/")
            assert answer.status == status and answer.body["ok"] is (status == 200)
            if name in ("nobody", "without access"):
                assert list(answer.body) == ["ok"]
            else:
                parts = answer.body["details"]
                assert parts["database"] == {"ok": True} and parts["migrations"] == {"ok": True, "missing": 0}
                assert parts["pass"]["ok"] is (status == 200)
            assert ("Retry-After" in answer.headers) is (status == 503)
        authority.run_pass()
    shift("workloads_passrun", "ran_at", minutes=6)
    answer = asked["viewer"].get("health/")
    assert answer.status == 503 and 360_000 <= answer.body["details"]["pass"]["age_ms"] < 400_000


def test_health_sees_a_migration_that_is_missing() -> None:
    authority.run_pass()
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM django_migrations WHERE app = 'workloads' AND name LIKE '0003%%'", [])
    answer = CALLERS["viewer"]().get("health/")
    assert answer.status == 503
    assert answer.body["details"]["migrations"] == {"ok": False, "missing": 1}


def test_health_costs_next_to_nothing() -> None:
    nobody = CALLERS["nobody"]()
    nobody.get("health/")
    with shapes_of_queries() as asked:
        nobody.get("health/")
    assert len(asked) <= 5
