"""Replays of admissions: what must be equal, what need not be, and keys that are retired. Section 4, "Replay"."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from tests.authority.builders import EVERY, admit, bring, id_of, refused, request, text, unchanged
from tests.support import T0, at
from workloads import authority
from workloads.contract import Backoff, Dependency, RetryPolicy, Timeouts, WorkloadState
from workloads.errors import WorkloadError
from workloads.models import Tombstone, Workload

pytestmark = pytest.mark.django_db

CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("definition_id", {"definition_id": "e"}),
    ("definition_id", {"definition_id": "D"}),
    ("definition_revision", {"definition_revision": "2"}),
    ("environment", {"environment": "staging"}),
    ("input", {"input": {"amount": 11}}),
    ("input", {"input": None}),
    ("capability_snapshot", {"capability_snapshot": {"a"}}),
    ("capability_snapshot", {"capability_snapshot": {"a", "b", "c"}}),
    ("connection_scopes", {"connection_scopes": ()}),
    ("priority", {"priority": 6}),
    ("retry_policy", {"retry_policy": RetryPolicy(max_attempts=4)}),
    ("retry_policy", {"retry_policy": RetryPolicy(backoff=Backoff.FIXED)}),
    ("retry_policy", {"retry_policy": RetryPolicy(initial_delay_ms=1)}),
    ("retry_policy", {"retry_policy": RetryPolicy(max_delay_ms=1)}),
    ("retry_policy", {"retry_policy": RetryPolicy(jitter=0.1)}),
    ("retry_policy", {"retry_policy": RetryPolicy(retry_on={"timeout"})}),
    ("timeouts", {"timeouts": Timeouts(queue_ms=1_000, overall_ms=1)}),
    ("timeouts", {"timeouts": Timeouts()}),
    ("dependencies", {"dependencies": [Dependency(workload_id="x")]}),
    (
        "dependencies",
        {
            "dependencies": [
                Dependency(workload_id="x"),
                Dependency(workload_id="y", required_state=WorkloadState.DEAD_LETTER),
            ]
        },
    ),
    ("not_before", {"not_before": None}),
    ("not_before", {"not_before": at(1_001)}),
]

BASE: dict[str, Any] = {
    "input": {"amount": 10},
    "capability_snapshot": {"a", "b"},
    "connection_scopes": {"s"},
    "priority": 5,
    "timeouts": Timeouts(queue_ms=1_000),
    "dependencies": [
        Dependency(workload_id="x"),
        Dependency(workload_id="y", required_state=WorkloadState.CANCELLED),
    ],
    "not_before": at(1_000),
}


@pytest.mark.parametrize(("field", "change"), CHANGES)
def test_another_value_of_a_compared_field_is_refused_by_its_name(field: str, change: dict[str, Any]) -> None:
    workload_id = admit(**BASE)
    with unchanged(workload_id), refused("IDEMPOTENCY_KEY_REUSED", {"fields": [field]}):
        authority.admit(request(**(BASE | change)), now=at(1))


def test_every_differing_field_is_named_in_order() -> None:
    admit(**BASE)
    changed: dict[str, Any] = {}
    for _, change in CHANGES:
        changed |= change
    order = [
        "definition_id",
        "definition_revision",
        "environment",
        "input",
        "capability_snapshot",
        "connection_scopes",
        "priority",
        "retry_policy",
        "timeouts",
        "dependencies",
        "not_before",
    ]
    with refused("IDEMPOTENCY_KEY_REUSED", {"fields": order}):
        authority.admit(request(**(BASE | changed)), now=at(1))


def test_the_same_request_again_is_answered_with_the_same_work() -> None:
    workload_id = admit(**BASE)
    with unchanged(workload_id):
        again = authority.admit(request(**BASE), now=at(86_400_000))
    assert not again.created
    assert again.workload == authority.get(workload_id)
    assert again.workload.created_at == T0
    assert Workload.objects.count() == 1


def test_trigger_session_grant_and_time_are_not_compared() -> None:
    admit(trigger="cron", session_id="one")
    grant = authority.issue_grant(
        subject="user", tenant_id="t", application_id="app", capabilities=[], issued_at=T0, expires_at=at(9_000)
    )
    again = authority.admit(request(trigger="hand", session_id=None, grant=grant), now=at(5_000))
    assert not again.created
    assert (again.workload.trigger, again.workload.session_id, again.workload.grant) == ("cron", "one", None)


def test_sets_compare_as_sets_and_dependencies_without_order() -> None:
    admit(**BASE)
    x, y = BASE["dependencies"]
    same = BASE | {
        "capability_snapshot": ["b", "a", "b"],
        "connection_scopes": ("s", "s"),
        "dependencies": (y, x, y),
        "retry_policy": RetryPolicy(retry_on=["worker_failure", "timeout", "transient_connection", "timeout"]),
    }
    assert not authority.admit(request(**same), now=at(1)).created


def test_a_default_that_is_spelt_out_is_the_same() -> None:
    admit()
    spelt: dict[str, Any] = {
        "definition_revision": "1",
        "environment": "production",
        "input": None,
        "capability_snapshot": [],
        "connection_scopes": frozenset(),
        "priority": 0,
        "retry_policy": RetryPolicy(jitter=0),
        "timeouts": Timeouts(),
        "dependencies": [],
        "not_before": None,
    }
    assert not authority.admit(request(**spelt), now=at(1)).created


def test_an_instant_in_another_zone_is_the_same_instant() -> None:
    admit(not_before=at(1_000))
    elsewhere = at(1_000).astimezone(dt.timezone(dt.timedelta(hours=-7)))
    assert not authority.admit(request(not_before=elsewhere), now=at(1)).created


@pytest.mark.parametrize(
    ("stored", "again"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ([1], [1.0]),
        ([0], [-0.0]),
        ([1, 2], (1, 2)),
        ([10**20], [1e20]),
    ],
)
def test_equal_json_is_the_same_input(stored: Any, again: Any) -> None:
    admit(input=stored)
    assert not authority.admit(request(input=again), now=at(1)).created


@pytest.mark.parametrize(
    ("stored", "other"),
    [
        ({"amount": 10}, {"amount": 11}),
        ([1], [True]),
        ([0], [False]),
        ([1], ["1"]),
        ({"a": None}, {}),
        (["é"], ["e\u0301"]),
        ([1, 2], [2, 1]),
        ([0.1], [0.1 + 2**-55]),
        ([2**53], [2**53 + 1]),
        ({}, []),
    ],
)
def test_other_json_is_other_input(stored: Any, other: Any) -> None:
    admit(input=stored)
    with refused("IDEMPOTENCY_KEY_REUSED", {"fields": ["input"]}):
        authority.admit(request(input=other), now=at(1))


@pytest.mark.parametrize("state", EVERY)
def test_replays_hold_in_any_state_of_the_original(state: str) -> None:
    workload_id, _ = bring(state)
    with unchanged(workload_id):
        again = authority.admit(request(), now=at(10_000))
        assert not again.created
        assert again.workload.state == state
        with refused("IDEMPOTENCY_KEY_REUSED", {"fields": ["priority"]}):
            authority.admit(request(priority=1), now=at(10_000))


def bury(key: str, state: str, finished_at: Any) -> None:
    Tombstone.objects.create(
        workload_id=id_of(key),
        tenant_id="t",
        application_id="app",
        state=state,
        finished_at=finished_at,
        pruned_at=at(9_000),
    )


def test_a_key_whose_work_was_pruned_is_retired() -> None:
    bury("k", "SUCCEEDED", at(8_000))
    expected = {"state": "SUCCEEDED", "finished_at": text(at(8_000))}
    for changes in ({}, {"priority": 9}):
        with refused("IDEMPOTENCY_KEY_RETIRED", expected):
            authority.admit(request(**changes), now=at(10_000))
    assert not Workload.objects.exists()


def test_in_a_batch_a_retired_key_is_refused_alone() -> None:
    bury("gone", "DEAD_LETTER", at(8_000))
    first, second, third = authority.admit_many([request("a"), request("gone"), request("b")], now=at(10_000))
    assert isinstance(second, WorkloadError)
    assert second.code == "IDEMPOTENCY_KEY_RETIRED"
    assert second.details == {"state": "DEAD_LETTER", "finished_at": text(at(8_000))}
    assert first.created  # type: ignore[union-attr]
    assert third.created  # type: ignore[union-attr]
