"""A process whose clock is an hour off, either way, does just what others do: all instants are the database's."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection

from tests.faults.racers import an_id
from tests.races.calls import request
from tests.races.processes import race
from workloads import authority
from workloads.contract import Timeouts

HOURS = (-1, 0, 1)
HALF_AN_HOUR = 1_800_000
SKEWED = "tests.faults.racers.with_clock"

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def verified() -> Iterator[None]:
    if connection.vendor == "sqlite" and "mode=memory" in str(connection.settings_dict["NAME"]):
        pytest.skip("A database in memory has one process.")
    yield
    assert list(authority.verify()) == []


def life(key: str) -> list[tuple[str, dict[str, Any]]]:
    """A life of a workload in calls, with deadlines and leases that an hour would break."""
    every = dict.fromkeys(("overall_ms", "queue_ms", "claim_ms", "execution_ms", "heartbeat_ms"), HALF_AN_HOUR)
    given = {"worker_id": "w", "capabilities": [], "lease_ms": HALF_AN_HOUR}
    return [
        # An application of its own: nobody goes first there.
        ("admit", {"key": key, "application_id": key, "definition_id": key, "timeouts": {"timeouts": every}}),
        ("enforce_deadlines", {}),
        ("claim", {"workload_id": "0.workload_id", **given}),
        ("recover_expired", {}),
        ("start", {"fence": "2.fence"}),
        ("heartbeat", {"fence": "2.fence", "extend_ms": 2 * HALF_AN_HOUR}),
        ("checkpoint", {"fence": "2.fence", "state": 1}),
        ("run_pass", {}),
        ("fail", {"fence": "2.fence", "kind": "timeout", "error": "", "retry_after_ms": HALF_AN_HOUR}),
        ("claim", {"workload_id": "0.workload_id", **given}),
        ("claim_next", {"definitions": [key], **given}),
        ("explain", {"workload_id": "0.workload_id"}),
        ("time_out", {"workload_id": "0.workload_id", "actor": "op"}),
        ("rearm", {"workload_id": "0.workload_id", "actor": "op", "reason": "again"}),
        ("claim_next", {"definitions": [key], "start": True, "until_found": True, **given}),
        ("complete", {"fence": "14.fence", "result_id": key, "output": 1}),
        ("get", {"workload_id": "0.workload_id"}),
    ]


def test_a_life_is_the_same_whatever_the_process_thinks_the_time_is() -> None:
    answers = race([(SKEWED, hours, life(f"k{place}")) for place, hours in enumerate(HOURS)])
    early, right, late = answers
    assert early == right == late
    assert right[0]["state"] == "READY" and right[0]["created_at"] == 0
    assert right[2]["lease_left"] == 30
    assert right[5]["expires_at"] == 60
    assert right[8]["decision"] == "retry" and right[8]["next_attempt_at"] == 30
    assert right[9][0] == "WORKLOAD_NOT_READY"
    assert right[10] == []
    assert right[16]["state"] == "SUCCEEDED"


def test_nobody_takes_anothers_work_for_the_sake_of_a_clock() -> None:
    """Leases and deadlines of half an hour, and passes, claims and calls by processes an hour early and late."""
    timeouts = Timeouts(queue_ms=HALF_AN_HOUR, execution_ms=HALF_AN_HOUR)
    authority.admit_many([request(f"k{n}", timeouts=timeouts) for n in range(6)])
    held = authority.claim_next(worker_id="w", capabilities=(), lease_ms=HALF_AN_HOUR, limit=3, start=True)
    given = {"capabilities": [], "lease_ms": 1_000, "limit": 1, "until_found": True}
    answers = race(
        [
            (
                SKEWED,
                hours,
                [
                    ("run_pass", {}),
                    ("claim_next", {"worker_id": f"w{hours}", **given}),
                    ("heartbeat", {"fence": dataclasses.asdict(claim.fence), "extend_ms": HALF_AN_HOUR}),
                    ("complete", {"fence": dataclasses.asdict(claim.fence), "result_id": claim.claim_id, "output": 1}),
                ],
            )
            for hours, claim in zip(HOURS, held, strict=True)
        ]
    )
    for answer in answers:
        assert answer[0] == {"timed_out": [], "recovered": [], "unsatisfiable": [], "failed": {}}
        assert [claim["claimed_at"] for claim in answer[1]] == [0]
        assert answer[2]["expires_at"] == 30
        assert "at" in answer[3]
    states = sorted(authority.get(an_id(f"k{n}")).state for n in range(6))
    assert states == ["CLAIMED"] * 3 + ["SUCCEEDED"] * 3


@pytest.mark.parametrize("hours", HOURS)
def test_a_lease_that_is_over_is_over_for_every_clock(hours: int) -> None:
    authority.admit(request("k"))
    (claim,) = authority.claim_next(worker_id="w", capabilities=(), lease_ms=1, start=True)
    fence = dataclasses.asdict(claim.fence)
    (answer,) = race([(SKEWED, hours, [("heartbeat", {"fence": fence, "extend_ms": 1_000}), ("run_pass", {})])])
    assert answer[0][0] == "WORKLOAD_LEASE_EXPIRED"
    assert answer[1]["recovered"] == [claim.workload_id]
